"""A number in which one rank differs stands above the numbers that differ everywhere, in the page, the text and the grid."""

from __future__ import annotations

from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.summary import find_outlier_ranks, summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import RankLocations
from mhnb.view.live.results_panel import build_panel_state
from tests.support.view_samples import StrictPage, cell, odd_number, out

ODD_LINE = "rank 2 ≠ loss 0.731 ← 0.312 elsewhere"


def test_odd_number_is_the_first_line() -> None:
    """The rank, the number in its line, and the others' value are above the template in both forms."""
    assert format_cell_text(odd_number()).splitlines()[1] == f"  {ODD_LINE}"
    visible = StrictPage(format_cell_html(odd_number())).visible
    assert visible.index(ODD_LINE) < visible.index("pid ‹a›")


def test_durations_are_not_odd() -> None:
    """A duration that differs on one rank is not on top."""
    said = [[out(f"took {7 if rank == 2 else 5} s and 0.{rank + 1}")] for rank in range(4)]
    assert "elsewhere" not in format_cell_text(cell(*said))


def test_field_is_named_by_the_words_before_it() -> None:
    """The name is without the punctuation around it; a number without words is not named."""
    for before, name in (
        (" train/loss=", ": train/loss"),
        (", 'lr': ", ": lr"),
        ("step 3 val loss ", ": val loss"),
        (": ", ""),
    ):
        said = [[out(f"x 0.{rank + 1}{before}{0.5 if rank == 2 else 0.25}")] for rank in range(4)]
        assert summarise_cell(cell(*said)).difference == f"rank 2 differs{name}"


def test_ranks_with_one_odd_value_share_a_line() -> None:
    """Ranks with the same outlier value are named together, and what differs between them in that line is left out."""
    said = [[out(f"rank {rank} acc 0.{rank + 10} loss {0.5 if rank in (3, 9) else 0.25}\n")] for rank in range(16)]
    assert format_cell_text(cell(*said)).splitlines()[1] == "  ranks 3,9 ≠ rank ‹rank› acc … loss 0.5 ← 0.25 elsewhere"


def test_half_of_the_ranks_are_not_odd() -> None:
    """Many ranks that differ from the majority are no outliers to show on top."""
    said = [[out(f"acc 0.{rank + 10} loss {0.5 if rank < 6 else 0.25}\n")] for rank in range(16)]
    assert "elsewhere" not in format_cell_text(cell(*said))


def test_number_that_is_not_finite_is_odd_among_numbers_that_all_differ() -> None:
    """The range of the other ranks stands for the value that they do not share."""
    said = [[out(f"x\nloss {'nan' if rank == 1 else rank + 0.5} acc 0.{rank + 1}\n")] for rank in range(4)]
    assert "  rank 1 ≠ loss nan ← 0.5 to 3.5 elsewhere" in format_cell_text(cell(*said)).splitlines()


def test_many_odd_numbers_are_counted() -> None:
    """After six outliers the rest is one line; all of them are marked where they are."""
    lines = "".join(f"{name} {{0}}.5 then {name} {{1}}.5\n" for name in "abcdefghi")
    said = [[out(lines.format(7 if rank == 2 else 5, rank))] for rank in range(4)]
    text = format_cell_text(cell(*said)).splitlines()
    assert sum("elsewhere" in line for line in text) == 6
    assert text[7] == "  … and 3 more numbers of rank 2, marked ≠"
    assert sum("≠ rank 2" in line for line in text) == 9


def test_each_odd_rank_has_its_first_difference() -> None:
    """A rank is described by its outlier, or by its first line that differs."""
    assert find_outlier_ranks(summarise_cell(odd_number())) == {2: "loss 0.731 ← 0.312 elsewhere"}
    lines = [f"line {word}" for word in ("one", "two", "three", "four")]
    said = [[out("\n".join([*lines, "end odd" if rank == 1 else "end same"]))] for rank in range(4)]
    assert find_outlier_ranks(summarise_cell(cell(*said))) == {1: "end odd ← same elsewhere"}
    words = [[out("\n".join([*lines, "a odd b strange c" if rank == 1 else "a same b usual c"]))] for rank in range(4)]
    assert find_outlier_ranks(summarise_cell(cell(*words))) == {1: "a odd b strange c ← a same b usual c elsewhere"}
    added = [[out("\n".join([*lines, *(["more"] if rank == 1 else [])]))] for rank in range(4)]
    assert find_outlier_ranks(summarise_cell(cell(*added))) == {1: "+ more"}


def test_grids_have_odd_ranks_first() -> None:
    """The stored grid begins with the outlier and its difference; the panel's state has both."""
    visible = StrictPage(format_cell_html(odd_number(), view="grid")).visible
    places = [
        visible.index(text) for text in ("rank 2 ≠", "loss 0.731 ← 0.312 elsewhere", "rank 0", "rank 1", "rank 3")
    ]
    assert places == sorted(places)
    ranks = build_panel_state(odd_number(), RankLocations(), uid="u", view="grid")["ranks"]
    assert [(one["differs"], one["mark"], one["difference"]) for one in ranks] == [
        (False, "", ""),
        (False, "", ""),
        (True, " ≠", "loss 0.731 ← 0.312 elsewhere"),
        (False, "", ""),
    ]


def test_status_line_names_few_odd_ranks_and_their_fields() -> None:
    """Where few ranks differ in numbers, the status line says which and in what; spread numbers only differ by rank."""
    assert summarise_cell(odd_number()).difference == "rank 2 differs: loss"
    assert "<b>rank 2 differs: loss</b>" in format_cell_html(odd_number())
    spread = cell(*[[out(f"loss {rank}.5\n")] for rank in range(4)])
    assert summarise_cell(spread).difference == "numbers differ by rank"
