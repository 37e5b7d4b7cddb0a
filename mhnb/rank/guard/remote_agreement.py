"""Agreement backend of a rank on a host without the board.

The waiting thread sends each message whole; another thread reads what arrives, so that an exception out of a user's signal handler
cannot lose half of a message. When the connection is lost, every wait ends with an error, and nothing is launched without a decision.
There is no timeout here either: the kernel detects that the other machine is gone.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mhnb.core.guard.agreement import (
    CellFinished,
    Decision,
    DescribeProgram,
    LaunchProposal,
    Propose,
    RankMessage,
    Withdraw,
    decode_decision,
    encode_from_rank,
)
from mhnb.core.messages import HostSpec
from mhnb.errors import HostUnreachable, LaunchError, RanksLost, UnknownMessage
from mhnb.rank.guard.local_agreement import (
    CELL_ENDED,
    INTERRUPTED,
    NO_AGREEMENT,
    AgreementBackend,
    Participant,
    retry_through_signals,
)
from mhnb.rank.guard.shared_board import InterruptFlag, SharedBoard
from mhnb.transport.client import FrameClient, connect

_CONNECT_LIMIT_S, _ATTEMPT_S, _RETRY_S = 110.0, 10.0, 0.1
"""How long the board's host may take to listen, less than a start may take; one attempt; and the time between two attempts."""
_POLL_S = 0.02
"""Time between two checks whether this rank was interrupted. A decision wakes the wait at once."""
_WELCOME_POLLS = 1500
"""How many such intervals the board's host may take to admit a rank; its challenge may take as long."""
_PEER_TIMEOUT_S = 60
"""A host that does not answer the kernel for this long is gone: JAX itself gives a rank as long."""
_LONGEST_NBYTES = 1 << 24


def agreement_peer(rank: int) -> str:
    """Return a rank's name in the agreement's frame server.

    It differs from the rank's name on the control connection, so that neither server accepts the other's greetings.
    """
    return f"r{rank}>board"


def set_keep_alive(connected: socket.socket) -> None:
    """Set up a socket to send at once and detect lost peers."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PEER_TIMEOUT_S // 3)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PEER_TIMEOUT_S // 6)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PEER_TIMEOUT_S * 1000)


def connect_to_board(
    url: str,
    limit_s: float = _CONNECT_LIMIT_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> socket.socket:
    """Connect to the board's host, which may still be starting.

    Raises:
        HostUnreachable: nothing listened there in time.
    """
    until = clock() + limit_s
    while True:
        try:
            return connect(url, _ATTEMPT_S)
        except OSError as error:
            if clock() >= until:
                raise HostUnreachable(
                    f"the host of rank 0 did not answer at {url} within {limit_s:g} s ({error})."
                    " It runs the launch-agreement service, so its address and port must be reachable from here\n"
                    "  Or: start with --guard parity, which does not need it"
                ) from error
        sleep(_RETRY_S)


class RemoteAgreement:
    """Agreement backend of one rank.

    Args:
        connected: connection to the board's host; owned by this object from now on.
        key: the cluster's.
        rank: this rank.

    Raises:
        HostUnreachable: the peer does not have the key, or does not answer.
    """

    def __init__(self, connected: socket.socket, key: bytes, rank: int) -> None:
        self._rank = rank
        self._number = self._decided_number = 0
        self._proposal: LaunchProposal | None = None
        self._outlines: deque[DescribeProgram] = deque()
        """Outlines that are not yet sent."""
        self._decisions: dict[int, Decision] = {}
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._has_ended = False
        """Whether the connection has ended; set by the thread alone, after everything that arrived."""
        set_keep_alive(connected)
        try:
            self._client = FrameClient(
                connected,
                key,
                agreement_peer(rank),
                encrypt=True,
                challenge_s=_WELCOME_POLLS * _POLL_S,
                limit_nbytes=_LONGEST_NBYTES,
            )
        except OSError as error:
            connected.close()
            raise self._not_admitted(str(error)) from error
        self._thread = threading.Thread(target=self._receive, name="mhnb-board", daemon=True)
        # For debugpy, which otherwise halts this thread with the main thread, and leaves it halted after an interrupt.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.start()
        self._wait_for_welcome()

    def _wait_for_welcome(self) -> None:
        """Wait for decision 0."""
        for _ in range(_WELCOME_POLLS):
            if self._is_decided(0):
                break
            self._wait_for_wake()
        if self._decisions.pop(0, None) is None:
            reason = self._client.end_reason
            self.close()
            raise self._not_admitted(reason or "no answer")

    def _not_admitted(self, reason: str) -> HostUnreachable:
        return HostUnreachable(
            f"the launch-agreement service on the host of rank 0 refused rank {self._rank} ({reason});"
            " check whether another cluster uses that address"
        )

    # -- the methods of a backend

    def end_cell(self, seq: int, ending: int) -> None:
        """Send the cell's end; without a connection, the board knows already."""
        self._send(CellFinished(seq, ending))

    def describe_program(self, fingerprint: int, outline: str) -> None:
        """Keep the outline for the next proposal.

        An exception in the middle of a send here would leave half a message in the stream.
        """
        self._outlines.append(DescribeProgram(fingerprint, outline))

    def propose(self, proposal: LaunchProposal) -> None:
        """Number the proposal. `wait` sends it, because `withdraw` follows an exception there."""
        self._number += 1
        self._proposal = proposal
        self._decisions.clear()

    def wait(self, is_interrupted: Callable[[], bool]) -> None:
        """Send the proposal and wait for its decision.

        Raises:
            RanksLost: the connection has ended without one.
        """
        number, has_withdrawn = self._number, False
        assert self._proposal is not None
        while self._outlines:
            self._send(self._outlines.popleft())
        self._send(Propose(number, self._proposal))
        while not self._is_decided(number):
            if not has_withdrawn and is_interrupted():
                has_withdrawn = True
                self._send(Withdraw(number, INTERRUPTED))
            self._wait_for_wake()
        if number not in self._decisions:
            raise RanksLost(
                f"nothing was launched on rank {self._rank}\n  it lost the connection to the launch-agreement service on the host of "
                f"rank 0: {self._client.end_reason}\n  Fix: %mhjax restart --replay",
                ranks=(self._rank,),
            )

    def withdraw(self) -> bool:
        """Request the proposal back, and wait for the decision on it."""
        if self._decided_number == self._number:
            return True
        retry_through_signals(self._send_withdrawal)
        decision = self._decisions.get(self._number)
        return decision is None or decision.kind == "cell ended"

    def _send_withdrawal(self) -> None:
        self._send(Withdraw(self._number, CELL_ENDED))
        while not self._is_decided(self._number):
            self._wait_for_wake()

    def stop_waiting(self) -> None:
        """Do nothing: the agreement server does this."""

    def take_decision(self) -> Decision:
        """Return the decision that came."""
        self._decided_number = self._number
        return self._decisions.pop(self._number)

    def release_in_child(self) -> None:
        """Close the child's socket, so that the board notices the rank's end."""
        self._client.close()

    def close(self) -> None:
        """Close the connection; for tests, and for a start that failed."""
        self._client.end("this side closed it")
        self._thread.join()
        self._client.close()

    # -- the connection

    def _send(self, message: RankMessage) -> None:
        self._client.send(encode_from_rank(message))

    def _is_decided(self, number: int) -> bool:
        return number in self._decisions or self._has_ended

    def _wait_for_wake(self) -> None:
        try:
            self._wakes.get(timeout=_POLL_S)
        except queue.Empty:
            return

    def _receive(self) -> None:
        """Receive decisions until the stream ends, in a thread of its own."""
        try:
            while (messages := self._client.receive(wait=True)) is not None:
                for frames in messages:
                    number, decision = decode_decision(self._client.verify(frames))
                    self._decisions[number] = decision
                    self._wakes.put(None)
        except UnknownMessage as error:
            self._client.end(str(error))
        finally:
            self._client.end("a message from there could not be read")
            self._has_ended = True
            self._wakes.put(None)


def open_interrupt_flag(spec: HostSpec) -> SharedBoard | InterruptFlag | None:
    """Open the memory for the supervisor's requests to ranks, or return None."""
    if spec.has_shared_board:
        return SharedBoard(Path(spec.run_dir), spec.process_count)
    return InterruptFlag(Path(spec.run_dir), spec.supervisor or 0) if spec.board_url else None


def connect_agreement(spec: HostSpec, rank: int) -> AgreementBackend:
    """Connect a rank to the agreement; return `NO_AGREEMENT` if it needs none.

    Raises:
        HostUnreachable: the board's host did not answer.
        LaunchError: this host has neither a board nor the address of one.
    """
    if spec.has_shared_board:
        return Participant(SharedBoard(Path(spec.run_dir), spec.process_count), rank)
    if spec.board_url:
        return RemoteAgreement(connect_to_board(spec.board_url), bytes.fromhex(spec.key), rank)
    if spec.process_count > 1 and not spec.engine_only:
        # Without this error, it would go unnoticed that the guard lets everything pass.
        raise LaunchError(
            f"internal error: rank {rank} of {spec.process_count} has no launch-agreement service: "
            "its host has no shared board, and board_url is missing. Please report this"
        )
    return NO_AGREEMENT
