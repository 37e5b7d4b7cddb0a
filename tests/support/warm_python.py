"""An interpreter for machines of tests: it asks the warm process for supervisors.

It is a program, because a launcher of another machine starts one: ssh, srun, mpiexec or kubectl. `write` makes its file. Whatever is not
a supervisor runs in the real Python. Few imports, since it starts once per machine.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["SUPERVISOR", "main", "write"]

SUPERVISOR = ["-P", "-m", "mhnb.rank.supervisor"]
_TEXT = """\
#!/bin/sh
exec {quoted} -ISc {program} "$@"
"""
_PROGRAM = """\
import sys
sys.path.insert(0, {root!r})
from tests.support.warm_python import main
main({python!r}, {addresses!r})
"""


def write(path: Path, addresses: list[str]) -> Path:
    """Write the interpreter.

    Args:
        path: of the new file.
        addresses: of warm processes; the first whose environment fits is taken.
    """
    program = _PROGRAM.format(python=sys.executable, root=str(Path(__file__).parents[2]), addresses=addresses)
    path.write_text(_TEXT.format(quoted=shlex.quote(sys.executable), program=shlex.quote(program)))
    path.chmod(0o755)
    return path


def _pass_on(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # the supervisor has ended
        connection.send(str(number).encode())


def _stand_for_fork(address: str, command: list[str]) -> None:
    """Stand for a supervisor until it ends; return if there can be none.

    Args:
        address: of a warm process, which may have read another environment.
        command: to show in place of its own.
    """
    request = {
        "command": command,
        "arguments": [],
        "environment": dict(os.environ),
        "cwd": str(Path.cwd()),
        "fds": [0, 1, 2],
        "stands_by": True,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(address)
        except OSError:
            return  # the session that wrote this file has ended
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: _pass_on(connection, number))
        if int(connection.recv(32) or -1) <= 0:
            return
        # Their readers see the end when the supervisor has closed them.
        for fd in (0, 1, 2):
            os.close(fd)
        code = int(connection.recv(32) or -signal.SIGKILL)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(python: str, addresses: list[str]) -> None:
    """Be the interpreter."""
    words = [python, *sys.argv[1:]]
    if sys.argv[1:] == SUPERVISOR:
        for address in addresses:
            _stand_for_fork(address, words)
    os.execv(python, words)  # noqa: S606 - a program is what this one becomes
