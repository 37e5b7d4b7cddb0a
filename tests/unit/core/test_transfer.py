"""Plans and checks of a pull, based only on the ranks' descriptions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.ranks import group_ranks
from mhnb.core.transfer import (
    ArrayDescription,
    ArrayRow,
    LocalBox,
    TransferRefusal,
    ValueDescription,
    build_value_differs,
    check_coverage,
    check_placements,
    check_present,
    check_provenance,
    check_replicas,
    merge_placements,
    plan_fetches,
)
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import InvalidRequest, NameMissing, ValueDiffers
from mhnb.sharding.boxes import Box, box_size, full_box

ROWS: dict[Box, str] = {((0, 2), (0, 3)): "aa", ((2, 4), (0, 3)): "bb"}


def array(held: dict[Box, str], **changes: object) -> ArrayDescription:
    """Return a global f32[4,3] of which one rank holds these boxes, with the digest of each."""
    boxes = tuple(LocalBox(box, ordinal, ordinal, digest) for ordinal, (box, digest) in enumerate(held.items()))
    owners = tuple((box, (0, 1)) for box in ROWS)
    row = ArrayDescription((4, 3), "float32", "C", boxes, owners, is_global=True)
    return replace(row, **changes)  # type: ignore[arg-type]


def value(digest: str = "9a", **changes: object) -> ValueDescription:
    """Return the description of a value without arrays."""
    return replace(ValueDescription("x", "3", 0, (), digest, ()), **changes)  # type: ignore[arg-type]


@st.composite
def placements(draw: st.DrawFn) -> dict[int, ArrayDescription]:
    """A grid over a random shape, each box on one or more of the ranks."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3))
    shape = tuple(count * width for count, width in sizes)
    cuts = [[(index * width, (index + 1) * width) for index in range(count)] for count, width in sizes]
    count = draw(st.integers(1, 4))
    holders: dict[Box, set[int]] = {box: draw(st.sets(st.integers(0, count - 1), min_size=1)) for box in product(*cuts)}
    owners = tuple((box, tuple(sorted(ranks))) for box, ranks in sorted(holders.items()))
    return {
        rank: ArrayDescription(
            shape,
            "float32",
            "C",
            tuple(LocalBox(box, 0, part, str(box)) for part, (box, ranks) in enumerate(owners) if rank in ranks),
            owners,
            is_global=True,
        )
        for rank in range(count)
    }


@given(placements())
def test_each_box_is_fetched_once(rows: dict[int, ArrayDescription]) -> None:
    """The plan reads every box exactly once, from a rank that holds it, by its part number there."""
    fetches = plan_fetches(rows)
    assert sorted(fetch.box for fetch in fetches) == sorted(
        {held.box for row in rows.values() for held in row.local_boxes}
    )
    assert all((f.box, f.part) in {(h.box, h.part) for h in rows[f.rank].local_boxes} for f in fetches)
    assert sum(box_size(fetch.box) for fetch in fetches) == box_size(full_box(rows[0].shape))


@given(placements())
def test_preferred_rank_sends_all_its_boxes(rows: dict[int, ArrayDescription]) -> None:
    """Every box that the preferred rank holds is fetched from it."""
    own = {held.box for held in rows[0].local_boxes}
    assert {fetch.box for fetch in plan_fetches(rows, prefer=0) if fetch.rank == 0} == own


def test_replicas_are_fetched_from_all_holders() -> None:
    """Ranks that hold the same boxes each send some of them."""
    assert {fetch.rank for fetch in plan_fetches({0: array(ROWS), 1: array(ROWS)})} == {0, 1}


def test_replica_is_fetched_from_the_less_busy_rank() -> None:
    """Only rank 0 holds one box and must send it, so the box that both hold comes from rank 1."""
    shared, single = ROWS
    fetches = plan_fetches({0: array(ROWS), 1: array({shared: "aa"})})
    assert {fetch.box: fetch.rank for fetch in fetches} == {shared: 1, single: 0}


@given(placements(), st.data())
def test_missing_box_is_named_with_its_owners(rows: dict[int, ArrayDescription], data: st.DataObject) -> None:
    """If no selected rank holds a box, the error names the ranks that do."""
    assert rows[0].owners is not None
    box, ranks = data.draw(st.sampled_from(rows[0].owners))
    remaining = {
        rank: replace(row, local_boxes=tuple(h for h in row.local_boxes if h.box != box)) for rank, row in rows.items()
    }
    with pytest.raises(InvalidRequest, match="Leave out --ranks") as caught:
        check_coverage("x", remaining)
    assert set(ranks) <= set(caught.value.parts["ranks"])


@given(placements())
def test_complete_array_passes(rows: dict[int, ArrayDescription]) -> None:
    """An array that its ranks hold completely, with equal replicas, raises no error."""
    check_placements("x", rows)
    check_replicas("x", rows)
    check_coverage("x", rows)


def test_different_replicas_are_named_by_device() -> None:
    """If two devices have different bytes for the same box, the error names the devices."""
    box = full_box((4, 3))
    rows = {0: array({box: "aa"}), 1: array({box: "bb"})}
    with pytest.raises(
        ValueDiffers, match=r"(?s)replicas of \[0:4, 0:3\] hold different values: 0:0 ≠ 1:0\. .*--ranks 0.*--each"
    ):
        check_replicas("x", rows)


def test_different_shapes_are_refused() -> None:
    """If ranks hold different global shapes under one name, the error names the ranks of each shape."""
    rows = {0: array(ROWS), 1: array(ROWS), 2: array(ROWS, shape=(6, 3))}
    with pytest.raises(ValueDiffers, match=r"f32\[4,3\] on ranks 0-1, f32\[6,3\] on rank 2") as caught:
        check_placements("x", rows)
    assert caught.value.parts["groups"] == ((0, 1), (2,))


def test_different_placements_are_refused() -> None:
    """Equal shapes on different devices are not the same array."""
    with pytest.raises(ValueDiffers, match="its sharding differs"):
        check_placements("x", {0: array(ROWS), 1: array(ROWS, owners=((full_box((4, 3)), (0, 1)),))})


def test_missing_name_error_names_ranks_and_similar_names() -> None:
    """If some ranks lack a name, the error names those ranks, similar names, and the ranks that have it."""
    replies: dict[int, ValueDescription | TransferRefusal] = {
        0: value(),
        1: TransferRefusal("missing", "is missing", ("xs",)),
        2: value(),
    }
    with pytest.raises(
        NameMissing, match=r"(?s)x is missing on rank 1, but exists on ranks 0,2\. Similar .* xs\..*--ranks 0,2"
    ) as caught:
        check_present("x", replies)
    assert caught.value.parts["missing"] == (1,)


def test_name_that_no_rank_has_is_reported() -> None:
    """If every rank lacks the name, the error points to the list of names instead."""
    with pytest.raises(NameMissing, match=r"^x does not exist on ranks 0-1\. .*%mhjax vars"):
        check_present("x", {rank: TransferRefusal("missing", "is missing") for rank in (0, 1)})


def test_a_refusal_on_one_rank_names_it() -> None:
    """If one rank cannot send a value, the error names that rank and its reason."""
    with pytest.raises(InvalidRequest, match=r"^x on rank 1 holds a tracer"):
        check_present("x", {0: value(), 1: TransferRefusal("tracer", "holds a tracer")})


def test_difference_suggests_ranks_and_each() -> None:
    """The error shows the values by rank, with the command for one rank and the command for all."""
    text = str(build_value_differs("x", {0: "3", 1: "3", 2: "4"}, [(2,), (0, 1)], where="['a']: 3 and 4"))
    assert text.startswith("x differs between the ranks: 3 on ranks 0-1, 4 on rank 2 (['a']: 3 and 4)\n  Fix: ")
    assert "%mhjax pull x --ranks 2" in text
    assert "%mhjax pull x --each" in text


def test_values_with_equal_text_are_distinguished() -> None:
    """Two groups with the same short text are not shown as equal."""
    assert "f32[9] on rank 0, another f32[9] on rank 1" in str(
        build_value_differs("x", {0: "f32[9]", 1: "f32[9]"}, [(0,), (1,)])
    )


def test_signature_includes_local_content() -> None:
    """Two local arrays with different bytes have different signatures; contents of global arrays do not count."""
    local = [value(arrays=(array({full_box((4, 3)): digest}, is_global=False),)) for digest in ("aa", "bb")]
    spread = [value(arrays=(array({box: digest}),)) for box, digest in ROWS.items()]
    assert local[0].signature != local[1].signature
    assert spread[0].signature == spread[1].signature


def test_array_is_global_if_another_rank_reports_it_global() -> None:
    """A rank that owns the complete array is merged with a rank that has only a handle to it."""
    owner = value(arrays=(array(ROWS, is_global=False),))
    handle = value(arrays=(array({}),))
    assert [row.arrays[0].is_global for row in merge_placements({0: owner, 1: handle}).values()] == [True, True]


def test_local_arrays_elsewhere_stay_local() -> None:
    """Arrays on the ranks' own devices are not one array, whatever their shapes."""
    mine = value(arrays=(array(ROWS, is_global=False, owners=((full_box((4, 3)), (0,)),)),))
    assert not merge_placements({0: mine, 1: mine})[0].arrays[0].is_global


@given(st.dictionaries(st.integers(0, 9), st.sampled_from("abc"), min_size=1))
def test_groups_are_a_partition(keys: dict[int, str]) -> None:
    """Every rank is in the group of its key, and the largest group comes first."""
    groups = group_ranks(keys)
    assert {rank: key for ranks, key in groups for rank in ranks} == keys
    assert [len(ranks) for ranks, _ in groups] == sorted((len(ranks) for ranks, _ in groups), reverse=True)


@given(placements())
def test_description_round_trip(rows: dict[int, ArrayDescription]) -> None:
    """A description that is read back from JSON is unchanged."""
    for row in rows.values():
        assert row.owners is not None
        assert ArrayDescription.from_row(decode_json(encode_json(row.to_row(0)), ArrayRow), [row.owners]) == row


def test_shards_with_different_provenance_are_refused() -> None:
    """Replicas may differ in provenance, because they are compared by bytes; a rank without a shard is not considered."""
    (upper, lower), producer = ROWS.items(), (7, "jit(f) (cell 2)")
    mine, theirs = array(dict([upper])), array(dict([lower]), provenance=producer)
    with pytest.raises(
        ValueDiffers,
        match=r"x was computed .*of unknown history .* on rank 0, from jit\(f\) \(cell 2\) on rank 1",
    ):
        check_provenance("x", {0: mine, 1: theirs})
    check_provenance("x", {0: array(dict([upper]), provenance=producer), 1: theirs, 2: array({})})
    check_provenance("x", {0: array(ROWS), 1: array(ROWS, provenance=producer)})
    with pytest.raises(
        ValueDiffers, match=r"from jit\(f\) \(cell 2\) on rank 0, from jit\(f\) \(cell 2\) \(another one\) on rank 1"
    ):
        check_provenance(
            "x", {0: array(dict([upper]), provenance=producer), 1: array(dict([lower]), provenance=(8, producer[1]))}
        )
