"""Lesson 06: what a program knows of one array under the three types of axes, and how a type reads."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from tests.integration.lessons.figures.drawing import INK, LINE, QUIET, Box, Drawing, color_of, mix
from tests.integration.lessons.figures.l03 import host_of, read_indices

SIZES, NAMES = (4, 2), ("hosts", "inside")
SPEC = jax.P(*NAMES)
MODES_SHAPE, TYPE_SHAPE = (8, 4), (8, 6)
VIEWER = 3
"""The device whose shard the figure shows for Manual axes."""


def _make_mesh(axis_type: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh(SIZES, NAMES, axis_types=(axis_type,) * len(NAMES))


def _trace_type(axis_type: AxisType, shape: tuple[int, int]) -> str:
    """Return the type that a traced function sees."""
    mesh, seen = _make_mesh(AxisType.Auto if axis_type is AxisType.Auto else AxisType.Explicit), []

    def look(x: Any) -> Any:
        seen.append(str(jax.typeof(x)))
        return x

    is_manual = axis_type is AxisType.Manual
    traced = jax.jit(jax.shard_map(look, mesh=mesh, in_specs=SPEC, out_specs=SPEC) if is_manual else look)
    with jax.set_mesh(mesh):
        traced(jax.device_put(np.zeros(shape, np.float32), jax.NamedSharding(mesh, SPEC)))
    # Without what JAX knows of the axes along which shards may vary, which the lesson explains later.
    return seen[0].partition("{")[0]


def _draw_array(drawing: Drawing, at: tuple[float, float], cell: Box, shape: tuple[int, int], mode: AxisType) -> None:
    """Draw an array as the program sees it."""
    x, y = at
    frame = Box(x, y, cell.width * shape[1], cell.height * shape[0])
    if mode is AxisType.Manual:
        drawing.box(frame, fill=mix(QUIET, 0.08), radius=0)
    for row, column in np.ndindex(*shape) if mode is AxisType.Auto else ():
        value = Box(x + column * cell.width, y + row * cell.height, cell.width - 1, cell.height - 1)
        drawing.box(value, fill=mix(QUIET, 0.3), radius=0)
    mesh = _make_mesh(AxisType.Explicit)
    places = read_indices(mesh, SPEC, shape)
    for device, (rows, columns) in zip(mesh.devices.flat, places.flat, strict=True):
        if mode is AxisType.Auto or (mode is AxisType.Manual and device.id != VIEWER):
            continue
        for row, column in np.ndindex(rows[1] - rows[0], columns[1] - columns[0]):
            corner = x + (columns[0] + column) * cell.width, y + (rows[0] + row) * cell.height
            drawing.box(
                Box(*corner, cell.width - 1, cell.height - 1), fill=mix(color_of(host_of(device)), 0.4), radius=0
            )
        piece = Box(
            x + columns[0] * cell.width,
            y + rows[0] * cell.height,
            (columns[1] - columns[0]) * cell.width - 1,
            (rows[1] - rows[0]) * cell.height - 1,
        )
        drawing.box(piece, fill="none", line=INK, radius=0)
        x_middle, y_middle = piece.middle
        drawing.box(
            Box(x_middle - 9, y_middle - 9, 18, 18), str(device.id), fill=mix(color_of(host_of(device)), 0.4), radius=0
        )


def _modes() -> Drawing:
    notes = {
        AxisType.Auto: ("The program sees the whole array.", "Only the compiler knows where its pieces are."),
        AxisType.Explicit: ("The program sees the whole array,", "and its type says which axis divides which dim."),
        AxisType.Manual: (f"The function sees one shard: here, device {VIEWER}'s.", "The other devices run it, too."),
    }
    types = {mode: _trace_type(mode, MODES_SHAPE) for mode in notes}
    drawing = Drawing(
        560,
        462,
        title="One array under the three types of axes",
        description=" ".join(f"{mode.name}: {types[mode]}. {' '.join(notes[mode])}" for mode in notes),
    )
    cell = Box(0, 0, 28, 15)
    for number, (mode, lines) in enumerate(notes.items()):
        y = 26 + 146 * number
        _draw_array(drawing, (24, y), cell, MODES_SHAPE, mode)
        drawing.text(168, y + 14, mode.name, size="title", style="strong")
        drawing.text(168, y + 46, types[mode], style="code")
        for place, line in enumerate(lines):
            drawing.text(168, y + 76 + 22 * place, line)
        if number < 2:
            drawing.line((24, y + 133), (536, y + 133))
    return drawing


def _type() -> Drawing:
    mesh, seen = _make_mesh(AxisType.Explicit), _trace_type(AxisType.Explicit, TYPE_SHAPE)
    indices = read_indices(mesh, SPEC, TYPE_SHAPE)
    dims = seen.partition("[")[2].rstrip("]").split(",")
    held = [indices[0, 0][dim][1] - indices[0, 0][dim][0] for dim in range(2)]
    lines = [
        f"{TYPE_SHAPE[0]} rows, divided among {SIZES[0]} hosts: {held[0]} rows each",
        f"{TYPE_SHAPE[1]} columns, divided among the {SIZES[1]} devices inside a host: {held[1]} each",
    ]
    pieces = [
        f"device {device.id} holds rows {rows[0]}:{rows[1]}, columns {columns[0]}:{columns[1]}"
        for device, (rows, columns) in zip(mesh.devices.flat, indices.flat, strict=True)
    ]
    words = "; ".join([*(f"{dim}: {line}" for dim, line in zip(dims, lines, strict=True)), *pieces])
    drawing = Drawing(600, 356, title=f"How the type {seen} reads", description=f"{words}.")
    drawing.text(24, 32, seen, size="title", style="code")
    for place, (dim, line) in enumerate(zip(dims, lines, strict=True)):
        drawing.text(24, 66 + 26 * place, dim, style="code")
        drawing.text(122, 66 + 26 * place, line)
    top, cell = 158, Box(0, 0, 34, 21)
    drawing.text(24, top - 20, "the array, with the device of each piece", size="small", style="quiet")
    _draw_array(drawing, (24, top), cell, TYPE_SHAPE, AxisType.Explicit)
    left, step = 340, 42
    drawing.text(left, top - 20, "the mesh", size="small", style="quiet")
    for row, devices in enumerate(mesh.devices):
        host = host_of(devices[0])
        y = top + step * row
        drawing.box(Box(left, y, 160, step - 6), fill=mix(color_of(host), 0.1), line=color_of(host))
        drawing.text(left + 176, y + 18, f"host {host}")
        for column, device in enumerate(devices):
            box = Box(left + 8 + 76 * column, y + 6, 68, step - 18)
            drawing.box(box, str(device.id), fill=mix(color_of(host), 0.4), line=LINE)
    return drawing


FIGURES = {"06_modes.svg": _modes, "06_type.svg": _type}
