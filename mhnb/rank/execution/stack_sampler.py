"""Sample the main thread's stack during a long cell, from another thread.

This module decides when to sample and what of a stack is the cell's. `core/hang_report.py` judges what the stack means.
"""

from __future__ import annotations

import dis
import io
import keyword
import linecache
import os
import re
import sys
import sysconfig
import threading
import time
import tokenize
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import thread as pool_threads
from itertools import islice, takewhile
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypeVar

import psutil

from mhnb.core.hang_report import Frame, OwnWait, PendingLaunch, RankActivity, StackSample, classify_stack
from mhnb.core.messages import LaunchCount, RankStatus, ThreadStatus
from mhnb.rank.execution.callbacks import CALL_CODES, CallbackThread
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.interrupts import is_one_of
from mhnb.rank.execution.streams import propagate_to_threads

_FIRST_SAMPLE_S, _SAMPLE_INTERVAL_S = 1.8, 1.0
"""Age of a cell at the first sample that is reported, and the time between two: two of them come before 3 s."""
_ASKED_WAIT_S = 0.25
"""A rank that is asked where it is reports once it waits for others, or else after this time: it may be about to stop for the user."""
_WATCH_AFTER_S = 0.4
"""Age of a cell from which its line is watched, to know how long it has stayed there."""
_MAX_FRAMES, _MAX_THREADS, _MAX_NAME = 200, 8, 60
_WAIT_ACTIVITIES = ("lock", "sleep", "io", "await", "blocked")
"""Activities of the main thread for which another thread may be the reason."""
_GENERATED_NAME = re.compile(r"Thread-\d+ \((.+)\)|(Thread|ThreadPoolExecutor|asyncio)[-_]\d+(?:_\d+)?")
"""Names that Python generates. Their counters differ between ranks that do the same."""
_STDLIB = sysconfig.get_paths()["stdlib"]
_POOL_FILE, _ORIGIN_FILE = pool_threads.__file__, propagate_to_threads.__code__.co_filename
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The unit in which Linux counts a thread's processor time."""

_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")
_LAYOUT_TOKENS = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)

_Counts = dict[tuple[int, ...], int]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_own_waits: list[tuple[CodeType, OwnWait]] = []


def own_wait(awaited: OwnWait) -> Callable[[_Function], _Function]:
    """Mark a rank's function that waits, so that samples report the wait."""

    def mark(function: _Function) -> _Function:
        _own_waits.append((function.__code__, awaited))
        return function

    return mark


def _find_own_wait(code: CodeType) -> OwnWait | None:
    return next((awaited for waiting, awaited in _own_waits if waiting is code), None)


class StackSampler:
    """Samples the stack of this process's main thread.

    Args:
        rank: the rank whose status it writes.
        boundary_codes: code objects below which the stack is the rank's own, not the cell's.
        is_cell_file: returns whether a file name is the running cell's.
        read_launches: returns counts of launches by participants, and the oldest launch that has not finished.
        list_awaited: returns the ranks that this one may wait for while it is blocked in C, in a launch without a record;
            None without such a launch.
        find_awaited: returns the coroutine of a cell that awaits at the moment, else None.
    """

    def __init__(
        self,
        rank: int,
        boundary_codes: Sequence[CodeType],
        *,
        is_cell_file: Callable[[str], bool],
        read_launches: Callable[[], tuple[_Counts, PendingLaunch | None]],
        list_awaited: Callable[[], list[int] | None],
        find_awaited: Callable[[], Any],
    ) -> None:
        self._rank, self._boundary_codes = rank, boundary_codes
        self._is_cell_file, self._read_launches, self._find_awaited = is_cell_file, read_launches, find_awaited
        self._list_awaited = list_awaited
        self.find_callback: Callable[[], tuple[int, str] | None] = lambda: None
        """Returns the thread of a function that a program calls at the moment, and the program's name; else None."""
        self._main = threading.main_thread()
        self._seq = 0
        self._due_s = self._position_since_s = self._used_at_s = 0.0
        self._last_position: object = None
        self._report_count, self._is_asked = 0, False
        self._thread_used_s: dict[int, float] = {}
        self._last_failure = (0, 0.0)
        """The cell of the last sample that failed, and its age then."""
        self._main_used_s = self._all_used_s = 0.0

    def sample(self, seq: int, age_s: float, report_count: int) -> RankStatus | None:
        """Take a sample when one is due.

        Args:
            seq: the number of the running cell.
            age_s: how long it has been running.
            report_count: how often the notebook has asked for a sample.
        """
        is_asked_now = report_count != self._report_count
        if age_s < _WATCH_AFTER_S and seq != self._seq and not is_asked_now:
            return None
        if seq != self._seq:
            self._seq, self._due_s, self._last_position, self._is_asked = seq, _FIRST_SAMPLE_S, None, False
            self._measure(age_s)
        if is_asked_now:
            self._report_count, self._due_s, self._is_asked = report_count, age_s + _ASKED_WAIT_S, True
        counts, flight = self._read_launches()
        awaited = self._find_awaited()
        frames = self._list_frames(awaited)
        self._track_position(frames, counts, age_s)
        waits = self._is_asked and any(_find_own_wait(frame.f_code) == "agreement" for frame in frames)
        if age_s < self._due_s and not waits:
            return None
        self._due_s, self._is_asked = age_s + _SAMPLE_INTERVAL_S, False
        return self._make_status(frames, counts, flight, awaits=awaited is not None, age_s=age_s)

    def make_failed_status(self, seq: int, age_s: float) -> RankStatus | None:
        """Return a failed sample's status; None within a second of the last."""
        if self._last_failure[0] == seq and age_s < self._last_failure[1] + _SAMPLE_INTERVAL_S:
            return None
        self._last_failure = seq, age_s
        return RankStatus(self._rank, seq, "unseen", "", None, "", 0.0, counts=[])

    def _track_position(self, frames: list[FrameType], counts: _Counts, age_s: float) -> None:
        # By identity: comparing code objects compares their constants, which may be any objects.
        lines = [(id(frame.f_code), frame.f_lasti) for frame in frames if self._is_cell_file(frame.f_code.co_filename)]
        position = (lines, counts)
        if position != self._last_position:
            # What has not changed since the first sample counts from the cell's start; a cell is not old at that time.
            self._position_since_s = 0.0 if self._last_position is None else age_s
            self._last_position = position

    def _make_status(
        self, frames: list[FrameType], counts: _Counts, flight: PendingLaunch | None, *, awaits: bool, age_s: float
    ) -> RankStatus:
        main_busy, busy = self._measure(age_s)
        cell_file = next((f.f_code.co_filename for f in frames if self._is_cell_file(f.f_code.co_filename)), "")
        sight = StackSample(
            tuple(self._describe(frame, cell_file) for frame in frames),
            cell_file,
            c_function=_find_call(frames[0]) if frames else "",
            main_cpus=main_busy,
            compute_cpus=busy,
            pending_launch=flight,
            is_awaiting=awaits,
        )
        doing = self._locate_callback(cell_file, flight) or classify_stack(sight, _STDLIB)
        threads = self._describe_threads(flight) if doing.activity in _WAIT_ACTIVITIES else []
        is_own_wait = any(frame.own_wait for frame in sight.frames)
        awaited = self._list_awaited() if doing.activity == "blocked" and not is_own_wait else None
        return RankStatus(
            self._rank,
            self._seq,
            doing.activity,
            doing.what,
            doing.line,
            doing.user_frame,
            round(age_s - self._position_since_s, 2),
            counts=[LaunchCount(participants, count) for participants, count in counts.items()],
            participants=list(flight.participants) if flight else awaited,
            launch_number=flight.number if flight else None,
            program=flight.name.partition(" ")[0] if flight else "",
            memory_nbytes=psutil.Process().memory_info().rss,
            is_launched=flight is None or flight.is_launched,
            threads=threads,
        )

    def _locate_callback(self, cell_file: str, flight: PendingLaunch | None) -> RankActivity | None:
        """Return where a running callback is, for which the main thread waits."""
        if (found := self.find_callback()) is None:
            return None
        thread_id, program = found
        stack = _stack(sys._current_frames().get(thread_id))
        frames = takewhile(lambda frame: not is_one_of(frame.f_code, CALL_CODES), islice(stack, _MAX_FRAMES))
        sight = StackSample(
            tuple(self._describe(frame, cell_file) for frame in frames), cell_file, pending_launch=flight
        )
        place = classify_stack(sight, _STDLIB)
        return RankActivity("callback", program, place.line, place.user_frame)

    def _describe_threads(self, flight: PendingLaunch | None) -> list[ThreadStatus]:
        """Describe the cell's threads: the main thread may wait for one."""
        frames = sys._current_frames()
        found = []
        for thread in threading.enumerate():
            stack = list(islice(_stack(frames.get(thread.ident or 0)), _MAX_FRAMES))
            cell_file = next((f.f_code.co_filename for f in stack if self._is_cell_file(f.f_code.co_filename)), "")
            started = getattr(thread, "_mhnb_seq", 0) == self._seq and not _is_idle(stack)
            if thread is not self._main and (started or cell_file) and stack and not isinstance(thread, CallbackThread):
                found.append(self._describe_thread(thread, stack, cell_file, flight))
        return found[:_MAX_THREADS]

    def _describe_thread(
        self, thread: threading.Thread, stack: list[FrameType], cell_file: str, flight: PendingLaunch | None
    ) -> ThreadStatus:
        used_s, key = _read_cpu_s(thread), thread.native_id or 0
        before_s, self._thread_used_s[key] = self._thread_used_s.get(key, used_s), used_s
        # Below the thread's own function are the frames that run it.
        below = next((i for i, frame in enumerate(stack) if _runs_thread(frame.f_code) and i), len(stack))
        frames = tuple(self._describe(frame, cell_file) for frame in stack[:below])
        lines = [frame.line for frame in frames if frame.file == cell_file]
        # The launch in flight may be another thread's.
        inside = flight is not None and (flight.line in lines or any("/jax/" in frame.file for frame in frames))
        busy = (used_s - before_s) / _SAMPLE_INTERVAL_S
        sight = StackSample(frames, cell_file, _find_call(stack[0]), busy, busy, flight if inside else None)
        doing = classify_stack(sight, _STDLIB)
        named = _GENERATED_NAME.fullmatch(thread.name)
        name = thread.name if named is None else named[1] or named[2]
        return ThreadStatus(name[:_MAX_NAME], doing.activity, doing.what, doing.line, doing.user_frame)

    def _describe(self, frame: FrameType, cell_file: str) -> Frame:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if self._is_cell_file(file):
            return Frame(cell_file, frame.f_lineno, name)
        # An earlier cell, if it is one.
        return Frame(CELL_NAMES.format_file(file), frame.f_lineno, name, _find_own_wait(frame.f_code))

    # -- sampling the stack

    def _list_frames(self, awaited: Any) -> list[FrameType]:
        """Return the main thread's frames inside the cell, innermost first."""
        frames: list[FrameType] = []
        found = (
            _coroutine_frames(awaited)
            if awaited is not None
            else _stack(sys._current_frames().get(self._main.ident or 0))
        )
        for frame in found:
            if is_one_of(frame.f_code, self._boundary_codes) or len(frames) == _MAX_FRAMES:
                break
            frames.append(frame)
        lowest = [i for i, frame in enumerate(frames) if self._is_cell_file(frame.f_code.co_filename)]
        # Below the cell's outermost frame are IPython's.
        return frames[: lowest[-1] + 1] if lowest else frames

    # -- processor time

    def _measure(self, age_s: float) -> tuple[float, float]:
        """Return processors wanted by the main thread, without and with native threads.

        Wanted means used since the last call, or queued for: on a machine with more work than cores, a computing rank
        gets a small part of one.
        """
        others = [thread for thread in threading.enumerate() if thread is not self._main]
        others_s = sum(map(_read_cpu_s, others))
        queued_s = _sum_queued_s({thread.native_id for thread in others})
        main_s = _read_cpu_s(self._main) + _read_queued_s(self._main.native_id)
        all_s = time.process_time() - others_s + queued_s
        passed_s = max(age_s - self._used_at_s, _TICK_S)
        used = (main_s - self._main_used_s) / passed_s, max(all_s - self._all_used_s, 0.0) / passed_s
        self._main_used_s, self._all_used_s, self._used_at_s = main_s, all_s, age_s
        return used


def _is_idle(stack: Sequence[FrameType]) -> bool:
    """Return whether a thread is idle in a pool's loop."""
    return bool(stack) and stack[0].f_code.co_name == "_worker" and "concurrent" in stack[0].f_code.co_filename


def _runs_thread(code: CodeType) -> bool:
    """Return whether a function runs the function of a thread or pool."""
    return code.co_name in ("run", "_run_as") and code.co_filename in (threading.__file__, _POOL_FILE, _ORIGIN_FILE)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _coroutine_frames(coroutine: Any) -> list[FrameType]:
    """Return frames of a coroutine and what it awaits, innermost first."""
    frames: list[FrameType] = []
    while (frame := _frame_of(coroutine)) is not None:
        frames.append(frame)
        coroutine = _find_awaited(coroutine)
    return frames[::-1]


def _frame_of(coroutine: Any) -> FrameType | None:
    return getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)


def _find_awaited(coroutine: Any) -> Any:
    """Return what a coroutine or generator awaits; None while it runs.

    Python 3.11 may crash if this is read from one that runs. The main thread continues whenever this thread releases the
    interpreter, so there is no call between the two reads.
    """
    if isinstance(coroutine, CoroutineType):
        return None if coroutine.cr_running else coroutine.cr_await
    if isinstance(coroutine, GeneratorType):
        return None if coroutine.gi_running else coroutine.gi_yieldfrom
    return None


def _find_call(frame: FrameType) -> str:
    """Return the name of the function that a frame calls; else empty."""
    code, index = frame.f_code, frame.f_lasti
    if index < 0:
        return ""
    if dis.opname[code.co_code[index]] in ("BEFORE_WITH", "BEFORE_ASYNC_WITH"):
        return "__enter__"
    positions = next(iter(list(code.co_positions())[index // 2 : index // 2 + 1]), (None,) * 4)
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return ""
    text = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    # Cut the end first, because on one line both columns count from its beginning. They count bytes.
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    return read_call(b"".join(text).decode(errors="replace"))


def read_call(expression: str) -> str:
    """Return a call expression's function name; empty for any other expression.

    It does not use `ast`: in CPython 3.11 a parse in one thread makes one in progress in another thread fail
    ("AST constructor recursion depth mismatch"), and the main thread may be rendering a traceback.

    >>> read_call("np.asarray(f(x))"), read_call("await x.wait()"), read_call("f(a) + g(b)")
    ('asarray', 'wait', '')
    """
    try:
        tokens = [(t.type, t.string) for t in tokenize.generate_tokens(io.StringIO(f"({expression.strip()})").readline)]
    except (tokenize.TokenError, SyntaxError):
        return ""
    words = [string for kind, string in tokens if kind not in _LAYOUT_TOKENS and string][1:-1]
    if words[:1] == ["await"]:
        del words[0]
    callee = words[: _find_opening(words)] if words[-1:] == [")"] else []
    return callee[-1] if callee and callee[-1].isidentifier() and _is_operand(callee) else ""


def _find_opening(words: Sequence[str]) -> int:
    """Return the index of the bracket that the last word closes."""
    depth = 0
    for at in range(len(words) - 1, -1, -1):
        depth += (words[at] in _CLOSE) - (words[at] in _OPEN)
        if depth == 0:
            return at
    return 0


def _is_operand(words: Sequence[str]) -> bool:
    """Return whether words form one operand, without an operator between them."""
    depth, before = 0, ""
    for word in words:
        if word in _OPEN:
            depth += 1
        elif word in _CLOSE:
            depth -= 1
        elif depth == 0 and (keyword.iskeyword(word) or (word == ".") == (before in ("", "."))):
            return False
        before = word
    return True


def _read_cpu_s(thread: threading.Thread) -> float:
    """Return a thread's processor time in seconds; 0 if not reported."""
    try:
        fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        # The thread has ended, or this is not Linux.
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _read_queued_s(task: int | str | None) -> float:
    """Return the seconds a thread waited for a processor; 0 if unreported."""
    try:
        return int(Path(f"/proc/self/task/{task}/schedstat").read_bytes().split()[1]) * 1e-9
    except (OSError, IndexError):
        # The thread has ended, this is not Linux, or the kernel does not account for it.
        return 0.0


def _sum_queued_s(excluded: Collection[int | None]) -> float:
    tasks = Path("/proc/self/task")
    names = [path.name for path in tasks.iterdir()] if tasks.is_dir() else []
    return sum(_read_queued_s(name) for name in names if int(name) not in excluded)
