"""Comparison of host-data arrays across ranks: which arrays are the same one, and which differences count."""

from __future__ import annotations

import math
import struct

import pytest
from msgspec.structs import replace

from mhnb.core.guard.host_data import (
    DIFFERENT_COPIES,
    INCOMPLETE,
    LAUNCH_INPUT,
    HashSummary,
    HostDataRow,
    compare_host_data,
    format_host_data,
)
from mhnb.core.guard.launch_report import LaunchReport
from mhnb.core.messages import CellEnded, RankReady
from tests.unit.core.state.test_machine import GUARD, PSUM, Driver, error, finished


def row(
    digest: str, *, line: int = 2, kind: str = "f32[8]", count: int = 1, groups: str = "g", total: str = ""
) -> HostDataRow:
    """Return the row of one line's arrays on ranks 0 and 1, replicated."""
    kinds = HashSummary(count, groups, kind, kind, kind)
    boxes = {"0:8": HashSummary(count, groups, digest, total or digest, digest)}
    return HostDataRow(line, (0, 1), "d", kinds, boxes)


def test_equal_data_is_not_reported() -> None:
    """Arrays with equal hashes are not reported."""
    assert compare_host_data({0: [row("a"), row("b", line=3)], 1: [row("a"), row("b", line=3)]}) == ()


@pytest.mark.parametrize(
    ("mine", "theirs", "head"),
    [
        ("i32[2]", "f32[2]", "with different dtypes"),
        ("f32[2]", "f32[4]", "with different shapes"),
        ("i32[2]", "f32[4]", "with different shapes"),
    ],
)
def test_different_types_and_shapes_are_named(mine: str, theirs: str, head: str) -> None:
    """The message says whether types or shapes differ; it mentions dtype only for types."""
    found = compare_host_data({0: [row("a", kind=mine)], 1: [row("b", kind=theirs)]})
    text = format_host_data(found[0])
    assert text.startswith(f"the ranks made one array {head}\n")
    assert ("dtype" in text) == ("types" in head)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param([row("a", count=2)], [row("b", count=3)], id="one rank made more of them"),
        pytest.param([row("a")], [row("b", line=3)], id="another line"),
        pytest.param([row("a")], [], id="one rank made none"),
        pytest.param([row("a", groups="x", total="t")], [row("b", groups="y", total="t")], id="the same at another pace"),
        pytest.param([replace(row("a"), boxes={"0:4": row("a").boxes["0:8"]})],
                     [replace(row("b"), boxes={"4:8": row("b").boxes["0:8"]})], id="boxes of their own"),
    ],
)  # fmt: skip
def test_possibly_different_arrays_are_not_compared(one: list[HostDataRow], two: list[HostDataRow]) -> None:
    """Rows that may belong to different arrays are not compared, because a false alarm costs as much trust as a miss."""
    assert compare_host_data({0: one, 1: two}) == ()


def launch_input(digest: str, *, line: int = 2, count: int = 1, kind: str = "k", total: str = "") -> HostDataRow:
    """Return the row of a launch input on ranks 0 and 1."""
    description = f"{digest} on line {line}"
    return HostDataRow(
        None,
        (0, 1),
        f"{LAUNCH_INPUT}1",
        HashSummary(count, "g", kind, kind, "f32[]"),
        {"whole": HashSummary(count, "g", digest, total or digest, description)},
    )


def test_launch_inputs_from_different_lines_are_named() -> None:
    """The message names each rank's own line."""
    (found,) = compare_host_data({0: [launch_input("a")], 1: [launch_input("b", line=4)]})
    assert format_host_data(found, "x = 1\ny = 2").splitlines()[:2] == [
        "the ranks passed different values to one launch, f32[]",
        "  rank 0 has hash a on line 2, rank 1 has hash b on line 4",
    ]
    # A line that both ranks ran takes precedence, because it says more.
    (line,) = compare_host_data({0: [launch_input("a"), row("a")], 1: [launch_input("b"), row("b")]})
    assert line.line == 2


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param([launch_input("a")], [launch_input("b", count=2)], id="more of them"),
        pytest.param([launch_input("a")], [], id="an array instead"),
        pytest.param([launch_input("a")], [launch_input("b", kind="l")], id="at another launch"),
        pytest.param(
            [launch_input("a", total="t")], [launch_input("b", total="t", line=4)], id="the same, hashed later"
        ),
    ],
)
def test_launch_inputs_are_compared_per_launch(one: list[HostDataRow], two: list[HostDataRow]) -> None:
    """If one rank passes a number and another an array, neither rank is reported."""
    assert compare_host_data({0: one, 1: two}) == ()


def test_equal_last_value_is_not_called_different() -> None:
    """The message says that the last values are equal, although each rank passed them on a different line."""
    (found,) = compare_host_data(
        {0: [launch_input("a", count=2, total="t")], 1: [launch_input("a", line=4, count=2, total="u")]}
    )
    assert "\n  earlier values or their order differ; the last value is equal (2 arrays)\n" in format_host_data(found)


def test_incomplete_rows_are_not_compared() -> None:
    """Values that were not computed in time have no hashes, and each rank may lack different ones, so the row is not compared."""
    for make in (row, launch_input):
        one, two = make("a"), make("b")
        assert compare_host_data({0: [one], 1: [two]})
        one, two = (
            replace(each, boxes={box: replace(sums, count=INCOMPLETE) for box, sums in each.boxes.items()})
            for each in (one, two)
        )
        assert compare_host_data({0: [one], 1: [two]}) == ()


def test_order_counts_if_groups_are_equal() -> None:
    """The same batches in another order differ, because each batch meets a different launch."""
    (found,) = compare_host_data({0: [row("ab", count=2, total="t")], 1: [row("ba", count=2, total="t")]})
    assert (found.line, found.box, found.count) == (2, "0:8", 2)


def test_ranks_outside_the_cell_are_not_compared() -> None:
    """If only some ranks run the cell, an array of all ranks has no counterpart to compare it with."""
    assert compare_host_data({0: [row("a")]}) == ()


def test_shape_difference_comes_before_values() -> None:
    """The message names the line, and the shape that each rank made."""
    (found,) = compare_host_data({0: [row("a", kind="f32[4]")], 1: [row("b")]})
    text = format_host_data(found, "u = 1\nw = make(v)")
    assert "line 2:  w = make(v)" in text
    assert "rank 0 made f32[4], rank 1 made f32[8]" in text


def sample(*values: float) -> str:
    """Return a few values as a rank sends them."""
    return struct.pack(f"<{len(values)}d", *values).hex()


def copies(one: str = "a", two: str = "b", *, whole: bool = True, count: int = 1) -> HostDataRow:
    """Return the row of an array whose copies on two devices of a rank differ."""
    summaries = {each: HashSummary(1, "", "", "", each, sample(n)) for n, each in enumerate((one, two))}
    kinds = HashSummary(count, "g", "k", "k", "f32[8]")
    return HostDataRow(2, (0, 1), DIFFERENT_COPIES + ("whole" if whole else "d"), kinds, summaries)


def test_different_copies_on_one_rank_are_named() -> None:
    """The message names the line and the ranks whose devices differ, however the ranks compare with each other."""
    (found,) = compare_host_data({0: [row("a"), copies()], 1: [row("a"), copies()]})
    assert format_host_data(found, "u = 1\nw = make(v)").splitlines()[:4] == [
        "the copies of one array on the devices of one rank differ, f32[8]",
        "  line 2:  w = make(v)",
        "  ranks 0-1 each have copies with hashes a and b",
        "  for example, the values 0 and 1",
    ]
    (found,) = compare_host_data({0: [row("a")], 1: [row("a"), copies()]})
    assert "\n  rank 1 has copies with hashes a and b\n" in format_host_data(found)


def run_with_rows(
    driver: Driver, rows: list[list[HostDataRow]], *, events: list[object] | None = None, guard: str = "parity"
) -> str:
    """Run a cell that made these rows; return the cluster state."""
    driver.submit(guard=guard, source="a\nb")
    replies = [
        CellEnded(rank, 1, "ok", events or [], 0.1, LaunchReport(rows=[PSUM], host_arrays=made))  # type: ignore[arg-type]
        for rank, made in enumerate(rows)
    ]
    return finished(driver(*replies)).result.state


@pytest.mark.parametrize(
    ("rows", "events", "guard", "state"),
    [
        ([[row("a")], [row("a")]], None, "parity", "clean"),
        ([[row("a")], [row("b")]], None, "parity", "tainted"),
        ([[row("a")], [row("b")]], None, "off", "clean"),
        ([[row("a")], [row("b")]], [error("OrderMismatch")], "lockstep", "clean"),
        ([[row("a")], [row("b")]], [error("OrderMismatch")], "parity", "tainted"),
        ([[row("a", kind="f32[4]")], [row("b")]], [error("OrderMismatch")], "lockstep", "clean"),
        ([[row("a", kind="f32[4]")], [row("b")]], None, "lockstep", "tainted"),
        (
            [[row("a", kind="f32[4]"), launch_input("a")], [row("b"), launch_input("b")]],
            [error("OrderMismatch")],
            "lockstep",
            "tainted",
        ),
        ([[copies()], [copies()]], None, "lockstep", "tainted"),
        ([[copies()], [copies()]], [error("OrderMismatch")], "lockstep", "tainted"),
        ([[copies()], []], [error("OrderMismatch")], "lockstep", "clean"),
        ([[copies(count=2)], []], [error("OrderMismatch")], "lockstep", "tainted"),
        ([[copies(whole=False)], []], [error("OrderMismatch")], "lockstep", "tainted"),
    ],
    ids=[
        "equal",
        "other values",
        "guard off",
        "other values that no launch took, another mismatch",
        "other values, and launches that no rank refuses",
        "other shapes, refused",
        "other shapes",
        "other shapes, refused, after another launch was given other values",
        "copies that differ on each rank",
        "copies that differ in the same way on each rank, another mismatch",
        "copies that differ on one rank, so that lockstep refuses them",
        "copies that differ on one rank, and another array of that line",
        "copies of a shard that differ, which lockstep does not compare",
    ],
)
def test_resulting_state(rows: list[list[HostDataRow]], events: list[object] | None, guard: str, state: str) -> None:
    """A difference taints, unless lockstep refused the cell and no launch used the arrays, because it refuses them everywhere."""
    driver = Driver()
    driver(*(RankReady(rank, GUARD) for rank in (0, 1)))
    assert run_with_rows(driver, rows, events=events, guard=guard) == state


@pytest.mark.parametrize(
    ("kind", "mine", "theirs", "head", "gap"),
    [
        ("f32[2]", (0.0, 1.0), (-0.0, 1.0), "that differ in the sign of zero", "they differ in the sign of zero"),
        ("f32[2]", (0.1, 1e6), (0.1, 1e6 + 0.0625), "that differ in the last digits", "by up to 6e-02 (1000000.0 and"),
        ("bf16[2]", (1.0, 2.0), (1.0, 2.015625), "that differ in the last digits", "by up to 2e-02"),
        ("f64[2]", (1.0, 2.0), (1.0, 2.0000002), "different values", "for example, the values 2.0 and 2.0000002"),
        ("i32[1]", (1.0,), (2.0,), "different values", "for example, the values 1 and 2"),
        ("f32[2]", (math.nan, 1.0), (math.nan, 1.0), "different values", ""),
        ("f32[2]", (math.inf, 1.0), (1.0, 1.0), "different values", "for example, the values inf and 1"),
    ],
)
def test_size_of_difference_is_described(
    kind: str, mine: tuple[float, ...], theirs: tuple[float, ...], head: str, gap: str
) -> None:
    """A rounding difference is described differently from a wrong seed; equal or unknown samples get no description."""
    rows = []
    for digest, values in (("a", mine), ("b", theirs)):
        one = row(digest, kind=kind)
        rows.append(replace(one, boxes={box: replace(s, sample=sample(*values)) for box, s in one.boxes.items()}))
    (found,) = compare_host_data({0: [rows[0]], 1: [rows[1]]})
    text = format_host_data(found, "u = 1\nw = make(v)")
    assert head in text.splitlines()[0]
    assert gap in text
    assert bool(found.gap) == bool(gap)
