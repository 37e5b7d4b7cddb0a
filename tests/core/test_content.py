"""What of an output counts when ranks are compared, and what does not."""

from __future__ import annotations

import pytest

from mhnb.core.content import find_content
from mhnb.values import Output


def html(text: str) -> Output:
    """A display as a styled DataFrame makes it."""
    return {"output_type": "display_data", "data": {"text/html": text, "text/plain": "<Styler at 0x7f0123456789>"}}


def styled(name: str, value: int = 1) -> Output:
    """Two rules and two cells, all named after one word made at random."""
    rules = f"#{name}_row0_col0, #{name}_row1_col0 {{color: red}}"
    rows = "".join(f'<td id="{name}_row{row}_col0" class="data row{row}">{value}</td>' for row in (0, 1))
    return html(f'<style>{rules}</style><table id="{name}">{rows}</table>')


def test_ids_made_at_random_set_nothing_apart() -> None:
    """The same table under another name says the same; another value does not."""
    assert find_content(styled("T_3fa9c")) == find_content(styled("T_b0721"))
    assert find_content(styled("T_3fa9c", 1)) != find_content(styled("T_b0721", 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('<p id="row10001">row10001</p>', '<p id="row10002">row10002</p>'),
        ('<p id="first">x</p>', '<p id="second">x</p>'),
        ("<p>0x3fa9c</p>", "<p>0xb0721</p>"),
        (
            '<style>#T_3fa9c_row0 {}</style><i id="T_3fa9c_row0"/>',
            '<style>#T_b0721_row1 {}</style><i id="T_b0721_row0"/>',
        ),
    ],
)
def test_what_is_read_counts(one: str, other: str) -> None:
    """Text, names that somebody chose, and which of the cells a rule is for."""
    assert find_content(html(one)) != find_content(html(other))
