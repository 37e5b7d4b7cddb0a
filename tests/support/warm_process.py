"""The process behind `warm_start`: it imports what a kind of process needs, and forks one for each request.

A request is one connection. It names the command to show, the arguments, the environment and the folder, and brings the descriptors,
the last of which receives the exit code. The answer is the process id, or -1 if a variable that is read only once is not as it is here.

A request of `warm_python` comes from a process that stands for the forked one, perhaps on a simulated machine: the fork gets that
machine's namespaces, its exit code is a second answer, and signals come on the same connection. It is killed when the connection ends.
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
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_REFUSED = -1
_READ_ONCE = ("JAX_", "LANG", "LC_", "LD_", "MHNB_HOME", "PYTHON", "TZ", "VIRTUAL_ENV")
_SETTABLE = "JAX_NUM_CPU_DEVICES"
"""JAX reads it once, too, but it can be set later."""
_MOST_FDS, _HIGH_FD, _REQUEST_NBYTES, _REQUEST_S = 8, 512, 1 << 20, 10


def select_read_once(environment: Mapping[str, str], names: tuple[str, ...] = _READ_ONCE) -> dict[str, str]:
    """Return the variables that Python or a library reads once, and that nothing can change afterwards."""
    # An empty one is as good as none to Python and to JAX.
    return {
        name: value for name, value in environment.items() if value and name.startswith(names) and name != _SETTABLE
    }


def prepare_supervisor() -> Callable[[Sequence[str]], None]:
    """Import what a supervisor, its hub and its ranks need."""
    import jax
    from ipyparallel.apps.baseapp import BaseParallelApplication

    from mhnb.rank import spawn, supervisor

    spawn.preload()
    importlib.import_module("ipyparallel.controller.app")
    own = select_read_once(os.environ, ("JAX_",))

    def preload() -> None:
        # A rank goes to the folder in which this was imported, and here a supervisor by itself would import it.
        imported_in = Path.cwd()
        BaseParallelApplication.to_work_dir = lambda _: os.chdir(imported_in)
        # JAX has read its variables when it was imported. The supervisor of another machine has only now read them.
        asked = select_read_once(os.environ, ("JAX_",))
        assert asked == own, f"mark the test with cold_start, because JAX has read {own} here, not {asked}"
        if devices := os.environ.get(_SETTABLE):
            jax.config.update("jax_num_cpu_devices", int(devices))
        spawn.preload()

    def run(_: Sequence[str]) -> None:
        supervisor.preload = preload  # type: ignore[attr-defined]
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


def _reap(exit_pipes: dict[int, int | None]) -> None:
    while exit_pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = exit_pipes.pop(pid)
        if pipe is None:
            continue
        with contextlib.suppress(BrokenPipeError):  # the test has dropped its end
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def _accept(listener: socket.socket) -> tuple[dict[str, Any], list[int], socket.socket] | None:
    """Receive a request; None if the other end was killed or suspended before it sent one."""
    connection, _ = listener.accept()
    connection.settimeout(_REQUEST_S)
    try:
        data, fds, _, _ = socket.recv_fds(connection, _REQUEST_NBYTES, _MOST_FDS)
    except OSError:
        data = b""
    if not data:
        connection.close()
        return None
    connection.settimeout(None)
    return json.loads(data), fds, connection


def _enter_namespaces(process: int) -> None:
    """Enter the namespaces of another process, as root; those of processes hold for children."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("uts", "ipc", "net", "pid", "mnt"):
        theirs = f"/proc/{process}/ns/{name}"
        if Path(theirs).readlink() == Path(f"/proc/self/ns/{name}").readlink():
            continue
        with Path(theirs).open("rb") as file:
            if libc.setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {theirs}")


def _stand_by(connection: socket.socket, pid: int) -> NoReturn:
    """Pass signals on to a child, and its exit code back; kill it if the other end is gone."""
    link = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD, _HIGH_FD)
    os.closerange(3, _HIGH_FD)
    connection = socket.socket(fileno=link)
    try:
        connection.send(str(pid).encode())
        end = os.pidfd_open(pid)
        watched: list[Any] = [end, connection]
        while end not in select.select(watched, [], [])[0]:
            os.kill(pid, int(connection.recv(16) or signal.SIGKILL))
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    except OSError:
        os.kill(pid, signal.SIGKILL)
    finally:
        os._exit(0)


def _fork_elsewhere(request: dict[str, Any], fds: Sequence[int], connection: socket.socket) -> None:
    """Fork where the asking process is, and return in the new one. In a child of the warm process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    _enter_namespaces(process)
    if (pid := os.fork()) != 0:
        _stand_by(connection, pid)
    _prepare_child(request, fds)


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
    exit_pipes: dict[int, int | None] = {}
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
        if (accepted := _accept(listener)) is None:
            continue
        request, fds, connection = accepted
        stands_by = request["stands_by"]
        names = tuple(name for name in _READ_ONCE if name != "JAX_") if stands_by else _READ_ONCE
        pid = os.fork() if select_read_once(request["environment"], names) == select_read_once(own, names) else _REFUSED
        if pid == 0:
            if stands_by:
                _fork_elsewhere(request, fds, connection)
            else:
                _prepare_child(request, fds[:-1])
            run(request["arguments"])
            return
        if pid != _REFUSED:
            exit_pipes[pid] = None if stands_by else os.dup(fds[-1])
        for fd in fds:
            os.close(fd)
        with connection, contextlib.suppress(BrokenPipeError):  # the client has ended
            if not stands_by or pid == _REFUSED:
                connection.send(str(pid).encode())


if __name__ == "__main__":
    main()
