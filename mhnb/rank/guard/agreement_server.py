"""Agreement server: takes part at the board for every rank of another host, and sends each the decisions on its proposals.

It is one process on the host of rank 0, with one thread. Messages from ranks of other hosts arrive over TCP. What the ranks of this
machine do shows on the board, which the server polls as often as they do themselves while a rank waits. It decides nothing:
`rank/guard/local_agreement.py` does, for these ranks as for those of this machine.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from mhnb.core.guard.agreement import (
    LAUNCH_DECISION,
    CellFinished,
    Decision,
    DescribeProgram,
    LaunchProposal,
    Propose,
    RankMessage,
    Withdraw,
    decode_from_rank,
    encode_decision,
)
from mhnb.core.messages import HostSpec, parse_hostspec
from mhnb.errors import LaunchError, UnknownMessage
from mhnb.rank.guard.local_agreement import (
    FAST_POLLS,
    INTERRUPTED,
    LONG_SLEEP_S,
    SHORT_SLEEP_POLLS,
    Participant,
    back_off,
    mark_rank_lost,
)
from mhnb.rank.guard.remote_agreement import set_keep_alive, signer_names
from mhnb.rank.guard.shared_board import SharedBoard
from mhnb.system.processes import end_with_parent
from mhnb.transport.addresses import ACCEPT_PAUSE_S, RESOURCE_ERRNOS, max_unauthenticated
from mhnb.transport.framing import FrameDecoder, encode_frames
from mhnb.transport.security import FrameWriter, make_frame_reader, make_frame_writer

_BUFFER_NBYTES = 1 << 16
_UNAUTHENTICATED_NBYTES = 4096
"""The longest message of a peer that has not proved that it has the key."""
_LONGEST_NBYTES = 1 << 20
_BACKLOG = 1024


def listen(url: str) -> socket.socket:
    """Open the board's port, on the one address that is named.

    Raises:
        LaunchError: the port cannot be opened.
    """
    kind, _, host_and_port = url.partition(":")
    address, _, port = host_and_port.rpartition(":")
    address = address.strip("[]")
    if kind != "tcp" or not address or not port.isdecimal() or int(port) > 65535:
        raise LaunchError(f"board_url {url!r} is not tcp:ADDRESS:PORT with a port to 65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise LaunchError(
            f"the board cannot listen at {url}: {error}; name an address of this host, and a port that is free"
        ) from error


@dataclass(eq=False, slots=True)
class _Client:
    """The connection of a rank of another host; of a stranger, until it has proved that it has the key."""

    socket: socket.socket
    cutter: FrameDecoder = field(default_factory=lambda: FrameDecoder(_UNAUTHENTICATED_NBYTES))
    rank: int | None = None
    participant: Participant | None = None
    signer: FrameWriter | None = None
    number: int = 0
    """Number of its latest proposal."""
    proposal: LaunchProposal | None = None
    """The proposal that waits for a decision."""
    is_posted: bool = False
    unsent: bytearray = field(default_factory=bytearray)


class AgreementServer:
    """Serves the ranks of other hosts in one process.

    Args:
        listener: where the ranks of other hosts connect.
        board: this process's own view of it.
        key: the cluster's.
        ranks: those of other hosts.
        process_count: of the cluster.
        clock: seconds, rising.
    """

    def __init__(
        self,
        listener: socket.socket,
        board: SharedBoard,
        key: bytes,
        *,
        ranks: frozenset[int],
        process_count: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._accept_paused_until: float | None = None
        """Time until which no connection is accepted; None while the listener is watched."""
        self._listener, self._board, self._key = listener, board, key
        self._ranks, self._process_count = ranks, process_count
        self._verifier = make_frame_reader(key, encrypt=True)
        self._unauthenticated: dict[_Client, None] = {}
        """Oldest first."""
        self._most_unauthenticated = max_unauthenticated()
        self._waiting: dict[_Client, None] = {}
        self._clients_with_unsent: dict[_Client, None] = {}
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self.refused_count = 0
        """How many messages were not a rank's."""

    def serve(self) -> NoReturn:
        """Serve until killed: the supervisor ends the process."""
        idle_steps = 0
        while True:
            idle_steps = 0 if self.step(idle_steps) else idle_steps + 1

    def step(self, idle_steps: int) -> bool:
        """Handle what has arrived, and poll the board once for all waiting ranks; return whether anything has happened.

        Args:
            idle_steps: how many steps before had no event: the more, the longer this one may take.
        """
        events = self._selector.select(self._pause(idle_steps))
        if self._accept_paused_until is not None and self._clock() >= self._accept_paused_until:
            self._accept_paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for key, _ in events:
            act: Callable[[], None] = key.data
            act()
        for client in tuple(self._clients_with_unsent):
            self._flush(client)
        return bool([client for client in tuple(self._waiting) if self._poll(client)] or events)

    def _pause(self, idle_steps: int) -> float | None:
        if not self._waiting and not self._clients_with_unsent:
            return None if self._accept_paused_until is None else ACCEPT_PAUSE_S
        if idle_steps > FAST_POLLS + SHORT_SLEEP_POLLS:
            return LONG_SLEEP_S
        # The selector cannot wait for less than a millisecond.
        back_off(idle_steps)
        return 0.0

    def close(self) -> None:
        """Close every connection, and the listener; for tests."""
        for key in tuple(self._selector.get_map().values()):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            sock.close()
        self._selector.close()

    # -- connections

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in RESOURCE_ERRNOS and self._unauthenticated:
                # No descriptor is left: strangers must not keep a rank out.
                self._drop(next(iter(self._unauthenticated)))
            elif error.errno in RESOURCE_ERRNOS:
                # The connection waits in the system's queue: the selector would report it again and again.
                self._selector.unregister(self._listener)
                self._accept_paused_until = self._clock() + ACCEPT_PAUSE_S
            # Otherwise the peer disconnected before the accept.
            return
        accepted.setblocking(False)
        try:
            set_keep_alive(accepted)
        except OSError:
            # macOS refuses it if the stranger has disconnected.
            accepted.close()
            return
        client = _Client(accepted)
        self._unauthenticated[client] = None
        self._selector.register(accepted, selectors.EVENT_READ, partial(self._read, client))
        if len(self._unauthenticated) > self._most_unauthenticated:
            self._drop(next(iter(self._unauthenticated)))

    def _read(self, client: _Client) -> None:
        if client.socket.fileno() < 0:
            # A stranger that was dropped for another one at this very moment.
            return
        try:
            count = client.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            for frames in client.cutter.feed(self._buffer[:count]):
                self._handle_message(client, frames)
        except UnknownMessage as error:
            # A stranger, or a stream that cannot be parsed further.
            self.refused_count += 1
            if client.rank is not None:
                print(f"mhnb: rank {client.rank}: {error}", file=sys.stderr, flush=True)
            count = 0
        if count == 0:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        """Close a connection and mark its rank as lost, so that no rank waits for it."""
        self._selector.unregister(client.socket)
        for kept in (self._unauthenticated, self._waiting, self._clients_with_unsent):
            kept.pop(client, None)
        client.socket.close()
        if client.rank is not None:
            mark_rank_lost(self._board, client.rank)

    # -- messages of ranks

    def _handle_message(self, client: _Client, frames: list[memoryview]) -> None:
        if not frames:
            raise UnknownMessage("an empty message")
        if client.rank is None:
            self._authenticate(client, frames)
            return
        opened = self._verifier.verify(signer_names(client.rank)[0], frames)
        self._handle_request(client, decode_from_rank(opened, client.rank, self._process_count))

    def _authenticate(self, client: _Client, frames: list[memoryview]) -> None:
        """Admit a rank, which sends its number under the key; a copy of the message is not accepted.

        Raises:
            UnknownMessage: the peer is not a rank of another host.
        """
        name = bytes(frames[0])
        if len(name) > 9 or not name.isdigit() or int(name) not in self._ranks:
            raise UnknownMessage("not a rank of another host")
        rank = int(name)
        self._verifier.verify(signer_names(rank)[0], frames[1:])
        client.rank, client.participant = rank, Participant(self._board, rank)
        client.signer = make_frame_writer(self._key, signer_names(rank)[1], encrypt=True)
        client.cutter.limit_nbytes = _LONGEST_NBYTES
        del self._unauthenticated[client]
        self._send_decision(client, 0, LAUNCH_DECISION)

    def _handle_request(self, client: _Client, message: RankMessage) -> None:
        assert client.rank is not None
        match message:
            case Propose(number, proposal):
                if client.proposal is not None:
                    raise UnknownMessage(f"wish {number} came while wish {client.number} was still open")
                client.number, client.proposal, client.is_posted = number, proposal, False
                self._waiting[client] = None
                # At once: the rank's next message, say a withdrawal, then refers to a post, as on the board's own host.
                self._poll(client)
            case Withdraw(number, mark):
                self._withdraw(client, number, mark)
            case CellFinished(seq, ending):
                assert client.participant is not None
                client.participant.end_cell(seq, ending)
            case DescribeProgram(fingerprint, outline):
                try:
                    self._board.record_outline(fingerprint, outline)
                except OSError as error:
                    # The disk is full: only a line in the text of a mismatch is missing.
                    print(f"mhnb: rank {client.rank}: {error}", file=sys.stderr, flush=True)

    def _withdraw(self, client: _Client, number: int, mark: int) -> None:
        assert client.participant is not None
        reason = Decision("interrupt" if mark == INTERRUPTED else "cell ended")
        if number > client.number:
            # The rank was interrupted before it could send the proposal.
            client.number = number
            self._send_decision(client, number, reason)
        elif number == client.number and client.proposal is not None:
            # If it is too late, all have posted: the launch is decided either way.
            if client.is_posted:
                client.participant.withdraw(mark)
            self._finish_proposal(client, client.participant.decide() if client.is_posted else reason)

    # -- decisions

    def _poll(self, client: _Client) -> bool:
        """Poll the board for a rank that waits; return whether there was news for it."""
        participant, proposal = client.participant, client.proposal
        assert participant is not None
        assert proposal is not None
        if not client.is_posted:
            try:
                client.is_posted = participant.propose(proposal)
            except OSError as error:
                self._finish_proposal(client, Decision("refused", text=str(error)))
            return client.is_posted
        if not participant.poll(is_interrupted=False):
            return False
        self._finish_proposal(client, participant.decide())
        return True

    def _finish_proposal(self, client: _Client, decision: Decision) -> None:
        assert client.participant is not None
        client.participant.clear_waiting()
        client.proposal = None
        del self._waiting[client]
        self._send_decision(client, client.number, decision)

    def _send_decision(self, client: _Client, number: int, decision: Decision) -> None:
        assert client.signer is not None
        for piece in encode_frames(client.signer.sign(encode_decision(number, decision))):
            client.unsent += piece
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        """Send as much as the kernel accepts."""
        try:
            del client.unsent[: client.socket.send(client.unsent)]
        except BlockingIOError:
            self._clients_with_unsent[client] = None
        except OSError:
            # The next read finds the end of the stream, and drops the connection.
            client.unsent.clear()
        if client.unsent:
            self._clients_with_unsent[client] = None
        else:
            self._clients_with_unsent.pop(client, None)


def run_server(spec: HostSpec, listener: socket.socket) -> NoReturn:
    """Run the agreement server of a cluster until killed."""
    board = SharedBoard(Path(spec.run_dir), spec.process_count)
    others = frozenset(range(spec.process_count)) - frozenset(spec.ranks)
    AgreementServer(listener, board, bytes.fromhex(spec.key), ranks=others, process_count=spec.process_count).serve()


def main() -> None:
    """Run the agreement server in a new process: the spec comes on standard input, the port as a descriptor."""
    end_with_parent(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    run_server(parse_hostspec(sys.stdin.readline()), listener)


if __name__ == "__main__":
    main()
