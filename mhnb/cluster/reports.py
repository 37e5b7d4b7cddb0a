"""Reports of a cluster, for its notebook and for shells.

A report is a document, a sentence, or values for JSON. Shells ask the notebook's process for them.
`commands/reports.py` describes the commands that show them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mhnb.cluster import logs
from mhnb.cluster.flight import find_recorded_runs, read_run, write_report
from mhnb.cluster.metrics import MetricTable, write_csv
from mhnb.cluster.start_summary import NOT_INITIALISED
from mhnb.core.cell_name import find_cell, parse_cell_argument
from mhnb.core.flight import FlightReport
from mhnb.core.memory import parse_top, report_values
from mhnb.core.ranks import parse_ranks, pluralize
from mhnb.core.trace import TraceReport
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.rank.jax_private import backend_is_initialized
from mhnb.system.processes import resident_nbytes
from mhnb.system.run_dir import RunRecord
from mhnb.system.trace import read_summaries, write_page
from mhnb.types import RankInfo
from mhnb.view.document import Code, Document, Line, Part
from mhnb.view.print_text import print_text
from mhnb.view.reports.flight import build_flight, build_flights, build_stragglers
from mhnb.view.reports.hang import build_where
from mhnb.view.reports.memory import build_memory
from mhnb.view.reports.metrics import build_metrics
from mhnb.view.reports.status import Status, build_status
from mhnb.view.reports.trace import build_trace, format_open_text, format_trace_page

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Report:
    """What a command answers."""

    document: Document = ()
    note: str = ""
    """A sentence after the document, or in its place."""
    values: Callable[[], Mapping[str, Any]] | None = None
    """Returns what `--json` prints; None if there is no such form."""
    table: MetricTable | None = None
    """What `x = %mhjax metrics` is made of."""

    def format(self) -> str:
        """Return it as a terminal shows it."""
        return "\n".join(filter(None, (print_text(self.document), self.note)))


# -- the cluster now


def _report_status(cluster: Cluster) -> Report:
    ranks = tuple(map(_add_memory, cluster.ranks)) if cluster.shape.is_local else cluster.ranks
    shape = f"{pluralize(cluster.process_count, 'rank')} × {_format_devices(cluster)}"
    # Of a stopped cluster, ranks are alive only if this notebook has detached from them.
    is_detached = cluster.state == "stopped" and any(rank.state == "alive" for rank in ranks)
    state = "detached" if is_detached else cluster.state
    heading = f"{cluster.name} · {state} · generation {cluster.generation} · {shape} · guard {cluster.guard}"
    document = build_status(Status(heading, cluster.state, ranks, tuple(_list_notes(cluster))))
    return Report(document, values=partial(_status_values, cluster, ranks))


def _status_values(cluster: Cluster, ranks: Sequence[RankInfo]) -> dict[str, Any]:
    """Return the status with the keys of `mhnb status --json`."""
    return {
        "state": cluster.state,
        "reason": cluster.reason,
        "generation": cluster.generation,
        "guard": cluster.guard,
        "jax_version": cluster.jax_version,
        "log_dir": str(cluster.log_dir),
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "hostname": rank.hostname,
                "pid": rank.pid,
                "state": rank.state,
                "phase": rank.phase,
                "platform": rank.platform,
                "devices": len(rank.devices),
                "memory_bytes": rank.nbytes,
                "last_cell": rank.last_cell,
                "log": str(rank.log_path),
            }
            for rank in ranks
        ],
    }


def _list_notes(cluster: Cluster) -> list[str]:
    notes = [cluster.reason] if cluster.reason else []
    if not (cluster.shape.init or cluster.devices or cluster.state == "stopped"):
        notes.append(NOT_INITIALISED)
    if cluster.refused_messages:
        notes.append(f"{cluster.refused_messages} messages without this cluster's signature were discarded")
    if backend_is_initialized():
        # Its devices are not the ranks', and a GPU it uses is not theirs.
        notes.append(
            "this notebook has initialised its own JAX too; that JAX is separate from the ranks and their devices"
        )
    return notes


def _format_devices(cluster: Cluster) -> str:
    if cluster.shape.devices is not None:
        return pluralize(cluster.shape.devices, "CPU device")
    return pluralize(len(cluster.devices) // cluster.process_count, "device")


def _add_memory(rank: RankInfo) -> RankInfo:
    """Add a local process's resident memory, without asking the rank."""
    return replace(rank, nbytes=resident_nbytes(rank.pid)) if rank.pid and rank.state == "alive" else rank


def _report_where(cluster: Cluster, *, is_shell: bool = False) -> Report:
    report = cluster.where()
    if report is None:
        return Report(note="no cell is running")
    return Report(build_where(report, name=cluster.name, is_shell=is_shell))


def _report_memory(cluster: Cluster, top: int, ranks: str | None) -> Report:
    shown = parse_top(top)
    report = cluster.memory(ranks=ranks)
    return Report(build_memory(report, shown), values=partial(report_values, report))


def _report_metrics(cluster: Cluster, names: Sequence[str], cell: str | None, csv: str | None) -> Report:
    table = cluster.metrics
    if cell is not None:
        chosen = parse_cell_argument(cell)
        if chosen is None:
            raise InvalidRequest(f"--cell {cell!r}: expected a cell, such as In[7] or 7")
        table = MetricTable(table.metrics.select_cell(chosen))
    if names:
        table = MetricTable(table.metrics.select_names(names))
    if csv is not None:
        return Report(note=write_csv(table, Path(csv)), table=table)
    return Report(build_metrics(table.metrics, each=bool(names)), table=table)


def _report_logs(cluster: Cluster, ranks: str | None, lines: int) -> Report:
    return read_logs(cluster.ranks, ranks, lines)


def read_logs(source: Sequence[RankInfo] | RunRecord, ranks: str | None, lines: int) -> Report:
    """Return the report of `logs`, from ranks or a cluster's record."""
    if lines < 1:
        raise InvalidRequest(f"-n {lines}: expected a number of lines from 1")
    count = len(source.rank_pids) if isinstance(source, RunRecord) else len(source)
    chosen = None if ranks is None else parse_ranks(ranks, count, argument="logs")
    return Report([Code("\n".join(logs.format_rank_logs(logs.read_rank_logs(source, chosen, lines))))])


# -- what the ranks recorded


def _report_flight(cluster: Cluster, ranks: str | None, json: str | None, *, is_shell: bool = False) -> Report:
    report = cluster.flight()
    # A shell may show runs of several processes.
    return _build_flight(structs.replace(report, name=_full_name(cluster)) if is_shell else report, ranks, json)


def _full_name(cluster: Cluster) -> str:
    return cluster.log_dir.parent.name.rpartition(".")[0]


def _build_flight(report: FlightReport, ranks: str | None, json: str | None) -> Report:
    count = max(flight.rank for flight in report.flights) + 1
    chosen = None if ranks is None else parse_ranks(ranks, count, argument="--ranks")
    if json is not None:
        return Report(note=write_report(report, Path(json)))
    return Report(build_flight(report) if chosen is None else build_flights(report, chosen))


def _report_stragglers(cluster: Cluster, **flags: bool) -> Report:
    stragglers = cluster.flight().stragglers if flags["all"] else cluster.stragglers()
    if stragglers is None:
        return Report(note="no launch of several ranks under lockstep is recorded")
    return Report(build_stragglers(stragglers))


def _report_trace(cluster: Cluster, what: Sequence[str]) -> Report:
    return _build_trace(find_recorded_runs(os.environ, _full_name(cluster)), what, is_shell=False)


def _build_trace(runs: Sequence[Path], what: Sequence[str], *, is_shell: bool) -> Report:
    """Build the report of a cell's trace, by default the last one.

    Args:
        runs: the run directories, the newest first.
        what: the words of the command.
        is_shell: whether it is printed in a shell, with how to open the timeline.

    Raises:
        InvalidRequest: no cell was traced, the named one was not, or its timeline was removed.
    """
    is_open = list(what[:1]) == ["open"]
    traced = {run: read_summaries(run) for run in runs}
    run, report = _choose_trace(traced, " ".join(what[1:] if is_open else what))
    parts: list[Part] = [] if is_open else list(build_trace(report, is_shell=is_shell))
    if run != runs[0]:
        parts.append(Line(f"of an earlier run: {run.name}"))
    if is_open and not report.path:
        raise InvalidRequest(f"{report.cell_name} has no timeline. {' '.join(report.notes)}".rstrip())
    if report.path and (is_open or is_shell):
        page = write_page(report.path, partial(format_trace_page, report))
        parts.append(Code(format_open_text(report, str(page), has_xprof=shutil.which("xprof") is not None)))
    if is_shell and (others := [other.cell_name for other in traced[run] if other is not report]):
        parts.append(Line(f"other traced cells: {', '.join(others)}"))
    return Report(parts)


def _choose_trace(traced: Mapping[Path, Sequence[TraceReport]], typed: str) -> tuple[Path, TraceReport]:
    """Return the newest matching trace and its run; runs number cells separately."""
    names = ", ".join(report.cell_name for reports in reversed([*traced.values()]) for report in reports)
    known, fix = f". Traced: {names}" if names else "", "\n  Fix: %%mhjax --trace, as the first line of a cell"
    cell = parse_cell_argument(typed) if typed else None
    if typed and cell is None:
        raise InvalidRequest(f"{typed!r}: expected open, or a cell, such as In[7] or 7{known}")
    for run, reports in traced.items():
        seq = None if cell is None else find_cell(cell, {report.seq: report.execution_count for report in reports})
        matching = [report for report in reports if cell is None or report.seq == seq]
        if matching:
            return run, matching[-1]
    raise InvalidRequest(f"no cell was traced yet{fix}" if cell is None else f"{cell.name} was not traced{known}{fix}")


REPORTS: Mapping[str, Callable[..., Report]] = {
    "status": _report_status,
    "where": _report_where,
    "memory": _report_memory,
    "metrics": _report_metrics,
    "logs": _report_logs,
    "flight": _report_flight,
    "stragglers": _report_stragglers,
    "trace": _report_trace,
}
"""Every report by the name of its command: takes a cluster, and the command's arguments by name."""
_ASKS_RANKS = ("memory",)
_WITH_SHELL_FORM = ("where", "flight")


def answer_shell(cluster: Cluster, name: str, arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return a report for a shell, as text or as JSON values.

    Args:
        cluster: the cluster of this process.
        name: of the report.
        arguments: of the command; `as_json` for the values.

    Raises:
        MhnbError: there is no such report, or an argument is wrong.
    """
    if (build := REPORTS.get(name)) is None:
        raise ClusterError(f"the notebook's mhnb has no report {name!r}; it may be another version")
    if name in _ASKS_RANKS and (cell := cluster.running_cell):
        raise ClusterError(
            f"{cell} is running, and ranks report their {name} only between cells\n"
            f"  Fix: wait for it, or mhnb interrupt {cluster.name}"
        )
    others = {key: value for key, value in arguments.items() if key != "as_json"}
    report = build(cluster, **others, **({"is_shell": True} if name in _WITH_SHELL_FORM else {}))
    if arguments.get("as_json") and report.values is not None:
        return "", report.values()
    return report.format(), {}


# -- what can be read when no process answers


def _read_flight(name: str, ranks: str | None, json: str | None) -> Report:
    return _build_flight(read_run(find_recorded_runs(os.environ, name)[0]), ranks, json)


def _read_trace(name: str, what: Sequence[str]) -> Report:
    return _build_trace(find_recorded_runs(os.environ, name), what, is_shell=True)


RECORDED: Mapping[str, Callable[..., Report]] = {"flight": _read_flight, "trace": _read_trace}
"""Reports from the files of this machine, even of a cluster that has ended: take its name, and the command's arguments."""
