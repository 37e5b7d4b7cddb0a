"""Numbers and labels for the threads and tasks of a cell.

A thread's number is the same on every rank. The number combines a hash of the kind (what started the thread, and which
function it runs) with a count within that kind. Thread names that Python numbers itself, and worker threads of a pool,
differ by rank, so neither is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

UNKNOWN_THREAD = 0
"""A thread that was not started by Python code of a cell; it is not compared."""
MAIN_THREAD = 1

_CELL_MARK = "\x1f"
"""Between a label and the cell that started the thread."""
_COUNT_BITS = 24
_COUNT_MASK = (1 << _COUNT_BITS) - 1


def number_thread(parent: int, seq: int, kind: str, count: int) -> int:
    """Number a parent's count-th thread of a kind; less than 2**63.

    >>> one, two = number_thread(MAIN_THREAD, 4, "loader", 1), number_thread(MAIN_THREAD, 4, "loader", 2)
    >>> two - one, kind_of(one) == kind_of(two), one < 1 << 63
    (1, True, True)
    """
    digest = hashlib.blake2b(f"{parent}\0{seq}\0{kind}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> _COUNT_BITS + 1 << _COUNT_BITS | count & _COUNT_MASK


def kind_of(number: int) -> int:
    """Return the part of a number that a kind's threads share.

    >>> kind_of(7 << 24 | 2) == 7 << 24
    True
    """
    return number & ~_COUNT_MASK


def add_cell(label: str, cell_name: str) -> str:
    """Add the cell that started a thread to its label."""
    return f"{label}{_CELL_MARK}{cell_name}"


def format_thread(number: int, labels: Mapping[int, str], cell_name: str = "") -> str:
    """Format a thread for messages.

    Args:
        labels: by kind; a label that ends with `#` is followed by the thread's count within its kind.
        cell_name: the cell that the message is about; a thread of another cell is named with that one.

    >>> format_thread(7 << 24 | 2, {7 << 24: "task score #"}), format_thread(9 << 24 | 1, {9 << 24: "thread prefetch"})
    ('task score #2', 'thread prefetch')
    >>> labels = {7 << 24: add_cell("thread loader #", "In [3]")}
    >>> format_thread(7 << 24 | 1, labels, "In [3]"), format_thread(7 << 24 | 1, labels, "In [4]")
    ('thread loader #1', 'thread loader #1 of In [3]')
    """
    if number == MAIN_THREAD:
        return "the main thread"
    label, _, own_cell = labels.get(kind_of(number), "a thread #").partition(_CELL_MARK)
    count = number & _COUNT_MASK
    has_count = label.endswith("#")
    text = f"{label}{count}" if has_count else f"{label} #{count}" if count > 1 else label
    return text if own_cell in ("", cell_name) else f"{text} of {own_cell}"
