"""Static content that the notebook's file stores in place of widgets.

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
from typing import Any

from mhnb.core.cell_name import format_cell_argument
from mhnb.core.metrics import Metrics
from mhnb.core.output.results import MAX_RESULTS, CellResult
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.summary import CellSummary, clip_outputs, format_heading, summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.document import Drawing
from mhnb.view.html import QUIET_STYLE, RankLocations, format_fold, format_seconds, wrap_html
from mhnb.view.live.frame import (
    BUTTONS_AFTER_S,
    LiveFrame,
    build_frame,
    format_running_text,
    frame_to_html,
)
from mhnb.view.live.screen import Screen, placeholder_id

WIDGET_TEXT = "mhjax · the panel needs a running kernel"
"""The text of the widget's own display."""
_MISSING_WIDGET = ".jp-OutputArea-child:not(:has(.jp-OutputArea-output>*))"
"""If a widget does not exist, JupyterLab shows bare text about a missing one. This selects that output."""
_CSS = (
    # A widget that exists shows everything itself.
    ".jp-OutputArea-child:has(.{uid}):has(+.jp-OutputArea-child .{widget}),"
    ".jp-OutputArea-child:has(.{uid})+" + _MISSING_WIDGET + "{{display:none}}"
)


def hide_behind_widget(uid: str, widget: str) -> Drawing:
    """Build the part that hides a static form, or the missing widget.

    Args:
        uid: unique in the notebook; the static form is the output before the widget's.
        widget: a class of the widget.
    """
    return Drawing(f'<div class="{uid}"></div>', _CSS.format(uid=uid, widget=widget))


def hide_missing_widget(html: str, *, uid: str) -> str:
    """Add a style that hides the message of a missing widget above.

    Args:
        html: the view, which contains all that a reader needs.
        uid: unique in the notebook; the class of the returned element.
    """
    return f'<div class="{uid}"><style>{_MISSING_WIDGET}:has(+.jp-OutputArea-child .{uid}){{display:none}}</style>{html}</div>'


def format_replacement(result: CellResult, locations: RankLocations, *, uid: str) -> dict[str, str]:
    """Format the static replacement."""
    line = (
        f"mhjax · panel over {result.name} · {format_heading(result)} · the panel needs a running kernel: "
        f"to open it again, {_format_panel_command(result)}; in a new kernel, run the cell again first, then %mhjax show"
    )
    page = format_cell_html(result, uid=f"{uid}-page", locations=locations)
    collapsed = format_fold("what it showed", page) if page else ""
    body = f'<div class="{uid}"><div style="{QUIET_STYLE}">{escape(line, quote=False)}</div>{collapsed}</div>'
    text = format_cell_text(result, locations=locations)
    return {
        "text/html": wrap_html(body, css=_CSS.format(uid=uid, widget="mhnb-panel")),
        "text/plain": f"{line}\n{text}".rstrip(),
    }


# -- placeholder of a running cell


RENEW_S = 0.5
"""Seconds between two placeholders with the last lines, at least.

Less than a second, because the next snapshot may come a second later, and what was printed meanwhile would be two seconds old.
"""
PLACEHOLDER_AFTER_S = 5.0
"""Seconds until all output so far is shown below the last lines, which may take half a second to format.

It is renewed at the same interval, at first.
"""
_MAX_INTERVAL_S = 30.0
_INTERVAL_DIVISOR = 20
"""Once a cell has run for this many times five seconds, all of its output may be older than five seconds."""
_LOST_FIELD = (
    "After a reload, the debugger has no input field. Press the stop button (the cell ends on all ranks, variables are kept), "
    "then run the cell again"
)
"""Jupyter asks for a line only in the page that ran the cell."""
_FIRST_LINES = 40
_SHORT_LINES, _SHORT_NCHARS = 10, 1000
"""What the live view shows completely."""
_READ_NBYTES, _MIN_READ_NBYTES = 512 * 1024, 8 * 1024
"""Text of all ranks together from which a placeholder is formatted, and at least of each rank.

It is limited because the placeholder is formatted in the thread that waits for the ranks.
"""


class PlaceholderDisplay:
    """Keeps the placeholder of one cell up to date.

    It has the last lines, renewed twice a second, and below them all lines, renewed less often. It is shown without
    output too, because it stands in for the widget. All of a long output costs too much for each second, so it has a
    display of its own.
    """

    def __init__(self, screen: Screen, uid: str, locations: RankLocations) -> None:
        self._screen, self._uid, self._locations = screen, uid, locations
        self._next_last_lines_s, self._next_all_s = BUTTONS_AFTER_S, PLACEHOLDER_AFTER_S
        self._last_lines: object = None
        self._last_all: object = None
        self._shown_ids: list[str] = []

    @property
    def is_shown(self) -> bool:
        """Whether a placeholder is shown, and may be in the file."""
        return bool(self._shown_ids)

    def update(self, snapshot: CellResult, frame: LiveFrame | None = None) -> None:
        """Update the placeholder if it is due and there is new output.

        Args:
            snapshot: the cell.
            frame: what the live view shows of it.
        """
        if snapshot.wall_s >= self._next_last_lines_s:
            self._update_last_lines(snapshot, frame or build_frame(snapshot, self._locations))
        if snapshot.wall_s >= self._next_all_s:
            self._next_all_s = snapshot.wall_s + min(
                _MAX_INTERVAL_S, max(PLACEHOLDER_AFTER_S, snapshot.wall_s / _INTERVAL_DIVISOR)
            )
            self._update_all(snapshot)

    def _update_last_lines(self, snapshot: CellResult, frame: LiveFrame) -> None:
        content = (frame.blocks, frame.metrics_html, frame.overflow, bool(frame.hang_html))
        # A hang report changes each second, because it has the time. That alone is for the longer interval.
        has_later_hang = bool(frame.hang_html) and snapshot.wall_s >= self._next_all_s
        if content != self._last_lines or has_later_hang:
            self._last_lines, self._next_last_lines_s = content, snapshot.wall_s + RENEW_S
            data = format_first_placeholder(snapshot, uid=self._uid, locations=self._locations, frame=frame)
            self._display(data, placeholder_id(self._uid))

    def _update_all(self, snapshot: CellResult) -> None:
        if shows_all(snapshot):
            return
        clipped = clip_snapshot(snapshot, self._locations)
        # A rank that is a line ahead at this moment does not count as different.
        cell_summary = replace(summarise_cell(clipped), difference="", outliers=frozenset())
        content = (cell_summary.blocks, cell_summary.failures)
        if content != self._last_all:
            self._last_all = content
            data = format_placeholder(clipped, cell_summary, uid=self._uid, locations=self._locations)
            self._display(data, f"{placeholder_id(self._uid)}-all")

    def _display(self, data: Mapping[str, Any], display_id: str) -> None:
        if display_id in self._shown_ids:
            self._screen.replace(data, display_id)
        else:
            self._shown_ids.append(display_id)
            self._screen.show(data, display_id)

    def close(self) -> None:
        """Empty the placeholder, because a display cannot be removed.

        An empty one has no height. Without any MIME type nbconvert would complain.
        """
        while self._shown_ids:
            self._screen.replace({"text/html": "", "text/plain": ""}, self._shown_ids.pop(0))


def shows_all(snapshot: CellResult) -> bool:
    """Return whether the live view's last lines are the complete output."""
    if any(
        rank.failure is not None
        or rank.omitted_nbytes
        or any(output["output_type"] != "stream" for output in rank.outputs)
        or sum(len(output["text"]) for output in rank.outputs) > _SHORT_NCHARS
        for rank in snapshot.ranks
    ):
        return False
    texts = {"".join(output["text"] for output in rank.outputs).removesuffix("\n") for rank in snapshot.ranks}
    limit = _SHORT_LINES if len(texts) == 1 else 1
    return len(texts) <= _SHORT_LINES and all(text.count("\n") < limit for text in texts)


def format_placeholder(
    snapshot: CellResult, cell_summary: CellSummary, *, uid: str = "mhnb-0", locations: RankLocations | None = None
) -> dict[str, str]:
    """Format a running cell's output so far, collapsed, readable without a kernel."""
    known_locations = locations or RankLocations()
    name, heading = placeholder_id(uid), f"all output so far, after {format_seconds(snapshot.wall_s)}"
    # Another id than the class, because the cell's styles are for everything of that class.
    html = format_cell_html(snapshot, uid=f"{name}-all", locations=known_locations, cell_summary=cell_summary)
    text = format_cell_text(snapshot, locations=known_locations, cell_summary=cell_summary)
    return {
        # The class hides it together with the last lines, while the widget is up to date.
        "text/html": f'<div class="{name}">{format_fold(heading, html)}</div>',
        "text/plain": f"{heading}\n{text}",
    }


def format_first_placeholder(
    snapshot: CellResult,
    *,
    uid: str = "mhnb-0",
    locations: RankLocations | None = None,
    frame: LiveFrame | None = None,
) -> dict[str, str]:
    """Format a running cell's last lines, as the live view shows them.

    Args:
        snapshot: the cell.
        uid: unique in the notebook.
        locations: host and log file of each rank.
        frame: what the live view shows of it, if that is known.
    """
    known_locations = locations or RankLocations()
    note = _format_saved_note(snapshot, known_locations)
    frame_html = frame_to_html(build_frame(snapshot, known_locations) if frame is None else frame)
    return {
        "text/html": _wrap_placeholder(frame_html, note, placeholder_id(uid)),
        "text/plain": f"{format_running_text(snapshot, known_locations, height=_FIRST_LINES)}\n{note}",
    }


def _wrap_placeholder(html: str, note: str, name: str) -> str:
    # The widget above it no longer exists where this is read.
    return hide_missing_widget(f"{html}{_draw_note(note)}", uid=name)


def format_widget_text(snapshot: CellResult, *, locations: RankLocations | None = None) -> str:
    """Format the text for places that cannot show the live widget."""
    return f"{format_heading(snapshot)}\n  {_format_saved_note(snapshot, locations or RankLocations())}"


def add_unsaved_note(html: str, result: CellResult) -> str:
    """Add a note that the page cannot save the cell's output.

    Only the page that ran the cell has its display. A page that was loaded later has the placeholder from the file, and saves that.
    """
    note = (
        "the notebook file has only the output from while the cell ran; to save all of it, "
        f"run {_format_panel_command(result)} in a separate cell"
    )
    return f"{html}{_draw_note(note)}"


def _draw_note(note: str) -> str:
    # The class gives it the size of the view above, whose style sheet counts here, too.
    return f'<div class="mhnb"><div style="{QUIET_STYLE}">{escape(note, quote=False)}</div></div>'


def _format_panel_command(result: CellResult) -> str:
    return f"%mhjax show {format_cell_argument(result.seq, result.execution_count)}"


def _format_saved_note(snapshot: CellResult, locations: RankLocations) -> str:
    logs = sorted({str(PurePath(path).parent) for path in locations.logs.values()})
    log_hint = f", or the log files in {', '.join(logs)}" if logs else ""
    note = (
        f"saved while the cell ran; for all of its output: {_format_panel_command(snapshot)} "
        f"(the kernel keeps its last {MAX_RESULTS} cells){log_hint}"
    )
    is_at_prompt = snapshot.where is not None and snapshot.where.stopped
    return f"{note}. {_LOST_FIELD}" if is_at_prompt else note


def clip_snapshot(snapshot: CellResult, locations: RankLocations) -> CellResult:
    """Clip long outputs and drop metrics, to summarise a running cell quickly."""
    limit = max(_MIN_READ_NBYTES, _READ_NBYTES // max(1, len(snapshot.ranks)))
    return replace(
        snapshot,
        # The last lines above have the charts.
        added=tuple(value for value in snapshot.added if not isinstance(value, Metrics)),
        ranks=tuple(
            replace(r, outputs=clip_outputs(r.outputs, limit, where=locations.logs.get(r.rank) or "the log file"))
            for r in snapshot.ranks
        ),
    )
