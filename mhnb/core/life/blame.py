"""What a rank's death during a cell is called: its own doing, or the end of an interrupt that it did not follow."""

from __future__ import annotations

import signal

from mhnb.core.explain.hints import find_hint
from mhnb.core.life.ladder import TOO_SLOW
from mhnb.core.life.roster import describe_exit
from mhnb.core.wire.protocol import RankExited
from mhnb.values import Outcome, RankError

__all__ = ["blame"]


def blame(exited: RankExited, *, killed: bool) -> tuple[Outcome, RankError]:
    """Give the outcome and the error of the rank that died first.

    Args:
        killed: whether the interrupt had come to the kill by then.

    >>> blame(RankExited(1, None, 9, []), killed=True)[1].evalue
    'rank 1 did not end after the interrupt and was killed'
    """
    slow = killed and exited.signum == signal.SIGKILL
    why = TOO_SLOW if slow else describe_exit(exited)
    # What aborted in native code raised nothing: its last words are all there is to know it by.
    aborted = exited.signum == signal.SIGABRT
    hint = find_hint("RankDied", "\n".join(exited.last_lines)) if aborted else None
    return "killed" if slow else "died", RankError("RankDied", f"rank {exited.rank} {why}", hint=hint)
