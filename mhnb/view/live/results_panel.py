"""Panel over a result, in a widget that follows later results.

When it is closed, its display is replaced by the stored form, so that a notebook stores no widget of it.
For a panel that is never closed, a text beside it is stored with the notebook.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import View, format_cell_html, format_rank_body
from mhnb.view.cell.summary import as_shown, find_outlier_ranks, summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import RankLocations, host_color, new_uid
from mhnb.view.live.frame import ByteBudget, build_frame, frame_to_html
from mhnb.view.live.placeholder import WIDGET_TEXT, clip_snapshot, format_replacement
from mhnb.view.live.screen import Screen, detect_screen
from mhnb.view.live.widget import make_panel_widget
from mhnb.view.mime import format_pre

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class ResultPanel:
    """A panel, shown as text in terminals and static HTML without anywidget."""

    def __init__(
        self, result: CellResult, locations: RankLocations, *, view: View = "fold", screen: Screen | None = None
    ) -> None:
        self._screen = screen or detect_screen()
        self._uid = new_uid()
        self._result, self._locations, self._view = result, locations, view
        self._number = 0
        self._budget = ByteBudget()
        self._widget: Any = None

    @property
    def is_rich(self) -> bool:
        """Return whether the front end shows more than text."""
        return self._screen.rich

    def open(self) -> None:
        """Show the panel in the current cell."""
        if not self._screen.rich:
            self._screen.write(
                format_cell_text(self._result, color=self._screen.color, locations=self._locations)
                or "mhjax · no output"
            )
            return
        state = build_panel_state(self._result, self._locations, uid=self._uid, view=self._view)
        try:
            self._widget = make_panel_widget(state, self.format_body)
        except ImportError:
            self._screen.show(self._stored_form(), self._uid)
            return
        bundle = self._widget._repr_mimebundle_()[0]
        self._screen.show(self._replacement(), self._replacement_uid)
        self._screen.show({_WIDGET_VIEW: bundle[_WIDGET_VIEW], "text/plain": WIDGET_TEXT}, self._uid)

    def format_body(self, rank: int) -> str:
        """Format a rank's output."""
        found = [one for one in self._result if one.rank == rank]
        if not found:
            return "(this rank did not run the cell)"
        error = found[0].failure
        failed = format_pre(f"✗ {error.ename}: {error.evalue}") if error is not None else ""
        has_output = as_shown(found[0]).outputs or found[0].omitted_nbytes
        return failed + (
            format_rank_body(found[0], self._locations, may_shrink=True) if has_output or not failed else ""
        )

    def update(self, snapshot: CellResult, locations: RankLocations) -> None:
        """Show a running cell, whose ranks may be on other hosts."""
        if self._widget is None:
            return
        html = frame_to_html(replace(build_frame(snapshot, locations), heading=""))
        remaining = self._budget.spend(len(html), max(self._budget.at_s, snapshot.wall_s))
        if remaining is not None:
            self._budget, self._result, self._locations = remaining, snapshot, locations
            clipped = clip_snapshot(snapshot, locations)
            self._refresh(build_panel_state(clipped, locations, uid=self._uid, view=self._view, page=html))

    def finish(self, result: CellResult, locations: RankLocations) -> None:
        """Show a cell that has ended."""
        self._result, self._locations, self._budget = result, locations, ByteBudget()
        if self._widget is not None:
            self._refresh(build_panel_state(result, locations, uid=self._uid, view=self._view))
            self._screen.replace_late(self._replacement(), self._replacement_uid)
        elif self._screen.rich:
            self._screen.replace_late(self._stored_form(), self._uid)

    def _refresh(self, state: dict[str, Any]) -> None:
        self._number += 1
        with self._widget.hold_sync():
            for name in ("head", "tip", "page", "ranks", "runs"):
                setattr(self._widget, name, state[name])
            self._widget.number = self._number

    def close(self) -> None:
        """Replace the panel by the stored form."""
        widget, self._widget = self._widget, None
        if widget is not None:
            self._screen.replace_late({"text/html": "", "text/plain": ""}, self._replacement_uid)
            self._screen.replace_late(self._stored_form(), self._uid)
            widget.close()
            widget.layout.close()

    @property
    def _replacement_uid(self) -> str:
        return f"{self._uid}-still"

    def _replacement(self) -> dict[str, str]:
        return format_replacement(self._result, self._locations, uid=self._replacement_uid)

    def _stored_form(self) -> dict[str, str]:
        html = format_cell_html(self._result, view=self._view, uid=self._uid, locations=self._locations, badge=True)
        return {"text/html": html, "text/plain": format_cell_text(self._result, locations=self._locations, badge=True)}


def build_panel_state(
    result: CellResult, locations: RankLocations, *, uid: str, view: View, page: str | None = None
) -> dict[str, Any]:
    """Return the panel's state: the collapsed page and the marked ranks.

    Args:
        result: what is shown.
        locations: host and log file of each rank.
        uid: unique in the notebook.
        view: how it is laid out first.
        page: the collapsed page, if the caller has one other than the stored form.
    """
    cell_summary = summarise_cell(result)
    if page is None:
        # The panel's head shows which ranks ran and for how long, so the page shows only how they differ.
        page = (
            format_cell_html(result, uid=uid, locations=locations, cell_summary=replace(cell_summary, heading=""))
            or "(no output)"
        )
    differences = find_outlier_ranks(cell_summary)
    outliers = cell_summary.marked_outliers | differences.keys()
    ranks = [
        {
            "rank": one.rank,
            "host": locations.hosts.get(one.rank, ""),
            "mark": " ✗" if one.failure else " ≠" if one.rank in outliers else "",
            "differs": one.failure is not None or one.rank in outliers,
            "difference": differences.get(one.rank, ""),
            "color": host_color(locations, (one.rank,)),
        }
        for one in result
    ]
    return {
        "head": f"{result.name} · {cell_summary.heading}",
        "tip": result.both_names,
        "page": page,
        "ranks": ranks,
        "runs": not result.done,
        "view": view,
    }
