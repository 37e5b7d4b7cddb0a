"""Format a running cell as one small piece of HTML, for use where mhnb's own widget cannot be shown."""

from __future__ import annotations

from html import escape

from mhnb.core.output.results import CellResult
from mhnb.view.live.frame import LiveBlock, LiveFrame, make_frame
from mhnb.view.style import QUIET, wrap
from mhnb.view.words import Places

__all__ = ["MAX_LIVE_NBYTES", "format_live_html", "frame_to_html"]

MAX_LIVE_NBYTES = 40_000
"""Maximum size of one update."""


def format_live_html(snapshot: CellResult, *, places: Places | None = None, asked: bool = False) -> str:
    """Format a running cell: ranks that are still busy, the last lines of each group of ranks, and where they hang.

    Args:
        snapshot: the cell as far as it has come.
        places: host and log file of each rank.
        asked: whether the user requested to see where the ranks are, also if none hangs.
    """
    return frame_to_html(make_frame(snapshot, places, asked=asked))


def frame_to_html(frame: LiveFrame) -> str:
    """Format a frame; a panel has a head of its own."""
    more = f'<div style="{QUIET}">{escape(frame.more)}</div>' if frame.more else ""
    head = f'<div><span style="{QUIET}">{escape(frame.head)}</span></div>' if frame.head else ""
    return wrap(head + "".join(map(_block, frame.blocks)) + more + frame.card)


def _block(block: LiveBlock) -> str:
    if not block.label:
        return block.html
    return (
        f'<div style="display:flex;align-items:baseline;border-left:3px solid {block.color};margin:1px 0;padding-left:8px">'
        f'<div style="min-width:9em;padding-right:.8em"><b>{escape(block.label)}</b></div>'
        f'<div style="flex:1;min-width:0">{block.html}</div></div>'
    )
