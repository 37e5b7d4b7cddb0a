"""The ranks' layout reports of a value are merged: equal reports are one view, and only real differences count."""

from __future__ import annotations

from mhnb.cluster.sharding import LayoutView, compare_views
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree
from mhnb.sharding.mesh import MeshShape
from mhnb.types import DeviceRef


def mesh_of(*ranks: int) -> MeshShape:
    """Return a mesh of one axis over two devices of each rank."""
    return MeshShape((("a", 2 * len(ranks)),), tuple(DeviceRef(rank, at) for rank in ranks for at in range(2)))


def on(*ranks: int) -> Layout:
    """Return the layout of an array over the devices of these ranks."""
    return Layout.of((8,), mesh_of(*ranks), "P('a')")


def alone(rank: int) -> Layout:
    """Return the layout of an array on one device of a rank, without a mesh."""
    return Layout((8,), on(0).dtype, placed=((DeviceRef(rank, 0), ((0, 8),)),))


def tree(*layouts: Layout) -> LayoutTree:
    """Return a tree of arrays."""
    return LayoutTree(tuple(LayoutRow(f"[{at}]", layout) for at, layout in enumerate(layouts)))


def test_what_lies_on_one_rank_is_the_same_for_all() -> None:
    """If every rank knows an array or mesh on one rank's devices, that rank does not differ from the others."""
    assert compare_views(dict.fromkeys(range(4), on(2))) == (LayoutView((0, 1, 2, 3), on(2)),)
    assert compare_views(dict.fromkeys(range(4), mesh_of(0))) == (LayoutView((0, 1, 2, 3), mesh_of(0)),)


def test_own_arrays_are_one_view() -> None:
    """Each rank's own array on the same of its devices is one view, marked as local."""
    assert compare_views({rank: alone(rank) for rank in range(3)}) == (LayoutView((0, 1, 2), alone(0), is_local=True),)
    meshes = compare_views({rank: mesh_of(rank) for rank in range(2)})
    assert meshes == (LayoutView((0, 1), mesh_of(0), is_local=True),)


def test_a_tree_may_hold_both() -> None:
    """A tree may contain an array of each rank's own and an array of rank 2 that all ranks know."""
    said = {rank: tree(on(2), alone(rank), on(0, 1)) for rank in range(4)}
    assert compare_views(said) == (LayoutView((0, 1, 2, 3), said[0], is_local=True),)


def test_another_ranks_array_is_not_ones_own() -> None:
    """Ranks 0 and 1 each have an own array, and rank 2 differs because it has that of rank 0."""
    views = compare_views({0: alone(0), 1: alone(1), 2: alone(0)})
    assert [view.ranks for view in views] == [(0, 1), (2,)]
