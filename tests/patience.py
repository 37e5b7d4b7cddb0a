"""The ladder of an interrupt, given time: a loaded machine may need longer for a traceback than a user should wait.

What a test of the ladder itself shows is how it ends, so it takes the rung that it is about back to its own time.
"""

from __future__ import annotations

import pytest

from mhnb.core import ladder

__all__ = ["frees_soon", "kills_soon", "patience"]

_FREE_S, _KILL_S = 20.0, 90.0
_OWN_FREE_S, _OWN_KILL_S = ladder.INTERRUPT_FREE_S, ladder.INTERRUPT_KILL_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave ranks that are slow to end an interrupted cell alone; the clusters of a test are driven from this process."""
    monkeypatch.setattr(ladder, "INTERRUPT_FREE_S", _FREE_S)
    monkeypatch.setattr(ladder, "INTERRUPT_KILL_S", _KILL_S)


@pytest.fixture
def frees_soon(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free ranks from a collective as soon as for a user."""
    monkeypatch.setattr(ladder, "INTERRUPT_FREE_S", _OWN_FREE_S)


@pytest.fixture
def kills_soon(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill what does not end as soon as for a user."""
    monkeypatch.setattr(ladder, "INTERRUPT_KILL_S", _OWN_KILL_S)
