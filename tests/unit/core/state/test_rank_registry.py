"""What the error of a start that does not complete says of the ranks."""

from __future__ import annotations

import pytest

from mhnb.core.messages import Heartbeat, HostUp, HubExited, PhaseReached, RankSpawned, StartFailed
from mhnb.core.state.rank_registry import RankRegistry


@pytest.fixture
def roster() -> RankRegistry:
    """Three ranks on two hosts; all wait for each other in the same phase."""
    roster = RankRegistry(["a", "a", "b"], ["a.log", "a.log", "b.log"], [0, 0, 1])
    for rank in range(3):
        roster.update(RankSpawned(rank, 100 + rank))
        roster.update(PhaseReached(rank, "jax", {}))
    return roster


def test_the_halted_rank_is_named_and_no_other(roster: RankRegistry) -> None:
    """The other ranks are in the same phase because they wait for the halted one."""
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    error = roster.timeout_error(8.0)
    assert str(error).splitlines()[0] == (
        "the start took longer than 8 s: rank 1 (a, pid 101) stands still after phase 'jax', halted by SIGSTOP or a debugger"
    )
    assert (error.parts["rank"], error.parts["cause"]) == (1, "halted")


def test_the_halted_hub_is_named_and_no_rank(roster: RankRegistry) -> None:
    """Ranks that register with the hub cannot go on; a rank that is halted itself is named first."""
    roster.record_host(HostUp(0, 99, "a", 77))
    roster.record_heartbeat(Heartbeat(0, is_hub_halted=True))
    error = roster.timeout_error(8.0)
    assert "the hub (ipyparallel's controller, pid 77) is halted" in str(error)
    assert "kill -CONT 77" in str(error)
    assert error.parts["cause"] == "halted"
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1], is_hub_halted=True))
    assert "rank 1" in str(roster.timeout_error(8.0)).splitlines()[0]
    roster.record_heartbeat(Heartbeat(0))
    assert "halted" not in str(roster.timeout_error(8.0))


def test_each_of_several_halted_ranks_has_its_own_phase(roster: RankRegistry) -> None:
    """The ranks may have been halted at different moments."""
    roster.update(PhaseReached(2, "devices", {}))
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    roster.record_heartbeat(Heartbeat(1, halted_ranks=[2]))
    text = str(roster.timeout_error(8.0))
    assert "rank 1 (a, pid 101) stands still after phase 'jax'" in text
    assert "rank 2 (b, pid 102) stands still after phase 'devices'" in text


@pytest.mark.parametrize(
    ("exited", "told"),
    [
        (HubExited(1, None, ["Traceback", "ZMQError: taken"]), "ended by itself with exit code 1 (ZMQError: taken)"),
        (HubExited(1, None, []), "ended by itself with exit code 1"),
        (HubExited(None, 9, ["a warning"]), "was killed by SIGKILL, often the memory limit"),
    ],
)
def test_a_hub_is_quoted_where_it_has_said_why(roster: RankRegistry, exited: HubExited, told: str) -> None:
    """A hub that was killed has given no reason."""
    assert roster.describe_service_loss(exited) == f"the hub (ipyparallel's controller) {told}"


def test_a_rank_that_goes_on_is_not_halted_any_more(roster: RankRegistry) -> None:
    """A heartbeat reports the current state of its own host's ranks only."""
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    roster.record_heartbeat(Heartbeat(1, halted_ranks=[]))
    assert "stands still" in str(roster.timeout_error(8.0))
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[]))
    assert "reached phase 'jax' and no further" in str(roster.timeout_error(8.0))


def test_a_takeover_ends_nothing_and_says_how_the_halted_rank_goes_on(roster: RankRegistry) -> None:
    """The cluster belongs to another notebook that has ended, so it stays unchanged."""
    roster.mark_takeover("kept.7")
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    text = str(roster.timeout_error(20.0))
    assert text.startswith("taking the cluster over took longer than 20 s: rank 1 (a, pid 101) stands still")
    assert "kill -CONT 101 lets it go on" in text
    assert "every process was ended" not in text
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[]))
    unknown = str(roster.timeout_error(20.0))
    assert unknown.startswith("taking the cluster over took longer than 20 s: rank 0 (a, pid 100), rank 1")
    assert "every process was ended" not in unknown


def test_who_gave_up_waiting_names_the_halted_rank(roster: RankRegistry) -> None:
    """JAX's own limit may end first, and then a rank fails that only waited."""
    roster.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    text = str(roster.start_error(StartFailed(0, "jax", "RuntimeError", "Barrier timed out", "")))
    assert "rank 0" in text.splitlines()[0]
    assert (
        "rank 1 (a, pid 101) stands still after phase 'jax', halted by SIGSTOP or a debugger: that may be why" in text
    )


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_rank_weighs_is_kept_only_where_it_is_asked_again(roster: RankRegistry, *, goes_on: bool) -> None:
    """Otherwise an old value would be shown long afterwards."""
    roster.record_heartbeat(Heartbeat(0, {"1": 4096}), is_repeated=goes_on)
    assert roster.entries[1].nbytes == (4096 if goes_on else None)
