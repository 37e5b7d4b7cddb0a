"""The supervisor of a host: a real process without ranks, on a real control connection."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest

from mhnb.core.flight import decode_flight, parse_flight
from mhnb.core.messages import CheckHost, Heartbeat, HostChecked, HostSpec, HostUp, Message, StopHost, format_hostspec
from mhnb.rank.flight import FlightRecorder, make_header
from mhnb.system.flight import flight_path
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


Supervised: TypeAlias = AbstractContextManager[tuple[SocketServer, subprocess.Popen[bytes]]]


@pytest.fixture
def supervise(tmp_path: Path, leftovers: None) -> Callable[[list[int]], Supervised]:
    """Start a detachable supervisor of some ranks, which it does not start yet; it is killed at the end, in case the test failed."""
    (tmp_path / "log").mkdir()

    @contextmanager
    def run(ranks: list[int]) -> Iterator[tuple[SocketServer, subprocess.Popen[bytes]]]:
        key = secrets.token_bytes(32)
        link = SocketServer(key)
        spec = HostSpec(
            link.url, key.hex(), 0, 1, 1, ranks, 1, "", {}, {}, "", str(tmp_path), starts_hub=False, is_detachable=True, staged_start=True
        )  # fmt: skip
        command = [sys.executable, "-P", "-m", "mhnb.rank.supervisor"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as host, closing(link):
            try:
                assert host.stdin is not None
                host.stdin.write(format_hostspec(spec).encode())
                host.stdin.flush()
                receive(link, HostUp)
                yield link, host
                link.send("s0", StopHost())
                assert host.wait(_LIMIT_S) == 0
            finally:
                host.kill()

    return run


def test_last_heartbeat_before_disconnect_counts(supervise: Callable[[list[int]], Supervised]) -> None:
    """A suspended supervisor obeys the notebook's last heartbeat, although its stdin was closed before it could read it."""
    with supervise([]) as (link, host):
        assert host.stdin is not None
        host.send_signal(signal.SIGSTOP)
        os.waitpid(host.pid, os.WUNTRACED)
        link.send("s0", Heartbeat(0, outlives_notebook=True))
        host.stdin.close()
        host.send_signal(signal.SIGCONT)
        assert receive(link, Heartbeat).outlives_notebook


@pytest.mark.slow
def test_recording_of_a_rank_is_sent(supervise: Callable[[list[int]], Supervised], tmp_path: Path) -> None:
    """The file of a rank, whose process may have ended, comes as it is; without one, or for another host's rank, the reason comes."""
    recorder = FlightRecorder()
    recorder.open(flight_path(tmp_path, 0), make_header(0, 1, 2))
    recorder.record("cell", 7)
    with supervise([0, 1]) as (link, _host):
        answers = []
        for request, rank in enumerate((0, 1, 2, "../0"), 1):
            link.send("s0", CheckHost(request, "flight", {"rank": rank}))
            answers.append(receive(link, HostChecked))
    assert [answer.request_id for answer in answers] == [1, 2, 3, 4]
    (event,) = parse_flight(0, decode_flight(answers[0].value)).events
    assert event.cell == 7
    assert [answer.error for answer in answers] == [
        "",
        f"{flight_path(tmp_path, 1)}: No such file or directory",
        "rank 2 is not on this host",
        "rank ../0 is not on this host",
    ]
