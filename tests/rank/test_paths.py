"""The last words of a rank."""

from __future__ import annotations

from pathlib import Path

from mhnb.rank.paths import RankPaths


def test_greetings_of_libraries_are_no_last_words(tmp_path: Path) -> None:
    """A rank that was killed is not explained by them; what it said itself stands, and the log has all."""
    (tmp_path / "log").mkdir()
    paths = RankPaths(tmp_path, 1)
    greeting = "[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    paths.log.write_text(f"loading shard 3\n{greeting}")
    paths.native[1].write_text(f"{greeting}terminate called\n{greeting}")
    assert paths.gather_last_words(12) == ["loading shard 3", "terminate called"]
    assert "terminate called" in paths.log.read_text()
