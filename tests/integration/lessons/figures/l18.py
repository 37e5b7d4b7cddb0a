"""Lesson 18: the timeline of a pipeline, the blocks of keys in a ring, and the way of tokens to experts and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.integration.lessons.figures.drawing import LOST, Box, Cell, Drawing, color_of

N = 4
_RING = [(device, (device + 1) % N) for device in range(N)]
_DOWN = _RING[:-1]


def _run(body: Callable[..., Any], *arguments: np.ndarray) -> np.ndarray:
    """Run a function of the pieces of four devices, and return one row of its results per device."""
    mesh, spec = jax.make_mesh((N,), ("i",), devices=jax.devices()[:N]), jax.P("i")
    mapped = jax.shard_map(lambda *pieces: body(*pieces)[None], mesh=mesh, in_specs=spec, out_specs=spec)
    sharding = jax.NamedSharding(mesh, spec)
    return np.asarray(jax.jit(mapped)(*(jax.device_put(each, sharding) for each in arguments)))


# -- the pipeline


def _run_pipeline(n_batches: int) -> np.ndarray:
    """Send the numbers of microbatches through four stages; return the number that each stage has in each step, or 0."""

    def body(number: Any) -> Any:
        held, seen = number[0], []
        for step in range(n_batches + N - 1):
            new = step + 1 if step < n_batches else 0
            held = jnp.where(lax.axis_index("i") == 0, new, held)
            seen.append(held)
            held = lax.ppermute(held, "i", _DOWN)
        return jnp.stack(seen)

    return _run(body, np.zeros(N, np.int32))


def _pipeline() -> Drawing:
    runs = {n_batches: _run_pipeline(n_batches) for n_batches in (1, 8)}
    idle = {n_batches: int((seen == 0).sum()) for n_batches, seen in runs.items()}
    drawing = Drawing(
        640,
        470,
        title="Four stages with one batch, and with eight microbatches",
        description="; ".join(
            f"M = {n_batches}: {seen.shape[1]} steps, and {idle[n_batches]} of {seen.size} slots are empty"
            for n_batches, seen in runs.items()
        ),
    )
    left, cell, top = 96, Box(0, 0, 46, 30), 26
    for n_batches, seen in runs.items():
        words = "one batch" if n_batches == 1 else f"{n_batches} microbatches"
        drawing.text(20, top, f"{words}: {idle[n_batches]} of {seen.size} slots are empty", style="strong")
        for step in range(seen.shape[1]):
            drawing.text(
                left + (step + 0.5) * cell.width, top + 28, str(step), anchor="middle", size="small", style="quiet"
            )
        drawing.text(left - 10, top + 28, "step", anchor="end", size="small", style="quiet")
        for stage, row in enumerate(seen.tolist()):
            y = top + 44 + stage * (cell.height + 6)
            drawing.text(left - 10, y + cell.height / 2, f"stage {stage}", anchor="end")
            drawing.cells(
                left, y, [[Cell(str(number - 1), (stage,)) if number else Cell("") for number in row]], cell=cell
            )
        top += 212
    drawing.legend(left, 448, [([color_of(0)], "the number of the microbatch that a stage computes")])
    return drawing


# -- the ring


def _run_ring() -> np.ndarray:
    """Return whose block each device has in each step, by device and step."""

    def body(number: Any) -> Any:
        seen = [number[0]]
        for _ in range(N - 1):
            seen.append(lax.ppermute(seen[-1], "i", _RING))
        return jnp.stack(seen)

    return _run(body, np.arange(N, dtype=np.int32))


def _ring() -> Drawing:
    owners = _run_ring()
    drawing = Drawing(
        700,
        330,
        title="Ring attention on four devices, step by step",
        description="; ".join(
            f"device {device} has the keys of devices {', '.join(map(str, row))}"
            for device, row in enumerate(owners.tolist())
        ),
    )
    left, pitch, row_height = 100, 152, 58
    block, used = Box(0, 0, 46, 30), Box(0, 0, 14, 14)
    for step in range(N):
        words = f"after permute {step}" if step else "its own keys"
        drawing.text(left + pitch * step, 28, words, size="small", style="quiet")
    for device, row in enumerate(owners.tolist()):
        y = 52 + row_height * device
        drawing.text(left - 14, y + 15, f"device {device}", anchor="end")
        for step, owner in enumerate(row):
            x = left + pitch * step
            drawing.device(Box(x, y, 128, 30).grow(4))
            drawing.cells(x, y, [[Cell(f"K{owner}", (owner,))]], cell=block)
            seen = row[: step + 1]
            drawing.cells(x + 62, y + 8, [[Cell("", (each,) if each in seen else ()) for each in range(N)]], cell=used)
            if step < N - 1:
                next_row = owners[:, step + 1].tolist().index(owner)
                end = (left + pitch * (step + 1) - 5, 52 + row_height * next_row + 15)
                drawing.arrow((x + 133, y + 15), end)
    drawing.legend(left, 304, [([color_of(0)], "keys and values of device 0; the small squares: blocks used so far")])
    return drawing


# -- the experts


_CHOSEN = np.array([[0, 1, 3, 2], [0, 2, 0, 3], [1, 0, 2, 1], [3, 0, 1, 2]], np.int32)
"""The expert of each token, by device. Two tokens find no slot."""


def _run_experts() -> list[np.ndarray]:
    """Send tokens to experts, with one slot per device and expert; return tokens, slots, arrivals and results by device."""

    def body(tokens: Any, chosen: Any) -> Any:
        tokens, chosen = tokens[0], chosen[0]
        earlier = jnp.tri(N, k=-1, dtype=bool)
        place = ((chosen[:, None] == chosen) & earlier).sum(axis=1)
        slots = jnp.zeros((N, 1), int).at[chosen, place].set(tokens, mode="drop")
        arrived = lax.all_to_all(slots, "i", 0, 0, tiled=True)
        back = lax.all_to_all(arrived, "i", 0, 0, tiled=True)
        results = back.at[chosen, place].get(mode="fill", fill_value=0)
        return jnp.stack([tokens, slots[:, 0], arrived[:, 0], results])

    return list(np.moveaxis(_run(body, 1 + np.arange(N * N, dtype=np.int32).reshape(N, N), _CHOSEN), 0, 1))


def _experts() -> Drawing:
    states = _run_experts()
    tokens, results = states[0], states[-1]
    dropped = tokens[results == 0].tolist()
    drawing = Drawing(
        740,
        372,
        title="Tokens on their way to experts and back",
        description=f"Sixteen tokens on four devices, one slot per device and expert. Dropped: {', '.join(map(str, dropped))}.",
    )
    cell, row_height, gap, left = Box(0, 0, 30, 30), 56, 44, 88
    expert_of = {
        0: (),
        **{token: (expert,) for token, expert in zip(tokens.ravel().tolist(), _CHOSEN.ravel().tolist(), strict=True)},
    }
    titles: Sequence[tuple[str, str]] = (
        ("tokens", ""),
        ("slots", "one per expert"),
        ("at the expert", "one per device"),
        ("results", ""),
    )
    for column, (state, (title, note)) in enumerate(zip(states, titles, strict=True)):
        x = left + column * (N * cell.width + gap)
        drawing.text(x, 26, title, style="strong")
        drawing.text(x, 46, note, size="small", style="quiet")
        for device, row in enumerate(state.tolist()):
            y = 66 + row_height * device
            drawing.device(Box(x, y, N * cell.width, cell.height).grow(4), f"device {device}" if column == 0 else "")
            words = [str(number) if number or column == 3 else "" for number in row]
            drawing.cells(
                x, y, [[Cell(word, expert_of[number]) for word, number in zip(words, row, strict=True)]], cell=cell
            )
            for place, number in enumerate(row):
                if column == 0 and number in dropped:
                    at = x + place * cell.width
                    drawing.line((at + 3, y + 27), (at + 27, y + 3), color=LOST)
                    drawing.line((at + 3, y + 3), (at + 27, y + 27), color=LOST)
        if column < 3:
            middle = 66 + 1.5 * row_height + cell.height / 2
            end = x + N * cell.width
            drawing.arrow((end + 8, middle), (end + gap - 8, middle))
            verb = "all-to-all" if column else "pack"
            drawing.text(end + gap / 2, 66 + N * row_height, verb, anchor="middle", size="small")
    drawing.legend(left - 4, 322, [([color_of(expert)], f"for expert {expert}") for expert in range(N)])
    note = "crossed out: no slot is free, so the token is dropped, and its result is 0"
    drawing.text(left - 4, 350, note, size="small", style="quiet")
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {
    "18_pipeline.svg": _pipeline,
    "18_ring.svg": _ring,
    "18_experts.svg": _experts,
}
