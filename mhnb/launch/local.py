"""The supervisor of this machine as a child process of the notebook.

The child's standard input is the lifeline: it brings the spec, which holds the key, and its end tells the child that its owner is gone.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mhnb.core.wire.hostspec import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launch.gone import kill_groups
from mhnb.system.private import open_private

__all__ = ["LocalHost", "check_platform"]

_KILL_AFTER_S = 1.0


def check_platform(platform: str) -> None:
    """Refuse systems where ranks cannot be supervised as here.

    Raises:
        LaunchError: neither Linux nor macOS.
    """
    if platform not in ("linux", "darwin"):
        raise LaunchError(f"mhnb starts ranks on Linux and macOS; this is {platform!r}. Use WSL or a Linux machine")


class LocalHost:
    """A supervisor on this machine.

    Args:
        spec: what it shall bring up.
        environment: the whole environment of the new process.
    """

    def __init__(self, spec: HostSpec, environment: Mapping[str, str]) -> None:
        assert spec.supervisor is not None
        self.supervisors: tuple[int, ...] = (spec.supervisor,)
        self.is_remote = False
        self._forced = self._released = False
        # Before there is a process: an argument of the user's that no JSON can hold must not leave one behind.
        line = format_hostspec(spec).encode()
        self._log = Path(spec.run_dir) / "log" / f"supervisor{spec.supervisor}.log"
        self._ended = Path(spec.end_mark)
        if not sys.executable:
            raise LaunchError(
                "this process does not know its own Python (sys.executable is empty), so it cannot start another"
            )
        with open(self._log, "ab", opener=open_private) as log:
            self._process = subprocess.Popen(
                # -P: a file named random.py beside the notebook must not break the supervisor's own imports.
                [sys.executable, "-P", "-m", "mhnb.rank.host"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(environment),
                # A terminal's Ctrl-C goes to the notebook alone, which decides what it means.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            # It died at once; `explain` tells why, and the owner asks.
            return

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Whether the supervisor is gone. Nobody asks any more for one that was let go."""
        # In this order: while it is polled another thread may let it go, which writes an exit code.
        return self._process.poll() is not None and not self._released

    def explain(self) -> str:
        """Say how the supervisor ended and what it said last."""
        code = self._process.poll()
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        if code == 0:
            how = "exit code 0, as when mhnb stop ends it from a shell"
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        if not lines and code:
            lines = [
                "It printed nothing. What runs at the start of every Python may have ended it: sitecustomize, usercustomize, a .pth file."
            ]
        return f"the supervisor of this machine (pid {self.pid}) ended with {how}; log {self._log}" + "".join(
            f"\n    {x}" for x in lines
        )

    def wait(self, pids: tuple[int, ...]) -> None:
        """Wait until it has ended, and end it and its ranks by force if it does not.

        Args:
            pids: the process groups that go with it.
        """
        if self._released:
            return
        self._close_input()
        # Only once: later the numbers may be other processes'.
        if not self._ends_in_order() and not self._forced:
            self._forced = True
            kill_groups(pids)
            self._process.kill()
            self._process.wait()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        # It may have ended before it had read everything.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _ends_in_order(self) -> bool:
        """Whether it ends by itself: then it has ended its ranks, and what they had started, before.

        It says so itself. Its exit code is no evidence: where somebody else has waited for our child it is 0 in any case.
        """
        try:
            self._process.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            return False
        return self._ended.exists()

    def release(self) -> None:
        """Let it live on after this process (`keep`)."""
        # The reader's thread still runs, and must not take the exit code below for an end.
        self._released = True
        self._close_input()
        # The interpreter would warn of a child that was never waited for.
        self._process.returncode = 0
