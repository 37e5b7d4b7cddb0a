"""Exercises of the lessons: graded answers, and predictions to compare with results.

mhnb.teach.check("NAME", answer)      in a %%mhjax cell: each rank grades its own data
mhnb.teach.predict("NAME", answer)    in a notebook cell; without an answer it shows the question as buttons and as text
mhnb.teach.reveal("NAME", value)      the guess next to the value that the ranks returned
mhnb.teach.hint("NAME")               one more hint with each call
mhnb.teach.solution("NAME")           a right answer
mhnb.teach.progress()                 what is correct so far, and on which ranks it is not; as_json=True returns it
mhnb.teach.recall("NAME")             the last answer, also after a restart
mhnb.teach.reset("NAME")              delete it, to answer again; also takes a lesson, and all=True
"""

from __future__ import annotations

from mhnb.teach.check import check
from mhnb.teach.hints import hint, solution
from mhnb.teach.predict import predict, reveal
from mhnb.teach.progress import progress, recall, reset

__all__ = ["check", "hint", "predict", "progress", "recall", "reset", "reveal", "solution"]
