"""Different programs with one name and shape: they are refused before they run, and the message says what differs."""

from __future__ import annotations

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

PAIRS = {
    "functions": "one, two = (lambda v: v * 2), (lambda v: v + 2)",
    "partials": "one, two = partial(np.add, np.float32(1)), partial(np.multiply, np.float32(1))",
    "closures": "one, two = [(lambda k: lambda v: v * np.float32(k))(k) for k in (2, 3)]",
    "methods": "class A:\n    def f(self, v): return v\n    def g(self, v): return v + 1\na = A(); one, two = a.f, a.g",
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
