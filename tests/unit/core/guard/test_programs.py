"""How programs with one name differ."""

from __future__ import annotations

import random

import pytest

from mhnb.core.guard.agreement import (
    DescribeProgram,
    MismatchDetails,
    Vote,
    decode_from_rank,
    encode_from_rank,
    format_mismatch,
)
from mhnb.core.guard.programs import MAX_PACKED_CHARS, Outline, find_differences, pack_outline, unpack_outline
from mhnb.errors import UnknownMessage


def describe_modules(*modules: str) -> list[str]:
    """Return the text of each module's difference."""
    outlines = {n: unpack_outline(pack_outline(module, {})) for n, module in enumerate(modules)}
    return list(find_differences({n: outline for n, outline in outlines.items() if outline is not None}).values())


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a\nb\nc", "a\nx\nc", ["b", "x"]),
        ("a\nb", "a", ["b", "(its module ends before that)"]),
        ("%0 = add %a : f32", "%0 = mul %a : f32", ["add %a : f32", "mul %a : f32"]),
        ("%0:2 = f(1)", "%0 = f(1)", ["f(1)", "f(1)"]),
        ("  a", "a", []),
        ("", "", []),
    ],
)
def test_first_different_line_is_shown(one: str, other: str, expected: list[str]) -> None:
    """Each program shows its own line at the first place where they differ, without the number of the value."""
    assert describe_modules(one, other) == expected


def test_long_line_is_shown_around_its_difference() -> None:
    """A long line is shown only around its first different character."""
    one, other = ("(" + "x" * 1000 + f"sharding {axis}" + "y" * 800 for axis in "ab")
    for text, axis in zip(describe_modules(one, other), "ab", strict=True):
        assert f"sharding {axis}" in text
        assert len(text) < 200


def test_callback_difference_comes_with_hint() -> None:
    """Different callbacks are shown even far into a line, and the hint says how a callback may depend on the rank."""
    texts = describe_modules(*(f"host callback 0: {'x' * 300}{name}" for name in "fg"))
    assert all(text.startswith("host callback 0: …") for text in texts)
    votes, names = [Vote(0, 7), Vote(1, 9)], {7: "jit(f)", 9: "jit(f)"}
    text = format_mismatch(
        votes,
        names,
        number=1,
        cell_name="cell 4",
        source="",
        details=MismatchDetails(dict(zip((7, 9), texts, strict=True))),
    )
    assert "calls jax.process_index() itself." in text


def test_three_programs_are_compared_at_one_line() -> None:
    """All programs are compared at the first line that is not the same in all of them."""
    assert describe_modules("a\nb\nc", "a\nb\nd", "a\nb\nc\ne") == ["c", "d", "c"]


def test_different_variables_are_named_with_values() -> None:
    """Only variables that every program has, and whose values differ, are named."""
    one = Outline({"k": "2", "n": "7", "mine": "1"}, ["x"])
    other = Outline({"k": "3", "n": "7"}, ["x"])
    assert find_differences({1: one, 2: other}) == {1: "compiled where k = 2", 2: "compiled where k = 3"}


def test_outline_size_is_limited() -> None:
    """Of a module of many megabytes that compresses badly, only the first lines are kept."""
    rng = random.Random(0)  # noqa: S311 - no secret
    module = "\n".join(rng.randbytes(100).hex() for _ in range(30_000))
    packed = pack_outline(module, {"k": "2"})
    assert len(packed) <= MAX_PACKED_CHARS
    outline = unpack_outline(packed)
    assert outline is not None
    assert outline.names == {"k": "2"}
    assert outline.lines[0] == module.partition("\n")[0]


@pytest.mark.parametrize("broken", ["", "x", "AAAA", pack_outline("a", {})[:-6], "eJyLBQAAXgBe"])
def test_unreadable_outline_is_none(broken: str) -> None:
    """A text that is cut off, or that is not an outline, unpacks to None."""
    assert unpack_outline(broken) is None


def test_program_message_size_is_limited() -> None:
    """A rank of another host may send an outline of at most `MAX_PACKED_CHARS` characters."""
    message = DescribeProgram(5, pack_outline("a", {}))
    assert decode_from_rank(encode_from_rank(message), 1, 2) == message
    with pytest.raises(UnknownMessage):
        decode_from_rank(encode_from_rank(DescribeProgram(5, "x" * (MAX_PACKED_CHARS + 1))), 1, 2)


def test_mismatch_shows_differences_by_rank() -> None:
    """The differences follow the launches, one line per group; they are omitted if only one group's is known."""
    votes, names = [Vote(0, 7, (2,)), Vote(1, 9, (2,)), Vote(2, 9, (2,))], {7: "jit(f)", 9: "jit(f)"}
    for known, is_shown in (({7: "k = 2", 9: "k = 3"}, True), ({7: "k = 2"}, False)):
        text = format_mismatch(votes, names, number=1, cell_name="cell 4", source="", details=MismatchDetails(known))
        assert ("    rank 0      k = 2\n    ranks 1-2   k = 3" in text) is is_shown
