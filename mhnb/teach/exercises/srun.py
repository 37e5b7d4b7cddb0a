"""Exercises of the lesson: from notebook to srun."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from mhnb.core.export import translate_cell
from mhnb.teach.check import (
    assert_equal,
    call_answer,
    name_kind,
)
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_SHOW = "_show = lambda value: None if value is None else print(repr(value))\n"
"""As in an exported script: prints the last value of a cell."""


def _can_leave(process: ProcessInfo, source: Any) -> str:
    del process
    if not isinstance(source, str):
        raise WrongAnswer(f"source is {name_kind(source)}", expected="the text of a cell")
    translated = translate_cell(source)
    if translated.refused:
        raise WrongAnswer(translated.refused[0])
    # In a process of its own, as the script: what a child process prints counts as well.
    command = [sys.executable, "-u", "-c", _SHOW + translated.text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongAnswer(f"the script ends with {(done.stderr.splitlines() or ['an error'])[-1]}")
    shown = translated.shows_value and done.stdout.startswith("45\n")
    note = "A script also prints the value of a cell's last line; bind it to a name" if shown else ""
    assert_equal(done.stdout, "45\n", "its output", note=note)
    return "plain Python, and it prints 45"


def _from_environment(process: ProcessInfo, arguments: Any) -> str:
    del process
    for rank in (0, 3):
        environ = {"MASTER_ADDR": "node7", "MASTER_PORT": "1234", "WORLD_SIZE": "4", "RANK": str(rank), "HOME": "/root"}
        got = call_answer(arguments, environ, what="of the environment")
        if not isinstance(got, dict):
            raise WrongAnswer(f"arguments(environ) returns {name_kind(got)}", expected="a dict")
        wanted = {"coordinator_address": "node7:1234", "num_processes": 4, "process_id": rank}
        for name, value in wanted.items():
            note = "Environment variables are strings" if got.get(name) == str(value) else ""
            if not got:
                note = "All four variables are in environ here"
            assert_equal(got.get(name), value, f"{name} for RANK={rank}", note=note)
        if extra := sorted(set(got) - set(wanted)):
            raise WrongAnswer(f"initialize also gets {', '.join(extra)}", expected=f"only {', '.join(wanted)}")
    assert_equal(
        call_answer(arguments, {"HOME": "/root"}, what="of the environment"),
        {},
        "arguments(environ) without the four variables",
    )
    return "an address and two numbers; an empty dict if none of the variables is set"


LESSON = Lesson(
    "15_srun.ipynb",
    "From notebook to srun",
    (
        Prediction(
            "who_logs",
            "Two plain processes run the script. How many of them print the line that begins with 'log:'?",
            (0, 1, 2),
            "Both run the same file, and initialize gives each another process index. The cell for rank 0 is inside an if on that index.",
        ),
        Exercise(
            "can_leave",
            "a cell that can be exported",
            "Write source, the text of a cell in plain Python that prints the sum of the numbers below 10.",
            _can_leave,
            "easy",
            (
                "A script has no magics and no shell commands, and does not import mhnb.",
                "What does the shell command do with the value? Python has a function for that.",
            ),
            side="notebook",
        ),
        Exercise(
            "from_environment",
            "arguments from the environment",
            "Write arguments(environ): the arguments of initialize as a dict, from MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.",
            _from_environment,
            "medium",
            (
                "The coordinator's address is a host and a port with a colon between them.",
                "Environment variables are strings; which of the arguments does `initialize` need as numbers?",
                "Look whether the variables are there before you read them.",
            ),
            side="notebook",
        ),
    ),
)
