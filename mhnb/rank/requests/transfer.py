"""Rank side of pull and push: keep and receive chunks of bytes.

Pull: `describe` describes values and keeps their bytes, `fetch` sends a chunk, `release` frees them.
Push: `allocate` allocates memory, `write` writes a chunk, `build` builds the values, `commit` binds them; no name changes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from mhnb.adapters.jax_arrays import TransferError, check_readable, describe_array, digest_of
from mhnb.adapters.numpy_arrays import (
    dtype_from_name,
    dtype_name,
    is_plain_array,
    memory_layout,
    memory_order,
    new_bytes,
    raw_bytes,
    view_as,
)
from mhnb.adapters.variables import describe_briefly, describe_error
from mhnb.core.pickling import MissingDefinition, dump_value, load_value
from mhnb.core.transfer import (
    INLINE_NBYTES,
    ArrayDescription,
    HeldValue,
    HeldValues,
    LocalBox,
    Owners,
    RefusedValue,
)
from mhnb.rank.guard.provenance import read_provenance
from mhnb.sharding.boxes import full_box

HandlerResult = tuple[Any, tuple[memoryview, ...]]
"""What a request handler returns: a value for JSON, and payload."""


@dataclass(slots=True)
class _Outgoing:
    """The bytes that one pull keeps on this rank."""

    parts: list[memoryview] = field(default_factory=list)
    tables: dict[Owners, int] = field(default_factory=dict)

    def add(self, data: memoryview) -> int:
        self.parts.append(data)
        return len(self.parts) - 1

    def table_index(self, owners: Owners | None) -> int | None:
        return None if owners is None else self.tables.setdefault(owners, len(self.tables))


@dataclass(slots=True)
class _Incoming:
    """The bytes and values that one push has brought so far."""

    parts: list[memoryview]
    built: dict[str, Any] = field(default_factory=dict)


class TransferStore:
    """The transfers in progress on one rank."""

    def __init__(self) -> None:
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Incoming] = {}

    def describe(
        self, transfer: str, values: Mapping[str, Any], *, digest_local: bool
    ) -> tuple[HeldValues, tuple[memoryview, ...]]:
        """Describe values and keep their bytes, or send them if small."""
        outgoing = _Outgoing()
        rows = tuple(_describe(name, value, outgoing, digest_local=digest_local) for name, value in values.items())
        sizes = tuple(part.nbytes for part in outgoing.parts)
        inline = sum(sizes) <= INLINE_NBYTES
        if not inline:
            self._outgoing[transfer] = outgoing
        return HeldValues(rows, tuple(outgoing.tables), sizes, inline), tuple(outgoing.parts) if inline else ()

    def fetch(self, transfer: str, part: int, start: int, stop: int) -> HandlerResult:
        """Send the bytes `start:stop` of a part."""
        return None, (self._outgoing[transfer].parts[part][start:stop],)

    def release(self, transfers: Iterable[str]) -> HandlerResult:
        """Free what transfers keep here or have brought; unknown transfers are ignored."""
        for transfer in transfers:
            self._outgoing.pop(transfer, None)
            self._incoming.pop(transfer, None)
        return None, ()

    def release_others(self, transfers: Iterable[str]) -> None:
        """Free all transfers but these, because disconnected notebooks release none."""
        keep = set(transfers)
        self.release([name for name in (*self._outgoing, *self._incoming) if name not in keep])

    def allocate(self, transfer: str, sizes: Iterable[int]) -> HandlerResult:
        """Allocate memory for parts with these sizes in bytes."""
        self._incoming[transfer] = _Incoming([new_bytes(size) for size in sizes])
        return None, ()

    def write(self, transfer: str, part: int, start: int, data: Any) -> HandlerResult:
        """Write bytes into a part, from `start` on."""
        self._incoming[transfer].parts[part][start : start + len(data)] = data
        return None, ()

    def build(self, transfer: str, values: Iterable[dict[str, Any]], namespace: dict[str, Any]) -> HandlerResult:
        """Build values from arrived bytes, unbound; return failures as `[name, text]`."""
        incoming = self._incoming[transfer]
        failed: list[list[str]] = []
        for value in values:
            try:
                incoming.built[value["name"]] = _restore(value, incoming.parts, namespace)
            except MissingDefinition as error:
                failed.append([value["name"], f"needs {error.module}.{error.qualname}: {error}"])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the reply
                # Unpickling runs the value's own code, which may raise anything; the reply reports it to the notebook.
                failed.append([value["name"], f"cannot be rebuilt: {describe_error(error)}"])
        return failed, ()

    def commit(self, transfer: str, namespace: dict[str, Any]) -> HandlerResult:
        """Bind the values that were built."""
        namespace.update(self._incoming.pop(transfer).built)
        return None, ()


def _describe(name: str, value: object, outgoing: _Outgoing, *, digest_local: bool) -> HeldValue | RefusedValue:
    try:
        return _pack_value(name, value, outgoing, digest_local=digest_local)
    except TransferError as error:
        return RefusedValue(name, error.code, error.text)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the reply
        # Pickling runs the value's own code, which may raise anything; the reply reports it to the notebook.
        text = f"cannot be sent: {describe_error(error)}. Pull its parts instead: arrays, numbers, containers"
        return RefusedValue(name, "unpicklable", text)


def _pack_value(name: str, value: object, outgoing: _Outgoing, *, digest_local: bool) -> HeldValue:
    collector = _ArrayCollector(outgoing, digest_local=digest_local)
    packed = dump_value(value, collector.number_of)
    digests = [digest_of(packed.skeleton), *(digest_of(buffer) for buffer in packed.buffers)]
    return HeldValue(
        name,
        summary=describe_briefly(value),
        skeleton=outgoing.add(packed.skeleton),
        buffers=tuple(outgoing.add(buffer) for buffer in packed.buffers),
        digest=" ".join(digests),
        arrays=tuple(row.to_row(outgoing.table_index(row.owners)) for row in collector.rows),
    )


class _ArrayCollector:
    """The arrays of one value, numbered in pickle's order."""

    def __init__(self, outgoing: _Outgoing, *, digest_local: bool) -> None:
        self._outgoing, self._digest_local = outgoing, digest_local
        self.rows: list[ArrayDescription] = []
        self._seen: dict[int, tuple[int, object]] = {}
        self._kinds: dict[type, str | None] = {}

    def number_of(self, obj: object) -> int | None:
        """Return the number of an array; quickly None for other objects."""
        kind = self._kinds.get(type(obj), "")
        if kind == "":
            kind = self._kinds[type(obj)] = self._find_kind(obj)
        if kind is None:
            return None
        if (known := self._seen.get(id(obj))) is not None:
            return known[0]
        if kind == "numpy" and not is_plain_array(obj):
            return None
        self.rows.append(self._describe_jax(obj) if kind == "jax" else self._describe_numpy(obj))
        # Keep the object with its number: otherwise another object could get its id.
        self._seen[id(obj)] = (len(self.rows) - 1, obj)
        return len(self.rows) - 1

    def _find_kind(self, obj: object) -> str | None:
        if isinstance(obj, jax.Array):
            return "jax"
        return "numpy" if type(obj) is np.ndarray else None

    def _describe_jax(self, array: Any) -> ArrayDescription:
        check_readable(array)
        return describe_array(array, self._outgoing.add, read_provenance, digest_local=self._digest_local)

    def _describe_numpy(self, array: Any) -> ArrayDescription:
        data = raw_bytes(memory_layout(array))
        digest = digest_of(data) if self._digest_local else ""
        held = LocalBox(full_box(memory_layout(array).shape), -1, self._outgoing.add(data), digest)
        return ArrayDescription(array.shape, dtype_name(array.dtype), memory_order(array), (held,))


def _restore(value: dict[str, Any], parts: list[memoryview], namespace: dict[str, Any]) -> Any:
    arrays = [
        view_as(parts[part], shape, dtype_from_name(dtype), order) for part, shape, dtype, order in value["arrays"]
    ]
    return load_value(parts[value["skeleton"]], arrays, [parts[part] for part in value["buffers"]], namespace)
