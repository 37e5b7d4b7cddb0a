"""Drawings as SVG: boxes, cells, arrows, hosts, bars of a timeline, and a legend, in one look for all figures.

A drawing is a white card with dark text, so it reads the same on a light and on a dark page. The same calls always give the same
text: numbers are rounded, no element has an id, and each element has its own line, so a change of a figure reads well in a diff.
It knows nothing of JAX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from mhnb.view.html import HOST_COLORS

__all__ = [
    "BUSY",
    "CELL",
    "INK",
    "LINE",
    "LOST",
    "PALE",
    "QUIET",
    "WAITING",
    "Box",
    "Cell",
    "Drawing",
    "color_of",
    "mix",
]

MAX_WIDTH = 760
INK, QUIET, LINE, PALE, PAPER = "#1f2328", "#59636e", "#afb8c1", "#f3f4f6", "#ffffff"
"""Text, text of less weight, thin lines, quiet areas, and the card. The two of text have a contrast of 5 or more on the card."""
BUSY, WAITING, LOST = "#0072b2", "#e69f00", "#dd4a3d"
"""A rank that computes, that waits, and that has gone: the colours that mhnb's views have for the same."""
SIZES = {"title": 19, "label": 16, "small": 14}
_FONTS = {"text": "system-ui, sans-serif", "code": "ui-monospace, monospace"}
_CHARACTER = {"text": 0.54, "code": 0.61}
"""Mean width of a character, as a part of the font's size."""
_NOTE = " mhnb, licence Apache-2.0. Drawn by python -m tests.integration.lessons.figures "

Size = Literal["title", "label", "small"]
Anchor = Literal["start", "middle", "end"]
Style = Literal["plain", "strong", "quiet", "code"]


def color_of(number: int) -> str:
    """Return the colour of a host, rank or device, which is that of the host in mhnb's own views."""
    return HOST_COLORS[number % len(HOST_COLORS)]


def mix(color: str, share: float) -> str:
    """Mix a colour with white.

    >>> mix("#000000", 0.2)
    '#cccccc'
    """
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


def measure(words: str, size: Size = "label", style: Style = "plain") -> float:
    """Estimate the width of a text, because only a browser knows it."""
    return len(words) * SIZES[size] * _CHARACTER["code" if style == "code" else "text"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, by its top left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of its lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    def grow(self, by: float) -> Box:
        """Return the box that is larger on each side."""
        return Box(self.x - by, self.y - by, self.width + 2 * by, self.height + 2 * by)


CELL = Box(0, 0, 42, 34)
"""The size of a cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in an array, with the devices that it came from."""

    words: str
    origins: tuple[int, ...] = ()
    """One colour each. More than one for a value that was added up; none for a cell without a value."""
    is_new: bool = False
    """Whether it has just arrived, which a dark frame shows."""


class Drawing:
    """A figure, made by adding one thing after the other."""

    def __init__(self, width: int, height: int, *, title: str, description: str) -> None:
        """Begin with an empty card.

        Args:
            width: at most 760, because that is the width of a page's text.
            height: of the card.
            title: what it shows, for screen readers.
            description: what is seen in it, for screen readers.
        """
        if width > MAX_WIDTH:
            raise ValueError(f"a figure has a width of {width}; expected at most {MAX_WIDTH}")
        self._root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        self._root.set("viewBox", f"0 0 {width} {height}")
        self._root.set("width", str(width))
        self._root.set("height", str(height))
        self._root.set("font-family", _FONTS["text"])
        ET.SubElement(self._root, "title").text = title
        ET.SubElement(self._root, "desc").text = description
        self._root.append(ET.Comment(_NOTE))
        self.box(Box(0.5, 0.5, width - 1, height - 1), fill=PAPER, line=LINE, radius=6)

    def to_svg(self) -> str:
        """Return the file's text, one element per line."""
        ET.indent(self._root, " ")
        return ET.tostring(self._root, encoding="unicode") + "\n"

    # -- text and shapes

    def text(
        self, x: float, y: float, words: str, *, size: Size = "label", anchor: Anchor = "start", style: Style = "plain"
    ) -> None:
        """Write one line; y is its vertical middle."""
        added = self._add("text", x=x, y=y + 0.35 * SIZES[size], fill=QUIET if style == "quiet" else INK)
        added.set("font-size", str(SIZES[size]))
        if anchor != "start":
            added.set("text-anchor", anchor)
        if style == "strong":
            added.set("font-weight", "600")
        if style == "code":
            added.set("font-family", _FONTS["code"])
        added.text = words

    def box(self, box: Box, words: str = "", *, fill: str = PALE, line: str = "none", radius: float = 4) -> None:
        """Draw a rectangle with rounded corners, and a text in its middle."""
        added = self._add("rect", x=box.x, y=box.y, width=box.width, height=box.height, fill=fill)
        if radius:
            added.set("rx", _number(radius))
        if line != "none":
            added.set("stroke", line)
        if words:
            self.text(*box.middle, words, anchor="middle")

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], *, bend: float = 0, color: str = QUIET
    ) -> None:
        """Draw an arrow.

        Args:
            start: where it begins.
            end: the tip of its head.
            bend: how far the middle of the curve is to the left of the straight line, seen in the direction of the arrow.
            color: of line and head.
        """
        (x0, y0), (x1, y1) = start, end
        length = math.dist(start, end)
        control = (x0 + x1) / 2 + 2 * bend * (y1 - y0) / length, (y0 + y1) / 2 - 2 * bend * (x1 - x0) / length
        angle = math.atan2(y1 - control[1], x1 - control[0])
        # The line ends inside the head, whose tip would otherwise be as blunt as the line.
        stop = x1 - 6 * math.cos(angle), y1 - 6 * math.sin(angle)
        curve = f"M{_point(start)}Q{_point(control)} {_point(stop)}" if bend else f"M{_point(start)}L{_point(stop)}"
        line = self._add("path", d=curve, fill="none", stroke=color)
        line.set("stroke-width", "2")
        sides = [(x1 - 9 * math.cos(angle + side), y1 - 9 * math.sin(angle + side)) for side in (0.45, -0.45)]
        self._add("path", d=f"M{_point(end)}L{_point(sides[0])}L{_point(sides[1])}Z", fill=color)

    def line(self, start: tuple[float, float], end: tuple[float, float], *, color: str = LINE) -> None:
        """Draw a thin dashed line."""
        added = self._add("path", d=f"M{_point(start)}L{_point(end)}", fill="none", stroke=color)
        added.set("stroke-dasharray", "3 3")

    def curve(self, points: Sequence[tuple[float, float]], *, color: str) -> None:
        """Draw a solid line through points."""
        added = self._add("path", d="M" + "L".join(map(_point, points)), fill="none", stroke=color)
        added.set("stroke-width", "2")

    def dot(self, point: tuple[float, float], *, color: str) -> None:
        """Mark a point of a curve."""
        self._add("circle", cx=point[0], cy=point[1], r=5, fill=color, stroke=PAPER)

    # -- parts of a cluster

    def cells(self, x: float, y: float, rows: Sequence[Sequence[Cell]], *, cell: Box = CELL) -> Box:
        """Draw a grid of values, and return the box that it takes."""
        placed = [
            (Box(x + column * cell.width, y + row * cell.height, cell.width, cell.height), value)
            for row, values in enumerate(rows)
            for column, value in enumerate(values)
        ]
        # The dark frame of a new value is above those of its neighbours.
        for box, value in sorted(placed, key=lambda pair: pair[1].is_new):
            self._cell(box, value)
        return Box(x, y, cell.width * max(map(len, rows)), cell.height * len(rows))

    def _cell(self, box: Box, cell: Cell) -> None:
        """Draw a value, on a stripe for each device that it came from."""
        width = box.width / max(1, len(cell.origins))
        for place, origin in enumerate(cell.origins):
            stripe = Box(box.x + place * width, box.y, width, box.height)
            self.box(stripe, fill=mix(color_of(origin), 0.3), radius=0)
            self.box(Box(stripe.x, box.bottom - 5, width, 5), fill=color_of(origin), radius=0)
        frame = self._add("rect", x=box.x, y=box.y, width=box.width, height=box.height, fill="none")
        frame.set("stroke", INK if cell.is_new else PAPER if cell.origins else LINE)
        if cell.is_new or cell.origins:
            frame.set("stroke-width", "2")
        else:
            frame.set("stroke-dasharray", "3 3")
        if cell.words:
            self.text(box.x + box.width / 2, box.y + box.height / 2 - 2, cell.words, anchor="middle")

    def device(self, box: Box, words: str = "", *, number: int | None = None) -> None:
        """Draw a device's memory: a frame, with the device's name to the left of it in the device's colour."""
        self.box(box, fill=PALE, line=LINE)
        if words:
            _, y = box.middle
            self.text(box.x - 10, y, words, anchor="end")
        if number is not None:
            self.box(Box(box.x - 4, box.y, 4, box.height), fill=color_of(number), radius=0)

    def host(self, box: Box, words: str, *, number: int) -> None:
        """Draw a host around its devices: a frame in its colour, with its name in the frame's top line."""
        self.box(box, fill=mix(color_of(number), 0.1), line=color_of(number), radius=6)
        self.text(box.x + 10, box.y + 14, words, size="small", style="strong")

    def bar(self, box: Box, words: str, *, color: str) -> None:
        """Draw a stretch of time: a bar with its name in it, or to the right of it if the bar is short."""
        self.box(box, fill=mix(color, 0.3), line=color, radius=2)
        _, y = box.middle
        if measure(words, "small") + 8 <= box.width:
            self.text(box.x + 6, y, words, size="small")
        else:
            self.text(box.right + 6, y, words, size="small")

    def legend(self, x: float, y: float, entries: Sequence[tuple[Sequence[str], str]]) -> None:
        """Explain colours in one line: for each entry the colours of its sample, and its words."""
        for colors, words in entries:
            width = 16 / max(1, len(colors))
            for place, color in enumerate(colors):
                self.box(Box(x + place * width, y - 8, width, 16), fill=mix(color, 0.3), radius=0)
                self.box(Box(x + place * width, y + 4, width, 4), fill=color, radius=0)
            self.text(x + 22, y, words, size="small", style="quiet")
            x += 22 + measure(words, "small") + 18

    def _add(self, tag: str, **attributes: str | float) -> ET.Element:
        texts = {name: value if isinstance(value, str) else _number(value) for name, value in attributes.items()}
        return ET.SubElement(self._root, tag, texts)


def _number(value: float) -> str:
    """Format a length, rounded so that every machine writes the same.

    >>> _number(12.0), _number(1 / 3), _number(-0.04)
    ('12', '0.3', '0')
    """
    return f"{round(value, 1) + 0:g}"


def _point(point: tuple[float, float]) -> str:
    return f"{_number(point[0])},{_number(point[1])}"
