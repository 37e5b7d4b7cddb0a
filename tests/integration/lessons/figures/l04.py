"""Lesson 04: the chips of two slices, and a mesh over them as JAX lays it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mhnb.sharding.machines import CHIPS
from tests.integration.lessons.figures.drawing import CELL, QUIET, Box, Cell, Drawing
from tests.integration.lessons.recorded import read_table

_CHIP = CHIPS["v5e"]
_SLICE, _HOST = Box(20, 52, 325, 186), Box(12, 34, 142, 140)
"""The first slice, and its first host within it."""
_NEXT_SLICE, _NEXT_HOST = 395, 159
_FIRST, _STEP = (14, 30), (72, 64)
"""The place of a host's first chip within it, and the distance to the next chip."""


@dataclass(frozen=True, slots=True)
class _Device:
    """A recorded device, with what JAX's mesh functions read of one."""

    position: int
    process_index: int
    slice_index: int
    coords: tuple[int, int, int]
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    core_on_chip: int = 0


def _find_place(device: _Device) -> Box:
    """Return where a chip is drawn: x of the slice downwards, y to the right."""
    x, y, _ = device.coords
    in_slice, in_host = divmod(y, 2)
    return Box(
        _SLICE.x + device.slice_index * _NEXT_SLICE + _HOST.x + in_slice * _NEXT_HOST + _FIRST[0] + in_host * _STEP[0],
        _SLICE.y + _HOST.y + _FIRST[1] + x * _STEP[1],
        CELL.width,
        CELL.height,
    )


def _draw_links(drawing: Drawing, devices: list[_Device]) -> None:
    """Draw a thick line between chips of a slice that are next to each other."""
    places = {(device.slice_index, device.coords): _find_place(device) for device in devices}
    for (at, (x, y, z)), place in places.items():
        middle_x, middle_y = place.middle
        if right := places.get((at, (x, y + 1, z))):
            drawing.box(Box(place.right, middle_y - 3, right.x - place.right, 6), fill=QUIET, radius=0)
        if below := places.get((at, (x + 1, y, z))):
            drawing.box(Box(middle_x - 3, place.bottom, 6, below.y - place.bottom), fill=QUIET, radius=0)


def _draw_slices(drawing: Drawing, devices: list[_Device]) -> None:
    for number in sorted({device.slice_index for device in devices}):
        box = Box(_SLICE.x + number * _NEXT_SLICE, _SLICE.y, _SLICE.width, _SLICE.height)
        drawing.box(box, line=QUIET)
        drawing.text(box.x + 12, box.y + 17, f"slice {number}", style="strong")
        hosts = sorted({device.process_index for device in devices if device.slice_index == number})
        for at, host in enumerate(hosts):
            frame = Box(box.x + _HOST.x + at * _NEXT_HOST, box.y + _HOST.y, _HOST.width, _HOST.height)
            drawing.host(frame, f"host {host}", number=host)
    _draw_links(drawing, devices)
    for device in devices:
        place = _find_place(device)
        drawing.cells(place.x, place.y, [[_cell(device)]])


def _cell(device: _Device) -> Cell:
    return Cell(str(device.position), (device.process_index,))


def draw_slices() -> Drawing:
    """Draw two slices, the connections of their chips, and the mesh that `create_hybrid_device_mesh` makes."""
    from jax.experimental import mesh_utils

    devices = [_Device(at, process, number, (x, y, 0)) for at, (_, process, number, x, y) in enumerate(read_table())]
    grid: Any = mesh_utils.create_hybrid_device_mesh((1, 8), (2, 1), devices)
    drawing = Drawing(
        760,
        446,
        title="Two slices, and a mesh over them",
        description=(
            "Each slice has two hosts with four chips each. Thick lines connect neighbours in a slice, also between its hosts. One thin "
            "line connects the slices. The mesh below has a row for each slice."
        ),
    )
    drawing.text(20, 26, "Two slices of a TPU v5e", size="title", style="strong")
    _draw_slices(drawing, devices)
    _, middle = _SLICE.middle
    drawing.line((_SLICE.right, middle), (_SLICE.x + _NEXT_SLICE, middle), color=QUIET)
    assert _CHIP.link is not None
    assert _CHIP.network is not None
    drawing.box(Box(20, 257, 36, 6), fill=QUIET, radius=0)
    drawing.text(64, 260, f"ICI: a chip sends {_CHIP.link / 1e9:.0f} GB/s along one axis", size="small", style="quiet")
    drawing.line((415, 260), (451, 260), color=QUIET)
    drawing.text(459, 260, f"network: a chip sends {_CHIP.network / 1e9:.1f} GB/s", size="small", style="quiet")

    drawing.text(20, 306, "A mesh of shape (2, 8)", size="title", style="strong")
    drawing.text(180, 340, "model →", size="small", style="quiet")
    box = drawing.cells(180, 356, [[_cell(device) for device in row] for row in grid])
    for row, line in enumerate(grid):
        y = box.y + (row + 0.5) * CELL.height
        (number,) = {device.slice_index for device in line}
        drawing.text(box.x - 12, y, f"data {row}", anchor="end")
        drawing.text(box.right + 12, y, f"slice {number}", style="quiet")
    return drawing


FIGURES = {"04_slices.svg": draw_slices}
