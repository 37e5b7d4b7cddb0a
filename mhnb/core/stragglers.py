"""Stragglers: which ranks others waited for before launches, and how long.

In lockstep each rank notes when it came to a launch and when the launch was decided. Every participant notes the same launches, so the
last to come is known of each. Ranks of different hosts have different clocks. These are aligned on the launches themselves: a launch is
decided after all participants have come to it, so no rank's decision is earlier than another's arrival. A rank that is late at every
launch of a cell looks like a clock that is ahead, so the launches of earlier cells count too.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, field

from mhnb.core.ranks import describe_ranks, parse_ranks
from mhnb.errors import InvalidRequest

MAX_ARRIVALS = 256
"""How many agreements of a cell a rank keeps, the last ones."""
ARRIVAL = struct.Struct("<IIqq")
"""Position of the participants in the log's list, number of the agreement among theirs in the cell, and the two times in ns."""
_NS = 1e-9
_RANK_SET = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")
_DRIFT = 50e-6
"""By so much of the time may two clocks drift apart: what is usual for quartz clocks that nothing corrects."""

_LATE_S = 0.005
"""A rank that comes less than this after all others is not late: so much is the scheduler's noise."""
_MIN_LATE = 5
"""Fewer late arrivals are chance."""
_MIN_LATE_SHARE = 0.7
"""Of the late arrivals, so many must be of the rank that stands out."""
_MIN_WAIT_SHARE = 0.05
"""Less waiting is not worth a sentence."""


class ArrivalLog(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One rank's agreements of a cell."""

    participants: list[str] = field(default_factory=list)
    """Each set of participants, such as `0-3`."""
    packed: bytes = b""
    """Records of `ARRIVAL`, in order."""
    dropped_count: int = 0
    """How many older ones were dropped."""

    def __post_init__(self) -> None:
        if len(self.packed) % ARRIVAL.size or len(self.packed) > MAX_ARRIVALS * ARRIVAL.size or self.dropped_count < 0:
            raise ValueError(f"{len(self.packed)} bytes of arrivals are damaged")
        if len(self.participants) > MAX_ARRIVALS or not all(map(_RANK_SET.fullmatch, self.participants)):
            raise ValueError(f"{len(self.participants)} sets of ranks are damaged")
        if any(position >= len(self.participants) for position, *_ in ARRIVAL.iter_unpack(self.packed)):
            raise ValueError(f"arrivals name more than {len(self.participants)} sets of ranks: they are damaged")


class Arrival(NamedTuple):
    """When one rank came to a launch."""

    participants: str
    number: tuple[int, int]
    """The cell, and the number among the agreements of these participants in it."""
    arrived_ns: int
    decided_ns: int


def unpack_arrivals(log: ArrivalLog, cell: int = 0) -> Iterator[Arrival]:
    """Return the agreements of a log, in order."""
    for position, number, arrived_ns, decided_ns in ARRIVAL.iter_unpack(log.packed):
        yield Arrival(log.participants[position], (cell, number), arrived_ns, decided_ns)


class CellArrivals(Struct, frozen=True):
    """When ranks came to a cell's launches on which they agreed."""

    cell: int
    logs: Mapping[int, ArrivalLog]
    """Of each rank that came to one."""

    def may_stand_out(self) -> bool:
        """Return quickly whether ranks waited long enough for one to stand out."""
        return any(
            sum(decided_ns - arrived_ns for _, _, arrived_ns, decided_ns in ARRIVAL.iter_unpack(log.packed)) * _NS
            >= _MIN_LATE * _LATE_S
            for log in self.logs.values()
        )

    def bound_clocks(self, clocks: Mapping[int, str], earlier: ClockBounds) -> ClockBounds:
        """Return clock bounds from this cell's launches and from earlier cells.

        Args:
            clocks: identifies each rank's clock.
            earlier: bounds of earlier cells.
        """
        return merge_bounds(earlier, bound_offsets(_match_launches(self._unpack(), max(clocks) + 1), clocks))

    def measure(
        self, clocks: Mapping[int, str], hosts: Mapping[int, str], bounds: ClockBounds | None = None
    ) -> Stragglers | None:
        """Measure how late ranks were, from their clocks, hosts and clock bounds."""
        dropped = max(log.dropped_count for log in self.logs.values())
        return measure_stragglers(self._unpack(), clocks, hosts, bounds=bounds, dropped_count=dropped)

    def _unpack(self) -> dict[int, list[Arrival]]:
        return {rank: list(unpack_arrivals(log, self.cell)) for rank, log in self.logs.items()}


class RankDelays(Struct, frozen=True):
    """How late one rank was."""

    rank: int
    agreement_count: int
    last_count: int
    """At how many launches it came last."""
    late_count: int
    """At how many of those it came at least 5 ms after every other rank."""
    waited_s: float
    """How long the others waited for it, on average over them, at the launches where it came last."""
    share: float
    """The same as a part of `span_s`, 0 to 1."""
    worst_s: float
    """The longest of those waits."""


class Stragglers(Struct, frozen=True):
    """How late the ranks came to the launches of a cell."""

    agreement_count: int
    span_s: float
    """From the first arrival to the last decision; the longest, if ranks of different hosts never launch together."""
    ranks: tuple[RankDelays, ...]
    """The rank first that the others waited for longest."""
    named: tuple[int, ...] = ()
    """The rank that stands out, or the ranks of the host that does; empty if none does."""
    delays_s: Mapping[int, tuple[float, ...]] = {}
    """By rank: how long after the first one it came to each launch; nan where it took no part."""
    clock_error_s: float = 0.0
    """By how much times of different hosts may be wrong; 0 on one host."""
    dropped_count: int = 0
    """How many older launches are not included."""
    cell_name: str = ""
    """The cell, such as `In [7]`; empty for the launches of several cells."""


# -- align clocks


class ClockBound(NamedTuple):
    """Between what a clock may be ahead of another one, in ns."""

    low_ns: int
    high_ns: int
    at_ns: int
    """When that was found, by the other clock."""


ClockBounds: TypeAlias = Mapping[tuple[str, str], ClockBound]
"""By how much the second clock of each pair is ahead of the first."""


class ClockOffsets(NamedTuple):
    """The ns to subtract from each clock, and the largest error."""

    by_clock: Mapping[str, int]
    groups: Mapping[str, str]
    """Of each clock, the one to which it is aligned: another one where their ranks had no launch in common."""
    error_ns: int


_Launch: TypeAlias = Mapping[int, Arrival]
"""By rank."""


def bound_offsets(launches: Iterable[_Launch], clocks: Mapping[int, str]) -> dict[tuple[str, str], ClockBound]:
    """Bound how far clocks are ahead of each other.

    For a launch of ranks with clock A and ranks with clock B, which is ahead by o: d_A + o >= a_B and d_B - o >= a_A, where a is
    an arrival and d a decision. All launches together leave an interval for o.

    Args:
        launches: what each participant noted.
        clocks: of each rank.
    """
    order = _order_clocks(clocks)
    bounds: dict[tuple[str, str], ClockBound] = {}
    for launch in launches:
        last: dict[str, int] = {}
        decided: dict[str, int] = {}
        for rank, arrival in launch.items():
            clock = clocks[rank]
            last[clock] = max(last.get(clock, arrival.arrived_ns), arrival.arrived_ns)
            decided[clock] = min(decided.get(clock, arrival.decided_ns), arrival.decided_ns)
        first, *others = sorted(last, key=order.__getitem__)
        for clock in others:
            low, high = last[clock] - decided[first], decided[clock] - last[first]
            known = bounds.get((first, clock), ClockBound(low, high, decided[first]))
            bounds[first, clock] = ClockBound(max(known.low_ns, low), min(known.high_ns, high), decided[first])
    return bounds


def _order_clocks(clocks: Mapping[int, str]) -> dict[str, int]:
    return {clocks[rank]: rank for rank in sorted(clocks, reverse=True)}


def merge_bounds(earlier: ClockBounds, later: ClockBounds) -> ClockBounds:
    """Combine earlier and later bounds, widening the earlier ones by the drift.

    >>> merge_bounds({("a", "b"): ClockBound(-9, 7, 0)}, {("a", "b"): ClockBound(-2, 50, 100_000)})
    {('a', 'b'): ClockBound(low_ns=-2, high_ns=12, at_ns=100000)}
    """
    merged = dict(earlier)
    for pair, new in later.items():
        old = earlier.get(pair, new)
        drift_ns = round(_DRIFT * abs(new.at_ns - old.at_ns))
        low, high = max(new.low_ns, old.low_ns - drift_ns), min(new.high_ns, old.high_ns + drift_ns)
        # Clocks that were set, or drifted more than usual, leave no interval.
        merged[pair] = ClockBound(low, high, new.at_ns) if low <= high else new
    return merged


def align_clocks(bounds: ClockBounds, clocks: Mapping[int, str]) -> ClockOffsets:
    """Find how far clocks are ahead of their group's lowest rank's clock.

    The middle of each interval is taken, and half of it is the error.

    Args:
        bounds: of pairs of clocks.
        clocks: of each rank.
    """
    neighbors: dict[str, list[tuple[str, int, int]]] = {clock: [] for clock in _order_clocks(clocks)}
    for (first, second), bound in bounds.items():
        if first in neighbors and second in neighbors:
            middle, half = (bound.low_ns + bound.high_ns) // 2, abs(bound.high_ns - bound.low_ns) // 2
            neighbors[first].append((second, middle, half))
            neighbors[second].append((first, -middle, half))
    offsets: dict[str, int] = {}
    groups: dict[str, str] = {}
    errors: dict[str, int] = {}
    for root in sorted(neighbors, key=_order_clocks(clocks).__getitem__):
        if root in offsets:
            continue
        offsets[root], groups[root], errors[root] = 0, root, 0
        waiting = deque([root])
        while waiting:
            clock = waiting.popleft()
            for other, middle, half in neighbors[clock]:
                if other not in offsets:
                    offsets[other], groups[other] = offsets[clock] + middle, root
                    errors[other] = errors[clock] + half
                    waiting.append(other)
    return ClockOffsets(offsets, groups, max(errors.values(), default=0))


# -- stragglers


def measure_stragglers(
    arrivals: Mapping[int, Iterable[Arrival]],
    clocks: Mapping[int, str],
    hosts: Mapping[int, str],
    *,
    bounds: ClockBounds | None = None,
    dropped_count: int = 0,
) -> Stragglers | None:
    """Measure how late ranks came to launches; None without a shared launch.

    Args:
        arrivals: of each rank.
        clocks: identifies each rank's clock.
        hosts: the host of each rank.
        bounds: what is known of the clocks; None to find it from these launches alone.
        dropped_count: how many older launches are not in `arrivals`.
    """
    launches = _match_launches(arrivals, max(clocks, default=0) + 1)
    if not launches:
        return None
    offsets = align_clocks(bound_offsets(launches, clocks) if bounds is None else bounds, clocks)
    ahead_ns = {rank: offsets.by_clock[clock] for rank, clock in clocks.items()}
    group = {rank: offsets.groups[clock] for rank, clock in clocks.items()}
    came: list[dict[int, float]] = []
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    for launch in launches:
        times = {rank: (each.arrived_ns - ahead_ns[rank]) * _NS for rank, each in launch.items()}
        last_s = max((each.decided_ns - ahead_ns[rank]) * _NS for rank, each in launch.items())
        own = group[next(iter(launch))]
        begins[own] = min(begins.get(own, last_s), *times.values())
        ends[own] = max(ends.get(own, last_s), last_s)
        came.append(times)
    came.sort(key=lambda times: (group[next(iter(times))], max(times.values())))
    spans_s = {rank: ends[own] - begins[own] for rank, own in group.items() if own in begins}
    error_s = offsets.error_ns * _NS
    rows = _measure_ranks(came, spans_s, error_s)
    return Stragglers(
        len(came),
        max(spans_s.values()),
        rows,
        _find_standing_out(came, rows, spans_s, hosts, error_s),
        _list_delays(came, sorted(arrivals)),
        error_s,
        dropped_count,
    )


def _match_launches(arrivals: Mapping[int, Iterable[Arrival]], process_count: int) -> list[_Launch]:
    """Return the launches that all their participants have noted."""
    noted: dict[tuple[str, tuple[int, int]], dict[int, Arrival]] = {}
    for rank, own in arrivals.items():
        for arrival in own:
            noted.setdefault((arrival.participants, arrival.number), {})[rank] = arrival
    members = {text: _parse_members(text, process_count) for text, _ in noted}
    return [launch for (text, _), launch in noted.items() if len(launch) > 1 and launch.keys() == members[text]]


def _parse_members(text: str, process_count: int) -> frozenset[int]:
    try:
        return frozenset(parse_ranks(text, process_count))
    except InvalidRequest:
        # A rank that does not exist: such a launch is never complete.
        return frozenset()


_Arrivals = Sequence[Mapping[int, float]]
"""Of each launch, when each rank came to it, in seconds."""


def _measure_ranks(arrivals: _Arrivals, spans_s: Mapping[int, float], error_s: float) -> tuple[RankDelays, ...]:
    waits: dict[int, list[float]] = {rank: [] for each in arrivals for rank in each}
    late_counts = dict.fromkeys(waits, 0)
    counts = dict.fromkeys(waits, 0)
    for each in arrivals:
        for rank in each:
            counts[rank] += 1
        last = max(each, key=lambda rank: (each[rank], -rank))
        others = [arrived for rank, arrived in each.items() if rank != last]
        # Many equal times have a mean that rounding can put after them.
        waits[last].append(max(0.0, each[last] - sum(others) / len(others)))
        late_counts[last] += each[last] - max(others) >= _LATE_S + error_s
    rows = [
        RankDelays(
            rank,
            counts[rank],
            len(own),
            late_counts[rank],
            sum(own),
            min(1.0, sum(own) / spans_s[rank]) if spans_s[rank] > 0 else 0.0,
            max(own, default=0.0),
        )
        for rank, own in waits.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.waited_s, row.rank)))


def _find_standing_out(
    arrivals: _Arrivals,
    rows: Sequence[RankDelays],
    spans_s: Mapping[int, float],
    hosts: Mapping[int, str],
    error_s: float,
) -> tuple[int, ...]:
    """Return the straggling rank, or else the ranks of a straggling host."""
    if stands_out(rows):
        return (rows[0].rank,)
    by_host: dict[str, list[int]] = {}
    for row in rows:
        by_host.setdefault(hosts[row.rank], []).append(row.rank)
    if len(by_host) < 2 or len(by_host) == len(rows):
        return ()
    # A host has come once its first rank has: if even that one is later than all other hosts, the host is late.
    number = {host: index for index, host in enumerate(by_host)}
    units = []
    for each in arrivals:
        firsts: dict[int, float] = {}
        lasts: dict[int, float] = {}
        for rank, arrived in each.items():
            at = number[hosts[rank]]
            firsts[at], lasts[at] = min(firsts.get(at, arrived), arrived), max(lasts.get(at, arrived), arrived)
        latest = max(firsts, key=lambda at: firsts[at])
        if len(firsts) > 1:
            units.append({at: firsts[at] if at == latest else lasts[at] for at in firsts})
    host_spans_s = {number[hosts[rank]]: span_s for rank, span_s in spans_s.items() if hosts[rank] in number}
    host_rows = _measure_ranks(units, host_spans_s, error_s) if units else ()
    if not stands_out(host_rows):
        return ()
    return tuple(sorted(list(by_host.values())[host_rows[0].rank]))


def stands_out(rows: Sequence[RankDelays]) -> bool:
    """Return whether the first row stands out by frequency, share and cost."""
    if not rows:
        return False
    first, late = rows[0], sum(row.late_count for row in rows)
    return (
        first.late_count >= _MIN_LATE and first.late_count >= _MIN_LATE_SHARE * late and first.share >= _MIN_WAIT_SHARE
    )


def _list_delays(arrivals: _Arrivals, ranks: Sequence[int]) -> dict[int, tuple[float, ...]]:
    firsts = [min(each.values()) for each in arrivals]
    return {
        rank: tuple(each.get(rank, float("nan")) - first for each, first in zip(arrivals, firsts, strict=True))
        for rank in ranks
    }


def list_stragglers(stragglers: Stragglers) -> dict[str, Any]:
    """Convert a `Stragglers` to JSON values, without the delays of each launch."""
    return {
        "cell": stragglers.cell_name,
        "launches": stragglers.agreement_count,
        "span_s": stragglers.span_s,
        "stands_out": list(stragglers.named),
        "clock_error_s": stragglers.clock_error_s,
        "dropped": stragglers.dropped_count,
        "ranks": [
            {
                "rank": row.rank,
                "launches": row.agreement_count,
                "last": row.last_count,
                "late": row.late_count,
                "waited_s": row.waited_s,
                "share": row.share,
                "worst_s": row.worst_s,
            }
            for row in stragglers.ranks
        ],
    }


# -- texts


def describe_standing_out(stragglers: Stragglers) -> str:
    """Describe the straggling rank, or a host's ranks; empty without stragglers."""
    if not stragglers.named:
        return ""
    rows = [row for row in stragglers.ranks if row.rank in stragglers.named]
    last, share = sum(row.last_count for row in rows), sum(row.share for row in rows)
    waited_s = sum(row.waited_s for row in rows)
    of = f"the last {stragglers.agreement_count}" if stragglers.dropped_count else str(stragglers.agreement_count)
    waited = f"{waited_s:.2g}" if waited_s < 1 else f"{waited_s:.1f}"
    return (
        f"{describe_ranks(stragglers.named)} came last at {last} of {of} launches; "
        f"the others waited {waited} s, {share:.0%} of the time"
    )
