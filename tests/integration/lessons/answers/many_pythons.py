"""Answers of the lesson many_pythons."""

from tests.integration.lessons.book import Answer

_LABEL = "%%mhjax\nlabel = {}\nmhnb.teach.check('my_label', label)"
_LOG = "%%mhjax\ndef log(text):\n    {}\nmhnb.teach.check('log_once', log)"
_PULL = "{}\nmhnb.teach.check('pull_each', label)"

ANSWERS = {
    "my_label": Answer(
        [
            (_LABEL.format("'rank 2 of 4'"), "label is 'rank 2 of 4', expected 'rank ‹rank› of 4'"),
            (_LABEL.format("'rank 0 of 4'"), "That is another rank's label"),
            (
                _LABEL.format("f'rank {jax.process_index()} of {jax.device_count()}'"),
                "this is the number of devices",
            ),
            (_LABEL.format("f'rank {jax.process_index() + 1} of 4'"), "ranks are counted from 0"),
            (_LABEL.format("jax.process_index()"), "(int, not str), expected 'rank ‹rank› of 4'"),
            (_LABEL.format("..."), "the cell still contains ...; replace it first"),
        ],
    ),
    "log_once": Answer(
        [
            (_LOG.format("return text"), "log('loss 0.5') is 'loss 0.5', expected None"),
            (_LOG.format("return None"), "so the function must ask on which rank it is"),
            (_LOG.format("return text if jax.process_index() == 1 else None"), "not yet · 01.2 log_once on ranks 0-1"),
            (_LOG.format("print(text)"), "On rank 0 it must return the text; printing returns None"),
            ("%%mhjax\nmhnb.teach.check('log_once', 'loss')", "expected a function of one text"),
        ],
    ),
    "pull_each": Answer(
        [
            (_PULL.format("label = 'rank 0 of 4'"), "expected a list with one label for each rank"),
            (_PULL.format("%mhjax pull label --each\nlabel = label[::-1]"), "the label of rank 0 is 'rank 3 of 4'"),
            (_PULL.format("%mhjax pull label --each --ranks 0"), "the list has 1 label expected one for each rank"),
            ("%%mhjax\nmhnb.teach.check('pull_each', label)", "remove %%mhjax from this cell"),
        ],
        setup="%%mhjax\nlabel = f'rank {jax.process_index()} of {jax.process_count()}'",
    ),
}

SAID = {
    ("many_pythons", "start"): ["4 ranks × 2 CPU devices"],
    ("many_pythons", "everywhere"): [f"rank {rank} of 4, process id" for rank in range(4)],
    ("many_pythons", "lost"): ["name 'x' is not defined", "%mhjax pull x"],
    ("many_pythons", "some"): ["0,2-3", "ran here"],
    ("many_pythons", "push"): ["[0, 10, 20, 30]"],
    ("many_pythons", "ex-my_label"): ["not yet · 01.1 my_label on ranks 0-3", "lesson 01 · ◐○○ 0 of 3 exercises"],
    ("many_pythons", "ex-log_once"): ["not yet · 01.2 log_once on ranks 1-3 · right on rank 0"],
    ("many_pythons", "differ"): ["4 different outputs"],
}
