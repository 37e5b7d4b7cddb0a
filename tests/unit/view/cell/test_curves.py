"""Repeated lines have a curve per field: median, band and odd ranks, in the page and in the text, and no value is lost."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from xml.dom import minidom

import pytest

from mhnb.core.output.folding import group_outputs
from mhnb.core.output.results import CellResult
from mhnb.view.cell.blocks import RepeatedLines, block_items, find_repeated_lines
from mhnb.view.cell.curves import MAX_CURVES, Curve, build_curves, draw_braille, draw_svg, format_curve_text
from mhnb.view.cell.html import MAX_CELL_NBYTES, format_cell_html
from mhnb.view.cell.text import format_cell_text
from tests.support.view_samples import StrictPage, cell, equal_loop, loop, out


def _curves(result: CellResult) -> list[Curve]:
    (block,) = group_outputs([((one.rank,), one.outputs) for one in result])
    items = find_repeated_lines(block_items(block), block.ranks)
    (run,) = (item for item in items if isinstance(item, RepeatedLines))
    return build_curves(run, block.ranks, "abcdefghijkl"[: len(run.columns)])


def _printed(form: str, rows: Sequence[Sequence[object]]) -> CellResult:
    """Return the result of ranks that print a line per row: the row's number and the rank's value."""
    ranks = len(rows[0])
    return cell(
        *[[out("".join(form.format(at, row[rank]) + "\n" for at, row in enumerate(rows)))] for rank in range(ranks)]
    )


def test_text_has_a_line_per_field() -> None:
    """The line has the first and the last median, a curve of Braille between them, and where the odd rank ended."""
    lines = format_cell_text(loop()).splitlines()
    assert lines[1] == "  step ‹a› loss ‹b› acc ‹c›   × 200 lines"
    form = r"    loss ‹b›  2\.323\d ([\u2800-\u28ff]{20}) 0\.16\d\d   median over 200 lines, ranks 0-3; rank 2 0\.5\d+ at the end"
    assert re.fullmatch(form, lines[2])
    assert lines[3].startswith("    acc ‹c›  0.2")


def test_text_keeps_first_and_last_rows() -> None:
    """Two first and five last rows of each field are shown, and the line between gives the number and the place of the rest."""
    lines = format_cell_text(loop()).splitlines()
    assert len(lines) == 2 + 2 + 2 * (1 + 2 + 1 + 5)
    assert [line.split()[0] for line in lines[5:7]] == ["0", "1"]
    assert lines[7] == "    … 193 lines left out: all of it is in the log file …"
    assert [line.split()[0] for line in lines[8:13]] == ["195", "196", "197", "198", "199"]


def test_page_folds_the_middle_and_has_every_value() -> None:
    """Seven rows of each field are visible; every value of every rank is in the page."""
    result = loop()
    page = StrictPage(format_cell_html(result))
    for rank in result:
        values = [value for line in rank.stdout.splitlines() for value in (line.split()[3], line.split()[5])]
        assert set(values) <= set(re.findall(r"\d\.\d+", page.text))
    assert page.visible.count("… 193 lines more") == 2
    assert [tag for tag, _ in page.tags].count("img") == 2


def test_picture_survives_the_sanitiser_and_is_described() -> None:
    """The picture is an image with a text that says the same, and its drawing is well-formed."""
    page = StrictPage(format_cell_html(loop()))
    image = next(attributes for tag, attributes in page.tags if tag == "img")
    source = str(image["src"])
    assert source.startswith("data:image/svg+xml;base64,")
    drawing = minidom.parseString(base64.b64decode(source.partition(",")[2]))  # noqa: S318  # our own
    assert len(drawing.getElementsByTagName("path")) == 3  # the band, the median, the odd rank
    assert re.fullmatch(
        r"loss over 200 lines, step 0 to 199: median of ranks 0-3 from 2\.\d+ to 0\.1\d+, "
        r"lowest 0\.1\d+, highest 2\.\d+; rank 2 ends at 0\.\d+",
        str(image["alt"]),
    )


def test_size_does_not_depend_on_the_number_of_lines() -> None:
    """A picture of 2,000 lines has no more points than one of 200."""
    short, long = (_curves(loop(lines))[0] for lines in (200, 2000))
    assert len(draw_svg(long)) < 1.2 * len(draw_svg(short))
    assert len(draw_svg(short)) < 2000
    assert len(long.medians) == len(short.medians)


def test_band_keeps_a_single_peak() -> None:
    """Lines that share a point keep their lowest and their highest value: one bad line of a thousand is still seen."""
    rows = [[1.5 + at % 3 * 0.1 + rank * 0.01 for rank in range(4)] for at in range(1000)]
    rows[501][1] = 99.5
    (curve,) = _curves(_printed("step {} loss {:.2f}", rows))
    assert max(value for value in curve.highs if value is not None) == 99.5
    assert curve.high == "99.50"
    assert curve.odd == ()


def test_line_of_agreeing_ranks_has_both_ends_and_every_peak() -> None:
    """Where all ranks agree there is no band: the line begins and ends at the values that were printed, and shows a peak."""
    rows = [[1 / (1 + at)] * 4 for at in range(200)]
    (falling,) = _curves(_printed("step {} norm {:.3f}", rows))
    assert not falling.has_band
    assert (falling.medians[0], falling.medians[-1]) == (1.0, 0.005)
    assert draw_svg(falling).count("<path") == 1
    assert re.search(r"1\.000 ⠱⣀+ 0\.005", format_curve_text(falling))
    rows[101] = [99.5] * 4
    (peak,) = _curves(_printed("step {} norm {:.3f}", rows))
    assert 99.5 in peak.medians


def test_odd_ranks_are_far_from_all_others() -> None:
    """A rank that leaves the others is odd, ranks that are spread evenly are not, and of two ranks neither is."""
    assert [one.rank for one in _curves(loop(odd=3))[0].odd] == [3]
    assert _curves(loop(odd=None))[0].odd == ()
    even = _printed("step {} loss {:.2f}", [[at / 7 + 1.01 * rank for rank in range(5)] for at in range(20)])
    assert _curves(even)[0].odd == ()
    assert _curves(_printed("step {} loss {:.2f}", [[at + 0.1, at + 5.1] for at in range(20)]))[0].odd == ()
    rows = [[10.1 - at / 3, 10.2 - at / 3, 10.1 - at / 3, 11.5, 12.5] for at in range(20)]
    assert [one.rank for one in _curves(_printed("step {} loss {:.2f}", rows))[0].odd] == [3, 4]


def test_rank_without_finite_values_is_odd() -> None:
    """A rank whose loss became nan is named, its curve ends where its numbers do, and the others keep their scale."""
    rows = [[1.5 + at, 1.6 + at, "nan" if at > 12 else 1.4 + at] for at in range(20)]
    (curve,) = _curves(_printed("step {} loss {}", rows))
    assert [(one.rank, one.last) for one in curve.odd] == [(2, "nan")]
    assert curve.odd[0].values[12:14] == (13.4, None)
    assert "rank 2 nan at the end" in format_curve_text(curve)
    assert "nan" not in draw_svg(curve)


def test_labels_counters_and_constants_have_no_curve() -> None:
    """A process id, a number that counts on and a value that never changes are not measures over the steps."""
    said = [
        [
            out(
                "".join(
                    f"step {at} pid {4711 + rank} seen {at * 4 + rank} lr 0.1 loss {rank + at / 7:.3f}\n"
                    for at in range(20)
                )
            )
        ]
        for rank in range(3)
    ]
    assert [curve.title for curve in _curves(cell(*said))] == ["loss"]


def test_many_fields_have_a_limited_number_of_curves() -> None:
    """Of many fields the first ones have a curve; the rows have all."""
    form = "step {}" + "".join(f" f{name} {{}}.{at}" for at, name in enumerate("abcdefgh"))
    said = [[out("".join(form.format(at, *[at * (rank + 2)] * 8) + "\n" for at in range(20)))] for rank in range(3)]
    assert len(_curves(cell(*said))) == MAX_CURVES


def test_equal_lines_of_a_loop_are_folded_as_they_were_printed() -> None:
    """A loop on which all ranks agree has a curve, its first and last lines, the lines around it, and the rest in a fold."""
    page = StrictPage(format_cell_html(equal_loop()))
    lines = equal_loop()[0].stdout.splitlines()
    assert page.visible.count("compiling") == page.visible.count("done") == 1
    assert all(line in page.text for line in lines)
    assert [line for line in lines if line in page.visible and line.startswith("step")] == [*lines[1:3], *lines[-6:-1]]
    assert "… 193 lines left out" in format_cell_text(equal_loop())
    assert "all over 200 lines, ranks 0-3" in format_cell_text(equal_loop())


@pytest.mark.parametrize(("form", "count"), [("layer {} norm 0.{}1", 24), ("{} {}7", 40), ("step {} loss 0.{}", 12)])
def test_lists_and_short_loops_stay_lines(form: str, count: int) -> None:
    """Equal lines that are a list to read, or few, are shown as they are."""
    result = cell(*[[out("".join(form.format(at, at * at % 10) + "\n" for at in range(count)))]] * 3)
    page = StrictPage(format_cell_html(result))
    assert result[0].stdout.strip() in page.visible
    assert "img" not in [tag for tag, _ in page.tags]


def test_braille_has_no_gaps() -> None:
    """A steep step is joined, a place without a value is blank, and a constant is a line at the bottom."""
    assert draw_braille([0, 0, 3, 3], 0, 3, 2) == "⣀⠏"
    assert draw_braille([0, 0, None, None, 3, 3], 0, 3, 3) == "⣀⠀⠉"
    assert draw_braille([1.5, 1.5], 1.5, 1.5) == "⣀"


def test_curves_of_many_loops_leave_a_cell_small() -> None:
    """A loop per epoch, or a loop of other words on each rank, stores little more than the limit of a cell's text."""
    by_epoch = "".join(
        "".join(f"epoch {epoch} step {step} loss {{:.5f}} acc {{:.4f}}\n" for step in range(15)) + "evaluated\n"
        for epoch in range(40)
    )
    epochs = [[out(by_epoch.format(*[1 / (1 + at) + rank / 1000 for at in range(1200)]))] for rank in range(4)]
    fields = " ".join(f"{name} {{:.4f}}" for name in ("loss", "acc", "norm", "rate"))
    words = ("alpha", "beta", "gamma", "delta") * 4
    loops = [
        [
            out(
                "".join(
                    f"{word * (rank + 1)} step {step} {fields}\n".format(*[step / (n + 7) for n in range(4)])
                    for step in range(20)
                )
            )
        ]
        for rank, word in enumerate(words)
    ]
    for said in (epochs, loops):
        html = format_cell_html(cell(*said))
        assert html.count("<img") == 16
        assert len(html) < 1.4 * MAX_CELL_NBYTES


def test_numbers_near_the_largest_have_a_curve() -> None:
    """The median of two numbers is finite, also where their sum is not."""
    said = [[out("".join(f"step {step} loss {low + step % 2 / 10}e308\n" for step in range(20)))] for low in (1.6, 1.5)]
    (curve,) = _curves(cell(*said))
    assert (curve.low, curve.high) == ("1.5e308", "1.7000000000000002e308")
    assert draw_svg(curve)
