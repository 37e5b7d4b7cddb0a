"""`mhnb doctor` on four simulated machines: it reports nothing if all is well, and names each fault with its fix."""

from __future__ import annotations

import argparse
import importlib.metadata
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mhnb.cluster import preflight
from mhnb.cluster.flags import add_doctor_flags
from mhnb.cluster.preflight import preflight_error
from mhnb.core.preflight_facts import PreflightReport
from mhnb.errors import LaunchError
from tests.support.leftovers import wait_for_end
from tests.support.source import ROOT
from tests.system.hosts.faults import jax_metadata, run_doctor
from tests.system.hosts.hostnet import NAMES, Host, HostNet, wait_until

_PORT = 24_111
_HOSTS = ",".join(NAMES)


class Doctor:
    """Runs `mhnb doctor` on the four machines."""

    def __init__(self, net: HostNet, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._net, self._capsys = net, capsys
        self.home, self.bin = folder / "home", folder / "bin"
        for each in (self.home, self.bin):
            each.mkdir()
        # A file of its own, so that it can differ or be missing on one machine.
        self.python = self.bin / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def _flags(self, hosts: str, config: Path | None, python: str) -> list[str]:
        ssh_config = str(config or self._net.ssh_config)
        named = ["--python", python] if python else []
        environment = ["--env", f"TMPDIR={self.home}", "--env", f"PYTHONPATH={ROOT}"]
        return [
            "--hosts",
            hosts,
            "--ssh-config",
            ssh_config,
            *named,
            "--connect-timeout",
            "5",
            "--devices",
            "2",
            *environment,
        ]

    def __call__(self, *words: str, hosts: str = _HOSTS, config: Path | None = None) -> tuple[int, list[str]]:
        """Run `mhnb doctor`; return its exit code and its lines."""
        return run_doctor(self._capsys, *self._flags(hosts, config, str(self.python)), *words)

    def report(self, *words: str, hosts: str = _HOSTS, python: str | None = None) -> PreflightReport:
        """Return the report of `mhnb doctor` as a value; an empty `python` is the default one."""
        parser = argparse.ArgumentParser()
        add_doctor_flags(parser)
        flags = self._flags(hosts, None, str(self.python) if python is None else python)
        return preflight.run_doctor(parser.parse_args([*flags, *words]))

    def find_failure(self, *words: str, config: Path | None = None) -> str:
        """Run `mhnb doctor` and check that it finds one failure; return that failure with its fix."""
        code, lines = self(*words, config=config)
        assert (code, lines[0]) == (1, "preflight · 4 hosts · 1 failure"), "\n".join(lines)
        return "\n".join(lines[6:])


@pytest.fixture
def doctor(net: HostNet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run `mhnb doctor` on the machines."""
    return Doctor(net, tmp_path, capsys)


def test_machines_without_faults_pass(doctor: Doctor, net: HostNet) -> None:
    """Without a fault nothing is reported, each row has the machine's own address, and the exit code is 0."""
    code, lines = doctor("--coordinator-port", str(_PORT), "--address", net.gateway)
    assert code == 0
    assert lines[0] == "preflight · 4 hosts · all well"
    assert lines[1].split() == (
        f"login python jax mhnb devices link hub port {_PORT} peers name→address clock disk".split()
    )
    for host, line in zip(net, lines[2:6], strict=True):
        assert line.split()[:2] == [host.name, "ok"]
        assert host.address in line.split()
        assert importlib.metadata.version("jax") in line.split()
    assert len(lines) == 6


def test_refused_start_has_the_table(doctor: Doctor, net: HostNet) -> None:
    """The error contains the table and its findings, has the report, and can be pickled."""
    net[0].block_port(_PORT)
    error = pickle.loads(pickle.dumps(preflight_error(doctor.report("--coordinator-port", str(_PORT)))))  # noqa: S301
    assert str(error).startswith("preflight · 4 hosts · 1 failure · ")
    assert "beta, gamma and delta cannot reach JAX's coordinator on alpha" in str(error)
    assert error.report.failures[0].hosts == ("beta", "gamma", "delta")


# -- logins


def test_default_python_is_the_notebooks_own(doctor: Doctor, net: HostNet) -> None:
    """Without `--python` the notebook's own interpreter is used, which machines that share a disk have."""
    report = doctor.report(hosts="alpha,beta", python="")
    assert report.ok, report.findings


def test_refused_login_is_reported(doctor: Doctor, net: HostNet) -> None:
    """A machine that refuses the key is named with ssh's message; the other machines are still checked."""
    net[1].replace_file(net.folder / "authorized_keys", "")
    finding = doctor.find_failure()
    assert finding.startswith("✗ beta: refused the login: root@")
    assert "Permission denied (publickey)" in finding
    assert f"test with: ssh -F {net.ssh_config} beta" in finding


def test_changed_host_key_is_reported(doctor: Doctor, net: HostNet, tmp_path: Path) -> None:
    """The error for a changed host key names the machine, and the command that removes the known key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known = (net.folder / "known_hosts").read_text().splitlines()
    known[1] = f"{net[1].name},{net[1].address} {other}"
    text = net.ssh_config.read_text().replace(
        str(net.folder / "known_hosts"), str(net.new_file("\n".join(known) + "\n"))
    )
    finding = doctor.find_failure(config=net.new_file(text))
    assert finding.startswith("✗ beta: has a different host key than the known one: Host key for ")
    assert "ssh-keygen -R beta" in finding


@pytest.mark.parametrize("fault", [Host.cut_power, Host.unplug_cable], ids=lambda fault: fault.__name__)
@pytest.mark.sample(1)
def test_machine_that_is_off_is_reported(doctor: Doctor, net: HostNet, fault: Callable[[Host], None]) -> None:
    """A machine that does not answer within the login's time limit is reported, and no other machine is."""
    fault(net[2])
    assert doctor.find_failure().startswith("✗ gamma: does not respond: ssh: connect to host")


def test_missing_python_is_reported(doctor: Doctor, net: HostNet) -> None:
    """If the login succeeds but the interpreter is missing, the error says so."""
    net[1].mount_disk(doctor.bin, nbytes=4096)
    assert doctor.find_failure().startswith(
        f"✗ beta: has no such Python: no python: {doctor.python}\n  install it on beta"
    )


# -- software and disk


def test_different_jax_version_is_reported(doctor: Doctor, net: HostNet) -> None:
    """A machine with another version of JAX is reported, because JAX itself would not notice."""
    version = importlib.metadata.version("jax")
    net[3].replace_file(*jax_metadata("0.99.1"))
    finding = doctor.find_failure()
    assert finding.startswith(f"✗ delta has jax 0.99.1, the other hosts have {version}: JAX does not check this")
    assert f"on delta: {sys.executable} -m pip install 'jax=={version}'" in finding


def test_missing_package_is_reported(doctor: Doctor, net: HostNet) -> None:
    """If a machine's Python has no mhnb, that is reported with the command that installs it, and the others are checked."""
    net[1].replace_file(doctor.python, f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', executable=True)
    finding = doctor.find_failure()
    assert finding.startswith("✗ beta: mhnb is not installed for this Python: ")
    assert "python -m pip install mhnb" in finding


def test_full_disk_is_reported(doctor: Doctor, net: HostNet) -> None:
    """A machine that cannot write a megabyte into the log folder is reported."""
    net[2].mount_disk(doctor.home, nbytes=65536)
    finding = doctor.find_failure()
    assert finding.startswith(f"✗ gamma cannot write logs to {doctor.home}: No space left on device\n")
    assert "TMPDIR" in finding


def test_clock_difference_is_a_warning(doctor: Doctor, net: HostNet) -> None:
    """A clock that is an hour ahead gives a warning.

    The clock of one machine cannot be changed separately here, so its Python gets another time (libfaketime).
    """
    if (faketime := shutil.which("faketime")) is None:
        pytest.skip("faketime is not installed")
    net[1].replace_file(doctor.python, f'#!/bin/sh\nexec {faketime} -f +1h {sys.executable} "$@"\n', executable=True)
    code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 4 hosts · 1 warning")
    # Within a second of an hour, if nothing stalls.
    assert re.match(r"! beta's clock is 3(599|600|601) s ahead of this one", lines[6]), lines


# -- names and ports


def test_host_name_on_loopback_is_a_warning(doctor: Doctor, net: HostNet) -> None:
    """A host name on loopback, as Debian installs it, gives a warning with the address that is used instead."""
    net[1].replace_file("/etc/hosts", net.hosts_file(own=("beta", "127.0.1.1")))
    code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 4 hosts · 1 warning")
    assert lines[6:] == [
        "! beta's name resolves to loopback, so other ranks cannot use it to reach that host for CPU collectives",
        f"  mhnb will use {net[1].address} instead; to fix it, edit /etc/hosts on beta",
    ]


def test_address_of_another_machine_is_refused(doctor: Doctor, net: HostNet) -> None:
    """An address that is not this machine's is refused before any login."""
    with pytest.raises(LaunchError, match=rf"cannot listen at {re.escape(net[2].address)} .*\n.*--address"):
        doctor.report("--address", net[2].address)


@pytest.mark.parametrize(("verdict", "why"), [("drop", "no answer"), ("reject", "connection refused")])
@pytest.mark.sample(1)
def test_unreachable_notebook_is_reported(doctor: Doctor, net: HostNet, verdict: str, why: str) -> None:
    """A host that does not reach the notebook says so by its login, and the other hosts are checked."""
    net[2].block_outgoing(net.gateway, verdict)
    finding = doctor.find_failure()
    assert finding.startswith(f"✗ gamma cannot reach this notebook on this machine at {net.gateway}:")
    assert f": {why} (a firewall that {verdict}s" in finding


@pytest.mark.parametrize(("verdict", "why"), [("drop", "no answer"), ("reject", "connection refused")])
@pytest.mark.sample(1)
def test_blocked_coordinator_port_is_reported(doctor: Doctor, net: HostNet, verdict: str, why: str) -> None:
    """For a silent and for a rejecting firewall, the report says which hosts cannot reach which port, and what to open."""
    net[0].block_port(_PORT, verdict)
    finding = doctor.find_failure("--coordinator-port", str(_PORT))
    assert finding.startswith(
        f"✗ beta, gamma and delta cannot reach JAX's coordinator on alpha at {net[0].address}:{_PORT}: {why} (a firewall that {verdict}s"
    )
    assert f"open TCP port {_PORT} in the firewall of alpha" in finding


def test_host_that_accepts_only_ssh_is_reported(doctor: Doctor, net: HostNet) -> None:
    """A machine that accepts only ssh is reported, because CPU collectives could not connect to it."""
    net[1].block_port("1024-65535")
    finding = doctor.find_failure()
    assert finding.startswith(
        "✗ beta cannot be reached from any other host: no answer. CPU collectives connect all pairs"
    )


@pytest.fixture
def holder(net: HostNet) -> Iterator[None]:
    """Run a program on the first machine that listens on the coordinator's port."""
    net[0].run(sys.executable, "-c", _LISTENER, str(_PORT))
    yield
    net[0].kill_programs()


_LISTENER = """
import os, socket, signal, sys
server = socket.create_server(("", int(sys.argv[1])))
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.pause()
"""


def test_used_coordinator_port_is_reported(doctor: Doctor, net: HostNet, holder: None) -> None:
    """A used port is reported once, with its machine and a command that finds the process."""
    finding = doctor.find_failure("--coordinator-port", str(_PORT))
    assert finding.startswith(
        f"✗ alpha cannot listen at {net[0].address}:{_PORT} for JAX's coordinator: Address already in use\n"
    )
    assert f"(find it on alpha: ss -ltnp 'sport = :{_PORT}')" in finding


def test_machine_with_two_names_is_reported(doctor: Doctor, net: HostNet) -> None:
    """Two names of the same machine are reported."""
    code, lines = doctor(hosts=f"alpha,beta,{net[0].address}")
    assert code == 1
    assert f"✗ alpha and {net[0].address} are the same machine (alpha, {net[0].address})" in lines


def test_ctrl_c_ends_doctor_and_its_ssh(doctor: Doctor, net: HostNet) -> None:
    """Ctrl-C while a machine does not answer ends `mhnb doctor` and every ssh of it."""
    net[1].unplug_cable()
    words = [
        "--hosts",
        _HOSTS,
        "--ssh-config",
        str(net.ssh_config),
        "--python",
        str(doctor.python),
        "--connect-timeout",
        "600",
    ]
    with subprocess.Popen([sys.executable, "-m", "mhnb", "doctor", *words], stderr=subprocess.PIPE) as command:
        try:
            # The supervisors of the machines that answer wait for the one that does not.
            wait_until(
                lambda: len(_ssh_children(command.pid)) == 4 and len(net[0].pids()) > 1, "the look is on its way"
            )
            sshs = _ssh_children(command.pid)
            command.send_signal(signal.SIGINT)
            _, stderr = command.communicate(timeout=60)
        finally:
            command.kill()
    assert stderr == b"mhnb doctor: interrupted\n"
    assert wait_for_end(sshs, 60) == []


def _ssh_children(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if child.name() == "ssh"]
