"""Push a value of the notebook to the ranks: the same host value everywhere, bound on all of them or on none."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.core.exchange.pack import pack
from mhnb.core.exchange.transfer import CHUNK_NBYTES, IN_FLIGHT, INLINE_NBYTES
from mhnb.core.ranks import group_ranks, say_ranks
from mhnb.errors import InvalidRequest
from mhnb.exchange.asks import Asker, Job, Transfer, ask_all, check_names, check_ranks, open_transfer, stream
from mhnb.rank.asks.transfer_arrays import dtype_name, is_plain, order_of, raw_bytes, stored_form

__all__ = ["Packed", "push", "push_packed"]


def push(asker: Asker, values: Mapping[str, Any], *, ranks: Sequence[int] | None = None) -> Packed:
    """Bind the same host values on every rank. A jax.Array of the notebook arrives as a NumPy array.

    Args:
        asker: the cluster.
        values: the values by variable name.
        ranks: the ranks to bind them on; None for all.

    Returns:
        The payload that was sent. It shares the memory of the values, and changes with them.

    Raises:
        InvalidRequest: an invalid name or value; nothing is bound on any rank.
    """
    for name in check_names(tuple(values), "push"):
        if keyword.iskeyword(name):
            raise InvalidRequest(
                f"push cannot bind {name!r}: it is a word of the language; choose another name", name=name
            )
    packing = _Packing()
    packed = Packed([packing.describe(name, value) for name, value in values.items()], packing.parts)
    push_packed(asker, packed, ranks=ranks)
    return packed


def push_packed(asker: Asker, packed: Packed, *, ranks: Sequence[int] | None = None) -> None:
    """Bind values that were packed before.

    Raises:
        InvalidRequest: a rank cannot rebuild one of them; nothing is bound on any rank.
    """
    chosen = check_ranks(ranks, asker.process_count)
    with open_transfer(asker) as transfer:
        transfer.keeping.update(chosen)
        arguments = {
            "transfer": transfer.number,
            "live": transfer.live,
            "sizes": [part.nbytes for part in packed.parts],
        }
        ask_all(asker, chosen, "receive", arguments)
        stream(asker, _jobs(transfer, chosen, packed.parts), in_flight=IN_FLIGHT * len(chosen))
        staged = ask_all(asker, chosen, "stage", {"transfer": transfer.number, "values": packed.values})
        _check_staged({rank: answer.value for rank, answer in staged.items()})
        ask_all(asker, chosen, "commit", {"transfer": transfer.number})
        transfer.keeping.clear()


@dataclass(frozen=True, slots=True)
class Packed:
    """Values as they are sent."""

    values: list[dict[str, Any]]
    """Name of each value, and the parts that it is made of."""
    parts: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


@dataclass(slots=True)
class _Packing:
    """The bytes of all values of one push."""

    parts: list[memoryview] = field(default_factory=list)

    def describe(self, name: str, value: object) -> dict[str, Any]:
        """Pack a value; return the numbers of its parts."""
        arrays: list[list[Any]] = []
        seen: dict[int, tuple[int, object]] = {}

        def claim(obj: object) -> int | None:
            if not _is_array(obj):
                return None
            if id(obj) not in seen:
                arrays.append(self._array(obj))
                seen[id(obj)] = (len(arrays) - 1, obj)
            return seen[id(obj)][0]

        try:
            packed = pack(value, claim)
        except Exception as error:
            # Pickling runs the value's own code, which may raise anything, so the message has the type of the error.
            raise InvalidRequest(
                f"{name} cannot be pushed: {type(error).__name__}: {str(error).rstrip('.')}."
                " Push what it is made of: arrays, numbers, containers of them; nothing was bound on any rank",
                name=name,
            ) from error
        skeleton, *buffers = [self._add(part) for part in (packed.skeleton, *packed.buffers)]
        return {"name": name, "skeleton": skeleton, "buffers": buffers, "arrays": arrays}

    def _array(self, obj: Any) -> list[Any]:
        import numpy as np

        array = np.asarray(obj)
        part = self._add(raw_bytes(stored_form(array)))
        return [part, array.shape, dtype_name(array.dtype), order_of(array)]

    def _add(self, part: memoryview) -> int:
        self.parts.append(part)
        return len(self.parts) - 1


def _is_array(obj: object) -> bool:
    if hasattr(type(obj), "__array_ufunc__") and is_plain(obj):
        return True
    # Only if the user imported JAX here: otherwise there are no jax arrays.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(obj, jax.Array)


def _jobs(transfer: Transfer, ranks: Sequence[int], parts: Sequence[memoryview]) -> Iterator[Job]:
    """Yield every message of bytes: small parts together, large ones in chunks, each to all ranks in turn."""
    for places, data in _messages(parts):
        arguments = {"transfer": transfer.number, "places": places}
        for rank in ranks:
            yield Job(rank, "fill", arguments, data)


def _messages(parts: Sequence[memoryview]) -> Iterator[tuple[list[tuple[int, int]], tuple[memoryview, ...]]]:
    places: list[tuple[int, int]] = []
    data: list[memoryview] = []
    for number, part in enumerate(parts):
        if part.nbytes <= INLINE_NBYTES:
            places.append((number, 0))
            data.append(part)
            if sum(len(piece) for piece in data) > CHUNK_NBYTES:
                yield places, tuple(data)
                places, data = [], []
            continue
        for start in range(0, part.nbytes, CHUNK_NBYTES):
            yield [(number, start)], (part[start : start + CHUNK_NBYTES],)
    if places:
        yield places, tuple(data)


def _check_staged(failed: Mapping[int, Sequence[Sequence[str]]]) -> None:
    """Check that every rank could rebuild every value."""
    first = {rank: (rows[0][0], rows[0][1]) for rank, rows in failed.items() if rows}
    if not first:
        return
    ranks, (name, text) = group_ranks(first)[0]
    raise InvalidRequest(
        f"{name} cannot be pushed: on {say_ranks(ranks)} it {text}. Define or import it on the ranks first (%%mhjax);"
        " nothing was bound on any rank",
        name=name,
        ranks=ranks,
    )
