"""What features add to a cell: the values in its result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mhnb.core.launch.environment import LATE_VARIABLES, NotebookEnvironment
from mhnb.core.memory import AllocationFailure, FailedAllocations
from mhnb.core.messages import CellEnded, OutputProduced
from mhnb.core.output.events import ErrorRaised
from mhnb.core.state.cell import Cell, CellPart
from mhnb.core.state.cell_parts import ClusterParts
from mhnb.core.state.events import CellRequest
from mhnb.core.state.rank_registry import RankRegistry

FAILURE = AllocationFailure(requested=1 << 40)
NO_MEMORY = ErrorRaised("XlaRuntimeError", "RESOURCE_EXHAUSTED", [], memory=FAILURE)
OTHER = ErrorRaised("ValueError", "no", [])
HERE = NotebookEnvironment()


def build_parts(cell: Cell, environment: NotebookEnvironment = HERE) -> Sequence[CellPart]:
    """Return the parts of a cell of a cluster of one rank."""
    return ClusterParts(RankRegistry(["host0"], ["/log/rank0.log"]), 1, environment).build(cell)


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
    cell.added_parts = build_parts(cell)
    for error in errors:
        cell.handle(OutputProduced(0, 3, [error]), 1.0)
    cell.wall_s = 2.0
    for error in late:
        cell.handle(OutputProduced(0, 3, [error]), 3.0)
    assert cell.result(4.0, 1).find(FailedAllocations) == found


def test_late_variable_of_all_ranks_is_noted_once() -> None:
    """Ranks that changed the same variable share one note."""
    cell = Cell(1, CellRequest("x = 1"), seq=3, ranks=(0, 1), now=0.0)
    cell.added_parts = build_parts(cell)
    for rank in cell.ranks:
        cell.handle(CellEnded(rank, 3, "ok", [], 0.1, facts={LATE_VARIABLES: {"XLA_FLAGS": ""}}), 1.0)
    assert [note.partition(" was changed after")[0] for part in cell.added_parts for note in part.end(cell)] == [
        "XLA_FLAGS"
    ]


def test_change_in_the_notebook_is_noted_once() -> None:
    """The first cell after the change has the note, whatever the ranks do."""
    variables = {"JAX_ENABLE_X64": "0"}
    cell = Cell(1, CellRequest("x = 1"), seq=3, ranks=(0,), now=0.0)
    cell.added_parts = build_parts(cell, NotebookEnvironment(variables))
    variables["JAX_ENABLE_X64"] = "1"
    (note,) = (note for part in cell.added_parts for note in part.end(cell))
    assert note.startswith("JAX_ENABLE_X64 was changed in the notebook after the ranks had started")
    assert [note for part in cell.added_parts for note in part.end(cell)] == []
