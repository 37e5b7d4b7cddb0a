"""Arrays whose provenance differs between real ranks: no collective is launched on them, whichever way they were made."""

from __future__ import annotations

import re

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.errors import ValueDiffers

SETUP = """
import threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils
rank = jax.process_index()
mesh = jax.make_mesh((8,), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
def spread(values): return jax.make_array_from_callback(values.shape, rows, lambda i: values[i])
def join(v): return jax.make_array_from_single_device_arrays(v.shape, whole, [jax.device_put(v, d) for d in jax.local_devices()])
x = spread(np.arange(8, dtype=np.float32))
add = jax.jit(lambda a: a.sum(), out_shardings=whole)
scale = jax.jit(lambda a, by: a * by)
pair = jax.jit(lambda a: (a + 1, a + 2))
several = [scale(x + add(x), n) for n in range(4)]
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a global array, and programs with and without a collective."""
    cluster.run(SETUP).check()
    return cluster


def mismatch_texts(result: CellResult) -> list[str]:
    """Return the mismatch message of each rank; an empty string if it has none."""
    return [rank.error.evalue if rank.error and rank.error.ename == "OrderMismatch" else "" for rank in result]


DIFFERENT_PROVENANCE = {
    "one rank alone": "if rank == 1: x = x * 2",
    "another number": "x = scale(x, 1.0) if rank == 1 else x",
    "an output of another place": "x, y = pair(x)\nif rank == 1: x = y",
    "written by one rank": """
kept = jax.new_ref(x)
def double(ref): ref[...] = ref[...] * 2
if rank == 1: jax.jit(double)(kept)
x = kept[...]""",
    "written by one rank, a value of its own": """
kept = jax.new_ref(x * 1.0)
if rank == 1: kept[...] = jnp.ones(8)
x = kept[...]""",
    "by the rank": "x = several[1 if rank == 1 else 2]",
    "by the rank, of one program with two numbers": "x, y = scale(x, 2.0), scale(x, 3.0)\nif rank == 1: x = y",
    "keys": """
draw = jax.jit(jax.vmap(jax.random.uniform))
x = jax.jit(lambda: jax.random.split(jax.random.key(0), 8), out_shardings=rows)()
if rank == 1: x = jax.jit(jax.vmap(lambda k: jax.random.fold_in(k, 1)))(x)
x = draw(x)""",
    "through programs that all ranks ran": "if rank == 1: x = x * 2\nx = jax.device_put(pair(x)[0], rows)",
}


@pytest.mark.other_python
@pytest.mark.parametrize("code", DIFFERENT_PROVENANCE.values(), ids=DIFFERENT_PROVENANCE.keys())
@pytest.mark.sample(5)
def test_arrays_of_different_provenance_are_refused(ready: Cluster, code: str) -> None:
    """No collective is launched on arrays whose provenance differs between the ranks.

    Each case used to give a wrong number on every rank silently; the cluster is clean before and after.
    """
    ready.run(code).check()
    assert ready.state == "clean"
    result = ready.run("float(add(x))")
    messages = mismatch_texts(result)
    assert all(messages)
    assert result.state == "clean"
    (text,) = set(messages)
    assert "\n  ranks 0,2-3   jit(<lambda>) f32[8@x] → f32[] of arrays A   line 1:  float(add(x))\n" in text
    assert "\n  rank 1        jit(<lambda>) f32[8@x] → f32[] of arrays B   line 1:  float(add(x))\n" in text
    assert re.match(r"(\w+|array 1), f32\[8\], .* on ranks 0,2-3, .* on rank 1$", result.notes[0])


DIFFERENT_INPUTS = {
    "a number that went through a program": (
        """both = jax.jit(lambda a, n: (a + 1, n))
if rank == 1: _, w = both(x, 1.0)
else: _, w = both(x, 2.0)""",
        "jax.jit(lambda w, a: w * a.sum())(w, x)",
    ),
    "host data of which each rank holds every part": (
        """two = NamedSharding(jax.make_mesh((4, 2), ('host', 'model')), P('model'))
if rank == 1: w = jax.make_array_from_callback((4,), two, lambda i: np.full(4, 1.0)[i])
else: w = jax.make_array_from_callback((4,), two, lambda i: np.full(4, 2.0)[i])""",
        "jax.jit(lambda w: w.sum())(w)",
    ),
    "a number that JAX made an array of": (
        """auto = jax.sharding.Mesh(mesh.devices, 'x')
w = jax.device_put(np.zeros(8, np.float32), NamedSharding(auto, P()))
if rank == 1: w = w.at[0].set(100.0)
else: w = w.at[0].set(200.0)""",
        "jax.jit(lambda w, a: (w * a).sum())(w, jax.device_put(x, NamedSharding(auto, P('x'))))",
    ),
    "a local array": (
        "if rank == 1: w = x * jnp.float32(2)\nelse: w = x * (jnp.ones(()) + 2)",
        "add(w)",
    ),
    "a number written": (
        """kept = jax.new_ref(jax.device_put(np.zeros((), np.float32), whole))
if rank == 1: kept[...] = np.float32(1)
else: kept[...] = np.float32(2)""",
        "jax.jit(lambda r, a: r[...] * a.sum())(kept, x)",
    ),
    "another key": (
        """key = jax.jit(lambda: jax.random.key(0), out_shardings=whole)()
if rank == 1: key = jax.random.fold_in(key, 1)
else: key = jax.random.fold_in(key, 2)""",
        "jax.jit(lambda k, a: (jax.random.normal(k, (8,)) * a).sum())(key, x)",
    ),
    "filled otherwise": (
        "if rank == 1: w = jnp.zeros(8, device=whole)\nelse: w = jnp.ones(8, device=whole)",
        "jax.jit(lambda w, a: (w * a).sum())(w, x)",
    ),
    "one of two that pmap made": (
        """step = jax.pmap(lambda p: p * 2 + 0 * jax.lax.psum(p, 'i'), 'i')
a, b = step(np.ones(2, np.float32)), step(np.full(2, 10, np.float32))
w = b if rank == 1 else a""",
        "jax.pmap(lambda p: jax.lax.psum(p, 'i'), 'i')(w)",
    ),
    "what pmap made on one rank alone": (
        """step = jax.pmap(lambda p: p * 2 + 0 * jax.lax.psum(p, 'i'), 'i')
w = step(np.ones(2, np.float32))
if rank == 1: w = jax.pmap(lambda p: p * 2)(w)""",
        "jax.pmap(lambda p: jax.lax.psum(p, 'i'), 'i')(w)",
    ),
    "put on devices when it was computed": (
        "if rank == 1: w = join(jnp.sin(jnp.ones(8)))\nelse: w = join(jnp.cos(jnp.ones(8)))",
        "jax.jit(lambda w, a: (w * a).sum())(w, x)",
    ),
}


@pytest.mark.other_python
@pytest.mark.parametrize(("make", "take"), DIFFERENT_INPUTS.values(), ids=DIFFERENT_INPUTS.keys())
@pytest.mark.sample(5)
def test_inputs_made_differently_on_one_rank_are_refused(ready: Cluster, make: str, take: str) -> None:
    """A collective is refused on inputs that one rank made differently on a line of its own.

    The program is the same, and so is every shape: only what went into the arrays differs.
    """
    ready.run(make).check()
    assert ready.state == "clean"
    assert all(mismatch_texts(ready.run(take)))
    assert ready.state == "clean"


def test_reordered_devices_keep_the_provenance(ready: Cluster) -> None:
    """An array keeps its provenance when it is moved to its devices in another order.

    The move is a launch of its own, which is refused if the ranks chose different arrays.
    """
    ready.run("turned = NamedSharding(jax.sharding.Mesh(mesh.devices[::-1], 'x'), P('x'))").check()
    assert all(mismatch_texts(ready.run("w = jax.device_put(several[1] if rank == 1 else several[2], turned)")))
    assert ready.run("w = jax.device_put(several[2], turned)\ny = jax.jit(lambda w: w.sum())(w)").check().notes == ()


UNKNOWN = "of unknown history (made with --guard off or parity)"
NOT_COMPARED = "1 array was not compared: made in a thread, with --guard off, parity or --ranks, or not seen by the guard (line 1) · clean"


@pytest.mark.parametrize("guard", ["off", "parity"])
def test_untagged_array_hides_no_other_input(ready: Cluster, guard: str) -> None:
    """An array that every rank made without provenance tags hides nothing else.

    It counts as equal on every rank, the arrays beside it are compared as usual, and a note names it as not compared.
    """
    ready.run("free = x * 1.0", guard=guard).check()
    result = ready.run("float(add(free))").check()
    assert ({rank.text for rank in result}, result.notes) == ({"28.0"}, (NOT_COMPARED,))
    ready.run("w = x * 3\nif rank == 1: w = w * 2").check()
    result = ready.run("jax.jit(lambda a, b: (a * b).sum())(free, w)")
    assert all(mismatch_texts(result))
    assert result.notes[0].startswith("w, f32[8], is from jit(multiply) (cell")


@pytest.mark.parametrize("guard", ["off", "parity"])
def test_array_untagged_on_some_ranks_is_refused(ready: Cluster, guard: str) -> None:
    """An array that only some ranks made without provenance tags is refused.

    It cannot be compared with the array of the other ranks. The note says where it was made, and how to make it.
    """
    ready.run("free = x * 1.0", guard=guard, ranks=[1]).check()
    ready.run("free = x * 1.0", ranks=[0, 2, 3]).check()
    result = ready.run("float(add(free))")
    assert all(mismatch_texts(result))
    assert result.state == "clean"
    assert result.notes[0].startswith("free, f32[8], is from jit(multiply) (cell")
    assert f", {UNKNOWN} on rank 1" in result.notes[0]
    assert result.notes[1] == "Make it in the same cell and with the same guard on every rank."
    ready.run("free = x * 1.0").check()
    assert {rank.text for rank in ready.run("float(add(free))").check()} == {"28.0"}


def test_provenance_continues_after_an_unknown_array(ready: Cluster) -> None:
    """Results of an array of unknown provenance are compared by the steps after it: a step on one rank alone is refused."""
    ready.run("free = x * 1.0", guard="off").check()
    assert {rank.text for rank in ready.run("w = free * 2.0\nfloat(add(w))").check()} == {"56.0"}
    ready.run("if rank == 1: w = w * 2").check()
    assert all(mismatch_texts(ready.run("float(add(w))")))


REPLICAS = {
    "put on devices": "jax.device_put(np.full(8, n, np.float32), whole)",
    "of each rank's own": "jax.make_array_from_process_local_data(whole, np.full(8, n, np.float32))",
    "by a callback": "jax.make_array_from_callback((8,), whole, lambda i: np.full(8, n, np.float32))",
}


@pytest.mark.parametrize("make", REPLICAS.values(), ids=REPLICAS.keys())
def test_chosen_replicas_of_host_data_must_be_equal(ready: Cluster, make: str) -> None:
    """Ranks may choose different replicas of host data only if these are equal, because replicas are known by content."""
    defining_cell = ready.run(
        f"models = [{make} for n in (2, 3, 2)]\ndot = jax.jit(lambda w, a: (w * a).sum())"
    ).check()
    result = ready.run("float(dot(models[1 if rank == 1 else 0], x))")
    assert all("of arrays B" in words for words in mismatch_texts(result))
    where = f"host data (cell {defining_cell.seq}, line 1)"
    assert result.notes[:2] == (
        (
            "array 1 of the launch (models[0] on ranks 0,2-3, models[1] on rank 1), f32[8], is"
            f" from {where} on ranks 0,2-3, from {where} (another one) on rank 1;"
            " for example, the values 2 and 3"
        ),
        "Make the values equal first: use the same seed, or read them on one rank and broadcast them.",
    )
    result = ready.run("float(dot(models[2 if rank == 1 else 0], x))").check()
    assert {rank.text for rank in result} == {"56.0"}


def test_note_names_what_made_the_arrays(ready: Cluster) -> None:
    """The note names the cell and line that made each array, and the program if there was one.

    It appears only for a mismatch of its own cell.
    """
    defining_cell = ready.run("pass\nif rank == 1: x = x * 2").check()
    assert ready.run("float(add(x))").notes == (
        (
            f"x, f32[8], is from sharded host data (cell {defining_cell.seq - 1}, line 8) on ranks 0,2-3, from"
            f" jit(multiply) (cell {defining_cell.seq}, line 2) on rank 1"
        ),
        (
            f"To make the values equal again: %mhjax restart --replay --to {defining_cell.seq - 1} (stops before"
            f" cell {defining_cell.seq})"
        ),
    )
    assert all(note.startswith("rank") for note in ready.run("if rank == 1: raise ValueError\nadd(several[0])").notes)


def test_a_refused_array_that_no_name_holds_needs_no_restart(ready: Cluster) -> None:
    """The array that differed is gone with its cell: the note says where it was from, and the next launch is right."""
    (note,) = ready.run("loss = add(x * (2 if rank == 1 else 1))").notes
    assert note.startswith("array 1 of the launch, f32[8], is from ")
    assert {rank.text for rank in ready.run("float(add(x))").check()} == {"28.0"}


@pytest.mark.usefixtures("ready")
def test_rank_that_raised_is_a_step_behind(cluster: Cluster) -> None:
    """A rank that raised before its step is a step behind, and the next collective is refused.

    The note after the cell says that variables may differ; this is where they do.
    """
    cluster.run("if rank == 1: raise ValueError('mine')\nx = x * 2")
    assert cluster.state == "clean"
    assert all(mismatch_texts(cluster.run("add(x)")))
    # The rank makes up for that step, and all ranks have the same again.
    cluster.run("x = x * 2", ranks=[1]).check()
    assert {rank.text for rank in cluster.run("float(add(x))").check()} == {"56.0"}


def test_launch_in_a_thread_is_compared(ready: Cluster) -> None:
    """A launch in a thread is compared, too, whatever catches its error."""
    result = ready.run(
        "thread = threading.Thread(target=lambda: add(several[rank % 2 + 1]))\nthread.start()\nthread.join()"
    )
    assert all("of arrays B" in words for words in mismatch_texts(result))


SAME_PROVENANCE = {
    "numbers of a rank's own for what it prints": [
        (
            """
loss = add(x)
print(float(loss / (1.0 + rank)), float(loss * jnp.float32(rank + 1)))
order = jax.jit(lambda: jnp.arange(8) * 3, out_shardings=whole)()
print(order[rank], order[jnp.array([rank, 2])])
x = x * 2.0""",
            None,
        ),
    ],
    "copies of what each rank computed": [
        (
            """
two = NamedSharding(jax.make_mesh((4, 2), ('host', 'model')), P('model'))
half = [jax.device_put(jnp.sin(jnp.ones(4)) * n, two if n else whole) for n in range(2)]
x = x * jnp.float32(2) + (half[0] * 0 + half[0].sum() * 0)[0]""",
            None,
        ),
    ],
    "ranks take the step one after the other": [("x = x * 2.0", [n]) for n in range(4)],
    "one rank looks at something scaled": [
        ("total = add(x)\nif rank == 1: print(total * 100, x * 3)\nx = x * 2.0", None),
    ],
    "one rank logs inside of a loop": [
        (
            """
slope = jax.jit(lambda w, x: w * 0 + jnp.mean(x))
def log(loss):
    if rank == 1: print(f'{float(loss * 100):.1f}')
def train(w):
    for n in range(5):
        w = w - 0.1 * slope(w, x)
        log(add(w))
    return w
w = train(x)
x = x * 2.0 + 0 * w""",
            None,
        ),
    ],
    "threads at their own pace": [
        (
            """
made = []
def work():
    time.sleep(0.05 * rank)
    made.append(x * 2.0)
thread = threading.Thread(target=work)
thread.start()
add(x)
thread.join()
x = made[0]""",
            None,
        ),
    ],
    "shards that are put together again": [
        (
            """
if rank == 1: x = x + 0
x = jax.make_array_from_single_device_arrays(x.shape, x.sharding, [shard.data for shard in x.addressable_shards])
x = x * 2.0""",
            None,
        ),
    ],
    "one rank reads what may be written": [
        (
            """
kept = jax.new_ref(x * 1.0)
def double(ref): ref[...] = ref[...] * 2
double = jax.jit(double)
for n in range(2):
    if rank == 1: print(kept[...].addressable_data(0))
    if n: double(kept)
x = jax.freeze(kept) if rank == 1 else kept[...]""",
            None,
        ),
    ],
    "one rank goes back to a copy": [
        (
            """
saved = jax.tree.map(jnp.copy, {'w': x * 2.0})
best = {'w': x * 2.0}
try:
    if rank == 1: raise OSError
except OSError: best = saved
x = jax.jit(lambda a: a)(best['w']) if rank == 2 else best['w']""",
            None,
        ),
    ],
    "donated and overwritten": [
        ("step = jax.jit(lambda a: a + a, donate_argnums=0)\nx = step(x + 0)\nif rank == 1: del several", None),
    ],
    "a sum that was read and spread again": [
        ("h = multihost_utils.process_allgather(x, tiled=True)\nx = spread(h * 2)", None),
    ],
}


PENDING_SETUP = """
heavy = jax.jit(lambda b: jax.lax.fori_loop(0, 40, lambda n, v: jnp.tanh(v @ v), b).sum() * 0 + 2)
big = jnp.ones((500, 500), jnp.float32)
heavy(big).block_until_ready()
turned = jax.sharding.Mesh(mesh.devices[::-1], 'x')
product = jax.jit(lambda w, a: (w * a).sum())
def one_is_ahead():
    value = heavy(big)
    if rank == 1: value.block_until_ready()
    return value
"""
PENDING = {
    "given through a program": """_, w = jax.jit(lambda a, v: (a.sum(), v), out_shardings=(whole, whole))(x, one_is_ahead())
float(product(w, x))""",
    "in another order": """v = one_is_ahead()
w = jax.device_put(jax.make_array_from_callback((), whole, lambda i: v), NamedSharding(turned, P()))
float(product(w, jax.device_put(x, NamedSharding(turned, P('x')))))""",
    "scaled by it": "w = x * one_is_ahead()\nfloat(add(w))",
    "by a thread of its own": """w = join(one_is_ahead() + jnp.zeros(8))
thread = threading.Thread(target=lambda: w * 3)
thread.start()
total = float(product(w, x))
thread.join()
total""",
}


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("code", PENDING.values(), ids=PENDING.keys())
@pytest.mark.sample(2)
def test_pending_and_ready_arrays_are_the_same(ready: Cluster, code: str, guard: str) -> None:
    """An array that is pending on one rank and ready on another is the same: it is known by content and not by time."""
    ready.run(PENDING_SETUP).check()
    result = ready.run(code, guard=guard).check()
    assert {rank.text for rank in result} == {"56.0"}
    assert (result.state, result.notes) == ("clean", ())


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("cells", SAME_PROVENANCE.values(), ids=SAME_PROVENANCE.keys())
@pytest.mark.sample(5)
def test_arrays_of_the_same_provenance_are_accepted(
    ready: Cluster, cells: list[tuple[str, list[int] | None]], guard: str
) -> None:
    """Arrays with the same provenance are accepted, whatever else a rank does and whenever it does it."""
    for code, ranks in cells:
        ready.run(code, ranks=ranks, guard=guard).check()
    result = ready.run("float(add(x))", guard=guard).check()
    assert {rank.text for rank in result} == {"56.0"}
    assert result.notes == ()


def test_intended_difference_is_accepted_without_a_guard(ready: Cluster) -> None:
    """Shards that differ on purpose are accepted if every rank makes them in a separate cell with `--guard off`.

    This also works for results of a launch.
    """
    ready.run("x = x * (2 if rank == 1 else 1)", guard="off").check()
    result = ready.run("float(add(x))").check()
    assert ({rank.text for rank in result}, result.notes) == ({"33.0"}, (NOT_COMPARED,))
    assert float(ready.pull("x").sum()) == 33.0
    # Arrays from other cells are compared as usual.
    ready.run("w = x * 1.0\nif rank == 0: w = w * 2").check()
    assert "of arrays A" in mismatch_texts(ready.run("add(w)"))[2]


def test_pull_refuses_shards_of_different_provenance(ready: Cluster) -> None:
    """`pull` refuses an array whose shards have different provenance, because it would combine two steps.

    Equal replicas are the same array, whichever rank made them.
    """
    defining_cell = ready.run("total = add(x)\nif rank == 1: x, total, mine = x * 2, total + 0, x * 3").check()
    with pytest.raises(ValueDiffers) as caught:
        ready.pull("x")
    assert str(caught.value) == (
        "x was computed differently on different ranks (from sharded host data"
        f" (cell {defining_cell.seq - 1}, line 8) on ranks 0,2-3, from jit(multiply)"
        f" (cell {defining_cell.seq}, line 2) on rank 1), so its shards do not form one array."
        " Compute it the same way on every rank."
        " A rank's own shards are in x.addressable_shards"
    )
    assert vars(caught.value)["groups"] == ((0, 2, 3), (1,))
    assert float(ready.pull("total")) == 28.0
    assert ready.pull("several")[2].shape == (8,)


def test_check_reports_shards_of_different_provenance(ready: Cluster) -> None:
    """`check` compares the provenance of shards if there are no replicas to compare."""
    ready.run("tree = {'w': x * 2 if rank == 1 else x, 'v': several[1]}").check()
    same, different = ready.check("tree")
    assert (same.name, same.same) == ("tree['v']", True)
    assert (different.name, different.same) == ("tree['w']", False)
    assert re.match(
        r"the shards were computed differently: from sharded host data \(cell \d+, line 8\) on ranks 0,2-3, from jit\(multiply\) ",
        different.text,
    )
