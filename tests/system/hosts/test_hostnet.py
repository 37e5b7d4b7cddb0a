"""Check that the simulated machines are separate, and that each fault has its described effect."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tests.system.hosts.hostnet import Host, HostNet, wait_until


def _ssh(net: HostNet, host: Host, command: str) -> subprocess.CompletedProcess[str]:
    words = ["ssh", "-F", str(net.ssh_config), "-o", "ConnectTimeout=3", host.name, command]
    return subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def _round_trip_s(net: HostNet, host: Host) -> float | None:
    """Return the seconds for a TCP connection; None if there is none within a second."""
    began = time.monotonic()
    try:
        with socket.create_connection((host.address, 22), 1):
            return time.monotonic() - began
    except OSError:
        return None


def test_machines_are_separate(net: HostNet) -> None:
    """Over ssh each machine has its own name and address, and does not see the processes of this machine."""
    for host in net:
        output = _ssh(net, host, "hostname; hostname -i; test -e /proc/" + str(os.getpid()) + " || echo alone").stdout
        assert output.split() == [host.name, host.address, "alone"]


def test_machines_reach_each_other_by_name(net: HostNet) -> None:
    """A machine reaches the next one's sshd by its name."""
    program = f"import socket; print(socket.create_connection(({net[1].name!r}, 22), 5).recv(3))"
    assert net[0].run(sys.executable, "-c", program) == "b'SSH'\n"


@pytest.mark.parametrize("fault", [Host.unplug_cable, Host.cut_power, Host.kill_all], ids=lambda f: f.__name__)
def test_machine_answers_again_after_a_fault(net: HostNet, fault: Callable[[Host], None]) -> None:
    """While one machine is down the others continue, and it answers again when it is restored."""
    fault(net[1])
    assert _round_trip_s(net, net[1]) is None
    assert _round_trip_s(net, net[2]) is not None
    net[1].restore()
    wait_until(lambda: _round_trip_s(net, net[1]) is not None, "it is back")


def test_connection_is_silent_after_a_power_cut(net: HostNet) -> None:
    """A connection to a machine that lost its power stays silent; after `kill_all` it is closed."""
    for fault, expected in ((Host.cut_power, None), (Host.kill_all, b"")):
        with closing(socket.create_connection((net[3].address, 22), 5)) as link:
            assert link.recv(3) == b"SSH"
            link.recv(1000)
            fault(net[3])
            link.settimeout(1)
            got = _receive(link)
        assert got == expected
        net[3].restore()


def _receive(link: socket.socket) -> bytes | None:
    try:
        return link.recv(1)
    except TimeoutError:
        return None


def test_delay_slows_connections(net: HostNet) -> None:
    """With a delay of 100 ms in each direction a connection takes at least 200 ms, and less after `heal`."""
    net[1].delay_packets(100)
    wait_until(lambda: (_round_trip_s(net, net[1]) or 0) >= 0.2, "200 ms for there and back")
    net[1].heal()
    wait_until(lambda: (_round_trip_s(net, net[1]) or 1) < 0.2, "the cable is short again")


def test_bandwidth_limit_slows_transfers(net: HostNet) -> None:
    """At 1 Mbit/s, 300 kB take more than two seconds."""
    net[1].limit_bandwidth(1)
    began = time.monotonic()
    words = ["ssh", "-F", str(net.ssh_config), net[1].name, "head -c 300000 /dev/urandom"]
    assert len(subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout) == 300_000
    assert time.monotonic() - began > 2


def test_packets_are_dropped_at_the_given_rate(net: HostNet) -> None:
    """At 100 % loss no packet arrives; at 20 % a connection is still made."""
    net[1].drop_packets(100)
    assert _round_trip_s(net, net[1]) is None
    net[1].heal()
    net[1].drop_packets(20)
    wait_until(lambda: _round_trip_s(net, net[1]) is not None, "a connection at 20 % loss")


@pytest.mark.parametrize(("verdict", "error"), [("drop", TimeoutError), ("reject", ConnectionRefusedError)])
def test_firewall_blocks_one_port(net: HostNet, verdict: str, error: type[OSError]) -> None:
    """A blocked port does not answer, or refuses; other ports do answer."""
    net[1].run(sys.executable, "-c", _LISTENER)
    with socket.create_connection((net[1].address, 7001), 5):
        net[1].block_port(7001, verdict)
    with pytest.raises(error):
        socket.create_connection((net[1].address, 7001), 1)
    assert _round_trip_s(net, net[1]) is not None
    net[1].kill_programs()


_LISTENER = """
import os, socket, signal
server = socket.create_server(("", 7001))
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.pause()
"""


def test_file_is_replaced_on_one_machine_only(net: HostNet) -> None:
    """A replaced file has other text on one machine only, until the machine is restored."""
    net[1].replace_file("/etc/hosts", "127.0.1.1 beta\n")
    assert _ssh(net, net[1], "cat /etc/hosts").stdout == "127.0.1.1 beta\n"
    assert "127.0.1.1" not in _ssh(net, net[2], "cat /etc/hosts").stdout
    net[1].restore()
    assert "127.0.1.1" not in _ssh(net, net[1], "cat /etc/hosts").stdout


def test_small_disk_can_be_filled(net: HostNet, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A machine with a disk of 64 kB cannot write 100 kB."""
    folder = tmp_path_factory.mktemp("disk")
    net[1].mount_disk(folder, nbytes=65536)
    done = _ssh(net, net[1], f"head -c 100000 /dev/zero > {folder}/x")
    assert done.returncode != 0
    assert "No space left" in done.stderr


_ANOTHER_SESSION = """
import sys
from tests.system.hosts.hostnet import HostNet
with HostNet() as net:
    print(net.number, *(pid for host in net for pid in [host._init]), flush=True)
    sys.stdin.read()
"""


def _have_ended(pids: list[str]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_killed_session_leaves_no_machine(net: HostNet) -> None:
    """A concurrent session uses another number; its machines end when it is killed, and the next session removes the rest."""
    numbers = []
    for kill in (True, False):
        with subprocess.Popen(
            [sys.executable, "-c", _ANOTHER_SESSION], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as session:
            guard = threading.Timer(60, session.kill)
            guard.start()
            assert session.stdout is not None
            number, *inits = session.stdout.readline().split()
            numbers.append(number)
            if kill:
                session.kill()
            assert len(inits) == len(net.hosts)
            session.communicate()
            guard.cancel()
        wait_until(partial(_have_ended, inits), "the machines end")
    assert numbers[0] != str(net.number)
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert f"mhb{numbers[1]}:" not in links
