"""A layout of an array: which device holds which shard.

Text and SVG need no widget and no style sheet. The HTML is a table that is readable without a style sheet or a script, and better
with both. An untrusted notebook loses `<style>`, `tabindex` and the script of a slider. Then the panes are blocks to open one by
one; the colours, the titles and the text form stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.sharding.layout import Layout
from mhnb.view.document import Code, Document, Drawing, Drawn, Fold, InText, Line, Span
from mhnb.view.drawings.layout import HTML_RESOLUTION, draw_panes, format_panes_css
from mhnb.view.html import RankLocations
from mhnb.view.layout_grid import assign_hosts, build_grid, format_layout_text


def build_layout(
    layout: Layout,
    *,
    name: str = "",
    locations: RankLocations | None = None,
    notes: Sequence[str] = (),
    uid: str = "mhnb-0",
) -> Document:
    """Build a layout; `uid` is unique in the notebook."""
    text = format_layout_text(layout, name=name, locations=locations, notes=notes)

    def draw() -> Document:
        grid = build_grid(layout, HTML_RESOLUTION, name=name, locations=locations, notes=notes)
        panes = draw_panes(grid, assign_hosts(layout.devices, locations), uid)
        return [
            Line(grid.title, "heading", beside=[Span(grid.cost, is_quiet=True)]),
            Drawing(panes, format_panes_css(grid, uid)),
            *(Line(note, "quiet") for note in grid.notes),
            Fold("as text", [Code(text)]),
        ]

    return [InText([Code(text)]), Drawn(draw)]
