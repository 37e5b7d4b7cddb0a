"""`mhnb doctor` on this machine, its flags, and probes that do not answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mhnb.cli.main import main
from mhnb.cluster.preflight import run_ssh_preflight
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.preflight_facts import Endpoint, Requirements, parse_facts
from mhnb.errors import HostUnreachable, LaunchError
from mhnb.launchers import probe_script
from mhnb.launchers.probe_client import PRELUDE, LocalPython, Probe


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


def test_the_probe_imports_nothing_but_the_standard_library() -> None:
    """On a Python without packages the probe reports its facts, including that mhnb and JAX are missing."""
    program = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n{PRELUDE}"
    source = Path(probe_script.__file__).read_text(encoding="utf-8")
    request = '{"do": "facts", "names": [], "is_notebooks": false}'
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        input=f"{json.dumps(source)}\n{request}\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("mhnb-probe {"), done.stderr
    assert '"jax": null' in done.stdout
    assert '"mhnb": null' in done.stdout


def _probe(tmp_path: Path, program: str) -> Probe:
    return Probe("b", LocalPython(["-c", program], log=tmp_path / "log"))


def test_hanging_probe_is_ended(tmp_path: Path) -> None:
    """The probe ends when its time is up, the reason is kept, and the probe is not used again."""
    hanging = _probe(tmp_path, "import time; time.sleep(1000)")
    assert hanging.request("facts", {"names": [], "is_notebooks": False}, timeout_s=0.2) is None
    assert isinstance(hanging.failure, HostUnreachable)
    assert str(hanging.failure).startswith("b: gave no answer within 0.2 s")
    assert hanging.request("time", {}, timeout_s=1000) is None
    hanging.close(1)


def test_probe_that_ends_reports_its_last_output(tmp_path: Path) -> None:
    """The last output of the probe is the reason."""
    broken = _probe(tmp_path, "import sys; sys.exit('the disk hangs')")
    assert broken.request("time", {}, timeout_s=60) is None
    assert isinstance(broken.failure, LaunchError)
    assert "exit code 1: the disk hangs" in str(broken.failure)
    broken.close(1)


def test_other_output_is_not_an_answer(tmp_path: Path) -> None:
    """Output of a login shell's start-up files does not disturb the preflight."""
    noisy = _probe(tmp_path, f"print('welcome to b\\n{{}}'); {PRELUDE}")
    assert isinstance(noisy.request("time", {}, timeout_s=60), float)
    noisy.close(5)


def test_user_file_does_not_replace_a_standard_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `json.py` in the working directory does not replace the standard module."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    probe = _probe(tmp_path, PRELUDE)
    assert isinstance(probe.request("time", {}, timeout_s=60), float), probe.failure
    probe.close(5)


def test_other_program_at_the_port_is_recognised() -> None:
    """A port at which another program answers does not count as reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = {"name": "x", "address": "127.0.0.1", "port": server.getsockname()[1], "word": "secret"}
        assert probe_script.connect([endpoint], 0.2) == {"x": "no answer"}
    assert probe_script.connect([endpoint], 5)["x"] == "connection refused"
    listening = probe_script.listen([{"name": "y", "address": "127.0.0.1", "port": 0, "word": "another"}])
    assert probe_script.connect([endpoint | listening["y"]], 5) == {"x": "somebody else answers"}


_SMI = """#!/bin/sh
echo 'NVIDIA H200, GPU-aa11'
echo 'NVIDIA H200, GPU-bb22'
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
    assert [gpu["uuid"] for gpu in probe_script.collect_facts([], is_notebooks=True)["gpus"]] == uuids


def test_own_address_is_the_one_that_reaches_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher copies the login node's environment, so its SSH_CONNECTION says nothing about this machine."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5 10.0.0.2 22")
    by_ssh, by_launcher = (probe_script.collect_facts([], is_notebooks=False, towards=to) for to in ("", "127.0.0.1"))
    assert parse_facts(by_ssh).address == "10.0.0.2"
    assert parse_facts(by_launcher).address == "127.0.0.1"


def test_log_directory_depends_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Logs are in the state directory on the notebook's machine, and on the local disk elsewhere, even if it is not writable."""
    monkeypatch.setenv("MHNB_HOME", "/mhnb/home")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    local, remote = (probe_script.collect_facts([], is_notebooks=own)["disks"][0] for own in (True, False))
    assert (local["use"], local["folder"]) == ("logs", "/mhnb/home")
    assert (remote["use"], remote["folder"], remote["error"]) == ("logs", str(tmp_path), "")
    monkeypatch.setattr(tempfile, "gettempdir", _raise_no_temporary_directory)
    monkeypatch.setenv("TMPDIR", "/proc/none")
    full = probe_script.collect_facts([], is_notebooks=False)["disks"][0]
    assert full["folder"] == "/proc/none"
    assert full["error"]


def _raise_no_temporary_directory() -> str:
    raise FileNotFoundError("No usable temporary directory found")


def test_endpoints_of_the_caller_are_checked() -> None:
    """The caller gives the endpoints to reach, and receives the ports that were free."""
    report = run_ssh_preflight(
        (), SshOptions(), Requirements((Endpoint("hub", 0), Endpoint("coordinator", 0)), devices=2)
    )
    assert report.ok, report.findings
    assert {name: address for name, (address, _) in report.endpoints.items()} == dict.fromkeys(
        ("hub", "coordinator"), "127.0.0.1"
    )
