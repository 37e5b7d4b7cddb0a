"""A cluster's files are private to its user, and files that another user could have written are not trusted."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mhnb.cli import main
from mhnb.cluster import manager
from mhnb.cluster.attach import (
    ClusterRecord,
    describe_other_clusters,
    list_cluster_records,
    read_cluster_records,
    write_cluster_record,
)
from mhnb.cluster.cleanup import _find_detachable_pids, find_orphans
from mhnb.cluster.flight import write_report
from mhnb.cluster.journal import JournalStore, read_journal
from mhnb.cluster.options import StartOptions
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.flight import build_report
from mhnb.core.messages import HostSpec
from mhnb.errors import InvalidRequest, LaunchError, NotStarted
from mhnb.rank.host_setup import prepare_host
from mhnb.system import private_files
from mhnb.system.private_files import NotPrivate, make_private_folder, open_private, read_private, write_private
from mhnb.system.run_dir import (
    list_running_clusters,
    make_run_dir,
    prune_run_dirs,
    read_running_clusters,
    write_run_record,
)
from mhnb.system.trace import append_to_profile, profile_path
from mhnb.teach.progress import AnswerRecord, progress, read_records, recall, write_record
from tests.support.source import ROOT

OTHER_UID = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def mode_of(path: Path) -> int:
    """Return the permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state home that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def supervisor() -> Iterator[int]:
    """A process that looks like a supervisor."""
    with subprocess.Popen([sys.executable, "-c", "input()", "mhnb.rank.supervisor"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@pytest.fixture
def make_run(home: Path, supervisor: int) -> Callable[[str], Path]:
    """Make the directory of a detachable cluster that no notebook is attached to."""

    def make(name: str) -> Path:
        run = make_run_dir(name, 1, environment={"MHNB_HOME": str(home)}, profile=ROOT / "profiles" / "local")
        write_run_record(run, name, supervisor, [None], is_detachable=True)
        shape, options = ClusterSpec(1, 1), StartOptions(name=name, keep=True)
        write_cluster_record(
            ClusterRecord(run, b"k" * 32, f"unix:{run}/link", 1, os.getpid(), shape, options, {0: supervisor})
        )
        return run

    return make


def give_away(path: Path) -> None:
    """Give a folder with all its contents to another user."""
    for each in (path, *path.rglob("*")):
        os.chown(each, OTHER_UID, OTHER_UID, follow_symlinks=False)


def attachable_names(home: Path) -> list[str]:
    """Return the names of the listed clusters, after checking that the same clusters can be attached to."""
    environment = {"MHNB_HOME": str(home)}
    listed = [record.name for record in read_running_clusters(environment)]
    assert [cluster.name for cluster in list_cluster_records(environment)] == listed
    return listed


# -- permissions of new files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_files_and_folders_are_private(home: Path, make_run: Callable[[str], Path], umask: int) -> None:
    """Every folder has mode 0700 and every file 0600, whatever the umask."""
    before = os.umask(umask)
    try:
        environment = {"MHNB_HOME": str(home / "below")}
        make_run_dir("a", 1, environment=environment, profile=ROOT / "profiles" / "local")
        make_run("b")
        journal = JournalStore("a", 7, environment=environment, is_new=True)
        journal.write_parts("push1-1.bin", [memoryview(b"x")])
        journal.close()
        write_record("made", AnswerRecord(0, 1, True, "right", "1"), environment)
    finally:
        os.umask(before)
    paths = [home, *home.rglob("*")]
    assert len(paths) > 20
    wrong = {str(path): oct(mode_of(path)) for path in paths if mode_of(path) != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}


def test_preflight_creates_a_private_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight checks of a first start create the home and the folders above it with mode 0700."""
    monkeypatch.setenv("MHNB_HOME", str(home / "below"))
    before = os.umask(0)
    try:
        manager._check_can_start(ClusterSpec(2, 1))
    finally:
        os.umask(before)
    assert [mode_of(home), mode_of(home / "below")] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o2775])
def test_open_home_is_made_private(home: Path, make_run: Callable[[str], Path], mode: int) -> None:
    """A home that an older version or a loose umask has left open is closed, and its clusters are listed."""
    make_run("mine")
    home.chmod(mode)
    assert attachable_names(home) == ["mine"]
    assert mode_of(home) & 0o777 == 0o700


def test_shared_home_keeps_its_mode(home: Path, make_run: Callable[[str], Path]) -> None:
    """A folder that the user shares for reading keeps its mode; the clusters in it are private."""
    run = make_run("mine")
    (home / "thesis").mkdir()
    home.chmod(0o755)
    assert attachable_names(home) == ["mine"]
    assert (mode_of(home), mode_of(run)) == (0o755, 0o700)


# -- what is refused


def test_home_writable_by_others_is_refused(home: Path, make_run: Callable[[str], Path]) -> None:
    """The error contains path, mode and the command that fixes it, whichever function reads the home first."""
    make_run("mine")
    (home / "thesis").mkdir()
    home.chmod(0o777)
    environment = {"MHNB_HOME": str(home)}
    for read in (
        read_running_clusters,
        list_cluster_records,
        prune_run_dirs,
        lambda where: make_run_dir("a", 2, environment=where, profile=ROOT),
        lambda where: JournalStore("a", 7, environment=where, is_new=True),
    ):
        with pytest.raises(LaunchError, match=rf"{home} has mode 0777.*\n.*chmod 700 {home}"):
            read(environment)


@as_root
def test_home_of_another_user_is_refused(home: Path, make_run: Callable[[str], Path]) -> None:
    """The error says which user owns the home, and suggests MHNB_HOME."""
    make_run("mine")
    os.chown(home, OTHER_UID, OTHER_UID)
    with pytest.raises(LaunchError, match=rf"{home} belongs to .*uid {OTHER_UID}.* \(mode 0700\).*\n.*MHNB_HOME"):
        list_cluster_records({"MHNB_HOME": str(home)})


def test_home_in_a_world_writable_folder_is_refused(tmp_path: Path) -> None:
    """A home is refused if its parent is writable for all users and has no sticky bit."""
    parent = tmp_path / "scratch"
    parent.mkdir()
    environment = {"MHNB_HOME": str(parent / "mine")}
    parent.chmod(0o777)
    with pytest.raises(LaunchError, match=f"{parent} has mode 0777"):
        make_run_dir("a", 1, environment=environment, profile=ROOT)
    with pytest.raises(LaunchError, match=f"{parent} has mode 0777"):
        read_running_clusters(environment)
    parent.chmod(0o1777)
    assert read_running_clusters(environment) == []
    make_run_dir("a", 1, environment=environment, profile=ROOT)


def test_record_of_an_earlier_version_is_read(home: Path, make_run: Callable[[str], Path]) -> None:
    """A cluster record under the file name of earlier versions is read; if both files exist, the present name counts."""
    old, both, environment = make_run("old"), make_run("both"), {"MHNB_HOME": str(home)}
    (old / "attach.json").rename(old / "berth.json")
    (both / "berth.json").write_text("{}")
    records, faults = read_cluster_records(environment)
    assert (sorted(record.name for record in records), faults) == (["both", "old"], [])


@as_root
@pytest.mark.parametrize("what", ["folder", "cluster.json", "attach.json", "link to a folder", "link to a file"])
def test_cluster_of_another_user_is_skipped(home: Path, make_run: Callable[[str], Path], what: str) -> None:
    """A record of another user holds a key and address of that user, so it is skipped with the reason; ours is still listed."""
    make_run("mine")
    foreign_run, environment = make_run("his"), {"MHNB_HOME": str(home)}
    if what == "folder":
        give_away(foreign_run)
    elif what == "link to a folder":
        give_away(foreign_run.rename(home.parent / "elsewhere"))
        foreign_run.symlink_to(home.parent / "elsewhere")
    elif what == "link to a file":
        (foreign_run / "attach.json").rename(home.parent / "attach.json")
        os.chown(home.parent / "attach.json", OTHER_UID, OTHER_UID)
        (foreign_run / "attach.json").symlink_to(home.parent / "attach.json")
    else:
        os.chown(foreign_run / what, OTHER_UID, OTHER_UID)
    records, faults = read_cluster_records(environment)
    assert [record.name for record in records] == ["mine"]
    (fault,) = faults
    assert str(foreign_run) in fault
    assert ("symbolic link" if "link" in what else f"uid {OTHER_UID}") in fault
    assert faults[0] in describe_other_clusters(environment)


@pytest.mark.parametrize("what", ["folder", "hard link", "pipe", "file in an open folder"])
def test_record_writable_by_others_is_skipped(home: Path, make_run: Callable[[str], Path], what: str) -> None:
    """A record that other users could write is skipped, even if its owner is right."""
    make_run("mine")
    writable_run = make_run("his")
    record = writable_run / "cluster.json"
    if what == "folder":
        writable_run.chmod(0o770)
    elif what == "hard link":
        os.link(record, home.parent / "other")
    elif what == "pipe":
        record.unlink()
        os.mkfifo(record)
    else:
        writable_run.chmod(0o755)
        record.chmod(0o666)
    records, faults = list_running_clusters({"MHNB_HOME": str(home)})
    assert [each.name for each in records] == ["mine"]
    assert [str(writable_run) in fault for fault in faults] == [True]


def test_writable_record_in_private_folder_is_read(home: Path, make_run: Callable[[str], Path]) -> None:
    """A writable record in a private folder is accepted: older versions used the umask, and no other user could reach it."""
    (make_run("mine") / "cluster.json").chmod(0o664)
    assert attachable_names(home) == ["mine"]


@as_root
def test_journal_of_another_user_is_not_read(home: Path) -> None:
    """A journal of another user is not read, because its cells would run on our ranks."""
    environment = {"MHNB_HOME": str(home)}
    journal = JournalStore("a", 7, environment=environment, is_new=True)
    journal.append(b'{"kind": "cell"}\n')
    os.chown(journal.path, OTHER_UID, OTHER_UID)
    assert read_journal("a", 7, environment=environment) == b""
    with pytest.raises(PermissionError, match=f"uid {OTHER_UID}"):
        journal.read()
    with pytest.raises(LaunchError, match=f"uid {OTHER_UID}"):
        JournalStore("a", 7, environment=environment, is_new=False)
    journal.close()


def test_journal_reads_only_its_own_pushes(home: Path) -> None:
    """A journal reads only files with the names of its own pushes."""
    journal = JournalStore("a", 7, environment={"MHNB_HOME": str(home)}, is_new=True)
    (home / "key").write_bytes(b"k")
    with pytest.raises(OSError, match="not a valid name for the file of a push"):
        journal.read_parts("../key", [1])
    journal.close()


def test_symbolic_link_is_not_followed_on_write(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a log nor a record is written to the target of a symbolic link in our folder."""
    make_private_folder(home)
    (home / "target").write_text("mine")
    monkeypatch.setattr(private_files, "_write_numbers", itertools.count())
    for name in ("log", "record", f"record.{os.getpid()}.0.new"):
        (home / name).symlink_to(home / "target")
    with pytest.raises(NotPrivate, match="symbolic link"):
        open_private(home / "log", os.O_WRONLY | os.O_CREAT)
    write_private(home / "record", "new")
    assert read_private(home / "record") == b"new"
    assert (home / "target").read_text() == "mine"
    assert {path.name for path in home.iterdir()} == {"target", "log", "record"}


def test_refused_file_keeps_its_contents(home: Path) -> None:
    """A file that is refused for its hard links is not emptied before; one that is accepted is."""
    make_private_folder(home)
    (home / "mine").write_text("mine")
    (home / "log").hardlink_to(home / "mine")
    with pytest.raises(NotPrivate, match=r"has 2 names \(hard links\)"), open(home / "log", "wb", opener=open_private):
        pass
    assert (home / "mine").read_text() == "mine"
    (home / "log").unlink()
    with open(home / "mine", "wb", opener=open_private):
        pass
    assert (home / "mine").read_text() == ""


@pytest.mark.parametrize("what", ["symbolic link", "hard links", "not a regular file"])
def test_no_message_proposes_to_remove_a_file_of_others(home: Path, what: str) -> None:
    """A file that mhnb did not create is to be moved, and the line to paste does that."""
    make_private_folder(home)
    (home / "other").write_text("other")
    if what == "symbolic link":
        (home / "log").symlink_to(home / "other")
    elif what == "hard links":
        (home / "log").hardlink_to(home / "other")
    else:
        os.mkfifo(home / "log")
    with pytest.raises(NotPrivate, match=what) as raised:
        open_private(home / "log", os.O_RDWR | os.O_CREAT)
    fix = str(raised.value).partition("then move it away: ")[2]
    assert fix == f"mv {home}/log {home}/log.moved"
    subprocess.run(fix, shell=True, check=True)  # noqa: S602  # the user pastes it into a shell
    os.close(open_private(home / "log", os.O_RDWR | os.O_CREAT))


@pytest.mark.parametrize("folder", ["plugins", "plugins/profile", "plugins/profile/cell1"])
def test_profile_does_not_follow_a_planted_link(tmp_path: Path, folder: str) -> None:
    """A profile is not written through a link that another user has put into the folder of a trace."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "trace" / folder
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(NotPrivate, match=f"{folder} is a symbolic link"):
        append_to_profile(profile_path(tmp_path / "trace", "cell1", 0), b"x", is_first=True)
    assert list(elsewhere.iterdir()) == []
    link.unlink()
    append_to_profile(profile_path(tmp_path / "trace", "cell1", 0), b"x", is_first=True)
    assert (tmp_path / "trace/plugins/profile/cell1/rank0.xplane.pb").read_bytes() == b"x"


def test_flight_report_names_another_file(tmp_path: Path) -> None:
    """If the file after --json is a device or has another name, it stays, and the next step is another file."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "linked").hardlink_to(tmp_path / "mine")
    for path, reason in (
        (Path("/dev/null"), "is not a regular file"),
        (tmp_path / "linked", "has 2 names (hard links)"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            write_report(build_report("default", []), path)
        expected = f"--json {path}: it {reason}; expected a new file, or one of yours\n  Fix: --json flight.json"
        assert str(raised.value) == expected
    assert (tmp_path / "mine").read_text() == "mine"


def test_file_of_another_folder_is_not_a_record(home: Path, make_run: Callable[[str], Path]) -> None:
    """A user's own `cluster.json` in a folder of MHNB_HOME is not read, and nothing proposes to remove that folder."""
    make_run("mine")
    (home / "project").mkdir()
    (home / "project" / "cluster.json").write_text("{}")
    records, faults = list_running_clusters({"MHNB_HOME": str(home)})
    assert ([record.name for record in records], faults) == (["mine"], [])


def test_threads_may_write_one_file(home: Path) -> None:
    """When threads write one file at the same time, each write succeeds, and the file is always whole."""
    make_private_folder(home)
    texts = [letter * 10_000 for letter in "abcd"]

    def write(text: str) -> None:
        for _ in range(100):
            write_private(home / "record", text)
            assert read_private(home / "record").decode() in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert [path.name for path in home.iterdir()] == ["record"]


# -- the folder for temporary files on a host other than the notebook's


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that every user can write to, with the sticky bit."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_shared_temporary_folder_keeps_its_mode(temporary: Path) -> None:
    """The temporary folder keeps its mode: root may own it, and closing it would lock out every other user."""
    with pytest.raises(LaunchError, match=rf"{temporary} has mode 1777.*\n.*MHNB_HOME to a folder of your own"):
        make_run_dir("a", 1, environment={"MHNB_HOME": str(temporary)}, profile=ROOT)
    assert mode_of(temporary) == 0o1777


SPEC = HostSpec("tcp:127.0.0.1:1", "00", 0, 1, 1, [0], 1, "", {}, {}, "", "")


def own_folder(temporary: Path) -> Path:
    """Return the folder in which a host keeps the cluster files of this user."""
    host = re.sub(r"[^\w-]", "-", socket.gethostname())
    return temporary / f"mhnb-{os.getuid()}-{host}"


def test_open_host_folder_is_made_private(temporary: Path) -> None:
    """A folder that an older version or another tool has left open is closed, and the start continues."""
    folder = own_folder(temporary)
    folder.mkdir()
    folder.chmod(0o777)
    prepare_host(SPEC, {})
    assert mode_of(folder) == 0o700
    assert {mode_of(path) for path in folder.rglob("supervisor.json")} == {0o600}


@as_root
@pytest.mark.parametrize("what", ["folder", "link"])
def test_host_folder_of_another_user_is_refused(temporary: Path, what: str) -> None:
    """The error names the owner and the workaround, because in a sticky folder only the owner can remove it."""
    folder = own_folder(temporary)
    if what == "folder":
        folder.mkdir(mode=0o777)
        os.chown(folder, OTHER_UID, OTHER_UID)
    else:
        folder.symlink_to(temporary.parent)
    with pytest.raises(
        LaunchError, match=rf"{folder} (belongs to .*uid {OTHER_UID}|is a symbolic link)[^$]*--env TMPDIR="
    ):
        prepare_host(SPEC, {})


def test_world_writable_temporary_folder_is_refused(temporary: Path) -> None:
    """The error suggests TMPDIR only, because every user could replace the contents and MHNB_HOME would not help."""
    temporary.chmod(0o777)
    with pytest.raises(LaunchError, match=rf"{temporary} has mode 0777[^$]*--env TMPDIR=") as refused:
        prepare_host(SPEC, {})
    assert "MHNB_HOME" not in str(refused.value)


@as_root
def test_record_of_another_user_protects_no_process(temporary: Path, tmp_path: Path) -> None:
    """A record in another user's folder, with our user id in its name, does not stop `mhnb reap` from ending orphans."""
    ours = temporary / f"mhnb-{os.getuid()}-x"
    for folder, owner in ((ours, os.geteuid()), (temporary / f"mhnb-{os.getuid()}-y", OTHER_UID)):
        make_private_folder(folder / "run")
        write_private(folder / "run" / "supervisor.json", json.dumps({"pid": owner + 1, "keep": True}))
        if owner == OTHER_UID:
            give_away(folder)
    for at, text in enumerate(GARBLED):
        make_private_folder(ours / f"broken{at}")
        (ours / f"broken{at}" / "supervisor.json").write_text(text)
    assert set(_find_detachable_pids()) == {os.geteuid() + 1}
    assert os.getpid() not in {orphan.pid for orphan in find_orphans({"MHNB_HOME": str(tmp_path / "none")})}


# -- unreadable records

GARBLED: list[Any] = [
    "",
    '{"supervisor": 12',
    "\x00\xff",
    "[]",
    "null",
    "{}",
    "[" * 100_000,
    json.dumps({"name": "x", "owner": "1", "supervisor": 1, "ranks": [], "keep": True}),
    json.dumps({"name": "x", "owner": 1, "supervisor": -1, "ranks": [], "keep": True}),
    json.dumps({"name": "x", "owner": 1, "supervisor": 1, "ranks": 7, "keep": "yes"}),
]


@pytest.mark.parametrize("text", GARBLED)
def test_unreadable_run_record_is_reported_in_one_line(
    home: Path,
    make_run: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    """`mhnb list` names the unreadable file and lists the other clusters; stop, where and reap do not fail on it."""
    monkeypatch.setenv("MHNB_HOME", str(home))
    make_run("mine")
    path = make_run("broken") / "cluster.json"
    path.write_text(text)
    assert main.main(["list"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["NAME", "mine"]
    assert captured.err.startswith(f"mhnb list: left out: {path} cannot be read: ")
    assert "Traceback" not in captured.err
    assert main.main(["stop", "broken"]) == 1
    assert str(path) in capsys.readouterr().err
    assert main.main(["where", "broken"]) == 1
    assert os.getpid() not in {orphan.pid for orphan in find_orphans({"MHNB_HOME": str(home)})}


@pytest.mark.parametrize(
    "text", [*GARBLED, '{"shape": {"machines": []}}', '{"key": 7, "shape": {"machines": []}, "options": {}}']
)
def test_unreadable_cluster_record_is_reported_on_attach(
    home: Path, make_run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The error for an unreadable cluster contains the command that ends it; other clusters can still be attached to."""
    monkeypatch.setenv("MHNB_HOME", str(home))
    make_run("mine")
    path = make_run("broken") / "attach.json"
    path.write_text(text)
    assert [record.name for record in list_cluster_records({"MHNB_HOME": str(home)})] == ["mine"]
    with pytest.raises(NotStarted, match=rf"left out: {path} cannot be read.*\n.*\n.*mhnb stop broken\.{os.getpid()}"):
        manager.attach("broken")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", {"hosts": "4", "machines": []}),
        ("shape", {"machines": 7}),
        ("options", {"name": 7}),
        ("options", {"name": "../x"}),
        ("options", {"keep": "yes"}),
        ("key", "zz"),
        ("key", "00"),
        ("url", "file:/x"),
        ("generation", "1"),
        ("origin", 0),
        ("supervisors", {"a": 1}),
        ("supervisors", {"0": -1}),
        ("started_in_s", "soon"),
        ("protocol", None),
    ],
)
def test_record_with_wrong_field_type_is_skipped(
    home: Path, make_run: Callable[[str], Path], field: str, value: object
) -> None:
    """A record with a value of the wrong type is skipped, because the values reach sockets, processes and paths."""
    path = make_run("mine") / "attach.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    records, faults = read_cluster_records({"MHNB_HOME": str(home)})
    assert records == []
    assert len(faults) == 1
    assert f"`$.{field}" in faults[0] or "--name '../x'" in faults[0]


@pytest.mark.parametrize(
    "text", [*GARBLED, '{"rank": 0, "process_count": "9", "right": true, "said": "", "answer": ""}']
)
def test_unreadable_answer_is_ignored(home: Path, text: str) -> None:
    """An unreadable answer is ignored, so the progress of the lessons is still read."""
    environment = {"MHNB_HOME": str(home)}
    write_record("made", AnswerRecord(0, 2, True, "right", "1"), environment)
    (home / "lessons" / "made" / "rank1.json").write_text(text)
    assert [record.rank for record in read_records("made", environment)] == [0]


@as_root
def test_progress_of_another_user_is_refused(home: Path) -> None:
    """Answers that another user owns are refused with the fix, because an unread answer looks like one that was not given."""
    environment = {"MHNB_HOME": str(home)}
    assert '"tries": 0' in str(progress("01", as_json=True, environment=environment))
    write_record("my_label", AnswerRecord(0, 1, True, "right", "1"), environment)
    assert '"done": true' in str(progress("01", as_json=True, environment=environment))
    give_away(home)
    for read in (partial(progress, "01", as_json=True), partial(recall, "my_label")):
        with pytest.raises(InvalidRequest, match=r"belong to another user.*\n  Fix: run this as that user"):
            read(environment=environment)
