"""The board: what one process writes, another reads; what cannot be is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.rank.guard.board import Board, Place, Post, make_board


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[tuple[Board, Board]]:
    """The views of two ranks."""
    make_board(tmp_path, 2)
    views = Board(tmp_path, 2), Board(tmp_path, 2)
    yield views
    for view in views:
        view.close()


def post(board: Board, rank: int, seq: int, fingerprint: int, line: int = 1) -> Place:
    """Post as an agreement does."""
    group = board.index_of((0, 1))
    with board.locked():
        place = board.next_place(rank, seq, group)
        board.post(rank, place, Post(fingerprint, line, 0, 77))
    return place


def test_what_one_posts_the_other_reads(boards: tuple[Board, Board]) -> None:
    """With its line, at the place it is for."""
    mine, theirs = boards
    place = post(mine, 0, 7, 2**63 - 1, 12)
    assert place == Place(7, 0, 1)
    assert theirs.index_of((0, 1)) == place.group
    assert theirs.has_posted(0, place)
    assert not theirs.has_posted(1, place)
    assert theirs.read(0, place) == (2**63 - 1, 12, 0, 77, 0)


def test_numbers_begin_anew_with_each_cell_and_set(boards: tuple[Board, Board]) -> None:
    """The n-th launch of a cell among these participants."""
    mine, theirs = boards
    assert [post(mine, 0, 7, n).number for n in range(6)] == [1, 2, 3, 4, 5, 6]
    assert post(mine, 0, 8, 1).number == 1
    other = mine.index_of((0,))
    assert other != theirs.index_of((0, 1))
    assert not theirs.has_posted(0, Place(7, 0, 1)), "an older cell's posts are gone"


def test_a_mark_is_seen_and_goes_with_the_next_round(boards: tuple[Board, Board]) -> None:
    """A post that was taken back stays so; the ring's place is clean when it is used again."""
    mine, theirs = boards
    place = post(mine, 0, 7, 5)
    with mine.locked():
        mine.mark(0, place, 2)
    assert theirs.read(0, place).mark == 2
    for _ in range(3):
        post(mine, 0, 7, 5)
    again = post(mine, 0, 7, 5)
    assert (again.number, theirs.read(0, again).mark) == (5, 0)


def test_interrupts_endings_and_waits_are_words_for_all(boards: tuple[Board, Board]) -> None:
    """Written once, read by everybody."""
    mine, theirs = boards
    mine.ask_interrupt(9)
    with mine.locked():
        mine.end_cell(1, 8, 2)
    mine.want(0, Place(9, 3, 4))
    assert (theirs.interrupted_seq, theirs.ended_seq(1), theirs.ending(1)) == (9, 8, 2)
    assert theirs.wanted(0, 9) == Place(9, 3, 4)
    mine.want(0, None)
    assert theirs.wanted(0, 9) is None


def test_too_many_sets_are_an_error_and_not_a_mixture(boards: tuple[Board, Board]) -> None:
    """Two sets never share a place. Of a small cluster every set that there can be has one."""
    mine, theirs = boards
    assert [mine.index_of((0, n)) for n in range(4)] == [0, 1, 2, 3]
    assert theirs.index_of((0, 2)) == 2
    with pytest.raises(OverflowError, match="more than 4 different sets"):
        mine.index_of((1, 2, 3))


def test_every_pair_of_many_ranks_has_its_place(tmp_path: Path) -> None:
    """A program of pairs on 24 ranks launches on 276 sets; the board takes only the memory that is used."""
    make_board(tmp_path, 24)
    board = Board(tmp_path, 24)
    pairs = [(a, b) for b in range(24) for a in range(b)]
    assert [board.index_of(pair) for pair in pairs] == list(range(276))
    used = (tmp_path / "board").stat().st_blocks * 512
    board.close()
    assert used < 1 << 20


def test_another_clusters_board_is_refused(tmp_path: Path) -> None:
    """A wrong size would put ranks into each other's words."""
    make_board(tmp_path, 2)
    with pytest.raises(ValueError, match="not the board of 3 ranks"):
        Board(tmp_path, 3)
    (tmp_path / "board").write_bytes(bytes((tmp_path / "board").stat().st_size))
    with pytest.raises(ValueError, match="another version"):
        Board(tmp_path, 2)


HOLD = """
import sys
from pathlib import Path
from mhnb.rank.guard.board import Board, make_board
make_board(Path(sys.argv[1]), 2)
Board(Path(sys.argv[1]), 2).ask_interrupt(7)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")
def test_nothing_is_left_of_a_board_whose_maker_was_killed(tmp_path: Path) -> None:
    """Another process shares it by its path; after SIGKILL there is neither a file nor memory with a name."""
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "made\n"
        shared = Board(tmp_path, 2)
        assert shared.interrupted_seq == 7
        with shared.locked():
            shared.close_count  # noqa: B018  # a word is read while the lock is held
        maker.kill()
    shared.close()
    assert not (tmp_path / "board").exists()
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if "mhnb" in path.name}


def test_a_file_does_where_there_is_no_such_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS, or a /proc that does not let others in."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert make_board(tmp_path, 2) is None
    one, two = Board(tmp_path, 2), Board(tmp_path, 2)
    one.ask_interrupt(3)
    assert two.interrupted_seq == 3
    assert (tmp_path / "board").is_file()
    one.close()
    two.close()
