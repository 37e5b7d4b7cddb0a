"""One launch of a multi-process program, between its dispatch and its end.

It knows no JAX: outputs are anything with `is_ready`, `is_deleted` and `block_until_ready`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, cast

from mhnb.core.wire.protocol import LaunchRow

__all__ = ["Launched", "Unrecorded"]


_MOST_WEIGHED = 8
"""So many outputs are known, the last ones: to keep note of each of a thousand would take as long as the launch."""


class _Output(Protocol):
    """What is needed of a `jax.Array`."""

    def is_ready(self) -> bool: ...
    def is_deleted(self) -> bool: ...
    def block_until_ready(self) -> object: ...


class Launched:
    """One launch between its dispatch and its end.

    Of what it gave, the smallest array is kept until it is ready, or nothing could tell when the launch has ended. The others are the
    cell's alone: one that it drops is freed as JAX frees it.
    """

    __slots__ = (
        "_kept",
        "_others",
        "agreed",
        "failure",
        "is_dispatched",
        "lost",
        "number",
        "row",
    )

    def __init__(self, row: LaunchRow, number: int, outputs: Sequence[object] | None) -> None:
        self.row = row
        self.number = number
        """How many launches that communicate were made in this cell when it was noted."""
        self._kept: object | None = None
        self._others: tuple[weakref.ref[object], ...] = ()
        self.is_dispatched = False
        """False while the dispatch itself is under way."""
        if outputs is not None:
            self._keep(outputs)
        self.lost = False
        """An interrupt came between dispatch and record: whether it runs cannot be known any more."""
        self.failure: Exception | None = None
        self.agreed = False
        """Every participant has agreed on it, and so launches it too: it ends by itself, though nobody waits for it."""

    def end_dispatch(self, outputs: Sequence[object]) -> None:
        """Take what the dispatch gave: the arrays to wait for."""
        self._keep(outputs)

    def break_dispatch(self, error: BaseException) -> None:
        """Take note that the dispatch raised: after the program had run (`jax_debug_nans`), or by an interrupt."""
        if not self.is_dispatched:
            self.lost = not isinstance(error, Exception)
            self.is_dispatched = True

    def _keep(self, outputs: Sequence[object]) -> None:
        if len(outputs) == 1:
            self._kept, self.is_dispatched = outputs[0], True
            return
        last = outputs[-_MOST_WEIGHED:]
        self._kept = min(reversed(last), key=_size, default=None)
        self._others = tuple(weakref.ref(output) for output in last if output is not self._kept)
        self.is_dispatched = True

    def has_outputs(self) -> bool:
        """Whether there is anything to tell when it has ended."""
        return self._kept is not None

    def is_over(self) -> bool:
        """Whether nothing of it runs any more, as far as can be known. Notes the failure of a failed one."""
        if not self.is_dispatched:
            return False
        output = self._last_alive()
        if output is None:
            return True
        try:
            if not output.is_ready():
                return False
            output.block_until_ready()
        except Exception as error:  # noqa: BLE001 - whatever the program failed with; `wait` raises it
            if output.is_deleted():
                # A thread of the user's has donated it since it was found alive: that is no failure. Another may tell.
                return self.is_over()
            self.failure = error
        return True

    def is_under_way(self) -> bool:
        """Whether it still runs, or is being dispatched. Takes note of nothing, so that any thread may ask."""
        if not self.is_dispatched:
            return True
        try:
            output = self._last_alive()
            return output is not None and not output.is_ready()
        except RuntimeError:
            # The cell's thread has donated the array in between; what is donated is of no use to wait for.
            return False

    def _last_alive(self) -> _Output | None:
        # The smallest is looked at first: a training step returns its loss there, while the parameters are donated to the next
        # step, and what was donated cannot be asked. Then the last one that the cell still has.
        for output in (self._kept, *(ref() for ref in reversed(self._others))):
            array = cast(_Output | None, output)
            if array is not None and not array.is_deleted():
                return array
        return None


class Unrecorded:
    """A launch that only an array tells of, which it has not made yet."""

    def __init__(self, array: Any) -> None:
        self._array: _Output = array
        participants = sorted({device.process_index for device in array.sharding.device_set})
        self.row: LaunchRow = ["", "a program under --guard off", participants, None, 1]

    def is_under_way(self) -> bool:
        """Whether it still runs or waits."""
        return not self._array.is_deleted() and not self._array.is_ready()


def _size(output: object) -> int:
    size: int = getattr(output, "nbytes", 0)
    return size
