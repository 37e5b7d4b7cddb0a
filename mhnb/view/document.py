"""What a report says, as a value: parts in order, which `print_text` and `print_html` turn into what is shown.

A report is built once, as parts, and knows neither tags nor columns of a terminal. Where the two forms have to say a thing in different
ways, as a picture in one and bars of characters in the other, a part is for one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Tone: TypeAlias = Literal["plain", "heading", "bad heading", "bad", "quiet", "caption", "advice"]
"""How a line is meant. A caption stands above a table; advice is quiet, below what it is about, and may have several lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence, or a few words, on a line of their own."""

    text: str
    tone: Tone = "plain"
    indent: int = 0
    """How many steps it stands to the right of other lines."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a header; columns of numbers are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Code:
    """Text whose blanks and line ends are kept."""

    text: str
    indent: int = 0
    """Blanks before each line where the form is text."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that a click shows, below a quiet label; where the form is text they are not folded."""

    label: str
    parts: Document
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Parts below a heading: indented where the form is text."""

    parts: Document


@dataclass(frozen=True, slots=True)
class Section:
    """A report inside another one, with a style sheet of its own."""

    parts: Document


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture or a control, as HTML; left out of the text."""

    html: str


@dataclass(frozen=True, slots=True)
class InText:
    """Parts of the text only."""

    parts: Document


@dataclass(frozen=True, slots=True)
class InHtml:
    """Parts of the HTML only."""

    parts: Document


Part: TypeAlias = Line | Table | Code | Fold | Group | Section | Drawing | InText | InHtml
Document: TypeAlias = Sequence[Part]


def without_empty_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], optional: frozenset[str] | Sequence[str]
) -> Table:
    """Make a table without those optional columns in which no row has a value."""
    shown = [at for at, name in enumerate(header) if name not in optional or any(row[at] for row in rows)]
    return Table([header[at] for at in shown], [[row[at] for at in shown] for row in rows])
