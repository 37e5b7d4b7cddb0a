"""Classify a rank's death during a cell: crashed, or killed because it did not follow an interrupt."""

from __future__ import annotations

import signal

from mhnb.core.explain.hints import find_hint
from mhnb.core.life.ladder import KILLED_AFTER_INTERRUPT
from mhnb.core.life.roster import describe_exit
from mhnb.core.wire.protocol import RankExited
from mhnb.values import Outcome, RankError

__all__ = ["classify_death"]


def classify_death(exited: RankExited, *, is_killed: bool) -> tuple[Outcome, RankError]:
    """Return the outcome and the error of the rank that died first.

    Args:
        is_killed: whether the interrupt had escalated to the kill by then.

    >>> classify_death(RankExited(1, None, 9, []), is_killed=True)[1].evalue
    'rank 1 did not end after the interrupt and was killed'
    """
    is_slow = is_killed and exited.signum == signal.SIGKILL
    reason = KILLED_AFTER_INTERRUPT if is_slow else describe_exit(exited)
    # An abort in native code raises no exception: the process's last output is the only information about it.
    aborted = exited.signum == signal.SIGABRT
    hint = find_hint("RankDied", "\n".join(exited.last_lines)) if aborted else None
    return "killed" if is_slow else "died", RankError("RankDied", f"rank {exited.rank} {reason}", hint=hint)
