"""The ports of a hub: free ones, and another's at the same moment are others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mhnb.errors import PreflightFailed
from mhnb.transport.addresses import check_port_free, reserve_hub_ports


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """What the hubs of a test hold."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("apart", [0, 1, 250], ids=["same number", "neighbours", "a round later"])
def test_hubs_that_start_at_once_look_at_other_ports(
    apart: int, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty of them have no port in common, before any listens; also where containers with a network in common have the same numbers."""
    seen: set[int] = set()
    for hub in range(20):
        monkeypatch.setattr(os, "getpid", lambda hub=hub: 70_000 + hub * apart)
        found = set(reserve_hub_ports(24, held))
        assert len(found) == 24
        assert not seen & found
        seen |= found


def test_a_hub_that_has_ended_leaves_its_ports_to_another(held: ExitStack) -> None:
    """The block is held as long as the hub lives, and no longer."""
    with ExitStack() as ended:
        first = reserve_hub_ports(24, ended)
    assert reserve_hub_ports(24, held) == first


@pytest.mark.parametrize(
    ("address", "bound"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("*", ""), ("127.0.0.2", "127.0.0.1")]
)
def test_a_port_that_is_taken_is_left_out(address: str, bound: str) -> None:
    """Whoever listens there keeps it; at the hub's own address, and on loopback, where it speaks with itself wherever it listens."""
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.socket(family) as taken:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((bound if address == "*" else address, 0))
            except OSError as error:
                pytest.skip(f"this machine has no {address}: {error}")
        with ExitStack() as ended:
            taken.bind((bound, reserve_hub_ports(4, ended, address)[0]))
        with ExitStack() as held:
            found = reserve_hub_ports(4, held, address)
        assert taken.getsockname()[1] not in found
        assert len(found) == 4


def test_a_coordinator_that_cannot_listen_is_told_why() -> None:
    """A port that is held, and an address of another machine, want different cures."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        held = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(PreflightFailed, match="is taken by another process"):
            check_port_free(held)
    check_port_free(held)
    # An address for examples alone (RFC 5737): no machine's.
    with pytest.raises(PreflightFailed, match=r"192\.0\.2\.7 is no address of this machine"):
        check_port_free("192.0.2.7:5555")
