"""Find the mesh axes that a collective runs along, from its replica groups alone.

XLA's text has positions and no axis names (names in its own spellings are often invented). So the groups are compared with the
meshes that the program was written for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mhnb.sharding.hlo_groups import Groups

__all__ = ["GroupAxes", "NamedMesh", "find_axes", "parse_meshes"]

_MESH = re.compile(r"sdy\.mesh @[\w.\"]+ = <\[([^\]]*)\](?:, device_ids=\[([\d, ]*)\])?>")
_AXIS = re.compile(r'"([^"]*)"=(\d+)')


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """A mesh over positions of the device assignment."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...] = ()
    """The position at each mesh coordinate, in row-major order; empty if the positions are in order."""


@dataclass(frozen=True, slots=True)
class GroupAxes:
    """The mesh axes that a collective runs along."""

    axes: tuple[str, ...] = ()
    """In the mesh's order; empty if there is no mesh, or nothing moves."""
    spans_whole_axes: bool = True
    """Whether the groups span exactly these axes; False if they span parts of them."""


def parse_meshes(stablehlo: str) -> tuple[NamedMesh, ...]:
    """Parse the meshes that a lowered module names (Shardy's).

    >>> parse_meshes('sdy.mesh @mesh = <["data"=4, "model"=2]> loc(#loc)')
    (NamedMesh(names=('data', 'model'), sizes=(4, 2), positions=()),)
    """
    return tuple(dict.fromkeys(_iter_meshes(stablehlo)))


def _iter_meshes(stablehlo: str) -> Iterator[NamedMesh]:
    for axes, order in _MESH.findall(stablehlo):
        found = _AXIS.findall(axes)
        if found:
            positions = tuple(int(word) for word in order.split(",") if word.strip())
            yield NamedMesh(tuple(name for name, _ in found), tuple(int(size) for _, size in found), positions)


def find_axes(groups: Groups, meshes: Iterable[NamedMesh]) -> GroupAxes:
    """Return the axes of the first mesh whose whole axes the groups span, or else of the first mesh that fits.

    >>> mesh = NamedMesh(("data", "model"), (4, 2))
    >>> find_axes(((0, 2, 4, 6), (1, 3, 5, 7)), [mesh]).axes, find_axes(((0, 2), (1, 3)), [mesh])
    (('data',), GroupAxes(axes=('data',), spans_whole_axes=False))
    """
    if all(len(group) < 2 for group in groups):
        return GroupAxes()
    found = [along for mesh in meshes if (along := _find_group_axes(groups, mesh)) is not None]
    return next(
        (along for along in found if along.spans_whole_axes),
        found[0] if found else GroupAxes((), spans_whole_axes=False),
    )


@lru_cache(maxsize=256)
def _find_group_axes(groups: Groups, mesh: NamedMesh) -> GroupAxes | None:
    """Return the axes of one mesh along which members of a group differ; None if a member is not in the mesh."""
    count = prod(mesh.sizes)
    if any(not 0 <= position < count for group in groups for position in group):
        return None
    coordinates = {position: place for place, position in enumerate(mesh.positions or range(count))}
    strides = [prod(mesh.sizes[axis + 1 :]) for axis in range(len(mesh.sizes))]
    differ: set[int] = set()
    for group in groups:
        members = [coordinates[position] for position in group]
        differ.update(
            axis
            for axis, (size, stride) in enumerate(zip(mesh.sizes, strides, strict=True))
            if axis not in differ and len({place // stride % size for place in members}) > 1
        )
    size = prod(mesh.sizes[axis] for axis in differ)
    # Members of a group agree in all other axes, so a group as large as the product of these axes spans them
    # completely.
    whole = sum(len(group) for group in groups) == count and all(len(group) == size for group in groups)
    return GroupAxes(_names(mesh.names, sorted(differ)), whole)


def _names(names: Sequence[str], axes: Sequence[int]) -> tuple[str, ...]:
    return tuple(names[axis] for axis in axes)
