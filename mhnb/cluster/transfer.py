"""Transfer values between the notebook and the ranks, over any rank client.

A pull returns one value if all ranks agree, or each rank's own. Global arrays are assembled from their shards, each
fetched once; nothing runs on a device. A push binds the same host value everywhere, on all ranks or on none.

PRNG keys have no NumPy type. They are located inside a value, so that the fix in the message can be typed as it is written.
The rank that refuses a value knows an array, but not its name. One more request, to those ranks only, returns the path of
the key.

It never imports JAX; it imports NumPy when the first array is transferred.
"""

from __future__ import annotations

import keyword
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from mhnb.adapters.numpy_arrays import (
    dtype_from_name,
    dtype_name,
    is_plain_array,
    memory_layout,
    memory_order,
    raw_bytes,
    view_as,
)
from mhnb.cluster.requests import (
    RankClient,
    Transfer,
    TransferJob,
    check_names,
    check_ranks,
    open_transfer,
    read_values,
    request_all,
    run_jobs,
)
from mhnb.core.pickling import GlobalArrayPlaceholder, MissingDefinition, dump_value, find_difference, load_value
from mhnb.core.ranks import describe_ranks, group_ranks
from mhnb.core.transfer import (
    CHUNK_NBYTES,
    COMPARE_NBYTES,
    INLINE_NBYTES,
    KEY_DATA_EXPRESSION,
    KEY_REFUSAL_CODE,
    MAX_IN_FLIGHT,
    ArrayDescription,
    Fetch,
    HeldValue,
    HeldValues,
    Owners,
    RefusedValue,
    TransferRefusal,
    ValueDescription,
    build_value_differs,
    check_coverage,
    check_placements,
    check_present,
    check_provenance,
    check_replicas,
    merge_placements,
    plan_fetches,
    suggest_pull_options,
)
from mhnb.errors import InvalidRequest, ValueDiffers
from mhnb.sharding.boxes import Box, box_shape, split_shape
from mhnb.sharding.layout import decode_tree

if TYPE_CHECKING:
    import numpy as np


ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Takes the bytes that are transferred so far, and all. It is called in the caller's thread, after each message of bytes.

All is an estimate for a pull of values that have to be compared: what the comparison reads is not known before.
"""


@dataclass(slots=True)
class _ByteCount:
    """Counts the bytes of one transfer, and reports them."""

    total: int
    report: ProgressCallback | None
    done: int = 0

    def add(self, job: TransferJob) -> None:
        self.done += job.nbytes
        # What arrives beyond the estimate enlarges it.
        self.total = max(self.total, self.done)
        if self.report is not None:
            self.report(self.done, self.total)


def push(
    client: RankClient,
    values: Mapping[str, Any],
    *,
    ranks: Sequence[int] | None = None,
    on_progress: ProgressCallback | None = None,
    prepare_record: Callable[[PushPayload], Callable[[], None]] | None = None,
) -> None:
    """Bind host values on every rank; a jax.Array becomes a NumPy array.

    Args:
        client: the cluster.
        values: the values by variable name.
        ranks: the ranks to bind them on; None for all.
        on_progress: follows the transfer.
        prepare_record: as in `push_payload`, given the payload.

    Raises:
        InvalidRequest: an invalid name or value; nothing is bound on any rank.
    """
    for name in check_names(tuple(values), "push"):
        if keyword.iskeyword(name):
            raise InvalidRequest(f"push cannot bind {name!r}: it is a Python keyword; choose another name", name=name)
    builder = _PayloadBuilder()
    payload = PushPayload([builder.add_value(name, value) for name, value in values.items()], builder.parts)
    prepare = None if prepare_record is None else partial(prepare_record, payload)
    push_payload(client, payload, ranks=ranks, on_progress=on_progress, prepare_record=prepare)


def push_payload(
    client: RankClient,
    payload: PushPayload,
    *,
    ranks: Sequence[int] | None = None,
    on_progress: ProgressCallback | None = None,
    prepare_record: Callable[[], Callable[[], None]] | None = None,
) -> None:
    """Bind values that were packed before.

    Args:
        client: the cluster.
        payload: the values.
        ranks: the ranks to bind them on; None for all.
        on_progress: follows the transfer.
        prepare_record: called when every rank can bind the values. What it returns is called when all have bound them, before the
            end of any cell that is submitted later, and even if Ctrl-C has ended the wait.

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
        request_all(client, chosen, "allocate", arguments)
        count = _ByteCount(payload.nbytes * len(chosen), on_progress)
        jobs = _jobs(transfer, chosen, payload.parts)
        run_jobs(client, jobs, in_flight=MAX_IN_FLIGHT * len(chosen), on_done=count.add)
        staged = request_all(client, chosen, "build", {"transfer": transfer.number, "values": payload.values})
        _check_staged({rank: answer.value for rank, answer in staged.items()})
        write_record = None if prepare_record is None else prepare_record()
        recorded: Future[None] = Future()

        def record() -> None:
            try:
                if write_record is not None:
                    write_record()
                recorded.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised below, in the thread that pushes
                recorded.set_exception(error)

        request_all(client, chosen, "commit", {"transfer": transfer.number}, record)
        # A waiter is woken before the callbacks of the last answer are called.
        recorded.result()
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
            cure = (
                "Define it in a %%mhjax cell"
                if isinstance(value, FunctionType)
                else "Push its parts instead: arrays, numbers or containers of them"
            )
            raise InvalidRequest(
                f"{name} cannot be pushed: {type(error).__name__}: {str(error).rstrip('.')}."
                f" {cure}. Nothing was bound on any rank",
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
    """Yield writes to all ranks: small parts together, large ones in chunks."""
    for targets, data in _messages(parts):
        arguments = {"transfer": transfer.number, "places": targets}
        nbytes = sum(piece.nbytes for piece in data)
        for rank in ranks:
            yield TransferJob(rank, "write", arguments, data, nbytes=nbytes)


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
        f"{name} cannot be pushed: on {describe_ranks(ranks)} it {text}. Define or import it on the ranks first (%%mhjax)."
        " Nothing was bound on any rank",
        name=name,
        ranks=ranks,
    )


# -- find PRNG keys inside a value


_KEY_DTYPE_PREFIX = "key<"
"""Prefix of the name of a key type: `key<fry>`."""


def locate_prng_keys(
    client: RankClient, name: str, answers: Mapping[int, ValueDescription | TransferRefusal]
) -> dict[int, ValueDescription | TransferRefusal]:
    """Put the key's expression, such as `state['k']`, into refusals of keys."""
    refused = {
        rank: row for rank, row in answers.items() if isinstance(row, TransferRefusal) and row.code == KEY_REFUSAL_CODE
    }
    if not refused:
        return dict(answers)
    layouts = request_all(client, refused, "layout", {"expression": name})
    located = {rank: _locate_prng_key(name, refusal, layouts[rank].value) for rank, refusal in refused.items()}
    return {**answers, **located}


def _locate_prng_key(name: str, refusal: TransferRefusal, layout: Mapping[str, Any]) -> TransferRefusal:
    rows = decode_tree(layout["tree"]).rows if "tree" in layout else ()
    paths = [row.path for row in rows if row.layout is not None and row.layout.dtype.name.startswith(_KEY_DTYPE_PREFIX)]
    # In an object that is not a pytree a key has no path, and JAX writes `<flat index 0>` for a node without keys.
    if not paths or "<" in paths[0]:
        return refusal
    return replace(refusal, text=refusal.text.replace(KEY_DATA_EXPRESSION, f"jax.random.key_data({name}{paths[0]})"))


# -- pull


def pull(
    client: RankClient,
    names: Sequence[str],
    *,
    ranks: Sequence[int] | None = None,
    each: bool = False,
    on_progress: ProgressCallback | None = None,
) -> Any:
    """Fetch values by name, with arrays as NumPy arrays in their containers.

    One name returns its value; several return a tuple.

    Args:
        client: the cluster.
        names: variables on the ranks.
        ranks: the ranks to fetch from; None for all.
        each: return for each name a list with every rank's value, in rank order, instead of the one value that all hold.
        on_progress: follows the transfer.

    Raises:
        ValueDiffers: a value differs between the ranks, or its name is missing on one (NameMissing).
        InvalidRequest: the value cannot be sent, or the selected ranks lack a part of it.
    """
    wanted = check_names(names, "pull")
    chosen = check_ranks(ranks, client.process_count)
    with open_transfer(client) as transfer:
        arguments = {
            "transfer": transfer.number,
            "live": transfer.open_numbers,
            "names": list(dict.fromkeys(wanted)),
            "digest_local": len(chosen) > 1 and not each,
        }
        transfer.retaining_ranks.update(chosen)
        answers = request_all(client, chosen, "describe", arguments)
        replies = read_values("describe", answers, HeldValues)
        manifests = {rank: _Manifest.read(reply, answers[rank].payload) for rank, reply in replies.items()}
        transfer.retaining_ranks.intersection_update(
            rank for rank, holding in manifests.items() if holding.inline is None
        )
        total = 0 if on_progress is None else sum(_estimate_nbytes(name, manifests, each=each) for name in set(wanted))
        puller = _Puller(transfer, manifests, _ByteCount(total, on_progress))
        values = tuple(puller.each(name) if each else puller.one(name) for name in wanted)
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A rank's reply to `describe`."""

    values: dict[str, ValueDescription | TransferRefusal]
    sizes: tuple[int, ...]
    inline: tuple[Any, ...] | None

    @classmethod
    def read(cls, reply: HeldValues, payload: tuple[Any, ...]) -> _Manifest:
        values = {row.name: _read_value(row, reply.tables) for row in reply.values}
        for name, similar in reply.missing.items():
            values[name] = TransferRefusal("missing", "is missing", similar)
        return cls(values, reply.part_sizes, payload if reply.is_inline else None)


def _read_value(row: HeldValue | RefusedValue, tables: Sequence[Owners]) -> ValueDescription | TransferRefusal:
    if isinstance(row, RefusedValue):
        return TransferRefusal(row.code, row.text)
    arrays = tuple(ArrayDescription.from_row(array, tables) for array in row.arrays)
    return ValueDescription(row.name, row.summary, row.skeleton, row.buffers, row.digest, arrays)


def _estimate_nbytes(name: str, manifests: Mapping[int, _Manifest], *, each: bool) -> int:
    """Estimate a pull's bytes: local parts, and each global array once."""
    held = {rank: (manifest, manifest.values[name]) for rank, manifest in manifests.items()}
    rows = [(manifest, row) for manifest, row in held.values() if isinstance(row, ValueDescription)]
    if any(manifest.inline is not None for manifest, _ in rows) or not rows:
        # Small values come with the first reply.
        return 0
    local = [sum(manifest.sizes[part] for part in row.local_parts) for manifest, row in rows]
    arrays = [array for array in rows[0][1].arrays if array.is_global]
    shared = sum(math.prod(array.shape) * dtype_from_name(array.dtype).itemsize for array in arrays)
    return (sum(local) if each else local[0]) + shared


class _Puller:
    """Assembles values from what the ranks hold."""

    def __init__(self, transfer: Transfer, manifests: Mapping[int, _Manifest], count: _ByteCount) -> None:
        self._transfer, self._manifests, self._count = transfer, manifests, count

    def one(self, name: str) -> Any:
        """Return the value that all ranks hold."""
        rows = self._value_rows(name)
        first = min(rows)
        numbers = self._match_ranks(name, rows)
        arrays = []
        for index, array in enumerate(rows[first].arrays):
            if array.is_global:
                same_array = {rank: rows[rank].arrays[numbers[rank][index]] for rank in rows}
                arrays.append(self._assemble(name, same_array, None))
            else:
                arrays.append(self._assemble(name, {first: array}, None))
        return self._rebuild(name, first, rows[first], arrays)

    def each(self, name: str) -> list[Any]:
        """Return every rank's value in order, sharing global arrays that agree."""
        rows = self._value_rows(name)
        shared: dict[int, Any] = {}
        return [self._rebuild(name, rank, rows[rank], self._arrays_of(name, rank, rows, shared)) for rank in rows]

    def _value_rows(self, name: str) -> dict[int, ValueDescription]:
        answers = {rank: held.values[name] for rank, held in self._manifests.items()}
        return merge_placements(check_present(name, locate_prng_keys(self._transfer.client, name, answers)))

    def _arrays_of(
        self, name: str, rank: int, rows: Mapping[int, ValueDescription], shared: dict[int, Any]
    ) -> list[Any]:
        arrays = []
        for index, array in enumerate(rows[rank].arrays):
            if not array.is_global:
                arrays.append(self._assemble(name, {rank: array}, None))
            elif len({row.digest for row in rows.values()}) > 1:
                arrays.append(self._assemble_own(name, rank, array))
            else:
                arrays.append(
                    self._assemble_shared(name, rank, {r: rows[r].arrays[index] for r in rows}, shared, index)
                )
        return arrays

    def _assemble_own(self, name: str, rank: int, array: ArrayDescription) -> Any:
        """Read a global array from one rank, as matching ones are unknown."""
        try:
            return self._assemble(name, {rank: array}, rank)
        except InvalidRequest as error:
            raise ValueDiffers(
                f"{name} differs between the ranks and contains a global array of which rank {rank} holds only a part."
                " Assign that array to its own variable on the ranks, and pull that variable",
                name=name,
            ) from error

    def _assemble_shared(
        self, name: str, rank: int, rows: Mapping[int, ArrayDescription], shared: dict[int, Any], index: int
    ) -> Any:
        check_placements(name, rows)
        if index in shared:
            return shared[index]
        try:
            check_replicas(name, rows)
        except ValueDiffers:
            # Each rank's own value was requested, so its copies are preferred.
            return self._assemble(name, rows, rank)
        shared[index] = self._assemble(name, rows, None)
        return shared[index]

    def _match_ranks(self, name: str, rows: Mapping[int, ValueDescription]) -> dict[int, Sequence[int]]:
        """Check that ranks agree; map the first rank's arrays to each rank's."""
        for rank, row in rows.items():
            for array in row.arrays:
                check_replicas(name, {rank: array})
        groups = group_ranks({rank: row.signature for rank, row in rows.items()})
        first = min(rows)
        ordered = sorted((ranks for ranks, _ in groups), key=lambda ranks: ranks[0])
        numbers: dict[int, Sequence[int]] = dict.fromkeys(ordered[0], range(len(rows[first].arrays)))
        where = {ranks: self._compare_group(name, rows, (first, ranks), numbers) for ranks in ordered[1:]}
        disagreeing = [ranks for ranks in where if ranks[0] not in numbers]
        if disagreeing:
            agreeing = [tuple(rank for rank in rows if rank in numbers), *disagreeing]
            shorts = {rank: row.summary for rank, row in rows.items()}
            raise build_value_differs(
                name,
                shorts,
                agreeing,
                where=where[disagreeing[0]],
                advice=suggest_pull_options(name, rows, agreeing, numbers),
            )
        return numbers

    def _compare_group(
        self,
        name: str,
        rows: Mapping[int, ValueDescription],
        groups: tuple[int, Sequence[int]],
        numbers: dict[int, Sequence[int]],
    ) -> str:
        """Match a group's arrays to the first rank's; return where values differ."""
        first, ranks = groups
        other, pairs = rows[ranks[0]], dict[int, int]()
        if not self._is_comparable(first, rows[first]) or not self._is_comparable(ranks[0], other):
            return ""
        left, right = self._with_placeholders(name, first, rows[first]), self._with_placeholders(name, ranks[0], other)
        where = find_difference(left, right, pairs)
        wanted = [index for index, array in enumerate(rows[first].arrays) if array.is_global]
        if where is None and all(index in pairs for index in wanted):
            mine = [pairs.get(index, index) for index in range(len(rows[first].arrays))]
            numbers.update(dict.fromkeys(ranks, mine))
        # For a single value the short texts are enough.
        return where if where is not None and where[:1] in ("[", ".") else ""

    def _is_comparable(self, rank: int, row: ValueDescription) -> bool:
        return sum(self._manifests[rank].sizes[part] for part in row.local_parts) <= COMPARE_NBYTES

    def _with_placeholders(self, name: str, rank: int, row: ValueDescription) -> Any:
        """Return a rank's value with a placeholder for each global array."""
        leaves = [
            GlobalArrayPlaceholder(index) if array.is_global else self._assemble(name, {rank: array}, None)
            for index, array in enumerate(row.arrays)
        ]
        return self._rebuild(name, rank, row, leaves)

    def _assemble(self, name: str, rows: Mapping[int, ArrayDescription], prefer: int | None) -> np.ndarray[Any, Any]:
        """Fetch an array into fresh memory, each shard once."""
        import numpy as np

        row = next(iter(rows.values()))
        check_placements(name, rows)
        check_provenance(name, rows)
        if prefer is None:
            check_replicas(name, rows)
        check_coverage(name, rows)
        array = np.empty(row.stored_shape, dtype_from_name(row.dtype))
        self._run(self._jobs(plan_fetches(rows, prefer=prefer), array))
        return array.T if row.order == "F" else array

    def _jobs(self, fetches: Sequence[Fetch], array: np.ndarray[Any, Any]) -> Iterator[TransferJob]:
        for fetch in fetches:
            shape = box_shape(fetch.box)
            for piece in split_shape(shape, array.dtype.itemsize, CHUNK_NBYTES):
                index = tuple(
                    slice(outer[0] + inner[0], outer[0] + inner[1])
                    for outer, inner in zip(fetch.box, piece.box, strict=True)
                )
                yield from self._job(
                    fetch.rank, fetch.part, piece.start, piece.stop, _Destination(array, index, piece.box)
                )

    def _job(self, rank: int, part: int, start: int, stop: int, destination: _Destination) -> Iterator[TransferJob]:
        """Yield a request for bytes, or write those that came inline."""
        if (inline := self._manifests[rank].inline) is not None:
            destination.write(memoryview(inline[part])[start:stop])
            return
        arguments = {"transfer": self._transfer.number, "part": part, "start": start, "stop": stop}
        yield TransferJob(rank, "fetch", arguments, on_payload=destination.write, nbytes=stop - start)

    def _fetch_bytes(self, rank: int, part: int) -> Any:
        """Fetch a whole part as writable bytes."""
        import numpy as np

        size = self._manifests[rank].sizes[part]
        data = np.empty(size, np.uint8)
        self._run(self._jobs([Fetch(rank, part, ((0, size),))], data))
        return raw_bytes(data)

    def _run(self, jobs: Iterator[TransferJob]) -> None:
        run_jobs(self._transfer.client, jobs, on_done=self._count.add)

    def _rebuild(self, name: str, rank: int, row: ValueDescription, leaves: Sequence[Any]) -> Any:
        try:
            return load_value(
                self._fetch_bytes(rank, row.skeleton), leaves, [self._fetch_bytes(rank, part) for part in row.buffers]
            )
        except MissingDefinition as error:
            raise InvalidRequest(_describe_missing_definition(name, error), name=name) from error
        except Exception as error:
            # Unpickling runs the value's own code, which may raise anything, so the message has the type of the error.
            raise InvalidRequest(
                f"{name} came from {describe_ranks([rank])} and cannot be rebuilt in this notebook: {type(error).__name__}: {error}."
                " Pull its parts instead: arrays, numbers or containers of them",
                name=name,
            ) from error


@dataclass(frozen=True, slots=True)
class _Destination:
    """Destination of a range of bytes in an array."""

    array: np.ndarray[Any, Any]
    index: tuple[slice, ...]
    box: Box

    def write(self, data: Any) -> None:
        self.array[self.index] = view_as(data, box_shape(self.box), self.array.dtype)


def _describe_missing_definition(name: str, error: MissingDefinition) -> str:
    if error.module == "__main__":
        return (
            f"{name} needs {error.qualname}, which was defined in a cell on the ranks but not in this notebook."
            f" Define {error.qualname} here too, or in a module that both import; or pull its fields instead"
        )
    return (
        f"{name} needs {error.module}.{error.qualname}, which this notebook's Python cannot import ({error.args[0]})."
        " Install it here, or pull the parts of the value: arrays, numbers or containers of them"
    )
