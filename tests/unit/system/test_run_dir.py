"""Run directories of clusters: which ones are pruned, and what an unreadable record among them does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from traitlets.config.loader import PyFileConfigLoader

from mhnb.cluster.journal import JournalStore
from mhnb.errors import InvalidRequest, LaunchError
from mhnb.system.resources import HUB_SETTINGS, default_settings_dir
from mhnb.system.run_dir import (
    configure_hub,
    find_cwd,
    has_live_notebook,
    list_run_dirs,
    lock_as_alive,
    make_run_dir,
    prune_run_dirs,
    read_running_clusters,
    state_home,
    write_run_record,
)

OTHER_UID = 65534
UNUSED_PID = 2**22 + 1
"""A process id that Linux never assigns."""


def ended_run(home: Path, number: int) -> Path:
    """Make the directory of a cluster whose notebook has ended."""
    folder = home / f"default.{UNUSED_PID}.{number}"
    (folder / "log").mkdir(parents=True)
    (folder / "profile").mkdir()
    os.utime(folder / "profile", (number, number))
    return folder


def test_unreadable_home_names_the_variable(tmp_path: Path) -> None:
    """If the user may not read MHNB_HOME, the error names the folder, the reason and the variable."""
    home = tmp_path / "closed" / "home"
    home.mkdir(parents=True)
    home.parent.chmod(0)
    user = os.geteuid()
    if user == 0:
        # Root may read every folder.
        os.seteuid(OTHER_UID)
    try:
        for read in (list_run_dirs, read_running_clusters):
            with pytest.raises(LaunchError, match=r"Permission denied(?s:.*)Fix: set MHNB_HOME to a writable folder"):
                read({"MHNB_HOME": str(home)})
    finally:
        os.seteuid(user)
        home.parent.chmod(0o700)


def test_home_of_an_unknown_user_is_refused() -> None:
    """If MHNB_HOME names the home of an unknown user, the error names the variable."""
    with pytest.raises(
        InvalidRequest, match=r"^MHNB_HOME ~nosuchuser/x: this machine knows no home folder for ~nosuchuser"
    ):
        state_home({"MHNB_HOME": "~nosuchuser/x"})


def test_user_without_home_needs_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME, a user that the machine does not know, as in a container, must set MHNB_HOME."""

    def find_none(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", find_none)
    with pytest.raises(InvalidRequest, match=r"has no home folder(?s:.*)Fix: export MHNB_HOME=/"):
        state_home({})


def test_only_run_directories_are_pruned(tmp_path: Path) -> None:
    """Folders in MHNB_HOME that mhnb did not create are kept, however old and many they are."""
    foreign = [tmp_path / f"thesis{n}" for n in range(30)] + [tmp_path / f"backup.{UNUSED_PID}.{n}" for n in range(30)]
    for folder in foreign:
        folder.mkdir()
    runs = [ended_run(tmp_path, number) for number in range(1, 26)]
    prune_run_dirs({"MHNB_HOME": str(tmp_path)})
    assert all(folder.is_dir() for folder in foreign)
    assert [run.exists() for run in runs] == [False] * 5 + [True] * 20


def test_ended_generations_of_a_living_notebook_are_pruned(tmp_path: Path) -> None:
    """A new run leaves the logs of the last twenty runs that have ended, and the recordings of five, also if their notebook lives."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    runs = []
    for number in range(1, 26):
        run = ended_run(home, number).rename(home / f"default.{os.getpid()}.{number}")
        write_run_record(run, "default", UNUSED_PID, [], is_detachable=False)
        (run / "flight").mkdir()
        os.utime(run / "flight", (number, number))
        runs.append(run)
    starting = ended_run(home, 0).rename(home / f"default.{os.getpid()}.26")
    (tmp_path / "profile").mkdir()
    new = make_run_dir("default", 27, environment={"MHNB_HOME": str(home)}, profile=tmp_path / "profile")
    assert [run.exists() for run in runs] == [False] * 5 + [True] * 20
    assert [(run / "flight").exists() for run in runs] == [False] * 20 + [True] * 5
    assert starting.exists()
    assert new.exists()


@pytest.mark.parametrize("text", ["", '{"supervisor": 12', "\x00"])
def test_truncated_record_does_not_stop_listing(tmp_path: Path, text: str) -> None:
    """A record that a full disk has truncated does not stop starting and listing."""
    (ended_run(tmp_path, 1) / "cluster.json").write_text(text)
    prune_run_dirs({"MHNB_HOME": str(tmp_path)})
    assert read_running_clusters({"MHNB_HOME": str(tmp_path)}) == []


def test_runs_of_another_machine_are_not_pruned(tmp_path: Path) -> None:
    """Runs of another machine in a shared home are not pruned, because their process ids mean nothing on this machine."""
    environment = {"MHNB_HOME": str(tmp_path)}
    own, foreign = ended_run(tmp_path, 1), ended_run(tmp_path, 2)
    for run, machine in ((own, socket.gethostname()), (foreign, "elsewhere")):
        write_run_record(run, "a", os.getpid(), [], is_detachable=True)
        record = json.loads((run / "cluster.json").read_text())
        assert record["machine"] == socket.gethostname()
        (run / "cluster.json").write_text(json.dumps(record | {"machine": machine}))
        (run / "profile" / "security").mkdir()
        (run / "profile" / "security" / "ipcontroller-engine.json").touch()
        (run / "attach.json").touch()
        (run / "attach.json.7.0.new").touch()
        (run / "berth.json").touch()
        (run / "mpi.start").touch()
    prune_run_dirs(environment)
    assert {path.name for path in own.iterdir()} == {"cluster.json", "log", "profile"}
    assert not list((own / "profile" / "security").iterdir())
    assert (foreign / "attach.json").exists()
    assert list((foreign / "profile" / "security").iterdir())


def test_reused_process_id_is_not_a_cluster(tmp_path: Path) -> None:
    """A reused process id is not taken for the cluster's notebook or supervisor, so no other process is stopped."""
    environment, run = {"MHNB_HOME": str(tmp_path)}, ended_run(tmp_path, 1)
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "mhnb.rank.supervisor"], stdin=subprocess.PIPE, text=True
    ) as supervisor:
        write_run_record(run, "a", supervisor.pid, [], is_detachable=True)
        (record,) = read_running_clusters(environment)
        assert has_live_notebook(record)
        assert record.owner_began_s is not None
        before = {"owner_began_s": record.owner_began_s - 3600, "supervisor_began_s": 1.0}
        assert not has_live_notebook(replace(record, **before))
        body = json.loads((run / "cluster.json").read_text())
        (run / "cluster.json").write_text(json.dumps(body | before))
        assert read_running_clusters(environment) == []
        # An older version recorded the process ids alone.
        (run / "cluster.json").write_text(json.dumps({k: v for k, v in body.items() if k not in before}))
        assert [older.name for older in read_running_clusters(environment)] == ["a"]
        supervisor.communicate("\n")


def test_locked_run_is_not_pruned(tmp_path: Path) -> None:
    """A locked run is not pruned, though a container that shares the folder does not see the owner's process."""
    run = ended_run(tmp_path, 1)
    (run / "attach.json").touch()
    lock = lock_as_alive(run)
    prune_run_dirs({"MHNB_HOME": str(tmp_path)})
    assert (run / "attach.json").exists()
    os.close(lock)
    prune_run_dirs({"MHNB_HOME": str(tmp_path)})
    assert not (run / "attach.json").exists()


def test_relative_home_is_resolved_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative MHNB_HOME is resolved at the start, because the notebook may change its folder later."""
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "profile"
    profile.mkdir()
    run_dir = make_run_dir("a", 1, environment={"MHNB_HOME": "here"}, profile=profile)
    assert run_dir == tmp_path / "here" / f"a.{os.getpid()}.1"


def test_files_of_a_profile_replace_the_defaults(tmp_path: Path) -> None:
    """A run has the settings files of its profile, and the defaults for those that the profile has not; nothing else of it."""
    profile = tmp_path / "profile"
    (profile / "security").mkdir(parents=True)
    (profile / "security" / "ipcontroller-client.json").touch()
    (profile / "ipengine_config.py").write_text("mine = True\n")
    run_dir = make_run_dir("a", 1, environment={"MHNB_HOME": str(tmp_path / "home")}, profile=profile)
    found = {path.name: path.read_text() for path in (run_dir / "profile").glob("*.py")}
    default = (default_settings_dir() / HUB_SETTINGS).read_text()
    assert found == {HUB_SETTINGS: default, "ipengine_config.py": "mine = True\n"}
    assert not list((run_dir / "profile" / "security").iterdir())
    configure_hub(run_dir, "10.0.0.1", encrypt=True)
    hub = PyFileConfigLoader(HUB_SETTINGS, path=str(run_dir / "profile")).load_config().IPController
    assert (hub.ip, hub.enable_curve, hub.use_threads) == ("10.0.0.1", True, True)


def test_removed_working_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a removed working directory says so, because the ranks run in the notebook's folder."""
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(LaunchError, match="no longer exists"):
        find_cwd()


def test_unusable_home_is_reported(tmp_path: Path) -> None:
    """The error for an unusable home contains the folder, the reason and MHNB_HOME, for both run directories and journals."""
    environment = {"MHNB_HOME": str(tmp_path / "file" / "below")}
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"file/below: .*Not a directory.*\n.*MHNB_HOME"):
        make_run_dir("a", 1, environment=environment, profile=tmp_path)
    with pytest.raises(LaunchError, match="MHNB_HOME"):
        JournalStore("a", 7, environment=environment, is_new=True)


_READ_HOME = """
import os, sys
from mhnb.system.run_dir import prune_run_dirs, read_running_clusters
if os.geteuid() == 0:
    # Who may enter everything becomes somebody who may not.
    os.setgroups([])
    os.setuid(65534)
for look in (read_running_clusters, prune_run_dirs):
    try:
        look({"MHNB_HOME": sys.argv[1]})
    except Exception as error:
        print(type(error).__name__, "set MHNB_HOME" in str(error))
"""


def test_inaccessible_home_is_reported(tmp_path: Path) -> None:
    """A home that the user may not enter gives a LaunchError that suggests MHNB_HOME, even when clusters are only listed."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = [sys.executable, "-c", _READ_HOME, str(closed / "home")]
    assert subprocess.check_output(command, text=True) == "LaunchError True\nLaunchError True\n"
