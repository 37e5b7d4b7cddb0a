"""Where a value of the ranks is stored, according to each rank; all views are compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from mhnb.core.ranks import describe_ranks
from mhnb.errors import InvalidRequest
from mhnb.exchange.asks import RankClient, check_ranks, request_all
from mhnb.sharding.layout import Layout, LayoutTree, decode_mesh, decode_tree
from mhnb.sharding.mesh import MeshShape
from mhnb.values import DeviceRef

__all__ = ["LayoutView", "RankView", "compare_views", "request_layout"]

RankView: TypeAlias = Layout | LayoutTree | MeshShape | str
"""What a rank reports of a value; an error text if it has nothing to report."""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """What some ranks report, all the same."""

    ranks: tuple[int, ...]
    view: RankView
    is_local: bool = False
    """Whether these ranks report arrays of their own, one each; `seen` has the first rank's."""
    is_deleted: bool = False
    """Whether it is one array whose bytes were deleted."""


def request_layout(client: RankClient, expression: str, ranks: Sequence[int] | None = None) -> tuple[LayoutView, ...]:
    """Request where a value is stored. No data is fetched and no program is launched.

    Returns:
        The views that differ, with the view of most ranks first.

    Raises:
        InvalidRequest: no rank has such a value.
    """
    answers = request_all(client, check_ranks(ranks, client.process_count), "layout", {"expression": expression})
    wires = {rank: answer.value for rank, answer in answers.items()}
    views = compare_views(_decode_all(wires), deleted={rank for rank, wire in wires.items() if _is_deleted(wire)})
    if all(isinstance(view.view, str) for view in views):
        texts = "; ".join(
            f"{view.view}" + (f" ({describe_ranks(view.ranks)})" if len(views) > 1 else "") for view in views
        )
        raise InvalidRequest(f"layout {expression}: {texts}", expression=expression)
    return views


def _decode_all(wires: Mapping[int, Mapping[str, Any]]) -> dict[int, RankView]:
    """Decode equal replies once: most ranks report the same, and with thousands of devices there is much to compare."""
    decoded: list[tuple[Mapping[str, Any], RankView]] = []
    views: dict[int, RankView] = {}
    for rank, wire in wires.items():
        known = next((value for other, value in decoded if other == wire), None)
        if known is None:
            known = _decode(wire)
            decoded.append((wire, known))
        views[rank] = known
    return views


def _is_deleted(wire: Mapping[str, Any]) -> bool:
    return wire["kind"] == "array" and bool(wire["tree"]["rows"][0]["deleted"])


def _decode(wire: Mapping[str, Any]) -> RankView:
    if wire["kind"] == "error":
        return str(wire["text"])
    if wire["kind"] == "mesh":
        return decode_mesh(wire["mesh"])
    tree = decode_tree(wire["tree"])
    layout = tree.rows[0].layout
    return layout if wire["kind"] == "array" and layout is not None else tree


def compare_views(views: Mapping[int, RankView], *, deleted: Collection[int] = ()) -> tuple[LayoutView, ...]:
    """Group the ranks that report the same. For arrays of their own, the owning rank is ignored.

    Args:
        views: what each rank reports.
        deleted: ranks on which it is one array whose bytes were deleted.

    >>> [view.ranks for view in compare_views({0: "none", 1: MeshShape((), ()), 2: "none"})]
    [(1,), (0, 2)]
    """
    neutral = {rank: _without_rank(value, rank) for rank, value in views.items()}
    groups: list[list[int]] = []
    for rank in sorted(views):
        for ranks in groups:
            # The first two ranks decide for each array whether all hold it, or each its own.
            same = (rank in deleted) == (ranks[0] in deleted)
            if same and all(
                _views_match(views[rank], views[other], neutral[rank], neutral[other]) for other in ranks[:2]
            ):
                ranks.append(rank)
                break
        else:
            groups.append([rank])
    groups.sort(key=lambda ranks: (isinstance(views[ranks[0]], str), -len(ranks), ranks[0]))
    return tuple(
        LayoutView(
            tuple(ranks),
            views[ranks[0]],
            is_local=any(views[rank] != views[ranks[0]] for rank in ranks[1:2]),
            is_deleted=ranks[0] in deleted,
        )
        for ranks in groups
    )


def _views_match(one: RankView, other: RankView, neutral: RankView, other_neutral: RankView) -> bool:
    """Whether two ranks report the same, or each the same of its own; arrays of a tree are compared one by one."""
    if one == other or neutral == other_neutral:
        return True
    if not (isinstance(one, LayoutTree) and isinstance(other, LayoutTree) and len(one.rows) == len(other.rows)):
        return False
    assert isinstance(neutral, LayoutTree)
    assert isinstance(other_neutral, LayoutTree)
    known = zip(one.rows, other.rows, strict=True)
    own = zip(neutral.rows, other_neutral.rows, strict=True)
    return all(a == b or c == d for (a, b), (c, d) in zip(known, own, strict=True))


def _without_rank(view: RankView, rank: int) -> RankView:
    """Remove the rank from an array that is stored on this rank only."""
    if isinstance(view, Layout):
        return _layout_without_rank(view, rank)
    if isinstance(view, LayoutTree):
        rows = (r if r.layout is None else replace(r, layout=_layout_without_rank(r.layout, rank)) for r in view.rows)
        return LayoutTree(tuple(rows))
    if isinstance(view, MeshShape) and all(device.rank == rank for device in view.devices):
        return _mesh_without_rank(view)
    return view


def _layout_without_rank(layout: Layout, rank: int) -> Layout:
    if any(device.rank != rank for device in layout.devices):
        return layout
    mesh = None if layout.mesh is None else _mesh_without_rank(layout.mesh)
    return replace(
        layout, mesh=mesh, placed=tuple((_device_without_rank(device), box) for device, box in layout.placed)
    )


def _mesh_without_rank(mesh: MeshShape) -> MeshShape:
    return MeshShape(mesh.axes, tuple(map(_device_without_rank, mesh.devices)))


def _device_without_rank(device: DeviceRef) -> DeviceRef:
    return DeviceRef(-1, device.ordinal)
