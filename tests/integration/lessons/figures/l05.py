"""Lesson 05: what each collective does to the numbers on four devices, and how a ring does it step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from tests.integration.lessons.figures.drawing import CELL, Box, Cell, Drawing, color_of

N = 4
_RING = [(device, (device + 1) % N) for device in range(N)]
_NUMBERS = np.array([[10 * device + place for place in range(N)] for device in range(N)], np.int32)
"""What each device holds in the lesson: device 2 holds 20, 21, 22 and 23."""
_MARKS = np.repeat(1 << np.arange(N, dtype=np.int32)[:, None], N, axis=1)
"""One bit per device. A collective of these tells from which devices each number came."""

Body = Callable[[Any], Any]


def run(body: Body, values: np.ndarray) -> np.ndarray:
    """Run a function of one device's numbers on four devices; return what each holds after it, one row per device."""
    mesh = jax.make_mesh((N,), ("i",), devices=jax.devices()[:N])
    spec = jax.P("i")
    mapped = jax.shard_map(lambda piece: body(piece[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    return np.asarray(jax.jit(mapped)(jax.device_put(values, jax.NamedSharding(mesh, spec))))


def trace_cells(values: np.ndarray, marks: np.ndarray, is_new: np.ndarray | None = None) -> list[list[Cell]]:
    """Return cells for values, coloured by the devices that are in their marks."""
    new = np.zeros_like(values, bool) if is_new is None else is_new
    return [
        [Cell(str(value), tuple(k for k in range(N) if mark >> k & 1), is_new=new) for value, mark, new in row]
        for row in np.stack([values, marks, new], axis=-1).tolist()
    ]


# -- before and after


def _draw_collective(name: str, call: str, verbs: Sequence[str], body: Body, *, columns: int = N) -> Drawing:
    """Draw the numbers of four devices before and after a collective.

    Args:
        name: of the collective.
        call: as it is written in a program.
        verbs: what it does, in short lines.
        body: the call as a function of one device's numbers.
        columns: how many numbers each device holds before it.
    """
    before, marks = _NUMBERS[:, :columns], _MARKS[:, :columns]
    states = [trace_cells(before, marks), trace_cells(run(body, before), run(body, marks))]
    words = [
        "; ".join(f"device {k}: {' '.join(cell.words for cell in row)}" for k, row in enumerate(rows))
        for rows in states
    ]
    drawing = Drawing(600, 330, title=f"{name} on four devices", description=f"Before: {words[0]}. After: {words[1]}.")
    drawing.text(20, 28, name, size="title", style="strong")
    drawing.text(580, 28, call, anchor="end", style="code")
    left, right, top, step = 104, 400, 88, 50
    for x, word, rows in zip((left, right), ("before", "after"), states, strict=True):
        drawing.text(x, 64, word, style="quiet")
        for device, row in enumerate(rows):
            box = Box(x, top + step * device, N * CELL.width, CELL.height)
            drawing.device(box.grow(4), f"device {device}" if x == left else "")
            drawing.cells(box.x, box.y, [row])
    middle = (left + N * CELL.width + right) / 2
    centre = top + (3 * step + CELL.height) / 2
    drawing.arrow((middle - 42, centre), (middle + 42, centre))
    for line, verb in enumerate(verbs):
        drawing.text(middle, centre + 22 + 20 * line, verb, anchor="middle", size="small")
    sums = [([color_of(device) for device in range(N)], "a sum of numbers from all four")]
    legend = [([color_of(2)], "a number from device 2"), *(sums if "add" in verbs[0] else [])]
    drawing.legend(left - 4, 308, legend)
    return drawing


def _all_reduce() -> Drawing:
    return _draw_collective("all-reduce", 'lax.psum(x, "i")', ("add,", "copy to all"), lambda x: lax.psum(x, "i"))


def _all_gather() -> Drawing:
    def body(x: Any) -> Any:
        return lax.all_gather(x, "i", tiled=True)

    return _draw_collective("all-gather", 'lax.all_gather(x, "i", tiled=True)', ("copy to all",), body, columns=1)


def _reduce_scatter() -> Drawing:
    def body(x: Any) -> Any:
        return lax.psum_scatter(x, "i", tiled=True)

    return _draw_collective("reduce-scatter", 'lax.psum_scatter(x, "i", tiled=True)', ("add,", "split"), body)


def _all_to_all() -> Drawing:
    def body(x: Any) -> Any:
        return lax.all_to_all(x, "i", split_axis=0, concat_axis=0, tiled=True)

    return _draw_collective("all-to-all", 'lax.all_to_all(x, "i", 0, 0, tiled=True)', ("split,", "exchange"), body)


def _permute() -> Drawing:
    def body(x: Any) -> Any:
        return lax.ppermute(x, "i", _RING)

    return _draw_collective("permute", 'lax.ppermute(x, "i", ring)', ("pass on", "to the next"), body)


# -- the ring


def _run_ring(marks: np.ndarray) -> list[np.ndarray]:
    """Return what four devices hold at each step of an all-reduce in a ring, with one message per device and step."""

    def body(piece: Any) -> Any:
        mine, states = lax.axis_index("i"), [piece]
        for step in range(2 * (N - 1)):
            # Each device sends the part that it received last, at first its own.
            sent, received = (mine - step) % N, (mine - step - 1) % N
            message = lax.ppermute(piece[sent], "i", _RING)
            piece = piece.at[received].set(piece[received] + message if step < N - 1 else message)
            states.append(piece)
        return jax.numpy.stack(states)

    return list(np.moveaxis(run(body, marks), 0, 1))


def _ring() -> Drawing:
    values, marks = _run_ring(_NUMBERS), _run_ring(_MARKS)
    n_steps = len(values) - 1
    drawing = Drawing(
        648,
        578,
        title="An all-reduce of four devices in a ring, step by step",
        description=f"In each of {n_steps} steps, every device sends one of its {N} numbers to the next device, and the last"
        f" device to the first. After {N - 1} steps, each device holds one complete sum; after {n_steps}, all of them.",
    )
    left, pitch, row, cell = 88, 138, 46, Box(0, 0, 30, 28)
    halves = ("First half, a reduce-scatter: add, and pass on", "Second half, an all-gather: pass on")
    for half, words in enumerate(halves):
        y, first = 30 + 262 * half, (N - 1) * half
        drawing.text(20, y, words, style="strong")
        for device in range(N):
            drawing.text(left - 10, y + 70 + row * device, f"device {device}", size="small", anchor="end")
        for place, step in enumerate(range(first, first + N)):
            x = left + pitch * place
            drawing.text(x, y + 28, f"after step {step}" if step else "start", size="small", style="quiet")
            is_new = marks[step] != marks[step - 1 if place else step]
            for device, cells in enumerate(trace_cells(values[step], marks[step], is_new)):
                top = y + 56 + row * device
                drawing.device(Box(x, top, N * cell.width, cell.height).grow(3))
                drawing.cells(x, top, [cells], cell=cell)
                for column in np.flatnonzero(is_new[device]):
                    centre = x + (float(column) + 0.5) * cell.width
                    drawing.arrow((centre, top - 19), (centre, top))
    words = "arrived in this step from the device above; device 0 receives from device 3"
    drawing.cells(left, 547, [[Cell("", is_new=True)]], cell=Box(0, 0, 16, 14))
    drawing.text(left + 24, 554, words, size="small", style="quiet")
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {
    "05_all_reduce.svg": _all_reduce,
    "05_all_gather.svg": _all_gather,
    "05_reduce_scatter.svg": _reduce_scatter,
    "05_all_to_all.svg": _all_to_all,
    "05_permute.svg": _permute,
    "05_ring.svg": _ring,
}
