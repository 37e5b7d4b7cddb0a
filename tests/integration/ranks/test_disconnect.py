"""An interrupt disconnects a rank that is blocked in a collective which no signal ends, and the rank keeps its variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.errors import CellInterrupted, CellTimeout, NotClean
from tests.integration.ranks.conftest import interrupt_in_native_code
from tests.integration.ranks.test_lockstep import SETUP

Fresh = Callable[..., Cluster]

BLOCKED_CASES = {
    "one device, inline": (1, "off", "if rank == 0: y = float(add(x))"),
    "two devices, the queue full": (2, "off", "if rank == 0:\n    for _ in range(5): y = add(x)\n    float(y)"),
    "all but one": (1, "parity", "if rank != 1: y = float(add(x))\nelse: time.sleep(1000)"),
}
"""Devices per rank, a guard that does not refuse the cell, and the cell."""


@pytest.mark.other_python
@pytest.mark.parametrize(("devices", "guard", "code"), BLOCKED_CASES.values(), ids=BLOCKED_CASES.keys())
@pytest.mark.sample(1)
def test_rank_blocked_in_collective_keeps_its_variables(
    fresh: Fresh, default_disconnect_timeout: None, devices: int, guard: str, code: str
) -> None:
    """A disconnected cluster is tainted, not dead, and its variables can be pulled.

    A collective after `accept` raises on every rank, and never hangs.
    """
    cluster = fresh(4, devices)
    cluster.run(f"{SETUP}\nkept = 41 + rank").check()
    # From the second call on, C++ launches it.
    cluster.run("float(add(x))", guard=guard).check()
    before = [rank.pid for rank in cluster.ranks]
    result = cluster.run(code, guard=guard, timeout_s=3)
    assert result.state == "tainted", result.notes
    assert "stuck in a collective that cannot be interrupted" in cluster.reason
    assert {rank.outcome for rank in result} <= {"ok", "error", "interrupted"}
    with pytest.raises(CellTimeout):
        result.check()
    with pytest.raises(NotClean, match="restart --replay"):
        cluster.run("1")
    cluster.accept()
    assert [rank.pid for rank in cluster.ranks] == before
    assert cluster.pull("kept", each=True) == [41, 42, 43, 44]
    after = cluster.run("float(add(x))", guard="off", timeout_s=60)
    assert [rank.outcome for rank in after] == ["error"] * 4
    # Without a record it is not known what was left waiting, so nothing is launched.
    reason = "Gloo" if guard == "parity" else "this rank may still be waiting in"
    assert any(rank.error is not None and reason in rank.error.evalue for rank in after)
    assert after.state == "tainted"
    restarted = cluster.restart(replay=True)
    assert {rank.text for rank in restarted.run("float(add(x)), kept - rank")} == {"(28.0, 41)"}
    restarted.stop()


UNRECORDED_INTERRUPTS = {
    "in a collective": "if rank == 0: y = float(add(x))",
    "in a collective, and handled": """
try:
    if rank == 0: y = float(add(x))
except KeyboardInterrupt: pass""",
    "in Python, after a launch that is dropped": "if rank == 0: add(x); time.sleep(1000)",
    "by an alarm of the cell's own": """
import signal
def ring(*_): raise TimeoutError('too long')
signal.signal(signal.SIGALRM, ring)
if rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    y = float(add(x))""",
}


@pytest.mark.parametrize("code", UNRECORDED_INTERRUPTS.values(), ids=UNRECORDED_INTERRUPTS.keys())
@pytest.mark.sample(1)
@pytest.mark.test_all
def test_interrupt_under_off_never_gives_a_wrong_number(fresh: Fresh, code: str) -> None:
    """A rank that was interrupted under off taints, and after `accept` the guard refuses its launches.

    Without that, the maximum of the next cell met the sum that rank 0 had left: 8 on ranks 1-3, and rank 0 hung.
    """
    cluster = fresh(4, 2)
    cluster.run(SETUP).check()
    result = cluster.run(code, guard="off", timeout_s=3)
    assert result.state == "tainted", result
    assert "no launch record shows whether a collective is still waiting there" in result.notes[0]
    for guard in ("lockstep", "off"):
        cluster.accept()
        after = cluster.run("float(jax.jit(jnp.max, out_shardings=whole)(x))", guard=guard, timeout_s=60)
        assert {rank.text for rank in after} == {None}
        assert {rank.error and rank.error.ename for rank in after} == {"OrderMismatch"}
        assert after.state == "tainted"
    cluster.accept()
    assert cluster.run("rank").check()[3].text == "3"
    restarted = cluster.restart(replay=True)
    assert {rank.text for rank in restarted.run("float(top(x))")} == {"7.0"}
    restarted.stop()


INTERRUPTED_RECORD = """
import signal
from mhnb.rank import jax_private as hooks
record = hooks._record_launch
def ring(*given):
    hooks._record_launch = record
    signal.raise_signal(signal.SIGINT)
    record(*given)
if rank == 0:
    hooks._record_launch = ring
    y = add(x)"""


@pytest.mark.test_all
def test_interrupt_between_launch_and_record_loses_no_launch(fresh: Fresh) -> None:
    """Under parity C++ makes a launch before it is recorded; an interrupt in between waits, so the launch is compared."""
    cluster = fresh(2, 2)
    cluster.run(SETUP.replace("(8,)", "(4,)").replace("np.arange(8", "np.arange(4")).check()
    cluster.run("float(add(x)), float(add(x))", guard="parity").check()
    result = cluster.run(INTERRUPTED_RECORD, guard="parity", timeout_s=60)
    assert result[0].error is not None
    assert result[0].error.ename == "KeyboardInterrupt"
    assert result.state == "tainted", result
    assert "differs" in "\n".join(result.notes)


ONE_RANK_CASES = {
    "an effect whose result is kept": (2, "off", "if rank == 0: y = told(x)"),
    "an effect whose result is dropped": (2, "off", "if rank == 0: told(x)"),
    "a thread": (
        1,
        "parity",
        "thread = threading.Thread(target=add, args=(x,))\nif rank == 0: thread.start(); thread.join()",
    ),
}
PRINTING_PROGRAM = """
def tell(v):
    total = v.sum()
    jax.debug.print("{}", total)
    return total
told = jax.jit(tell, out_shardings=whole)
"""


@pytest.mark.parametrize(("devices", "guard", "code"), ONE_RANK_CASES.values(), ids=ONE_RANK_CASES.keys())
@pytest.mark.sample(1)
def test_collective_launched_by_one_rank_taints(
    fresh: Fresh, default_disconnect_timeout: None, devices: int, guard: str, code: str
) -> None:
    """A collective that only one rank launches taints the cluster.

    The end of the cell does not wait for its effects, such as a print, and no rank is killed.
    """
    cluster = fresh(2, devices)
    cluster.run(f"{SETUP}{PRINTING_PROGRAM}").check()
    # From the second call on, C++ launches it.
    cluster.run("float(add(x))", guard=guard).check()
    result = cluster.run(code, guard=guard, timeout_s=3)
    assert result.state == "tainted", result.notes
    assert {rank.outcome for rank in result} <= {"ok", "error", "interrupted"}


@pytest.mark.test_all
def test_rank_that_cannot_be_interrupted_is_killed(fresh: Fresh, default_kill_timeout: None, tmp_path: Path) -> None:
    """A rank whose native code holds the interpreter is killed as the last step, and a replay restores its variables."""
    cluster = fresh(2, 1)
    cluster.run("kept = 5").check()
    result = interrupt_in_native_code(cluster, tmp_path)
    assert (result.how, result.state, result[1].outcome) == ("interrupted", "dead", "killed")
    assert result[1].error is not None
    assert "did not stop after the interrupt and was killed" in result[1].error.evalue
    with pytest.raises(CellInterrupted):
        result.check()
    restarted = cluster.restart(replay=True)
    assert {rank.text for rank in restarted.run("kept")} == {"5"}
    restarted.stop()


@pytest.mark.parametrize("guard", ["lockstep", "parity", "off"])
@pytest.mark.sample(1)
def test_abandoned_collective_is_not_matched_after_accept(fresh: Fresh, guard: str) -> None:
    """After `accept`, the next sum is not matched with a sum that rank 0 abandoned, and no rank waits for rank 0.

    This holds under any guard.
    """
    cluster = fresh(2, 2)
    cluster.run(SETUP.replace("(8,)", "(4,)").replace("np.arange(8", "np.arange(4")).check()
    cluster.run("more = x * 100").check()
    abandoned = cluster.run("if rank == 0: y = add(more)", guard="parity", timeout_s=3)
    assert (abandoned.state, abandoned[0].outcome) == ("tainted", "interrupted")
    cluster.accept()
    result = cluster.run("y = float(add(x))", guard=guard, timeout_s=100)
    assert (result.how, result.state) == ("", "tainted")
    assert [rank.error.ename for rank in result if rank.error is not None] == ["OrderMismatch"] * 2
    first, second = (rank.error.evalue for rank in result if rank.error is not None)
    assert "this rank may still be waiting in jit(" in first
    assert "could join it and give wrong results" in first
    assert f"launch 1 of cell {result.seq} was refused\n  rank 0   refused it\n" in second
    assert sum("%mhjax restart --replay (" in note for note in result.notes) == 1
    assert "accept" not in "".join(result.notes)
    assert "the cluster is clean" not in second
    raised_guard_notes = [note for note in result.notes if f"guard lockstep instead of {guard}: a collective" in note]
    assert len(raised_guard_notes) == (guard != "lockstep")
    cluster.accept()
    assert {rank.text for rank in cluster.run("1 + 1", guard=guard)} == {"2"}
    restarted = cluster.restart(replay=True)
    assert {rank.text for rank in restarted.run("float(add(x))")} == {"6.0"}
    restarted.stop()


@pytest.mark.sample(1)
def test_closed_connections_leave_the_interrupt_alone(fresh: Fresh) -> None:
    """The closing of connections, which mhnb explains below, is not shown as an error; to accept it does not help."""
    cluster = fresh(2, 1)
    cluster.run(SETUP).check()
    result = cluster.run("if rank == 0: y = float(add(x))", guard="parity", timeout_s=3)
    assert "mhnb closed all connections" in result.notes[0]
    assert result[0].error is not None
    assert result[0].error.ename == "KeyboardInterrupt"
    assert "Gloo" not in "".join(result[0].error.traceback)
    assert result.notes[-1].endswith("s)"), "the cost of the replay, without accept"
    cluster.stop()


HANGING_LAUNCHES = {
    "a sum under cond on one device": "half(x).block_until_ready()",
    "dispatched, and not looked at": "y = half(x); del y",
    "in a thread of the cell's": "thread = threading.Thread(target=half, args=(x,)); thread.start(); thread.join()",
    "a callback that never returns": "asleep(x).block_until_ready()",
}
HANGING_PROGRAMS = """
import threading
half = jax.jit(jax.shard_map(
    lambda v: jax.lax.cond(jax.lax.axis_index("x") == 0, lambda v: v, lambda v: v + jax.lax.psum(v, "x"), v),
    mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
def wait(v):
    if rank == 1: threading.Event().wait()
    return v
def slow(v): return jax.lax.psum(jax.pure_callback(wait, jax.ShapeDtypeStruct(v.shape, v.dtype), v), "x")
asleep = jax.jit(jax.shard_map(slow, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("code", HANGING_LAUNCHES.values(), ids=HANGING_LAUNCHES.keys())
@pytest.mark.test_all
def test_agreed_launch_that_hangs_taints(fresh: Fresh, default_disconnect_timeout: None, code: str) -> None:
    """A launch that all ranks agreed on and that never ends is disconnected, and the state is tainted.

    The next cell is refused at once.
    """
    cluster = fresh(2, 2)
    cluster.run(SETUP.replace("(8,)", "(4,)").replace("np.arange(8", "np.arange(4") + HANGING_PROGRAMS).check()
    result = cluster.run(code, timeout_s=3)
    assert (result.how, result.state) == ("timeout", "tainted"), result.notes
    assert "stuck in a collective that cannot be interrupted" in cluster.reason
    with pytest.raises(NotClean, match="restart --replay"):
        cluster.run("float(add(x))")
    restarted = cluster.restart(replay=True)
    assert {rank.text for rank in restarted.run("float(add(x))")} == {"6.0"}
    restarted.stop()


@pytest.mark.test_all
def test_interrupted_wait_for_an_earlier_launch_taints(fresh: Fresh) -> None:
    """A launch that computes forever is not disconnected, because it may end.

    A cell that was interrupted while it waited for the launch reports it as abandoned.
    """
    cluster = fresh(2, 2)
    cluster.run(SETUP.replace("(8,)", "(4,)").replace("np.arange(8", "np.arange(4")).check()
    cluster.run(
        "spin = jax.jit(lambda v: jax.lax.while_loop(lambda c: c[1] >= 0, lambda c: (c[0] * 0.5, (c[1] + 1) % 7), (v.sum(), 0))[0])"
    ).check()
    computing = cluster.run("more = spin(x)", timeout_s=3)
    assert (computing.how, computing.state) == ("timeout", "clean"), computing.notes
    assert "still running; all ranks made them, and the next collective waits for them" in "\n".join(computing.notes)
    waiting = cluster.run("float(add(x))", timeout_s=3)
    assert (waiting.how, waiting.state) == ("timeout", "tainted"), waiting.notes
    assert "abandoned jit(<lambda>) of cell 3 before it completed" in "\n".join(waiting.notes)
    with pytest.raises(NotClean, match="restart --replay"):
        cluster.run("float(add(x))")
