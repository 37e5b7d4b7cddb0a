"""Lesson 17: what each device holds in four ways to shard a block, and the path of a block through tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tests.integration.lessons.figures.drawing import LINE, PAPER, QUIET, Box, Drawing, color_of, mix

D, HEADS, HEAD, F = 128, 4, 32, 512
X = (16, 32, D)
SHAPES = {
    "q": (D, HEADS, HEAD),
    "k": (D, HEADS, HEAD),
    "v": (D, HEADS, HEAD),
    "out": (HEADS, HEAD, D),
    "up": (D, F),
    "down": (F, D),
}
_BOTH = ("data", "model")
_COLUMN, _ROW = ("q", "k", "v", "up"), ("out", "down")
_Specs = Mapping[str, jax.P]
_FSDP = dict.fromkeys(SHAPES, jax.P(_BOTH)) | {"out": jax.P(None, None, _BOTH)}
_TP = dict.fromkeys(_COLUMN, jax.P(None, "model")) | dict.fromkeys(_ROW, jax.P("model"))
_MIXED = dict.fromkeys(_COLUMN, jax.P("data", "model")) | {
    "out": jax.P("model", None, "data"),
    "down": jax.P("model", "data"),
}
WAYS: Mapping[str, tuple[_Specs, jax.P]] = {
    "DP": (dict.fromkeys(SHAPES, jax.P()), jax.P(_BOTH)),
    "FSDP": (_FSDP, jax.P(_BOTH)),
    "TP": (_TP, jax.P("data")),
    "FSDP with TP": (_MIXED, jax.P("data")),
}
"""The specs of the parameters and of the batch, as in the lesson."""
_WEIGHT, _BATCH = Box(0, 0, 60, 36), Box(0, 0, 60, 18)
_LEFT, _GAP, _HOST_GAP, _TOP, _ROW_HEIGHT = 142, 10, 18, 66, 92


def _mesh() -> Any:
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), _BOTH, axis_types=types)


def _held(specs: _Specs) -> int:
    """Return the bytes of the parameters on each device."""
    mesh = _mesh()
    return 4 * sum(int(np.prod(jax.NamedSharding(mesh, specs[name]).shard_shape(SHAPES[name]))) for name in SHAPES)


def _draw_shard(drawing: Drawing, frame: Box, shape: tuple[int, ...], index: tuple[slice, ...], color: str) -> None:
    """Draw an array of two dims as a frame, and fill the slice that a device holds."""
    (top, bottom), (left, right) = (slice_.indices(size)[:2] for slice_, size in zip(index, shape, strict=True))
    drawing.box(frame, fill=PAPER, line=LINE, radius=0)
    x, y = frame.x + frame.width * left / shape[1], frame.y + frame.height * top / shape[0]
    width, height = frame.width * (right - left) / shape[1], frame.height * (bottom - top) / shape[0]
    drawing.box(Box(x, y, width, height), fill=mix(color, 0.75), radius=0)


def _held_by_device() -> Drawing:
    mesh = _mesh()
    drawing = Drawing(
        760,
        _TOP + 4 * _ROW_HEIGHT + 34,
        title="What each of eight devices holds, in four ways to shard a block",
        description="One row for each way. For each device: the part of the weight up that it holds, and its part of the batch.",
    )
    pair = 2 * _WEIGHT.width + _GAP
    places = [_LEFT + host * (pair + _HOST_GAP) + each * (_WEIGHT.width + _GAP) for host in range(4) for each in (0, 1)]
    for host in range(4):
        drawing.text(places[2 * host] + pair / 2, 24, f"host {host}", anchor="middle", style="strong")
        for each in (0, 1):
            middle = places[2 * host + each] + _WEIGHT.width / 2
            drawing.text(middle, 48, f"device {2 * host + each}", size="small", anchor="middle", style="quiet")
    for row, (name, (specs, batch)) in enumerate(WAYS.items()):
        y = _TOP + row * _ROW_HEIGHT
        drawing.text(14, y + 14, name, style="strong")
        drawing.text(14, y + 36, f"{_held(specs) // 1024} KiB", size="small", style="quiet")
        weight = jax.NamedSharding(mesh, specs["up"]).devices_indices_map(SHAPES["up"])
        rows = jax.NamedSharding(mesh, batch).devices_indices_map(X[:2])
        for device, (place, key) in enumerate(zip(places, mesh.devices.flat, strict=True)):
            color = color_of(device // 2)
            _draw_shard(drawing, Box(place, y, _WEIGHT.width, _WEIGHT.height), SHAPES["up"], weight[key], color)
            batch_frame = Box(place, y + _WEIGHT.height + 8, _BATCH.width, _BATCH.height)
            _draw_shard(drawing, batch_frame, X[:2], rows[key], QUIET)
    words = (
        f"above: up, {D} rows and {F} columns · below: the batch, {X[0]} sequences · KiB: all parameters on a device"
    )
    drawing.text(14, _TOP + 4 * _ROW_HEIGHT + 8, words, size="small", style="quiet")
    return drawing


# -- tensor parallelism


def _local(name: str) -> tuple[int, ...]:
    return tuple(jax.NamedSharding(_mesh(), _TP[name]).shard_shape(SHAPES[name]))


def _ranges(name: str, dim: int, device: int) -> str:
    """Return the first and the last index of a weight's slice on a device."""
    mesh = _mesh()
    index = jax.NamedSharding(mesh, _TP[name]).devices_indices_map(SHAPES[name])[mesh.devices[0, device]][dim]
    return f"{index.start or 0} to {index.stop - 1}"


_LANES, _LANE, _BOX, _STEP = (150, 466), 280, 42, 60


def _step(drawing: Drawing, y: float, side: str, words: Sequence[str], *, pale: bool = False) -> None:
    """Draw one step: its name on the left, and one box per device."""
    drawing.text(14, y + _BOX / 2, side, size="small", style="quiet")
    for device, x in enumerate(_LANES):
        color = mix(color_of(0 if pale else 2 * device), 0.12 if pale else 0.35)
        drawing.box(Box(x, y, _LANE, _BOX), fill=color, line=LINE)
        drawing.text(x + _LANE / 2, y + _BOX / 2, words[device], size="small", anchor="middle")
        drawing.arrow((x + _LANE / 2, y + _BOX), (x + _LANE / 2, y + _STEP - 2))


def _reduce(drawing: Drawing, y: float, nbytes: int) -> None:
    """Draw an all-reduce as one box over both devices."""
    box = Box(_LANES[0], y, _LANES[1] + _LANE - _LANES[0], _BOX)
    drawing.text(14, y + _BOX / 2, "send", size="small", style="quiet")
    drawing.box(
        box, f"all-reduce: add both partial sums, {nbytes // 1024} KiB", fill=mix("#e69f00", 0.35), line="#e69f00"
    )
    for x in _LANES:
        drawing.arrow((x + _LANE / 2, y + _BOX), (x + _LANE / 2, y + _STEP - 2))


def _block_in_tp() -> Drawing:
    local = jax.NamedSharding(_mesh(), jax.P("data")).shard_shape(X)
    nbytes = 4 * int(np.prod(local))
    heads, hidden = _local("q")[1], _local("up")[1]
    steps = 9
    drawing = Drawing(
        760,
        56 + steps * _STEP,
        title="One block through tensor parallelism on the two devices of a host",
        description="Each device computes its own heads and hidden columns. After each product by rows, an all-reduce adds partial sums.",
    )
    for device, x in enumerate(_LANES):
        drawing.text(x + _LANE / 2, 24, f"device {device}", anchor="middle", style="strong")
    same = f"x, {list(local)}, the same on both"
    y = 44.0
    _step(drawing, y, "whole", [same] * 2, pale=True)
    _step(
        drawing,
        y + _STEP,
        "by columns",
        [f"q, k, v: heads {_ranges('q', 1, device)} of {HEADS}" for device in range(2)],
    )
    _step(drawing, y + 2 * _STEP, "by rows", [f"{heads} heads, then out: a partial sum"] * 2)
    _reduce(drawing, y + 3 * _STEP, nbytes)
    _step(drawing, y + 4 * _STEP, "whole", [f"x + attention, {list(local)}, the same"] * 2, pale=True)
    _step(
        drawing, y + 5 * _STEP, "by columns", [f"up, gelu: columns {_ranges('up', 1, device)}" for device in range(2)]
    )
    _step(drawing, y + 6 * _STEP, "by rows", [f"down: {hidden} rows, a partial sum"] * 2)
    _reduce(drawing, y + 7 * _STEP, nbytes)
    drawing.text(14, y + 8 * _STEP + _BOX / 2, "whole", size="small", style="quiet")
    for x in _LANES:
        words = f"the block's output, {list(local)}"
        drawing.box(Box(x, y + 8 * _STEP, _LANE, _BOX), fill=mix(color_of(0), 0.12), line=LINE)
        drawing.text(x + _LANE / 2, y + 8 * _STEP + _BOX / 2, words, size="small", anchor="middle")
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"17_held.svg": _held_by_device, "17_block.svg": _block_in_tp}
