"""Programs without a collective in a cell that was stopped."""

from __future__ import annotations

from mhnb.core.guard.apart import apart_notes
from mhnb.core.guard.rules import FREE_PREFIX
from tests.core.test_guard import row


def test_an_interrupt_between_programs_without_collectives_is_told() -> None:
    """Nobody agrees on them: one rank may be steps ahead of another, in arrays of all."""
    free = FREE_PREFIX + "a"
    rows = {0: [row("b", [0, 1]), row(free, [0, 1], 1, 23), row(free, [0, 1], 2)], 1: [row("b", [0, 1])]}
    said = (
        f"the ranks were interrupted at different places: jit({free}) without a collective was launched 0 to 24 times"
        " · arrays that this cell sets may mix steps"
    )
    assert apart_notes(rows) == (said,)
    assert apart_notes({0: rows[0], 1: rows[0]}) == ()
