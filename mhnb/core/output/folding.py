"""Group ranks by equal output, and show differing numbers in templates.

This module decides which ranks share a block, and which block is the majority's. The blocks contain every rank's full output.
Outputs are compared in the normal form that `normal_form` defines. A set that ranks wrote in different orders has one order in their block.
A drawn table is never a template, which would break its columns: ranks whose tables differ have blocks of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mhnb.core.output.answers import ANSWER_MIME, Answer, read_answer
from mhnb.core.output.normal_form import (
    ORDER_MARK,
    align_addresses,
    align_sets,
    normalize_output,
    normalize_sets,
    remove_addresses,
)
from mhnb.core.output.tables import split_outside_tables
from mhnb.core.output.template import (
    RANK_PLACEHOLDER,
    Skeleton,
    Template,
    find_bar_positions,
    make_template,
    template_key,
    unify_skeletons,
)
from mhnb.types import Output

# -- group ranks by equal output


_MAX_BARE_RANKS = 8
_MAX_LINE_NUMBERS = 3
"""Lines of a few ranks in which more numbers than this differ do not become a template."""
_MAX_MINORITY_BLOCKS = 3
"""Up to this many minority groups each get a block that shows what differs; more share one if only numbers differ."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that the ranks of a block have at one position."""

    channel: str
    """stdout or stderr; or value: the text of a display or of the last expression."""
    template: Template
    answer: Answer | None = None
    """The answer to an exercise that the text of a display is."""
    originals: tuple[tuple[int, str], ...] = ()
    """Ranks whose text differs without meaning from the shown one, each with its own text."""

    @property
    def has_several_orders(self) -> bool:
        """Whether a set has several orders on its ranks."""
        is_marked = any(ORDER_MARK in literal for literal in self.template.literals)
        return is_marked and len({remove_addresses(text) for _, text in self.originals}) > 1

    def output_of(self, rank: int) -> Output:
        """Return the rank's text as an nbformat output."""
        text = dict(self.originals).get(rank) or self.template.text_of(rank)
        if self.channel == "value":
            return {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}
        return {"output_type": "stream", "name": self.channel, "text": text}


@dataclass(frozen=True, slots=True)
class RichPart:
    """The distinct figures, HTML or similar outputs at one position."""

    variants: tuple[tuple[tuple[int, ...], Output], ...]

    def output_of(self, rank: int) -> Output:
        """Return the rank's own variant."""
        return next(output for ranks, output in self.variants if rank in ranks)


_Part: TypeAlias = TextPart | RichPart


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """A block: ranks with equal outputs, except for numbers in templates."""

    ranks: tuple[int, ...]
    parts: tuple[_Part, ...]

    @property
    def has_differences(self) -> bool:
        """Whether anything other than their own number differs between its ranks."""
        return any(
            len(part.variants) > 1
            if isinstance(part, RichPart)
            else bool(part.template.varying) or part.has_several_orders
            for part in self.parts
        )

    @property
    def is_literal(self) -> bool:
        """Whether the shown text is every rank's exact text, whatever its figures."""
        return not any(isinstance(part, TextPart) and (part.template.slots or part.originals) for part in self.parts)

    def outputs_of(self, rank: int) -> tuple[Output, ...]:
        """Return the outputs of a rank."""
        return tuple(part.output_of(rank) for part in self.parts)


def is_text(output: Output) -> bool:
    """Check whether an output is only text; lesson answers count as text.

    >>> is_text({"output_type": "display_data", "data": {"text/plain": "7"}})
    True
    """
    return output["output_type"] == "stream" or set(output.get("data", ())) - {ANSWER_MIME} == {"text/plain"}


def group_outputs(
    outputs_by_ranks: Iterable[tuple[Sequence[int], Sequence[Output]]], *, may_list_numbers: bool = True
) -> tuple[OutputGroup, ...]:
    """Group the ranks' outputs into blocks, ordered by first rank.

    Args:
        outputs_by_ranks: ranks with the outputs that all of them have; the caller leaves out errors.
        may_list_numbers: whether a few ranks' lines of numbers may be blocks of their own, one below the other.

    >>> [f.ranks for f in group_outputs([((r,), [{"output_type": "stream", "name": "stdout", "text": f"a {r}"}]) for r in (0, 1)])]
    [(0, 1)]
    """
    classes: dict[tuple[object, ...], list[_Member]] = {}
    said = [(tuple(ranks), outputs) for ranks, outputs in outputs_by_ranks]
    for member in _align_members(said):
        classes.setdefault(member.key, []).append(member)
    for members in classes.values():
        _share_skeletons(members)
    listed = [may_list_numbers and _are_mostly_numbers(members) for members in classes.values()]
    groups_by_class = [
        _group_by_numbers(members, [m.all_numbers for m in members]) if is_listed else _group_by_own_number(members)
        for members, is_listed in zip(classes.values(), listed, strict=True)
    ]
    total = sum(len(m.ranks) for members in classes.values() for m in members)
    has_majority = _has_majority(groups_by_class, total)
    blocks = [
        block
        for groups, is_listed in zip(groups_by_class, listed, strict=True)
        for block in (map(_block, groups) if is_listed else _build_blocks(groups, total, has_majority=has_majority))
    ]
    return tuple(sorted(blocks, key=lambda block: block.ranks[0]))


def find_majority(blocks: Sequence[OutputGroup]) -> OutputGroup | None:
    """Return the block with over half the ranks; None without other blocks.

    >>> find_majority([OutputGroup((0, 1), ()), OutputGroup((2,), ())]).ranks
    (0, 1)
    """
    total = sum(len(block.ranks) for block in blocks)
    return next((block for block in blocks if len(blocks) > 1 and 2 * len(block.ranks) > total), None)


class _Member:
    """Ranks with equal outputs, split into skeletons and numbers."""

    def __init__(self, ranks: tuple[int, ...], outputs: Sequence[Output], texts: Sequence[str]) -> None:
        self.ranks = ranks
        self.texts = texts
        """Those of the outputs, in the form that all members share."""
        self.shapes: list[tuple[str, Skeleton]] = []
        self.numbers: list[list[str]] = []
        self.outputs = outputs
        self.own_positions: frozenset[int] = frozenset()
        """Positions, among all its numbers, at which it and most others of its class wrote their own rank."""
        for output, text in zip(outputs, texts, strict=True):
            self._add_output(output, text)

    @property
    def key(self) -> tuple[object, ...]:
        """What the ranks of one class have in common."""
        return tuple(
            (channel, skeleton if channel == "rich" else template_key(skeleton, numbers))
            for (channel, skeleton), numbers in zip(self.shapes, self.numbers, strict=True)
        )

    @property
    def all_numbers(self) -> list[str]:
        """Its numbers, those of every output."""
        return [number for numbers in self.numbers for number in numbers]

    @property
    def bar_positions(self) -> set[int]:
        """Positions of numbers in progress bars, among all its numbers."""
        found: set[int] = set()
        first = 0
        for (channel, skeleton), numbers in zip(self.shapes, self.numbers, strict=True):
            if channel != "rich":
                found |= {first + at for at in find_bar_positions(skeleton, numbers)}
            first += len(numbers)
        return found

    def original(self, at: int) -> str:
        """Return a text as written; empty if the shared one is equal."""
        own = text_of(self.outputs[at])
        return "" if own == self.texts[at] else own

    def _add_output(self, output: Output, text: str) -> None:
        if is_text(output):
            skeleton, numbers = split_outside_tables(text)
            self._add(output["name"] if output["output_type"] == "stream" else "value", skeleton, numbers)
        else:
            self._add("rich", tuple(sorted(output.get("data", ()))), [normalize_output(output)])

    def _add(self, channel: str, skeleton: Skeleton, numbers: list[str]) -> None:
        self.shapes.append((channel, skeleton))
        self.numbers.append(numbers)


def text_of(output: Output) -> str:
    """Return an output's text; empty if it has other forms."""
    if not is_text(output):
        return ""
    text = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return text if isinstance(text, str) else "".join(text)


def _align_members(said: Sequence[tuple[tuple[int, ...], Sequence[Output]]]) -> list[_Member]:
    """Make members, with one order of each set per class.

    A class differs only in the order of sets and in numbers, so a minority in it has the order of its first rank too.
    """
    written = [text_of(output) for _, outputs in said for output in outputs]
    plain = iter(align_addresses(written) if len(said) > 1 else written)
    texts = [[next(plain) for _ in outputs] for _, outputs in said]
    normal = [list(map(normalize_sets, own)) for own in texts]
    if normal != texts:
        classes: dict[tuple[object, ...], list[int]] = {}
        for at, ((ranks, outputs), own) in enumerate(zip(said, normal, strict=True)):
            classes.setdefault(_Member(ranks, outputs, own).key, []).append(at)
        for places in classes.values():
            columns = [align_sets(column) for column in zip(*(texts[at] for at in places), strict=True)]
            for at, *own in zip(places, *columns, strict=True):
                texts[at] = own
    return [_Member(ranks, outputs, own) for (ranks, outputs), own in zip(said, texts, strict=True)]


def _share_skeletons(members: Sequence[_Member]) -> None:
    """Give members equal skeletons by moving differing units and padding into numbers."""
    for at, (channel, _) in enumerate(members[0].shapes):
        if len({member.shapes[at] for member in members}) > 1:
            skeleton, numbers = unify_skeletons([(member.shapes[at][1], member.numbers[at]) for member in members])
            for member, joined in zip(members, numbers, strict=True):
                member.shapes[at], member.numbers[at] = (channel, skeleton), joined


_EqualMembers: TypeAlias = list[_Member]
"""Members that differ only in their ranks' own numbers."""


def _group_by_own_number(members: list[_Member]) -> list[_EqualMembers]:
    """Group members that are equal apart from each rank's own number.

    The numbers of progress bars do not count: the bars of a group become one, and ranks are never equally fast.
    """
    if len(members) == 1:
        return [members]
    in_bars = members[0].bar_positions
    ranks = sum(len(m.ranks) for m in members)
    marked: list[list[str]] = [[] for _ in members]
    own_positions: list[set[int]] = [set() for _ in members]
    for position, column in enumerate(zip(*(m.all_numbers for m in members), strict=True)):
        if len(set(column)) == 1 or position in in_bars:
            continue
        own = [len(m.ranks) == 1 and _is_own_rank(value, m.ranks[0]) for m, value in zip(members, column, strict=True)]
        # If most ranks write their own number there, a rank that writes another number differs.
        is_common = 2 * sum(own) > ranks and sum(own) > 1
        for at, value in enumerate(column):
            # An array's `3.` is not the integer `3`.
            marked[at].append(RANK_PLACEHOLDER + "." * value.endswith(".") if is_common and own[at] else value)
            if is_common and own[at]:
                own_positions[at].add(position)
    for member, own_places in zip(members, own_positions, strict=True):
        member.own_positions = frozenset(own_places)
    return _group_by_numbers(members, marked)


def _group_by_numbers(members: Sequence[_Member], numbers: Sequence[list[str]]) -> list[_EqualMembers]:
    found: dict[tuple[str, ...], _EqualMembers] = {}
    for member, own in zip(members, numbers, strict=True):
        found.setdefault(tuple(own), []).append(member)
    return list(found.values())


def _is_own_rank(value: str, rank: int) -> bool:
    return value.strip().removesuffix(".") == str(rank)


def _are_mostly_numbers(members: Sequence[_Member]) -> bool:
    """Check whether a few ranks' number lines read better without a template."""
    if sum(len(member.ranks) for member in members) > _MAX_BARE_RANKS:
        return False
    texts = [text for channel, skeleton in members[0].shapes if channel != "rich" for text in skeleton]
    only_numbers = bool(texts) and not any(character.isalnum() for text in texts for character in text)
    return only_numbers or _are_crowded(members)


def _are_crowded(members: Sequence[_Member]) -> bool:
    """Check whether one-line outputs differ in too many numbers for a table."""
    lines = sum(
        "".join(skeleton).rstrip("\n").count("\n") + 1 for channel, skeleton in members[0].shapes if channel != "rich"
    )
    rows = [member.all_numbers for member in members]
    if lines != 1 or any(number.lstrip().startswith("|") for row in rows for number in row):
        # Progress bars are merged into one bar.
        return False
    return sum(len(set(column)) > 1 for column in zip(*rows, strict=True)) > _MAX_LINE_NUMBERS


def _size(group: _EqualMembers) -> int:
    return sum(len(member.ranks) for member in group)


def _has_majority(classes: Sequence[Sequence[_EqualMembers]], total: int) -> bool:
    return any(2 * _size(group) > total for groups in classes for group in groups)


def _build_blocks(groups: Sequence[_EqualMembers], total: int, *, has_majority: bool) -> list[OutputGroup]:
    """Build the blocks of one class.

    `has_majority`: some group of some class is the majority.
    """
    major = [group for group in groups if 2 * _size(group) > total]
    minor = [group for group in groups if 2 * _size(group) <= total]
    if has_majority and len(minor) <= _MAX_MINORITY_BLOCKS:
        return [_block(group) for group in groups]
    return [_block(group) for group in major] + ([_block([m for g in minor for m in g])] if minor else [])


def _block(members: _EqualMembers) -> OutputGroup:
    ranks = tuple(sorted(rank for member in members for rank in member.ranks))
    return OutputGroup(ranks, tuple(_part(members, at) for at in range(len(members[0].shapes))))


def _part(members: _EqualMembers, at: int) -> _Part:
    channel, skeleton = members[0].shapes[at]
    if channel != "rich":
        first = sum(map(len, members[0].numbers[:at]))
        own = frozenset.intersection(*(m.own_positions for m in members))
        here = {place - first for place in own if 0 <= place - first < len(members[0].numbers[at])}
        template = make_template([(m.ranks, m.numbers[at]) for m in members], skeleton, own_positions=here)
        originals = sorted((rank, m.original(at)) for m in members for rank in m.ranks if m.original(at))
        return TextPart(channel, template, read_answer(members[0].outputs[at]), tuple(originals))
    variants: dict[str, tuple[list[int], Output]] = {}
    for member in members:
        variants.setdefault(member.numbers[at][0], ([], member.outputs[at]))[0].extend(member.ranks)
    return RichPart(tuple((tuple(sorted(ranks)), output) for ranks, output in variants.values()))
