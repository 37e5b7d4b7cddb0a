"""Displays of figures that only a front end can draw, below the cell's other output.

Each different figure is shown once, labelled with its ranks. The figures are stored with the notebook.
They are drawn again without a kernel or a network, wherever the front end has the figure's extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, TypeAlias

from mhnb.core.output.figures import Figure, describe_figure, gather_figures
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import say_ranks
from mhnb.view.mime import MAX_RICH_NBYTES
from mhnb.view.screen import Screen
from mhnb.view.style import QUIET, wrap
from mhnb.view.words import format_nbytes

__all__ = ["FigureDisplays", "MAX_FIGURES", "figure_bundles"]

MAX_FIGURES = 8
"""Different figures of a cell that are drawn at most, because a browser does not draw hundreds in a useful time."""

_Bundle: TypeAlias = Mapping[str, Any]
_NOTHING: _Bundle = {"text/html": "", "text/plain": ""}


def figure_bundles(result: CellResult) -> list[_Bundle]:
    """Return the displays of a cell's figures: a line with the ranks, then the figure; a last line if some are not drawn."""
    figures = gather_figures(result.ranks)
    fitting = [figure for figure in figures if figure.nbytes <= MAX_RICH_NBYTES]
    bundles = [bundle for figure in fitting[:MAX_FIGURES] for bundle in _drawn(figure)]
    return [*bundles, *(_line(text) for text in _not_drawn(figures, fitting))]


def _drawn(figure: Figure) -> Iterator[_Bundle]:
    what = describe_figure(figure.mime, figure.content)
    label = say_ranks(figure.ranks)
    yield _line(f"{label} · {what}")
    why = f"({label}: {what}; only a front end with an extension for it draws this form)"
    yield {figure.mime: figure.content, "text/plain": why}


def _not_drawn(figures: tuple[Figure, ...], fitting: list[Figure]) -> Iterator[str]:
    way = "fig.show('png') shows an image instead"
    for figure in figures:
        if figure.nbytes > MAX_RICH_NBYTES:
            yield f"{say_ranks(figure.ranks)} · a figure of {format_nbytes(figure.nbytes)} is not stored: {way}"
    if more := fitting[MAX_FIGURES:]:
        rest = sorted({rank for figure in more for rank in figure.ranks})
        yield (
            f"{say_ranks(rest)} · {len(more)} more, drawn for no more than {MAX_FIGURES} different figures: "
            f"%%mhjax --ranks {rest[0]} draws one rank's, {way}"
        )


def _line(text: str) -> _Bundle:
    return {"text/html": wrap(f'<div style="{QUIET}">{escape(text, quote=False)}</div>'), "text/plain": text}


class FigureDisplays:
    """The figures of one cell on the screen.

    Args:
        screen: where they appear.
        uid: unique in the notebook.
    """

    def __init__(self, screen: Screen, uid: str) -> None:
        self._screen, self._uid = screen, uid
        self._shown: list[_Bundle] = []
        self._seen: list[Any] = []

    def show(self, result: CellResult, *, late: bool) -> None:
        """Show new figures, and replace those that have changed; `late` means after the cell's end."""
        if not self._screen.rich:
            return
        seen = [output["data"] for rank in result.ranks for output in rank.outputs if "data" in output]
        if seen == self._seen:
            # Figures are large, and a thread may continue to print.
            return
        self._seen = seen
        bundles = figure_bundles(result)
        # The display of a figure that was cleared cannot be removed, but it can be emptied.
        bundles += [_NOTHING] * (len(self._shown) - len(bundles))
        for at, bundle in enumerate(bundles):
            display_id = f"{self._uid}-figure-{at}"
            if at >= len(self._shown):
                (self._screen.show_late if late else self._screen.show)(bundle, display_id)
                self._shown.append(bundle)
            elif bundle != self._shown[at]:
                (self._screen.replace_late if late else self._screen.replace)(bundle, display_id)
                self._shown[at] = bundle
