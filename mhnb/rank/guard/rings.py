"""Rings of waits on the board: ranks each of which waits for another one of them, so that none could ever go on.

It only looks. What is stable is decided by who calls it under the board's lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from mhnb.rank.guard.board import Board, Place

__all__ = ["find_ring", "missing"]


def find_ring(board: Board, rank: int, place: Place) -> dict[int, Place] | None:
    """The ranks of a ring that goes through a rank that waits at a place, with their places; None where there is none."""
    waits = _waits_from(board, rank, place)
    reached = {other: _reach(other, waits) for other in waits}
    ring = {other: at for other, (at, _) in waits.items() if rank in reached[other] and other in reached[rank]}
    return ring if rank in ring else None


def missing(board: Board, place: Place) -> list[int]:
    """Who has neither come to a place nor ended the cell."""
    ranks = board.participants_of(place.group)
    return [rank for rank in ranks if not board.has_posted(rank, place) and board.ended_seq(rank) < place.seq]


def _waits_from(board: Board, rank: int, place: Place) -> dict[int, tuple[Place, list[int]]]:
    """Who waits at which place for whom, as far as it can be reached from one rank."""
    found: dict[int, tuple[Place, list[int]]] = {}
    pending = [(rank, place)]
    while pending:
        waiter, at = pending.pop()
        absent = missing(board, at)
        found[waiter] = (at, absent)
        for other in absent:
            wanted = board.wanted(other, place.seq)
            if other not in found and wanted is not None and _waits(board, other, wanted):
                pending.append((other, wanted))
    return found


def _waits(board: Board, rank: int, place: Place) -> bool:
    return board.has_posted(rank, place) and not board.read(rank, place).mark


def _reach(rank: int, waits: Mapping[int, tuple[Place, list[int]]]) -> set[int]:
    seen: set[int] = set()
    pending = list(waits[rank][1])
    while pending:
        other = pending.pop()
        if other not in seen:
            seen.add(other)
            pending += waits[other][1] if other in waits else []
    return seen
