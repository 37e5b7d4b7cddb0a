"""Lesson 07: which rows of a table each rank passes to JAX, and which ones its devices hold."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from tests.integration.lessons.figures.drawing import INK, PALE, Box, Drawing, color_of, mix

RANKS, LOCAL_DEVICES = 4, 2


def rows_by_device(sharding: jax.NamedSharding, shape: tuple[int, ...]) -> list[range]:
    """Return the rows that each device holds, in device order."""
    indices = sharding.devices_indices_map(shape)
    return [range(*indices[device][0].indices(shape[0])) for device in jax.devices()]


def rows_by_rank(sharding: jax.NamedSharding, shape: tuple[int, ...]) -> list[range]:
    """Return the rows that the devices of each rank hold together; they follow one another."""
    held = np.array([(rows.start, rows.stop) for rows in rows_by_device(sharding, shape)])
    by_rank = held.reshape(RANKS, LOCAL_DEVICES, 2)
    return [
        range(int(low), int(high)) for low, high in zip(by_rank[..., 0].min(1), by_rank[..., 1].max(1), strict=True)
    ]


def _span(cells: Sequence[Box], rows: range) -> Box:
    """Return the box around rows that follow one another."""
    first, last = cells[rows[0]], cells[rows[-1]]
    return Box(first.x, first.y, last.right - first.x, first.height)


def draw_line(drawing: Drawing, cells: Sequence[Box], rank: int, reads: Sequence[range], kept: range) -> None:
    """Draw one rank's line of rows: a bar for each read, and a frame around the rows that its devices hold.

    Args:
        drawing: to draw on.
        cells: the place of each row of the array.
        rank: whose colour the bars have.
        reads: the rows of each read.
        kept: the rows that the rank's devices hold.
    """
    drawing.box(_span(cells, range(len(cells))), fill=PALE, radius=0)
    for read in reads:
        bar = _span(cells, read)
        # Narrower than its rows, so that there is a gap between two reads.
        bar = Box(bar.x + 1.5, bar.y, bar.width - 3, bar.height)
        drawing.box(bar, fill=mix(color_of(rank), 0.3), radius=0)
        drawing.box(Box(bar.x, bar.bottom - 4, bar.width, 4), fill=color_of(rank), radius=0)
    for row, cell in enumerate(cells):
        x, y = cell.middle
        is_read = any(row in read for read in reads)
        drawing.text(x, y - 1, str(row), size="small", anchor="middle", style="plain" if is_read else "quiet")
    frame = _span(cells, kept).grow(1.5)
    drawing.box(frame, fill="none", line=INK, radius=2)
    drawing.box(frame.grow(-1), fill="none", line=INK, radius=2)


def draw_legend(drawing: Drawing, x: float, y: float, read: str, kept: str) -> None:
    """Explain the bars and the frame in one line."""
    drawing.legend(x, y, [([color_of(rank) for rank in range(RANKS)], read)])
    x += 60 + len(read) * 7.6
    for grow in (0, -1):
        drawing.box(Box(x, y - 8, 16, 16).grow(grow), fill="none", line=INK, radius=2)
    drawing.text(x + 24, y, kept, size="small", style="quiet")


def _rows() -> Drawing:
    """Compare the two ways that the lesson compares."""
    mesh = jax.make_mesh((RANKS, LOCAL_DEVICES), ("data", "model"))
    by_rows, shape = jax.NamedSharding(mesh, jax.P("data", None)), (8, 4)
    kept, held = rows_by_rank(by_rows, shape), rows_by_device(by_rows, shape)
    ways = [
        ("jax.device_put", [range(shape[0])] * RANKS),
        ("jax.make_array_from_process_local_data", kept),
    ]
    words = [
        "; ".join(f"rank {rank} passes rows {rows.start} to {rows[-1]}" for rank, rows in enumerate(passed))
        for _, passed in ways
    ]
    description = (
        f"device_put: {words[0]}. From local data: {words[1]}. In both, a rank keeps two rows on both devices."
    )
    drawing = Drawing(620, 490, title="which rows each rank passes and keeps", description=description)
    left, top, size = 90, 24, Box(0, 0, 38, 30)
    for number, (name, passed) in enumerate(ways):
        y = top + number * 218
        drawing.text(20, y, name, style="code")
        drawing.text(left + 8 * size.width + 24, y + 24, "on its devices", size="small", style="quiet")
        for rank in range(RANKS):
            cells = [
                Box(left + row * size.width, y + 40 + rank * 38, size.width, size.height) for row in range(shape[0])
            ]
            drawing.text(20, cells[0].middle[1], f"rank {rank}")
            draw_line(drawing, cells, rank, [passed[rank]], kept[rank])
            for local in range(LOCAL_DEVICES):
                rows = held[rank * LOCAL_DEVICES + local]
                box = Box(cells[-1].right + 24 + local * 90, cells[0].y, 80, size.height)
                drawing.device(box, number=rank)
                drawing.text(*box.middle, f"rows {rows.start}, {rows[-1]}", size="small", anchor="middle")
    draw_legend(drawing, 20, 466, "rows that the rank passes", "rows that it keeps")
    return drawing


FIGURES = {"07_rows.svg": _rows}
