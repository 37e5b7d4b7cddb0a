"""The layout report has the same content as text, SVG and HTML, is readable without styles, and is small for 4,096 devices."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from mhnb.sharding.layout import Layout, LayoutRow, LayoutTree
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.plan import plan_reshard
from mhnb.view.drawings.layout import format_layout_svg
from mhnb.view.html import RankLocations
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.mesh import build_mesh, build_tree
from mhnb.view.reports.plan import build_reshard
from tests.support.view_samples import StrictPage

GRID = MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2)
ROWS = Layout.of((8, 6), GRID, "P('data', None)")
CUBE = Layout.of((8, 4, 6), GRID, "P('data', None, 'model')")
PARTIAL_SUMS = Layout.of((8, 6), GRID, "P('data', unreduced={'model'})")
SCALAR = Layout.of((), GRID, "P()")
UNEVEN = Layout.of((5,), GRID, "P('data')", uneven=True)
WITHOUT_MESH = Layout((4,), ROWS.dtype, placed=((GRID.devices[3], ((0, 4),)),))
ALL = {"rows": ROWS, "cube": CUBE, "sums": PARTIAL_SUMS, "scalar": SCALAR, "line": UNEVEN, "loose": WITHOUT_MESH}


def test_layout_report_as_text() -> None:
    """The report has title, cost and columns, and one line per row of boxes with its host."""
    assert print_text(build_layout(ROWS, name="x")) == (
        "x  f32[8,6]  P('data', None) on mesh (data 4, model 2)     48 B per device · 2 replicas\n"
        "            cols 0:6\n"
        "rows 0:2    0:0 0:1     host0\n"
        "rows 2:4    1:0 1:1     host1\n"
        "rows 4:6    2:0 2:1     host2\n"
        "rows 6:8    3:0 3:1     host3"
    )


def test_partial_sums_are_not_replicas() -> None:
    """Devices with parts of a sum are joined by a plus, and the heading names the axis of the sum."""
    text = print_text(build_layout(PARTIAL_SUMS))
    assert "partial sums over 'model'" in text
    assert "rows 0:2    0:0 + 0:1     host0" in text
    assert "replica" not in text


def test_leading_dims_are_shown_as_panes() -> None:
    """Each position along the leading dims is a pane with its index."""
    lines = print_text(build_layout(CUBE)).splitlines()
    assert lines[1:4] == ["[0:2, :, :]", "            cols 0:3  cols 3:6", "rows 0:4    0:0       0:1       host0"]
    assert lines[-1] == "rows 0:4    3:0       3:1       host3"


def test_uneven_boxes_show_the_padded_size() -> None:
    """The last boxes are short or empty, and a note states the padded size of each box."""
    lines = print_text(build_layout(UNEVEN)).splitlines()
    assert lines[3:] == ["[4:5]       2:0 2:1     host2", "[5:5]       3:0 3:1     host3",
                         "uneven: the compiler pads each shard to 8 B"]  # fmt: skip


def test_an_array_without_a_mesh_is_drawn() -> None:
    """The array is on one device and has no spec."""
    assert print_text(build_layout(WITHOUT_MESH)) == (
        "f32[4]  on 1 device of rank 1, without a mesh     16 B per device\n[0:4]       1:1     host1"
    )


def test_hosts_have_the_label_of_the_cluster() -> None:
    """If the cluster knows the label of a host, the report uses it."""
    locations = RankLocations({0: "tpu-a", 1: "tpu-a", 2: "tpu-b", 3: "tpu-b"})
    assert print_text(build_layout(ROWS, locations=locations)).splitlines()[3] == "rows 2:4    1:0 1:1     tpu-a"


def test_hosts_of_a_row_are_combined() -> None:
    """Hosts that differ only in their number are one word; a long list of other names is counted."""
    mesh = MeshShape.row_major({"data": 2, "model": 4}, devices_per_host=1)
    assert print_text(build_mesh(mesh)).splitlines()[2].endswith("host[0-3]")
    assert ">host[0-3]</td>" in print_html(build_mesh(mesh))
    layout = Layout.of((8, 6), mesh, "P('data', None)")
    assert print_text(build_layout(layout)).splitlines()[2].endswith("host[0-3]")
    assert ">host[0-3]</td>" in print_html(build_layout(layout))
    named = RankLocations({rank: f"machine-{'abcdefgh'[rank]}" for rank in range(8)})
    assert print_text(build_mesh(mesh, locations=named)).splitlines()[2].endswith("4 hosts")


def test_rows_of_a_large_mesh_are_folded() -> None:
    """Of more than 16 rows eight are seen without a click."""
    large = StrictPage(print_html(build_mesh(MeshShape.row_major({"data": 64, "model": 2}, devices_per_host=2))))
    assert large.unclosed == []
    assert "data 7" in large.visible
    assert "data 8" not in large.visible
    assert "56 more lines" in large.visible
    assert "data 63" in large.text
    small = StrictPage(print_html(build_mesh(MeshShape.row_major({"data": 16, "model": 2}, devices_per_host=2))))
    assert "data 15" in small.visible


@pytest.mark.parametrize("name", ALL)
def test_every_form_has_the_same_content(name: str) -> None:
    """SVG and HTML contain every device, range and host of the text, and both are well-formed."""
    layout = ALL[name]
    svg = ET.fromstring(format_layout_svg(layout, name="x"))  # noqa: S314 - made here
    page = StrictPage(print_html(build_layout(layout, name="x")))
    assert page.unclosed == []
    drawn = " ".join(svg.itertext())
    for device in layout.devices:
        assert str(device) in drawn
        assert str(device) in page.text
    for note in print_text(build_layout(layout)).splitlines()[-1:]:
        assert note in drawn


@pytest.mark.parametrize("name", ALL)
def test_a_screen_reader_has_the_whole_text(name: str) -> None:
    """The SVG has the role `img` and the text as its description; the HTML table has row headers and the text."""
    layout = ALL[name]
    text = print_text(build_layout(layout, name="x"))
    svg = ET.fromstring(format_layout_svg(layout, name="x"))  # noqa: S314 - made here
    assert svg.get("role") == "img"
    assert svg.findtext("{http://www.w3.org/2000/svg}desc") == text
    page = StrictPage(print_html(build_layout(layout, name="x")))
    assert text in page.text
    assert any(tag == "th" and attrs.get("scope") == "row" for tag, attrs in page.tags)


def test_replicas_are_marked_without_colour() -> None:
    """Without colours, replicas have a double frame and a count in HTML and a dashed frame in SVG."""
    assert "border:3px double" in print_html(build_layout(ROWS))
    assert "×2" in StrictPage(print_html(build_layout(ROWS))).visible
    assert "stroke-dasharray" in format_layout_svg(ROWS)
    without_replicas = Layout.of((8, 6), GRID, "P('data', 'model')")
    assert "double" not in print_html(build_layout(without_replicas))
    assert "stroke-dasharray" not in format_layout_svg(without_replicas)


def test_device_name_has_the_colour_of_its_host() -> None:
    """Names of several hosts in one box have their hosts' colours; a box of many names is striped."""
    named = print_html(build_layout(Layout.of((8, 6), {"data": 4, "model": 2}, "P('model')", devices_per_host=2)))
    spans = re.findall(r'background:(#\w+)40;padding:2px 3px">(\d):', named)
    colors = {host: {color for color, of in spans if of == host} for host in "0123"}
    assert len(spans) == 8
    assert len(set().union(*colors.values())) == len(colors) == sum(map(len, colors.values()))
    many = print_html(build_layout(Layout.of((8, 6), {"data": 16}, "P()", devices_per_host=4)))
    assert "linear-gradient" in many
    assert "padding:2px 3px" not in many


def test_each_tile_has_a_tooltip() -> None:
    """Hover and keyboard focus show index range, bytes, owners and host."""
    titles = [
        attrs.get("title")
        for tag, attrs in StrictPage(print_html(build_layout(ROWS))).tags
        if tag == "td" and "title" in attrs
    ]
    assert titles[0] == "[0:2, 0:6] · 48 B · 2 replicas on 0:0 0:1 (host0)"
    assert re.findall(r'<td tabindex="0"', print_html(build_layout(ROWS))) == ['<td tabindex="0"'] * 4


def test_each_leading_dim_has_a_slider() -> None:
    """Each leading dim has a slider whose arrow keys JupyterLab's shortcuts ignore. The panes also open without it."""
    page = StrictPage(print_html(build_layout(Layout.of((8, 4, 6, 2), GRID, "P('data', 'model')"), uid="mhnb-u")))
    sliders = [attrs for tag, attrs in page.tags if tag == "input"]
    assert [slider["max"] for slider in sliders] == ["3", "1"]
    assert all(slider["data-lm-suppress-shortcuts"] == "true" for slider in sliders)
    panes = [attrs for tag, attrs in page.tags if tag == "details" and attrs.get("name") == "mhnb-u"]
    assert [("open" in attrs) for attrs in panes] == [True] + [False] * 7


@pytest.mark.parametrize(
    ("axes", "spec", "shape"),
    [
        ({"a": 4096}, "P('a')", (4096, 4096)),
        ({"a": 64, "b": 64}, "P('a', 'b')", (4096, 4096)),
        ({"a": 512, "b": 8}, "P('a', 'b')", (4096, 4096)),
        ({"a": 4, "b": 8, "c": 16, "d": 8}, "P('a', 'b', 'c', 'd')", (64, 64, 64, 64, 2, 2)),
        ({"a": 4, "b": 8, "c": 16, "d": 8}, "P(None, None, 'a', 'b', 'c', 'd')", (2, 2, 64, 64, 64, 64)),
        ({"a": 4096}, "P()", ()),
    ],
)
@pytest.mark.slow
def test_report_of_4096_devices_is_small(axes: dict[str, int], spec: str, shape: tuple[int, ...]) -> None:
    """HTML and SVG are below 200 KB, and the text is below 160 lines."""
    layout = Layout.of(shape, MeshShape.row_major(axes, devices_per_host=1), spec)
    for drawn in (print_html(build_layout(layout)), format_layout_svg(layout)):
        assert len(drawn.encode()) < 200_000
    assert len(print_text(build_layout(layout)).splitlines()) < 160


def test_tree_marks_replicated_arrays() -> None:
    """A replicated array has an arrow in text, a tinted waste in HTML, and a remark in both."""
    rows = (
        LayoutRow("['w']", Layout.of((64, 64), GRID, "P('data', 'model')")),
        LayoutRow("['v']", Layout.of((64, 64), GRID, "P()")),
    )
    tree = LayoutTree((*rows, LayoutRow("['n']", None, "int 3")))
    lines = print_text(build_tree(tree, name="params")).splitlines()
    assert lines[0] == "params  2 arrays · 32.0 KiB · 18.0 KiB per device · 112.0 KiB waste"
    assert [line.startswith("→") for line in lines[2:]] == [False, True, False]
    page = StrictPage(print_html(build_tree(tree, name="params")))
    assert page.unclosed == []
    assert "replicated: is this intended?" in page.visible
    tinted = [attrs for tag, attrs in page.tags if tag == "td" and "background-color" in (attrs.get("style") or "")]
    assert [attrs["data-v"] for attrs in tinted] == [str(7 * 64 * 64 * 4)]
    assert "mhnb-bad" not in [attrs.get("class") for _, attrs in page.tags]


def test_a_mesh_shows_hosts_and_directions() -> None:
    """Lines follow the last axis; the text names the axis that crosses hosts, and warns of one that should not."""
    assert print_text(build_mesh(GRID, name="grid")) == (
        "grid (data 4, model 2) · 8 devices on 4 hosts\n"
        "            model →   data ↓\n"
        "data 0      0:0 0:1     host0\n"
        "data 1      1:0 1:1     host1\n"
        "data 2      2:0 2:1     host2\n"
        "data 3      3:0 3:1     host3\n"
        "data crosses 4 hosts · model stays inside a host"
    )
    turned = MeshShape.row_major({"model": 4, "data": 2}, devices_per_host=2)
    assert "warning: axis 'model' (4) crosses hosts" in print_text(build_mesh(turned))
    page = StrictPage(print_html(build_mesh(turned)))
    assert page.unclosed == []
    assert "axis 'model' (4) crosses hosts" in page.visible


def test_reshard_shows_before_and_after() -> None:
    """The totals come first, then before and after, then each piece with source, target and bytes."""
    plan = plan_reshard(ROWS, Layout.of((8, 6), GRID, "P(None, 'model')"))
    text = print_text(build_reshard(plan, name="x"))
    assert text.splitlines()[0] == (
        "x  f32[8,6]  P('data', None) → P(None, 'model')     576 B move · 576 B of it across hosts · 192 B stay"
        " · collective: unknown, not compiled"
    )
    assert "before  f32[8,6]  P('data', None) on mesh" in text
    assert "after  f32[8,6]  P(None, 'model') on mesh" in text
    assert "    1:0 → 0:0    [2:4, 0:3]  24 B  across hosts" in text
    page = StrictPage(print_html(build_reshard(plan, name="x")))
    assert page.unclosed == []
    assert "576 B of it across hosts" in page.visible


def test_long_table_is_shortened_with_a_note() -> None:
    """A thousand rows stay below 200 KB as HTML, and a line says where the other rows are."""
    layout = Layout.of((64, 64), GRID, "P('data', 'model')")
    tree = LayoutTree(tuple(LayoutRow(f"['layers'][{at}]['w']", layout) for at in range(1000)))
    html = print_html(build_tree(tree))
    assert len(html.encode()) < 200_000
    assert "700 more rows: mhnb.layout(...).to_csv() lists all" in html
    assert len(tree.to_csv().splitlines()) == 1001
