"""The start over several hosts: their reports, their checks, and what a host that is lost on the way means."""

from __future__ import annotations

import pytest

from mhnb.core.messages import HostUp, StartRanks
from mhnb.core.state.events import (
    Command,
    FailStart,
    HostExited,
    PreflightEnded,
    RunPreflight,
    SendToHosts,
    TimePassed,
)
from mhnb.core.state.host_tracking import HeartbeatMonitor, StartBarrier
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import HostUnfit, LaunchError, PreflightFailed

HUB = 2


@pytest.fixture
def machine() -> ClusterStateMachine:
    """Two hosts with a rank each, and the supervisor of the hub."""
    registry = RankRegistry(["host0", "host1"], ["", ""], [0, 1], StartBarrier([0, 1], HUB))
    return ClusterStateMachine(registry, generation=1, now=0.0, start_timeout_s=60.0)


def report(supervisor: int) -> HostUp:
    """Return a supervisor's report."""
    if supervisor == HUB:
        return HostUp(HUB, 7, "here", 9, connection="{}")
    return HostUp(supervisor, 7, "abc"[supervisor], None, f"10.0.0.{supervisor + 1}", [20001, 20002])


def fail(supervisor: int) -> HostExited:
    """Return the end of a supervisor that did not start, which concerns its host alone."""
    error = HostUnfit(f"host{supervisor}: has no such Python", host=f"host{supervisor}", kind="python", cause="")
    return HostExited(supervisor, "host is lost", error)


def report_all(machine: ClusterStateMachine, *supervisors: int) -> list[Command]:
    """Report these supervisors, and return the commands of the last report."""
    commands: list[Command] = []
    for supervisor in supervisors:
        commands = machine.handle(report(supervisor), 1.0)
    return commands


def test_ranks_start_after_the_checks(machine: ClusterStateMachine) -> None:
    """The hosts are checked once all have reported, and the ranks start once nothing was found."""
    assert report_all(machine, 0, HUB) == []
    (command,) = report_all(machine, 1)
    assert isinstance(command, RunPreflight)
    assert (command.hosts, command.coordinator, set(command.reports)) == ((0, 1), "10.0.0.1:20001", {0, 1, HUB})
    (start,) = machine.handle(PreflightEnded(), 2.0)
    assert isinstance(start, SendToHosts)
    assert isinstance(start.message, StartRanks)
    assert start.message.addresses == {"host0": "10.0.0.1", "host1": "10.0.0.2"}


def test_findings_fail_the_start(machine: ClusterStateMachine) -> None:
    """What prevents the start is its error, and no rank starts."""
    report_all(machine, 0, 1, HUB)
    error = PreflightFailed("beta has another jax")
    assert machine.handle(PreflightEnded(error), 2.0) == [FailStart(error)]
    assert machine.handle(PreflightEnded(), 3.0) == [], "the start has ended"


def test_failed_host_does_not_keep_the_others_from_the_checks(machine: ClusterStateMachine) -> None:
    """A host that cannot start is part of the checks; its coordinator has no address if it is the first."""
    report_all(machine, 1, HUB)
    (command,) = machine.handle(fail(0), 1.0)
    assert isinstance(command, RunPreflight)
    assert (set(command.failures), set(command.reports), command.coordinator) == ({0}, {1, HUB}, "")


def test_loss_of_all_hosts_fails_the_start(machine: ClusterStateMachine) -> None:
    """The end of the command that runs all supervisors is the error, at once."""
    (command,) = machine.handle(HostExited(0, "srun ended with exit code 1"), 1.0)
    assert isinstance(command, FailStart)
    assert "srun ended with exit code 1" in str(command.error)


def test_host_lost_during_the_checks_fails_the_start(machine: ClusterStateMachine) -> None:
    """A host that has reported and is lost then would never start its ranks, whatever the checks find."""
    report_all(machine, 0, 1, HUB)
    (command,) = machine.handle(fail(1), 2.0)
    assert isinstance(command, FailStart)


def test_host_that_never_reports_is_named_by_the_checks(machine: ClusterStateMachine) -> None:
    """After the time limit the hosts that have reported are checked, and the missing one is a failure among theirs."""
    report_all(machine, 0, HUB)
    (command,) = machine.handle(TimePassed(), 61.0)
    assert isinstance(command, RunPreflight)
    assert str(command.failures[1]).startswith("host1: did not report within 60 s")
    assert machine.handle(TimePassed(), 62.0) == [], "the checks have limits of their own"


def test_hub_that_never_reports_fails_the_start(machine: ClusterStateMachine) -> None:
    """Without the hub nothing can be checked."""
    report_all(machine, 0, 1)
    (command,) = machine.handle(TimePassed(), 61.0)
    assert isinstance(command, FailStart)
    assert isinstance(command.error, LaunchError)


def test_time_limit_begins_after_the_checks(machine: ClusterStateMachine) -> None:
    """The ranks have the whole time limit, however long the checks took."""
    report_all(machine, 0, 1, HUB)
    machine.handle(PreflightEnded(), 50.0)
    assert machine.handle(TimePassed(), 109.0) == []
    (command,) = machine.handle(TimePassed(), 111.0)
    assert isinstance(command, FailStart)


def test_silence_is_allowed_to_hosts_that_answered_before() -> None:
    """The order to start the ranks makes a supervisor import JAX, and it is silent meanwhile."""
    monitor = HeartbeatMonitor(20)
    monitor.record(0, now=1.0)
    monitor.allow_silence(60.0)
    assert monitor.find_lost(now=75.0) == {}
    assert monitor.find_lost(now=82.0) == {0: 81.0}
