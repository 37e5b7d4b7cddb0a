"""Replicas compared by hash: which are equal, which differ and where, as text."""

from __future__ import annotations

from typing import Any

from mhnb.core.guard.value_check import compare_leaves


def leaf(*boxes: tuple[str, str], path: str = "", kind: str = "f32[4]", **more: object) -> dict[str, Any]:
    """Return what a rank reports of one array."""
    return {"path": path, "kind": kind, "boxes": [list(box) for box in boxes], **more}


def test_sharded_array_has_nothing_to_compare() -> None:
    """A fully sharded array has no replicas."""
    (row,) = compare_leaves("x", {0: [leaf(("0:2", "a"))], 1: [leaf(("2:4", "b"))]})
    assert row.same
    assert row.text == "each rank holds different shards: nothing to compare"


def test_replicas_on_one_rank_can_differ() -> None:
    """Devices of one rank can hold different replicas too."""
    (row,) = compare_leaves("x", {0: [leaf(("0:4", "aaaaaaaa"), ("0:4", "bbbbbbbb"))]})
    assert not row.same
    assert row.text == "shard [0:4] differs: rank 0 holds aaaaaa, rank 0 holds bbbbbb"


def test_local_values_must_be_equal() -> None:
    """A number, or a local array, must be equal on every rank."""
    (row,) = compare_leaves("rate", {0: [leaf(("", "a"))], 1: [leaf(("", "a"))], 2: [leaf(("", "b"))]})
    assert row.text == "the value differs: ranks 0-1 hold a, rank 2 holds b"


def test_different_kinds_and_missing_leaves_are_reported() -> None:
    """Shapes are compared before hashes, and a missing leaf is reported with its rank."""
    (row,) = compare_leaves("x", {0: [leaf()], 1: [leaf(kind="f32[8]")]})
    assert row.text == "rank 0 holds f32[4], rank 1 holds f32[8]"
    rows = compare_leaves("p", {0: [leaf(path="['w']"), leaf(path="['b']")], 1: [leaf(path="['w']")]})
    assert [(row.name, row.same) for row in rows] == [("p['w']", True), ("p['b']", False)]
    assert rows[1].text == "missing on rank 1"


def test_unreadable_value_is_neither_equal_nor_different() -> None:
    """The row gives the reason, and the ranks."""
    (row,) = compare_leaves("f", {rank: [{**leaf(kind="function"), "unread": "it is code"}] for rank in (0, 1)})
    assert (row.same, row.text) == (None, "not compared: it is code on ranks 0-1")
    (row,) = compare_leaves("b", {0: [leaf(("", "a"))], 1: [{**leaf(), "unread": "it is deleted"}]})
    assert (row.same, row.text) == (None, "not compared: it is deleted on rank 1")


def test_placement_is_compared_before_contents() -> None:
    """Meshes whose devices are in another order have the same boxes."""
    (row,) = compare_leaves("x", {0: [leaf(("0:2", "a"), placed="p")], 1: [leaf(("0:2", "a"), placed="q")]})
    assert (row.same, row.text) == (
        False,
        "the shardings differ between rank 0 and rank 1",
    )


def test_shards_with_different_provenance_are_reported() -> None:
    """Different provenance is reported, unless all shards are replicas of one box; a rank without a shard does not count."""
    upper, lower = ("0:2", "a"), ("2:4", "b")
    old, new = [5, "host data (cell 1)"], [7, "jit(f) (cell 2)"]
    rows = {0: [leaf(upper, origin=old)], 1: [leaf(upper, origin=old)], 2: [leaf(lower, origin=new)]}
    for spread in (rows, {**rows, 3: [leaf(lower, origin=new)]}):
        (row,) = compare_leaves("x", spread)
        assert not row.same
        assert row.text.startswith(
            "the shards were computed differently: from host data (cell 1) on ranks 0-1, from jit(f) (cell 2) on "
        )
    (row,) = compare_leaves("x", {0: [leaf(upper, origin=old)], 1: [leaf(upper, origin=new)], 2: [leaf(origin=new)]})
    assert row.text == "1 shard held by ranks 0-2: equal"
    (row,) = compare_leaves("x", {0: [leaf(upper, origin=new)], 1: [leaf(lower, origin=new)]})
    assert row.same
