"""Lesson 13: from notebook to srun."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from mhnb.core.keep.export_cell import translate_cell
from mhnb.teach.compare import call, value_is
from mhnb.teach.exercise import Differs, Exercise, Here, Prediction

__all__ = ["TASKS"]


def _can_leave(here: Here, source: Any) -> str:
    del here
    if not isinstance(source, str):
        raise Differs(f"source is a {type(source).__name__}, expected the text of a cell")
    made = translate_cell(source)
    if made.refused:
        raise Differs(made.refused[0])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(made.text, "the exported cell", "exec"), {"_show": print})  # noqa: S102 the learner's own cell
    value_is(out.getvalue(), "45\n", "what it prints")
    return "plain Python, and it prints 45"


def _from_environment(here: Here, arguments: Any) -> str:
    del here
    for rank in (0, 3):
        environ = {"MASTER_ADDR": "node7", "MASTER_PORT": "1234", "WORLD_SIZE": "4", "RANK": str(rank), "HOME": "/root"}
        got = call(arguments, environ, what="of the environment")
        if not isinstance(got, dict):
            raise Differs(f"arguments(environ) gives a {type(got).__name__}, expected a dict")
        wanted = {"coordinator_address": "node7:1234", "num_processes": 4, "process_id": rank}
        for name, value in wanted.items():
            value_is(got.get(name), value, f"{name} for RANK={rank}")
        if extra := sorted(set(got) - set(wanted)):
            raise Differs(f"initialize has been given {', '.join(extra)} too, expected {', '.join(wanted)} only")
    value_is(call(arguments, {"HOME": "/root"}, what="of the environment"), {}, "arguments(environ) without the four")
    return "an address, and two numbers; nothing where nothing is set"


TASKS = (
    Prediction(
        "who_logs",
        "13",
        "Two plain processes run the script. How many of them print the line that begins with 'log:'?",
        (0, 1, 2),
        "Both run the same file, and the cell of rank 0 stands under an if.",
    ),
    Exercise(
        "can_leave",
        "13",
        "Write source, the text of a cell in plain Python that prints the sum of the numbers below 10.",
        _can_leave,
        where="notebook",
    ),
    Exercise(
        "from_environment",
        "13",
        "Write arguments(environ): a dict of initialize's arguments from MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.",
        _from_environment,
        where="notebook",
    ),
)
