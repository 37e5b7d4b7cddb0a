"""What identifies a program: it is the same in every process, and differs for another program."""

from __future__ import annotations

import array
import datetime as dt
import functools
import json
import logging
import operator
import os
import subprocess
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhnb.rank.guard import callables
from mhnb.rank.guard.callables import describe_callable, per_rank
from mhnb.rank.guard.programs import canonicalize_module
from tests.support.source import ROOT

CORPUS = Path(__file__).with_name("program_corpus.py")


def _spawn(hash_seed: int, garbage: int, step: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, str(CORPUS), str(garbage), str(step)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


@pytest.fixture(scope="module", params=[5, pytest.param(1, marks=pytest.mark.soak)])
def digests(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """The digest of every fifth program of a kind, or of all, in two processes with different hash seeds and addresses."""
    processes = [_spawn(1, 0, request.param), _spawn(2, 300_000, request.param)]
    try:
        outputs = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    found = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert len(found[0]) >= (300 if request.param == 1 else 100)
    return found


@pytest.mark.timeout(540)
@pytest.mark.slow
def test_program_is_the_same_in_every_process(digests: list[dict[str, str]]) -> None:
    """No program of JAX, optax, flax or this suite contains text that differs between processes."""
    one, two = digests
    assert {name for name in one if one[name] != two[name]} == set()
    assert one.keys() == two.keys()


@pytest.mark.timeout(540)
@pytest.mark.slow
def test_different_programs_have_different_digests(digests: list[dict[str, str]]) -> None:
    """Programs that differ only in what they call back, or in how they are partitioned, are different programs."""
    by_name = digests[0]
    callback_digests = [digest for name, digest in by_name.items() if name.startswith("pure_callback")]
    assert len(set(callback_digests)) == len(callback_digests)
    assert by_name["custom_partitioning"] != by_name["custom_partitioning in scan"]


@pytest.mark.timeout(540)
@pytest.mark.requires_part("flax")
@pytest.mark.slow
def test_programs_of_flax_are_in_the_corpus(digests: list[dict[str, str]]) -> None:
    """Where flax is installed, its programs are compared too."""
    assert sum(name.startswith("flax") for name in digests[0]) >= 9


class Scale:
    """A callable object with a method."""

    def __init__(self, by: Any, kept: Any = None) -> None:
        self.by, self.kept = by, kept
        self.calls, self.seen = 0, [by]

    def __call__(self, value: float) -> Any:
        return value * self.by

    def add(self, value: float) -> Any:
        return value + self.by

    def record(self, value: float) -> float:
        self.calls += 1
        self.seen.append(value)
        return value + 1

    def add_all(self, value: float) -> Any:
        return sum([self.by, value]) + self.total

    def add_passed(self, value: float) -> float:
        return value + float(vars(self)["by"])

    @property
    def total(self) -> int:
        return len(self.seen)


class Slotted:
    """A callable object whose field is in a slot."""

    __slots__ = ("by", "unset")

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return value * self.by


class Wrapping:
    """A callable object that wraps a function, and has a field of its own."""

    def __init__(self, by: float) -> None:
        functools.update_wrapper(self, abs)
        self.by = by

    def __call__(self, value: float) -> float:
        return abs(value) * self.by


class Derived(Scale):
    """A class whose method calls that of its base."""

    def add(self, value: float) -> Any:
        return super().add(value) + 0.0


def hold(table: Any) -> Callable[[Any], Any]:
    """Return a closure that calls a method of an object."""
    return lambda value: table.add(value) + 1


@dataclass(frozen=True)
class Fixed:
    """A callable object whose fields do not change."""

    by: float

    def __call__(self, value: float) -> float:
        return value * self.by

    def add(self, value: float) -> float:
        return value + self.by


def make_closure(by: Any) -> Callable[[Any], Any]:
    """Return a closure."""
    return lambda value: value * by


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda v: v + 1, lambda v: v + 2),
        (lambda v: v + 1, lambda v: v - 1),
        (lambda v: v.real, lambda v: v.imag),
        (make_closure(2), make_closure(3)),
        (make_closure((1, "a")), make_closure((1, "b"))),
        (make_closure(np.sin), make_closure(np.cos)),
        (functools.partial(operator.add, 2), functools.partial(operator.add, 3)),
        (functools.partial(int, base=2), functools.partial(int, base=8)),
        (Scale(1).__call__, Scale(1).add),
        (np.sin, np.cos),
        (abs, round),
        ([].append, [].extend),
        (functools.lru_cache(make_closure(2)), functools.lru_cache(make_closure(3))),
        (lambda v, k=1: v + k, lambda v, k=2: v + k),
        (lambda v, *, k=1: v + k, lambda v, *, k=2: v + k),
        (make_closure(make_closure(2)), make_closure(make_closure(3))),
        (np.vectorize(lambda v: v * 2), np.vectorize(lambda v: v * 3)),
        (Fixed(2), Fixed(3)),
        (Fixed(2).add, Fixed(3).add),
        (operator.itemgetter(0), operator.itemgetter(1)),
        (functools.partial(np.multiply, np.float32(2)), functools.partial(np.multiply, np.float32(3))),
        (make_closure([1]), make_closure([2])),
        (make_closure({"a": [np.ones(2)]}), make_closure({"a": [np.zeros(2)]})),
        (make_closure(np.ones(9)), make_closure(np.zeros(9))),
        (make_closure(np.ones((3, 3))), make_closure(np.ones(9))),
        (make_closure(np.ones(2, np.int32)), make_closure(np.ones(2, np.uint32))),
        (make_closure(np.array(["a", None], object)), make_closure(np.array(["b", None], object))),
        (make_closure(np.array([("a", 1)], "O,i4")), make_closure(np.array([("b", 1)], "O,i4"))),
        (Wrapping(2), Wrapping(3)),
        (make_closure(np.ma.masked_array([1.0] * 9)), make_closure(np.ma.masked_array([2.0] * 9))),
        (make_closure({"a": 1}), make_closure({"a": 2})),
        (make_closure({1, 2}), make_closure({1, 3})),
        (make_closure(OrderedDict(a=1)), make_closure(OrderedDict(a=2))),
        (make_closure(Path("a.npy")), make_closure(Path("b.npy"))),
        (make_closure(dt.date(2020, 1, 1)), make_closure(dt.date(2021, 1, 1))),
        (make_closure(bytearray(b"a")), make_closure(bytearray(b"b"))),
        (make_closure(array.array("i", [1])), make_closure(array.array("i", [2]))),
        (make_closure(types.SimpleNamespace(k=1)), make_closure(types.SimpleNamespace(k=2))),
        (make_closure(np.float64(1)), make_closure(np.float64(2))),
        (Scale(1), Scale(2)),
        (Scale(np.ones(9)).add, Scale(np.zeros(9)).add),
        (Scale(1).add_passed, Scale(2).add_passed),
        (Scale(1).add_all, Scale(2).add_all),
        (Derived(1).add, Derived(2).add),
        (Slotted(1), Slotted(2)),
        (hold(Scale(1)), hold(Scale(2))),
        (hold(Scale(Scale(1))), hold(Scale(Scale(2)))),
        (functools.partial(Scale.add, Scale(1)), functools.partial(Scale.add, Scale(2))),
        ([1].append, [2].append),
        (np.ones(9).dot, np.zeros(9).dot),
        ({1: 2}.get, {1: 3}.get),
        (per_rank(Scale(1).add), per_rank(Scale(1).record)),
        (per_rank(np.sin), per_rank(np.cos)),
    ],
)
def test_different_callables_differ(one: Any, other: Any) -> None:
    """Another body, constant, default, closed-over value, partial argument, field or method makes another callable."""
    assert describe_callable(one) != describe_callable(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (make_closure(object()), make_closure(object())),
        (functools.partial(operator.add, object()), functools.partial(operator.add, object())),
        (make_closure(frozenset("abcdefgh")), make_closure(frozenset("hgfedcba"))),
        (make_closure({"a": 1, "b": 2}), make_closure({"b": 2, "a": 1})),
        (make_closure(logging.getLogger("a")), make_closure(logging.getLogger("b"))),
        (make_closure(np.random.default_rng(1)), make_closure(np.random.default_rng(2))),
        (make_closure(threading.Lock()), make_closure(threading.Lock())),
        (make_closure(threading.Thread(name="a")), make_closure(threading.Thread(name="b"))),
        (make_closure(iter([1])), make_closure(iter([2]))),
        (Scale(1, threading.Lock()).add, Scale(1, threading.Lock()).add),
        (make_closure([Scale(1, {"a": 1}), 2]), make_closure([Scale(1, {"a": 1}), 2])),
        (per_rank(make_closure(1)), per_rank(make_closure(2))),
        (per_rank(functools.partial(operator.add, 2)), per_rank(functools.partial(operator.add, 3))),
        (per_rank(Scale(1).add), per_rank(Scale(2).add)),
        (per_rank(Scale(1)), per_rank(Scale(None))),
    ],
)
def test_state_and_declared_values_do_not_count(one: Any, other: Any) -> None:
    """Locks, loggers, generators and threads count by type, and values that the user declares as the rank's not at all."""
    assert describe_callable(one) == describe_callable(other)
    assert "0x" not in describe_callable(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Scale(1, kept="a").add, Scale(1, kept="b").add),
        (Scale(1).record, Scale(2).record),
        (hold(Scale(1, kept="a")), hold(Scale(1, kept="b"))),
        (functools.partial(Scale.add, Scale(1, kept="a")), functools.partial(Scale.add, Scale(1, kept="b"))),
    ],
)
def test_fields_that_the_code_does_not_read_do_not_count(one: Any, other: Any) -> None:
    """A field that a method does not read, or only adds to, cannot change what it returns."""
    assert describe_callable(one) == describe_callable(other)


def test_container_that_a_closure_only_adds_to_does_not_count() -> None:
    """A list to which a closure only appends cannot change what it returns; one that it also reads counts."""

    def make(seen: list[int], *, reads: bool) -> Callable[[int], int]:
        def collect(value: int) -> int:
            seen.append(value)
            return value

        def average(value: int) -> int:
            seen.append(value)
            return sum(seen)

        return average if reads else collect

    assert describe_callable(make([1], reads=False)) == describe_callable(make([2], reads=False))
    assert describe_callable(make([1], reads=True)) != describe_callable(make([2], reads=True))


def test_array_of_jax_counts_by_its_content() -> None:
    """Arrays and keys of JAX count by their content, and a deleted array by its type."""
    import jax
    import jax.numpy as jnp

    values = [jnp.arange(9.0), jnp.zeros(9), jax.random.key(0), jax.random.key(1), jnp.zeros(9, jnp.bfloat16)]
    assert len({describe_callable(make_closure(value)) for value in values}) == len(values)
    assert describe_callable(make_closure(jnp.zeros(9))) == describe_callable(make_closure(jnp.zeros(9)))
    values[0].delete()
    assert "by=float32[9]]" in describe_callable(make_closure(values[0]))


def test_large_arrays_are_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an array above the limit only evenly spaced rows count."""
    monkeypatch.setattr(callables, "_MOST_HASHED_NBYTES", 400)
    base = np.zeros((100, 2))
    first, skipped = base.copy(), base.copy()
    first[0], skipped[1] = 1, 1
    assert describe_callable(make_closure(first)) != describe_callable(make_closure(base))
    assert describe_callable(make_closure(skipped)) == describe_callable(make_closure(base))


def test_many_values_are_described_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit only the number of values counts, and of a set nothing else, because its order is the process's."""
    monkeypatch.setattr(callables, "_MOST_ITEMS", 20)
    assert describe_callable(make_closure(list(range(99)))) == describe_callable(make_closure([*range(98), 0]))
    assert describe_callable(make_closure(list(range(99)))) != describe_callable(make_closure([1, *range(1, 99)]))
    assert describe_callable(make_closure(list(range(99)))) != describe_callable(make_closure(list(range(98))))
    assert describe_callable(make_closure(set(range(99)))) == describe_callable(make_closure(set(range(1, 100))))


def test_description_of_a_cyclic_object_ends() -> None:
    """Objects that hold each other are described once each."""
    nodes: list[Any] = [Scale(n) for n in range(50)]
    for node in nodes:
        node.others = [each.add_passed for each in nodes]
    assert len(describe_callable(make_closure(nodes))) < 2000


def test_location_of_a_function_does_not_count() -> None:
    """The same code in another file and on another line is the same callable."""
    found = []
    for file, above in (("/tmp/1/a.py", ""), ("/tmp/2/b.py", "\n\n\n")):
        scope: dict[str, Any] = {"__name__": "cell"}
        exec(compile(f"{above}f = lambda v: [w for w in v if w in {{'a', 'b'}}]", file, "exec"), scope)
        found.append(describe_callable(scope["f"]))
    assert found[0] == found[1]


def test_description_of_a_recursive_callable_ends() -> None:
    """A closure over itself and a deep chain of partials are described only up to a limit."""

    def again(value: float) -> float:
        return again(value - 1) if value else 0.0

    chain: Any = again
    for _ in range(100):
        chain = functools.partial(chain, 1)
    assert "again" in describe_callable(again)
    assert len(describe_callable(chain)) < 10_000


def test_long_constants_are_hashed() -> None:
    """A closed-over text of a megabyte is identified by its hash, and not written out."""
    one, other = (describe_callable(make_closure("x" * 1_000_000 + end)) for end in "ab")
    assert one != other
    assert len(one) < 1000


def test_object_with_computed_attributes_runs_no_code() -> None:
    """A callable object whose class raises for every attribute is described by its type."""

    class Hostile:
        by = 1

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __hash__(self) -> int:
            raise RuntimeError

        def __call__(self) -> None:
            """Make the object callable."""

    assert "Hostile" in describe_callable(Hostile())
    assert "Hostile" in describe_callable(make_closure([Hostile()]))


def test_numbers_that_are_not_addresses_stay() -> None:
    """Only an attribute that contains just the address of a kept object is replaced."""
    kept = object()
    text = f'backend_config = "{id(kept)}", x = "{id(kept)}", backend_config = "17"'
    assert canonicalize_module(text, (), [kept]) == (
        f'backend_config = "builtins.object", x = "{id(kept)}", backend_config = "17"'
    )
