"""The shared board: what one process writes, another reads; a board that does not fit is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from mhnb.core.guard.agreement import LAUNCH_DECISION, LaunchProposal
from mhnb.rank.guard.local_agreement import Participant
from mhnb.rank.guard.shared_board import BoardSlot, Entry, SharedBoard, create_board, yield_core
from tests.support.source import ROOT


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[tuple[SharedBoard, SharedBoard]]:
    """The views of two ranks."""
    create_board(tmp_path, 2)
    views = SharedBoard(tmp_path, 2), SharedBoard(tmp_path, 2)
    yield views
    for view in views:
        view.close()


def post(board: SharedBoard, rank: int, seq: int, fingerprint: int, line: int = 1) -> BoardSlot:
    """Post an entry as an agreement does."""
    group = board.find_set_index((0, 1))
    with board.locked():
        slot = board.next_slot(rank, seq, group)
        board.write_entry(rank, slot, Entry(fingerprint, 77, 0, line))
    return slot


def test_entry_of_one_rank_is_read_by_the_other(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """An entry is read with its line, in its own slot."""
    mine, theirs = boards
    slot = post(mine, 0, 7, 2**63 - 1, 12)
    assert slot == BoardSlot(7, 0, 1)
    assert theirs.find_set_index((0, 1)) == slot.set_index
    assert theirs.has_reached(0, slot)
    assert not theirs.has_reached(1, slot)
    assert theirs.read_entry(0, slot) == Entry(2**63 - 1, 77, 0, 12)


def test_numbers_restart_with_each_cell_and_set(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """An entry's number counts the launches of a cell among one set of participants."""
    mine, theirs = boards
    assert [post(mine, 0, 7, n).number for n in range(6)] == [1, 2, 3, 4, 5, 6]
    assert post(mine, 0, 8, 1).number == 1
    other = mine.find_set_index((0,))
    assert other != theirs.find_set_index((0, 1))
    assert not theirs.has_reached(0, BoardSlot(7, 0, 1)), "an older cell's posts are gone"


def test_withdrawal_mark_is_seen_and_cleared_on_reuse(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """A withdrawn entry stays withdrawn; its slot has no mark when it is used again."""
    mine, theirs = boards
    slot = post(mine, 0, 7, 5)
    with mine.locked():
        mine.withdraw(0, slot, 2)
    assert theirs.withdrawal_reason(0, slot) == 2
    for _ in range(3):
        post(mine, 0, 7, 5)
    again = post(mine, 0, 7, 5)
    assert (again.number, theirs.withdrawal_reason(0, again)) == (5, 0)


def test_interrupts_endings_and_waits_are_shared(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """Interrupts, endings and waits are written by one process, and read by all."""
    mine, theirs = boards
    mine.request_interrupt(9)
    mine.request_report()
    with mine.locked():
        mine.end_cell(1, 8, 2)
    mine.set_waiting(0, BoardSlot(9, 3, 4))
    assert (theirs.interrupted_seq, theirs.ended_seq(1), theirs.cell_ending(1)) == (9, 8, 2)
    assert (theirs.report_count, theirs.close_count) == (1, 0)
    assert theirs.waiting_slot(0, 9) == BoardSlot(9, 3, 4)
    mine.set_waiting(0, None)
    assert theirs.waiting_slot(0, 9) is None


def test_last_entry_records_a_withdrawal(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """The last entry is enough to know that none is withdrawn, because the others' marks may be seen later than it."""
    mine, theirs = boards
    slot = post(mine, 0, 7, 5)
    with mine.locked():
        mine.withdraw(0, slot, 2)
    assert post(theirs, 1, 7, 5) == slot
    assert mine.read_entry(1, slot) == Entry(5, 77, 0, 1, has_withdrawal=1)
    slot = post(mine, 0, 7, 5)
    assert post(theirs, 1, 7, 5) == slot
    assert mine.read_entry(1, slot) == Entry(5, 77, 0, 1)


def test_entry_with_an_old_word_is_not_read(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """An entry is not read while any of its words is still that of an older entry; later all of it is read again."""
    mine, theirs = boards
    for n in range(4):
        post(mine, 0, 7, 100 + n, line=50 + n)
    old = BoardSlot(7, 0, 1)
    words = mine._set_words(0)
    begin = next(at for at in range(8, len(words)) if words[at] == 7 << 32 | 1)
    before = words[begin : begin + 7].tolist()
    slot = post(mine, 0, 7, 200, line=60)
    after = words[begin : begin + 7].tolist()
    changed = [at for at in range(7) if before[at] != after[at]]
    assert len(changed) == 4, "the place, the program, the line and the hash"
    for at in changed:
        words[begin + at] = before[at]
        assert theirs.read_entry(0, slot) is None
        assert theirs.read_entry(0, old) is None
        words[begin + at] = after[at]
    assert theirs.read_entry(0, slot) == Entry(200, 77, 0, 60)


SETS = [ranks for ranks in product((0, 1), repeat=10) if sum(ranks) > 1]
"""Which of 10 ranks take part in a launch: four times as many sets as a new board has."""


def launch_on_all_sets(folder: Path, ranks: Sequence[int], sets: Sequence[Sequence[int]]) -> None:
    """Act as some ranks of 10: launch on every set, in one cell per set."""
    board = SharedBoard(folder, 10)
    participants = {rank: Participant(board, rank) for rank in ranks}
    for seq, chosen in enumerate(sets, start=1):
        members = tuple(rank for rank in range(10) if chosen[rank])
        own = [participants[rank] for rank in members if rank in participants]
        for participant in own:
            while not participant.try_propose(LaunchProposal(seq, 5, "jit(f)", members, ())):
                yield_core()
        for participant in own:
            while not participant.poll(is_interrupted=False):
                yield_core()
            assert participant.decide() == LAUNCH_DECISION, members
            participant.stop_waiting()
        for participant in participants.values():
            participant.end_cell(seq, 0)
    board.close()


LAUNCH_IN_PROCESS = """
import sys
from pathlib import Path
from tests.unit.rank.guard.test_shared_board import SETS, launch_on_all_sets
launch_on_all_sets(Path(sys.argv[1]), range(5, 10), SETS)
"""


def test_two_processes_launch_on_more_sets_than_a_new_board_has(tmp_path: Path) -> None:
    """The board grows for both processes, whichever is the first to use a set."""
    create_board(tmp_path, 10)
    before = (tmp_path / "board").stat().st_size
    with subprocess.Popen([sys.executable, "-c", LAUNCH_IN_PROCESS, str(tmp_path)], cwd=ROOT) as other:
        launch_on_all_sets(tmp_path, range(5), SETS)
        assert other.wait() == 0
    board = SharedBoard(tmp_path, 10)
    assert board.set_count == len(SETS) == 1013
    assert (tmp_path / "board").stat().st_size > before
    assert len({board.find_set_index([rank for rank in range(10) if chosen[rank]]) for chosen in SETS}) == 1013
    assert board.set_count == 1013
    board.close()


def test_wait_in_a_set_added_by_another_process_is_seen(boards: tuple[SharedBoard, SharedBoard]) -> None:
    """A wait is seen even in a part of the board that this process has not mapped yet."""
    mine, theirs = boards
    groups = [mine.find_set_index((0, n)) for n in range(600)]
    with mine.locked():
        slot = mine.next_slot(0, 7, groups[-1])
        mine.write_entry(0, slot, Entry(5, 0, 0, 0))
    mine.set_waiting(0, slot)
    assert theirs.waiting_slot(0, 7) == slot
    assert theirs.has_reached(0, slot)


def test_every_pair_of_many_ranks_has_its_set(tmp_path: Path) -> None:
    """A program of pairs on 24 ranks launches on 276 sets; the board takes only the memory that is used."""
    create_board(tmp_path, 24)
    board = SharedBoard(tmp_path, 24)
    pairs = [(a, b) for b in range(24) for a in range(b)]
    assert [board.find_set_index(pair) for pair in pairs] == list(range(276))
    used = (tmp_path / "board").stat().st_blocks * 512
    board.close()
    assert used < 1 << 20


def test_board_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A board of another size is refused, because ranks would write into each other's words."""
    create_board(tmp_path, 2)
    with pytest.raises(ValueError, match="is not for 3 ranks"):
        SharedBoard(tmp_path, 3)
    for content in (bytes((tmp_path / "board").stat().st_size), b""):
        (tmp_path / "board").write_bytes(content)
        with pytest.raises(ValueError, match="another version"):
            SharedBoard(tmp_path, 2)


CREATE_AND_WAIT = """
import sys
from pathlib import Path
from mhnb.rank.guard.shared_board import SharedBoard, create_board
create_board(Path(sys.argv[1]), 2)
SharedBoard(Path(sys.argv[1]), 2).request_interrupt(7)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")
def test_nothing_remains_of_a_board_whose_creator_was_killed(tmp_path: Path) -> None:
    """Another process opens the board by its path; after SIGKILL neither a file nor named memory remains."""
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-c", CREATE_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == "made\n"
        shared = SharedBoard(tmp_path, 2)
        assert shared.interrupted_seq == 7
        with shared.locked():
            shared.close_count  # noqa: B018  # a word is read while the lock is held
        creator.kill()
    shared.close()
    assert not (tmp_path / "board").exists()
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if "mhnb" in path.name}


def test_board_is_a_file_without_anonymous_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The board is a file on macOS, or if /proc is closed to other processes."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert create_board(tmp_path, 2) is None
    one, two = SharedBoard(tmp_path, 2), SharedBoard(tmp_path, 2)
    one.request_interrupt(3)
    assert two.interrupted_seq == 3
    assert (tmp_path / "board").is_file()
    one.close()
    two.close()
