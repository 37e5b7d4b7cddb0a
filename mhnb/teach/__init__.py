"""Exercises of the lessons: `check` grades an answer on every rank, `predict` and `reveal` set a guess beside what is.

mhnb.teach.check("NAME", answer)      in a %%mhjax cell: each rank judges what it holds itself
mhnb.teach.predict("NAME", answer)    in a plain cell; without an answer it asks with buttons and as text
mhnb.teach.reveal("NAME", value)      the guess beside the value that the ranks gave
mhnb.teach.progress()                 what is right so far, and on which rank it is not
mhnb.teach.recall("NAME")             the answer given last, also after a restart
"""

from __future__ import annotations

from mhnb.teach.checking import check
from mhnb.teach.guessing import predict, reveal
from mhnb.teach.progress import progress, recall

__all__ = ["check", "predict", "progress", "recall", "reveal"]
