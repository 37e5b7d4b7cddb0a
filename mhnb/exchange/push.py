"""Push a value of the notebook to the ranks: the same host value everywhere, bound on all of them or on none."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.core.exchange.same import dump_value
from mhnb.core.exchange.transfer import CHUNK_NBYTES, INLINE_NBYTES, MAX_IN_FLIGHT
from mhnb.core.ranks import describe_ranks, group_ranks
from mhnb.errors import InvalidRequest
from mhnb.exchange.asks import (
    RankClient,
    Transfer,
    TransferJob,
    check_names,
    check_ranks,
    open_transfer,
    request_all,
    run_jobs,
)
from mhnb.rank.asks.transfer_arrays import dtype_name, is_plain_array, memory_layout, memory_order, raw_bytes

__all__ = ["PushPayload", "push", "push_payload"]


def push(client: RankClient, values: Mapping[str, Any], *, ranks: Sequence[int] | None = None) -> PushPayload:
    """Bind the same host values on every rank. A jax.Array of the notebook arrives as a NumPy array.

    Args:
        client: the cluster.
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
    builder = _PayloadBuilder()
    payload = PushPayload([builder.add_value(name, value) for name, value in values.items()], builder.parts)
    push_payload(client, payload, ranks=ranks)
    return payload


def push_payload(client: RankClient, payload: PushPayload, *, ranks: Sequence[int] | None = None) -> None:
    """Bind values that were packed before.

    Raises:
        InvalidRequest: a rank cannot rebuild one of them; nothing is bound on any rank.
    """
    chosen = check_ranks(ranks, client.process_count)
    with open_transfer(client) as transfer:
        transfer.retaining_ranks.update(chosen)
        arguments = {
            "transfer": transfer.number,
            "live": transfer.open_numbers,
            "sizes": [part.nbytes for part in payload.parts],
        }
        request_all(client, chosen, "receive", arguments)
        run_jobs(client, _jobs(transfer, chosen, payload.parts), in_flight=MAX_IN_FLIGHT * len(chosen))
        staged = request_all(client, chosen, "stage", {"transfer": transfer.number, "values": payload.values})
        _check_staged({rank: answer.value for rank, answer in staged.items()})
        request_all(client, chosen, "commit", {"transfer": transfer.number})
        transfer.retaining_ranks.clear()


@dataclass(frozen=True, slots=True)
class PushPayload:
    """Values as they are sent."""

    values: list[dict[str, Any]]
    """Name of each value, and the parts that it is made of."""
    parts: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


@dataclass(slots=True)
class _PayloadBuilder:
    """The bytes of all values of one push."""

    parts: list[memoryview] = field(default_factory=list)

    def add_value(self, name: str, value: object) -> dict[str, Any]:
        """Pack a value; return the numbers of its parts."""
        arrays: list[list[Any]] = []
        seen: dict[int, tuple[int, object]] = {}

        def claim(obj: object) -> int | None:
            if not _is_array(obj):
                return None
            if id(obj) not in seen:
                arrays.append(self._add_array(obj))
                seen[id(obj)] = (len(arrays) - 1, obj)
            return seen[id(obj)][0]

        try:
            packed = dump_value(value, claim)
        except Exception as error:
            # Pickling runs the value's own code, which may raise anything, so the message has the type of the error.
            raise InvalidRequest(
                f"{name} cannot be pushed: {type(error).__name__}: {str(error).rstrip('.')}."
                " Push what it is made of: arrays, numbers, containers of them; nothing was bound on any rank",
                name=name,
            ) from error
        skeleton, *buffers = [self._add_part(part) for part in (packed.skeleton, *packed.buffers)]
        return {"name": name, "skeleton": skeleton, "buffers": buffers, "arrays": arrays}

    def _add_array(self, obj: Any) -> list[Any]:
        import numpy as np

        array = np.asarray(obj)
        part = self._add_part(raw_bytes(memory_layout(array)))
        return [part, array.shape, dtype_name(array.dtype), memory_order(array)]

    def _add_part(self, part: memoryview) -> int:
        self.parts.append(part)
        return len(self.parts) - 1


def _is_array(obj: object) -> bool:
    if hasattr(type(obj), "__array_ufunc__") and is_plain_array(obj):
        return True
    # Only if the user imported JAX here: otherwise there are no jax arrays.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(obj, jax.Array)


def _jobs(transfer: Transfer, ranks: Sequence[int], parts: Sequence[memoryview]) -> Iterator[TransferJob]:
    """Yield every message of bytes: small parts together, large ones in chunks, each to all ranks in turn."""
    for targets, data in _messages(parts):
        arguments = {"transfer": transfer.number, "places": targets}
        for rank in ranks:
            yield TransferJob(rank, "fill", arguments, data)


def _messages(parts: Sequence[memoryview]) -> Iterator[tuple[list[tuple[int, int]], tuple[memoryview, ...]]]:
    targets: list[tuple[int, int]] = []
    data: list[memoryview] = []
    for number, part in enumerate(parts):
        if part.nbytes <= INLINE_NBYTES:
            targets.append((number, 0))
            data.append(part)
            if sum(len(piece) for piece in data) > CHUNK_NBYTES:
                yield targets, tuple(data)
                targets, data = [], []
            continue
        for start in range(0, part.nbytes, CHUNK_NBYTES):
            yield [(number, start)], (part[start : start + CHUNK_NBYTES],)
    if targets:
        yield targets, tuple(data)


def _check_staged(failed: Mapping[int, Sequence[Sequence[str]]]) -> None:
    """Check that every rank could rebuild every value."""
    first = {rank: (rows[0][0], rows[0][1]) for rank, rows in failed.items() if rows}
    if not first:
        return
    ranks, (name, text) = group_ranks(first)[0]
    raise InvalidRequest(
        f"{name} cannot be pushed: on {describe_ranks(ranks)} it {text}. Define or import it on the ranks first (%%mhjax);"
        " nothing was bound on any rank",
        name=name,
        ranks=ranks,
    )
