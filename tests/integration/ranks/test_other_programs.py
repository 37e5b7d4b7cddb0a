"""Different programs with one name and shape: they are refused before they run, and the message says what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
x = jax.device_put(np.arange(8.0, dtype=np.float32), rows)
"""

CALLED_BACK = """
def shape(f):
    inner = lambda a: jax.lax.psum(jax.pure_callback(f, jax.ShapeDtypeStruct(a.shape, a.dtype), a).sum(), 'x')
    return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P('x'), out_specs=P()))
"""

MODEL = """
class A:
    def __init__(self, k): self.w, self.calls = np.full(1, k, np.float32), 0
    def f(self, v): self.calls += 1; return np.asarray(v) * self.w
    __call__ = f"""
PAIRS = {
    "functions": "one, two = (lambda v: v * 2), (lambda v: v + 2)",
    "partials": "one, two = partial(np.add, np.float32(1)), partial(np.multiply, np.float32(1))",
    "closures": "one, two = [(lambda k: lambda v: v * np.float32(k))(k) for k in (2, 3)]",
    "methods": "class A:\n    def f(self, v): return v\n    def g(self, v): return v + 1\na = A(); one, two = a.f, a.g",
    "arrays in closures": "def by(t): return lambda v: v * t['w'][0]\none, two = [by({'w': np.full(9, k, 'f')}) for k in (1, 10)]",
    "arrays of JAX": "def by(t): return lambda v: np.asarray(v) * np.asarray(t)\none, two = [by(jnp.full((), k, 'f')) for k in (1, 10)]",
    "keys": "def by(k): return lambda v: v * jax.random.key_data(k)[1]\none, two = [by(jax.random.key(k)) for k in (1, 10)]",
    "defaults": "one, two = [lambda v, t=np.full(1, k, 'f'): np.asarray(v) * t for k in (1, 10)]",
    "fields": f"{MODEL}\none, two = A(1).f, A(10).f",
    "objects": f"{MODEL}\none, two = A(1), A(10)",
}


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with an array on it."""
    cluster.run(SETUP).check()
    return cluster


def common_refusal(result: CellResult) -> str:
    """Return the one message that all ranks raise."""
    assert {rank.error.ename for rank in result if rank.error} == {"OrderMismatch"}
    texts = {rank.error.evalue for rank in result if rank.error}
    assert len(texts) == 1
    assert result.state == "clean"
    return texts.pop()


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_callbacks_in_another_order_are_refused(ready: Cluster, pair: str) -> None:
    """Two programs that differ only in the function that they call back are refused."""
    result = ready.run(
        f"{CALLED_BACK}\n{pair}\nfor f in ([one, two] if rank % 2 else [two, one]): print(float(shape(f)(x)))"
    )
    common_refusal(result)


def test_callbacks_in_one_order_have_their_own_values(ready: Cluster) -> None:
    """Callbacks that differ only in an array of their closure are two programs, each with its own result, also a second time."""
    code = f"{CALLED_BACK}\n{MODEL}\nmodels = [A(1), A(10)]\n[float(shape(m.f)(x)) for m in models * 2]"
    result = ready.run(code).check()
    assert ({rank.text for rank in result}, result.notes, result.state) == ({"[28.0, 280.0, 28.0, 280.0]"}, (), "clean")


def test_refusal_names_the_value_and_how_to_declare_it(ready: Cluster) -> None:
    """The message shows the value of a callback that differs, and names `mhnb.per_rank`; so declared, the right value comes back."""
    code = f"import mhnb\n{CALLED_BACK}\ndef load(n, v): return v * 0 + n\nown = partial(load, np.float32(rank))"
    ready.run(code).check()
    text = common_refusal(ready.run("shape(own)(x)"))
    assert "partial(__main__.load#" in text
    assert "pass mhnb.per_rank(callback)" in text
    result = ready.run("float(shape(mhnb.per_rank(own))(x))").check()
    assert {rank.text for rank in result} == {"12.0"}
    assert result.notes == ("values of host callbacks were not compared: declared with mhnb.per_rank (line 1) · clean",)


PRODUCED = """
import mhnb
from jax.experimental import io_callback
def produce(f, spec=P(), **options):
    like = jax.ShapeDtypeStruct((1,), np.float32)
    inner = lambda a: io_callback(f, like, a, **options)
    return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P('x'), out_specs=spec, check_vma=False))(x)
dot = jax.jit(lambda a, b: (a * b).sum(), out_shardings=whole)
own = lambda v: np.full(1, rank, np.float32)
def load(n, v): return np.full(1, n, np.float32)
"""


def test_different_replicas_from_a_callback_are_refused(ready: Cluster) -> None:
    """What a callback returns as replicas of one array is compared by content; it counted as equal on every rank."""
    text = common_refusal(ready.run(f"{PRODUCED}\ny = produce(own)\ny.block_until_ready()\nfloat(dot(x, y))"))
    assert "of arrays A" in text


def test_different_replicas_of_a_running_callback_are_reported(ready: Cluster) -> None:
    """A value that a callback is still computing when a launch takes it is compared at the end of the cell."""
    slow = "import time\ndef slow(v): time.sleep(1.5); return own(v)\ny = dot(x, produce(slow))"
    result = ready.run(f"{PRODUCED}\n{slow}")
    assert result.state == "tainted"
    ready.accept()
    assert "different values in replicas of one array, f32[1]" in result.notes[0]


def test_equal_replicas_from_a_callback_raise_no_alarm(ready: Cluster) -> None:
    """Replicas that are equal on every rank are launched on, and so is what each rank returns as its own shard."""
    code = f"{PRODUCED}\nequal, shards = produce(lambda v: np.full(1, 3, np.float32)), produce(own, P('x'))\n"
    result = ready.run(f"{code}float(dot(x, equal)), float(dot(x, shards))").check()
    assert ({rank.text for rank in result}, result.notes) == ({"(84.0, 62.0)"}, ())


def test_refusal_of_an_array_names_the_callback_that_made_it(ready: Cluster) -> None:
    """The message for an array of a program without a collective shows the callback, whose values differ, and how to declare it."""
    result = ready.run(f"{PRODUCED}\nfloat(dot(x, produce(partial(load, rank), P('x'))))")
    common_refusal(result)
    notes = "\n".join(result.notes)
    assert "that calls partial(__main__.load#" in notes
    assert "pass mhnb.per_rank(callback) to JAX" in notes
    declared = ready.run("float(dot(x, produce(mhnb.per_rank(partial(load, rank)), P('x'))))").check()
    assert {rank.text for rank in declared} == {"62.0"}


DIFFERENCES = {
    "a static argument": ("f = jax.jit(lambda v, k: jax.lax.top_k(v, k)[0].sum(), static_argnums=1); k = {}; f(x, k)", "2", "3", "k = "),
    "a constant": ("rate = {}; f = jax.jit(lambda v: (v * rate).sum()); f(x)", "0.5", "0.25", "dense<"),
    "an operation": ("f = jax.jit(lambda v: jnp.{}(v).sum()); f(x)", "sin", "cos", "stablehlo."),
    "a sharding": ("f = jax.jit(lambda v: v + v.sum(), out_shardings={}); f(x)", "rows", "whole", "sdy.sharding"),
    "a donation": ("f = jax.jit(lambda v: v + v.sum(), donate_argnums={}); f(x + 0)", "()", "0", "tensor<8xf32>"),
    "a callback": (
        "g = {}\nf = jax.jit(lambda v: jax.pure_callback(g, jax.ShapeDtypeStruct((), v.dtype), v.sum())); f(x)",
        "abs", "np.sin", "host callback 0: ",
    ),
    "a precision": ("with jax.default_matmul_precision({}): jax.jit(lambda v: v @ v)(x)", "'float32'", "'bfloat16'", "precision"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "one", "other", "difference"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_message_shows_what_differs(ready: Cluster, code: str, one: str, other: str, difference: str) -> None:
    """For two programs with one name and shape, the message shows on each side what they do differently."""
    cell = "\n".join(
        f"if rank {test}:\n    exec({code.format(value)!r})" for test, value in (("== 0", one), ("> 0", other))
    )
    text = common_refusal(ready.run(cell))
    head, _, rest = text.partition("The first difference is:\n")
    assert "(program " in head
    zero, others = rest.splitlines()[:2]
    assert zero.startswith("    rank 0 ")
    assert others.startswith("    ranks 1-3 ")
    assert difference in zero
    assert difference in others
    assert zero.split(maxsplit=2)[2] != others.split(maxsplit=2)[2]


CALL = """
f = jax.jit(lambda v, k: (v * k).sum(), static_argnums=1)
steps = {least} + (rank > 1)
f(
    x,
    steps,
)
"""


@pytest.mark.parametrize("compiled_before", [False, True])
def test_message_gives_values_of_call_variables(ready: Cluster, compiled_before: bool) -> None:  # noqa: FBT001
    """The message names a plain variable on the lines of the call, with the value that each side has.

    It makes no difference if an earlier call without variables has compiled the same program.
    """
    least = 7 if compiled_before else 3  # programs that are new to the shared cluster
    if compiled_before:
        for k in (least, least + 1):
            ready.run(f"jax.jit(lambda v, k: (v * k).sum(), static_argnums=1)(x, {k})").check()
    text = common_refusal(ready.run(CALL.format(least=least)))
    assert f"compiled where steps = {least}\n" in text
    assert text.rstrip().endswith(f"compiled where steps = {least + 1}")


# -- executables that were serialised


LOADS = """
from jax.experimental import serialize_executable as se
def build(f, *args): return f.lower(*args).compile()
def load(f, *args): return se.deserialize_and_load(*se.serialize(build(f, *args)))
add = jax.jit(lambda v: v.sum(), out_shardings=whole)
"""


@pytest.mark.parametrize("loads", ["rank == 0", "rank > 0", "True"])
def test_loaded_executable_is_the_program_that_other_ranks_compiled(ready: Cluster, loads: str) -> None:
    """An executable that some ranks loaded and the others compiled is one program, and so is one that all ranks loaded."""
    cell = f"{LOADS}\nfor _ in range(2): value = float((load(add, x) if {loads} else build(add, x))(x))\nvalue"
    result = ready.run(cell).check()
    assert {rank.text for rank in result} == {"28.0"}
    assert result.state == "clean"


def test_outputs_of_a_loaded_executable_are_those_of_a_compiled_one(ready: Cluster) -> None:
    """A loaded program's outputs have the tags of a compiled one's, also an argument that is passed through or donated."""
    cell = f"""{LOADS}
through = jax.jit(lambda v: (v, v.sum()), out_shardings=(rows, whole))
twice = jax.jit(lambda v: v * 2, donate_argnums=0, out_shardings=rows)
kind = load if rank == 0 else build
y, s = kind(through, x)(x)
z = kind(twice, x)(x + 0)
float(s), float(add(y)), float(add(z)), float(build(add, z)(z))"""
    assert {rank.text for rank in ready.run(cell).check()} == {"(28.0, 28.0, 56.0, 56.0)"}


MAKE_X = """r = NamedSharding(Mesh(np.array(jax.devices())[::{}], 'x'), P('x'))
x = jax.make_array_from_callback((8,), r, lambda i: np.arange(8, dtype='f')[i])"""
OTHERS = {
    "an operation": ("jax.jit(lambda v: v.{}(), out_shardings=whole)", "sum", "max"),
    "a constant": ("jax.jit(lambda v: (v * {}).sum(), out_shardings=whole)", "2", "3"),
    "a large constant": ("jax.jit(lambda v: (v[:, None] * c).sum()); c = np.ones((8, 99), 'f'); c[5, 7] = {}", "2", "3"),
    "a sharding": ("jax.jit(lambda v: v + v.sum(), out_shardings={})", "rows", "whole"),
    "a donation": ("jax.jit(lambda v: v + v.sum(), donate_argnums={}, out_shardings=rows); x = x + 0", "()", "0"),
    "an option": (
        "jax.jit(lambda v: v.sum(), compiler_options={{'xla_cpu_enable_fast_math': {}}}, out_shardings=whole)", "True", "False",
    ),
    "an order of devices": (f"jax.jit(lambda v: v.sum()); {MAKE_X}", "1", "-1"),
}  # fmt: skip


@pytest.mark.parametrize("others", ["build", "load"])
@pytest.mark.parametrize(("code", "one", "other"), OTHERS.values(), ids=OTHERS.keys())
def test_loaded_executable_of_another_program_is_refused(
    ready: Cluster, code: str, one: str, other: str, others: str
) -> None:
    """A loaded executable of another program with the same types is refused, beside compiled and loaded ones."""
    cell = "\n".join(
        f"if rank {test}:\n    exec({'f = ' + code.format(value)!r}, globals())"
        for test, value in (("== 0", one), ("> 0", other))
    )
    text = common_refusal(ready.run(f"{LOADS}\n{cell}\n(load if rank == 0 else {others})(f, x)(x)"))
    assert "(program " in text


FOREIGN = f"""{LOADS}
built = build(add, x)
unloaded = built._executable._unloaded_executable
unloaded.keepalive = []  # as plain JAX serialises it
foreign = se.deserialize_and_load(*se.serialize(built))
"""


def test_executable_serialised_without_mhnb(ready: Cluster) -> None:
    """An executable that plain JAX serialised runs if all ranks load it; beside a compiled one it is refused, and the text says why."""
    assert {rank.text for rank in ready.run(f"{FOREIGN}\nfloat(foreign(x))").check()} == {"28.0"}
    text = common_refusal(ready.run("(foreign if rank == 0 else add)(x)"))
    assert "loaded executable, serialised without mhnb" in text


def test_executable_loaded_for_devices_in_another_order_is_refused(ready: Cluster) -> None:
    """An executable that one rank loaded for its devices in another order is another program."""
    cell = f"{LOADS}\nsaved = se.serialize(build(add, x))\n"
    cell += "se.deserialize_and_load(*saved, execution_devices=jax.devices()[:: -1 if rank == 0 else 1])(x)"
    assert "own ones in order [1, 0]" in common_refusal(ready.run(cell))


def test_executable_with_a_callback_cannot_be_serialised(ready: Cluster) -> None:
    """JAX cannot serialise a program that calls back into Python, so its callback cannot differ from the carried hash."""
    result = ready.run(f"{CALLED_BACK}\n{LOADS}\nload(shape(np.sin), x)")
    assert ["pickle" in rank.error.evalue for rank in result if rank.error] == [True] * 4


def test_executable_of_an_earlier_session(ready: Cluster, fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """An executable that another cluster saved to a file is the program that the ranks compile."""
    file = str(tmp_path / "add{}")
    code = f"import pickle\npickle.dump(se.serialize(build(add, x)), open({file!r}.format(rank), 'wb'))"
    fresh(4, 2).run(f"{SETUP}\n{LOADS}\n{code}").check()
    code = (
        f"import pickle\nload_file = lambda: se.deserialize_and_load(*pickle.load(open({file!r}.format(rank), 'rb')))"
    )
    result = ready.run(f"{LOADS}\n{code}\nfloat((load_file() if rank % 2 else build(add, x))(x))").check()
    assert {rank.text for rank in result} == {"28.0"}
