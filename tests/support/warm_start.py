"""Processes of tests are forked from one that has imported everything, which saves most of the time of a start.

The supervisors of local clusters and their ranks run the product's own code, from the line on standard input on; only the interpreter's
start and the imports are shared. What Python or a library reads once must be the same for all, so a start with other such variables is
left to the product. So is every start on another system than Linux, and the tests of starting itself.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from mhnb.core.launch.environment import rank_environment
from mhnb.launchers import child_process
from tests.support import warm_process
from tests.support.leftovers import not_left_over

__all__ = ["ForkedProcess", "WarmProcess", "cells_process", "warm_starts", "warm_supervisors"]

_READ_ONCE = ("JAX_", "LANG", "LC_", "LD_", "MHNB_HOME", "PYTHON", "TZ", "VIRTUAL_ENV")
_DEVICES = "JAX_NUM_CPU_DEVICES"
"""JAX reads it once, too, but it can be set later."""
_SUPERVISOR = ["-P", "-m", "mhnb.rank.supervisor"]


class ForkedProcess:
    """A process that is not a child of this one, with the methods of `subprocess.Popen` that its users need."""

    def __init__(self, pid: int, exit_pipe: int, stdin: IO[bytes] | None) -> None:
        self.pid, self.stdin = pid, stdin
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
                    self.returncode = int(self._exit_pipe.read() or -signal.SIGKILL)
                    self._exit_pipe.close()
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
            os.kill(self.pid, number)


class WarmProcess:
    """A process that has imported what a kind of process needs: `supervisor` or `cells`."""

    def __init__(self, kind: str, environment: Mapping[str, str]) -> None:
        self._read_once = _select_read_once(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", warm_process.__file__, str(theirs.fileno()), kind],
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

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        fds: Mapping[int, int],
        stdin: IO[bytes] | None = None,
    ) -> ForkedProcess:
        """Fork a process.

        Args:
            arguments: of its main function.
            environment: the whole environment.
            fds: the descriptors of this process that it gets, by their numbers there.
            stdin: the end of a pipe that is to be an attribute of the process; None if it has no such pipe.
        """
        request = {"arguments": arguments, "environment": dict(environment), "cwd": str(Path.cwd()), "fds": list(fds)}
        exit_read, exit_write = os.pipe()
        socket.send_fds(self._requests, [json.dumps(request).encode()], [*fds.values(), exit_write])
        os.close(exit_write)
        return ForkedProcess(int(self._requests.recv(32)), exit_read, stdin)

    def popen(self, command: Sequence[str], **options: Any) -> ForkedProcess | subprocess.Popen[bytes]:
        """Do what `subprocess.Popen` does; fork a supervisor where nothing is different from a start."""
        environment = options.get("env")
        if list(command[1:]) != _SUPERVISOR or not environment or _select_read_once(environment) != self._read_once:
            return subprocess.Popen(command, **options)
        stdin_read, stdin_write = os.pipe()
        log = options["stdout"].fileno()
        process = self.fork([], environment, {0: stdin_read, 1: log, 2: log}, os.fdopen(stdin_write, "wb"))
        os.close(stdin_read)
        return process

    def close(self) -> None:
        """End it. What it has forked and is not detached ends with it."""
        self._requests.close()
        self._process.wait()


def _select_read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE) and name != _DEVICES}


@cache
def cells_process() -> WarmProcess | None:
    """Return the process from which those of `CellProcess` are forked; None where that cannot be."""
    if sys.platform != "linux":
        return None
    warm = WarmProcess("cells", os.environ)
    atexit.register(warm.close)
    return warm


@pytest.fixture(scope="session")
def warm_supervisors(own_environment: None) -> Iterator[WarmProcess | None]:
    """The process from which the supervisors of this session's tests are forked; None where that cannot be."""
    if sys.platform != "linux":
        yield None
        return
    warm = WarmProcess("supervisor", {**os.environ, **rank_environment(os.environ, devices=None, simulated=True)})
    with not_left_over(warm.pid):
        yield warm
    warm.close()


@pytest.fixture(autouse=True)
def warm_starts(
    request: pytest.FixtureRequest, warm_supervisors: WarmProcess | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork the supervisors of the local clusters that a test starts; those of tests marked `cold_start` are started by the product."""
    if warm_supervisors is None or request.node.get_closest_marker("cold_start") is not None:
        return
    replaced = SimpleNamespace(PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    replaced.Popen = warm_supervisors.popen
    monkeypatch.setattr(child_process, "subprocess", replaced)
