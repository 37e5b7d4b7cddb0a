"""Format a running cell as a few lines of text, redrawn in a terminal while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.output.alike import OutputGroup
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.view.boards.where import format_hang_text
from mhnb.view.cell.digest import Block, CellSummary, format_heading
from mhnb.view.cell.text import format_cell_text
from mhnb.view.live.frame import merge_tails, shows_hang
from mhnb.view.words import RankLocations

__all__ = ["format_running_text"]

_TAIL_LENGTHS = (12, 6, 3, 1)
"""Numbers of last lines per rank that are tried, until all fit."""


def format_running_text(
    snapshot: CellResult,
    locations: RankLocations | None = None,
    *,
    height: int,
    color: bool = False,
    has_recent_output: bool = False,
) -> str:
    """Format the state of a cell: busy ranks, the last lines of each group of ranks, failures, and where ranks hang.

    Args:
        snapshot: the cell as far as it has come.
        locations: host and log file of each rank.
        height: number of lines that fit; of more, the first and the last ones are kept.
        color: whether the text may contain colours.
        has_recent_output: whether something was printed recently. Then no rank counts as hanging, unless some wait for others.
    """
    known_locations = locations or RankLocations()
    below = [*_format_failures(snapshot), *_format_hang(snapshot, known_locations, has_recent_output=has_recent_output)]
    lines: list[str] = []
    for tail_length in _TAIL_LENGTHS:
        lines = [
            *_format_output(snapshot, known_locations, merge_tails(snapshot.ranks, tail_length), color=color),
            *below,
        ]
        if len(lines) <= height:
            break
    if len(lines) > height > 1:
        lines = [lines[0], *lines[len(lines) - height + 1 :]]
    return "\n".join(lines[:height])


def _format_output(
    snapshot: CellResult, locations: RankLocations, groups: Sequence[OutputGroup], *, color: bool
) -> list[str]:
    blocks = tuple(map(Block, groups)) if any(group.parts for group in groups) else ()
    head = format_heading(snapshot)
    cell_summary = CellSummary(
        head, difference="", blocks=blocks, outliers=frozenset(), failures=(), failure_heading="", notes=()
    )
    return (
        format_cell_text(snapshot, color=color, locations=locations, cell_summary=cell_summary) or head
    ).splitlines()


def _format_failures(snapshot: CellResult) -> list[str]:
    ranks_by_error: dict[str, list[int]] = {}
    for rank in snapshot.ranks:
        if rank.error is not None:
            first = rank.error.evalue.partition("\n")[0][:200]
            ranks_by_error.setdefault(f"{rank.error.ename}: {first}", []).append(rank.rank)
    return [f"✗ {describe_ranks(ranks)}: {text}" for text, ranks in ranks_by_error.items()]


def _format_hang(snapshot: CellResult, locations: RankLocations, *, has_recent_output: bool) -> list[str]:
    report = snapshot.where
    if report is None or not shows_hang(report, has_recent_output=has_recent_output):
        return []
    return format_hang_text(report, name=locations.cluster, how_to_end="Ctrl-C").splitlines()
