"""Format what a cell waits for before its turn."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks, pluralize

WAIT_NOTE_AFTER_S = 0.5
"""A cell that waits no longer says nothing."""


def format_cell_wait(running: CellResult, ahead: int, *, is_replay: bool = False, stopped: Sequence[int] = ()) -> str:
    """Format what a queued cell waits for.

    Args:
        running: the cell that runs, as far as it has come.
        ahead: how many queued cells come first.
        is_replay: whether a replay runs it again.
        stopped: its ranks that are stopped in the debugger, which only the user ends.

    >>> from mhnb.core.output.results import RankResult
    >>> ranks = tuple(RankResult(rank, "running" if rank < 2 else "ok", ()) for rank in range(4))
    >>> running = CellResult(6, "f()", ranks, wall_s=12.3, done=False)
    >>> format_cell_wait(running, 0)
    'waiting for cell 6 to end (ranks 0-1 running 12 s)'
    >>> format_cell_wait(running, 2, is_replay=True)
    'waiting for the replay of cell 6 and 2 more cells to end (ranks 0-1 running 12 s)'
    >>> format_cell_wait(running, 0, stopped=[1])
    'waiting for cell 6 to end (rank 1 stopped in the debugger; rank 0 running 12 s)'
    """
    name = f"the replay of {running.name}" if is_replay else running.name
    more = f" and {pluralize(ahead, 'more cell')}" if ahead else ""
    busy = [rank.rank for rank in running if rank.outcome == "running" and rank.rank not in stopped]
    parts = [f"{describe_ranks(stopped)} stopped in the debugger"] if stopped else []
    if busy:
        parts.append(f"{describe_ranks(busy)} running {running.wall_s:.0f} s")
    progress = "; ".join(parts) or f"{running.wall_s:.0f} s"
    return f"waiting for {name}{more} to end ({progress})"


def format_silence(ranks: Sequence[int], waited_s: float, reason: str, ways: Sequence[str]) -> str:
    """Format which ranks have not answered, and what to do.

    >>> print(format_silence([2], 5.0, "rank 2 (host2, pid 4711) is suspended (SIGSTOP or a debugger)", ["kill -CONT 4711"]))
    rank 2 has not answered for 5 s: rank 2 (host2, pid 4711) is suspended (SIGSTOP or a debugger)
      Fix: kill -CONT 4711
    """
    have = "has" if len(ranks) == 1 else "have"
    lines = [f"\n  {'Or' if number else 'Fix'}: {way}" for number, way in enumerate(ways)]
    return f"{describe_ranks(ranks)} {have} not answered for {waited_s:g} s: {reason}{''.join(lines)}"


def format_operation_wait(text: str, elapsed_s: float) -> str:
    """Format that a cell waits for a start, restart or replay.

    >>> format_operation_wait("the start of 4 ranks", 2.04)
    'waiting for the start of 4 ranks (2 s)'
    """
    return f"waiting for {text} ({elapsed_s:.0f} s)"
