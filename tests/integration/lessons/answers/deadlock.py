"""Answers of the lesson deadlock."""

from tests.integration.lessons.book import Answer

_REPORT = "%%mhjax\ndef report(x):\n{}\nmhnb.teach.check('log_from_one', report)"
_ANY = "%%mhjax\ndef any_rank(flag):\n    return {}\nmhnb.teach.check('any_rank', any_rank)"
_FLAGS = "multihost_utils.process_allgather(np.array(flag))"
_PAD = """%%mhjax
def pad(rows):
    extra = {extra}
    padded = np.concatenate([rows, np.zeros((extra, 3), np.float32)])
    return {give}

mhnb.teach.check('pad_last', pad)"""
_MASK = "padded, np.arange(len(padded)) < len(rows)"

ANSWERS = {
    "log_from_one": Answer(
        [
            (
                _REPORT.format("    if jax.process_index() == 0:\n        return f'sum {total(x)}'"),
                "finished the cell without reaching it",
            ),
            (
                _REPORT.format(
                    "    text = f'sum {float(total(x))}'\n    if jax.process_index() == 0:\n        print(text)"
                ),
                "not yet · 09.1 log_from_one on rank 0 · right on ranks 1-3",
            ),
            (_REPORT.format("    return f'sum {float(total(x))}'"), "Every rank returned the text"),
            (
                _REPORT.format(
                    "    local = sum(float(s.data.sum()) for s in x.addressable_shards)\n"
                    "    return f'sum {local}' if jax.process_index() == 0 else None"
                ),
                "That is the sum of this rank's own shards",
            ),
        ],
    ),
    "any_rank": Answer(
        [
            (_ANY.format("flag"), "This rank's flag is not set, so the answer must come from the others"),
            (_ANY.format(f"bool({_FLAGS}.all())"), "not yet · 09.2 any_rank on ranks 0-3"),
            (_ANY.format(f"flag or bool({_FLAGS}.any())"), "finished the cell without reaching it"),
            (_ANY.format(_FLAGS), "any_rank returns a NumPy array of shape (4,), expected one boolean"),
            (_ANY.format("True"), "with the flag set on no rank, is True, expected False"),
            (_ANY.format(f"bool({_FLAGS}.any()) if flag else False"), "raised an error before reaching it"),
        ],
    ),
    "pad_last": Answer(
        [
            (_PAD.format(extra="0", give=_MASK), "the padded rows have shape (3, 3), expected (4, 3) from 3 rows"),
            (
                _PAD.format(extra="4 - len(rows)", give="padded, np.ones(4, bool)"),
                "It is True for real rows, even for a row of zeros",
            ),
            (_PAD.format(extra="4 - len(rows)", give="padded, padded.any(axis=1)"), "even for a row of zeros"),
            (_PAD.format(extra="4 - len(rows)", give="padded"), "expected two values: the padded rows and the mask"),
            (_PAD.format(extra="4 - len(rows)", give="padded[::-1], np.arange(4) < len(rows)"), "rows, then zeros"),
        ],
    ),
}

SAID = {
    ("deadlock", "setup"): ["total 28.0"],
    ("deadlock", "one"): ["OrderMismatch", "rank 0", "ranks 1-3", "finished the cell without reaching it"],
    # Whether the interrupt finds rank 0 in Python or in C differs by machine, and so does the text before these words.
    ("deadlock", "hang"): ["tainted", "a collective", "ranks 0-3"],
    ("deadlock", "reveal-prints_of_b"): ["it is 4"],
    ("deadlock", "refused"): ["NotClean", "was not run"],
    ("deadlock", "card"): ["ranks 0-1,3 in jit(sum)", "missing · rank 2 in sleep, line 4", "clean"],
    ("deadlock", "shard"): ["rank 2", "[4.]"],
    ("deadlock", "equal"): ["AssertionError", "the number of steps differs", "[10 10 9 10]"],
    ("deadlock", "late-table"): ["first difference: In [3], launch", "last difference: In [10], launch"],
    ("deadlock", "subset"): ["OrderMismatch", "this cell runs only on rank 0"],
    ("deadlock", "hidden"): ["OrderMismatch"],
    ("deadlock", "right"): ["total 28.0", "rank 0"],
    ("deadlock", "claims"): ["cpu · gloo"],
    ("deadlock", "replay"): ["left out · In [5]: stopped by its --timeout"],
}
