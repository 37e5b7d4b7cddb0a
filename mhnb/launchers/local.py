"""Supervisors on this machine, and those that another process started.

A child reads the spec, which holds the key, from standard input. The end of that input means that its owner has ended.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from mhnb.core.messages import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launchers.child_process import ChildProcess
from mhnb.system.processes import PROCESS_ENDED, is_running, is_stopped, kill_groups, wait_until_ended

_KILL_AFTER_S = 1.0


def check_platform(platform: str) -> None:
    """Raise on systems where ranks cannot be supervised in this way.

    Raises:
        LaunchError: neither Linux nor macOS.
    """
    if platform not in ("linux", "darwin"):
        raise LaunchError(
            f"mhnb starts ranks on Linux and macOS only, and this is {platform!r}. Use WSL or a Linux machine"
        )


class LocalHost:
    """A supervisor on this machine.

    Args:
        spec: the ranks to start.
        environment: the whole environment of the new process.
    """

    def __init__(self, spec: HostSpec, environment: Mapping[str, str]) -> None:
        assert spec.supervisor is not None
        self.supervisors: tuple[int, ...] = (spec.supervisor,)
        self.is_remote = False
        self._was_killed = self._released = False
        # Formatted before the process starts: a user's argument that JSON cannot encode must not leave a process
        # behind.
        line = format_hostspec(spec).encode()
        self._log = Path(spec.run_dir) / "log" / f"supervisor{spec.supervisor}.log"
        self._end_marker = Path(spec.ended_path)
        if not sys.executable:
            raise LaunchError(
                "mhnb cannot start a process, because it does not know this Python's path (sys.executable is empty)"
            )
        # -P: a file named random.py beside the notebook must not break the supervisor's own imports.
        command = [sys.executable, "-P", "-m", "mhnb.rank.supervisor"]
        self._process = ChildProcess(command, log=self._log, environment=environment)
        # If it died at once, the owner polls, and `explain` describes why.
        self._process.write(line)

    @property
    def pid(self) -> int:
        """Return the supervisor's process id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether the supervisor has ended; False once it was released."""
        # The order matters: during the check, another thread may release the process, which sets an exit code.
        return self._process.has_exited() and not self._released

    def explain(self) -> str:
        """Describe how the supervisor ended, with its last output."""
        code = self._process.code
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        if code == 0:
            how = "exit code 0, as after `mhnb stop` in a shell"
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        if not lines and code:
            lines = [
                "It printed nothing. A file that Python runs at its start may have ended it: sitecustomize, usercustomize or a .pth file."
            ]
        return f"the supervisor of this machine (pid {self.pid}) ended with {how}; log {self._log}" + "".join(
            f"\n    {x}" for x in lines
        )

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it has ended; otherwise kill it and its ranks.

        Args:
            pids: the process groups of its ranks.
        """
        if self._released:
            return
        self._process.close_input()
        # Only once: later the ids may belong to other processes.
        if not self._ends_by_itself() and not self._was_killed:
            self._was_killed = True
            kill_groups(pids)
            self._process.kill()

    def _ends_by_itself(self) -> bool:
        """Return whether it ends by itself within the time limit.

        A file confirms that the supervisor has ended its ranks and their processes. Its exit code is no evidence: if
        other code has waited for this child, it is always 0.
        """
        return self._process.wait(_KILL_AFTER_S) and self._end_marker.exists()

    def release(self) -> None:
        """Release it, so that it outlives this process (`keep`)."""
        # First: the event-loop thread still polls this object, and must not mistake the detached process for an ended one.
        self._released = True
        self._process.detach()


# -- hosts started by another process


_END_S = 2.0
_TERM_S = 10.0


class AdoptedHost:
    """A supervisor on this machine, not a child of this process.

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
        """Describe its end; only a child has a known exit status."""
        return f"the supervisor of this machine (pid {self.pid}) ended"

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it has ended; otherwise kill it and its ranks."""
        if self._released:
            return
        try:
            self._process.wait(_END_S)
        except psutil.TimeoutExpired:
            kill_groups((*pids, self.pid))

    def release(self) -> None:
        """Release it, so that it outlives this process too."""
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
        """Return False; only heartbeats and the connection show a loss."""
        return False

    def explain(self) -> str:
        """Return a fixed text, because nothing more is known here."""
        return "hosts from which another notebook detached"

    def wait(self, pids: tuple[int, ...]) -> None:
        """Do nothing: a message over the transport ends them."""

    def release(self) -> None:
        """Do nothing: they live on by themselves."""


def end_supervisor(pid: int) -> None:
    """Terminate a local supervisor, then kill what remains of its process tree."""
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
