"""Programs that were launched often: a difference between ranks is always reported, and equal work raises no alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult

SETUP = """
import asyncio, threading
import jax, jax.numpy as jnp, numpy as np
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
def spread(v): return jax.make_array_from_callback(np.shape(v), rows, lambda i: np.asarray(v, np.float32)[i])
x, w = spread(np.arange(8)), spread(np.ones(8))
add = jax.jit(lambda a: a.sum(), out_shardings=whole)
dot = jax.jit(lambda a, b: (a * b).sum(), out_shardings=whole)
double = jax.jit(lambda a: a * 2)
scale = jax.jit(lambda a, k: a * k)
"""


@pytest.fixture
def ready(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster with two global arrays and a few programs; a tainted state is accepted afterwards."""
    cluster.run(SETUP).check()
    yield cluster
    if cluster.state == "tainted":
        cluster.accept()


def check_no_alarm(result: CellResult) -> None:
    """Check that a cell succeeded, left the cluster clean and has no notes, except that a rank was late: the machine may be busy."""
    result.check()
    assert (result.state, [note for note in result.notes if " came last at " not in note]) == ("clean", [])


def is_refused(result: CellResult) -> bool:
    """Whether all ranks that reached the launch raised the same text, and the cluster is clean."""
    errors = {(rank.error.ename, rank.error.evalue) for rank in result if rank.error}
    return [name for name, _ in errors] == ["OrderMismatch"] and result.state == "clean"


def check_reported(result: CellResult) -> None:
    """Check that a cell was refused before the launch, or tainted after it."""
    assert is_refused(result) or result.state == "tainted", (result.state, result.notes, result.summary())


PSUM = "jax.pmap(lambda a: lax.psum(a, 'i'), 'i')"
SHARD_MAP = "jax.jit(jax.shard_map(lambda a: {}, mesh=mesh, in_specs=P('x'), out_specs=P({})))"
LAUNCH_WAYS = {
    # The programs; the step that only one rank makes; the collective of that step's output.
    "eagerly": ("", "{0} = {0} * 2", "add({0})"),
    "eagerly in place": ("", "{0} *= 2", "add({0})"),
    "by jit": ("", "{0} = double({0})", "add({0})"),
    "by jit that takes it for good": ("f = jax.jit(lambda a: a * 2, donate_argnums=0)", "{0} = f({0} + 0)", "add({0})"),
    "by a compiled program": (
        "f, g = double.lower(w).compile(), add.lower(w).compile()",
        "{0} = f({0})",
        "g({0})",
    ),
    "by pmap": (
        f"w = jax.pmap(lambda a: a, 'i')(np.ones(2, np.float32))\nf, g = jax.pmap(lambda a: a * 2, 'i'), {PSUM}",
        "{0} = f({0})",
        "g({0})",
    ),
    "by shard_map": (
        f"f = {SHARD_MAP.format('a * 2', repr('x'))}\ng = {SHARD_MAP.format('lax.psum(a.sum(), ' + repr('x') + ')', '')}",
        "{0} = f({0})",
        "g({0})",
    ),
    "by scan": (
        "f = jax.jit(lambda a: lax.scan(lambda c, _: (c * 2, None), a, None, length=1)[0])",
        "{0} = f({0})",
        "add({0})",
    ),
    "by a number": ("", "{0} = scale({0}, 2.0)", "add({0})"),
    "by another array": ("two = w * 2", "{0} = {0} * two", "add({0})"),
    "by a primitive": ("two = w * 2", "{0} = lax.mul({0}, two)", "add({0})"),
    "in a tree": (
        "f = jax.jit(lambda t: jax.tree.map(lambda a: a * 2, t))",
        "{0} = f({{'w': {0}, 'b': [{0}]}})['w']",
        "dot({0}, x)",
    ),
    "by a function pulled back": ("f = jax.vjp(lambda a: a * 2, w)[1]", "{0} = f({0})[0]", "add({0})"),
    "by arguments that change places": (
        "f, two = jax.jit(lambda a, b: (b, a)), w * 2",
        "{0} = f({0}, two)[0]",
        "add({0})",
    ),
    "by a method": (
        "class M:\n    @partial(jax.jit, static_argnums=0)\n    def f(self, a): return a * 2\nm = M()",
        "{0} = m.f({0})",
        "add({0})",
    ),
    "in a pool of threads": ("pool = ThreadPoolExecutor(1)", "{0} = pool.submit(double, {0}).result()", "add({0})"),
    "by a program that calls back": (
        "f = jax.jit(lambda a: (jax.debug.callback(lambda: None), a * 2)[1])",
        "{0} = f({0})",
        "add({0})",
    ),
}
REPEATED_WAYS = ("eagerly", "by jit", "by a compiled program", "by pmap")
"""The cases that are also tried after a thousand launches."""


def make_equal_launches(way: str, launches: int) -> str:
    """Return the programs of a case, and that many launches of each, the same on all ranks."""
    programs, step, collect = LAUNCH_WAYS[way]
    loop = f"\nfor _ in range({launches}):\n    v = w\n    {step.format('v')}\n    y = {collect.format('v')}"
    return programs + (loop if launches else "")


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("way", "launches"),
    [(way, n) for way in LAUNCH_WAYS for n in (0, 1, 3, 1000) if n in (0, 3) or way in REPEATED_WAYS],
)
def test_change_on_one_rank_is_refused(ready: Cluster, way: str, launches: int) -> None:
    """A step that only one rank makes is refused at the collective, after any number of equal launches.

    Each way of launching is tried.
    """
    _, step, collective = LAUNCH_WAYS[way]
    check_no_alarm(ready.run(make_equal_launches(way, launches)))
    check_no_alarm(ready.run(f"if rank == 0: {step.format('w')}"))
    assert is_refused(ready.run(collective.format("w")))
    assert {rank.text for rank in ready.run("float(add(x))").check()} == {"28.0"}


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", LAUNCH_WAYS)
def test_difference_inside_a_loop_is_refused(ready: Cluster, way: str) -> None:
    """One iteration of ten that differs is refused, on one line, for programs that all ranks have launched."""
    _, step, collective = LAUNCH_WAYS[way]
    check_no_alarm(ready.run(make_equal_launches(way, 2)))
    loop = (
        f"for n in range(10):\n    v = w\n    if n != 7 or rank: {step.format('v')}\n    y = {collective.format('v')}"
    )
    assert is_refused(ready.run(loop))


NEW_LAMBDA = "a constant of a fresh lambda"
"""The case in which each launch is compiled."""
ARGUMENT_CASES = {
    # How `f` is made; the call that all ranks make; the call that rank 1 makes.
    "a number": ("f = jax.jit(lambda a, k: (a * k).sum())", "f(x, 2.0)", "f(x, 3.0)"),
    "a NumPy array": (
        "f = jax.jit(lambda a, k: (a * k).sum())",
        "f(x, np.full(8, 2, np.float32))",
        "f(x, np.full(8, 3, np.float32))",
    ),
    "by keyword": ("f = jax.jit(lambda a, *, lr: (a * lr).sum())", "f(x, lr=2.0)", "f(x, lr=3.0)"),
    "in a tree": (
        "f = jax.jit(lambda t: (t['a'] * t['s'][0][1]).sum())",
        "f({'a': x, 's': [(1, 2.0)]})",
        "f({'a': x, 's': [(1, 3.0)]})",
    ),
    "a flag": ("f = jax.jit(lambda a, on: jnp.where(on, a, 3 * a).sum())", "f(x, True)", "f(x, False)"),
    "a key": (
        "f = jax.jit(lambda a, k: a.sum() + jax.random.normal(k))",
        "f(x, jax.random.key(0))",
        "f(x, jax.random.key(1))",
    ),
    "an array of the rank's own": (
        "f = jax.jit(lambda a, k: (a * k).sum())",
        "f(x, jnp.float32(2))",
        "f(x, jnp.float32(3))",
    ),
    "one that is taken for good": (
        "f = jax.jit(lambda a, k: ((a * k).sum(), k + 1), donate_argnums=1)",
        "f(x, jnp.full(8, 2.0))",
        "f(x, jnp.full(8, 3.0))",
    ),
    "a static number": (
        "f = jax.jit(lambda a, k: (a * k).sum(), static_argnums=1)\nf(x, 3)",
        "f(x, 2)",
        "f(x, 3)",
    ),
    "to a compiled program": (
        "f = jax.jit(lambda a, k: (a * k).sum()).lower(x, 2.0).compile()",
        "f(x, 2.0)",
        "f(x, 3.0)",
    ),
    "one of two models": ("f, p, q = add, x * 2, x * 3", "f(p)", "f(q)"),
    "a number, without a collective": ("f = lambda a, k: add(scale(a, k))", "f(x, 2.0)", "f(x, 3.0)"),
    "a static number, without a collective": (
        "g = jax.jit(lambda a, k: a * k, static_argnums=1); f = lambda a, k: add(g(a, k)); f(x, 3)",
        "f(x, 2)",
        "f(x, 3)",
    ),
    "an array of the rank's own, without a collective": (
        "f = lambda a, k: add(scale(a, k))",
        "f(x, jnp.float32(2))",
        "f(x, jnp.float32(3))",
    ),
    NEW_LAMBDA: ("def f(k): return add(jax.jit(lambda a: a * k)(x))", "f(2)", "f(3)"),
    "an index": ("def f(k): return add(x[k] * x)", "f(2)", "f(3)"),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("given", "launches"), [(given, n) for given in ARGUMENT_CASES for n in (3, 100) if n == 3 or given != NEW_LAMBDA]
)
def test_differing_argument_is_reported(ready: Cluster, given: str, launches: int) -> None:
    """An argument that differs on one rank is reported after many launches with equal arguments."""
    make, good, bad = ARGUMENT_CASES[given]
    check_no_alarm(ready.run(f"{make}\nfor _ in range({launches}): y = {good}"))
    check_reported(ready.run(f"y = {bad} if rank == 1 else {good}"))


DIVERGENCES = {
    # What all ranks do; what they do differently; the collective in which they meet.
    "two launches in another order": (
        "a, b = x * 1, x * 10\nfor _ in range(50): y = add(a), add(b)",
        "",
        "for v in ([a, b] if rank % 2 else [b, a]): y = float(add(v))",
    ),
    "two launches of a compiled program in another order": (
        "a, b, f = x * 1, x * 10, add.lower(x).compile()\nfor _ in range(50): y = f(a), f(b)",
        "",
        "for v in ([a, b] if rank % 2 else [b, a]): y = float(f(v))",
    ),
    "tasks in another order": (
        "a, b = x * 1, x * 10\nfor _ in range(50): y = add(a), add(b)",
        "",
        """
first = asyncio.Event()
async def early(v): y = add(v); first.set(); return float(y)
async def late(v): await first.wait(); return float(add(v))
await asyncio.gather(*([early(a), late(b)] if rank % 2 else [late(a), early(b)]))""",
    ),
    "a tree in another order": (
        "data = {'a': x * 1, 'b': x * 10}\nfor _ in range(10): y = jax.tree.map(add, data)",
        "from collections import OrderedDict\ndata = OrderedDict((k, data[k]) for k in (['a', 'b'] if rank % 2 else ['b', 'a']))",
        "y = jax.tree.map(add, data)",
    ),
    "one rank a step behind": (
        "step = jax.jit(lambda p: p + 1 + 0 * p.sum())\np, kept = w, []\nfor _ in range(20): p = step(p); kept.append(p)\ny = add(p)",
        "if rank == 3: p = kept[-2]",
        "y = add(p)",
    ),
    "loops of another length": (
        "one = jax.jit(lambda a: a * 1.0)\nfor _ in range(200): w = one(w)\ny = add(w)",
        "for _ in range(5 + (rank == 0)): w = one(w)",
        "y = add(w)",
    ),
    "an error caught by one rank": (
        "for _ in range(3): y = add(double(w))",
        """
for n in range(3):
    try:
        if (rank, n) == (1, 2): raise OSError("a file")
        w = double(w)
    except OSError as error: print(error)""",
        "y = add(w)",
    ),
    "a cache cleared and another constant": (
        "k = 2.0\nf = jax.jit(lambda a: a * k)\nfor _ in range(10): y = add(f(x))",
        "if rank == 1: k = 3.0; f.clear_cache()",
        "y = add(f(x))",
    ),
    "all caches cleared and another constant, in a collective": (
        "k = 2.0\nf = jax.jit(lambda a: (a * k).sum())\nfor _ in range(10): y = f(x)",
        "if rank == 1: k = 3.0; jax.clear_caches()",
        "y = f(x)",
    ),
    "a program defined anew": (
        "def f(a): return a * 2\nf = jax.jit(f)\nfor _ in range(10): y = add(f(x))",
        "if rank == 1:\n    def f(a): return a * 3\n    f = jax.jit(f)",
        "y = add(f(x))",
    ),
    "a NumPy array that is written": (
        "k = np.full(8, 2, np.float32)\nfor _ in range(20): y = float(add(scale(x, k)))",
        "if rank == 1: k[3] = 9",
        "y = add(scale(x, k))",
    ),
    "a reference written once more": (
        "r = jax.new_ref(x * 1.0)\n@jax.jit\ndef grow(r): r[...] = r[...] * 2\nfor _ in range(3): grow(r); y = add(r[...])",
        "if rank == 1: grow(r)",
        "y = add(r[...])",
    ),
    "a key split once more": (
        (
            "key = jax.jit(lambda: jax.random.key(0), out_shardings=whole)()\nsplit = jax.jit(jax.random.split)\n"
            "draw = jax.jit(lambda k, a: (jax.random.uniform(k, (8,)) * a).sum())\nfor _ in range(5): key = split(key)[0]; y = draw(key, x)"
        ),
        "if rank == 2: key = split(key)[1]",
        "y = draw(key, x)",
    ),
    "another rule of random numbers": (
        "draw = jax.jit(lambda k: jax.random.uniform(k, (8,)), out_shardings=rows)\ny = add(draw(jax.random.key(0)))",
        "",
        "with jax.threefry_partitionable(rank != 1): y = add(draw(jax.random.key(0)))",
    ),
    "moved to other devices": (
        "a, b = x * 1, x * 10\nfor _ in range(3): y = jax.device_put(a, whole), jax.device_put(b, whole)",
        "",
        "y = jax.device_put(b if rank == 1 else a, whole)",
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("warm", "fault", "take"), DIVERGENCES.values(), ids=DIVERGENCES.keys())
def test_divergence_is_refused_before_the_collective(ready: Cluster, warm: str, fault: str, take: str) -> None:
    """Ranks that diverged are refused before the collective, although the programs are equal and were launched before."""
    check_no_alarm(ready.run(warm))
    check_no_alarm(ready.run(fault))
    assert is_refused(ready.run(take))


UNFINISHED_ARGUMENTS = """
slow = jax.jit(lambda s: lax.fori_loop(0, 150, lambda n, p: jnp.tanh(p @ p), jnp.full((300, 300), s)).sum() * 0 + s)
f = jax.jit(lambda a, k: (a * k).sum())
g = jax.jit(lambda a, k: ((a * k).sum(), k + 1), donate_argnums=1)
y = slow(1.0), f(x, slow(2.0)), g(x, slow(2.0)), add(scale(x, slow(2.0)))
"""
ARGUMENT_USES = {
    "kept": "k = slow({}); y = f(x, k)",
    "dropped": "y = f(x, slow({}))",
    "taken for good": "y, k = g(x, slow({}))",
    "through a program without a collective": "k = slow({}); y = add(scale(x, k))",
}


@pytest.mark.parametrize("take", ARGUMENT_USES.values(), ids=ARGUMENT_USES.keys())
@pytest.mark.sample(2)
def test_differing_unfinished_argument_is_reported(ready: Cluster, take: str) -> None:
    """An argument that differs and is still being computed is reported, at the latest at the end of the cell."""
    check_no_alarm(ready.run(UNFINISHED_ARGUMENTS))
    check_no_alarm(ready.run(take.format("2.0")))
    check_reported(ready.run(take.format("2.0 + (rank == 1)")))


UNGUARDED_CASES = {
    # The arrays; the programs, made in a cell without agreement; a call of them; the step that only one rank makes; the
    # collective.
    "jit": ("", "f, g = double, add", "y = g(f(w))", "w = f(w)", "y = g(w)"),
    "a compiled program": (
        "",
        "f, g = double.lower(w).compile(), add.lower(w).compile()",
        "y = g(f(w))",
        "w = f(w)",
        "y = g(w)",
    ),
    "pmap": (
        "w = jax.pmap(lambda a: a, 'i')(np.ones(2, np.float32))",
        f"f, g = jax.pmap(lambda a: a * 2, 'i'), {PSUM}",
        "y = g(f(w))",
        "w = f(w)",
        "y = g(w)",
    ),
    "a number": ("", "f = jax.jit(lambda a, k: a * k)", "y = add(f(w, 2.0))", "w = f(w, 2.0)", "y = add(w)"),
}


PYTHON_CALLS = """
import sys, threading
called = []
def note(frame, event, _):
    if event == "call" and "/jax/_src/pjit" in frame.f_code.co_filename: called.append(frame.f_code.co_name)
def launch():
    sys.setprofile(note)
    try: y = add(x)
    finally: sys.setprofile(None)
    float(y)
float(add(x))
"""


@pytest.mark.parametrize(
    ("guard", "act", "is_direct"),
    [
        ("off", "launch()", True),
        ("parity", "launch()", True),
        ("lockstep", "launch()", False),
        ("parity", "thread = threading.Thread(target=launch); thread.start(); thread.join()", False),
    ],
)
def test_off_and_parity_launch_from_cpp(ready: Cluster, guard: str, act: str, is_direct: bool) -> None:  # noqa: FBT001
    """Under `off` and `parity` no function of JAX's Python path is called for a launch.

    A launch in a thread is recorded first, because the thread may outlive its cell.
    """
    result = ready.run(f"{PYTHON_CALLS}{act}\nprint(called == [])", guard=guard).check()
    assert {rank.stdout for rank in result} == {f"{is_direct}\n"}


@pytest.mark.parametrize("guard", ["off", "parity"])
@pytest.mark.parametrize("case", UNGUARDED_CASES.values(), ids=UNGUARDED_CASES.keys())
def test_programs_of_unguarded_cell_are_guarded_in_the_next(
    ready: Cluster, case: tuple[str, str, str, str, str], guard: str
) -> None:
    """Neither JAX's caches nor a program compiled in a cell without agreement bypass the agreement of the next cell."""
    arrays, programs, call, fault, collective = case
    check_no_alarm(ready.run(arrays))
    ready.run(f"{programs}\nfor _ in range(100): {call}\ndel y", guard=guard).check()
    check_no_alarm(ready.run(call))
    check_no_alarm(ready.run(f"if rank == 0: {fault}"))
    assert is_refused(ready.run(collective))


@pytest.mark.parametrize("guard", ["off", "parity"])
def test_thread_of_unguarded_cell_is_guarded_in_the_next(ready: Cluster, guard: str) -> None:
    """A thread that a cell without agreement started agrees on its launches while a lockstep cell runs."""
    thread = """
go = threading.Event()
for _ in range(20): y = float(add(x))
told = []
def work():
    go.wait()
    try: add(x if rank else w)
    except Exception as error: told.append(type(error).__name__)
t = threading.Thread(target=work, daemon=True); t.start()"""
    ready.run(thread, guard=guard).check()
    assert {rank.text for rank in ready.run("go.set(); t.join(); told").check()} == {"['OrderMismatch']"}


EQUAL_WORK = {
    "a thousand launches": (
        "for _ in range(1000): y = add(x)\nassert float(y) == 28",
        "y = x\nfor _ in range(300): y = scale(y, 1.0)\nassert float(add(y)) == 28",
        "for k in range(40): y = scale(y, 1.0 + k % 2); s = add(y)\nassert float(s) == 28 * 2.0**20",
        (
            "f = [jax.jit(lambda a, k=k: (a * k).sum()) for k in range(5)]\n"
            "for k in np.random.default_rng(0).integers(0, 5, 200): y = f[k](x)\nassert float(y) == 28 * k"
        ),
    ),
    "arguments of many kinds": (
        (
            "f = jax.jit(lambda a, k: (a * k).sum())\n"
            "for k in (2, 2.0, np.float32(2), np.int64(2), np.full(8, 2, np.float32), jnp.float32(2), True + True, 2):\n"
            "    for _ in range(3): assert float(f(x, k)) == 56"
        ),
        "for k in range(20): assert float(f(x, k)) == 28 * k",
        "for k in range(50): assert float(f(x, jnp.float32(k % 2))) == 28 * (k % 2)",
        (
            "g = jax.jit(lambda p, *, lr, how: {'w': p['w'] - lr * p['w'].sum() if how == 'a' else p['w'] * lr},"
            " donate_argnames='p', static_argnames='how')\np = {'w': x * 1.0}\n"
            "for k in range(20): p = g(p, lr=0.0, how='a'); p = g(p=p, how='b', lr=1)\nassert float(add(p['w'])) == 28"
        ),
    ),
    "an argument that the program does not use": (
        "f = jax.jit(lambda a, who: a.sum())\nassert [float(f(x, rank)) for _ in range(5)] == [28] * 5",
        "g = jax.jit(lambda a, who: a * 2)\nassert [float(add(g(x, rank))) for _ in range(5)] == [56] * 5",
    ),
    "one program from two lines": (
        (
            "if rank == 1: f = jax.jit(lambda a: a * 2)\nelse: f = jax.jit(lambda a: a * 2)\n"
            "if rank == 2: g = jax.jit(lambda a: a.sum())\nelse: g = jax.jit(lambda a: a.sum())"
        ),
        "assert [float(g(f(x))) for _ in range(5)] == [56] * 5",
    ),
    "functions defined anew, caches cleared": (
        "k = 2.0\n@jax.jit\ndef f(a): return (a * k).sum()\nassert float(f(x)) == 56",
        "k = 3.0\nassert float(f(x)) == 56\nf.clear_cache()\nassert float(f(x)) == 84",
        "@jax.jit\ndef f(a): return (a * 10).sum()\nassert [float(f(x)) for _ in range(5)] == [280] * 5",
        "jax.clear_caches()\nassert [float(f(x)) for _ in range(5)] == [280] * 5",
        "for k in (1, 2, 3): assert float(jax.jit(lambda a: (a * k).sum())(x)) == 28 * k",
    ),
    "settings changed between cells": (
        "f = jax.jit(lambda a: (a * 2).sum())\nassert float(f(x)) == 56",
        "with jax.enable_x64(True): y = jax.jit(lambda a: a.astype(jnp.float64).sum())(x)\nassert y.dtype == np.float64",
        "with jax.default_matmul_precision('float32'): y = jax.jit(lambda a: a @ a)(x)\nassert float(y) == 140",
        "with jax.debug_nans(True): assert float(f(x)) == 56",
        "assert [float(f(x)) for _ in range(5)] == [56] * 5",
    ),
    "what each rank does besides": (
        "for k in range(10):\n    y = add(x)\n    if rank == k % 4: print(rank, float(y)); z = x * k; mine = jnp.ones(3) * k",
        "if rank == 3: print(x.addressable_shards[0].data)",
        (
            "r = jax.device_put(x, whole)\nfor _ in range(5):\n    if rank == 2: print(r * 2, jnp.linalg.norm(r), np.asarray(r).max())\n"
            "assert float(add(x)) == 28"
        ),
        "assert list(multihost_utils.process_allgather(np.float32(rank))) == [0, 1, 2, 3]",
    ),
    "compiled ahead of time": (
        "f = jax.jit(lambda a, k: {'s': (a * k).sum(), 'a': a * k}).lower(x, 2.0).compile()",
        "for k in range(50): y = f(x, float(k))\nassert float(y['s']) == 28 * 49",
        (
            "g = jax.jit(lambda a: a + 0 * a.sum(), donate_argnums=0).lower(x).compile()\ny = x * 1\n"
            "for _ in range(20): y = g(y)\nassert float(add(y)) == 28"
        ),
    ),
    "by pmap": (
        f"f, g = jax.pmap(lambda a: a * 2, 'i'), {PSUM}",
        (
            "y = np.full((2, 1), rank, np.float32)\nfor _ in range(3): y = f(y)\n"
            "assert float(g(y).addressable_shards[0].data[0, 0]) == 96"
        ),
        "for k in range(20): y = g(np.full(2, float(rank * k)))\nassert float(y.addressable_shards[0].data[0]) == 12 * 19",
    ),
    "references": (
        "r = jax.new_ref(x * 1.0)\n@jax.jit\ndef grow(r, k): r[...] = r[...] + k",
        "for k in range(10): grow(r, k)\nassert float(add(r[...])) == 28 + 8 * 45",
        "total = jax.jit(lambda r: r[...].sum())\nassert [float(total(r)) for _ in range(3)] == [388] * 3",
    ),
    "batches that a pool lays out": (
        """
lay = lambda k: jax.make_array_from_process_local_data(rows, np.full(2, k, np.float32))
def prefetch(count):
    with ThreadPoolExecutor(1) as pool: yield from pool.map(lay, range(count))""",
        "assert [float(add(b)) for b in prefetch(20)] == [8 * k for k in range(20)]",
        "p = x * 0\nfor b in prefetch(20): p = p + b; y = add(p)\nassert float(y) == 8 * 190",
    ),
    "numbers that are still computed": (
        UNFINISHED_ARGUMENTS,
        *(take.format("2.0") + "\nassert float(y) == 56" for take in ARGUMENT_USES.values()),
    ),
}


@pytest.mark.parametrize("cells", EQUAL_WORK.values(), ids=EQUAL_WORK.keys())
@pytest.mark.sample(3)
def test_equal_work_raises_no_alarm(ready: Cluster, cells: tuple[str, ...]) -> None:
    """Equal work on all ranks gives the right numbers and no notes, also when the notebook is run again."""
    for _ in range(2):
        for cell in cells:
            check_no_alarm(ready.run(cell))


def test_cached_call_follows_the_mesh_of_its_context(ready: Cluster) -> None:
    """The same function and arguments give another program under another `jax.set_mesh`."""
    code = """
found = []
spread_out = jax.jit(lambda n: jnp.arange(8.0) * n, out_shardings=P('x'))
for context in (mesh, jax.sharding.Mesh(mesh.devices[::-1], 'x'), mesh):
    with jax.set_mesh(context):
        for _ in range(3): made = spread_out(2.0)
    found.append(made.sharding.mesh == context)
found"""
    assert {rank.text for rank in ready.run(code).check()} == {"[True, True, True]"}


CPP_LAUNCHES = {
    "a value that a program passes on": "for step in range(3):\n    y = copy(np.full(8, rank * step, np.float32))\n    dot(x, y)",
    "a key": "for n in range(3): dot(x, draw(jax.random.key(n)))\ndot(x, draw(jax.random.key(rank)))",
    "a number": "for n in range(3): dot(x, scaled(x, 2.0))\ndot(x, scaled(x, 2.0 + rank))",
    "one more": "y = x\nfor n in range(1000): y = double(x)\nif rank == 1: y = double(y)\ndot(x, y)",
    "several outputs": "for n in range(5): y, z = both(x)\ndot(x, z if rank else y)",
    "a keyword": "for n in range(3): y = scaled(x, by=2.0)\ny = scaled(x, by=2.0 + rank)\ndot(x, y)",
}


def test_outputs_of_cpp_launches_are_compared(fresh: Callable[..., Cluster]) -> None:
    """Outputs of programs that C++ launches are tagged after the launch, and compared before a sum.

    With one device per rank, C++ launches programs without a collective.
    """
    cluster = fresh(2, 1)
    cluster.run(SETUP).check()
    cluster.run("""
x = jax.make_array_from_callback((8,), rows, lambda i: np.arange(8, dtype=np.float32)[i])
dot = jax.jit(lambda a, b: (a * b).sum(), out_shardings=whole)
copy = jax.jit(lambda v: v, out_shardings=whole)
draw = jax.jit(lambda k: jax.random.normal(k, (8,)), out_shardings=whole)
double, scaled = jax.jit(lambda a: a * 2), jax.jit(lambda a, by: a * by)
both = jax.jit(lambda a: (a + 1, a + 2))""").check()
    for name, code in CPP_LAUNCHES.items():
        result = cluster.run(code)
        assert [rank.error and rank.error.ename for rank in result] == ["OrderMismatch"] * 2, name
        assert result.state == "clean", name
    equal = cluster.run("""
for n in range(4):
    y, z = both(scaled(x, by=2.0))
    value = float(dot(double(y), copy(np.full(8, n, np.float32)))) + float(dot(x, z)) + float(dot(x, draw(jax.random.key(n))))
""").check()
    assert (equal.state, equal.notes) == ("clean", ())
    cluster.run("y = x * (1 + rank)", guard="off").check()
    (note,) = cluster.run("z = double(double(y) + 1)\nfloat(dot(x, z))").check().notes
    assert note.startswith("1 array was not compared")
