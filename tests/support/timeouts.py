"""Longer timeouts for the escalation of an interrupt, because a traceback may take longer on a loaded machine.

A user should not wait that long. A test of the escalation checks how it ends, so it restores the product's timeout for the step under test.
its own timeout.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.core.state import interrupt

__all__ = [
    "long_agreement_timeout",
    "default_disconnect_timeout",
    "default_kill_timeout",
    "longer_interrupt_timeouts",
    "write_kernel_timeouts",
]

_DISCONNECT_S, _KILL_S, _AGREE_S = 20.0, 90.0, 20.0
_KERNEL_STARTUP = f"""from mhnb.core.state import interrupt as _interrupt
_interrupt.INTERRUPT_KILL_S = {_KILL_S}
del _interrupt
"""
_DEFAULT_DISCONNECT_S, _DEFAULT_KILL_S = interrupt.INTERRUPT_DISCONNECT_S, interrupt.INTERRUPT_KILL_S


@pytest.fixture(autouse=True)
def longer_interrupt_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ranks that are slow to end an interrupted cell more time; a test's clusters are driven from this process."""
    monkeypatch.setattr(interrupt, "INTERRUPT_DISCONNECT_S", _DISCONNECT_S)
    monkeypatch.setattr(interrupt, "INTERRUPT_KILL_S", _KILL_S)


@pytest.fixture
def default_disconnect_timeout(longer_interrupt_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disconnect ranks from a collective as early as for a user."""
    monkeypatch.setattr(interrupt, "INTERRUPT_DISCONNECT_S", _DEFAULT_DISCONNECT_S)


@pytest.fixture
def long_agreement_timeout(longer_interrupt_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ranks time to stop before the same launch, because a stalled rank would be signalled in the middle of a step."""
    monkeypatch.setattr(interrupt, "INTERRUPT_AGREE_S", _AGREE_S)


@pytest.fixture
def default_kill_timeout(longer_interrupt_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill ranks that do not end as early as for a user."""
    monkeypatch.setattr(interrupt, "INTERRUPT_KILL_S", _DEFAULT_KILL_S)


def write_kernel_timeouts(ipython_dir: Path) -> None:
    """Give slow ranks more time in kernels started with this directory as IPYTHONDIR, too."""
    startup = ipython_dir / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "00-timeouts.py").write_text(_KERNEL_STARTUP)
