"""Who shares an array with whom: what a sharding makes of a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from mhnb.rank.guard.sums import hash_bytes

__all__ = ["Place", "find_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """What a sharding makes of a shape: which ranks share the array, and which boxes of ours others hold too."""

    ranks: tuple[int, ...]
    name: str
    """Devices and spec, as a hash: the same on every rank."""
    is_whole: bool
    """Every rank holds all of it."""
    shared: dict[Any, tuple[Any, str]] = field(default_factory=dict)
    """By local device: index and text of the box; each box once."""


@lru_cache(4096)
def find_place(sharding: Any, shape: tuple[int, ...]) -> Place | None:
    """Say who shares an array; None where one rank has it all, or it is empty."""
    if sharding.is_fully_addressable or not prod(shape):
        return None
    boxes: dict[str, set[int]] = {}
    texts = {}
    for device, index in sharding.devices_indices_map(shape).items():
        texts[device] = _box_text(index, shape)
        boxes.setdefault(texts[device], set()).add(device.process_index)
    ranks = tuple(sorted(set().union(*boxes.values())))
    if len(ranks) < 2:
        return None
    name = f"{[device.id for device in texts]} {getattr(sharding, 'spec', '')}"
    shared: dict[Any, tuple[Any, str]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        if len(boxes[texts[device]]) > 1 and texts[device] not in {text for _, text in shared.values()}:
            shared[device] = index, texts[device]
    is_whole = all(len(holders) == len(ranks) for holders in boxes.values())
    return Place(ranks, f"{hash_bytes(name.encode()):x}", is_whole, shared)


def _box_text(index: Any, shape: tuple[int, ...]) -> str:
    ranges = (part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    return ", ".join(f"{start}:{stop}" for start, stop in ranges) or "whole"
