"""One launch of a multi-process program, between its dispatch and its end.

This module does not import JAX: an output is any object with `is_ready`, `is_deleted` and `block_until_ready`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, cast

from mhnb.core.wire.protocol import LaunchRow

__all__ = ["Launch", "UnrecordedLaunch"]


_MOST_TRACKED = 8
"""Only this many outputs are tracked, the last ones: tracking each of a thousand would take as long as the launch."""


class _Output(Protocol):
    """The part of a `jax.Array` that is used here."""

    def is_ready(self) -> bool: ...
    def is_deleted(self) -> bool: ...
    def block_until_ready(self) -> object: ...


class Launch:
    """One launch between its dispatch and its end.

    It keeps the smallest output array until that is ready, because nothing else could show when the launch has ended. The other
    outputs belong to the cell alone: JAX frees one as usual when the cell drops it.
    """

    __slots__ = (
        "_other_outputs",
        "_smallest_output",
        "failure",
        "is_agreed",
        "is_dispatched",
        "is_outcome_unknown",
        "number",
        "row",
    )

    def __init__(self, row: LaunchRow, number: int, outputs: Sequence[object] | None) -> None:
        self.row = row
        self.number = number
        """How many collective launches the cell had made when this one was recorded, this one included."""
        self._smallest_output: object | None = None
        self._other_outputs: tuple[weakref.ref[object], ...] = ()
        self.is_dispatched = False
        """False while the dispatch is in progress."""
        if outputs is not None:
            self._track(outputs)
        self.is_outcome_unknown = False
        """True if an interrupt came between dispatch and record, so that it is unknown whether the launch runs."""
        self.failure: Exception | None = None
        self.is_agreed = False
        """Every participant has agreed on the launch, and so makes it too: it ends by itself, though no rank waits for it."""

    def end_dispatch(self, outputs: Sequence[object]) -> None:
        """Record the outputs of the dispatch: the arrays to wait for."""
        self._track(outputs)

    def fail_dispatch(self, error: BaseException) -> None:
        """Record that the dispatch raised: after the program had run (`jax_debug_nans`), or because of an interrupt."""
        if not self.is_dispatched:
            self.is_outcome_unknown = not isinstance(error, Exception)
            self.is_dispatched = True

    def _track(self, outputs: Sequence[object]) -> None:
        if len(outputs) == 1:
            self._smallest_output, self.is_dispatched = outputs[0], True
            return
        last = outputs[-_MOST_TRACKED:]
        self._smallest_output = min(reversed(last), key=_output_nbytes, default=None)
        self._other_outputs = tuple(weakref.ref(output) for output in last if output is not self._smallest_output)
        self.is_dispatched = True

    def has_outputs(self) -> bool:
        """Return whether an output can show when the launch has ended."""
        return self._smallest_output is not None

    def is_finished(self) -> bool:
        """Return whether the launch has ended, as far as that can be known. Records the failure of a failed launch."""
        if not self.is_dispatched:
            return False
        output = self._find_live_output()
        if output is None:
            return True
        try:
            if not output.is_ready():
                return False
            output.block_until_ready()
        except Exception as error:  # noqa: BLE001 - any failure of the program; `wait` raises it
            if output.is_deleted():
                # A user's thread has donated it meanwhile, which is not a failure. Another output may show the end.
                return self.is_finished()
            self.failure = error
        return True

    def is_running(self) -> bool:
        """Return whether the launch still runs, or is being dispatched. It records nothing, so any thread may call it."""
        if not self.is_dispatched:
            return True
        try:
            output = self._find_live_output()
            return output is not None and not output.is_ready()
        except RuntimeError:
            # The cell's thread has donated the array in between; waiting for a donated array is of no use.
            return False

    def _find_live_output(self) -> _Output | None:
        # The smallest output is polled first: a training step returns its loss there, while the parameters are donated
        # to the next step, and a donated array cannot be polled. Then the last output that the cell still holds.
        for output in (self._smallest_output, *(ref() for ref in reversed(self._other_outputs))):
            array = cast(_Output | None, output)
            if array is not None and not array.is_deleted():
                return array
        return None


class UnrecordedLaunch:
    """A launch that is known only by an array that it has not computed yet."""

    def __init__(self, array: Any) -> None:
        self._array: _Output = array
        participants = sorted({device.process_index for device in array.sharding.device_set})
        self.row: LaunchRow = ["", "a program under --guard off", participants, None, 1]

    def is_running(self) -> bool:
        """Return whether the launch still runs or waits."""
        return not self._array.is_deleted() and not self._array.is_ready()


def _output_nbytes(output: object) -> int:
    size: int = getattr(output, "nbytes", 0)
    return size
