"""`mhnb.log`: metrics that a cell logs on this rank.

Decides what is a value, and when the value of a JAX array is read: never in the call, because it may not be computed yet and the rank
would wait. The service thread reads it once it is ready, or the end of the cell does, when all launches have finished. Nothing is
launched for that, and no array of the user's is kept longer.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from mhnb.core.messages import shorten_text
from mhnb.core.metrics import MAX_NAME_CHARS, MAX_NAMES, PointBuffer, format_number
from mhnb.core.output.events import MetricProblem, OutputEvent
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.rank.execution.capture import Capture, find_installed

_MAX_EXACT = 2**53
_MAX_UNREAD = 10_000
"""Points that wait to be read. Beyond it the call that logs reads those that are ready, and of the others the oldest are left out."""
_MAX_CELLS = 8
"""Ended cells whose threads may log more."""
_DONATED = (
    "a program took the array by donation before it was read; log a copy, such as jnp.copy(x), made on every rank"
)
_TOO_SLOW = "it was not computed before 10,000 more points were logged"

_Entry: TypeAlias = tuple[Any, dict[str, Any], bool]
"""The step, the values by name, and `same`; numbers, or JAX arrays without dimensions."""


def log(step: float, /, *, same: bool = False, **values: Any) -> None:
    """Log the values of metrics for one step, in a cell.

    Any rank may log; the cell shows a chart of each metric. A JAX scalar is read once it is computed, without a wait.

    Args:
        step: the number of the step, finite.
        same: whether all ranks of the cell should log the same values. Where they differ, the cell says so.
        **values: numbers by name: of Python, of NumPy, or JAX arrays without dimensions. NaN and infinity are values too.

    Raises:
        InvalidRequest: a value is not a number.
        MhnbError: this process is not a rank.
    """
    recorder = _recorders.get("this") or _make_recorder()
    recorder.add(step, values, is_same=same)


_recorders: dict[str, MetricRecorder] = {}
"""The recorder of this process, if it has logged anything."""


def _make_recorder() -> MetricRecorder:
    capture = find_installed()
    if capture is None:
        raise MhnbError(
            "mhnb.log was called in a process that is not a rank, so no cell has its points\n"
            "  Fix: call it in a cell that begins with %%mhjax, or in the source of cluster.run(...)"
        )
    _recorders["this"] = capture.metrics = recorder = MetricRecorder(capture)
    return recorder


class MetricRecorder:
    """Unsent points of this rank's cells; any thread may `add` them.

    Args:
        capture: knows which cell the calling code belongs to.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture, self._pid = capture, os.getpid()
        # A signal handler may log while its own thread reads.
        self._lock = threading.RLock()
        self._cells: OrderedDict[int, _CellPoints] = OrderedDict()

    def add(self, step: Any, values: dict[str, Any], *, is_same: bool) -> None:
        """Record a point of each metric, and read none.

        Raises:
            InvalidRequest: the step or a value is not a number, or there is no value.
            MhnbError: the process was forked.
        """
        if os.getpid() != self._pid:
            raise MhnbError(
                "mhnb.log was called in a process that the rank has forked, so no cell has its points\n"
                "  Fix: return the value to the rank, and log it there"
            )
        if type(step) is not int or not -_MAX_EXACT <= step <= _MAX_EXACT:
            step = _check_step(step)
        if not values:
            raise InvalidRequest("mhnb.log got no value\n  Fix: mhnb.log(step, loss=loss)")
        for name, value in values.items():
            if type(value) is not float:
                values[name] = _check_value(name, value)
        seq = self._capture.find_cell()
        cell = self._cells.get(seq)
        if cell is None:
            cell = self._add_cell(seq)
        cell.unread.append((step, values, bool(is_same)))
        if len(cell.unread) > _MAX_UNREAD:
            self._make_room(cell)

    def _add_cell(self, seq: int) -> _CellPoints:
        with self._lock:
            cell = self._cells.setdefault(seq, _CellPoints())
            # A thread of an earlier cell may still log: what was not sent yet is kept.
            idle = [
                each for each, points in self._cells.items() if each != seq and not (points.unread or points.has_news)
            ]
            for each in idle[: max(0, len(self._cells) - _MAX_CELLS)]:
                del self._cells[each]
            return cell

    def _make_room(self, cell: _CellPoints) -> None:
        with self._lock:
            cell.read(everything=False)
            while len(cell.unread) > _MAX_UNREAD:
                step, values, _ = cell.unread.popleft()
                for name in values:
                    cell.note(name, _TOO_SLOW, step)

    def collect(self, seq: int, *, has_ended: bool = False) -> None:
        """Read a cell's ready values, in order except at its end."""
        with self._lock:
            if (cell := self._cells.get(seq)) is not None:
                cell.read(everything=has_ended)
                cell.has_ended = cell.has_ended or has_ended

    def take(self, seq: int) -> list[OutputEvent]:
        """Return the events of a cell since the last call."""
        with self._lock:
            cell = self._cells.get(seq)
            return [] if cell is None else cell.take()

    def take_late(self, running: int) -> dict[int, list[OutputEvent]]:
        """Read and return what ended cells have logged since the last call."""
        found: dict[int, list[OutputEvent]] = {}
        with self._lock:
            for seq, cell in self._cells.items():
                if seq != running and (cell.unread or cell.has_news):
                    cell.has_ended = True
                    # Only up to the first one that is not ready: since jax 0.10.2 each look at a global array leaks 400 bytes.
                    cell.read(everything=False)
                    if events := cell.take():
                        found[seq] = events
        return found


class _CellPoints:
    """The unread and unsent points of one cell."""

    def __init__(self) -> None:
        self.unread: deque[_Entry] = deque()
        self.has_ended = self.has_news = False
        self._buffers: dict[str, PointBuffer] = {}
        self._problems: dict[tuple[str, str], list[float]] = {}
        """By name and reason: the first step, and how many."""

    def read(self, *, everything: bool) -> None:
        """Read ready points up to the first unready one, or `everything` ready."""
        if not self.unread:
            return
        waiting: list[_Entry] = []
        with _allow_reading():
            for _ in range(len(self.unread)):
                entry = self.unread.popleft()
                if _is_ready(entry):
                    self._record(entry)
                elif everything:
                    waiting.append(entry)
                else:
                    self.unread.appendleft(entry)
                    break
        self.unread.extendleft(reversed(waiting))

    def _record(self, entry: _Entry) -> None:
        step, values, is_same = entry
        self.has_news = True
        try:
            step = step if isinstance(step, int | float) else _check_step(_read(step))
        except (InvalidRequest, _Unreadable) as error:
            for name in values:
                self.note(name, f"its step cannot be read: {str(error).partition(chr(10))[0]}", 0)
            return
        for name, value in values.items():
            try:
                number = value if isinstance(value, float) else _read(value)
            except _Unreadable as error:
                self.note(name, str(error), step)
                continue
            if (buffer := self._find_buffer(name, step)) is not None:
                buffer.add(float(step), number, is_same=is_same)

    def _find_buffer(self, name: str, step: float) -> PointBuffer | None:
        buffer = self._buffers.get(name)
        if buffer is None and len(self._buffers) < MAX_NAMES:
            buffer = self._buffers[name] = PointBuffer()
        elif buffer is None:
            self.note(
                "other metrics", f"a cell keeps {MAX_NAMES} metrics; {shorten_text(name, 40)!r} is one more", step
            )
        return buffer

    def note(self, name: str, why: str, step: Any) -> None:
        """Record that a point is missing."""
        self.has_news = True
        number = float(step) if isinstance(step, int | float) else 0.0
        same_name = next((key for key in self._problems if key[0] == name), (name, why))
        self._problems.setdefault(same_name, [number, 0])[1] += 1

    def take(self) -> list[OutputEvent]:
        """Return the events since the last call."""
        events: list[OutputEvent] = []
        for name, buffer in self._buffers.items():
            event = buffer.take(shorten_text(name, MAX_NAME_CHARS), is_final=self.has_ended)
            if event is not None:
                events.append(event)
        for (name, why), (step, count) in self._problems.items():
            events.append(MetricProblem(shorten_text(name, MAX_NAME_CHARS), why, step, int(count)))
        self._problems, self.has_news = {}, False
        return events


# -- values


class _Unreadable(Exception):
    """An array's value cannot be read; the text says why."""


def _check_step(step: Any) -> Any:
    """Return a step as a number, or a JAX array read later.

    Raises:
        InvalidRequest: it is not a finite number.
    """
    if isinstance(step, bool | np.bool_) or not isinstance(step, int | float | np.integer | np.floating | np.ndarray):
        if _is_jax_array(step):
            return _check_value("step", step)
        raise InvalidRequest(f"mhnb.log: step {_describe(step)}; expected a number, such as mhnb.log(10, loss=loss)")
    if isinstance(step, np.ndarray):
        step = _check_numpy("step", step)
    if isinstance(step, int | np.integer):
        if abs(int(step)) > _MAX_EXACT:
            raise InvalidRequest("mhnb.log: the step is too large; expected a number from -2**53 to 2**53")
        return int(step)
    if not math.isfinite(step):
        raise InvalidRequest(f"mhnb.log: step {format_number(float(step))}; expected a finite number")
    return float(step)


def _check_value(name: str, value: Any) -> Any:
    """Return a value as a float, or a JAX array read later.

    Raises:
        InvalidRequest: it is not a number.
    """
    kind = type(value)
    check = _checks.get(kind)
    if check is None:
        check = _checks[kind] = _find_check(value)
    return check(name, value)


def _find_check(value: Any) -> Callable[[str, Any], Any]:
    """Return the function that checks values of the type of this one."""
    if _is_jax_array(value) and isinstance(value, sys.modules["jax"].core.Tracer):
        return _refuse_tracer
    if isinstance(value, np.ndarray | np.generic):
        # Before numbers: a span of time is one of NumPy's integers.
        return _check_numpy
    if isinstance(value, int | float):
        return _check_number
    if _is_jax_array(value):
        return _check_array
    return _refuse


_checks: dict[type, Callable[[str, Any], Any]] = {}
"""By type: finding out whether a class is that of a JAX array takes as long as all else."""


_NUMBER_KINDS = "biufV"
"""Kinds of NumPy's types: V are those of other packages, such as bfloat16; what is no number of these has no float."""


def _check_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidRequest(
            f"mhnb.log: {name} is a whole number of more than 308 digits; expected a smaller one"
        ) from error


def _check_numpy(name: str, value: Any) -> float:
    if value.shape != ():
        raise _shape_error(name, value)
    if value.dtype.kind == "c":
        raise _complex_error(name)
    if value.dtype.kind not in _NUMBER_KINDS:
        raise _type_error(name, value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _type_error(name, value) from None


def _is_jax_array(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _refuse_tracer(name: str, _: Any) -> Any:
    raise InvalidRequest(
        f"mhnb.log: {name} is a tracer: the call is in a function that JAX traces, such as by jit or grad, and has no value yet\n"
        f"  Fix: return {name} from the function, and log it outside"
    )


def _check_array(name: str, array: Any) -> Any:
    if array.shape != ():
        raise _shape_error(name, array)
    kind = getattr(array.dtype, "kind", None)
    if kind is None:
        raise _type_error(name, array)
    if kind == "c":
        raise _complex_error(name)
    if not array.sharding.addressable_devices:
        raise InvalidRequest(
            f"mhnb.log: {name} is on devices of other ranks only\n"
            "  Fix: log it on the ranks that have it, with if jax.process_index() == ..."
        )
    return array


def _shape_error(name: str, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"mhnb.log: {name} has shape {tuple(value.shape)}; expected one number\n  Fix: log {name}.mean(), or one element of it"
    )


def _complex_error(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"mhnb.log: {name} is a complex number; expected a real one\n  Fix: log abs({name}), or its real and imaginary parts"
    )


def _refuse(name: str, value: Any) -> Any:
    raise _type_error(name, value)


def _type_error(name: str, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"mhnb.log: {name} {_describe(value)}; expected a number: int, float, bool, a NumPy scalar or a JAX array without dimensions"
    )


def _describe(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return f"is the text {shorten_text(value, 40)!r}"
    return "is None" if value is None else f"is of type {kind.__module__}.{kind.__qualname__}"


def _is_ready(entry: _Entry) -> bool:
    """Return whether a point's values can be read now, or are lost."""
    step, values, _ = entry
    for value in (step, *values.values()):
        if isinstance(value, int | float):
            continue
        try:
            # since jax 0.10.2: `is_ready` of an array after its `delete()` ends the process. No other thread of Python runs between
            # two calls that C makes.
            if not any(map(operator.call, (value.is_deleted, value.is_ready))):
                return False
        except RuntimeError:
            # A program that another thread runs took it by donation in between; reading it says so.
            continue
    return True


def _allow_reading() -> AbstractContextManager[Any]:
    """Allow copies from devices, even if the user forbids the program's.

    Entering takes as long as reading five values.
    """
    jax = sys.modules.get("jax")
    return nullcontext() if jax is None else jax.transfer_guard("allow")


def _read(array: Any) -> float:
    """Return the value of a JAX array that is computed.

    Raises:
        _Unreadable: it was deleted, or its computation has failed.
    """
    try:
        return float(np.asarray(array))
    except Exception as error:
        # Whatever the computation raised, or that it was deleted.
        if array.is_deleted():
            raise _Unreadable(_DONATED) from error
        text = shorten_text(str(error).partition("\n")[0], 120)
        raise _Unreadable(f"its computation failed ({type(error).__name__}: {text})") from error
