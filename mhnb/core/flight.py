"""The flight recorder's file and report: the last events of each rank.

Each rank writes its events into a ring in a memory-mapped file. The operating system keeps what was written when the process is
killed. This module knows the file's layout, and compares the ranks: where they first differed, and what each did last.

A file has a header, JSON padded with spaces; a table of sets of ranks, one a line; the beginning of the newest cell; and a ring of
records of fixed size. A record begins and ends with the number of its event, from 1. The two differ if the process was killed in the
middle of the write: that record is left out.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from mhnb.core.ranks import group_ranks, parse_ranks
from mhnb.core.stragglers import Arrival, Stragglers, list_stragglers, measure_stragglers
from mhnb.core.typed_json import decode_json, encode_json, to_json_types

EventKind: TypeAlias = Literal["cell", "proposal", "agreement", "refusal", "launch", "compilation", "interrupt", "end"]
"""What a rank records: the beginning of a cell; a launch that it proposes to the other ranks, their agreement on it or its refusal,
and the launch itself; a program that it compiled; an interrupt that its code received; the end of the cell.
"""
KINDS: tuple[EventKind, ...] = get_args(EventKind)

CAPACITY = 4096
"""How many events a rank keeps."""
RECORD = struct.Struct("<QqBBHIIIQ56sQ")
"""Event number, monotonic time in ns, kind, number of bytes of the text, number of the participants in the table (0: none), cell,
line (0: none), number of the launch (0: none), fingerprint (0: none), text, event number once more.
"""
TEXT_NBYTES = 56
HEADER_NBYTES = SETS_START = 4096
NEWEST_CELL_START = 16384
RING_START = 20480
SETS_NBYTES = NEWEST_CELL_START - SETS_START
FILE_NBYTES = RING_START + CAPACITY * RECORD.size
NO_ROOM_FOR_SET = 0xFFFF
"""Stands for participants for which the table had no room: such a launch is not compared."""
MAX_RANKS = 1 << 16
_MAX_INT64 = _NEVER = (1 << 63) - 1
_NS = 1e-9


class FlightHeader(Struct, frozen=True, forbid_unknown_fields=True):
    """The header of a rank's file."""

    rank: int
    generation: int
    process_count: int
    pid: int
    host: str
    """The name of its machine."""
    clock: str
    """Identifies the monotonic clock: two processes with the same value share it."""
    wall_ns: int
    """The system time, in ns since 1970, at `monotonic_ns`."""
    monotonic_ns: int
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ValueError(f"version {self.version} of the format; this mhnb reads 1")
        if not 0 <= self.rank < self.process_count <= MAX_RANKS:
            raise ValueError(f"rank {self.rank} of {self.process_count}")
        if not (0 <= self.wall_ns <= _MAX_INT64 and 0 <= self.monotonic_ns <= _MAX_INT64):
            raise ValueError(f"times {self.wall_ns} and {self.monotonic_ns}")


class FlightEvent(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One event of a rank."""

    number: int
    """Among the events of its rank, from 1."""
    time_ns: int
    """By the monotonic clock of its host."""
    kind: EventKind
    cell: int
    """The cell's number in the order of execution, as in a journal; 0 between the start and the first cell."""
    line: int | None = None
    """The cell's line, 1-based."""
    launch: int | None = None
    """The number of the launch among those of its participants in the cell, from 1."""
    fingerprint: int = 0
    """Identifies the program; 0 for none."""
    program: str = ""
    """The program's name, at most 56 bytes of it; of an `end` the outcome, and of a `cell` its name and its guard."""
    participants: str = ""
    """The ranks that take part, such as `0-3`; empty for none, and where the file had no room for them."""

    def __post_init__(self) -> None:
        if len(self.program) > TEXT_NBYTES or not self.program.isprintable():
            raise ValueError(f"a program's name that no rank records: {self.program!r:.80}")


class RankFlight(Struct, frozen=True):
    """The events of one rank."""

    rank: int
    header: FlightHeader | None = None
    """None if there is no file, or it cannot be read."""
    events: tuple[FlightEvent, ...] = ()
    """In their order; the oldest ones have been overwritten if `dropped_count` is not 0."""
    dropped_count: int = 0
    is_torn: bool = False
    """Whether a record was only partly written: the rank was killed while it wrote."""
    problem: str = ""
    """Why there are no events, or what else is not right."""
    newest_cell: FlightEvent | None = None
    """The beginning of the newest cell, which a long cell has overwritten in the ring."""


# -- write


def pack_header(header: FlightHeader) -> bytes:
    """Pack a header, padded to its page."""
    return encode_json(header).encode().ljust(HEADER_NBYTES)


# -- read


def parse_flight(rank: int, data: bytes) -> RankFlight:
    """Read a rank's file, as far as it was written.

    Args:
        rank: the rank whose file it should be.
        data: the whole file, or its beginning.
    """
    try:
        header = decode_json(bytes(data[:HEADER_NBYTES]).rstrip(b" \0"), FlightHeader)
        if header.rank != rank:
            raise ValueError(f"it is of rank {header.rank}")
        sets = _parse_sets(bytes(data[SETS_START:NEWEST_CELL_START]), header.process_count)
    except ValueError as error:
        return RankFlight(rank, problem=f"its file cannot be read: {error}")
    body = memoryview(data)[RING_START:]
    body = body[: len(body) - len(body) % RECORD.size]
    events: list[FlightEvent] = []
    is_torn = False
    for slot, record in enumerate(RECORD.iter_unpack(body)):
        if is_whole(record, slot):
            events.append(decode_event(record, sets))
        elif record[0] or record[-1]:
            is_torn = True
    events.sort(key=lambda event: event.number)
    # What a record that is missing was to replace is older than the ring. Other threads may still write records before the newest.
    events = [event for event in events if event.number > events[-1].number - CAPACITY]
    dropped = events[0].number - 1 if events else 0
    return RankFlight(rank, header, tuple(events), dropped, is_torn, newest_cell=_read_newest_cell(data))


def _parse_sets(table: bytes, process_count: int) -> Sequence[str]:
    """Return the table's sets of ranks, without an incomplete last line.

    Raises:
        ValueError: a line is not a set of ranks.
    """
    *lines, _ = table.partition(b"\0")[0].decode(errors="replace").split("\n")
    for line in lines:
        parse_ranks(line, process_count)
    return lines


def _read_newest_cell(data: bytes) -> FlightEvent | None:
    record = bytes(data[NEWEST_CELL_START : NEWEST_CELL_START + RECORD.size])
    if len(record) < RECORD.size:
        return None
    fields = RECORD.unpack(record)
    is_cell = is_whole(fields, (fields[0] - 1) % CAPACITY) and KINDS[fields[2]] == "cell"
    return decode_event(fields, ()) if is_cell else None


def is_whole(record: tuple[Any, ...], slot: int) -> bool:
    """Return whether a record was written, as a whole, in its place."""
    number: int = record[0]
    return 0 < number == record[-1] and (number - 1) % CAPACITY == slot and record[2] < len(KINDS)


def decode_event(fields: tuple[Any, ...], sets: Sequence[str]) -> FlightEvent:
    """Decode an event from a whole record's fields and the rank sets."""
    number, time_ns, kind, length, set_number, cell, line, launch, fingerprint, text, _ = fields
    # A name that was cut may end in a part of a character.
    program = text[:length].decode(errors="ignore")
    has_set = 0 < set_number <= len(sets)
    return FlightEvent(
        number,
        time_ns,
        KINDS[kind],
        cell,
        line or None,
        launch or None,
        fingerprint,
        program if program.isprintable() else "".join(c if c.isprintable() else "?" for c in program),
        sets[set_number - 1] if has_set else "",
    )


def encode_flight(data: bytes) -> str:
    """Encode a rank's file for a message of JSON, compressed."""
    return base64.b85encode(zlib.compress(data)).decode()


def decode_flight(text: str) -> bytes:
    """Decode what `encode_flight` returns.

    Raises:
        ValueError: it is not that.
    """
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(base64.b85decode(text), FILE_NBYTES + 1)
    except zlib.error as error:
        raise ValueError(f"not compressed events: {error}") from error
    if not reader.eof:
        raise ValueError("the end of the compressed events is not there")
    return data


# -- describe


NameCell: TypeAlias = Callable[[int], str]
"""Names a cell by its number."""


def describe_event(event: FlightEvent, name_cell: NameCell | None = None) -> str:
    """Describe an event in a few words, optionally with its cell.

    >>> step = FlightEvent(7, 0, "proposal", 3, line=12, launch=2, program="jit(step)", participants="0-3")
    >>> describe_event(step), describe_event(step, "In [{}]".format)
    ('waited for agreement on jit(step), line 12', 'waited for agreement on jit(step), line 12 of In [3]')
    """
    cell = "" if name_cell is None or not event.cell else name_cell(event.cell)
    line = "" if event.line is None else f", line {event.line}{f' of {cell}' if cell else ''}"
    if event.line is None and cell:
        line = f" in {cell}"
    match event.kind:
        case "proposal":
            return f"waited for agreement on {event.program}{line}"
        case "agreement":
            return f"agreed on {event.program}{line}"
        case "refusal":
            return f"refused {event.program}{line}"
        case "launch":
            return f"launched {event.program}{line}"
        case "compilation":
            return f"compiled {event.program}{line}"
        case "interrupt":
            return f"received an interrupt{line}"
        case "cell":
            return f"began {cell or 'the cell'}"
        case "end":
            return f"ended {cell or 'the cell'} ({event.program})"


# -- compare the ranks


LaunchKey: TypeAlias = tuple[int, str, int]
"""Identifies a launch on every rank: the cell, the participants, and its number among their launches in the cell."""


class LaunchSide(Struct, frozen=True):
    """What some ranks did where others did something else."""

    ranks: tuple[int, ...]
    event: FlightEvent | None
    """Their launch, proposal or refusal; None if they did not reach it."""
    last: FlightEvent | None = None
    """What they recorded last in the cell, if they did not reach it; None if their cell has no event."""


class Divergence(Struct, frozen=True):
    """The first launch of a cell at which ranks differed."""

    cell: int
    participants: tuple[int, ...]
    launch: int
    sides: tuple[LaunchSide, ...]
    """The largest group of ranks first."""
    has_ended: bool = True
    """Whether the cell has ended on the ranks that did not reach the launch. If not, they may yet reach it, or were killed before."""


def find_divergences(flights: Sequence[RankFlight]) -> tuple[Divergence, ...]:
    """Find in each cell the first launch at which ranks differed.

    They proposed or launched different programs, some did not reach it, or it was refused, for example because of different arrays.

    Launches of the same participants are compared by their number in the cell, from the first one that all participants still hold.
    As for the guard, the lines do not matter.
    """
    by_rank = {flight.rank: flight for flight in flights if flight.header is not None}
    # A proposal counts, because a launch that the ranks do not agree on is not made.
    launches = {rank: _list_launches(flight, ("proposal", "launch")) for rank, flight in by_rank.items()}
    firsts = {rank: _find_first_numbers(flight, launches[rank]) for rank, flight in by_rank.items()}
    refusals = {rank: _list_launches(flight, ("refusal",)) for rank, flight in by_rank.items()}
    members = {text: parse_ranks(text, MAX_RANKS) for own in launches.values() for _, text, _ in own}
    found: dict[int, tuple[tuple[int, int], Divergence]] = {}
    for key in {key for own in launches.values() for key in own}:
        cell, text, number = key
        held = [rank for rank in members[text] if rank in by_rank]
        if any(number < firsts[rank](cell, text) for rank in held):
            continue
        events = {rank: launches[rank].get(key) for rank in held}
        if len(set(map(_program_of, events.values()))) < 2:
            events = {rank: refusals[rank].get(key) for rank in held}
            if None in events.values():
                continue
        first = min(event.time_ns for event in events.values() if event is not None)
        if cell not in found or (number, first) < found[cell][0]:
            absent = [by_rank[rank] for rank, event in events.items() if event is None]
            divergence = Divergence(
                cell,
                members[text],
                number,
                _make_sides(events, flights, cell),
                all(_has_ended(a, cell) for a in absent),
            )
            found[cell] = (number, first), divergence
    return tuple(found[cell][1] for cell in sorted(found))


def _list_launches(flight: RankFlight, kinds: Container[EventKind]) -> dict[LaunchKey, FlightEvent]:
    """Return the first event of these kinds of each multi-rank launch."""
    launches: dict[LaunchKey, FlightEvent] = {}
    for event in flight.events:
        if event.launch is not None and event.participants and event.kind in kinds:
            launches.setdefault((event.cell, event.participants, event.launch), event)
    return launches


def _find_first_numbers(flight: RankFlight, launches: Mapping[LaunchKey, FlightEvent]) -> Callable[[int, str], int]:
    """Return a function for the first launch number that the ring covers."""
    oldest = flight.events[0] if flight.dropped_count and flight.events else None
    lowest: dict[tuple[int, str], int] = {}
    for cell, text, number in launches:
        lowest[cell, text] = min(number, lowest.get((cell, text), number))

    def find(cell: int, participants: str) -> int:
        if oldest is None or cell > oldest.cell or (cell == oldest.cell and oldest.kind == "cell"):
            return 1
        # The beginning of this cell was overwritten: what was before the oldest launch that is left is not known.
        return lowest.get((cell, participants), _NEVER)

    return find


def _has_ended(flight: RankFlight, cell: int) -> bool:
    return any(event.cell > cell or (event.cell == cell and event.kind == "end") for event in reversed(flight.events))


def _make_sides(
    events: Mapping[int, FlightEvent | None], flights: Sequence[RankFlight], cell: int
) -> tuple[LaunchSide, ...]:
    last = {flight.rank: _last_in_cell(flight, cell) for flight in flights}
    programs = {rank: _program_of(event) for rank, event in events.items()}
    return tuple(
        LaunchSide(ranks, events[ranks[0]], last[ranks[0]] if program is None else None)
        for ranks, program in group_ranks(programs)
    )


def _program_of(event: FlightEvent | None) -> int | None:
    return None if event is None else event.fingerprint


def _last_in_cell(flight: RankFlight, cell: int) -> FlightEvent | None:
    return next((event for event in reversed(flight.events) if event.cell == cell), None)


# -- the report


def format_cell_begin(execution_count: int | None, guard: str) -> str:
    """Format the text of the event with which a cell begins.

    >>> format_cell_begin(7, "lockstep"), format_cell_begin(None, "off")
    ('In [7] lockstep', 'off')
    """
    return guard if execution_count is None else f"In [{execution_count}] {guard}"


class FlightReport(Struct, frozen=True):
    """What the flight recorders of a cluster's ranks hold."""

    name: str
    """Of the cluster."""
    flights: tuple[RankFlight, ...]
    """Of each rank, in rank order."""
    divergences: tuple[Divergence, ...]
    """Of each cell with a difference, the first one, in the order of the cells."""
    stragglers: Stragglers | None
    """Of all launches that the ranks agreed on and still hold; None without one."""
    cell_names: Mapping[int, str]
    """By its number in the order of execution, how the notebook shows a cell, such as `In [7]`."""
    unguarded_cells: tuple[int, ...]
    """Cells of `--guard off`, whose launches were not recorded."""

    @property
    def lateness(self) -> Stragglers | None:
        """The older name of `stragglers`."""
        return self.stragglers

    @property
    def divergence(self) -> Divergence | None:
        """The first launch at which ranks differed."""
        return self.divergences[0] if self.divergences else None

    def name_cell(self, cell: int) -> str:
        """Name a cell as the notebook shows it, or by its number."""
        return self.cell_names.get(cell, f"cell {cell}")


def build_report(name: str, flights: Sequence[RankFlight]) -> FlightReport:
    """Compare the recorders of the ranks.

    Args:
        name: of the cluster.
        flights: of each rank.
    """
    headers = {flight.rank: flight.header for flight in flights if flight.header is not None}
    arrivals = {flight.rank: _list_arrivals(flight) for flight in flights if flight.rank in headers}
    clocks = {rank: header.clock for rank, header in headers.items()}
    hosts = {rank: header.host for rank, header in headers.items()}
    begins = {
        event.cell: event.program
        for flight in flights
        for event in (*flight.events, flight.newest_cell)
        if event is not None and event.kind == "cell" and event.cell
    }
    return FlightReport(
        name,
        tuple(flights),
        find_divergences(flights),
        measure_stragglers(arrivals, clocks, hosts),
        {cell: f"{text.partition(']')[0]}]" for cell, text in begins.items() if text.startswith("In [")},
        tuple(sorted(cell for cell, text in begins.items() if text.split()[-1:] == ["off"])),
    )


def _list_arrivals(flight: RankFlight) -> list[Arrival]:
    """Return the rank's arrivals at agreements whose proposal its ring holds."""
    proposals: dict[LaunchKey, FlightEvent] = {}
    arrivals = []
    for event in flight.events:
        if event.launch is None or event.kind not in ("proposal", "agreement"):
            continue
        key = (event.cell, event.participants, event.launch)
        if event.kind == "proposal":
            proposals.setdefault(key, event)
        elif (proposal := proposals.pop(key, None)) is not None:
            arrivals.append(Arrival(event.participants, (event.cell, event.launch), proposal.time_ns, event.time_ns))
    return arrivals


def wall_time_s(flight: RankFlight, event: FlightEvent) -> float:
    """Return an event's seconds since 1970, by its host's clock at start."""
    assert flight.header is not None
    return (flight.header.wall_ns + event.time_ns - flight.header.monotonic_ns) * _NS


def report_values(report: FlightReport) -> dict[str, Any]:
    """Convert a report to the JSON values of `mhnb flight --json`."""
    return {
        "name": report.name,
        "divergences": [to_json_types(divergence) for divergence in report.divergences],
        "lateness": None if report.stragglers is None else list_stragglers(report.stragglers),
        "unguarded_cells": list(report.unguarded_cells),
        "ranks": [
            {
                "rank": flight.rank,
                "problem": flight.problem,
                "dropped": flight.dropped_count,
                "torn": flight.is_torn,
                "events": [
                    {
                        "number": event.number,
                        "time_s": wall_time_s(flight, event),
                        "kind": event.kind,
                        "cell": event.cell,
                        "line": event.line,
                        "launch": event.launch,
                        "program": event.program,
                        "fingerprint": f"{event.fingerprint:x}" if event.fingerprint else "",
                        "participants": event.participants,
                    }
                    for event in flight.events
                ],
            }
            for flight in report.flights
        ],
    }
