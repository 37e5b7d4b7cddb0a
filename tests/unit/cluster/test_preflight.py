"""`mhnb doctor` on this machine, its flags, and the checks of hosts by their supervisors."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mhnb.cli.main import main
from mhnb.cluster import preflight
from mhnb.cluster.host_monitor import HostRequests, RequestsClosed
from mhnb.cluster.preflight import check_hosts
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.messages import CheckHost, HostChecked, HostUp
from mhnb.core.preflight_facts import PreflightReport
from mhnb.core.state.events import RunPreflight
from mhnb.errors import HostUnfit, HostUnreachable, LaunchError
from mhnb.rank.spawn import CheckProcess
from mhnb.system.host_checks import Listener, collect_facts, connect
from mhnb.transport.addresses import find_free_port
from tests.support.source import ROOT


def _doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["doctor", *words])
    return code, capsys.readouterr().out


def test_this_machine_passes_preflight(capsys: pytest.CaptureFixture[str]) -> None:
    """A start would work where the suite runs: exit code 0, one row, no login."""
    code, said = _doctor(capsys)
    assert code == 0, said
    assert said.startswith("preflight · 1 host · ")
    assert "login" not in said
    assert "this machine" in said


def test_port_in_use_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use is named with the error of listening there, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, said = _doctor(capsys, "--coordinator-port", str(port))
    assert code == 1
    assert f"this machine cannot listen at 127.0.0.1:{port} for JAX's coordinator: Address already in use" in said


def test_shared_coordinator_port_counts_as_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """A port of another JAX coordinator counts as in use, because both would silently share it and lead one cluster."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as other:
        # gRPC listens in this way.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("::" if other.family == socket.AF_INET6 else "", 0))
        other.listen()
        port = other.getsockname()[1]
        code, said = _doctor(capsys, "--coordinator-port", str(port))
    assert code == 1
    assert f"cannot listen at 127.0.0.1:{port} for JAX's coordinator: Address already in use" in said


def test_unknown_xla_flag_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown XLA flag would abort every rank; it is found by the flag names in jaxlib, without importing JAX."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_collective_timeout_seconds=300 --xla_no_such_flag=1")
    code, said = _doctor(capsys)
    assert code == 1
    assert "has --xla_no_such_flag, which" in said
    assert "--xla_cpu_collective_timeout_seconds" not in said


def test_unwritable_log_directory_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log directory that cannot be written is a failure."""
    monkeypatch.setenv("MHNB_HOME", "/proc/no/such")
    code, said = _doctor(capsys)
    assert code == 1
    assert "cannot write logs to /proc/no/such" in said


def test_other_program_at_the_port_is_recognised() -> None:
    """A port at which another program answers does not count as reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = {"name": "x", "address": "127.0.0.1", "port": server.getsockname()[1], "word": "secret"}
        assert connect([endpoint], 0.2) == {"x": "no answer"}
        assert connect([endpoint | {"word": ""}], 5) == {"x": ""}, "the connection is enough without a word"
    assert connect([endpoint], 5)["x"] == "connection refused"
    listener = Listener("127.0.0.1", 0, "another")
    assert connect([endpoint | {"port": listener.port}], 5) == {"x": "another program answers"}
    assert connect([endpoint | {"port": listener.port, "word": "another"}], 5) == {"x": ""}
    listener.close()
    assert connect([endpoint | {"port": listener.port}], 5) == {"x": "connection refused"}


_SMI = """#!/bin/sh
echo '0, NVIDIA H200, GPU-aa11'
echo '1, NVIDIA H200, GPU-bb22'
"""


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("1", ["GPU-bb22"]),
        ("1, 0", ["GPU-bb22", "GPU-aa11"]),
        ("GPU-bb", ["GPU-bb22"]),
        ("0,7,1", ["GPU-aa11"]),
        ("", []),
    ],
)
def test_gpus_are_those_visible_to_a_rank(
    visible: str | None, uuids: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs are those that the vendor's tool lists and CUDA_VISIBLE_DEVICES allows. The tool is a fake."""
    (tmp_path / "nvidia-smi").write_text(_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in collect_facts(is_notebooks=True).gpus] == uuids


def test_log_directory_depends_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Logs are in the state directory on the notebook's machine, and on the local disk elsewhere, even if it is not writable."""
    monkeypatch.setenv("MHNB_HOME", "/mhnb/home")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    local, remote = (collect_facts(is_notebooks=own).disks[0] for own in (True, False))
    assert (local.purpose, local.folder) == ("logs", "/mhnb/home")
    assert (remote.purpose, remote.folder, remote.error) == ("logs", str(tmp_path), "")
    monkeypatch.setattr(tempfile, "gettempdir", _raise_no_temporary_directory)
    monkeypatch.setenv("TMPDIR", "/proc/none")
    full = collect_facts(is_notebooks=False).disks[0]
    assert full.folder == "/proc/none"
    assert full.error


def _raise_no_temporary_directory() -> str:
    raise FileNotFoundError("No usable temporary directory found")


# -- the checks of several hosts, each answered by a child process as a supervisor starts it


class Supervisors:
    """Two supervisors of this machine, as far as preflight needs them: their reports, and their check processes."""

    def __init__(self, folder: Path) -> None:
        self._processes = {k: CheckProcess(k, os.environ, folder / f"checks{k}.log") for k in (0, 1)}
        self.silent: set[int] = set()
        self.silent_for: tuple[str, ...] = ("facts", "clock", "listen", "connect")
        """The checks that a silent supervisor does not answer."""
        self.requests = HostRequests(self._answer)
        self.reports = {
            0: HostUp(0, 1, "a", None, "127.0.0.1", [find_free_port(), find_free_port()]),
            1: HostUp(1, 2, "b", None, "127.0.0.1"),
        }

    def _answer(self, supervisor: int, request: CheckHost) -> None:
        if supervisor in self.silent and request.check in self.silent_for:
            return
        process = self._processes[supervisor]
        process.send(request)
        answers: list[HostChecked] | None = []
        while answers == []:
            answers = process.read_answers()
        for answer in answers or ():
            self.requests.deliver(answer)

    def check(self, failures: Mapping[int, LaunchError] | None = None, **changed: Any) -> PreflightReport:
        """Check the hosts of a cluster; a host with a failure has reported, and was lost before the others had."""
        failed = failures or {}
        command = RunPreflight((0, 1), self.reports, failed, f"127.0.0.1:{self.reports[0].free_ports[0]}", "")
        with socket.create_server(("127.0.0.1", 0)) as notebook:
            url = f"tcp:127.0.0.1:{notebook.getsockname()[1]}"
            return check_hosts(
                ClusterSpec(2, 1, profile="ssh", machines=("alpha", "beta")),
                url,
                replace(command, **changed),
                self.requests,
            )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    """Two supervisors of this machine."""
    both = Supervisors(tmp_path)
    yield both
    both.close()


def test_hosts_are_checked_by_their_supervisors(supervisors: Supervisors) -> None:
    """Both hosts have a row with the name that the user gave; that they are one machine is the only finding."""
    report = supervisors.check()
    assert report.hosts == ("alpha", "beta")
    assert [finding.check for finding in report.failures] == ["hosts"]
    assert {column.header.partition(" ")[0] for column in report.columns} >= {
        "login",
        "jax",
        "link",
        "port",
        "peers",
        "clock",
    }
    assert report.duration_s is not None


def test_host_that_failed_has_a_row(supervisors: Supervisors) -> None:
    """The other host is checked all the same."""
    failure = HostUnfit("beta: has no such Python\n  install it", host="beta", kind="python", cause="")
    report = supervisors.check({1: failure})
    assert [finding.text for finding in report.failures] == ["beta: has no such Python"]
    assert all(0 in column.cells for column in report.columns)


def test_host_without_a_way_to_the_notebook_has_its_cause(supervisors: Supervisors) -> None:
    """Its supervisor could only print the cause; the finding has the port, and where the login came from."""
    cause = "cannot reach the notebook at 127.0.0.1:7: no answer; the login came from 10.9.9.9"
    report = supervisors.check({1: HostUnreachable("beta: ...", host="beta", kind="notebook", cause=cause)})
    (finding,) = report.failures
    assert finding.text.startswith("beta cannot reach this notebook on this machine at 127.0.0.1:")
    assert "no answer (a firewall that drops packets" in finding.text
    assert "the login came from 10.9.9.9" in finding.fix


def test_coordinators_port_in_use_is_found(supervisors: Supervisors) -> None:
    """The port that the coordinator will have is tried on its own host."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        report = supervisors.check(coordinator=f"127.0.0.1:{other.getsockname()[1]}")
    assert any("alpha cannot listen at" in finding.text for finding in report.failures)


@pytest.mark.slow
def test_silent_host_is_reported(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that reported and then gives no answer is named, and the other one is checked."""
    monkeypatch.setattr(preflight, "_FACTS_S", 2.0)
    supervisors.silent = {1}
    (finding,) = supervisors.check().failures
    assert finding.text == "beta: no answer within 2 s"


def test_answer_of_the_wrong_form_is_reported(supervisors: Supervisors) -> None:
    """Facts that cannot be read are the host's failure, with the field, and not a crash."""
    original = supervisors.requests.deliver
    supervisors.requests.deliver = lambda message: original(  # type: ignore[method-assign]
        message
        if message.supervisor == 0 or not isinstance(message.value, dict)
        else msgspec.structs.replace(message, value={"hostname": 1})
    )
    assert "beta: mhnb cannot read what the host reports: " in str(
        [finding.text for finding in supervisors.check().failures]
    )


def test_end_of_the_start_ends_the_checks(supervisors: Supervisors) -> None:
    """A check that waits for an answer ends with the start."""
    supervisors.silent = {0, 1}
    threading.Timer(0.2, supervisors.requests.close).start()
    with pytest.raises(RequestsClosed):
        supervisors.check()


def test_lost_host_is_not_waited_for(supervisors: Supervisors) -> None:
    """A host that is lost during the checks gives no answer, at once."""
    supervisors.silent = {1}
    supervisors.requests.mark_lost(1)
    assert "beta: no answer" in supervisors.check().failures[0].text


def test_closed_checks_release_their_ports(supervisors: Supervisors) -> None:
    """The ports that were tried are free again for the ranks."""
    supervisors.check()
    supervisors.close()
    with socket.create_server(("127.0.0.1", supervisors.reports[0].free_ports[0])):
        pass


@pytest.mark.parametrize("check", ["clock", "listen", "connect"])
@pytest.mark.slow
def test_unanswered_check_is_a_failure(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """A host that answers some checks and not others has not passed."""
    monkeypatch.setattr(preflight, "_ANSWER_S", 1.0)
    monkeypatch.setattr(preflight, "CONNECT_S", 0.5)
    supervisors.silent, supervisors.silent_for = {1}, (check,)
    (finding,) = supervisors.check().failures
    assert finding.text.startswith("beta: no answer within ")


def test_checks_that_end_give_their_last_words(tmp_path: Path) -> None:
    """A check that raises ends its process, and its error is the answer; noise on its output is no answer."""
    (tmp_path / "sitecustomize.py").write_text("print('welcome'); print('[9, 2]')\n")
    process = CheckProcess(0, os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, tmp_path / "checks.log")
    process.send(CheckHost(1, "clock", {}))
    process.send(CheckHost(2, "connect", {"targets": [{}], "timeout_s": 1}))
    answers: list[HostChecked] = []
    while (found := process.read_answers()) is not None:
        answers += found
    assert [answer.request_id for answer in answers] == [1, 2]
    assert (answers[0].error, type(answers[0].value)) == ("", float)
    assert "KeyError" in answers[1].error
    process.close()


def test_error_of_a_check_is_reported(supervisors: Supervisors) -> None:
    """The error of a host's checks is its failure."""
    original = supervisors.requests.deliver
    supervisors.requests.deliver = lambda message: original(  # type: ignore[method-assign]
        message if message.supervisor == 0 else HostChecked(1, message.request_id, None, "OSError: the disk hangs")
    )
    assert [finding.text for finding in supervisors.check().failures] == [
        "beta: the preflight checks failed there: OSError: the disk hangs"
    ]
