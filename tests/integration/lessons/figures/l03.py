"""Lesson 03: a mesh over four hosts, and what each of its devices holds for three specs."""

from __future__ import annotations

import math

import jax
import numpy as np

from tests.integration.lessons.figures.drawing import PAPER, QUIET, Box, Drawing, color_of, mix

SIZES, NAMES = (4, 2), ("data", "model")
SHAPE = (8, 6)
SPECS = (jax.P("data", None), jax.P("data", "model"), jax.P("model", None))
Index = tuple[tuple[int, int], ...]
"""Where a shard begins and ends in each dim."""


def host_of(device: jax.Device) -> int:
    """Return the host of a device in the lesson, in which each host has two."""
    return int(device.id) // 2


def bounds(part: slice, size: int) -> tuple[int, int]:
    """Return where a slice of a dim begins and ends."""
    start, stop, _ = part.indices(size)
    return start, stop


def read_indices(mesh: jax.sharding.Mesh, spec: jax.P, shape: tuple[int, ...]) -> np.ndarray:
    """Return the index of each device's shard, in the grid of the mesh."""
    indices = jax.NamedSharding(mesh, spec).devices_indices_map(shape)
    found = np.empty(mesh.devices.shape, object)
    for place, device in np.ndenumerate(mesh.devices):
        found[place] = tuple(bounds(part, size) for part, size in zip(indices[device], shape, strict=True))
    return found


def draw_part(drawing: Drawing, at: tuple[float, float], unit: tuple[float, float], index: Index, color: str) -> None:
    """Draw an array, with the part that a device holds in colour."""
    (x, y), (width, height) = at, unit
    rows, columns = index
    drawing.box(Box(x, y, SHAPE[1] * width, SHAPE[0] * height), fill=mix(QUIET, 0.15), radius=0)
    held = Box(
        x + columns[0] * width,
        y + rows[0] * height,
        (columns[1] - columns[0]) * width,
        (rows[1] - rows[0]) * height,
    )
    drawing.box(held, fill=mix(color, 0.75), radius=0)
    for row in range(1, SHAPE[0]):
        drawing.box(Box(x, y + row * height - 0.5, SHAPE[1] * width, 1), fill=PAPER, radius=0)
    for column in range(1, SHAPE[1]):
        drawing.box(Box(x + column * width - 0.5, y, 1, SHAPE[0] * height), fill=PAPER, radius=0)


def _mesh() -> Drawing:
    mesh = jax.make_mesh(SIZES, NAMES)
    drawing = Drawing(
        560,
        350,
        title="A mesh of eight devices on four hosts",
        description="; ".join(
            f"row {number} of the grid: devices {' and '.join(str(device.id) for device in row)} of host {host_of(row[0])}"
            for number, row in enumerate(mesh.devices)
        ),
    )
    left, top, step, width, gap = 170, 84, 62, 110, 20
    x1 = left + 2 * width + gap
    drawing.text(left, 26, f"{NAMES[1]}, size {mesh.shape[NAMES[1]]}", style="strong")
    drawing.text(left, 46, "stays inside a host", size="small", style="quiet")
    drawing.arrow((left, 66), (x1, 66))
    drawing.text(130, top + 100, f"{NAMES[0]}, size {mesh.shape[NAMES[0]]}", style="strong", anchor="end")
    drawing.text(130, top + 122, "crosses the hosts", size="small", style="quiet", anchor="end")
    drawing.arrow((146, top), (146, top + 4 * step - 12))
    for row, devices in enumerate(mesh.devices):
        host = host_of(devices[0])
        y = top + row * step
        drawing.box(Box(left - 8, y, x1 - left + 16, step - 12), fill=mix(color_of(host), 0.1), line=color_of(host))
        drawing.text(x1 + 22, y + 25, f"host {host}")
        for column, device in enumerate(devices):
            box = Box(left + column * (width + gap), y + 8, width, step - 28)
            drawing.box(box, f"device {device.id}", fill=mix(color_of(host), 0.35))
    return drawing


def _specs() -> Drawing:
    mesh = jax.make_mesh(SIZES, NAMES)
    unit, gap, left, top, step = (9.0, 8.0), 12, 84, 96, 82
    width = 2 * SHAPE[1] * unit[0] + gap
    panel = width + 42
    drawing = Drawing(
        round(left + 3 * panel - 18),
        top + 4 * step + 44,
        title="What each device holds for three specs",
        description=" ".join(f"With {spec}, {_describe(read_indices(mesh, spec, SHAPE))}." for spec in SPECS),
    )
    for host in range(4):
        drawing.text(left - 18, top + step * host + 32, f"host {host}", anchor="end")
    for number, spec in enumerate(SPECS):
        indices = read_indices(mesh, spec, SHAPE)
        x = left + number * panel
        words = ", ".join(repr(name) for name in spec).replace("'", '"')
        drawing.text(x + width / 2, 28, f"P({words})", size="small", style="code", anchor="middle")
        shard = jax.NamedSharding(mesh, spec).shard_shape(SHAPE)
        copies = mesh.size // len(set(indices.flat))
        drawing.text(x + width / 2, 52, f"a shard is {shard}", size="small", anchor="middle")
        on = f"each on {copies} devices" if copies > 1 else "each on one device"
        drawing.text(x + width / 2, 72, on, size="small", style="quiet", anchor="middle")
        for (row, column), index in np.ndenumerate(indices):
            at = (x + column * (SHAPE[1] * unit[0] + gap), top + row * step)
            draw_part(drawing, at, unit, index, color_of(host_of(mesh.devices[row, column])))
    for line, words in enumerate(
        (
            f"Each small table is the whole array of {SHAPE[0]} by {SHAPE[1]} values.",
            "In colour: what this device holds.",
        )
    ):
        drawing.text(left, top + 4 * step + 8 + 20 * line, words, size="small", style="quiet")
    return drawing


def _describe(indices: np.ndarray) -> str:
    """Describe the pieces for a reader who does not see them."""
    pieces = set(indices.flat)
    values = sum(math.prod(stop - start for start, stop in index) for index in indices.flat)
    return f"there are {len(pieces)} different pieces, and all devices together hold {values} values"


FIGURES = {"03_mesh.svg": _mesh, "03_specs.svg": _specs}
