"""Merge progress bars of several ranks, and collect their distinct figures.

A merged bar shows the slowest, the median and the fastest rank. Lines by tqdm are parsed, and other bars of the same format: a
percentage, a bar between `|` characters, a count.

Some figures can be drawn only by a front end: such a figure is data for a script of the front end. It cannot be part of other HTML, so
it needs an output of its own, with its ranks and a short description.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.output.results import RankResult

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
    """Merge the bars of ranks into one line.

    None if a line is not a bar, or the bars have different names.

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
    """Replace bars by the other text's bars of the same name.

    A bar's state at some moment is arbitrary. Its final state is not, so the last bar of a name is kept if it is
    outside the range of the other text's bar.

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
    """Return each name's bars: line index, lowest and highest percentage."""
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


# -- displays that only scripts can draw


OBJECT_REPR = re.compile(r"<IPython(?:\.\w+)?\.display\.\w+ (?:object|at 0x[0-9a-f]+)>")
"""What IPython prints for HTML, a formula, Markdown or JSON instead of the source."""
_SCRIPT = re.compile(r"<(?:script|iframe|object|embed|canvas)\b", re.IGNORECASE)
_UNSEEN = re.compile(
    r"<(script|style|iframe|object|noscript|template|canvas)(?=[\s/>]).*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]*>",
    re.DOTALL | re.IGNORECASE,
)
"""What readers do not see; a script or a comment that is not closed ends with the text, as in browsers."""
_DRAWN = re.compile(r"<(?:img|svg|picture|video|audio|hr|input|progress|meter)\b", re.IGNORECASE)
_HIDDEN = re.compile(r"""\s*<\w+ style=["']display:\s*none\b""", re.IGNORECASE)


def is_drawn_by_scripts(html: str) -> bool:
    """Check whether HTML shows nothing unless its scripts or frames run.

    >>> is_drawn_by_scripts("<div id='a'></div><script>draw('#a')</script>"), is_drawn_by_scripts("<b>1</b><script>x</script>")
    (True, False)
    """
    return _SCRIPT.search(html) is not None and _DRAWN.search(html) is None and not _UNSEEN.sub("", html).strip()


def join_text(text: Any) -> str:
    """Return an output's text, which nbformat may store as a list."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def is_hidden_html(html: str) -> bool:
    """Check whether HTML is hidden, as data for another display's scripts."""
    return _HIDDEN.match(html) is not None


# -- figures that only a front end can draw


_FIGURE_KINDS = {
    "application/vnd.plotly.": "plotly",
    "application/vnd.vegalite.": "Vega-Lite",
    "application/vnd.vega.": "Vega",
}
"""By the prefix of the MIME type, which ends in a version."""
_RENDERED_TYPES = ("image/png", "image/svg+xml", "image/jpeg")
_TITLE_CHARS, _KINDS_NAMED = 80, 8


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, and the ranks that made it."""

    ranks: tuple[int, ...]
    mime: str
    content: Any
    """The JSON value."""
    nbytes: int
    """Its stored size."""


def find_figure_type(data: Mapping[str, Any]) -> str | None:
    """Return the MIME type of a figure without other representations, or None.

    >>> find_figure_type({"application/vnd.plotly.v1+json": {}, "text/plain": "Figure()"})
    'application/vnd.plotly.v1+json'
    """
    found = next((mime for mime in data if mime.startswith(tuple(_FIGURE_KINDS))), None)
    if found is None or any(mime in data for mime in _RENDERED_TYPES):
        return None
    return found if "text/html" not in data or is_drawn_by_scripts(join_text(data["text/html"])) else None


def describe_figure(mime: str, content: Any) -> str:
    """Describe a figure's kind, and its contents if easy to determine.

    >>> describe_figure("application/vnd.plotly.v1+json", {"data": [{"type": "bar"}], "layout": {"title": {"text": "loss"}}})
    'a plotly figure “loss”: bar'
    """
    kind = next(word for start, word in _FIGURE_KINDS.items() if mime.startswith(start))
    parts = content if isinstance(content, dict) else {}
    title = _title(parts)
    traces = parts.get("data") if kind == "plotly" else None
    # A rank can show any value under this MIME type: it need not be a figure.
    listed = [trace for trace in traces if isinstance(trace, dict)] if isinstance(traces, list) else []
    kinds = Counter(str(trace.get("type", "scatter"))[:_TITLE_CHARS] for trace in listed)
    inside = ", ".join(word if count == 1 else f"{count} {word}" for word, count in list(kinds.items())[:_KINDS_NAMED])
    return f"a {kind} figure" + (f" “{title}”" if title else "") + (f": {inside}" if inside else "")


def _title(parts: Mapping[str, Any]) -> str:
    layout = parts.get("layout")
    title = layout.get("title") if isinstance(layout, dict) else parts.get("title")
    text = title.get("text") if isinstance(title, dict) else title
    return text[:_TITLE_CHARS] if isinstance(text, str) else ""


def collect_figures(ranks: Iterable[RankResult]) -> tuple[Figure, ...]:
    """Collect a cell's distinct figures, by position in the outputs, then rank.

    Args:
        ranks: each rank's result, in rank order.

    >>> shown = {"output_type": "display_data", "data": {"application/vnd.vega.v5+json": {}}, "metadata": {}}
    >>> [figure.ranks for figure in collect_figures(RankResult(rank, "ok", (shown,)) for rank in (0, 1))]
    [(0, 1)]
    """
    found: dict[tuple[int, str], tuple[list[int], str, Any]] = {}
    for rank in ranks:
        figures = ((find_figure_type(data), data) for output in rank.outputs if (data := output.get("data")))
        for at, (mime, data) in enumerate((mime, data) for mime, data in figures if mime is not None):
            text = json.dumps([mime, data[mime]], sort_keys=True)
            found.setdefault((at, text), ([], mime, data[mime]))[0].append(rank.rank)
    in_order = sorted(found.items(), key=lambda one: one[0][0])
    return tuple(Figure(tuple(whose), mime, content, len(text)) for (_, text), (whose, mime, content) in in_order)
