"""What the memory of the ranks holds: how devices and arrays are grouped, what is an outlier, and what could be sharded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mhnb.core.memory import (
    NO_STATISTICS,
    AllocationFailure,
    ArrayMemory,
    DeviceMemory,
    MemoryReport,
    RankMemory,
    group_failures,
    merge_arrays,
    parse_requested_nbytes,
    parse_top,
    report_values,
    suggest_sharding,
)
from mhnb.core.typed_json import convert, to_json_types
from mhnb.errors import InvalidRequest

MIB = 1 << 20
MESH = (("data", 4), ("model", 2))


def array(name: str = "x", **fields: Any) -> ArrayMemory:
    """Make an array f32[8,6] that each of 8 devices has in full."""
    given: dict[str, Any] = {
        "names": (name,) if name else (),
        "shape": (8, 6),
        "dtype": "float32",
        "scope": "global",
        "nbytes": 192,
        "nbytes_per_device": 192,
        "device_count": 8,
        "spec": "P()",
        "mesh": MESH,
    }
    return ArrayMemory(**(given | fields))


def device(ordinal: int, used: int, **fields: Any) -> DeviceMemory:
    """Make a device of a kind with 80 GiB."""
    given: dict[str, Any] = {"kind": "H100", "used": used, "peak": used, "limit": 80 << 30}
    return DeviceMemory(ordinal, **(given | fields))


def report(*ranks: RankMemory) -> MemoryReport:
    """Make the report of ranks 0, 1 and so on."""
    return MemoryReport("main", dict(enumerate(ranks)))


# -- devices


def test_devices_that_agree_are_one_row() -> None:
    """Small differences do not split a row; it has the least and the most, and the highest peak."""
    same = [RankMemory((device(0, 100 * MIB + rank), device(1, 100 * MIB))) for rank in range(8)]
    (row,) = report(*same).devices
    assert (row.ranks, row.ordinals, row.is_outlier) == (tuple(range(8)), (0, 1), False)
    assert (row.used, row.peak, row.limit) == ((100 * MIB, 100 * MIB + 7), 100 * MIB + 7, 80 << 30)


def test_device_unlike_most_others_is_an_outlier() -> None:
    """It has a row of its own that is marked; the other devices of its rank are not."""
    ranks = [RankMemory((device(0, 100 * MIB), device(1, 100 * MIB if rank != 2 else 300 * MIB))) for rank in range(4)]
    rows = report(*ranks).devices
    assert [(row.ranks, row.ordinals, row.is_outlier) for row in rows] == [
        ((0, 1, 3), (0, 1), False),
        ((2,), (0,), False),
        ((2,), (1,), True),
    ]


def test_devices_with_similar_memory_share_a_row() -> None:
    """Where one device of each rank is used, these are one row, and the idle ones are another."""
    rows = report(*[RankMemory((device(0, 900 * MIB + rank), device(1, 0))) for rank in range(4)]).devices
    assert [(row.ranks, row.ordinals) for row in rows] == [((0, 1, 2, 3), (0,)), ((0, 1, 2, 3), (1,))]


def test_without_a_majority_no_device_is_an_outlier() -> None:
    """Of two devices that differ neither is the usual one."""
    rows = report(RankMemory((device(0, 100 * MIB),)), RankMemory((device(0, 300 * MIB),))).devices
    assert [(row.ranks, row.is_outlier) for row in rows] == [((0,), False), ((1,), False)]


def test_devices_of_another_limit_are_another_row() -> None:
    """Cards of two sizes are not compared with each other."""
    rows = report(RankMemory((device(0, MIB),)), RankMemory((device(0, MIB, limit=40 << 30),))).devices
    assert [(row.ranks, row.limit) for row in rows] == [((0,), 80 << 30), ((1,), 40 << 30)]


def test_processes_are_rows_below_the_devices() -> None:
    """Their memory varies more, so a row is wider; one that has far more is an outlier."""
    ranks = [RankMemory((), host_nbytes=nbytes * MIB) for nbytes in (400, 450, 430, 2000)]
    rows = report(*ranks).devices
    assert [(row.ranks, row.ordinals, row.used, row.is_outlier) for row in rows] == [
        ((0, 1, 2), (), (400 * MIB, 450 * MIB), False),
        ((3,), (), (2000 * MIB, 2000 * MIB), True),
    ]


def test_notes_name_the_ranks_of_a_problem() -> None:
    """A sum of shards is explained once, and equal problems are one note."""
    ranks = [RankMemory((device(0, 8, is_sum=True),), problems=("no driver",) if rank else ()) for rank in range(3)]
    assert report(*ranks).notes == (NO_STATISTICS, "ranks 1-2: no driver")
    assert report(RankMemory((device(0, 8),))).notes == ()


# -- arrays


@pytest.mark.parametrize(
    ("fields", "waste"),
    [
        ({}, 7 * 192),
        ({"spec": "P('data')", "nbytes_per_device": 48}, 192),
        ({"spec": "P('data', 'model')", "nbytes_per_device": 24}, 0),
        ({"scope": "local", "device_count": 1, "spec": None, "mesh": ()}, 0),
        ({"scope": "host", "device_count": 0, "spec": None, "mesh": ()}, 0),
    ],
)
def test_waste_is_what_replicas_take(fields: dict[str, Any], waste: int) -> None:
    """That is the bytes on all devices less one copy."""
    assert array(**fields).waste == waste


def test_equal_arrays_are_one_row() -> None:
    """Ranks with the same name and size agree, whatever else leads to the array there."""
    rows = merge_arrays({0: [array()], 1: [array(names=("x", "y"))]})
    assert [(row.groups[0][0], row.differs) for row in rows] == [((0, 1), "")]


def test_ranks_that_lack_an_array_are_named() -> None:
    """Few ranks without it lack it; few ranks with it have it alone."""
    lacking = merge_arrays({0: [array()], 1: [], 2: [array()]})
    extra = merge_arrays({0: [], 1: [array()], 2: []})
    assert [row.differs for row in (*lacking, *extra)] == ["missing on rank 1", "only on rank 1"]


def test_ranks_with_another_size_are_named() -> None:
    """The size of most ranks is shown, and the other one with its ranks."""
    other = array(shape=(16, 6), nbytes=384, nbytes_per_device=384)
    (row,) = merge_arrays({0: [array()], 1: [other], 2: [array()]})
    assert (row.array.shape, row.differs) == ((8, 6), "f32[16,6] P() on rank 1")
    assert row.nbytes_per_device == 384


def test_another_count_of_unnamed_arrays_is_named() -> None:
    """Unnamed arrays with equal facts are one row, and a rank that has more of them differs."""
    (row,) = merge_arrays({0: [array("")], 1: [array("")], 2: [array("", count=3)]})
    assert (row.differs, row.nbytes_per_device) == ("3 of them on rank 2", 3 * 192)


def test_unnamed_arrays_of_other_lines_are_other_rows() -> None:
    """What made them is all that tells them apart."""
    rows = merge_arrays({0: [array("", place="In [1], line 2"), array("", place="In [1], line 3")]})
    assert len(rows) == 2


def test_equal_items_of_a_list_are_one_row() -> None:
    """Items are folded by number; one with another size, another name or only on some ranks keeps its row."""
    same = [array(f"layers[{at}]['w']") for at in (*range(12), 14)]
    other = [array("layers[12]['w']", shape=(9,)), array("layers[13]['w']", names=("layers[13]['w']", "y"))]
    alone = array("layers[15]['w']")
    rows = merge_arrays({0: [*same, *other, alone], 1: [*same, *other]})
    assert [(row.array.names[0], row.array.count) for row in rows] == [
        ("layers[0..11,14]['w']", 13),
        ("layers[12]['w']", 1),
        ("layers[13]['w']", 1),
        ("layers[15]['w']", 1),
    ]
    assert rows[0].nbytes_per_device == 13 * 192
    assert suggest_sharding([rows[0].array]) is not None


def test_items_of_two_lists_of_one_name_are_all_there() -> None:
    """The locals of a function that calls itself have the same names."""
    own = [array(name) for name in ("acc[0]", "acc[0]", "acc[1]", "acc[1]")]
    rows = merge_arrays({0: own, 1: own})
    assert [(row.array.names[0], row.array.count) for row in rows] == [("acc[0..1]", 2), ("acc[0]", 1), ("acc[1]", 1)]


def test_largest_array_on_a_device_is_first() -> None:
    """A sharded array with more bytes in all comes after a replicated one that takes more of each device."""
    sharded = array("a", nbytes=8 * 100, nbytes_per_device=100, spec="P(('data', 'model'))")
    rows = merge_arrays({0: [sharded, array("b")]})
    assert [row.array.names[0] for row in rows] == ["b", "a"]


@pytest.mark.parametrize("top", [0, -3])
def test_number_of_shown_arrays_is_positive(top: int) -> None:
    """The message names the flag, the value and what was expected."""
    with pytest.raises(InvalidRequest, match=f"--top {top}: expected how many arrays to show, from 1\n  Fix: "):
        parse_top(top)
    assert parse_top(1) == 1


def test_report_survives_the_wire() -> None:
    """What a rank sends is what the notebook reads, and the values for JSON have names for all fields."""
    memory = RankMemory((device(0, 8),), (array(),), 3, 40, 99, ("a problem",))
    assert convert(to_json_types(memory), RankMemory) == memory
    (rank,) = report_values(report(memory))["ranks"]
    assert (rank["process_bytes"], rank["devices"][0]["kind"], rank["arrays"][0]["waste"]) == (99, "H100", 7 * 192)


# -- what could be sharded


@pytest.mark.parametrize(
    ("fields", "spec", "saved"),
    [
        ({}, "P('data')", 144),
        ({"spec": "P('data')", "nbytes_per_device": 48}, "P('data', 'model')", 24),
        ({"spec": "P('model')", "nbytes_per_device": 96}, "P(('model', 'data'))", 72),
        ({"shape": (3, 8)}, "P(None, 'data')", 144),
        ({"shape": (3, 6)}, "P(None, 'model')", 96),
    ],
)
def test_replicas_along_an_axis_that_divides_a_dim_could_go(fields: dict[str, Any], spec: str, saved: int) -> None:
    """The largest free axis that divides a dim is suggested, with the line of code."""
    advice = suggest_sharding([array("w", **fields)])
    assert advice is not None
    assert (advice.spec, advice.saved) == (spec, saved)
    full = spec.replace("P(", "jax.P(", 1)
    assert re.sub(r"\(\n    |\n(?=\))", lambda found: found[0].strip(), advice.code) == (
        f"w = jax.device_put(w, jax.NamedSharding(w.sharding.mesh, {full}))"
    )


def test_suggestion_is_in_the_users_own_names_and_does_not_wrap() -> None:
    """Where the user has names of what the code needs, it uses them; a long statement has lines of its own."""
    names = ("NamedSharding", "P", "mesh")
    advice = suggest_sharding([array("w", code_names=names)])
    assert advice is not None
    assert advice.code == "w = jax.device_put(w, NamedSharding(mesh, P('data')))"
    long = "params['decoder']['attention']['w']"
    advice = suggest_sharding([array(long, code_names=names)])
    assert advice is not None
    assert advice.code == f"{long} = jax.device_put(\n    {long}, NamedSharding(mesh, P('data'))\n)"


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (3, 5)},
        {"shape": ()},
        {"spec": None, "mesh": ()},
        {"spec": "P('data', 'model')"},
        {"spec": "P(UNCONSTRAINED)"},
        {"spec": "P(unreduced={'model'})"},
        {"names": ()},
        {"names": ("x (shares its memory)",)},
        {"memory_kind": "pinned_host"},
    ],
)
def test_array_that_cannot_be_sharded_further_is_not_suggested(fields: dict[str, Any]) -> None:
    """No axis divides a dim, none is free, or there is nothing to assign to."""
    assert suggest_sharding([array(**fields)]) is None


def test_array_that_would_save_most_is_suggested() -> None:
    """The size of one array does not matter, only what sharding it would save."""
    large = array("t[0]", nbytes_per_device=800)
    advice = suggest_sharding([array(), large])
    assert advice is not None
    assert (advice.name, advice.code, advice.saved) == ("t[0]", "", 600)


@pytest.mark.parametrize(
    ("names", "targets", "keepers"),
    [
        (("w", "state['w']"), "w = state['w']", ()),
        (("w", "Out[3]", "_", "t[0]"), "w", ("Out[3]", "_", "t[0]")),
        (("t[0]", "m.w"), "", ("m.w",)),
        (("d[(0, 1)]",), "", ()),
        (("_",), "", ()),
    ],
)
def test_code_assigns_only_where_a_cell_can(names: tuple[str, ...], targets: str, keepers: tuple[str, ...]) -> None:
    """An item of a tuple, an attribute and an output get no line of code; what still holds the array is named."""
    advice = suggest_sharding([array(names=names)])
    assert advice is not None
    assert advice.code.partition(" = jax.")[0] == targets
    assert advice.keepers == keepers


def test_arrays_of_one_name_are_all_there() -> None:
    """Keys of a dict that have no text share one name; their arrays are merged in order."""
    rows = merge_arrays({rank: [array(nbytes=9), array(nbytes=5)] for rank in (0, 1)})
    assert [(row.array.nbytes, row.missing) for row in rows] == [(9, ()), (5, ())]


def test_array_below_the_end_of_a_list_is_not_missing() -> None:
    """A rank that lists its largest arrays only may hold a smaller one, too."""
    small, large = array("s", nbytes_per_device=4), array("l", nbytes_per_device=90)
    rows = merge_arrays({0: [large, small], 1: []}, {1: 8})
    assert {row.array.names[0]: row.missing for row in rows} == {"l": (1,), "s": ()}


# -- failed allocations


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.", 1 << 46),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64.00GiB.", 64 << 30),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 1.5MiB (1572864B) on device ordinal 0", 3 << 19),
        ("RESOURCE_EXHAUSTED: Attempting to allocate 3.25G. That was not possible.", 13 << 28),
        ("Unable to allocate 1.00 PiB for an array with shape (1125899906842624,) and data type uint8", 1 << 50),
        ("RESOURCE_EXHAUSTED: no room", None),
        ("", None),
    ],
)
def test_requested_bytes_are_read_from_the_message(text: str, nbytes: int | None) -> None:
    """XLA and NumPy write them in several ways; a message without them has none."""
    assert parse_requested_nbytes(text) == nbytes


def test_ranks_with_the_same_failure_are_one_group() -> None:
    """Bytes in use may differ a little, and very small arrays; other arrays are another report."""
    failures = {
        rank: AllocationFailure(1 << 40, memory=RankMemory((device(0, 100 * MIB + rank),), (array(),)))
        for rank in (0, 1, 3)
    }
    failures[2] = AllocationFailure(1 << 40, memory=RankMemory((device(0, 100 * MIB),), (array(), array("extra"))))
    small = array("", nbytes_per_device=1, place="In [1], line 1")
    failures[3] = AllocationFailure(1 << 40, memory=RankMemory((device(0, 100 * MIB + 3),), (array(), small)))
    groups = group_failures(failures)
    assert [group.ranks for group in groups] == [(0, 1, 3), (2,)]
    assert [(row.ranks, row.used) for row in groups[0].devices] == [((0, 1, 3), (100 * MIB, 100 * MIB + 3))]
