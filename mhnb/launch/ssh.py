"""A Python program on another machine, run by a local ssh process: one login, its log, and why it ended.

Standard input stays open while the program should run: it ends with the input, whether this process, the machine or the network ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.ssh import SshOptions, build_ssh_error, explain_ssh, remote_line, ssh_command
from mhnb.errors import LaunchError
from mhnb.system.private import open_private

__all__ = ["SshProcess"]


class SshProcess:
    """An interpreter on another machine, reached by one ssh.

    The constructor returns at once; `has_exited` and `failure` show whether the login succeeded.

    Args:
        host: the machine.
        options: how to log in, and the interpreter's folder and environment there.
        arguments: of the interpreter.
        log: receives standard error, and standard output too unless it is piped. Appended to.
        stdin: its first input. Less than 60 kB, because it waits in a pipe until the login is done.
        piped: whether standard output is read here, from `stdout`.

    Raises:
        LaunchError: this machine has no ssh.
    """

    def __init__(
        self,
        host: HostName,
        options: SshOptions,
        arguments: Sequence[str],
        *,
        log: Path,
        stdin: bytes = b"",
        piped: bool = False,
    ) -> None:
        self.host, self._options, self.log = host, options, log
        self._was_killed = False
        with open(log, "ab", opener=open_private) as err:
            self._log_start = err.tell()
            try:
                self._process = subprocess.Popen(
                    ssh_command(host, options),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if piped else err,
                    stderr=err,
                    # A terminal's Ctrl-C goes only to the notebook, which decides what it means.
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise LaunchError("there is no ssh on this machine's PATH; install the OpenSSH client") from error
        self.write(remote_line(options, arguments).encode() + stdin)

    @property
    def pid(self) -> int:
        """Return the id of the local ssh process."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """Return the program's standard output, if it is piped."""
        assert self._process.stdout is not None, "made without piped=True"
        return self._process.stdout

    def write(self, data: bytes) -> None:
        """Write to its standard input; do nothing if it has ended, because `failure` describes that."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def has_exited(self) -> bool:
        """Return whether the program, the login or the connection has ended."""
        return self._process.poll() is not None

    def failure(self) -> LaunchError | None:
        """Describe why it ended; None while it runs, or if it ended on request."""
        code = self._process.poll()
        if code is None or code == 0 or self._was_killed:
            return None
        output = self.output()
        return build_ssh_error(explain_ssh(output, code, self.host, self._options), self.host, str(self.log))

    def explain(self) -> str:
        """Describe its state, with the last output."""
        if (error := self.failure()) is not None:
            lines = self.output().splitlines()[-8:]
            return str(error) + "".join(f"\n    {line}" for line in lines)
        return f"{self.host}: {'ended' if self.has_exited() else 'runs'}; log {self.log}"

    def output(self) -> str:
        """Return all output that it wrote to the log."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def close_input(self) -> None:
        """Close standard input, which ends the program."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It ended without reading everything.
            return

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return False if it has not within that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Break the connection at once. The program is not killed, but sees the end of its standard input."""
        self._was_killed = self._process.poll() is None
        self._process.kill()
        self._process.wait()
        # Standard output stays open: another thread may be reading it.
        self.close_input()

    def end(self, grace_s: float) -> None:
        """Close standard input, wait for the grace period, then break the connection."""
        self.close_input()
        if not self.wait(grace_s):
            self.kill()
        self.close()

    def close(self) -> None:
        """Close the pipes after it has ended."""
        self.close_input()
        if self._process.stdout is not None:
            self._process.stdout.close()
