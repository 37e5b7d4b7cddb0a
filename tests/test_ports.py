"""The ports of a hub: free ones, and another's at the same moment are others."""

from __future__ import annotations

import os
import socket

import pytest

from mhnb.ports import find_hub_ports


def test_hubs_that_start_at_once_look_at_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours in the list of processes, a hundred of them, have no port in common."""
    seen: set[int] = set()
    for pid in range(70_000, 70_100):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        found = set(find_hub_ports(24))
        assert len(found) == 24
        seen |= found
    # Some are taken on this machine, and their hub goes on into the next one's; most are not.
    assert len(seen) > 23 * 100


@pytest.mark.parametrize(("address", "bound"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("*", "")])
def test_a_port_that_is_taken_is_left_out(address: str, bound: str) -> None:
    """Whoever listens there keeps it; also where the hub is to listen at another kind of address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as taken:
        try:
            taken.bind((bound, find_hub_ports(4, address)[0]))
        except OSError as error:
            pytest.skip(f"this machine has no {address}: {error}")
        found = find_hub_ports(4, address)
        assert taken.getsockname()[1] not in found
        assert len(found) == 4
