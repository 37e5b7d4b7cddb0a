"""Agreement server: takes part at the board for ranks of other hosts.

It is one process on the host of rank 0, with one thread. It exchanges proposals and decisions over TCP. What the ranks
of this machine do shows on the board, which the server polls as often as they do while a rank waits. It decides
nothing: `rank/guard/local_agreement.py` does, for these ranks as for those of this machine.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mhnb.core.addresses import parse_address
from mhnb.core.guard.agreement import (
    LAUNCH_DECISION,
    CellFinished,
    Decision,
    DescribeProgram,
    LaunchProposal,
    Propose,
    Withdraw,
    decode_from_rank,
    encode_decision,
)
from mhnb.core.messages import HostSpec, parse_hostspec
from mhnb.errors import InvalidRequest, LaunchError, UnknownMessage
from mhnb.rank.guard.local_agreement import (
    FAST_POLLS,
    INTERRUPTED,
    LONG_SLEEP_S,
    SHORT_SLEEP_POLLS,
    Participant,
    back_off,
    mark_rank_lost,
)
from mhnb.rank.guard.remote_agreement import agreement_peer, set_keep_alive
from mhnb.rank.guard.shared_board import SharedBoard
from mhnb.system.processes import end_with_parent
from mhnb.transport.addresses import listen_tcp
from mhnb.transport.server import FrameServer
from mhnb.types import Frame


def listen(url: str) -> socket.socket:
    """Open the board's port, on the one address that is named.

    Raises:
        LaunchError: the port cannot be opened.
    """
    try:
        address = parse_address(url, "board_url", kinds=("tcp",))
    except InvalidRequest as error:
        raise LaunchError(str(error)) from error
    try:
        listener = listen_tcp(address)
    except OSError as error:
        raise LaunchError(
            f"the launch-agreement service cannot listen at {url}: {error}; choose an address of this host and a free port"
        ) from error
    # The sockets that it accepts have the same options.
    set_keep_alive(listener)
    return listener


@dataclass(eq=False, slots=True)
class _Client:
    """A rank of another host that has connected."""

    peer: str
    """Its name in the frame server."""
    rank: int
    participant: Participant
    number: int = 0
    """Number of its latest proposal."""
    proposal: LaunchProposal | None = None
    """The proposal that waits for a decision."""
    is_posted: bool = False


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
        self._board, self._process_count = board, process_count
        self._expected = {agreement_peer(rank): rank for rank in ranks}
        """Ranks that have never connected."""
        self._clients: dict[str, _Client] = {}
        self._newcomers: list[_Client] = []
        self._waiting: dict[_Client, None] = {}
        self.frames = FrameServer(listener, key, handler=self, encrypt=True, drops_unverified=False, clock=clock)

    def serve(self) -> NoReturn:
        """Serve until killed: the supervisor ends the process."""
        idle_steps = 0
        while True:
            idle_steps = 0 if self.step(idle_steps) else idle_steps + 1

    def step(self, idle_steps: int) -> bool:
        """Handle messages and poll for waiting ranks; return whether anything happened.

        Args:
            idle_steps: how many steps before had no event: the more, the longer this one may take.
        """
        has_events = self.frames.poll(self._pause(idle_steps))
        if has_events:
            self._track_connections()
        return bool([client for client in tuple(self._waiting) if self._poll(client)] or has_events)

    def _pause(self, idle_steps: int) -> float | None:
        if not self._waiting:
            return None
        if idle_steps > FAST_POLLS + SHORT_SLEEP_POLLS:
            return LONG_SLEEP_S
        # The selector cannot wait for less than a millisecond.
        back_off(idle_steps)
        return 0.0

    def close(self) -> None:
        """Close every connection, and the listener; for tests."""
        self.frames.close()

    # -- connections

    def admit(self, peer: str) -> bool:
        """Admit a rank once; it is lost when its connection ends."""
        rank = self._expected.pop(peer, None)
        if rank is not None:
            self._clients[peer] = _Client(peer, rank, Participant(self._board, rank))
            self._newcomers.append(self._clients[peer])
        return rank is not None

    def _track_connections(self) -> None:
        """Welcome connected ranks, and mark disconnected ones as lost."""
        while self._newcomers:
            self._send_decision(self._newcomers.pop(), 0, LAUNCH_DECISION)
        for peer, why in self.frames.pop_violators():
            print(f"mhnb: rank {self._clients[peer].rank}: {why}", file=sys.stderr, flush=True)
        for peer in self.frames.pop_disconnected():
            client = self._clients.pop(peer)
            self._waiting.pop(client, None)
            mark_rank_lost(self._board, client.rank)

    # -- messages of ranks

    def handle(self, peer: str, frames: list[Frame]) -> None:
        """Handle a message of a rank."""
        client = self._clients[peer]
        message = decode_from_rank(frames, client.rank, self._process_count)
        match message:
            case Propose(number, proposal):
                if client.proposal is not None:
                    raise UnknownMessage(f"proposal {number} arrived while proposal {client.number} was still open")
                client.number, client.proposal, client.is_posted = number, proposal, False
                self._waiting[client] = None
                # At once: the rank's next message, say a withdrawal, then refers to a post, as on the board's own host.
                self._poll(client)
            case Withdraw(number, mark):
                self._withdraw(client, number, mark)
            case CellFinished(seq, ending):
                client.participant.end_cell(seq, ending)
            case DescribeProgram(fingerprint, outline):
                try:
                    self._board.record_outline(fingerprint, outline)
                except OSError as error:
                    # The disk is full: only a line in the text of a mismatch is missing.
                    print(f"mhnb: rank {client.rank}: {error}", file=sys.stderr, flush=True)

    def _withdraw(self, client: _Client, number: int, mark: int) -> None:
        reason = Decision("interrupt" if mark == INTERRUPTED else "cell ended")
        if number > client.number:
            # The rank was interrupted before it could send the proposal.
            client.number = number
            self._send_decision(client, number, reason)
        elif number == client.number and client.proposal is not None:
            # If it is too late, all have posted: the launch is decided either way.
            if client.is_posted:
                client.participant.try_withdraw(mark)
            self._finish_proposal(client, client.participant.decide() if client.is_posted else reason)

    # -- decisions

    def _poll(self, client: _Client) -> bool:
        """Poll the board for a waiting rank; return whether there was news."""
        participant, proposal = client.participant, client.proposal
        assert proposal is not None
        try:
            if not client.is_posted:
                client.is_posted = participant.try_propose(proposal)
                return client.is_posted
            if not participant.poll(is_interrupted=False):
                return False
            decision = participant.decide()
        except OSError as error:
            participant.try_withdraw()
            decision = Decision("refused", text=str(error))
        self._finish_proposal(client, decision)
        return True

    def _finish_proposal(self, client: _Client, decision: Decision) -> None:
        client.participant.stop_waiting()
        client.proposal = None
        del self._waiting[client]
        self._send_decision(client, client.number, decision)

    def _send_decision(self, client: _Client, number: int, decision: Decision) -> None:
        self.frames.send(client.peer, encode_decision(number, decision))


def run_server(spec: HostSpec, listener: socket.socket) -> NoReturn:
    """Run the agreement server of a cluster until killed."""
    board = SharedBoard(Path(spec.run_dir), spec.process_count)
    others = frozenset(range(spec.process_count)) - frozenset(spec.ranks)
    AgreementServer(listener, board, bytes.fromhex(spec.key), ranks=others, process_count=spec.process_count).serve()


def main() -> None:
    """Run the agreement server with the spec read from standard input."""
    end_with_parent(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    run_server(parse_hostspec(sys.stdin.readline()), listener)


if __name__ == "__main__":
    main()
