"""The name of a cell in messages: the number that the notebook shows beside it, or else mhnb's own number."""

from __future__ import annotations


def format_cell_name(seq: int, execution_count: int | None) -> str:
    """Format the name of a cell.

    Args:
        seq: mhnb's number of the cell, which every cell has.
        execution_count: the number that the notebook shows beside the cell; None if it shows none.

    >>> format_cell_name(12, 7), format_cell_name(12, None)
    ('In [7]', 'cell 12')
    """
    return f"cell {seq}" if execution_count is None else f"In [{execution_count}]"
