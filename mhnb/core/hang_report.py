"""The hang report: which ranks wait, where, and which are missing.

One sample of a rank's main thread shows what it is doing: waiting in a launch, in a lock, compiling, computing. This is decided
from plain frames, from processor use, and from the launch in flight, without threads or JAX. The few function names that it
looks for only distinguish kinds of work.

The report is built from each rank's latest two samples. A rank has reached a launch if it counted enough launches of the same
participants. Stacks cannot show this: those of a rank that waits and of one that lags can be identical.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from mhnb.core.flight import FlightEvent
from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.guard.launches import has_collectives
from mhnb.core.messages import RankStatus
from mhnb.types import Outcome

UNRESPONSIVE_AFTER_S = 4.0
"""A rank that has not reported for so long is halted, or in one long call that lets no other thread run."""
_SILENT_S = 3.0
RANK_WAITS = ("launch", "agreement", "barrier")
"""Activities of a rank that waits for other ranks."""
_LOCAL_WAITS = ("lock", "blocked", "await")
_NO_EVENTS: Mapping[int, FlightEvent] = MappingProxyType({})
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
    is_stopped: bool = False
    """Whether it is stopped in the debugger. Its samples show the debugger then, so they do not count."""
    stop_line: int | None = None
    """The cell's line at which it is stopped; None if it is in no line of the cell."""
    resumed_s: float | None = None
    """Seconds since it last left the debugger; None if it never was in it. Samples from before do not count."""

    @property
    def has_progressed(self) -> bool:
        """Return whether its samples differ, apart from time, or output arrived meanwhile.

        Output of another thread is no progress for a rank whose main thread waits for other ranks.
        """
        if self.is_stopped or self.latest is None or self.before is None:
            return False
        if "unseen" in (self.latest.activity, self.before.activity):
            return False
        is_printing = self.has_output and self.latest.activity not in RANK_WAITS
        return is_printing or _sample_key(self.latest) != _sample_key(self.before)

    @property
    def counts(self) -> Mapping[tuple[int, ...], int]:
        """Return its known number of launches for each set of participants."""
        if self.latest is None or self.outcome != "running":
            return count_launches(self.launches)
        return {each.participants: each.count for each in self.latest.counts}


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

    >>> count_launches([LaunchRow("f", "jit(f)", (0, 1), 1, 3), LaunchRow("g", "jit(g)", (0, 1), 2, 1)])
    {(0, 1): 4}
    """
    counts: dict[tuple[int, ...], int] = {}
    for row in rows:
        if has_collectives(row.fingerprint):
            counts[row.participants] = counts.get(row.participants, 0) + row.count
    return counts


@dataclass(frozen=True, slots=True)
class ThreadLocation:
    """A cell's thread on a rank whose main thread waits."""

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
    """An `Activity`; or stopped, ended, silent, unknown, outside, and the outcomes of a lost rank.

    `stopped` is in the debugger.
    """
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
    """Ranks that wait for others; without such ranks, those that wait in a lock."""
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
    """Whether to show the report without a request: some ranks wait, or none makes progress.

    Never while a rank is stopped in the debugger, because the user knows why the others wait.
    """
    places: tuple[RankLocation, ...] = field(default=())
    """All ranks, equal places merged, by first rank."""
    memory_nbytes: Mapping[int, int] = field(default_factory=dict)
    """Memory that each process used at its latest sample."""
    stopped: tuple[int, ...] = ()
    """Ranks that are stopped in the debugger."""
    last_events: Mapping[int, FlightEvent] = field(default_factory=dict)
    """What the flight recorders of ranks that wait for no other have last in this cell."""


def build_hang_report(
    seq: int,
    source: str,
    snapshots: Sequence[RankSnapshot],
    *,
    age_s: float,
    last_events: Mapping[int, FlightEvent] = _NO_EVENTS,
) -> HangReport:
    """Build the hang report.

    Args:
        seq: the cell's number.
        source: its text, with the line numbers that the notebook shows.
        snapshots: every rank of the cluster, in order.
        age_s: how long the cell has run.
        last_events: what the flight recorders of ranks have last, if that is known.

    >>> build_hang_report(5, "f()", [RankSnapshot(0, "ok"), RankSnapshot(1)], age_s=9.0).places[1].activity
    'silent'
    """
    snapshots = [_drop_samples_of_stop(snapshot) for snapshot in snapshots]
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
    stopped = tuple(one.rank for one in running if one.is_stopped)
    known = all(one.is_stopped or (one.latest and one.before) or _is_silent(one, age_s) for one in running)
    return HangReport(
        seq,
        waiting,
        absent,
        launch=max(names, key=names.count) if names else None,
        lines={one.rank: _find_line(one) for one in snapshots},
        age_s=max(waits_s, default=age_s),
        progress=bool(moved),
        moved=moved,
        known=known,
        stuck=known and not stopped and (bool(waiting) or not moved),
        places=_merge_locations(snapshots, source.splitlines(), age_s),
        memory_nbytes={one.rank: one.latest.memory_nbytes for one in snapshots if one.latest is not None},
        stopped=stopped,
        last_events={
            rank: event for rank, event in last_events.items() if event.cell == seq and rank not in (*waiting, *stopped)
        },
    )


def _drop_samples_of_stop(snapshot: RankSnapshot) -> RankSnapshot:
    """Remove samples from inside the debugger, which look like a wait."""
    if snapshot.resumed_s is None or snapshot.is_stopped or snapshot.sample_age_s < snapshot.resumed_s:
        return snapshot
    return replace(snapshot, latest=None, before=None)


def _find_line(snapshot: RankSnapshot) -> int | None:
    if snapshot.outcome != "running":
        return None
    if snapshot.is_stopped:
        return snapshot.stop_line
    return snapshot.latest.line if snapshot.latest else None


def _find_waiting(snapshots: Sequence[RankSnapshot], age_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # A rank that makes progress waits for no other rank, and its launch count is from another moment than the others'.
    running = [one for one in snapshots if one.outcome == "running" and not one.is_stopped]
    idle = [snapshot for snapshot in running if not snapshot.has_progressed]
    active = {one.rank: _find_wait(one.latest)[0] for one in idle if one.latest is not None}
    missing = {one.rank: _find_missing(one, snapshots, age_s) for one in idle if active.get(one.rank) in RANK_WAITS}
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
    """Return a rank's activity and name, or those of a waiting thread."""
    launches = [(each.activity, each.what) for each in status.threads if each.activity in RANK_WAITS]
    return launches[0] if launches and status.activity in _LOCAL_WAITS else (status.activity, status.what)


def _find_missing(snapshot: RankSnapshot, snapshots: Sequence[RankSnapshot], age_s: float) -> set[int]:
    """Return the ranks that have not reached this rank's waiting point."""
    status = snapshot.latest
    assert status is not None
    if status.participants is None or status.launch_number is None:
        return {other.rank for other in snapshots if _is_elsewhere(other, _find_wait(status)[0], age_s)}
    key, number = tuple(status.participants), status.launch_number
    others = [other for other in snapshots if other.rank in key and other.rank != snapshot.rank]
    return {
        other.rank
        for other in others
        if _is_known(other, age_s) and (other.counts.get(key, 0) < number or _is_in_callback(other))
    }


def _is_in_callback(snapshot: RankSnapshot) -> bool:
    return snapshot.outcome == "running" and snapshot.latest is not None and snapshot.latest.activity == "callback"


def _is_elsewhere(snapshot: RankSnapshot, activity: str, age_s: float) -> bool:
    if not _is_known(snapshot, age_s):
        return False
    if snapshot.outcome != "running" or snapshot.is_stopped or snapshot.latest is None:
        return True
    return _find_wait(snapshot.latest)[0] != activity


def _is_known(snapshot: RankSnapshot, age_s: float) -> bool:
    """Return whether a rank's location is known: it ended, stopped or reports."""
    if snapshot.outcome != "running" or snapshot.is_stopped:
        return True
    return snapshot.latest is not None and snapshot.latest.activity != "unseen" and not _is_silent(snapshot, age_s)


def _is_silent(snapshot: RankSnapshot, age_s: float) -> bool:
    if snapshot.outcome != "running" or snapshot.is_stopped:
        return False
    if snapshot.latest is None:
        return (age_s if snapshot.resumed_s is None else snapshot.resumed_s) > UNRESPONSIVE_AFTER_S
    return snapshot.sample_age_s > _SILENT_S


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
        replace(place, ranks=ranks, number=place.number if is_distinguishing else None) for ranks, place in found
    )


def _locate_rank(snapshot: RankSnapshot, source: Sequence[str], age_s: float) -> RankLocation:
    status = snapshot.latest
    if snapshot.outcome != "running":
        return RankLocation((), {"ok": "ended", "skipped": "outside"}.get(snapshot.outcome, snapshot.outcome))
    if snapshot.is_stopped:
        return _locate_stop(snapshot, source)
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


def _locate_stop(snapshot: RankSnapshot, source: Sequence[str]) -> RankLocation:
    line, status = snapshot.stop_line, snapshot.latest
    # The sample may be from before the stop. In the same line its frame helps; in another one it would mislead.
    is_same_line = status is not None and line is not None and status.line == line
    place = status.user_frame if status is not None and is_same_line else ""
    return RankLocation((), "stopped", line=line, code=_line_text(source, line), place=place)


def _locate_threads(status: RankStatus, source: Sequence[str]) -> tuple[ThreadLocation, ...]:
    counts: dict[ThreadLocation, int] = {}
    for thread in status.threads:
        code = _line_text(source, thread.line)
        found = ThreadLocation(thread.name, thread.activity, thread.what, thread.line, code, thread.user_frame)
        counts[found] = counts.get(found, 0) + 1
    return tuple(replace(found, count=count) for found, count in counts.items())


def _line_text(source: Sequence[str], line: int | None) -> str:
    return source[line - 1].strip() if line is not None and 1 <= line <= len(source) else ""


# -- classify a stack sample


Activity: TypeAlias = Literal[
    "launch",
    "agreement",
    "barrier",
    "lock",
    "sleep",
    "input",
    "io",
    "await",
    "compiling",
    "computing",
    "callback",
    "blocked",
    "unseen",
]
"""What a main thread does. The first three wait for other ranks; `blocked` waits for something that has no name here.

`callback`: its program waits for a function that it has called, and other ranks may wait for the rest of the program.
`unseen`: the sample failed, and the rank's log has the reason.
"""

_BUSY_CPUS = 0.1
"""Share of one processor between two samples. A rank that waits uses far less; 16 ranks that compute on two cores use more."""

_COMPILING_FUNCTIONS = re.compile(r"compil|lower(?:$|_|ing)|trace_to_jaxpr|jaxpr_to|_create_pjit_jaxpr")
"""Functions of JAX under which a program is traced, lowered or compiled."""
_LAUNCHING_FUNCTIONS = frozenset(
    {"assert_equal", "broadcast_one_to_all", "device_put", "make_array_from_callback", "process_allgather",
     "reached_preemption_sync_point", "sync_global_devices"}
)  # fmt: skip
"""Functions that launch programs of their own. Their names are more useful to the user than the programs' names."""
_WAITING_FUNCTIONS: dict[str, Activity] = {
    "sleep": "sleep",
    "input": "input",
    "wait_at_barrier": "barrier",
    **dict.fromkeys(("acquire", "__enter__", "join", "wait", "wait_for", "get", "put", "result"), "lock"),
    **dict.fromkeys(
        ("accept", "communicate", "connect", "fsync", "poll", "read", "readinto", "readline", "recv", "recv_into",
         "recvfrom", "run", "select", "send", "sendall", "waitpid", "write"),
        "io",
    ),
}  # fmt: skip
"""The activity of a thread that is in a function of this name of the standard library, or in C."""


_WRAPPERS = ("reraise_with_filtered_traceback", "cache_miss", "wrapper")
"""JAX functions that wrap a function of the user or of JAX's interface."""
OwnWait: TypeAlias = Literal["agreement", "earlier cell", "end of cell"]
"""What a function of the rank waits for in Python, where a signal ends the wait: the decision on a launch, collectives of an earlier
cell, or what the cell has launched.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str
    own_wait: OwnWait | None = None
    """Set for a function of the rank that waits in Python."""


@dataclass(frozen=True, slots=True)
class PendingLaunch:
    """The oldest unfinished launch that communicates."""

    name: str
    participants: tuple[int, ...]
    line: int | None
    """The line of the cell that made it."""
    number: int
    """Its number among the cell's launches of these participants, from 1."""
    is_launched: bool = True
    """False: the ranks have not agreed on it yet, and nothing was launched."""


@dataclass(frozen=True, slots=True)
class StackSample:
    """One sample of a rank's main thread."""

    frames: tuple[Frame, ...]
    """Innermost first, down to the cell's outermost; without the frames of the shell below it."""
    cell_file: str
    c_function: str = ""
    """The C function that the innermost frame is calling, as far as its text shows."""
    main_cpus: float = 0.0
    """Processors that the main thread used since the previous sample; 0 if it only waits."""
    compute_cpus: float = 0.0
    """The same for everything except Python's other threads; it includes the threads in which JAX computes."""
    pending_launch: PendingLaunch | None = None
    is_awaiting: bool = False
    """The cell awaits on the event loop; the frames are those of the awaited code."""


@dataclass(frozen=True, slots=True)
class RankActivity:
    """What a rank is doing, and where."""

    activity: Activity
    what: str
    """The launch, or the function that blocks; may be empty."""
    line: int | None
    """The cell's line; None once the cell's own code has ended."""
    user_frame: str
    """The innermost frame in a user's file, such as `data.py:31 read_shard`; empty if it is in the cell."""


TIMED_FILES = ("<timed exec>", "<timed eval>", "<magic-timeit>")
"""The file names that IPython's %%time and %%timeit use for the cell's text below its first line."""
CAPTURED_FILE = "<captured in cell {}>"
"""The file name of the text below %%capture."""


def classify_stack(sample: StackSample, stdlib: str) -> RankActivity:
    """Classify a stack sample.

    Args:
        sample: the sample.
        stdlib: the directory of Python's standard library.

    >>> classify_stack(StackSample((Frame("<cell 4>", 2, "<module>"),), "<cell 4>", c_function="sleep"), "/usr/lib/python3.11")
    RankActivity(activity='sleep', what='sleep', line=2, user_frame='')
    """
    origins = [_classify_file(frame.file, sample.cell_file, stdlib) for frame in sample.frames]
    depth = next((i for i, origin in enumerate(origins) if origin in ("cell", "user")), len(origins))
    library = [(frame.function, home) for frame, home in zip(sample.frames[:depth], origins, strict=False)]
    own_waits = {frame.own_wait for frame in sample.frames[:depth]}
    activity, what = _classify_activity(sample, library, own_waits, is_compiling=_is_compiling(sample.frames, origins))
    lines = [frame.line for frame, home in zip(sample.frames, origins, strict=True) if home == "cell"]
    line = lines[0] if lines else sample.pending_launch.line if sample.pending_launch else None
    user_frame = ""
    if depth < len(origins) and origins[depth] == "user":
        frame = sample.frames[depth]
        file = frame.file.rpartition("/")[2]
        # `<cell 3>`: a function that an earlier cell defines.
        user_frame = f"{file.strip('<>')}:{frame.line} {frame.function}"
    return RankActivity(activity, what, line, user_frame)


def _classify_file(file: str, cell_file: str, stdlib: str) -> str:
    if file == cell_file:
        return "cell"
    if "/jax/_src/" in file or "/site-packages/jax/" in file or "/site-packages/jaxlib/" in file:
        return "jax"
    if "/mhnb/rank/" in file:
        return "mhnb"
    if file.startswith("<frozen") or (file.startswith(stdlib) and "/site-packages/" not in file):
        return "stdlib"
    return "user"


def _is_compiling(frames: Sequence[Frame], origins: Sequence[str]) -> bool:
    # Anywhere on the stack, because the user's own function is the innermost while a program is traced.
    return any(
        origin == "jax" and _COMPILING_FUNCTIONS.search(f.function) for f, origin in zip(frames, origins, strict=True)
    )


def _classify_activity(
    sample: StackSample,
    library: Sequence[tuple[str, str]],
    own_waits: Collection[OwnWait | None],
    *,
    is_compiling: bool,
) -> tuple[Activity, str]:
    if "agreement" in own_waits:
        return "agreement", _name_launch(library, sample.pending_launch) or "the next launch"
    if "earlier cell" in own_waits:
        return "blocked", "a collective of an earlier cell, which may still be waiting"
    blocked = _find_blocked(sample, library)
    if blocked is not None:
        return blocked
    if is_compiling:
        return "compiling", ""
    if sample.pending_launch is not None and any(home in ("jax", "mhnb") for _, home in library):
        busy = sample.compute_cpus >= _BUSY_CPUS
        return "computing" if busy else "launch", _name_launch(library, sample.pending_launch)
    if sample.is_awaiting:
        return "await", sample.c_function
    if max(sample.main_cpus, sample.compute_cpus) >= _BUSY_CPUS:
        return "computing", ""
    if sample.pending_launch is not None:
        # A method of an array that is written in C: `x.block_until_ready()`.
        return "launch", _name_launch(library, sample.pending_launch)
    if "end of cell" in own_waits:
        # Without a recorded launch.
        return "blocked", "an array that is not ready"
    api = [function for function, home in library if home == "jax" and function not in _WRAPPERS]
    return "blocked", api[-1] if api else sample.c_function


def _find_blocked(sample: StackSample, library: Sequence[tuple[str, str]]) -> tuple[Activity, str] | None:
    """Return a waiting call in the standard library or idle C code."""
    innermost = library[0][1] if library else "user"
    if innermost in ("jax", "mhnb") and sample.c_function != "wait_at_barrier":
        return None
    standard = [function for function, origin in library if origin == "stdlib" and function in _WAITING_FUNCTIONS]
    if standard and innermost == "stdlib":
        return _WAITING_FUNCTIONS[standard[-1]], standard[-1]
    known = _WAITING_FUNCTIONS.get(sample.c_function)
    if known is None or (known != "sleep" and sample.main_cpus >= _BUSY_CPUS):
        return None
    return known, "with" if sample.c_function == "__enter__" else sample.c_function


def _name_launch(library: Sequence[tuple[str, str]], pending_launch: PendingLaunch | None) -> str:
    launchers = [function for function, origin in library if origin == "jax" and function in _LAUNCHING_FUNCTIONS]
    if launchers:
        return launchers[-1]
    return pending_launch.name.partition(" ")[0] if pending_launch else ""
