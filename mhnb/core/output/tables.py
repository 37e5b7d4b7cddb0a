"""Find tables in text that are drawn with lines and borders.

Rich, polars, tabulate and prettytable draw such tables, with columns between `│` or `|`. The columns are readable only
if every line keeps its width. So its lines are neither templated nor wrapped. A log line with `|` between its fields, a
tree (`├── a`), a rule (`─────`) and a progress bar are not tables.

Wide text that is aligned in columns without lines, as pandas prints it, is found too: it is not wrapped either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from mhnb.core.output.diff import DiffRow, DiffSpan
from mhnb.core.output.diff import Line as SaidLine
from mhnb.core.output.template import ESCAPES, Skeleton, split_numbers

_ACROSS = "─━═╌╍┄┅┈┉╸╺"
"""Horizontal lines; progress bars by rich consist of them too."""
_JOINTS = "".join(map(chr, [*range(0x250C, 0x254C), *range(0x2552, 0x2571)])) + "╴╵╶╷╹╻"
"""Corners, tees and crosses, and ends of lines."""
_UPRIGHT = f"│┃║┆┇┊┋╎╏╽╿{_JOINTS}"
_DRAWN_ROW = re.compile(f"[{_UPRIGHT}]")
_DRAWN_BORDER = re.compile(rf"[{_JOINTS}](?=.*[{_ACROSS}]).*[{_JOINTS}]|[{_ACROSS}](?=.*[{_JOINTS}]).*[{_ACROSS}]")
_ASCII_ROW = re.compile(r"\A\|.*\|\Z")
_ASCII_BORDER = re.compile(r"(?=.*?(?:--|==))[-=+|: ]+")
_EDGES = f"{_UPRIGHT}|+"
_MIN_ALIGNED_LINES, _MIN_ALIGNED_CHARS, _MIN_GAPS = 3, 80, 2
_MAX_COMPARED_LINES = 24


def has_table(text: str) -> bool:
    r"""Return whether a text contains a drawn table.

    >>> has_table("┌───┬───┐\n│ a │ 1 │\n└───┴───┘"), has_table("step 1 | loss 0.5\nstep 2 | loss 0.4")
    (True, False)
    """
    return _may_have_table(text) and bool(find_tables(text.split("\n")))


def _may_have_table(text: str) -> bool:
    """Check quickly whether a text may have a table."""
    return ("|" in text and ("--" in text or "==" in text)) or any(character in text for character in _ACROSS)


def find_tables(lines: Sequence[str]) -> list[range]:
    """Return where the drawn tables are.

    >>> find_tables(["loss 0.5", "+---+---+", "| a | 1 |", "+---+---+"])
    [range(1, 4)]
    """
    plain = [ESCAPES.sub("", line).strip() for line in lines]
    return [*_runs(plain, _DRAWN_ROW, _DRAWN_BORDER), *_runs(plain, _ASCII_ROW, _ASCII_BORDER)]


def _runs(lines: Sequence[str], row: re.Pattern[str], border: re.Pattern[str]) -> Iterator[range]:
    """Yield the runs of rows and borders that contain both kinds."""
    kinds = ["border" if border.fullmatch(line) else "row" if row.search(line) else "" for line in lines]
    for belongs, same in groupby(range(len(lines)), key=lambda at: bool(kinds[at])):
        run = list(same)
        if belongs and {kinds[at] for at in run} == {"border", "row"}:
            yield range(run[0], run[-1] + 1)


def is_table_row(line: str) -> bool:
    """Check whether a line begins and ends with a table's edge.

    >>> is_table_row("│ loss │ 0.5 │"), is_table_row("+---+"), is_table_row("loss │ 0.5")
    (True, True, False)
    """
    text = line.strip()
    return len(text) > 1 and text[0] in _EDGES and text[-1] in _EDGES


def split_outside_tables(text: str) -> tuple[Skeleton, list[str]]:
    r"""Split a text like `split_numbers`, but keep drawn tables as text.

    >>> split_outside_tables("loss 0.5\n+---+\n| 1 |\n+---+\nat 7")
    (('loss', '\n+---+\n| 1 |\n+---+\nat', ''), [' 0.5', ' 7'])
    """
    lines = text.split("\n") if _may_have_table(text) else []
    in_table = {at for run in find_tables(lines) for at in run}
    if not in_table:
        return split_numbers(text)
    literals, numbers, pending = [], [], ""
    for is_table, same in groupby(range(len(lines)), key=in_table.__contains__):
        piece = "".join(lines[at] + "\n" * (at < len(lines) - 1) for at in same)
        (first, *rest), found = ((piece,), []) if is_table else split_numbers(piece)
        pending += first
        for number, literal in zip(found, rest, strict=True):
            literals.append(pending)
            numbers.append(number)
            pending = literal
    return (*literals, pending), numbers


# -- tables that differ


def show_tables_in_full(rows: Sequence[DiffRow], here: Sequence[SaidLine]) -> tuple[DiffRow, ...]:
    """Change diff rows so that differing drawn tables are shown in full.

    A line in which more than one cell differs becomes the other text's line and then this one's: in two lines of the same form the
    columns stand below each other. Equal lines of the table are a row each, because a run of them would be counted only.
    """
    tables = find_tables([text for _, text in here]) if _may_have_table("\n".join(text for _, text in here)) else []
    first_lines = accumulate((0 if row.kind == "missing" else row.count for row in rows), initial=0)
    placed = list(zip(rows, first_lines, strict=False))
    differing = [table for table in tables if any(row.kind != "same" and first in table for row, first in placed)]
    if not differing:
        return tuple(rows)
    in_table = {at for table in differing for at in table}
    shown: list[DiffRow] = []
    for row, first in placed:
        if row.kind == "same":
            shown += _split_equal(row, first, in_table)
        elif row.kind == "changed" and first in in_table and not _has_one_difference(row):
            shown.append(DiffRow("missing", row.channel, (DiffSpan("", row.there),)))
            shown.append(DiffRow("added", row.channel, (DiffSpan(row.here),)))
        elif row.kind == "changed" and row.here.split() == row.there.split():
            # A title is centred over a table of another width.
            shown.append(DiffRow("changed", row.channel, (DiffSpan(row.here),)))
        else:
            shown.append(row)
    return tuple(_missing_first(shown))


def _split_equal(row: DiffRow, first: int, in_table: set[int]) -> Iterator[DiffRow]:
    for is_table, same in groupby(range(row.count), key=lambda offset: first + offset in in_table):
        run = list(same)
        size = 1 if is_table else len(run)
        yield from (DiffRow("same", count=size, start=row.start + offset) for offset in run[::size])


def _has_one_difference(row: DiffRow) -> bool:
    """Check whether at most one cell differs, in text of equal width."""
    spans = [span for span in row.spans if span.there is not None]
    return not spans or (len(spans) == 1 and len(spans[0].here) == len(spans[0].there or ""))


def _missing_first(rows: Sequence[DiffRow]) -> Iterator[DiffRow]:
    """Yield missing lines before added lines, within each run of both."""
    for is_replaced, same in groupby(rows, key=lambda row: row.kind in ("missing", "added")):
        run = list(same)
        yield from sorted(run, key=lambda row: row.kind == "added") if is_replaced else run


# -- lines that are not wrapped


def find_unwrapped(lines: Sequence[str]) -> list[range]:
    """Return which lines must not be wrapped: drawn tables and aligned columns."""
    tables = find_tables(lines) if _may_have_table("\n".join(lines)) else []
    found = [_with_title(lines, table) for table in tables]
    taken = {at for run in found for at in run}
    aligned = (run for run in _aligned_runs(lines) if taken.isdisjoint(run))
    return sorted([*found, *aligned], key=lambda run: run.start)


def _with_title(lines: Sequence[str], table: range) -> range:
    """Add the line above a table if it is centred over it."""
    above = lines[table.start - 1] if table.start else ""
    return range(table.start - above.startswith("  ") * bool(above.strip()), table.stop)


def _aligned_runs(lines: Sequence[str]) -> Iterator[range]:
    """Yield runs of wide lines with aligned columns, as pandas pads them."""
    at = 0
    for length, same in groupby(lines, key=len):
        run = range(at, at + len(list(same)))
        at = run.stop
        if (
            length > _MIN_ALIGNED_CHARS
            and len(run) >= _MIN_ALIGNED_LINES
            and _count_gaps(lines[run.start : at]) >= _MIN_GAPS
        ):
            yield run


def _count_gaps(lines: Sequence[str]) -> int:
    """Count gaps of two or more blanks that equally long lines share."""
    is_blank = ["".join(column).isspace() for column in zip(*lines[:_MAX_COMPARED_LINES], strict=True)]
    return sum(1 for blank, same in groupby(is_blank) if blank and len(list(same)) > 1)
