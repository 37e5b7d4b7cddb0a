"""Fetch values from the ranks: one value if all ranks agree, or each rank's own.

Global arrays are assembled from their shards, each fetched once; nothing runs on a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mhnb.core.exchange.boxes import Box, box_shape, split_shape
from mhnb.core.exchange.pack import NotHere, unpack
from mhnb.core.exchange.same import GlobalLeaf, find_difference
from mhnb.core.exchange.transfer import (
    CHUNK_NBYTES,
    COMPARE_NBYTES,
    ArrayRow,
    Fetch,
    Owners,
    Refusal,
    ValueRow,
    check_coverage,
    check_origins,
    check_present,
    check_replicas,
    check_views,
    differs,
    join_views,
    plan_fetches,
)
from mhnb.core.exchange.ways import advise
from mhnb.core.ranks import group_ranks, say_ranks
from mhnb.core.wire.protocol import Answer
from mhnb.errors import InvalidRequest, ValueDiffers
from mhnb.exchange.asks import Asker, Job, Transfer, ask_all, check_names, check_ranks, open_transfer, stream
from mhnb.exchange.keys import name_keys
from mhnb.rank.asks.transfer_arrays import dtype_from_name, raw_bytes, view_as

if TYPE_CHECKING:
    import numpy as np

__all__ = ["pull"]


def pull(asker: Asker, names: Sequence[str], *, ranks: Sequence[int] | None = None, each: bool = False) -> Any:
    """Fetch values by name: arrays as NumPy arrays, containers kept. One name returns its value; several return a tuple.

    Args:
        asker: the cluster.
        names: variables on the ranks.
        ranks: the ranks to fetch from; None for all.
        each: return for each name a list with every rank's value, in rank order, instead of the one value that all hold.

    Raises:
        ValueDiffers: a value differs between the ranks, or its name is missing on one (NameMissing).
        InvalidRequest: the value cannot be sent, or the selected ranks lack a part of it.
    """
    wanted = check_names(names, "pull")
    chosen = check_ranks(ranks, asker.process_count)
    with open_transfer(asker) as transfer:
        arguments = {
            "transfer": transfer.number,
            "live": transfer.live,
            "names": list(dict.fromkeys(wanted)),
            "digest_local": len(chosen) > 1 and not each,
        }
        transfer.keeping.update(chosen)
        answers = ask_all(asker, chosen, "hold", arguments)
        held = {rank: _Held.read(answer) for rank, answer in answers.items()}
        transfer.keeping.intersection_update(rank for rank, holding in held.items() if holding.inline is None)
        puller = _Puller(transfer, held)
        values = tuple(puller.each(name) if each else puller.one(name) for name in wanted)
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True, slots=True)
class _Held:
    """A rank's reply to `hold`."""

    values: dict[str, ValueRow | Refusal]
    sizes: tuple[int, ...]
    inline: tuple[Any, ...] | None

    @classmethod
    def read(cls, answer: Answer) -> _Held:
        tables: list[Owners] = [
            tuple((tuple((start, stop) for start, stop in box), tuple(ranks)) for box, ranks in table)
            for table in answer.value["tables"]
        ]
        values = {row["name"]: _read_value(row, tables) for row in answer.value["values"]}
        for name, similar in answer.value["missing"].items():
            values[name] = Refusal("missing", "is missing", tuple(similar))
        return cls(values, tuple(answer.value["parts"]), answer.payload if answer.value["inline"] else None)


def _read_value(row: Mapping[str, Any], tables: Sequence[Owners]) -> ValueRow | Refusal:
    if "code" in row:
        return Refusal(row["code"], row["text"])
    arrays = tuple(ArrayRow.from_wire(array, tables) for array in row["arrays"])
    return ValueRow(row["name"], row["short"], row["skeleton"], tuple(row["buffers"]), row["digest"], arrays)


class _Puller:
    """Assembles values from what the ranks hold."""

    def __init__(self, transfer: Transfer, held: Mapping[int, _Held]) -> None:
        self._transfer, self._held = transfer, held

    def one(self, name: str) -> Any:
        """Return the value that all ranks hold."""
        rows = self._rows(name)
        first = min(rows)
        numbers = self._agree(name, rows)
        arrays = []
        for index, array in enumerate(rows[first].arrays):
            if array.is_global:
                same_array = {rank: rows[rank].arrays[numbers[rank][index]] for rank in rows}
                arrays.append(self._assemble(name, same_array, None))
            else:
                arrays.append(self._assemble(name, {first: array}, None))
        return self._restore(name, first, rows[first], arrays)

    def each(self, name: str) -> list[Any]:
        """Return every rank's value, in rank order; a global array is one object for all if its replicas agree."""
        rows = self._rows(name)
        shared: dict[int, Any] = {}
        return [self._restore(name, rank, rows[rank], self._arrays_of(name, rank, rows, shared)) for rank in rows]

    def _rows(self, name: str) -> dict[int, ValueRow]:
        answers = {rank: held.values[name] for rank, held in self._held.items()}
        return join_views(check_present(name, name_keys(self._transfer.asker, name, answers)))

    def _arrays_of(self, name: str, rank: int, rows: Mapping[int, ValueRow], shared: dict[int, Any]) -> list[Any]:
        arrays = []
        for index, array in enumerate(rows[rank].arrays):
            if not array.is_global:
                arrays.append(self._assemble(name, {rank: array}, None))
            elif len({row.digest for row in rows.values()}) > 1:
                arrays.append(self._own(name, rank, array))
            else:
                arrays.append(self._shared(name, rank, {r: rows[r].arrays[index] for r in rows}, shared, index))
        return arrays

    def _own(self, name: str, rank: int, array: ArrayRow) -> Any:
        """Read a global array from one rank alone, because the matching array of another rank is not known."""
        try:
            return self._assemble(name, {rank: array}, rank)
        except InvalidRequest as error:
            raise ValueDiffers(
                f"{name} differs between the ranks and holds a global array of which rank {rank} has a part only."
                " Bind that array to a name of its own on the ranks, and pull it by itself",
                name=name,
            ) from error

    def _shared(self, name: str, rank: int, rows: Mapping[int, ArrayRow], shared: dict[int, Any], index: int) -> Any:
        check_views(name, rows)
        if index in shared:
            return shared[index]
        try:
            check_replicas(name, rows)
        except ValueDiffers:
            # Each rank's own value was requested, so its copies are preferred.
            return self._assemble(name, rows, rank)
        shared[index] = self._assemble(name, rows, None)
        return shared[index]

    def _agree(self, name: str, rows: Mapping[int, ValueRow]) -> dict[int, Sequence[int]]:
        """Check that all ranks have the same value; return, for each rank, its number of each array of the first rank."""
        for rank, row in rows.items():
            for array in row.arrays:
                check_replicas(name, {rank: array})
        groups = group_ranks({rank: row.signature for rank, row in rows.items()})
        first = min(rows)
        ordered = sorted((ranks for ranks, _ in groups), key=lambda ranks: ranks[0])
        numbers: dict[int, Sequence[int]] = dict.fromkeys(ordered[0], range(len(rows[first].arrays)))
        where = {ranks: self._compare(name, rows, (first, ranks), numbers) for ranks in ordered[1:]}
        odd = [ranks for ranks in where if ranks[0] not in numbers]
        if odd:
            agreeing = [tuple(rank for rank in rows if rank in numbers), *odd]
            shorts = {rank: row.short for rank, row in rows.items()}
            raise differs(name, shorts, agreeing, where=where[odd[0]], advice=advise(name, rows, agreeing, numbers))
        return numbers

    def _compare(
        self,
        name: str,
        rows: Mapping[int, ValueRow],
        groups: tuple[int, Sequence[int]],
        numbers: dict[int, Sequence[int]],
    ) -> str:
        """Compare a group with the first rank by content: record which array is which, or return where they differ."""
        first, ranks = groups
        other, pairs = rows[ranks[0]], dict[int, int]()
        if not self._comparable(first, rows[first]) or not self._comparable(ranks[0], other):
            return ""
        left, right = self._peek(name, first, rows[first]), self._peek(name, ranks[0], other)
        where = find_difference(left, right, pairs)
        wanted = [index for index, array in enumerate(rows[first].arrays) if array.is_global]
        if where is None and all(index in pairs for index in wanted):
            mine = [pairs.get(index, index) for index in range(len(rows[first].arrays))]
            numbers.update(dict.fromkeys(ranks, mine))
        # For a single value the short texts are enough.
        return where if where is not None and where[:1] in ("[", ".") else ""

    def _comparable(self, rank: int, row: ValueRow) -> bool:
        return sum(self._held[rank].sizes[part] for part in row.local_parts) <= COMPARE_NBYTES

    def _peek(self, name: str, rank: int, row: ValueRow) -> Any:
        """Return a rank's value with a placeholder for each global array."""
        leaves = [
            GlobalLeaf(index) if array.is_global else self._assemble(name, {rank: array}, None)
            for index, array in enumerate(row.arrays)
        ]
        return self._restore(name, rank, row, leaves)

    def _assemble(self, name: str, rows: Mapping[int, ArrayRow], prefer: int | None) -> np.ndarray[Any, Any]:
        """Fetch an array into fresh memory, each shard once."""
        import numpy as np

        row = next(iter(rows.values()))
        check_views(name, rows)
        check_origins(name, rows)
        if prefer is None:
            check_replicas(name, rows)
        check_coverage(name, rows)
        array = np.empty(row.stored_shape, dtype_from_name(row.dtype))
        stream(self._transfer.asker, self._jobs(plan_fetches(rows, prefer=prefer), array))
        return array.T if row.order == "F" else array

    def _jobs(self, fetches: Sequence[Fetch], array: np.ndarray[Any, Any]) -> Iterator[Job]:
        for fetch in fetches:
            shape = box_shape(fetch.box)
            for piece in split_shape(shape, array.dtype.itemsize, CHUNK_NBYTES):
                place = tuple(
                    slice(outer[0] + inner[0], outer[0] + inner[1])
                    for outer, inner in zip(fetch.box, piece.box, strict=True)
                )
                yield from self._job(fetch.rank, fetch.part, piece.start, piece.stop, _Place(array, place, piece.box))

    def _job(self, rank: int, part: int, start: int, stop: int, place: _Place) -> Iterator[Job]:
        """Yield the request for a range of bytes; no request if the bytes came with the first reply."""
        if (inline := self._held[rank].inline) is not None:
            place.take(memoryview(inline[part])[start:stop])
            return
        arguments = {"transfer": self._transfer.number, "part": part, "start": start, "stop": stop}
        yield Job(rank, "fetch", arguments, take=place.take)

    def _bytes(self, rank: int, part: int) -> Any:
        """Fetch a whole part as writable bytes."""
        import numpy as np

        size = self._held[rank].sizes[part]
        data = np.empty(size, np.uint8)
        stream(self._transfer.asker, self._jobs([Fetch(rank, part, ((0, size),))], data))
        return raw_bytes(data)

    def _restore(self, name: str, rank: int, row: ValueRow, leaves: Sequence[Any]) -> Any:
        try:
            return unpack(self._bytes(rank, row.skeleton), leaves, [self._bytes(rank, part) for part in row.buffers])
        except NotHere as error:
            raise InvalidRequest(_not_here(name, error), name=name) from error
        except Exception as error:
            # Unpickling runs the value's own code, which may raise anything, so the message has the type of the error.
            raise InvalidRequest(
                f"{name} came from {say_ranks([rank])} and cannot be made here: {type(error).__name__}: {error}."
                " Pull what it is made of: arrays, numbers, containers of them",
                name=name,
            ) from error


@dataclass(frozen=True, slots=True)
class _Place:
    """Destination of a range of bytes in an array."""

    array: np.ndarray[Any, Any]
    index: tuple[slice, ...]
    box: Box

    def take(self, data: Any) -> None:
        self.array[self.index] = view_as(data, box_shape(self.box), self.array.dtype)


def _not_here(name: str, error: NotHere) -> str:
    if error.module == "__main__":
        return (
            f"{name} needs {error.qualname}, which a cell of the ranks defined and this notebook does not have."
            f" Define {error.qualname} here too, or in a module that both import; or pull its fields instead"
        )
    return (
        f"{name} needs {error.module}.{error.qualname}, which this notebook's Python cannot import ({error.args[0]})."
        " Install it here, or pull what the value is made of: arrays, numbers, containers of them"
    )
