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
    "CAPTURED_FILE",
    "Frame",
    "OWN_WAITS",
    "PendingLaunch",
    "RankActivity",
    "StackSample",
    "TIMED_FILES",
    "cell_line",
    "classify_stack",
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

_BUSY_CPUS = 0.1
"""Share of one processor between two samples. A rank that waits uses far less; 16 ranks that compute on two cores use more."""

_COMPILING_FUNCTIONS = re.compile(r"compil|lower(?:$|_|ing)|trace_to_jaxpr|jaxpr_to|_create_pjit_jaxpr")
"""Functions of JAX under which a program is traced, lowered or compiled."""
_LAUNCHING_FUNCTIONS = frozenset(
    {"assert_equal", "broadcast_one_to_all", "device_put", "make_array_from_callback", "process_allgather",
     "reached_preemption_sync_point", "sync_global_devices"}
)  # fmt: skip
"""Functions that launch programs of their own. Their names are more useful to the user than the programs' names."""
_WAITING_FUNCTIONS: dict[str, Activity] = {
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
class PendingLaunch:
    """The oldest unfinished launch that communicates."""

    name: str
    participants: tuple[int, ...]
    line: int | None
    """The line of the cell that made it."""
    number: int
    """Its number among the cell's launches of these participants, from 1."""
    is_launched: bool = True
    """False: the ranks have not agreed on it yet, and nothing was launched."""


@dataclass(frozen=True, slots=True)
class StackSample:
    """One sample of a rank's main thread."""

    frames: tuple[Frame, ...]
    """Innermost first, down to the cell's outermost; without the frames of the shell below it."""
    cell_file: str
    c_function: str = ""
    """The C function that the innermost frame is calling, as far as its text shows."""
    main_cpus: float = 0.0
    """Processors that the main thread used since the previous sample; 0 if it only waits."""
    compute_cpus: float = 0.0
    """The same for everything except Python's other threads; it includes the threads in which JAX computes."""
    pending_launch: PendingLaunch | None = None
    is_awaiting: bool = False
    """The cell awaits on the event loop; the frames are those of the awaited code."""


@dataclass(frozen=True, slots=True)
class RankActivity:
    """What a rank is doing, and where."""

    activity: Activity
    what: str
    """The launch, or the function that blocks; may be empty."""
    line: int | None
    """The cell's line; None once the cell's own code has ended."""
    user_frame: str
    """The innermost frame in a user's file, such as `data.py:31 read_shard`; empty if it is in the cell."""


TIMED_FILES = ("<timed exec>", "<timed eval>", "<magic-timeit>")
"""The file names that IPython's %%time and %%timeit use for the cell's text below its first line."""
CAPTURED_FILE = "<captured in cell {}>"
"""The file name of the text below %%capture."""
_CAPTURED_PREFIX = CAPTURED_FILE.partition("{")[0]


def cell_line(file: str, number: int) -> int:
    """Convert a line number in one of the cell's files to a line of the cell.

    >>> cell_line("<cell 4>", 2), cell_line("<timed exec>", 2)
    (2, 3)
    """
    return number + (file in TIMED_FILES or file.startswith(_CAPTURED_PREFIX))


def classify_stack(sample: StackSample, stdlib: str) -> RankActivity:
    """Classify a stack sample.

    Args:
        sample: the sample.
        stdlib: the directory of Python's standard library.

    >>> classify_stack(StackSample((Frame("<cell 4>", 2, "<module>"),), "<cell 4>", c_function="sleep"), "/usr/lib/python3.11")
    RankActivity(activity='sleep', what='sleep', line=2, user_frame='')
    """
    origins = [_classify_file(frame.file, sample.cell_file, stdlib) for frame in sample.frames]
    depth = next((i for i, origin in enumerate(origins) if origin in ("cell", "user")), len(origins))
    library = [(frame.function, home) for frame, home in zip(sample.frames[:depth], origins, strict=False)]
    activity, what = _classify_activity(sample, library, is_compiling=_is_compiling(sample.frames, origins))
    lines = [frame.line for frame, home in zip(sample.frames, origins, strict=True) if home == "cell"]
    line = lines[0] if lines else sample.pending_launch.line if sample.pending_launch else None
    user_frame = ""
    if depth < len(origins) and origins[depth] == "user":
        frame = sample.frames[depth]
        file = frame.file.rpartition("/")[2]
        # `<cell 3>`: a function that an earlier cell defines.
        user_frame = f"{file.strip('<>')}:{frame.line} {frame.function}"
    return RankActivity(activity, what, line, user_frame)


def _classify_file(file: str, cell_file: str, stdlib: str) -> str:
    if file == cell_file:
        return "cell"
    if "/jax/_src/" in file or "/site-packages/jax/" in file or "/site-packages/jaxlib/" in file:
        return "jax"
    if "/mhnb/rank/" in file:
        return "mhnb"
    if file.startswith("<frozen") or (file.startswith(stdlib) and "/site-packages/" not in file):
        return "stdlib"
    return "user"


def _is_compiling(frames: Sequence[Frame], origins: Sequence[str]) -> bool:
    # Anywhere on the stack, because the user's own function is the innermost while a program is traced.
    return any(
        origin == "jax" and _COMPILING_FUNCTIONS.search(f.function) for f, origin in zip(frames, origins, strict=True)
    )


def _classify_activity(
    sample: StackSample, library: Sequence[tuple[str, str]], *, is_compiling: bool
) -> tuple[Activity, str]:
    own_functions = {function for function, origin in library if origin == "mhnb"}
    if "agree" in own_functions:
        return "agreement", _name_launch(library, sample.pending_launch) or "the next launch"
    if "_outlast" in own_functions:
        return "blocked", "a collective of an earlier cell, which still runs or waits"
    blocked = _find_blocked(sample, library)
    if blocked is not None:
        return blocked
    if is_compiling:
        return "compiling", ""
    if sample.pending_launch is not None and (own_functions or any(home == "jax" for _, home in library)):
        busy = sample.compute_cpus >= _BUSY_CPUS
        return "computing" if busy else "launch", _name_launch(library, sample.pending_launch)
    if sample.is_awaiting:
        return "await", sample.c_function
    if max(sample.main_cpus, sample.compute_cpus) >= _BUSY_CPUS:
        return "computing", ""
    if sample.pending_launch is not None:
        # A method of an array that is written in C: `x.block_until_ready()`.
        return "launch", _name_launch(library, sample.pending_launch)
    if "_outwait" in own_functions:
        # The end of the cell, without a recorded launch.
        return "blocked", "an array that is not ready"
    api = [function for function, home in library if home == "jax" and function not in _WRAPPERS]
    return "blocked", api[-1] if api else sample.c_function


def _find_blocked(sample: StackSample, library: Sequence[tuple[str, str]]) -> tuple[Activity, str] | None:
    """Return a call that is known to wait, in the standard library or in C. In C, a busy thread shows that it does not wait."""
    innermost = library[0][1] if library else "user"
    if innermost in ("jax", "mhnb") and sample.c_function != "wait_at_barrier":
        return None
    standard = [function for function, origin in library if origin == "stdlib" and function in _WAITING_FUNCTIONS]
    if standard and innermost == "stdlib":
        return _WAITING_FUNCTIONS[standard[-1]], standard[-1]
    known = _WAITING_FUNCTIONS.get(sample.c_function)
    if known is None or (known != "sleep" and sample.main_cpus >= _BUSY_CPUS):
        return None
    return known, "with" if sample.c_function == "__enter__" else sample.c_function


def _name_launch(library: Sequence[tuple[str, str]], pending_launch: PendingLaunch | None) -> str:
    launchers = [function for function, origin in library if origin == "jax" and function in _LAUNCHING_FUNCTIONS]
    if launchers:
        return launchers[-1]
    return pending_launch.name.partition(" ")[0] if pending_launch else ""
