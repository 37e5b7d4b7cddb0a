"""The last output lines of a rank that died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mhnb.rank.host_setup import LogOffsets, Offsets, RankPaths, read_offsets


@pytest.fixture
def paths(tmp_path: Path) -> RankPaths:
    """The paths of a rank that has printed nothing."""
    (tmp_path / "log").mkdir()
    return RankPaths(tmp_path, 1)


def record_offsets(paths: RankPaths, sizes: Offsets) -> None:
    """Record the sizes of the files when a cell begins."""
    offsets_file = LogOffsets(paths.offsets)
    offsets_file.write(sizes)
    offsets_file.close()


def test_library_greetings_are_not_last_lines(paths: RankPaths) -> None:
    """Library greetings do not explain why a rank was killed; the rank's own lines do, and the log has all of them."""
    greeting = "[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    paths.log.write_text(f"loading shard 3\n{greeting}")
    paths.native[1].write_text(f"{greeting}terminate called\n{greeting}")
    assert paths.read_last_lines(12) == ["loading shard 3", "terminate called"]
    assert "terminate called" in paths.log.read_text()


def test_output_before_the_cell_does_not_count(paths: RankPaths) -> None:
    """Only what was written to each file after the cell began counts."""
    paths.log.write_text("earlier\n")
    paths.native[0].write_text("earlier out\n")
    record_offsets(paths, Offsets(8, 12, 0))
    assert paths.read_last_lines(12) == []
    with paths.log.open("a") as log:
        log.write("now\n")
    paths.native[1].write_text("terminate called\n")
    assert paths.read_last_lines(12) == ["now", "terminate called"]


def test_line_printed_by_an_earlier_cell_too_is_logged_again(paths: RankPaths) -> None:
    """A line that an earlier cell printed too is copied to the log again, not mistaken for that cell's line."""
    paths.log.write_text("terminate called\n")
    record_offsets(paths, Offsets(log=17))
    paths.native[1].write_text("terminate called\n")
    assert paths.read_last_lines(12) == ["terminate called"]
    assert paths.log.read_text().count("terminate called") == 2


def test_long_native_stack_does_not_hide_the_reason(paths: RankPaths) -> None:
    """The frames of a native stack are left out before the lines are counted."""
    frames = "".join(f"    @     0x7f15ff7e{at:04}  frame_{at}()\n" for at in range(40))
    paths.native[1].write_text(f"why\n*** Check failure stack trace: ***\n{frames}")
    assert paths.read_last_lines(12) == ["why"]
    assert "frame_39" in paths.log.read_text()


def test_later_cell_replaces_the_offsets(paths: RankPaths) -> None:
    """The offsets of a later cell overwrite those of an earlier one in place and completely."""
    offsets_file = LogOffsets(paths.offsets)
    assert read_offsets(paths.offsets) == Offsets()
    offsets_file.write(Offsets(10**12, 5, 7))
    offsets_file.write(Offsets(10**12 + 1, 6, 8))
    offsets_file.close()
    assert read_offsets(paths.offsets) == Offsets(10**12 + 1, 6, 8)


def test_offsets_that_cannot_be_written_are_removed(paths: RankPaths) -> None:
    """On a full disk all of the rank's output counts, not only that since an earlier cell began; the cell does not fail."""
    offsets_file = LogOffsets(paths.offsets)
    offsets_file.write(Offsets(8))
    unwritable = os.open(os.devnull, os.O_RDONLY)
    os.dup2(unwritable, offsets_file._fd)
    os.close(unwritable)
    offsets_file.write(Offsets(9))
    offsets_file.close()
    assert read_offsets(paths.offsets) == Offsets()
