"""Host objects for supervisors that another process of this user started and detached from."""

from __future__ import annotations

import contextlib

import psutil

from mhnb.system.processes import PROCESS_ENDED, is_running, is_stopped, kill_groups, wait_until_ended

__all__ = ["AdoptedHost", "DetachedHosts", "end_supervisor"]

_END_S = 2.0
_TERM_S = 10.0


class AdoptedHost:
    """A supervisor on this machine that is not a child of this process.

    Args:
        supervisor: its number.
        pid: id of its process, which must be running.

    Raises:
        psutil.NoSuchProcess: it is not running; one of `PROCESS_ENDED`.
    """

    def __init__(self, supervisor: int, pid: int) -> None:
        self.supervisors: tuple[int, ...] = (supervisor,)
        self.is_remote = False
        # psutil also remembers the start time, because the system could reuse the id for another process.
        self._process = psutil.Process(pid)
        self._process.create_time()
        self._released = False

    @property
    def pid(self) -> int:
        """Return the supervisor's process id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether it has ended."""
        return not self._released and not is_running(self._process)

    def explain(self) -> str:
        """Describe its end. The exit status is unknown, because it was not a child of this process."""
        return f"the supervisor of this machine (pid {self.pid}) ended"

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it has ended; kill it and its ranks if it does not."""
        if self._released:
            return
        try:
            self._process.wait(_END_S)
        except psutil.TimeoutExpired:
            kill_groups((*pids, self.pid))

    def release(self) -> None:
        """Let it outlive this process too."""
        self._released = True


class DetachedHosts:
    """Supervisors on other machines that another process detached from.

    No process on this machine represents them; they connect over the transport.

    Args:
        supervisors: their numbers.
    """

    def __init__(self, supervisors: tuple[int, ...]) -> None:
        self.supervisors = supervisors
        self.is_remote = True

    @property
    def pid(self) -> int:
        """Return 0, because there is no process here."""
        return 0

    def has_exited(self) -> bool:
        """Return False, because no process here can end. Loss is detected from missing heartbeats or a closed connection."""
        return False

    def explain(self) -> str:
        """Return a fixed text, because nothing more is known here."""
        return "hosts that another notebook has left"

    def wait(self, pids: tuple[int, ...]) -> None:
        """Do nothing: they end by the message that the transport has delivered, and nothing here can wait for it."""

    def release(self) -> None:
        """Do nothing: they live on by themselves."""


def end_supervisor(pid: int) -> None:
    """Terminate a supervisor of this machine and all its child processes; wait for them, and kill those that do not end."""
    with contextlib.suppress(*PROCESS_ENDED):
        supervisor = psutil.Process(pid)
        processes = [*supervisor.children(recursive=True), supervisor]
        supervisor.terminate()
        if is_stopped(pid):
            # A stopped process receives SIGTERM only once it is resumed.
            supervisor.resume()
        if wait_until_ended(processes, _TERM_S):
            return
        for process in filter(is_running, processes):
            with contextlib.suppress(*PROCESS_ENDED):
                process.kill()
        wait_until_ended(processes)
