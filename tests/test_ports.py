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


def test_a_port_that_is_taken_is_left_out() -> None:
    """Whoever listens there keeps it."""
    first, *rest = find_hub_ports(4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        assert find_hub_ports(4)[:3] == rest
