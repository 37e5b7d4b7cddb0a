"""Correct programs under lockstep: each one succeeds without a note, and the cluster stays clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult

SETUP = """
import logging, threading, time
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('data', 'model'))
def put(value, *spec): return jax.device_put(value, NamedSharding(mesh, P(*spec)))
"""

TRAINING = """
import optax
weights = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32) / 10
params = {'w': put(weights, None, 'model'), 'v': put(weights[:1].T[:, :1].repeat(2, 0)[:32], 'model', None)}
optimizer = optax.adamw(1e-2)
state = jax.jit(optimizer.init)(params)
@jax.jit
def step(params, state, x, y):
    loss, slopes = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p['w']) @ p['v'] - y) ** 2))(params)
    updates, state = optimizer.update(slopes, state, params)
    return optax.apply_updates(params, updates), state, loss
rng, losses = np.random.default_rng(rank), []
for turn in range(30):
    mine = rng.normal(size=(8, 16)).astype(np.float32)
    spread = partial(jax.make_array_from_process_local_data, NamedSharding(mesh, P('data')))
    params, state, loss = step(params, state, spread(mine), spread(mine.sum(1, keepdims=True)))
    if turn % 10 == 0:
        losses.append(float(loss))
        if rank == 0: print(turn, losses[-1])
losses[-1] < losses[0]
"""

CHECKPOINT = """
import orbax.checkpoint
tree = {{'w': put(np.arange(64, dtype=np.float32).reshape(8, 8), 'data', 'model'), 'b': put(np.ones(4, np.float32))}}
saver = orbax.checkpoint.StandardCheckpointer()
saver.save({folder!r}, tree)
saver.wait_until_finished()
target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)
back = saver.restore({folder!r}, target)
all(bool(jnp.all(a == b)) for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree)))
"""

PROGRAMS = {
    "a pipeline of sub-meshes": """
stages = [Mesh(np.array(jax.devices()[at:at + 4]), ('x',)) for at in (0, 4)]
f = {at: jax.jit(lambda a: a * 2 + a.sum(), out_shardings=NamedSharding(stage, P('x'))) for at, stage in enumerate(stages)}
def feed(stage, values):
    return jax.make_array_from_callback((8,), NamedSharding(stage, P('x')), lambda i: values[i])
mine = 0 if rank < 2 else 1
for turn in range(3 + mine):
    out = f[mine](feed(stages[mine], np.full(8, turn, np.float32)))
whole = multihost_utils.process_allgather(np.float32(out.addressable_shards[0].data[0]))
len(whole)""",
    "ranks that log differently": """
log = logging.getLogger('mine')
total = jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))
for turn in range(5):
    y = total(put(np.full(8, turn, np.float32), ('data', 'model')))
    if rank == turn % 4: print('rank', rank, 'at', turn); log.warning('rank %d', rank)
float(y)""",
    "one rank compiles longer than the others": """
if rank == 2:
    # Its own device, its own program: the others are at the collective long before.
    big = jax.jit(lambda a: sum((jnp.sin(a + n) @ jnp.cos(a - n) for n in range(400)), a))
    big(np.ones((8, 8), np.float32)).block_until_ready()
float(jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))(put(np.ones(8, np.float32), ('data', 'model'))))""",
    "the same barrier by name, and a broadcast": """
multihost_utils.sync_global_devices('here')
value = multihost_utils.broadcast_one_to_all(np.float32(rank + 3))
float(value)""",
    "eager operations and a loop of while": """
a = put(np.arange(8, dtype=np.float32), ('data', 'model'))
b = jnp.sort(a[::-1] * 2)
count = 0
while float(b.max()) > 1: b, count = b / 2, count + 1
count""",
    "a program that is partitioned by a function of the user's": """
from jax.experimental.custom_partitioning import custom_partitioning
@custom_partitioning
def scaled(a): return a * 2
def partition(mesh, arguments, result): return mesh, (lambda a: a * 2), arguments[0].sharding, (arguments[0].sharding,)
scaled.def_partition(partition=partition, sharding_rule='i -> i')
float(jax.jit(lambda a: scaled(a).sum())(put(np.ones(8, np.float32), ('data', 'model'))))""",
    "a program whose sharding is looked at while it is compiled": """
def look(a): jax.debug.inspect_array_sharding(a, callback=lambda sharding: None); return a.sum()
float(jax.jit(look)(put(np.ones(8, np.float32), ('data', 'model'))))""",
    "what a program says is chosen by the rank": """
class Log:
    def __call__(self, value): self.last = float(value)
def say(a):
    jax.debug.print(f'rank {rank} has {{}}', a.sum())
    jax.debug.callback(Log() if rank == 0 else lambda value: None, a.sum())
    return a.sum()
float(jax.jit(say)(put(np.ones(8, np.float32), ('data', 'model'))))""",
    "callbacks that hold objects of their rank": """
class Table:
    def __init__(self): self.rows = np.arange(8.0, dtype=np.float32) + rank
    def pick(self, value): return value * 2
table, lock = Table(), threading.Lock()
def held(value):
    with lock: return table.pick(value)
def shape(f, axes=('data', 'model')):
    inner = lambda a: jax.lax.psum(jax.pure_callback(f, jax.ShapeDtypeStruct(a.shape, a.dtype), a).sum(), axes)
    return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P(axes), out_specs=P()))
found = [float(shape(f)(put(np.ones(8, np.float32), ('data', 'model'))))
         for f in (table.pick, held, partial(Table.pick, table), partial(np.multiply, np.float32(2)))]
assert found == [16.0] * 4, found""",
    "a program in threads that take turns": """
turn, order = threading.Barrier(2), []
total = jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))
a = put(np.ones(8, np.float32), ('data', 'model'))
def work():
    for _ in range(3): turn.wait(); order.append(float(total(a))); turn.wait()
thread = threading.Thread(target=work); thread.start()
for _ in range(3): turn.wait(); turn.wait(); order.append(float(total(a)))
thread.join()
order""",
}


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster, under lockstep."""
    assert cluster.guard == "lockstep"
    cluster.run(SETUP).check()
    return cluster


def check_no_alarm(result: CellResult) -> CellResult:
    """Check that the cell succeeded without a note and left the cluster clean."""
    result.check()
    assert (result.state, result.notes) == ("clean", ())
    return result


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.sample(2)
def test_correct_program_raises_no_alarm(ready: Cluster, program: str) -> None:
    """A correct program raises no alarm, whatever the ranks do differently that does not matter."""
    check_no_alarm(ready.run(program))


@pytest.mark.test_all
def test_optax_training_run_raises_no_alarm(ready: Cluster) -> None:
    """An optax training run raises no alarm, and its loss falls."""
    assert {rank.text for rank in check_no_alarm(ready.run(TRAINING))} == {"True"}


@pytest.mark.test_all
def test_saving_and_restoring_with_orbax_raises_no_alarm(ready: Cluster, tmp_path: Path) -> None:
    """Saving and restoring with Orbax raises no alarm, although it has barriers, threads and launches of its own.

    A note counts the arrays that its tasks made, and what was computed from them: nothing identifies them.
    """
    result = ready.run(CHECKPOINT.format(folder=str(tmp_path / "saved"))).check()
    assert {rank.text for rank in result} == {"True"}
    assert result.state == "clean"
    (note,) = result.notes
    assert " not compared: made in a thread, " in note
