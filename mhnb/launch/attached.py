"""A supervisor that another process of this user has started, and left."""

from __future__ import annotations

import contextlib

import psutil

from mhnb.launch.gone import await_gone, kill_groups, lives
from mhnb.system.processes import GONE, is_halted

__all__ = ["AttachedHost", "LeftHosts", "end_supervisor"]

_END_S = 2.0
_TERM_S = 10.0


class AttachedHost:
    """A supervisor on this machine that is nobody's child any more.

    Args:
        supervisor: its number.
        pid: of its process, which lives.

    Raises:
        psutil.NoSuchProcess: it does not; one of `GONE`.
    """

    def __init__(self, supervisor: int, pid: int) -> None:
        self.supervisors: tuple[int, ...] = (supervisor,)
        self.is_remote = False
        # Knows its start time too: the number could be given to another process.
        self._process = psutil.Process(pid)
        self._process.create_time()
        self._released = False

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Whether it is gone."""
        return not self._released and not lives(self._process)

    def explain(self) -> str:
        """Say how it ended: nobody was left to be told."""
        return f"the supervisor of this machine (pid {self.pid}) ended"

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it has ended, and end it and its ranks by force if it does not."""
        if self._released:
            return
        try:
            self._process.wait(_END_S)
        except psutil.TimeoutExpired:
            kill_groups((*pids, self.pid))

    def release(self) -> None:
        """Let it live on after this process too."""
        self._released = True


class LeftHosts:
    """Supervisors on other machines that another process has left: no process here stands for them; they come to the link.

    Args:
        supervisors: their numbers.
    """

    def __init__(self, supervisors: tuple[int, ...]) -> None:
        self.supervisors = supervisors
        self.is_remote = True

    @property
    def pid(self) -> int:
        """There is none here."""
        return 0

    def has_exited(self) -> bool:
        """Never known here: their silence, or the end of their connection, tells."""
        return False

    def explain(self) -> str:
        """Nothing is known here."""
        return "hosts that another notebook has left"

    def wait(self, pids: tuple[int, ...]) -> None:
        """They end by the message that the link has brought them; nothing here can wait for it."""

    def release(self) -> None:
        """They live on by themselves."""


def end_supervisor(pid: int) -> None:
    """Tell a supervisor of this machine to end, and with it what it holds; wait for all of it, and kill what does not end."""
    with contextlib.suppress(*GONE):
        supervisor = psutil.Process(pid)
        held = [*supervisor.children(recursive=True), supervisor]
        supervisor.terminate()
        if is_halted(pid):
            # It would hear of that only once it goes on.
            supervisor.resume()
        if await_gone(held, _TERM_S):
            return
        for process in filter(lives, held):
            with contextlib.suppress(*GONE):
                process.kill()
        await_gone(held)
