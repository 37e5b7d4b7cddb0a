"""Lines of an output block, before they become text or HTML: those of a template, of its numbers and of a difference.

Decides how numbers are listed (per rank, or by value), how a long block is shortened, and how a difference is written.

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
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TypeAlias

from mhnb.core.output.diff import DiffRow, DiffSpan
from mhnb.core.output.diff import Line as SaidLine
from mhnb.core.output.folding import OutputGroup, RichPart
from mhnb.core.output.outputs import GAP_LINE
from mhnb.core.output.rich import merge_bars
from mhnb.core.output.tables import is_table_row
from mhnb.core.output.template import RANK_PLACEHOLDER, Slot, find_unit, split_numbers
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.sharding.layout import format_nbytes
from mhnb.view.ansi import strip_ansi
from mhnb.view.cell.measures import is_label, is_step, name_field

OWN_MARK, SLOT_MARK = "\ufdd0", "\ufdd1"
"""Placeholders in a line's text for a rank's own number and for a slot. Unicode reserves them for use inside a program."""
_MARKS = re.compile(f"[{OWN_MARK}{SLOT_MARK}]")
_BYTES_OF, _AT_LEAST_PREFIX = " bytes of ", "at least "
"""If the ranks left out different amounts, the smallest is shown. The others are in the same place."""
_OMITTED_LINE = re.compile(
    r"… (?:(\d+) lines?(?: and ((?:at least )?[\d,]+) bytes more)?) left out: all of it is in .* …"
)
LINE_NBYTES, _SLOT_NBYTES = 13, 90
_TABLE_NBYTES, _FOLD_NBYTES = 1500, 600
"""What a folded table, or folded lines, take beside their rows: each is three elements and a fold."""
MAX_ODD_VALUES = 6
"""Maximum number of odd values on top of a block; the others are marked where they are."""
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

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes it takes to store the line, including a line of a notebook's JSON."""
        numbers = sum(_SLOT_NBYTES + sum(len(value) + 8 for value in slot.values) for slot in self.slots)
        marks = self.text.count(OWN_MARK) * 20
        return len(self.text) + LINE_NBYTES + marks + numbers + sum(len(text) + 8 for text in self.bar_texts)


BlockItem: TypeAlias = BlockLine | RichPart


def block_items(block: OutputGroup) -> list[BlockItem]:
    """Split a block into lines and pictures; progress bars of several ranks are one line."""
    items: list[BlockItem] = []
    for part in block.parts:
        if isinstance(part, RichPart):
            items.append(part)
            continue
        rows = part.template.lines()
        if len(rows) > 1 and rows[-1] == ([""], []):
            rows.pop()
        items += [_build_line(part.channel, literals, slots, block.ranks) for literals, slots in rows]
    return items


def count_lines(block: OutputGroup) -> int:
    """Return at least how many lines and pictures a block has, without building them."""
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
            return BlockLine("progress", bar, bar_texts=tuple(text.rpartition("|")[2].strip() for text in texts))
    return BlockLine(channel, _join_literals(literals, list(map(_mark, slots))), varying)


def _mark(slot: Slot) -> str:
    return OWN_MARK if slot.is_rank else SLOT_MARK if slot.is_varying else slot.values[0]


def _join_literals(literals: Sequence[str], values: Sequence[str]) -> str:
    return "".join(part for pair in zip(literals, [*values, ""], strict=True) for part in pair)


def comparable_lines(block: OutputGroup, *, with_letters: bool = True) -> list[SaidLine]:
    """Format a block as lines that can be compared with another block's; a picture is one line.

    The slots of each line have letters if `with_letters` is set.
    Unset it for lines that are shown in another block, because the letters would refer to slots of that block.
    """
    lines: list[SaidLine] = []
    for item in block_items(block):
        if isinstance(item, RichPart):
            lines += [("picture", str(sorted(output["data"].items()))) for _, output in item.variants]
        else:
            first, *pieces = strip_ansi(item.text).replace(OWN_MARK, RANK_PLACEHOLDER).split(SLOT_MARK)
            slots = [f"‹{slot_letter(at) if with_letters else '…'}›{piece}" for at, piece in enumerate(pieces)]
            lines.append((item.channel, "".join([first, *slots])))
    return lines


def format_lines(block: OutputGroup) -> list[str]:
    """Format a block of text as plain lines, each slot with a letter, and every rank's numbers below the line.

    >>> from mhnb.core.output.folding import group_outputs
    >>> outputs = [((r,), [{"output_type": "stream", "name": "stderr", "text": f"rank {r} lost {r + 7} of 9"}]) for r in (0, 1)]
    >>> format_lines(group_outputs(outputs)[0])
    ['rank ‹rank› lost ‹a› of 9', '  a  0: 7 · 1: 8']
    """
    items = [item for item in block_items(block) if isinstance(item, BlockLine)]
    lines: list[str] = []
    for item, (_, text) in zip(items, comparable_lines(block), strict=True):
        lines.append(text)
        lines += [f"  {slot_letter(at)}  {format_values(slot, block.ranks)}" for at, slot in enumerate(item.slots)]
    return lines


def clip_items(items: Sequence[BlockItem], limit_nbytes: int, *, where: str) -> list[BlockItem]:
    """Keep the beginning and the end of a block, with a line between that gives the amount left out and `where` it is.

    A gap that a rank left itself is labelled in the same way, also in what is kept.
    """
    if sum(item.nbytes for item in items if isinstance(item, BlockLine)) <= limit_nbytes:
        return [_label_gap(item, where) for item in items]
    items = [_shorten_block_line(item, limit_nbytes // 4) if isinstance(item, BlockLine) else item for item in items]
    sizes = [item.nbytes if isinstance(item, BlockLine) else 0 for item in items]
    head = _count_fitting(sizes, limit_nbytes // 2)
    tail = len(items) - _count_fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2)
    if tail <= head:
        return [_label_gap(item, where) for item in items]
    left_out = [item for item in items[head:tail] if isinstance(item, BlockLine)]
    pictures = [item for item in items[head:tail] if isinstance(item, RichPart)]
    note = BlockLine("note", format_omitted_line([line.text for line in left_out], where=where)) if left_out else None
    kept = [*items[:head], *([note] if note else []), *pictures, *items[tail:]]
    return [_label_gap(item, where) for item in kept]


def arrange_block(block: OutputGroup, limit_nbytes: int, *, where: str) -> list[BlockItem | Loop]:
    """Return a block's lines, loops and pictures; of too much text the beginning and the end."""
    items = block_items(block)
    folds_nbytes = _FOLD_NBYTES * sum(isinstance(item, Loop) for item in find_loops(items))
    return find_loops(clip_items(items, max(limit_nbytes // 2, limit_nbytes - folds_nbytes), where=where))


def _label_gap(item: BlockItem, where: str) -> BlockItem:
    found = GAP_LINE.fullmatch(item.text) if isinstance(item, BlockLine) else None
    if found is None:
        return item
    return BlockLine("note", f"… {found[1]} bytes of {found[2]} left out: all of it is in {where} …")


def format_omitted_line(lines: Sequence[str], *, where: str) -> str:
    """Format a line that gives the number of lines left out and `where` they are.

    A line that is itself such a note counts as the lines that it replaces.
    Of text that a rank left out, the notebook knows only the bytes, not the lines. They are given beside the lines.

    >>> format_omitted_line(["a", format_omitted_line(["b"] * 7, where="the log file")], where="a.log")
    '… 8 lines left out: all of it is in a.log …'
    """
    count, nbytes, prefix = _count_omitted(lines)
    more = f" and {prefix}{nbytes:,} bytes more" if nbytes else ""
    return f"… {count} {'line' if count == 1 else 'lines'}{more} left out: all of it is in {where} …"


def _count_omitted(lines: Sequence[str]) -> tuple[int, int, str]:
    """Return how many lines and how many bytes more are left out, and the words before the bytes, if any."""
    count, nbytes, prefix = 0, 0, ""
    for line in lines:
        if gap := GAP_LINE.fullmatch(line):
            nbytes, prefix = nbytes + _read_number(gap[1]), prefix or _at_least_prefix(gap[1])
        elif found := _OMITTED_LINE.fullmatch(line):
            count, nbytes = count + int(found[1]), nbytes + _read_number(found[2] or "0")
            prefix = prefix or _at_least_prefix(found[2] or "")
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
    return f"{text[:end]} … {format_nbytes(left_out)} left out … {text[-end:]}" if left_out > 0 else text


def _shorten_block_line(line: BlockLine, limit_nbytes: int) -> BlockLine:
    """Cut a line; a line with separate numbers for each rank stays as it is."""
    if line.nbytes <= limit_nbytes or line.slots or line.bar_texts:
        return line
    return replace(line, text=shorten_line(strip_ansi(line.text), limit_nbytes))


def clip_lines(lines: Sequence[str], limit_nbytes: int, *, where: str) -> list[str]:
    """Keep the beginning and the end of lines that are already formatted, with the same note between."""
    sizes = [len(line) + LINE_NBYTES for line in lines]
    if sum(sizes) <= limit_nbytes:
        return list(lines)
    head = _count_fitting(sizes, limit_nbytes // 2)
    tail = max(head, len(lines) - _count_fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2))
    return (
        [*lines[:head], format_omitted_line(lines[head:tail], where=where), *lines[tail:]]
        if tail > head
        else list(lines)
    )


def _count_fitting(sizes: Sequence[int], limit_nbytes: int) -> int:
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
    """Format minimum, median and maximum of many values; an empty string for few.

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
    """Format every value: by value if many ranks share few of them, otherwise by rank.

    >>> format_values(Slot(("0.3", "0.3", "0.7", "0.3")), (0, 1, 2, 3)), format_values(Slot(("1", "2")), (4, 5))
    ('0.7 ≠ rank 2 · 0.3 ranks 0-1,3', '4: 1 · 5: 2')
    """
    return " · ".join(_iter_values(slot, ranks))


@dataclass(frozen=True, slots=True)
class OddValue:
    """A number in which a few ranks differ from most others."""

    ranks: tuple[int, ...]
    before: str
    """The line's text before the number, as these ranks printed it."""
    value: str
    elsewhere: str
    """The value of most other ranks; the range of the others if this value is not finite and they all differ."""


def find_odd_values(items: Sequence[BlockItem | Loop], ranks: Sequence[int]) -> list[OddValue]:
    """Return the numbers in which at most a quarter of the ranks, or one, differ from the value that most have.

    Durations always differ, and labels should. Of many lines of one form every rank is odd on some, by chance. So there a rank is
    odd only if few ranks are.

    >>> line = BlockLine("stdout", f"loss {SLOT_MARK}", (Slot(("0.3", "0.3", "0.7", "0.3")),))
    >>> [(odd.ranks, odd.before, odd.value, odd.elsewhere) for odd in find_odd_values([line], range(4))]
    [((2,), 'loss ', '0.7', '0.3')]
    """
    found: list[OddValue] = []
    for same in _split_by_form(list_lines(items)):
        lines = [item for item in same if isinstance(item, BlockLine) and not item.bar_texts]
        odd = [one for line in lines for at in range(len(line.slots)) for one in _odd_values_of(line, at, ranks)]
        if len(lines) < _MIN_LINES or len({rank for one in odd for rank in one.ranks}) <= max(1, len(ranks) // 4):
            found += odd
    return found


def _odd_values_of(line: BlockLine, at: int, ranks: Sequence[int]) -> Iterator[OddValue]:
    slot = line.slots[at]
    outliers = slot.outliers
    if not 0 < len(outliers) <= max(1, len(ranks) // 4) or slot.is_bar:
        return
    pieces = strip_ansi(line.text).split(SLOT_MARK)
    is_time = find_unit(pieces[at], f" {slot.values[0].strip()}", pieces[at + 1])[0] == "time"
    if is_time or is_label(pieces[at], slot.values, pieces[at + 1]):
        return
    others = [
        (number, value.strip())
        for place, (number, value) in enumerate(zip(slot.numbers, slot.values, strict=True))
        if place not in outliers and number is not None
    ]
    least, most = min(others)[1], max(others)[1]
    places_by_value: dict[str, list[int]] = defaultdict(list)
    for place in sorted(outliers):
        places_by_value[slot.values[place]].append(place)
    for value, places in places_by_value.items():
        texts = [_shared_text([one.values[place] for place in places]) for one in line.slots[:at]]
        own = str(ranks[places[0]]) if len(places) == 1 else RANK_PLACEHOLDER
        before = _join_literals(pieces[: at + 1], texts).replace(OWN_MARK, own)
        yield OddValue(
            tuple(ranks[place] for place in places),
            _end_of(before.lstrip()),
            value.strip(),
            least if least == most else f"{least} to {most}",
        )


def _shared_text(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else "…"


def format_more_odd_values(more: Sequence[OddValue]) -> str:
    """Format a line that counts the odd values which are not on top.

    >>> format_more_odd_values([OddValue((2,), "loss ", "0.7", "0.3")])
    '… and 1 more number of rank 2, marked ≠'
    """
    ranks = sorted({rank for one in more for rank in one.ranks})
    return f"… and {pluralize(len(more), 'more number')} of {describe_ranks(ranks)}, marked ≠"


def _end_of(text: str) -> str:
    return text if len(text) <= _CONTEXT_CHARS else f"… {text[-_CONTEXT_CHARS:].partition(' ')[2]}"


def format_bars(line: BlockLine, ranks: Sequence[int]) -> str:
    """Format the text of every rank's progress bar; an empty string if the line is not a progress bar."""
    return " · ".join(f"{rank}: {text}" for rank, text in zip(ranks, line.bar_texts, strict=bool(line.bar_texts)))


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
"""Fewer lines of one form are no loop in which a rank is odd by chance."""
_MAX_LINES_PER_VARYING = 4
"""If fewer than one in this many lines has numbers that differ by rank, those that do are not folded with the others."""
_MAX_LISTED_LINES = 40
"""Up to so many lines of one form on which all ranks agree may be a list to read, and are not folded."""
LOG_HINT = "mhnb.log(step, loss=loss) draws a curve"
"""Said once in a block, where lines of a loop are folded."""
MAX_SHOWN_LINES = 12
"""Of more lines of one form on which ranks differ, the middle is folded."""
HEAD_LINES, TAIL_LINES = 2, 5
"""Lines that are shown of those whose middle is folded."""
_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Loop:
    """Many successive lines of one form."""

    lines: tuple[BlockLine, ...]
    """Also a line among them that says how many were left out."""

    @property
    def head(self) -> tuple[BlockLine, ...]:
        """The first lines, which are shown."""
        return self.lines[:HEAD_LINES]

    @property
    def folded(self) -> tuple[BlockLine, ...]:
        """The lines in the middle."""
        return self.lines[HEAD_LINES:-TAIL_LINES]

    @property
    def tail(self) -> tuple[BlockLine, ...]:
        """The last lines, which are shown."""
        return self.lines[-TAIL_LINES:]

    @property
    def folded_count(self) -> int:
        """The number of lines in the middle, with those that were left out."""
        return _count_omitted([line.text for line in self.folded])[0]


def list_lines(items: Sequence[BlockItem | Loop]) -> list[BlockItem]:
    """Return the lines and pictures, those of loops one by one."""
    return [line for item in items for line in (item.lines if isinstance(item, Loop) else (item,))]


def find_loops(items: Sequence[BlockItem]) -> list[BlockItem | Loop]:
    """Group successive lines of one form if there are many of them."""
    found: list[BlockItem | Loop] = []
    for same in _split_by_form(items):
        lines = [item for item in same if isinstance(item, BlockLine)]
        varying_count = sum(bool(line.slots) for line in lines)
        is_sparse = _MAX_LINES_PER_VARYING * varying_count < len(lines)
        for _, part in groupby(((is_sparse and bool(line.slots), line) for line in lines), key=itemgetter(0)):
            run = tuple(line for _, line in part)
            found += [Loop(run)] if _is_loop(run) else run
        found += [item for item in same if isinstance(item, RichPart)]
    return found


def _split_by_form(items: Sequence[BlockItem]) -> Iterator[list[BlockItem]]:
    """Split into successive lines of one form; a line that says how many were left out belongs to those before it."""
    forms: list[tuple[object, ...]] = []
    for at, item in enumerate(items):
        has_form = at > 0 and isinstance(items[at - 1], BlockLine) and isinstance(item, BlockLine) and _is_note(item)
        forms.append(forms[-1] if has_form else _form_of(at, item))
    for _, same in groupby(range(len(items)), key=forms.__getitem__):
        yield [items[at] for at in same]


def _is_note(line: BlockLine) -> bool:
    return _OMITTED_LINE.fullmatch(line.text) is not None


def _form_of(at: int, item: BlockItem) -> tuple[object, ...]:
    """Return what lines of one form share, the text between their numbers; a picture or a progress bar shares nothing."""
    if isinstance(item, RichPart) or item.bar_texts or any(slot.is_bar for slot in item.slots):
        return (at,)
    literals, numbers = split_numbers(item.text.replace(SLOT_MARK, "0"))
    # Numbers that are padded have other blanks around them on each line.
    return (item.channel, *(_WHITESPACE.sub(" ", text) for text in literals)) if numbers else (at,)


def _is_loop(lines: Sequence[BlockLine]) -> bool:
    """Return whether these are many lines: if all ranks agree, more, and with a number that has a point and changes."""
    printed = [line for line in lines if not _is_note(line)]
    if any(line.slots for line in printed):
        return len(printed) > MAX_SHOWN_LINES
    if len(printed) <= _MAX_LISTED_LINES:
        return False
    columns = zip(*(split_numbers(line.text)[1] for line in printed), strict=True)
    return any(len(set(column)) > 1 and "." in "".join(column) for column in columns)


# -- tables from repeated lines


_MAX_COLUMN_RANKS = 16
"""For more ranks, a row shows minimum, median and maximum, and the values after them."""
_MIN_OTHER_LINES = 41
"""Minimum number of equal lines that are folded if no number in them is named as the step of a loop: they may be a list to read."""
_MAX_NAME_CHARS = 16
"""Maximum length of words that head a column."""
_DIGIT = re.compile(r"\d")

_Field: TypeAlias = str | Slot
"""What a line has at a place: text that all ranks share, or a slot with each rank's own."""


@dataclass(frozen=True, slots=True)
class RepeatedLines:
    """Repeated lines of one form."""

    channel: str
    text: str
    """The form, with a mark for each column."""
    columns: tuple[tuple[str, ...] | tuple[Slot, ...], ...]
    """Per column, a text for each line if all ranks have the same; otherwise a slot for each line."""
    count: int
    """Number of lines."""
    lines: tuple[BlockLine, ...] = ()
    """The lines as they were printed, if all ranks have the same; then no table is needed."""
    indexes: tuple[int, ...] = ()
    """Which of the lines the columns have, in order; empty for all of them."""
    note: str = ""
    """Which ranks have printed fewer lines so far, as `rank 2 at 10`."""
    left_out: range = range(0)
    """Rows that are left out; the log files have their lines."""

    @property
    def row_nbytes(self) -> list[int]:
        """Return roughly how many bytes it takes to store each row."""
        if self.lines:
            return [line.nbytes for line in self.lines]
        rows = zip(*self.columns, strict=True)
        return [sum(map(_place_nbytes, row), LINE_NBYTES) for row in rows]

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes it takes to store all rows."""
        return len(self.text) + self.tables_nbytes + sum(self.row_nbytes)

    @property
    def least_nbytes(self) -> int:
        """Return roughly how many bytes it takes to store only the rows that are shown without a click."""
        sizes = self.row_nbytes
        return len(self.text) + self.tables_nbytes + sum(sizes[:HEAD_LINES]) + sum(sizes[-TAIL_LINES:])

    @property
    def tables_nbytes(self) -> int:
        """Return roughly how many bytes the tables, or the folded lines, take beside their rows."""
        if not self.is_folded:
            return 0
        if self.lines:
            return _FOLD_NBYTES
        return _TABLE_NBYTES * sum(isinstance(column[0], Slot) for column in self.columns)

    @property
    def pieces(self) -> list[str]:
        """The form's text before, between and after the columns."""
        return strip_ansi(self.text).replace(OWN_MARK, RANK_PLACEHOLDER).split(SLOT_MARK)

    @property
    def line_indexes(self) -> Sequence[int]:
        """The index of the line that each row of the columns is."""
        return self.indexes or range(self.count)

    @property
    def count_label(self) -> str:
        """The number of lines, as `× 200 lines`."""
        return " · ".join(filter(None, (f"× {self.count} lines", self.note)))

    @property
    def is_folded(self) -> bool:
        """Whether only the first and the last rows are shown without a click."""
        return self.count > MAX_SHOWN_LINES


def _place_nbytes(place: str | Slot) -> int:
    values = (place,) if isinstance(place, str) else place.values
    return sum(len(value) + 9 for value in values)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table."""

    label: tuple[str, ...]
    """Values that name the line."""
    values: tuple[str, ...]
    """Each rank's value; for many ranks, one text with minimum, median and maximum."""
    outliers: frozenset[int]
    """Indexes of `values` that are marked."""
    all_values: str
    """Every rank's value; empty if `values` has them."""


@dataclass(frozen=True, slots=True)
class Table:
    """One field of repeated lines: a row per line, a column per rank."""

    name: str
    """The field's words, or the letter of its column."""
    labels: tuple[str, ...]
    """Headings of the label's columns."""
    ranks: tuple[int, ...]
    """Empty for many ranks, which have no columns."""
    rows: tuple[TableRow, ...]

    @property
    def heading(self) -> str:
        """The name, beside which the ranks stand as headings of their columns."""
        return f"{self.name} · rank" if self.ranks else self.name


def _is_wide(ranks: Sequence[int]) -> bool:
    """Return whether there are too many ranks for a column each."""
    return len(ranks) > _MAX_COLUMN_RANKS


def find_repeated_lines(
    items: Sequence[BlockItem], ranks: Sequence[int], *, indexes: Sequence[int] = ()
) -> list[BlockItem | RepeatedLines]:
    """Group lines of one form if three or more follow each other and ranks differ on many of them.

    Args:
        items: a block's lines and pictures.
        ranks: the block's.
        indexes: if `items` has only some of the repeated lines, which ones these are.
    """
    found: list[BlockItem | RepeatedLines] = []
    for _, same in groupby(enumerate(items), key=lambda pair: _form_key(*pair)):
        lines = [item for _, item in same]
        found += _group_lines(lines, ranks, indexes) if len(lines) >= _MIN_LINES else lines
    return found


def _form_key(at: int, item: BlockItem) -> tuple[object, ...]:
    """Return what lines of one form share; a picture or a progress bar shares nothing."""
    if isinstance(item, RichPart) or item.bar_texts or any(slot.is_bar for slot in item.slots):
        return (at,)
    if not item.slots and _DIGIT.search(item.text) is None:
        return (at,)
    literals, fields = _split_line(item)
    return (item.channel, *(_WHITESPACE.sub(" ", literal) for literal in literals)) if fields else (at,)


def _group_lines(
    lines: Sequence[BlockItem], ranks: Sequence[int], indexes: Sequence[int]
) -> list[BlockItem | RepeatedLines]:
    """Group all lines, or those from the first to the last line on which ranks differ, if enough of them differ."""
    varying = [at for at, line in enumerate(lines) if isinstance(line, BlockLine) and line.slots]
    for first, end in ((0, len(lines)), (varying[0], varying[-1] + 1)) if varying else ():
        if end - first >= _MIN_LINES and _MAX_LINES_PER_VARYING * len(varying) >= end - first:
            repeated = _build_repeated_lines([line for line in lines[first:end] if isinstance(line, BlockLine)], ranks)
            return [*_group_equal_lines(lines[:first], ranks), repeated, *_group_equal_lines(lines[end:], ranks)]
    return _group_equal_lines(lines, ranks, indexes) if not varying else list(lines)


def _group_equal_lines(
    items: Sequence[BlockItem], ranks: Sequence[int], indexes: Sequence[int] = ()
) -> list[BlockItem | RepeatedLines]:
    """Group lines of one form on which all ranks agree, if they are many lines of a loop with something to draw."""
    lines = [item for item in items if isinstance(item, BlockLine)]
    if len(lines) <= MAX_SHOWN_LINES or len(lines) < len(items):
        return list(items)
    run = replace(_build_repeated_lines(lines, ranks), lines=tuple(lines))
    known = indexes if len(indexes) == len(lines) else range(len(lines))
    has_step = any(is_step(before, texts, known) for before, texts, _ in _equal_columns(run))
    # A label or a counter has no point.
    has_measure = any("." in text for _, texts, _ in _equal_columns(run) for text in texts)
    is_loop = has_measure and (has_step or known[-1] >= _MIN_OTHER_LINES - 1)
    return [run] if is_loop else list(items)


def _equal_columns(run: RepeatedLines) -> Iterator[tuple[str, list[str], str]]:
    """Yield the columns on which all ranks agree, each with the text before and after it."""
    pieces = run.pieces
    for at, column in enumerate(run.columns):
        texts = [place for place in column if isinstance(place, str)]
        if texts:
            yield pieces[at], texts, pieces[at + 1]


def _build_repeated_lines(same: Sequence[BlockLine], ranks: Sequence[int]) -> RepeatedLines:
    literals, _ = _split_line(same[0])
    text, columns = literals[0], []
    for fields, literal in zip(zip(*(_split_line(line)[1] for line in same), strict=True), literals[1:], strict=True):
        column = _build_column(fields, len(ranks))
        if column is not None:
            columns.append(column)
            # Padding of its numbers is not part of the form.
            text = f"{text.rstrip(' ')} " if text.endswith(" ") else text
        text += (SLOT_MARK if column is not None else str(fields[0])) + literal
    return RepeatedLines(same[0].channel, text, tuple(columns), len(same))


def _split_line(line: BlockLine) -> tuple[list[str], list[_Field]]:
    """Split a line into the text between its numbers, and the numbers, whether they are slots or not."""
    literals: list[str] = []
    fields: list[_Field] = []
    pending, slots = "", iter(line.slots)
    for at, piece in enumerate(line.text.split(SLOT_MARK)):
        if at:
            literals.append(pending)
            fields.append(next(slots))
            pending = ""
        between, numbers = split_numbers(piece)
        for literal, number in zip(between, numbers, strict=False):
            # Blanks before a number pad it, and differ from line to line.
            literals.append(pending + literal + number[: len(number) - len(number.lstrip(" "))])
            fields.append(number.lstrip(" "))
            pending = ""
        pending += between[-1]
    return [*literals, pending], fields


def _build_column(fields: Sequence[_Field], ranks: int) -> tuple[str, ...] | tuple[Slot, ...] | None:
    """Return the column of a place; None if every line and every rank has the same."""
    texts = tuple(place for place in fields if isinstance(place, str))
    if len(texts) == len(fields):
        return texts if len(set(texts)) > 1 else None
    return tuple(place if isinstance(place, Slot) else Slot((place,) * ranks) for place in fields)


def name_columns(run: RepeatedLines, letters: Sequence[str]) -> list[str]:
    """Name columns by the words beside their numbers, so that no letter must be looked up in the form.

    A column keeps its letter if it has no words, long ones, or those of another column.
    """
    pieces = run.pieces
    words = [name_field(before, after) for before, after in pairwise(pieces)]
    return [
        word if 0 < len(word) <= _MAX_NAME_CHARS and words.count(word) == 1 and word not in letters else letter
        for word, letter in zip(words, letters, strict=True)
    ]


def build_tables(run: RepeatedLines, ranks: Sequence[int], names: Sequence[str]) -> Iterator[Table]:
    """Yield a table for each field on which ranks differ.

    Args:
        run: the lines.
        ranks: the ranks that printed them.
        names: of the run's columns.
    """
    columns = name_columns(run, names)
    label_columns = [column for column in run.columns if isinstance(column[0], str)]
    heads = tuple(head for head, column in zip(columns, run.columns, strict=True) if isinstance(column[0], str))
    labels = list(zip(*label_columns, strict=True)) or [(str(index + 1),) for index in run.line_indexes]
    for at, column in enumerate(run.columns):
        slots = [slot for slot in column if isinstance(slot, Slot)]
        if slots:
            rows = (_build_row(tuple(map(str, label)), slot, ranks) for label, slot in zip(labels, slots, strict=True))
            shown_ranks = () if _is_wide(ranks) else tuple(ranks)
            yield Table(columns[at], heads or ("line",), shown_ranks, tuple(rows))


def _build_row(label: tuple[str, ...], slot: Slot, ranks: Sequence[int]) -> TableRow:
    if not _is_wide(ranks):
        return TableRow(label, tuple(value.strip() for value in slot.values), slot.outliers, "")
    all_values = format_values(slot, ranks)
    summary = summarise_slot(slot, ranks) if len(set(slot.values)) > 1 else ""
    # If many ranks share few values, listing all values is the summary.
    return TableRow(label, (summary or all_values,), frozenset(), all_values if summary else "")


def format_table(table: Table) -> list[str]:
    r"""Format a table as aligned text; of a table with a column per rank, the first line has the headings.

    >>> print(*format_table(Table("loss", ("step",), (0, 1), (TableRow(("7",), ("0.5", "0.6"), frozenset(), ""),))), sep="\n")
    step loss · rank   0   1
       7             0.5 0.6
    """
    if not table.ranks:
        return ["  ".join(filter(None, (table.name, *row.label, *row.values, row.all_values))) for row in table.rows]
    head = [*table.labels, table.heading, *map(str, table.ranks)]
    body = [[*row.label, "", *row.values] for row in table.rows]
    for at in sorted({at for row in table.rows for at in row.outliers}):
        # The mark has its own position, so that the figures stay aligned.
        column = len(head) - len(table.ranks) + at
        head[column] += "  "
        for cells, row in zip(body, table.rows, strict=True):
            cells[column] += " ≠" if at in row.outliers else "  "
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return [
        " ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (head, *body)
    ]


# -- shorten long lines to their differences


_LONG_CHARS = 160
_CONTEXT_CHARS = 40
"""Characters kept on each side of a word that differs."""


def clip_unchanged(row: DiffRow) -> tuple[DiffSpan, ...]:
    """Return a line's spans. If the line is long, equal spans and the text of other ranks are shortened.

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
    """Keep the ends of a long text that is shown in full elsewhere.

    >>> len(keep_ends("x" * 1000)), keep_ends("short")
    (83, 'short')
    """
    # A line of a drawn table is not shortened, because its columns are below those of other lines.
    if len(text) <= _LONG_CHARS or is_table_row(text):
        return text
    return f"{text[:_CONTEXT_CHARS]} … {text[-_CONTEXT_CHARS:]}"
