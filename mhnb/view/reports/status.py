"""The status of a cluster: a row for each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.types import ClusterState, RankInfo
from mhnb.view.document import (
    Cell,
    Document,
    Fold,
    InHtml,
    InText,
    Line,
    Part,
    Table,
    read_cell,
    split_rows,
    without_empty_columns,
)
from mhnb.view.html import name_hosts

_HEADER = ("rank", "host", "pid", "state", "devices", "memory", "last cell", "log")
_OPTIONAL_COLUMNS = ("memory", "last cell")
"""Columns that are left out if no rank has a value in them."""
_FAILED_OUTCOMES = ("error", "died", "killed", "refused")


@dataclass(frozen=True, slots=True)
class Status:
    """The content of `%mhjax status`."""

    heading: str
    """As `default · clean · generation 1 · 4 ranks × 2 CPU devices · guard lockstep`."""
    state: ClusterState
    ranks: tuple[RankInfo, ...]
    notes: tuple[str, ...] = ()


def build_status(status: Status) -> Document:
    """Build the status; of many ranks, those in unusual states come first."""
    hosts = name_hosts(status.ranks)
    cells = [_status_cells(rank, hosts[rank.rank]) for rank in status.ranks]
    table = without_empty_columns(_HEADER, cells, _OPTIONAL_COLUMNS)
    folder = _find_log_folder(status.ranks)
    rows = [_mark_row(table, at, folder) for at in range(len(cells))]
    shown, rest = split_rows(_order_by_state(status.ranks))
    parts: list[Part] = [Table(table.header, [rows[at] for at in shown])]
    if rest:
        states = {status.ranks[at].state for at in rest}
        label = f"{describe_ranks(status.ranks[at].rank for at in rest)} · {', '.join(sorted(states))}"
        parts.append(Fold(label, [Table(table.header, [rows[at] for at in rest])]))
    if folder:
        parts.append(Line(f"logs in {folder}", "quiet"))
    is_bad = status.state in ("dead", "tainted", "split")
    heading = Line(status.heading, "bad heading" if is_bad else "heading")
    return [heading, InText([table]), InHtml(parts), *map(Line, status.notes)]


def _status_cells(rank: RankInfo, host: str) -> tuple[str, ...]:
    pid, memory = "" if rank.pid is None else str(rank.pid), "" if rank.nbytes is None else format_nbytes(rank.nbytes)
    devices, log = str(len(rank.devices)), str(rank.log_path)
    return str(rank.rank), host, pid, rank.state, devices, memory, rank.last_cell, log


def _find_log_folder(ranks: Sequence[RankInfo]) -> str:
    """Return the folder of all log files; empty if they differ."""
    folders = {str(rank.log_path).rpartition("/")[0] for rank in ranks}
    return folders.pop() if len(folders) == 1 else ""


def _mark_row(table: Table, at: int, folder: str) -> list[str | Cell]:
    """Mark what failed, and shorten the path of a log in `folder`."""
    row: list[str | Cell] = []
    for name, cell in zip(table.header, table.rows[at], strict=True):
        text = read_cell(cell)
        is_bad = name == "last cell" and text.endswith(_FAILED_OUTCOMES)
        is_bad |= name == "state" and text not in ("alive", "stopped")
        text = text.removeprefix(f"{folder}/") if name == "log" and folder else text
        row.append(Cell(f"✗ {text}", is_bad=True) if is_bad else text)
    return row


def _order_by_state(ranks: Sequence[RankInfo]) -> Sequence[int]:
    """Return the ranks' indexes; of many, those in unusual states come first."""
    if not split_rows(ranks)[1]:
        return range(len(ranks))
    usual, _ = Counter(map(_state_of, ranks)).most_common(1)[0]
    return sorted(range(len(ranks)), key=lambda at: (_state_of(ranks[at]) == usual, at))


def _state_of(rank: RankInfo) -> tuple[str, str]:
    return rank.state, rank.last_cell
