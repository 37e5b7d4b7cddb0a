"""The directory of one running cluster: logs, and an IPython profile made from the packaged one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_state_path

from mhnb.errors import InvalidRequest, LaunchError
from mhnb.system.processes import UNSEEN, find_began_s, is_still

__all__ = [
    "check_name",
    "configure_hub",
    "find_cwd",
    "find_named",
    "full_name",
    "is_held",
    "is_owned",
    "make_run_dir",
    "mark_alive",
    "place_of",
    "prune_run_dirs",
    "read_owners",
    "read_where",
    "remove_keys",
    "state_home",
    "usable_home",
    "write_owner",
    "write_where",
]

_KEPT_RUNS = 20
_LONGEST_NAME = 150
"""In bytes: the names of files have more to hold, and no file system takes more than 255."""
_KEYS = ("berth.json*", "mpi.start", "profile/security/*.json")
"""Files of a run directory that hold a key: of the link in the first two, of the hub in the others."""
_ALIVE = "alive"
_RUN_NAME = re.compile(r"[\w-]+\.\d+\.\d+")


def state_home(environment: Mapping[str, str]) -> Path:
    """Give the folder that holds what clusters leave on disk: MHNB_HOME, or the system's place for a user's state."""
    chosen = environment.get("MHNB_HOME")
    # Absolute: the notebook may change its folder while the cluster runs.
    return Path(chosen).expanduser().absolute() if chosen else user_state_path("mhnb")


@contextlib.contextmanager
def usable_home(environment: Mapping[str, str]) -> Iterator[None]:
    """Say of what fails in here that the folder of `state_home` is why, and what to do about it.

    Raises:
        LaunchError: something could not be made there.
    """
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"{state_home(environment)}: here mhnb keeps the journal and the logs of a cluster, and cannot: {error}\n"
            "  set MHNB_HOME to a folder that you can write to and that has room, then start again"
        ) from error


def find_cwd() -> str:
    """Give the folder of this process, where the ranks are to run too.

    Raises:
        LaunchError: it was removed.
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise LaunchError("the folder of this process was removed; go to another one first: %cd ~") from error


def check_name(name: str) -> str:
    """Return a cluster's name.

    Raises:
        InvalidRequest: it is no plain word.
    """
    given: object = name
    if not isinstance(given, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"--name {name!r}: use letters, digits, - and _ only")
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidRequest(
            f"--name {name[:20]}…: {len(name)} characters are too long for a file name; use fewer than {_LONGEST_NAME}"
        )
    return name


def make_run_dir(name: str, generation: int, *, environment: Mapping[str, str], profile: Path) -> Path:
    """Make the directory, readable by its owner alone.

    Args:
        name: the cluster's name, a plain word.
        generation: number of the start.
        environment: MHNB_HOME in it chooses another place.
        profile: the IPython profile directory to start from.

    Raises:
        InvalidRequest: a name that is no plain word.
        LaunchError: it cannot be made.
    """
    check_name(name)
    run_dir = state_home(environment) / f"{name}.{os.getpid()}.{generation}"
    # Its settings alone: a profile in use has a history, logs, and connection files of other hubs.
    settings = {path.name: path.read_bytes() for path in profile.glob("*_config.py")}
    with usable_home(environment):
        if run_dir.exists():
            shutil.rmtree(run_dir)
        (run_dir / "log").mkdir(parents=True, mode=0o700)
        (run_dir / "profile").mkdir(mode=0o700)
        for file, text in settings.items():
            (run_dir / "profile" / file).write_bytes(text)
        run_dir.chmod(0o700)
    return run_dir


def configure_hub(run_dir: Path, address: str, *, encrypt: bool) -> None:
    """Have the hub listen on the one address that the hosts of other machines reach, and encrypt what it says there.

    The lines are added to the run's own copy of the profile, where they can be read.
    """
    lines = [
        "",
        "# Hosts on other machines: added by this start.",
        f"c.IPController.ip = {address!r}",
        f"c.IPController.location = {address!r}",
        f"c.IPController.enable_curve = {encrypt!r}",
    ]
    with (run_dir / "profile" / "ipcontroller_config.py").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def prune_run_dirs(environment: Mapping[str, str]) -> None:
    """Remove the oldest directories of notebooks that are gone; the last ones stay, for their logs."""
    home = state_home(environment)
    with usable_home(environment):
        if not home.is_dir():
            return
        ended = [path for path in home.iterdir() if _is_run_dir(path) and _is_of_here(path) and not _owner_lives(path)]
    for path in ended:
        # What was killed, or lost its power, has left its own.
        remove_keys(path)
    for path in sorted(ended, key=_changed_at)[:-_KEPT_RUNS]:
        # Another notebook that starts at this moment may be removing the same.
        shutil.rmtree(path, ignore_errors=True)


def remove_keys(run_dir: Path) -> None:
    """Remove the keys of a cluster that has ended; its logs stay."""
    # Another process may be removing the whole directory.
    with contextlib.suppress(FileNotFoundError):
        for pattern in _KEYS:
            for path in run_dir.glob(pattern):
                path.unlink(missing_ok=True)


def _is_run_dir(path: Path) -> bool:
    """Whether a directory is one of ours: MHNB_HOME may be a place where the user keeps other things."""
    return _RUN_NAME.fullmatch(path.name) is not None and (path / "log").is_dir() and (path / "profile").is_dir()


def _is_of_here(path: Path) -> bool:
    """Whether its processes are of this machine: a home may be shared, and the numbers of processes mean something on one only."""
    record = _read_owner(path / "cluster.json") or {}
    return bool(record.get("machine", socket.gethostname()) == socket.gethostname())


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def mark_alive(run_dir: Path) -> int:
    """Mark a directory as in use for as long as this process, or one that it has forked, has the descriptor open.

    The number in its name says nothing in a container that has this folder too, and other numbers.
    """
    fd = os.open(run_dir / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def is_held(file: Path) -> bool:
    """Whether a process, in whatever container or on whatever machine, has a lock on a file; false where there is none."""
    try:
        # For writing too: some disks lock no other way.
        with file.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # It is not there, or its disk knows no locks: the number in a name has to do.
        return False
    return False


def _owner_lives(path: Path) -> bool:
    if is_held(path / _ALIVE):
        return True
    record = _read_owner(path / "cluster.json")
    if record is not None and _is_supervised(record):
        return True
    return psutil.pid_exists(int(path.name.split(".")[1]))


def write_owner(
    run_dir: Path, name: str, supervisor_pid: int, rank_pids: Sequence[int | None], *, keep: bool, place: str = ""
) -> None:
    """Note who runs here and where, so that a shell can list and stop it."""
    record = {
        "name": name,
        "machine": socket.gethostname(),
        "owner": os.getpid(),
        "owner_began_s": find_began_s(os.getpid()),
        "supervisor": supervisor_pid,
        "supervisor_began_s": find_began_s(supervisor_pid),
        "ranks": list(rank_pids),
        "keep": keep,
        "place": place,
    }
    _write_at_once(run_dir / "cluster.json", json.dumps(record))


def write_where(run_dir: Path, text: str | None) -> None:
    """Keep the hang card where a shell finds it; None removes it."""
    if text is None:
        (run_dir / "where.txt").unlink(missing_ok=True)
    else:
        _write_at_once(run_dir / "where.txt", text)


def read_where(record: Mapping[str, Any]) -> str | None:
    """Read the hang card of a cluster that `read_owners` found; None when no cell has run for long enough, or its notebook is gone."""
    if not is_owned(record):
        return None
    try:
        return (Path(record["run_dir"]) / "where.txt").read_text()
    except FileNotFoundError:
        return None


def _write_at_once(path: Path, text: str) -> None:
    """Write in one step: others read it at any time."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def _read_owner(path: Path) -> dict[str, Any] | None:
    """Read the note; None where there is none, or one that a full disk has cut short."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record | {"run_dir": str(path.parent)}


def read_owners(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """List the clusters of this user on this machine whose supervisor lives.

    Raises:
        LaunchError: the place where they are noted may not be read.
    """
    with usable_home(environment):
        found = sorted(state_home(environment).glob("*/cluster.json"))
        records = [_read_owner(path) for path in found if _is_of_here(path.parent)]
    return [record for record in records if record is not None and _is_supervised(record)]


def full_name(record: Mapping[str, Any]) -> str:
    """Name a cluster that `read_owners` found where another of the same name runs too: as `%mhjax attach` does.

    >>> full_name({"run_dir": "/state/kept.317.2.1"})
    'kept.317.2'
    """
    return Path(record["run_dir"]).name.rpartition(".")[0]


def find_named(environment: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    """Find the clusters of this user on this machine that have this name, or this full one."""
    return [record for record in read_owners(environment) if name in (record["name"], full_name(record))]


def place_of(record: Mapping[str, Any]) -> str:
    """Say where the ranks of a cluster are, which `read_owners` found; empty where an older mhnb has started it.

    >>> place_of({"place": "2 hosts (a, b), profile ssh"})
    'on 2 hosts (a, b), profile ssh  '
    """
    return f"on {place}  " if (place := record.get("place")) else ""


def is_owned(record: Mapping[str, Any]) -> bool:
    """Whether the notebook of a cluster that `read_owners` found lives."""
    return is_still(record["owner"], record.get("owner_began_s"))


def _is_supervised(record: Mapping[str, Any]) -> bool:
    pid = record["supervisor"]
    try:
        # An older mhnb has noted the number alone: what runs there now is at least a supervisor.
        return is_still(pid, record.get("supervisor_began_s")) and "mhnb.rank.host" in psutil.Process(pid).cmdline()
    except UNSEEN:
        return False
