"""The ladder of an interrupt, given time: a loaded machine may need longer for a traceback than a user should wait.

What a test of the ladder itself shows is how it ends, so it takes the rung that it is about back to its own time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.core.state import interrupt

__all__ = ["agrees_late", "frees_soon", "kills_soon", "patience", "write_patience"]

_FREE_S, _KILL_S, _AGREE_S = 20.0, 90.0, 20.0
_IN_KERNELS = f"""from mhnb.core.state import interrupt as _interrupt
_interrupt.INTERRUPT_KILL_S = {_KILL_S}
del _interrupt
"""
_OWN_FREE_S, _OWN_KILL_S = interrupt.INTERRUPT_DISCONNECT_S, interrupt.INTERRUPT_KILL_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave ranks that are slow to end an interrupted cell alone; the clusters of a test are driven from this process."""
    monkeypatch.setattr(interrupt, "INTERRUPT_DISCONNECT_S", _FREE_S)
    monkeypatch.setattr(interrupt, "INTERRUPT_KILL_S", _KILL_S)


@pytest.fixture
def frees_soon(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free ranks from a collective as soon as for a user."""
    monkeypatch.setattr(interrupt, "INTERRUPT_DISCONNECT_S", _OWN_FREE_S)


@pytest.fixture
def agrees_late(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ranks time to stop before the same launch: a stalled one would be signalled in the middle of a step."""
    monkeypatch.setattr(interrupt, "INTERRUPT_AGREE_S", _AGREE_S)


@pytest.fixture
def kills_soon(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill what does not end as soon as for a user."""
    monkeypatch.setattr(interrupt, "INTERRUPT_KILL_S", _OWN_KILL_S)


def write_patience(ipython_dir: Path) -> None:
    """Have kernels that are started with this folder as IPYTHONDIR leave slow ranks alone too."""
    startup = ipython_dir / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "00-patience.py").write_text(_IN_KERNELS)
