"""Displays of figures that only a front end can draw, below the cell's other output.

Each different figure is shown once, labelled with its ranks. The figures are stored with the notebook.
They are drawn again without a kernel or a network, wherever the front end has the figure's extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, TypeAlias

from mhnb.core.output.bars import Figure, collect_figures, describe_figure
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.view.mime import MAX_RICH_NBYTES
from mhnb.view.screen import Screen
from mhnb.view.style import QUIET_STYLE, wrap_html

__all__ = ["FigureDisplays", "MAX_FIGURES", "build_figure_bundles"]

MAX_FIGURES = 8
"""Different figures of a cell that are drawn at most, because a browser does not draw hundreds in a useful time."""

_Bundle: TypeAlias = Mapping[str, Any]
_EMPTY_BUNDLE: _Bundle = {"text/html": "", "text/plain": ""}


def build_figure_bundles(result: CellResult) -> list[_Bundle]:
    """Return the displays of a cell's figures: a line with the ranks, then the figure; a last line if some are not drawn."""
    figures = collect_figures(result.ranks)
    fitting = [figure for figure in figures if figure.nbytes <= MAX_RICH_NBYTES]
    bundles = [bundle for figure in fitting[:MAX_FIGURES] for bundle in _build_bundles(figure)]
    return [*bundles, *(_build_text_bundle(text) for text in _describe_omitted(figures, fitting))]


def _build_bundles(figure: Figure) -> Iterator[_Bundle]:
    description = describe_figure(figure.mime, figure.content)
    label = describe_ranks(figure.ranks)
    yield _build_text_bundle(f"{label} · {description}")
    fallback = f"({label}: {description}; only a front end with an extension for it draws this form)"
    yield {figure.mime: figure.content, "text/plain": fallback}


def _describe_omitted(figures: tuple[Figure, ...], fitting: list[Figure]) -> Iterator[str]:
    hint = "fig.show('png') shows an image instead"
    for figure in figures:
        if figure.nbytes > MAX_RICH_NBYTES:
            yield f"{describe_ranks(figure.ranks)} · a figure of {format_nbytes(figure.nbytes)} is not stored: {hint}"
    if more := fitting[MAX_FIGURES:]:
        ranks = sorted({rank for figure in more for rank in figure.ranks})
        yield (
            f"{describe_ranks(ranks)} · {len(more)} more, drawn for no more than {MAX_FIGURES} different figures: "
            f"%%mhjax --ranks {ranks[0]} draws one rank's, {hint}"
        )


def _build_text_bundle(text: str) -> _Bundle:
    return {"text/html": wrap_html(f'<div style="{QUIET_STYLE}">{escape(text, quote=False)}</div>'), "text/plain": text}


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
        """Show new figures, and replace those that have changed; `late` means after the cell's end."""
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
