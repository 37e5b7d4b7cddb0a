"""Lesson 11: what a device contributes to a collective, what of it is for other hosts, and what a ring sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax import lax

from mhnb.sharding.hlo_collectives import parse_collectives
from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.report import Traffic, measure_traffic
from tests.integration.lessons.figures.drawing import Box, Cell, Drawing

N = 4
_V = 64 * 1024
"""Bytes of the large array: before an all-reduce or a reduce-scatter, after an all-gather."""
_QUARTER = _V // N
_BLOCK = Box(0, 0, 32, 30)
_PASSED_TO_ADD, _PASSED_TO_COPY = (3, 2, 1), (0, 3, 2)
"""The quarters that device 0 sends in the steps of a ring: parts of the sum of others, then finished quarters, at first its own."""


def _measure(body: Callable[[Any], Any], nbytes: int) -> Traffic:
    """Compile a collective for four devices, each on its own host, and return the bytes of one device.

    Args:
        body: of one device's numbers.
        nbytes: of these numbers.
    """
    mesh, spec = jax.make_mesh((N,), ("i",), devices=jax.devices()[:N]), jax.P("i")
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
    x = jax.ShapeDtypeStruct((N * nbytes // 4,), np.float32, sharding=jax.NamedSharding(mesh, spec))
    (collective,) = parse_collectives(mapped.lower(x).compile().as_text() or "")
    return measure_traffic(collective, "abcd")


def _draw_blocks(drawing: Drawing, at: tuple[float, float], parts: Sequence[Sequence[int]], nbytes: int) -> None:
    """Draw quarters by their numbers, with a gap between parts, and their bytes below.

    Raises:
        ValueError: these are not as many quarters as the program has.
    """
    if sum(map(len, parts)) * _QUARTER != nbytes:
        raise ValueError(f"{nbytes} bytes are not the quarters {parts}")
    (x, y), left = at, at[0]
    for part in parts:
        left = drawing.cells(left, y, [[Cell(str(quarter), (quarter,)) for quarter in part]], cell=_BLOCK).right + 6
    share = Fraction(nbytes, _V)
    value = "V" if share == 1 else f"{share} V"
    drawing.text(x, y + 44, f"{format_nbytes(nbytes)} = {value}", size="small")


def _bytes() -> Drawing:
    drawing = Drawing(
        720,
        442,
        title="The bytes of three collectives on four hosts, counted in two ways",
        description="For each collective: what device 0 contributes, what of it is for other hosts, and what it sends in a ring.",
    )
    columns = (168, 330, 492)
    for x, words, name in zip(
        columns,
        ("contributes", "for other hosts", "sends in a ring"),
        ("bytes/device", "across hosts", "If done in rings"),
        strict=True,
    ):
        drawing.text(x, 28, words, style="strong")
        drawing.text(x, 50, name, size="small", style="quiet")
    whole, others, own = [tuple(range(N))], [tuple(range(1, N))], [(0,)]
    rows: tuple[tuple[str, Callable[[Any], Any], int, tuple[Sequence[Sequence[int]], ...]], ...] = (
        ("all-reduce", lambda v: lax.psum(v, "i"), _V, (whole, others, [_PASSED_TO_ADD, _PASSED_TO_COPY])),
        ("reduce-scatter", lambda v: lax.psum_scatter(v, "i", tiled=True), _V, (whole, others, [_PASSED_TO_ADD])),
        ("all-gather", lambda v: lax.all_gather(v, "i", tiled=True), _QUARTER, (own, own, [_PASSED_TO_COPY])),
    )
    for row, (name, body, nbytes, quarters) in enumerate(rows):
        y, traffic = 82 + 108 * row, _measure(body, nbytes)
        drawing.text(20, y + 15, name, style="strong")
        counts = (traffic.nbytes, traffic.nbytes_across_hosts, traffic.ring_nbytes)
        for x, parts, count in zip(columns, quarters, counts, strict=True):
            _draw_blocks(drawing, (x, y), parts, count)
        factor = "2 " if len(quarters[-1]) == 2 else ""
        drawing.text(columns[-1], y + 62, f"{factor}(n \N{MINUS SIGN} 1)/n · V", size="small", style="quiet")
    drawing.text(
        20,
        402,
        f"Device 0 of n = {N} devices, one per host, with V = {format_nbytes(_V)}.",
        size="small",
        style="quiet",
    )
    drawing.text(
        20,
        422,
        f"A block is a quarter of the array, {format_nbytes(_QUARTER)}, with its number.",
        size="small",
        style="quiet",
    )
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {"11_bytes.svg": _bytes}
