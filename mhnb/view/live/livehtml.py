"""Format a running cell as one small piece of HTML, for use where mhnb's own widget cannot be shown."""

from __future__ import annotations

from html import escape

from mhnb.core.output.results import CellResult
from mhnb.view.live.frame import LiveBlock, LiveFrame, build_frame
from mhnb.view.style import QUIET_STYLE, wrap_html
from mhnb.view.words import RankLocations

__all__ = ["MAX_LIVE_NBYTES", "format_live_html", "frame_to_html"]

MAX_LIVE_NBYTES = 40_000
"""Maximum size of one update."""


def format_live_html(snapshot: CellResult, *, locations: RankLocations | None = None, expanded: bool = False) -> str:
    """Format a running cell: ranks that are still busy, the last lines of each group of ranks, and where they hang.

    Args:
        snapshot: the cell as far as it has come.
        locations: host and log file of each rank.
        expanded: whether the user requested to see where the ranks are, also if none hangs.
    """
    return frame_to_html(build_frame(snapshot, locations, expanded=expanded))


def frame_to_html(frame: LiveFrame) -> str:
    """Format a frame; a panel has a head of its own."""
    more = f'<div style="{QUIET_STYLE}">{escape(frame.overflow)}</div>' if frame.overflow else ""
    head = f'<div><span style="{QUIET_STYLE}">{escape(frame.heading)}</span></div>' if frame.heading else ""
    return wrap_html(head + "".join(map(_format_live_block, frame.blocks)) + more + frame.hang_html)


def _format_live_block(block: LiveBlock) -> str:
    if not block.label:
        return block.html
    return (
        f'<div style="display:flex;align-items:baseline;border-left:3px solid {block.color};margin:1px 0;padding-left:8px">'
        f'<div style="min-width:9em;padding-right:.8em"><b>{escape(block.label)}</b></div>'
        f'<div style="flex:1;min-width:0">{block.html}</div></div>'
    )
