"""Compute medians, ratios and a table from samples. Pure: it starts no processes and reads no clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["METRICS", "Headline", "Sample", "Summary", "format_headlines", "format_table", "headlines", "summarise"]

METRICS = {
    "empty": ("an empty cell, front end to idle", 1e3, "ms"),
    "psum": ("a cell with one warm psum, front end to idle", 1e3, "ms"),
    "start": ("start, request to first checked psum", 1.0, "s"),
    "first": ("start, request to the first checked psum of the user's own", 1.0, "s"),
    "stop": ("stop, request to the last rank's end", 1.0, "s"),
}
"""The title of each metric, the factor for its seconds, and the unit."""

TARGET_EMPTY, TARGET_START = 0.4, 1.4


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds of one life of one contestant for one metric: many values for cells, one value for other metrics."""

    contestant: str
    ranks: int
    round: int
    metric: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The median over rounds of each round's median, and the lowest and highest round, in seconds."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Headline:
    """A ratio that has a target."""

    what: str
    ranks: int
    ours: float
    theirs: float
    whose: str
    ratio: float
    target: float

    @property
    def met(self) -> bool:
        """Whether this run reaches the target."""
        return self.ratio <= self.target


def summarise(samples: Sequence[Sample]) -> dict[tuple[str, int, str], Summary]:
    """Group samples by (contestant, ranks, metric).

    >>> summarise([Sample("a", 2, 0, "empty", (1.0, 2.0, 9.0)), Sample("a", 2, 1, "empty", (4.0,))])
    {('a', 2, 'empty'): Summary(median=3.0, low=2.0, high=4.0, rounds=2)}
    """
    medians: dict[tuple[str, int, str], list[float]] = {}
    for sample in samples:
        key = (sample.contestant, sample.ranks, sample.metric)
        medians.setdefault(key, []).append(statistics.median(sample.seconds))
    return {k: Summary(statistics.median(v), min(v), max(v), len(v)) for k, v in medians.items()}


def headlines(
    summaries: dict[tuple[str, int, str], Summary], *, ours: str, plain: str, floor: str, peers: Sequence[str]
) -> list[Headline]:
    """Compute the ratios with a target, for every rank count at which all required values were measured.

    The empty cell is compared by its cost over a plain kernel's, so that the front end's own share cancels.
    """
    found = []
    for ranks in sorted({key[1] for key in summaries}):
        median = {(contestant, metric): s.median for (contestant, n, metric), s in summaries.items() if n == ranks}
        cost = _cost_over_plain(median, plain, (ours, *peers))
        if len(cost) == 1 + len(peers):
            best = min(peers, key=cost.__getitem__)
            what = "empty cell over a plain kernel's"
            found.append(Headline(what, ranks, cost[ours], cost[best], best, cost[ours] / cost[best], TARGET_EMPTY))
        if (ours, "start") in median and (floor, "start") in median:
            mine, theirs = median[ours, "start"], median[floor, "start"]
            what = "start to first checked psum"
            found.append(Headline(what, ranks, mine, theirs, floor, mine / theirs, TARGET_START))
    return sorted(found, key=lambda h: (h.what, h.ranks))


def _cost_over_plain(median: dict[tuple[str, str], float], plain: str, names: Sequence[str]) -> dict[str, float]:
    """Return the cost of an empty cell over the plain kernel's, for each measured contestant."""
    if (plain, "empty") not in median:
        return {}
    return {n: median[n, "empty"] - median[plain, "empty"] for n in names if (n, "empty") in median}


def format_table(summaries: dict[tuple[str, int, str], Summary], contestants: Sequence[str]) -> str:
    """Format one block per metric, with a row per rank count and a column per contestant."""
    blocks = []
    for metric, (title, factor, unit) in METRICS.items():
        counts = sorted({n for _, n, m in summaries if m == metric})
        if counts:
            head = ["ranks", *contestants]
            rows = [[str(n), *(_entry(summaries.get((c, n, metric)), factor) for c in contestants)] for n in counts]
            blocks.append(f"{title}, {unit}\n{_aligned([head, *rows])}")
    return "\n\n".join(blocks)


def _entry(summary: Summary | None, factor: float) -> str:
    if summary is None:
        return "-"
    spread = f" ({summary.low * factor:.2f}-{summary.high * factor:.2f})" if summary.rounds > 1 else ""
    return f"{summary.median * factor:.2f}{spread}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  " + "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in rows)


def format_headlines(found: Sequence[Headline]) -> str:
    """Format one line per ratio: both sides, the ratio, the target and whether it is met."""
    lines = []
    for h in found:
        factor, unit = (1e3, "ms") if "cell" in h.what else (1.0, "s")
        sides = f"mhnb {h.ours * factor:.2f} {unit}, {h.whose} {h.theirs * factor:.2f} {unit}"
        verdict = "met" if h.met else "MISSED"
        lines.append(f"{h.what}, {h.ranks} ranks: {sides}: ratio {h.ratio:.3f} (target {h.target}): {verdict}")
    return "\n".join(lines)
