"""Agreement backend of a rank on a host without the board: it sends proposals to the board's host, and receives decisions.

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
from collections.abc import Callable, Sequence
from pathlib import Path

from mhnb.core.guard.wishes import (
    Asked,
    CellOver,
    Described,
    RankMessage,
    Verdict,
    Wish,
    Withdrawn,
    decode_verdict,
    encode_from_rank,
)
from mhnb.core.wire.framing import MessageCutter, join_frames
from mhnb.core.wire.hostspec import HostSpec
from mhnb.errors import HostUnreachable, LaunchError, RanksLost, UnknownMessage
from mhnb.rank.channel import connect
from mhnb.rank.guard.local_agreement import CELL_ENDED, INTERRUPTED, BoardTable, Table, insist
from mhnb.rank.guard.shared_board import Board, InterruptWord
from mhnb.system.sealing import make_opener, make_sealer
from mhnb.values import Frame

__all__ = ["RemoteTable", "find_words", "keep_alive", "reach_board", "signer_names", "take_place"]

_REACH_S, _TRY_S, _AGAIN_S = 110.0, 10.0, 0.1
"""How long the board's host may take to listen, less than a start may take; one attempt; and the time between two attempts."""
_LOOK_S = 0.02
"""Time between two checks whether this rank was interrupted. A decision wakes the wait at once."""
_WELCOME_LOOKS = 1500
"""How many such intervals the board's host may take to admit a rank."""
_GONE_S = 60
"""A host that does not answer the kernel for this long is gone: JAX itself gives a rank as long."""
_BUFFER_NBYTES, _LONGEST_NBYTES = 1 << 16, 1 << 24


def signer_names(rank: int) -> tuple[bytes, bytes]:
    """Return the names of the two directions between a rank and the board under the key; those of the notebook link differ.

    >>> signer_names(3)
    (b'r3>board', b'board>r3')
    """
    return f"r{rank}>board".encode(), f"board>r{rank}".encode()


def keep_alive(connected: socket.socket) -> None:
    """Set up a socket to send at once, and to let the kernel detect that the other machine is gone."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _GONE_S // 3)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _GONE_S // 6)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_S * 1000)


def reach_board(
    url: str,
    limit_s: float = _REACH_S,
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
            return connect(url, _TRY_S)
        except OSError as error:
            if clock() >= until:
                raise HostUnreachable(
                    f"the host of rank 0 did not answer at {url} within {limit_s:g} s ({error}). There the ranks agree on"
                    " launches: its address and port must be reachable from here; or start with --guard parity"
                ) from error
        sleep(_AGAIN_S)


class RemoteTable:
    """Agreement backend of one rank.

    Args:
        connected: connection to the board's host; owned by this object from now on.
        key: the cluster's.
        rank: this rank.
        asked: holds the cell that the supervisor of this host was asked to stop.

    Raises:
        HostUnreachable: the peer does not have the key, or does not answer.
    """

    def __init__(self, connected: socket.socket, key: bytes, rank: int, asked: InterruptWord) -> None:
        out, back = signer_names(rank)
        self._socket, self._rank, self._asked = connected, rank, asked
        self._signer, self._verifier, self._sender = (
            make_sealer(key, out, encrypt=True),
            make_opener(key, encrypt=True),
            back,
        )
        self._sending = threading.Lock()
        self._number = self._answered = 0
        self._wish: Wish | None = None
        self._described: deque[Described] = deque()
        """Outlines that are not yet sent."""
        self._verdicts: dict[int, Verdict] = {}
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lost = ""
        """Why the connection has ended; set by the thread alone, after everything that arrived."""
        self._why = ""
        """The reason, if it is known before that."""
        keep_alive(connected)
        self._thread = threading.Thread(target=self._listen, name="mhnb-board", daemon=True)
        self._thread.start()
        self._greet()

    def _greet(self) -> None:
        """Send this rank's number. Decision 0 is the welcome."""
        name = str(self._rank).encode()
        # The number also precedes its seal, because the seal cannot be checked without it.
        self._put([name, *self._signer.sign([name])])
        for _ in range(_WELCOME_LOOKS):
            if self._is_decided(0):
                break
            self._rest()
        if self._verdicts.pop(0, None) is None:
            self.close()
            raise HostUnreachable(
                f"the host of rank 0 did not let rank {self._rank} take part in the agreement on launches "
                f"({self._lost or 'no answer'}); is another cluster at that address?"
            )

    # -- the methods of a backend

    @property
    def interrupted_seq(self) -> int:
        """The latest cell that the supervisor of this host was asked to stop."""
        return self._asked.interrupted_seq

    def end_cell(self, seq: int, ending: int) -> None:
        """Send the end of the cell; if the connection is lost, the board knows already."""
        self._send(CellOver(seq, ending))

    def describe(self, fingerprint: int, outline: str) -> None:
        """Keep the outline for the next proposal.

        An exception in the middle of a send here would leave half a message in the stream.
        """
        self._described.append(Described(fingerprint, outline))

    def ask(self, wish: Wish) -> None:
        """Number the proposal. `wait` sends it, because `take_back` follows an exception there."""
        self._number += 1
        self._wish = wish
        self._verdicts.clear()

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Send the proposal and wait for its decision.

        Raises:
            RanksLost: the connection has ended without one.
        """
        number, asked_back = self._number, False
        assert self._wish is not None
        while self._described:
            self._send(self._described.popleft())
        self._send(Asked(number, self._wish))
        while not self._is_decided(number):
            if not asked_back and interrupted():
                asked_back = True
                self._send(Withdrawn(number, INTERRUPTED))
            self._rest()
        if number not in self._verdicts:
            raise RanksLost(
                f"nothing was launched on rank {self._rank}\n  its connection to the host of rank 0, where the ranks agree "
                f"on launches, has ended: {self._lost}\n  %mhjax restart --replay",
                ranks=(self._rank,),
            )

    def take_back(self) -> bool:
        """Request the proposal back, and wait for the decision on it."""
        if self._answered == self._number:
            return True
        insist(self._withdraw)
        verdict = self._verdicts.get(self._number)
        return verdict is None or verdict.kind == "cell ended"

    def _withdraw(self) -> None:
        self._send(Withdrawn(self._number, CELL_ENDED))
        while not self._is_decided(self._number):
            self._rest()

    def rest(self) -> None:
        """Do nothing: the agreement server does this."""

    def answer(self) -> Verdict:
        """Return the decision that came."""
        self._answered = self._number
        return self._verdicts.pop(self._number)

    def let_go(self) -> None:
        """Close the child's copy of the socket: the board must learn of the rank's end even if a child of it lives on."""
        self._socket.close()

    def close(self) -> None:
        """Close the connection; for tests, and for a start that failed."""
        self._hang_up("it was closed here")
        self._thread.join()
        self._socket.close()

    # -- the connection

    def _send(self, message: RankMessage) -> None:
        with self._sending:
            self._put(self._signer.sign(encode_from_rank(message)))

    def _put(self, frames: Sequence[Frame]) -> None:
        data = b"".join(join_frames(frames))
        try:
            self._socket.sendall(data)
        except OSError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                # Not the socket's own error: a user's signal handler came just now, and raised a TimeoutError, say.
                raise
            self._hang_up(str(error))

    def _hang_up(self, why: str) -> None:
        """Make the thread find the end of the stream; first it reads what came before that, perhaps a decision."""
        self._why = self._why or why
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            self._why = f"{self._why} ({error})"

    def _is_decided(self, number: int) -> bool:
        return number in self._verdicts or bool(self._lost)

    def _rest(self) -> None:
        try:
            self._wakes.get(timeout=_LOOK_S)
        except queue.Empty:
            return

    def _listen(self) -> None:
        """Receive decisions until the end of the stream. Runs in a thread of its own."""
        why = "what came from there could not be read"
        try:
            why = self._take_verdicts()
        finally:
            self._lost = self._why or why
            self._wakes.put(None)

    def _take_verdicts(self) -> str:
        """Receive decisions, and return why no more will come."""
        cutter = MessageCutter(_LONGEST_NBYTES)
        try:
            while data := self._socket.recv(_BUFFER_NBYTES):
                for frames in cutter.feed(data):
                    number, verdict = decode_verdict(self._verifier.verify(self._sender, frames))
                    self._verdicts[number] = verdict
                    self._wakes.put(None)
        except (OSError, UnknownMessage) as error:
            return str(error) or repr(error)
        return "the other end closed it"


def find_words(spec: HostSpec) -> Board | InterruptWord | None:
    """Open the memory in which the supervisor of this host makes requests to its ranks; None if there is none."""
    if spec.board:
        return Board(Path(spec.run_dir), spec.process_count)
    return InterruptWord(Path(spec.run_dir), spec.supervisor or 0) if spec.board_url else None


def take_place(spec: HostSpec, rank: int) -> Table | None:
    """Connect a rank to the agreement; None if it has no other rank to agree with, or ipyparallel's client drives it.

    Raises:
        HostUnreachable: the board's host did not answer.
        LaunchError: this host has neither a board nor the address of one.
    """
    if spec.board:
        return BoardTable(Board(Path(spec.run_dir), spec.process_count), rank)
    if spec.board_url:
        asked = InterruptWord(Path(spec.run_dir), spec.supervisor or 0)
        reached = reach_board(spec.board_url)
        return RemoteTable(reached, bytes.fromhex(spec.key), rank, asked)
    if spec.process_count > 1 and not spec.engine_only:
        # Without this error, it would go unnoticed that the guard lets everything pass.
        raise LaunchError(
            f"rank {rank} was told of no place where the {spec.process_count} ranks agree on launches: "
            "its host has no board, and no board_url. Please report this"
        )
    return None
