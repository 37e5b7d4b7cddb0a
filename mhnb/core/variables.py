"""Merge the ranks' variables into one table with their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mhnb.core.ranks import describe_ranks, group_ranks
from mhnb.sharding.boxes import short_dtype

ValueScope: TypeAlias = Literal["global", "local", "host"]
"""global: a jax.Array with parts on other ranks; local: a jax.Array on this rank's devices; host: any other value."""


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """A variable on one rank, without its value."""

    place: ValueScope
    type: str
    summary: str = ""
    """A short text for numbers, strings and containers; for arrays only the other rank that holds one."""
    shape: tuple[int, ...] | None = None
    """None if it is not an array; the global shape of a global array."""
    dtype: str | None = None
    """NumPy's name: `float32`, `bfloat16`."""
    spec: str | None = None
    """The PartitionSpec as `P('data', None)`; None without a named sharding."""
    mesh: tuple[tuple[str, int], ...] | None = None
    """Axes of the mesh in order, with their sizes; None without a named sharding."""
    nbytes_per_device: int | None = None
    """Bytes on each device that holds part of it, summed over a container's arrays; None without arrays."""


@dataclass(frozen=True, slots=True)
class VariableRow:
    """A name, and its values on the ranks."""

    name: str
    groups: tuple[tuple[tuple[int, ...], VariableInfo], ...]
    """Ranks with equal facts, never empty: the largest group first, then by first rank."""
    missing: tuple[int, ...] = ()
    """Ranks in the request on which the name does not exist."""

    @property
    def facts(self) -> VariableInfo:
        """Facts of the largest group of ranks."""
        return self.groups[0][1]

    @property
    def kind(self) -> str:
        """Type and short value: `global Array`, `int 3`, `dict 2 items`."""
        facts = self.facts
        words = (facts.place if facts.type == "Array" and facts.place != "host" else "", facts.type, facts.summary)
        return " ".join(word for word in words if word)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape on most ranks; None if it is not an array."""
        return self.facts.shape

    @property
    def dtype(self) -> str | None:
        """Short dtype on most ranks, as `f32`; None for a non-array."""
        return None if self.facts.dtype is None else short_dtype(self.facts.dtype)

    @property
    def spec(self) -> str | None:
        """PartitionSpec on most ranks, as `P('data', None)`."""
        return self.facts.spec

    @property
    def nbytes_per_device(self) -> int | None:
        """Bytes on each device that holds part of it, on most ranks."""
        return self.facts.nbytes_per_device

    @property
    def differs(self) -> str:
        """Differences between the ranks, in words; empty if they agree."""
        words = [f"missing on {describe_ranks(self.missing)}"] if self.missing else []
        for ranks, facts in self.groups[1:]:
            array = None if facts.shape is None or facts.dtype is None else format_array(facts.shape, facts.dtype)
            parts = (facts.type, array, facts.spec, facts.summary)
            words.append(f"{' '.join(part for part in parts if part)} on {describe_ranks(ranks)}")
        return "; ".join(words)

    @property
    def agrees(self) -> bool:
        """Whether every rank has equal facts, which do not prove equal values."""
        return len(self.groups) == 1 and not self.missing


def merge_variables(ranks: Mapping[int, Mapping[str, VariableInfo]]) -> tuple[VariableRow, ...]:
    """Merge the ranks' variables into rows, in the order of their names.

    >>> merge_variables({0: {"x": VariableInfo("host", "int", "1")}, 1: {}})[0].missing
    (1,)
    """
    names = sorted({name for held in ranks.values() for name in held})
    return tuple(_merge(name, ranks) for name in names)


def _merge(name: str, ranks: Mapping[int, Mapping[str, VariableInfo]]) -> VariableRow:
    missing = tuple(rank for rank in sorted(ranks) if name not in ranks[rank])
    return VariableRow(name, group_ranks({rank: held[name] for rank, held in ranks.items() if name in held}), missing)


def choose_description(found: Mapping[int, str], missing: Sequence[int], preferred: int) -> tuple[int, str]:
    """Choose which rank's description to show, and say where it holds.

    Args:
        found: the description by rank; not empty.
        missing: the ranks that do not have the name.
        preferred: the rank whose description is shown if there is one.

    >>> choose_description({1: "int 3", 2: "int 3"}, [0], 0)
    (1, 'On ranks 1-2; not on rank 0')
    >>> choose_description({0: "int 0", 1: "int 1"}, [], 1)
    (1, 'On rank 1; differs on rank 0: a %%mhjax cell shows each')
    """
    shown = preferred if preferred in found else min(found)
    equal = [rank for rank in sorted(found) if found[rank] == found[shown]]
    others = [rank for rank in sorted(found) if rank not in equal]
    notes = [f"differs on {describe_ranks(others)}: a %%mhjax cell shows each"] if others else []
    notes += [f"not on {describe_ranks(missing)}"] if missing else []
    return shown, "; ".join([f"On {describe_ranks(equal)}", *notes])


def format_array(shape: tuple[int, ...], dtype: str) -> str:
    """Format shape and dtype.

    >>> format_array((8, 4), "float32")
    'f32[8,4]'
    """
    return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]"
