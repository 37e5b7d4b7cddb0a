"""Lines of an output block, before they become text or HTML: those of a template, of its numbers and of a difference.

Decides how numbers are listed (per rank, or by value), how a long block is shortened, and how a difference is written.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mhnb.core.output.alike import Folded, Picture
from mhnb.core.output.bars import merge_bars
from mhnb.core.output.differ import Line as SaidLine
from mhnb.core.output.outputs import GAP
from mhnb.core.output.template import OWN, Slot
from mhnb.core.ranks import say_ranks
from mhnb.view.ansi import strip_ansi
from mhnb.view.words import format_nbytes

__all__ = [
    "Item",
    "LINE_NBYTES",
    "OWN_MARK",
    "SLOT_MARK",
    "ShownLine",
    "block_items",
    "clip_items",
    "clip_told",
    "cut_line",
    "left_out_line",
    "letter",
    "said_lines",
    "sparkline",
    "summarise_slot",
    "tell_each",
    "tell_lines",
    "tell_values",
]

OWN_MARK, SLOT_MARK = "\ufdd0", "\ufdd1"
"""Placeholders in a line's text for a rank's own number and for a slot. Unicode reserves them for use inside a program."""
_MARKS = re.compile(f"[{OWN_MARK}{SLOT_MARK}]")
_BYTES_OF, _AT_LEAST = " bytes of ", "at least "
"""If the ranks left out different amounts, the smallest is shown. The others are in the same place."""
_LEFT_OUT = re.compile(r"… (?:(\d+) lines?(?: and ((?:at least )?[\d,]+) bytes more)?) left out: all of it is in .* …")
_STEPS = "▁▂▃▄▅▆▇█"
LINE_NBYTES, _SLOT_NBYTES = 13, 90
_EACH = 16
"""For more ranks, minimum, median and maximum are shown before the values."""


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of a block."""

    channel: str
    text: str
    """The line's text, with marks for the slots."""
    slots: tuple[Slot, ...] = ()
    """Slots that vary, in the order of their marks."""
    each: tuple[str, ...] = ()
    """The text of every rank's own progress bar, if the line draws them as one."""

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes it takes to store the line, including a line of a notebook's JSON."""
        numbers = sum(_SLOT_NBYTES + sum(len(value) + 8 for value in slot.values) for slot in self.slots)
        marks = self.text.count(OWN_MARK) * 20
        return len(self.text) + LINE_NBYTES + marks + numbers + sum(len(text) + 8 for text in self.each)


Item: TypeAlias = ShownLine | Picture


def block_items(block: Folded) -> list[Item]:
    """Split a block into lines and pictures; progress bars of several ranks are one line."""
    items: list[Item] = []
    for part in block.parts:
        if isinstance(part, Picture):
            items.append(part)
            continue
        rows = part.template.lines()
        if len(rows) > 1 and rows[-1] == ([""], []):
            rows.pop()
        items += [_line(part.channel, literals, slots, block.ranks) for literals, slots in rows]
    return items


def _line(channel: str, said: Sequence[str], slots: Sequence[Slot], ranks: Sequence[int]) -> ShownLine:
    literals = [_MARKS.sub("\ufffd", literal) for literal in said]
    if slots and _BYTES_OF in literals[-1]:
        marks = [GAP.fullmatch(_write(literals, [slot.values[at] for slot in slots])) for at in range(len(ranks))]
        if least := min((_read_number(mark[1]) for mark in marks if mark), default=0):
            return ShownLine(channel, f"[... at least {least:,}{literals[-1][literals[-1].index(_BYTES_OF) :]}")
    varying = tuple(slot for slot in slots if slot.is_told)
    if slots and any("%" in literal for literal in literals):
        texts = [strip_ansi(_write(literals, [slot.values[at] for slot in slots])) for at in range(len(ranks))]
        if (bar := merge_bars(texts, ranks)) is not None:
            return ShownLine("progress", bar, each=tuple(text.rpartition("|")[2].strip() for text in texts))
    return ShownLine(channel, _write(literals, list(map(_mark, slots))), varying)


def _mark(slot: Slot) -> str:
    return OWN_MARK if slot.own else SLOT_MARK if slot.is_told else slot.values[0]


def _write(literals: Sequence[str], values: Sequence[str]) -> str:
    return "".join(part for pair in zip(literals, [*values, ""], strict=True) for part in pair)


def said_lines(block: Folded, *, named: bool = True) -> list[SaidLine]:
    """Format a block as lines that can be compared with another block's; a picture is one line.

    The slots of each line have letters if `named` is set.
    Unset it for lines that are shown in another block, because the letters would refer to slots of that block.
    """
    lines: list[SaidLine] = []
    for item in block_items(block):
        if isinstance(item, Picture):
            lines += [("picture", str(sorted(output["data"].items()))) for _, output in item.variants]
        else:
            first, *pieces = strip_ansi(item.text).replace(OWN_MARK, OWN).split(SLOT_MARK)
            slots = [f"‹{letter(at) if named else '…'}›{piece}" for at, piece in enumerate(pieces)]
            lines.append((item.channel, "".join([first, *slots])))
    return lines


def tell_lines(block: Folded) -> list[str]:
    """Format a block of text as plain lines, each slot with a letter, and every rank's numbers below the line.

    >>> from mhnb.core.output.alike import fold_outputs
    >>> said = [((r,), [{"output_type": "stream", "name": "stderr", "text": f"rank {r} lost {r + 7} of 9"}]) for r in (0, 1)]
    >>> tell_lines(fold_outputs(said)[0])
    ['rank ‹rank› lost ‹a› of 9', '  a  0: 7 · 1: 8']
    """
    items = [item for item in block_items(block) if isinstance(item, ShownLine)]
    told: list[str] = []
    for item, (_, text) in zip(items, said_lines(block), strict=True):
        told.append(text)
        told += [f"  {letter(at)}  {tell_values(slot, block.ranks)}" for at, slot in enumerate(item.slots)]
    return told


def clip_items(items: Sequence[Item], limit_nbytes: int, *, where: str) -> list[Item]:
    """Keep the beginning and the end of a block, with a line between that gives the amount left out and `where` it is.

    A gap that a rank left itself is labelled in the same way, also in what is kept.
    """
    if sum(item.nbytes for item in items if isinstance(item, ShownLine)) <= limit_nbytes:
        return [_name_log(item, where) for item in items]
    items = [_cut(item, limit_nbytes // 4) if isinstance(item, ShownLine) else item for item in items]
    sizes = [item.nbytes if isinstance(item, ShownLine) else 0 for item in items]
    head = _fitting(sizes, limit_nbytes // 2)
    tail = len(items) - _fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2)
    if tail <= head:
        return [_name_log(item, where) for item in items]
    left_out = [item for item in items[head:tail] if isinstance(item, ShownLine)]
    pictures = [item for item in items[head:tail] if isinstance(item, Picture)]
    note = ShownLine("note", left_out_line([line.text for line in left_out], where=where)) if left_out else None
    kept = [*items[:head], *([note] if note else []), *pictures, *items[tail:]]
    return [_name_log(item, where) for item in kept]


def _name_log(item: Item, where: str) -> Item:
    found = GAP.fullmatch(item.text) if isinstance(item, ShownLine) else None
    if found is None:
        return item
    return ShownLine("note", f"… {found[1]} bytes of {found[2]} left out: all of it is in {where} …")


def left_out_line(lines: Sequence[str], *, where: str) -> str:
    """Format a line that gives the number of lines left out and `where` they are.

    A line that is itself such a note counts as the lines that it replaces.
    Of text that a rank left out, the notebook knows only the bytes, not the lines. They are given beside the lines.

    >>> left_out_line(["a", left_out_line(["b"] * 7, where="the log file")], where="a.log")
    '… 8 lines left out: all of it is in a.log …'
    """
    count, nbytes, least = 0, 0, ""
    for line in lines:
        if gap := GAP.fullmatch(line):
            nbytes, least = nbytes + _read_number(gap[1]), least or _least(gap[1])
        elif found := _LEFT_OUT.fullmatch(line):
            count, nbytes = count + int(found[1]), nbytes + _read_number(found[2] or "0")
            least = least or _least(found[2] or "")
        else:
            count += 1
    more = f" and {least}{nbytes:,} bytes more" if nbytes else ""
    return f"… {count} {'line' if count == 1 else 'lines'}{more} left out: all of it is in {where} …"


def _read_number(text: str) -> int:
    return int(text.removeprefix(_AT_LEAST).replace(",", ""))


def _least(text: str) -> str:
    return _AT_LEAST if text.startswith(_AT_LEAST) else ""


def cut_line(text: str, limit_nbytes: int) -> str:
    """Remove the middle of a very long line.

    >>> cut_line("a" * 5000, 8)
    'aaaa … 4.9 KiB left out … aaaa'
    """
    end = limit_nbytes // 2
    left_out = len(text) - 2 * end
    return f"{text[:end]} … {format_nbytes(left_out)} left out … {text[-end:]}" if left_out > 0 else text


def _cut(line: ShownLine, limit_nbytes: int) -> ShownLine:
    """Cut a line; a line with separate numbers for each rank stays as it is."""
    if line.nbytes <= limit_nbytes or line.slots or line.each:
        return line
    return replace(line, text=cut_line(strip_ansi(line.text), limit_nbytes))


def clip_told(lines: Sequence[str], limit_nbytes: int, *, where: str) -> list[str]:
    """Keep the beginning and the end of lines that are already formatted, with the same note between."""
    sizes = [len(line) + LINE_NBYTES for line in lines]
    if sum(sizes) <= limit_nbytes:
        return list(lines)
    head = _fitting(sizes, limit_nbytes // 2)
    tail = max(head, len(lines) - _fitting(sizes[::-1], limit_nbytes - limit_nbytes // 2))
    return [*lines[:head], left_out_line(lines[head:tail], where=where), *lines[tail:]] if tail > head else list(lines)


def _fitting(sizes: Sequence[int], limit_nbytes: int) -> int:
    total = 0
    for at, size in enumerate(sizes):
        total += size
        if total > limit_nbytes:
            return at
    return len(sizes)


# -- numbers


def letter(at: int) -> str:
    """Return the name of the slot at an index.

    >>> letter(0), letter(27)
    ('a', 'b1')
    """
    return chr(ord("a") + at % 26) + (str(at // 26) if at >= 26 else "")


def sparkline(slot: Slot) -> str:
    """Draw the values as steps, in rank order; × means not finite.

    >>> sparkline(Slot(("1", "8", "nan")))
    '▁█×'
    """
    finite = [number for number in slot.numbers if number is not None and math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Halved, because the range of two finite numbers may not be finite.
    span = high / 2 - low / 2
    return "".join(_step(number, low, span) for number in slot.numbers)


def _step(number: float | None, low: float, span: float) -> str:
    if number is None:
        return " "
    if not math.isfinite(number):
        return "×"
    return _STEPS[min(7, int((number / 2 - low / 2) / span * 8))] if span else _STEPS[0]


def summarise_slot(slot: Slot, ranks: Sequence[int]) -> str:
    """Format minimum, median and maximum of many values; an empty string for few.

    >>> summarise_slot(Slot(tuple(map(str, range(20)))), range(20))
    'min 0 (rank 0) · median 9 · max 19 (rank 19)'
    """
    numbers = [(number, at) for at, number in enumerate(slot.numbers) if number is not None and math.isfinite(number)]
    if len(ranks) <= _EACH or not numbers:
        return ""
    (_, low), (_, high) = min(numbers, key=lambda one: one[0]), max(numbers, key=lambda one: one[0])
    middle = sorted(numbers)[(len(numbers) - 1) // 2][1]
    values = [value.strip() for value in slot.values]
    return f"min {values[low]} (rank {ranks[low]}) · median {values[middle]} · max {values[high]} (rank {ranks[high]})"


def tell_values(slot: Slot, ranks: Sequence[int]) -> str:
    """Format every value: by value if many ranks share few of them, otherwise by rank.

    >>> tell_values(Slot(("0.3", "0.3", "0.7", "0.3")), (0, 1, 2, 3)), tell_values(Slot(("1", "2")), (4, 5))
    ('0.7 ≠ rank 2 · 0.3 ranks 0-1,3', '4: 1 · 5: 2')
    """
    return " · ".join(_told(slot, ranks))


def tell_each(line: ShownLine, ranks: Sequence[int]) -> str:
    """Format the text of every rank's progress bar; an empty string if the line is not a progress bar."""
    return " · ".join(f"{rank}: {text}" for rank, text in zip(ranks, line.each, strict=bool(line.each)))


def _told(slot: Slot, ranks: Sequence[int]) -> Iterator[str]:
    sharing: dict[str, list[int]] = defaultdict(list)
    for at, value in enumerate(slot.values):
        sharing[value].append(at)
    odd_places = slot.odd
    if 2 * len(sharing) <= len(ranks):
        for value, places in sorted(sharing.items(), key=lambda item: (len(item[1]), item[1])):
            odd = " ≠" if places[0] in odd_places else ""
            yield f"{value.strip()}{odd} {say_ranks([ranks[at] for at in places])}"
    else:
        for at, value in enumerate(slot.values):
            yield f"{ranks[at]}: {value.strip()}{' ≠' if at in odd_places else ''}"
