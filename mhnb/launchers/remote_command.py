"""Run supervisors through one local command: srun, mpiexec, gcloud or kubectl.

The command runs under the watchdog process (`watchdog.py`). The remote command line and the spec are sent over its standard input.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mhnb.core.launch.ssh import SshOptions, choose_python, remote_line
from mhnb.core.launch.tasks import TaskOutput, is_task_report
from mhnb.core.messages import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launchers.child_process import ChildProcess
from mhnb.launchers.watchdog import KEEP_MARKER, watchdog_command

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
            f"{name!r} is not on this machine's PATH\n  Fix: {install}\n  Or: --set {setting}=/path/to/{name}"
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
        raise LaunchError(f"{words[0]!r} is not on this machine's PATH, and mhnb needs its answer") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{shlex.join(words)}: no answer within {limit_s:g} s\n  Fix: run it by hand; the service behind it may be down"
        ) from error


def spec_input(spec: HostSpec, remote_options: SshOptions) -> bytes:
    """Return the input: a shell line, then the spec with the key."""
    # The interpreter reads its hash seed from the environment; it cannot be set later.
    seed = {"PYTHONHASHSEED": spec.environment["PYTHONHASHSEED"]}
    options = replace(choose_python(remote_options, sys.executable), environment={**seed, **remote_options.environment})
    line = remote_line(options, ["-P", "-m", "mhnb.rank.supervisor"])
    return f"{line}{format_hostspec(spec)}".encode()


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
        command = watchdog_command(
            command_spec.command, keep=command_spec.is_detachable, clean_up=command_spec.clean_up_command
        )
        self._process = ChildProcess(command, log=command_spec.log)
        self.write_stdin(command_spec.stdin_data)

    def write_stdin(self, data: bytes) -> None:
        """Write to the command's standard input; do nothing if it ended."""
        self._process.write(data)

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code; None while it runs or after release."""
        return None if self._released else self._process.code

    @property
    def pid(self) -> int:
        """Return the id of the local process that holds the command."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether the command has ended, and with it every supervisor."""
        # The order matters: during the check, another thread may release the process, which sets an exit code.
        return self._process.has_exited() and not self._released

    def explain(self) -> str:
        """Describe why it ended."""
        code = self._process.code
        how = "runs" if code is None else f"ended with exit code {code}"
        log = self._command_spec.log
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        shown = [line for line in lines if not is_task_report(line)]
        return f"{self._command_spec.label} {how}: {self._command_spec.explain(shown)} · log {log}"

    def wait(self, pids: tuple[int, ...]) -> None:  # noqa: ARG002  # part of the protocol; these ids belong to other machines
        """Close the watchdog's input, which ends everything, and wait for the end."""
        if self._released:
            return
        self._process.close_input()
        if self._command_spec.is_detachable and not self._process.wait(_DETACHED_END_S):
            # Supervisors that outlive their input get the order to end over the transport; a queued srun has no supervisor yet.
            self._process.terminate()
        if not self._process.wait(_END_S):
            self._process.kill()

    def release(self) -> None:
        """Release it, so that it outlives this process (`keep`)."""
        self._released = True
        self._process.detach()


class TaskHosts(CommandHosts):
    """Several supervisors, each a task of one srun or mpiexec.

    Args:
        command_spec: the command.
        supervisors: their numbers, which are those of the tasks.
        remote_options: of the remote side, to explain failures.
    """

    def __init__(self, command_spec: CommandSpec, supervisors: Sequence[int], remote_options: SshOptions) -> None:
        super().__init__(command_spec, supervisors)
        self._remote_options = remote_options
        self._output, self._log_offset = TaskOutput(), 0
        self._is_kept = False

    def record_report(self, supervisor: int) -> None:
        """Record a supervisor's report; a detachable command then outlives its notebook.

        Before that it may wait in a queue, and there is no cluster that another notebook could attach to.
        """
        if supervisor in self.supervisors and self._command_spec.is_detachable and not self._is_kept:
            self._is_kept = True
            # Supervisors ignore what they read there.
            self.write_stdin(KEEP_MARKER + b"\n")

    def start_failures(self) -> Mapping[int, LaunchError]:
        """Return the start failures that tasks reported in the log."""
        log = self._command_spec.log
        with log.open("rb") as file:
            file.seek(self._log_offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._log_offset += len(whole)
        self._output.read(whole.decode(errors="replace").splitlines())
        return self._output.failures(self._remote_options, str(log))
