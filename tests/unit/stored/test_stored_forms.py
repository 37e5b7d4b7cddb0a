"""What earlier versions left on disk is read to the same values, and what is written now has the same bytes.

The files beside this one were written by version 0.1, before the forms had declared types. They never change: a cluster that
outlived its notebook, and a journal, may be as old as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mhnb.cluster import attach
from mhnb.cluster.attach import ClusterRecord, write_cluster_record
from mhnb.cluster.options import StartOptions
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.guard.programs import Outline, unpack_outline
from mhnb.core.journal import (
    AcceptRecord,
    CellRecord,
    LaunchTrace,
    PushRecord,
    Record,
    ReplayRecord,
    StartRecord,
    format_record,
    parse_records,
)
from mhnb.system import run_dir as run_dirs
from mhnb.system.private_files import write_private
from mhnb.teach.progress import AnswerRecord, read_records, write_record

STORED = Path(__file__).parent

TRACES = (
    LaunchTrace(
        (0, 1),
        "4f2a9c1d8e7b6a50",
        5,
        (("a1b2c3d4", "jit(add)", "0-1", 2, 3), ("e5f6a7b8", "jit(top)", "0,2", None, 2)),
    ),
    LaunchTrace((2,), "0011223344556677", 1, (("e5f6a7b8", "jit(top)", "0,2", 4, 1),)),
)
PUSHED = (
    {"name": "x", "skeleton": 0, "buffers": [1], "arrays": [[2, [4, 3], "float32", "C"]], "digest": "9a"},
    {"name": "é", "skeleton": 3, "buffers": [], "arrays": []},
)
RECORDS: tuple[Record, ...] = (
    StartRecord(1, "2 hosts x 1 device", "0.10.2", when=1_700_000_000.125),
    StartRecord(2, "4 hosts x 1 device", after=1, when=1_700_000_001.0),
    CellRecord(1, 1, "x = 1", outcomes={0: "ok", 1: "ok"}, when=2.0),
    CellRecord(
        1,
        2,
        'é "quoted"\n\u2028 \x00 \\',
        (0, 1, 3),
        "parity",
        2.5,
        {0: "ok", 1: "error", 2: "interrupted", 3: "skipped", 4: "died", 5: "killed", 6: "refused"},
        {1: "ValueError"},
        TRACES,
        "timeout",
        "tainted",
        0.25,
        replayed=True,
        when=5.5,
    ),
    CellRecord(1, 3, "", (0,), "off", 30, {0: "ok"}, launches=None, how="interrupted", state="split", wall_s=1e-06),
    PushRecord(1, ("x", "é"), None, PUSHED, (8, 16, 48, 4), "push1-1.bin", when=3.0),
    PushRecord(1, ("big",), (0, 1), why_not="too large", replayed=True),
    AcceptRecord(1, "tainted", 7.0),
    ReplayRecord(2, 1, None, complete=True),
    ReplayRecord(2, 1, 4, complete=False, told="cell 2 differs\nrank 1: this", when=8.0),
    CellRecord(1, 12, "x = 1", outcomes={0: "ok"}, when=9.0, execution_count=7, first_line=2, kernel="0a1b2c3d4e5f"),
    CellRecord(2, 12, "x = 1", outcomes={0: "ok"}, replayed=True, when=10.0, first_line=2),
)


def test_journal_is_read_and_written_as_before() -> None:
    """Every kind of record, with each of its optional fields, is read to the same values and written to the same bytes."""
    lines = (STORED / "journal.jsonl").read_bytes()
    assert parse_records(lines) == (list(RECORDS), [])
    assert b"".join(map(format_record, RECORDS)) == lines


def test_half_a_character_is_read_and_written_as_before() -> None:
    """A cell's source may hold a lone surrogate, which is no valid UTF-8 and so in no file beside this one."""
    record = CellRecord(1, 1, "x = '\ud800'", outcomes={0: "ok"})
    line = (
        b'{"kind":"cell","generation":1,"seq":1,"source":"x = \'\xed\xa0\x80\'","ranks":null,"guard":"lockstep","timeout_s":null,'
        b'"outcomes":{"ok":"0"},"errors":{},"launches":[],"how":"","state":"clean","wall_s":0.0,"replayed":false,"when":0.0}\n'
    )
    assert format_record(record) == line
    assert parse_records(line) == ([record], [])


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"kind": "walk"},
        {"kind": ["cell"]},
        {"state": "walking"},
        {"seq": "1"},
        {"seq": True},
        {"ranks": "a-b"},
        {"ranks": [0, 1]},
        {"outcomes": {"ok": 0}},
        {"outcomes": ["ok"]},
        {"launches": [["0", "hash", 1]]},
    ],
    ids=str,
)
def test_record_of_a_newer_version_is_reported(change: dict[str, Any]) -> None:
    """A line with an unknown kind or field, or with a value of another type, is a fault; the other lines are read."""
    first, second = (STORED / "journal.jsonl").read_bytes().splitlines()[2:4]
    changed = json.dumps(json.loads(first) | change).encode()
    records, faults = parse_records(b"\n".join([changed, second]))
    assert records == [RECORDS[3]]
    assert len(faults) == 1
    assert faults[0].startswith("a line of the journal cannot be read")


# -- the record of a cluster that outlives its notebook


SPEC = ClusterSpec(
    2,
    None,
    init=False,
    initialize={"initialization_timeout": 60, "coordinator_address": "a:1"},
    ranks_per_host=2,
    profile="ssh",
    machines=("a", "é"),
    kind="slurm",
)
OPTIONS = StartOptions(
    name="kept",
    start_timeout_s=90,
    keep=True,
    guard="parity",
    fork=False,
    standby=False,
    address="10.0.0.1",
    encrypt=False,
    host_timeout_s=7.5,
    connection="{}",
    sync="/data/\udcff",
    reach={"user": "me", "extra": ["X=1"], "environment": {"A": "b"}, "port": 22},
)


def cluster_record(folder: Path) -> ClusterRecord:
    """Return a record in which no field has its default, and the time of the start is a whole number."""
    return ClusterRecord(folder, bytes(range(32)), "tcp:10.0.0.1:5", 3, 77, SPEC, OPTIONS, {0: 12, 1: 34}, 4.0, 16)


def test_cluster_record_is_read_and_written_as_before(tmp_path: Path) -> None:
    """The record of a cluster is read to the same values and written to the same bytes."""
    tmp_path.chmod(0o700)
    write_cluster_record(cluster_record(tmp_path))
    stored = (STORED / "attach.json").read_bytes()
    assert (tmp_path / "attach.json").read_bytes() == stored
    assert attach._read(tmp_path) == (cluster_record(tmp_path), "")


def test_cluster_record_of_another_version_is_read(tmp_path: Path) -> None:
    """Fields that only another version has are ignored; those that an older one did not write have their defaults."""
    tmp_path.chmod(0o700)
    body = json.loads((STORED / "attach.json").read_bytes()) | {"more": 1}
    del body["protocol"], body["options"]["sync"], body["shape"]["kind"]
    body["options"]["newer"] = body["shape"]["newer"] = {"a": 1}
    (tmp_path / "attach.json").write_text(json.dumps(body))
    (tmp_path / "attach.json").chmod(0o600)
    record, fault = attach._read(tmp_path)
    assert record is not None, fault
    assert (record.protocol, record.options.sync, record.shape.kind) == (0, "", "")
    assert record.options.reach == OPTIONS.reach


# -- the records of processes


@pytest.fixture
def fixed_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be number 77 of machine `here`, with parent 66."""
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr(os, "getppid", lambda: 66)
    monkeypatch.setattr(run_dirs, "find_start_time_s", lambda pid: None if pid == 12 else pid + 0.5)
    with monkeypatch.context() as own:
        own.setattr(os, "getpid", lambda: 77)
        yield


@pytest.mark.usefixtures("fixed_process")
def test_run_record_is_written_as_before(tmp_path: Path) -> None:
    """The record of a cluster's processes has the same bytes."""
    run_dirs.write_run_record(tmp_path, "kept", 12, [13, None], is_detachable=True, location="2 hosts (a, é)")
    assert (tmp_path / "cluster.json").read_bytes() == (STORED / "cluster.json").read_bytes()


def test_run_record_is_read_as_before(tmp_path: Path) -> None:
    """The record of a cluster's processes has the same values, also if an older version wrote fewer fields, or a newer one more."""
    tmp_path.chmod(0o700)
    body = json.loads((STORED / "cluster.json").read_bytes())
    oldest = {name: body[name] for name in ("name", "owner", "supervisor", "ranks", "keep")}
    record = run_dirs.RunRecord(
        run_dir=str(tmp_path),
        name="kept",
        machine="here",
        owner_pid=77,
        owner_began_s=77.5,
        supervisor_pid=12,
        rank_pids=(13, None),
        is_detachable=True,
        location="2 hosts (a, é)",
    )
    for written, expected in (
        (body, record),
        (body | {"newer": 1, "run_dir": "/elsewhere"}, record),
        (oldest, replace(record, machine="", owner_began_s=None, location="")),
    ):
        write_private(tmp_path / "cluster.json", json.dumps(written))
        assert run_dirs._read_run_record(tmp_path / "cluster.json") == expected


def test_supervisor_record_is_read_and_written_as_before(tmp_path: Path) -> None:
    """The record of a supervisor whose notebook is on another machine has the same form."""
    (tmp_path / "run").mkdir(mode=0o700)
    run_dirs.write_supervisor_record(tmp_path / "run", is_detachable=True)
    assert (tmp_path / "run" / "supervisor.json").read_text() == f'{{"pid": {os.getpid()}, "keep": true}}'
    assert run_dirs.read_supervisor_records(tmp_path) == [run_dirs.SupervisorRecord(os.getpid(), is_detachable=True)]


@pytest.mark.usefixtures("fixed_process")
def test_supervisor_mark_is_written_as_before() -> None:
    """The mark in the environment of a supervisor's processes has the same text."""
    mark = run_dirs.format_supervisor_mark(Path("/state/kept.77.1/\udcff"))
    assert mark.encode() == (STORED / "mark.json").read_bytes()


def test_answer_is_read_and_written_as_before(tmp_path: Path) -> None:
    """The answer to an exercise is read to the same value and written to the same bytes."""
    records = [
        AnswerRecord(None, 1, None, "", "repr \ud800"),
        AnswerRecord(0, 2, right=True, said="gives 2.0", answer="é\n"),
    ]
    environment = {"MHNB_HOME": str(tmp_path / "home")}
    for record in records:
        write_record("made", record, environment)
    folder = tmp_path / "home" / "lessons" / "made"
    written = [(folder / name).read_bytes() for name in ("notebook.json", "rank0.json")]
    assert written == [(STORED / f"answer_{name}.json").read_bytes() for name in ("notebook", "rank0")]
    assert read_records("made", environment) == records
    write_record("made", records[1], environment)
    assert [record.tries for record in read_records("made", environment)] == [1, 2]
    (folder / "rank0.json").write_bytes(written[1])
    (folder / "rank1.json").write_text(json.dumps(json.loads(written[1]) | {"rank": 1, "newer": 1}))
    assert read_records("made", environment) == records


def test_outline_is_read_as_before() -> None:
    """The outline of a program is read to the same value."""
    assert unpack_outline((STORED / "outline.txt").read_text()) == Outline(
        {"k": "2", "é": "'\ud800'"}, ["module {", "%0 = chlo.top_k(%arg0, k = 2)", "}"]
    )
