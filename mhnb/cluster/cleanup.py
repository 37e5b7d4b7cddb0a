"""Find orphaned mhnb processes and end them.

A process is an orphan if its notebook has ended and the cluster was not started with `--keep`. Only processes of this user, of
mhnb, and on this machine are considered.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mhnb.errors import LaunchError
from mhnb.launchers.local import end_supervisor
from mhnb.system.private_files import is_own_folder
from mhnb.system.processes import PROCESS_UNREADABLE
from mhnb.system.run_dir import (
    SUPERVISOR_MARK,
    SUPERVISOR_MODULES,
    RunRecord,
    has_live_notebook,
    is_abandoned_mark,
    read_running_clusters,
    read_supervisor_records,
)


@dataclass(frozen=True, slots=True)
class Orphan:
    """Orphaned supervisor with its children, or process left behind by a cell."""

    pid: int
    process_count: int
    """Number of processes, including this one."""
    reason: str
    kind: str = "supervisor"


def find_orphans(environment: Mapping[str, str]) -> list[Orphan]:
    """List the orphans of this user on this machine.

    They are supervisors whose notebook has ended, unless started with `--keep`; supervisors without a record whose parent has ended;
    and processes that cells started.
    """
    records = {record.supervisor_pid: record for record in read_running_clusters(environment)}
    detachable_pids = set(_find_detachable_pids())
    orphans = [
        _find_orphan_reason(process, records.get(process.pid), detachable_pids) for process in _find_supervisors()
    ]
    return [*filter(None, orphans), *_find_cell_processes()]


def _find_orphan_reason(
    process: psutil.Process, record: RunRecord | None, detachable_pids: Collection[int]
) -> Orphan | None:
    """Return an `Orphan` if the supervisor is one; otherwise None."""
    record = record or _read_own_record(process)
    if record is None:
        is_orphan = process.pid not in detachable_pids and _parent_pid(process) == 1
        return _make_orphan(process, "the process that started it has ended") if is_orphan else None
    if record.is_detachable or has_live_notebook(record):
        return None
    return _make_orphan(process, f"the notebook of cluster {record.name!r} (pid {record.owner_pid}) has ended")


def end_orphan(orphan: Orphan) -> None:
    """End an orphan and its children; kill what does not end."""
    end_supervisor(orphan.pid)


def _parent_pid(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except PROCESS_UNREADABLE:
        return None


def _make_orphan(process: psutil.Process, reason: str, kind: str = "supervisor") -> Orphan | None:
    try:
        return Orphan(process.pid, 1 + len(process.children(recursive=True)), reason, kind)
    except PROCESS_UNREADABLE:
        # It has just ended.
        return None


def _find_cell_processes() -> Iterator[Orphan]:
    """Yield processes that cells started and whose notebook and cluster have ended."""
    namespace, own_pids = (
        _pid_namespace(os.getpid()),
        {parent.pid for parent in psutil.Process().parents()} | {os.getpid()},
    )
    found = {}
    for process in psutil.process_iter(["uids", "status", "ppid", "name"]):
        info = process.info
        if process.pid in own_pids or not info["uids"] or info["uids"].real != os.getuid():
            continue
        if info["status"] == psutil.STATUS_ZOMBIE or _pid_namespace(process.pid) != namespace:
            # A supervisor in a container with its own pid namespace may still run, although its pid is not visible
            # here.
            continue
        if is_abandoned_mark(_read_mark(process)):
            found[process.pid] = process
    for process in found.values():
        if process.info["ppid"] not in found:
            reason = "a cell started it, and its cluster and its notebook have ended"
            if (orphan := _make_orphan(process, reason, f"{process.info['name']}, process")) is not None:
                yield orphan


def _read_mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(SUPERVISOR_MARK, "")
    except PROCESS_UNREADABLE:
        return ""


def _pid_namespace(pid: int) -> str:
    """Return a process's pid namespace, or an empty string if unknown."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _find_supervisors() -> Iterator[psutil.Process]:
    """Yield this user's supervisors, without ranks, which have the same command line."""
    own_supervisors = {}
    for process in psutil.process_iter(["pid", "ppid", "uids", "cmdline", "status"]):
        info = process.info
        alive = info["status"] != psutil.STATUS_ZOMBIE
        if (
            alive
            and info["uids"]
            and info["uids"].real == os.getuid()
            and not set(SUPERVISOR_MODULES).isdisjoint(info["cmdline"] or [])
        ):
            own_supervisors[process.pid] = process
    yield from (process for process in own_supervisors.values() if process.info["ppid"] not in own_supervisors)


def _read_own_record(process: psutil.Process) -> RunRecord | None:
    """Read a supervisor's record through its own MHNB_HOME, which may differ here."""
    try:
        records = read_running_clusters(process.environ())
    except (*PROCESS_UNREADABLE, LaunchError):
        # It has just ended, or other users can write to its folder, so its records cannot be trusted.
        return None
    return next((record for record in records if record.supervisor_pid == process.pid), None)


def _find_detachable_pids() -> Iterator[int]:
    """Yield pids of local supervisors that a remote notebook started with `--keep`."""
    for home in Path(tempfile.gettempdir()).glob(f"mhnb-{os.getuid()}-*"):
        # Any user can create a folder with that name in the temporary directory.
        # A file in it could name a process that would then never be ended.
        records = read_supervisor_records(home) if is_own_folder(home) else []
        yield from (record.pid for record in records if record.is_detachable)
