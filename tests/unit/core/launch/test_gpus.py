"""GPUs by UUID: listed, visible, assigned to ranks, and assigned twice. No real GPU was available for these tests."""

from __future__ import annotations

import pytest

from mhnb.core.launch.environment import divide_gpus, find_shared_gpu, parse_gpus, select_visible
from mhnb.core.messages import PhaseReached
from mhnb.core.preflight_facts import Gpu
from mhnb.core.state.events import FailStart
from mhnb.core.state.host_tracking import StartBarrier
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import LaunchError

_FOUR_GPUS = ("GPU-aa11", "GPU-ab22", "GPU-c", "GPU-d")


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, _FOUR_GPUS),
        ("", ()),
        ("-1", ()),
        ("2,0", ("GPU-c", "GPU-aa11")),
        ("0,9,1", ("GPU-aa11",)),
        ("GPU-ab,3", ("GPU-ab22", "GPU-d")),
        ("GPU-zz,3", ()),
        ("MIG-7,1", ("MIG-7", "GPU-ab22")),
    ],
)
def test_cuda_visible_devices_selects_gpus(visible: str | None, seen: tuple[str, ...]) -> None:
    """Numbers, UUIDs and UUID prefixes are valid; as in CUDA, entries after an unknown one do not count."""
    assert select_visible(_FOUR_GPUS, visible) == seen


def test_nvidia_smi_output_is_parsed() -> None:
    """The GPUs are in the order of their indices; lines that are not rows are ignored."""
    text = "10, A, B, GPU-k\n2, H200, GPU-c\n\nNVIDIA-SMI has failed, because\n"
    assert parse_gpus(text) == (Gpu("H200", "GPU-c"), Gpu("A, B", "GPU-k"))


@pytest.mark.parametrize(("gpus", "ranks"), [((), [0]), (_FOUR_GPUS, [0, 1, 2]), (_FOUR_GPUS[:1], [0, 1])])
def test_gpus_that_cannot_be_divided_are_refused(gpus: tuple[str, ...], ranks: list[int]) -> None:
    """The error names the number of GPUs, the number of ranks, and the host."""
    with pytest.raises(LaunchError, match=f"node7 has {len(gpus)} GPUs for {len(ranks)} ranks"):
        divide_gpus(gpus, ranks, "node7")


def test_every_gpu_has_one_rank() -> None:
    """No two ranks get the same GPU, and every GPU is assigned."""
    for ranks in ([0], [4, 5], [0, 1, 2, 3]):
        assigned = divide_gpus(_FOUR_GPUS, ranks, "here")
        assert find_shared_gpu(assigned) is None
        assert tuple(gpu for rank in ranks for gpu in assigned[rank]) == _FOUR_GPUS


def test_the_same_gpu_twice_fails_the_start() -> None:
    """Before JAX uses the GPU, the error names both ranks, their hosts, the GPU, and what to do."""
    registry = RankRegistry(["host0", "host1"], ["a", "b"], [0, 1], StartBarrier([0, 1], 2))
    machine = ClusterStateMachine(registry, generation=1, now=0.0, start_timeout_s=9.0)
    for rank, name in enumerate(("n1", "n2")):
        event = PhaseReached(rank, "connected", {"hostname": name, "gpus": ["GPU-x"]})
        commands = machine.handle(event, 1.0)
    (failed,) = commands
    assert isinstance(failed, FailStart)
    assert str(failed.error).startswith("rank 0 (host0 (n1)) and rank 1 (host1 (n2)) would use the same GPU, GPU-x")
    assert "--profile gpu" in str(failed.error)


def test_different_gpus_start() -> None:
    """Ranks with different GPUs can start, and so can ranks without any."""
    registry = RankRegistry(["host0", "host0"], ["a", "b"])
    machine = ClusterStateMachine(registry, generation=1, now=0.0, start_timeout_s=9.0)
    for rank, own in enumerate((["GPU-x"], ["GPU-y"])):
        assert machine.handle(PhaseReached(rank, "connected", {"gpus": own}), 1.0) == []
    assert machine.handle(PhaseReached(1, "jax", {"gpus": []}), 1.0) == []
