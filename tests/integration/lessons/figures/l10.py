"""Lesson 10: which records each rank reads for one batch, and which ones its devices hold, for four ways to load it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.integration.lessons.figures.drawing import Box, Drawing
from tests.integration.lessons.figures.l07 import LOCAL_DEVICES, RANKS, draw_legend, draw_line, rows_by_rank

_BATCH = 16
_LOCAL = _BATCH // RANKS


def _reads_per_device(by_rows: jax.NamedSharding) -> list[list[range]]:
    """Return what the callback was asked for, by rank."""
    asked: list[range] = []

    def read(index: Any) -> np.ndarray:
        asked.append(range(*index[0].indices(_BATCH)))
        return np.zeros((len(asked[-1]), 2), np.float32)

    x = jax.make_array_from_callback((_BATCH, 2), by_rows, read)
    reads = sorted({(rows.start, rows.stop) for rows in asked})
    assert len(reads) == len(x.sharding.device_set)
    return [[range(*rows) for rows in reads[LOCAL_DEVICES * rank :][:LOCAL_DEVICES]] for rank in range(RANKS)]


def _reads() -> Drawing:
    """Draw the four ways below each other, one line per rank."""
    by_rows = jax.NamedSharding(jax.make_mesh((RANKS * LOCAL_DEVICES,), ("data",)), jax.P("data", None))
    kept = rows_by_rank(by_rows, (_BATCH, 2))
    own = [range(_LOCAL * rank, _LOCAL * (rank + 1)) for rank in range(RANKS)]
    assert own == kept
    ways = [
        ("1 · global data in each process", [[range(_BATCH)]] * RANKS),
        ("2 · a pipeline per device", _reads_per_device(by_rows)),
        ("3 · a pipeline per process", [[rows] for rows in own]),
        ("4 · load in any order, then reshard", [[rows] for rows in reversed(own)]),
    ]
    words = [
        f"way {name}: "
        + ", ".join(f"rank {rank} {' and '.join(f'{r[0]}-{r[-1]}' for r in each)}" for rank, each in enumerate(reads))
        for name, reads in ways
    ]
    drawing = Drawing(560, 660, title="which records each rank reads for a batch of 16", description="; ".join(words))
    left, size = 84, Box(0, 0, 28, 24)
    for number, (name, reads) in enumerate(ways):
        y = 26 + number * 152
        drawing.text(20, y, name, style="strong")
        for rank in range(RANKS):
            cells = [Box(left + row * size.width, y + 18 + rank * 29, size.width, size.height) for row in range(_BATCH)]
            drawing.text(20, cells[0].middle[1], f"rank {rank}", size="small")
            draw_line(drawing, cells, rank, reads[rank], kept[rank])
    draw_legend(drawing, 20, 640, "records that the rank reads", "records on its devices")
    return drawing


FIGURES = {"10_reads.svg": _reads}
