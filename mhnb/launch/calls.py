"""TCP server for probes that cannot read requests from standard input: MPI passes it to the first process only.

Answers use the same connection, because an mpiexec may mix up output that several processes print at a time.

Each side proves that it knows the secret in a file that only this user can read. A peer that cannot is disconnected without an answer.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from mhnb.errors import LaunchError
from mhnb.launch.probe import sign_challenge
from mhnb.system.ports import ACCEPT_PAUSE_S, RESOURCE_ERRNOS

__all__ = ["ProbeServer"]

_CONNECT_TIMEOUT_S = 8.0
_PROOF_LENGTH = 64
_NUMBER_LENGTH = 6


class ProbeServer:
    """Accepts the connections of one launch's probes, and sends each line to all of them.

    Args:
        address: address of this machine, as the probes reach it.

    Raises:
        LaunchError: the address does not belong to this machine.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._secret = secrets.token_hex(16)
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=512)
        except OSError as error:
            raise LaunchError(
                f"cannot listen at {address} ({error.strerror}); give an address of this machine that the hosts reach: --address 10.0.0.1"
            ) from error
        self._address = address
        self._connections: dict[int, socket.socket] = {}
        self._received: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="mhnb-calls", daemon=True).start()

    @property
    def connection_info(self) -> dict[str, Any]:
        """Return what a probe needs to connect, including the secret."""
        port = self._listener.getsockname()[1]
        return {"address": self._address, "port": port, "word": self._secret, "timeout_s": _CONNECT_TIMEOUT_S}

    def send(self, line: bytes) -> None:
        """Send a line to every connected probe."""
        with self._lock:
            for connection in self._connections.values():
                # A probe that has ended reports the reason in the log.
                with contextlib.suppress(OSError):
                    connection.sendall(line)

    def received_lines(self) -> Iterator[str]:
        """Yield the lines received since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._received.get_nowait()

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._closed.set()
        # Otherwise the accepting thread would keep the port open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections.values():
                # The reading thread closes the socket when it ends.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in RESOURCE_ERRNOS and not self._closed.wait(ACCEPT_PAUSE_S):
                    # The caller waits in the system's queue.
                    continue
                # The listener was closed.
                return
            threading.Thread(target=self._serve_probe, args=(connection,), daemon=True).start()

    def _serve_probe(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.sendall(sign_challenge(self._secret, "notebook"))
            reply = _receive(connection, _PROOF_LENGTH + _NUMBER_LENGTH)
            number = reply[_PROOF_LENGTH:].strip()
            proof = sign_challenge(self._secret, f"probe {int(number)}") if number.isdigit() else b""
            if not hmac.compare_digest(proof, reply[:_PROOF_LENGTH]):
                return
            with self._lock:
                self._connections[int(number)] = connection
                connection.sendall(b"!")
            connection.settimeout(None)
            # A frozen machine would block `sendall`, and so delay the shutdown of all.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_CONNECT_TIMEOUT_S), 0))
            with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._received.put(line)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := connection.recv(count - len(data))):
        data += chunk
    return data
