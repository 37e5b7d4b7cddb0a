"""Lines of an output block, before they become text or HTML.

Decides how numbers are listed (per rank, or by value), and how a long block is shortened.

Long lines that differ in a few words are shortened to those words and the text near them. The text left out is as in the
majority's line, which its own block shows in full. Each rank's lines stay complete in the verbatim output and in its log.

Of many successive lines of one form, as a loop prints them, the first and the last are shown, and the others are folded.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from mhnb.core.output.answers import Answer
from mhnb.core.output.diff import DiffRow, DiffSpan
from mhnb.core.output.diff import Line as SaidLine
from mhnb.core.output.folding import OutputGroup, RichPart
from mhnb.core.output.outputs import GAP_LINE
from mhnb.core.output.rich import merge_bars, parse_bar
from mhnb.core.output.tables import is_table_row
from mhnb.core.output.template import RANK_PLACEHOLDER, Slot, find_unit, split_numbers
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.sharding.layout import format_nbytes
from mhnb.view.ansi import strip_ansi
from mhnb.view.drawings.curves import find_outliers

OWN_MARK, SLOT_MARK = "\ufdd0", "\ufdd1"
"""Placeholders in a line's text for a rank's own number and for a slot. Unicode reserves them for use inside a program."""
_LIST = re.compile(rf"(?:(?<=[\[(])|^)[-+\d\s.,einfa{OWN_MARK}{SLOT_MARK}]+(?=[\])]|$)|{SLOT_MARK}")
"""The inside of a list of numbers, or of its part on a line; or a slot elsewhere."""
_MARKS = re.compile(f"[{OWN_MARK}{SLOT_MARK}]")
_BYTES_OF, _AT_LEAST_PREFIX = " bytes of ", "at least "
"""If the ranks left out different amounts, the smallest is shown. The others are in the same place."""
_OMITTED_LINE = re.compile(
    r"… (?:(\d+) lines?(?: and ((?:at least )?[\d,]+) bytes more)?|((?:at least )?[\d,]+) bytes of \w+) left out: all of it is in .* …"
)
LINE_NBYTES, _SLOT_NBYTES = 13, 90
_FOLD_NBYTES, _NOTE_NBYTES = 600, 120
"""What a fold takes beside its lines, three elements and a label; and the note that stands for one in text."""
MAX_OUTLIER_VALUES = 6
"""Maximum number of outlier values on top of a block; the others are marked where they are."""
_MAX_LISTED_RANKS = 16
"""For more ranks, minimum, median and maximum are shown before the values."""


@dataclass(frozen=True, slots=True)
class BlockLine:
    """A line of a block."""

    channel: str
    text: str
    """The line's text, with marks for the slots."""
    slots: tuple[Slot, ...] = ()
    """Slots that vary, in the order of their marks."""
    bar_texts: tuple[str, ...] = ()
    """The text of every rank's own progress bar, if the line draws them as one."""
    bar_percents: tuple[int, ...] = ()
    """How far each of these bars is."""
    answer: Answer | None = None
    """The answer to an exercise that begins with this line."""

    @property
    def nbytes(self) -> int:
        """Estimate the line's size in the stored notebook, in bytes."""
        numbers = sum(_SLOT_NBYTES + sum(len(value) + 8 for value in slot.values) for slot in self.slots)
        marks = self.text.count(OWN_MARK) * 20
        return len(self.text) + LINE_NBYTES + marks + numbers + sum(len(text) + 8 for text in self.bar_texts)


BlockItem: TypeAlias = BlockLine | RichPart


def block_items(block: OutputGroup) -> list[BlockItem]:
    """Split a block into lines and pictures; merge ranks' progress bars."""
    items: list[BlockItem] = []
    for part in block.parts:
        if isinstance(part, RichPart):
            items.append(part)
            continue
        rows = part.template.lines()
        if len(rows) > 1 and rows[-1] == ([""], []):
            rows.pop()
        first, *others = (_build_line(part.channel, literals, slots, block.ranks) for literals, slots in rows)
        items += [first if part.answer is None else replace(first, answer=part.answer), *others]
    return items


def count_lines(block: OutputGroup) -> int:
    """Return a cheap lower bound on the number of lines and pictures."""
    return sum(
        1 if isinstance(part, RichPart) else sum(literal.count("\n") for literal in part.template.literals)
        for part in block.parts
    )


def _build_line(
    channel: str, template_literals: Sequence[str], slots: Sequence[Slot], ranks: Sequence[int]
) -> BlockLine:
    literals = [_MARKS.sub("\ufffd", literal) for literal in template_literals]
    if slots and _BYTES_OF in literals[-1]:
        marks = [
            GAP_LINE.fullmatch(_join_literals(literals, [slot.values[at] for slot in slots]))
            for at in range(len(ranks))
        ]
        if smallest := min((_read_number(mark[1]) for mark in marks if mark), default=0):
            return BlockLine(channel, f"[... at least {smallest:,}{literals[-1][literals[-1].index(_BYTES_OF) :]}")
    varying = tuple(slot for slot in slots if slot.is_varying)
    if slots and any("%" in literal for literal in literals):
        texts = [strip_ansi(_join_literals(literals, [slot.values[at] for slot in slots])) for at in range(len(ranks))]
        if (bar := merge_bars(texts, ranks)) is not None:
            return BlockLine(
                "progress",
                bar,
                bar_texts=tuple(text.rpartition("|")[2].strip() for text in texts),
                bar_percents=tuple(each.percent for each in map(parse_bar, texts) if each is not None),
            )
    return BlockLine(channel, _join_literals(literals, list(map(_mark, slots))), varying)


_BEFORE_MEDIAN = re.compile(r"(?= · median \d+ % · max )")


def _mark(slot: Slot) -> str:
    return OWN_MARK if slot.is_rank else SLOT_MARK if slot.is_varying else slot.values[0]


def _join_literals(literals: Sequence[str], values: Sequence[str]) -> str:
    return "".join(part for pair in zip(literals, [*values, ""], strict=True) for part in pair)


def comparable_lines(block: OutputGroup, *, with_letters: bool = True) -> list[SaidLine]:
    """Format a block as lines for comparison, pictures included.

    The slots of each line have letters if `with_letters` is set.
    Unset it for lines that are shown in another block, because the letters would refer to slots of that block.
    """
    lines: list[SaidLine] = []
    for item in block_items(block):
        if isinstance(item, RichPart):
            lines += [("picture", str(sorted(output["data"].items()))) for _, output in item.variants]
        else:
            lines.append((item.channel, _insert_letters(item, with_letters=with_letters)))
    return lines


def _insert_letters(line: BlockLine, *, with_letters: bool = True) -> str:
    first, *pieces = strip_ansi(line.text).replace(OWN_MARK, RANK_PLACEHOLDER).split(SLOT_MARK)
    slots = [f"‹{slot_letter(at) if with_letters else '…'}›{piece}" for at, piece in enumerate(pieces)]
    return "".join([first, *slots])


def _join_lists(line: BlockLine, ranks: Sequence[int]) -> BlockLine:
    """Join the differing numbers of each list into one slot."""
    slots = iter(line.slots)
    joined: list[Slot] = []

    def join(found: re.Match[str]) -> str:
        pieces = found[0].split(SLOT_MARK)
        inner = [next(slots) for _ in pieces[1:]]
        if len(inner) < 2:
            joined.extend(inner)
            return found[0]
        texts = [_join_literals(pieces, [slot.values[at] for slot in inner]) for at in range(len(ranks))]
        joined.append(Slot(tuple(text.replace(OWN_MARK, str(rank)) for text, rank in zip(texts, ranks, strict=True))))
        return SLOT_MARK

    text = _LIST.sub(join, line.text)
    return replace(line, text=text, slots=tuple(joined))


def format_lines(block: OutputGroup) -> list[str]:
    """Format a text block as plain lines with each rank's numbers.

    >>> from mhnb.core.output.folding import group_outputs
    >>> outputs = [((r,), [{"output_type": "stream", "name": "stderr", "text": f"rank {r} lost {r + 7} of 9"}]) for r in (0, 1)]
    >>> format_lines(group_outputs(outputs)[0])
    ['rank ‹rank› lost ‹a› of 9', '  a  0: 7 · 1: 8']
    """
    items = [_join_lists(item, block.ranks) for item in block_items(block) if isinstance(item, BlockLine)]
    lines: list[str] = []
    for item in items:
        lines.append(_insert_letters(item))
        lines += [f"  {slot_letter(at)}  {format_values(slot, block.ranks)}" for at, slot in enumerate(item.slots)]
    return lines


def arrange_items(
    items: Sequence[BlockItem], limit_nbytes: int, *, where: str, shows_folded: bool, has_charts: bool = False
) -> list[BlockItem | Loop]:
    """Find a block's loops and cut the middle of long text.

    What loops fold is left out first, so that nothing is lost between two of them.

    Args:
        items: of the block.
        limit_nbytes: text that there is room for.
        where: where all of it is.
        shows_folded: whether the form has the lines that loops fold.
        has_charts: whether charts of the cell's metrics are below.
    """
    found = find_loops([_label_gap(item, where) for item in items], has_charts=has_charts)
    fold_nbytes = _FOLD_NBYTES if shows_folded else _NOTE_NBYTES
    loops = [item for item in found if isinstance(item, Loop)]
    shown = [line for item in found for line in ((*item.head, *item.tail) if isinstance(item, Loop) else (item,))]
    room = limit_nbytes - _count_nbytes(shown) - fold_nbytes * len(loops)
    each = max(0, room) // max(1, len(loops)) if shows_folded else 0
    clipped = [_clip_loop(item, each, where) if isinstance(item, Loop) else item for item in found]
    # Where not even the ends of loops have room, they are lines like others.
    return clipped if room >= 0 else [*_clip_items(list_lines(clipped), limit_nbytes, where)]


def _count_nbytes(items: Sequence[BlockItem]) -> int:
    return sum(item.nbytes for item in items if isinstance(item, BlockLine))


def _clip_loop(loop: Loop, limit_nbytes: int, where: str) -> Loop:
    folded = [item for item in _clip_items(loop.folded, limit_nbytes, where) if isinstance(item, BlockLine)]
    return replace(loop, lines=(*loop.head, *folded, *loop.tail))


def _clip_items(items: Sequence[BlockItem], limit_nbytes: int, where: str) -> Sequence[BlockItem]:
    """Replace the middle of too much text by a note."""
    if _count_nbytes(items) <= limit_nbytes:
        return items
    shortened = [
        _shorten_block_line(item, limit_nbytes // 4) if isinstance(item, BlockLine) else item for item in items
    ]
    sizes = [item.nbytes if isinstance(item, BlockLine) else 0 for item in shortened]
    head = count_fitting(sizes, limit_nbytes // 2)
    tail = len(items) - count_fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2)
    if tail <= head:
        return shortened
    left_out = [item for item in items[head:tail] if isinstance(item, BlockLine)]
    pictures = [item for item in items[head:tail] if isinstance(item, RichPart)]
    note = BlockLine("note", format_omitted_line([line.text for line in left_out], where=where)) if left_out else None
    return [*shortened[:head], *([note] if note else []), *pictures, *shortened[tail:]]


def _label_gap(item: BlockItem, where: str) -> BlockItem:
    """Replace a rank's own gap line by a note naming `where`."""
    found = GAP_LINE.fullmatch(item.text) if isinstance(item, BlockLine) else None
    if found is None:
        return item
    return BlockLine("note", f"… {found[1]} bytes of {found[2]} left out: all of it is in {where} …")


def format_omitted_line(lines: Sequence[str], *, where: str) -> str:
    """Format the note about omitted lines: their number and `where` they are.

    A line that is itself such a note counts as the lines that it replaces.
    Of text that a rank left out, the notebook knows only the bytes, not the lines. They are given beside the lines.

    >>> format_omitted_line(["a", format_omitted_line(["b"] * 7, where="the log file")], where="a.log")
    '… 8 lines left out: all of it is in a.log …'
    """
    count, nbytes, prefix = _count_omitted(lines)
    more = f" and {prefix}{nbytes:,} bytes more" if nbytes else ""
    return f"… {count} {'line' if count == 1 else 'lines'}{more} left out: all of it is in {where} …"


def _count_omitted(lines: Sequence[str]) -> tuple[int, int, str]:
    """Return counts of omitted lines and bytes, and the bytes' prefix."""
    count, nbytes, prefix = 0, 0, ""
    for line in lines:
        if gap := GAP_LINE.fullmatch(line):
            nbytes, prefix = nbytes + _read_number(gap[1]), prefix or _at_least_prefix(gap[1])
        elif found := _OMITTED_LINE.fullmatch(line):
            more = found[2] or found[3] or "0"
            count, nbytes = count + int(found[1] or 0), nbytes + _read_number(more)
            prefix = prefix or _at_least_prefix(more)
        else:
            count += 1
    return count, nbytes, prefix


def _read_number(text: str) -> int:
    return int(text.removeprefix(_AT_LEAST_PREFIX).replace(",", ""))


def _at_least_prefix(text: str) -> str:
    return _AT_LEAST_PREFIX if text.startswith(_AT_LEAST_PREFIX) else ""


def shorten_line(text: str, limit_nbytes: int) -> str:
    """Remove the middle of a very long line.

    >>> shorten_line("a" * 5000, 8)
    'aaaa … 4.9 KiB left out … aaaa'
    """
    end = limit_nbytes // 2
    left_out = len(text) - 2 * end
    return f"{text[:end]} … {format_nbytes(left_out)} left out … {text[len(text) - end :]}" if left_out > 0 else text


def _shorten_block_line(line: BlockLine, limit_nbytes: int) -> BlockLine:
    """Cut a long line, except notes and lines with ranks' values."""
    if line.nbytes <= limit_nbytes or line.slots or line.bar_texts or _is_note(line):
        return line
    return replace(line, text=shorten_line(strip_ansi(line.text), limit_nbytes))


def count_fitting(sizes: Sequence[int], limit_nbytes: int) -> int:
    """Return how many of the first sizes fit."""
    total = 0
    for at, size in enumerate(sizes):
        total += size
        if total > limit_nbytes:
            return at
    return len(sizes)


# -- numbers


def slot_letter(index: int) -> str:
    """Return the name of the slot at an index.

    >>> slot_letter(0), slot_letter(27)
    ('a', 'b1')
    """
    return chr(ord("a") + index % 26) + (str(index // 26) if index >= 26 else "")


def summarise_slot(slot: Slot, ranks: Sequence[int]) -> str:
    """Format minimum, median and maximum; empty for few or no numbers.

    >>> summarise_slot(Slot(tuple(map(str, range(20)))), range(20))
    'min 0 (rank 0) · median 9 · max 19 (rank 19)'
    """
    numbers = [(number, at) for at, number in enumerate(slot.numbers) if number is not None and math.isfinite(number)]
    if len(ranks) <= _MAX_LISTED_RANKS or not numbers:
        return ""
    (_, low), (_, high) = min(numbers, key=lambda one: one[0]), max(numbers, key=lambda one: one[0])
    middle = sorted(numbers)[(len(numbers) - 1) // 2][1]
    values = [value.strip() for value in slot.values]
    return f"min {values[low]} (rank {ranks[low]}) · median {values[middle]} · max {values[high]} (rank {ranks[high]})"


def format_values(slot: Slot, ranks: Sequence[int]) -> str:
    """Format all values: by value if few are distinct, otherwise by rank.

    >>> format_values(Slot(("0.3", "0.3", "0.7", "0.3")), (0, 1, 2, 3)), format_values(Slot(("1", "2")), (4, 5))
    ('0.7 ≠ rank 2 · 0.3 ranks 0-1,3', '4: 1 · 5: 2')
    """
    return " · ".join(_iter_values(slot, ranks))


@dataclass(frozen=True, slots=True)
class OutlierValue:
    """A number in which a few ranks differ from most others."""

    ranks: tuple[int, ...]
    before: str
    """The line's text before the number, as these ranks printed it."""
    value: str
    elsewhere: str
    """The value of most other ranks; the range of the others if they all differ."""


def find_outlier_values(items: Sequence[BlockItem], ranks: Sequence[int]) -> list[OutlierValue]:
    """Return the numbers in which few ranks differ from most others.

    Few means one rank, or at most a quarter. Durations always differ, so they are ignored. Of many lines of one form
    every rank differs on some, by chance. So there a rank is an outlier only if few ranks are, or if it is far from the
    others, for half of the lines or at the end.

    >>> line = BlockLine("stdout", f"loss {SLOT_MARK}", (Slot(("0.3", "0.3", "0.7", "0.3")),))
    >>> [(one.ranks, one.before, one.value, one.elsewhere) for one in find_outlier_values([line], range(4))]
    [((2,), 'loss ', '0.7', '0.3')]
    """
    found: list[OutlierValue] = []
    for same in _split_by_form(items):
        lines = [item for item in same if isinstance(item, BlockLine) and not item.bar_texts]
        outliers = [
            one for line in lines for at in range(len(line.slots)) for one in _outlier_values_of(line, at, ranks)
        ]
        if len(lines) >= _MIN_LINES and len({rank for one in outliers for rank in one.ranks}) > max(1, len(ranks) // 4):
            outliers = []
        named = {rank for one in outliers for rank in one.ranks}
        far = _outlier_values_over(lines, ranks) if len(lines) > MAX_SHOWN_LINES else ()
        found += [one for one in far if not named.issuperset(one.ranks)] + outliers
    return found


def _outlier_values_of(line: BlockLine, at: int, ranks: Sequence[int]) -> Iterator[OutlierValue]:
    outliers = line.slots[at].outliers
    if 0 < len(outliers) <= max(1, len(ranks) // 4):
        yield from _build_outlier_values(line, at, ranks, outliers)


def _outlier_values_over(lines: Sequence[BlockLine], ranks: Sequence[int]) -> Iterator[OutlierValue]:
    """Yield the last numbers of a loop's outlier ranks.

    The other ranks' numbers may differ a little. Numbers without a point, such as those of processes and ports, may be
    anything.
    """
    width = max(len(line.slots) for line in lines)
    alike = [line for line in lines if len(line.slots) == width]
    for at in range(width if len(alike) > MAX_SHOWN_LINES else 0):
        slots = [line.slots[at] for line in alike]
        texts = [slot.values for slot in slots]
        if not any(slot.is_bar for slot in slots) and any("." in text for row in texts for text in row):
            rows = [
                [value if value is not None and math.isfinite(value) else None for value in s.numbers] for s in slots
            ]
            yield from _build_outlier_values(alike[-1], at, ranks, frozenset(find_outliers(rows, texts)))


def _build_outlier_values(
    line: BlockLine, at: int, ranks: Sequence[int], outliers: frozenset[int]
) -> Iterator[OutlierValue]:
    slot = line.slots[at]
    pieces = strip_ansi(line.text).split(SLOT_MARK)
    is_time = find_unit(pieces[at], f" {slot.values[0].strip()}", pieces[at + 1])[0] == "time"
    others = [
        (number, value.strip())
        for place, (number, value) in enumerate(zip(slot.numbers, slot.values, strict=True))
        if place not in outliers and number is not None
    ]
    if not outliers or slot.is_bar or is_time or not others:
        return
    least, most = min(others)[1], max(others)[1]
    places_by_value: dict[str, list[int]] = defaultdict(list)
    for place in sorted(outliers):
        places_by_value[slot.values[place]].append(place)
    for value, places in places_by_value.items():
        texts = [_shared_text([one.values[place] for place in places]) for one in line.slots[:at]]
        own = str(ranks[places[0]]) if len(places) == 1 else RANK_PLACEHOLDER
        before = _join_literals(pieces[: at + 1], texts).replace(OWN_MARK, own)
        yield OutlierValue(
            tuple(ranks[place] for place in places),
            _end_of(before.lstrip()),
            value.strip(),
            least if least == most else f"{least} to {most}",
        )


def _shared_text(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else "…"


def format_more_outlier_values(more: Sequence[OutlierValue]) -> str:
    """Format a line that counts the outlier values not on top.

    >>> format_more_outlier_values([OutlierValue((2,), "loss ", "0.7", "0.3")])
    '… and 1 more number of rank 2, marked ≠'
    """
    ranks = sorted({rank for one in more for rank in one.ranks})
    return f"… and {pluralize(len(more), 'more number')} of {describe_ranks(ranks)}, marked ≠"


def _end_of(text: str) -> str:
    return text if len(text) <= _CONTEXT_CHARS else f"… {text[-_CONTEXT_CHARS:].partition(' ')[2]}"


def format_bars(line: BlockLine, ranks: Sequence[int]) -> str:
    """Format every rank's progress bar; empty if the line has none."""
    return " · ".join(f"{rank}: {text}" for rank, text in zip(ranks, line.bar_texts, strict=bool(line.bar_texts)))


def shorten_bars(line: BlockLine, ranks: Sequence[int]) -> BlockLine:
    """Leave only the time and the rate of the slowest bar."""
    at = line.bar_percents.index(min(line.bar_percents))
    rate = line.bar_texts[at].partition("[")[2]
    if not rate:
        return replace(line, bar_texts=())
    # The rank is named where the ranks are not equally far.
    text, count = _BEFORE_MEDIAN.subn(lambda _: f" [{rate}", line.text)
    return replace(line, text=text if count else f"{text} · rank {ranks[at]} [{rate}", bar_texts=())


def _iter_values(slot: Slot, ranks: Sequence[int]) -> Iterator[str]:
    indexes_by_value: dict[str, list[int]] = defaultdict(list)
    for at, value in enumerate(slot.values):
        indexes_by_value[value].append(at)
    outlier_indexes = slot.outliers
    if 2 * len(indexes_by_value) <= len(ranks):
        for value, indexes in sorted(indexes_by_value.items(), key=lambda item: (len(item[1]), item[1])):
            mark = " ≠" if indexes[0] in outlier_indexes else ""
            yield f"{value.strip()}{mark} {describe_ranks([ranks[at] for at in indexes])}"
    else:
        for at, value in enumerate(slot.values):
            yield f"{ranks[at]}: {value.strip()}{' ≠' if at in outlier_indexes else ''}"


# -- loops


_MIN_LINES = 3
"""Fewer lines of one form are no loop in which a rank is an outlier by chance."""
_MAX_LINES_PER_VARYING = 4
"""If fewer than one in this many lines has numbers that differ by rank, those that do are not folded with the others."""
_MAX_LISTED_LINES = 40
"""Up to so many lines of one form on which all ranks agree may be a list to read, and are not folded."""
LOG_HINT = "mhnb.log(step, loss=loss) draws a curve"
"""Said once in a block, where lines of a loop are folded."""
PRINTED_LINES = "printed lines"
MAX_SHOWN_LINES = 12
"""Of more lines of one form on which ranks differ, the middle is folded."""
HEAD_LINES, TAIL_LINES = 2, 5
"""Lines that are shown of those whose middle is folded."""
_MAX_LINES_BESIDE_CHARTS = 3
"""Of more lines of one form in a cell that has charts, none is shown without a click: the charts have the numbers."""
_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Loop:
    """Many successive lines of one form."""

    lines: tuple[BlockLine, ...]
    """In the middle also a line that says how many were left out."""
    is_charted: bool = False
    """Whether the cell has charts, so that all lines are folded."""

    @property
    def head(self) -> tuple[BlockLine, ...]:
        """The first lines, which are shown."""
        return () if self.is_charted else self.lines[:HEAD_LINES]

    @property
    def folded(self) -> tuple[BlockLine, ...]:
        """The lines in the middle."""
        return self.lines if self.is_charted else self.lines[HEAD_LINES:-TAIL_LINES]

    @property
    def tail(self) -> tuple[BlockLine, ...]:
        """The last lines, which are shown."""
        return () if self.is_charted else self.lines[-TAIL_LINES:]

    @property
    def label(self) -> str:
        """The fold's label, as `40 printed lines · step 39 loss 0.2`."""
        if not self.is_charted:
            return f"… {self.folded_count} more lines"
        last = next(line for line in reversed(self.lines) if not _is_note(line))
        shown = _WHITESPACE.sub(" ", _insert_letters(last, with_letters=False))
        return f"{self.folded_count} {PRINTED_LINES} · {keep_ends(shown.strip())}"

    @property
    def folded_count(self) -> int:
        """The number of lines in the middle, including those left out."""
        return _count_omitted([line.text for line in self.folded])[0]


def has_loop_fold(html: str) -> bool:
    """Return whether a block's HTML has the fold of a loop."""
    return LOG_HINT in html or f" {PRINTED_LINES} · " in html


def list_lines(items: Sequence[BlockItem | Loop]) -> list[BlockItem]:
    """Return the lines and pictures, those of loops one by one."""
    return [line for item in items for line in (item.lines if isinstance(item, Loop) else (item,))]


def find_loops(items: Sequence[BlockItem], *, has_charts: bool = False) -> list[BlockItem | Loop]:
    """Group successive lines of one form if there are many of them.

    `has_charts` means that few suffice if they have words and a number that changes: the charts show these.
    """
    found: list[BlockItem | Loop] = []
    for same in _split_by_form(items):
        lines = [item for item in same if isinstance(item, BlockLine)]
        varying_count = sum(bool(line.slots) for line in lines)
        is_sparse = _MAX_LINES_PER_VARYING * varying_count < len(lines)
        for _, part in groupby(((is_sparse and bool(line.slots), line) for line in lines), key=itemgetter(0)):
            run = tuple(line for _, line in part)
            if has_charts and _is_printed_metric(run):
                found.append(Loop(run, is_charted=True))
            else:
                found += [Loop(run)] if _is_loop(run) else run
        found += [item for item in same if isinstance(item, RichPart)]
    return found


def _split_by_form(items: Sequence[BlockItem]) -> Iterator[list[BlockItem]]:
    """Split items into runs of one form; notes join the preceding run."""
    forms: list[tuple[object, ...]] = []
    for at, item in enumerate(items):
        has_form = at > 0 and isinstance(items[at - 1], BlockLine) and isinstance(item, BlockLine) and _is_note(item)
        forms.append(forms[-1] if has_form else _form_of(at, item))
    for _, same in groupby(range(len(items)), key=forms.__getitem__):
        yield [items[at] for at in same]


def _is_note(line: BlockLine) -> bool:
    return _OMITTED_LINE.fullmatch(line.text) is not None


def _form_of(at: int, item: BlockItem) -> tuple[object, ...]:
    """Return a line's form; pictures and progress bars are unique."""
    if isinstance(item, RichPart) or item.bar_texts or any(slot.is_bar for slot in item.slots):
        return (at,)
    form = find_form(strip_ansi(item.text).replace(SLOT_MARK, "0"))
    return (item.channel, *form) if len(form) > 1 else (at,)


def find_form(text: str) -> tuple[str, ...]:
    """Return the text around a line's numbers, which loop lines share."""
    # Numbers that are padded have other blanks around them on each line.
    return tuple(_WHITESPACE.sub(" ", literal) for literal in split_numbers(text)[0])


def _is_loop(lines: Sequence[BlockLine]) -> bool:
    """Return whether lines of one form make a loop.

    If all ranks agree, that takes more lines, and a number with a point that changes.
    """
    printed = [line for line in lines if not _is_note(line)]
    if any(line.slots for line in printed):
        return len(printed) > MAX_SHOWN_LINES
    return len(printed) > _MAX_LISTED_LINES and _has_changing_number(printed)


def _is_printed_metric(lines: Sequence[BlockLine]) -> bool:
    """Return whether lines of one form print what charts show."""
    printed = [line for line in lines if not _is_note(line)]
    return (
        len(printed) > _MAX_LINES_BESIDE_CHARTS
        and all(line.channel == "stdout" and line.answer is None for line in printed)
        and any(map(str.isalpha, "".join(find_form(strip_ansi(printed[0].text)))))
        and _has_changing_number(printed)
    )


def _has_changing_number(printed: Sequence[BlockLine]) -> bool:
    """Return whether a decimal number differs by rank or line."""
    if any("." in value for line in printed for slot in line.slots for value in slot.values):
        return True
    texts = (strip_ansi(line.text).replace(SLOT_MARK, "0") for line in printed)
    columns = zip(*(split_numbers(text)[1] for text in texts), strict=True)
    return any(len(set(column)) > 1 and "." in "".join(column) for column in columns)


# -- shorten long lines to their differences


_LONG_CHARS = 160
_CONTEXT_CHARS = 40
"""Characters kept on each side of a word that differs."""


def clip_unchanged(row: DiffRow) -> tuple[DiffSpan, ...]:
    """Return a line's spans; shorten a long line to its differences.

    >>> [span.here for span in clip_unchanged(DiffRow("changed", "", (DiffSpan("a " * 200), DiffSpan("x", "y"), DiffSpan(" b" * 200))))][1:]
    ['x', ' b b b b b b b b b b b b b b b b b b b …']
    """
    if max(len(row.here), len(row.there)) <= _LONG_CHARS or is_table_row(row.here):
        return row.spans
    if all(span.there is None for span in row.spans):
        # An equal line among others that differ.
        return (DiffSpan(keep_ends(row.here)),)
    return tuple(_clip_spans(row.spans))


def _clip_spans(spans: tuple[DiffSpan, ...]) -> Iterator[DiffSpan]:
    for at, span in enumerate(spans):
        if span.there is not None:
            yield DiffSpan(span.here, keep_ends(span.there))
            continue
        head = span.here[:_CONTEXT_CHARS] if at else ""
        tail = span.here[-_CONTEXT_CHARS:] if at < len(spans) - 1 else ""
        if len(head) + len(tail) + 5 >= len(span.here):
            yield span
        else:
            # Whole words, if there are any.
            head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
            yield DiffSpan(f"{head} … {tail}" if head and tail else f"{head} …" if head else f"… {tail}")


def keep_ends(text: str) -> str:
    """Keep the ends of a long text that is shown elsewhere.

    >>> len(keep_ends("x" * 1000)), keep_ends("short")
    (83, 'short')
    """
    # A line of a drawn table is not shortened, because its columns are below those of other lines.
    if len(text) <= _LONG_CHARS or is_table_row(text):
        return text
    return f"{text[:_CONTEXT_CHARS]} … {text[-_CONTEXT_CHARS:]}"
