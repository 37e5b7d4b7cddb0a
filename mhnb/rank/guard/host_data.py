"""Record of the arrays that a cell built from host data.

An array of which every rank holds all is identified by its content. One that is not computed yet has no identity, and is equal to
every other until it is computed: the rank waits for it only if a launch donates it, or a program without a collective takes it.

An array of which no rank holds all has an identity: the cell, the line, and which one of its kind it is there. So ranks that make two
in one order and use them in another are refused. One that is made in a call of a pool or in a task is identified by that call. One that
a thread of the user's own makes has no identity, because several such threads make their arrays in any order.

At the end of the cell are compared: arrays made on the same line, because some are never given to a launch; boxes that only some ranks
share, if launches take them; inputs of launches that could not be compared before; and what several devices of this rank got for one
box. A box is the index range of a shard.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import numpy as np

from mhnb.core.guard.host_data import DIFFERENT_COPIES, LAUNCH_INPUT, HashSummary, HostDataRow
from mhnb.core.guard.provenance import (
    ANY,
    HASH_MASK,
    HOST_DATA,
    SHARDED_HOST_DATA,
    join_hashes,
    uncompared_positions,
)
from mhnb.core.guard.threads import MAIN_THREAD, UNKNOWN_THREAD
from mhnb.core.messages import RunCell
from mhnb.core.variables import format_array
from mhnb.rank.execution.streams import current_cell, current_thread
from mhnb.rank.guard.hashing import (
    ArrayBytes,
    Copies,
    DeferredHashes,
    HashLabel,
    HostArray,
    RunningHash,
    hash_bytes,
    sample_of,
)
from mhnb.rank.guard.provenance import (
    BOXES,
    PENDING,
    Producer,
    Tag,
    copy_provenance,
    is_tagged,
    read_content,
    read_tags,
    tag_array,
)
from mhnb.sharding.boxes import WHOLE_ARRAY, box_of_index, describe_box

ShardSource: TypeAlias = Callable[[Any, Any], Any]
_NO_LABEL = HashLabel()
_NO_CELL = RunCell(0, 0, "", "off")
"""Stands for a cell before the first one: no array is recorded."""


class LaunchedProgram(Protocol):
    """A program of several ranks."""

    @property
    def participants(self) -> tuple[int, ...]:
        """The ranks that launch it together."""

    @property
    def fingerprint(self) -> str:
        """Identifies it on every rank."""


@dataclass(frozen=True, slots=True)
class SharedBoxes:
    """The ranks of an array, and this rank's boxes that others hold."""

    ranks: tuple[int, ...]
    sharding_hash: str
    """Hash of devices and spec: the same on every rank."""
    is_replicated: bool
    """Every rank holds all of the array."""
    boxes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Device and index by the text of the box; each box once."""
    copies: dict[str, tuple[tuple[Any, Any], ...]] = field(default_factory=dict)
    """The same for each box that several devices of this rank hold, with all of them."""


@lru_cache(4096)
def find_shared_boxes(sharding: Any, shape: tuple[int, ...]) -> SharedBoxes | None:
    """Return how ranks share an array; None if not shared or empty."""
    if sharding.is_fully_addressable or not prod(shape):
        return None
    ranks_by_box: dict[str, set[int]] = {}
    texts = {}
    for device, index in sharding.devices_indices_map(shape).items():
        texts[device] = describe_box(box_of_index(index, shape))
        ranks_by_box.setdefault(texts[device], set()).add(device.process_index)
    ranks = tuple(sorted(set().union(*ranks_by_box.values())))
    if len(ranks) < 2:
        return None
    name = f"{[device.id for device in texts]} {getattr(sharding, 'spec', '')}"
    places: dict[str, list[tuple[Any, Any]]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        places.setdefault(texts[device], []).append((device, index))
    boxes = {text: here[0] for text, here in places.items() if len(ranks_by_box[text]) > 1}
    copies = {text: tuple(here) for text, here in places.items() if len(here) > 1}
    is_whole = all(len(each) == len(ranks) for each in ranks_by_box.values())
    return SharedBoxes(ranks, f"{hash_bytes(name.encode()):x}", is_whole, boxes, copies)


def _hash_text(*values: object) -> int:
    return hash_bytes(repr(values).encode()) & HASH_MASK


@lru_cache(4096)
def _format_kind(shape: tuple[int, ...], dtype: Any) -> str:
    return format_array(shape, str(dtype))


@dataclass(slots=True)
class _ArrayRow:
    kind_hash: RunningHash = field(default_factory=RunningHash)
    box_hashes: dict[str, RunningHash] = field(default_factory=dict)

    def find_box_hash(self, box: str) -> RunningHash:
        return self.box_hashes.setdefault(box, RunningHash())


class HostDataRecorder:
    """Arrays that this rank made in the current cell.

    `record_array` and `record_argument` may be called from any thread.

    Args:
        find_line: returns the cell's line that the caller is in.
        count_launches: returns how many launches the cell has made so far.
        read: reads a value, as a type of element.
    """

    def __init__(
        self,
        find_line: Callable[[], int | None],
        count_launches: Callable[[], int],
        read: Callable[[Any, Any], ArrayBytes],
    ) -> None:
        self._find_line, self._count_launches, self._read_value = find_line, count_launches, read
        self._main = threading.main_thread()
        # A user's finalizer may make an array wherever Python runs it, even while its own thread holds the lock.
        self._lock = threading.RLock()
        self._unhashed: WeakSet[HostArray] = WeakSet()
        """Contents of live arrays whose tag or boxes are not hashed yet: usually none, and then no launch searches for them."""
        self._partially_shared: WeakSet[HostArray] = WeakSet()
        """The same for arrays with boxes that only some ranks share."""
        self._recording_error = ""
        """Why an array could not be recorded."""
        self.is_active = self._uses_tags = False
        """Whether arrays will be compared; whether they get a tag."""
        self._sampled_nbytes, self._recording_error, self._is_partial = 0, "", False
        self._start_over()
        self.begin_cell(_NO_CELL)

    def begin_cell(self, cell: RunCell) -> None:
        """Start a cell; it includes arrays made since the last one ended.

        Arrays get tags only in lockstep, where the ranks compare those of each launch before it.
        """
        with self._lock:
            self._seq, self.is_active, self._uses_tags = cell.seq, cell.guard != "off", cell.guard == "lockstep"
            self._cell_ranks = None if cell.ranks is None else set(cell.ranks)
            if not self.is_active:
                self._start_over()

    def _start_over(self) -> None:
        self._rows: dict[tuple[Any, ...], _ArrayRow] = {}
        self._launch_counts: dict[tuple[int, ...], int] = {}
        """How many launches were made so far whose number is the same on each rank, by participants."""
        self._array_counts: Counter[tuple[Any, ...]] = Counter()
        """How many arrays of which no rank holds all the cell's own code made, by line, devices and spec, and kind."""
        self._deferred = DeferredHashes(self._read)

    # -- new arrays

    def record_array(self, array: Any, source: ShardSource) -> None:
        """Record a new array of the user; a failure becomes a note.

        Args:
            source: returns what a device got, from the device and its index of the whole.
        """
        self._record_safely(array, functools.partial(self._record_array, array, source))

    def record_argument(self, array: Any, argument: Any, source: ShardSource) -> None:
        """Record an array laid out on devices from a program's argument.

        JAX assumes that the value is the same on every rank, even if each lays out a part of it: so the whole value identifies it.
        """
        self._record_safely(array, functools.partial(self._record_argument, array, argument, source))

    def _record_safely(self, array: Any, record: Callable[[], None]) -> None:
        if not self.is_active:
            return
        try:
            record()
        except Exception as error:  # noqa: BLE001 - arrays are made by private code of JAX: the user's program continues
            line = self._find_line()
            if not self._recording_error:
                where = "a line of another file" if line is None else f"line {line}"
                self._recording_error = (
                    f"{where} makes an array that the guard cannot compare with other ranks ({error!r})"
                )
            tag_array(array, ANY, Producer(HOST_DATA, self._seq, line))

    def _record_array(self, array: Any, source: ShardSource) -> None:
        sharing = find_shared_boxes(array.sharding, array.shape)
        if sharing is None:
            return
        line, kind = self._find_line(), _format_kind(array.shape, array.dtype)
        host = HostArray(kind, array.dtype, _parts(sharing, source, is_from_one=False), sharing)
        # Under parity a program may have taken it by donation before this record is called again.
        is_known = host.hash_parts(self._read, wait=not self._uses_tags)
        self._add_array(line, sharing, host)
        if sharing.is_replicated:
            if self._uses_tags:
                self._tag(array, host, Producer(HOST_DATA, self._seq, line))
            return
        if self._uses_tags:
            tag_array(
                array, self._hash_creation_site(line, sharing, kind), Producer(SHARDED_HOST_DATA, self._seq, line)
            )
        if host.parts or host.part_hashes:
            setattr(array, BOXES, (host,))
            self._partially_shared.add(host)
            if not is_known:
                self._unhashed.add(host)

    def _record_argument(self, array: Any, argument: Any, source: ShardSource) -> None:
        sharing = find_shared_boxes(array.sharding, array.shape)
        if sharing is not None:
            is_cut = sharing.is_replicated and len(sharing.boxes) > 1
            parts = _parts(sharing, source, is_from_one=True) if is_cut else {"": argument}
            host = HostArray(_format_kind(array.shape, array.dtype), array.dtype, parts, sharing)
            # Under parity C++ launches on it before this record is called again, and may take it by donation.
            host.hash_parts(self._read, wait=not self._uses_tags)
            self._tag(array, host, None)

    def record_kept(self, laid_out: Any, kept: Any) -> None:
        """Record that the user keeps an array that was laid out."""
        if not (self.is_active and is_tagged(laid_out)):
            return
        line, sharing = self._find_line(), find_shared_boxes(kept.sharding, kept.shape)
        ((value, known, _),) = read_tags([laid_out])
        if known is None and sharing is not None and sharing.is_replicated:
            if not self._uses_tags and hasattr(laid_out, PENDING):
                # Under parity a program may have taken it by donation before this record is called again.
                getattr(laid_out, PENDING).hash_parts(self._read, wait=True)
            self._add_array(line, sharing, getattr(laid_out, PENDING, value), _format_kind(kept.shape, kept.dtype))
        if self._uses_tags or known is not None:
            copy_provenance(laid_out, kept, Producer(HOST_DATA, self._seq, line))

    def record_outputs(
        self, outputs: Sequence[Any], name: str, line: int | None, find_shard: Callable[[Any, Any, Any], Any]
    ) -> None:
        """Record outputs of a program whose host callbacks return values.

        Those that several ranks hold are compared like host data; others keep the launch's tag.

        Args:
            find_shard: returns what a device of this rank holds of an array, from the array, the device and the index.
        """
        for array in outputs if self.is_active else ():
            sharing = find_shared_boxes(array.sharding, array.shape)
            parts = _parts(sharing, functools.partial(find_shard, array), is_from_one=False) if sharing else {}
            if sharing is None or not parts:
                continue
            host = HostArray(_format_kind(array.shape, array.dtype), array.dtype, parts, sharing)
            self._add_array(line, sharing, host)
            if self._uses_tags and sharing.is_replicated:
                self._tag(array, host, Producer(name, self._seq, line))
            elif self._uses_tags:
                setattr(array, BOXES, (host,))
                self._partially_shared.add(host)
                self._unhashed.add(host)

    def tag_pmap_argument(self, array: Any) -> bool:
        """Tag a pmap argument by where it was made; return whether tagged.

        A launch is not compared by it, because the parts of two ranks have nothing in common. But what a program without a collective
        computes from it is, where it meets the other ranks'.
        """
        sharing = find_shared_boxes(array.sharding, array.shape) if self._uses_tags else None
        if sharing is None:
            return False
        line = self._find_line()
        pmap_value = self._hash_creation_site(line, sharing, f"pmap {array.aval}")
        tag_array(array, ANY, Producer(HOST_DATA, self._seq, line, pmap_value))
        return True

    def tags_of(self, arguments: Sequence[Any], avals: Sequence[Any]) -> list[Tag]:
        """Return the arguments' tags; wait for and hash any never laid out.

        Args:
            avals: shape and type of each argument, as the program has them.
        """
        tags = read_tags(arguments)
        for at, (argument, aval) in enumerate(zip(arguments, avals, strict=True)):
            if tags[at][1] is None and getattr(argument, "is_fully_addressable", True):
                host = HostArray(_format_kind(aval.shape, aval.dtype), aval.dtype, {"": argument})
                host.hash_parts(self._read, wait=True)
                tags[at] = (host.tag_value, None, None)
        return tags

    def _tag(self, array: Any, host: HostArray, producer: Producer | None) -> None:
        tag_array(array, host.tag_value, producer)
        if host.parts:
            setattr(array, PENDING, host)
            self._unhashed.add(host)

    def _hash_creation_site(self, line: int | None, sharing: SharedBoxes, kind: str) -> int:
        """Return a tag value of line, kind and count; `ANY` if unknown.

        It identifies an array of which no rank holds all: its content cannot, because each rank holds another part.
        """
        if self._cell_ranks is not None and not self._cell_ranks.issuperset(sharing.ranks):
            # With --ranks some ranks make their part again, while the others have theirs from another cell.
            return ANY
        key = line, sharing.sharding_hash, kind
        thread = current_thread()
        with self._lock:
            if thread.number == MAIN_THREAD:
                self._array_counts[key] += 1
                return _hash_text(*key, self._seq, self._array_counts[key])
            if not thread.call_number:
                # A thread of the user's own, or a library's: which of the arrays each of several makes is chance.
                return ANY
            # The thread may outlive the cell in which it was started.
            thread.host_data_counts[key] += 1
            count = thread.host_data_counts[key]
        by_call = _hash_text(*key, thread.call_number, count)
        by_number = by_call if thread.number == UNKNOWN_THREAD else _hash_text(*key, thread.number, count)
        return join_hashes(by_call, by_number)

    def _add_array(self, line: int | None, sharing: SharedBoxes, content: HostArray | int, kind: str = "") -> None:
        """Register an array for comparison by line when the cell ends.

        `content` is what it was made of, or the tag value of that.
        """
        kind = content.kind if isinstance(content, HostArray) else kind
        # Other threads run at their own pace: of their arrays only the total can be compared.
        group = self._count_launches() if threading.current_thread() is self._main else 0
        with self._lock:
            row = self._find_row(line, sharing)
            row.kind_hash.add(group, kind, hash_bytes(kind.encode()))
            boxes = [""] if isinstance(content, int) else [*dict.fromkeys((*content.parts, *content.part_hashes))]
            if "" in boxes:
                self._add_hash(row.find_box_hash(WHOLE_ARRAY), group, content, None, _NO_LABEL)
            else:
                for box in boxes:
                    self._add_hash(row.find_box_hash(box), group, content, box, _NO_LABEL)

    def _find_row(self, line: int | None, sharing: SharedBoxes) -> _ArrayRow:
        thread, key = current_thread(), (line, sharing.ranks, sharing.sharding_hash)
        if thread.number in (MAIN_THREAD, UNKNOWN_THREAD) or (thread.is_call and current_cell() == self._seq):
            return self._rows.setdefault(key, _ArrayRow())
        # It may outlive its cell, and the ranks end that at different arrays of its: so they compare all that it has made so far.
        row: _ArrayRow = thread.host_data_rows.setdefault(key, _ArrayRow())
        return self._rows.setdefault((*key[:2], f"{key[2]} {thread.number:x}"), row)

    def _add_hash(
        self, running_hash: RunningHash, group: int, content: HostArray | int, box: str | None, label: HashLabel
    ) -> None:
        if isinstance(content, int):
            running_hash.add(group, label.format_hash(content), label.combine(content), content_hash=content)
        else:
            self._deferred.add(running_hash, group, content, box, label)

    # -- launches

    def hash_inputs(self, inputs: Sequence[Any], *, donated: Collection[int] | None = ()) -> None:
        """Hash a launch's arrays whose content was unknown when they were made.

        Args:
            donated: positions of the donated inputs, which are waited for: each is a computation of this rank's own, which ends by
                itself. None: wait for all, as for a launch without a collective.
        """
        if self._unhashed:
            pending = [host for array in inputs if (host := getattr(array, PENDING, None)) is not None]
            if not self._deferred.has_room_for([host for host in pending if host.parts]):
                donated = None
            for at, array in enumerate(inputs):
                must_wait = donated is None or at in donated
                for host in getattr(array, BOXES, ()) if must_wait else ():
                    host.hash_parts(self._read, wait=True)
                    self._unhashed.discard(host)
                if (host := getattr(array, PENDING, None)) is not None and (
                    host.hash_parts(self._read, wait=must_wait) or host.has_lost_part
                ):
                    # Not before: if the wait is interrupted, or another thread waits, the array is as it was.
                    tag_array(array, host.tag_value, read_tags([array])[0][1])
                    vars(array).pop(PENDING, None)
        if donated != () and len(self._deferred):
            # What was kept of the same buffers is computed by now, and about to be donated.
            with self._lock:
                self._deferred.add_computed()

    def record_inputs(
        self,
        program: LaunchedProgram,
        line: int | None,
        inputs: Sequence[Any],
        *,
        is_agreed: bool,
        uncompared_mask: int = 0,
    ) -> None:
        """Register a collective's uncompared inputs for comparison when the cell ends.

        The n-th launches of the ranks are one, whatever the line.

        Args:
            is_agreed: the ranks agreed on it.
            uncompared_mask: mask of the arrays that they did not compare.
        """
        if not self.is_active:
            return
        number = self._next_number(program.participants, is_agreed=is_agreed)
        if is_agreed:
            positions = uncompared_positions(uncompared_mask, len(inputs))
        else:
            positions = [at for at, (value, producer, _) in enumerate(read_tags(inputs)) if value and producer is None]
        with self._lock:
            for at in positions:
                self._add_input(program, line, (number, at), read_content(inputs[at]), inputs[at])
            for at, array in enumerate(inputs) if self._partially_shared and number else ():
                for host in getattr(array, BOXES, ()):
                    self._add_input_boxes(host, HashLabel(number, at, line))

    def _add_input(
        self,
        program: LaunchedProgram,
        line: int | None,
        which: tuple[int, int],
        content: HostArray | int,
        array: Any,
    ) -> None:
        number, at = which
        # In a thread whose launches are not counted, inputs are compared by line.
        where, label = (None, HashLabel(number, at, line)) if number else (line, _NO_LABEL)
        # Another program may take arrays there that must not be compared.
        place = f"{LAUNCH_INPUT}{at} {program.fingerprint}"
        row = self._rows.setdefault((where, program.participants, place), _ArrayRow())
        kind = _format_kind(array.shape, array.dtype)
        row.kind_hash.add(0, kind, label.combine(hash_bytes(kind.encode())))
        if content == ANY:
            # It is not a value that is still computed: it must not be compared.
            row.find_box_hash(WHOLE_ARRAY).is_partial = True
        else:
            self._add_hash(row.find_box_hash(WHOLE_ARRAY), 0, content, None, label)

    def _add_input_boxes(self, host: HostArray, label: HashLabel) -> None:
        row = self._rows.setdefault((None, host.sharing.ranks, LAUNCH_INPUT + host.sharing.sharding_hash), _ArrayRow())
        row.kind_hash.add(0, host.kind, label.combine(hash_bytes(host.kind.encode())))
        for box in dict.fromkeys((*host.part_hashes, *host.parts)):
            self._add_hash(row.find_box_hash(box), 0, host, box, label)

    def has_inputs(self) -> bool:
        """Return whether any launch input awaits comparison when the cell ends."""
        return any(name.startswith(LAUNCH_INPUT) for _, _, name in self._rows)

    def has_arrays_to_check(self) -> bool:
        """Return whether a live array is unhashed or has partially shared boxes."""
        return bool(self._unhashed or self._partially_shared)

    def track_inputs(self, inputs: Sequence[Any]) -> Callable[[Sequence[object]], None] | None:
        """Return a function that attaches inputs' shared boxes to outputs, or None.

        For programs without a collective: the boxes are compared when a collective takes an array computed from them.
        """
        if not (self.is_active and self._partially_shared):
            return None
        boxes = merge_boxes(dict.fromkeys(host for array in inputs for host in getattr(array, BOXES, ())))
        self._partially_shared.update(boxes)
        return functools.partial(_attach_boxes, boxes) if boxes else None

    def undo_count(self, participants: tuple[int, ...], *, is_agreed: bool) -> None:
        """Undo the count of the last recorded launch, which was refused."""
        if self._is_counted(is_agreed=is_agreed) and self._launch_counts.get(participants):
            self._launch_counts[participants] -= 1

    def _next_number(self, participants: tuple[int, ...], *, is_agreed: bool) -> int:
        if not self._is_counted(is_agreed=is_agreed):
            return 0
        number = self._launch_counts[participants] = self._launch_counts.get(participants, 0) + 1
        return number

    def _is_counted(self, *, is_agreed: bool) -> bool:
        # If the ranks do not agree on each launch, other threads run at their own pace.
        return self.is_active and (is_agreed or threading.current_thread() is self._main)

    # -- the end of the cell

    def take_notes(self) -> list[str]:
        """Return notes on what was not fully compared, and forget them."""
        notes = [f"{self._recording_error}; please report it"] if self._recording_error else []
        if self._is_partial:
            notes += [
                "some inputs of launches were not compared, because they were donated or still being computed at the end of the cell"
            ]
        if self._sampled_nbytes:
            size = f"{self._sampled_nbytes / 2**20:.1f} MiB"
            notes += [
                f"replicas in device memory (up to {size}) were compared only in part; %mhjax check NAME compares all of them"
            ]
        self._sampled_nbytes, self._recording_error, self._is_partial = 0, "", False
        return notes

    def end_cell(self) -> list[HostDataRow]:
        """Return the rows, and start over for the next cell.

        Call it once all launches have ended or were given up. Arrays made from now on belong to the next cell.
        """
        with self._lock:
            rows, deferred = self._rows, self._deferred
            self._start_over()
            self._seq, self._cell_ranks = self._seq + 1, None
        deferred.add_remaining()
        self._is_partial = self._is_partial or deferred.is_partial
        made = [
            HostDataRow(
                line,
                ranks,
                name,
                row.kind_hash.summarise(),
                {text: sums.summarise() for text, sums in row.box_hashes.items()},
            )
            for (line, ranks, name), row in rows.items()
        ]
        return [*made, *_list_different_copies(rows)]

    def _read(self, value: Any, dtype: Any) -> ArrayBytes:
        reading = self._read_value(value, dtype)
        if reading.is_sampled:
            self._sampled_nbytes = max(self._sampled_nbytes, int(getattr(value, "nbytes", 0)))
        return reading


def _parts(sharing: SharedBoxes, source: ShardSource, *, is_from_one: bool) -> dict[str, Any]:
    """Return what this rank got for each box that is compared.

    Args:
        is_from_one: all of it was cut out of one value, so that the copies of a box are equal.
    """
    parts = {text: source(*place) for text, place in sharing.boxes.items()}
    for text, places in () if is_from_one else sharing.copies.items():
        copies = _list_distinct([source(*place) for place in places])
        if len(copies) > 1:
            parts[text] = Copies(copies)
    # The same as for a value that is laid out.
    return {"": next(iter(parts.values()))} if sharing.is_replicated and len(sharing.boxes) == 1 else parts


def _list_distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values without those in the same memory as earlier ones."""
    distinct: dict[tuple[Any, ...], Any] = {}
    for value in values:
        distinct.setdefault(_name_memory(value), value)
    return [*distinct.values()]


def _name_memory(value: Any) -> tuple[Any, ...]:
    if type(value) is np.ndarray:
        return value.__array_interface__["data"][0], value.shape, value.strides, value.dtype
    return (id(value),)


def _list_different_copies(rows: Mapping[tuple[Any, ...], _ArrayRow]) -> list[HostDataRow]:
    """Return a row for each line where this rank's copies differ."""
    found = []
    for (line, ranks, name), row in rows.items():
        different = {box: sums.different_copies for box, sums in row.box_hashes.items() if sums.different_copies}
        if different and not name.startswith(LAUNCH_INPUT):
            place = DIFFERENT_COPIES + (WHOLE_ARRAY if WHOLE_ARRAY in different else name)
            found.append(
                HostDataRow(
                    line, ranks, place, row.kind_hash.summarise(), _summarise_copies(*next(iter(different.values())))
                )
            )
    return found


def _summarise_copies(*hashes: int) -> dict[str, HashSummary]:
    texts = [_NO_LABEL.format_hash(each) for each in hashes]
    return {text: HashSummary(1, "", "", "", text, sample_of(each)) for text, each in zip(texts, hashes, strict=True)}


def _attach_boxes(boxes: tuple[HostArray, ...], outputs: Sequence[Any]) -> None:
    for output in outputs:
        setattr(output, BOXES, boxes)


def merge_boxes(several: Iterable[HostArray]) -> tuple[HostArray, ...]:
    """Merge contents of equal sharing, to compare arrays computed from them.

    Merged box by box, equal hashes once: ranks that hold a box have one hash for it, whatever other boxes each of them holds.
    """
    by_sharing: dict[tuple[Any, ...], list[HostArray]] = {}
    for host in several:
        by_sharing.setdefault((host.sharing.ranks, host.sharing.sharding_hash), []).append(host)
    return tuple(same[0] if len(same) == 1 else _merge(same) for same in by_sharing.values())


def _merge(same: Sequence[HostArray]) -> HostArray:
    words: dict[str, dict[int, None]] = {}
    for host in same:
        for text, word in host.part_hashes.items():
            words.setdefault(text, {})[word] = None
    joined = HostArray(same[0].kind, same[0].dtype, {}, same[0].sharing)
    # A part that was deleted before it was hashed is not compared.
    unknown = {text for host in same for text in host.parts}
    joined.part_hashes = {
        text: word if not rest else hash_bytes(repr([word, *rest]).encode())
        for text, (word, *rest) in words.items()
        if text not in unknown
    }
    return joined
