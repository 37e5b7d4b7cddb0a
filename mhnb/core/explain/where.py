"""The hang report: which ranks wait, in which launch and on which line; which ranks are missing, and where they are.

It is built from each rank's latest two samples. A rank has reached a launch if it counted enough launches of the same
participants. Stacks cannot show this: those of a rank that waits and of one that lags can be identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mhnb.core.guard.rules import has_collectives
from mhnb.core.wire.protocol import LaunchRow, RankStatus
from mhnb.values import Outcome

__all__ = [
    "HangReport",
    "RankLocation",
    "RankSnapshot",
    "ThreadLocation",
    "UNKNOWN_ACTIVITIES",
    "UNRESPONSIVE_AFTER_S",
    "build_hang_report",
    "count_launches",
]

UNRESPONSIVE_AFTER_S = 4.0
"""A rank that has not reported for so long is halted, or in one long call that lets no other thread run."""
_SILENT_S = 3.0
_RANK_WAITS = ("launch", "agreement", "barrier")
_LOCAL_WAITS = ("lock", "blocked", "await")
UNKNOWN_ACTIVITIES = ("silent", "unseen")
"""Activities of a rank whose location is unknown."""


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """What the notebook knows about one rank in the running cell."""

    rank: int
    outcome: Outcome = "running"
    """`skipped` for a rank that the cell was not sent to."""
    latest: RankStatus | None = None
    before: RankStatus | None = None
    sample_age_s: float = 0.0
    """Seconds since the latest sample arrived."""
    launches: Sequence[LaunchRow] = ()
    """Its launches, once it has ended the cell."""
    has_output: bool = False
    """Whether output arrived between its two samples, or after them."""

    @property
    def has_progressed(self) -> bool:
        """Return whether its two samples differ in anything but time, or output arrived meanwhile.

        Output of another thread is no progress for a rank whose main thread waits for other ranks.
        """
        if self.latest is None or self.before is None or "unseen" in (self.latest.activity, self.before.activity):
            return False
        is_printing = self.has_output and self.latest.activity not in _RANK_WAITS
        return is_printing or _sample_key(self.latest) != _sample_key(self.before)

    @property
    def counts(self) -> Mapping[tuple[int, ...], int]:
        """Return the number of its launches for each set of participants, as far as it is known."""
        if self.latest is None or self.outcome != "running":
            return count_launches(self.launches)
        return {tuple(participants): count for participants, count in self.latest.counts}


def _sample_key(status: RankStatus) -> tuple[object, ...]:
    return (
        status.activity,
        status.what,
        status.line,
        status.user_frame,
        status.counts,
        status.launch_number,
        status.threads,
    )


def count_launches(rows: Iterable[LaunchRow]) -> dict[tuple[int, ...], int]:
    """Count the launches in a record that communicate, by participants.

    >>> count_launches([["f", "jit(f)", [0, 1], 1, 3], ["g", "jit(g)", [0, 1], 2, 1]])
    {(0, 1): 4}
    """
    counts: dict[tuple[int, ...], int] = {}
    for fingerprint, _, participants, _, count in rows:
        if has_collectives(fingerprint):
            key = tuple(participants)
            counts[key] = counts.get(key, 0) + count
    return counts


@dataclass(frozen=True, slots=True)
class ThreadLocation:
    """A thread that the cell started, on a rank whose main thread waits."""

    name: str
    activity: str
    what: str = ""
    line: int | None = None
    code: str = ""
    place: str = ""
    count: int = 1
    """The number of threads at the same location."""


@dataclass(frozen=True, slots=True)
class RankLocation:
    """Ranks that are at the same location."""

    ranks: tuple[int, ...]
    activity: str
    """An `Activity`; or ended, silent, unknown, outside, and the outcomes of a lost rank."""
    what: str = ""
    """The launch, or the call that blocks."""
    line: int | None = None
    """The cell's line."""
    code: str = ""
    """The text of that line."""
    place: str = ""
    """The innermost frame in a user's file, such as `data.py:31 read_shard`."""
    number: int | None = None
    """The number of the launch among those of its participants; set only where the ranks differ in it."""
    threads: tuple[ThreadLocation, ...] = ()
    """Threads that the main thread may wait for."""


@dataclass(frozen=True, slots=True)
class HangReport:
    """The hang report: where every rank is in the running cell."""

    seq: int
    waiting: tuple[int, ...]
    """Ranks that wait for others; if there are none, ranks that wait in a lock."""
    absent: tuple[int, ...]
    """Ranks that they wait for: those that are known not to have reached the launch."""
    launch: str | None
    """What most of the waiting ranks wait in; None if no rank waits."""
    lines: Mapping[int, int | None]
    """The cell's line by rank; None for a rank that is no longer in a line of the cell."""
    age_s: float
    """How long the first of the waiting ranks has waited; the cell's own age if no rank waits."""
    progress: bool
    """Whether two samples, a second apart, differ on any rank."""
    moved: tuple[int, ...] = ()
    """The ranks whose samples differ."""
    known: bool = False
    """Whether every running rank has been sampled twice, or does not respond."""
    stuck: bool = False
    """Whether to show the report without a request: some ranks wait, or none makes progress."""
    places: tuple[RankLocation, ...] = field(default=())
    """All ranks, equal places merged, by first rank."""
    memory_nbytes: Mapping[int, int] = field(default_factory=dict)
    """Memory that each process used at its latest sample."""


def build_hang_report(seq: int, source: str, snapshots: Sequence[RankSnapshot], *, age_s: float) -> HangReport:
    """Build the hang report.

    Args:
        seq: the cell's number.
        source: its text.
        snapshots: every rank of the cluster, in order.
        age_s: how long the cell has run.

    >>> build_hang_report(5, "f()", [RankSnapshot(0, "ok"), RankSnapshot(1)], age_s=9.0).places[1].activity
    'silent'
    """
    waiting, absent = _find_waiting(snapshots, age_s)
    by_rank = {snapshot.rank: snapshot for snapshot in snapshots}
    statuses = [by_rank[rank].latest for rank in waiting]
    names = [_find_wait(status)[1] for status in statuses if status is not None]
    waits_s = [
        by_rank[r].sample_age_s + status.unchanged_s for r, status in zip(waiting, statuses, strict=True) if status
    ]
    running = [one for one in snapshots if one.outcome == "running"]
    # Progress from before a rank fell silent is not progress now.
    moved = tuple(one.rank for one in running if one.has_progressed and not _is_silent(one, age_s))
    known = all((one.latest and one.before) or _is_silent(one, age_s) for one in running)
    return HangReport(
        seq,
        waiting,
        absent,
        launch=max(names, key=names.count) if names else None,
        lines={one.rank: one.latest.line if one.latest and one.outcome == "running" else None for one in snapshots},
        age_s=max(waits_s, default=age_s),
        progress=bool(moved),
        moved=moved,
        known=known,
        stuck=known and (bool(waiting) or not moved),
        # IPython counts lines from the first one that is not empty.
        places=_merge_locations(snapshots, source.lstrip("\n").splitlines(), age_s),
        memory_nbytes={one.rank: one.latest.memory_nbytes for one in snapshots if one.latest is not None},
    )


def _find_waiting(snapshots: Sequence[RankSnapshot], age_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # A rank that makes progress waits for no other rank, and its launch count is from another moment than the others'.
    idle = [snapshot for snapshot in snapshots if snapshot.outcome == "running" and not snapshot.has_progressed]
    active = {one.rank: _find_wait(one.latest)[0] for one in idle if one.latest is not None}
    missing = {one.rank: _find_missing(one, snapshots, age_s) for one in idle if active.get(one.rank) in _RANK_WAITS}
    if missing:
        # A rank whose launch all participants have reached waits for no rank: it lags behind those that wait for it.
        waiting = {rank for rank, others in missing.items() if others} or set(missing)
        absent = {other for others in missing.values() for other in others} - waiting
        return tuple(sorted(waiting)), tuple(sorted(absent))
    locked = [rank for rank, activity in active.items() if activity in _LOCAL_WAITS]
    ran = [one.rank for one in snapshots if one.outcome != "skipped"]
    known = {one.rank for one in snapshots if _is_known(one, age_s)}
    return tuple(locked), tuple(rank for rank in ran if locked and rank not in locked and rank in known)


def _find_wait(status: RankStatus) -> tuple[str, str]:
    """Return the activity that a rank waits in, and its name: a launch also if its main thread waits for the thread in it."""
    launches = [(each[1], each[2]) for each in status.threads if each[1] in _RANK_WAITS]
    return launches[0] if launches and status.activity in _LOCAL_WAITS else (status.activity, status.what)


def _find_missing(snapshot: RankSnapshot, snapshots: Sequence[RankSnapshot], age_s: float) -> set[int]:
    """Return the ranks that have not reached the point where this rank waits."""
    status = snapshot.latest
    assert status is not None
    if status.participants is None or status.launch_number is None:
        return {other.rank for other in snapshots if _is_elsewhere(other, _find_wait(status)[0], age_s)}
    key, number = tuple(status.participants), status.launch_number
    others = [other for other in snapshots if other.rank in key and other.rank != snapshot.rank]
    return {other.rank for other in others if _is_known(other, age_s) and other.counts.get(key, 0) < number}


def _is_elsewhere(snapshot: RankSnapshot, activity: str, age_s: float) -> bool:
    if not _is_known(snapshot, age_s):
        return False
    return snapshot.outcome != "running" or snapshot.latest is None or _find_wait(snapshot.latest)[0] != activity


def _is_known(snapshot: RankSnapshot, age_s: float) -> bool:
    """Return whether the location of a rank is known; a rank that does not report is not counted as missing."""
    if snapshot.outcome != "running":
        return True
    return snapshot.latest is not None and snapshot.latest.activity != "unseen" and not _is_silent(snapshot, age_s)


def _is_silent(snapshot: RankSnapshot, age_s: float) -> bool:
    if snapshot.outcome != "running":
        return False
    return age_s > UNRESPONSIVE_AFTER_S if snapshot.latest is None else snapshot.sample_age_s > _SILENT_S


def _merge_locations(
    snapshots: Sequence[RankSnapshot], source: Sequence[str], age_s: float
) -> tuple[RankLocation, ...]:
    merged: dict[RankLocation, list[int]] = {}
    for snapshot in snapshots:
        merged.setdefault(_locate_rank(snapshot, source, age_s), []).append(snapshot.rank)
    found = [(tuple(ranks), place) for place, ranks in merged.items()]
    launches = {place.what for _, place in found}
    # The number of a launch is useful only where it distinguishes two ranks.
    is_distinguishing = len(launches) < len(found)
    return tuple(
        RankLocation(
            ranks,
            place.activity,
            place.what,
            place.line,
            place.code,
            place.place,
            number=place.number if is_distinguishing else None,
            threads=place.threads,
        )
        for ranks, place in found
    )


def _locate_rank(snapshot: RankSnapshot, source: Sequence[str], age_s: float) -> RankLocation:
    status = snapshot.latest
    if snapshot.outcome != "running":
        return RankLocation((), {"ok": "ended", "skipped": "outside"}.get(snapshot.outcome, snapshot.outcome))
    if status is None or _is_silent(snapshot, age_s):
        silent = _is_silent(snapshot, age_s)
        line = status.line if status else None
        return RankLocation((), "silent" if silent else "unknown", line=line, code=_line_text(source, line))
    number = status.launch_number if status.activity == "launch" else None
    code = _line_text(source, status.line)
    threads = _locate_threads(status, source)
    return RankLocation(
        (), status.activity, status.what, status.line, code, status.user_frame, number=number, threads=threads
    )


def _locate_threads(status: RankStatus, source: Sequence[str]) -> tuple[ThreadLocation, ...]:
    counts: dict[ThreadLocation, int] = {}
    for name, activity, what, line, place in status.threads:
        found = ThreadLocation(name, activity, what, line, _line_text(source, line), place)
        counts[found] = counts.get(found, 0) + 1
    return tuple(replace(found, count=count) for found, count in counts.items())


def _line_text(source: Sequence[str], line: int | None) -> str:
    return source[line - 1].strip() if line is not None and 1 <= line <= len(source) else ""
