"""What identifies a program: it is the same in every process, and differs for another program."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhnb.rank.guard.programs import canonicalize_module, describe_callable
from tests.support.source import ROOT

CORPUS = Path(__file__).with_name("program_corpus.py")


def _spawn(hash_seed: int, garbage: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, str(CORPUS), str(garbage)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


@pytest.fixture(scope="module")
def digests() -> list[dict[str, str]]:
    """The digest of each program of the corpus in two processes with different hash seeds and addresses."""
    processes = [_spawn(1, 0), _spawn(2, 300_000)]
    try:
        outputs = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.timeout(540)
def test_program_is_the_same_in_every_process(digests: list[dict[str, str]]) -> None:
    """No program of JAX, optax, flax or this suite contains text that differs between processes."""
    one, two = digests
    assert len(one) >= 300
    assert {name for name in one if one[name] != two[name]} == set()
    assert one.keys() == two.keys()


@pytest.mark.timeout(540)
def test_different_programs_have_different_digests(digests: list[dict[str, str]]) -> None:
    """Programs that differ only in what they call back, or in how they are partitioned, are different programs."""
    by_name = digests[0]
    callback_digests = [digest for name, digest in by_name.items() if name.startswith("pure_callback")]
    assert len(set(callback_digests)) == len(callback_digests)
    assert by_name["custom_partitioning"] != by_name["custom_partitioning in scan"]


@pytest.mark.timeout(540)
@pytest.mark.requires_part("flax")
def test_programs_of_flax_are_in_the_corpus(digests: list[dict[str, str]]) -> None:
    """Where flax is installed, its programs are compared too."""
    assert sum(name.startswith("flax") for name in digests[0]) >= 9


class Scale:
    """A callable object with a method."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return value * self.by

    def add(self, value: float) -> float:
        return value + self.by


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
    ],
)
def test_different_callables_differ(one: Any, other: Any) -> None:
    """Another body, constant, default, closed-over value, partial argument or method makes another callable."""
    assert describe_callable(one) != describe_callable(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (make_closure(object()), make_closure(object())),
        (make_closure([1]), make_closure([2])),
        (make_closure(np.ones(2)), make_closure(np.zeros(2))),
        (Scale(1), Scale(2)),
        (Scale(1).add, Scale(2).add),
        (functools.partial(operator.add, object()), functools.partial(operator.add, object())),
        (functools.partial(Scale.add, Scale(1)), functools.partial(Scale.add, Scale(2))),
        (make_closure(frozenset("abcdefgh")), make_closure(frozenset("hgfedcba"))),
        ([1].append, [2].append),
    ],
)
def test_objects_of_one_process_do_not_count(one: Any, other: Any) -> None:
    """What a callable holds besides plain constants belongs to its process, so only the type of it counts."""
    assert describe_callable(one) == describe_callable(other)
    assert "0x" not in describe_callable(one)


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
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __call__(self) -> None:
            """Make the object callable."""

    assert "Hostile" in describe_callable(Hostile())


def test_numbers_that_are_not_addresses_stay() -> None:
    """Only an attribute that contains just the address of a kept object is replaced."""
    kept = object()
    text = f'backend_config = "{id(kept)}", x = "{id(kept)}", backend_config = "17"'
    assert canonicalize_module(text, (), [kept]) == (
        f'backend_config = "builtins.object", x = "{id(kept)}", backend_config = "17"'
    )
