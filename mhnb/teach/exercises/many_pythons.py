"""Lesson 01: one notebook, many Pythons."""

from __future__ import annotations

from typing import Any

from mhnb.teach.compare import call, value_is
from mhnb.teach.exercise import Differs, Exercise, Here, Prediction

__all__ = ["TASKS"]


def _my_label(here: Here, label: Any) -> str:
    value_is(label, f"rank {here.rank} of {here.process_count}", "label")
    return "each rank has a label of its own"


def _log_once(here: Here, log: Any) -> str:
    for text in ("loss 0.5", "loss 0.25"):
        got = call(log, text, what="of one text")
        value_is(
            got,
            text if here.rank == 0 else None,
            f"log({text!r})",
            hint="Rank 0 returns the text, every other rank None",
        )
    return "rank 0 returns the text, the others None"


def _pull_each(here: Here, labels: Any) -> str:
    del here
    if not isinstance(labels, list):
        raise Differs(f"expected a list with one label for each rank, and got {type(labels).__name__} {labels!r}")
    if len(labels) < 2:
        raise Differs(f"the list has {len(labels)} labels, expected one for each rank")
    for rank, label in enumerate(labels):
        value_is(label, f"rank {rank} of {len(labels)}", f"the label of rank {rank}")
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
        where="notebook",
    ),
)
