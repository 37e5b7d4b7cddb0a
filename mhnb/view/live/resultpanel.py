"""Panel over a result: fold, tabs and grid, filter, search and differences, in a widget that follows later results.

When it is closed, its display is replaced by the stored form, so that a notebook stores no widget of it.
For a panel that is never closed, a text beside it is stored with the notebook.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mhnb.core.output.results import CellResult
from mhnb.view.cell.digest import digest, without_errors
from mhnb.view.cell.html import View, format_cell_html, rank_body_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.live.frame import ByteBudget, make_frame
from mhnb.view.live.livehtml import frame_to_html
from mhnb.view.live.panel import make_panel_widget
from mhnb.view.live.still import LIVE_TEXT, format_still
from mhnb.view.mime import pre
from mhnb.view.screen import Screen, detect_screen
from mhnb.view.style import host_color
from mhnb.view.uids import new_uid
from mhnb.view.words import Places

__all__ = ["ResultPanel", "panel_state"]

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class ResultPanel:
    """One panel. A terminal shows the result as text instead; without anywidget the stored form takes its place."""

    def __init__(
        self, result: CellResult, places: Places, *, view: View = "fold", screen: Screen | None = None
    ) -> None:
        self._screen = screen or detect_screen()
        self._uid = new_uid()
        self._result, self._places, self._view = result, places, view
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
                format_cell_text(self._result, color=self._screen.color, places=self._places)
                or "mhjax · it said nothing"
            )
            return
        state = panel_state(self._result, self._places, uid=self._uid, view=self._view)
        try:
            self._widget = make_panel_widget(state, self.body_of)
        except ImportError:
            self._screen.show(self._static(), self._uid)
            return
        bundle = self._widget._repr_mimebundle_()[0]
        self._screen.show(self._still(), self._still_uid)
        self._screen.show({_WIDGET_VIEW: bundle[_WIDGET_VIEW], "text/plain": LIVE_TEXT}, self._uid)

    def body_of(self, rank: int) -> str:
        """Format a rank's output."""
        found = [one for one in self._result if one.rank == rank]
        if not found:
            return "(this rank did not run the cell)"
        error = found[0].failure
        failed = pre(f"✗ {error.ename}: {error.evalue}") if error is not None else ""
        said = without_errors(found[0]).outputs or found[0].omitted_nbytes
        return failed + (rank_body_html(found[0], self._places) if said or not failed else "")

    def update(self, snapshot: CellResult, places: Places) -> None:
        """Show a cell that is running now; its ranks may be on other hosts than those of the previous cell."""
        if self._widget is None:
            return
        html = frame_to_html(replace(make_frame(snapshot, places), head=""))
        left = self._budget.spend(len(html), max(self._budget.at_s, snapshot.wall_s))
        if left is not None:
            self._budget, self._result, self._places = left, snapshot, places
            self._renew({**panel_state(snapshot, places, uid=self._uid, view=self._view, page=html)})

    def finish(self, result: CellResult, places: Places) -> None:
        """Show a cell that has ended."""
        self._result, self._places, self._budget = result, places, ByteBudget()
        if self._widget is not None:
            self._renew(panel_state(result, places, uid=self._uid, view=self._view))
            self._screen.replace_late(self._still(), self._still_uid)
        elif self._screen.rich:
            self._screen.replace_late(self._static(), self._uid)

    def _renew(self, state: dict[str, Any]) -> None:
        self._number += 1
        with self._widget.hold_sync():
            for name in ("head", "page", "ranks", "runs"):
                setattr(self._widget, name, state[name])
            self._widget.number = self._number

    def close(self) -> None:
        """Replace the panel by the stored form."""
        widget, self._widget = self._widget, None
        if widget is not None:
            self._screen.replace_late({"text/html": "", "text/plain": ""}, self._still_uid)
            self._screen.replace_late(self._static(), self._uid)
            widget.close()
            widget.layout.close()

    @property
    def _still_uid(self) -> str:
        return f"{self._uid}-still"

    def _still(self) -> dict[str, str]:
        return format_still(self._result, self._places, uid=self._still_uid)

    def _static(self) -> dict[str, str]:
        html = format_cell_html(self._result, view=self._view, uid=self._uid, places=self._places, badge=True)
        return {"text/html": html, "text/plain": format_cell_text(self._result, places=self._places, badge=True)}


def panel_state(result: CellResult, places: Places, *, uid: str, view: View, page: str | None = None) -> dict[str, Any]:
    """Return the initial state of the panel: the collapsed page, and the ranks with the marks of those that differ.

    Args:
        result: what is shown.
        places: host and log file of each rank.
        uid: unique in the notebook.
        view: how it is laid out first.
        page: the collapsed page, if the caller has one other than the stored form.
    """
    seen = digest(result)
    if page is None:
        # The panel's head shows which ranks ran and for how long, so the page shows only how they differ.
        page = format_cell_html(result, uid=uid, places=places, seen=replace(seen, heading="")) or "(it said nothing)"
    ranks = [
        {
            "rank": one.rank,
            "host": places.hosts.get(one.rank, ""),
            "mark": " ✗" if one.failure else " ≠" if one.rank in seen.alarming else "",
            "odd": one.failure is not None or one.rank in seen.alarming,
            "color": host_color(places, (one.rank,)),
        }
        for one in result
    ]
    return {
        "head": f"cell {result.seq} · {seen.heading}",
        "page": page,
        "ranks": ranks,
        "runs": not result.done,
        "view": view,
    }
