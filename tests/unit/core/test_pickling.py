"""Values and their pickles: arrays are stored separately, sharing is preserved, and missing definitions are named."""

from __future__ import annotations

import collections
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.pickling import MissingDefinition, dump_value, load_value

values = st.recursive(
    st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


def _claim_nothing(_: object) -> None:
    """Leave everything in the pickle."""


@given(values)
def test_value_round_trip(value: Any) -> None:
    """A value that is packed without claimed objects is restored unchanged."""
    assert load_value(dump_value(value, _claim_nothing).skeleton, ()) == value


def test_a_claimed_object_stays_one_object() -> None:
    """An object that is used in two places is restored as one object in both."""
    leaf, arrived = object(), object()
    packed = dump_value([leaf, {"again": leaf}], lambda obj: 0 if obj is leaf else None)
    first, rest = load_value(packed.skeleton, [arrived])
    assert first is arrived
    assert rest["again"] is arrived


def test_raw_buffers_are_separate() -> None:
    """Buffers that pickle passes out of band are not in the pickle, and are writable again if their bytes are."""
    content = bytearray(b"x" * 1000)
    packed = dump_value(pickle.PickleBuffer(content), _claim_nothing)
    assert packed.skeleton.nbytes < 100
    loaded = load_value(packed.skeleton, (), [bytearray(packed.buffers[0])])
    assert bytes(loaded) == content


def test_names_of_the_users_module_come_from_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of `__main__` is looked up in the namespace given."""
    point = collections.namedtuple("point", "x")
    point.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "point", point, raising=False)
    packed = dump_value(point(3), _claim_nothing)
    assert load_value(packed.skeleton, (), main_namespace={"point": point}).x == 3
    with pytest.raises(MissingDefinition, match=r"__main__\.point") as caught:
        load_value(packed.skeleton, (), main_namespace={})
    assert (caught.value.module, caught.value.qualname) == ("__main__", "point")


def test_missing_module_is_named() -> None:
    """A class of a module that cannot be imported raises an error with module and name."""
    with pytest.raises(MissingDefinition, match=r"no_such_module\.Thing"):
        load_value(b"cno_such_module\nThing\n.", ())
