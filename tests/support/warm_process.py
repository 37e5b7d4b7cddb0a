"""The process behind `warm_start`: it imports what a kind of process needs, and forks one for each request.

A request is one connection. It names the command to show, the arguments, the environment and the folder, and brings the descriptors,
the last of which receives the exit code. The answer is the process id, or -1 if a variable that is read only once is not as it is here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_REFUSED = -1
_READ_ONCE = ("JAX_", "LANG", "LC_", "LD_", "MHNB_HOME", "PYTHON", "TZ", "VIRTUAL_ENV")
_SETTABLE = "JAX_NUM_CPU_DEVICES"
"""JAX reads it once, too, but it can be set later."""
_MOST_FDS, _HIGH_FD, _REQUEST_NBYTES = 8, 512, 1 << 20


def select_read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python or a library reads once, and that nothing can change afterwards."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE) and name != _SETTABLE}


def prepare_supervisor() -> Callable[[Sequence[str]], None]:
    """Import what a supervisor, its hub and its ranks need."""
    from mhnb.rank import spawn, supervisor

    spawn.preload()
    importlib.import_module("ipyparallel.controller.app")

    def run(_: Sequence[str]) -> None:
        if devices := os.environ.get("JAX_NUM_CPU_DEVICES"):
            import jax

            # JAX has read the variable when it was imported.
            jax.config.update("jax_num_cpu_devices", int(devices))
        supervisor.main()

    return run


def prepare_cells() -> Callable[[Sequence[str]], None]:
    """Import what a rank's shell needs, without JAX."""
    sys.path.append(str(Path(__file__).parents[2]))
    cell_process = importlib.import_module("tests.support.cell_process")
    cell_process.preload()
    run: Callable[[Sequence[str]], None] = cell_process.main
    return run


_PREPARATIONS = {"supervisor": prepare_supervisor, "cells": prepare_cells}


def _prepare_child(request: dict[str, Any], fds: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    # They may have each other's numbers.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for fd in fds]
    for fd, target in zip(moved, request["fds"], strict=True):
        os.dup2(fd, target)
    kept = sorted({0, 1, 2, *request["fds"]})
    for last, following in zip(kept, [*kept[1:], 2 * _HIGH_FD], strict=True):
        os.closerange(last + 1, following)
    _set_command(request["command"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])


def _set_command(command: Sequence[str]) -> None:
    """Show a command line to other processes, which recognise a supervisor by it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[45:47])
    text = "\0".join(command).encode().ljust(end - start, b"\0")
    assert len(text) == end - start, "the warm process needs a longer command line of its own"
    ctypes.memmove(start, text, len(text))


def _reap(exit_pipes: dict[int, int]) -> None:
    while exit_pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = exit_pipes.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the test has dropped its end
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def _accept(listener: socket.socket) -> tuple[dict[str, Any], list[int], socket.socket]:
    connection, _ = listener.accept()
    data, fds, _, _ = socket.recv_fds(connection, _REQUEST_NBYTES, _MOST_FDS)
    return json.loads(data), fds, connection


def main() -> None:
    """Answer requests until the tests' process, which holds the other end of the lifeline, has ended."""
    listener, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    own = select_read_once(os.environ)
    run = _PREPARATIONS[sys.argv[3]]()
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    exit_pipes: dict[int, int] = {}
    watched: list[Any] = [listener, lifeline, wake_read]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if lifeline in ready:
            return
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(exit_pipes)
        if listener not in ready:
            continue
        request, fds, connection = _accept(listener)
        pid = os.fork() if select_read_once(request["environment"]) == own else _REFUSED
        if pid == 0:
            _prepare_child(request, fds[:-1])
            run(request["arguments"])
            return
        if pid != _REFUSED:
            exit_pipes[pid] = os.dup(fds[-1])
        for fd in fds:
            os.close(fd)
        with connection, contextlib.suppress(BrokenPipeError):  # the client has ended
            connection.send(str(pid).encode())


if __name__ == "__main__":
    main()
