"""The journal's record types: one JSON line per action on a cluster.

This module decides what is kept of a cell. Storing the lines and replaying them are handled elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mhnb.core.cell_name import NO_PLACE, CellPlace, format_cell_name
from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.guard.launches import has_collectives
from mhnb.core.ranks import format_ranks
from mhnb.core.typed_json import convert, to_json_types
from mhnb.errors import InvalidRequest
from mhnb.types import ClusterState, Outcome

MAX_TRACE_ROWS = 32
"""Number of runs of equal launches that are kept as text; the hash covers all runs."""

TraceRow: TypeAlias = tuple[str, str, str, int | None, int]
"""A run of equal launches: fingerprint, name, participants such as `0-3`, line of the cell or None, count."""

_TraceKey: TypeAlias = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class LaunchTrace:
    """What ranks with the same launch sequence launched in a cell."""

    ranks: tuple[int, ...]
    hash: str
    """Over fingerprint, participants and count of every launch that the guard compares, in order."""
    count: int
    """Launches in total."""
    rows: tuple[TraceRow, ...]
    """The first runs, as text; adjacent launches of the same program are one run."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A line of the journal, with its fields in the line's order."""

    @property
    def kind(self) -> str:
        """The word by which a line says what it records."""
        return str(self.__struct_config__.tag)


class StartRecord(_Record, frozen=True, tag="start"):
    """The ranks of a generation are ready."""

    generation: int
    shape: str
    """As text, such as `4 hosts x 2 devices`; a replay needs the same."""
    jax: str = ""
    after: int = 0
    """The generation that this one replaced, in the same journal; 0 for none."""
    when: float = 0.0
    """Unix time in seconds, here as in every record."""
    is_restart: bool = False
    """Whether it continues that generation; a start begins afresh."""


class CellRecord(_Record, frozen=True, tag="cell"):
    """A cell that has ended."""

    generation: int
    seq: int
    source: str
    ranks: tuple[int, ...] | None = None
    """As requested; None for all."""
    guard: str = "lockstep"
    timeout_s: float | None = None
    outcomes: Mapping[int, Outcome] = msgspec.field(default_factory=dict)
    """By rank, for the ranks that were to run it."""
    errors: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Names of the exceptions that ranks raised."""
    launches: tuple[LaunchTrace, ...] | None = ()
    """None if nothing was recorded: the guard was off or unavailable."""
    how: str = ""
    """"" normally; "interrupted" or "timeout"."""
    state: ClusterState = "clean"
    """The cluster state after it ended."""
    wall_s: float = 0.0
    replayed: bool = False
    when: float = 0.0
    execution_count: int | None = None
    """The number that the notebook showed beside it; None if it showed none."""
    first_line: int = 1
    """The number that the notebook gave the first line of the source."""
    kernel: str = ""
    """Identifies the notebook's kernel, in which alone that number has a meaning."""
    is_post_mortem: bool = False
    """Whether it only inspected what an earlier cell left; it is never run again."""

    @property
    def place(self) -> CellPlace:
        """Where the notebook showed it."""
        return CellPlace(self.execution_count, self.first_line)

    @property
    def name(self) -> str:
        """The cell's name in its own kernel; for others, see `forget_other_kernels`."""
        return format_cell_name(self.seq, self.execution_count)


class PushRecord(_Record, frozen=True, tag="push"):
    """Values of the notebook were bound on ranks."""

    generation: int
    names: tuple[str, ...]
    ranks: tuple[int, ...] | None
    values: tuple[dict[str, Any], ...] = ()
    """How each value is built from the parts, as sent to the ranks."""
    sizes: tuple[int, ...] = ()
    """Bytes of each part, in the order in which the file holds them."""
    file: str = ""
    """File beside the journal; empty if the bytes were not kept."""
    why_not: str = ""
    """Why the bytes were not kept."""
    replayed: bool = False
    when: float = 0.0


class AcceptRecord(_Record, frozen=True, tag="accept"):
    """The user accepted a split or tainted cluster."""

    generation: int
    state: ClusterState
    """The state before."""
    when: float = 0.0


class ReplayRecord(_Record, frozen=True, tag="replay"):
    """A replay into this generation has ended."""

    generation: int
    source_generation: int
    """The generation whose cells ran again."""
    to: int | None
    complete: bool
    """Whether it reached the requested end."""
    told: str = ""
    """The message to the user if it stopped earlier."""
    when: float = 0.0


Record: TypeAlias = StartRecord | CellRecord | PushRecord | AcceptRecord | ReplayRecord

_PLACE_FIELDS = ("execution_count", "first_line", "kernel")
"""Fields that a line has only for a cell of a notebook."""

_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


# -- what a cell launched


def trace_launches(rows_by_rank: Mapping[int, Sequence[LaunchRow]]) -> tuple[LaunchTrace, ...]:
    """Summarise each rank's communicating launches; ranks with equal sequences share one.

    Line numbers are not compared. Ranks without such launches are left out.

    >>> two, one, other = (LaunchRow("a", "f", (0, 1), line, count) for line, count in ((1, 2), (1, 1), (2, 1)))
    >>> trace_launches({0: [two], 1: [one, other]})[0].ranks
    (0, 1)
    """
    if not any(rows_by_rank.values()):
        return ()
    sequences: dict[_TraceKey, tuple[list[int], list[TraceRow]]] = {}
    merged: list[tuple[Sequence[LaunchRow], _TraceKey]] = []
    for rank in sorted(rows_by_rank):
        rows = rows_by_rank[rank]
        # Most ranks have the same rows, and comparing those is much faster than merging them again.
        key = next((known for seen, known in merged if seen == rows), None)
        if key is None:
            runs = _merge_runs(rows)
            key = tuple((fingerprint, participants, count) for fingerprint, _, participants, _, count in runs)
            merged.append((rows, key))
            sequences.setdefault(key, ([], runs))
        sequences[key][0].append(rank)
    return tuple(
        LaunchTrace(tuple(ranks), _hash(compared), sum(run[2] for run in compared), tuple(runs[:MAX_TRACE_ROWS]))
        for compared, (ranks, runs) in sequences.items()
        if runs
    )


def _merge_runs(rows: Iterable[LaunchRow]) -> list[TraceRow]:
    """Merge adjacent rows of one program, which ranks split by line."""
    runs: list[TraceRow] = []
    specs: dict[tuple[int, ...], str] = {}
    for row in rows:
        if not has_collectives(row.fingerprint):
            continue
        key = row.participants
        spec = specs[key] if key in specs else specs.setdefault(key, format_ranks(key))
        if runs and runs[-1][0] == row.fingerprint and runs[-1][2] == spec:
            runs[-1] = (*runs[-1][:4], runs[-1][4] + row.count)
        else:
            runs.append((row.fingerprint, row.name, spec, row.line, row.count))
    return runs


def _hash(compared: object) -> str:
    return hashlib.blake2b(_encode_json(compared).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# -- JSON lines


def format_record(record: Record, *, when: float | None = None) -> bytes:
    """Format a record as one line, including its line end.

    Args:
        when: Unix time in seconds, in place of the record's own.

    >>> format_record(AcceptRecord(generation=1, state="split"), when=5.0).strip()
    b'{"kind":"accept","generation":1,"state":"split","when":5.0}'
    """
    body = msgspec.structs.asdict(record)
    if when is not None:
        body["when"] = when
    if isinstance(record, CellRecord | PushRecord):
        body["ranks"] = None if record.ranks is None else format_ranks(record.ranks)
    if isinstance(record, StartRecord) and not record.is_restart:
        del body["is_restart"]
    if isinstance(record, CellRecord):
        if not record.is_post_mortem:
            del body["is_post_mortem"]
        if record.place == NO_PLACE:
            for name in _PLACE_FIELDS:
                del body[name]
        body["outcomes"], body["errors"] = _group_by_value(record.outcomes), _group_by_value(record.errors)
        if record.launches is not None:
            rows = [_TraceRow(format_ranks(t.ranks), t.hash, t.count, t.rows) for t in record.launches]
            body["launches"] = to_json_types(rows)
    return _encode_json({"kind": record.kind, **body}).encode("utf-8", "surrogatepass") + b"\n"


class _TraceRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A `LaunchTrace` in a line."""

    ranks: str
    hash: str
    count: int
    rows: tuple[TraceRow, ...]


class _PushRanks(msgspec.Struct):
    """The shortened field of a push line: ranks as text."""

    ranks: str | None


class _CellRanks(msgspec.Struct):
    """The shortened fields of a cell line: ranks as text, by value."""

    ranks: str | None
    outcomes: dict[str, str]
    errors: dict[str, str]
    launches: tuple[_TraceRow, ...] | None


def parse_record(line: bytes) -> Record:
    """Parse a line.

    Raises:
        InvalidRequest: the line is not a record: cut short, or of another version.

    >>> parse_record(b'{"kind":"accept","generation":1,"state":"split","when":5.0}')
    AcceptRecord(generation=1, state='split', when=5.0)
    """
    try:
        body = json.loads(line.decode("utf-8", "surrogatepass"))
        match body:
            case {"kind": "push"}:
                body["ranks"] = _parse_optional_ranks(convert(body, _PushRanks).ranks)
            case {"kind": "cell"}:
                body |= _expand_cell(convert(body, _CellRanks))
        record: Record = convert(body, Record)  # type: ignore[arg-type]  # a union
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"a line of the journal cannot be read ({error!r:.200}): {line[:120]!r}") from error
    return record


def is_start_record(line: bytes) -> bool:
    """Return whether a line is a start record, without parsing it.

    >>> is_start_record(format_record(StartRecord(1, "2 x 1"))), is_start_record(format_record(AcceptRecord(1, "split")))
    (True, False)
    """
    return line.startswith(b'{"kind":"start",')


def parse_records(text: bytes) -> tuple[list[Record], list[str]]:
    """Parse a whole journal.

    Returns:
        The records, and a sentence for each line that is not a record: a full disk cuts a line short.

    >>> records, faults = parse_records(format_record(AcceptRecord(1, "split")) + b'{"kind":')
    >>> len(records), len(faults)
    (1, 1)
    """
    records: list[Record] = []
    faults: list[str] = []
    for line in filter(None, text.split(b"\n")):
        try:
            records.append(parse_record(line))
        except InvalidRequest as error:
            faults.append(str(error))
    return records, faults


def forget_other_kernels(record: Record, kernel: str) -> Record:
    """Return a record without a cell number that another kernel showed.

    >>> forget_other_kernels(CellRecord(1, 12, "f()", execution_count=7, kernel="a"), "b").name
    'cell 12'
    """
    if not isinstance(record, CellRecord) or record.execution_count is None or record.kernel == kernel:
        return record
    return msgspec.structs.replace(record, execution_count=None)


def _group_by_value(by_rank: Mapping[int, str]) -> dict[str, str]:
    """Group ranks by value; all ranks with one value are one entry."""
    ranks: dict[str, list[int]] = {}
    for rank, word in by_rank.items():
        ranks.setdefault(word, []).append(rank)
    return {word: format_ranks(same) for word, same in ranks.items()}


def _expand_cell(cell: _CellRanks) -> dict[str, Any]:
    """Return the `CellRecord` fields that a line holds in shorter form."""
    return {
        "ranks": _parse_optional_ranks(cell.ranks),
        "outcomes": _ungroup(cell.outcomes),
        "errors": _ungroup(cell.errors),
        "launches": cell.launches
        and [msgspec.structs.asdict(row) | {"ranks": _parse_ranks(row.ranks)} for row in cell.launches],
    }


def _ungroup(grouped: Mapping[str, str]) -> dict[int, str]:
    return dict(sorted((rank, word) for word, spec in grouped.items() for rank in _parse_ranks(spec)))


def _parse_optional_ranks(spec: str | None) -> tuple[int, ...] | None:
    return None if spec is None else _parse_ranks(spec)


_MAX_RANKS = 1 << 20


def _parse_ranks(spec: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in spec.split(","):
        low, _, high = part.partition("-")
        if int(high or low) >= _MAX_RANKS:
            raise ValueError(f"rank {high or low} is out of range"[:80])
        ranks += range(int(low), int(high or low) + 1)
    return tuple(ranks)
