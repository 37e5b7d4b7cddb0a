"""How a rank's text differs from the majority's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.diff import DiffSpan, apply_rows, compare_lines, compare_words

LINES = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.lists(st.sampled_from(["a", "b", " ", "1", "2.5", "é"]), max_size=5).map("".join),
    ),
    max_size=8,
)


@given(LINES, LINES)
def test_a_difference_loses_nothing(here: list[tuple[str, str]], there: list[tuple[str, str]]) -> None:
    """The rows and the majority's lines restore the other text, and each changed line has both sides."""
    rows = compare_lines(here, there)
    assert apply_rows(rows, there) == here
    majority_lines = [row.there for row in rows if row.kind in ("changed", "missing")]
    equal = sum(row.count for row in rows if row.kind == "same")
    assert len(majority_lines) + equal == len(there)


def test_number_is_compared_as_one_word() -> None:
    """0.731 differs from 0.312 as a whole, not in its digits."""
    assert [(s.here, s.there) for s in compare_words("loss 0.731", "loss 0.312")] == [
        ("loss ", None),
        ("0.731", "0.312"),
    ]


def test_lines_that_have_little_in_common_are_not_paired() -> None:
    """One line is added, the other is missing."""
    rows = compare_lines([("stdout", "checkpoint written")], [("stdout", "loss 0.3")])
    assert [row.kind for row in rows] == ["missing", "added"]


def test_equal_lines_are_counted() -> None:
    """A long text that differs in one line takes three rows."""
    there = [("stdout", f"step {n}") for n in range(100_000)]
    here = [*there[:500], ("stdout", "step 500 was late"), *there[501:]]
    assert [(row.kind, row.count) for row in compare_lines(here, there)] == [
        ("same", 500),
        ("changed", 1),
        ("same", 99_499),
    ]


def test_unrelated_texts_are_compared_quickly() -> None:
    """Such texts are paired by position instead of being searched."""
    here, there = ([("stdout", f"{word} {n}") for n in range(3000)] for word in ("left", "right"))
    assert {row.kind for row in compare_lines(list(here), list(there))} <= {"missing", "added", "changed"}


def test_one_different_word_in_a_long_line_is_found() -> None:
    """The number of words before and after it does not matter."""
    words = [f"w{at}" for at in range(5000)]
    there = " ".join(words)
    here = there.replace("w2500", "other")
    assert [span for span in compare_words(here, there) if span.there is not None] == [DiffSpan("other", "w2500")]
    assert "".join(span.here for span in compare_words(here, there)) == here
