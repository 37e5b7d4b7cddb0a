"""Template for texts of several ranks that differ only in numbers.

This module decides what a number is, and which one is the rank's own. The template contains each text completely.
A random name, such as that of a temporary file, counts as a number.

Units of durations, and of the counts by `%timeit`, may differ by rank together with the number: `940 µs` on one rank and `1.01 ms` on
another differ in a number. Any other word after a number is text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mhnb.core.output.normal_form import RANDOM_NAME

_S = r"\d+s"
_MIN = rf"\d+min(?: {_S})?"
_H = rf"\d+h (?:{_MIN}|{_S})"
_D = rf"\d+d (?:{_H}|\d+h|{_MIN}|{_S})"
LONG_TIME = rf"(?<![\w.])(?:{_D}|{_H}|{_MIN})(?!\w)"
"""A minute and more, as formatted by IPython: `1min 2s`."""
_LONG_TIME = re.compile(LONG_TIME)

_UNIT = re.compile(r"(?P<time> ?[mnuµμ]?s)(?!\w|-[^\W\d])|(?P<loops> loops?)(?= each\b)")
_NAME_END = re.compile(r"[\w.]$")
"""Matches the end of a text after which a number is part of a name, as in `shard_3`."""
_MEASURE = re.compile(r"(\S+?) ?(min|loops?|[mnuµμ]?s|[hd])(?= |$)")
_SECONDS_PER_UNIT = {
    "d": 86400.0,
    "h": 3600.0,
    "min": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
}


def find_unit(before: str, number: str, after: str) -> tuple[str, str]:
    """Return the unit of a number from the text after it.

    Args:
        before: the text before the number, back to the previous number.
        number: with the blanks before it.
        after: the text after it, up to the next number.

    Returns:
        The kind of quantity, empty if there is no such unit, and the unit as written, empty if it is part of the number.

    >>> find_unit("Wall time:", " 940", " µs"), find_unit("", "3", " km")
    (('time', ' µs'), ('', ''))
    """
    if number[-1:].isalpha() and _LONG_TIME.fullmatch(number.lstrip(" +-")):
        return "time", ""
    found = _UNIT.match(after)
    if found is None or (not number.startswith(" ") and _NAME_END.search(before)):
        return "", ""
    return str(found.lastgroup), found[0]


def parse_measure(text: str) -> float:
    """Parse a number with or without a unit, durations in seconds.

    >>> parse_measure("1min 2s"), parse_measure("2 ms"), parse_measure("1,000 loops"), parse_measure("-7")
    (62.0, 0.002, 1000.0, -7.0)
    """
    measures = _MEASURE.findall(text)
    if not measures:
        return float(text.replace(",", ""))
    return sum(float(number.replace(",", "")) * _SECONDS_PER_UNIT.get(unit, 1.0) for number, unit in measures)


# -- template for texts that differ in numbers


RANK_PLACEHOLDER = "‹rank›"
"""Placeholder for a rank's own number."""

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colour sequences, whose digits are not numbers."""
# A comma is part of a number only where it cannot separate list items.
_PLAIN = r"(?:(?<![\d,])\d{1,3}(?:,\d{3})++(?= loops each)|\d+\.(?= *[\]),]|\s+-?\d)|\d+(?:\.\d+)?)"
# There is no exponent in the middle of a word: `123e4567` is part of an id, not infinity.
_DECIMAL = rf"(?:(?<![A-Za-z0-9_]){_PLAIN}[eE][-+]?\d{{1,3}}(?![^\Wj])|{_PLAIN})"
_WORD = r"(?<![A-Za-z0-9_])(?:nan|inf)(?![A-Za-z0-9_])"
# Of a progress bar, the drawn part and the times: slow ranks show `1.02s/it`, fast ones `1.00it/s`, and a bar that has
# just begun `<?, ?it/s`.
_BAR = r"(?<=%)\|[ █▏▎▍▌▋▊▉#\d]{3,}\||\[\d[\d:]*<[\d:?]+, [^\],\n]*(?:\] *)?"
# Columns are padded, so leading blanks belong to the number; so does a minus that is not part of a sum, a date or a
# range.
# A run of blanks is scanned once, from its start, because a rank may print a million of them.
_NUMBER = re.compile(
    rf"((?:(?<! ) ++[-+]|(?<![\w.)\]])[-+]|(?<! ) *+)(?:{RANDOM_NAME}|{LONG_TIME}|{_DECIMAL}|{_WORD})|{_BAR})"
)

_PADDING = re.compile(r" *(?=[\]),|\n]|$)| +(?= [^ ])")
"""Blanks after a number that pad its column; a blank before a word does more than pad."""

Skeleton: TypeAlias = tuple[str, ...]
"""The text between the numbers."""


def split_numbers(text: str) -> tuple[Skeleton, list[str]]:
    """Split a text into parts between numbers, and numbers with leading blanks.

    >>> split_numbers("loss 0.25 at 3")
    (('loss', ' at', ''), [' 0.25', ' 3'])
    """
    if "\x1b" not in text:
        parts = _NUMBER.split(text)
        return tuple(parts[::2]), parts[1::2]
    literals, numbers, pending, at = [], [], "", 0
    for escape in [*ESCAPES.finditer(text), None]:
        # The digits of a colour sequence are not numbers.
        parts = _NUMBER.split(text[at : escape.start() if escape else len(text)])
        parts[0] = pending + parts[0]
        literals += parts[0:-1:2]
        numbers += parts[1::2]
        pending, at = parts[-1] + (escape[0] if escape else ""), escape.end() if escape else at
    return (*literals, pending), numbers


def find_bar_positions(skeleton: Skeleton, numbers: Sequence[str]) -> set[int]:
    r"""Return the positions of numbers in progress bars.

    A bar goes from its percentage to the end of the line.

    >>> find_bar_positions(*split_numbers("epoch 3:  40%|████      | 4/10\nloss 0.5"))
    {1, 2, 3, 4}
    """
    found: set[int] = set()
    is_in_bar = False
    for at, number in enumerate(numbers):
        if number.startswith("|"):
            is_in_bar = True
            found.add(at - 1)
        elif "\n" in skeleton[at]:
            is_in_bar = False
        if is_in_bar:
            found.add(at)
    return found


def template_key(skeleton: Skeleton, numbers: Sequence[str]) -> tuple[object, ...]:
    """Return the key shared by texts differing in numbers, units, or padding.

    >>> template_key(("took", " ms"), [" 2"]) == template_key(("took", " s"), [" 3"]) != template_key(("took", " m"), [" 4"])
    True
    """
    tails = [_unit_or_padding(*place) for place in zip(skeleton, numbers, skeleton[1:], strict=False)]
    rest = [(kind, after[len(tail) :]) for (kind, tail), after in zip(tails, skeleton[1:], strict=True)]
    return (skeleton[0], *rest)


def _unit_or_padding(before: str, number: str, after: str) -> tuple[str, str]:
    """Return a number's kind, and the unit or padding after it."""
    kind, unit = find_unit(before, number, after)
    padding = None if unit else _PADDING.match(after)
    return kind, padding[0] if padding else unit


def unify_skeletons(texts: Sequence[tuple[Skeleton, list[str]]]) -> tuple[Skeleton, list[list[str]]]:
    """Unify skeletons of equal keys; differing units and padding join the numbers.

    >>> unify_skeletons([(("took", " ms"), [" 2"]), (("took", " s"), [" 3"])])
    (('took', ''), [[' 2 ms'], [' 3 s']])
    """
    joined = [list(numbers) for _, numbers in texts]
    skeleton = [texts[0][0][0]]
    for at, literals in enumerate(list(zip(*(skeleton for skeleton, _ in texts), strict=True))[1:]):
        if len(set(literals)) == 1:
            skeleton.append(literals[0])
            continue
        for (own, numbers), row in zip(texts, joined, strict=True):
            _, tail = _unit_or_padding(own[at], numbers[at], own[at + 1])
            row[at] += tail
            rest = own[at + 1][len(tail) :]
        skeleton.append(rest)
    return tuple(skeleton), joined


def parse_number(value: str) -> float | None:
    """Parse a number, durations in seconds; None for other text.

    >>> parse_number(" -1e-3"), parse_number("|███   |"), parse_number("tmp_x5n7ab_"), parse_number("1. 2.")
    (-0.001, None, None, None)
    """
    try:
        return parse_measure(value.strip())
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Slot:
    """A position at which the ranks' texts differ."""

    values: tuple[str, ...]
    """As each rank wrote it, in the order of the template's ranks."""
    is_rank: bool = False
    """Whether each rank wrote its own number there."""
    is_padding: bool = False
    """Whether the values differ only in blanks because another number of the text is wider on one rank than on another."""

    @property
    def is_varying(self) -> bool:
        """Whether readers need every rank's value."""
        return not (self.is_rank or self.is_padding)

    @property
    def numbers(self) -> tuple[float | None, ...]:
        """The values as numbers; None for values that are not numbers."""
        return tuple(map(parse_number, self.values))

    @property
    def is_bar(self) -> bool:
        """Whether it is the drawn part of a progress bar."""
        return self.values[0].startswith("|")

    @property
    def outliers(self) -> frozenset[int]:
        """Positions of values that are not finite or differ from the majority."""
        count = Counter(self.values)
        most_common = max(count, key=count.__getitem__)
        found = {at for at, number in enumerate(self.numbers) if number is not None and not math.isfinite(number)}
        if 2 * count[most_common] > len(self.values) > 2:
            found |= {at for at, value in enumerate(self.values) if value != most_common}
        return frozenset(found) if len(found) < len(self.values) else frozenset()


@dataclass(frozen=True, slots=True)
class Template:
    """One text that represents those of several ranks."""

    ranks: tuple[int, ...]
    literals: tuple[str, ...]
    """The shared text: before the first slot, between slots, after the last."""
    slots: tuple[Slot, ...] = ()

    def text_of(self, rank: int) -> str:
        """Return a rank's original text."""
        at = self.ranks.index(rank)
        return self._join([slot.values[at] for slot in self.slots])

    def display_text(self) -> str:
        """Return the text with `‹rank›` for own numbers, first values elsewhere."""
        return self._join([RANK_PLACEHOLDER if slot.is_rank else slot.values[0] for slot in self.slots])

    @property
    def varying(self) -> tuple[Slot, ...]:
        """The slots that are neither the rank's own number nor padding."""
        return tuple(slot for slot in self.slots if slot.is_varying)

    def _join(self, values: Sequence[str]) -> str:
        parts = [part for pair in zip(self.literals, values, strict=False) for part in pair]
        return "".join([*parts, self.literals[-1]])

    def lines(self) -> list[tuple[list[str], list[Slot]]]:
        r"""Split the template into lines, each as its literals and slots.

        >>> Template((0, 1), ("a", "\nb"), (Slot(("0", "1"), is_rank=True),)).lines()
        [(['a', ''], [Slot(values=('0', '1'), is_rank=True, is_padding=False)]), (['b'], [])]
        """
        rows: list[tuple[list[str], list[Slot]]] = [([], [])]
        for at, literal in enumerate(self.literals):
            first, *rest = literal.split("\n")
            rows[-1][0].append(first)
            rows += [([piece], []) for piece in rest]
            if at < len(self.slots):
                rows[-1][1].append(self.slots[at])
        return rows


def make_template(
    members: Sequence[tuple[Sequence[int], Sequence[str]]], skeleton: Skeleton, *, own_positions: Collection[int] = ()
) -> Template:
    """Build the template of texts with one skeleton.

    Args:
        members: ranks, and the numbers that all of them wrote.
        skeleton: the text between the numbers.
        own_positions: positions among the numbers that are known to be the rank's own, even if there is only one rank.

    >>> make_template([((0,), [" 0", " 4"]), ((1,), [" 1", " 4"])], ("rank", " of", "")).display_text()
    'rank ‹rank› of 4'
    """
    order = sorted((rank, index) for index, (ranks, _) in enumerate(members) for rank in ranks)
    ranks = tuple(rank for rank, _ in order)
    literals, slots, pending = [], [], skeleton[0]
    columns = zip(*(numbers for _, numbers in members), strict=True)
    for position, (column, following) in enumerate(zip(columns, skeleton[1:], strict=True)):
        if len(set(column)) == 1 and position not in own_positions:
            pending += column[0] + following
            continue
        shared = _shared_blanks(column)
        values = [column[index][len(shared) :] for _, index in order]
        slot = _make_slot(values, ranks)
        literals.append(pending + shared)
        slots.append(slot)
        # A rank's own number is an integer: the dot that arrays print after it stays in the text.
        pending = values[0][len(slot.values[0]) :] + following
    return Template(ranks, (*literals, pending), _mark_padding(slots))


def _mark_padding(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Mark slots that differ only in padding, unless all slots do."""
    padded = [len({value.strip() for value in slot.values}) == 1 for slot in slots]
    if all(padded):
        return tuple(slots)
    return tuple(replace(slot, is_padding=only and not slot.is_rank) for slot, only in zip(slots, padded, strict=True))


def _shared_blanks(column: Sequence[str]) -> str:
    return " " * min(len(value) - len(value.lstrip(" ")) for value in column)


def _make_slot(values: Sequence[str], ranks: Sequence[int]) -> Slot:
    dotted = all(value.endswith(".") for value in values)
    integers = [value.removesuffix(".") for value in values] if dotted else values
    width = len(integers[0])
    is_own = all(value == str(rank) for value, rank in zip(integers, ranks, strict=True)) or all(
        value == str(rank).rjust(width) for value, rank in zip(integers, ranks, strict=True)
    )
    return Slot(tuple(integers if is_own else values), is_rank=is_own)
