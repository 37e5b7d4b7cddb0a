"""`mhnb status`: what is said if the notebook's process answers that it failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.cli import control
from mhnb.errors import ClusterError
from mhnb.system.shell_requests import make_answer


def test_failed_answer_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that the notebook's process could not report is an error with the reason, and not taken for silence."""
    record: Any = SimpleNamespace(name="demo", run_dir="/run/demo")
    monkeypatch.setattr(control, "has_live_notebook", lambda _record: True)
    monkeypatch.setattr(control, "has_owner", lambda _record: True)
    monkeypatch.setattr(control, "ask_notebook", lambda *_: make_answer("failed", "no rank is left"))
    with pytest.raises(ClusterError, match="could not report its status: no rank is left"):
        control._read_status(record)
