"""Programs without a collective in a cell that was stopped: nobody agrees on them, so each rank was stopped where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.guard.rules import communicates
from mhnb.core.wire.protocol import LaunchRow

__all__ = ["apart_notes"]


def apart_notes(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> tuple[str, ...]:
    """Say which program without a collective some ranks of an interrupted cell had launched more often than others.

    Nobody agrees on such a program. But the shards of what it made are of different steps, and what is computed from them is wrong.

    >>> apart_notes({0: [["free:a", "jit(f)", [0, 1], 1, 5]], 1: []})[0].partition(":")[0]
    'the ranks were interrupted at different places'
    """
    counts: dict[tuple[int, ...], dict[tuple[str, str], dict[int, int]]] = {}
    dropped = {row[0] for rows in rows_by_rank.values() for row in rows if row[4] == 0}
    for rank, rows in rows_by_rank.items():
        for fingerprint, name, participants, _, count in rows:
            if not communicates(fingerprint) and fingerprint not in dropped:
                launched = counts.setdefault(tuple(participants), {}).setdefault((fingerprint, name), {})
                launched[rank] = launched.get(rank, 0) + count
    for participants, programs in counts.items():
        for (_, name), launched in programs.items():
            times = [launched.get(rank, 0) for rank in participants if rank in rows_by_rank]
            if len(set(times)) > 1:
                said = f"{name} without a collective was launched {min(times)} to {max(times)} times"
                return (
                    f"the ranks were interrupted at different places: {said} · arrays that this cell sets may mix steps",
                )
    return ()
