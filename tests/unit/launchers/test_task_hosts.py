"""Supervisors that one command, or one client each, starts: a task that fails is named, and the others go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from mhnb.core.cluster_spec import HostAssignment
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.mpi import MpiOptions, mpiexec_command
from mhnb.core.launch.ssh import LOGGED_IN, SshOptions
from mhnb.core.launch.tasks import HOLD_FOR_INPUT, TaskOutput, make_task_script
from mhnb.core.messages import HostSpec
from mhnb.errors import HostUnfit, LaunchError
from mhnb.launchers.base import FailureReporter
from mhnb.launchers.cloud import CloudLauncher
from mhnb.launchers.remote_command import CommandSpec, TaskHosts

_SPEC = HostSpec("unix:none", "00", 0, 1, 1, [0], 1, "", {}, {"PYTHONHASHSEED": "0"}, "", "")


WAIT_S = 60.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until the condition is true: a process that ends or writes a file sends no signal."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.mark.parametrize("tag", ["3: ", "03: ", "[1,3]<stdout>:", "[3] "])
def test_output_of_every_launcher_is_assigned_to_its_task(tag: str) -> None:
    """The tags of Slurm, Open MPI and MPICH name the task; its last lines explain why it failed."""
    output = TaskOutput()
    output.read([f"{tag}{LOGGED_IN}", "1: mhnb: no folder: /x", f"{tag}mhnb: no python: py", "no tag"])
    assert output.failures(SshOptions(), "log") == {}
    output.read([f"{tag}mhnb-task 3 failed 127 beta"])
    ((number, error),) = output.failures(SshOptions(), "log").items()
    assert isinstance(error, HostUnfit)
    assert (number, str(error).splitlines()[0]) == (3, "beta: has no such Python: no python: py")


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Callable[[str], TaskHosts]]:
    """Start the shell of one task, whose number is 0, with a line of shell."""
    with ExitStack() as cleanup:

        def start(line: str) -> TaskHosts:
            command_spec = CommandSpec(
                ["env", "SLURM_PROCID=0", "sh", "-c", make_task_script(HOLD_FOR_INPUT)],
                f"{line}\n".encode(),
                "the command",
                tmp_path / "log",
                "".join,
            )
            hosts = TaskHosts(command_spec, [0], SshOptions())
            cleanup.callback(hosts.wait, ())
            return hosts

        yield start


def test_task_that_fails_waits_and_is_named(tasks: Callable[[str], TaskHosts]) -> None:
    """The launcher would end all tasks if this one ended; it is named by its machine, with what it printed last."""
    hosts = tasks("echo 'mhnb: no python: py' >&2; exit 127")
    wait_until(lambda: bool(hosts.start_failures()), "the failure is read")
    assert "ended with exit code 127" in str(hosts.start_failures()[0])
    assert not hosts.has_exited()


def child_names(pid: int) -> list[str]:
    """Return the names of the programs below a process."""
    try:
        return [child.name() for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []  # one has ended in between


@pytest.mark.slow
def test_task_that_reads_a_file_waits_too(tmp_path: Path) -> None:
    """mpiexec passes no input on: the end of the file that a task reads is not the end of its wait."""
    start = tmp_path / "mpi.start"
    start.write_text("echo 'mhnb: no python: py' >&2; exit 127\nthe spec\n")
    remote = mpiexec_command(MpiOptions(), "openmpi", 1, file=str(start))
    command = ["env", "PMI_RANK=0", *remote[remote.index("sh") :]]
    hosts = TaskHosts(CommandSpec(command, b"", "mpiexec", tmp_path / "log", "".join), [0], SshOptions())
    try:
        wait_until(lambda: bool(hosts.start_failures()), "the failure is read")
        wait_until(lambda: "sleep" in child_names(hosts.pid), "it waits")
        assert not hosts.has_exited()
    finally:
        hosts.wait(())


def test_task_that_runs_has_not_failed(tasks: Callable[[str], TaskHosts], tmp_path: Path) -> None:
    """While the supervisor runs nothing is reported, and it gets the rest of the input."""
    hosts = tasks(f"exec {sys.executable} -c 'import sys; print(sys.stdin.readline())'")
    hosts.write_stdin(b"the spec\n")
    wait_until(lambda: "the spec" in (tmp_path / "log").read_text(), "it has read its input")
    assert hosts.start_failures() == {}


def test_failed_client_is_reported_by_its_last_line(tmp_path: Path) -> None:
    """kubectl reports each try before the reason, and a table has room for one line, so the last line is shown."""
    client = tmp_path / "client"
    client.write_text("#!/bin/sh\necho 'try 1 failed' >&2; echo 'try 2 failed' >&2; echo 'no such pod' >&2; exit 1\n")
    client.chmod(0o755)
    (tmp_path / "log").mkdir()
    launcher = CloudLauncher(str(client), lambda _: [str(client)], SshOptions())
    (host,) = launcher.launch([_SPEC], [HostAssignment(4, "host4", (4,))], {}, tmp_path)
    wait_until(host.has_exited, "the client has ended")
    assert isinstance(host, FailureReporter)
    first, *rest = str(host.start_failures()[4]).splitlines()
    assert first == "host4 (client) ended with exit code 1: no such pod"
    assert [line.strip() for line in rest] == ["try 1 failed", "try 2 failed"]
    host.wait(())


def test_supervisor_that_cannot_start_says_why() -> None:
    """What a supervisor writes before it can use its connection is a sentence, not a traceback."""
    output = TaskOutput()
    for number, text in enumerate((
        "cannot reach the notebook at 10.0.0.9:7000: no answer",
        "the notebook uses protocol 1, this host 2; install the same mhnb version on both",
        "/tmp/mhnb-0-x is not private",
    )):  # fmt: skip
        output.read([f"{number}: mhnb: cannot start: {text}", f"{number}: mhnb-task {number} failed 1 beta"])
    unreachable, version, unfit = output.failures(SshOptions(), "log").values()
    assert (unreachable.parts["kind"], unreachable.parts["cause"]) == (
        "notebook", "cannot reach the notebook at 10.0.0.9:7000: no answer",
    )  # fmt: skip
    assert str(version).startswith("beta: has a different mhnb version: the notebook uses protocol 1")
    assert str(unfit).startswith("beta: cannot run ranks: /tmp/mhnb-0-x is not private\n  fix that on beta")
    assert isinstance(unreachable, LaunchError)
    assert str(HostName("beta")) == "beta"
