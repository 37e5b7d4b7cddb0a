"""Repeating the steps of a replay, without ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.cluster import replay
from mhnb.core.journal import PushRecord


def test_time_goes_on_while_a_push_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The display of a replay may renew its time after each message of a push."""
    ticks: list[str] = []
    written: list[Any] = []
    journal = SimpleNamespace(read_push=lambda _: "packed", write=written.append)
    cluster: Any = SimpleNamespace(journal=journal, generation=2)
    record = PushRecord(1, ("x",), None)

    def push_payload(*_: object, on_progress: Any, prepare_record: Any, **__: object) -> None:
        for done in (1, 2):
            if on_progress is not None:
                on_progress(done, 2)
        prepare_record()()

    monkeypatch.setattr("mhnb.cluster.transfer.push_payload", push_payload)
    assert replay._repeat_push(cluster, record, on_wait=lambda: ticks.append("tick")) == ""
    assert ticks == ["tick", "tick"]
    assert replay._repeat_push(cluster, record, on_wait=None) == ""
    assert [each.generation for each in written] == [2, 2]
