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
from mhnb.keep.journaling import next_generation
from mhnb.system.rundir import find_cwd

__all__ = ["Standby", "promote_standby", "start_standby"]


@dataclass(frozen=True, slots=True)
class Standby:
    """A cluster of the next generation that starts, or waits, behind the active one."""

    cluster: Cluster
    environment: dict[str, str]
    """Environment of this process when they were started. Ranks that start now would get another one if it has changed."""
    cwd: str

    start_thread: threading.Thread
    """Waits until they are warm, and ends them if they do not come up."""

    def matches(self, cluster: Cluster) -> bool:
        """Whether it is what a restart of that cluster would start now."""
        is_usable = self.cluster.state in ("starting", "clean")
        has_same_options = (self.cluster.shape, self.cluster.options) == (cluster.shape, cluster.options)
        return is_usable and has_same_options and self.environment == dict(os.environ) and self.cwd == find_cwd()

    def stop(self) -> None:
        """End its processes."""
        self.cluster.stop()


def start_standby(cluster: Cluster) -> None:
    """Begin to start standby ranks, if they were requested; returns at once."""
    if not cluster.options.spare:
        return
    try:
        number = next_generation(cluster.name, environment=os.environ)
        standby_cluster = Cluster(cluster.shape, cluster.options, generation=number, restarter=cluster.restarter)
    except (LaunchError, OSError) as error:
        cluster.notes = (*cluster.notes, f"no ranks are kept in reserve: {error}")
        return
    standby_cluster.on_notice(_print_loss)
    start_thread = threading.Thread(target=_wait_until_ready, args=(standby_cluster,), name="mhnb-reserve", daemon=True)
    cluster.spare = Standby(standby_cluster, dict(os.environ), find_cwd(), start_thread)
    start_thread.start()
    count = cluster.process_count
    cluster.notes = (*cluster.notes, f"{count} more ranks start in reserve, and are kept warm for %mhjax restart")


def _wait_until_ready(standby_cluster: Cluster) -> None:
    try:
        standby_cluster.wait_ready()
    except LaunchError as error:
        # Its processes have ended. A stop by the user before it was ready is not reported to the user.
        _print_loss(str(error))
    except ClusterError:
        # The user stopped it together with the active cluster, so it is not reported.
        return


def _print_loss(text: str) -> None:
    print(f"the ranks in reserve are lost, and the next restart will start others: {text}", file=sys.stderr)


def promote_standby(standby: Reserve, active: Cluster) -> Cluster | None:
    """Make the reserve the cluster in use, ready; None, and nothing left of it, when it does not fit or did not come up."""
    cluster = standby.cluster
    began = cluster.journal.now()
    if standby.matches(active):
        try:
            standby.start_thread.join()
        except KeyboardInterrupt:
            # Nothing else refers to it any more.
            standby.stop()
            raise
    if cluster.state != "clean" or not standby.matches(active):
        standby.stop()
        return None
    cluster.started_in_s = cluster.journal.now() - began
    cluster.on_notice(print_notice)
    return cluster
