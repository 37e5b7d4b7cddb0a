"""Where a rank agrees on launches: at the board of its own machine, through the host that has it, or nowhere."""

from __future__ import annotations

from pathlib import Path

from mhnb.core.wire.hostspec import HostSpec
from mhnb.errors import LaunchError
from mhnb.rank.guard.agreement import Agreement
from mhnb.rank.guard.board import Board
from mhnb.rank.guard.interrupts import InterruptWord
from mhnb.rank.guard.remote import RemoteTable, reach_board
from mhnb.rank.guard.tables import BoardTable

__all__ = ["find_words", "take_place"]


def find_words(spec: HostSpec) -> Board | InterruptWord | None:
    """Find where the supervisor of this host asks its ranks for something; None where there is no such place."""
    if spec.board:
        return Board(Path(spec.run_dir), spec.process_count)
    return InterruptWord(Path(spec.run_dir), spec.supervisor or 0) if spec.board_url else None


def take_place(spec: HostSpec, rank: int) -> Agreement | None:
    """Give a rank its part in the agreement; None where there is nobody to agree with, or ipyparallel's client drives the ranks.

    Raises:
        HostUnreachable: the board's host did not answer.
        LaunchError: this host was told of no board.
    """
    if spec.board:
        return Agreement(BoardTable(Board(Path(spec.run_dir), spec.process_count), rank))
    if spec.board_url:
        asked = InterruptWord(Path(spec.run_dir), spec.supervisor or 0)
        reached = reach_board(spec.board_url)
        return Agreement(RemoteTable(reached, bytes.fromhex(spec.key), rank, asked))
    if spec.process_count > 1 and not spec.engine_only:
        # Without one, nobody would notice that the guard lets everything pass.
        raise LaunchError(
            f"rank {rank} was told of no place where the {spec.process_count} ranks agree on launches: "
            "its host has no board, and no board_url. Please report this"
        )
    return None
