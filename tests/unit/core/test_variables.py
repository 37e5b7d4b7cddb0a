"""The ranks' variables side by side."""

from __future__ import annotations

from mhnb.core.typed_json import decode_json, encode_json
from mhnb.core.variables import VariableInfo, VariableRow, merge_variables

ARRAY = VariableInfo("global", "Array", "", (8, 4), "float32", "P('data', None)", (("data", 4), ("model", 2)), 32)
INT_ONE, INT_TWO = VariableInfo("host", "int", "1"), VariableInfo("host", "int", "2")


def test_equal_facts_are_one_group() -> None:
    """If all ranks have the same facts for a name, the row agrees and shows them."""
    (row,) = merge_variables({0: {"x": ARRAY}, 1: {"x": ARRAY}})
    assert row == VariableRow("x", (((0, 1), ARRAY),))
    assert row.agrees
    assert (row.kind, row.shape, row.dtype, row.spec, row.nbytes_per_device, row.differs) == (
        "global Array", (8, 4), "f32", "P('data', None)", 32, "",
    )  # fmt: skip


def test_most_common_facts_come_first() -> None:
    """If ranks differ, the largest group is shown and the others are named with their ranks."""
    (row,) = merge_variables({0: {"n": INT_TWO}, 1: {"n": INT_ONE}, 2: {"n": INT_ONE}})
    assert row.facts == INT_ONE
    assert not row.agrees
    assert row.differs == "int 2 on rank 0"


def test_ranks_without_the_name_are_named() -> None:
    """If some ranks lack a name, the row names those ranks."""
    (row,) = merge_variables({0: {}, 1: {"n": INT_ONE}, 2: {}})
    assert row.missing == (0, 2)
    assert row.differs == "missing on ranks 0,2"


def test_names_are_sorted() -> None:
    """Rows come in the order of their names."""
    assert [row.name for row in merge_variables({0: {"b": INT_ONE}, 1: {"c": INT_ONE, "a": INT_ONE}})] == [
        "a",
        "b",
        "c",
    ]


def test_variable_facts_round_trip() -> None:
    """Facts that are read back from JSON are unchanged."""
    assert [decode_json(encode_json(facts), VariableInfo) for facts in (ARRAY, INT_ONE)] == [
        ARRAY,
        INT_ONE,
    ]
