"""A Python program on another machine, as a child process here: one login, its lifeline, its log, and why it ended.

Standard input stays open as the lifeline: what runs there ends when it ends, be it that this process is gone, the machine or the network.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.ssh import SshOptions, remote_line, ssh_command
from mhnb.core.reach.sshfail import explain_ssh, ssh_error
from mhnb.errors import LaunchError
from mhnb.system.private import open_private

__all__ = ["SshProcess"]


class SshProcess:
    """An interpreter on another machine, reached by one ssh.

    It returns at once; whether the login was good shows in `has_exited` and `failure`.

    Args:
        host: where.
        options: how to log in, and the interpreter's folder and environment there.
        arguments: of the interpreter.
        log: takes standard error, and standard output too unless it is piped. Appended to.
        stdin: what it reads first. Less than 60 kB: it waits in a pipe until the login is done.
        piped: whether standard output is read here, from `stdout`.

    Raises:
        LaunchError: there is no ssh on this machine.
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
        self._forced = False
        with open(log, "ab", opener=open_private) as err:
            self._from = err.tell()
            try:
                self._process = subprocess.Popen(
                    ssh_command(host, options),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if piped else err,
                    stderr=err,
                    # A terminal's Ctrl-C goes to the notebook alone, which decides what it means.
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise LaunchError("there is no ssh on this machine's PATH; install the OpenSSH client") from error
        self.write(remote_line(options, arguments).encode() + stdin)

    @property
    def pid(self) -> int:
        """The number of the ssh process here."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """What the program prints, where it is piped."""
        assert self._process.stdout is not None, "made without piped=True"
        return self._process.stdout

    def write(self, data: bytes) -> None:
        """Send to its standard input. To one that has ended nothing is sent: `failure` tells."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def has_exited(self) -> bool:
        """Whether the program, the login or the connection has ended."""
        return self._process.poll() is not None

    def failure(self) -> LaunchError | None:
        """Say why it ended; None while it runs, or when it ended as asked."""
        code = self._process.poll()
        if code is None or code == 0 or self._forced:
            return None
        said = self.said()
        return ssh_error(explain_ssh(said, code, self.host, self._options), self.host, str(self.log))

    def explain(self) -> str:
        """Say how it stands, and what was said last."""
        if (error := self.failure()) is not None:
            lines = self.said().splitlines()[-8:]
            return str(error) + "".join(f"\n    {line}" for line in lines)
        return f"{self.host}: {'ended' if self.has_exited() else 'runs'}; log {self.log}"

    def said(self) -> str:
        """All that it wrote to the log."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def close_input(self) -> None:
        """Let go of the lifeline: what runs there is to end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It ended before it had read everything.
            return

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; false when it has not within that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Break the connection at once. What runs there is not killed: it sees the end of its standard input."""
        self._forced = self._process.poll() is None
        self._process.kill()
        self._process.wait()
        # Not standard output: another thread may be reading it.
        self.close_input()

    def end(self, grace_s: float) -> None:
        """Let go of the lifeline, wait so long, then break the connection."""
        self.close_input()
        if not self.wait(grace_s):
            self.kill()
        self.close()

    def close(self) -> None:
        """Close the pipes of one that has ended."""
        self.close_input()
        if self._process.stdout is not None:
            self._process.stdout.close()
