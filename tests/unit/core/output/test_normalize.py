"""Which parts of an output count when ranks are compared, and which do not."""

from __future__ import annotations

import pytest

from mhnb.core.output.normal_form import ORDER_MARK, align_texts, normalize_output, normalize_text
from mhnb.core.output.rich import is_drawn_by_scripts
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("on {CpuDevice(id=1), CpuDevice(id=0)}.", "on {CpuDevice(id=0), CpuDevice(id=1)}."),
        ("it doesn't fit {'a, b', 'c}'} or {1, 'x'}", "it doesn't fit {'c}', 'a, b'} or {'x', 1}"),
        ("{('a', 1),\n ('b', 2)}", "{('b', 2),\n ('a', 1)}"),
        ("{frozenset({'a', 'b'}), frozenset({'c'})}", "{frozenset({'c'}), frozenset({'b', 'a'})}"),
        ("{'names': {'a', 'b'}}", "{'names': {'b', 'a'}}"),
        ("{<Axis.X: 1>, <Axis.Y: 2>}", "{<Axis.Y: 2>, <Axis.X: 1>}"),
        ("{<f at 0x7f0123456789>, <g at 0x7f0123456780>}", "{<g at 0x7f9123456789>, <f at 0x7f9123456780>}"),
        ("(open {'a', 'b'} ]", "(open {'b', 'a'} ]"),
        ("{ unclosed {'a', 'b'}", "{ unclosed {'b', 'a'}"),
        ('{grpc_status:6, grpc_message:"no {x}, 1:2"}', '{grpc_message:"no {x}, 1:2", grpc_status:6}'),
    ],
)
def test_order_of_a_set_does_not_count(one: str, other: str) -> None:
    """Sets with the same members are equal, wherever they are in a text; so are the fields of a gRPC error."""
    assert normalize_text(one) == normalize_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'a', 'b'}", "{'a', 'c'}"),
        ("{'a', 'b'}", "{'b', 'a', 'a'}"),
        ("['a', 'b']", "['b', 'a']"),
        ("('a', 'b')", "('b', 'a')"),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
        ("{<Axis.X: 1>: 1, <Axis.Y: 2>: 2}", "{<Axis.Y: 2>: 2, <Axis.X: 1>: 1}"),
        ("{0, 1}", "{1, 0}"),
        ("f32[8,4]{a,b}", "f32[8,4]{b,a}"),
        ("{('a', 'b'), 'c'}", "{('b', 'a'), 'c'}"),
        ("{step:1, loss:2}", "{loss:2, step:1}"),
    ],
)
def test_other_orders_and_members_count(one: str, other: str) -> None:
    """Other members count, and the order of a list, a tuple, a dict, a pair of numbers and a layout of XLA."""
    assert normalize_text(one) != normalize_text(other)


def test_only_sets_with_several_orders_are_aligned() -> None:
    """A set that every text has in one order stays as it is, as does a text without the set."""
    texts = ["{'b', 'a'} in {'z', 'y'}", "{'b', 'a'} in {'y', 'z'}", "no set"]
    shared = f"{{'b', 'a'}} in {{'z', 'y'}} {ORDER_MARK}"
    assert align_texts(texts) == [shared, shared, "no set"]


def test_one_set_in_two_orders_is_not_marked() -> None:
    """Every text has the set twice, in equal orders: only the set at the same position is compared."""
    texts = ["{'a', 'b'} {'b', 'a'} 1", "{'a', 'b'} {'b', 'a'} 5"]
    assert align_texts(texts) == texts


@pytest.mark.parametrize(
    "text",
    [
        "{" * 50_000,
        "{'a " * 20_000,
        "{<:" * 10_000,
        "{a, " * 20_000,
        pytest.param("{" + "'\\" * 200_000, id="quotes"),
        pytest.param("{<" + ":" * 1_000_000, id="colons"),
        pytest.param(
            "{" + ", ".join(f"frozenset({{'a', 'b{at:06}'}})" for at in range(100_000)) + "}", id="frozensets"
        ),
        pytest.param("{a, " * 400_000 + "b}" + "}" * 400_000, id="deep"),
    ],
)
def test_brackets_are_read_quickly(text: str) -> None:
    """Every character is read a few times; reading on from each bracket or quote would take minutes."""
    assert normalize_text(text) == text


def test_sets_are_found_behind_an_unclosed_quote() -> None:
    """The quote ends with its line, and the brace does not hide what follows."""
    assert normalize_text("{ it's, b\n on {'b', 'a'}") == "{ it's, b\n on {'a', 'b'}"


@pytest.mark.parametrize("tag", ["<script ", "<style>", "<!--"])
def test_unclosed_tags_are_read_quickly(tag: str) -> None:
    """The text is searched once for the end of a script; searching from each tag would take minutes."""
    text = "<script></script>" + tag * 200_000
    assert is_drawn_by_scripts(text)
    assert text in normalize_output(html(text))


@pytest.mark.parametrize(
    ("text", "is_drawn"),
    [
        ("<script>draw()", True),
        ("<script>draw()</script><!-- x", True),
        ("<script>draw()</script> 1 < 2", False),
        ("<script>draw()</script><object-view>text</object-view>", False),
        ("<canvas>no canvas</canvas>\n", True),
    ],
)
def test_display_that_only_scripts_can_draw(text: str, *, is_drawn: bool) -> None:
    """What is inside a script or a comment is not seen, even if it is not closed; another element's text is."""
    assert is_drawn_by_scripts(text) == is_drawn
