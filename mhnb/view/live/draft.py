"""Placeholder of a running cell for the notebook's file, because a file stores no widget and not every cell ends.

Decides what a display beside the widget shows of the cell so far, and how often. The cell's end empties it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import PurePath
from typing import Any, Protocol

from mhnb.core.output.results import KEPT_RESULTS, CellResult
from mhnb.view.boards.where import format_where_html, format_where_text
from mhnb.view.cell.digest import Digest, clip_outputs, digest, heading
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.live.frame import ACTS_AFTER_S, make_frame
from mhnb.view.live.livehtml import frame_to_html
from mhnb.view.live.livetext import format_running_text
from mhnb.view.live.still import hide_dead_widget
from mhnb.view.style import QUIET
from mhnb.view.words import Places

__all__ = [
    "DRAFT_AFTER_S", "DraftDisplay", "Showing", "draft_id", "format_draft", "format_first_draft", "format_widget_text",
]  # fmt: skip

DRAFT_AFTER_S = 5.0
"""Seconds until the first placeholder with all output, which may take half a second to format.

Later ones follow at the same interval, at first.
"""
_SELDOM_S = 30.0
_PART_OF_CELL = 20
"""Once a cell has run for this many times five seconds, its placeholder may be older than five seconds."""
_FIRST_LINES = 40
_READ_NBYTES, _MIN_READ_NBYTES = 512 * 1024, 8 * 1024
"""Text of all ranks together from which a placeholder is formatted, and at least of each rank.

It is limited because the placeholder is formatted in the thread that waits for the ranks.
"""


class Showing(Protocol):
    """The part of a screen that a placeholder needs."""

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the current cell."""

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""


def draft_id(uid: str) -> str:
    """Return the id of the placeholder's display. It is also the class of its HTML, by which an open widget hides it.

    >>> draft_id("mhnb-7")
    'mhnb-7-draft'
    """
    return f"{uid}-draft"


class DraftDisplay:
    """Keeps the placeholder of one cell up to date: the last lines once the cell has run for a while, later all of them.

    It is shown without output too, because it stands in for the widget.
    """

    def __init__(self, screen: Showing, uid: str, places: Places) -> None:
        self._screen, self._uid, self._places = screen, uid, places
        self._due_s = ACTS_AFTER_S
        self._told: object = None
        self._is_shown = False

    def update(self, snapshot: CellResult) -> None:
        """Show the cell as far as it has come, if an update is due and there is new output."""
        if snapshot.wall_s < self._due_s:
            return
        if snapshot.wall_s < DRAFT_AFTER_S:
            self._due_s = DRAFT_AFTER_S
            self._put(format_first_draft(snapshot, uid=self._uid, places=self._places))
            return
        self._due_s = snapshot.wall_s + min(_SELDOM_S, max(DRAFT_AFTER_S, snapshot.wall_s / _PART_OF_CELL))
        self._update(_shorten(snapshot, self._places))

    def _update(self, short: CellResult) -> None:
        # A rank that is a line ahead at this moment does not count as different.
        seen = replace(digest(short), verdict="", odd=frozenset())
        told = (seen.blocks, seen.failures, _stuck_text(short, self._places))
        if told == self._told:
            return
        self._told = told
        if any(told):
            self._put(format_draft(short, seen, uid=self._uid, places=self._places))
        elif not self._is_shown:
            self._put(format_first_draft(short, uid=self._uid, places=self._places))

    def _put(self, data: Mapping[str, Any]) -> None:
        act = self._screen.replace if self._is_shown else self._screen.show
        act(data, draft_id(self._uid))
        self._is_shown = True

    def close(self) -> None:
        """Empty the placeholder, because a display cannot be removed.

        An empty one has no height. Without any MIME type nbconvert would complain.
        """
        if self._is_shown:
            self._is_shown = False
            self._screen.replace({"text/html": "", "text/plain": ""}, draft_id(self._uid))


def format_draft(
    snapshot: CellResult, seen: Digest, *, uid: str = "mhnb-0", places: Places | None = None
) -> dict[str, str]:
    """Format a running cell so that it can be read without a kernel: output, where the ranks hang, where the rest is."""
    where = places or Places()
    name, note = draft_id(uid), _saved_words(snapshot, where)
    html = format_cell_html(snapshot, uid=name, places=where, seen=seen)
    text = format_cell_text(snapshot, places=where, seen=seen)
    if card := _stuck_text(snapshot, where):
        assert snapshot.where is not None
        html += format_where_html(snapshot.where, name=where.cluster)
    lines = [text or heading(snapshot), *filter(None, [card]), note]
    return {"text/html": _draft_html(html, note, name), "text/plain": "\n".join(lines)}


def format_first_draft(snapshot: CellResult, *, uid: str = "mhnb-0", places: Places | None = None) -> dict[str, str]:
    """Format a cell that has run for a short time as the live view shows it: its last lines, for which little output is read."""
    where = places or Places()
    note = _saved_words(snapshot, where)
    html = _draft_html(frame_to_html(make_frame(snapshot, where)), note, draft_id(uid))
    return {"text/html": html, "text/plain": f"{format_running_text(snapshot, where, height=_FIRST_LINES)}\n{note}"}


def _draft_html(html: str, note: str, name: str) -> str:
    # The widget above it no longer exists where this is read.
    return hide_dead_widget(f'{html}<div style="{QUIET}">{escape(note, quote=False)}</div>', uid=name)


def format_widget_text(snapshot: CellResult, *, places: Places | None = None) -> str:
    """Format the text that replaces the widget where no widget can be shown, as in a file saved while the cell ran."""
    return f"{heading(snapshot)}\n  {_saved_words(snapshot, places or Places())}"


def _saved_words(snapshot: CellResult, places: Places) -> str:
    logs = sorted({str(PurePath(path).parent) for path in places.logs.values()})
    kept = f"; all of it is in {', '.join(logs)}" if logs else ""
    return f"saved while it ran: %mhjax panel {snapshot.seq} shows its output while it is among the last {KEPT_RESULTS} of the kernel{kept}"


def _stuck_text(snapshot: CellResult, places: Places) -> str:
    card = snapshot.where
    return format_where_text(card, name=places.cluster) if card is not None and card.stuck else ""


def _shorten(snapshot: CellResult, places: Places) -> CellResult:
    limit = max(_MIN_READ_NBYTES, _READ_NBYTES // max(1, len(snapshot.ranks)))
    return replace(
        snapshot,
        ranks=tuple(
            replace(r, outputs=clip_outputs(r.outputs, limit, where=places.logs.get(r.rank) or "the log file"))
            for r in snapshot.ranks
        ),
    )
