"""Exercises of the lesson: one notebook, many Pythons."""

from __future__ import annotations

from typing import Any

from mhnb.core.ranks import pluralize
from mhnb.teach.check import assert_equal, call_answer, name_kind
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer


def _my_label(process: ProcessInfo, label: Any) -> str:
    notes = {
        f"rank {process.rank} of {process.device_count}": "N is the number of ranks, and this is the number of devices"
    }
    for rank in range(process.process_count):
        notes[f"rank {rank} of {process.process_count}"] = (
            "That is another rank's label: ranks are counted from 0, and each needs its own number"
        )
    note = notes.get(label, "") if isinstance(label, str) else ""
    assert_equal(label, f"rank {process.rank} of {process.process_count}", "label", note=note)
    return "each rank has its own label"


def _log_once(process: ProcessInfo, log: Any) -> str:
    for text in ("loss 0.5", "loss 0.25"):
        got = call_answer(log, text, what="of one text")
        note = "Every rank runs the same function, so the function must ask on which rank it is"
        if process.rank == 0 and got is None:
            note = f"On rank 0 it must return the text; printing returns None. {note}"
        assert_equal(got, text if process.rank == 0 else None, f"log({text!r})", note=note)
    return "rank 0 returns the text, the others None"


def _pull_each(process: ProcessInfo, labels: Any) -> str:
    del process
    if not isinstance(labels, list):
        raise WrongAnswer(
            f"the answer is {name_kind(labels)}, {labels!r}",
            expected="a list with one label for each rank",
            note="The ranks have different labels, and each of them is wanted",
        )
    if len(labels) < 2:
        raise WrongAnswer(f"the list has {pluralize(len(labels), 'label')}", expected="one for each rank")
    for rank, label in enumerate(labels):
        assert_equal(label, f"rank {rank} of {len(labels)}", f"the label of rank {rank}")
    return f"{len(labels)} labels, in rank order"


LESSON = Lesson(
    "01_many_pythons.ipynb",
    "One notebook, many Pythons",
    (
        Prediction(
            "where_it_lives",
            "Every rank has run x = 1. Is there an x in the notebook?",
            (True, False),
            "A %%mhjax cell sets its variables on the ranks. The notebook is a separate process, which does not see them.",
        ),
        Exercise(
            "my_label",
            "a label for each rank",
            "Set label to 'rank K of N' on each rank, such as 'rank 2 of 4'.",
            _my_label,
            "easy",
            (
                "All ranks run the same line, so the line must ask JAX for both numbers.",
                'The section "The same cell on every rank" prints both numbers.',
                "An f-string can contain the results of `process_index` and `process_count`.",
            ),
        ),
        Exercise(
            "log_once",
            "one rank logs",
            "Write log(text): it returns the text on rank 0 and None on every other rank.",
            _log_once,
            "easy",
            (
                "Only the returned value depends on the rank.",
                "`jax.process_index() == 0` is true on one rank only.",
                "An expression of the form `a if condition else b` is enough.",
            ),
        ),
        Exercise(
            "pull_each",
            "gather the labels",
            "Pull the label of every rank into the notebook, as a list.",
            _pull_each,
            "easy",
            (
                "A flag of %mhjax pull returns each rank's own value.",
                'The section "Copy a value to the ranks and back" copies `y` in this way.',
            ),
            side="notebook",
        ),
    ),
)
