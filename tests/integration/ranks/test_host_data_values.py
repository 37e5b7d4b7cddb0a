"""Arrays that the ranks make from host data: JAX trusts each rank, and differences are found at the end of the cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mhnb.cluster.cluster import Cluster
from tests.integration.ranks.test_lockstep import SETUP, texts

DIFFERENT_REPLICAS = {
    "a callback": "w = jax.make_array_from_callback((8,), whole, lambda i: np.full(8, rank % 2, np.float32)[i])",
    "local data": "w = jax.make_array_from_process_local_data(whole, np.full(8, rank % 2, np.float32))",
    "single-device arrays": """shards = [jax.device_put(np.full(2, rank % 2, np.float32), d) for d in jax.local_devices()]
w = jax.make_array_from_single_device_arrays((2,), whole, shards)""",
    "device_put to some ranks' devices": """sub = Mesh(np.array([d for d in jax.devices() if d.process_index < 3]), ('x',))
if rank < 3: w = jax.device_put(np.full(8, rank % 2, np.float32), NamedSharding(sub, P()))""",
    "a box that two ranks share": """mesh2 = Mesh(np.array(jax.devices()).reshape(2, 4), ('a', 'b'))
w = jax.make_array_from_callback((4, 4), NamedSharding(mesh2, P('a')), lambda i: np.full((4, 4), rank % 2)[i])""",
    "a copy of 17 MiB": """big = np.full(17 * 2**20, rank, np.int8)
w = jax.make_array_from_callback(big.shape, whole, lambda i: big[i])""",
    "batches in another order": """for i in range(2):
    b = jax.make_array_from_callback((8,), whole, lambda j: np.full(8, (i + rank) % 2)[j])
    y = add(x)""",
}

IN_A_THREAD, BEFORE_A_REFUSAL = "a number in a thread", "a number before a launch that is refused"
LOCKSTEP_ONLY = (IN_A_THREAD, BEFORE_A_REFUSAL)
"""Under parity the guard does not know which launches of two threads match, and nothing is refused."""
DIFFERENT_INPUTS = {
    "a NumPy argument, on one line": "f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)\ny = f(x, np.float32(rank % 2))",
    "a Python argument, on one line": "f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)\ny = f(x, rank % 2)",
    "a random key, on one line": """key = jax.random.key(rank % 2)
f = jax.jit(lambda a, k: a.sum() + jax.random.normal(k), out_shardings=whole)
y = f(x, key)""",
    "a number": """f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)
if rank % 2: y = f(x, 3.0)
else:
    y = f(x, 2.0)""",
    "a NumPy array that jit lays out": """f, v = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole), np.arange(8, dtype=np.float32)
if rank % 2: y = f(x, v * 2)
else:
    y = f(x, v)""",
    "an array of one rank's own": """f, v = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole), jnp.arange(8.0)
if rank % 2: y = f(x, v * 2)
else:
    y = f(x, v)""",
    "a random key": """f = jax.jit(lambda a, k: a.sum() + jax.random.normal(k), out_shardings=whole)
if rank % 2: y = f(x, jax.random.key(1))
else:
    y = f(x, jax.random.key(0))""",
    "two numbers in another order": """f = jax.jit(lambda a, s, t: (a * s).sum() - t, out_shardings=whole)
if rank % 2: y = f(x, 3.0, 2.0)
else:
    y = f(x, 2.0, 3.0)""",
    "numbers in another order": """f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)
if rank % 2: y = f(x, 3.0), f(x, 2.0)
else:
    y = f(x, 2.0), f(x, 3.0)""",
    BEFORE_A_REFUSAL: """f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)
if rank % 2: y = f(x, 3.0)
else:
    y = f(x, 2.0)
add(jax.make_array_from_process_local_data(rows, np.zeros(2 + 2 * (rank == 1), np.float32)))""",
    IN_A_THREAD: """f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)
def work():
    if rank % 2: float(f(x, 3.0))
    else:
        float(f(x, 2.0))
t = threading.Thread(target=work); t.start(); t.join()""",
}

LEGAL = {
    "numbers for what one rank launches alone": """f = jax.jit(lambda a, s: a * s)
if rank % 2: f(x, 3.0)
else:
    f(x, 2.0)
y = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)(x, 2.0)""",
    "an equal number from different lines": """f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)
if rank % 2: y = f(x, 3.0)
else:
    y = f(x, 3.0)""",
    "pmap's arguments from different lines": """f = jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')
if rank % 2: y = f(np.full(2, 3.0))
else:
    y = f(np.full(2, 2.0))""",
    "sharded data is each rank's own": "w = jax.make_array_from_process_local_data(rows, np.full(2, rank, np.float32))",
    "one rank makes more": """for i in range(2 + (rank == 1)):
    w = jax.make_array_from_callback((8,), whole, lambda j: np.full(8, rank)[j])""",
    "another order where nothing is launched": """for i in range(2):
    w = jax.make_array_from_callback((8,), whole, lambda j: np.full(8, (i + rank) % 2)[j])""",
    "pmap's own arguments": "y = jax.pmap(lambda a, b: jax.lax.psum(a * b, 'i'), 'i', in_axes=(0, None))(np.ones(2), float(rank))",
    "the same number in another type": """s = np.float32(0.5) if rank else np.float64(0.5)
y = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)(x, s)""",
    "multihost_utils": """g = multihost_utils.process_allgather(np.full(2, rank), tiled=True)
multihost_utils.sync_global_devices('here')
b = multihost_utils.broadcast_one_to_all(np.full(2, rank))""",
    "threads at their own pace": """def work():
    for i in range(3):
        jax.make_array_from_callback((8,), whole, lambda j: np.full(8, (i + rank) % 3)[j])
t = threading.Thread(target=work); t.start(); y = add(x); t.join()""",
    "a number that a program without a collective is given": "speed = 1000 * x / (1.0 + rank)\nspeed",
    "rank-local arrays": "w = jax.device_put(np.full(8, rank), jax.local_devices()[0]) * 2",
}


@pytest.fixture
def ready(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster with a mesh, a global array and two collectives; a tainted state is accepted afterwards."""
    cluster.run(SETUP).check()
    yield cluster
    if cluster.state == "tainted":
        cluster.accept()


@pytest.mark.other_python
@pytest.mark.parametrize("code", DIFFERENT_REPLICAS.values(), ids=DIFFERENT_REPLICAS.keys())
def test_different_replicas_taint_and_are_located(ready: Cluster, code: str) -> None:
    """Replicas made from different values taint the cluster, and the reason names the line and the ranks.

    JAX raises no error, and each rank reads its own value.
    """
    result = ready.run(code)
    assert result.state == "tainted"
    assert "the ranks have different values in replicas of one array" in ready.reason
    line = next(
        n
        for n, text in enumerate(code.splitlines(), 1)
        if "make_array_from" in text or "(x, " in text or "device_put(np.full(8" in text
    )
    assert f"line {line}:  " in ready.reason
    assert "rank 1 has hash" in ready.reason or "ranks 1,3 have hash" in ready.reason


@pytest.mark.sample(3)
@pytest.mark.other_python
@pytest.mark.parametrize(
    ("name", "guard"),
    [
        (name, guard)
        for name in DIFFERENT_INPUTS
        for guard in ("lockstep", "parity")
        if guard == "lockstep" or name not in LOCKSTEP_ONLY
    ],
)
def test_inputs_on_different_lines_are_compared(ready: Cluster, name: str, guard: str) -> None:
    """Inputs of a launch are compared even if the ranks make the launch on different lines.

    Lockstep refuses the launch, and nothing is tainted. Parity makes the launch, and reports it at the end of the cell.
    """
    code = DIFFERENT_INPUTS[name]
    result = ready.run(code, guard=guard)
    lines = [n for n, text in enumerate(code.splitlines(), 1) if "f(x, " in text]
    if guard == "lockstep":
        (text,) = set(texts(result))
        assert "All ranks run the same program, but on arrays that were computed differently" in text
        assert all(f"line {line}:" in text for line in lines)
        assert result.state == "clean"
        assert result.notes[0].startswith("array 2 of the launch, ")
        assert "Make the values equal first: " in " ".join(result.notes)
        return
    assert result.state == "tainted"
    assert "the ranks passed different values to one launch, " in ready.reason
    assert all(f" on line {line}" in ready.reason for line in lines)


def test_notes_describe_different_inputs(ready: Cluster) -> None:
    """The note gives a number's value, or how far larger arrays differ, and the input's position in the launch."""
    ready.run("f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)").check()
    assert ready.run("y = f(x, 0.5 * (rank % 2))").notes == (
        "array 2 of the launch, f32[], is 0.0 on ranks 0,2, 0.5 on ranks 1,3",
        "Make the values equal first: use the same seed, or read them on one rank and broadcast them.",
    )
    first, second = ready.run("y = f(x, np.arange(8, dtype=np.float32) * (1 + rank // 3))").notes
    assert first == (
        "array 2 of the launch, f32[8], has different values on rank 3 than on ranks 0-2; for example, the values 7 and 14"
    )
    assert "If each rank has its own data, use jax.make_array_from_process_local_data." in second


@pytest.mark.sample(4)
@pytest.mark.other_python
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("code", LEGAL.values(), ids=LEGAL.keys())
def test_legal_differences_raise_no_alarm(ready: Cluster, code: str, guard: str) -> None:
    """Legal differences raise no alarm, because only replicas of each other are compared."""
    result = ready.run(code, guard=guard).check()
    assert (result.state, [note for note in result.notes if "array" in note]) == ("clean", [])


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
def test_inputs_from_a_thread_are_compared_by_line(ready: Cluster, guard: str) -> None:
    """Inputs that a thread passes on one line are compared by line, because parity does not count a thread's launches."""
    ready.run("f = jax.jit(lambda a, s: (a * s).sum(), out_shardings=whole)").check()
    code = "t = threading.Thread(target=lambda: float(f(x, rank % 2)))\nt.start(); t.join()"
    assert ready.run(code, guard=guard).state == ("clean" if guard == "lockstep" else "tainted")
    assert guard == "lockstep" or "the ranks passed different values to one launch" in ready.reason


def test_different_local_sizes_taint_the_cluster(ready: Cluster) -> None:
    """Different local sizes taint the cluster, because the ranks hold global arrays of different shapes.

    Only lockstep refuses a launch of them.
    """
    result = ready.run("u = jax.make_array_from_process_local_data(rows, np.zeros(2 * (1 + rank % 2), np.float32))")
    assert result.state == "tainted"
    assert "line 1:  u = jax.make_array_from_process_local_data" in ready.reason
    assert "ranks 0,2 made f32[8], ranks 1,3 made f32[16]" in ready.reason


def test_without_a_guard_nothing_is_compared(ready: Cluster) -> None:
    """With `--guard off` nothing is compared, so it costs nothing."""
    assert ready.run(DIFFERENT_REPLICAS["a callback"], guard="off").state == "clean"


ONE_DEVICE_SETUP = """import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
x, copy = jax.device_put(jnp.arange(8.0), rows), jax.device_put(jnp.arange(8.0), whole)
rank, pick = jax.process_index(), jax.jit(lambda a, i: a[i])
normal = jax.jit(lambda key: jax.random.normal(key, (8,)), out_shardings=rows)"""


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.sample(1)
@pytest.mark.test_all
def test_one_device_per_rank(fresh: Callable[..., Cluster], guard: str) -> None:
    """With one device per rank, local arrays become replicas that work as without a guard, and are compared.

    JAX itself cannot list the shards of these replicas.
    """
    cluster = fresh(2, 1, guard=guard)
    cluster.run(ONE_DEVICE_SETUP).check()
    for code in (
        "x[1]",
        "x[1:3]",
        "x[jnp.array([1, 2])]",
        "x.at[0].set(5.0)",
        "normal(jax.random.key(0)).sum()",
        "copy + x",
    ):
        assert cluster.run(code).check().state == "clean", code
    assert cluster.run("copy").check()[1].outputs
    assert cluster.pull("copy").tolist() == cluster.pull("x").tolist() == [*range(8)]
    assert all(row.same for row in cluster.check("copy"))
    result = cluster.run("pick(x, jnp.array([rank, 2]))")
    assert result.state == ("clean" if guard == "lockstep" else "tainted")
    assert guard == "parity" or (result[0].error and result[0].error.ename) == "OrderMismatch"
    if guard == "parity":
        cluster.accept()
    # Each rank drew its own values; together they are not one array.
    assert cluster.run("drawn = normal(jax.random.key(rank))\ndrawn").check().state == "clean"
    result = cluster.run("y = drawn.sum()")
    assert result.state == "clean"
    # If the ranks do not agree before a launch, the provenance of its arrays is unknown.
    assert guard == "parity" or (result[0].error and result[0].error.ename) == "OrderMismatch"


def test_failed_inspection_is_reported_and_stops_nothing(fresh: Callable[..., Cluster]) -> None:
    """If the guard fails to inspect an array that JAX made, the program goes on, and each such cell reports it."""
    cluster = fresh(2, 1)
    cluster.run(ONE_DEVICE_SETUP).check()
    cluster.run(
        "import mhnb.rank.guard.host_data as made\nmade.find_shared_boxes = lambda sharding, shape: 1 / 0"
    ).check()
    (note,) = cluster.run("y = 1\ncopy + np.ones(8, np.float32)").check().notes
    assert note.startswith("line 2 makes an array that the guard cannot compare with other ranks (ZeroDivisionError")
    note, *_ = cluster.run("copy + np.ones(8, np.float32)").check().notes
    assert note.startswith("line 1 makes an array that the guard cannot compare with other ranks")


@pytest.mark.test_all
def test_failed_computation_fails_only_the_cell(fresh: Callable[..., Cluster]) -> None:
    """If an array's computation fails before it is hashed at the end of the cell, the cell fails and the ranks live."""
    cluster = fresh(2, 1)
    result = cluster.run(
        """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
whole = NamedSharding(Mesh(np.array(jax.devices()), ('x',)), P())
def fail(value): raise ValueError('no such shard')
slow = jax.jit(lambda a: jax.lax.fori_loop(0, 60, lambda n, v: jnp.tanh(v @ v), a))
late = jax.jit(lambda a: jax.pure_callback(fail, jax.ShapeDtypeStruct((8,), np.float32), a))
part = late(slow(jnp.ones((1200, 1200), np.float32)))
joined = jax.make_array_from_single_device_arrays((8,), whole, [part])"""
    )
    assert all(rank.error is not None and "no such shard" in rank.error.evalue for rank in result)
    assert result.state == "clean"
    assert {rank.text for rank in cluster.run("1 + 1").check()} == {"2"}


HALVES = """
halves = NamedSharding(Mesh(np.array(jax.devices()).reshape(2, 4), ('copy', 'part')), P('part'))
def lay(value): return jax.make_array_from_callback((8,), halves, lambda i: np.full(8, value, np.float32)[i])
total = jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(halves.mesh, P()))
w = lay(1)
float(total(w))"""


@pytest.mark.other_python
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
def test_shared_boxes_are_compared_where_used(ready: Cluster, guard: str) -> None:
    """Boxes that only some ranks share are compared where a launch uses them, whichever cell made them.

    Otherwise each rank would read its own sum of what should be one array.
    """
    ready.run(HALVES, guard=guard).check()
    ready.run("w = lay(5 if rank < 2 else 5.0)", guard=guard).check()
    assert ready.run("for _ in range(3): y = total(w)\nfloat(y)", guard=guard).check().notes == ()
    ready.run("w = lay(7)", ranks=[0], guard=guard).check()
    result = ready.run("y = total(w + 0)\nfloat(total(w))", guard=guard)
    assert result.state == "tainted"
    assert "the ranks passed different values to one launch, f32[8]\n  shard [0:2]: rank 0 has hash " in ready.reason
    assert " on line 2, rank 2 has hash " in ready.reason


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize(
    "step", ["y = w * 2", "y = jax.jit(lambda a, b: a - b)(w + 1, lay(3))", "for _ in range(4): w, y = w + 1, w"]
)
@pytest.mark.sample(3)
def test_results_of_shared_boxes_are_compared(ready: Cluster, step: str, guard: str) -> None:
    """Results of boxes that only some ranks share are compared, too, because their numbers would be as wrong.

    The results come from programs without a collective. Equal values are equal, whatever their type was.
    """
    ready.run(HALVES, guard=guard).check()
    for own, state in ((5.0, "clean"), (6, "tainted")):
        if ready.run(f"w = lay(5 if rank < 2 else {own})", guard=guard).state == "tainted":
            ready.accept()
        ready.run(step, guard=guard).check()
        assert ready.run("float(total(y))", guard=guard).state == state
    assert "the ranks passed different values to one launch, f32[8]\n  shard [0:2]: rank 0 has hash " in ready.reason


def test_shared_boxes_chosen_by_rank_are_refused(ready: Cluster) -> None:
    """Arrays with shared boxes are refused if each rank chooses its own.

    No rank knows the boxes that it does not hold, so it may have chosen another array.
    """
    ready.run(HALVES).check()
    ready.run("kept = [lay(3), lay(3)]").check()
    for code in ("float(total(kept[rank // 2]))", "float(total(kept[0] + kept[rank % 2]))"):
        result = ready.run(code)
        assert {rank.error.ename for rank in result if rank.error} == {"OrderMismatch"}
        assert result.state == "clean"
