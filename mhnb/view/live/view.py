"""Controller of one cell's display, from first snapshot to late output.

Decides when a widget is opened, when nothing is shown, and that no widget stays in the page that ran the cell.
It uses no clock and no cluster: the time is in the snapshots.

Figures that only a front end can draw have displays of their own, below the cell's other output. Each different figure is shown
once, labelled with its ranks. The figures are stored with the notebook. They are drawn again without a kernel or a network,
wherever the front end has the figure's extension.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, TypeAlias

from mhnb.core.output.results import CellResult
from mhnb.core.output.rich import Figure, collect_figures, describe_figure
from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.view.cell.html import View, format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.document import Line
from mhnb.view.html import RankLocations, new_uid
from mhnb.view.live.frame import LiveFrame, LiveView, build_frame, format_running_text, tail_text
from mhnb.view.live.input_box import InputBox
from mhnb.view.live.placeholder import PlaceholderDisplay, add_unsaved_note, format_widget_text
from mhnb.view.live.screen import LiveWidget, Region, Screen, detect_screen
from mhnb.view.live.wait_line import WaitLine
from mhnb.view.mime import MAX_RICH_NBYTES
from mhnb.view.print_html import print_html

MAX_FIGURES = 8
"""Different figures of a cell that are drawn at most, because a browser does not draw hundreds in a useful time."""

_Bundle: TypeAlias = Mapping[str, Any]
_EMPTY_BUNDLE: _Bundle = {"text/html": "", "text/plain": ""}


def build_figure_bundles(result: CellResult) -> list[_Bundle]:
    """Return a cell's figures as displays, with labels and omission notes."""
    figures = collect_figures(result.ranks)
    fitting = [figure for figure in figures if figure.nbytes <= MAX_RICH_NBYTES]
    bundles = [bundle for figure in fitting[:MAX_FIGURES] for bundle in _build_bundles(figure)]
    return [*bundles, *(_build_text_bundle(text) for text in _describe_omitted(figures, fitting))]


def _build_bundles(figure: Figure) -> Iterator[_Bundle]:
    description = describe_figure(figure.mime, figure.content)
    label = describe_ranks(figure.ranks)
    yield _build_text_bundle(f"{label} · {description}")
    fallback = f"({label}: {description}; only a front end with an extension for it can draw this)"
    yield {figure.mime: figure.content, "text/plain": fallback}


def _describe_omitted(figures: tuple[Figure, ...], fitting: list[Figure]) -> Iterator[str]:
    hint = "fig.show('png') shows an image instead"
    for figure in figures:
        if figure.nbytes > MAX_RICH_NBYTES:
            yield f"{describe_ranks(figure.ranks)} · a figure of {format_nbytes(figure.nbytes)} is not stored: {hint}"
    if more := fitting[MAX_FIGURES:]:
        ranks = sorted({rank for figure in more for rank in figure.ranks})
        yield (
            f"{describe_ranks(ranks)} · {len(more)} more, only {MAX_FIGURES} different figures are drawn: "
            f"%%mhjax --ranks {ranks[0]} draws one rank's, {hint}"
        )


def _build_text_bundle(text: str) -> _Bundle:
    return {"text/html": print_html([Line(text, "quiet")]), "text/plain": text}


class FigureDisplays:
    """The figures of one cell on the screen.

    Args:
        screen: where they appear.
        uid: unique in the notebook.
    """

    def __init__(self, screen: Screen, uid: str) -> None:
        self._screen, self._uid = screen, uid
        self._shown: list[_Bundle] = []
        self._last_data: list[Any] = []

    def show(self, result: CellResult, *, late: bool) -> None:
        """Show new and changed figures; `late` means after the cell's end."""
        if not self._screen.rich:
            return
        data = [output["data"] for rank in result.ranks for output in rank.outputs if "data" in output]
        if data == self._last_data:
            # Figures are large, and a thread may continue to print.
            return
        self._last_data = data
        bundles = build_figure_bundles(result)
        # The display of a figure that was cleared cannot be removed, but it can be emptied.
        bundles += [_EMPTY_BUNDLE] * (len(self._shown) - len(bundles))
        for at, bundle in enumerate(bundles):
            display_id = f"{self._uid}-figure-{at}"
            if at >= len(self._shown):
                (self._screen.show_late if late else self._screen.show)(bundle, display_id)
                self._shown.append(bundle)
            elif bundle != self._shown[at]:
                (self._screen.replace_late if late else self._screen.replace)(bundle, display_id)
                self._shown[at] = bundle


# -- the controller


NO_OUTPUT_AFTER_S = 3.0
"""A cell that has printed nothing for this long may hang, if its ranks do not move either."""
LIVE_AFTER_S = 0.15
"""A cell that ends sooner shows only its static form."""


class CellView:
    """Shows one cell, as a context manager that ends with `finish`.

    Create it at the cell's start, in the cell's own thread. A view that fails reports it in one line and falls back to
    text; it never raises.

    Args:
        view: fold, tabs or grid.
        quiet: Show nothing unless the cell failed.
        locations: Host and log file of each rank.
        badge: Show where the cell ran, also without output: it was a notebook cell, sent by auto mode.
        screen: Where to show; the process's own by default.
        uid: Unique in the notebook; a new id by default.
    """

    def __init__(
        self,
        *,
        view: View = "fold",
        quiet: bool = False,
        locations: RankLocations | None = None,
        badge: bool = False,
        screen: Screen | None = None,
        uid: str | None = None,
    ) -> None:
        self._view, self._quiet, self._locations, self._badge = view, quiet, locations or RankLocations(), badge
        self._screen = screen or detect_screen()
        self._uid = uid or new_uid()
        self._figures = FigureDisplays(self._screen, self._uid)
        self._lock = threading.RLock()  # late output comes from another thread
        self._live: LiveWidget | None = None
        self._retired: LiveWidget | None = None
        """The widget of the ended cell, for pages that were loaded while the cell ran, or from a file that was saved then."""
        self._is_end_requested = False
        self._placeholder = PlaceholderDisplay(self._screen, self._uid, self._locations)
        self._wait_line = WaitLine(self._screen, self._uid)
        self._input_box: InputBox | None = None
        """Made for the first line that the user types for stopped ranks."""
        self._region: Region | None = None
        self._is_suspended = False
        self.interrupt: Callable[[], None] | None = None
        """Interrupts the cell; a button calls it from another thread."""
        self._where_expanded, self._shows_all = False, view != "fold"
        self._last_output: object = None
        self._last_output_s = 0.0
        self._latest: CellResult | None = None
        self._is_shown = False
        self._is_finished = False
        self._has_failed = False
        self._pending_late: CellResult | None = None
        self._written = ""

    def update(self, snapshot: CellResult) -> None:
        """Show a cell that is still running."""
        with self._lock:
            if self._is_finished:
                return
            if self._is_suspended and not self._screen.rich:
                self._record_stop(snapshot)
                return
            if snapshot.waiting:
                if not self._quiet:
                    self._run_guarded(self._wait_line.show, snapshot.waiting)
                return
            self._run_guarded(self._wait_line.close)
            self._run_guarded(self._update, snapshot)

    def suspend(self) -> None:
        """Stop drawing in a terminal until `resume`, because the user types there.

        A notebook's display continues to change. It opens now, however short the cell has run: it belongs above the
        lines that the user types. Safe to call from any thread, any number of times, also after the cell's end.
        """
        with self._lock:
            self._is_suspended = True
            if self._screen.rich:
                if not self._is_finished:
                    if self._latest is not None and self._live is None:
                        self._run_guarded(self._update, self._latest)
                    self._input_box = self._input_box or InputBox(self._screen, self._uid)
                    self._run_guarded(self._input_box.suspend)
            else:
                self._run_guarded(self._wait_line.close)
                self._run_guarded(self._close_region)

    def resume(self) -> None:
        """Draw again from the next update on."""
        with self._lock:
            self._is_suspended = False

    def close_input(self) -> None:
        """Remove the input box, because the kernel no longer waits for it.

        Call it in the cell's own thread, when `input()` has raised. It waits until the page has done so, at most a second.
        """
        # Without the lock, so that a button is handled meanwhile.
        if self._input_box is not None:
            self._run_guarded(self._input_box.close_input)

    def finish(self, result: CellResult) -> None:
        """Replace whatever is shown by the form that is stored."""
        with self._lock:
            self._is_finished = True
            self._run_guarded(self._wait_line.close)
            self._run_guarded(self._close_region)
            last, self._pending_late = self._pending_late or result, None
            if last.is_silent and not (self._is_shown or self._badge):
                # Most cells only bind names, so no summary is built to find that there is nothing to show.
                return
            is_saved = self._placeholder.is_shown
            self._latest = last if is_saved else None
            # Before the widget closes, because it hides the placeholder.
            self._run_guarded(self._placeholder.close)
            if not self._run_guarded(self._finish, last):
                self._fall_back(last)
            self._run_guarded(self._show_figures, last, late=False)
            self._run_guarded(self._retire_live if is_saved and not self._has_failed else self._close_live)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After an exception, keep the output so far and show nothing more."""
        if kind is None:
            return
        with self._lock:
            self._is_finished = True
            self._run_guarded(self._wait_line.close)
            self._run_guarded(self._close_region)
            self._run_guarded(self._placeholder.close)
            if self._live is not None and self._latest is not None:
                self._fall_back(self._latest)
            self._run_guarded(self._close_live)

    def show_late(self, result: CellResult) -> None:
        """Show late output of the cell; safe to call from any thread."""
        with self._lock:
            if not self._is_finished:
                self._pending_late = result
            elif not self._run_guarded(self._show_late, result):
                self._fall_back(result)
            else:
                self._run_guarded(self._show_figures, result, late=True)

    # -- the steps

    def _update(self, snapshot: CellResult) -> None:
        if self._quiet or self._has_failed:
            return
        if not self._screen.rich:
            self._update_region(snapshot)
            return
        self._latest = snapshot
        if self._live is not None:
            frame = self._build_frame(snapshot)
            self._live.show(frame, snapshot.wall_s)
            if self._live.hides_placeholder:
                self._placeholder.update(snapshot, frame)
        elif not self._is_shown and self._is_worth_opening(snapshot):
            self._live = self._screen.open_live(
                self._build_frame(snapshot),
                format_widget_text(snapshot, locations=self._locations),
                self._uid,
                self.handle_button,
            )
            self._is_shown = self._live is not None

    def _build_frame(self, snapshot: CellResult) -> LiveFrame:
        expanded, has_recent_output = self._where_expanded, self._has_recent_output(snapshot)
        frame = build_frame(
            snapshot,
            self._locations,
            expanded=expanded,
            view=self._live_view,
            has_recent_output=has_recent_output,
        )
        self._record_output((frame.blocks, frame.metrics_html), snapshot)
        return frame

    @property
    def _live_view(self) -> LiveView:
        if not self._shows_all:
            return "fold"
        return "rows" if self._view == "fold" else self._view

    def _has_recent_output(self, snapshot: CellResult) -> bool:
        return snapshot.wall_s - self._last_output_s < NO_OUTPUT_AFTER_S

    def _record_output(self, output: object, snapshot: CellResult) -> None:
        if output != self._last_output:
            self._last_output, self._last_output_s = output, snapshot.wall_s
        self._record_stop(snapshot)

    def _record_stop(self, snapshot: CellResult) -> None:
        """Treat a stop in the debugger as output, not as a hang."""
        if self._is_suspended or (snapshot.where is not None and snapshot.where.stopped):
            self._last_output_s = snapshot.wall_s

    def _update_region(self, snapshot: CellResult) -> None:
        if self._region is None and self._is_worth_opening(snapshot):
            self._region = self._screen.open_region()
        if self._region is not None:
            self._record_output([tail_text(rank.outputs, max_lines=1, max_chars=200) for rank in snapshot], snapshot)
            height, has_recent_output = self._region.height, self._has_recent_output(snapshot)
            text = format_running_text(
                snapshot, self._locations, height=height, color=self._screen.color, has_recent_output=has_recent_output
            )
            self._region.show(text)

    def handle_button(self, name: str) -> None:
        """Handle a button: interrupt, where, all or fold.

        It is called from another thread while the cell blocks. With `end` a page asks for the end of a cell whose
        display it does not have.
        """
        if name == "interrupt":
            if self.interrupt is not None:
                self.interrupt()
            return
        with self._lock:
            if name == "end":
                self._run_guarded(self._show_end)
                return
            self._where_expanded ^= name == "where"
            self._shows_all = name == "all" or (self._shows_all and name != "fold")
            if self._latest is not None and not self._is_finished:
                self._run_guarded(self._update, self._latest)

    def _is_worth_opening(self, snapshot: CellResult) -> bool:
        return snapshot.wall_s >= LIVE_AFTER_S or self._view != "fold" or self._is_suspended

    def _finish(self, result: CellResult) -> None:
        if not self._screen.rich:
            self._write(result, late=False)
        elif self._is_shown:
            self._screen.replace(self._bundle(result), self._uid)
        elif data := self._bundle_if_any(result, badge=self._badge):
            self._is_shown = True
            self._screen.show(data, self._uid)

    def _show_late(self, result: CellResult) -> None:
        if not self._screen.rich:
            self._write(result, late=True)
        elif self._is_shown:
            self._screen.replace_late(self._bundle(result), self._uid)
            self._latest = result
            if self._is_end_requested:
                self._show_end()
        elif data := self._bundle_if_any(result, badge=self._badge):
            self._is_shown = True
            self._screen.show_late(data, self._uid)

    def _show_figures(self, result: CellResult, *, late: bool) -> None:
        if not (self._quiet and result.ok):
            self._figures.show(result, late=late)

    def _bundle(self, result: CellResult) -> dict[str, str]:
        """Return the stored form.

        A display that was opened is replaced also if there is no output: by the ranks that ran, and for how long.
        """
        if found := self._bundle_if_any(result, badge=self._badge) or self._bundle_if_any(result, badge=True):
            return found
        return {"text/html": "", "text/plain": ""}

    def _bundle_if_any(self, result: CellResult, *, badge: bool) -> dict[str, str] | None:
        if self._quiet and result.ok:
            return None
        cell_summary, locations = replace(summarise_cell(result), figures_are_below=True), self._locations
        html = format_cell_html(
            result, view=self._view, uid=self._uid, locations=locations, badge=badge, cell_summary=cell_summary
        )
        text = format_cell_text(result, locations=locations, badge=badge, cell_summary=cell_summary)
        return {"text/html": html, "text/plain": text} if html else None

    def _write(self, result: CellResult, *, late: bool) -> None:
        """Print the text; after the cell's end, print only what is new."""
        if self._quiet and result.ok:
            return
        cell_summary = summarise_cell(result)
        text = format_cell_text(
            result, color=self._screen.color, locations=self._locations, badge=self._badge, cell_summary=cell_summary
        )
        if not text or text == self._written:
            return
        # With several blocks, the earlier lines show which ranks the new lines belong to.
        new_text = _new_lines(self._written, text) if len(cell_summary.blocks) == 1 else text
        self._screen.write(f"{result.name} printed more after its end:\n{new_text}" if late else text)
        self._written = text

    def _close_region(self) -> None:
        if self._region is not None:
            region, self._region = self._region, None
            region.close()

    def _close_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.close()

    def _retire_live(self) -> None:
        if self._live is not None:
            self._retired, self._live = self._live, None
            self._retired.retire()

    def _show_end(self) -> None:
        if self._retired is not None and self._latest is not None:
            self._is_end_requested = True
            self._retired.show_end(add_unsaved_note(self._bundle(self._latest)["text/html"], self._latest))

    # -- when a view fails

    def _run_guarded(self, step: Callable[..., None], *arguments: Any, **named: Any) -> bool:
        """Run a step of the view; if it fails, report that once."""
        try:
            step(*arguments, **named)
        except Exception as error:  # noqa: BLE001  # a view that fails never fails the cell
            self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            line = f"mhnb: the view failed ({type(error).__name__}: {error}); the ranks' output follows as text"
            self._screen.report_error(line.replace("\n", " ")[:400])

    def _fall_back(self, result: CellResult) -> None:
        """Print the ranks' output with little code, replacing an open widget."""
        lines = list(_plain_lines(result)) if not (self._quiet and result.ok) else []
        if self._live is not None and self._run_guarded(
            self._screen.replace, {"text/plain": "\n".join(lines)}, self._uid
        ):
            return
        for line in lines:
            self._screen.write(line)


def _new_lines(written: str, text: str) -> str:
    """Remove text already on the screen, unless it has changed."""
    return text.removeprefix(f"{written}\n")


def _plain_lines(result: CellResult) -> Iterator[str]:
    for rank in result:
        texts = [rank.stdout, rank.stderr, rank.text or "", "\n".join(rank.error.traceback) if rank.error else ""]
        for line in "\n".join(filter(None, texts)).splitlines():
            yield f"rank {rank.rank} │ {line}"
