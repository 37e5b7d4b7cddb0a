"""The ranks' layout reports of a value are merged: equal reports are one view, and only real differences count."""

from __future__ import annotations

from mhnb.cluster.sharding import LayoutView, compare_views
from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree, format_layout_devices
from mhnb.sharding.mesh import MeshShape
from mhnb.types import DeviceRef


def mesh_of(*ranks: int) -> MeshShape:
    """Return a mesh of one axis over two devices of each rank."""
    return MeshShape((("a", 2 * len(ranks)),), tuple(DeviceRef(rank, at) for rank in ranks for at in range(2)))


def layout_on(*ranks: int) -> Layout:
    """Return the layout of an array over the devices of these ranks."""
    return Layout.of((8,), mesh_of(*ranks), "P('a')")


def layout_on_one_device(rank: int) -> Layout:
    """Return the layout of an array on one device of a rank, without a mesh."""
    return Layout((8,), layout_on(0).dtype, placed=((DeviceRef(rank, 0), ((0, 8),)),))


def tree_of(*layouts: Layout) -> LayoutTree:
    """Return a tree of arrays."""
    return LayoutTree(tuple(LayoutRow(f"[{at}]", layout) for at, layout in enumerate(layouts)))


def test_array_on_one_rank_is_one_view_for_all() -> None:
    """If every rank knows an array or mesh on one rank's devices, that rank does not differ from the others."""
    assert compare_views(dict.fromkeys(range(4), layout_on(2))) == (LayoutView((0, 1, 2, 3), layout_on(2)),)
    assert compare_views(dict.fromkeys(range(4), mesh_of(0))) == (LayoutView((0, 1, 2, 3), mesh_of(0)),)


def test_arrays_of_each_rank_are_one_local_view() -> None:
    """Each rank's own array on the same of its devices is one view, marked as local."""
    assert compare_views({rank: layout_on_one_device(rank) for rank in range(3)}) == (
        LayoutView((0, 1, 2), layout_on_one_device(0), is_local=True),
    )
    meshes = compare_views({rank: mesh_of(rank) for rank in range(2)})
    assert meshes == (LayoutView((0, 1), mesh_of(0), is_local=True),)


def test_tree_may_contain_both_kinds() -> None:
    """A tree may contain an array of each rank's own and an array of rank 2 that all ranks know."""
    said = {rank: tree_of(layout_on(2), layout_on_one_device(rank), layout_on(0, 1)) for rank in range(4)}
    assert compare_views(said) == (LayoutView((0, 1, 2, 3), said[0], is_local=True),)


def test_array_of_a_single_rank_is_local() -> None:
    """A group of one rank has nothing to compare with: an array is local if no other rank holds it."""
    for holder, expected in ((1, "1 device"), (0, "1 device of rank 0")):
        views = compare_views({0: "no such name", 1: layout_on_one_device(holder)})
        assert isinstance(views[0].view, Layout)
        assert format_layout_devices(views[0].view) == expected
    (tree,) = compare_views({0: tree_of(layout_on_one_device(0), layout_on(0, 1))})
    assert isinstance(tree.view, LayoutTree)
    assert [row.layout.is_local for row in tree.view.rows if row.layout] == [True, False]


def test_array_of_another_rank_is_not_local() -> None:
    """Ranks 0 and 1 each have an own array, and rank 2 differs because it has that of rank 0."""
    views = compare_views({0: layout_on_one_device(0), 1: layout_on_one_device(1), 2: layout_on_one_device(0)})
    assert [view.ranks for view in views] == [(0, 1), (2,)]
