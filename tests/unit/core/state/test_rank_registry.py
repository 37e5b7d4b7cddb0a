"""What the error of a start that does not complete says of the ranks."""

from __future__ import annotations

import pytest

from mhnb.core.messages import Heartbeat, HostUp, HubExited, PhaseReached, RankReady, RankSpawned, StartFailed
from mhnb.core.state.rank_registry import RankRegistry


@pytest.fixture
def registry() -> RankRegistry:
    """Three ranks on two hosts; all wait for each other in the same phase."""
    registry = RankRegistry(["a", "a", "b"], ["a.log", "a.log", "b.log"], [0, 0, 1])
    for rank in range(3):
        registry.update(RankSpawned(rank, 100 + rank))
        registry.update(PhaseReached(rank, "jax", {}))
    return registry


def test_only_the_halted_rank_is_named(registry: RankRegistry) -> None:
    """The other ranks are in the same phase because they wait for the halted one."""
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    error = registry.timeout_error(8.0)
    assert str(error).splitlines()[0] == (
        "the start took longer than 8 s: rank 1 (a, pid 101) is suspended after phase 'jax' (SIGSTOP or a debugger)"
    )
    assert (error.parts["rank"], error.parts["cause"]) == (1, "halted")


def test_halted_hub_is_named_instead_of_ranks(registry: RankRegistry) -> None:
    """Ranks that register with the hub cannot go on; a rank that is halted itself is named first."""
    registry.record_host(HostUp(0, 99, "a", 77))
    registry.record_heartbeat(Heartbeat(0, is_hub_halted=True))
    error = registry.timeout_error(8.0)
    assert "the hub (ipyparallel's controller, pid 77) is suspended" in str(error)
    assert "kill -CONT 77" in str(error)
    assert error.parts["cause"] == "halted"
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1], is_hub_halted=True))
    assert "rank 1" in str(registry.timeout_error(8.0)).splitlines()[0]
    registry.record_heartbeat(Heartbeat(0))
    assert "halted" not in str(registry.timeout_error(8.0))


def test_each_of_several_halted_ranks_has_its_own_phase(registry: RankRegistry) -> None:
    """The ranks may have been halted at different moments."""
    registry.update(PhaseReached(2, "devices", {}))
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    registry.record_heartbeat(Heartbeat(1, halted_ranks=[2]))
    text = str(registry.timeout_error(8.0))
    assert "rank 1 (a, pid 101) is suspended after phase 'jax'" in text
    assert "rank 2 (b, pid 102) is suspended after phase 'devices'" in text


@pytest.mark.parametrize(
    ("exited", "expected"),
    [
        (HubExited(1, None, ["Traceback", "ZMQError: taken"]), "ended by itself with exit code 1 (ZMQError: taken)"),
        (HubExited(1, None, []), "ended by itself with exit code 1"),
        (HubExited(None, 9, ["a warning"]), "was killed by SIGKILL (often by the memory limit)"),
    ],
)
def test_last_output_of_the_hub_is_quoted(registry: RankRegistry, exited: HubExited, expected: str) -> None:
    """The last line of a hub that ended by itself is quoted; a hub that was killed has given no reason."""
    assert registry.describe_service_loss(exited) == f"the hub (ipyparallel's controller) {expected}"


def test_resumed_rank_is_no_longer_halted(registry: RankRegistry) -> None:
    """A heartbeat reports the current state of its own host's ranks only."""
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    registry.record_heartbeat(Heartbeat(1, halted_ranks=[]))
    assert "is suspended" in str(registry.timeout_error(8.0))
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[]))
    assert "stopped after phase 'jax'" in str(registry.timeout_error(8.0))


def test_takeover_timeout_ends_no_process(registry: RankRegistry) -> None:
    """A takeover that times out ends no process: the cluster stays as the previous notebook left it."""
    registry.mark_takeover("kept.7")
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    text = str(registry.timeout_error(20.0))
    assert text.startswith("attaching to the cluster took longer than 20 s: rank 1 (a, pid 101) is suspended")
    assert "to continue it: kill -CONT 101" in text
    assert "all processes were stopped" not in text
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[]))
    unknown = str(registry.timeout_error(20.0))
    assert unknown.startswith("attaching to the cluster took longer than 20 s: rank 0 (a, pid 100), rank 1")
    assert "all processes were stopped" not in unknown


def test_ranks_that_do_not_answer_a_takeover_may_be_busy() -> None:
    """They answer between cells. One that is suspended, or has come further, explains the wait itself."""
    registry = RankRegistry(["a", "a", "b"], ["a.log", "a.log", "b.log"], [0, 0, 1])
    registry.mark_takeover("kept.7")
    for rank in range(3):
        registry.update(RankSpawned(rank, 100 + rank))
    registry.update(RankReady(0, {}))
    assert registry.find_busy() == (1, 2)
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    assert registry.find_busy() == ()


def test_failed_start_names_the_halted_rank(registry: RankRegistry) -> None:
    """JAX's own limit may end first, and then a rank fails that only waited."""
    registry.record_heartbeat(Heartbeat(0, halted_ranks=[1]))
    text = str(registry.start_error(StartFailed(0, "jax", "RuntimeError", "Barrier timed out", "")))
    assert "rank 0" in text.splitlines()[0]
    assert "rank 1 (a, pid 101) is suspended after phase 'jax' (SIGSTOP or a debugger), which may be the cause" in text


@pytest.mark.parametrize("goes_on", [True, False])
def test_memory_is_recorded_only_if_it_is_requested_again(registry: RankRegistry, *, goes_on: bool) -> None:
    """Otherwise an old value would be shown long afterwards."""
    registry.record_heartbeat(Heartbeat(0, {"1": 4096}), is_repeated=goes_on)
    assert registry.entries[1].nbytes == (4096 if goes_on else None)
