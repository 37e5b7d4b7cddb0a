"""The errors of the table of pitfalls, each one provoked for real: the hint beside it gives the fix in the user's own names.

Rows without an error (wrong numbers, a hang) belong to the guard and the hang report. Those of a GPU cannot be provoked here.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.error_site import ErrorSite
from mhnb.core.hints import find_hint
from mhnb.core.output.results import CellResult
from mhnb.core.state.rank_registry import drop_stack_frames, pick_error_line
from mhnb.rank.execution.streams import split_library_noise
from mhnb.transport.addresses import find_free_port

Fresh = Callable[..., Cluster]

TOOLS = """
import pickle, tempfile
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

me = jax.process_index()
mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(AxisType.Auto,))
explicit = jax.make_mesh((len(jax.devices()),), ("x",))
rows = NamedSharding(mesh, P("x"))

def spread(values, sharding=rows):
    values = np.asarray(values, np.float32)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
"""
VALUES = """
params, weights = spread(np.arange(8)), spread(np.ones((8, 8)))
state = {"w": params, "step": 3}
by_row = spread(np.ones((8, 8)), NamedSharding(explicit, P("x")))
by_column = spread(np.ones((8, 8)), NamedSharding(explicit, P(None, "x")))
batch, wide, thirds, holes = np.ones(8), np.ones(6), np.ones(8) / 3, np.array([1, np.nan] * 4, np.float32)
@jax.jit
def product(first, second):
    return jnp.dot(first, second)
double = jax.jit(lambda a: a * 2, donate_argnums=0)
local = jax.device_put(np.ones(8), jax.local_devices()[0])
whole, devices = NamedSharding(mesh, P()), np.array(jax.devices())
copies = spread(np.arange(8), whole)
turned = spread(np.arange(8), NamedSharding(Mesh(devices[::-1], ("x",)), P("x")))
half = NamedSharding(Mesh(devices[:4], ("x",)), P("x"))
quarter = jax.make_array_from_callback((8,), half, lambda box: np.arange(8, dtype=np.float32)[box], dtype=np.float32)
pair = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(Mesh(np.array(jax.local_devices()), ("x",)), P("x")))
hosted = spread(np.arange(8), NamedSharding(mesh, P("x"), memory_kind="pinned_host"))
line = spread(np.ones(8), NamedSharding(explicit, P("x")))
turned_explicit = Mesh(devices[::-1], ("x",), axis_types=(AxisType.Explicit,))
by_other = spread(np.ones((8, 8)), NamedSharding(turned_explicit, P("x")))
add = jax.jit(lambda left, right: left + right)
pair_of = {"a": params, "b": [weights]}
class Box: pass
box = Box(); box.x = params
def made(): return local
both = jax.jit(lambda left, right: left + right, in_shardings=(whole, whole))
def older(a):
    return jnp.dot(a, by_row)
"""


class Pitfall(NamedTuple):
    """A row of the table: what the user ran, what was raised, and what the hint must contain."""

    name: str
    code: str
    ename: str
    says: tuple[str, ...]


def row(name: str, code: str, ename: str, *says: str) -> Any:
    """Return one case, named after its row."""
    return pytest.param(Pitfall(name, code, ename, says), id=name)


EAGER = "(lambda f: jax.shard_map(lambda a: (f(a), a)[1], mesh=mesh, in_specs=P('x'), out_specs=P('x'))(params))"
PITFALLS = [
    row("1 asarray", "got = np.asarray(params)", "RuntimeError", "%mhjax pull params`", "params.addressable_shards"),
    row("1 tolist", "params.tolist()", "RuntimeError", "%mhjax pull params`", "jax.device_put(params,"),
    row("1 float", "float(weights[0, 0] * 1) and params.item()", "RuntimeError", "%mhjax pull params`"),
    row("1 save", "np.save(tempfile.TemporaryFile(), params)", "RuntimeError", "%mhjax pull params`"),
    row("1 pickle", "pickle.dumps(state)", "RuntimeError", "%mhjax pull state`", "state['w'].addressable_shards"),
    row("1 part of a tree", "np.asarray(state['w'])", "RuntimeError", "%mhjax pull state`", "device_put(state['w'],"),
    row("1 tree.map", "jax.tree.map(np.asarray, state)", "RuntimeError", "%mhjax pull state`"),
    row("1 two names", "np.concatenate([params, weights])", "RuntimeError", "each global array that it reads"),
    row(
        "1 in a function", "def fetch(p):\n    return np.asarray(p)\nfetch(params)",
        "RuntimeError", "In that line use p.addressable_shards",
    ),
    row("3 for", "for r in weights:\n    print(r)", "AssertionError", "iterate over a sharded array", "device_put(weights,", "weights[0]"),
    row("3 list", "list(params)", "AssertionError", "iterate over a sharded array", "params[0]"),
    row("3 unpacking", "first, *others = params", "AssertionError", "iterate over a sharded array", "params[0]"),
    row("3 print in shard_map", f"{EAGER}(lambda a: print(a))", "AssertionError", "jax.jit(jax.shard_map(...))"),
    row("3 debug.print in shard_map", f"{EAGER}(lambda a: jax.debug.print('{{}}', a))", "AssertionError", "jax.jit(jax.shard_map(...))"),
    row("3 zip", "for a, b in zip(params, batch): pass", "AssertionError", "iterate over a sharded array", "params[0]"),
    row("4 closure", "jax.jit(lambda a: a + params)(1.0)", "RuntimeError", "captured", "pass params as an argument"),
    row(
        "4 closure of a function", "@jax.jit\ndef step(a):\n    return a + params\nstep(1.0)",
        "RuntimeError", "captured", "as an argument",
    ),
    row("4 explicit mesh", "jax.jit(lambda a: a + by_row)(1.0)", "ValueError", "captured", "pass by_row as"),
    row("16 device_put", "jax.device_put(batch + me, rows)", "AssertionError", "same seed", "make_array_from_process"),
    row("18 local with global", "add(params, local)", "ValueError", "local is on this", "device_put(np.asarray(local),"),
    row("18 operator", "local + params", "ValueError", "local is on this rank's own device", "device_put(np.asarray(local),"),
    row("18 another order", "params + turned", "ValueError", "list the same 8 devices in a different order"),
    row("18 fewer devices", "params + quarter", "ValueError", "params is on 8 devices and quarter on 4."),
    row("18 devices of a rank", "params + pair", "ValueError", "pair is on this rank's own 2 devices"),
    row("18 another mesh", "by_row + weights", "ValueError", "whose axes or axis types"),
    row("18 another memory", "params + hosted", "ValueError", "hosted is in host memory"),
    row("18 across", "jax.device_put(quarter, rows)", "ValueError", "create quarter again on rows"),
    row("18 put", "jax.device_put(local, rows)", "ValueError", "local is on this rank's own devices"),
    row("18 in_shardings", "jax.jit(abs, in_shardings=whole)(params)", "ValueError", "leave in_shardings out"),
    row("19 indivisible", "jax.device_put(wide, rows)", "IndivisibleError", "8 does not divide 6", "dimension 0 to 8"),
    row("19 shard_map", "jax.shard_map(abs, mesh=mesh, in_specs=P('x'), out_specs=P('x'))(wide)", "ValueError", "dimension 0 to 8"),
    row("19 explicit", "jnp.zeros(6, out_sharding=by_row.sharding)", "ValueError", "8 does not divide 6", "dimension 0 to 8"),
    row("21 no mesh for zeros", "jnp.zeros(8, out_sharding=line.sharding)", "ValueError", "under jax.set_mesh of that mesh"),
    row("19 reshape", "by_row.reshape(2, 4, 8)", "ShardingTypeError", "by_row.reshape(2, 4, 8, out_sharding=NamedSharding("),
    row("19 slice", "jax.lax.dynamic_slice(line, (0,), (6,))", "ShardingTypeError", "a multiple of 8"),
    row("30 one device", "jax.device_put(params, jax.local_devices()[0])", "ValueError", "params.addressable_shards[0].data"),
    row("30 copy", "jax.device_put(copies, jax.local_devices()[0])", "ValueError", "Use this rank's: copies.addressable_shards[0].data"),
    row(
        "30 callback", "jax.make_array_from_callback((8,), rows, lambda box: copies[box])",
        "ValueError", "write np.asarray(copies) instead of copies",
    ),
    row(
        "30 callback that is a function", "def part(box): return copies[box]\njax.make_array_from_callback((8,), rows, part)",
        "ValueError", "Return a NumPy array",
    ),
    row("20 contracting", "by_column @ by_row", "ShardingTypeError", "jnp.matmul(by_column, by_row, out_sharding="),
    row("20 add", "by_row + by_column", "ShardingTypeError", "reshard(by_column, by_row.sharding)"),
    row("20 concatenate", "with jax.set_mesh(explicit): jnp.concatenate([by_row, by_column])", "ShardingTypeError", "compatible shardings"),
    row("20 index", "by_row[0]", "ShardingTypeError", "by_row.at[0].get(out_sharding="),
    row("21 no mesh", "jax.device_put(batch, P('x'))", "ValueError", "jax.set_mesh(mesh) on every rank"),
    row("21 no mesh for jit", "jax.jit(abs, out_shardings=P('x'))(params)", "RuntimeError", "jax.set_mesh(mesh)"),
    row("21 no mesh for shard_map", "jax.shard_map(abs, in_specs=P('x'), out_specs=P('x'))(params)", "ValueError", "set_mesh"),
    row("21 unknown axis", "NamedSharding(mesh, P('z'))", "ValueError", "no axis 'z'", "it has 'x'"),
    row(
        "21 unknown axis of shard_map", "jax.shard_map(abs, mesh=mesh, in_specs=P('z'), out_specs=P('x'))(params)",
        "ValueError", "no axis 'z'", "it has 'x'",
    ),
    row(
        "21 unbound axis", "jax.jit(lambda a: jax.lax.psum(a, 'zz'))(1.0)",
        "NameError", "not inside a jax.shard_map or jax.pmap with the axis 'zz'",
    ),
    row(
        "21 unbound axis in shard_map",
        "jax.shard_map(lambda a: jax.lax.psum(a, 'zz'), mesh=mesh, in_specs=P('x'), out_specs=P())(params)",
        "AssertionError", "names a mesh axis that its mesh does not have",
    ),
    row(
        "21 unbound axis in pmap", "jax.pmap(lambda a: jax.lax.psum(a, 'zz'), 'i')(np.ones(2))",
        "NameError", "jax.pmap with the axis 'zz'",
    ),
    row(
        "21 not replicated", "jax.shard_map(jnp.sum, mesh=mesh, in_specs=P('x'), out_specs=P())(params)",
        "ValueError", "jax.lax.psum over 'x'", "each rank continues with its own value",
    ),
    row("22 process_allgather", "multihost_utils.process_allgather(params)", "ValueError", "(params, tiled=True)"),
    row("24 NumPy into jit", "jax.jit(abs, in_shardings=rows)(batch)", "ValueError", "jax.device_put(batch, rows)"),
    row("25 long spec", "jax.device_put(batch, NamedSharding(mesh, P('x', None)))", "ValueError", "more entries"),
    row(
        "25 long spec for a callback",
        "jax.make_array_from_callback((8,), NamedSharding(mesh, P(None, 'x')), lambda i: batch[i])",
        "IndexError", "more entries than the array has dimensions",
    ),
    row(
        "25 long spec for shard_map",
        "jax.shard_map(abs, mesh=mesh, in_specs=P('x', None), out_specs=P('x'))(params)",
        "ValueError", "more entries",
    ),
    row("26 tree_map", "jax.tree_map(abs, state)", "AttributeError", "use jax.tree.map."),
    row("26 tree_map imported", "from jax import tree_map", "ImportError", "use jax.tree.map."),
    row("26 PositionalSharding", "jax.sharding.PositionalSharding(jax.devices())", "AttributeError", "NamedSharding(mesh"),
    row("26 xmap", "from jax.experimental.maps import xmap", "ModuleNotFoundError", "jax.shard_map for xmap"),
    row("26 use_mesh", "jax.sharding.use_mesh(mesh)", "AttributeError", "jax.set_mesh"),
    row("26 device_put_sharded", "jax.device_put_sharded([1.0], jax.local_devices())", "AttributeError", "NamedSharding"),
    row("27 visualize", "jax.debug.visualize_array_sharding(jnp.float32(3))", "ValueError", "%mhjax vars"),
    row("28 donated", "gone = spread(np.ones(8)); double(gone); gone + 1", "RuntimeError", "gone was donated"),
    row("31 devices in a cell", "jax.config.update('jax_num_cpu_devices', 4)", "RuntimeError", "start --devices 4."),
]  # fmt: skip


@pytest.fixture(scope="module")
def prepared() -> list[Cluster]:
    """Clusters that have the names already."""
    return []


@pytest.fixture
def set_up(shared: Cluster, prepared: list[Cluster]) -> Cluster:
    """The shared cluster, with the names that the cells use."""
    if shared not in prepared:
        shared.run("%reset -f").check()
        shared.run(TOOLS + VALUES).check()
        prepared.append(shared)
    return shared


@pytest.fixture
def ranks(set_up: Cluster) -> Iterator[Cluster]:
    """The same cluster, clean before and after."""
    assert set_up.state == "clean", set_up.reason
    yield set_up
    assert set_up.state == "clean", set_up.reason


def hints(result: CellResult) -> list[str | None]:
    """Return the hint of every rank's error."""
    return [rank.error.hint for rank in result if rank.error]


@pytest.mark.sample(10)
@pytest.mark.other_python
@pytest.mark.parametrize("pitfall", PITFALLS)
def test_known_mistake_gets_its_hint(ranks: Cluster, pitfall: Pitfall) -> None:
    """The real error of the installed JAX gets the hint of its row, on every rank and in the user's own names."""
    result = ranks.run(pitfall.code)
    assert {rank.error.ename for rank in result if rank.error} == {pitfall.ename}
    assert len(hints(result)) == 4
    for hint in hints(result):
        assert hint is not None
        assert [words for words in pitfall.says if words not in hint] == [], hint


ORDINARY = [
    ("ValueError", "raise ValueError('cannot reshape array of size 64 into shape (7,-1)')"),
    ("ValueError", "batch.reshape(3, -1)"),
    ("IndexError", "[1, 2][5]"),
    ("IndexError", "jax.tree.map(lambda a: [][1], state)"),
    ("IndexError", "jax.jit(lambda a: [][1])(params)"),
    ("IndexError", "jax.make_array_from_callback((8,), rows, lambda index: [][1])"),
    ("IndexError", "params[1, 2]"),
    ("KeyError", "state['tree_map']"),
    ("AssertionError", "assert params is None"),
    ("AssertionError", "assert False, 'the loss is not finite'"),
    ("AssertionError", "def check(index):\n    assert False\njax.make_array_from_callback((8,), rows, check)"),
    ("AssertionError", "class Mine:\n    def __iter__(self):\n        assert False\nlist(Mine())"),
    ("AssertionError", "multihost_utils.assert_equal(batch + me, 'seeds differ')"),
    ("NameError", "name_of_nobody + 1"),
    ("TypeError", "float(params)"),
    ("TypeError", "jnp.ones((2, 3)) @ jnp.ones((2, 3))"),
    ("AttributeError", "jax.no_such_thing"),
    ("SyntaxError", "for in params"),
]


@pytest.mark.other_python
@pytest.mark.parametrize(("ename", "code"), ORDINARY, ids=[code[:40] for _, code in ORDINARY])
@pytest.mark.sample(8)
def test_other_mistake_gets_no_hint(ranks: Cluster, ename: str, code: str) -> None:
    """An error that is not in the table gets no hint, even if JAX raised it or its words are those of a row."""
    result = ranks.run(code)
    assert {rank.error.ename for rank in result if rank.error} == {ename}
    assert hints(result) == [None] * 4


_ANSWER = "import asyncio\nasync def answer(): return 42\n"
_SQUARE = (
    "import multiprocessing as mp\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(n): return n * n\n"
)
_POOL = "with mp.get_context('{}').Pool(1) as pool:\n    pool.apply_async(square, (3,)).get(timeout=5)"


@pytest.mark.parametrize(
    ("code", "ename", "says"),
    [
        (f"{_ANSWER}asyncio.run(answer())", "RuntimeError", "`await answer()`"),
        (f"{_ANSWER}asyncio.get_event_loop().run_until_complete(answer())", "RuntimeError", "`await answer()`"),
        (f"{_ANSWER}asyncio.new_event_loop().run_until_complete(answer())", "RuntimeError", "`await answer()`"),
        (f"{_SQUARE}{_POOL.format('spawn')}", "TimeoutError", "%%writefile"),
        (f"{_SQUARE}{_POOL.format('forkserver')}", "TimeoutError", "%%writefile"),
        (
            f"{_SQUARE}with ProcessPoolExecutor(1, mp_context=mp.get_context('spawn')) as pool: pool.submit(square, 3).result()",
            "BrokenProcessPool",
            "%%writefile",
        ),
        ("import pickle\npickle.dumps(lambda: 1)", "PicklingError", "%%writefile"),
        ("import no_such_module", "ModuleNotFoundError", "%mhjax sync"),
        (
            "import jax\n@jax.jit\ndef f(v):\n    jax.debug.breakpoint()\n    return v * 2\nf(1.0)",
            "NoKeyboard",
            None,
        ),
    ],
)
@pytest.mark.sample(4)
def test_script_only_code_gets_a_hint(ranks: Cluster, code: str, ename: str, says: str | None) -> None:
    """Code that a script can run and a cell cannot gets a hint that says what to write instead.

    This covers event loops, processes, packages and debuggers. The error names the user's line.
    """
    result = ranks.run(code)
    assert {rank.error.ename for rank in result if rank.error} == {ename}
    for hint in hints(result):
        assert says is None or says in (hint or "")
    if ename == "NoKeyboard":
        assert {rank.error.line for rank in result if rank.error} == {4}
        assert {rank.stderr for rank in result} == {""}


def test_printing_a_global_array_is_not_an_error(ranks: Cluster) -> None:
    """Row 2: printing a global array is not an error."""
    assert ranks.run("print(params)").ok


@pytest.mark.other_python
def test_sync_points_are_named_by_rank(ranks: Cluster) -> None:
    """Row 29: each rank's own name is beside its error."""
    result = ranks.run("multihost_utils.sync_global_devices(f'after step {me}')")
    for rank, hint in enumerate(hints(result)):
        assert hint is not None
        assert f"'after step {rank}'" in hint


CLIENT = "from jax._src.distributed import global_state\nclient = global_state.client\n"


@pytest.mark.other_python
def test_missing_key_is_not_a_missing_collective(ranks: Cluster) -> None:
    """A wait for a key that no rank set names the key, and another rank that sets it ends the wait."""
    found = hints(ranks.run(f"{CLIENT}client.blocking_key_value_get('step', 300)"))
    assert {"the key 'step' within 300ms" in (hint or "") for hint in found} == {True}
    cure = "if me == 1: client.key_value_set('step', 'done')\nassert client.blocking_key_value_get('step', 60_000) == 'done'"
    ranks.run(CLIENT + cure).check()


@pytest.mark.other_python
def test_two_barriers_are_not_a_missing_collective(ranks: Cluster) -> None:
    """Ranks that wait at barriers of different names get the name and the missing ranks; with one name they pass."""
    found = hints(ranks.run(f"{CLIENT}client.wait_at_barrier(f'barrier {{me}}', 300)"))
    for rank, hint in enumerate(found):
        # JAX names only some of the ranks that it missed.
        assert re.search(
            rf"Only 1 of 4 ranks reached the barrier 'barrier {rank}' in time; ranks? [0-3,-]+ did not\.", hint or ""
        )
    ranks.run(f"{CLIENT}client.wait_at_barrier('one barrier', 60_000)").check()


def test_print_in_shard_map_follows_its_hint(ranks: Cluster) -> None:
    """`jax.debug.print` in a compiled `shard_map` prints, as the hint of a failed `print` says."""
    body = "lambda a: (jax.debug.print('{}', a), a)[1]"
    result = ranks.run(f"jax.jit(jax.shard_map({body}, mesh=mesh, in_specs=P('x'), out_specs=P('x')))(params)")
    assert sorted("".join(rank.stdout for rank in result.check()).split()) == sorted(f"[{n}.]" for n in range(8))


def test_unchecked_replication_differs_between_ranks(ranks: Cluster) -> None:
    """With JAX's own advice `check_vma=False` the ranks go on with different values, as the hint says; a psum mends it."""
    code = "print(float(jax.shard_map({}, mesh=mesh, in_specs=P('x'), out_specs=P(){})(params)))"
    advised = ranks.run(code.format("jnp.sum", ", check_vma=False")).check()
    assert len({rank.stdout for rank in advised}) == 4
    cured = ranks.run(code.format("lambda a: jax.lax.psum(a.sum(), 'x')", "")).check()
    assert {rank.stdout for rank in cured} == {"28.0\n"}


def test_container_with_texts_is_pulled_as_its_hint_says(ranks: Cluster) -> None:
    """The container of a failed fetch is pulled by the name in the hint, texts included."""
    ranks.run("mixed = {'w': params, 'names': ['a', 'b']}").check()
    assert {"`%mhjax pull mixed`" in (hint or "") for hint in hints(ranks.run("jax.device_get(mixed)"))} == {True}
    pulled = ranks.pull("mixed")
    assert pulled["names"] == ["a", "b"]
    assert pulled["w"].tolist() == list(range(8))


def test_hint_is_shown_with_the_traceback(ranks: Cluster) -> None:
    """The text and the HTML of a failed cell contain the hint."""
    from mhnb.view.cell.html import format_cell_html
    from mhnb.view.cell.text import format_cell_text

    result = ranks.run("params.tolist()")
    assert "→ A rank holds only its own shards" in format_cell_text(result)
    assert "%mhjax pull params" in format_cell_html(result)


@pytest.mark.parametrize("code", ["jax.device_put(few, jax.local_devices()[0])", "np.asarray(few)"])
def test_ranks_outside_the_mesh_of_an_array_are_not_told_to_read_it(ranks: Cluster, code: str) -> None:
    """An array with copies on ranks 0 and 1 has none on ranks 2 and 3; made again on all ranks, it can be read there."""
    make = "few = jax.make_array_from_callback((8,), {}, lambda box: np.ones(8, np.float32)[box], dtype=np.float32)\n"
    result = ranks.run(make.format("NamedSharding(half.mesh, P())") + code)
    found = {rank.rank: rank.error.hint or "" for rank in result if rank.error}
    for rank, hint in found.items():
        assert ("few is on devices of other ranks only" in hint) == (rank >= 2), hint
        assert ("Use this rank's: few.addressable_shards[0].data" in hint) == (rank < 2), hint
    assert {2, 3} <= found.keys()
    ranks.run(make.format("whole") + "assert np.asarray(few).sum() == 8").check()


def test_one_line_fixes_work(ranks: Cluster) -> None:
    """The one-line fixes that hints suggest run."""
    fixes = """
whole = NamedSharding(mesh, P())
assert np.asarray(jax.device_put(params, whole)).sum() == 28
assert len(list(jax.device_put(weights, whole))) == 8
add(params, jax.device_put(np.asarray(local), NamedSharding(mesh, P())))
jnp.matmul(by_column, by_row, out_sharding=NamedSharding(explicit, P()))
by_row + jax.reshard(by_column, by_row.sharding)
by_row.at[0].get(out_sharding=NamedSharding(explicit, P()))
jax.jit(abs, in_shardings=rows)(jax.device_put(batch, rows))
multihost_utils.process_allgather(params, tiled=True)
params.sharding.devices_indices_map(params.shape)
assert copies.addressable_shards[0].data.shape == (8,)
assert params.addressable_shards[0].data.shape == (1,)
with jax.set_mesh(explicit): jnp.zeros(8, out_sharding=line.sharding)
"""
    ranks.run(fixes).check()


@pytest.mark.timeout(480)
@pytest.mark.soak
def test_collective_on_one_rank_gets_a_hint(fresh: Fresh) -> None:
    """Row 10: the first use of some devices by only one of their ranks fails after half a minute, and the hint says why."""
    cluster = fresh(2, 2)
    cluster.run(TOOLS).check()
    # These devices have not met before; devices that have would wait forever.
    half = "half = NamedSharding(Mesh(np.array(jax.devices()[::2]), ('x',)), P('x'))\nmine = spread(np.ones(2), half)\n"
    result = cluster.run(half + "if me == 0:\n    print(mine.sum())", guard="parity", timeout_s=90)
    assert result[0].error is not None
    assert result[0].error.hint is not None
    assert "compute on all ranks, print on one" in result[0].error.hint


@pytest.mark.other_python
def test_different_shapes_per_rank_get_a_hint(fresh: Fresh) -> None:
    """Row 13: native code aborts a rank, and the hint is found in the rank's last output."""
    cluster = fresh(2, 1)
    cluster.run(TOOLS).check()
    code = """
def total(n):
    summed = jax.jit(lambda a: a.reshape(2, n).sum(0), out_shardings=NamedSharding(mesh, P()))
    return summed(spread(np.ones(2 * n))).block_until_ready()
total(4)
total(4 + 1000 * me)
"""
    result = cluster.run(code, guard="parity", timeout_s=60)
    assert result.state == "dead"
    assert any(hint is not None and "Pad the arrays to the same size" in hint for hint in hints(result))


def test_rank_that_died_in_a_collective_is_named(fresh: Fresh) -> None:
    """Row 9: the rank that died first is named with its signal and last output; the rank that it left waiting is not blamed."""
    cluster = fresh(2, 1)
    cluster.run(TOOLS).check()
    code = "import os, signal\nif me:\n    os.write(2, b'loading shard 3\\n'); os.kill(os.getpid(), signal.SIGKILL)\n"
    result = cluster.run(code + "spread(np.ones(2)).sum()", guard="parity", timeout_s=60)
    assert result[1].outcome == "died"
    # Either its peer's death or mhnb's kill reaches rank 0 first.
    assert result[0].outcome in ("killed", "error")
    assert any("rank 1" in note and "SIGKILL" in note and "loading shard 3" in note for note in result.notes)


# -- errors that a cluster of mhnb cannot have: plain processes raise them


def _run_plain(*codes: str, devices: tuple[int, ...] = (1, 1, 1)) -> list[str]:
    """Run programs side by side, each with its number of devices; return the output of each."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_PREEMPTION_SERVICE": "0", "no_proxy": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"},
        )
        for code, count in zip(codes, devices, strict=False)
    ]
    try:
        return [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def _parse_error(output: str) -> tuple[str, str]:
    ename, _, evalue = output.strip().splitlines()[-1].partition(": ")
    return ename.rpartition(".")[2], evalue


@pytest.mark.other_python
def test_initialize_without_arguments_gets_a_hint() -> None:
    """Row 6: `initialize` outside mhnb without arguments gets a hint."""
    (output,) = _run_plain("import jax; jax.distributed.initialize()")
    hint = find_hint(*_parse_error(output))
    assert hint is not None
    assert "all three arguments" in hint


@pytest.mark.other_python
@pytest.mark.test_all
def test_missing_rank_aborts_the_others() -> None:
    """Row 7: the process that waits in vain is aborted, and its last output gets the hint."""
    start = f"import jax; jax.distributed.initialize('127.0.0.1:{find_free_port()}', 2, 0, initialization_timeout=1)"
    (output,) = _run_plain(start)
    hint = find_hint("RankDied", output)
    assert hint is not None
    assert "did not reach the coordinator" in hint


_JOIN = """
import socket, time, jax
def join(limit_s): jax.distributed.initialize("127.0.0.1:{port}", 2, {rank}, initialization_timeout=limit_s)
def meet(): socket.create_connection(("127.0.0.1", {gate})).recv(1)
"""


def _release_when_all_connected(gate: socket.socket, count: int) -> None:
    connections = [gate.accept()[0] for _ in range(count)]
    for connection in connections:
        connection.close()


@pytest.mark.other_python
@pytest.mark.test_all
def test_duplicate_process_id_gets_a_hint() -> None:
    """Row 8: the second process with an id ends those that are connected, and their last output gets the hint."""
    with socket.create_server(("127.0.0.1", 0)) as gate, ThreadPoolExecutor() as pool:
        gate.settimeout(60)
        releaser = pool.submit(_release_when_all_connected, gate, 3)
        addresses = {"port": find_free_port(), "gate": gate.getsockname()[1]}
        # The third process connects once the other two are connected.
        outputs = _run_plain(
            _JOIN.format(rank=0, **addresses) + "join(30); meet(); time.sleep(60)",
            _JOIN.format(rank=1, **addresses) + "join(30); meet(); time.sleep(60)",
            _JOIN.format(rank=1, **addresses) + "meet(); join(1)",
        )
        releaser.result()
    # As a rank's supervisor and its notebook read the lines.
    last = drop_stack_frames(split_library_noise(outputs[1])[0].splitlines())[-12:]
    hint = find_hint("RankDied", "\n".join(last))
    assert hint is not None
    assert "the same process_id" in hint
    assert "--no-init" in hint
    line = pick_error_line(last)
    assert re.match(r"[\w.]+:\d+\] … (?:ALREADY_EXISTS|ABORTED): ", line)
    assert re.search(r"newer incarnation|different incarnation", line)


@pytest.mark.other_python
def test_unequal_numbers_of_devices_get_a_hint() -> None:
    """Row 22: `process_allgather` gets a hint if the ranks have different numbers of devices."""
    code = """
import sys, jax, numpy as np
from jax.experimental import multihost_utils
jax.distributed.initialize("127.0.0.1:{}", 2, {})
try:
    multihost_utils.process_allgather(np.ones(3))
except ValueError as error:
    trace = error.__traceback__
    while trace.tb_next: trace = trace.tb_next
    frame = trace.tb_frame
    print(); print(frame.f_globals["__name__"], frame.f_code.co_qualname, error, sep="|")
"""
    port = find_free_port()
    for output in _run_plain(code.format(port, 0), code.format(port, 1), devices=(1, 2)):
        module, function, evalue = output.strip().splitlines()[-1].split("|")
        hint = find_hint("ValueError", evalue, site=ErrorSite(module, function))
        assert hint is not None
        assert "each the same number" in hint
        assert find_hint("ValueError", evalue) is None


class Fix(NamedTuple):
    """A line that fails, and the same line with the hint's suggestion in place of `{}`, or as its words say."""

    fails: str
    works: str
    begins: str = "jax."
    """How the suggestion begins."""


SHARD = "jax.shard_map(abs, mesh=mesh, in_specs=P('x'), out_specs=P('x'))"
FIXES = [
    Fix("params + turned", "params + {}"),
    Fix("weights + turned", "weights + {}"),
    Fix("weights @ turned", "weights @ {}"),
    Fix("params * 2 + turned * 1", "params * 2 + {}"),
    Fix("add(params, turned)", "add(params, {})"),
    Fix("params + pair", "params + {}"),
    Fix("local + params", "{} + params"),
    Fix("weights + local", "weights + {}"),
    Fix("params + hosted", "params + {}"),
    Fix("hosted + params", "{} + params"),
    Fix("by_row + weights", "by_row + {}"),
    Fix("weights + by_row", "weights + {}"),
    Fix("by_row + line", "by_row + {}"),
    Fix("by_row + by_column", "by_row + {}"),
    Fix("by_row + by_other", "by_row + {}"),
    Fix("by_column @ by_row", "{}", "jnp.matmul"),
    Fix("by_row[0]", "{}", "by_row.at"),
    Fix("by_row.at[0].set(1.0)", "{}", "by_row.at"),
    Fix("jax.reshard(by_other, by_row.sharding)", "jax.reshard({}, by_row.sharding)"),
    Fix(f"{SHARD}(turned)", f"{SHARD}({{}})"),
    Fix("jax.device_put(local, rows)", "add(params, {})"),
    Fix("jax.device_put(pair, rows)", "add(params, {})"),
    Fix("jax.jit(abs, in_shardings=whole)(params)", "jax.jit(abs, in_shardings=whole)({})"),
    Fix("jax.jit(abs, in_shardings=rows)(batch)", "jax.jit(abs, in_shardings=rows)({})"),
    Fix("np.asarray(params)", "np.asarray({})"),
    Fix("np.asarray(by_row)", "np.asarray({})"),
    Fix("np.asarray(state['w'])", "np.asarray({})"),
    Fix("pickle.dumps(state)", "np.asarray({})"),
    Fix("pickle.dumps(pair_of)", "pickle.dumps({})"),
    Fix("np.asarray(box.x)", "np.asarray({})"),
    Fix("[w.tolist() for w in (params,)]", "[{}.tolist() for w in (params,)]"),
    Fix("def fetch(p):\n    return np.asarray(p)\nfetch(params)", "def fetch(p):\n    return np.asarray({})\nfetch(params)"),
    Fix("params[params > 3]", "assert {}.tolist() == [4, 5, 6, 7]", "params["),
    Fix("weights[:, params > 3]", "assert {}.shape == (8, 4)", "weights["),
    Fix("mask = params > 3\nparams[mask]", "mask = params > 3\nassert {}.tolist() == [4, 5, 6, 7]", "params["),
    Fix("params.at[params > 3].set(0)", "assert {}.sum() == 6", "params.at["),
    Fix("line[line > 0]", "assert {}.shape == (8,)", "jax.device_put(line"),
    Fix("by_row[1:, 0]", "{}", "by_row.at"),
    Fix("by_row.reshape(2, 4, 8)", "{}", "by_row.reshape"),
    Fix("by_column.ravel()", "{}", "by_column.ravel"),
    Fix("jnp.reshape(by_column, 64)", "{}", "jnp.reshape"),
    Fix("np.reshape(by_row, (2, 4, 8))", "{}", "jnp.reshape"),
    Fix("jax.jit(lambda a: a.reshape(2, 4, 8))(by_row)", "jax.jit(lambda a: {})(by_row)", "a.reshape"),
    Fix("jax.device_put(params, jax.local_devices()[0])", "np.asarray({})"),
    Fix("jax.make_array_from_callback((8,), rows, lambda box: copies[box])",
          "jax.make_array_from_callback((8,), rows, lambda box: {}[box])", "np.asarray(copies)"),
    Fix("jnp.dot(by_column, by_row)", "{}", "jnp.dot"),
    Fix("jnp.einsum('bd,df->bf', by_column, by_row)", "{}", "jnp.einsum"),
    Fix("jnp.tensordot(by_column, by_row, axes=1)", "{}", "jnp.tensordot"),
    Fix("jax.jit(lambda a, b: a @ b)(by_column, by_row)", "jax.jit(lambda a, b: {})(by_column, by_row)", "jnp.matmul"),
    Fix("older(by_column)", "def older(a):\n    return {}\nolder(by_column)", "jnp.dot"),
    Fix("jax.pmap(lambda a: a * 2)(batch)", "jax.pmap(lambda a: a * 2)({})", "jax.tree.map"),
    Fix("list(weights)", "list({})"),
    Fix("list(weights)", "{}", "weights[0"),
    Fix("list(by_row)", "list({})"),
    Fix("list(by_row)", "{}", "by_row.at"),
    Fix("multihost_utils.process_allgather(params)", "multihost_utils.{}", "process_allgather("),
    Fix("jax.device_put(thirds, rows)", "jax.device_put({}, rows)", "thirds.astype"),
    Fix("jax.device_put(holes, rows)", "{}", "jax.make_array_from_callback"),
    Fix("jax.device_put(batch, P('x'))", "with {}: jax.device_put(batch, P('x'))", "jax.set_mesh"),
    Fix("jax.jit(abs, out_shardings=P('x'))(params)", "with {}: jax.jit(abs, out_shardings=P('x'))(params)", "jax.set_mesh"),
    Fix("jax.jit(abs, out_shardings=P('x'))(params)", "spec = P('x'); jax.jit(abs, out_shardings={})(params)", "NamedSharding("),
    Fix("jax.shard_map(abs, in_specs=P('x'), out_specs=P('x'))(params)",
          "with {}: jax.shard_map(abs, in_specs=P('x'), out_specs=P('x'))(params)", "jax.set_mesh"),
    Fix("jax.debug.visualize_array_sharding(jnp.float32(3))", "x = params; {}", "x.sharding.dev"),
    Fix("jax.jit(abs, in_shardings=rows)(batch)", "jax.jit(abs, in_shardings=rows)({})", "jax.make_array_from_process"),
    Fix("by_row + local", "by_row + {}"),
    Fix("line + by_other", "line + {}"),
    Fix("product(params, turned)", "product(params, {})"),
    Fix("jax.jit(lambda a: jax.lax.with_sharding_constraint(a, rows))(turned)",
          "jax.jit(lambda a: jax.lax.with_sharding_constraint(a, rows))({})"),
    # in words, because the line names neither array
    Fix("add(made(), params)", "add(jax.device_put(np.asarray(made()), NamedSharding(params.sharding.mesh, P())), params)",
        "move np.asarray of argument left of <lambda> to the mesh of argument right"),
    Fix("add(params, jax.device_put(turned, turned.sharding))",
        "add(params, jax.device_put(jax.device_put(turned, turned.sharding), params.sharding))",
        "move argument right of <lambda> to the mesh of argument left"),
    Fix("both(copies, jax.device_put(params, rows))", "both(copies, jax.device_put(jax.device_put(params, rows), whole))",
        "to the sharding in in_shardings"),
    Fix("jax.device_put(made(), params.sharding)", "jax.device_put(np.asarray(made()), params.sharding)", "pass np.asarray of it"),
    Fix("jax.device_put(np.array([np.nan, 1] * 4, np.float32), params.sharding)",
        "jax.make_array_from_callback((8,), params.sharding, lambda box: np.array([np.nan, 1] * 4, np.float32)[box])",
        "The value contains NaN"),
]  # fmt: skip


def suggestion(hint: str, begins: str) -> str:
    """Return the line of code in a hint that begins with `begins`, up to its closing bracket."""
    code, depth = hint[hint.index(begins) :], 0
    for at, character in enumerate(code):
        depth += (character in "([") - (character in ")]")
        after = code[at + 1 : at + 2]
        if (depth == 0 and character in ")]" and after not in (".", "[", "(")) or (
            depth == 0 and code[at + 1 : at + 3] in (". ", ".")
        ):
            return code[: at + 1]
    raise AssertionError(hint)


@pytest.mark.sample(6)
@pytest.mark.parametrize("cured", FIXES, ids=[f"{cured.fails} by {cured.begins}" for cured in FIXES])
def test_suggested_sharding_fix_works(ranks: Cluster, cured: Fix) -> None:
    """The line that a hint suggests, in place of what failed, makes the cell succeed on every rank."""
    found = hints(ranks.run(cured.fails))
    assert len(set(found)) == 1
    assert found[0] is not None
    assert cured.begins in found[0]
    line = suggestion(found[0], cured.begins).replace("P(...)", "P()") if "{}" in cured.works else ""
    assert ranks.run(cured.works.format(line)).check().state == "clean", found[0]


def test_values_in_a_message_are_shortened(ranks: Cluster) -> None:
    """An array that JAX prints in full into its message is cut to its ends, and the hint found from it remains."""
    result = ranks.run("with np.printoptions(threshold=10**6): jax.device_put(np.arange(10_000.0) + me, rows)")
    error = next(rank.error for rank in result if rank.error)
    assert " … " in error.evalue
    assert len(error.evalue) < 1_000
    assert sum(map(len, error.traceback)) < 20_000
    assert "same seed" in (error.hint or "")


def test_values_in_a_users_own_message_are_not_cut(ranks: Cluster) -> None:
    """A message from the user's own code is not cut."""
    result = ranks.run("raise ValueError(str(list(range(1000))))")
    assert {rank.error.evalue for rank in result if rank.error} == {str(list(range(1000)))}
