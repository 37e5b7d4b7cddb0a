"""`mhnb reap`: find orphaned mhnb processes and end them.

A process is an orphan if its notebook has ended and the cluster was not started with `--keep`. Only processes of this user, of
mhnb, and on this machine are considered.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mhnb.errors import LaunchError
from mhnb.launch.attached import end_supervisor
from mhnb.system.private import is_own_folder, read_private
from mhnb.system.processes import UNSEEN
from mhnb.system.rundir import SUPERVISOR_MARK, is_left, is_owned, read_owners

__all__ = ["Stray", "end_stray", "find_strays"]

_MARK = "mhnb.rank.host"


@dataclass(frozen=True, slots=True)
class Stray:
    """An orphaned supervisor with its child processes, or a process that a cell started and whose supervisor has ended."""

    pid: int
    processes: int
    """Number of processes, including this one."""
    why: str
    what: str = "supervisor"


def find_strays(environment: Mapping[str, str]) -> list[Stray]:
    """List the orphans of this user on this machine.

    They are supervisors whose notebook has ended, unless started with `--keep`; supervisors without a record whose parent has ended;
    and processes that cells started.
    """
    records = {record["supervisor"]: record for record in read_owners(environment)}
    kept = set(_kept_elsewhere())
    judged = [_judge(process, records.get(process.pid), kept) for process in _supervisors()]
    return [*filter(None, judged), *_find_leavings()]


def _judge(process: psutil.Process, record: Mapping[str, Any] | None, kept: Collection[int]) -> Stray | None:
    """Decide whether a supervisor is an orphan, and why; None if it is not, or if it has ended in the meantime."""
    record = record or _record_of_its_own(process)
    if record is None:
        is_orphan = process.pid not in kept and _find_parent(process) == 1
        return _stray(process, "the process that started it has ended") if is_orphan else None
    if record["keep"] or is_owned(record):
        return None
    return _stray(process, f"the notebook of cluster {record['name']!r} (pid {record['owner']}) is gone")


def end_stray(stray: Stray) -> None:
    """End a supervisor with its children, or a process that a cell started. Kill it if it does not end."""
    end_supervisor(stray.pid)


def _find_parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except UNSEEN:
        return None


def _stray(process: psutil.Process, why: str, what: str = "supervisor") -> Stray | None:
    try:
        return Stray(process.pid, 1 + len(process.children(recursive=True)), why, what)
    except UNSEEN:
        # It has just ended.
        return None


def _find_leavings() -> Iterator[Stray]:
    """Yield processes that cells started, in any session, if the notebook, the supervisor and all ranks have ended."""
    space, here = _pid_space(os.getpid()), {parent.pid for parent in psutil.Process().parents()} | {os.getpid()}
    found = {}
    for process in psutil.process_iter(["uids", "status", "ppid", "name"]):
        info = process.info
        if process.pid in here or not info["uids"] or info["uids"].real != os.getuid():
            continue
        if info["status"] == psutil.STATUS_ZOMBIE or _pid_space(process.pid) != space:
            # A supervisor in a container with its own pid namespace may still run, although its pid is not visible
            # here.
            continue
        if is_left(_read_mark(process)):
            found[process.pid] = process
    for process in found.values():
        if process.info["ppid"] not in found:
            why = "a cell started it, and both its cluster and its notebook are gone"
            if (stray := _stray(process, why, f"{process.info['name']}, process")) is not None:
                yield stray


def _read_mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(SUPERVISOR_MARK, "")
    except UNSEEN:
        return ""


def _pid_space(pid: int) -> str:
    """Return the pid namespace of a process; an empty string if the system has no namespaces or does not show it."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _supervisors() -> Iterator[psutil.Process]:
    """Yield this user's supervisor processes. Ranks have the same command line, so children of a supervisor are excluded."""
    mine = {}
    for process in psutil.process_iter(["pid", "ppid", "uids", "cmdline", "status"]):
        info = process.info
        alive = info["status"] != psutil.STATUS_ZOMBIE
        if alive and info["uids"] and info["uids"].real == os.getuid() and _MARK in (info["cmdline"] or []):
            mine[process.pid] = process
    yield from (process for process in mine.values() if process.info["ppid"] not in mine)


def _record_of_its_own(process: psutil.Process) -> dict[str, Any] | None:
    """Read a supervisor's record through its environment, because its MHNB_HOME may not be that of this shell."""
    try:
        known = read_owners(process.environ())
    except (*UNSEEN, LaunchError):
        # It has just ended, or other users can write to its folder, so its records cannot be trusted.
        return None
    return next((record for record in known if record["supervisor"] == process.pid), None)


def _kept_elsewhere() -> Iterator[int]:
    """Yield the pids of supervisors on this machine that a notebook on another machine started with `--keep`."""
    for home in Path(tempfile.gettempdir()).glob(f"mhnb-{os.getuid()}-*"):
        # Any user can create a folder with that name in the temporary directory.
        # A file in it could name a process that would then never be ended.
        for path in home.glob("*/supervisor.json") if is_own_folder(home) else ():
            match _read_note(path):
                case {"pid": int(pid), "keep": True}:
                    yield pid


def _read_note(path: Path) -> Any:
    try:
        return json.loads(read_private(path))
    except (OSError, ValueError, RecursionError):
        # It was just removed or is being written, or it belongs to another user.
        return None
