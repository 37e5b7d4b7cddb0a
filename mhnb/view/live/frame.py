"""Content of the live view of a running cell, as small named parts, so that only those that changed are sent.

Decides which part of a long output is shown while the cell runs, and how many bytes per second may be sent.
The size of a frame is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import takewhile
from typing import Literal, TypeAlias

from mhnb.core.explain.where import WhereCard
from mhnb.core.output.alike import Folded, fold_outputs
from mhnb.core.output.bars import read_bar
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import say_ranks
from mhnb.values import Output
from mhnb.view.ansi import strip_ansi
from mhnb.view.boards.where import format_where_html
from mhnb.view.cell.digest import Block, heading
from mhnb.view.cell.foldedhtml import Pictures, block_to_html
from mhnb.view.live.strip import StripCell, make_strip
from mhnb.view.style import host_color
from mhnb.view.words import Places, format_error, format_hosts_of

__all__ = [
    "ACTS_AFTER_S",
    "BLOCKS",
    "ByteBudget",
    "CHUNKS",
    "LiveBlock",
    "LiveFrame",
    "LiveView",
    "changed_parts",
    "fold_tails",
    "frame_parts",
    "hangs",
    "make_frame",
    "tail_text",
]

BLOCKS, CHUNKS = 24, 16
"""Number of parts: blocks of output, and chunks of the status strip."""
ACTS_AFTER_S = 1.0
"""A cell that ends sooner needs no buttons, and should not flash any."""
_CHUNK = 4
_FULL = 100
_LINES = 12
_RANK_CHARS = 2000
_TEXT_BUDGET = 12_000


LiveView: TypeAlias = Literal["fold", "rows", "tabs", "grid"]
"""How the ranks' lines are laid out: equal ones together, or each rank's separately."""


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """The last lines of ranks with the same output."""

    label: str
    color: str
    html: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """The content of the live view at one moment."""

    head: str
    strip: tuple[StripCell, ...]
    blocks: tuple[LiveBlock, ...]
    more: str = ""
    """Ranks that did not fit."""
    card: str = ""
    """The hang report, as HTML."""
    acts: bool = False
    """Whether buttons are offered, because the cell has run for a while."""
    view: LiveView = "fold"


def make_frame(
    snapshot: CellResult,
    places: Places | None = None,
    *,
    asked: bool = False,
    view: LiveView = "fold",
    talking: bool = False,
) -> LiveFrame:
    """Build the frame of a cell as far as it has come.

    Args:
        snapshot: the cell.
        places: host and log file of each rank.
        asked: whether the user requested to see where the ranks are, also if none hangs.
        view: how the ranks' lines are laid out.
        talking: whether something was printed recently. Then no rank counts as hanging, unless some wait for others.
    """
    where = places or Places()
    groups = fold_tails(snapshot.ranks) if view == "fold" else _each(snapshot)
    shown = groups[:BLOCKS]
    errors = {rank.rank: rank for rank in snapshot.ranks if rank.failure is not None}
    budget = _TEXT_BUDGET // max(1, len(shown))
    rest = sorted(rank for block in groups[len(shown) :] for rank in block.ranks)
    card = snapshot.where
    return LiveFrame(
        heading(snapshot),
        make_strip(snapshot),
        tuple(_live_block(block, errors, where, budget, labelled=len(groups) > 1) for block in shown),
        f"… and {say_ranks(rest)}, shown when the cell ends" if rest else "",
        format_where_html(card, name=where.cluster) if card and (asked or hangs(card, talking=talking)) else "",
        acts=snapshot.wall_s >= ACTS_AFTER_S,
        view=view,
    )


def hangs(card: WhereCard, *, talking: bool) -> bool:
    """Return whether to show the hang report although it was not requested.

    `talking` means that something was printed recently. Then only ranks that wait for others count as hanging.
    """
    return card.stuck and (bool(card.waiting) or not talking)


def _each(snapshot: CellResult) -> list[Folded]:
    return _odd_first(fold_outputs([((r.rank,), _printed(_tail(r, _LINES)))])[0] for r in snapshot.ranks)


def fold_tails(ranks: Sequence[RankResult], lines: int = _LINES) -> list[Folded]:
    """Merge the last lines only, because comparing all of a large output ten times per second would cost too much.

    Returns:
        The blocks. A rank that is behind or has failed comes first, because that is what users look for.
    """
    by_failure: dict[str, list[RankResult]] = {}
    for rank in ranks:
        by_failure.setdefault(rank.error.ename if rank.error else "", []).append(rank)
    return _odd_first(block for same in by_failure.values() for block in _fold_some(same, lines))


def _odd_first(groups: Iterable[Folded]) -> list[Folded]:
    return sorted(groups, key=lambda block: (len(block.ranks), block.ranks[0]))


def _fold_some(ranks: Sequence[RankResult], lines: int) -> list[Folded]:
    lines = lines if len(ranks) <= 64 else min(lines, 3)
    blocks = fold_outputs(_share_tails(ranks, lines))
    if not any(block.varies for block in blocks):
        return list(blocks)
    # The ranks are at different steps. Then the last line is enough, or the progress bars that are drawn together.
    drawn = max(_count_bars(_tail(rank, lines)) for rank in ranks)
    return list(fold_outputs(_share_tails(ranks, max(1, drawn))))


def _count_bars(text: str) -> int:
    """Count the progress bars at the end of a text; above the last one, only those that are still running."""
    bars = [read_bar(line) for line in reversed(text.splitlines())]
    running = takewhile(lambda bar: bar is not None and bar.percent < _FULL, bars[1:])
    return 1 + len(list(running)) if bars and bars[0] is not None else 0


def _share_tails(ranks: Sequence[RankResult], lines: int) -> list[tuple[list[int], list[Output]]]:
    """Return each text with the ranks that have it.

    Merging alone would not find these ranks if the text consists of numbers only.
    """
    shared: dict[str, list[int]] = {}
    for rank in ranks:
        shared.setdefault(_tail(rank, lines), []).append(rank.rank)
    return [(same, _printed(text)) for text, same in shared.items()]


def _tail(rank: RankResult, lines: int) -> str:
    return tail_text(rank.outputs, max_lines=lines, max_chars=_RANK_CHARS)


def _printed(text: str) -> list[Output]:
    return [{"output_type": "stream", "name": "stdout", "text": text}] if text else []


def tail_text(outputs: Sequence[Output], *, max_lines: int, max_chars: int) -> str:
    r"""Return the last lines of what was printed or shown; a figure is named, not drawn.

    >>> tail_text([{"output_type": "stream", "name": "stdout", "text": "a\nb\nc\n"}], max_lines=2, max_chars=80)
    'b\nc'
    """
    pieces: list[str] = []
    size = lines = 0
    for output in reversed(outputs):
        piece = strip_ansi(_last_of(output, max_chars))
        pieces.append(piece)
        size, lines = size + len(piece), lines + piece.count("\n")
        if size >= max_chars or lines > max_lines:
            break
    text = _join_pieces(pieces[::-1], outputs[len(outputs) - len(pieces) :]).removesuffix("\n")
    return "\n".join(text.split("\n")[-max_lines:])[-max_chars:] if max_chars else ""


def _join_pieces(pieces: Sequence[str], outputs: Sequence[Output]) -> str:
    """Join pieces; a piece from another stream begins a line, because a progress bar leaves its own line open."""
    text, before = "", None
    for piece, output in zip(pieces, outputs, strict=True):
        kind = (output["output_type"], output.get("name"))
        text += f"\n{piece}" if piece and text and kind != before and not text.endswith("\n") else piece
        before = kind
    return text


def _last_of(output: Output, max_chars: int) -> str:
    if output["output_type"] == "stream":
        return str(output["text"][-2 * max_chars :])
    if output["output_type"] == "error":
        return ""
    data = output.get("data", {})
    return f"{str(data.get('text/plain', '…'))[-max_chars:]}\n"


def _live_block(
    block: Folded, errors: Mapping[int, RankResult], places: Places, budget: int, *, labelled: bool
) -> LiveBlock:
    while True:
        html = block_to_html(Block(block), Pictures(), limit_nbytes=budget, where="the log file", brief=True)
        if len(html) <= 2 * budget + 600 or budget < 50:
            break
        budget //= 2
    if len(html) > 2 * budget + 600:
        html = "<i>one long line, shown when the cell ends</i>"
    failed = errors.get(block.ranks[0])
    if failed is not None and failed.error is not None:
        told = escape(f"✗ {format_error(failed.error)}", quote=False)
        html += f'<div class="mhnb-bad">{told}</div>'
    host = format_hosts_of(places, block.ranks)
    label = " ".join(filter(None, (say_ranks(block.ranks), host))) if labelled else ""
    return LiveBlock(label, host_color(places, block.ranks), html if block.parts or failed else "", failed is not None)


# -- as parts


def frame_parts(frame: LiveFrame) -> dict[str, str]:
    """Return the parts of a frame by name; each is text, the lists as JSON."""
    strip = [asdict(cell) for cell in frame.strip]
    parts = {"head": frame.head, "card": frame.card, "more": frame.more, "acts": "yes" if frame.acts else ""}
    parts["view"] = frame.view
    parts |= {f"strip_{at}": "" for at in range(CHUNKS)} | {f"block_{at}": "" for at in range(BLOCKS)}
    for at in range(0, len(strip), _CHUNK):
        chunk = min(at // _CHUNK, CHUNKS - 1)
        # Cells for which there is no further chunk go into the last one.
        earlier = json.loads(parts[f"strip_{chunk}"] or "[]")
        parts[f"strip_{chunk}"] = json.dumps([*earlier, *strip[at : at + _CHUNK]], ensure_ascii=False)
    for at, block in enumerate(frame.blocks):
        parts[f"block_{at}"] = json.dumps(asdict(block), ensure_ascii=False)
    return parts


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the parts that differ.

    >>> changed_parts({"head": "1 s", "more": ""}, {"head": "2 s", "more": ""})
    {'head': '2 s'}
    """
    return {name: text for name, text in after.items() if before.get(name) != text}


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """Limit on the bytes sent to the browser: a burst, then a steady rate."""

    rate_nbytes_per_s: float = 48 * 1024
    burst_nbytes: float = 128 * 1024
    left_nbytes: float = 128 * 1024
    at_s: float = 0.0

    def spend(self, nbytes: int, now_s: float) -> ByteBudget | None:
        """Return the budget that remains after sending `nbytes`; None if that is too much for now.

        >>> ByteBudget(rate_nbytes_per_s=10, burst_nbytes=20, left_nbytes=20).spend(15, 0).spend(15, 0.5)
        """
        left = min(self.burst_nbytes, self.left_nbytes + (now_s - self.at_s) * self.rate_nbytes_per_s)
        return None if nbytes > left else replace(self, left_nbytes=left - nbytes, at_s=now_s)
