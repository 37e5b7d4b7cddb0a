"""Waits that poll, with a clock and pauses of the test."""

from __future__ import annotations

from pathlib import Path

from mhnb.system.waiting import read_whole_json, wait_until


class _Clock:
    """A clock that advances by the pauses, and counts them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def read(self) -> float:
        return self.now_s


def test_wait_ends_with_the_first_true_result() -> None:
    """The result itself is returned, without a pause after it."""
    clock, results = _Clock(), iter(["", "", "done", "never read"])
    assert wait_until(results.__next__, 9.0, 0.5, pause=clock.pause, clock=clock.read) == "done"
    assert clock.pauses == [0.5, 0.5]


def test_wait_ends_at_its_limit() -> None:
    """A false result is returned once the limit is reached; what became true during the last pause is still seen."""
    clock, polls = _Clock(), []
    assert not wait_until(lambda: polls.append(clock.now_s), 1.0, 0.5, pause=clock.pause, clock=clock.read)
    assert polls == [0.0, 0.5, 1.0]
    late = _Clock()
    assert wait_until(lambda: late.now_s >= 1.0, 1.0, 0.5, pause=late.pause, clock=late.read)


def test_limit_of_zero_polls_once() -> None:
    """A limit of 0 polls once, and never pauses."""
    clock = _Clock()
    assert wait_until(lambda: True, 0.0, 60.0, pause=clock.pause, clock=clock.read)
    assert not wait_until(lambda: False, 0.0, 60.0, pause=clock.pause, clock=clock.read)
    assert clock.pauses == []


def test_file_is_read_once_it_is_complete(tmp_path: Path) -> None:
    """A connection file that the hub is still writing counts as missing."""
    path = tmp_path / "connection.json"
    assert read_whole_json(path) == ""
    path.write_text('{"key": "a"')
    assert read_whole_json(path) == ""
    path.write_text('{"key": "a"}\n')
    assert read_whole_json(path) == '{"key": "a"}\n'
