"""Whether a program fits: times of collectives by formula, bounds of a step, and the order of candidates."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from mhnb.sharding.fit import (
    Candidate,
    CompiledMemory,
    Links,
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

GRID = tuple(product(range(4), repeat=3))
V5P = Links(1.8e11, 6.25e9, (0,) * 64, GRID, rings=(4, 4, 4))
"""The rates of `mhnb.sharding.machines`, whose tests compare them with their sources."""
MB = 250_000
"""Elements of f32 in a megabyte."""


def h100(domains: str) -> Links:
    """Return the links of H100s, by the domain of each."""
    return Links(450e9, 50e9, tuple(domains))


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
    assert time_collective(collective(op, 8, 4), h100("aaaa")) == pytest.approx(gigabytes_sent / 450)


def test_all_to_all_of_a_torus_takes_the_book_s_quarter() -> None:
    """On a ring of a torus, an all-to-all takes a quarter of the all-gather of the same array: V / (4 W)."""
    whole = 4 * 8e6  # four devices with 8 MB each
    assert time_collective(collective("all-to-all", 8, 4), V5P) == pytest.approx(whole / 4 / 1.8e11)


def test_a_group_uses_the_links_of_every_axis_that_it_spans() -> None:
    """In a slice of 4 x 4 x 4, 16 chips of a plane gather with the links of two axes; without wraparound each has one direction."""
    plane = collective("all-gather", 1, 16)
    assert time_collective(plane, V5P) == pytest.approx(15e6 / 3.6e11)
    assert time_collective(plane, replace(V5P, rings=(0, 0, 0))) == pytest.approx(15e6 / 1.8e11)


def test_neighbours_on_part_of_an_axis_use_one_direction() -> None:
    """Two of four chips on an axis have one link between them; chips with others between them share its links with those."""
    assert V5P.find_sides((0, 16)) == V5P.find_sides((0, 32)) == ((2, 0.9e11),)
    # A path with a corner, as JAX lays a small mesh: neither a line nor a plane.
    assert V5P.find_sides((0, 1, 5)) == ((3, 0.9e11),)


def test_between_hosts_each_gpu_sends_its_part_over_its_own_card() -> None:
    """Two hosts of 8 H100: an all-gather of 16 shards of 1 MB brings each GPU one shard of the other host, then 14 by NVLink."""
    took = time_collective(collective("all-gather", 1, 16), h100("a" * 8 + "b" * 8))
    assert took == pytest.approx(max(1e6 / 50e9, 14e6 / 450e9))
    # With one device on each host there is only the network.
    assert time_collective(collective("all-gather", 1, 2), h100("ab")) == pytest.approx(1e6 / 50e9)


def test_a_permute_goes_at_the_rate_of_the_slowest_link() -> None:
    """If any pair of a permute leaves the domain, all wait for the network; a device that keeps its data sends nothing."""
    shape = (HloShape("f32", (MB,)),)
    inside = HloCollective("collective-permute", "p", shape, shape, (), pairs=((0, 1), (1, 0)))
    assert time_collective(inside, h100("aa")) == pytest.approx(1e6 / 450e9)
    assert time_collective(inside, h100("ab")) == pytest.approx(1e6 / 50e9)
    assert time_collective(HloCollective("collective-permute", "p", shape, shape, (), pairs=((0, 0),)), h100("aa")) == 0


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


def test_devices_are_divided_in_every_order() -> None:
    """Twelve devices over two axes: as many ways as twelve has divisors; over three axes, as many as factorisations."""
    assert list(divide_devices(12, 2)) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert len(list(divide_devices(64, 3))) == 28


def test_candidates_without_a_fit_are_last() -> None:
    """What was not compiled sorts behind everything, the smallest need first."""
    large, small = Candidate((("x", 1),), "", needed=9), Candidate((("x", 2),), "", needed=3)
    assert sorted([large, small], key=lambda each: each.sort_key) == [small, large]
