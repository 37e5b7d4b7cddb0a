"""Classify what a rank is doing from one sample of its main thread: waiting in a launch, in a lock, compiling, computing.

A pure function of plain frames, of processor use, and of the launch in flight. It uses neither threads nor JAX; the few
function names that it looks for only distinguish kinds of work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Activity",
    "CAPTURED",
    "Doing",
    "Flight",
    "Frame",
    "OWN_WAITS",
    "Sight",
    "TIMED",
    "cell_line",
    "judge_sight",
]

Activity: TypeAlias = Literal[
    "launch",
    "agreement",
    "barrier",
    "lock",
    "sleep",
    "input",
    "io",
    "await",
    "compiling",
    "computing",
    "blocked",
    "unseen",
]
"""What a main thread does. The first three wait for other ranks; `blocked` waits for something that has no name here.

`unseen`: the sample failed, and the rank's log has the reason.
"""

_BUSY = 0.1
"""Share of one processor between two samples. A rank that waits uses far less; 16 ranks that compute on two cores use more."""

_COMPILES = re.compile(r"compil|lower(?:$|_|ing)|trace_to_jaxpr|jaxpr_to|_create_pjit_jaxpr")
"""Functions of JAX under which a program is traced, lowered or compiled."""
_SPEAKING = frozenset(
    {"assert_equal", "broadcast_one_to_all", "device_put", "make_array_from_callback", "process_allgather",
     "reached_preemption_sync_point", "sync_global_devices"}
)  # fmt: skip
"""Functions that launch programs of their own. Their names are more useful to the user than the programs' names."""
_CALLS: dict[str, Activity] = {
    "sleep": "sleep",
    "input": "input",
    "wait_at_barrier": "barrier",
    **dict.fromkeys(("acquire", "__enter__", "join", "wait", "wait_for", "get", "put", "result"), "lock"),
    **dict.fromkeys(
        ("accept", "communicate", "connect", "fsync", "poll", "read", "readinto", "readline", "recv", "recv_into",
         "recvfrom", "run", "select", "send", "sendall", "waitpid", "write"),
        "io",
    ),
}  # fmt: skip
"""The activity of a thread that is in a function of this name of the standard library, or in C."""


_WRAPPERS = ("reraise_with_filtered_traceback", "cache_miss", "wrapper")
"""JAX functions that wrap a function of the user or of JAX's interface."""
OWN_WAITS = ("_outwait", "_outlast")
"""Functions of the rank that wait in Python, where a signal ends the wait."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Flight:
    """The oldest unfinished launch that communicates."""

    name: str
    participants: tuple[int, ...]
    line: int | None
    """The line of the cell that made it."""
    number: int
    """Its number among the cell's launches of these participants, from 1."""
    made: bool = True
    """False: the ranks have not agreed on it yet, and nothing was launched."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One sample of a rank's main thread."""

    frames: tuple[Frame, ...]
    """Innermost first, down to the cell's outermost; without the frames of the shell below it."""
    cell_file: str
    call: str = ""
    """The C function that the innermost frame is calling, as far as its text shows."""
    main_busy: float = 0.0
    """Processors that the main thread used since the previous sample; 0 if it only waits."""
    busy: float = 0.0
    """The same for everything except Python's other threads; it includes the threads in which JAX computes."""
    flight: Flight | None = None
    awaits: bool = False
    """The cell awaits on the event loop; the frames are those of the awaited code."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a rank is doing, and where."""

    activity: Activity
    what: str
    """The launch, or the function that blocks; may be empty."""
    line: int | None
    """The cell's line; None once the cell's own code has ended."""
    place: str
    """The innermost frame in a user's file, such as `data.py:31 read_shard`; empty if it is in the cell."""


TIMED = ("<timed exec>", "<timed eval>", "<magic-timeit>")
"""The file names that IPython's %%time and %%timeit use for the cell's text below its first line."""
CAPTURED = "<captured in cell {}>"
"""The file name of the text below %%capture."""
_CAPTURED = CAPTURED.partition("{")[0]


def cell_line(file: str, number: int) -> int:
    """Convert a line number in one of the cell's files to a line of the cell.

    >>> cell_line("<cell 4>", 2), cell_line("<timed exec>", 2)
    (2, 3)
    """
    return number + (file in TIMED or file.startswith(_CAPTURED))


def judge_sight(sight: Sight, stdlib: str) -> Doing:
    """Classify a stack sample.

    Args:
        sight: the sample.
        stdlib: the directory of Python's standard library.

    >>> judge_sight(Sight((Frame("<cell 4>", 2, "<module>"),), "<cell 4>", call="sleep"), "/usr/lib/python3.11")
    Doing(activity='sleep', what='sleep', line=2, place='')
    """
    homes = [_home(frame.file, sight.cell_file, stdlib) for frame in sight.frames]
    depth = next((i for i, home in enumerate(homes) if home in ("cell", "user")), len(homes))
    library = [(frame.function, home) for frame, home in zip(sight.frames[:depth], homes, strict=False)]
    activity, what = _judge(sight, library, _compiles(sight.frames, homes))
    lines = [frame.line for frame, home in zip(sight.frames, homes, strict=True) if home == "cell"]
    line = lines[0] if lines else sight.flight.line if sight.flight else None
    place = ""
    if depth < len(homes) and homes[depth] == "user":
        frame = sight.frames[depth]
        file = frame.file.rpartition("/")[2]
        # `<cell 3>`: a function that an earlier cell defines.
        place = f"{file.strip('<>')}:{frame.line} {frame.function}"
    return Doing(activity, what, line, place)


def _home(file: str, cell_file: str, stdlib: str) -> str:
    if file == cell_file:
        return "cell"
    if "/jax/_src/" in file or "/site-packages/jax/" in file or "/site-packages/jaxlib/" in file:
        return "jax"
    if "/mhnb/rank/" in file:
        return "mhnb"
    if file.startswith("<frozen") or (file.startswith(stdlib) and "/site-packages/" not in file):
        return "stdlib"
    return "user"


def _compiles(frames: Sequence[Frame], homes: Sequence[str]) -> bool:
    # Anywhere on the stack, because the user's own function is the innermost while a program is traced.
    return any(home == "jax" and _COMPILES.search(f.function) for f, home in zip(frames, homes, strict=True))


def _judge(sight: Sight, library: Sequence[tuple[str, str]], compiles: bool) -> tuple[Activity, str]:  # noqa: FBT001
    ours = {function for function, home in library if home == "mhnb"}
    if "agree" in ours:
        return "agreement", _name_launch(library, sight.flight) or "the next launch"
    if "_outlast" in ours:
        return "blocked", "a collective of an earlier cell, which still runs or waits"
    blocked = _find_blocked(sight, library)
    if blocked is not None:
        return blocked
    if compiles:
        return "compiling", ""
    if sight.flight is not None and (ours or any(home == "jax" for _, home in library)):
        busy = sight.busy >= _BUSY
        return "computing" if busy else "launch", _name_launch(library, sight.flight)
    if sight.awaits:
        return "await", sight.call
    if max(sight.main_busy, sight.busy) >= _BUSY:
        return "computing", ""
    if sight.flight is not None:
        # A method of an array that is written in C: `x.block_until_ready()`.
        return "launch", _name_launch(library, sight.flight)
    if "_outwait" in ours:
        # The end of the cell, without a recorded launch.
        return "blocked", "an array that is not ready"
    api = [function for function, home in library if home == "jax" and function not in _WRAPPERS]
    return "blocked", api[-1] if api else sight.call


def _find_blocked(sight: Sight, library: Sequence[tuple[str, str]]) -> tuple[Activity, str] | None:
    """Return a call that is known to wait, in the standard library or in C. In C, a busy thread shows that it does not wait."""
    innermost = library[0][1] if library else "user"
    if innermost in ("jax", "mhnb") and sight.call != "wait_at_barrier":
        return None
    standard = [function for function, home in library if home == "stdlib" and function in _CALLS]
    if standard and innermost == "stdlib":
        return _CALLS[standard[-1]], standard[-1]
    known = _CALLS.get(sight.call)
    if known is None or (known != "sleep" and sight.main_busy >= _BUSY):
        return None
    return known, "with" if sight.call == "__enter__" else sight.call


def _name_launch(library: Sequence[tuple[str, str]], flight: Flight | None) -> str:
    speaking = [function for function, home in library if home == "jax" and function in _SPEAKING]
    if speaking:
        return speaking[-1]
    return flight.name.partition(" ")[0] if flight else ""
