"""Rank side of pull and push, in chunks: the bytes that are kept for a transfer, and those that have arrived.

Pull: `hold` describes values and keeps their bytes, `fetch` sends a chunk, `release` frees them.
Push: `receive` allocates memory, `fill` writes a chunk, `stage` builds the values, `commit` binds them; no name changes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from mhnb.core.exchange.boxes import whole_box
from mhnb.core.exchange.pack import NotHere, pack, unpack
from mhnb.core.exchange.transfer import INLINE_NBYTES, ArrayRow, HeldBox, Owners
from mhnb.rank.asks.transfer_arrays import (
    dtype_from_name,
    dtype_name,
    is_plain,
    new_bytes,
    order_of,
    raw_bytes,
    stored_form,
    view_as,
)
from mhnb.rank.asks.transfer_jax import Unpullable, check_readable, digest_of, jax_row
from mhnb.rank.asks.variables import shorten
from mhnb.rank.guard.provenance import provenance_of

__all__ = ["Depot", "Reply"]

Reply = tuple[Any, tuple[memoryview, ...]]
"""What a request handler returns: a value for JSON, and payload."""


@dataclass(slots=True)
class _Parcel:
    """The bytes that one pull keeps on this rank."""

    parts: list[memoryview] = field(default_factory=list)
    tables: dict[Owners, int] = field(default_factory=dict)

    def add(self, data: memoryview) -> int:
        self.parts.append(data)
        return len(self.parts) - 1

    def table(self, owners: Owners | None) -> int | None:
        return None if owners is None else self.tables.setdefault(owners, len(self.tables))


@dataclass(slots=True)
class _Arrival:
    """The bytes and values that one push has brought to this rank so far."""

    parts: list[memoryview]
    staged: dict[str, Any] = field(default_factory=dict)


class Depot:
    """The transfers in progress on one rank."""

    def __init__(self) -> None:
        self._parcels: dict[str, _Parcel] = {}
        self._arrivals: dict[str, _Arrival] = {}

    def hold(self, transfer: str, values: Mapping[str, Any], *, digest_local: bool) -> Reply:
        """Describe values and keep their bytes. Small values are sent with the reply and are not kept."""
        parcel = _Parcel()
        rows = [_describe(name, value, parcel, digest_local=digest_local) for name, value in values.items()]
        sizes = [part.nbytes for part in parcel.parts]
        inline = sum(sizes) <= INLINE_NBYTES
        if not inline:
            self._parcels[transfer] = parcel
        answer = {"values": rows, "tables": list(parcel.tables), "parts": sizes, "inline": inline}
        return answer, tuple(parcel.parts) if inline else ()

    def fetch(self, transfer: str, part: int, start: int, stop: int) -> Reply:
        """Send the bytes `start:stop` of a part."""
        return None, (self._parcels[transfer].parts[part][start:stop],)

    def release(self, transfers: Iterable[str]) -> Reply:
        """Free what transfers keep here or have brought; unknown transfers are ignored."""
        for transfer in transfers:
            self._parcels.pop(transfer, None)
            self._arrivals.pop(transfer, None)
        return None, ()

    def keep_only(self, transfers: Iterable[str]) -> None:
        """Free every transfer except these, because a notebook that disconnected does not release its own."""
        keep = set(transfers)
        self.release([name for name in (*self._parcels, *self._arrivals) if name not in keep])

    def receive(self, transfer: str, sizes: Iterable[int]) -> Reply:
        """Allocate memory for parts of these sizes in bytes."""
        self._arrivals[transfer] = _Arrival([new_bytes(size) for size in sizes])
        return None, ()

    def fill(self, transfer: str, part: int, start: int, data: Any) -> Reply:
        """Write bytes into a part, from `start` on."""
        self._arrivals[transfer].parts[part][start : start + len(data)] = data
        return None, ()

    def stage(self, transfer: str, values: Iterable[dict[str, Any]], namespace: dict[str, Any]) -> Reply:
        """Build the values from the bytes that arrived, without binding them. Return failures as `[name, text]`."""
        arrival = self._arrivals[transfer]
        failed: list[list[str]] = []
        for value in values:
            try:
                arrival.staged[value["name"]] = _restore(value, arrival.parts, namespace)
            except NotHere as error:
                failed.append([value["name"], f"needs {error.module}.{error.qualname}: {error}"])
            except Exception as error:  # noqa: BLE001 - becomes the reply
                # Unpickling runs the value's own code, which may raise anything; the reply reports it to the notebook.
                failed.append([value["name"], f"cannot be made: {type(error).__name__}: {error}"])
        return failed, ()

    def commit(self, transfer: str, namespace: dict[str, Any]) -> Reply:
        """Bind the values that were built."""
        namespace.update(self._arrivals.pop(transfer).staged)
        return None, ()


def _describe(name: str, value: object, parcel: _Parcel, *, digest_local: bool) -> dict[str, Any]:
    try:
        return {"name": name, **_pack_value(value, parcel, digest_local=digest_local), "short": shorten(value)}
    except Unpullable as error:
        return {"name": name, "code": error.code, "text": error.text}
    except Exception as error:  # noqa: BLE001 - becomes the reply
        # Pickling runs the value's own code, which may raise anything; the reply reports it to the notebook.
        text = f"cannot be sent: {type(error).__name__}: {error}. Pull what it is made of: arrays, numbers, containers"
        return {"name": name, "code": "unpicklable", "text": text}


def _pack_value(value: object, parcel: _Parcel, *, digest_local: bool) -> dict[str, Any]:
    leaves = _Leaves(parcel, digest_local=digest_local)
    packed = pack(value, leaves.claim)
    digests = [digest_of(packed.skeleton), *(digest_of(buffer) for buffer in packed.buffers)]
    return {
        "digest": " ".join(digests),
        "skeleton": parcel.add(packed.skeleton),
        "buffers": [parcel.add(buffer) for buffer in packed.buffers],
        "arrays": [row.to_wire(parcel.table(row.owners)) for row in leaves.rows],
    }


class _Leaves:
    """The arrays of one value, numbered in the order in which pickle reaches them."""

    def __init__(self, parcel: _Parcel, *, digest_local: bool) -> None:
        self._parcel, self._digest_local = parcel, digest_local
        self.rows: list[ArrayRow] = []
        self._seen: dict[int, tuple[int, object]] = {}
        self._kinds: dict[type, str | None] = {}

    def claim(self, obj: object) -> int | None:
        """Return the number of an array, or None. It checks the type first: it is called for every object of a value."""
        kind = self._kinds.get(type(obj), "")
        if kind == "":
            kind = self._kinds[type(obj)] = self._kind(obj)
        if kind is None:
            return None
        if (known := self._seen.get(id(obj))) is not None:
            return known[0]
        if kind == "numpy" and not is_plain(obj):
            return None
        self.rows.append(self._jax(obj) if kind == "jax" else self._numpy(obj))
        # Keep the object with its number: otherwise another object could get its id.
        self._seen[id(obj)] = (len(self.rows) - 1, obj)
        return len(self.rows) - 1

    def _kind(self, obj: object) -> str | None:
        if isinstance(obj, jax.Array):
            return "jax"
        return "numpy" if type(obj) is np.ndarray else None

    def _jax(self, array: Any) -> ArrayRow:
        check_readable(array)
        return jax_row(array, self._parcel.add, provenance_of, digest_local=self._digest_local)

    def _numpy(self, array: Any) -> ArrayRow:
        data = raw_bytes(stored_form(array))
        digest = digest_of(data) if self._digest_local else ""
        held = HeldBox(whole_box(stored_form(array).shape), -1, self._parcel.add(data), digest)
        return ArrayRow(array.shape, dtype_name(array.dtype), order_of(array), (held,))


def _restore(value: dict[str, Any], parts: list[memoryview], namespace: dict[str, Any]) -> Any:
    arrays = [
        view_as(parts[part], shape, dtype_from_name(dtype), order) for part, shape, dtype, order in value["arrays"]
    ]
    return unpack(parts[value["skeleton"]], arrays, [parts[part] for part in value["buffers"]], namespace)
