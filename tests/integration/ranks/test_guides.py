"""The first and last lines of every guide to multi-process JAX leave the ranks connected when they are pasted as cells."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.transport.addresses import find_free_port

Fresh = Callable[..., Cluster]

SHUTDOWN_NOTE = (
    "mhnb: jax.distributed.shutdown() was ignored: the ranks stay connected until the cluster stops (%mhjax stop)\n"
)

SUM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("all",))
add = jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=P("all"), out_specs=P())
int(jax.jit(add)(jax.device_put(jnp.arange(jax.device_count()), NamedSharding(mesh, P("all"))))[0])
"""
BARRIER_CELL = """
from jax.experimental import multihost_utils
multihost_utils.sync_global_devices("met")
client = jax._src.distributed.global_state.client
client.wait_at_barrier("met", 60_000)
client.key_value_set(f"met/{jax.process_index()}", "yes")
[client.blocking_key_value_get(f"met/{rank}", 60_000) for rank in range(jax.process_count())]
multihost_utils.process_allgather(jnp.int32(jax.process_index())).tolist()
"""


@pytest.mark.other_python
def test_a_pasted_shutdown_leaves_the_ranks_connected(fresh: Fresh) -> None:
    """A pasted `shutdown()` returns with a note and disconnects no rank.

    Launches, helpers, the coordination service and the guide's first line work as before.
    """
    cluster = fresh(2, 2)
    cluster.run("import jax\njax.distributed.initialize()").check()
    for turn in (0, 1):
        ended = cluster.run("jax.distributed.shutdown()\njax.distributed.is_initialized()").check()
        assert [(rank.stderr, rank.text) for rank in ended] == [(SHUTDOWN_NOTE, "True")] * 2
        assert [group.ranks for group in ended.groups] == [(0, 1)]
        assert {rank.text for rank in cluster.run(SUM).check()} == {"6"}
        assert {rank.text for rank in cluster.run(BARRIER_CELL.replace("met", f"met{turn}")).check()} == {"[0, 1]"}
        begun = cluster.run("jax.distributed.initialize()").check()
        assert all("already initialised" in rank.stderr for rank in begun)
    refused = cluster.run("jax.distributed.initialize('10.0.0.1:1', num_processes=7, process_id=1)")
    assert {rank.error.ename for rank in refused if rank.error} == {"RuntimeError"}
    assert cluster.state == "clean"


def test_shutdown_note_appears_once_per_cell(cluster: Cluster) -> None:
    """The note appears once per cell, however often and under whatever name the line runs."""
    repeated_calls = "from jax.distributed import shutdown\nfor _ in range(3): shutdown(), jax.distributed.shutdown()"
    for _ in range(2):
        assert {rank.stderr for rank in cluster.run(repeated_calls).check()} == {SHUTDOWN_NOTE}


def test_shutdown_on_one_rank_ends_no_rank(cluster: Cluster) -> None:
    """`shutdown()` on one rank ends no other rank.

    If it closed the connection, it would wait for the others for minutes, and then they would be ended.
    """
    one_rank = cluster.run("jax.distributed.shutdown()", ranks=[1]).check()
    assert one_rank[1].stderr == SHUTDOWN_NOTE
    assert {rank.text for rank in cluster.run(SUM).check()} == {"28"}


@pytest.mark.test_all
def test_replay_continues_after_a_shutdown(fresh: Fresh) -> None:
    """A replay also restores the cells after a shutdown."""
    cluster = fresh(2, 1)
    for cell in (SUM, "jax.distributed.shutdown()", BARRIER_CELL, "x = 3"):
        cluster.run(cell).check()
    second = cluster.restart(replay=True)
    try:
        assert second.state == "clean"
        assert {rank.text for rank in second.run("x").check()} == {"3"}
        assert {rank.text for rank in second.run(BARRIER_CELL.replace("met", "again")).check()} == {"[0, 1]"}
    finally:
        second.stop()


def test_forked_child_cannot_disconnect_its_rank(cluster: Cluster) -> None:
    """A forked child cannot close its rank's connection.

    JAX would hang there, because the threads of the connection do not exist in the child.
    """
    code = """
import os, signal
if (child := os.fork()) == 0:
    signal.alarm(30)
    jax.distributed.shutdown()
    os._exit(5)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    assert {rank.text for rank in cluster.run(code).check()} == {"5"}
    assert {rank.text for rank in cluster.run(SUM).check()} == {"28"}


@pytest.mark.test_all
def test_subprocess_has_its_own_jax(cluster: Cluster) -> None:
    """A subprocess connects and disconnects as usual, and its rank stays connected."""
    ports = [find_free_port() for _ in range(4)]
    own = """
import sys, jax
jax.distributed.initialize(sys.argv[1], 1, 0)
there = jax.distributed.is_initialized()
jax.distributed.shutdown()
print(there, jax.distributed.is_initialized())
"""
    code = f"""
import subprocess
address = f"127.0.0.1:{{{ports}[jax.process_index()]}}"
done = subprocess.run([{sys.executable!r}, "-c", {own!r}, address], capture_output=True, text=True)
print(done.stdout, done.returncode, "mhnb:" in done.stderr, jax.distributed.is_initialized())
"""
    assert {rank.stdout for rank in cluster.run(code).check()} == {"True False\n 0 False True\n"}


def test_without_init_a_cell_can_disconnect_the_ranks(fresh: Fresh) -> None:
    """With `init=False` a cell may connect and disconnect the ranks as long as nothing has used JAX; later errors say why."""
    cluster = fresh(2, 1, init=False)
    for _ in range(2):
        begun = cluster.run("import jax\njax.distributed.initialize()\njax.distributed.is_initialized()").check()
        assert {(rank.stderr, rank.text) for rank in begun} == {("", "True")}
        ended = cluster.run("jax.distributed.shutdown()\njax.distributed.is_initialized()").check()
        assert {(rank.stderr, rank.text) for rank in ended} == {("", "False")}
    cluster.run("jax.distributed.initialize()\nimport jax.experimental.multihost_utils as helpers").check()
    cluster.run("jax.devices()\njax.distributed.shutdown()").check()
    for later_code in ("helpers.sync_global_devices('met')", "jax.distributed.initialize()"):
        errors = [rank.error for rank in cluster.run(later_code)]
        assert all(error is not None and "--no-init" in str(error.hint) for error in errors)
