"""What the supervisor of a host keeps for launch agreement.

This is the board itself, with a delegate for other hosts, or one interrupt word for the ranks of its host.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mhnb.core.wire.protocol import HostSpec
from mhnb.rank.guard.agreement_server import listen
from mhnb.rank.guard.local_agreement import mark_rank_lost
from mhnb.rank.guard.shared_board import InterruptFlag, SharedBoard, create_board, create_interrupt_flag
from mhnb.rank.supervisor.spawn import spawn_agreement_server

__all__ = ["AgreementHost"]


class AgreementHost:
    """Creates what the ranks of this host look for. Must be created before them, while this process has one thread.

    Raises:
        LaunchError: the board's address is not available.
    """

    def __init__(self, spec: HostSpec) -> None:
        run_dir = Path(spec.run_dir)
        self.server_pid: int | None = None
        """The process that takes part in agreement for ranks of other hosts, if there are any."""
        self._board: SharedBoard | None = None
        self._interrupt_flag: InterruptFlag | None = None
        self._remote_ranks = sorted(set(range(spec.process_count)) - set(spec.ranks))
        if spec.has_shared_board:
            create_board(run_dir, spec.process_count)
            self._board = SharedBoard(run_dir, spec.process_count)
            if spec.board_url:
                with listen(spec.board_url) as listener:
                    self.server_pid = spawn_agreement_server(spec, listener)
        elif spec.board_url:
            create_interrupt_flag(run_dir, spec.supervisor or 0)
            self._interrupt_flag = InterruptFlag(run_dir, spec.supervisor or 0)

    def request_interrupt(self, seq: int) -> None:
        """Request that the ranks of this host stop a cell before their next launch."""
        for target in (self._board, self._interrupt_flag):
            if target is not None:
                target.request_interrupt(seq)

    def request_close(self) -> None:
        """Request that the ranks of this host close their connections to each other."""
        for target in (self._board, self._interrupt_flag):
            if target is not None:
                target.request_close()

    def mark_server_lost(self, status: int) -> None:
        """Mark the ranks of other hosts as lost, so that no rank here waits for them: the delegate has ended.

        Args:
            status: the status from `waitpid`.
        """
        self.server_pid = None
        print(f"mhnb: the board's delegate ended with status {status}; see log/board.log", file=sys.stderr, flush=True)
        assert self._board is not None
        for rank in self._remote_ranks:
            mark_rank_lost(self._board, rank)
