"""What features add to a cell: the values in its result."""

from __future__ import annotations

import pytest

from mhnb.core.memory import AllocationFailure, FailedAllocations
from mhnb.core.messages import OutputProduced
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell
from mhnb.core.state.cell_parts import ClusterParts
from mhnb.core.state.events import CellRequest
from mhnb.core.state.rank_registry import RankRegistry

FAILURE = AllocationFailure(requested=1 << 40)
NO_MEMORY = ErrorRaised("XlaRuntimeError", "RESOURCE_EXHAUSTED", [], memory=FAILURE)
OTHER = ErrorRaised("ValueError", "no", [])


@pytest.mark.parametrize(
    ("errors", "late", "found"),
    [
        ([NO_MEMORY], [], FailedAllocations({0: FAILURE})),
        ([OTHER, NO_MEMORY], [], FailedAllocations({0: FAILURE})),
        ([NO_MEMORY, OTHER], [], None),
        ([NO_MEMORY], [OTHER], FailedAllocations({0: FAILURE})),
        ([OTHER], [NO_MEMORY], None),
    ],
)
def test_failed_allocation_is_that_of_the_latest_error(
    errors: list[ErrorRaised], late: list[ErrorRaised], found: FailedAllocations | None
) -> None:
    """A later error of the cell replaces it; an error in late output did not end the cell."""
    cell = Cell(1, CellRequest("x = 1"), seq=3, ranks=(0,), now=0.0)
    cell.added_parts = ClusterParts(RankRegistry(["host0"], ["/log/rank0.log"]), generation=1).build(cell)
    for error in errors:
        cell.handle(OutputProduced(0, 3, [error]), 1.0)
    cell.wall_s = 2.0
    for error in late:
        cell.handle(OutputProduced(0, 3, [error]), 3.0)
    assert cell.result(4.0, 1).find(FailedAllocations) == found
