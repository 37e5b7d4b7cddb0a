"""Format an output block as the HTML that the notebook stores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain, count, groupby
from typing import Literal, TypeAlias

from mhnb.core.output.answers import Answer
from mhnb.core.output.folding import RichPart, is_text
from mhnb.core.output.template import RANK_PLACEHOLDER, Slot
from mhnb.core.ranks import describe_many_ranks, describe_ranks, pluralize
from mhnb.types import Output
from mhnb.view.ansi import ansi_to_html
from mhnb.view.cell.blocks import (
    LOG_HINT,
    OWN_MARK,
    SLOT_MARK,
    BlockLine,
    Loop,
    arrange_items,
    block_items,
    format_bars,
    format_values,
    list_lines,
    shorten_bars,
    slot_letter,
    summarise_slot,
)
from mhnb.view.cell.differences import arrange_differences, format_outlier_values
from mhnb.view.cell.summary import Block, list_outlier_values
from mhnb.view.document import Drawing
from mhnb.view.html import (
    CHANGED_STYLE,
    PICTURE_CLASS,
    QUIET_STYLE,
    STRIP_CLASS,
    STRIP_IMAGE_WIDTH,
    STRIP_STYLE,
    format_fold,
    format_ranks_label,
    format_strip_item_style,
    wrap_in_scroller,
)
from mhnb.view.mime import (
    STDERR_STYLE,
    format_log_html,
    format_pre_html,
    is_image,
    output_to_html,
    read_image_width,
)
from mhnb.view.print_html import print_parts
from mhnb.view.reports.lesson import build_answer

_MAX_TABLE_SLOTS, _MAX_TABLE_RANKS = 12, 16
_COMPLETE_PERCENT = 100
_MAX_DISPLAYS = 8
"""Maximum number of displays in a strip that are seen without a click, if they are no images."""
_SMALL_NBYTES = 512
_MAX_FITTING_WIDTH = 640
"""A single image of this width fits almost every page."""
_CELL_STYLE = "padding:0 .7em 0 0;text-align:right;border:0;background:none"


_NamedSlot: TypeAlias = tuple[str, Slot]


class Pictures:
    """The figures of a page; a repeated one is named, not stored."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def show(self, output: Output, ranks_label: str, *, may_shrink: bool = False) -> str:
        """Format an output, or name the ranks with the same figure.

        `may_shrink` means that the output may get little room.
        """
        html = output_to_html(output)
        if len(html) < _SMALL_NBYTES:
            return html
        key = hashlib.blake2b(html.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (earlier := self._seen.setdefault(key, ranks_label)) != ranks_label:
            return f'<div style="{QUIET_STYLE}">the same as on {escape(earlier)}</div>'
        return _format_image(output, ranks_label, may_shrink=may_shrink) if is_image(output) else html

    def show_rich(self, output: Output, ranks_label: str, *, may_shrink: bool = False) -> str:
        """Format an output; only outputs other than plain text are remembered."""
        return output_to_html(output) if is_text(output) else self.show(output, ranks_label, may_shrink=may_shrink)


def _format_image(output: Output, ranks_label: str, *, may_shrink: bool) -> str:
    """Format an image; a click opens one that may be shrunk.

    A `<details>` that is nothing but its summary keeps that state without a script, and is announced as something that opens. A page
    that drops the style sheet shows the image as large as there is room.
    """
    html = output_to_html(output, alt=f"figure of {ranks_label}")
    width = read_image_width(output)
    if (width or math.inf) <= STRIP_IMAGE_WIDTH or not (may_shrink or (width or 0) > _MAX_FITTING_WIDTH):
        return html
    return f'<details class="{PICTURE_CLASS}"><summary style="list-style:none">{html}</summary></details>'


BlockForm: TypeAlias = Literal["stored", "beside charts", "brief"]


def block_to_html(
    block: Block,
    pictures: Pictures,
    *,
    limit_nbytes: int,
    where: str,
    notebook_dir: str = "",
    form: BlockForm = "stored",
) -> str:
    """Format a block as HTML.

    Args:
        block: ranks and their output.
        pictures: those of the page so far.
        limit_nbytes: text it may store; the rest is in the log.
        where: the log file's path, or a word for it.
        notebook_dir: the notebook's folder, if it is known.
        form: beside charts, the lines of loops are folded; in brief, one progress bar stands for those of all ranks.
    """
    if block.rows:
        hint = "" if form == "beside charts" else f" · {LOG_HINT}"
        return "".join(_format_differences(block, limit_nbytes, escape(where), hint))
    items = arrange_items(
        block_items(block.output_group),
        limit_nbytes,
        where=where,
        shows_folded=True,
        has_charts=form == "beside charts",
    )
    slot_count = sum(len(line.slots) for line in list_lines(items) if isinstance(line, BlockLine))
    # Below a fold, a table would have the numbers that the fold hides.
    has_table = 0 < slot_count <= _MAX_TABLE_SLOTS and not any(isinstance(item, Loop) for item in items)
    writer = _LineWriter(block.ranks, where, notebook_dir, has_table=has_table, has_bar_texts=form != "brief")
    parts: list[str] = []
    hint = f" · {LOG_HINT}"
    for kind, same in groupby(items, key=type):
        if kind is BlockLine:
            parts.append(writer.write([item for item in same if isinstance(item, BlockLine)]))
            continue
        for item in same:
            if isinstance(item, RichPart):
                parts.append(_format_picture(item, pictures))
            elif isinstance(item, Loop):
                head, folded, tail = map(writer.write, (item.head, item.folded, item.tail))
                parts += [head, format_fold(escape(item.label) + hint * (not item.is_charted), folded), tail]
                hint = hint * item.is_charted
    outliers = [] if form == "brief" else list(format_outlier_values(list_outlier_values(block), _PAINTER))
    return (_pre_lines("stdout", outliers) if outliers else "") + "".join(parts) + writer.format_values()


@dataclass(slots=True)
class _LineWriter:
    """Formats a block's lines; slot names continue from line to line."""

    ranks: tuple[int, ...]
    where: str
    notebook_dir: str
    has_table: bool
    """Whether a table below the lines has the numbers of all slots."""
    has_bar_texts: bool
    """Whether each rank's progress bar is listed below the one for all, unless all are complete."""
    named: list[_NamedSlot] = field(default_factory=list)
    """The slots so far."""

    def write(self, lines: Sequence[BlockLine]) -> str:
        """Format successive lines."""
        return "".join(
            self._write_channel(channel, list(same)) for channel, same in groupby(lines, key=lambda line: line.channel)
        )

    def _write_channel(self, channel: str, lines: Sequence[BlockLine]) -> str:
        lines = [self._without_needless_bars(line) if line.bar_texts else line for line in lines]
        names = map(slot_letter, count(len(self.named)))
        named = [[(next(names), slot) for slot in line.slots] for line in lines]
        self.named += chain.from_iterable(named)
        parts: list[str] = []
        for answer, begin, end in _split_answers(lines):
            body = ""
            if begin < end:
                html = _format_lines(lines[begin:end], named[begin:end], self.ranks, table=self.has_table)
                is_note = channel == "note"
                body = _format_note(html, self.where, self.notebook_dir) if is_note else _pre_lines(channel, html)
            parts.append(print_parts(build_answer(*answer, [Drawing(body)])) if answer else body)
        return "".join(parts)

    def _without_needless_bars(self, line: BlockLine) -> BlockLine:
        """Shorten the bars where not all times are needed."""
        if self.has_bar_texts and min(line.bar_percents) < _COMPLETE_PERCENT:
            return line
        return shorten_bars(line, self.ranks)

    def format_values(self) -> str:
        """Format the numbers of all slots that the lines do not list."""
        if self.has_table:
            return _format_slot_table(self.named, self.ranks)
        return _format_all_values(self.named, self.ranks)


def _pre_lines(channel: str, lines: Sequence[str]) -> str:
    return format_pre_html("\n".join(lines), style=STDERR_STYLE if channel == "stderr" else "")


def _split_answers(lines: Sequence[BlockLine]) -> list[tuple[tuple[Answer, str] | None, int, int]]:
    """Split lines at the answers to exercises.

    Return each answer with its first line, and the range of the lines below it.
    """
    begins = [(at, line.answer) for at, line in enumerate(lines) if line.answer is not None and not line.slots]
    ends = [*(at for at, _ in begins), len(lines)]
    heads = [(answer, lines[at].text.replace(OWN_MARK, RANK_PLACEHOLDER)) for at, answer in begins]
    answers = [(head, at + 1, end) for (at, _), head, end in zip(begins, heads, ends[1:], strict=True)]
    return [*([(None, 0, ends[0])] if ends[0] else []), *answers]


def _format_note(lines: Sequence[str], where: str, notebook_dir: str) -> str:
    path = escape(where, quote=False)
    shown = "<br>".join(lines)
    shown = shown.replace(path, format_log_html(where, notebook_dir)) if where.startswith("/") else shown
    return f'<div style="{QUIET_STYLE}">{shown}</div>'


def _format_lines(
    lines: Sequence[BlockLine], named: Sequence[Sequence[_NamedSlot]], ranks: Sequence[int], *, table: bool
) -> list[str]:
    """Format lines, and below each its numbers if no table has them."""
    # Converted together, because a colour may continue on the next line.
    plain = ansi_to_html("\n".join(line.text for line in lines)).split("\n")
    written: list[str] = []
    for line, html, slots in zip(lines, plain, named, strict=True):
        written.append(_insert_names(html, [name for name, _ in slots]))
        if not table:
            written += [f"  <b>{name}</b> {_format_slot(slot, ranks)}" for name, slot in slots if not slot.is_bar]
        if line.bar_texts:
            written.append(f'<span style="{QUIET_STYLE}">  each {escape(format_bars(line, ranks), quote=False)}</span>')
    return written


def _insert_names(html: str, names: Sequence[str]) -> str:
    """Replace the marks by names."""
    shown = html.replace(OWN_MARK, f"<i>{RANK_PLACEHOLDER}</i>")
    for name in names:
        shown = shown.replace(SLOT_MARK, f"<b>‹{name}›</b>", 1)
    return shown


def _format_slot(slot: Slot, ranks: Sequence[int]) -> str:
    text = summarise_slot(slot, ranks) or format_values(slot, ranks)
    return f'<span style="{QUIET_STYLE}">{escape(text, quote=False)}</span>'


def _format_all_values(named: Sequence[_NamedSlot], ranks: Sequence[int]) -> str:
    """Format every value of slots that were only summarised above."""
    return _collapse_values(
        [
            f"<b>{name}</b> {escape(format_values(slot, ranks), quote=False)}"
            for name, slot in named
            if not slot.is_bar and summarise_slot(slot, ranks)
        ]
    )


def _collapse_values(rows: Sequence[str]) -> str:
    """Format the rows of every value, collapsed because there are many."""
    if not rows:
        return ""
    return format_fold("every value of every rank", _pre_lines("stdout", rows))


def _format_picture(picture: RichPart, pictures: Pictures) -> str:
    """Format a picture: one output, or a strip of the ranks' variants."""
    if len(picture.variants) == 1:
        ((ranks, output),) = picture.variants
        return pictures.show(output, describe_ranks(ranks))
    items = [StripItem(ranks, output, format_ranks_label(ranks)) for ranks, output in picture.variants]
    return format_strip(items, pictures)


@dataclass(frozen=True, slots=True)
class StripItem:
    """One of several outputs side by side."""

    ranks: tuple[int, ...]
    output: Output
    label: str
    """The ranks, as HTML."""
    name: str = ""
    """Its class, if any."""


def format_strip(items: Sequence[StripItem], pictures: Pictures) -> str:
    """Format outputs side by side, each below its ranks.

    Of many tables and other displays, which may need a line each, the first ones are seen, and the others are in a fold.
    """
    are_images = all(is_image(item.output) for item in items)
    name = f' class="{STRIP_CLASS} {STRIP_CLASS}{min(len(items), 4)}"' if are_images else ""
    parts = [_format_strip_item(item, pictures, is_image=are_images) for item in items]
    shown = len(items) if are_images else _MAX_DISPLAYS
    strip = f'<div{name} style="{STRIP_STYLE}">{"".join(parts[:shown])}</div>'
    if not (rest := items[shown:]):
        return strip
    ranks = describe_many_ranks(rank for item in rest for rank in item.ranks)
    label = f"{ranks}: {pluralize(len(rest), 'more display')}"
    return strip + format_fold(label, f'<div style="{STRIP_STYLE}">{"".join(parts[shown:])}</div>')


def _format_strip_item(item: StripItem, pictures: Pictures, *, is_image: bool) -> str:
    name = f' class="{item.name}"' if item.name else ""
    html = pictures.show(item.output, describe_ranks(item.ranks), may_shrink=is_image)
    label = f'<div style="overflow-wrap:anywhere">{item.label}</div>'
    return f'<div{name} style="{format_strip_item_style(is_image=is_image)}">{label}{html}</div>'


# -- the numbers of a template


_TABLE_STYLE = "border-collapse:collapse;font-family:monospace;border:0;margin:2px 0 4px 1em"


def _format_slot_table(named: Sequence[_NamedSlot], ranks: Sequence[int]) -> str:
    rows = "".join(_format_slot_row(name, slot, ranks) for name, slot in named if not slot.is_bar)
    head = ""
    if len(ranks) <= _MAX_TABLE_RANKS:
        cells = "".join(f'<th scope="col" style="{_CELL_STYLE};{QUIET_STYLE}">{rank}</th>' for rank in ranks)
        head = f'<tr><th scope="col" style="{_CELL_STYLE};{QUIET_STYLE}">rank</th>{cells}</tr>'
    return wrap_in_scroller(f'<table class="mhnb-table" style="{_TABLE_STYLE}">{head}{rows}</table>')


def _format_slot_row(name: str, slot: Slot, ranks: Sequence[int]) -> str:
    # Its baseline is that of the values, below which a fold may open.
    head = f'<tr><th scope="row" style="{_CELL_STYLE};vertical-align:baseline"><b>{name}</b></th>'
    if len(ranks) <= _MAX_TABLE_RANKS:
        return f"{head}{''.join(_format_value_cells(slot))}</tr>"
    summary, values = summarise_slot(slot, ranks), escape(format_values(slot, ranks), quote=False)
    if summary:
        # The folds of several rows are directly below each other, and each is to be hit.
        label = f'<summary style="cursor:pointer;padding:5px 0">{escape(summary)}</summary>'
        values = f"<details>{label}{values}</details>"
    style = f"{_CELL_STYLE};text-align:left;white-space:normal;vertical-align:baseline"
    return f'{head}<td style="{style}">{values}</td></tr>'


def _text(text: str) -> str:
    return escape(text, quote=False)


def _format_value_cells(slot: Slot) -> Iterator[str]:
    outliers = slot.outliers
    for at, value in enumerate(slot.values):
        text = escape(value.strip(), quote=False)
        yield f'<td style="{_CELL_STYLE}">{f"<b>{text}&nbsp;≠</b>" if at in outliers else text}</td>'


# -- differences


class _HtmlPainter:
    """Turns words into HTML."""

    plain = staticmethod(_text)

    def printed(self, channel: str, text: str) -> str:
        if channel == "picture":
            return "<i>(a figure)</i>"
        shown = _text(text).replace(RANK_PLACEHOLDER, f"<i>{RANK_PLACEHOLDER}</i>")
        return f'<span style="{STDERR_STYLE}">{shown}</span>' if channel == "stderr" else shown

    def strong(self, shown: str) -> str:
        return f"<b>{shown}</b>"

    added = strong

    def quiet(self, shown: str) -> str:
        return f'<span style="{QUIET_STYLE}">{shown}</span>'

    def changed(self, shown: str) -> str:
        return f'<b style="{CHANGED_STYLE}">{shown}</b>' if shown else ""


_PAINTER = _HtmlPainter()


def _format_differences(block: Block, limit_nbytes: int, where: str, hint: str) -> Iterator[str]:
    """Format a block's differences; fold the middle of loops."""
    for part in arrange_differences(block, _PAINTER, limit_nbytes, where=where, shows_folded=True):
        yield _pre_lines("stdout", part.head)
        if part.folded:
            yield format_fold(f"… {part.folded_count} more lines{hint}", _pre_lines("stdout", part.folded))
            yield _pre_lines("stdout", part.tail)
            hint = ""
