"""Multiplexed probes behind one command: answers are separated by task, silent tasks are named, and strangers are refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mhnb.core.launch.ssh import SshOptions
from mhnb.core.preflight_facts import AnswerChunk, OtherOutput, ProbeExited, parse_probe_line
from mhnb.errors import HostUnfit, HostUnreachable, LaunchError
from mhnb.launchers import probe_script
from mhnb.launchers.probe_shared import MultiplexedProbes, ProbeServer, ProbesExited


@pytest.mark.parametrize("tag", ["3: ", "03: ", "[1,3]<stdout>:", "[3] ", ""])
def test_probe_lines_of_every_launcher_are_parsed(tag: str) -> None:
    """Probe lines are parsed with the prefixes of Slurm, Open MPI and MPICH; all other lines are ordinary output."""
    assert parse_probe_line(f"{tag}mhnb-probe 3 7 1/2 5 | a: ") == AnswerChunk(3, 7, 1, 2, "| a: "[:5])
    assert parse_probe_line(f"{tag}mhnb-probe 3 gone 127 beta") == ProbeExited(3, 127, "beta")
    assert parse_probe_line(f"{tag}mhnb: no python: py") == OtherOutput(3 if tag else None, "mhnb: no python: py")


class SimulatedProbes:
    """Multiplexed probes whose tasks are simulated by the test."""

    def __init__(self, folder: Path, count: int) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.requests: list[dict[str, object]] = []
        self.is_over = False
        self.answers: dict[int, object] = {}
        self.probes = MultiplexedProbes(
            count, self.log, send=self._answer_request, has_ended=lambda: self.is_over, remote_options=SshOptions()
        )

    def write_log(self, *lines: str) -> None:
        """Write lines to the log, as tasks do."""
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

    def _answer_request(self, line: bytes) -> None:
        request = json.loads(line)
        self.requests.append(request)
        for task, answer in self.answers.items():
            text = json.dumps(answer)
            self.write_log(f"{task}: mhnb-probe {task} {request['id']} 0/1 {len(text)} {text}")


def _empty_requests(count: int) -> dict[int, dict[str, object]]:
    """Build a request without arguments for each task."""
    return {at: {} for at in range(count)}


@pytest.fixture
def simulated_probes(tmp_path: Path) -> SimulatedProbes:
    """Three simulated tasks."""
    return SimulatedProbes(tmp_path, 3)


def test_common_arguments_are_sent_once(simulated_probes: SimulatedProbes) -> None:
    """Arguments that are the same for all tasks are sent once; otherwise a list of all hosts would be sent to every host."""
    simulated_probes.answers = {0: "a", 1: "b", 2: "c"}
    arguments = {at: {"targets": ["x", "y"], "skip": f"peer {at}"} for at in range(3)}
    assert simulated_probes.probes.request("connect", arguments, timeout_s=60) == ["a", "b", "c", None]
    (request,) = simulated_probes.requests
    assert request["common"] == {"targets": ["x", "y"]}
    assert request["each"] == {str(at): {"skip": f"peer {at}"} for at in range(3)}


def test_silent_task_is_named(simulated_probes: SimulatedProbes) -> None:
    """A task that does not answer in time is named; the other answers count, and later requests do not wait for it."""
    simulated_probes.answers = {0: "a", 2: "c"}
    assert simulated_probes.probes.request("facts", _empty_requests(3), timeout_s=0.2) == ["a", None, "c", None]
    late = simulated_probes.probes.failures()[1]
    assert isinstance(late, HostUnreachable)
    assert str(late).startswith("host1: gave no answer within 0.2 s")
    assert simulated_probes.probes.request("facts", _empty_requests(3), timeout_s=1000)[1] is None


def test_failed_probe_is_named(simulated_probes: SimulatedProbes) -> None:
    """A probe that cannot run is reported by its machine's name and its last output; the others continue."""
    simulated_probes.answers = {0: "a", 2: "c"}
    simulated_probes.write_log("1: mhnb: logged in", "1: mhnb: no python: py", "1: mhnb-probe 1 gone 127 beta")
    assert simulated_probes.probes.request("facts", _empty_requests(3), timeout_s=1000) == ["a", None, "c", None]
    failure = simulated_probes.probes.failures()[1]
    assert isinstance(failure, HostUnfit)
    assert str(failure).startswith("beta: has no such Python: no python: py")
    with pytest.raises(HostUnfit):
        simulated_probes.probes.end_probes()


def test_ended_command_raises_at_once(simulated_probes: SimulatedProbes) -> None:
    """A request to a command that has ended raises at once; the command's output says why it ended."""
    simulated_probes.is_over = True
    with pytest.raises(ProbesExited):
        simulated_probes.probes.await_begin()
    with pytest.raises(ProbesExited):
        simulated_probes.probes.request("facts", {0: {}}, timeout_s=1000)


def test_selected_tasks_get_new_positions(simulated_probes: SimulatedProbes) -> None:
    """Of several tasks on one machine one is selected; positions then refer to the selected tasks."""
    simulated_probes.probes.select_tasks([0, 2])
    simulated_probes.answers = {0: "a", 2: "c"}
    assert simulated_probes.probes.count == 2
    assert simulated_probes.probes.request("facts", _empty_requests(2), timeout_s=60) == ["a", "c", None]


def test_caller_without_the_secret_is_disconnected() -> None:
    """A caller without the secret, such as a port scan or another launch's probe, is disconnected before any request is sent."""
    server = ProbeServer("127.0.0.1")
    connection_info = server.connection_info
    with socket.create_connection((connection_info["address"], connection_info["port"]), 60) as stranger:
        assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
        stranger.sendall(b"x" * 64 + b"     0")
        assert stranger.recv(1) == b""
    with probe_script._connect_to_notebook(connection_info, 2) as link:
        server.send(b"question\n")
        assert link.recv(9, socket.MSG_WAITALL) == b"question\n"
    server.close()


def test_probe_sends_nothing_to_another_program() -> None:
    """A probe sends nothing to another program that listens at the notebook's address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        connection_info = {"address": "127.0.0.1", "port": server.getsockname()[1], "word": "secret", "timeout_s": 0.5}
        with pytest.raises(OSError, match="timed out"):
            probe_script._connect_to_notebook(connection_info, 0)
        link, _ = server.accept()
        with link:
            assert link.recv(64) == b""


def test_address_of_another_machine_is_reported() -> None:
    """The error for an address of another machine contains the address and the flag to change it."""
    with pytest.raises(LaunchError, match=r"cannot listen at 192\.0\.2\.7 .*--address"):
        ProbeServer("192.0.2.7")
