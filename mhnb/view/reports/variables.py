"""The ranks' variables, and whether their values are equal on all."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.guard.value_check import CheckRow
from mhnb.core.variables import VariableRow
from mhnb.sharding.layout import format_nbytes
from mhnb.view.document import Code, Document, InHtml, InText, Line, Table, without_empty_columns

_HEADER = ("name", "kind", "shape", "spec", "bytes/device", "differs")


def build_vars(rows: Sequence[VariableRow]) -> Document:
    """Build the table of variables; omit an empty column of differences."""
    if not rows:
        return [Line("the ranks hold no variables yet", "quiet")]
    return [without_empty_columns(_HEADER, [_var_cells(row) for row in rows], ["differs"])]


def _var_cells(row: VariableRow) -> tuple[str, ...]:
    shape = "" if row.shape is None else f"{row.dtype or ''}[{','.join(map(str, row.shape))}]"
    nbytes = "" if row.nbytes_per_device is None else format_nbytes(row.nbytes_per_device)
    return row.name, row.kind, shape, row.spec or "", nbytes, row.differs


def build_check(rows: Sequence[CheckRow]) -> Document:
    """Build the result of `%mhjax check`: where ranks hold different values."""
    differing = sum(row.same is False for row in rows)
    summary = (
        "it differs" if len(rows) == 1 else f"{differing} of {len(rows)} {'differs' if differing == 1 else 'differ'}"
    )
    # Differing ones first, then those that cannot be compared.
    ordered = sorted(rows, key=lambda row: (row.same is not False, row.same is True))
    table = Table(("name", "type", "on the ranks"), [(row.name, row.kind, row.text) for row in ordered])
    heading = [Line(summary, "bad heading")] if differing else []
    return [InHtml([*heading, table]), InText([Code(_format_check(ordered))])]


def _format_check(rows: Sequence[CheckRow]) -> str:
    """Format the rows in columns.

    >>> print(_format_check([CheckRow("w", "f32[2]", True, "value held by ranks 0-1: equal")]))
    w   f32[2]   value held by ranks 0-1: equal
    """
    names, kinds = max((len(row.name) for row in rows), default=0), max((len(row.kind) for row in rows), default=0)
    indent = " " * (names + kinds + 6)
    return "\n".join(
        f"{row.name:{names}}   {row.kind:{kinds}}   " + row.text.replace("\n", "\n" + indent) for row in rows
    )
