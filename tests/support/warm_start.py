"""Clusters of tests start from one process that has imported everything, which saves most of the time of a start.

Supervisors and ranks run the product's own code, from the line on standard input on; only the interpreter's start and the imports are
shared. What Python or a library reads once must be the same for all, so a start with other such variables is left to the product.
So is every start on another system than Linux, and the tests of starting itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.core.launch.environment import rank_environment
from mhnb.launchers import child_process
from tests.support import warm_process
from tests.support.leftovers import not_left_over

__all__ = ["warm_process_of_session", "warm_starts"]

_READ_ONCE = ("JAX_", "LANG", "LC_", "LD_", "MHNB_HOME", "PYTHON", "TZ", "VIRTUAL_ENV")
_DEVICES = "JAX_NUM_CPU_DEVICES"
"""JAX reads it once, too, but it can be set later."""
_SUPERVISOR = ["-P", "-m", "mhnb.rank.supervisor"]


def _select_read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE) and name != _DEVICES}


class ForkedProcess:
    """A supervisor that is not a child of this process, with the methods of `subprocess.Popen` that a launcher uses."""

    def __init__(self, pid: int, stdin: int, exit_pipe: int) -> None:
        self.pid, self.stdin = pid, os.fdopen(stdin, "wb")
        self.returncode: int | None = None
        self._exit_pipe = os.fdopen(exit_pipe, "rb")
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return the exit code."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(_SUPERVISOR, timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._exit_pipe, select.POLLIN)
            has_ended = bool(ended.poll(None if timeout is None else timeout * 1000))
            with self._lock:
                if has_ended and self.returncode is None:
                    # Nothing is in the pipe if the process that would have written it has ended, too.
                    self.returncode = int(self._exit_pipe.read() or -signal.SIGKILL)
                    self._exit_pipe.close()
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class WarmProcess:
    """The process that has imported everything; `popen` forks a supervisor from it where that is the same as a start."""

    def __init__(self) -> None:
        environment = {**os.environ, **rank_environment(os.environ, devices=None, simulated=True)}
        self._read_once = _select_read_once(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", warm_process.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def popen(self, command: Sequence[str], **options: Any) -> ForkedProcess | subprocess.Popen[bytes]:
        """Do what `subprocess.Popen` does."""
        environment = options.get("env")
        if list(command[1:]) != _SUPERVISOR or not environment or _select_read_once(environment) != self._read_once:
            return subprocess.Popen(command, **options)
        request = json.dumps({"cwd": str(Path.cwd()), "environment": environment}).encode()
        stdin_read, stdin_write = os.pipe()
        exit_read, exit_write = os.pipe()
        socket.send_fds(self._requests, [request], [stdin_read, options["stdout"].fileno(), exit_write])
        os.close(stdin_read)
        os.close(exit_write)
        return ForkedProcess(int(self._requests.recv(32)), stdin_write, exit_read)

    def close(self) -> None:
        """End it. What it has forked and is not detached ends with it."""
        self._requests.close()
        self._process.wait()


@pytest.fixture(scope="session")
def warm_process_of_session(own_environment: None) -> Iterator[WarmProcess | None]:
    """The process from which the supervisors of this session's tests are forked; None where that cannot be."""
    if sys.platform != "linux":
        yield None
        return
    warm = WarmProcess()
    with not_left_over(warm.pid):
        yield warm
    warm.close()


@pytest.fixture(autouse=True)
def warm_starts(
    request: pytest.FixtureRequest, warm_process_of_session: WarmProcess | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork the supervisors of the local clusters that a test starts; those of tests marked `cold_start` are started by the product."""
    if warm_process_of_session is None or request.node.get_closest_marker("cold_start") is not None:
        return
    replaced = SimpleNamespace(PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    replaced.Popen = warm_process_of_session.popen
    monkeypatch.setattr(child_process, "subprocess", replaced)
