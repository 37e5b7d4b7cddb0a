"""Summary of a cell's result, in reading order.

Decides which ranks differ from the majority, which failure comes first, which ranks only waited and which ranks share a block.
HTML and text are both built from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mhnb.core.hang_report import HangReport
from mhnb.core.memory import FailedAllocations, FailureGroup, group_failures
from mhnb.core.output.diff import DiffRow, compare_lines
from mhnb.core.output.folding import OutputGroup, RichPart, TextPart, find_majority, group_outputs, text_of
from mhnb.core.output.outputs import GAP_LINE
from mhnb.core.output.results import CarriedNote, CellResult, RankResult, group_by_outputs
from mhnb.core.output.rich import ignore_bars
from mhnb.core.output.tables import show_tables_in_full
from mhnb.core.output.template import RANK_PLACEHOLDER
from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.types import Output
from mhnb.view.cell.blocks import (
    OutlierValue,
    block_items,
    clip_unchanged,
    comparable_lines,
    find_outlier_values,
    format_omitted_line,
    keep_ends,
    shorten_line,
)
from mhnb.view.cell.failures import (
    Failure,
    LossReport,
    are_not_yet,
    find_failures,
    find_loss,
    format_failure_heading,
    is_loss,
    is_only_right,
)
from mhnb.view.drawings.metrics import MetricCard
from mhnb.view.html import format_seconds
from mhnb.view.mime import is_hidden, show_without_scripts
from mhnb.view.reports.metrics import NO_CARD, build_card

MAX_COMPARED_NBYTES = 192 * 1024
"""Text of one rank that is compared: its beginning and its end. More is never shown, and would cost time."""
_MAX_LINE_NBYTES = MAX_COMPARED_NBYTES // 8
_MIN_EQUAL_SHARE = 0.3
_MAX_TOOLTIP_LINES, _MAX_TOOLTIP_CHARS = 4, 160
_MAX_OUTLIER_FIELDS = 3
"""Maximum number of fields that the status line names."""
_WORDS = re.compile(r"([^\W\d][\w/.-]*(?: [^\W\d][\w/.-]*)?)[^\w]*$")
"""Matches the last word before a number, and the one before it: `val loss`."""


@dataclass(frozen=True, slots=True)
class Block:
    """Ranks with the same output, except for numbers that the block lists."""

    output_group: OutputGroup
    rows: tuple[DiffRow, ...] = ()
    """Differences from the majority; empty for the majority itself, and if the two have little in common."""
    majority_ranks: tuple[int, ...] = ()
    """The majority's ranks, if `rows` is set."""
    omitted_nbytes: int = 0
    """Bytes that the notebook never received; only the log file has them."""
    outlier_values: tuple[OutlierValue, ...] | None = None
    """Numbers in which few ranks differ; None if nobody has looked for them."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks with this output."""
        return self.output_group.ranks

    @property
    def is_silent(self) -> bool:
        """Return whether the ranks have no output."""
        return not self.output_group.parts


@dataclass(frozen=True, slots=True)
class CellSummary:
    """A cell's result in reading order."""

    heading: str
    """As `ranks 0-3 · 0.21 s`."""
    difference: str
    """As `rank 2 differs` or `rank 2 differs: loss`; empty if all ranks agree."""
    blocks: tuple[Block, ...]
    """Blocks that differ come first, the majority last; by rank if there is no majority. Empty if no rank has output."""
    outliers: frozenset[int]
    """Ranks outside the majority; empty without a majority. A rank that failed before it had any output is not included."""
    failures: tuple[Failure, ...]
    """The first failure on top, then by rank; ranks that waited for it last."""
    failure_heading: str
    """As `ValueError on rank 2 · ranks 0-1,3 finished`; empty if nothing failed."""
    notes: tuple[str, ...]
    """Of the verdict on the cell, without those that `loss` has."""
    has_quiet_notes: bool = True
    """Whether the notes ask for nothing, because the cluster is clean."""
    output_notes: tuple[str, ...] = ()
    """Of the comparison of the ranks' outputs."""
    loss: LossReport | None = None
    """How ranks were lost; None if none was."""
    shortages: tuple[FailureGroup, ...] = ()
    """What the memory held on ranks on which an allocation failed."""
    hang: HangReport | None = None
    """Where the ranks were stuck when the cell was stopped."""
    carried: CarriedNote | None = None
    """What the cell before left behind."""
    has_outlier_numbers: bool = False
    """Whether few ranks differ in numbers of a block that all ranks share; `difference` names them."""
    noise: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks, and what C++ libraries printed on them."""
    name: str = ""
    """The names that other cells and commands use, as `In [7] · cell 12 of the cluster`."""
    noise_label: str = ""
    """As `6 lines of C++ libraries (Gloo 4, absl 2)`; empty if there is no noise."""
    metrics: MetricCard = NO_CARD
    """The charts of what the ranks have logged."""
    figures_are_below: bool = False
    """Whether figures that only a front end can draw follow in displays of their own, so that nothing needs to stand for them."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to show."""
        return not (self.has_status or self.failures or self.notes or self.output_notes)

    @property
    def has_status(self) -> bool:
        """Return whether the line with the ranks and duration is shown."""
        return bool(self.blocks or self.carried or self.metrics)

    @property
    def own_failures(self) -> tuple[Failure, ...]:
        """Return the failures that `loss` lacks, except ranks that only waited."""
        return tuple(f for f in self.failures if not (f.only_waited or (self.loss is not None and is_loss(f))))

    @property
    def tooltip(self) -> str:
        """Return the status line's tooltip: cell name and first C++ lines."""
        if not self.noise_label:
            return self.name
        lines = [
            f"{describe_ranks(ranks)}: {shorten_line(line, _MAX_TOOLTIP_CHARS)}"
            for ranks, text in self.noise
            for line in text.splitlines()
        ]
        more = [f"… {len(lines) - _MAX_TOOLTIP_LINES} more"] if len(lines) > _MAX_TOOLTIP_LINES else []
        where = f"{self.noise_label}, all of them in the log files:"
        return "\n".join(filter(None, [self.name, where, *lines[:_MAX_TOOLTIP_LINES], *more]))

    @property
    def marked_outliers(self) -> frozenset[int]:
        """Return the outliers; none if only they print, which is common."""
        return self.outliers if self.blocks and not self.blocks[-1].is_silent else frozenset()

    @property
    def has_named_ranks(self) -> bool:
        """Return whether `difference` names ranks that differ from most others."""
        return bool(self.difference) and (self.has_outlier_numbers or bool(self.marked_outliers))

    @property
    def is_literal(self) -> bool:
        """Return whether the blocks show each rank's text verbatim."""
        return all(block.output_group.is_literal and not block.rows for block in self.blocks)


def summarise_cell(result: CellResult) -> CellSummary:
    """Build the summary of a result."""
    failures = find_failures(result)
    blocks = _build_blocks(result)
    has_output = any(not block.is_silent or block.omitted_nbytes for block in blocks)
    if are_not_yet(failures) and all(is_only_right(r) for r in result.ranks if r.outputs or r.omitted_nbytes):
        has_output = False  # the card of the others names the ranks that are right
    majority = find_majority([block.output_group for block in blocks])
    outliers = (
        {rank for block in blocks if block.output_group is not majority for rank in block.ranks} if majority else set()
    )
    # A failed rank without output is not a difference of its own: the failure report gives the reason.
    outliers -= {
        r.rank for r in result.ranks if r.failure is not None and not (as_shown(r).outputs or r.omitted_nbytes)
    }
    loss = find_loss(result, failures)
    described = _describe_outliers(blocks)
    failed = frozenset(rank for failure in failures for rank in failure.ranks)
    return CellSummary(
        heading=format_heading(result),
        difference=_format_difference(blocks, sorted(outliers), described, failed) if has_output else "",
        blocks=blocks if has_output else (),
        outliers=frozenset(outliers),
        has_outlier_numbers=bool(described),
        failures=failures,
        failure_heading=format_failure_heading(result, failures) if loss is None else loss.heading,
        notes=result.notes if loss is None else (),
        has_quiet_notes=result.state == "clean",
        output_notes=_format_compared_note(result, blocks),
        loss=loss,
        shortages=_group_shortages(result),
        hang=result.where if result.done else None,
        carried=result.carried,
        noise=_group_noise(result),
        name=result.both_names,
        noise_label=format_noise_label(result),
        metrics=build_card(result.metrics, done=result.done) if result.metrics else NO_CARD,
    )


def _group_shortages(result: CellResult) -> tuple[FailureGroup, ...]:
    """Group the ranks on which an allocation failed and ended the cell."""
    found = result.find(FailedAllocations) or FailedAllocations()
    return group_failures({r.rank: found[r.rank] for r in result.failed if r.rank in found})


def _format_compared_note(result: CellResult, blocks: Sequence[Block]) -> tuple[str, ...]:
    """Return a note if ranks share output compared only in part."""
    shared = {rank for block in blocks if len(block.ranks) > 1 for rank in block.ranks}
    long = [
        r for r in result.ranks if r.rank in shared and sum(len(text_of(o)) for o in r.outputs) > MAX_COMPARED_NBYTES
    ]
    if not long or len(group_by_outputs(as_shown(r) for r in long)) == 1:
        return ()
    return (
        "The text is long, so only its beginning and end were compared between ranks; the log files have all of it.",
    )


def _group_noise(result: CellResult) -> tuple[tuple[tuple[int, ...], str], ...]:
    outputs = [
        ((r.rank,), [{"output_type": "stream", "name": "stdout", "text": r.noise}]) for r in result.ranks if r.noise
    ]
    texts = [
        (b.ranks, part.template.display_text())
        for b in group_outputs(outputs)
        for part in b.parts
        if isinstance(part, TextPart)
    ]
    return tuple(texts)


def format_noise_label(result: CellResult) -> str:
    """Format how many lines C++ libraries printed; empty if none."""
    lines = [line for r in result.ranks for line in r.noise.splitlines()]
    if not lines:
        return ""
    gloo = sum("peer rank" in line or "[Gloo]" in line for line in lines)
    counts = [f"{name} {count}" for name, count in (("Gloo", gloo), ("absl", len(lines) - gloo)) if count]
    return f"{len(lines)} {'line' if len(lines) == 1 else 'lines'} of C++ libraries ({', '.join(counts)})"


def format_heading(result: CellResult, *, has_strip: bool = False) -> str:
    """Format the cell's ranks, its duration and the ranks still running.

    Args:
        result: the cell, perhaps still running.
        has_strip: whether each rank's state is shown below; then the heading does not repeat which ranks still run.
    """
    label = describe_ranks([r.rank for r in result.ranks])
    if len(result.ranks) < result.process_count:
        label += f" of {result.process_count}"
    if result.done:
        return f"{label} · {format_seconds(result.wall_s)}"
    running = [r.rank for r in result.ranks if r.outcome == "running"]
    is_partly_done = len(running) not in (0, len(result.ranks))
    waiting = f" · waiting for {describe_ranks(running)}" if is_partly_done and not has_strip else ""
    return f"{label} · running {format_seconds(result.wall_s)}{waiting}{_format_interrupt(result)}"


def _format_interrupt(result: CellResult) -> str:
    if not result.handling:
        return ""
    running = tuple(rank.rank for rank in result.ranks if rank.outcome == "running")
    cleaning = "" if result.handling == running else f"{describe_ranks(result.handling)} "
    return f" · interrupted, {cleaning}cleaning up · interrupt again to end that"


# -- blocks


def _build_blocks(result: CellResult) -> tuple[Block, ...]:
    if not any(r.outputs or r.omitted_nbytes for r in result.ranks):
        return ()  # most cells print nothing, and should cost nothing
    groups = group_by_outputs(as_shown(r) for r in result.ranks)
    outputs = _shorten_groups([g.outputs for g in groups])
    omitted = {r.rank: r.omitted_nbytes for r in result.ranks}
    folded = group_outputs((g.ranks, shown) for g, shown in zip(groups, outputs, strict=True))
    majority = find_majority(folded)
    majority_lines = comparable_lines(majority, with_letters=False) if majority is not None and majority.parts else []
    blocks = [_build_block(f, majority, majority_lines, max(omitted[rank] for rank in f.ranks)) for f in folded]
    return tuple(
        sorted(blocks, key=lambda b: (b.output_group is majority, len(b.ranks) if majority else 0, b.ranks[0]))
    )


def _build_block(
    folded: OutputGroup, majority: OutputGroup | None, majority_lines: list[tuple[str, str]], omitted_nbytes: int
) -> Block:
    # A figure has no lines to compare, and a template has no single text to compare.
    is_comparable = all(isinstance(part, TextPart) for part in folded.parts) and not folded.has_differences
    if majority is None or folded is majority or not is_comparable or not folded.parts or not majority_lines:
        return _look_for_outlier_values(Block(folded, omitted_nbytes=omitted_nbytes))
    lines = ignore_bars(comparable_lines(folded), majority_lines)
    rows = compare_lines(lines, majority_lines)
    if len(folded.ranks) == 1:
        # A rank's own number is not a difference, even if the text beside it did not let it be recognised as such.
        own_rows = compare_lines(
            _with_own_number(lines, folded.ranks[0]), _with_own_number(majority_lines, folded.ranks[0])
        )
        rows = min(rows, own_rows, key=lambda rows: sum(row.kind != "same" for row in rows))
    rows = show_tables_in_full(rows, lines)
    equal_count = sum(row.count for row in rows if row.kind in ("same", "changed"))
    if equal_count < _MIN_EQUAL_SHARE * len(lines):
        return _look_for_outlier_values(Block(folded, omitted_nbytes=omitted_nbytes))
    return Block(folded, rows, majority.ranks, omitted_nbytes)


def _with_own_number(lines: list[tuple[str, str]], rank: int) -> list[tuple[str, str]]:
    return [(channel, text.replace(RANK_PLACEHOLDER, str(rank))) for channel, text in lines]


def _shorten_groups(groups: Sequence[Sequence[Output]]) -> list[Sequence[Output]]:
    """Clip all groups to the same number of lines at both ends.

    Thus ranks with the same output still have the same.
    """
    size = max((sum(len(text_of(o)) for o in outputs) for outputs in groups), default=0)
    if size <= MAX_COMPARED_NBYTES:
        return list(groups)
    groups = [[_cut_long_lines(output) for output in outputs] for outputs in groups]
    size = max(sum(len(text_of(o)) for o in outputs) for outputs in groups)
    lines = max(sum(text_of(o).count("\n") + 1 for o in outputs) for outputs in groups)
    keep = max(1, int(lines * MAX_COMPARED_NBYTES / size / 2))
    return [
        clip_outputs(_clip_lines(outputs, keep), MAX_COMPARED_NBYTES, where="the log file") if outputs else outputs
        for outputs in groups
    ]


def _cut_long_lines(output: Output) -> Output:
    """Cut very long lines, so that none fills the whole limit."""
    lines = text_of(output).split("\n")
    if all(len(line) <= _MAX_LINE_NBYTES for line in lines):
        return output
    return _with_text(output, "\n".join(shorten_line(line, _MAX_LINE_NBYTES) for line in lines))


def _clip_lines(outputs: Sequence[Output], keep: int) -> list[Output]:
    """Keep `keep` lines at each end."""
    clipped = []
    for output in outputs:
        lines = text_of(output).split("\n")
        left_out = len(lines) - 2 * keep
        if left_out <= 0:
            clipped.append(output)
            continue
        note = format_omitted_line(lines[keep:-keep], where="the log file")
        clipped.append(_with_text(output, "\n".join([*lines[:keep], note, *lines[-keep:]])))
    return clipped


def as_shown(result: RankResult) -> RankResult:
    """Return a result with its outputs as they are shown.

    The error that ended the cell is shown above. One that did not end it, such as one in a `__repr__`, becomes text where it occurred.
    A display that only scripts can draw becomes text too.
    """
    shown = [
        _error_as_text(show_without_scripts(output))
        for output in result.outputs
        if (result.outcome == "ok" or output["output_type"] != "error") and not is_hidden(output)
    ]
    return result if shown == list(result.outputs) else replace(result, outputs=tuple(shown))


def _error_as_text(output: Output) -> Output:
    if output["output_type"] != "error":
        return output
    return {"output_type": "stream", "name": "stderr", "text": "\n".join(output["traceback"]) + "\n"}


def _format_difference(blocks: Sequence[Block], outliers: Sequence[int], described: str, failed: frozenset[int]) -> str:
    not_finite = _ranks_not_finite(blocks)
    suffix = f" · not a finite number on {describe_ranks(not_finite)}" if not_finite else ""
    if not outliers:
        with_output = [block for block in blocks if not block.is_silent]
        if len(blocks) == 2 and len(with_output) == 1:
            return f"{_format_only(blocks, with_output[0].ranks, failed)}{suffix}".removeprefix(" · ")
        if len(blocks) > 1:
            return f"{len(blocks)} different outputs{suffix}"
        return (
            f"{described or _describe_variation(blocks[0].output_group)}{suffix}"
            if blocks and blocks[0].output_group.has_differences
            else ""
        )
    if blocks[-1].is_silent:
        return f"{_format_only(blocks, outliers, failed)}{suffix}".removeprefix(" · ")
    return _say_differ(outliers) + suffix


def _format_only(blocks: Sequence[Block], ranks: Sequence[int], failed: frozenset[int]) -> str:
    """Format which ranks alone have output; empty if failures explain it."""
    silent = {rank for block in blocks if block.is_silent for rank in block.ranks}
    return "" if silent == failed else f"only {describe_ranks(ranks)} said something"


def _say_differ(ranks: Sequence[int]) -> str:
    return f"{describe_ranks(ranks)} {'differs' if len(ranks) == 1 else 'differ'}"


def _describe_outliers(blocks: Sequence[Block]) -> str:
    """Describe the few ranks whose numbers differ, as `rank 2 differs: loss`."""
    if len(blocks) != 1 or not _has_differing_numbers(blocks[0].output_group):
        return ""
    found = list(_iter_outliers(blocks[0]))
    ranks = sorted({rank for one in found for rank in one.ranks})
    if not 0 < len(ranks) <= max(1, len(blocks[0].ranks) // 4):
        return ""
    fields = list(dict.fromkeys(one.field for one in found))
    named = f": {', '.join(fields)}" if all(fields) and len(fields) <= _MAX_OUTLIER_FIELDS else ""
    return f"{_say_differ(ranks)}{named}"


def find_outlier_ranks(cell_summary: CellSummary) -> dict[int, str]:
    """Return each outlier rank's first difference, as `loss 0.731 ← 0.312 elsewhere`."""
    found: dict[int, str] = {}
    for block in cell_summary.blocks:
        for one in _iter_outliers(block):
            for rank in one.ranks:
                found.setdefault(rank, one.text)
    return found


def _look_for_outlier_values(block: Block) -> Block:
    """Look once, for the status line and for each form."""
    return replace(block, outlier_values=tuple(list_outlier_values(block)))


class _Outlier(NamedTuple):
    ranks: Sequence[int]
    field: str
    """The words that name the number; may be empty, also if no number differs."""
    text: str
    """As `loss 0.731 ← 0.312 elsewhere`."""


def _iter_outliers(block: Block) -> Iterator[_Outlier]:
    if block.rows:
        changed = [row for row in block.rows if row.kind != "same"]
        yield from (_Outlier(block.ranks, "", _format_first_difference(row)) for row in changed[:1])
        return
    for one in list_outlier_values(block):
        text = f"{one.before}{one.value} ← {one.elsewhere} elsewhere"
        yield _Outlier(one.ranks, _name_number(one.before), text)


def list_outlier_values(block: Block) -> Sequence[OutlierValue]:
    """Return the numbers in which few ranks differ."""
    known = block.outlier_values
    return find_outlier_values(block_items(block.output_group), block.ranks) if known is None else known


def _name_number(before: str) -> str:
    """Return the words before a number that name it; may be empty.

    >>> _name_number("step 3 val loss=")
    'val loss'
    """
    found = _WORDS.search(before)
    return found[1].rstrip(".-/") if found else ""


def _format_first_difference(row: DiffRow) -> str:
    """Format in one line how a line differs from the majority's."""
    if row.kind == "missing":
        return f"- {keep_ends(row.there)} ← elsewhere"
    if row.kind == "added":
        return f"+ {keep_ends(row.here)}"
    spans = clip_unchanged(row)
    changed = [span for span in spans if span.there is not None]
    is_word = len(changed) == 1 and changed[0].here and changed[0].there
    there = changed[0].there if is_word else "".join(span.here if span.there is None else span.there for span in spans)
    return f"{''.join(span.here for span in spans)} ← {there} elsewhere"


def _describe_variation(block: OutputGroup) -> str:
    if _has_differing_numbers(block):
        slots = [slot for item in block_items(block) if not isinstance(item, RichPart) for slot in item.slots]
        kind = "numbers" if any(any(n is not None for n in slot.numbers) for slot in slots) else "names"
        # The speed that progress bars show always differs.
        return f"{kind} differ by rank" if slots else ""
    pictures = [part for part in block.parts if isinstance(part, RichPart) and len(part.variants) > 1]
    if not pictures:
        return "order differs by rank"
    kinds = {kind for picture in pictures for _, output in picture.variants for kind in output.get("data", ())}
    return f"{'figures' if any(kind.startswith('image/') for kind in kinds) else 'displays'} differ by rank"


def _has_differing_numbers(block: OutputGroup) -> bool:
    return any(isinstance(part, TextPart) and part.template.varying for part in block.parts)


def _ranks_not_finite(blocks: Sequence[Block]) -> list[int]:
    """Return the ranks with nan or inf where others have numbers."""
    not_finite: set[int] = set()
    for block in blocks:
        for part in block.output_group.parts:
            for slot in part.template.varying if isinstance(part, TextPart) else ():
                found = {
                    rank
                    for rank, n in zip(block.ranks, slot.numbers, strict=True)
                    if n is not None and not math.isfinite(n)
                }
                not_finite |= found if len(found) < len(block.ranks) else set()
    return sorted(not_finite)


# -- long text


def clip_outputs(outputs: Sequence[Output], limit_nbytes: int, *, where: str) -> tuple[Output, ...]:
    r"""Replace the middle of long printed text by a note.

    Figures and HTML are kept, because they have a limit of their own.

    >>> clip_outputs([{"output_type": "stream", "name": "stdout", "text": "abcdef"}], 4, where="a.log")[0]["text"]
    'ab\n… 2 B left out, all of it is in a.log …\nef'
    """
    total = sum(len(text_of(output)) for output in outputs)
    if total <= limit_nbytes:
        return tuple(outputs)
    begin, end = limit_nbytes // 2, total - (limit_nbytes - limit_nbytes // 2)
    middle = "".join(map(text_of, outputs))[begin:end]
    # Include what the rank itself left out in this part.
    left_out = end - begin + sum(int(gap[1].replace(",", "")) - len(gap[0]) for gap in GAP_LINE.finditer(middle))
    note = f"\n… {format_nbytes(left_out)} left out, all of it is in {where} …\n"
    kept, at = [], 0
    for output in outputs:
        text = text_of(output)
        head, tail = text[: max(0, begin - at)], text[max(0, end - at) :]
        middle = note if at <= begin < at + len(text) else ""
        at += len(text)
        if head or middle or tail or not text:
            kept.append(_with_text(output, head + middle + tail) if middle or len(head) < len(text) else output)
    return tuple(kept)


def _with_text(output: Output, text: str) -> Output:
    if output["output_type"] == "stream":
        return {**output, "text": text}
    return {**output, "data": {**output["data"], "text/plain": text}}
