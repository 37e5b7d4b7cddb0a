"""A local process with input from here and output to a log."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mhnb.system.private_files import open_private


class ChildProcess:
    """A child process; no method raises because it has ended.

    Args:
        command: the program and its arguments.
        log: receives its output. Appended to.
        environment: the whole environment; None for that of this process.

    Raises:
        FileNotFoundError: the program does not exist.
    """

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._stdin_lock = threading.Lock()
        with open(log, "ab", opener=open_private) as file:
            self._log_start = file.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=None if environment is None else dict(environment),
                # A terminal's Ctrl-C goes only to the notebook, which decides what it means.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def has_exited(self) -> bool:
        """Return whether it has ended, or was detached."""
        return self.code is not None

    def output(self) -> str:
        """Return everything that it wrote to the log."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def write(self, data: bytes) -> None:
        """Write to its standard input if it is open; thread-safe."""
        with self._stdin_lock, contextlib.suppress(BrokenPipeError):
            if not self._stdin.closed:
                self._stdin.write(data)
                self._stdin.flush()

    def close_input(self) -> None:
        """Close its standard input. A second call does nothing."""
        # It may have ended without reading everything.
        with self._stdin_lock, contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return False on timeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it at once, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def end(self, grace_s: float) -> None:
        """Close its standard input, wait for the grace period, then kill it."""
        self.close_input()
        if not self.wait(grace_s):
            self.kill()

    def detach(self) -> None:
        """Close its standard input, and let it outlive this process."""
        self.close_input()
        # Otherwise the interpreter would warn of a child that was never waited for.
        self._process.returncode = 0
