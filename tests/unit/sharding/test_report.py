"""Reports: joined rows, totals, estimates, and the encoding between the ranks and the notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mhnb.core.typed_json import decode_json, encode_json
from mhnb.sharding.hlo_collectives import HloCollective, parse_meshes
from mhnb.sharding.hlo_text import HloShape
from mhnb.sharding.report import Program, WireProgram, make_report, program_from_wire, program_to_wire
from tests.unit.sharding.texts import CPU, TPU, lowered, read

RANKS = (0, 0, 1, 1, 2, 2, 3, 3)
HOSTS = {rank: f"host{rank}" for rank in range(4)}


def program(name: str, kind: str) -> Program:
    """Return a recorded program as a rank reports it."""
    module = lowered(name, kind)
    return Program(f"jit({name})", RANKS, kind[:3], read(name, kind), parse_meshes(module)).with_explanations(module)


@pytest.mark.parametrize("kind", [*CPU, *TPU])
@pytest.mark.parametrize("name", ["data_parallel", "pipeline", "reshard", "sharded_parameters"])
def test_program_survives_encoding(name: str, kind: str) -> None:
    """A program that a rank encodes as JSON is decoded to an equal one."""
    reported = program(name, kind)
    assert program_from_wire(decode_json(encode_json(program_to_wire(reported)), WireProgram)) == reported


@pytest.mark.parametrize("kind", CPU)
def test_equal_collectives_are_one_row(kind: str) -> None:
    """The same operation twice on one line is one row with count 2, and another line is another row."""
    there, back = read("expert_parallel", kind)
    once = make_report(replace(program("expert_parallel", kind), why=()), HOSTS)
    assert [row.count for row in once.rows] == [1, 1]
    twice = make_report(Program("f", RANKS, "cpu", (there, there, back)), HOSTS)
    assert [row.count for row in twice.rows] == [2, 1]
    assert twice.nbytes_per_device == 3 * once.rows[0].nbytes_per_device


@pytest.mark.parametrize("kind", CPU)
def test_totals_include_the_runs(kind: str) -> None:
    """Totals count 15 permutes of 64 bytes, 5 sums, a loop of unknown length once and a branch once."""
    report = make_report(program("loops", kind), HOSTS)
    assert report.nbytes_per_device == 64 * (15 + 5 + 1 + 1)
    assert report.nbytes_across_hosts == 64 * 15 + 0 + 48 + 48
    assert report.ring_nbytes == (64 * 15 + 64 * 5 + 96 + 112, 64 * 15 + 96 + 112)
    assert [row.count for row in report.rows] == [15, 5, None, 1]


@pytest.mark.parametrize("kind", CPU)
def test_bytes_across_hosts_depend_on_hosts(kind: str) -> None:
    """The bytes across hosts depend on the hosts and not on the ranks: here two hosts of two ranks each."""
    (row,) = make_report(program("data_parallel", kind), {0: "a", 1: "a", 2: "b", 3: "b"}).rows
    assert row.nbytes_across_hosts * 2 == row.nbytes_per_device
    (inside,) = make_report(program("data_parallel", kind), dict.fromkeys(range(4), "a")).rows
    assert (inside.nbytes_across_hosts, inside.crosses) == (0, False)


def test_widened_bytes_are_an_estimate_on_cpu_only() -> None:
    """Bytes widened on CPU are an estimate; on another platform the same text is exact."""
    reported = program("reshard", CPU[0])
    assert all(row.is_estimate for row in make_report(reported, HOSTS).rows)
    assert not any(row.is_estimate for row in make_report(replace(reported, platform="gpu"), HOSTS).rows)
    bf16 = make_report(program("reshard", TPU[0]), HOSTS)
    assert [row.dtype for row in bf16.rows] == ["bf16", "bf16"]
    # CPU's bytes are twice those of TPU.
    assert make_report(reported, HOSTS).nbytes_per_device == 2 * bf16.nbytes_per_device


def test_a_ragged_exchange_is_an_estimate() -> None:
    """A ragged exchange is an estimate, because its bytes are known only at run time."""
    ragged = HloCollective("ragged-all-to-all", "r", (HloShape("f32", (8,)),), (HloShape("f32", (8,)),), ((0, 1),))
    (row,) = make_report(Program("f", (0, 1), "tpu", (ragged,)), HOSTS).rows
    assert row.is_estimate


def test_equal_shapes_are_shown_once() -> None:
    """Equal shapes are shown once with their number."""
    shapes = tuple(HloShape("f32", dims) for dims in ((2,), (2,), (4, 1)))
    (row,) = make_report(
        Program("f", (0, 1), "cpu", (HloCollective("all-to-all", "a", shapes, shapes, ((0, 1),)),)), HOSTS
    ).rows
    assert row.shape == "2 × f32[2] + f32[4,1]"
