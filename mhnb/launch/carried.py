"""Supervisors on other machines that one command of this machine carries: srun, mpiexec, gcloud, kubectl.

The command is held by `lifeline`; the far side's line and the spec go over its standard input.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mhnb.core.reach.ssh import LOGGED_IN, SshOptions, choose_python, remote_line
from mhnb.core.wire.hostspec import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launch.lifeline import KEEP, lifeline_command
from mhnb.launch.probe import ANSWER
from mhnb.system.private import open_private

__all__ = ["CarriedHosts", "Carrier", "ask_program", "check_program", "spec_input"]

_KEPT_S = 3.0
_END_S = 15.0
"""More than the lifeline itself needs to end the command by force."""
_ANSWER_S = 30.0


def check_program(name: str, *, setting: str, install: str) -> str:
    """Return a program's path.

    Raises:
        LaunchError: it is not on PATH.
    """
    found = shutil.which(name)
    if found is None:
        raise LaunchError(
            f"there is no {name!r} on this machine's PATH; {install}, or name it: --set {setting}=/path/to/{name}"
        )
    return found


def ask_program(words: Sequence[str], limit_s: float = _ANSWER_S) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine that answers and ends.

    Raises:
        LaunchError: it does not, in that time.
    """
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=limit_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise LaunchError(
            f"there is no {words[0]!r} on this machine's PATH, and it was to be asked something"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{shlex.join(words)}: no answer within {limit_s:g} s; try it by hand: what it asks may be down"
        ) from error


def spec_input(spec: HostSpec, far: SshOptions) -> bytes:
    """Give what the command reads: a line of shell that becomes the supervisor, and the supervisor's spec, which holds the key.

    From the first of these lines on, the lifeline keeps what is to outlive the notebook.
    """
    # The interpreter takes the seed of its hashes from here: it cannot be set later.
    seed = {"PYTHONHASHSEED": spec.environment["PYTHONHASHSEED"]}
    options = replace(choose_python(far, sys.executable), environment={**seed, **far.environment})
    line = remote_line(options, ["-P", "-m", "mhnb.rank.host"])
    return KEEP + f"{line}{format_hostspec(spec)}".encode()


@dataclass(frozen=True, slots=True)
class Carrier:
    """A command that carries supervisors."""

    command: Sequence[str]
    given: bytes = field(repr=False)
    """For its standard input. It holds the key."""
    label: str
    """Who it is, for messages."""
    log: Path
    """Takes what it and they write."""
    explain: Callable[[Sequence[str]], str]
    """Says why it ended, from the lines of the log."""
    keep: bool = False
    """It outlives this process."""
    clean_up: Sequence[str] = ()
    """Words that take back what was asked for, should the command have to be killed."""


class CarriedHosts:
    """Several supervisors, through the one process here that carries them.

    Args:
        carrier: the command.
        supervisors: their numbers.
    """

    def __init__(self, carrier: Carrier, supervisors: Sequence[int]) -> None:
        self._carrier = carrier
        self.supervisors: tuple[int, ...] = tuple(supervisors)
        self.is_remote = True
        self._released = False
        with open(carrier.log, "ab", opener=open_private) as out:
            self._process = subprocess.Popen(
                lifeline_command(carrier.command, keep=carrier.keep, clean_up=carrier.clean_up),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                # A terminal's Ctrl-C goes to the notebook alone, which decides what it means.
                start_new_session=True,
            )
        self._giving = threading.Lock()
        self.give(carrier.given)

    def give(self, data: bytes) -> None:
        """Write to the command's standard input. To one that has ended nothing is given: `explain` tells why, and the owner asks."""
        assert self._process.stdin is not None
        with self._giving, contextlib.suppress(BrokenPipeError):
            if not self._process.stdin.closed:
                self._process.stdin.write(data)
                self._process.stdin.flush()

    def is_over(self) -> bool:
        """Whether the command itself has ended."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Of the process here that holds the command."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Whether the command has ended, and with it every supervisor."""
        # In this order: while it is polled another thread may let it go, which writes an exit code.
        return self._process.poll() is not None and not self._released

    def explain(self) -> str:
        """Say why it ended."""
        code = self._process.poll()
        how = "runs" if code is None else f"ended with exit code {code}"
        log = self._carrier.log
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = [line for line in lines if not line.endswith(LOGGED_IN) and ANSWER not in line]
        return f"{self._carrier.label} {how}: {self._carrier.explain(said)} · log {log}"

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # of the contract; they are other machines'
        """Let go of the lifeline, at which everything ends, and wait for that."""
        if self._released:
            return
        assert self._process.stdin is not None
        # It may have ended before it had read everything.
        with self._giving, contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._carrier.keep and not self._ends(_KEPT_S):
            # What is to outlive its input was told over the link; an srun that still waits in the queue has nobody to hear it.
            self._process.terminate()
        if not self._ends(_END_S):
            self._process.kill()
            self._process.wait()

    def _ends(self, limit_s: float) -> bool:
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Let it live on after this process (`keep`)."""
        self._released = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        # The interpreter would warn of a child that was never waited for.
        self._process.returncode = 0
