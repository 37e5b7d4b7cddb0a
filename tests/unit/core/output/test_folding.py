"""Grouping of the ranks' outputs: which ranks share a block, and that no value is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.output.folding import OutputGroup, RichPart, TextPart, find_majority, group_outputs
from mhnb.core.output.normal_form import ORDER_MARK
from mhnb.core.output.template import parse_number, split_numbers
from mhnb.types import Output


def stream(text: str, name: str = "stdout") -> Output:
    """Return a stream output."""
    return {"output_type": "stream", "name": name, "text": text}


def figure(data: str) -> Output:
    """Return a picture output."""
    return {"output_type": "display_data", "data": {"image/png": data, "text/plain": "<Figure>"}, "metadata": {}}


def group_texts(*texts: str) -> tuple[OutputGroup, ...]:
    """Group one text per rank."""
    return group_outputs([((rank,), [stream(text)]) for rank, text in enumerate(texts)])


def display_texts(block: OutputGroup) -> list[str]:
    """Return the texts of a block as displayed."""
    return [part.template.display_text() for part in block.parts if isinstance(part, TextPart)]


WORDS = st.sampled_from(
    [
        "loss",
        " ",
        "\n",
        "rank",
        "-",
        ".",
        "0",
        "1",
        "2",
        "3",
        "17",
        "0.5",
        "1e-3",
        "nan",
        "inf",
        "[8.  9.]",
        "|██ |",
        "x7",
        " ms",
        "µs",
        " s",
        "1min 2s",
        " loop each",
        "1,000 loops each",
        "\x1b[31m",
    ]
)
TEXTS = st.lists(WORDS, max_size=12).map("".join)


@given(TEXTS)
def test_skeleton_and_numbers_restore_the_text(text: str) -> None:
    """Skeleton and numbers, joined again, are the text, whatever it contains."""
    skeleton, numbers = split_numbers(text)
    assert "".join(a + b for a, b in zip(skeleton, [*numbers, ""], strict=True)) == text


@given(st.lists(st.lists(TEXTS, max_size=2), min_size=1, max_size=6))
def test_no_value_is_lost(texts: list[list[str]]) -> None:
    """The grouped form restores every rank's outputs, and every rank is in exactly one block."""
    outputs_by_ranks = [
        ((rank,), [stream(text, name) for text, name in zip(texts_of_rank, ("stdout", "stderr"), strict=False)])
        for rank, texts_of_rank in enumerate(texts)
    ]
    blocks = group_outputs(outputs_by_ranks)
    assert sorted(rank for block in blocks for rank in block.ranks) == list(range(len(texts)))
    for (rank,), outputs in outputs_by_ranks:
        (block,) = [block for block in blocks if rank in block.ranks]
        assert list(block.outputs_of(rank)) == outputs


@given(st.lists(st.sampled_from([0.25, 0.5, 7.0]), min_size=2, max_size=8), st.booleans())
def test_texts_that_differ_in_numbers_never_lose_one(losses: list[float], named: bool) -> None:  # noqa: FBT001
    """The texts are of the kind that training prints, with and without the rank's own number."""
    texts = [f"{f'rank {rank} ' if named else ''}loss {loss} of {len(losses)}\n" for rank, loss in enumerate(losses)]
    blocks = group_texts(*texts)
    assert [block.outputs_of(r)[0]["text"] for r in range(len(losses)) for block in blocks if r in block.ranks] == texts


NUMBERS = st.sampled_from(["0", "1", "2", "7", " 7", "  12", "-3", " -3", "0.25", "1e-05", "nan", "|██ |", "|█  |"])


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=12))
def test_one_skeleton_with_any_numbers_loses_nothing(numbers: list[list[str]]) -> None:
    """Each rank's text is restored exactly, with padding, signs and bars, whichever ranks share a block."""
    texts = [f"a:{first} b{second}%{third}\nend" for first, second, third in numbers]
    blocks = group_texts(*texts)
    restored = {rank: block.outputs_of(rank)[0]["text"] for block in blocks for rank in block.ranks}
    assert [restored[rank] for rank in range(len(texts))] == texts


def test_own_rank_number_shares_a_block() -> None:
    """The ranks share one block, with the literal text around the number."""
    (block,) = group_texts(*[f"process {rank} of 4: local devices {rank}:0 {rank}:1\n" for rank in range(4)])
    assert display_texts(block) == ["process ‹rank› of 4: local devices ‹rank›:0 ‹rank›:1\n"]
    assert not block.has_differences
    assert not block.is_literal


@pytest.mark.parametrize("form", ["Array([{0}., {0}., {0}.])", "Array({0}., dtype=float32)", "x [{0}. {0}. 7.]"])
def test_own_rank_number_in_an_array_shares_a_block(form: str) -> None:
    """The dot of a float stays behind the number, at the end of a list as between its items."""
    (block,) = group_texts(*[form.format(rank) for rank in range(4)])
    assert display_texts(block) == [form.format("‹rank›")]
    assert not block.has_differences


def test_integer_among_floats_is_separate() -> None:
    """The dot indicates another dtype."""
    blocks = group_texts("x [0.]", "x [1.]", "x [2]", "x [3.]")
    assert [block.ranks for block in blocks] == [(0, 1, 3), (2,)]


def test_whole_float_shares_a_block_with_fractions() -> None:
    """`1.` on one rank and `1.5` on another share a block, whatever follows them in the array."""
    (block,) = group_texts("Array([1., 2.])", "Array([1.5, 2. ])", "Array([0.5, 2. ])")
    (part,) = block.parts
    assert isinstance(part, TextPart)
    assert [slot.values for slot in part.template.varying] == [("1.", "1.5", "0.5")]


def test_set_in_another_order_shares_a_block() -> None:
    """Two ranks that differ in the order of a set, and in a number, share a block that marks the set; no text is lost."""
    texts = ["rank 0 of {'a', 'b'}: loss 0.5\n", "rank 1 of {'b', 'a'}: loss 0.25\n"]
    (block,) = group_texts(*texts)
    assert display_texts(block) == [f"rank ‹rank› of {{'a', 'b'}} {ORDER_MARK}: loss 0.5\n"]
    assert [block.outputs_of(rank)[0]["text"] for rank in (0, 1)] == texts
    assert block.has_differences
    assert not block.is_literal


@pytest.mark.parametrize("other", ["{'b', 'a'}", "warn {'b', 'a'} 1"])
def test_ranks_that_agree_about_a_set_have_no_mark(other: str) -> None:
    """The order of a set in another rank's other text does not count, and that text keeps its own."""
    texts = ["{'a', 'b'} 1", "{'a', 'b'} 1", "{'a', 'b'} 1", other]
    blocks = group_texts(*texts)
    assert [block.ranks for block in blocks] == [(0, 1, 2), (3,)]
    assert [display_texts(block) for block in blocks] == [[texts[0]], [other]]
    assert all(block.is_literal for block in blocks)


def test_sets_are_compared_by_output() -> None:
    """Every rank displays a set in two orders, which are those of the other rank."""
    shown = [stream("{'a', 'b'}"), stream("{'b', 'a'}", "stderr")]
    (block,) = group_outputs([((0,), [*shown, stream("loss 1")]), ((1,), [*shown, stream("loss 2")])])
    assert display_texts(block)[:2] == ["{'a', 'b'}", "{'b', 'a'}"]


@pytest.mark.parametrize(
    "form",
    [
        "import {{ {}, {} }} from 'x'",
        'record {{"id": "it\'s {}", "names": ["{}"]}}',
        "const f = ({{ {},\n {} }}) => {{ return {{ 1, 2 }} }}",
        "{{'{}', '{}' <f at 0x7f0123456789>",
    ],
)
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("x'", "y")])
def test_shown_text_is_one_that_a_rank_wrote(form: str, names: tuple[str, str]) -> None:
    """Apart from the mark, each block shows a text of its first rank, also if it is code or JSON."""
    texts = [form.format("a", "b"), form.format(*names)]
    for block in group_texts(*texts):
        (text,) = display_texts(block)
        assert text.replace(f" {ORDER_MARK}", "") == texts[block.ranks[0]]
        assert [block.outputs_of(rank)[0]["text"] for rank in block.ranks] == [texts[rank] for rank in block.ranks]


def test_rank_that_differs_from_a_majority_with_several_orders() -> None:
    """A set that has several orders on the majority's ranks does not separate a rank with another number further."""
    orders = ("{'a', 'b'}", "{'b', 'a'}")
    blocks = group_texts(*(f"{orders[rank % 2]} loss {0.7 if rank == 2 else 0.3}" for rank in range(4)))
    assert [block.ranks for block in blocks] == [(0, 1, 3), (2,)]
    assert [block.has_differences for block in blocks] == [True, False]


def test_numbers_listed_by_rank_may_share_an_order() -> None:
    """Ranks that are equal but for the order of a set share a block, also where lines of numbers have blocks of their own."""
    texts = [f"{{'a', 'b'}} {n} {n} {n} {n}" for n in (5, 6)] + ["{'b', 'a'} 5 5 5 5"]
    assert [block.ranks for block in group_texts(*texts)] == [(0, 2), (1,)]


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("no file /tmp/{}/x.npy", ("tmp4z4rv05h", "tmp__l0tpmu")),
        ("job {} runs", ("3f2b1c4d-aaaa-4bbb-8ccc-0123456789ab", "00000000-aaaa-4bbb-8ccc-0123456789ab")),
        ("store_{}.bin", ("ea8ce7f93ce448f7", "bb030eeb66dc4add")),
        ("buffer {} of 4", ("0x7f4591e20830", "0x7f459081c820")),
        ("run {}", ("1d2345ab min", "77aabbccd0 min")),
    ],
)
def test_random_name_is_a_number(form: str, names: tuple[str, str]) -> None:
    """Texts that differ in a random name are one block that lists the names."""
    (block,) = group_texts(*map(form.format, names))
    (part,) = block.parts
    assert isinstance(part, TextPart)
    (slot,) = part.template.slots
    assert slot.values == tuple(name.removesuffix(" min") for name in names)
    assert slot.numbers == (None, None)


@pytest.mark.parametrize(
    ("one", "other"), [("decade", "facade"), ("tmp_metrics", "tmp_results"), ("deadbeef", "feedface")]
)
def test_word_is_not_a_random_name(one: str, other: str) -> None:
    """A word of a few letters that a hexadecimal number has too is text."""
    assert len(group_texts(f"saved {one}", f"saved {other}")) == 2


def test_padded_own_rank_number_shares_a_block() -> None:
    """Padding to a common width is not a difference."""
    (block,) = group_texts(*[f"rank {rank:2d} ready" for rank in range(12)])
    assert display_texts(block) == ["rank ‹rank› ready"]


def test_rank_that_differs_is_beside_the_majority() -> None:
    """This also holds if the line contains the rank's own number."""
    blocks = group_texts(*[f"rank {rank}: loss {0.7 if rank == 2 else 0.3}" for rank in range(4)])
    assert [block.ranks for block in blocks] == [(0, 1, 3), (2,)]
    majority = find_majority(blocks)
    assert majority is not None
    assert display_texts(majority) == ["rank ‹rank›: loss 0.3"]


def test_rank_that_prints_another_number_is_separate() -> None:
    """Three ranks print their own number, one does not."""
    blocks = group_texts("process 0", "process 1", "process 9", "process 3")
    assert [block.ranks for block in blocks] == [(0, 1, 3), (2,)]


def test_numbers_without_majority_become_a_template() -> None:
    """Every rank has a different loss, so one block shows all values."""
    (block,) = group_texts("loss 0.1 of 4", "loss 0.2 of 4", "loss nan of 4", "loss 10 of 4")
    (part,) = block.parts
    assert isinstance(part, TextPart)
    assert part.template.literals == ("loss ", " of 4")
    assert part.template.slots[0].values == ("0.1", "0.2", "nan", "10")
    assert part.template.slots[0].outliers == {2}


def test_many_ranks_that_differ_share_a_block() -> None:
    """There is a majority of 40 ranks, and 24 ranks with different numbers."""
    blocks = group_texts(*["loss 1" for _ in range(40)], *[f"loss {rank}.5" for rank in range(24)])
    assert [len(block.ranks) for block in blocks] == [40, 24]


def test_different_words_are_separate() -> None:
    """Only numbers may differ within a block."""
    assert [block.ranks for block in group_texts("saved a", "saved b")] == [(0,), (1,)]


def test_escape_sequences_are_not_numbers() -> None:
    """The digits of an escape sequence stay in the text."""
    (block,) = group_texts("\x1b[31mx 1\x1b[0m", "\x1b[31mx 2\x1b[0m")
    assert display_texts(block) == ["\x1b[31mx 1\x1b[0m"]


def test_equal_pictures_are_kept_once() -> None:
    """The texts differ in a number, and the figure is the same."""
    (block,) = group_outputs([((rank,), [stream(f"loss {rank}.5"), figure("AAAA")]) for rank in range(3)])
    picture = block.parts[1]
    assert isinstance(picture, RichPart)
    assert [ranks for ranks, _ in picture.variants] == [(0, 1, 2)]


def test_different_pictures_of_one_text_share_a_block() -> None:
    """Each picture is shown with its ranks."""
    (block,) = group_outputs([((rank,), [stream("plot\n"), figure(f"AAA{rank % 2}")]) for rank in range(4)])
    picture = block.parts[1]
    assert isinstance(picture, RichPart)
    assert [ranks for ranks, _ in picture.variants] == [(0, 2), (1, 3)]
    assert block.has_differences


def test_bare_numbers_of_few_ranks_are_separate() -> None:
    """A template without words says less than the numbers; for many ranks it is used nevertheless."""
    assert [display_texts(block) for block in group_texts("10", "11", "12")] == [["10"], ["11"], ["12"]]
    assert [display_texts(block) for block in group_texts("0", "1")] == [["0"], ["1"]]
    assert len(group_texts(*[str(rank * 2) for rank in range(20)])) == 1


UNITS = st.sampled_from(["0 ns", "940 µs", "1.01 ms", "1ms", "2 s", "1min 2s", "3 m", "nan s"])


@given(st.lists(st.lists(UNITS, min_size=2, max_size=2), min_size=2, max_size=8))
def test_durations_of_any_units_lose_nothing(durations: list[list[str]]) -> None:
    """Each rank's text is restored with its own unit, whichever ranks share a block."""
    texts = [f"CPU times: user {first}, total: {second}\n" for first, second in durations]
    restored = {rank: block.outputs_of(rank)[0]["text"] for block in group_texts(*texts) for rank in block.ranks}
    assert [restored[rank] for rank in range(len(texts))] == texts


TIMED = [
    ["Wall time: 940 μs\n", "Wall time: 1.01 ms\n", "Wall time: 1.2 s\n"],
    ["Wall time: 59.1 s\n", "Wall time: 1min 2s\n", "Wall time: 2h 1s\n"],
    [
        "1.2 s ± 3 ms per loop, 1 loop each",
        "90 ms ± 9 μs per loop, 10 loops each",
        "8 ns ± 1 ns per loop, 1,000 loops each",
    ],
]


@pytest.mark.parametrize("texts", TIMED, ids=["wall", "long", "timeit"])
def test_durations_in_different_units_share_a_block(texts: list[str]) -> None:
    """Another unit separates no rank: one block shows each rank's duration."""
    (block,) = group_texts(*texts)
    assert block.ranks == (0, 1, 2)
    assert block.has_differences


def test_unit_joins_its_number_only_if_units_differ() -> None:
    """A unit that all ranks print stays in the line's text."""
    (block,) = group_texts("user 2 ms, wall 940 µs", "user 3 ms, wall 1.01 ms", "user 4 ms, wall 2 s")
    (part,) = block.parts
    assert isinstance(part, TextPart)
    assert part.template.literals == ("user ", " ms, wall ", "")
    assert [slot.values for slot in part.template.slots] == [("2", "3", "4"), ("940 µs", "1.01 ms", "2 s")]
    assert part.template.slots[1].numbers == (940 * 1e-6, 1.01 * 1e-3, 2.0)


def test_own_rank_number_before_a_unit_shares_a_block() -> None:
    """A cell with `sleep(jax.process_index())` prints such lines."""
    (block,) = group_texts(*[f"slept {rank} s" for rank in range(4)])
    assert display_texts(block) == ["slept ‹rank› s"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ran 3 m", "ran 4 km"),
        ("ran 3 s", "ran 4 m"),
        ("ran 3 s", "ran 4"),
        ("took 1 s", "took 2 steps"),
        ("took 1 sg", "took 2 msg"),
        ("took 1 s-ticks", "took 2 ms-ticks"),
        ("saved shard_3 s", "saved shard_4 ms"),
        ("did 1 loop", "did 2 loops"),
        ("did 1 loop each", "did 2 s each"),
        ("waited 2d", "waited 3h"),
    ],
)
def test_word_that_is_not_a_time_unit_separates_ranks(one: str, other: str) -> None:
    """Only units of time, whole words at once behind a number, may differ within a block."""
    assert [block.ranks for block in group_texts(one, other)] == [(0,), (1,)]


PADDED = st.sampled_from(["0.1", "0.1 ", "0.1  ", "-2.", " 10", "10 ", "1 s ", "  3", "x  "])


@given(st.lists(st.lists(PADDED, min_size=2, max_size=2), min_size=2, max_size=8))
def test_padding_loses_nothing(numbers: list[list[str]]) -> None:
    """Each rank's text is restored with its own blanks, whichever ranks share a block."""
    texts = [f"Array([{first}, {second}], dtype=float32)  {first} rows" for first, second in numbers]
    restored = {rank: block.outputs_of(rank)[0]["text"] for block in group_texts(*texts) for rank in block.ranks}
    assert [restored[rank] for rank in range(len(texts))] == texts


@pytest.mark.parametrize(
    "texts",
    [
        ["Array([0.12345, 1.5      ])", "Array([1.2849895 , 0.123])", "Array([-0.12,  1.25])"],
        ["x [[0.1  1. ]\n [0.25 1. ]]", "x [[0.123 1.   ]\n [0.25  1.   ]]", "x [[0.5 1. ]\n [0.2 1. ]]"],
        ["1      steps\n", "10     steps\n", "100    steps\n"],
    ],
    ids=["list", "matrix", "column"],
)
def test_padding_for_wider_numbers_separates_no_rank(texts: list[str]) -> None:
    """NumPy aligns what it prints in columns, so different numbers have different blanks behind them."""
    (block,) = group_texts(*texts)
    assert block.ranks == (0, 1, 2)


def test_padding_alone_does_not_make_a_number_differ() -> None:
    """All ranks print the same number; if nothing else differs, the blanks are the difference."""
    (block,) = group_texts("x [0.1 2. ]", "x [0.123 2.   ]")
    (part,) = block.parts
    assert isinstance(part, TextPart)
    assert [slot.values for slot in part.template.varying] == [("0.1", "0.123")]
    assert [one.ranks for one in group_texts("x 1", "x  1", "x 1")] == [(0, 2), (1,)]
    assert group_texts("x 1", "x  1")[0].has_differences


@pytest.mark.parametrize(("one", "other"), [("ran 3km", "ran 4 km"), ("x 3;", "x 4 ;"), ("a  3", "b 4")])
def test_blanks_that_pad_no_number_separate_ranks(one: str, other: str) -> None:
    """A blank before a word, or where no list, table or line ends, is text."""
    assert [block.ranks for block in group_texts(one, other)] == [(0,), (1,)]


def test_different_unit_with_equal_number_is_separate() -> None:
    """The unit counts if the numbers are the same."""
    assert [block.ranks for block in group_texts(*["limit 1 s"] * 3, "limit 1 ms")] == [(0, 1, 2), (3,)]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("shard|     100|rows", ["     100"]),
        ("|   10 | 0.50 | 2 |", ["   10", " 0.50", " 2"]),
        (" 10%|█         | 1/10", [" 10", "|█         |", " 1", "10"]),
        ("  0%|          | 0/10", ["  0", "|          |", " 0", "10"]),
    ],
)
def test_bar_follows_a_percentage(text: str, numbers: list[str]) -> None:
    """Numbers between pipes belong to a table, and are treated like any other number."""
    assert split_numbers(text)[1] == numbers


@pytest.mark.parametrize("text", ["123e4567-e89b-12d3", "1e23a567", "0x7f5537d4e188", "deadbeef4e999x"])
def test_part_of_an_id_is_not_infinity(text: str) -> None:
    """Otherwise part of an id would be read as an infinite number."""
    assert all(math.isfinite(number) for value in split_numbers(text)[1] if (number := parse_number(value)) is not None)


@pytest.mark.parametrize("text", ["1e-3", "-1.5e-07", "2E+10", "1e5"])
def test_an_exponent_is_part_of_its_number(text: str) -> None:
    """This also holds before the j of an imaginary number, and at the end of a list."""
    assert split_numbers(f"x {text}j")[1] == [f" {text}"]
    assert split_numbers(f"[{text}]")[1] == [text]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [" ", "1,000", "1,", " -", "1. ", "1min ", "%|", "%| ", "1e", "9", "\x1b["])
@pytest.mark.slow
def test_long_run_is_parsed_in_linear_time(piece: str) -> None:
    """A search that restarts at each blank of a run takes quadratic time, which would be hours here."""
    text = f"x{piece * 200_000}y 1 loops"
    skeleton, numbers = split_numbers(text)
    assert "".join(part for pair in zip(skeleton, [*numbers, ""], strict=True) for part in pair) == text
