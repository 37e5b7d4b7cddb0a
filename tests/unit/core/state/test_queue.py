"""A start whose hosts a scheduler has not assigned yet, and the limits of host heartbeats."""

from __future__ import annotations

from mhnb.core.messages import HostUp
from mhnb.core.state.events import FailStart, HostsQueued, TimePassed
from mhnb.core.state.host_tracking import HeartbeatMonitor
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry


def test_queue_time_does_not_count_as_start_time() -> None:
    """The start limit begins only when the scheduler has assigned the hosts, and a host's first report ends the queueing."""
    machine = ClusterStateMachine(RankRegistry(["host0"], ["log"]), generation=1, now=0.0, start_timeout_s=10.0)
    assert machine.handle(HostsQueued("job 1 waits"), 500.0) == []
    assert machine.handle(TimePassed(), 509.0) == []
    assert machine.registry.queue_position == "job 1 waits"
    machine.handle(HostUp(0, 7, "a", None), 509.5)
    assert machine.registry.queue_position == ""
    (failed,) = machine.handle(TimePassed(), 511.0)
    assert isinstance(failed, FailStart)


def test_host_asked_to_kill_ranks_has_a_short_limit() -> None:
    """The short limit lasts until the host's next heartbeat, whatever longer silence it was allowed."""
    monitor = HeartbeatMonitor(20.0)
    monitor.record(0, 0.0, extra_s=60.0)
    monitor.record(1, 9.0)
    monitor.limit_wait(10.0, 5.0)
    monitor.record(1, 11.0)
    assert monitor.find_lost(15.5) == {0: 15.5}
    assert monitor.find_lost(31.5) == {0: 31.5, 1: 20.5}


def test_importing_host_may_be_silent_for_longer() -> None:
    """The longer limit lasts until its next heartbeat; then the normal limit applies."""
    monitor = HeartbeatMonitor(20.0)
    monitor.record(0, 0.0, extra_s=60.0)
    assert monitor.find_lost(79.0) == {}
    assert monitor.find_lost(81.0) == {0: 81.0}
    monitor.record(0, 81.0)
    assert monitor.find_lost(102.0) == {0: 21.0}
