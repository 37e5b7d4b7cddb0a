"""Merge the progress bars of several ranks into one bar: the slowest, the median and the fastest rank.

It parses lines by tqdm, and by other bars of the same format: a percentage, a bar between `|` characters, a count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ProgressBar", "ignore_bars", "merge_bars", "parse_bar"]

_BAR = re.compile(r"^(?P<name>.*?)\s*(?P<percent>\d{1,3})%\|[ █▏▎▍▌▋▊▉#\d]{3,}\|\s*(?P<count>\S+/\S+)?")
_MERGED = re.compile(r"^(?P<name>.*?) ?(?P<low>\d{1,3})(?:-(?P<high>\d{1,3}))? % \|[█▒ ]{20}\| ")
_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """A progress bar of one rank."""

    name: str
    percent: int
    count: str
    """Such as `42/100`; empty if the line has none."""


def parse_bar(line: str) -> ProgressBar | None:
    """Parse a line that is a progress bar; None for any other.

    >>> parse_bar("train:  42%|████▏     | 42/100 [00:04<00:05]")
    ProgressBar(name='train:', percent=42, count='42/100')
    """
    found = _BAR.match(line)
    return ProgressBar(found["name"], int(found["percent"]), found["count"] or "") if found else None


def merge_bars(lines: Sequence[str], ranks: Sequence[int]) -> str | None:
    """Merge the bars of ranks into one line; None if a line is not a bar, or the bars have different names.

    >>> merge_bars(["a:  40%|████      | 4/10", "a:  60%|██████    | 6/10", "a:  50%|█████     | 5/10"], (0, 1, 2))
    'a: 40-60 % |████████▒▒▒▒        | min 4/10 (rank 0) · median 50 % · max 6/10 (rank 1)'
    """
    bars = [bar for bar in map(parse_bar, lines) if bar is not None]
    if not bars or len(bars) < len(lines) or len({bar.name for bar in bars}) > 1:
        return None
    percents = [bar.percent for bar in bars]
    low, high = percents.index(min(percents)), percents.index(max(percents))
    solid, partial = (percents[at] * _BAR_WIDTH // 100 for at in (low, high))
    drawn = "█" * solid + "▒" * (partial - solid) + " " * (_BAR_WIDTH - partial)
    if len({(bar.percent, bar.count) for bar in bars}) == 1:
        where = f"all {bars[0].count}" if bars[0].count else "all"
        return f"{bars[0].name} {bars[0].percent} % |{drawn}| {where}".lstrip()
    range_ = f"{percents[low]}" if low == high else f"{percents[low]}-{percents[high]}"
    ends = [
        f"{word} {bars[at].count or f'{percents[at]} %'} (rank {ranks[at]})"
        for word, at in (("min", low), ("max", high))
    ]
    middle = f"median {sorted(percents)[(len(percents) - 1) // 2]} %"
    return f"{bars[low].name} {range_} % |{drawn}| {ends[0]} · {middle} · {ends[1]}".lstrip()


def ignore_bars(here: Sequence[tuple[str, str]], there: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace bars by the other text's bars of the same name, because a bar's state at some moment is arbitrary.

    The final state is not, so the last bar of a name is kept if it is outside the range of the other text's bar.

    Args:
        here: channel and text of each line.
        there: those of another text, which may hold merged bars.

    >>> bar = "a:  40%|████      | 4/10"
    >>> ignore_bars([("stderr", bar), ("stdout", "x")], [("stderr", merge_bars([bar], (0,)))])
    [('stderr', 'a: 40 % |████████            | all 4/10'), ('stdout', 'x')]
    """
    lines, theirs = list(here), _find_bars(there)
    for name, places in _find_bars(here).items():
        for (at, low, high), (other, least, most) in zip(places, theirs[name], strict=False):
            if at != places[-1][0] or least <= low <= high <= most:
                lines[at] = there[other]
    return lines


def _find_bars(lines: Sequence[tuple[str, str]]) -> defaultdict[str, list[tuple[int, int, int]]]:
    """Return the bars of each name: the index of each line, and the lowest and highest percentage there."""
    places: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for at, (_, text) in enumerate(lines):
        if "%" not in text:
            continue
        if (merged := _MERGED.match(text)) is not None:
            low = int(merged["low"])
            places[merged["name"]].append((at, low, int(merged["high"] or low)))
        elif (bar := parse_bar(text)) is not None:
            places[bar.name].append((at, bar.percent, bar.percent))
    return places
