"""The process behind `warm_start`: it imports what a supervisor and its ranks need, and forks one for each request.

A request has three descriptors: standard input, the log, and a pipe that receives the exit code. The answer is the process id.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from mhnb.rank import supervisor
from mhnb.rank.spawn import preload

_REQUEST_NBYTES = 1 << 20
_exit_pipes: dict[int, int] = {}


def _become_supervisor(request: dict[str, Any], stdin: int, log: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for fd, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if devices := os.environ.get("JAX_NUM_CPU_DEVICES"):
        import jax

        # JAX has read the variable when it was imported.
        jax.config.update("jax_num_cpu_devices", int(devices))
    supervisor.main()


def _reap() -> None:
    while _exit_pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = _exit_pipes.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the test has dropped its end
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def main() -> None:
    """Answer requests until the tests' process has ended."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    preload()
    importlib.import_module("ipyparallel.controller.app")
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    while True:
        watched: list[Any] = [requests, wake_read]
        ready, _, _ = select.select(watched, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap()
        if requests not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(requests, _REQUEST_NBYTES, 3)
        if not data:
            return
        stdin, log, exit_pipe = fds
        pid = os.fork()
        if pid == 0:
            _become_supervisor(json.loads(data), stdin, log)
            return
        _exit_pipes[pid] = exit_pipe
        os.close(stdin)
        os.close(log)
        requests.send(str(pid).encode())


if __name__ == "__main__":
    main()
