"""A supervisor that outlives its notebook: a real process without ranks, on a real control connection."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from mhnb.core.messages import Heartbeat, HostSpec, HostUp, Message, StopHost, format_hostspec
from mhnb.transport.server import SocketServer

_LIMIT_S = 60.0
_Kind = TypeVar("_Kind", bound=Message)


def receive(link: SocketServer, kind: type[_Kind]) -> _Kind:
    """Return the next message of a kind; other messages are dropped."""
    end = time.monotonic() + _LIMIT_S
    while (left_s := end - time.monotonic()) > 0:
        for message in link.poll(left_s):
            if isinstance(message, kind):
                return message
        assert not link.pop_disconnected(), "it has ended"
    raise AssertionError(f"no {kind.__name__} within {_LIMIT_S:g} s")


@contextmanager
def killed_at_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process at the end, in case the test failed."""
    try:
        yield
    finally:
        process.kill()


def test_last_heartbeat_before_disconnect_counts(tmp_path: Path, leftovers: None) -> None:
    """A suspended supervisor obeys the notebook's last heartbeat, although its stdin was closed before it could read it."""
    (tmp_path / "log").mkdir()
    key = secrets.token_bytes(32)
    link = SocketServer(key)
    spec = HostSpec(
        link.url, key.hex(), 0, 1, 1, [], 1, "", {}, {}, "", str(tmp_path), starts_hub=False, is_detachable=True, staged_start=True
    )  # fmt: skip
    command = [sys.executable, "-P", "-m", "mhnb.rank.supervisor"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as host, killed_at_end(host), closing(link):
        assert host.stdin is not None
        host.stdin.write(format_hostspec(spec).encode())
        host.stdin.flush()
        receive(link, HostUp)
        host.send_signal(signal.SIGSTOP)
        os.waitpid(host.pid, os.WUNTRACED)
        link.send("s0", Heartbeat(0, outlives_notebook=True))
        host.stdin.close()
        host.send_signal(signal.SIGCONT)
        assert receive(link, Heartbeat).outlives_notebook
        link.send("s0", StopHost())
        assert host.wait(_LIMIT_S) == 0
