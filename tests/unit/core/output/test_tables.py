"""Drawn tables in text: they are found, kept out of templates, shown with all their lines, and not wrapped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.diff import compare_lines
from mhnb.core.output.folding import group_outputs
from mhnb.core.output.tables import (
    find_tables,
    find_unwrapped,
    has_table,
    show_tables_in_full,
    split_outside_tables,
)
from mhnb.core.output.template import split_numbers
from mhnb.types import Output

HEAVY = "┏━━━━━━┳━━━━━━┓\n┃ name ┃ loss ┃\n┡━━━━━━╇━━━━━━┩\n│ a    │ 0.5  │\n└──────┴──────┘"
TABLES = {
    "heavy": HEAVY,
    "rounded": "╭───┬───╮\n│ a │ b │\n├───┼───┤\n│ 1 │ 2 │\n╰───┴───╯",
    "double": "╔═══╦═══╗\n║ a ║ b ║\n╠═══╬═══╣\n║ 1 ║ 2 ║\n╚═══╩═══╝",
    "minimal": " a │ b \n╶──┼──╴\n 1 │ 2 ",
    "no ends": " a │ b \n═══╪═══\n 1 │ 2 ",
    "dashed": "┌───┬───┐\n│ a ┆ b │\n╞═══╪═══╡\n│ 1 ┆ 2 │\n└───┴───┘",
    "panel": "╭─ run 7 ─╮\n│ loss 1  │\n╰─────────╯",
    "ascii": "+---+---+\n| a | b |\n+===+===+\n| 1 | 2 |\n+---+---+",
    "markdown": "| a | b |\n|:--|--:|\n| 1 | 2 |",
    "dashes": "---------\n| a | 1 |\n---------",
    "coloured": "\x1b[1m┌───┐\x1b[0m\n\x1b[1m│\x1b[0m 1 \x1b[1m│\x1b[0m\n└───┘",
}
NO_TABLES = {
    "log": "step 1 | loss 0.5 | acc 0.1\nstep 2 | loss 0.4 | acc 0.2\n--- end ---",
    "drawn log": "step 1 │ loss 0.5\nstep 2 │ loss 0.4",
    "tree": "model\n├── layer 0\n│   └── w 8\n└── layer 1",
    "rule": "──── epoch 3 ────\nloss 0.5\n────────",
    "bars": "a ━━━━╸━━━━ 45% 0:00:03\nb ━━━━━━━━━ 100% 0:00:07",
    "bar": "a:  40%|████      | 4/10\n----\n",
    "columns": "epoch  loss\n-----  ----\n    1   0.5",
    "options": "  --lr 0.1 | -1\n  --steps 7",
    "bare row": "| a | 1 |",
    "bare border": "+---+---+",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_drawn_table_is_found(text: str) -> None:
    """All lines of a table are found, and only those."""
    lines = ["before 1", *text.split("\n"), "after 2"]
    assert find_tables(lines) == [range(1, len(lines) - 1)]


@pytest.mark.parametrize("text", NO_TABLES.values(), ids=NO_TABLES)
def test_other_lines_are_no_table(text: str) -> None:
    """Logs, trees, rules, progress bars and columns without lines are not tables, so they stay templates."""
    assert not has_table(text)
    assert split_outside_tables(text) == split_numbers(text)


def _print(text: str) -> Output:
    return {"output_type": "stream", "name": "stdout", "text": text}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_different_tables_are_separate_and_complete(text: str) -> None:
    """Tables that differ in a number have blocks of their own, without slots, also if the number is the rank's."""
    texts = [text.replace("1", str(rank)).replace("0.5", f"{rank}.5") for rank in range(3)]
    blocks = group_outputs([((rank,), [_print(said)]) for rank, said in enumerate(texts)])
    assert [block.ranks for block in blocks] == [(0,), (1,), (2,)]
    assert [block.parts[0].output_of(block.ranks[0])["text"] for block in blocks] == texts
    assert all(block.is_literal for block in blocks)


def test_equal_tables_share_a_block_with_templated_text() -> None:
    """Numbers beside a table are templated as ever; the table is shown once, with its own numbers."""
    (block,) = group_outputs([((rank,), [_print(f"loss {rank}.5\n{HEAVY}\nrank {rank}\n")]) for rank in range(3)])
    template = block.parts[0].template  # type: ignore[union-attr]
    assert HEAVY in "".join(template.literals)
    assert [slot.is_rank for slot in template.slots] == [False, True]


@given(st.lists(st.sampled_from(["loss 0.5", *HEAVY.split("\n"), "+---+", "| 1 |", "", "7", "a 3 ", "\x1b[31m4"])))
def test_no_character_is_lost(lines: list[str]) -> None:
    """The skeleton and the numbers restore the text, wherever tables begin and end."""
    text = "\n".join(lines)
    skeleton, numbers = split_outside_tables(text)
    assert "".join(part for pair in zip(skeleton, [*numbers, ""], strict=True) for part in pair) == text


def _rows(here: str, there: str) -> list[tuple[str, int, str]]:
    ours, theirs = ([("stdout", line) for line in text.split("\n")] for text in (here, there))
    return [
        (row.kind, row.count, row.here or row.there) for row in show_tables_in_full(compare_lines(ours, theirs), ours)
    ]


def test_table_with_one_difference_is_shown_with_all_lines() -> None:
    """Equal lines of a table are a row each, so that none is only counted; those around it are one row as before."""
    before = "a\nb\nc\nd\ne\n"
    rows = _rows(before + HEAVY.replace("0.5", "0.7"), before + HEAVY)
    assert [(kind, count) for kind, count, _ in rows] == [("same", 5), *[("same", 1)] * 3, ("changed", 1), ("same", 1)]


def test_lines_of_another_width_follow_those_elsewhere() -> None:
    """Where several cells or the widths differ, the other table's lines come first, then this one's, each complete."""
    wide = (
        HEAVY.replace("loss", "loss ")
        .replace("0.5 ", "10.75")
        .replace("━┓", "━━┓")
        .replace("━┩", "━━┩")
        .replace("─┘", "──┘")
    )
    rows = _rows(f"{wide}\nend", f"{HEAVY}\nend")
    assert [kind for kind, _, _ in rows] == ["missing"] * 5 + ["added"] * 5 + ["same"]
    assert [text for kind, _, text in rows if kind == "added"] == wide.split("\n")


def test_equal_table_beside_a_difference_is_counted() -> None:
    """A table without a difference may be counted like other equal lines."""
    rows = _rows(f"loss 1\n{HEAVY}", f"loss 2\n{HEAVY}")
    assert [(kind, count) for kind, count, _ in rows] == [("changed", 1), ("same", 5)]


PANDAS = [f"{'':4}" + "".join(f"  column{at:03}" for at in range(12))] + [
    f"{row:4}" + "".join(f"  {row * at / 7:9.4f}" for at in range(12)) for row in range(3)
]


def test_wide_columns_are_not_wrapped() -> None:
    """Wide lines as pandas prints them are found; narrow ones and prose are not."""
    assert find_unwrapped(["x", *PANDAS, "y"]) == [range(1, 5)]
    assert find_unwrapped([line[:60] for line in PANDAS]) == []
    assert find_unwrapped([("a word of prose " * 7)[:90]] * 4) == []


def test_title_of_a_table_is_not_wrapped() -> None:
    """A title centred over a table stays over it; other text above the table is wrapped."""
    assert find_unwrapped(["x", "     load", *HEAVY.split("\n")]) == [range(1, 7)]
    assert find_unwrapped(["x", "load", *HEAVY.split("\n")]) == [range(2, 7)]


@pytest.mark.parametrize("piece", ["-", "|", "| ", "─", "┌", "│ ", "+-", " "])
def test_long_line_is_read_in_linear_time(piece: str) -> None:
    """A search that restarts at each character of a long line takes quadratic time, which would be hours here."""
    assert find_tables([f"{piece * 200_000}x", f"{piece * 200_000}--|─y"]) == []
