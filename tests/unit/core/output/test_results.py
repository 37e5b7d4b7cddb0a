"""The error that a result raises: one line without repeated words, also after the name of the error class."""

from __future__ import annotations

from copy import copy

import pytest

from mhnb.core.output.results import CellResult, RankResult
from mhnb.errors import CellFailed, CellInterrupted, MhnbError, OrderMismatch
from mhnb.types import RankError

_MISMATCH_TEXT = "nothing was launched, the cluster is clean\nlaunch 1 of cell 3 differs"


def _failed_result(ename: str, evalue: str) -> CellResult:
    return CellResult(3, "x", tuple(RankResult(r, "error", error=RankError(ename, evalue)) for r in (0, 1)), 0.1)


def test_a_mismatch_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook and a script both print the error's class before the text."""
    monkeypatch.setattr(MhnbError, "help_command", "")
    with pytest.raises(OrderMismatch) as caught:
        _failed_result("OrderMismatch", _MISMATCH_TEXT).check()
    assert caught.value._render_traceback_() == [
        "OrderMismatch: ranks 0-1 · nothing was launched, the cluster is clean"
    ]


def test_another_error_keeps_its_name() -> None:
    """`CellFailed` alone would not name the error that the cell raised."""
    with pytest.raises(CellFailed) as caught:
        _failed_result("ValueError", "no").check()
    assert str(caught.value) == "ValueError on ranks 0-1"


def test_the_reason_and_the_line_are_a_note() -> None:
    """A script shows no report: without them its user has to run the cell again."""
    error = RankError(
        "ValueError", "no\nmore", line=2, code="  f(x)", inner_place="In [1], line 7", inner_code="raise ValueError"
    )
    ranks = (RankResult(0, "ok"), RankResult(1, "error", error=error))
    with pytest.raises(CellFailed) as caught:
        CellResult(3, "x", ranks, 0.1).check()
    assert str(caught.value) == "ValueError on rank 1 · rank 0 finished"
    note = "rank 1: ValueError: no\n  cell 3, line 2: f(x)\n  In [1], line 7: raise ValueError"
    assert caught.value.__notes__ == [note]
    assert note in caught.value._render_traceback_()
    assert copy(caught.value).__notes__ == [note]


def test_an_error_without_a_message_or_a_line_has_a_short_note() -> None:
    """Nothing stands for what is unknown."""
    with pytest.raises(CellFailed) as caught:
        _failed_result("KeyboardInterrupt", "").check()
    assert caught.value.__notes__ == ["rank 0: KeyboardInterrupt"]


def test_mismatch_in_an_interrupted_cell_raises_interrupted() -> None:
    """A user who interrupted sees the interrupt first, and then what was raised."""
    result = _failed_result("OrderMismatch", _MISMATCH_TEXT)
    interrupted = CellResult(3, "x", result.ranks, 0.1, how="interrupted")
    with pytest.raises(CellInterrupted) as caught:
        interrupted.check()
    assert str(caught.value) == "OrderMismatch on ranks 0-1"
