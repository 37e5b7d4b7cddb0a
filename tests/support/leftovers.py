"""What a test must not leave behind: processes of its clusters, and threads that keep the interpreter alive.

A process belongs to this suite if `MHNB_HOME` in its environment is the session's own directory; ranks, hubs and
supervisors inherit it, forked ones too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

__all__ = ["keep_for_session", "kill_new", "no_leftovers", "processes_of", "wait_for_end"]

_of_the_suite: set[int] = set()
"""The processes that serve all tests of the session."""


def wait_for_end(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until processes have ended; return those that have not.

    psutil 7.2 raises a FileNotFoundError if one ends while it is looked at.
    """
    waiting = list(processes)
    while True:
        try:
            return psutil.wait_procs(waiting, timeout=timeout_s)[1]
        except FileNotFoundError:
            waiting = [process for process in waiting if process.is_running()]


def keep_for_session(pid: int) -> None:
    """Take a process for one that no test leaves behind."""
    _of_the_suite.add(pid)


def _home_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, but its parent has not waited for it yet
            return None
        return process.environ().get("MHNB_HOME")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None  # ended meanwhile, or another user's


def processes_of(home: str | Path) -> list[psutil.Process]:
    """List the running processes, other than the suite's own, whose MHNB_HOME is `home`."""
    own = {os.getpid(), *_of_the_suite}
    return [p for p in psutil.process_iter() if p.pid not in own and _home_of(p) == str(home)]


def _describe(process: psutil.Process) -> str:
    try:
        return f"pid {process.pid}: {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}: ended late"


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
        process.kill()


def kill_new(home: str | Path, before: Iterable[psutil.Process]) -> None:
    """Kill the processes of `home` that are not in `before`, so that leftovers of a failed test do not fail others."""
    known = {process.pid for process in before}
    for process in processes_of(home):
        if process.pid not in known:
            _kill(process)


def _non_daemon_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


@contextmanager
def no_leftovers(home: str | Path, *, grace_s: float = 60.0) -> Iterator[None]:
    """Assert that the block leaves no process of `home` and no thread that is not a daemon.

    Processes from before the block may stay, such as a cluster that several tests share.
    Leftovers are killed, so that one leak does not fail every later test.

    Args:
        home: the MHNB_HOME of the clusters to check.
        grace_s: how long a process or thread that is already ending may take.
    """
    processes_before, threads_before = processes_of(home), _non_daemon_threads()
    try:
        yield
    except BaseException:
        kill_new(home, processes_before)
        raise
    before = {p.pid for p in processes_before}
    new = [p for p in processes_of(home) if p.pid not in before]
    remaining = wait_for_end(new, grace_s)
    names = [_describe(process) for process in remaining]
    for process in remaining:
        _kill(process)
    threads = _non_daemon_threads() - threads_before
    for thread in threads:
        thread.join(grace_s)
    names += [f"thread {thread.name!r}" for thread in threads if thread.is_alive()]
    assert not names, "left behind:\n  " + "\n  ".join(names)
