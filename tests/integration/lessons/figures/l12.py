"""Lesson 12: the whole array, which jit sees, and the pieces that a function under shard_map sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tests.integration.lessons.figures.drawing import Box, Cell, Drawing

_HOSTS, _PER_HOST = 4, 2
_CELL = Box(0, 0, 36, 30)
_DEVICE_GAP, _HOST_GAP, _PAD = 12, 10, 8


def _run() -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], np.ndarray, list[tuple[int, ...]]]:
    """Run the lesson's function; return its argument whole and by device, its result by device and whole, and the shapes seen."""
    mesh, shapes = jax.make_mesh((_HOSTS * _PER_HOST,), ("i",)), []

    def inside(piece: Any) -> Any:
        shapes.append(piece.shape)
        return 10 * piece

    sharding = jax.NamedSharding(mesh, jax.P("i"))
    x = jax.device_put(np.arange(16), sharding)
    y = jax.jit(jax.shard_map(inside, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")))(x)
    before, after = ([np.asarray(shard.data) for shard in array.addressable_shards] for array in (x, y))
    return np.asarray(x), before, after, np.asarray(y), [x.shape, shapes[0]]


def _place_devices(left: float) -> list[float]:
    """Return the x of each device's piece."""
    pair, places = 2 * _CELL.width, []
    for host in range(_HOSTS):
        start = left + _PAD + host * (_PER_HOST * pair + _DEVICE_GAP + 2 * _PAD + _HOST_GAP)
        places += [start + device * (pair + _DEVICE_GAP) for device in range(_PER_HOST)]
    return places


def _as_cells(values: np.ndarray, devices: Sequence[int]) -> list[Cell]:
    return [Cell(str(value), (device // _PER_HOST,)) for value, device in zip(values.tolist(), devices, strict=True)]


def _pieces() -> Drawing:
    x, before, after, y, (whole, piece) = _run()
    drawing = Drawing(
        740,
        430,
        title="What a function sees under jit, and under shard_map",
        description=f"Under jit it sees the whole array of shape {whole}; under shard_map it sees a piece of shape {piece} on each device.",
    )
    owners = [device for device, values in enumerate(before) for _ in values]
    left, places = (740 - 16 * _CELL.width) / 2, _place_devices(11)
    width = 2 * _CELL.width
    drawing.text(20, 26, f"Under jit the function sees the whole array, x.shape = {whole}", style="strong")
    drawing.cells(left, 44, [_as_cells(x, owners)], cell=_CELL)
    drawing.text(20, 142, f"Under shard_map it sees one piece on each device, piece.shape = {piece}", style="strong")
    drawing.text(729, 142, 'in_specs=P("i")', size="small", anchor="end", style="code")
    for host in range(_HOSTS):
        start = places[host * _PER_HOST] - _PAD
        drawing.host(Box(start, 160, _PER_HOST * width + _DEVICE_GAP + 2 * _PAD, 148), f"host {host}", number=host)
    for device, place in enumerate(places):
        middle = place + width / 2
        drawing.arrow((left + (device + 0.5) * width, 78), (middle, 124))
        drawing.cells(place, 190, [_as_cells(before[device], [device] * 2)], cell=_CELL)
        drawing.text(middle + 8, 240, "10 ×", size="small")
        drawing.arrow((middle, 225), (middle, 257))
        drawing.cells(place, 263, [_as_cells(after[device], [device] * 2)], cell=_CELL)
        drawing.arrow((middle, 314), (left + (device + 0.5) * width, 352))
    drawing.cells(left, 358, [_as_cells(y, owners)], cell=_CELL)
    drawing.text(20, 408, f"The result is a whole array again, of shape {y.shape}", style="strong")
    drawing.text(729, 408, 'out_specs=P("i")', size="small", anchor="end", style="code")
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"12_pieces.svg": _pieces}
