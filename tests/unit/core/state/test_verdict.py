"""Uneventful cells take a short path to their state, which agrees with the full judgement."""

from __future__ import annotations

from itertools import product

import pytest

from mhnb.core.guard.host_data import HashSummary, HostDataRow
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow
from mhnb.core.messages import CellEnded
from mhnb.core.output.events import Stream
from mhnb.core.state.cell import Cell
from mhnb.core.state.events import CellRequest
from mhnb.core.state.interrupt import InterruptEscalation
from mhnb.core.state.verdict import judge_cell
from mhnb.types import RankError


def _ended_cell(ranks: int = 2) -> Cell:
    cell = Cell(1, CellRequest("x = 1"), seq=4, ranks=tuple(range(ranks)), now=0.0)
    for rank in range(ranks):
        cell.end_rank(CellEnded(rank, 4, "ok", [Stream("stdout", "hi\n")], 0.1))
    return cell


@pytest.mark.parametrize(("ranks", "recorded", "freed_in"), list(product((1, 2, 5), (True, False), (0, 3))))
def test_short_judgement_equals_the_full_one(
    ranks: int, *, recorded: bool, freed_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results agree with and without a record, whatever was printed, and after connections were closed."""
    cell = _ended_cell(ranks)
    assert cell.is_uneventful()
    short = judge_cell(cell, (), recorded=recorded, disconnected_in=freed_in)
    monkeypatch.setattr(Cell, "is_uneventful", lambda _: False)
    assert short == judge_cell(cell, (), recorded=recorded, disconnected_in=freed_in) == ("clean", ())


def test_lost_rank_makes_the_cluster_dead() -> None:
    """A rank may end while the other ranks end the cell."""
    assert judge_cell(_ended_cell(), (1,), recorded=True, disconnected_in=0)[0] == "dead"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("outcome", "error"),
        ("outcome", "running"),
        ("error", RankError("ValueError", "no")),
        ("launches", [LaunchRow("a1", "jit(f)", (0, 1), 1, 1)]),
        (
            "report",
            LaunchReport(host_arrays=[HostDataRow(1, (0, 1), "d", HashSummary(1, "g", "k", "k", "f32[2]"), {})]),
        ),
        ("report", LaunchReport(abandoned_count=1)),
    ],
)
def test_event_on_one_rank_makes_a_cell_eventful(name: str, value: object) -> None:
    """An event on the last rank counts too."""
    cell = _ended_cell()
    setattr(cell.parts[1], name, value)
    assert not cell.is_uneventful()


def test_interrupted_cell_is_eventful() -> None:
    """Ranks may have been disconnected from a collective during the stop."""
    cell = _ended_cell()
    cell.escalation = InterruptEscalation.begin(4, 0.0, can_agree=True, can_disconnect=True)
    assert not cell.is_uneventful()
