"""Standby ranks: a restart takes over ranks that are warm instead of waiting for new ones to start.

They have no cell and no variable, and end with the cluster that they stand by for.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass

from mhnb.cluster import Cluster, Reserve
from mhnb.drive.listening import print_notice
from mhnb.errors import ClusterError, LaunchError
from mhnb.keep.journaling import draw_generation
from mhnb.system.rundir import find_cwd

__all__ = ["Spare", "keep_spare", "take_over"]


@dataclass(frozen=True, slots=True)
class Spare:
    """A cluster of the next generation that starts, or waits, behind the active one."""

    cluster: Cluster
    environment: dict[str, str]
    """Environment of this process when they were started. Ranks that start now would get another one if it has changed."""
    cwd: str

    start: threading.Thread
    """Waits until they are warm, and ends them if they do not come up."""

    def fits(self, cluster: Cluster) -> bool:
        """Whether it is what a restart of that cluster would start now."""
        lives = self.cluster.state in ("starting", "clean")
        alike = (self.cluster.shape, self.cluster.options) == (cluster.shape, cluster.options)
        return lives and alike and self.environment == dict(os.environ) and self.cwd == find_cwd()

    def stop(self) -> None:
        """End its processes."""
        self.cluster.stop()


def keep_spare(cluster: Cluster) -> None:
    """Begin to start standby ranks, if they were requested; returns at once."""
    if not cluster.options.spare:
        return
    try:
        number = draw_generation(cluster.name, environment=os.environ)
        reserve = Cluster(cluster.shape, cluster.options, generation=number, restarter=cluster.restarter)
    except (LaunchError, OSError) as error:
        cluster.notes = (*cluster.notes, f"no ranks are kept in reserve: {error}")
        return
    reserve.on_notice(_tell)
    start = threading.Thread(target=_await_reserve, args=(reserve,), name="mhnb-reserve", daemon=True)
    cluster.spare = Spare(reserve, dict(os.environ), find_cwd(), start)
    start.start()
    count = cluster.process_count
    cluster.notes = (*cluster.notes, f"{count} more ranks start in reserve, and are kept warm for %mhjax restart")


def _await_reserve(reserve: Cluster) -> None:
    try:
        reserve.wait_ready()
    except LaunchError as error:
        # Its processes have ended. A stop by the user before it was ready is not reported to the user.
        _tell(str(error))
    except ClusterError:
        # The user stopped it together with the active cluster, so it is not reported.
        return


def _tell(text: str) -> None:
    print(f"the ranks in reserve are lost, and the next restart will start others: {text}", file=sys.stderr)


def take_over(spare: Reserve, behind: Cluster) -> Cluster | None:
    """Make the reserve the cluster in use, ready; None, and nothing left of it, when it does not fit or did not come up."""
    cluster = spare.cluster
    began = cluster.journal.now()
    if spare.fits(behind):
        try:
            spare.start.join()
        except KeyboardInterrupt:
            # Nothing else refers to it any more.
            spare.stop()
            raise
    if cluster.state != "clean" or not spare.fits(behind):
        spare.stop()
        return None
    cluster.started_in_s = cluster.journal.now() - began
    cluster.on_notice(print_notice)
    return cluster
