"""Whether the hub of a detachable cluster has clients, with real sockets of real processes."""

from __future__ import annotations

import socket
import subprocess
import sys

from mhnb.rank.supervisor import OrphanTimer, has_connections
from tests.system.hosts.hostnet import wait_until

_HUB = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
own = socket.create_connection(listener.getsockname())
accepted = [listener.accept()]
print(listener.getsockname()[1], flush=True)
while sys.stdin.readline():
    accepted.append(listener.accept())
    print("taken", flush=True)
"""


def test_only_other_processes_are_clients() -> None:
    """A connection of the hub to itself does not count; one of another process counts until it is closed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HUB], stdin=pipe, stdout=pipe, text=True) as hub:
        assert hub.stdout is not None
        assert hub.stdin is not None
        port = int(hub.stdout.readline())
        assert not has_connections(hub.pid)
        with socket.create_connection(("127.0.0.1", port)):
            hub.stdin.write("take\n")
            hub.stdin.flush()
            assert hub.stdout.readline() == "taken\n"
            assert has_connections(hub.pid)
        wait_until(lambda: not has_connections(hub.pid), "it has hung up")
        hub.stdin.close()


def test_timer_restarts_when_something_returns() -> None:
    """The time counts from the last moment with something left to drive or an attached notebook; a limit of 0 means never."""
    has_nothing_left = True
    timer = OrphanTimer(10.0, lambda: has_nothing_left)
    assert not timer.has_expired(False, 0.0)
    has_nothing_left = False
    assert not timer.has_expired(False, 5.0)
    has_nothing_left = True
    assert not timer.has_expired(False, 11.0)
    assert not timer.has_expired(False, 20.0)
    assert timer.has_expired(False, 22.0)
    never = OrphanTimer(0.0, lambda: True)
    assert not any(never.has_expired(False, now) for now in (0.0, 1e6))
