"""Ranks kept warm in reserve: a restart takes them over instead of waiting for others to start.

They have no cell and no variable, and go with the cluster that they stand behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mhnb.cluster import Cluster
from mhnb.errors import LaunchError
from mhnb.launch.rundir import find_cwd
from mhnb.roll import StartReport

__all__ = ["Spare", "keep_spare", "take_over"]


@dataclass(frozen=True, slots=True)
class Spare:
    """A cluster of the next generation that starts, or waits, behind the one in use."""

    cluster: Cluster
    environment: dict[str, str]
    """Of this process when they were started: ranks that start now would get another one if it has changed."""
    cwd: str

    def fits(self) -> bool:
        """Whether it is what a start would bring up now."""
        lives = self.cluster.state in ("starting", "clean")
        return lives and self.environment == dict(os.environ) and self.cwd == find_cwd()

    def stop(self) -> None:
        """End its processes."""
        self.cluster.stop()


def keep_spare(cluster: Cluster) -> None:
    """Begin to start ranks in reserve, where that was asked for; returns at once."""
    if not cluster.options.spare:
        return
    try:
        reserve = Cluster(cluster.shape, cluster.options, generation=cluster.generation + 1)
    except (LaunchError, OSError) as error:
        cluster.notes = (*cluster.notes, f"no ranks are kept in reserve: {error}")
        return
    reserve.on_notice(_tell)
    cluster.spare = Spare(reserve, dict(os.environ), find_cwd())
    count = cluster.process_count
    cluster.notes = (*cluster.notes, f"{count} more ranks start in reserve, and are kept warm for %mhjax restart")


def _tell(text: str) -> None:
    print(f"the ranks in reserve are lost, and the next restart will start others: {text}", file=sys.stderr)


def take_over(spare: Spare, on_progress: Callable[[StartReport], None] | None) -> Cluster | None:
    """Make the reserve the cluster in use, ready; None, and nothing left of it, when it does not fit or did not come up."""
    if not spare.fits():
        spare.stop()
        return None
    cluster = spare.cluster
    began = cluster.journal.now()
    try:
        cluster.wait_ready(on_progress)
    except LaunchError as error:
        # It has ended its processes; the start that follows says more if the cause is still there.
        _tell(str(error))
        return None
    cluster.started_in_s = cluster.journal.now() - began
    cluster.on_notice(partial(print, file=sys.stderr))
    return cluster
