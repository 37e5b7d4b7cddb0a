"""Ports of the hub: they are free, and hubs that start at the same moment get different ones."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mhnb.core.messages import HostUp
from mhnb.core.state.host_tracking import StartBarrier
from mhnb.errors import PreflightFailed
from mhnb.rank.guard.agreement_server import listen
from mhnb.transport.addresses import check_port_free, find_family, find_free_port, reserve_hub_ports
from mhnb.transport.client import connect
from mhnb.transport.server import SocketServer


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """The port reservations of a test."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("apart", [0, 1, 250], ids=["same number", "neighbours", "a round later"])
def test_hubs_that_start_together_get_distinct_ports(
    apart: int, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty hubs get distinct ports before any of them listens, even if containers on one network share process ids."""
    seen: set[int] = set()
    for hub in range(20):
        monkeypatch.setattr(os, "getpid", lambda hub=hub: 70_000 + hub * apart)
        found = set(reserve_hub_ports(24, held))
        assert len(found) == 24
        assert not seen & found
        seen |= found


def test_ports_of_an_ended_hub_are_free_again(held: ExitStack) -> None:
    """A hub reserves its block of ports only as long as it runs."""
    with ExitStack() as ended:
        first = reserve_hub_ports(24, ended)
    assert reserve_hub_ports(24, held) == first


@pytest.mark.parametrize(
    ("address", "bound"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("*", ""), ("127.0.0.2", "127.0.0.1")]
)
def test_port_in_use_is_not_reserved(address: str, bound: str) -> None:
    """Ports in use are left out: at the hub's own address, and on loopback, which a hub uses to talk to itself."""
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.socket(family) as listener:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((bound if address == "*" else address, 0))
            except OSError as error:
                pytest.skip(f"this machine has no {address}: {error}")
        with ExitStack() as ended:
            listener.bind((bound, reserve_hub_ports(4, ended, address)[0]))
        with ExitStack() as reservation:
            found = reserve_hub_ports(4, reservation, address)
        assert listener.getsockname()[1] not in found
        assert len(found) == 4


def test_unusable_coordinator_address_names_the_cause() -> None:
    """The error for a port in use differs from the one for another machine's address, because the fixes differ."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        used_address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(PreflightFailed, match="is in use by another process"):
            check_port_free(used_address)
    check_port_free(used_address)
    # An address reserved for documentation (RFC 5737), which no machine has.
    with pytest.raises(PreflightFailed, match=r"192\.0\.2\.7 is not an address of this machine"):
        check_port_free("192.0.2.7:5555")


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_coordinator_address_of_both_families_is_checked(host: str, text: str) -> None:
    """A port in use is found, and a free one is accepted, at an IPv4 and at an IPv6 address."""
    try:
        holder = socket.create_server((host, 0), family=find_family(host))
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with holder:
        address = f"{text}:{holder.getsockname()[1]}"
        with pytest.raises(PreflightFailed, match="is in use by another process"):
            check_port_free(address)
    check_port_free(address)


@pytest.mark.parametrize("address", ["5555", ":5555", "node1:", "node1:65536", "node1:0", "[::1]"])
def test_coordinator_address_without_a_usable_port_is_refused(address: str) -> None:
    """An address that is not a host and a port from 1 to 65535 is refused with its name, its value and the range."""
    with pytest.raises(PreflightFailed, match=rf"^coordinator_address '{re.escape(address)}'.*65535"):
        check_port_free(address)


@pytest.mark.parametrize("is_unbracketed", [False, True], ids=["as written now", "as earlier versions wrote it"])
def test_notebook_is_reached_at_an_ipv6_address(is_unbracketed: bool) -> None:  # noqa: FBT001
    """The address that a notebook gives its hosts leads them back to it, also over IPv6."""
    try:
        server = SocketServer(b"k" * 32, address="::1")
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    try:
        assert re.fullmatch(r"tcp:\[::1\]:\d+", server.url)
        url = re.sub(r"[\[\]]", "", server.url) if is_unbracketed else server.url
        connect(url).close()
    finally:
        server.close()


def test_ranks_reach_the_board_at_an_ipv6_address() -> None:
    """The board's host listens at the address that the notebook sends to all hosts, also over IPv6."""
    try:
        free_port = find_free_port("::1")
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    barrier = StartBarrier([0], hub=1)
    barrier.record(0, HostUp(0, 7, "a", None, "::1", [20001, free_port]))
    barrier.record(1, HostUp(1, 8, "here", 9, connection="{}"))
    begin = barrier.open()
    assert (begin.coordinator_address, begin.board_url) == ("[::1]:20001", f"tcp:[::1]:{free_port}")
    with listen(begin.board_url):
        connect(begin.board_url).close()
