"""Format a cell's result as the HTML that the notebook stores.

It can be read without a kernel, script or style. A cell that failed begins with the failure report. The first failure
is shown with its line, hint and traceback, then the other failures, then the ranks that only waited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

from mhnb.core.output.folding import RichPart, TextPart, is_text, text_of
from mhnb.core.output.outputs import GAP_LINE
from mhnb.core.output.results import CellResult, RankResult, group_by_outputs
from mhnb.core.output.rich import find_figure_type
from mhnb.core.output.tables import has_table
from mhnb.core.ranks import describe_many_ranks, describe_ranks, pluralize, split_list
from mhnb.types import Output
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.blocks import BlockLine, block_items, count_lines, format_omitted_line, has_loop_fold, shorten_line
from mhnb.view.cell.blocks_html import Pictures, StripItem, block_to_html, format_strip
from mhnb.view.cell.failures import (
    Failure,
    are_not_yet,
    collapse_traceback,
    has_extra_information,
    split_off_source,
    trim_traceback,
)
from mhnb.view.cell.summary import (
    Block,
    CellSummary,
    as_shown,
    clip_outputs,
    find_outlier_ranks,
    summarise_cell,
)
from mhnb.view.cell.text import (
    MAX_FAILURES,
    format_failure_lines,
    format_trace_label,
    format_waited,
    full_text,
    names_kind,
)
from mhnb.view.drawings.metrics import draw_card
from mhnb.view.html import (
    BAR_CLASS,
    FAILED_CLASS,
    GRID_CELL_STYLE,
    GRID_STYLE,
    LAST_LINE_CLASS,
    NOT_YET,
    QUIET_STYLE,
    STATE_COLORS,
    STRIP_CLASS,
    STRIP_STYLE,
    TABS_CSS,
    RankLocations,
    format_error,
    format_fold,
    format_hosts_of,
    format_ranks_label,
    format_strip_item_style,
    host_color,
    wrap_html,
)
from mhnb.view.mime import format_log_html, format_pre, is_image, plain_nbytes
from mhnb.view.print_html import print_parts
from mhnb.view.reports.hang import build_past_hang
from mhnb.view.reports.lesson import NOT_YET_SIGN, DifferenceRow, build_not_yet, parse_difference
from mhnb.view.reports.memory import build_shortage

_JUMP_SCRIPT = (
    "(function(b,n,t){var c=b.closest('.jp-Cell'),a=c&&[].slice.call(c.querySelectorAll('.jp-InputArea .cm-line')),"
    "h=a&&a.filter(function(l){return l.textContent.trim()===t}),"
    "l=h&&h.sort(function(x,y){return Math.abs(a.indexOf(x)-n)-Math.abs(a.indexOf(y)-n)})[0],"
    "p=l&&l.closest('.cm-content'),v=p&&((p.cmTile||p.cmView||{}).view);"
    "if(v){v.dispatch({selection:{anchor:v.posAtDOM(l)},scrollIntoView:true});v.focus()}"
    "else if(c){(l||c.querySelector('.jp-InputArea')||c).scrollIntoView({block:'center'})}})"
)
"""JavaScript that puts the cursor on line n + 1 of the cell above, or the nearest one with the same text.

It uses nothing that would have to be loaded.
"""
_MAX_HEAD_LINES, _MAX_TAIL_LINES, _MAX_LINE_CHARS = 24, 8, 1000
"""Limits on what the report shows of a long message without a click."""
_NOTE_STYLE = "white-space:pre-wrap"
_TOOLTIP_STYLE = "text-decoration:underline dotted;cursor:help"
"""Shows that there is more in a tooltip."""


def format_failure_report(
    result: CellResult, cell_summary: CellSummary, locations: RankLocations, *, has_status: bool = True
) -> str:
    """Format the failure report, with the verdict's notes at its end.

    `has_status` means that a status line follows. Otherwise the heading has its tooltip.
    """
    quiet = f";{QUIET_STYLE}" if cell_summary.has_quiet_notes else ""
    notes = [f'<div style="{_NOTE_STYLE}{quiet}">{escape(note, quote=False)}</div>' for note in cell_summary.notes]
    waited = [
        _format_waited(failure, result.name, locations) for failure in cell_summary.failures if failure.only_waited
    ]
    if are_not_yet(cell_summary.failures):
        return "".join([_format_not_yet(cell_summary), *waited, *notes])
    tooltip = "" if has_status else _format_tooltip(cell_summary)
    failed = [failure for failure in cell_summary.failures if not failure.only_waited]
    parts = [
        _format_failure(f, result.name, locations, first=at == 0, is_labelled=len(failed) > 1)
        for at, f in enumerate(cell_summary.own_failures)
    ]
    shown, rest = split_list(parts, MAX_FAILURES)
    if rest:
        ranks = [rank for failure in cell_summary.own_failures[len(shown) :] for rank in failure.ranks]
        label = f"{len(rest)} more failures on {describe_many_ranks(ranks)}"
        shown = [*shown, _format_details(label, "".join(rest))]
    shortages = print_parts([*build_shortage(cell_summary.shortages), *build_past_hang(cell_summary.hang)])
    heading = _format_failure_heading(cell_summary, locations)
    line = f"border-left:3px solid {STATE_COLORS['failed']}"
    return (
        f'<div class="{BAR_CLASS} {FAILED_CLASS}" style="margin-bottom:4px;{line};padding-left:8px">'
        f"<div{tooltip}>{heading}</div>{''.join([*shown, shortages, *waited, *notes])}</div>"
    )


def _format_failure_heading(cell_summary: CellSummary, locations: RankLocations) -> str:
    loss = cell_summary.loss
    if loss is None:
        return f'<b class="mhnb-title mhnb-bad">✗ {escape(cell_summary.failure_heading)}</b>'
    what, separator, more = loss.heading.partition(" · ")
    rest = escape(separator + more, quote=False)
    for log in locations.logs.values():
        if loss.heading.endswith(log):
            rest = rest.replace(escape(log, quote=False), format_log_html(log, locations.notebook_dir))
    lines = "".join(f"<div>{escape(line, quote=False)}</div>" for line in loss.lines)
    return f'<b class="mhnb-title mhnb-bad">✗ {escape(what)}</b>{rest}{lines}'


def _format_not_yet(cell_summary: CellSummary) -> str:
    """Format a card for each exercise that is not right yet."""
    rows: dict[str, list[DifferenceRow]] = {}
    for failure in cell_summary.failures:
        if failure.error is not None and not failure.only_waited:
            difference = parse_difference(full_text(failure))
            rows.setdefault(difference.title, []).append(DifferenceRow(describe_ranks(failure.ranks), difference))
    where = cell_summary.failure_heading.removeprefix("not yet ")
    return "".join(print_parts(build_not_yet(listed, where)) for listed in rows.values())


def _format_failure(
    failure: Failure, cell_name: str, locations: RankLocations, *, first: bool, is_labelled: bool
) -> str:
    when = " (first)" if first else ""
    kind = "" if names_kind(failure, list(format_failure_lines(failure, cell_name))) else f": {escape(failure.kind)}"
    label = f"<div>{format_ranks_html(failure.ranks, locations)}{kind}{when}</div>" if is_labelled else ""
    body = format_failure_summary(failure, cell_name) + _format_trace(failure, is_first=first)
    return f'{label}<div style="{"padding-left:1em" if is_labelled else ""}">{body}</div>' if body else label


def _format_waited(failure: Failure, cell_name: str, locations: RankLocations) -> str:
    report = (
        _format_details("what the guard reported", format_pre("\n".join(format_failure_lines(failure, cell_name))))
        if failure.error
        else ""
    )
    return f"<div>{format_ranks_html(failure.ranks, locations)} {escape(format_waited(failure))}</div>{report}"


def format_failure_summary(failure: Failure, cell_name: str) -> str:
    """Format the cell's line, the message and the hint of a failure.

    The line's number is a button that moves the cursor to the line, where scripts are allowed. The middle of a long
    message is collapsed.
    """
    lines = list(format_failure_lines(failure, cell_name))
    error = failure.error
    if not lines or error is None:
        return ""
    line_label = f"{cell_name}, line {error.line}"
    short = _shorten_message(lines)
    html = format_pre("\n".join(short))
    if short != lines:
        html += _format_details("the whole message", format_pre("\n".join(lines)))
    if error.line is None or not lines[0].startswith(line_label):
        return html
    # The front end counts lines from 0.
    call = escape(f"{_JUMP_SCRIPT}(this,{error.line - 1},{json.dumps((error.code or '').strip())})")
    # The button lies over the text, and a style sheet reveals it: a notebook that is not trusted has neither the script
    # nor the style sheet, so a button would do nothing there. The text is there once, whatever a page drops.
    button = (
        f'<button type="button" class="mhnb-jump" style="display:none" title="go to the line" aria-label="{line_label}"'
        f' onclick="{call}"></button>'
    )
    return html.replace(line_label, f'<span style="position:relative">{line_label}{button}</span>', 1)


def _shorten_message(lines: Sequence[str]) -> list[str]:
    """Cut the middle of a long message and of long lines."""
    shown = [shorten_line(line, _MAX_LINE_CHARS) for line in lines]
    head, middle, tail = shown[:_MAX_HEAD_LINES], shown[_MAX_HEAD_LINES:-_MAX_TAIL_LINES], shown[-_MAX_TAIL_LINES:]
    return [*head, format_omitted_line(middle, where="the fold below"), *tail] if len(middle) > 1 else shown


def _format_trace(failure: Failure, *, is_first: bool) -> str:
    if failure.error is None or not failure.error.traceback:
        return ""
    source, error = split_off_source(failure.error)
    # the cell's own line is shown above; further frames of the user's are worth seeing without a click
    is_open = is_first and has_extra_information(error)
    parts = collapse_traceback(trim_traceback(error), error)
    inner = "".join(_format_trace_part(part.text, part.label) for part in parts)
    if source:
        inner += _format_trace_part(source, "… what JAX transformed, with the same message")
    return _format_details(format_trace_label(failure), inner, is_open=is_open)


def _format_trace_part(text: str, label: str) -> str:
    return _format_details(label, format_pre(text), indent="padding-left:2em") if label else format_pre(text)


def _format_details(label: str, inner: str, *, is_open: bool = False, indent: str = "") -> str:
    return format_fold(escape(label), inner, is_open=is_open, style=indent)


def format_ranks_html(ranks: Sequence[int], locations: RankLocations) -> str:
    """Format ranks with their hosts, if known and not all hosts."""
    host = format_hosts_of(locations, ranks)
    where = f' <span style="{QUIET_STYLE}">{escape(host)}</span>' if host else ""
    return f"{format_ranks_label(ranks)}{where}"


# -- the stored form of a cell's result


View: TypeAlias = Literal["fold", "tabs", "grid"]

MAX_CELL_NBYTES = 128 * 1024
"""Text that a cell stores as HTML, beside its figures.

Each block gets an equal part, and at least 1 KiB. The log files have all of it.
"""
MAX_VERBATIM_NBYTES = 24 * 1024
"""If blocks are merged, each rank's verbatim output is stored too, up to this much text."""

_MAX_OPEN = 8
_MAX_ROW_LINES = 64
"""Maximum number of lines of short blocks that are all open beside their labels."""
_LONG_LINES = 200
_SHORT_LINES, _SHORT_CHARS = 6, 200
_SCROLL_STYLE = "max-height:36em;overflow:auto"
_OPEN_EM = 28
"""Height of the long blocks of text that are open, together, if there are several blocks."""
_MAX_FOLDS = 16
"""Maximum number of blocks that are listed; of more, those in the middle are in one fold."""
_LAST_LINE_CHARS = 100
_LEFT_OUT = " left out"
"""Part of the line that stands for text of which only the beginning and the end were compared."""
_MAX_BORDERS = 2
"""Lines without a letter or a digit at an output's end that are passed over for its last line."""
_WORD = re.compile(r"[^\W_]")
_MAX_FOLD_LABEL_EM = 16
"""Maximum width of the column of labels beside last lines: with it a last line fits into a narrow page."""


def format_cell_html(
    result: CellResult,
    *,
    view: View = "fold",
    uid: str = "mhnb-0",
    locations: RankLocations | None = None,
    badge: bool = False,
    cell_summary: CellSummary | None = None,
) -> str:
    """Format every rank's output as HTML; empty without anything to show.

    `badge` adds a line saying that the ranks ran the cell, also if they have no output.
    `uid` is unique in the notebook: it names the group of tabs.
    `cell_summary` is the result's summary, if the caller has it.
    """
    cell_summary = cell_summary or summarise_cell(result)
    if badge:
        cell_summary = replace(cell_summary, heading=f"mhjax · {cell_summary.heading}")
    if cell_summary.is_empty:
        return wrap_html(_format_heading(cell_summary)) if badge else ""
    known_locations = locations or RankLocations()
    has_status = cell_summary.has_status or view != "fold"
    parts = (
        [format_failure_report(result, cell_summary, known_locations, has_status=has_status)]
        if cell_summary.failures
        else []
    )
    if view == "fold":
        pictures = Pictures()
        shown = _without_figures(cell_summary) if cell_summary.figures_are_below else cell_summary
        merged = _format_blocks(shown, known_locations, pictures) if has_status else ""
        verbatim = _format_verbatim(result, shown, known_locations, uid, pictures) if shown.blocks else ""
        parts.append(merged + verbatim)
        css = TABS_CSS.format(uid=uid) if verbatim else ""
    else:
        parts.append(
            _format_heading(cell_summary)
            + (_format_tabs if view == "tabs" else _format_grid)(result, cell_summary, known_locations, uid, Pictures())
        )
        css = TABS_CSS.format(uid=uid) if view == "tabs" else ""
    parts.append(draw_card(cell_summary.metrics))
    parts += [
        f'<div style="margin-top:4px;{_NOTE_STYLE}">{escape(note, quote=False)}</div>'
        for note in (*(() if cell_summary.failures else cell_summary.notes), *cell_summary.output_notes)
    ]
    return wrap_html("".join(parts), css=css)


# -- merged blocks


def _format_heading(cell_summary: CellSummary) -> str:
    """Format the ranks that ran, their differences and the carried note.

    The tooltip has the cell's numbers and how C++ noise began.
    A panel shows the ranks in its own head, so its heading is empty.
    """
    tooltip, carried = _format_tooltip(cell_summary), _format_carried(cell_summary)
    noisy = f' style="{_TOOLTIP_STYLE}"' if cell_summary.noise_label else ""
    if cell_summary.has_named_ranks:
        head = f"<span{noisy}>{escape(cell_summary.heading)}</span> ·" if noisy else f"{escape(cell_summary.heading)} ·"
        head = f'<span style="{QUIET_STYLE}">{head}</span> ' if cell_summary.heading else ""
        return f"<div{tooltip}>{head}<b>{escape(cell_summary.difference)}</b>{carried}</div>"
    words = escape(" · ".join(filter(None, (cell_summary.heading, cell_summary.difference))))
    shown = f"<span{noisy}>{words}</span>" if words and noisy else words
    quiet = f'<span style="{QUIET_STYLE}">{shown}</span>' if shown else ""
    return (
        f"<div{tooltip}>{quiet}{carried if shown else carried.replace(' · ', '', 1)}</div>" if shown or carried else ""
    )


def _format_tooltip(cell_summary: CellSummary) -> str:
    return f' title="{escape(cell_summary.tooltip)}"' if cell_summary.tooltip else ""


def _format_carried(cell_summary: CellSummary) -> str:
    """Format what the previous cell left behind, in quiet words."""
    carried = cell_summary.carried
    if carried is None:
        return ""
    details = escape(f"{carried.name}: {carried.details}")
    words = f'<span style="{_TOOLTIP_STYLE}" title="{details}">{escape(str(carried))}</span>'
    return f'<span style="{QUIET_STYLE}"> · {words}</span>'


def _without_figures(cell_summary: CellSummary) -> CellSummary:
    """Remove the figures that are drawn below.

    If other ranks have more to show, a rank that has only figures keeps a line for them.
    """
    blocks = cell_summary.blocks
    kept = [tuple(part for part in block.output_group.parts if not _is_drawn_below(part)) for block in blocks]
    if not any(kept) and not any(block.omitted_nbytes or block.is_silent for block in blocks):
        return replace(cell_summary, blocks=())
    shown = (
        replace(block, output_group=replace(block.output_group, parts=parts)) if parts else block
        for block, parts in zip(blocks, kept, strict=True)
    )
    return replace(cell_summary, blocks=tuple(shown))


def _is_drawn_below(part: TextPart | RichPart) -> bool:
    return isinstance(part, RichPart) and all(
        find_figure_type(output.get("data", {})) is not None for _, output in part.variants
    )


def _is_picture(block: Block) -> bool:
    parts = block.output_group.parts
    return len(parts) == 1 and isinstance(parts[0], RichPart) and not block.omitted_nbytes


def _format_pictures(cell_summary: CellSummary, locations: RankLocations, pictures: Pictures) -> str:
    """Format blocks of one display each as a strip; mark outliers."""
    variants = [
        variant
        for block in cell_summary.blocks
        for part in block.output_group.parts
        if isinstance(part, RichPart)
        for variant in part.variants
    ]
    are_outliers = [ranks[0] in cell_summary.marked_outliers for ranks, _ in variants]
    return format_strip(
        [
            StripItem(
                ranks,
                output,
                format_ranks_html(ranks, locations) + " ≠" * is_outlier,
                "mhnb-block" + " mhnb-outlier" * is_outlier,
            )
            for (ranks, output), is_outlier in zip(variants, are_outliers, strict=True)
        ],
        pictures,
    )


def _format_blocks(cell_summary: CellSummary, locations: RankLocations, pictures: Pictures) -> str:
    blocks = _without_silent_failures(cell_summary)
    if not blocks:
        return _format_heading(cell_summary)
    if len(blocks) > 1 and all(map(_is_picture, blocks)):
        return _format_heading(cell_summary) + _format_pictures(cell_summary, locations, pictures)
    bodies = [_format_block_body(block, cell_summary, locations, pictures) for block in blocks]
    if len(cell_summary.blocks) == 1:
        return _format_heading(cell_summary) + (
            _wrap_scrolling(bodies[0]) if _is_long(blocks[0]) and not has_loop_fold(bodies[0]) else bodies[0]
        )
    if sum(map(_count_shown_lines, blocks)) <= _MAX_ROW_LINES and all(map(_is_short, blocks)):
        widest = max(len(describe_many_ranks(b.ranks) + format_hosts_of(locations, b.ranks)) for b in blocks)
        rows = (
            _format_block_row(
                b,
                body,
                locations,
                is_outlier=b.ranks[0] in cell_summary.marked_outliers,
                width_em=min(24, 2.5 + 0.55 * widest),
            )
            for b, body in zip(blocks, bodies, strict=True)
        )
        return _format_heading(cell_summary) + "".join(rows)
    are_outliers = [block.ranks[0] in cell_summary.marked_outliers for block in blocks]
    opened = _open_indexes(blocks, has_majority=any(are_outliers))
    long_count = sum(not (_is_short(blocks[at]) or _has_figures_only(blocks[at])) for at in opened)
    widest = max(len(describe_many_ranks(b.ranks) + format_hosts_of(locations, b.ranks)) for b in blocks)
    layout = _FoldLayout(long_count, min(_MAX_FOLD_LABEL_EM, 1.5 + 0.55 * widest + 1.2 * any(are_outliers)))
    folds = [
        _format_collapsible(
            block,
            body,
            locations,
            layout,
            is_open=at in opened,
            is_outlier=are_outliers[at],
        )
        for at, (block, body) in enumerate(zip(blocks, bodies, strict=True))
    ]
    return _format_heading(cell_summary) + "".join(_fold_many(folds, blocks, opened))


def _without_silent_failures(cell_summary: CellSummary) -> list[Block]:
    """Remove ranks that failed without output: the report above has them."""
    failed = {rank for failure in cell_summary.failures for rank in failure.ranks}
    shown = []
    for block in cell_summary.blocks:
        if block.omitted_nbytes or not block.is_silent:
            shown.append(block)
        elif ranks := tuple(rank for rank in block.ranks if rank not in failed):
            shown.append(replace(block, output_group=replace(block.output_group, ranks=ranks)))
    return shown


def _open_indexes(blocks: Sequence[Block], *, has_majority: bool) -> set[int]:
    """Return the indexes of the blocks that are open at first.

    These are the first block, the majority's, and up to a few short ones and figures. Others are folded, because long
    outputs beside each other are not read anyway.
    """
    first_and_last = {0, len(blocks) - 1} if has_majority else {0}
    others = (at for at in range(len(blocks)) if at not in first_and_last)
    short = [at for at in others if _is_short(blocks[at]) or _has_figures_only(blocks[at])]
    return first_and_last | set(short[: _MAX_OPEN - len(first_and_last)])


def _fold_many(folds: Sequence[str], blocks: Sequence[Block], opened: set[int]) -> Sequence[str]:
    """Put the middle folds of very many blocks in one fold."""
    end = len(blocks) - 1
    if len(blocks) <= _MAX_FOLDS or any(at in opened for at in range(_MAX_FOLDS, end)):
        return folds
    middle = range(_MAX_FOLDS - 1, end)
    ranks = sorted(rank for at in middle for rank in blocks[at].ranks)
    inner = "".join(folds[at] for at in middle)
    return [
        *folds[: middle.start],
        _format_details(f"{describe_many_ranks(ranks)}: {len(middle)} more outputs", inner),
        *folds[end:],
    ]


def _has_figures_only(block: Block) -> bool:
    return all(isinstance(part, RichPart) for part in block.output_group.parts) and not block.omitted_nbytes


def _is_long(block: Block) -> bool:
    return count_lines(block.output_group) > _LONG_LINES


def _count_shown_lines(block: Block) -> int:
    """Return about how many lines a block takes, at least one."""
    if block.rows:
        return sum(min(row.count, 3) for row in block.rows)
    return max(1, count_lines(block.output_group))


def _is_short(block: Block) -> bool:
    """Return whether a block's few lines fit beside its label."""
    if block.omitted_nbytes:
        return False
    if _count_shown_lines(block) > _SHORT_LINES:
        return False
    if block.rows:
        return all(len(row.here) <= _SHORT_CHARS for row in block.rows)
    lines = block_items(block.output_group)
    texts = [getattr(line, "text", "x" * 999) for line in lines]
    return len(lines) <= _SHORT_LINES and max(map(len, texts), default=0) <= _SHORT_CHARS


def _wrap_scrolling(body: str) -> str:
    return f'<div tabindex="0" style="{_SCROLL_STYLE}">{body}</div>'


def _format_block_row(block: Block, body: str, locations: RankLocations, *, is_outlier: bool, width_em: float) -> str:
    bar = f"border-left:3px {'double' if is_outlier else 'solid'} {host_color(locations, block.ranks)}"
    mark = " ≠" if is_outlier else ""
    beside = f"flex:0 0 {width_em:.1f}em;padding-right:.8em;overflow-wrap:anywhere"
    return (
        f'<div class="mhnb-block {BAR_CLASS}{" mhnb-outlier" if is_outlier else ""}" '
        f'style="display:flex;align-items:baseline;{bar};margin:1px 0;padding-left:8px">'
        f'<div style="{beside}">{format_ranks_html(block.ranks, locations)}{mark}</div>'
        f'<div style="flex:1;min-width:0">{body}</div></div>'
    )


@dataclass(frozen=True, slots=True)
class _FoldLayout:
    """What the folds of one cell share."""

    long_count: int
    """Number of long ones that are open; they share a height."""
    label_em: float
    """Width of the labels, beside which the last lines stand below each other."""


def _format_collapsible(
    block: Block, body: str, locations: RankLocations, layout: _FoldLayout, *, is_open: bool, is_outlier: bool
) -> str:
    """Format a block that opens and closes.

    A closed one shows its last line, a long open one its number of lines and its end. Figures and differences are shown
    from their beginning, because their end does not say most.
    """
    mark = " ≠" if is_outlier else ""
    name = f"mhnb-block{' mhnb-outlier' if mark else ''}"
    is_text = not block.rows and all(isinstance(part, TextPart) for part in block.output_group.parts)
    # The lines of a loop are folded already.
    is_text = is_text and not has_loop_fold(body)
    height = _OPEN_EM // max(1, layout.long_count) if is_open and is_text else _OPEN_EM
    label, told = f"{format_ranks_html(block.ranks, locations)}{mark}", ""
    if not is_open and (told := _format_last_line(block)):
        # The last lines stand below each other.
        label = f'<span style="display:inline-block;min-width:{layout.label_em:.1f}em">{label}</span>'
    elif is_text and not _is_short(block):
        told = _format_line_count(block)
    return (
        f'<details class="{name}"{" open" if is_open else ""}><summary style="cursor:pointer">{label}{told}</summary>'
        f"{_add_bar(body, host_color(locations, block.ranks), height_em=height, at_end=is_text)}</details>"
    )


def _format_line_count(block: Block) -> str:
    """Format a block's number of lines; empty if some were left out."""
    lines = [item.text for item in block_items(block.output_group) if isinstance(item, BlockLine)]
    if block.omitted_nbytes or any(GAP_LINE.search(line) or _LEFT_OUT in line for line in lines):
        return ""
    return f' <span style="{QUIET_STYLE}">{pluralize(len(lines), "line")}</span>'


def _format_last_line(block: Block) -> str:
    """Format a block's last line for the summary of its fold."""
    texts = (
        "(a figure)" if isinstance(part, RichPart) else _last_line_of(part)
        for part in reversed(block.output_group.parts)
    )
    last = escape(_cut(next(filter(None, texts), "")), quote=False)
    return f' <span class="{LAST_LINE_CLASS}" style="{QUIET_STYLE}">{last}</span>' if last else ""


def _cut(text: str) -> str:
    return text if len(text) <= _LAST_LINE_CHARS else f"{text[:_LAST_LINE_CHARS]} …"


def _last_line_of(part: TextPart) -> str:
    lines = strip_ansi(part.template.display_text()).rstrip().split("\n")
    # The border of a table says nothing.
    return next((line for line in reversed(lines[-_MAX_BORDERS - 1 :]) if _WORD.search(line)), lines[-1]).strip()


def _add_bar(body: str, color: str, *, height_em: int = 36, at_end: bool = False) -> str:
    """Add the host's colour bar; `at_end` scrolls to the end."""
    bar = f"border-left:3px solid {color};padding-left:8px;margin-left:4px;max-height:{height_em}em;overflow:auto"
    if not at_end:
        return f'<div tabindex="0" style="{bar}">{body}</div>'
    return f'<div tabindex="0" style="{bar};display:flex;flex-direction:column-reverse"><div>{body}</div></div>'


def _format_block_body(block: Block, cell_summary: CellSummary, locations: RankLocations, pictures: Pictures) -> str:
    log = locations.logs.get(block.ranks[0])
    body = block_to_html(
        block,
        pictures,
        limit_nbytes=max(1024, MAX_CELL_NBYTES // len(cell_summary.blocks)),
        where=log or "the log file",
        notebook_dir=locations.notebook_dir,
        # A loop that ended with an error may have printed why.
        form="beside charts" if cell_summary.metrics.charts and not cell_summary.failures else "stored",
    )
    return body or f'<span style="{QUIET_STYLE}">(no output)</span>'


# -- each rank


def _format_verbatim(
    result: CellResult, cell_summary: CellSummary, locations: RankLocations, uid: str, pictures: Pictures
) -> str:
    """Format each rank's verbatim output, collapsed; empty if blocks show it."""
    if cell_summary.is_literal:
        return ""
    if sum(plain_nbytes(r.outputs) for r in result.ranks) > MAX_VERBATIM_NBYTES:
        return f'<div style="{QUIET_STYLE}">word for word: each rank\'s log file{_format_log_hint(locations, result)}</div>'
    summary = f'<summary style="cursor:pointer;{QUIET_STYLE}">each rank word for word</summary>'
    tabs = _format_tabs(result, cell_summary, locations, uid, pictures)
    return f'<details style="margin-top:3px">{summary}{tabs}{_format_noise(cell_summary)}</details>'


def _format_noise(cell_summary: CellSummary) -> str:
    """Format what C++ libraries printed: counted and collapsed."""
    if not cell_summary.noise_label:
        return ""
    lines = "".join(
        f"<div>{describe_ranks(ranks)}</div>{format_pre(text.rstrip())}" for ranks, text in cell_summary.noise
    )
    return _format_details(cell_summary.noise_label, lines)


def _format_log_hint(locations: RankLocations, result: CellResult) -> str:
    log = locations.logs.get(result.ranks[0].rank, "")
    return f", as {format_log_html(log, locations.notebook_dir)}" if log else ""


def _format_tabs(
    result: CellResult, cell_summary: CellSummary, locations: RankLocations, uid: str, pictures: Pictures
) -> str:
    bodies = _format_rank_bodies(result, locations, pictures)
    first = _initial_rank(result, cell_summary)
    tabs = [
        _format_tab(r, body, cell_summary, locations, uid, is_open=r.rank == first)
        for r, body in zip(result, bodies, strict=True)
    ]
    return f'<div class="{uid}">{"".join(tabs)}</div>'


def _initial_rank(result: CellResult, cell_summary: CellSummary) -> int:
    """Return the rank whose tab is open: outlier, else failed, else first."""
    failed = (r.rank for r in result.ranks if r.failure is not None and as_shown(r).outputs)
    return min(cell_summary.outliers, default=next(failed, result.ranks[0].rank))


def _format_tab(
    rank: RankResult, body: str, cell_summary: CellSummary, locations: RankLocations, uid: str, *, is_open: bool
) -> str:
    name = "mhnb-block mhnb-outlier" if rank.rank in cell_summary.marked_outliers else "mhnb-block"
    return (
        f'<details class="{name}" name="{uid}"{" open" if is_open else ""} style="margin:3px 0">'
        f'<summary style="cursor:pointer">{format_ranks_html((rank.rank,), locations)}{_format_mark(rank, cell_summary)}</summary>'
        f"{_format_failure_line(rank, cell_summary)}{_add_bar(body, host_color(locations, (rank.rank,)))}</details>"
    )


def _format_grid(
    result: CellResult, cell_summary: CellSummary, locations: RankLocations, _uid: str, pictures: Pictures
) -> str:
    outputs = [output for rank in result for output in as_shown(rank).outputs]
    has_images = any(map(is_image, outputs))
    # Lines of text are wrapped in columns of equal width. Tables and figures are as wide as they need.
    is_sized = has_images or any(map(_is_table, outputs))
    size = f";box-sizing:border-box;{format_strip_item_style(is_image=has_images)}" if is_sized else ""
    outliers = find_outlier_ranks(cell_summary)
    groups = _group_grid_cells(result, cell_summary, outliers)
    # Ranks that failed come first, then those that differ.
    marked = cell_summary.marked_outliers | outliers.keys()
    groups.sort(key=lambda same: (same[0].failure is None, same[0].rank not in marked))
    limit = max(1024, MAX_CELL_NBYTES // len(groups))
    bodies = [
        format_rank_body(
            same[0],
            locations,
            pictures=pictures,
            limit_nbytes=limit,
            may_shrink=True,
            label=describe_ranks(rank.rank for rank in same),
        )
        for same in groups
    ]
    cells = [
        _format_grid_cell(same, body, cell_summary, locations, difference=outliers.get(same[0].rank, ""), size=size)
        for same, body in zip(groups, bodies, strict=True)
    ]
    name = f' class="{STRIP_CLASS} {STRIP_CLASS}{min(max(len(cells), 2), 4)}"' if has_images else ""
    return f'<div{name} style="{STRIP_STYLE + ";margin-top:3px" if is_sized else GRID_STYLE}">{"".join(cells)}</div>'


def _group_grid_cells(
    result: CellResult, cell_summary: CellSummary, outliers: Mapping[int, str]
) -> list[list[RankResult]]:
    """Group ranks whose grid cells are equal, ordered by first rank."""
    place = {rank: at for at, same in enumerate(group_by_outputs(map(as_shown, result))) for rank in same.ranks}
    groups: dict[tuple[object, ...], list[RankResult]] = {}
    for rank in result:
        told = (_format_mark(rank, cell_summary), _format_failure_line(rank, cell_summary), outliers.get(rank.rank, ""))
        groups.setdefault((place[rank.rank], *told), []).append(rank)
    return list(groups.values())


def _is_table(output: Output) -> bool:
    """Return whether an output must not be wrapped: non-text or a table."""
    return not is_text(output) or has_table(text_of(output))


def _format_grid_cell(
    same: Sequence[RankResult],
    body: str,
    cell_summary: CellSummary,
    locations: RankLocations,
    *,
    difference: str,
    size: str,
) -> str:
    """Format the output of ranks that have the same.

    `size` is the style of a cell that is as wide as it needs, and empty for one of equal width.
    """
    rank, ranks = same[0], [one.rank for one in same]
    name = "mhnb-block mhnb-outlier" if difference or rank.rank in cell_summary.marked_outliers else "mhnb-block"
    top = f"border-top:3px solid {host_color(locations, ranks)}"
    mark = _format_mark(rank, cell_summary) or (" ≠" if difference else "")
    line = (
        f'<div style="font-family:monospace;overflow-wrap:anywhere">{escape(difference, quote=False)}</div>'
        if difference
        else ""
    )
    head = f"<div>{format_ranks_html(ranks, locations)}{mark}</div>{line}"
    limit = _SCROLL_STYLE if size else "max-height:14em;overflow:auto"
    scroll = f'<div tabindex="0" style="{limit}">{_format_failure_line(rank, cell_summary)}{body}</div>'
    return f'<div class="{name}" style="{GRID_CELL_STYLE};{top}{size}">{head}{scroll}</div>'


def _format_mark(rank: RankResult, cell_summary: CellSummary) -> str:
    if rank.failure:
        return f" {NOT_YET_SIGN}" if rank.failure.ename == NOT_YET else " ✗"
    return " ≠" if rank.rank in cell_summary.marked_outliers else ""


def _format_failure_line(rank: RankResult, cell_summary: CellSummary) -> str:
    """Format a rank's error in one line if there are several failures."""
    if rank.failure is None or len(cell_summary.failures) == 1:
        return ""
    only_waited = any(failure.only_waited and rank.rank in failure.ranks for failure in cell_summary.failures)
    text = "waited for a rank that had failed" if only_waited else format_error(rank.failure)
    style = "" if rank.failure.ename == NOT_YET else ' class="mhnb-bad"'
    return f"<div{style}>{escape(text, quote=False)}</div>"


def _format_rank_bodies(result: CellResult, locations: RankLocations, pictures: Pictures) -> list[str]:
    """Format each rank's outputs; store equal ones once if too long."""
    ranks = [as_shown(r) for r in result.ranks]
    limit = max(1024, MAX_CELL_NBYTES // len(ranks))
    first = {r.rank: r.rank for r in ranks}
    if sum(plain_nbytes(r.outputs) for r in ranks) > MAX_CELL_NBYTES:
        groups = group_by_outputs(ranks)
        first = {rank: group.ranks[0] for group in groups for rank in group.ranks}
        limit = max(1024, MAX_CELL_NBYTES // len(groups))
    same = f'<span style="{QUIET_STYLE}">the same as rank {{}}</span>'
    return [
        same.format(first[r.rank])
        if first[r.rank] != r.rank
        else format_rank_body(r, locations, pictures=pictures, limit_nbytes=limit)
        for r in ranks
    ]


def format_rank_body(
    rank: RankResult,
    locations: RankLocations,
    *,
    pictures: Pictures | None = None,
    limit_nbytes: int = MAX_CELL_NBYTES,
    may_shrink: bool = False,
    label: str = "",
) -> str:
    """Format one rank's output verbatim, without errors.

    Args:
        rank: the rank's result.
        locations: host and log file of each rank.
        pictures: those of the page so far; by default it has no others.
        limit_nbytes: text it may store.
        may_shrink: whether its figures may get little room.
        label: the ranks that have this output; this rank by default.
    """
    log = locations.logs.get(rank.rank)
    shown: Sequence[Output] = clip_outputs(as_shown(rank).outputs, limit_nbytes, where=log or "the log file")
    label = label or describe_ranks((rank.rank,))
    known_pictures = pictures or Pictures()
    body = "".join(known_pictures.show_rich(o, label, may_shrink=may_shrink) for o in shown)
    if log:
        body = GAP_LINE.sub(
            lambda gap: gap[0].replace("the rank's log file", format_log_html(log, locations.notebook_dir)), body
        )
    return body or f'<span style="{QUIET_STYLE}">(no output)</span>'
