"""Errors with many others in them: the first and the last are named."""

from __future__ import annotations

from mhnb.rank.execution.exceptions import read_error


def _chain(count: int) -> Exception:
    error: Exception = ValueError("root cause")
    for level in range(count):
        above = RuntimeError(f"level {level + 1}")
        above.__cause__ = error
        error = above
    return error


def test_error_with_many_causes_names_the_deepest() -> None:
    """Up to 200 are drawn as Python draws them; of more, a line for the first and the last ones, and how many are between."""
    assert read_error(_chain(60), lambda frames: frames).is_ordinary
    reading = read_error(_chain(300), lambda frames: frames)
    assert not reading.is_ordinary
    lines = str(reading.plain).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("level 300", "  RuntimeError: level 299", "  ValueError: root cause")
    assert "  … 284 errors in between" in lines


def test_group_of_many_errors_names_some() -> None:
    """A group of 60 is drawn by Python; of one of 600 the first and last members are named."""
    assert read_error(
        ExceptionGroup("tasks", [ValueError(str(n)) for n in range(60)]), lambda frames: frames
    ).is_ordinary
    plain = read_error(ExceptionGroup("tasks", [ValueError(str(n)) for n in range(600)]), lambda frames: frames).plain
    assert str(plain).splitlines()[1:3] == ["  ValueError: 0", "  ValueError: 1"]
