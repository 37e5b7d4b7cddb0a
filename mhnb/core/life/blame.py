"""Classify a rank's death during a cell: crashed, or killed because it did not follow an interrupt."""

from __future__ import annotations

import signal

from mhnb.core.explain.hints import find_hint
from mhnb.core.life.ladder import TOO_SLOW
from mhnb.core.life.roster import describe_exit
from mhnb.core.wire.protocol import RankExited
from mhnb.values import Outcome, RankError

__all__ = ["blame"]


def blame(exited: RankExited, *, killed: bool) -> tuple[Outcome, RankError]:
    """Return the outcome and the error of the rank that died first.

    Args:
        killed: whether the interrupt had escalated to the kill by then.

    >>> blame(RankExited(1, None, 9, []), killed=True)[1].evalue
    'rank 1 did not end after the interrupt and was killed'
    """
    slow = killed and exited.signum == signal.SIGKILL
    why = TOO_SLOW if slow else describe_exit(exited)
    # An abort in native code raises no exception: the process's last output is the only information about it.
    aborted = exited.signum == signal.SIGABRT
    hint = find_hint("RankDied", "\n".join(exited.last_lines)) if aborted else None
    return "killed" if slow else "died", RankError("RankDied", f"rank {exited.rank} {why}", hint=hint)
