"""Content of a running cell's live view: parts, HTML and text.

The parts are small, so that only those that changed are sent. Decides which part of a long output is shown while the cell runs, and
how many bytes per second may be sent. The size of a frame is bounded.

The HTML form is one small piece, for use where mhnb's own widget cannot be shown. The text form is a few lines, redrawn in a
terminal while the cell runs.

Where the ranks do not all do the same, a strip shows them by state; on request, each rank is listed too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import takewhile
from typing import Literal, TypeAlias

from mhnb.core.hang_report import HangReport
from mhnb.core.metrics import format_number
from mhnb.core.output.folding import OutputGroup, group_outputs
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.output.rich import parse_bar
from mhnb.core.ranks import describe_ranks
from mhnb.types import Output
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks_html import Pictures, block_to_html
from mhnb.view.cell.summary import Block, CellSummary, format_heading
from mhnb.view.cell.text import format_cell_text
from mhnb.view.document import Line
from mhnb.view.drawings.metrics import MetricCard, draw_card
from mhnb.view.html import (
    QUIET_STYLE,
    RankLocations,
    format_error,
    format_hosts_of,
    host_color,
    wrap_html,
)
from mhnb.view.live.strip import (
    StatusItem,
    build_strip,
    describe_quietly,
    format_each_html,
    format_strip_text,
    is_unusual,
)
from mhnb.view.print_html import print_parts
from mhnb.view.print_text import print_text
from mhnb.view.reports.hang import MAX_PLACES, build_hang, describe_stop
from mhnb.view.reports.metrics import LIVE_POINTS, NO_CARD, build_card, format_card_lines

# -- the frame and its blocks


MAX_BLOCKS = 24
"""Number of parts for blocks of output."""
BUTTONS_AFTER_S = 1.0
"""A cell that ends sooner needs no buttons, and should not flash any."""
_COMPLETE_PERCENT = 100
_MAX_TAIL_LINES = 12
_MAX_TAIL_CHARS = 2000
_TEXT_BUDGET = 12_000
_MAX_LIVE_CHARTS = 6


LiveView: TypeAlias = Literal["fold", "rows", "tabs", "grid"]
"""How the ranks' lines are laid out: equal ones together, or each rank's separately."""


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """The last lines of ranks with the same output."""

    label: str
    color: str
    html: str
    failed: bool = False
    host: str = ""
    """The host of the ranks, beside their label; empty without a label."""


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """The content of the live view at one moment."""

    heading: str
    strip: tuple[StatusItem, ...]
    """The ranks by state; empty if all do the same, which the heading says then."""
    blocks: tuple[LiveBlock, ...]
    overflow: str = ""
    """Ranks that did not fit."""
    hang_html: str = ""
    """The hang report, as HTML; only a quiet line while ranks are stopped in the debugger."""
    metrics_html: str = ""
    """The charts of what the ranks have logged, as HTML."""
    each_html: str = ""
    """Each rank by itself, as HTML, if that was requested."""
    has_buttons: bool = False
    """Whether buttons are offered, because the cell has run for a while."""
    view: LiveView = "fold"


def build_frame(
    snapshot: CellResult,
    locations: RankLocations | None = None,
    *,
    expanded: bool = False,
    view: LiveView = "fold",
    has_recent_output: bool = False,
) -> LiveFrame:
    """Build the frame of a cell as far as it has come.

    Args:
        snapshot: the cell.
        locations: host and log file of each rank.
        expanded: whether the user requested to see where the ranks are, also if none hangs, and each rank by itself.
        view: how the ranks' lines are laid out.
        has_recent_output: whether something was printed recently. Then no rank counts as hanging, unless some wait for others.
    """
    known_locations = locations or RankLocations()
    groups = merge_tails(snapshot.ranks) if view == "fold" else _tail_of_each(snapshot)
    shown = groups[:MAX_BLOCKS]
    errors = {rank.rank: rank for rank in snapshot.ranks if rank.failure is not None}
    budget = _TEXT_BUDGET // max(1, len(shown))
    rest = sorted(rank for block in groups[len(shown) :] for rank in block.ranks)
    strip = build_strip(snapshot)
    return LiveFrame(
        _format_live_heading(snapshot, strip, has_strip=is_unusual(strip)),
        strip if is_unusual(strip) else (),
        tuple(_build_live_block(block, errors, known_locations, budget, labelled=len(groups) > 1) for block in shown),
        f"… and {describe_ranks(rest)}, shown when the cell ends" if rest else "",
        _format_hang_html(snapshot.where, known_locations, expanded=expanded, has_recent_output=has_recent_output),
        draw_card(_build_metrics(snapshot), brief=True),
        format_each_html(snapshot, known_locations) if expanded else "",
        has_buttons=snapshot.wall_s >= BUTTONS_AFTER_S,
        view=view,
    )


def _build_metrics(snapshot: CellResult) -> MetricCard:
    if not snapshot.metrics:
        return NO_CARD
    return build_card(snapshot.metrics, done=False, max_charts=_MAX_LIVE_CHARTS, points=LIVE_POINTS)


def _format_hang_html(
    report: HangReport | None, locations: RankLocations, *, expanded: bool, has_recent_output: bool
) -> str:
    if report is None:
        return ""
    if expanded or shows_hang(report, has_recent_output=has_recent_output):
        # It names the buttons, because a command would wait behind the cell that it should interrupt.
        how_to_end, places = "the stop button or Interrupt", None if expanded else MAX_PLACES
        return print_parts(
            build_hang(
                report, name=locations.cluster, how_to_end=how_to_end, max_places=places, where_all_are=": Where"
            )
        )
    return print_parts([Line(describe_stop(report), "quiet")]) if report.stopped else ""


def _format_live_heading(snapshot: CellResult, strip: Sequence[StatusItem], *, has_strip: bool) -> str:
    """Format the heading; if all ranks do the same, it says what."""
    heading = format_heading(snapshot, has_strip=has_strip)
    return " · ".join(filter(None, (heading, _format_steps(snapshot), describe_quietly(strip))))


def _format_steps(snapshot: CellResult) -> str:
    """Format the last logged steps of the longest metric."""
    counts: Counter[str] = Counter()
    for series in snapshot.metrics.series:
        counts[series.name] += series.count
    if not counts:
        return ""
    (name, _), *_ = counts.most_common(1)
    last = [series.steps[-1] for series in snapshot.metrics.series if series.name == name and series.count]
    ends = dict.fromkeys(map(format_number, (min(last), max(last))))
    return f"{'step' if len(ends) == 1 else 'steps'} {'-'.join(ends)}"


def shows_hang(report: HangReport, *, has_recent_output: bool) -> bool:
    """Return whether to show the hang report although it was not requested.

    `has_recent_output` means that something was printed recently. Then only ranks that wait for others count as hanging.
    """
    return report.stuck and (bool(report.waiting) or not has_recent_output)


def _tail_of_each(snapshot: CellResult) -> list[OutputGroup]:
    return _smallest_first(
        group_outputs([((r.rank,), _as_stdout(_tail(r, _MAX_TAIL_LINES)))])[0] for r in snapshot.ranks
    )


def merge_tails(ranks: Sequence[RankResult], lines: int = _MAX_TAIL_LINES) -> list[OutputGroup]:
    """Merge the last lines of ranks into blocks.

    It does not compare complete outputs, which would cost too much ten times per second.

    Returns:
        The blocks. A rank that is behind or has failed comes first, because that is what users look for.
    """
    return _smallest_first(block for same in _split_by_failure(ranks) for block in _merge_tails(same, lines))


def _split_by_failure(ranks: Sequence[RankResult]) -> Iterable[list[RankResult]]:
    by_failure: dict[str, list[RankResult]] = {}
    for rank in ranks:
        by_failure.setdefault(rank.error.ename if rank.error else "", []).append(rank)
    return by_failure.values()


def _smallest_first(groups: Iterable[OutputGroup]) -> list[OutputGroup]:
    return sorted(groups, key=lambda block: (len(block.ranks), block.ranks[0]))


def _merge_tails(ranks: Sequence[RankResult], lines: int) -> list[OutputGroup]:
    lines = lines if len(ranks) <= 64 else min(lines, 3)
    blocks = group_outputs(_group_by_tail(ranks, lines))
    if not any(block.has_differences for block in blocks):
        return list(blocks)
    # The ranks are at different steps. Then the last line is enough, or the progress bars that are drawn together.
    bar_count = max(_count_bars(_tail(rank, lines)) for rank in ranks)
    return list(group_outputs(_group_by_tail(ranks, max(1, bar_count))))


def _count_bars(text: str) -> int:
    """Count a text's final progress bar and the running ones above it."""
    bars = [parse_bar(line) for line in reversed(text.splitlines())]
    running = takewhile(lambda bar: bar is not None and bar.percent < _COMPLETE_PERCENT, bars[1:])
    return 1 + len(list(running)) if bars and bars[0] is not None else 0


def _group_by_tail(ranks: Sequence[RankResult], lines: int) -> list[tuple[list[int], list[Output]]]:
    """Return each text with the ranks that have it.

    Merging alone would not find these ranks if the text consists of numbers only.
    """
    shared: dict[str, list[int]] = {}
    for rank in ranks:
        shared.setdefault(_tail(rank, lines), []).append(rank.rank)
    return [(same, _as_stdout(text)) for text, same in shared.items()]


def _tail(rank: RankResult, lines: int) -> str:
    return tail_text(rank.outputs, max_lines=lines, max_chars=_MAX_TAIL_CHARS)


def _as_stdout(text: str) -> list[Output]:
    return [{"output_type": "stream", "name": "stdout", "text": text}] if text else []


def tail_text(outputs: Sequence[Output], *, max_lines: int, max_chars: int) -> str:
    r"""Return the last lines of outputs; figures are named, not drawn.

    >>> tail_text([{"output_type": "stream", "name": "stdout", "text": "a\nb\nc\n"}], max_lines=2, max_chars=80)
    'b\nc'
    """
    pieces: list[str] = []
    size = lines = 0
    for output in reversed(outputs):
        piece = strip_ansi(_end_of_output(output, max_chars))
        pieces.append(piece)
        size, lines = size + len(piece), lines + piece.count("\n")
        if size >= max_chars or lines > max_lines:
            break
    text = _join_pieces(pieces[::-1], outputs[len(outputs) - len(pieces) :]).removesuffix("\n")
    return "\n".join(text.split("\n")[-max_lines:])[-max_chars:] if max_chars else ""


def _join_pieces(pieces: Sequence[str], outputs: Sequence[Output]) -> str:
    """Join pieces; each stream starts a line, because bars leave theirs open."""
    text, before = "", None
    for piece, output in zip(pieces, outputs, strict=True):
        kind = (output["output_type"], output.get("name"))
        text += f"\n{piece}" if piece and text and kind != before and not text.endswith("\n") else piece
        before = kind
    return text


def _end_of_output(output: Output, max_chars: int) -> str:
    if output["output_type"] == "stream":
        return str(output["text"][-2 * max_chars :])
    if output["output_type"] == "error":
        return ""
    data = output.get("data", {})
    return f"{str(data.get('text/plain', '…'))[-max_chars:]}\n"


def _build_live_block(
    block: OutputGroup,
    errors: Mapping[int, RankResult],
    locations: RankLocations,
    budget: int,
    *,
    labelled: bool,
) -> LiveBlock:
    html = _format_tail(block, budget)
    failed = errors.get(block.ranks[0])
    if failed is not None and failed.error is not None:
        error_html = escape(f"✗ {format_error(failed.error)}", quote=False)
        html += f'<div class="mhnb-bad">{error_html}</div>'
    label = describe_ranks(block.ranks) if labelled else ""
    host = format_hosts_of(locations, block.ranks) if labelled else ""
    return LiveBlock(label, host_color(locations, block.ranks), html, failed is not None, host)


def _format_tail(block: OutputGroup, budget: int) -> str:
    if not block.parts:
        return ""
    while True:
        html = block_to_html(Block(block), Pictures(), limit_nbytes=budget, where="the log file", form="brief")
        if len(html) <= 2 * budget + 600 or budget < 50:
            break
        budget //= 2
    return html if len(html) <= 2 * budget + 600 else "<i>one long line, shown when the cell ends</i>"


# -- the frame as named parts


def frame_parts(frame: LiveFrame) -> dict[str, str]:
    """Return a frame's parts by name, as text; lists as JSON."""
    parts = {
        "head": frame.heading,
        "strip": json.dumps([asdict(item) for item in frame.strip], ensure_ascii=False) if frame.strip else "",
        "card": frame.hang_html,
        "charts": frame.metrics_html,
        "each": frame.each_html,
        "more": frame.overflow,
        "acts": "yes" if frame.has_buttons else "",
        "view": frame.view,
    }
    parts |= {f"block_{at}": "" for at in range(MAX_BLOCKS)}
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
    """Limit on bytes to the browser: a burst, then a steady rate."""

    rate_nbytes_per_s: float = 48 * 1024
    burst_nbytes: float = 128 * 1024
    remaining_nbytes: float = 128 * 1024
    at_s: float = 0.0

    def spend(self, nbytes: int, now_s: float) -> ByteBudget | None:
        """Return the budget left after sending `nbytes`; None if too much now.

        >>> ByteBudget(rate_nbytes_per_s=10, burst_nbytes=20, remaining_nbytes=20).spend(15, 0).spend(15, 0.5)
        """
        remaining = min(self.burst_nbytes, self.remaining_nbytes + (now_s - self.at_s) * self.rate_nbytes_per_s)
        return None if nbytes > remaining else replace(self, remaining_nbytes=remaining - nbytes, at_s=now_s)


# -- as text for a terminal


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
    """Format a running cell: last lines, rank states, failures and hangs.

    Args:
        snapshot: the cell as far as it has come.
        locations: host and log file of each rank.
        height: number of lines that fit; of more, the first and the last ones are kept.
        color: whether the text may contain colours.
        has_recent_output: whether something was printed recently. Then no rank counts as hanging, unless some wait for others.
    """
    known_locations, strip = locations or RankLocations(), build_strip(snapshot)
    hang_lines = _format_hang(snapshot, known_locations, has_recent_output=has_recent_output)
    # The hang report has the same ranks, and more of each. Without a look at the ranks, the heading says all that is known.
    has_strip = snapshot.where is not None and is_unusual(strip) and not hang_lines
    stop_lines = [describe_stop(snapshot.where)] if snapshot.where is not None and snapshot.where.stopped else []
    strip_lines = [format_strip_text(strip)] if has_strip else []
    chart_lines = list(format_card_lines(_build_metrics(snapshot)))
    below = [*chart_lines, *strip_lines, *_format_failures(snapshot), *hang_lines, *stop_lines]
    head = _format_live_heading(snapshot, strip, has_strip=has_strip)
    lines: list[str] = []
    for tail_length in _TAIL_LENGTHS:
        lines = [
            *_format_output(snapshot, head, known_locations, merge_tails(snapshot.ranks, tail_length), color=color),
            *below,
        ]
        if len(lines) <= height:
            break
    if len(lines) > height > 1:
        lines = [lines[0], *lines[len(lines) - height + 1 :]]
    return "\n".join(lines[:height])


def _format_output(
    snapshot: CellResult, head: str, locations: RankLocations, groups: Sequence[OutputGroup], *, color: bool
) -> list[str]:
    blocks = tuple(map(Block, groups)) if any(group.parts for group in groups) else ()
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
    text = print_text(build_hang(report, name=locations.cluster, how_to_end="Ctrl-C", max_places=MAX_PLACES))
    return text.splitlines()


# -- as HTML without mhnb's own widget


def frame_to_html(frame: LiveFrame) -> str:
    """Format a frame; a panel has a head of its own."""
    more = f'<div style="{QUIET_STYLE}">{escape(frame.overflow)}</div>' if frame.overflow else ""
    head = f'<div><span style="{QUIET_STYLE}">{escape(frame.heading)}</span></div>' if frame.heading else ""
    strip = f"<div>{escape(format_strip_text(frame.strip), quote=False)}</div>" if frame.strip else ""
    blocks = "".join(map(_format_live_block, frame.blocks))
    return wrap_html(head + strip + blocks + more + frame.metrics_html + frame.hang_html + frame.each_html)


def _format_live_block(block: LiveBlock) -> str:
    if not block.label:
        return block.html
    host = f' <span style="{QUIET_STYLE}">{escape(block.host)}</span>' if block.host else ""
    return (
        f'<div style="display:flex;align-items:baseline;border-left:3px solid {block.color};margin:1px 0;padding-left:8px">'
        f'<div style="min-width:9em;padding-right:.8em"><b>{escape(block.label)}</b>{host}</div>'
        f'<div style="flex:1;min-width:0">{block.html}</div></div>'
    )
