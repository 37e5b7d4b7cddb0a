"""A report as a value: parts that `print_text` and `print_html` format.

A report is built once, as parts, and knows neither tags nor columns of a terminal. Where the two forms have to say a thing in different
ways, as a picture in one and bars of characters in the other, a part is for one of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Tone: TypeAlias = Literal[
    "plain", "heading", "bad heading", "bad", "quiet", "caption", "advice", "code", "below a card"
]
"""How a line is meant. A caption stands above a table; advice is quiet, below what it is about, and may have several lines.

A line below a card is as far right as the words of the card.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Words in a line, with a look of their own."""

    text: str
    is_quiet: bool = False
    gap: int = 1
    """Blanks before them where the form is text. Where it is HTML there is one, or none if this is 0."""
    is_strong: bool = False
    is_code: bool = False
    """Whether they are a command or a name of code."""
    link: str = ""
    """Where a click on them leads, where the form is HTML."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence, or a few words, on a line of their own."""

    text: str
    tone: Tone = "plain"
    indent: int = 0
    """How many steps it stands to the right of other lines."""
    beside: Sequence[Span] = ()
    """Words after the text."""
    color: str = ""
    """The color of a bar on its left; without one if it is empty."""
    sign: str = ""
    """A tick or another sign before the text."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that is more than text."""

    text: str
    is_strong: bool = False
    is_bad: bool = False
    """Whether it is in the color of errors."""
    detail: str = ""
    """What a click shows, where the form is HTML."""
    is_open: bool = False
    """Whether the detail is shown from the start."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    numbers: frozenset[int] | None = None
    """Columns that are aligned to the right; None for those in which every cell begins with a digit. If they are given, only the first
    column may wrap."""


@dataclass(frozen=True, slots=True)
class HeadedRows:
    """Rows of text, a few below each heading, and a last line."""

    groups: Sequence[tuple[str, Sequence[str]]]
    ending: Sequence[str]
    """Words of the last line, none of which is broken, so that a command can be copied."""
    bad_heading: str = ""
    """The heading whose rows are in the color of errors."""


FieldLook: TypeAlias = Literal["word", "words", "code", "title"]
"""How labels look. Beside titles, which are long, only a span may wrap, and the table scrolls."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Left-aligned rows of a label and values, below an optional header."""

    rows: Sequence[Sequence[str | Span]]
    header: Sequence[str] = ()
    look: FieldLook = "words"


@dataclass(frozen=True, slots=True)
class Code:
    """Text whose blanks and line ends are kept."""

    text: str
    indent: int = 0
    """Blanks before each line where the form is text."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that a click shows, below a label; unfolded in text."""

    label: str | Line
    """A line is printed above the parts where the form is text; a label is not."""
    parts: Document
    is_open: bool = False
    is_high: bool = False
    """Whether a line is high enough to be hit with a finger where several folds are below each other."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts below a heading: indented where the form is text."""

    parts: Document


@dataclass(frozen=True, slots=True)
class Frame:
    """Parts beside a line in an alarm color or a calm one."""

    parts: Document
    is_alarm: bool


CardTone: TypeAlias = Literal["right", "not yet", "open", "failed"]
"""What a card says about an answer, where an open one does not judge it; failed for the card of an error."""


@dataclass(frozen=True, slots=True)
class Card:
    """Parts beside a line in their tone's color; as text, `text`."""

    tone: CardTone
    parts: Document
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A report inside another one, with a style sheet of its own."""

    parts: Document


@dataclass(frozen=True, slots=True)
class Progress:
    """Words with a bar that says how much is done."""

    text: str
    done: float
    total: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Short texts in columns, each with a bar of its color."""

    texts: Sequence[str]
    colors: Sequence[str]


@dataclass(frozen=True, slots=True)
class SortableTable:
    """A table sorted by clicks on its headings; left out of text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[Sequence[float | None]]
    """By row, what each column sorts by; None for a column of text."""
    marked: frozenset[tuple[int, int]] = frozenset()
    """Cells that stand out, each by its row and column."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Documents beside each other if there is room; stacked in text."""

    documents: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was refused: its name, the reason and a message."""

    name: str
    reason: str
    source: str = ""
    """Who says the message, as `JAX`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture or control as HTML and CSS; left out of text.

    Its style sheet is used if it is a part of the document, or of the HTML alone, but not of a fold or a group.
    """

    html: str
    css: str = ""


@dataclass(frozen=True, slots=True)
class InText:
    """Parts of the text only."""

    parts: Document


@dataclass(frozen=True, slots=True)
class InHtml:
    """Parts of the HTML only."""

    parts: Document


@dataclass(frozen=True, slots=True)
class Drawn:
    """HTML-only parts that are built on printing, because drawings are slow."""

    build: Callable[[], Document]


Part: TypeAlias = (
    Line
    | Table
    | SortableTable
    | HeadedRows
    | Fields
    | Code
    | Fold
    | Group
    | Frame
    | Card
    | Columns
    | Section
    | Problem
    | Progress
    | Tiles
    | Drawing
    | InText
    | InHtml
    | Drawn
)
Document: TypeAlias = Sequence[Part]


def read_cell(cell: str | Cell | Span) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def without_empty_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], optional: frozenset[str] | Sequence[str]
) -> Table:
    """Build a table without the optional columns that are empty."""
    shown = [at for at, name in enumerate(header) if name not in optional or any(row[at] for row in rows)]
    return Table([header[at] for at in shown], [[row[at] for at in shown] for row in rows])


_MAX_OPEN_ROWS, _OPEN_ROWS = 16, 8
_Row = TypeVar("_Row")


def split_rows(rows: Sequence[_Row]) -> tuple[Sequence[_Row], Sequence[_Row]]:
    """Split rows into shown and folded ones; a few are all shown.

    >>> [len(part) for part in split_rows(range(16))], [len(part) for part in split_rows(range(64))]
    ([16, 0], [8, 56])
    """
    return (rows, rows[len(rows) :]) if len(rows) <= _MAX_OPEN_ROWS else (rows[:_OPEN_ROWS], rows[_OPEN_ROWS:])
