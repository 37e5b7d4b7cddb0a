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
def test_lines_of_every_launcher(tag: str) -> None:
    """Probe lines are parsed with the prefixes of Slurm, Open MPI and MPICH; all other lines are ordinary output."""
    assert parse_probe_line(f"{tag}mhnb-probe 3 7 1/2 5 | a: ") == AnswerChunk(3, 7, 1, 2, "| a: "[:5])
    assert parse_probe_line(f"{tag}mhnb-probe 3 gone 127 beta") == ProbeExited(3, 127, "beta")
    assert parse_probe_line(f"{tag}mhnb: no python: py") == OtherOutput(3 if tag else None, "mhnb: no python: py")


class Stage:
    """Multiplexed probes whose tasks are simulated by the test."""

    def __init__(self, folder: Path, count: int) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.asked: list[dict[str, object]] = []
        self.is_over = False
        self.answers: dict[int, object] = {}
        self.chorus = MultiplexedProbes(
            count, self.log, send=self._hear, has_ended=lambda: self.is_over, remote_options=SshOptions()
        )

    def say(self, *lines: str) -> None:
        """Write lines to the log, as tasks do."""
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

    def _hear(self, line: bytes) -> None:
        request = json.loads(line)
        self.asked.append(request)
        for task, answer in self.answers.items():
            text = json.dumps(answer)
            self.say(f"{task}: mhnb-probe {task} {request['id']} 0/1 {len(text)} {text}")


def _to_all(count: int) -> dict[int, dict[str, object]]:
    """Build a request without arguments for each task."""
    return {at: {} for at in range(count)}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Three simulated tasks."""
    return Stage(tmp_path, 3)


def test_what_is_the_same_for_all_is_sent_once(stage: Stage) -> None:
    """Arguments that are the same for all tasks are sent once; otherwise a list of all hosts would be sent to every host."""
    stage.answers = {0: "a", 1: "b", 2: "c"}
    given = {at: {"targets": ["x", "y"], "skip": f"peer {at}"} for at in range(3)}
    assert stage.chorus.request("connect", given, timeout_s=60) == ["a", "b", "c", None]
    (request,) = stage.asked
    assert request["common"] == {"targets": ["x", "y"]}
    assert request["each"] == {str(at): {"skip": f"peer {at}"} for at in range(3)}


def test_a_task_that_does_not_answer_is_named(stage: Stage) -> None:
    """A task that does not answer in time is named; the other answers count, and later requests do not wait for it."""
    stage.answers = {0: "a", 2: "c"}
    assert stage.chorus.request("facts", _to_all(3), timeout_s=0.2) == ["a", None, "c", None]
    late = stage.chorus.failures()[1]
    assert isinstance(late, HostUnreachable)
    assert str(late).startswith("host1: gave no answer within 0.2 s")
    assert stage.chorus.request("facts", _to_all(3), timeout_s=1000)[1] is None


def test_a_task_whose_probe_cannot_run_is_named(stage: Stage) -> None:
    """A probe that cannot run is reported by its machine's name and its last output; the others continue."""
    stage.answers = {0: "a", 2: "c"}
    stage.say("1: mhnb: logged in", "1: mhnb: no python: py", "1: mhnb-probe 1 gone 127 beta")
    assert stage.chorus.request("facts", _to_all(3), timeout_s=1000) == ["a", None, "c", None]
    gone = stage.chorus.failures()[1]
    assert isinstance(gone, HostUnfit)
    assert str(gone).startswith("beta: has no such Python: no python: py")
    with pytest.raises(HostUnfit):
        stage.chorus.end_probes()


def test_a_command_that_ends_is_not_waited_for(stage: Stage) -> None:
    """A request to a command that has ended raises at once; the command's output says why it ended."""
    stage.is_over = True
    with pytest.raises(ProbesExited):
        stage.chorus.await_begin()
    with pytest.raises(ProbesExited):
        stage.chorus.request("facts", {0: {}}, timeout_s=1000)


def test_several_tasks_on_a_machine_are_asked_once(stage: Stage) -> None:
    """Of several tasks on one machine one is selected; positions then refer to the selected tasks."""
    stage.chorus.select_tasks([0, 2])
    stage.answers = {0: "a", 2: "c"}
    assert stage.chorus.count == 2
    assert stage.chorus.request("facts", _to_all(2), timeout_s=60) == ["a", "c", None]


def test_who_does_not_know_the_word_is_hung_up_on() -> None:
    """A caller without the secret, such as a port scan or another launch's probe, is disconnected before any request is sent."""
    calls = ProbeServer("127.0.0.1")
    place = calls.connection_info
    with socket.create_connection((place["address"], place["port"]), 60) as stranger:
        assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
        stranger.sendall(b"x" * 64 + b"     0")
        assert stranger.recv(1) == b""
    with probe_script._connect_to_notebook(place, 2) as link:
        calls.send(b"question\n")
        assert link.recv(9, socket.MSG_WAITALL) == b"question\n"
    calls.close()


def test_a_probe_does_not_serve_somebody_else() -> None:
    """A probe sends nothing to another program that listens at the notebook's address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        place = {"address": "127.0.0.1", "port": server.getsockname()[1], "word": "secret", "timeout_s": 0.5}
        with pytest.raises(OSError, match="timed out"):
            probe_script._connect_to_notebook(place, 0)
        link, _ = server.accept()
        with link:
            assert link.recv(64) == b""


def test_an_address_that_is_not_of_this_machine() -> None:
    """The error for an address of another machine contains the address and the flag to change it."""
    with pytest.raises(LaunchError, match=r"cannot listen at 192\.0\.2\.7 .*--address"):
        ProbeServer("192.0.2.7")
