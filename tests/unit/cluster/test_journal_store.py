"""The journal's directory: its permissions, what is kept and removed, and disk failures."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster import journal as journaling
from mhnb.cluster.journal import ClusterJournal, JournalStore, prune_journals
from mhnb.cluster.transfer import PushPayload
from mhnb.core.journal import AcceptRecord, CellRecord, PushRecord, StartRecord

UNUSED_PID = 2**22 + 1
"""A process id that Linux never assigns."""


@pytest.fixture
def notifications() -> list[str]:
    """Return the notifications that the user receives."""
    return []


@pytest.fixture
def open_journal(tmp_path: Path, notifications: list[str]) -> Callable[[int], ClusterJournal]:
    """Return a function that opens the journal of a generation, with the clock fixed at 5."""

    def begin(generation: int) -> ClusterJournal:
        environment = {"MHNB_HOME": str(tmp_path)}
        return ClusterJournal(
            "demo", generation, environment=environment, clock=lambda: 5.0, notify=notifications.append
        )

    return begin


def push_of(*sizes: int) -> PushPayload:
    """Return a push of one value `x` with parts of these sizes."""
    parts = [memoryview(bytes([number] * size)) for number, size in enumerate(sizes)]
    return PushPayload([{"name": "x", "skeleton": 0, "buffers": [], "arrays": []}], parts)


def test_records_are_on_disk_when_write_returns(open_journal: Callable[[int], ClusterJournal]) -> None:
    """Records have the time, are in order and readable only by the owner; the process's next generation appends to them."""
    journal = open_journal(1)
    journal.write(StartRecord(1, "2 x 1"))
    journal.write(CellRecord(1, 1, "x"))
    second = open_journal(2)
    second.write(AcceptRecord(2, "split"))
    assert journal.read() == (
        [StartRecord(1, "2 x 1", when=5.0), CellRecord(1, 1, "x", when=5.0), AcceptRecord(2, "split", 5.0)],
        [],
    )
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (journal.path.parent, journal.path)]
    assert modes == [0o700, 0o600]


def test_journal_of_an_older_process_with_the_same_pid_is_kept(
    open_journal: Callable[[int], ClusterJournal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container each notebook may be process 1, so an older journal is renamed, and pruned like any other."""
    for seq in (1, 2, 3):
        monkeypatch.setattr(journaling, "_used_folders", set())
        journal = open_journal(1)
        journal.write(CellRecord(1, seq, f"x = {seq}"))
        journal.close()
    found = sorted(path.name.removeprefix(f"demo.{os.getpid()}") for path in tmp_path.iterdir())
    assert found == [".1.journal", ".2.journal", ".journal"]
    assert b"x = 1" in (tmp_path / f"demo.{os.getpid()}.1.journal" / "journal.jsonl").read_bytes()
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 3
    for number in range(3, 40):
        shutil.copytree(tmp_path / f"demo.{os.getpid()}.1.journal", tmp_path / f"demo.{os.getpid()}.{number}.journal")
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 21


def test_push_is_restored_byte_for_byte(
    open_journal: Callable[[int], ClusterJournal], notifications: list[str]
) -> None:
    """All parts are restored, including empty ones, and two pushes do not mix."""
    journal = open_journal(1)
    for sizes in ((3, 0, 2), (4,)):
        journal.prepare_push(push_of(*sizes), (1,))()
    records = [record for record in journal.read()[0] if isinstance(record, PushRecord)]
    assert [(record.names, record.ranks, record.why_not) for record in records] == [(("x",), (1,), "")] * 2
    assert [list(map(bytes, journal.read_push(record).parts)) for record in records] == [
        [b"\0\0\0", b"", b"\2\2"],
        [b"\0" * 4],
    ]
    assert not notifications


def test_push_after_an_attach_replaces_no_earlier_one(open_journal: Callable[..., ClusterJournal]) -> None:
    """A notebook that attaches continues the generation, and so the numbers of its pushes."""
    for _ in range(2):
        journal = open_journal(1)
        journal.prepare_push(push_of(4), None)()
    files = [record.file for record in journal.read()[0] if isinstance(record, PushRecord)]
    assert files == ["push1-1.bin", "push1-2.bin"]


@pytest.mark.parametrize(
    ("name", "said"), [("PUSH_NBYTES", "the journal stores at most"), ("ALL_PUSHES_NBYTES", "full")]
)
def test_too_large_push_is_reported_and_skipped(
    open_journal: Callable[[int], ClusterJournal],
    notifications: list[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    said: str,
) -> None:
    """A push above its own limit or the total limit is reported and skipped; a push that fits is still stored afterwards."""
    journal = open_journal(1)
    monkeypatch.setattr(journaling, name, 10)
    for size in (6, 11, 4):
        journal.prepare_push(push_of(size), None)()
    records = [record for record in journal.read()[0] if isinstance(record, PushRecord)]
    assert [bool(record.file) for record in records] == [True, False, True]
    assert said in records[1].why_not
    assert len(notifications) == 1
    assert "push x" in notifications[0]
    assert said in notifications[0]


def test_a_push_file_that_was_changed_is_refused(open_journal: Callable[[int], ClusterJournal]) -> None:
    """Bytes that differ from those that were written are never bound."""
    journal = open_journal(1)
    journal.prepare_push(push_of(4), None)()
    (record,) = (record for record in journal.read()[0] if isinstance(record, PushRecord))
    (journal.path.parent / record.file).write_bytes(b"abc")
    with pytest.raises(OSError, match="has 3 bytes; expected 4"):
        journal.read_push(record)


def test_full_disk_is_reported_once_and_leaves_no_gap(
    open_journal: Callable[[int], ClusterJournal], notifications: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write, nothing is written until the next generation, and the partial line hides none of its lines."""
    write, journal = os.write, open_journal(1)
    journal.write(CellRecord(1, 1, "x"))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
    journal.write(CellRecord(1, 2, "x"))
    monkeypatch.setattr(os, "write", write)
    journal.write(CellRecord(1, 3, "x"))
    later = open_journal(2)
    later.write(CellRecord(2, 1, "x"))
    records, faults = later.read()
    assert [(record.generation, record.seq) for record in records if isinstance(record, CellRecord)] == [(1, 1), (2, 1)]
    assert len(faults) == len(notifications) == 1
    assert "ends before cell 2: only 9 of" in notifications[0]
    assert later.write_fault(1)
    assert not later.write_fault(2)


# -- what is removed


def create_ended_journal(home: Path, number: int, *, owner: int = UNUSED_PID, nbytes: int = 0) -> Path:
    """Create the journal of a notebook that has ended."""
    folder = home / f"demo{number}.{owner}.journal"
    folder.mkdir()
    (folder / "journal.jsonl").touch()
    (folder / "push1-1.bin").write_bytes(bytes(nbytes))
    os.utime(folder / "journal.jsonl", (number, number))
    return folder


def test_newest_journals_are_not_pruned(tmp_path: Path) -> None:
    """Twenty journals of ended notebooks stay, and all journals of running ones and unrelated directories."""
    foreign = tmp_path / f"mine.{UNUSED_PID}.journal"
    foreign.mkdir()
    running = create_ended_journal(tmp_path, 0, owner=os.getpid())
    ended = [create_ended_journal(tmp_path, number) for number in range(1, 26)]
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert [folder.exists() for folder in ended] == [False] * 5 + [True] * 20
    assert foreign.exists()
    assert running.exists()
    prune_journals({"MHNB_HOME": str(tmp_path / "nowhere")})


def test_journal_that_is_open_elsewhere_is_not_pruned(tmp_path: Path) -> None:
    """The open file shows that the notebook runs, in another container or on another machine with the same home."""
    open_store = JournalStore("demo", UNUSED_PID, environment={"MHNB_HOME": str(tmp_path)}, is_new=False)
    os.utime(open_store.path, (0, 0))
    for number in range(1, 26):
        create_ended_journal(tmp_path, number)
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert open_store.path.exists()
    open_store.close()
    create_ended_journal(tmp_path, 26)
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert not open_store.path.exists()


def test_old_journals_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals share a limit in bytes, and the newest one stays however large it is."""
    monkeypatch.setattr(journaling, "_RETAINED_NBYTES", 100)
    ended = [create_ended_journal(tmp_path, number, nbytes=nbytes) for number, nbytes in ((1, 10), (2, 60), (3, 30))]
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert [folder.exists() for folder in ended] == [True, True, True]
    huge = create_ended_journal(tmp_path, 4, nbytes=500)
    prune_journals({"MHNB_HOME": str(tmp_path)})
    assert [folder.exists() for folder in (*ended, huge)] == [False, False, False, True]


def test_closing_twice_is_allowed(tmp_path: Path) -> None:
    """An interrupted stop may close twice, and a later write fails with an error instead of being lost silently."""
    store = JournalStore("demo", os.getpid(), environment={"MHNB_HOME": str(tmp_path)}, is_new=True)
    store.close()
    store.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        store.append(b"late\n")
