"""Collect a cell's trace: a timeline of all ranks, and their profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from mhnb.cluster.requests import RankClient, TransferJob, await_reply, interrupting_requests, run_jobs
from mhnb.core.cell_name import number_lines
from mhnb.core.cell_request import strip_leading_blank_lines
from mhnb.core.flight import FlightEvent, RankFlight
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.core.stragglers import ClockOffsets
from mhnb.core.trace import (
    RankTrace,
    TraceReport,
    TraceSource,
    build_timeline,
    describe_problems,
    match_collectives,
    measure_ranks,
    sum_collectives,
    unpack_trace,
)
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.system.private_files import NotPrivate
from mhnb.system.run_dir import expand_user
from mhnb.system.trace import (
    append_to_profile,
    default_trace_folder,
    find_free_name,
    make_trace_folder,
    profile_path,
    timeline_path,
    write_summary,
    write_timeline,
)
from mhnb.types import RankInfo

_PART_NBYTES = 4 << 20
_BY_SYSTEM_CLOCKS = (
    "without a launch under lockstep to align them by, the clocks of the hosts are the systems' own, which may differ"
)
_LARGE_ERROR_NS = 1_000_000
"""A clock error that a reader of the timeline should know."""


@dataclass(frozen=True, slots=True)
class TracedCell:
    """A traced cell that has ended."""

    result: CellResult
    first_line: int
    """The number that the notebook gives its first line that is not blank."""
    describe_ranks: Callable[[], Sequence[RankInfo]]
    read_flights: Callable[[], Sequence[RankFlight]]
    align_clocks: Callable[[], tuple[Mapping[int, int], ClockOffsets]]
    """Returns how far the clock of each rank is ahead, in ns, and what that is from."""


def make_user_folder(folder: object) -> Path:
    """Create the user's folder for trace files, unless it exists.

    Raises:
        InvalidRequest: it is not a path, or there can be no such folder.
    """
    if not isinstance(folder, str | Path) or not str(folder):
        raise InvalidRequest(f"trace={folder!r:.80}: expected True, or the path of a folder")
    try:
        path = expand_user(folder, "--trace").absolute()
        make_trace_folder(path, is_private=False)
    except FileExistsError:
        raise InvalidRequest(f"--trace {folder}: it is a file; expected a folder, which may be new") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidRequest(f"--trace {str(folder)!r:.300}: {reason}; expected a folder, which may be new") from error
    return path


def collect_trace(client: RankClient, cell: TracedCell, run_dir: Path, folder: Path | None) -> TraceReport:
    """Collect and write the trace of a cell.

    The notes have what is missing and why; no failure loses the cell's result.

    Args:
        client: the cluster.
        cell: the cell.
        run_dir: of the cluster.
        folder: for the files; None for the cluster's own.
    """
    files = folder or default_trace_folder(run_dir)
    notes: list[str] = []
    result = cell.result
    report = TraceReport(result.seq, result.name, str(files), "", execution_count=result.execution_count)
    try:
        traces = _read_traces(client, result)
        sources, clock_notes = _make_sources(cell, traces)
        notes += [*describe_problems(sources), *clock_notes]
        runs = match_collectives(sources)
        ranks, span_s = measure_ranks(sources, runs)
        report = replace(report, ranks=ranks, collectives=sum_collectives(sources, runs), span_s=span_s)
        try:
            make_trace_folder(files, is_private=folder is None)
            name = find_free_name(files, result.seq)
            path = timeline_path(files, name)
            # The rank's lines are those that end with a line feed; `splitlines` knows more ends.
            source = number_lines(strip_leading_blank_lines(result.source), cell.first_line)
            code = dict(enumerate(source.split("\n"), start=1))
            write_timeline(path, build_timeline(sources, runs, cell_name=report.cell_name, code=code))
            report = replace(report, path=str(path))
            write_summary(files, name, replace(report, notes=tuple(notes)))
            notes += _fetch_profiles(client, result.seq, traces, files, name)
        except (NotPrivate, OSError) as error:
            notes.append(f"not all files of the trace could be written: {error}")
        _release(client, result.seq, traces)
    except KeyboardInterrupt:
        written = "the timeline is written, but not all profiles are" if report.path else "nothing was written"
        notes.append(f"Ctrl-C ended the collection of the trace: {written}")
    except Exception as error:  # noqa: BLE001 - the cell has ended, and its result must not be lost
        notes.append(f"the trace could not be collected: internal error of mhnb, please report it: {error!r:.300}")
    report = replace(report, notes=tuple(notes))
    _keep_summary(run_dir, report)
    return report


def _keep_summary(run_dir: Path, report: TraceReport) -> None:
    """Write the summary where `trace` looks for it, even after other failures."""
    folder = default_trace_folder(run_dir)
    with suppress(NotPrivate, OSError):
        make_trace_folder(folder, is_private=True)
        write_summary(folder, f"cell{report.seq}", report)


def _release(client: RankClient, seq: int, traces: Mapping[int, RankTrace]) -> None:
    """Free the ranks' profiles without waiting, because lost ranks have none."""
    for rank, trace in traces.items():
        if trace.ended_ns:
            client.ask(rank, "release_trace", {"seq": seq})


def _read_traces(client: RankClient, result: CellResult) -> dict[int, RankTrace]:
    """Return what each rank recorded; of a rank that cannot answer, why."""
    traces: dict[int, RankTrace] = {}
    with interrupting_requests(client):
        for rank, future in client.ask_all((each.rank for each in result), "trace", {"seq": result.seq}).items():
            try:
                traces[rank] = unpack_trace(await_reply(rank, "trace", future).payload[0])
            except (MhnbError, ValueError, IndexError) as error:
                traces[rank] = RankTrace(problem=f"no profile: {str(error).partition(chr(10))[0]}")
    return dict(sorted(traces.items()))


def _make_sources(cell: TracedCell, traces: Mapping[int, RankTrace]) -> tuple[list[TraceSource], list[str]]:
    """Return each rank's trace source, with aligned clocks, and notes."""
    flights = {flight.rank: flight for flight in cell.read_flights() if flight.rank in traces}
    infos = {info.rank: info for info in cell.describe_ranks()}
    ahead, notes = _align(cell, flights, list(traces))
    sources = []
    for rank, trace in traces.items():
        info = infos[rank]
        events = _select_events(flights.get(rank), cell.result.seq)
        sources.append(TraceSource(rank, info.hostname or info.host, info.pid, trace, events, ahead[rank]))
    if lost := [rank for rank, flight in flights.items() if _has_lost_begin(flight, cell.result.seq)]:
        notes.append(
            f"the first agreements of {describe_ranks(lost)} are missing: the flight recorder keeps the last 4,096 events"
        )
    return sources, notes


def _select_events(flight: RankFlight | None, seq: int) -> tuple[FlightEvent, ...]:
    return () if flight is None else tuple(event for event in flight.events if event.cell == seq)


def _has_lost_begin(flight: RankFlight, seq: int) -> bool:
    return flight.dropped_count > 0 and bool(flight.events) and flight.events[0].cell == seq


def _align(
    cell: TracedCell, flights: Mapping[int, RankFlight], ranks: Sequence[int]
) -> tuple[Mapping[int, int], list[str]]:
    """Return each clock's lead over the first in ns, and accuracy notes."""
    ahead, offsets = cell.align_clocks()
    if len({offsets.groups[clock] for clock in offsets.groups}) <= 1:
        if offsets.error_ns < _LARGE_ERROR_NS:
            return ahead, []
        return ahead, [f"times of different hosts may be wrong by {offsets.error_ns / 1e6:.0f} ms"]
    # No launch under lockstep connects the hosts.
    headers = {rank: flight.header for rank, flight in flights.items() if flight.header is not None}
    by_wall = {rank: header.monotonic_ns - header.wall_ns for rank, header in headers.items()}
    first = next((by_wall[rank] for rank in ranks if rank in by_wall), 0)
    notes = [_BY_SYSTEM_CLOCKS]
    if unknown := [rank for rank in ranks if rank not in by_wall]:
        notes.append(
            f"the clock of {describe_ranks(unknown)} is not known: its times cannot be compared with the others"
        )
    return {rank: by_wall.get(rank, first) - first for rank in ranks}, notes


def _fetch_profiles(
    client: RankClient, seq: int, traces: Mapping[int, RankTrace], folder: Path, name: str
) -> list[str]:
    """Fetch each rank's profile in parts; return notes on failures."""
    failed: dict[str, list[int]] = {}
    for rank, trace in traces.items():
        path = profile_path(folder, name, rank)
        starts = range(0, trace.profile_nbytes, _PART_NBYTES)
        jobs = (_make_job(rank, seq, path, start, trace.profile_nbytes) for start in starts)
        try:
            run_jobs(client, jobs)
        except (MhnbError, OSError) as error:
            failed.setdefault(str(error), []).append(rank)
    return [f"{describe_ranks(same)}: no profile for XProf could be written: {why}" for why, same in failed.items()]


def _make_job(rank: int, seq: int, path: Path, start: int, size: int) -> TransferJob:
    def write(data: bytes) -> None:
        append_to_profile(path, data, is_first=start == 0)

    stop = min(size, start + _PART_NBYTES)
    return TransferJob(rank, "read_profile", {"seq": seq, "start": start, "stop": stop}, on_payload=write)
