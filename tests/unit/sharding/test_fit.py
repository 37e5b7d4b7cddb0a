"""Whether a program fits: times of collectives by formula, bounds of a step, and the order of candidates."""

from __future__ import annotations

import pytest

from mhnb.sharding.fit import (
    Candidate,
    CompiledMemory,
    Links,
    PlannedArgument,
    StepTime,
    divide_devices,
    estimate_step,
    time_collective,
)
from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_cost import Cost
from mhnb.sharding.hlo_text import HloShape
from mhnb.sharding.machines import parse_machine
from mhnb.sharding.report import Program

H100, V5P = Links(450e9, 50e9, is_torus=False), Links(1.8e11, 6.25e9, is_torus=True)
"""The rates of `mhnb.sharding.machines`, whose tests compare them with their sources."""
MB = 250_000
"""Elements of f32 in a megabyte."""


def collective(op: str, megabytes: int, size: int) -> HloCollective:
    """Return a collective of one group, in which each device contributes some megabytes."""
    return HloCollective(op, "c", (HloShape("f32", (megabytes * MB,)),), (), groups=(tuple(range(size)),))


@pytest.mark.parametrize(
    ("op", "gigabytes_sent"),
    # Of 8 MB on each of 4 devices: a ring sends 3 shards of an all-gather, 3/4 of a reduce-scatter, twice that of an all-reduce.
    [("all-gather", 24e-3), ("reduce-scatter", 6e-3), ("all-reduce", 12e-3), ("all-to-all", 6e-3)],
)
def test_inside_nvlink_a_device_sends_what_a_ring_does(op: str, gigabytes_sent: float) -> None:
    """Inside a domain, the time is that of the bytes that a device sends, at the rate of NVLink."""
    assert time_collective(collective(op, 8, 4), H100, "aaaa") == pytest.approx(gigabytes_sent / 450)


def test_all_to_all_of_a_torus_takes_the_book_s_quarter() -> None:
    """On a ring of a torus, an all-to-all takes a quarter of the all-gather of the same array: V / (4 W)."""
    whole = 8 * 8e6  # eight devices with 8 MB each
    assert time_collective(collective("all-to-all", 8, 8), V5P, "a" * 8) == pytest.approx(whole / 4 / 1.8e11)


def test_between_hosts_each_gpu_sends_its_part_over_its_own_card() -> None:
    """Two hosts of 8 H100: an all-gather of 16 shards of 1 MB brings each GPU one shard of the other host, then 14 by NVLink."""
    took = time_collective(collective("all-gather", 1, 16), H100, "a" * 8 + "b" * 8)
    assert took == pytest.approx(max(1e6 / 50e9, 14e6 / 450e9))
    # With one device on each host there is only the network.
    assert time_collective(collective("all-gather", 1, 2), H100, "ab") == pytest.approx(1e6 / 50e9)


def test_a_permute_goes_at_the_rate_of_the_slowest_link() -> None:
    """If any pair of a permute leaves the domain, all wait for the network; a device that keeps its data sends nothing."""
    shape = (HloShape("f32", (MB,)),)
    inside = HloCollective("collective-permute", "p", shape, shape, (), pairs=((0, 1), (1, 0)))
    assert time_collective(inside, H100, "aa") == pytest.approx(1e6 / 450e9)
    assert time_collective(inside, H100, "ab") == pytest.approx(1e6 / 50e9)
    assert time_collective(HloCollective("collective-permute", "p", shape, shape, (), pairs=((0, 0),)), H100, "aa") == 0


def test_data_parallelism_is_bound_by_communication_below_the_book_s_batch() -> None:
    """The gradients of a layer D x F, all-reduced over v5p's data axis, take longer than its products below 2550 tokens a chip.

    The scaling book, "How to Parallelize a Transformer": data parallelism is bound by communication if the batch of a chip is
    below C / W, which is 459e12 / 1.8e11 = 2550 for one axis of v5p.
    """
    machine, d, f, chips = parse_machine("v5p:4x4x4"), 8192, 32768, 64
    gradients = HloCollective("all-reduce", "g", (HloShape("bf16", (2 * d * f,)),), (), groups=(tuple(range(chips)),))
    program = Program("jit(step)", (0,) * chips, "tpu", (gradients,))
    bounds = {}
    for tokens in (2400, 2700):
        # Two matrices, whose backward pass has two products each.
        step = estimate_step(program, Cost({"bf16": 8 * tokens * d * f}), machine, (0,) * chips)
        assert step is not None
        bounds[tokens] = step.bound_by
    assert bounds == {2400: "communication", 2700: "compute"}


def test_loops_count_as_often_as_they_run() -> None:
    """A collective in a loop of 80 runs takes 80 times as long."""
    once = collective("all-gather", 8, 4)
    looped = HloCollective(once.op, "c", once.operands, (), once.groups, times=80)
    machine = parse_machine("h100:1x4")
    steps = [estimate_step(Program("f", (0,) * 4, "cuda", (one,)), Cost(), machine, "aaaa") for one in (once, looped)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[1].communication == pytest.approx(80 * steps[0].communication)


def test_bounds_of_a_step() -> None:
    """If all overlaps the longest part counts; if communication overlaps with nothing it is added to the longer of the others."""
    step = StepTime(compute=3.0, memory=1.0, communication=4.0)
    assert (step.at_least, step.at_most, step.bound_by, step.peak_share) == (4.0, 7.0, "communication", 0.75)


def test_no_figures_no_estimate() -> None:
    """Nobody publishes the figures of a CPU of unknown kind, so there is no estimate."""
    assert estimate_step(Program("f", (0,), "cpu", ()), Cost({"f32": 1}), parse_machine("cpu:1x1"), "a") is None


def test_memory_counts_donated_outputs_once() -> None:
    """What takes the place of an argument needs no memory of its own."""
    assert CompiledMemory(arguments=10, outputs=8, aliased=7, temporaries=5, code=1).nbytes == 17
    assert PlannedArgument("w", "bfloat16", (8, 8), "P('x')", (2, 8)).nbytes == 32


def test_devices_are_divided_in_every_order() -> None:
    """Twelve devices over two axes: as many ways as twelve has divisors; over three axes, as many as factorisations."""
    assert list(divide_devices(12, 2)) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert len(list(divide_devices(64, 3))) == 28


def test_candidates_without_a_fit_are_last() -> None:
    """What was not compiled sorts behind everything, the smallest need first."""
    large, small = Candidate((("x", 1),), "", needed=9), Candidate((("x", 2),), "", needed=3)
    assert sorted([large, small], key=lambda each: each.sort_key) == [small, large]
