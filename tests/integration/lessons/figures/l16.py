"""Lesson 16: the time of a message, the roofline of an H100, and the efficiency of weak and strong scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from mhnb.sharding.machines import CHIPS
from tests.integration.lessons.figures.drawing import BUSY, INK, LINE, WAITING, Anchor, Box, Drawing, color_of

_H100, _V5E = CHIPS["h100"], CHIPS["v5e"]
_COMPUTE, _MEMORY = _H100.peak("f32") or 0.0, _H100.bandwidth or 0.0
_LINKS = (
    ("DCN", 14e-6, _V5E.network or 0.0),
    ("InfiniBand", 14e-6, _H100.network or 0.0),
    ("ICI", 1e-6, _V5E.link or 0.0),
    ("NVLink", 3.4e-6, _H100.link or 0.0),
)
"""Name, latency and bandwidth; the lesson has the sources."""
_WIDTH, _HEIGHT = 740, 444
_AREA = Box(96, 40, 500, 316)

Tick = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps a range of values to lengths on a card."""

    low: float
    high: float
    is_log: bool = True

    def share(self, value: float) -> float:
        """Return the part of the axis below a value, from 0 to 1."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart on a card."""

    drawing: Drawing
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point on the card."""
        return _AREA.x + self.x.share(x) * _AREA.width, _AREA.bottom - self.y.share(y) * _AREA.height

    def axes(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_words: str, y_words: str) -> None:
        """Draw the frame, a thin line for each tick, and the names of the axes."""
        for value, words in x_ticks:
            x, _ = self.place(value, self.y.low)
            self.drawing.line((x, _AREA.y), (x, _AREA.bottom))
            self.drawing.text(x, _AREA.bottom + 16, words, size="small", anchor="middle", style="quiet")
        for value, words in y_ticks:
            _, y = self.place(self.x.low, value)
            self.drawing.line((_AREA.x, y), (_AREA.right, y))
            self.drawing.text(_AREA.x - 8, y, words, size="small", anchor="end", style="quiet")
        self.drawing.curve([(_AREA.x, _AREA.y), (_AREA.x, _AREA.bottom), (_AREA.right, _AREA.bottom)], color=LINE)
        self.drawing.text(_AREA.x + _AREA.width / 2, _AREA.bottom + 42, x_words, anchor="middle")
        self.drawing.text(16, 20, y_words)

    def curve(self, points: Sequence[tuple[float, float]], color: str) -> tuple[float, float]:
        """Draw a curve, and return the place of its end."""
        places = [self.place(*point) for point in points]
        self.drawing.curve(places, color=color)
        return places[-1]


def _message() -> Drawing:
    drawing = Drawing(
        _WIDTH,
        _HEIGHT,
        title="The time of one message",
        description="Time against size on four links: flat where latency decides, rising where bandwidth does.",
    )
    plot = Plot(drawing, Axis(1e3, 1e9), Axis(1e-6, 1))
    sizes = [10 ** (3 + 0.1 * at) for at in range(61)]
    plot.axes(
        [(1e3, "1 kB"), (1e6, "1 MB"), (1e9, "1 GB")],
        [(1e-6, "1 µs"), (1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms"), (0.1, "100 ms")],
        "bytes of the message",
        "time",
    )
    colors = (INK, WAITING, color_of(2), BUSY)
    for (name, alpha, beta), color in zip(_LINKS, colors, strict=True):
        x, y = plot.curve([(nbytes, alpha + nbytes / beta) for nbytes in sizes], color)
        # The ends of InfiniBand and ICI are close to each other.
        drawing.text(x + 8, y + {"InfiniBand": -5, "ICI": 5}.get(name, 0), name, size="small", style="strong")
        drawing.dot(plot.place(alpha * beta, 2 * alpha), color=color)
    drawing.text(20, _HEIGHT - 14, "A dot: latency and bandwidth take equally long.", size="small", style="quiet")
    return drawing


def _count(function: Callable[..., jax.Array], *shapes: tuple[int, int]) -> tuple[float, float]:
    """Return operations and bytes, as JAX counts them in the traced program."""
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    found: Any = jax.jit(function).lower(*args).cost_analysis()
    return found["flops"], found["bytes accessed"]


_LABELS: Mapping[str, tuple[float, float, Anchor]] = {"1024 rows": (0, -15, "middle"), "8192 rows": (0, 17, "middle")}
"""Where a program's name is, from its dot, if not to the right of the slope."""


def _roofline() -> Drawing:
    drawing = Drawing(
        _WIDTH,
        _HEIGHT,
        title="The roofline of an H100",
        description="Reachable speed against operations per byte: a slope up to 148, then flat, with five programs on it.",
    )
    plot = Plot(drawing, Axis(0.05, 5000), Axis(0.1, 1000))
    plot.axes(
        [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1000")],
        [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1000")],
        "operations per byte",
        "TFLOP/s that a program can reach",
    )
    bend = _COMPUTE / _MEMORY
    slope, roof = [(0.05, 0.05 * _MEMORY / 1e12), (bend, _COMPUTE / 1e12)], (5000.0, _COMPUTE / 1e12)
    plot.curve([*slope, roof], INK)
    x, y = plot.place(bend, 0.1)
    drawing.line(plot.place(*slope[1]), (x, y), color=INK)
    drawing.text(x + 8, y - 14, f"{bend:.0f}", size="small", style="strong")
    programs = [("x + y", _count(lambda x, y: x + y, (4096, 4096), (4096, 4096)), BUSY)]
    programs += [
        (f"{rows} rows" if rows > 1 else "1 row", _count(lambda x, w: x @ w, (rows, 4096), (4096, 4096)), WAITING)
        for rows in (1, 64, 1024, 8192)
    ]
    for name, (n_ops, nbytes), color in programs:
        intensity = n_ops / nbytes
        x, y = plot.place(intensity, min(_COMPUTE, intensity * _MEMORY) / 1e12)
        drawing.dot((x, y), color=color)
        dx, dy, anchor = _LABELS.get(name, (12, 10, "start"))
        drawing.text(x + dx, y + dy, name, size="small", anchor=anchor)
    drawing.text(*plot.place(3, 30), "bound by memory", size="small", anchor="end", style="quiet")
    drawing.text(_AREA.right + 10, plot.place(1, _COMPUTE / 1e12)[1], "bound by compute", size="small", style="quiet")
    drawing.legend(96, _HEIGHT - 14, [([WAITING], "a product x @ w with these rows of x"), ([BUSY], "an addition")])
    return drawing


_N_PARAMS = 2 * 4096 * 16384
_TOKENS = 65536
_HOSTS = (1, 2, 4, 8, 16, 32, 64)


def _time_step(n: int, tokens_each: float) -> float:
    """Return the seconds of a step without overlap: compute, and an all-reduce of float32 gradients in a ring."""
    (_, alpha, beta), compute = _LINKS[1], 6 * tokens_each * _N_PARAMS / _COMPUTE
    return compute + 2 * (n - 1) * (alpha + 4 * _N_PARAMS / n / beta)


def _scaling() -> Drawing:
    drawing = Drawing(
        _WIDTH,
        _HEIGHT,
        title="The efficiency of weak and strong scaling",
        description="Efficiency against hosts: weak scaling stays above 80 percent, strong scaling falls below 10.",
    )
    plot = Plot(drawing, Axis(1, 64), Axis(0, 1, is_log=False))
    plot.axes(
        [(n, str(n)) for n in _HOSTS],
        [(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)],
        "hosts with one device each",
        "efficiency",
    )
    alone = _time_step(1, _TOKENS)
    curves = {
        "weak": ([alone / _time_step(n, _TOKENS) for n in _HOSTS], BUSY),
        "strong": ([alone / n / _time_step(n, _TOKENS / n) for n in _HOSTS], WAITING),
    }
    for name, (shares, color) in curves.items():
        x, y = plot.curve(list(zip(_HOSTS, shares, strict=True)), color)
        drawing.text(x + 10, y, f"{name}: {shares[-1]:.0%}", size="small", style="strong")
        for n, share in zip(_HOSTS, shares, strict=True):
            drawing.dot(plot.place(n, share), color=color)
    drawing.text(
        20,
        _HEIGHT - 14,
        f"Data parallel, {_N_PARAMS / 1e6:.0f} million parameters, H100 and InfiniBand; one host has {_TOKENS:,} tokens.",
        size="small",
        style="quiet",
    )
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {
    "16_message.svg": _message,
    "16_roofline.svg": _roofline,
    "16_scaling.svg": _scaling,
}
