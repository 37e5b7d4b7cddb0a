"""Convert the state of a cluster to the values that views show. No drawing happens here."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from mhnb.core.exchange.variables import VariableRow as VarFound
from mhnb.core.ranks import pluralize
from mhnb.system.processes import resident_nbytes
from mhnb.view.boards.start import RankStart, StartSnapshot, StartSummary
from mhnb.view.boards.tables import Status, StatusRow, VarTableRow
from mhnb.view.style import RankLocations

if TYPE_CHECKING:
    from mhnb.cluster import Cluster
    from mhnb.drive.roll import RankInfo, StartProgress

__all__ = [
    "locations_from_cluster",
    "snapshot_from_report",
    "status_from_cluster",
    "summary_from_cluster",
    "variable_rows",
]


_NOT_INITIALISED = "JAX is not initialised: jax.distributed.initialize() in a %%mhjax cell does it, without arguments"


def snapshot_from_report(report: StartProgress) -> StartSnapshot:
    """Return the view of a start in progress."""
    return StartSnapshot(_rank_starts(report.ranks), report.elapsed_s, report.standing, report.is_takeover)


def summary_from_cluster(cluster: Cluster) -> StartSummary:
    """Return the view of a completed start."""
    starts, notes = _rank_starts(cluster.ranks), cluster.notes
    if not cluster.shape.init:
        # JAX is not initialised and does not know its devices yet, so show the requested number.
        starts = tuple(replace(start, devices=cluster.shape.devices or 0) for start in starts)
        notes = (*notes, _NOT_INITIALISED)
    return StartSummary(
        starts,
        cluster.started_in_s,
        cluster.jax_version,
        cluster.guard,
        platform=_platform_name(cluster),
        location="on this machine" if cluster.shape.is_local else f"by {cluster.shape.kind or cluster.shape.profile}",
        log_dir=str(cluster.log_dir),
        notes=notes,
        preflight_s=cluster.looked_in_s,
    )


def _rank_starts(ranks: Sequence[RankInfo]) -> tuple[RankStart, ...]:
    hostnames = _hostnames(ranks)
    return tuple(
        RankStart(r.rank, r.host, r.phase, r.pid, len(r.devices), hostnames.get(r.rank, ""), r.host_is_up)
        for r in ranks
    )


def _hostnames(ranks: Sequence[RankInfo]) -> dict[int, str]:
    """Return host names by rank; empty if all ranks are on this machine."""
    elsewhere = {rank.hostname for rank in ranks} - {"", socket.gethostname()}
    return {rank.rank: rank.hostname for rank in ranks} if elsewhere else {}


def _platform_name(cluster: Cluster) -> str:
    return (cluster.ranks[0].platform or "cpu").upper()


def status_from_cluster(cluster: Cluster, warnings: Sequence[str] = ()) -> Status:
    """Return the view of `%mhjax status`."""
    hostnames = _hostnames(cluster.ranks)
    rows = tuple(_status_row(r, hostnames.get(r.rank, "")) for r in cluster.ranks)
    if cluster.shape.is_local:
        rows = tuple(map(_add_memory, rows))
    shape = f"{pluralize(cluster.process_count, 'rank')} × {_format_devices(cluster)}"
    heading = f"{cluster.name} · {cluster.state} · generation {cluster.generation} · {shape} · guard {cluster.guard}"
    notes = [cluster.reason] if cluster.reason else []
    if not (cluster.shape.init or cluster.devices or cluster.state == "stopped"):
        notes.append(_NOT_INITIALISED)
    if cluster.refused_messages:
        notes.append(f"{cluster.refused_messages} messages without this cluster's signature were dropped")
    return Status(heading, cluster.state, rows, (*notes, *warnings))


def _format_devices(cluster: Cluster) -> str:
    if cluster.shape.devices is not None:
        return pluralize(cluster.shape.devices, "CPU device")
    return pluralize(len(cluster.devices) // cluster.process_count, "device")


def _status_row(rank: RankInfo, hostname: str) -> StatusRow:
    label = f"{rank.host} {hostname}".rstrip()
    row = StatusRow(rank.rank, label, rank.pid, rank.state, len(rank.devices), str(rank.log_path))
    return replace(row, nbytes=rank.nbytes if rank.state == "alive" else None, last_cell=rank.last_cell)


def _add_memory(row: StatusRow) -> StatusRow:
    """Add the resident memory of a local process, without a request to the rank."""
    alive = row.pid is not None and row.state == "alive"
    return replace(row, nbytes=resident_nbytes(row.pid or 0) if alive else None)


def locations_from_cluster(cluster: Cluster, environment: Mapping[str, str] | None = None) -> RankLocations:
    """Return the host and the log path of each rank.

    Args:
        cluster: the cluster of the ranks.
        environment: of the kernel; if given, the notebook's folder is included, provided that the Jupyter server set it.
    """
    ranks = cluster.ranks
    logs = {r.rank: str(r.log_path) for r in ranks}
    notebook = PurePath((environment or {}).get("JPY_SESSION_NAME", ""))
    # Files on another machine cannot be opened from the notebook, and older servers pass no absolute path.
    folder = str(notebook.parent) if notebook.is_absolute() and cluster.shape.is_local else ""
    return RankLocations(hosts={r.rank: r.host for r in ranks}, logs=logs, cluster=cluster.name, notebook_dir=folder)


def variable_rows(found: Sequence[VarFound]) -> tuple[VarTableRow, ...]:
    """Return the view of `%mhjax vars`."""
    return tuple(_var_row(row) for row in found)


def _var_row(row: VarFound) -> VarTableRow:
    facts = row.facts
    return VarTableRow(row.name, row.kind, facts.shape, row.dtype, facts.spec, facts.nbytes_per_device, row.differs)
