"""What an error's site says about the values in the failing line, without running code of theirs."""

from __future__ import annotations

import linecache
import sys
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mhnb.core.error_site import ErrorSite
from mhnb.rank.execution.tracebacks import find_array_names, find_error_site

SHARDING = SimpleNamespace(device_set=[SimpleNamespace(id=0)], addressable_devices=set())
FACTS = {
    "is_fully_addressable": False,
    "is_fully_replicated": False,
    "sharding": SHARDING,
    "shape": (8,),
    "dtype": np.dtype("f4"),
}
GLOBAL = type("ArrayImpl", (), {"__module__": "jax", **FACTS})()
"""Stands for a global array of JAX, which one process cannot have."""


def find_site(value: Any, monkeypatch: pytest.MonkeyPatch) -> ErrorSite:
    """Return the site of an error in NumPy, in a line of a cell that uses the value as `t`."""
    line = "np.broadcast_to(np.ones(3), 2 if t is None else 4)"
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(line), None, [line], "<cell 1>"))
    with pytest.raises(ValueError, match="could not be broadcast") as caught:
        exec(compile(line, "<cell 1>", "exec"), {"np": np, "t": value})
    return find_error_site(caught.value)


def find_names(code: str, arrays: list[object]) -> list[str]:
    """Return the names of arrays as a cell that calls `look()` sees them; `a` and `b` are the first two."""
    found = dict[int, str]()
    namespace: dict[Any, Any] = {
        "look": lambda: found.update(find_array_names(arrays, sys._getframe())),
        "_1": arrays[0],
        "Out": arrays,
        7: arrays[0],
        "hidden": make_circular(),
        "a": arrays[0],
        "b": arrays[1],
    }
    linecache.cache["<cell 1>"] = (len(code), None, code.splitlines(True), "<cell 1>")
    exec(compile(code, "<cell 1>", "exec"), namespace)
    del linecache.cache["<cell 1>"]
    return [found.get(id(array), "") for array in arrays]


def test_arrays_are_named_as_the_innermost_line_sees_them() -> None:
    """Names of that line come first, then other local ones and those of callers; no name is IPython's own."""
    arrays: list[object] = [object(), object(), object()]
    assert find_names("look()", arrays) == ["a", "b", ""]
    assert find_names("c = a\nlook(), c", arrays) == ["c", "b", ""]
    assert find_names("def f(w):\n    look()\nf({'k': [b]})", arrays) == ["a", "w['k'][0]", ""]
    assert find_names("def f(w):\n    look()\ndef g(v):\n    f(1)\ng(b)", arrays) == ["a", "v", ""]
    assert find_names("class A:\n    c = b\n    look()", arrays) == ["a", "b", ""]
    assert find_array_names(arrays, None) == {}


def test_naming_an_array_runs_no_code_of_the_users() -> None:
    """A container of the user's own is not entered, and nothing is compared."""

    class Tree(dict[str, object]):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None

    tree = Tree()
    dict.__setitem__(tree, "w", GLOBAL)
    assert find_names("look()", [tree, GLOBAL]) == ["a", "b"]


def make_nested(levels: int) -> list[Any]:
    """Return a list without values that has 2 ** levels lists."""
    nested = list[Any]()
    for _ in range(levels):
        nested = [nested, nested]
    return nested


def make_circular() -> list[Any]:
    """Return a list that contains itself."""
    circular = [GLOBAL]
    circular.append(circular)
    return circular


def test_tree_is_described_by_its_global_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first array has its path, and a value of another kind makes the tree uneven."""
    site = find_site({"a": [None, (1, GLOBAL)], "b": GLOBAL}, monkeypatch)
    assert site.trees == {"t": ("t['a'][1][1]", 2, False)}
    assert site.arrays["t['a'][1][1]"].shape == (8,)
    assert find_site([GLOBAL, {"a": GLOBAL}], monkeypatch).trees == {"t": ("t[0]", 2, True)}


@pytest.mark.parametrize("large", [make_nested(60), make_circular(), [GLOBAL] * 2000, [[None] * 2000, GLOBAL]])
def test_large_tree_is_not_described(large: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that contain each other many times, or themselves, end the search as many values do: a rank waits for it."""
    site = find_site(large, monkeypatch)
    assert site.names == {"t": False}
    assert site.trees == {}


def test_array_of_booleans_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint about a mask needs to know that an array has booleans."""
    array = jnp.arange(3)
    assert not find_site(array, monkeypatch).arrays["t"].is_bool
    assert find_site(array > 1, monkeypatch).arrays["t"].is_bool


def test_array_on_other_ranks_has_no_shard_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that reads this rank's part needs to know that there is one."""
    assert find_site(jnp.arange(3), monkeypatch).arrays["t"].has_shard
    assert not find_site([GLOBAL], monkeypatch).arrays["t[0]"].has_shard


def test_classes_of_values_run_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of a value may compute its own name, module and bases, and compare itself as it likes."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(cls, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    class Odd(metaclass=Meta):
        def __array__(self) -> Any:
            raise AssertionError

    assert find_site(Odd(), monkeypatch).names == {"t": False}
    assert find_site([Odd(), GLOBAL], monkeypatch).trees == {"t": ("t[1]", 1, False)}
