"""Functions that a running program calls: their errors are the cell's, and an interrupt does not cost their rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import LEFT_WAITING, CellResult
from tests.integration.ranks.test_lockstep import SETUP

Fresh = Callable[..., Cluster]

PROGRAMS = """
from jax.experimental import io_callback
like = jax.ShapeDtypeStruct((8 // jax.device_count(),), jnp.float32)
def picky(v):
    if np.asarray(v).max() > 6: raise ValueError('too large')
    return np.asarray(v)
def sleepy(v):
    if np.asarray(v).max() > 6: time.sleep(1000)
    return np.asarray(v)
def told(v):
    jax.debug.callback(picky, v)
    return v
def spmd(call):
    body = lambda v: jax.lax.psum(call(v), 'x')
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P(), check_vma=False))
kept = rank
"""
FAILING = {
    "pure_callback": "float(spmd(lambda v: jax.pure_callback(picky, like, v))(x)[0])",
    "io_callback": "float(spmd(lambda v: io_callback(picky, like, v))(x)[0])",
    "debug.callback": "float(spmd(told)(x)[0])",
    "not looked at": "y = spmd(lambda v: jax.pure_callback(picky, like, v))(x)",
}


def start(fresh: Fresh, devices: int) -> Cluster:
    """Start a cluster on which one rank holds the largest number."""
    cluster = fresh(4, devices)
    cluster.run(SETUP + PROGRAMS).check()
    return cluster


@pytest.mark.sample(1)
@pytest.mark.parametrize("guard", ["lockstep", "off"])
@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING.keys())
def test_error_in_a_callback_is_the_cause(fresh: Fresh, call: str, guard: str) -> None:
    """The callback's error is the headline with its rank and line; the others are freed, and the cluster is tainted, not dead.

    It used to hang without end, because another device of the same rank waits for the rest of the program.
    """
    cluster = start(fresh, 2)
    result = cluster.run(call, guard=guard, timeout_s=300)
    assert (result.how, result.state) == ("", "tainted"), result
    assert [rank.error and rank.error.ename for rank in result] == [LEFT_WAITING] * 3 + ["ValueError"]
    error = result.failed[0].error
    assert error is not None
    assert error.evalue.startswith("too large\nin a callback of jit(")
    assert error.evalue.endswith(", cell 1, line 20")
    assert error.traceback[-1] == f"ValueError: {error.evalue}"
    assert "in picky" in "\n".join(error.traceback)
    assert cluster.pull("kept", each=True) == [0, 1, 2, 3]


@pytest.mark.test_all
def test_error_that_one_rank_handles_frees_the_others(fresh: Fresh) -> None:
    """With one device the rank's own program fails, and its code may go on; the others are freed all the same."""
    cluster = start(fresh, 1)
    call = FAILING["pure_callback"]
    result = cluster.run(f"try: {call}\nexcept jax.errors.JaxRuntimeError: print('handled')", timeout_s=300)
    assert (result.how, result.state) == ("", "tainted"), result
    assert result[3].stdout == "handled\n"


def test_error_without_a_hang_is_the_programs_own(fresh: Fresh) -> None:
    """A callback that raises in a program of the rank alone is an ordinary error there, and nothing is closed."""
    cluster = start(fresh, 2)
    alone = "jax.jit(lambda v: jax.pure_callback(picky, jax.ShapeDtypeStruct((), jnp.float32), v))(3.0 * rank)"
    result = cluster.run(f"float({alone})")
    assert [rank.error and rank.error.ename for rank in result] == [None, None, None, "JaxRuntimeError"]
    assert result.state == "clean"
    assert {rank.text for rank in cluster.run("float(add(x))").check()} == {"28.0"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("guard", ["parity", "off"])
@pytest.mark.test_all
def test_handled_error_of_a_rank_alone_ends_no_other_launch(fresh: Fresh, guard: str) -> None:
    """A rank that has handled such an error may wait for the others as long as they take; it used to be freed after 3 s."""
    cluster = start(fresh, 2)
    code = """
alone = jax.jit(lambda v: jax.pure_callback(picky, jax.ShapeDtypeStruct((), jnp.float32), v))
if rank == 3:
    try: float(alone(7.0))
    except jax.errors.JaxRuntimeError: print('handled')
if rank == 1: time.sleep(7)
float(add(x))"""
    result = cluster.run(code, guard=guard).check()
    assert (result.state, {rank.text for rank in result}, result[3].stdout) == ("clean", {"28.0"}, "handled\n")


@pytest.mark.sample(1)
@pytest.mark.parametrize("guard", ["lockstep", "off"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.test_all
def test_interrupt_does_not_cost_the_rank_of_a_callback(
    fresh: Fresh, default_disconnect_timeout: None, devices: int, guard: str
) -> None:
    """While a callback sleeps, the hang report has its line; the interrupt ends the cell on every rank, and all keep their variables."""
    cluster = start(fresh, devices)
    reports = []

    def look(result: CellResult) -> None:
        if result.where is not None and result.where.absent:
            reports.append(result.where)

    result = cluster.run(
        "float(spmd(lambda v: jax.pure_callback(sleepy, like, v))(x)[0])", guard=guard, timeout_s=6, on_snapshot=look
    )
    assert {rank.outcome for rank in result} == {"interrupted"}, result
    assert (result.how, result.state) == ("timeout", "tainted")
    assert {rank.error and (rank.error.ename, rank.error.evalue, rank.error.line) for rank in result} == {
        ("KeyboardInterrupt", "", 1)
    }
    assert cluster.pull("kept", each=True) == [0, 1, 2, 3]
    assert "rank 3 was in a callback of jit(<lambda>), at cell 1:23 sleepy" in result.notes
    places = {(each.activity, each.what, each.place) for report in reports for each in report.places if 3 in each.ranks}
    assert ("callback", "jit(<lambda>)", "cell 1:23 sleepy") in places


SMALL = """
import os, threading
def tell(v):
    print(threading.current_thread() is threading.main_thread(), v.dtype, np.geterr()['divide'])
    return np.asarray(v)
small = jax.jit(lambda v: jax.pure_callback(tell, jax.ShapeDtypeStruct(v.shape, v.dtype), v))
with jax.enable_x64(True), np.errstate(divide='raise'):
    small(jnp.ones(2, jnp.float64)).block_until_ready()
small(jnp.ones(2)).block_until_ready()
if not (pid := os.fork()):
    small(jnp.ones(2)).block_until_ready()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""


def test_callback_of_a_small_program_has_the_settings_of_its_cell(fresh: Fresh) -> None:
    """JAX runs it in the thread that launches it, also in a forked child; later output belongs to the cell that prints it."""
    cluster = start(fresh, 2)
    result = cluster.run(SMALL, timeout_s=60).check()
    assert {rank.stdout for rank in result} == {"True float64 raise\n" + "True float32 warn\n" * 2 + "0\n"}
    result = cluster.run("float(spmd(lambda v: jax.pure_callback(tell, like, v))(x)[0])").check()
    assert {rank.stdout for rank in result} == {"False float32 warn\n" * 2}
