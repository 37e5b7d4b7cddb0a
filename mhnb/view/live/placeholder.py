"""Static content for the notebook's file in place of a widget: the placeholder of a running cell, and the replacement of a panel.

A file stores no widget, and not every cell ends. So a display beside the widget shows the cell so far; this module decides what it
shows, and how often. The cell's end empties it.

A panel's widget cannot exist in a saved notebook without its kernel, in nbconvert or on GitHub. A front end does not save a widget,
and shows an error in its place. So the static replacement is a display of its own before the widget's. While the widget exists, a
style hides the replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import PurePath
from typing import Any, Protocol

from mhnb.core.output.results import MAX_RESULTS, CellResult
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.summary import CellSummary, clip_outputs, format_heading, summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import QUIET_STYLE, RankLocations, wrap_html
from mhnb.view.live.frame import BUTTONS_AFTER_S, build_frame, format_running_text, frame_to_html
from mhnb.view.tables.reports import format_hang_html, format_hang_text

WIDGET_TEXT = "mhjax · the panel itself; it needs its kernel"
"""The text of the widget's own display."""
_MISSING_WIDGET = ".jp-OutputArea-child:not(:has(.jp-OutputArea-output>*))"
"""If a widget does not exist, JupyterLab shows bare text about a missing one. This selects that output."""
_CSS = (
    # A panel whose widget exists shows everything itself.
    ".jp-OutputArea-child:has(.{uid}):has(+.jp-OutputArea-child .mhnb-panel),"
    ".jp-OutputArea-child:has(.{uid})+" + _MISSING_WIDGET + "{{display:none}}"
)


def hide_missing_widget(html: str, *, uid: str) -> str:
    """Add a style to a view directly below a widget. It hides what a front end shows in place of a missing widget.

    Args:
        html: the view, which contains all that a reader needs.
        uid: unique in the notebook; the class of the returned element.
    """
    return f'<div class="{uid}"><style>{_MISSING_WIDGET}:has(+.jp-OutputArea-child .{uid}){{display:none}}</style>{html}</div>'


def format_replacement(result: CellResult, locations: RankLocations, *, uid: str) -> dict[str, str]:
    """Format the static replacement."""
    line = (
        f"mhjax · panel over {result.name} · {format_heading(result)} · it lives while its kernel does: "
        "run the cell again, then %mhjax panel brings it back"
    )
    page = format_cell_html(result, uid=f"{uid}-page", locations=locations)
    summary = f'<summary style="cursor:pointer;{QUIET_STYLE}">what it showed</summary>'
    collapsed = f"<details>{summary}{page}</details>" if page else ""
    body = f'<div class="{uid}"><div style="{QUIET_STYLE}">{escape(line, quote=False)}</div>{collapsed}</div>'
    text = format_cell_text(result, locations=locations)
    return {"text/html": wrap_html(body, css=_CSS.format(uid=uid)), "text/plain": f"{line}\n{text}".rstrip()}


# -- placeholder of a running cell


PLACEHOLDER_AFTER_S = 5.0
"""Seconds until the first placeholder with all output, which may take half a second to format.

Later ones follow at the same interval, at first.
"""
_MAX_INTERVAL_S = 30.0
_INTERVAL_DIVISOR = 20
"""Once a cell has run for this many times five seconds, its placeholder may be older than five seconds."""
_FIRST_LINES = 40
_READ_NBYTES, _MIN_READ_NBYTES = 512 * 1024, 8 * 1024
"""Text of all ranks together from which a placeholder is formatted, and at least of each rank.

It is limited because the placeholder is formatted in the thread that waits for the ranks.
"""


class DisplayTarget(Protocol):
    """The part of a screen that a placeholder needs."""

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the current cell."""

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""


def placeholder_id(uid: str) -> str:
    """Return the id of the placeholder's display. It is also the class of its HTML, by which an open widget hides it.

    >>> placeholder_id("mhnb-7")
    'mhnb-7-draft'
    """
    return f"{uid}-draft"


class PlaceholderDisplay:
    """Keeps the placeholder of one cell up to date: the last lines once the cell has run for a while, later all of them.

    It is shown without output too, because it stands in for the widget.
    """

    def __init__(self, screen: DisplayTarget, uid: str, locations: RankLocations) -> None:
        self._screen, self._uid, self._locations = screen, uid, locations
        self._next_update_s = BUTTONS_AFTER_S
        self._last_content: object = None
        self._is_shown = False

    def update(self, snapshot: CellResult) -> None:
        """Show the cell as far as it has come, if an update is due and there is new output."""
        if snapshot.wall_s < self._next_update_s:
            return
        if snapshot.wall_s < PLACEHOLDER_AFTER_S:
            self._next_update_s = PLACEHOLDER_AFTER_S
            self._display(format_first_placeholder(snapshot, uid=self._uid, locations=self._locations))
            return
        self._next_update_s = snapshot.wall_s + min(
            _MAX_INTERVAL_S, max(PLACEHOLDER_AFTER_S, snapshot.wall_s / _INTERVAL_DIVISOR)
        )
        self._update(_clip_snapshot(snapshot, self._locations))

    def _update(self, clipped: CellResult) -> None:
        # A rank that is a line ahead at this moment does not count as different.
        cell_summary = replace(summarise_cell(clipped), difference="", outliers=frozenset())
        content = (cell_summary.blocks, cell_summary.failures, _format_hang(clipped, self._locations))
        if content == self._last_content:
            return
        self._last_content = content
        if any(content):
            self._display(format_placeholder(clipped, cell_summary, uid=self._uid, locations=self._locations))
        elif not self._is_shown:
            self._display(format_first_placeholder(clipped, uid=self._uid, locations=self._locations))

    def _display(self, data: Mapping[str, Any]) -> None:
        display = self._screen.replace if self._is_shown else self._screen.show
        display(data, placeholder_id(self._uid))
        self._is_shown = True

    def close(self) -> None:
        """Empty the placeholder, because a display cannot be removed.

        An empty one has no height. Without any MIME type nbconvert would complain.
        """
        if self._is_shown:
            self._is_shown = False
            self._screen.replace({"text/html": "", "text/plain": ""}, placeholder_id(self._uid))


def format_placeholder(
    snapshot: CellResult, cell_summary: CellSummary, *, uid: str = "mhnb-0", locations: RankLocations | None = None
) -> dict[str, str]:
    """Format a running cell so that it can be read without a kernel: output, where the ranks hang, where the rest is."""
    known_locations = locations or RankLocations()
    name, note = placeholder_id(uid), _format_saved_note(snapshot, known_locations)
    html = format_cell_html(snapshot, uid=name, locations=known_locations, cell_summary=cell_summary)
    text = format_cell_text(snapshot, locations=known_locations, cell_summary=cell_summary)
    if hang_text := _format_hang(snapshot, known_locations):
        assert snapshot.where is not None
        html += format_hang_html(snapshot.where, name=known_locations.cluster)
    lines = [text or format_heading(snapshot), *filter(None, [hang_text]), note]
    return {"text/html": _wrap_placeholder(html, note, name), "text/plain": "\n".join(lines)}


def format_first_placeholder(
    snapshot: CellResult, *, uid: str = "mhnb-0", locations: RankLocations | None = None
) -> dict[str, str]:
    """Format a cell that has run for a short time as the live view shows it: its last lines, for which little output is read."""
    known_locations = locations or RankLocations()
    note = _format_saved_note(snapshot, known_locations)
    html = _wrap_placeholder(frame_to_html(build_frame(snapshot, known_locations)), note, placeholder_id(uid))
    return {
        "text/html": html,
        "text/plain": f"{format_running_text(snapshot, known_locations, height=_FIRST_LINES)}\n{note}",
    }


def _wrap_placeholder(html: str, note: str, name: str) -> str:
    # The widget above it no longer exists where this is read.
    return hide_missing_widget(f'{html}<div style="{QUIET_STYLE}">{escape(note, quote=False)}</div>', uid=name)


def format_widget_text(snapshot: CellResult, *, locations: RankLocations | None = None) -> str:
    """Format the text that replaces the widget where no widget can be shown, as in a file saved while the cell ran."""
    return f"{format_heading(snapshot)}\n  {_format_saved_note(snapshot, locations or RankLocations())}"


def _format_saved_note(snapshot: CellResult, locations: RankLocations) -> str:
    logs = sorted({str(PurePath(path).parent) for path in locations.logs.values()})
    log_hint = f"; all of it is in {', '.join(logs)}" if logs else ""
    return (
        f"saved while it ran: %mhjax panel {snapshot.seq} shows its output while it is among the last {MAX_RESULTS} "
        f"of the kernel{log_hint}"
    )


def _format_hang(snapshot: CellResult, locations: RankLocations) -> str:
    report = snapshot.where
    return format_hang_text(report, name=locations.cluster) if report is not None and report.stuck else ""


def _clip_snapshot(snapshot: CellResult, locations: RankLocations) -> CellResult:
    limit = max(_MIN_READ_NBYTES, _READ_NBYTES // max(1, len(snapshot.ranks)))
    return replace(
        snapshot,
        ranks=tuple(
            replace(r, outputs=clip_outputs(r.outputs, limit, where=locations.logs.get(r.rank) or "the log file"))
            for r in snapshot.ranks
        ),
    )
