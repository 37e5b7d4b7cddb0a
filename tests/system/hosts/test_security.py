"""A cluster on machines, and an attacker on their network without its keys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from mhnb.cluster.cluster import Cluster
from mhnb.core.messages import CellEnded, RankExited
from mhnb.core.output.events import Stream
from mhnb.errors import HostUnreachable
from mhnb.rank.guard.remote_agreement import RemoteAgreement
from mhnb.transport.client import TransportClient, connect
from tests.support.source import ROOT
from tests.system.hosts.cluster import Begin, check_sum, secret_keys
from tests.system.hosts.hostnet import Host, HostNet, wait_until
from tests.system.hosts.outsider import Port, find_ports, hold_open, send_noise

WAITING = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.05)\nprint('whole')"
"""A cell that runs until the test creates a file."""


def select_reachable(ports: list[Port], *processes: str) -> list[Port]:
    """Return the ports of these processes that are reachable from the network."""
    return [port for port in ports if port.process in processes and not port.address.startswith("127.")]


@pytest.mark.parametrize("encrypt", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_noise_on_ports_does_not_affect_cells(net: HostNet, begin: Begin, tmp_path: Path, encrypt: bool) -> None:  # noqa: FBT001
    """Scans, noise and open connections on mhnb's ports do not change the running cell or later ones."""
    cluster = begin(2, 1, encrypt=encrypt)
    ports = find_ports(net, cluster)
    own_ports = select_reachable(ports, "notebook", "hub", "delegate")
    assert {port.process for port in own_ports} == {"notebook", "hub", "delegate"}
    cell = cluster.submit(WAITING.format(path=str(tmp_path / "end")))
    for port in own_ports:
        send_noise(port)
    wait_until(lambda: cluster.refused_messages > 0, "what was shouted is counted")
    with hold_open(own_ports, count=80):
        (tmp_path / "end").touch()
        result = cluster.follow(cell)
        assert [rank.stdout for rank in result] == ["whole\n"] * 2
        check_sum(cluster)
    check_sum(cluster)
    assert cluster.state == "clean"


def test_every_port_is_bound_to_one_address(net: HostNet, begin: Begin) -> None:
    """No port listens on all interfaces: not the notebook's, the hub's, the agreement server's, JAX's coordinator's or gloo's."""
    addresses = {"127.0.0.1", net.gateway, *(host.address for host in net)}
    for port in find_ports(net, begin(2, 1)):
        assert port.address.removeprefix("::ffff:") in addresses, port


def test_peer_with_wrong_key_is_refused(net: HostNet, begin: Begin, tmp_path: Path) -> None:
    """A peer that names a rank but signs with another key ends no cell, kills no rank, and is counted."""
    cluster = begin(2, 1)
    url, wrong = cluster._resources.transport.url, b"w" * 32
    cell = cluster.submit(WAITING.format(path=str(tmp_path / "end")))
    before = cluster.refused_messages
    stranger = TransportClient(url, wrong, "r1")
    stranger.send(CellEnded(1, 1, "ok", [Stream("stdout", "forged\n")], 0.0))
    other = TransportClient(url, wrong, "s1")
    other.send(RankExited(1, None, 9, []))
    (agreement_port,) = select_reachable(find_ports(net, cluster), "delegate")
    with pytest.raises(HostUnreachable, match="refused rank 1"):
        RemoteAgreement(connect(f"tcp:{agreement_port.address}:{agreement_port.port}"), wrong, 1)
    (tmp_path / "end").touch()
    assert [rank.stdout for rank in cluster.follow(cell)] == ["whole\n"] * 2
    assert cluster.refused_messages >= before + 2
    check_sum(cluster)
    stranger.close()
    other.close()


@pytest.mark.parametrize("encrypt", [True, False])
def test_hub_answers_only_clients_with_its_keys(begin: Begin, encrypt: bool) -> None:  # noqa: FBT001
    """The hub answers clients with its curve key if encrypted, else with its signing key; ipyparallel never uses both."""
    cluster = begin(2, 1, encrypt=encrypt)
    hub = json.loads((cluster.log_dir.parent / "profile/security/ipcontroller-client.json").read_text())
    assert bool(hub.get("curve_serverkey")) is encrypt
    context = zmq.Context()
    try:
        wrong = {"curve_serverkey": zmq.curve_keypair()[0].decode()} if encrypt else {"key": "wrong"}
        stranger = request_connection(context, hub | wrong)
        plain = request_connection(context, hub | {"curve_serverkey": None, "key": "wrong"})
        friend = request_connection(context, hub)
        assert friend.poll(20_000)
        # The friend's request was sent last, so earlier requests would have been answered by now.
        assert not stranger.poll(0)
        assert not plain.poll(0)
    finally:
        context.destroy(linger=0)


def request_connection(context: zmq.Context[zmq.Socket[bytes]], hub: dict[str, Any]) -> zmq.Socket[bytes]:
    """Send the hub a connection request, as ipyparallel's client does; return the socket for the reply."""
    client = context.socket(zmq.DEALER)
    if hub.get("curve_serverkey"):
        client.curve_serverkey = hub["curve_serverkey"].encode()
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
    client.connect(f"{hub['interface']}:{hub['registration']}")
    client.sndtimeo = 10_000
    # A socket whose handshake is refused may lose its route to the hub between two frames, and could then never send
    # the rest.
    with suppress(zmq.Again):
        Session(key=hub["key"].encode()).send(client, "connection_request")
    return client


def _files(net: HostNet, cluster: Cluster) -> list[tuple[Host, str, str]]:
    """Return machine, mode and path of the cluster's files, the notebook's first."""
    places = [(net[0], cluster.log_dir.parent), *((host, f"/tmp/mhnb-*-{host.name}") for host in list(net)[:2])]
    find_options = f"-newer {net.ssh_config} -type f -printf '%m %p\\n'"
    return [
        (host, mode, path)
        for host, place in places
        for mode, path in (
            line.split(" ", 1) for line in host.run("sh", "-c", f"find {place} {find_options}").splitlines()
        )
    ]


def test_key_files_are_private_and_removed_on_stop(net: HostNet, begin: Begin) -> None:
    """Key files have mode 0600 in folders of mode 0700; after a stop, no file on any machine contains a key."""
    cluster = begin(2, 1)
    keys = secret_keys(cluster)
    modes = [mode for _, mode, path in _files(net, cluster) if "/security/" in path]
    assert modes == ["600"] * 4
    for host in list(net)[:2]:
        folders = host.run("sh", "-c", f"stat -c %a /tmp/mhnb-*-{host.name} /tmp/mhnb-*-{host.name}/*")
        assert set(folders.split()) == {"700"}
    cluster.stop()
    remaining = _files(net, cluster)
    assert {host.name for host, *_ in remaining} == {host.name for host in list(net)[:2]}
    for host, _, path in remaining:
        text = host.run("cat", path)
        assert not any(key in text for key in keys.values() if key), path


IMPOSTOR = (
    "import sys, jax\njax.distributed.initialize(sys.argv[1], num_processes=2, process_id=1, initialization_timeout=10)"
)


@pytest.mark.timeout(300)
def test_impostor_rank_ends_the_cluster(net: HostNet, begin: Begin) -> None:
    """Noise on the ports of JAX and gloo has no effect, but a process that claims to be a rank ends the cluster.

    JAX requires no key. This test records the risk: it costs a restart, but gives no wrong number. The page on
    security has the firewall rule.
    """
    cluster = begin(2, 1)
    jax_ports = [
        replace(port, address=port.address.removeprefix("::ffff:"))
        for port in select_reachable(find_ports(net, cluster), "rank")
    ]
    for port in jax_ports:
        send_noise(port)
    with hold_open(jax_ports, count=40):
        check_sum(cluster)
    check_sum(cluster)
    coordinator = cluster.run(
        "from jax._src import distributed\nprint(distributed.global_state.coordinator_address)", ranks="0"
    )
    address = coordinator.check()[0].stdout.strip()
    subprocess.run([sys.executable, "-c", IMPOSTOR, address], capture_output=True, check=False, timeout=120)
    wait_until(lambda: cluster.state == "dead", "the cluster has noticed", timeout_s=120)
    assert "SIGABRT" in cluster.reason
    fresh = cluster.restart()
    check_sum(fresh)
    fresh.stop()


_TRY_PORTS = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def knock(at):
    try:
        socket.create_connection(at, 3).close()
    except OSError as error:
        return type(error).__name__
    return "open"
ports = [tuple(at) for at in json.loads(sys.argv[1])]
with ThreadPoolExecutor(len(ports)) as pool:
    print(json.dumps(sorted(set(pool.map(knock, ports)))))
"""


def try_ports(host: Host, ports: list[Port]) -> list[str]:
    """Try every port from a machine; return each distinct result once."""
    places = json.dumps([[port.address.removeprefix("::ffff:"), port.port] for port in ports])
    return list(json.loads(host.run(sys.executable, "-c", _TRY_PORTS, places)))


@pytest.fixture
def rule(net: HostNet) -> Iterator[list[str]]:
    """The firewall commands of the security page, with the addresses of this net; their rules are removed at the end."""
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("nft add")]
    addresses = f"{net.gateway}, {net[0].address}, {net[1].address}"
    yield [line.replace("10.0.0.1, 10.0.0.2, 10.0.0.3", addresses) for line in lines]
    for host in list(net)[:2]:
        if host.is_on:
            host.run("sh", "-c", "nft delete table inet mhnb || true")


def test_documented_firewall_rule_closes_ports_to_outsiders(net: HostNet, begin: Begin, rule: list[str]) -> None:
    """The firewall rule of the security page closes the ports of JAX, gloo and the agreement server to machines outside the cluster."""
    cluster = begin(2, 1)
    check_sum(cluster)
    protected_ports = select_reachable(find_ports(net, cluster), "rank", "delegate")
    assert {port.machine for port in protected_ports} == {net[0].name, net[1].name}
    # Without the rule, another machine can connect.
    assert try_ports(net[2], protected_ports) == ["open"]
    assert any(net.gateway in line for line in rule)
    for host in list(net)[:2]:
        for line in rule:
            host.run("sh", "-c", line)
    assert try_ports(net[2], protected_ports) == ["TimeoutError"]
    assert try_ports(net[0], protected_ports) == try_ports(net[1], protected_ports) == ["open"]
    # Both existing connections and those of a new start work.
    check_sum(cluster)
    fresh = cluster.restart()
    check_sum(fresh)
    fresh.stop()
