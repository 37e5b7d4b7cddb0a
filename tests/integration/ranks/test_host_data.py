"""Host data that no rank can compare as a whole, and inputs that a launch takes before they are computed: no silent mismatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.status import describe_guard
from tests.integration.ranks.test_lockstep import names, texts

SETUP = """
import threading
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
half = NamedSharding(Mesh(mesh.devices.reshape(2, 4), ('data', 'model')), P('data'))
def lay(values, sharding=rows): return jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])
v = np.arange(8, dtype=np.float32)
x = lay(v)
add = jax.jit(lambda a: a.sum(), out_shardings=whole)
prod = jax.jit(lambda w, a: (w * a).sum(), out_shardings=whole)
order = ['a', 'b'] if rank % 2 else ['b', 'a']
sides = ['a', 'b'] if rank < 2 else ['b', 'a']
float(add(x)), float(prod(x, x))
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a mesh, a global array and two collectives."""
    cluster.run(SETUP).check()
    return cluster


def check_refused(cluster: Cluster, code: str, **options: Any) -> str:
    """Check that every rank refuses, the state stays `clean` and the next sum is right; return the common error text."""
    result = cluster.run(code, **options)
    assert set(names(result)) == {"OrderMismatch"}, [rank.text for rank in result]
    assert result.state == "clean", cluster.reason
    assert {rank.text for rank in cluster.run("float(add(x))").check()} == {"28.0"}
    (text,) = texts(result)
    return text


SWAPPED = {
    "in a listing's order": "for k in order: float(add(data[k]))",
    "after a program without a collective": "norm = jax.jit(lambda a: a / 2)\nfor k in order: float(add(norm(data[k])))",
    "of one cell": "both = {k: lay(v * n) for k, n in (('a', 1), ('b', 100))}\nfor k in order: float(add(both[k]))",
    "by pmap": "for k in order: jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')(pieces[k])",
    "that pmap made alone": "for k in order: jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')(mapped[k])",
    "that pmap made of arrays of each device": "for k in order: jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')(again[k])",
    "made in a cell that awaits": (
        "import asyncio\nawait asyncio.sleep(0)\nboth = {k: lay(v * n) for k, n in (('a', 1), ('b', 100))}\n"
        "for k in order: float(add(both[k]))"
    ),
    "by a choice": "float(add(data[order[0]]))",
    "of which some ranks hold the same part": "for k in sides: float(add(shared[k]))",
    "that device_put laid out": "for k in order: float(add(put[k]))",
    "of arrays of each device": "for k in order: float(add(joined[k]))",
    "of process-local data": "for k in order: float(add(local[k]))",
}
TABLES = """
names = ('a', 'b')
data = {k: lay(v * (1 if k == 'a' else 100)) for k in names}
shared = {k: lay(v * (1 if k == 'a' else 100), half) for k in names}
put = {k: jax.device_put(v * (1 if k == 'a' else 100), rows) for k in names}
def parts(n): return [jax.device_put(np.full(1, n, np.float32), d) for d in jax.local_devices()]
joined = {k: jax.make_array_from_single_device_arrays((8,), rows, parts(1 if k == 'a' else 100)) for k in names}
local = {k: jax.make_array_from_process_local_data(rows, np.full(2, 1 if k == 'a' else 100, np.float32)) for k in names}
devices = Mesh(mesh.devices, ('i',))
def stack(n): return jax.make_array_from_callback((8, 1), NamedSharding(devices, P('i')), lambda i: np.full((1, 1), n, np.float32))
pieces = {k: stack(1 if k == 'a' else 100) for k in names}
half_of = jax.pmap(lambda a: a / 2, 'i')
mapped = {k: half_of(np.full((2, 1), 1 if k == 'a' else 100, np.float32)) for k in names}
here = NamedSharding(Mesh(np.array(jax.local_devices()), ('i',)), P('i'))
own = {k: jax.device_put(np.full((2, 1), n, np.float32), here) for k, n in (('a', 1), ('b', 100))}
again = {k: half_of(own[k]) for k in names}
"""


@pytest.mark.sample(4)
@pytest.mark.other_python
@pytest.mark.parametrize("use", SWAPPED.values(), ids=SWAPPED.keys())
def test_sharded_host_data_in_different_orders_is_refused(ready: Cluster, use: str) -> None:
    """Sharded host data that each rank uses in its own order is refused.

    Each case used to give a wrong number on every rank, for example because each rank lists files in its own order.
    """
    ready.run(TABLES).check()
    text = check_refused(ready, use)
    assert "All ranks run the same program, but on arrays that were computed differently" in text


ACCEPTED = {
    "in one order": (
        TABLES,
        "for k in ('b', 'a'): y = float(add(data[k])) + float(add(shared[k])) + float(add(local[k]))",
    ),
    "batches of a loop": ("pass", "for n in range(3): y = float(add(lay(v + n)))"),
    "a rank skips a sample": (
        "pass",
        "for n in [n for n in range(4) if n != rank][:3]: y = float(add(lay(v + n)))",
    ),
    "a rank that makes its part again": ("data = lay(v * 2)", "y = float(add(data))"),
    "a thread that makes batches ahead": (
        "import queue",
        """
q = queue.Queue(2)
def feed():
    for n in range(4): q.put(lay(v + n))
t = threading.Thread(target=feed); t.start()
for n in range(4): y = float(add(q.get()))
t.join()""",
    ),
    "tasks that end in any order": (
        """
import asyncio, random
made = {}
async def load(name):
    for _ in range(random.Random(f"{rank} {name}").randrange(20)): await asyncio.sleep(0)
    made[name] = lay(v + len(name))
await asyncio.gather(*map(load, ("a", "bb", "ccc", "dddd")))
here = lay(v)
await asyncio.sleep(0)""",
        "y = [float(add(made[name])) for name in sorted(made)], float(add(here))",
    ),
    "tasks of a loop of its own": (
        """
import asyncio, random
made = {}
async def load(name):
    for _ in range(random.Random(f"{rank} {name}").randrange(20)): await asyncio.sleep(0)
    made[name] = lay(v + len(name))
async def load_all(): await asyncio.gather(*map(load, ("a", "bb", "ccc", "dddd")))
t = threading.Thread(target=lambda: asyncio.run(load_all())); t.start(); t.join()""",
        "y = [float(add(made[name])) for name in sorted(made)]",
    ),
    "a checkpoint of many alike": (
        """
import orbax.checkpoint, tempfile, os
from jax.experimental import multihost_utils
names = [f"layer{n}" for n in range(12)]
folder = multihost_utils.broadcast_one_to_all(np.frombuffer(tempfile.mkdtemp().encode().ljust(200), np.uint8)).tobytes().decode().strip()
tree = {name: lay(v + n, rows if n % 2 else half) for n, name in enumerate(names)}
saver = orbax.checkpoint.StandardCheckpointer()
saver.save(os.path.join(folder, "saved"), tree); saver.wait_until_finished()
target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)
back = saver.restore(os.path.join(folder, "saved"), target)""",
        "y = [float(add(back[name])) for name in names]",
    ),
    "a tree of process-local data": (
        "tree = jax.make_array_from_process_local_data(rows, {'a': np.ones(2), 'b': [np.zeros(2)]})",
        "y = jax.tree.map(add, tree)",
    ),
    "empty arrays that ranks made in several ways": (
        """
def made(): return lay(np.zeros((8, 0), np.float32))
several = [made(), made(), jax.jit(lambda a: a * 2, out_shardings=rows)(made()), jnp.zeros((0,)), np.zeros((0,))]""",
        """
if rank: z = made()
join = jax.jit(lambda a, e, f: a.sum() + e.sum() + f.sum(), in_shardings=(rows, rows, whole), out_shardings=whole)
y = [float(join(x, several[rank % 3], several[3 + rank % 2])), float(x.at[...].set(1.0).sum())]
assert y == [28.0, 8.0], y""",
    ),
    "empty arrays and numbers": (
        "e = jax.make_array_from_callback((0, 8), NamedSharding(mesh, P(None, 'x')), lambda i: np.zeros((0, 8))[i])",
        "y = add(e), add(jax.device_put(np.float32(2), whole)), add(jax.device_put(3, whole))",
    ),
    "by pmap": (
        TABLES,
        """
total = jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')
if rank == 1: print(half_of(own['a']))
for k in ('b', 'a'): y = total(mapped[k]) + total(again[k]) + total(half_of(own[k])) + total(own[k])
if rank == 1: y = total(np.ones((2, 1), np.float32))
else: y = total(np.zeros((2, 1), np.float32))""",
    ),
    "narrow types": (
        """
import ml_dtypes
kinds = [jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn, np.complex64, np.bool_]
made = [jax.device_put(np.ones(8, kind), s) for kind in kinds for s in (rows, whole)]""",
        "y = [jax.jit(lambda a: (a == a[0]).all(), out_shardings=whole)(each) for each in made]",
    ),
    "equal numbers and arrays in several forms": (
        "ones = np.ones(8, np.float32)\ncopies = lay(ones, whole), ones, jnp.asarray(ones)",
        """
key, scalars = jax.random.key(1), [2.0, np.float32(2), np.full((), 2, np.float32), jnp.float32(2), lay(np.float32(2)[...], whole)]
fixed = jax.jit(lambda w, a: (w * a).sum(), in_shardings=(whole, rows), out_shardings=whole)
inner = jax.shard_map(lambda w, a: jax.lax.psum(w.sum() * a.sum(), 'x'), mesh=mesh, in_specs=(P(), P('x')), out_specs=P())
draw = jax.jit(lambda k, a: a.sum() + 0 * jax.random.normal(k), out_shardings=whole)
y = [
    *(float(prod(x, scalars[(rank + n) % 5])) for n in range(5)),
    *(float(add(x * scalars[(rank + n) % 5])) for n in range(5)),
    float(prod(x, 2 if rank % 2 else np.int32(2))),
    float(prod(x, True if rank % 2 else np.bool_(True))) * 2,
    float(prod(x, jax.jit(lambda n: n * 2, out_shardings=whole)(1.0 if rank % 2 else np.float32(1)))),
    float(fixed(copies[rank % 3], x)) * 2,
    float(jax.jit(inner)(copies[rank % 3], x)) / 4,
    float(add(x * copies[rank % 3])) * 2,
    float(draw(key if rank % 2 else jax.make_array_from_callback((), whole, lambda i: key), x)) * 2,
]
assert y == [56.0] * len(y), y""",
    ),
    "memory of the host": (
        "pinned = jax.device_put(v, NamedSharding(mesh, P(), memory_kind='unpinned_host')) if False else lay(v, whole)",
        "y = add(pinned)",
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_host_data_used_in_the_same_way_is_accepted(ready: Cluster, name: str, guard: str) -> None:
    """Host data that all ranks use in the same way is accepted, whatever each rank's shard holds and whichever thread made it.

    A note counts arrays that are not identified, because a thread of its own or a library's task made them.
    """
    make, use = ACCEPTED[name]
    ready.run(make, guard=guard).check()
    result = ready.run(use, guard=guard).check()
    noted = {"a thread that makes batches ahead": 4, "a checkpoint of many alike": 12} if guard == "lockstep" else {}
    assert [note.partition(" was")[0].partition(" were")[0] for note in result.notes] == (
        [f"{noted[name]} arrays"] if name in noted else []
    )
    assert result.state == "clean"


def test_note_says_how_to_make_arrays_in_one_order(ready: Cluster) -> None:
    """Arrays made in another order on some ranks are refused, and the note says how to make them.

    They are made in the order of a listing and used by name, which cannot be distinguished from a mistake.
    """
    ready.run("data = {}\nfor k in order: data[k] = lay(v * (1 if k == 'a' else 100))").check()
    notes = ready.run("for k in ('a', 'b'): float(add(data[k]))").notes
    assert not any("--replay" in note for note in notes)
    assert notes[0].startswith("data['a'], f32[8], is from sharded host data (cell ")
    assert (
        notes[1]
        == "Sort file lists, sets and dicts; make each array on the same line, the same number of times on every rank."
    )


def test_shard_made_again_on_one_rank_is_noted(ready: Cluster) -> None:
    """A rank that failed to load its shard can make it again with `--ranks`.

    That shard is not compared, and each cell that uses it says so in a note.
    """
    ready.run("data = lay(v * 2)").check()
    ready.run("data = lay(v * 2)", ranks=[1]).check()
    for _ in range(2):
        result = ready.run("float(add(data))").check()
        assert {rank.text for rank in result} == {"56.0"}
        (note,) = result.notes
        assert note.startswith("1 array was not compared: ")


DIFFERENT_COPIES = {
    "arrays of each device": "y = join([np.full(8, n, np.float32) for n in range(2)], whole)",
    "a shard that no other rank holds": "y = join([np.full(2, n, np.float32) for n in range(2)], hosts)",
    "a callback that returns other values": (
        "values = iter((1, 2))\ny = jax.make_array_from_callback((8,), hosts, lambda i: np.full(2, next(values), np.float32))"
    ),
    "shards taken out and joined": (
        "own = jax.jit(jax.shard_map(lambda a: a + jax.lax.axis_index('device'), mesh=hosts.mesh, in_specs=P(), out_specs=P(),"
        " check_vma=False))(np.ones(8, np.float32))\ny = join([each.data for each in own.addressable_shards], whole)"
    ),
    "values that are still computed": (
        "slow = jax.jit(lambda a: jax.lax.fori_loop(0, 60, lambda n, a: jnp.tanh(a @ a), a)[0, :8])\n"
        "y = join([slow(jnp.full((400, 400), n / 10)) for n in range(2)], whole)"
    ),
}
EQUAL_COPIES = {
    "arrays of each device": "y = join([np.ones(8, np.float32)] * 2, whole)",
    "a shard that no other rank holds": "y = lay(v, hosts)",
    "local data": "y = jax.make_array_from_process_local_data(hosts, np.full(2, rank, np.float32))",
    "of no device of its own": "y = jax.device_put(v, hosts)",
    "keys": "k = jax.random.key(1)\ny = jax.random.uniform(jax.make_array_from_callback((), whole, lambda i: k), 8)",
    "narrow types": "y = lay(v.astype(jnp.bfloat16), hosts)",
    "a layout": "y = jax.make_array_from_callback((8,), Format(Layout((0,)), hosts), lambda i: v[i])",
}
JOIN = """
hosts = NamedSharding(Mesh(mesh.devices.reshape(4, 2), ('host', 'device')), P('host'))
def join(values, sharding):
    parts = [jax.device_put(value, device) for value, device in zip(values, jax.local_devices())]
    return jax.make_array_from_single_device_arrays((8,), sharding, parts)
"""


@pytest.mark.other_python
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("code", DIFFERENT_COPIES.values(), ids=DIFFERENT_COPIES.keys())
@pytest.mark.sample(4)
def test_different_copies_on_the_devices_of_a_rank_are_reported(ready: Cluster, code: str, guard: str) -> None:
    """Copies that differ between the devices of one rank are reported, even if they do in the same way on every rank.

    JAX uses them as one value, and every rank reads the same wrong number.
    """
    ready.run(JOIN).check()
    result = ready.run(f"{code}\ny = float(add(y))", guard=guard).check()
    assert result.state == "tainted"
    head = "the copies of one array on the devices of one rank differ, f32[8]"
    assert ready.reason.startswith(f"{head}\n  line {len(code.splitlines())}:  y = ")
    assert "each have copies with hashes" in ready.reason
    ready.accept()


@pytest.mark.sample(3)
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("code", EQUAL_COPIES.values(), ids=EQUAL_COPIES.keys())
def test_equal_copies_on_the_devices_of_a_rank_are_accepted(ready: Cluster, code: str, guard: str) -> None:
    """Copies that are equal on all devices of a rank are accepted, whatever part of the array the rank holds."""
    ready.run(JOIN).check()
    result = ready.run(f"{code}\ny = float(add(y))", guard=guard).check()
    assert (result.state, result.notes) == ("clean", ())


def test_pmap_hides_no_argument_of_another_program(ready: Cluster) -> None:
    """An argument that is still computed is compared, although a pmap of that cell takes arguments that may differ."""
    ready.run("slow = jax.jit(lambda a: jax.lax.fori_loop(0, 30, lambda n, a: a @ a / a.sum(0), a)[0, 0])").check()
    own = "y = jax.pmap(lambda a, b: jax.lax.psum(a * b, 'i'), 'i')(np.ones(2), np.full(2, rank))"
    for seed, state in (("1.0", "clean"), ("1.0 + rank", "tainted")):
        result = ready.run(f"{own}\ny = prod(x, slow(jnp.full((900, 900), {seed})))").check()
        assert result.state == state
    assert "the ranks passed different values to one launch, f32[]\n" in ready.reason
    ready.accept()


DONATED = """
init = jax.jit(lambda key: jax.lax.fori_loop(0, 60, lambda n, p: jnp.tanh(p @ p), jax.random.normal(key, (400, 400))))
def loss(p, x): return p.mean() * x.sum()
step = jax.jit(lambda p, x: (p - 0.1 * jax.grad(loss)(p, x), loss(p, x)), donate_argnums=0)
shown = jax.jit(loss)
p, _ = step(init(jax.random.key(0)), x)
"""


@pytest.mark.other_python
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.sample(1)
def test_parameters_from_different_seeds_are_reported(ready: Cluster, guard: str) -> None:
    """Parameters from a seed that differs between the ranks are never trained on silently.

    The first step donates them while they are still computed. So lockstep waits for them, in every cell and not only in the first.
    """
    ready.run(DONATED).check()
    for _ in range(2):
        code = "p = init(jax.random.key(rank))\nfor _ in range(3): p, y = step(p, x)"
        if guard == "lockstep":
            check_refused(ready, code)
            continue
        assert ready.run(code, guard=guard).state == "tainted"
        assert (
            "the ranks passed different values to one launch, f32[400,400]" in ready.reason
            or "line 2:  for _" in ready.reason
        )
        ready.accept()
    equal = ready.run("p = init(jax.random.key(7))\nfor _ in range(3): p, y = step(p, x)", guard=guard).check()
    assert (equal.state, equal.notes) == ("clean", ())


def test_input_read_and_then_donated_is_compared(ready: Cluster) -> None:
    """An array that a first launch reads and a second one donates is compared.

    The second launch takes it before it can be hashed at the end of the cell.
    """
    ready.run(DONATED + "y = shown(init(jax.random.key(0)), x)").check()
    result = ready.run("p = init(jax.random.key(rank % 2))\nbefore = shown(p, x)\np, y = step(p, x)")
    assert result.state == "tainted"
    ready.accept()
    equal = ready.run("p = init(jax.random.key(5))\nbefore = shown(p, x)\np, y = step(p, x)").check()
    assert equal.notes == ()


@pytest.mark.soak
def test_many_pending_inputs_are_compared(ready: Cluster) -> None:
    """If a launch has more pending inputs than the guard keeps, it waits for the rest."""
    ready.run("many = jax.jit(lambda x, *p: sum(e.mean() for e in p) * x.sum())\n" + DONATED).check()
    code = "p = init(jax.random.key({}))\ny = many(x, *(p * n for n in range(300)))"
    check_refused(ready, code.format("rank % 2"))
    assert ready.run(code.format("3")).check().notes == ()


def test_replicas_of_any_size_are_compared(fresh: Callable[..., Cluster]) -> None:
    """Replicas of any size are compared.

    No host array is too large to be hashed, because it is copied to each device anyway.
    """
    cluster = fresh(2, 1)
    cluster.run(SETUP.replace("(2, 4)", "(2, 1)").replace("arange(8", "arange(4")).check()
    make = "w = lay(np.full(5 * 2**20, {}, np.float32), whole)"
    assert cluster.run(make.format("2")).check().notes == ()
    assert cluster.run(make.format("rank")).state == "tainted"
    cluster.accept()
    launch = "y = jax.jit(lambda w, a: w.mean() * a.sum())(np.full(5 * 2**20, {}, np.float32), x)"
    assert cluster.run(launch.format("2")).check().notes == ()
    assert set(names(cluster.run(launch.format("rank")))) == {"OrderMismatch"}
    cluster.run("two = [lay(np.full(5 * 2**20, n, np.float32), whole) for n in range(2)]").check()
    assert set(names(cluster.run("y = jax.jit(lambda w, a: w.mean() * a.sum())(two[rank], x)"))) == {"OrderMismatch"}


REPLICAS = {
    "keys by a callback": "w = jax.make_array_from_callback((), whole, lambda i: jax.random.key({n}))",
    "keys of each device": (
        "parts = [jax.device_put(jax.random.key({n}), d) for d in jax.local_devices()]\n"
        "w = jax.make_array_from_single_device_arrays((), whole, parts)"
    ),
    "a layout by a callback": (
        "w = jax.make_array_from_callback((8, 8), Format(Layout((0, 1)), whole), lambda i: np.full((8, 8), {n}, np.float32))"
    ),
    "process-local data": "w = jax.make_array_from_process_local_data(whole, np.full(8, {n}, np.float32))",
    "a layout on the devices": "w = jax.device_put(np.full((8, 8), {n}, np.float32), Format(Layout((0, 1)), whole))",
    "a number on the devices": "w = jax.device_put(np.float32({n}), whole)",
    "an array of one rank on the devices": "w = jax.device_put(jnp.full(8, {n}, jnp.float32), whole)",
    "an argument of jit": "w = jax.jit(lambda a: a * 1, out_shardings=whole)(np.full(8, {n}, np.float32))",
    "jnp.asarray": "w = jnp.asarray(np.full(8, {n}, np.float32), device=whole)",
    "jnp.array": "w = jnp.array([float({n})] * 8, device=whole)",
    "jnp.full": "w = jnp.full(8, {n}, jnp.float32, device=whole)",
    "bfloat16": "w = jax.device_put(np.full(8, {n}, jnp.bfloat16), whole)",
    "four bits": "w = jax.device_put(np.full(8, {n}, jnp.int4), whole)",
    "complex": "w = jax.device_put(np.full(8, {n}, np.complex64), whole)",
    "a reference": "w = jax.new_ref(jax.device_put(np.full(8, {n}, np.float32), whole))[...]",
    "multihost_utils": (
        "from jax.experimental import multihost_utils\n"
        "w = multihost_utils.host_local_array_to_global_array(np.full(8, {n}, np.float32), mesh, P())"
    ),
    "copies on each device": (
        "w = jax.make_array_from_single_device_arrays((8,), whole,"
        " [jax.device_put(np.full(8, {n}, np.float32), d) for d in jax.local_devices()])"
    ),
}


PRODUCT = """
def number(w): return jax.random.key_data(w) if jnp.issubdtype(w.dtype, jax.dtypes.prng_key) else w
product = jax.jit(lambda w, a: number(w).astype(jnp.float32).sum() * a.sum())
"""


@pytest.mark.sample(4)
@pytest.mark.other_python
@pytest.mark.parametrize("make", REPLICAS.values(), ids=REPLICAS.keys())
def test_replicas_are_compared_however_they_are_made(ready: Cluster, make: str) -> None:
    """For each public way to make replicas, different values are tainted or refused, and equal values raise no note."""
    use = "\ny = product(w, x)"
    ready.run(PRODUCT).check()
    equal = ready.run(make.format(n="3") + use).check()
    assert (equal.state, equal.notes) == ("clean", ())
    result = ready.run(make.format(n="rank % 2") + use)
    assert (
        result.state == "tainted"
        or set(names(result)) == {"OrderMismatch"}
        or all("not the same on each process" in text for text in texts(result))
    )
    if ready.state == "tainted":
        ready.accept()


LOCAL_RESULTS = {
    "logits of the rank's own examples": "mine = np.full((2, 4), rank, np.float32)\nlogits = mine @ W\nlogits",
    "kept in a variable": "mine = np.full((2, 4), rank, np.float32)\nlogits = jax.jit(lambda a, w: a @ w)(mine, W)",
    "a mask of the rank's own": "jnp.where(np.arange(4) == rank, W, 0)",
    "one element": "W[jnp.array([rank, 2])]",
}


@pytest.mark.sample(4)
@pytest.mark.other_python
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("look", LOCAL_RESULTS.values(), ids=LOCAL_RESULTS.keys())
def test_results_from_a_ranks_own_examples_may_differ(ready: Cluster, look: str, guard: str) -> None:
    """What a rank computes from its own examples may differ, stored or displayed, because it reaches no other rank."""
    ready.run("W = jax.device_put(np.eye(4, dtype=np.float32), whole)").check()
    result = ready.run(look, guard=guard).check()
    assert (result.state, result.notes) == ("clean", ())


def test_weights_trained_separately_are_refused(ready: Cluster) -> None:
    """Weights that each rank trained by itself are refused at their first collective."""
    ready.run("W = jax.device_put(np.eye(4, dtype=np.float32), whole)").check()
    ready.run("mine = np.full((2, 4), rank, np.float32)\nW = W - 0.1 * (mine.T @ (mine @ W))").check()
    check_refused(ready, "y = jax.jit(lambda w, a: w.sum() * a.sum())(W, x)")


def test_unguarded_array_hides_no_other_input(ready: Cluster) -> None:
    """An array made without a guard is not compared, each cell that uses it says so, and the other inputs are compared."""
    ready.run("y, w = x * 2, x * 3").check()
    ready.run("y = y * 1", guard="off").check()
    for _ in range(2):
        result = ready.run("float(prod(w, y))").check()
        assert {rank.text for rank in result} == {"840.0"}
        (note,) = result.notes
        assert note.startswith("1 array was not compared: ")
    ready.run("if rank == 1: w = w * 100").check()
    check_refused(ready, "float(prod(w, y))")


DIFFERENCES = {
    "they differ in the sign of zero": "np.array([0.0, 1.0], np.float32) * (-1 if rank % 2 else 1) * np.array([1, 0], np.float32)",
    "that differ in the last digits": "np.array([1.0, 2.0], np.float32) + np.float32(1e-7) * (rank % 2)",
    "for example, the values 0 and 1": "np.full(2, rank % 2, np.float32)",
}


@pytest.mark.parametrize("words", DIFFERENCES)
def test_message_says_how_far_replicas_differ(ready: Cluster, words: str) -> None:
    """The message says how far replicas differ: a last digit from another order of summation is not a wrong seed."""
    assert ready.run(f"w = lay({DIFFERENCES[words]}, whole)").state == "tainted"
    assert words in ready.reason
    ready.accept()


def test_unused_replicas_do_not_taint_a_refused_cell(ready: Cluster) -> None:
    """Different replicas do not taint a refused cell if no launch took them.

    Its error says that the cluster is clean. This is true, because the replicas are refused wherever they are used.
    """
    result = ready.run("w = lay(np.full(2, rank, np.float32), whole)\nif rank == 1: add(x)")
    assert "OrderMismatch" in names(result)
    assert result.state == "clean"
    assert any("have different values in replicas of one array" in note for note in result.notes)
    assert "cluster is clean" in check_refused(ready, "prod(w.sum(), x)")


def test_refused_cell_that_launched_replicas_is_tainted(ready: Cluster) -> None:
    """A refused cell is tainted if a launch took different replicas before.

    Its error does not call the cluster clean: the state in the error is the state that the cell leaves.
    """
    result = ready.run("w = lay(v * (1 + rank), half)\ny = add(w)\nif rank == 1: add(x)")
    assert "OrderMismatch" in names(result)
    assert result.state == "tainted"
    assert all("cluster is clean" not in text for text in texts(result))
    ready.accept()


def test_unobserved_array_function_is_named(ready: Cluster) -> None:
    """The start tries each way to make arrays, and names one that the guard cannot observe because JAX moved it."""
    code = """
import mhnb.rank.bootstrap
from mhnb.rank.jax_private import current_recorder
start = object.__new__(mhnb.rank.bootstrap.Bootstrap)
start.recorder = current_recorder()
numbers = np.arange(jax.device_count(), dtype=np.float32)
seen, hooked = start._list_unseen(numbers, rows), jax.make_array_from_single_device_arrays
jax.make_array_from_single_device_arrays = hooked.__wrapped__
unseen = start._list_unseen(numbers, rows)
jax.make_array_from_single_device_arrays = hooked
seen, unseen"""
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"([], ['make_array_from_single_device_arrays'])"}


def test_guard_status_lists_unobserved_functions(ready: Cluster) -> None:
    """The guard's status lists the functions that it cannot observe, just as it says `unavailable` if it observes none."""
    entry = ready._state_machine.registry.entries[-1]
    before = entry.facts["guard"]
    assert describe_guard(ready._state_machine, "lockstep") == "lockstep"
    entry.facts["guard"] = before | {"unseen": ["device_put"]}
    try:
        assert describe_guard(ready._state_machine, "lockstep") == "lockstep, unavailable for device_put"
    finally:
        entry.facts["guard"] = before
