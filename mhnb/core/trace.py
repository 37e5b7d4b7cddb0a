"""One timeline of a cell: each rank's times and a Perfetto file.

A rank reduces its own profile to events on the monotonic clock of its host. Here the clocks are aligned, and each moment of a rank
is counted once, as the first of these that applies:

* compute: a device runs an operation that is not a collective;
* communication: a device is in a collective that all of its participants have reached;
* waiting: a device is in a collective that some participant has not reached yet, or the rank waits for agreement on a launch;
* host: none of these, such as Python, compilation and input;
* not recorded: there is no profile of that moment, and the rank does not wait for an agreement.

Ranks enter the profiler at different times. A wait for a rank that has not begun the cell yet says nothing about the cell, so it does
not count, and a picture of the ranks begins when the last one has begun.

The file has the JSON form of Chrome's trace events, which Perfetto reads: one process per rank, one track per device and thread.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct

from mhnb.core.flight import FlightEvent, describe_event
from mhnb.core.ranks import describe_ranks, ranks_by_key
from mhnb.core.typed_json import MessageCodec

EventKind: TypeAlias = Literal["compute", "collective", "host"]
State: TypeAlias = Literal["compute", "communication", "waiting", "host", "not recorded"]
STATES: tuple[State, ...] = get_args(State)
Span: TypeAlias = tuple[int, int]
"""Begin and end, in ns."""

_NS = 1e-9
_BUCKETS = 240
"""Parts of the picture's width, each with one state per rank."""
_LATE_NS = 1_000_000
"""A rank for which the others wait a shorter time is not called the last one."""
_LATE_START_NS = 100_000_000
"""From which difference on a note says that a rank began late."""
_CONTAINERS = ("while", "conditional", "call")
"""Operations that only run other operations, which have events of their own."""


class TraceEvent(Struct, frozen=True, array_like=True):
    """What a device or a thread of a rank did."""

    kind: EventKind
    name: str
    """Of a device's operation the name of the instruction, such as `all-reduce.2`."""
    start_ns: int
    """By the monotonic clock of the rank's host."""
    duration_ns: int
    device: int = -1
    """The local device; -1 for a thread of the host."""
    thread: str = ""
    """The thread of the host, or the device's stream."""
    program: str = ""
    """The program that the operation belongs to, such as `jit_step`."""


class TracedCollective(Struct, frozen=True):
    """A collective of a program that the cell launched."""

    program: str
    instruction: str
    label: str
    """As in `%mhjax collectives`: `all-reduce f32[1024] over data`."""
    place: str
    """Its line, such as `In [3] line 2`; empty if that is not known."""
    groups: Mapping[str, tuple[int, str]]
    """By the rank's local device, as text: the number of the group of devices that communicate, and their ranks."""
    is_ambiguous: bool = False
    """Whether several programs of this name have it, so that its runs cannot be told apart."""


class RankTrace(Struct, frozen=True):
    """What one rank recorded of a traced cell."""

    began_ns: int = 0
    """When the cell's code began, by the monotonic clock of the host."""
    ended_ns: int = 0
    events: tuple[TraceEvent, ...] = ()
    """In the order of their starts."""
    collectives: tuple[TracedCollective, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()
    """The lines of the cell in the order in which they ran: 1-based, and the time of its begin."""
    dropped_count: int = 0
    """How many later events are left out."""
    problem: str = ""
    """Why there is no profile, or only a part of it."""
    profile_nbytes: int = 0
    """Size of the profile, which is fetched by itself."""
    recorded_until_ns: int = 0
    """Until when the profile has all events."""
    lines_until_ns: int = 0
    """Until when the last line ran."""


_MAX_PACKED_NBYTES = 1 << 28
_CODEC = MessageCodec[RankTrace](RankTrace)


def pack_trace(trace: RankTrace) -> bytes:
    """Pack what a rank recorded for a message.

    >>> trace = RankTrace(1, 5, lines=((2, 3),))
    >>> unpack_trace(pack_trace(trace)) == trace
    True
    """
    return zlib.compress(_CODEC.encode(trace), 1)


def unpack_trace(data: Any) -> RankTrace:
    """Unpack what `pack_trace` returns.

    Raises:
        ValueError: it is not that.
    """
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, _MAX_PACKED_NBYTES)
    except zlib.error as error:
        raise ValueError(f"not a compressed trace: {error}") from error
    if not reader.eof:
        raise ValueError("the end of the compressed trace is not there")
    return _CODEC.decode(text)


class TraceSource(NamedTuple):
    """What is known of one rank for the timeline."""

    rank: int
    host: str
    pid: int | None
    trace: RankTrace
    flight: tuple[FlightEvent, ...]
    """The flight recorder's events of the cell."""
    ahead_ns: int
    """How far its clock is ahead of the first rank's."""

    def shift(self, time_ns: int) -> int:
        """Return a time of this rank by the first rank's clock."""
        return time_ns - self.ahead_ns


class RankTimes(Struct, frozen=True):
    """Where one rank's seconds went; the five parts add up to `wall_s`."""

    rank: int
    wall_s: float
    """Without its waits for ranks that had not begun the cell."""
    compute_s: float
    communication_s: float
    waiting_s: float
    host_s: float
    unrecorded_s: float = 0.0
    begin_s: float = 0.0
    """When its code began, after the first rank's."""
    states: tuple[State | None, ...] = ()
    """What it mostly did in equal parts of the time that is drawn; None: it did not run, or the time does not count."""
    problem: str = ""

    def seconds(self, state: State) -> float:
        """Return the time in a state."""
        return {
            "compute": self.compute_s,
            "communication": self.communication_s,
            "waiting": self.waiting_s,
            "host": self.host_s,
            "not recorded": self.unrecorded_s,
        }[state]


class CollectiveTimes(Struct, frozen=True):
    """The time of one collective over its runs."""

    label: str
    place: str
    count: int
    """Runs on the device that was in it longest."""
    total_s: float
    """On that device."""
    waiting_s: float
    """The part of it before the last participant came."""
    last: str
    """The rank that others waited for most often, and in how many of their runs; empty if no rank stands out."""


class TraceReport(Struct, frozen=True):
    """A cell's timeline: its file, and where each rank's time went."""

    seq: int
    cell_name: str
    folder: str
    """Has the timeline, and the profiles that XProf reads."""
    path: str
    """The timeline; empty if it could not be written."""
    ranks: tuple[RankTimes, ...] = ()
    collectives: tuple[CollectiveTimes, ...] = ()
    """The longest first."""
    span_s: float = 0.0
    """The time that is drawn: from the last rank's begin to the last one's end, in seconds."""
    notes: tuple[str, ...] = ()
    """What is missing or not exact, each a sentence."""
    execution_count: int | None = None
    """The number that the notebook shows beside the cell; None if it shows none."""


# -- spans of time


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, in order and disjoint.

    >>> merge_spans([(5, 7), (0, 2), (1, 3), (3, 3)])
    [(0, 3), (5, 7)]
    """
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def subtract_spans(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of spans outside others; both are disjoint and sorted.

    >>> subtract_spans([(0, 10), (20, 30)], [(2, 3), (8, 25)])
    [(0, 2), (3, 8), (25, 30)]
    """
    rest: list[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        position, look = begin, at
        while look < len(others) and others[look][0] < end:
            if others[look][0] > position:
                rest.append((position, others[look][0]))
            position = max(position, others[look][1])
            look += 1
        if position < end:
            rest.append((position, end))
    return rest


def _clip(spans: Iterable[Span], begin: int, end: int) -> list[Span]:
    return merge_spans((max(begin, first), min(end, last)) for first, last in spans if first < end and last > begin)


def _sum(spans: Iterable[Span]) -> int:
    return sum(end - begin for begin, end in spans)


# -- collectives: who came when


class CollectiveRun(NamedTuple):
    """One run of a collective on one device."""

    event: TraceEvent
    span: Span
    """By the first rank's clock."""
    last_start_ns: int
    """When the last participant came to it."""
    last_rank: int
    last_device: int
    """The local device of that rank."""
    is_shared: bool
    """Whether a participant on another rank is known."""

    @property
    def waiting(self) -> Span:
        """The part of the run before the last participant came."""
        begin, end = self.span
        return begin, min(end, max(begin, self.last_start_ns))

    def count_from(self, begins: Mapping[int, int]) -> CollectiveRun:
        """Return the run without waiting for a rank before it began."""
        begin, end = self.span
        return self._replace(span=(min(end, max(begin, begins.get(self.last_rank, begin))), end))


_Key: TypeAlias = tuple[str, str, int, int, str]
"""Program, instruction, number of the run on its device, number of the group, and its ranks."""


def match_collectives(sources: Sequence[TraceSource]) -> dict[int, list[CollectiveRun]]:
    """Match each collective's runs across its participants; return them by rank.

    The n-th run of an instruction on a device belongs to the n-th on the other devices of its group. Where the groups are not known,
    all traced ranks that run the instruction count as one.
    """
    found: dict[_Key, list[tuple[int, int, int]]] = {}
    keys: dict[int, list[tuple[_Key, TraceEvent, Span]]] = {}
    for source in sources:
        known = {(each.program, each.instruction): each for each in source.trace.collectives}
        counts: Counter[tuple[str, str, int]] = Counter()
        for event in source.trace.events:
            if event.kind != "collective":
                continue
            number = counts[event.program, event.name, event.device]
            counts[event.program, event.name, event.device] += 1
            group = _find_group(source.rank, event, known.get((event.program, event.name)))
            begin = source.shift(event.start_ns)
            key = (event.program, event.name, number, *group)
            found.setdefault(key, []).append((begin, source.rank, event.device))
            keys.setdefault(source.rank, []).append((key, event, (begin, begin + event.duration_ns)))
    last = {key: max(runs) for key, runs in found.items()}
    shared = {key: len({rank for _, rank, _ in runs}) > 1 for key, runs in found.items()}
    return {
        rank: [CollectiveRun(event, span, *last[key], shared[key]) for key, event, span in own]
        for rank, own in keys.items()
    }


def _find_begins(sources: Sequence[TraceSource]) -> dict[int, int]:
    """Return when ranks began, in ns of the first one's clock."""
    return {source.rank: source.shift(source.trace.began_ns) for source in sources if _is_traced(source)}


def _is_traced(source: TraceSource) -> bool:
    return source.trace.ended_ns > source.trace.began_ns


def _find_group(rank: int, event: TraceEvent, collective: TracedCollective | None) -> tuple[int, str]:
    if collective is None:
        return -1, ""
    if collective.is_ambiguous:
        # Of this device alone: it is not known which runs belong together.
        return event.device, f"alone {rank}"
    return collective.groups.get(str(event.device), (-1, ""))


def sum_collectives(
    sources: Sequence[TraceSource], runs: Mapping[int, Sequence[CollectiveRun]]
) -> tuple[CollectiveTimes, ...]:
    """Return each collective's time on the device that was in it longest."""
    totals: dict[tuple[str, str], dict[tuple[int, int], list[CollectiveRun]]] = {}
    begins = _find_begins(sources)
    for source in sources:
        labels = _name_collectives(source)
        for run in (run.count_from(begins) for run in runs.get(source.rank, ())):
            name = labels.get((run.event.program, run.event.name), (_base_name(run.event.name), ""))
            totals.setdefault(name, {}).setdefault((source.rank, run.event.device), []).append(run)
    rows = []
    for (label, place), by_device in totals.items():
        longest = max(by_device.values(), key=lambda own: _sum(run.span for run in own))
        rows.append(
            CollectiveTimes(
                label,
                place,
                len(longest),
                _NS * _sum(run.span for run in longest),
                _NS * _sum(run.waiting for run in longest),
                _describe_last(by_device),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.label)))


def _describe_last(by_device: Mapping[tuple[int, int], Sequence[CollectiveRun]]) -> str:
    """Describe the rank that most other ranks' runs waited for, or empty."""
    # What the devices of a rank see of other ranks.
    others = [run for (rank, _), own in by_device.items() for run in own if run.is_shared and run.last_rank != rank]
    waits = Counter(run.last_rank for run in others if _sum([run.waiting]) >= _LATE_NS)
    if not waits:
        return ""
    rank, count = min(waits.items(), key=lambda item: (-item[1], item[0]))
    share = count / len(others)
    return f"rank {rank} ({share:.0%})" if share > 0.5 else ""


def _name_collectives(source: TraceSource) -> dict[tuple[str, str], tuple[str, str]]:
    return {(each.program, each.instruction): (each.label, each.place) for each in source.trace.collectives}


def _base_name(instruction: str) -> str:
    """Return an instruction's name without its number.

    >>> _base_name("all-reduce.12"), _base_name("all-gather-start")
    ('all-reduce', 'all-gather-start')
    """
    name, dot, number = instruction.rpartition(".")
    return name if dot and number.isdecimal() else instruction


# -- where the time went


def measure_ranks(
    sources: Sequence[TraceSource], runs: Mapping[int, Sequence[CollectiveRun]]
) -> tuple[tuple[RankTimes, ...], float]:
    """Return each rank's times, and the seconds that are drawn.

    These begin when the last rank has begun; with the first rank's begin if one had ended by then.

    Args:
        sources: the traced ranks.
        runs: of the collectives, as `match_collectives` returns them.
    """
    traced = list(filter(_is_traced, sources))
    begins, ends = _find_begins(sources), [source.shift(source.trace.ended_ns) for source in traced]
    common, first, last = max(begins.values(), default=0), min(begins.values(), default=0), max(ends, default=0)
    drawn = common if all(end > common for end in ends) else first
    times = []
    for source in sources:
        if source not in traced:
            times.append(RankTimes(source.rank, 0.0, 0.0, 0.0, 0.0, 0.0, problem=source.trace.problem))
            continue
        begin, end = source.shift(source.trace.began_ns), source.shift(source.trace.ended_ns)
        spans = _find_states(source, runs.get(source.rank, ()), (begin, end), begins)
        times.append(
            RankTimes(
                source.rank,
                _NS * sum(map(_sum, spans.values())),
                _NS * _sum(spans["compute"]),
                _NS * _sum(spans["communication"]),
                _NS * _sum(spans["waiting"]),
                _NS * _sum(spans["host"]),
                _NS * _sum(spans["not recorded"]),
                begin_s=_NS * (begin - first),
                states=_fill_buckets(spans, drawn, last),
                problem=source.trace.problem,
            )
        )
    return tuple(times), _NS * (last - drawn)


def _find_states(
    source: TraceSource, runs: Sequence[CollectiveRun], cell: Span, begins: Mapping[int, int]
) -> Mapping[State, list[Span]]:
    """Return the spans of each state, together the time that counts.

    Args:
        source: the rank.
        runs: of its collectives.
        cell: when it ran the cell, by the first rank's clock.
        begins: when each rank began the cell.
    """
    begin, end = cell
    until = min(end, max(begin, source.shift(source.trace.recorded_until_ns)))
    compute = _clip(
        (
            (source.shift(event.start_ns), source.shift(event.start_ns) + event.duration_ns)
            for event in source.trace.events
            if event.kind == "compute" and _base_name(event.name) not in _CONTAINERS
        ),
        begin,
        until,
    )
    moving = _clip(((run.waiting[1], run.span[1]) for run in runs), begin, until)
    communication = subtract_spans(moving, compute)
    in_collectives = _clip((run.waiting for run in runs), begin, until)
    busy = merge_spans([*compute, *moving])
    agreements = _clip(find_agreement_waits(source), begin, end)
    waits = [*in_collectives, *agreements]
    counted = ((run, run.count_from(begins)) for run in runs)
    uncounted = _clip(((run.span[0], late.span[0]) for run, late in counted), begin, until)
    common = max(begins.values())
    early = [*uncounted, *((first, common) for first, last in agreements if first < common <= last)]
    waiting = subtract_spans(merge_spans(waits), merge_spans([*busy, *early]))
    rest = merge_spans([*busy, *waiting, *early])
    return {
        "compute": compute,
        "communication": communication,
        "waiting": waiting,
        "host": subtract_spans(_clip([(begin, until)], begin, end), rest),
        "not recorded": subtract_spans(_clip([(until, end)], begin, end), rest),
    }


def find_agreement_waits(source: TraceSource) -> list[Span]:
    """Return the rank's waits for agreement, by the first rank's clock."""
    return [(source.shift(begin), source.shift(event.time_ns)) for begin, event in _list_decisions(source.flight)]


def _list_decisions(flight: Iterable[FlightEvent]) -> Iterator[tuple[int, FlightEvent]]:
    """Yield each agreement or refusal, with the time of its proposal."""
    proposals: dict[tuple[str, int | None], int] = {}
    for event in flight:
        key = event.participants, event.launch
        if event.kind == "proposal":
            proposals.setdefault(key, event.time_ns)
        elif event.kind in ("agreement", "refusal") and key in proposals:
            yield proposals.pop(key), event


def _fill_buckets(spans: Mapping[State, Sequence[Span]], first: int, last: int) -> tuple[State | None, ...]:
    """Return the longest state in each equal part of the time."""
    width = max(1, -(-(last - first) // _BUCKETS))
    shares: list[dict[State, int]] = [{} for _ in range(_BUCKETS)]
    for state in STATES:
        for begin, end in _clip(spans[state], first, last):
            for at in range((begin - first) // width, min(_BUCKETS, (end - 1 - first) // width + 1)):
                part = min(end, first + (at + 1) * width) - max(begin, first + at * width)
                shares[at][state] = shares[at].get(state, 0) + part
    used = min(_BUCKETS, -(-(last - first) // width))
    return tuple(_find_longest(share) for share in shares[:used])


def _find_longest(share: Mapping[State, int]) -> State | None:
    return max(share.items(), key=lambda item: item[1])[0] if share else None


# -- the timeline's file


_CELL_TRACK, _LINE_TRACK, _GUARD_TRACK, _DEVICE_TRACKS, _HOST_TRACKS = 1, 2, 3, 100, 10_000_000
_GUARD_NAME = "agreement on launches"
_MAX_LANES = 32
"""Tracks of one device's computation or collectives. Chrome's form has no overlapping events in a track."""


def build_timeline(
    sources: Sequence[TraceSource],
    runs: Mapping[int, Sequence[CollectiveRun]],
    *,
    cell_name: str,
    code: Mapping[int, str],
) -> Iterator[dict[str, Any]]:
    """Yield the timeline in Chrome's trace event form, with times in µs.

    Args:
        sources: the traced ranks.
        runs: of the collectives, as `match_collectives` returns them.
        cell_name: as `In [7]`.
        code: the text of each line of the cell.
    """
    traced = list(filter(_is_traced, sources))
    begins = [source.shift(source.trace.began_ns) for source in traced]
    starts = [source.shift(event.start_ns) for source in sources for event in source.trace.events[:1]]
    zero = min([*begins, *starts], default=0)
    for source in sources:
        yield from _build_rank(source, runs.get(source.rank, ()), zero, cell_name, code)


def _build_rank(
    source: TraceSource, runs: Sequence[CollectiveRun], zero: int, cell_name: str, code: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    tracks = _Tracks(source, zero)
    yield from tracks.describe_process()
    trace = source.trace
    if _is_traced(source):
        yield from tracks.add(_CELL_TRACK, "cell", cell_name, (trace.began_ns, trace.ended_ns))
    for (line, begin), (_, end) in pairwise([*trace.lines, (0, trace.lines_until_ns or trace.ended_ns)]):
        text = code.get(line, "").strip()
        name = f"line {line}: {text}" if text else f"line {line}"
        yield from tracks.add(_LINE_TRACK, "lines of the cell", name, (begin, end), line=line)
    yield from _build_guard_track(tracks, source)
    yield from _build_devices(tracks, source, runs)
    for number, thread in enumerate(sorted({event.thread for event in trace.events if event.kind == "host"})):
        own = [event for event in trace.events if event.kind == "host" and event.thread == thread]
        for event, lane in _assign_lanes(own):
            yield from tracks.add(
                _HOST_TRACKS + number * _MAX_LANES + lane, f"host: {thread}", event.name, _span_of(event)
            )


def _build_guard_track(tracks: _Tracks, source: TraceSource) -> Iterator[dict[str, Any]]:
    """Yield waits for agreement, and the flight recorder's other events."""
    for begin, event in _list_decisions(source.flight):
        name = "is refused" if event.kind == "refusal" else "waits for agreement on"
        span = begin, event.time_ns
        yield from tracks.add(_GUARD_TRACK, _GUARD_NAME, f"{name} {event.program}", span, **_describe_launch(event))
    for event in source.flight:
        if event.kind in ("compilation", "interrupt", "launch"):
            details = _describe_launch(event)
            yield from tracks.mark(_GUARD_TRACK, _GUARD_NAME, describe_event(event), event.time_ns, **details)


def _describe_launch(event: FlightEvent) -> dict[str, Any]:
    return {"line": event.line, "launch": event.launch, "participants": event.participants}


def _build_devices(tracks: _Tracks, source: TraceSource, runs: Sequence[CollectiveRun]) -> Iterator[dict[str, Any]]:
    names = _name_collectives(source)
    waits = {id(run.event): run for run in runs}
    for device in sorted({event.device for event in source.trace.events if event.device >= 0}):
        first = _DEVICE_TRACKS + device * 4 * _MAX_LANES
        own = [event for event in source.trace.events if event.device == device]
        for event, lane in _assign_lanes([event for event in own if event.kind == "compute"]):
            yield from tracks.add(first + lane, f"device {device}", event.name, _span_of(event), program=event.program)
        for event, lane in _assign_lanes([event for event in own if event.kind == "collective"]):
            track, run = first + 2 * _MAX_LANES + lane, waits[id(event)]
            label, place = names.get((event.program, event.name), (event.name, ""))
            yield from tracks.add(
                track,
                f"device {device} collectives",
                label,
                _span_of(event),
                program=event.program,
                instruction=event.name,
                line=place,
            )
            wait_ns = run.waiting[1] - run.waiting[0]
            if wait_ns > 0 and run.is_shared:
                span = event.start_ns, event.start_ns + wait_ns
                own_rank = run.last_rank == source.rank
                late = f"device {run.last_device}" if own_rank else f"rank {run.last_rank}"
                yield from tracks.add(track, "", f"waits for {late}", span)


class _Tracks:
    """Formats events of one rank; names a track before its first event."""

    def __init__(self, source: TraceSource, zero: int) -> None:
        self._source, self._zero = source, zero
        self._pid = source.rank + 1  # 0 is the idle process to Perfetto
        self._named: set[int] = set()

    def describe_process(self) -> Iterator[dict[str, Any]]:
        """Yield the name and the position of the rank's process."""
        pid = "" if self._source.pid is None else f", pid {self._source.pid}"
        yield self._meta("process_name", 0, name=f"rank {self._source.rank} ({self._source.host}{pid})")
        yield self._meta("process_sort_index", 0, sort_index=self._source.rank)

    def _meta(self, kind: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": self._pid, "tid": tid, "args": args}

    def _name(self, tid: int, track: str) -> Iterator[dict[str, Any]]:
        if tid not in self._named:
            self._named.add(tid)
            yield self._meta("thread_name", tid, name=track)
            yield self._meta("thread_sort_index", tid, sort_index=tid)

    def _at(self, time_ns: int) -> float:
        return (self._source.shift(time_ns) - self._zero) / 1000

    def add(self, tid: int, track: str, name: str, span: Span, **args: Any) -> Iterator[dict[str, Any]]:
        """Yield an event with a duration, given by the rank's own clock."""
        yield from self._name(tid, track)
        shown = {key: value for key, value in args.items() if value not in (None, "")}
        begin, end = span
        event = {"ph": "X", "name": name, "pid": self._pid, "tid": tid, "ts": self._at(begin)}
        yield {**event, "dur": max(0, end - begin) / 1000, **({"args": shown} if shown else {})}

    def mark(self, tid: int, track: str, name: str, time_ns: int, **args: Any) -> Iterator[dict[str, Any]]:
        """Yield an event without a duration."""
        yield from self._name(tid, track)
        shown = {key: value for key, value in args.items() if value not in (None, "")}
        event = {"ph": "i", "s": "t", "name": name, "pid": self._pid, "tid": tid, "ts": self._at(time_ns)}
        yield {**event, **({"args": shown} if shown else {})}


def _span_of(event: TraceEvent) -> Span:
    return event.start_ns, event.start_ns + event.duration_ns


def _assign_lanes(events: Sequence[TraceEvent]) -> Iterator[tuple[TraceEvent, int]]:
    """Assign events to lanes in which they nest or do not overlap.

    Those for which there is no lane are left out.

    Args:
        events: in the order of their starts.
    """
    lanes: list[list[int]] = []
    """Of each lane, the ends of the events that have not ended, the outermost first."""
    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        begin, end = _span_of(event)
        for number, ends in enumerate(lanes):
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                yield event, number
                break
        else:
            if len(lanes) < _MAX_LANES:
                lanes.append([end])
                yield event, len(lanes) - 1


# -- texts


def describe_problems(sources: Sequence[TraceSource]) -> list[str]:
    """Describe what the profiles lack, ranks with the same problem together."""
    by_text = ranks_by_key({source.rank: source.trace.problem for source in sources if source.trace.problem})
    notes = [f"{describe_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    if dropped := [source for source in sources if source.trace.dropped_count]:
        counts = sum(source.trace.dropped_count for source in dropped)
        notes.append(
            f"{counts:,} later events of {describe_ranks(source.rank for source in dropped)} are left out, and their time"
            " counts as not recorded; the profiles for XProf have them"
        )
    begins = _find_begins(sources)
    lead_ns = max(begins.values(), default=0) - min(begins.values(), default=0)
    if lead_ns >= _LATE_START_NS:
        latest = max(begins, key=lambda rank: begins[rank])
        notes.append(
            f"rank {latest} entered the profiler {_NS * lead_ns:.2f} s after the first rank; the others' wait for it is not"
            " counted"
        )
    return notes


def describe_traced(report: TraceReport) -> str:
    """Describe which ranks a timeline has.

    >>> describe_traced(TraceReport(3, "In [7]", "", "", (RankTimes(0, 1.0, 0.5, 0.0, 0.0, 0.5),)))
    'In [7] · trace of rank 0'
    """
    return f"{report.cell_name} · trace of {describe_ranks(row.rank for row in report.ranks)}"
