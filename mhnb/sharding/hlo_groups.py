"""Parse replica groups in HLO text into positions in the device assignment.

XLA writes the same groups as a list, as an iota with a transpose, or as axes of a mesh of its own. No spelling is preferred, and
the same program changes its spelling between versions.
The grammar is that of XLA's `hlo_parser.cc` and of `CollectiveDeviceListBase::ToString`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain, product
from math import prod
from typing import TypeAlias

from mhnb.errors import UnknownForm

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Groups of positions in the device assignment."""

_LIST = re.compile(r"\{(\{[\d,\s]*\}(?:,\s*\{[\d,\s]*\})*)?\}")
_ONE = re.compile(r"\{([\d,\s]*)\}")
_IOTA = re.compile(r"\[([\d,\s]+)\]<=\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\(([^)]*(?:\([^)]*\))?[^)]*)\))?\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_REF = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_ORDER = re.compile(r"\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?")


@lru_cache(maxsize=1024)
def parse_groups(text: str, count: int) -> Groups:
    """Parse replica groups.

    Args:
        text: the text after `replica_groups=`; whatever follows the groups is ignored.
        count: number of participants; `{}` means all of them.

    Raises:
        UnknownForm: an unknown spelling, or groups that do not fit `count`.

    >>> parse_groups("{{0,2},{1,3}}", 4), parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    (((0, 2), (1, 3)), ((0, 2), (1, 3)))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    """
    if found := _LIST.match(text):
        groups = tuple(_integers(one) for one in _ONE.findall(found[1] or "")) or (tuple(range(count)),)
    elif found := _IOTA.match(text):
        groups = _read_iota(text, *found.groups())
    elif found := _MESH.match(text):
        groups = _read_mesh(text, *found.groups())
    else:
        raise _unknown(text, "expected a form such as {{0,1},{2,3}}, [4,2]<=[8] or mesh['a'=4] {'a'}")
    _check(text, groups, count)
    return groups


def parse_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `source_target_pairs`.

    Raises:
        UnknownForm: the text is not a list of pairs.

    >>> parse_pairs("{{0,2},{2,0}}")
    ((0, 2), (2, 0))
    """
    found = _LIST.match(text)
    pairs = tuple(_integers(one) for one in _ONE.findall(found[1] or "")) if found else ()
    if found is None or any(len(pair) != 2 for pair in pairs):
        raise _unknown(text, "pairs are written {{0,1},{1,0}}")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _read_iota(text: str, shape: str, dims: str, order: str | None) -> Groups:
    """Expand `[groups,size]<=[dims]T(order)`: a transposed iota, split into groups."""
    sizes = _integers(shape)
    if len(sizes) != 2:
        raise _unknown(text, f"its groups have {len(sizes)} dimensions, expected 2")
    flat = _transposed(text, _integers(dims), _integers(order or ""))
    if len(flat) != prod(sizes):
        raise _unknown(text, f"it lists {len(flat)} positions for {sizes[0]} groups of {sizes[1]}")
    return tuple(tuple(flat[at : at + sizes[1]]) for at in range(0, len(flat), sizes[1]))


def _transposed(text: str, dims: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Return an iota of these dims, flattened after a transpose."""
    order = order or tuple(range(len(dims)))
    if sorted(order) != list(range(len(dims))):
        raise _unknown(text, f"T({','.join(map(str, order))}) does not permute {len(dims)} dimensions")
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    steps = [[place * strides[axis] for place in range(dims[axis])] for axis in order]
    return [sum(parts) for parts in product(*steps)]


def _read_mesh(text: str, mesh: str, devices: str | None, refs: str) -> Groups:
    """Expand `mesh['a'=4,'b'=2], device_ids=(...) {'a','b':(1)2}` to groups along axes or their parts."""
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh)}
    named = [(name, int(before or 1), int(size or 0)) for name, before, size in _REF.findall(refs)]
    if not sizes or any(name not in sizes for name, _, _ in named):
        raise _unknown(text, "it names an axis that its mesh does not have")
    positions = list(range(prod(sizes.values()))) if devices is None else _read_order(text, devices)
    if len(positions) != prod(sizes.values()):
        raise _unknown(text, f"its mesh has {prod(sizes.values())} positions but {len(positions)} devices")
    # Each named or remaining part of an axis becomes an axis of its own.
    parts: list[tuple[int, int | None]] = []
    for name, axis_size in sizes.items():
        cuts = sorted((before, size or axis_size, at) for at, (axis, before, size) in enumerate(named) if axis == name)
        parts += _split_axis(text, axis_size, cuts)
    steps = [prod(size for size, _ in parts[axis + 1 :]) for axis in range(len(parts))]
    named_steps = sorted((at, size, step) for (size, at), step in zip(parts, steps, strict=True) if at is not None)
    other_ranges = [range(0, size * step, step) for (size, at), step in zip(parts, steps, strict=True) if at is None]
    offsets = [sum(place) for place in product(*(range(0, size * step, step) for _, size, step in named_steps))]
    return tuple(tuple(positions[sum(base) + offset] for offset in offsets) for base in product(*other_ranges))


def _split_axis(text: str, axis_size: int, cuts: list[tuple[int, int, int]]) -> list[tuple[int, int | None]]:
    """Split an axis into `(size, index)` parts; unnamed ones have index None."""
    parts: list[tuple[int, int | None]] = []
    at = 1
    for before, size, place in cuts:
        if before % at or axis_size % (before * size):
            raise _unknown(text, f"an axis of {axis_size} has no part ({before}){size}")
        parts += [(before // at, None), (size, place)]
        at = before * size
    return [*parts, (axis_size // at, None)]


def _read_order(text: str, devices: str) -> list[int]:
    """Expand `0,2,1,3`, or `[2,4]T(1,0)`: an iota of these dims, transposed."""
    if found := _ORDER.fullmatch(devices.strip()):
        return _transposed(text, _integers(found[1]), _integers(found[2] or ""))
    if re.fullmatch(r"[\d,\s]+", devices):
        return list(_integers(devices))
    raise _unknown(text, "its device_ids have an unknown form")


def _check(text: str, groups: Groups, count: int) -> None:
    if not all(groups):
        raise _unknown(text, "a group is empty")
    members = list(chain.from_iterable(groups))
    if len(set(members)) != len(members):
        raise _unknown(text, "a position is named twice")
    if members and max(members) >= count:
        raise _unknown(text, f"it names position {max(members)} of {count} participants")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip())


def _unknown(text: str, why: str) -> UnknownForm:
    form = text[:120]
    return UnknownForm(
        f"cannot read the replica groups {form!r}: {why}. mhnb does not guess. Please report the text with your JAX version",
        form=form,
    )
