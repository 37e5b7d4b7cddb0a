"""Lesson 02: the list of all devices, and the part of it that each rank drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

from tests.integration.lessons.figures.drawing import Box, Cell, Drawing

RANKS, DEVICES = 4, 2
_SLOT = Box(0, 0, 58, 34)


def list_local_ids(rank: int) -> list[int]:
    """Return the ids of a rank's CPU devices: JAX puts the process into the bits above the eleventh.

    A figure starts no ranks. The lesson's cell `list` prints what JAX returns on each, and its test compares.
    """
    return [(rank << 11) + place for place in range(DEVICES)]


def list_all_ids() -> list[int]:
    """Return the ids of all devices, in the order of `jax.devices()`."""
    return list(chain.from_iterable(list_local_ids(rank) for rank in range(RANKS)))


def _lists() -> Drawing:
    ids = list_all_ids()
    owners = {number: rank for rank in range(RANKS) for number in list_local_ids(rank)}
    drawing = Drawing(
        600,
        334,
        title="jax.devices() and jax.local_devices()",
        description=f"jax.devices() on every rank: ids {ids}. "
        + "; ".join(f"jax.local_devices() on rank {rank}: ids {list_local_ids(rank)}" for rank in range(RANKS)),
    )
    left = 110
    drawing.text(left, 26, "jax.devices()", style="code")
    drawing.text(left + 142, 26, "is the same on every rank", style="quiet")
    drawing.text(left - 10, 54, "position", size="small", anchor="end", style="quiet")
    drawing.text(left - 10, 84, "id", anchor="end")
    for position in range(len(ids)):
        drawing.text(
            left + (position + 0.5) * _SLOT.width, 54, str(position), size="small", anchor="middle", style="quiet"
        )
    drawing.cells(left, 67, [[Cell(str(each), (owners[each],)) for each in ids]], cell=_SLOT)
    drawing.text(left, 134, "jax.local_devices()", style="code")
    drawing.text(left + 200, 134, "is another part of it on each", style="quiet")
    for rank in range(RANKS):
        y = 154 + 42 * rank
        drawing.text(left - 10, y + _SLOT.height / 2, f"rank {rank}", anchor="end")
        own = [Cell(str(each), (rank,)) if each in list_local_ids(rank) else Cell("") for each in ids]
        drawing.cells(left, y, [own], cell=_SLOT)
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"02_devices.svg": _lists}
