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

from mhnb.core.guard.wishes import (
    LAUNCH,
    Asked,
    CellOver,
    Described,
    RankMessage,
    Verdict,
    Wish,
    Withdrawn,
    decode_from_rank,
    encode_verdict,
)
from mhnb.core.wire.framing import MessageCutter, join_frames
from mhnb.core.wire.hostspec import HostSpec, parse_hostspec
from mhnb.errors import LaunchError, UnknownMessage
from mhnb.rank.guard.local_agreement import INTERRUPTED, LONG_S, QUICK_LOOKS, SHORT_SLEEPS, Seat, lose, pause
from mhnb.rank.guard.remote_agreement import keep_alive, signer_names
from mhnb.rank.guard.shared_board import Board
from mhnb.system.ports import NO_ROOM, REST_S, count_strangers_kept
from mhnb.system.processes import end_with_parent
from mhnb.system.sealing import MessageSealer, make_opener, make_sealer

__all__ = ["Delegate", "listen", "main", "run_delegate"]

_BUFFER_NBYTES = 1 << 16
_STRANGER_NBYTES = 4096
"""The longest message of a peer that has not proved that it has the key."""
_LONGEST_NBYTES = 1 << 20
_BACKLOG = 1024


def listen(url: str) -> socket.socket:
    """Open the board's port, on the one address that is named.

    Raises:
        LaunchError: the port cannot be opened.
    """
    kind, _, place = url.partition(":")
    address, _, port = place.rpartition(":")
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
class _Guest:
    """The connection of a rank of another host; of a stranger, until it has proved that it has the key."""

    socket: socket.socket
    cutter: MessageCutter = field(default_factory=lambda: MessageCutter(_STRANGER_NBYTES))
    rank: int | None = None
    seat: Seat | None = None
    signer: MessageSealer | None = None
    number: int = 0
    """Number of its latest proposal."""
    wish: Wish | None = None
    """The proposal that waits for a decision."""
    posted: bool = False
    unsent: bytearray = field(default_factory=bytearray)


class Delegate:
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
        board: Board,
        key: bytes,
        *,
        ranks: frozenset[int],
        process_count: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._rests_until: float | None = None
        """Time until which no connection is accepted; None while the listener is watched."""
        self._listener, self._board, self._key = listener, board, key
        self._ranks, self._process_count = ranks, process_count
        self._verifier = make_opener(key, encrypt=True)
        self._strangers: dict[_Guest, None] = {}
        """Oldest first."""
        self._most_strangers = count_strangers_kept()
        self._waiting: dict[_Guest, None] = {}
        self._clogged: dict[_Guest, None] = {}
        self._buffer = memoryview(bytearray(_BUFFER_NBYTES))
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self.refused = 0
        """How many messages were not a rank's."""

    def serve(self) -> NoReturn:
        """Serve until killed: the supervisor ends the process."""
        looks = 0
        while True:
            looks = 0 if self.step(looks) else looks + 1

    def step(self, looks: int) -> bool:
        """Handle what has arrived, and poll the board once for all waiting ranks; return whether anything has happened.

        Args:
            looks: how many steps before had no event: the more, the longer this one may take.
        """
        heard = self._selector.select(self._pause(looks))
        if self._rests_until is not None and self._clock() >= self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for key, _ in heard:
            act: Callable[[], None] = key.data
            act()
        for guest in tuple(self._clogged):
            self._flush(guest)
        return bool([guest for guest in tuple(self._waiting) if self._look(guest)] or heard)

    def _pause(self, looks: int) -> float | None:
        if not self._waiting and not self._clogged:
            return None if self._rests_until is None else REST_S
        if looks > QUICK_LOOKS + SHORT_SLEEPS:
            return LONG_S
        # The selector cannot wait for less than a millisecond.
        pause(looks)
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
            if error.errno in NO_ROOM and self._strangers:
                # No descriptor is left: strangers must not keep a rank out.
                self._drop(next(iter(self._strangers)))
            elif error.errno in NO_ROOM:
                # The connection waits in the system's queue: the selector would report it again and again.
                self._selector.unregister(self._listener)
                self._rests_until = self._clock() + REST_S
            # Otherwise the peer disconnected before the accept.
            return
        accepted.setblocking(False)
        try:
            keep_alive(accepted)
        except OSError:
            # macOS refuses it if the stranger has disconnected.
            accepted.close()
            return
        guest = _Guest(accepted)
        self._strangers[guest] = None
        self._selector.register(accepted, selectors.EVENT_READ, partial(self._read, guest))
        if len(self._strangers) > self._most_strangers:
            self._drop(next(iter(self._strangers)))

    def _read(self, guest: _Guest) -> None:
        if guest.socket.fileno() < 0:
            # A stranger that was dropped for another one at this very moment.
            return
        try:
            count = guest.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            for frames in guest.cutter.feed(self._buffer[:count]):
                self._open(guest, frames)
        except UnknownMessage as error:
            # A stranger, or a stream that cannot be parsed further.
            self.refused += 1
            if guest.rank is not None:
                print(f"mhnb: rank {guest.rank}: {error}", file=sys.stderr, flush=True)
            count = 0
        if count == 0:
            self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        """Close a connection and mark its rank as lost, so that no rank waits for it."""
        self._selector.unregister(guest.socket)
        for kept in (self._strangers, self._waiting, self._clogged):
            kept.pop(guest, None)
        guest.socket.close()
        if guest.rank is not None:
            lose(self._board, guest.rank)

    # -- messages of ranks

    def _open(self, guest: _Guest, frames: list[memoryview]) -> None:
        if not frames:
            raise UnknownMessage("an empty message")
        if guest.rank is None:
            self._greet(guest, frames)
            return
        opened = self._verifier.verify(signer_names(guest.rank)[0], frames)
        self._take(guest, decode_from_rank(opened, guest.rank, self._process_count))

    def _greet(self, guest: _Guest, frames: list[memoryview]) -> None:
        """Admit a rank, which sends its number under the key; a copy of the message is not accepted.

        Raises:
            UnknownMessage: the peer is not a rank of another host.
        """
        said = bytes(frames[0])
        if len(said) > 9 or not said.isdigit() or int(said) not in self._ranks:
            raise UnknownMessage("not a rank of another host")
        rank = int(said)
        self._verifier.verify(signer_names(rank)[0], frames[1:])
        guest.rank, guest.seat = rank, Seat(self._board, rank)
        guest.signer = make_sealer(self._key, signer_names(rank)[1], encrypt=True)
        guest.cutter.limit_nbytes = _LONGEST_NBYTES
        del self._strangers[guest]
        self._tell(guest, 0, LAUNCH)

    def _take(self, guest: _Guest, message: RankMessage) -> None:
        assert guest.rank is not None
        match message:
            case Asked(number, wish):
                if guest.wish is not None:
                    raise UnknownMessage(f"wish {number} came while wish {guest.number} was still open")
                guest.number, guest.wish, guest.posted = number, wish, False
                self._waiting[guest] = None
                # At once: the rank's next message, say a withdrawal, then refers to a post, as on the board's own host.
                self._look(guest)
            case Withdrawn(number, mark):
                self._withdraw(guest, number, mark)
            case CellOver(seq, ending):
                assert guest.seat is not None
                guest.seat.end_cell(seq, ending)
            case Described(fingerprint, outline):
                try:
                    self._board.describe_program(fingerprint, outline)
                except OSError as error:
                    # The disk is full: only a line in the text of a mismatch is missing.
                    print(f"mhnb: rank {guest.rank}: {error}", file=sys.stderr, flush=True)

    def _withdraw(self, guest: _Guest, number: int, mark: int) -> None:
        assert guest.seat is not None
        reason = Verdict("interrupt" if mark == INTERRUPTED else "cell ended")
        if number > guest.number:
            # The rank was interrupted before it could send the proposal.
            guest.number = number
            self._tell(guest, number, reason)
        elif number == guest.number and guest.wish is not None:
            # If it is too late, all have posted: the launch is decided either way.
            if guest.posted:
                guest.seat.take_back(mark)
            self._decide(guest, guest.seat.judge() if guest.posted else reason)

    # -- decisions

    def _look(self, guest: _Guest) -> bool:
        """Poll the board for a rank that waits; return whether there was news for it."""
        seat, wish = guest.seat, guest.wish
        assert seat is not None
        assert wish is not None
        if not guest.posted:
            try:
                guest.posted = seat.post(wish)
            except OSError as error:
                self._decide(guest, Verdict("refused", text=str(error)))
            return guest.posted
        if not seat.look(interrupted=False):
            return False
        self._decide(guest, seat.judge())
        return True

    def _decide(self, guest: _Guest, verdict: Verdict) -> None:
        assert guest.seat is not None
        guest.seat.rest()
        guest.wish = None
        del self._waiting[guest]
        self._tell(guest, guest.number, verdict)

    def _tell(self, guest: _Guest, number: int, verdict: Verdict) -> None:
        assert guest.signer is not None
        for piece in join_frames(guest.signer.sign(encode_verdict(number, verdict))):
            guest.unsent += piece
        self._flush(guest)

    def _flush(self, guest: _Guest) -> None:
        """Send as much as the kernel accepts."""
        try:
            del guest.unsent[: guest.socket.send(guest.unsent)]
        except BlockingIOError:
            self._clogged[guest] = None
        except OSError:
            # The next read finds the end of the stream, and drops the connection.
            guest.unsent.clear()
        if guest.unsent:
            self._clogged[guest] = None
        else:
            self._clogged.pop(guest, None)


def run_delegate(spec: HostSpec, listener: socket.socket) -> NoReturn:
    """Run the agreement server of a cluster until killed."""
    board = Board(Path(spec.run_dir), spec.process_count)
    others = frozenset(range(spec.process_count)) - frozenset(spec.ranks)
    Delegate(listener, board, bytes.fromhex(spec.key), ranks=others, process_count=spec.process_count).serve()


def main() -> None:
    """Run the agreement server in a new process: the spec comes on standard input, the port as a descriptor."""
    end_with_parent(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    run_delegate(parse_hostspec(sys.stdin.readline()), listener)


if __name__ == "__main__":
    main()
