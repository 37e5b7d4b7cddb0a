"""A running cell as a small piece of HTML, however much it prints.

Shows the last lines of each group of ranks; its size is bounded, since it is sent anew with each update.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mhnb.core.results import CellResult, RankResult
from mhnb.values import Output
from mhnb.view.ansi import strip_ansi
from mhnb.view.digest import heading
from mhnb.view.mime import PRE_STYLE
from mhnb.view.style import QUIET, host_color, wrap
from mhnb.view.where import format_where_html, format_where_text
from mhnb.view.words import Places, format_rank_label

__all__ = ["MAX_LIVE_NBYTES", "format_live_html", "format_live_text", "tail_text"]

MAX_LIVE_NBYTES = 32_000
"""One update is never larger."""
_MAX_GROUPS = 24
_LINES_BUDGET = 48
_TEXT_BUDGET = 16_000
_MIN_LINES = 2


def format_live_html(snapshot: CellResult, *, places: Places | None = None, asked: bool = False) -> str:
    """Write a running cell: who is still busy, the last lines of each group of ranks, and where they hang.

    Args:
        snapshot: the cell as far as it has come.
        places: where the ranks live.
        asked: whether the user wants to see where the ranks are, also when nothing hangs.
    """
    groups = _group_by_tail(snapshot.ranks)
    head = f'<div><span style="{QUIET}">{escape(heading(snapshot))}</span></div>'
    budget = _TEXT_BUDGET
    while True:
        body = head + "".join(_blocks(groups, budget, places or Places())) + _card(snapshot, places or Places(), asked)
        page = wrap(body)
        if len(page.encode("utf-8", "replace")) <= MAX_LIVE_NBYTES or not budget:
            return page
        budget //= 2


def format_live_text(snapshot: CellResult) -> str:
    """Write what the display says where no widget can be shown: one line, and where the ranks hang."""
    card = snapshot.where
    return "\n".join([heading(snapshot), *([format_where_text(card)] if card is not None and card.stuck else [])])


def _card(snapshot: CellResult, places: Places, asked: bool) -> str:  # noqa: FBT001
    card = snapshot.where
    return "" if card is None or not (card.stuck or asked) else format_where_html(card, name=places.cluster)


def tail_text(outputs: Sequence[Output], *, max_lines: int, max_chars: int) -> str:
    r"""Take the last lines of what was printed or shown; a figure is named, not drawn.

    >>> tail_text([{"output_type": "stream", "name": "stdout", "text": "a\nb\nc\n"}], max_lines=2, max_chars=80)
    'b\nc'
    """
    pieces: list[str] = []
    size = lines = 0
    for output in reversed(outputs):
        piece = strip_ansi(_last_of(output, max_chars))
        pieces.append(piece)
        size, lines = size + len(piece), lines + piece.count("\n")
        if size >= max_chars or lines > max_lines:
            break
    text = "".join(reversed(pieces)).removesuffix("\n")
    return "\n".join(text.split("\n")[-max_lines:])[-max_chars:] if max_chars else ""


def _last_of(output: Output, max_chars: int) -> str:
    if output["output_type"] == "stream":
        return str(output["text"][-2 * max_chars :])
    data = output.get("data", {})
    return f"{str(data.get('text/plain', '…'))[-max_chars:]}\n"


def _group_by_tail(ranks: Sequence[RankResult]) -> list[tuple[list[int], RankResult]]:
    """Group by the last lines alone: comparing all of a large output ten times a second would cost too much."""
    groups: dict[tuple[object, ...], tuple[list[int], RankResult]] = {}
    for result in ranks:
        tail = tail_text(result.outputs, max_lines=_LINES_BUDGET, max_chars=4096)
        key = (tail, result.error.ename if result.error else "")
        groups.setdefault(key, ([], result))[0].append(result.rank)
    return sorted(groups.values(), key=lambda group: (len(group[0]), group[0]))


def _blocks(groups: Sequence[tuple[list[int], RankResult]], budget: int, places: Places) -> list[str]:
    shown = groups[:_MAX_GROUPS]
    lines = max(_MIN_LINES, _LINES_BUDGET // max(1, len(shown)))
    blocks = [
        _block(ranks, result, places, lines=lines, chars=budget // max(1, len(shown)), labelled=len(groups) > 1)
        for ranks, result in shown
    ]
    if len(groups) > len(shown):
        rest = sorted(rank for ranks, _ in groups[len(shown) :] for rank in ranks)
        blocks.append(f'<div style="{QUIET}">… and {format_rank_label(rest)}, shown when the cell ends</div>')
    return blocks


def _block(ranks: list[int], result: RankResult, places: Places, *, lines: int, chars: int, labelled: bool) -> str:
    text = tail_text(result.outputs, max_lines=lines, max_chars=chars)
    body = f'<pre style="{PRE_STYLE}">{escape(text, quote=False)}</pre>' if text else ""
    if result.error is not None:
        body += f'<div class="mhnb-bad">{escape(result.error.ename)}: {escape(result.error.evalue[:200])}</div>'
    if not labelled:
        return body
    bar = f"border-left:3px solid {host_color(places, ranks)}"
    return (
        f'<div style="display:flex;align-items:baseline;{bar};margin:1px 0;padding-left:8px">'
        f'<div style="min-width:9em"><b>{format_rank_label(ranks)}</b></div>'
        f'<div style="flex:1;min-width:0">{body}</div></div>'
    )
