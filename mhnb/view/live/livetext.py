"""Format a running cell as a few lines of text, redrawn in a terminal while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.output.alike import Folded
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import say_ranks
from mhnb.view.boards.where import format_where_text
from mhnb.view.cell.digest import Block, Digest, heading
from mhnb.view.cell.text import format_cell_text
from mhnb.view.live.frame import fold_tails, hangs
from mhnb.view.words import Places

__all__ = ["format_running_text"]

_FEWER = (12, 6, 3, 1)
"""Numbers of last lines per rank that are tried, until all fit."""


def format_running_text(
    snapshot: CellResult,
    places: Places | None = None,
    *,
    height: int,
    color: bool = False,
    talking: bool = False,
) -> str:
    """Format the state of a cell: busy ranks, the last lines of each group of ranks, failures, and where ranks hang.

    Args:
        snapshot: the cell as far as it has come.
        places: host and log file of each rank.
        height: number of lines that fit; of more, the first and the last ones are kept.
        color: whether the text may contain colours.
        talking: whether something was printed recently. Then no rank counts as hanging, unless some wait for others.
    """
    where = places or Places()
    below = [*_failed_lines(snapshot), *_card_lines(snapshot, where, talking=talking)]
    lines: list[str] = []
    for most in _FEWER:
        lines = [*_said_lines(snapshot, where, fold_tails(snapshot.ranks, most), color=color), *below]
        if len(lines) <= height:
            break
    if len(lines) > height > 1:
        lines = [lines[0], *lines[len(lines) - height + 1 :]]
    return "\n".join(lines[:height])


def _said_lines(snapshot: CellResult, places: Places, groups: Sequence[Folded], *, color: bool) -> list[str]:
    blocks = tuple(map(Block, groups)) if any(group.parts for group in groups) else ()
    head = heading(snapshot)
    seen = Digest(head, verdict="", blocks=blocks, odd=frozenset(), failures=(), failure_heading="", notes=())
    return (format_cell_text(snapshot, color=color, places=places, seen=seen) or head).splitlines()


def _failed_lines(snapshot: CellResult) -> list[str]:
    told: dict[str, list[int]] = {}
    for rank in snapshot.ranks:
        if rank.error is not None:
            first = rank.error.evalue.partition("\n")[0][:200]
            told.setdefault(f"{rank.error.ename}: {first}", []).append(rank.rank)
    return [f"✗ {say_ranks(ranks)}: {text}" for text, ranks in told.items()]


def _card_lines(snapshot: CellResult, places: Places, *, talking: bool) -> list[str]:
    card = snapshot.where
    if card is None or not hangs(card, talking=talking):
        return []
    return format_where_text(card, name=places.cluster, ends="Ctrl-C").splitlines()
