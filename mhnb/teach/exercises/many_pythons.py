"""Lesson 01: one notebook, many Pythons."""

from __future__ import annotations

from typing import Any

from mhnb.teach.compare import assert_equal, call_answer
from mhnb.teach.exercise import Exercise, Prediction, ProcessInfo, WrongAnswer

__all__ = ["TASKS"]


def _my_label(process: ProcessInfo, label: Any) -> str:
    assert_equal(label, f"rank {process.rank} of {process.process_count}", "label")
    return "each rank has a label of its own"


def _log_once(process: ProcessInfo, log: Any) -> str:
    for text in ("loss 0.5", "loss 0.25"):
        got = call_answer(log, text, what="of one text")
        assert_equal(
            got,
            text if process.rank == 0 else None,
            f"log({text!r})",
            hint="Rank 0 returns the text, every other rank None",
        )
    return "rank 0 returns the text, the others None"


def _pull_each(process: ProcessInfo, labels: Any) -> str:
    del process
    if not isinstance(labels, list):
        raise WrongAnswer(f"expected a list with one label for each rank, and got {type(labels).__name__} {labels!r}")
    if len(labels) < 2:
        raise WrongAnswer(f"the list has {len(labels)} labels, expected one for each rank")
    for rank, label in enumerate(labels):
        assert_equal(label, f"rank {rank} of {len(labels)}", f"the label of rank {rank}")
    return f"{len(labels)} labels, in the order of the ranks"


TASKS = (
    Prediction(
        "where_it_lives",
        "01",
        "Every rank has run x = 1. Is there an x in the notebook?",
        (True, False),
        "A %%mhjax cell binds its names on the ranks, and the notebook is a Python of its own.",
    ),
    Exercise("my_label", "01", "Bind label to 'rank K of N' on each rank, such as 'rank 2 of 4'.", _my_label),
    Exercise(
        "log_once", "01", "Write log(text): it returns the text on rank 0 and None on every other rank.", _log_once
    ),
    Exercise(
        "pull_each",
        "01",
        "Bring the label of every rank into the notebook, as a list.",
        _pull_each,
        side="notebook",
    ),
)
