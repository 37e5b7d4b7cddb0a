"""The error that a result raises: one line without repeated words, also after the name of the error class."""

from __future__ import annotations

import pytest

from mhnb.core.output.results import CellResult, RankResult
from mhnb.errors import CellFailed, MhnbError, OrderMismatch
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
    with pytest.raises(CellFailed, match=r"^ValueError on ranks 0-1$"):
        _failed_result("ValueError", "no").check()


def test_mismatch_in_an_interrupted_cell_raises_interrupted() -> None:
    """A user who interrupted sees the interrupt first, and then what was raised."""
    result = _failed_result("OrderMismatch", _MISMATCH_TEXT)
    interrupted = CellResult(3, "x", result.ranks, 0.1, how="interrupted")
    with pytest.raises(Exception, match=r"^OrderMismatch on ranks 0-1$") as caught:
        interrupted.check()
    assert type(caught.value).__name__ == "CellInterrupted"
