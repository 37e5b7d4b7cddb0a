"""Encode meshes, layouts and trees of layouts as plain values for JSON; each mesh is encoded once, however many arrays use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhnb.sharding.dtypes import Dtype
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.spec import Spec
from mhnb.sharding.tree import LayoutRow, LayoutTree
from mhnb.values import DeviceRef

__all__ = ["decode_mesh", "decode_tree", "encode_mesh", "encode_tree"]


def encode_mesh(mesh: MeshShape) -> dict[str, Any]:
    """Encode a mesh for JSON.

    >>> encode_mesh(MeshShape.row_major({"x": 2}))
    {'axes': [['x', 2]], 'devices': [[0, 0], [0, 1]]}
    """
    return {
        "axes": [list(axis) for axis in mesh.axes],
        "devices": [[device.rank, device.ordinal] for device in mesh.devices],
    }


def decode_mesh(wire: Mapping[str, Any]) -> MeshShape:
    """Decode the result of `encode_mesh`.

    >>> decode_mesh(encode_mesh(MeshShape.row_major({"x": 2}))) == MeshShape.row_major({"x": 2})
    True
    """
    devices = tuple(DeviceRef(rank, ordinal) for rank, ordinal in wire["devices"])
    return MeshShape(tuple((name, size) for name, size in wire["axes"]), devices)


def encode_tree(tree: LayoutTree) -> dict[str, Any]:
    """Encode a tree of layouts for JSON.

    >>> encode_tree(LayoutTree((LayoutRow("w", None, "int 3"),)))
    {'meshes': [], 'rows': [{'path': 'w', 'kind': 'int 3', 'deleted': False, 'array': None}]}
    """
    meshes: dict[MeshShape, int] = {}
    rows = [
        {
            "path": row.path,
            "kind": row.kind,
            "deleted": row.is_deleted,
            "array": None if row.layout is None else _encode_layout(row.layout, meshes),
        }
        for row in tree.rows
    ]
    return {"meshes": [encode_mesh(mesh) for mesh in meshes], "rows": rows}


def _encode_layout(layout: Layout, meshes: dict[MeshShape, int]) -> dict[str, Any]:
    array: dict[str, Any] = {
        "shape": list(layout.shape),
        "dtype": [layout.dtype.name, layout.dtype.itemsize],
        "mesh": None if layout.mesh is None else meshes.setdefault(layout.mesh, len(meshes)),
    }
    if layout.spec is not None:
        spec = layout.spec
        array["spec"] = [[list(entry) for entry in spec.dims], list(spec.unreduced), list(spec.reduced)]
    array["placed"] = [[device.rank, device.ordinal, [list(part) for part in box]] for device, box in layout.placed]
    return array


def decode_tree(wire: Mapping[str, Any]) -> LayoutTree:
    """Decode the result of `encode_tree`.

    >>> tree = LayoutTree((LayoutRow("w", Layout.of((4,), {"x": 2}, "P('x')")),))
    >>> decode_tree(encode_tree(tree)) == tree
    True
    """
    meshes = [decode_mesh(mesh) for mesh in wire["meshes"]]
    return LayoutTree(
        tuple(
            LayoutRow(
                row["path"],
                None if row["array"] is None else _decode_layout(row["array"], meshes),
                row["kind"],
                is_deleted=row["deleted"],
            )
            for row in wire["rows"]
        )
    )


def _decode_layout(array: Mapping[str, Any], meshes: list[MeshShape]) -> Layout:
    mesh = None if array["mesh"] is None else meshes[array["mesh"]]
    spec = None
    if "spec" in array:
        dims, unreduced, reduced = array["spec"]
        spec = Spec(tuple(map(tuple, dims)), tuple(unreduced), tuple(reduced))
    placed = tuple(
        (DeviceRef(rank, ordinal), tuple((start, stop) for start, stop in box))
        for rank, ordinal, box in array["placed"]
    )
    name, itemsize = array["dtype"]
    return Layout(tuple(array["shape"]), Dtype(name, itemsize), mesh, spec, placed)
