"""Find the processes of mhnb that nobody drives and nobody kept, and end them. Only this user's, only ours, only on this machine."""

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
    """A supervisor that was left, with the processes that it holds; or what a cell has started, where its supervisor is gone."""

    pid: int
    processes: int
    """Itself included."""
    why: str
    what: str = "supervisor"


def find_strays(environment: Mapping[str, str]) -> list[Stray]:
    """List supervisors whose notebook is gone and who were not told to outlive it, or whom no record knows and who are orphans."""
    records = {record["supervisor"]: record for record in read_owners(environment)}
    kept = set(_kept_elsewhere())
    judged = [_judge(process, records.get(process.pid), kept) for process in _supervisors()]
    return [*filter(None, judged), *_find_leavings()]


def _judge(process: psutil.Process, record: Mapping[str, Any] | None, kept: Collection[int]) -> Stray | None:
    """Say whether a supervisor was left, and why; None also for one that has ended meanwhile."""
    record = record or _record_of_its_own(process)
    if record is None:
        is_orphan = process.pid not in kept and _find_parent(process) == 1
        return _stray(process, "the process that started it has ended") if is_orphan else None
    if record["keep"] or is_owned(record):
        return None
    return _stray(process, f"the notebook of cluster {record['name']!r} (pid {record['owner']}) is gone")


def end_stray(stray: Stray) -> None:
    """End a supervisor, which ends what it holds, or what a cell has started. By force if it does not end."""
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
        # It has ended in this moment.
        return None


def _find_leavings() -> Iterator[Stray]:
    """Yield what cells have started, also in sessions of their own, where neither the notebook nor the supervisor nor a rank is left."""
    space, here = _pid_space(os.getpid()), {parent.pid for parent in psutil.Process().parents()} | {os.getpid()}
    found = {}
    for process in psutil.process_iter(["uids", "status", "ppid", "name"]):
        info = process.info
        if process.pid in here or not info["uids"] or info["uids"].real != os.getuid():
            continue
        if info["status"] == psutil.STATUS_ZOMBIE or _pid_space(process.pid) != space:
            # In a container with numbers of its own a supervisor may live that is not seen under its number here.
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
    """Name the space in which a process has its number; empty where the system has one only, or does not show it."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _supervisors() -> Iterator[psutil.Process]:
    """Processes of this user that run our supervisor, and are not forked from one: ranks look the same."""
    mine = {}
    for process in psutil.process_iter(["pid", "ppid", "uids", "cmdline", "status"]):
        info = process.info
        alive = info["status"] != psutil.STATUS_ZOMBIE
        if alive and info["uids"] and info["uids"].real == os.getuid() and _MARK in (info["cmdline"] or []):
            mine[process.pid] = process
    yield from (process for process in mine.values() if process.info["ppid"] not in mine)


def _record_of_its_own(process: psutil.Process) -> dict[str, Any] | None:
    """Read the record of a supervisor that was started with another MHNB_HOME than this shell has: its environment says which."""
    try:
        known = read_owners(process.environ())
    except (*UNSEEN, LaunchError):
        # It has ended in this moment, or others can write where it is noted: such a note says nothing.
        return None
    return next((record for record in known if record["supervisor"] == process.pid), None)


def _kept_elsewhere() -> Iterator[int]:
    """Supervisors here that a notebook on another machine has told to outlive it."""
    for home in Path(tempfile.gettempdir()).glob(f"mhnb-{os.getuid()}-*"):
        # Anybody can make a folder of that name there, and name a process that is then never ended.
        for path in home.glob("*/supervisor.json") if is_own_folder(home) else ():
            match _read_note(path):
                case {"pid": int(pid), "keep": True}:
                    yield pid


def _read_note(path: Path) -> Any:
    try:
        return json.loads(read_private(path))
    except (OSError, ValueError, RecursionError):
        # Removed, or being written, in this moment; or another user's.
        return None
