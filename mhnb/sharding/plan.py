"""What-if plan: hosts, a mesh and arrays that need not exist; which of them are legal, and what each device would store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mhnb.errors import InvalidRequest, MhnbError, ShardingError
from mhnb.sharding.dtypes import parse_dtype
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.tree import LayoutRow, LayoutTree

__all__ = ["Plan", "PlannedArray", "Refusal", "example_arrays", "make_plan", "parse_planned"]

_ARRAY = re.compile(r"\s*(\w+)\s+([\w<>]+)\s*\[([\d\s,]*)\]\s*(P\(.*\)|PartitionSpec\(.*\))?\s*")


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array as a user describes it, not checked yet."""

    name: str
    shape: tuple[int, ...]
    spec: str
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an array or the mesh is not legal."""

    reason: str
    jax_says: str = ""
    """JAX's own message; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a what-if."""

    hosts: int
    devices_per_host: int
    mesh: MeshShape | None
    """None if the mesh is not legal."""
    layouts: tuple[tuple[str, Layout | Refusal], ...] = ()
    """Arrays by name, in order."""
    refusal: Refusal | None = None
    """Why there is no mesh."""

    @property
    def legal(self) -> tuple[tuple[str, Layout], ...]:
        """Return the arrays that are legal."""
        return tuple((name, layout) for name, layout in self.layouts if isinstance(layout, Layout))

    @property
    def refused(self) -> tuple[tuple[str, Refusal], ...]:
        """Return the arrays that are not legal, with the reasons."""
        return tuple((name, layout) for name, layout in self.layouts if isinstance(layout, Refusal))

    @property
    def is_legal(self) -> bool:
        """Return whether the mesh and all requested arrays are legal."""
        return self.refusal is None and not self.refused

    @property
    def tree(self) -> LayoutTree:
        """Return the legal arrays as a table."""
        return LayoutTree(tuple(LayoutRow(name, layout) for name, layout in self.legal))


def parse_planned(text: str) -> PlannedArray:
    """Parse an array from `name dtype[shape] spec`.

    Raises:
        InvalidRequest: the text does not have that format.

    >>> parse_planned("x f32[8,6] P('data', None)")
    PlannedArray(name='x', shape=(8, 6), spec="P('data', None)", dtype='f32')
    """
    found = _ARRAY.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"array {text!r} cannot be read; write it as: x f32[8,6] P('data', None)")
    name, dtype, sizes, spec = found.groups()
    return PlannedArray(name, tuple(int(size) for size in sizes.split(",") if size.strip()), spec or "P()", dtype)


def make_plan(hosts: int, devices_per_host: int, axes: Mapping[str, int], arrays: Sequence[PlannedArray]) -> Plan:
    """Lay arrays out on a mesh over hosts; an array that is not legal is replaced by the reason.

    >>> plan = make_plan(4, 2, {"data": 4}, [parse_planned("x f32[6] P('data')")])
    >>> plan.refused[0][1].jax_says
    'implies that array axis 0 is partitioned 4 times, but the dimension size is 6'
    """
    available, required = hosts * devices_per_host, prod(axes.values())
    try:
        mesh = MeshShape.row_major(axes, devices_per_host=devices_per_host)
    except InvalidRequest as error:
        return Plan(hosts, devices_per_host, None, refusal=Refusal(str(error)))
    if required > available:
        reason = f"the mesh needs {required} devices, and {hosts} hosts × {devices_per_host} have {available}"
        jax_message = f"Number of devices {available} must be >= the product of mesh_shape {tuple(axes.values())}"
        return Plan(hosts, devices_per_host, None, refusal=Refusal(reason, jax_message))
    return Plan(hosts, devices_per_host, mesh, tuple((array.name, _lay_out(array, mesh)) for array in arrays))


def _lay_out(array: PlannedArray, mesh: MeshShape) -> Layout | Refusal:
    try:
        return Layout.of(array.shape, mesh, array.spec, dtype=parse_dtype(array.dtype))
    except ShardingError as error:
        return Refusal(str(error), str(error.parts.get("jax_says", "")))
    except MhnbError as error:
        return Refusal(str(error))


def example_arrays(program: str, axes: Sequence[str]) -> tuple[PlannedArray, ...]:
    """Return sample arrays of a program: the batch sharded over the first axis, the weights over the last.

    >>> [array.spec for array in example_arrays("matmul", ["data", "model"])]
    ["P('data', None)", "P(None, 'model')"]
    """
    outer, inner = (repr(axes[0]), repr(axes[-1])) if axes else ("None", "None")
    if outer == inner:
        inner = "None"
    rows = {
        "matmul": (("x", (1024, 1024), f"{outer}, None"), ("w", (1024, 1024), f"None, {inner}")),
        "mlp": (
            ("x", (1024, 1024), f"{outer}, None"),
            ("w1", (1024, 4096), f"None, {inner}"),
            ("w2", (4096, 1024), f"{inner}, None"),
        ),
        "attention": (
            ("x", (64, 128, 1024), f"{outer}, None, None"),
            *((name, (1024, 64, 16), f"None, {inner}, None") for name in ("wq", "wk", "wv")),
            ("wo", (64, 16, 1024), f"{inner}, None, None"),
        ),
    }
    return tuple(PlannedArray(name, shape, f"P({spec})") for name, shape, spec in rows.get(program, rows["matmul"]))
