"""Run supervisors on other machines through one local command: srun, mpiexec, gcloud, kubectl.

The command runs under the watchdog process (`watchdog.py`). The remote command line and the spec are sent over its standard input.
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

from mhnb.core.launch.ssh import LOGGED_IN, SshOptions, choose_python, remote_line
from mhnb.core.messages import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launchers.probe_script import ANSWER
from mhnb.launchers.watchdog import KEEP_MARKER, watchdog_command
from mhnb.system.private_files import open_private

_DETACHED_END_S = 3.0
_END_S = 15.0
"""Longer than the watchdog itself needs to kill the command."""
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


def run_program(words: Sequence[str], limit_s: float = _ANSWER_S) -> subprocess.CompletedProcess[str]:
    """Run a local program that prints an answer and ends.

    Raises:
        LaunchError: it is missing, or does not end in that time.
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


def spec_input(spec: HostSpec, remote_options: SshOptions) -> bytes:
    """Return the command's input: a shell line that becomes the supervisor, and the supervisor's spec, which holds the key.

    From the first of these lines on, the watchdog keeps a detachable cluster alive without its notebook.
    """
    # The interpreter reads its hash seed from the environment; it cannot be set later.
    seed = {"PYTHONHASHSEED": spec.environment["PYTHONHASHSEED"]}
    options = replace(choose_python(remote_options, sys.executable), environment={**seed, **remote_options.environment})
    line = remote_line(options, ["-P", "-m", "mhnb.rank.supervisor"])
    return KEEP_MARKER + f"{line}{format_hostspec(spec)}".encode()


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command that runs supervisors."""

    command: Sequence[str]
    stdin_data: bytes = field(repr=False)
    """Data for its standard input, which includes the key."""
    label: str
    """Name of the command in messages."""
    log: Path
    """Receives the output of the command and the supervisors."""
    explain: Callable[[Sequence[str]], str]
    """Describes why the command ended, from the lines of the log."""
    is_detachable: bool = False
    """Whether it outlives this process."""
    clean_up_command: Sequence[str] = ()
    """Command that cancels the request if the command itself has to be killed."""


class CommandHosts:
    """Several supervisors, run by one process on this machine.

    Args:
        command_spec: the command.
        supervisors: their numbers.
    """

    def __init__(self, command_spec: CommandSpec, supervisors: Sequence[int]) -> None:
        self._command_spec = command_spec
        self.supervisors: tuple[int, ...] = tuple(supervisors)
        self.is_remote = True
        self._released = False
        with open(command_spec.log, "ab", opener=open_private) as out:
            self._process = subprocess.Popen(
                watchdog_command(
                    command_spec.command, keep=command_spec.is_detachable, clean_up=command_spec.clean_up_command
                ),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                # A terminal's Ctrl-C goes only to the notebook, which decides what it means.
                start_new_session=True,
            )
        self._stdin_lock = threading.Lock()
        self.write_stdin(command_spec.stdin_data)

    def write_stdin(self, data: bytes) -> None:
        """Write to the command's standard input; do nothing if it has ended: the owner polls, and `explain` describes why."""
        assert self._process.stdin is not None
        with self._stdin_lock, contextlib.suppress(BrokenPipeError):
            if not self._process.stdin.closed:
                self._process.stdin.write(data)
                self._process.stdin.flush()

    def has_command_ended(self) -> bool:
        """Return whether the command itself has ended."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Return the id of the local process that holds the command."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether the command has ended, and with it every supervisor."""
        # The order matters: during `poll`, another thread may release the process, which sets an exit code.
        return self._process.poll() is not None and not self._released

    def explain(self) -> str:
        """Describe why it ended."""
        code = self._process.poll()
        how = "runs" if code is None else f"ended with exit code {code}"
        log = self._command_spec.log
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        shown = [line for line in lines if not line.endswith(LOGGED_IN) and ANSWER not in line]
        return f"{self._command_spec.label} {how}: {self._command_spec.explain(shown)} · log {log}"

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # part of the protocol; these ids belong to other machines
        """Close the watchdog's input, which ends everything, and wait for the end."""
        if self._released:
            return
        assert self._process.stdin is not None
        # It may have ended without reading everything.
        with self._stdin_lock, contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._command_spec.is_detachable and not self._ends_within(_DETACHED_END_S):
            # Supervisors that outlive their input get the order to end over the transport; a queued srun has no supervisor yet.
            self._process.terminate()
        if not self._ends_within(_END_S):
            self._process.kill()
            self._process.wait()

    def _ends_within(self, limit_s: float) -> bool:
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Let it outlive this process (`keep`)."""
        self._released = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        # Otherwise the interpreter would warn of a child that was never waited for.
        self._process.returncode = 0
