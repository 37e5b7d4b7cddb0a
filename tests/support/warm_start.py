"""Processes of tests are forked from one that has imported everything, which saves most of the time of a start.

The supervisors of local clusters and their ranks run the product's own code, from the line on standard input on; only the interpreter's
start and the imports are shared. A start whose environment differs in a variable that Python or a library reads only once is left to the
product. So is every start on another system than Linux, and the tests of starting itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from tests.support import warm_process
from tests.support.warm_python import SUPERVISOR

__all__ = ["ADDRESS", "ForkedProcess", "WarmProcess", "fork", "use_warm_supervisors", "warm_subprocess"]

ADDRESS = "MHNB_WARM_SUPERVISORS"
"""The variable with the address of the process from which supervisors are forked; programs of tests inherit it."""


class ForkedProcess:
    """A process that is not a child of this one, with the methods of `subprocess.Popen` that its users need."""

    def __init__(self, pid: int, exit_pipe: int, stdin: IO[bytes] | None) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._exit_pipe = exit_pipe
        self._lock = threading.Lock()

    def __del__(self) -> None:
        """Close the pipe; earlier, another thread may still wait for it."""
        os.close(self._exit_pipe)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return the exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._exit_pipe, select.POLLIN)
            has_ended = bool(ended.poll(None if timeout is None else timeout * 1000))
            with self._lock:
                if has_ended and self.returncode is None:
                    # Nothing is in the pipe if the process that would have written it has ended, too.
                    self.returncode = int(os.read(self._exit_pipe, 32) or -signal.SIGKILL)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its exit code is on its way
                os.kill(self.pid, number)


class WarmProcess:
    """A process that has imported what a kind of process needs: `supervisor` or `cells`. Linux only."""

    def __init__(self, kind: str, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mhnb-warm-")
        self.address = f"{self._folder.name}/s"
        lifeline, self._lifeline = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen()
            fds = listener.fileno(), lifeline
            self._process = subprocess.Popen(
                # The last word leaves room for the command lines of other processes.
                [sys.executable, "-P", warm_process.__file__, *map(str, fds), kind, "-" * 400],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=fds,
                start_new_session=True,
            )
        os.close(lifeline)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def close(self) -> None:
        """End it. Supervisors that it has forked and that are not detached end with it."""
        os.close(self._lifeline)
        self._process.wait()
        self._folder.cleanup()


def fork(
    address: str,
    command: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    fds: Mapping[int, int],
    *,
    stdin: IO[bytes] | None = None,
) -> ForkedProcess | None:
    """Fork a process from a warm one; return None if variables of its environment would have to be read anew.

    Args:
        address: of the warm process.
        command: the command line to show.
        arguments: of the main function.
        environment: the whole environment.
        fds: the descriptors of this process that it gets, by their numbers there.
        stdin: the end of a pipe that is to be an attribute of the process; None if it has no such pipe.
    """
    request = {
        "command": command,
        "arguments": arguments,
        "environment": dict(environment),
        "cwd": str(Path.cwd()),
        "fds": list(fds),
        "stands_by": False,
    }
    exit_read, exit_write = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [*fds.values(), exit_write])
        os.close(exit_write)
        pid = int(connection.recv(32))
    if pid > 0:
        return ForkedProcess(pid, exit_read, stdin)
    os.close(exit_read)
    return None


def warm_popen(command: Sequence[str], **options: Any) -> ForkedProcess | subprocess.Popen[bytes]:
    """Do what `subprocess.Popen` does, with a fork if a supervisor is to start."""
    if list(command[1:]) == SUPERVISOR:
        stdin_read, stdin_write = os.pipe()
        stdin, log = os.fdopen(stdin_write, "wb"), options["stdout"].fileno()
        fds = {0: stdin_read, 1: log, 2: log}
        process = fork(os.environ[ADDRESS], command, [], options["env"], fds, stdin=stdin)
        os.close(stdin_read)
        if process is not None:
            return process
        stdin.close()
    return subprocess.Popen(command, **options)


def use_warm_supervisors() -> None:
    """Fork the supervisors that this process starts from now on; for a program that a test runs."""
    if os.environ.get(ADDRESS):
        from mhnb.launchers import child_process

        child_process.subprocess = warm_subprocess()  # type: ignore[assignment,attr-defined]


def warm_subprocess() -> SimpleNamespace:
    """Return what replaces the module `subprocess` where supervisors are started."""
    return SimpleNamespace(PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired, Popen=warm_popen)
