"""Which parts of an output count when ranks are compared, and which do not."""

from __future__ import annotations

import pytest

from mhnb.core.output.folding import normalize_output
from mhnb.types import Output


def html(text: str) -> Output:
    """Return a display like that of a styled DataFrame."""
    return {"output_type": "display_data", "data": {"text/html": text, "text/plain": "<Styler at 0x7f0123456789>"}}


def styled(name: str, value: int = 1) -> Output:
    """Return two rules and two cells, all named after one random word."""
    rules = f"#{name}_row0_col0, #{name}_row1_col0 {{color: red}}"
    rows = "".join(f'<td id="{name}_row{row}_col0" class="data row{row}">{value}</td>' for row in (0, 1))
    return html(f'<style>{rules}</style><table id="{name}">{rows}</table>')


def test_random_ids_do_not_count() -> None:
    """The same table under another random name is equal; a table with another value is not."""
    assert normalize_output(styled("T_3fa9c")) == normalize_output(styled("T_b0721"))
    assert normalize_output(styled("T_3fa9c", 1)) != normalize_output(styled("T_b0721", 2))


@pytest.mark.parametrize("names", [("T_abcde", "T_fedcb"), ("viz-5c2f8a1e09", "viz-00a1b2c3d4")])
def test_random_ids_in_scripts_do_not_count(names: tuple[str, str]) -> None:
    """This also holds for a name without a digit, and for a name inside a script."""
    one, other = (
        normalize_output(html(f"<div id='{name}'></div><script>draw('#{name}', 12)</script><b for={name}>x</b>"))
        for name in names
    )
    assert one == other


def test_large_table_is_normalized_quickly() -> None:
    """The table has 20,000 ids; checking each id against each other would take minutes."""
    cells = [f'<td id="T_3fa9c_row{row}_col0">{row}</td>' for row in range(20_000)]
    assert "\\u000019999" in normalize_output(html("".join(cells)))
    assert normalize_output(html(f"<i {'a' * 100_000} id={'a' * 100_000}>"))


def test_missing_data_is_accepted() -> None:
    """A front end's message may have no data."""
    assert normalize_output({"output_type": "display_data", "data": None})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('<p id="T_3fa9c">T_3fa9c</p>', '<p id="T_b0721">T_b0721</p>'),
        ("<pre>loss id=0.12345678</pre>", "<pre>loss id=0.98765432</pre>"),
        ("Job(id=a00000001, step=1)", "Job(id=a00000002, step=1)"),
        ('<a href="/show?id=a12345678">x</a>', '<a href="/show?id=a87654321">x</a>'),
        ('<input id="a12345678" value="a12345678">', '<input id="a87654321" value="a87654321">'),
        ('<i id="T_3fa9c"></i><i data-x="0"></i>', '<i id="T_b0721"></i><i data-x="T_b0721"></i>'),
        ('<p id="12345678">x</p>', '<p id="87654321">x</p>'),
        ('<p id="first">x</p>', '<p id="second">x</p>'),
        ("<p>0x3fa9c</p>", "<p>0xb0721</p>"),
        (
            '<style>#T_3fa9c_row0 {}</style><i id="T_3fa9c_row0"/>',
            '<style>#T_b0721_row1 {}</style><i id="T_b0721_row0"/>',
        ),
    ],
)
def test_visible_differences_count(one: str, other: str) -> None:
    """Text, names that a user chose, and the cell that a rule applies to all count."""
    assert normalize_output(html(one)) != normalize_output(html(other))
