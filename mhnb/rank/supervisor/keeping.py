"""What the supervisor of a host keeps for launch agreement.

This is the board itself, with a delegate for other hosts, or one interrupt word for the ranks of its host.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mhnb.core.wire.hostspec import HostSpec
from mhnb.rank.guard.agreement_server import listen
from mhnb.rank.guard.local_agreement import lose
from mhnb.rank.guard.shared_board import Board, InterruptWord, make_board, make_interrupt_word
from mhnb.rank.supervisor.spawn import spawn_delegate

__all__ = ["BoardKeeper"]


class BoardKeeper:
    """Creates what the ranks of this host look for. Must be created before them, while this process has one thread.

    Raises:
        LaunchError: the board's address is not available.
    """

    def __init__(self, spec: HostSpec) -> None:
        run_dir = Path(spec.run_dir)
        self.delegate: int | None = None
        """The process that takes part in agreement for ranks of other hosts, if there are any."""
        self._board: Board | None = None
        self._word: InterruptWord | None = None
        self._others = sorted(set(range(spec.process_count)) - set(spec.ranks))
        if spec.board:
            make_board(run_dir, spec.process_count)
            self._board = Board(run_dir, spec.process_count)
            if spec.board_url:
                with listen(spec.board_url) as listener:
                    self.delegate = spawn_delegate(spec, listener)
        elif spec.board_url:
            make_interrupt_word(run_dir, spec.supervisor or 0)
            self._word = InterruptWord(run_dir, spec.supervisor or 0)

    def ask_interrupt(self, seq: int) -> None:
        """Request that the ranks of this host stop a cell before their next launch."""
        for place in (self._board, self._word):
            if place is not None:
                place.ask_interrupt(seq)

    def ask_close(self) -> None:
        """Request that the ranks of this host close their connections to each other."""
        for place in (self._board, self._word):
            if place is not None:
                place.ask_close()

    def lose_delegate(self, status: int) -> None:
        """Mark the ranks of other hosts as lost, so that no rank here waits for them: the delegate has ended.

        Args:
            status: the status from `waitpid`.
        """
        self.delegate = None
        print(f"mhnb: the board's delegate ended with status {status}; see log/board.log", file=sys.stderr, flush=True)
        assert self._board is not None
        for rank in self._others:
            lose(self._board, rank)
