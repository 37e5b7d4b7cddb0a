"""The guard with real ranks: what used to give a wrong number silently is an error before anything is launched.

Each case runs on the shared cluster, which must be clean before and after: nothing was launched, and the next sum is right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.hang_report import HangReport
from mhnb.core.output.results import CellResult
from mhnb.errors import NameMissing, OrderMismatch

SETUP = """
import threading, time
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
x = jax.make_array_from_callback((8,), rows, lambda i: np.arange(8, dtype=np.float32)[i])
@partial(jax.jit, out_shardings=whole)
def add(a): return a.sum()
@partial(jax.jit, out_shardings=whole)
def top(a): return a.max()
SHARDED = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, 'x'), mesh=mesh, in_specs=P('x'), out_specs=P()))
float(add(x)), float(top(x))
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a mesh, a global array and two collectives."""
    cluster.run(SETUP).check()
    return cluster


def check_sum(cluster: Cluster) -> None:
    """Check that the next collectives match: every rank gets the sum and the maximum of 0..7."""
    result = cluster.run("float(add(x)), float(top(x))").check()
    assert {rank.text for rank in result} == {"(28.0, 7.0)"}


def texts(result: CellResult) -> set[str]:
    """Return the error messages of the failed ranks."""
    return {rank.error.evalue for rank in result if rank.error is not None}


def names(result: CellResult) -> list[str]:
    """Return the exception name of each rank, in rank order; an empty string if it raised none."""
    return [rank.error.ename if rank.error else "" for rank in result]


DIFFERENT = {
    "swapped collectives of equal size": "got = [float(f(x)) for f in ([add, top] if rank % 2 else [top, add])]",
    "the order of a set": """
class Step:
    def __init__(self, f): self.f = f
    def __hash__(self): return hash((self.f.__name__, rank))
steps = [Step(add), Step(top)]
# What an unfixed hash seed does: another order in each process.
order = sorted(steps, key=lambda step: (step.f.__name__ == 'add') == (rank % 2 == 0))
got = [float(step.f(x)) for step in order]""",
    "different shapes": """
part = jax.make_array_from_callback((8 * (1 + rank % 2),), rows, lambda i: np.zeros(8 * (1 + rank % 2), np.float32)[i])
float(add(part))""",
    "different donation": "float(jax.jit(lambda a: a.sum(), donate_argnums=(0,) if rank else (), out_shardings=whole)(x + 0))",
    "programs that were serialised": """
from jax.experimental import serialize_executable as se
def passed_on(f): return se.deserialize_and_load(*se.serialize(jax.jit(f, out_shardings=whole).lower(x).compile()))
steps = passed_on(lambda a: a.sum()), passed_on(lambda a: a.max())
got = [float(step(x)) for step in (steps if rank % 2 else steps[::-1])]""",
    "different constants": "float(jax.jit(lambda a: (a * (rank + 1)).sum(), out_shardings=whole)(x))",
}


@pytest.mark.other_python
@pytest.mark.parametrize("code", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_launches_raise_the_same_error(ready: Cluster, code: str) -> None:
    """If launches differ, no rank launches, and every rank raises the same error, with the line."""
    result = ready.run(code)
    assert names(result) == ["OrderMismatch"] * 4
    (text,) = texts(result)
    assert text.startswith("nothing was launched, the cluster is clean\nlaunch ")
    assert f"of cell {result.seq} differs" in text
    assert all(rank.error is not None and rank.error.line for rank in result)
    assert result.state == "clean"
    check_sum(ready)


ON_SOME_RANKS = {
    "a collective under a condition on the rank": ("if rank == 0:\n    total = add(x)", (0,)),
    "one extra collective that nobody fetches": ("y = add(x)\nif rank == 1: extra = add(x)", (1,)),
    "a loop of another length": ("for _ in range(3 + (rank == 2)): y = add(x)", (2,)),
    "the last batch": ("batches = [x] * (2 if rank < 2 else 3)\nfor batch in batches: y = float(add(batch))", (2, 3)),
    "eager operation": ("if rank == 3: z = x[0]", (3,)),
    "device_put": ("if rank == 1: y = jax.device_put(x, whole)", (1,)),
    "ahead of time": ("c = add.lower(x).compile()\nif rank != 1: y = c(x)", (0, 2, 3)),
    "process_allgather": ("if rank < 2: multihost_utils.process_allgather(np.ones(2), tiled=True)", (0, 1)),
    "shard_map": ("if rank: y = SHARDED(x)", (1, 2, 3)),
    "pmap": ("f = jax.pmap(lambda a: jax.lax.psum(a, 'i'), 'i')\nif rank == 0: f(np.ones(2, np.float32))", (0,)),
}


@pytest.mark.sample(3)
@pytest.mark.other_python
@pytest.mark.parametrize(("code", "wanting"), ON_SOME_RANKS.values(), ids=ON_SOME_RANKS.keys())
def test_launch_that_some_ranks_never_make_raises(ready: Cluster, code: str, wanting: tuple[int, ...]) -> None:
    """A launch that some ranks never make raises on the ranks that make it.

    No timeout decides this: the other ranks have ended the cell.
    """
    result = ready.run(code)
    assert [rank for rank, name in enumerate(names(result)) if name == "OrderMismatch"] == list(wanting)
    (text,) = texts(result)
    assert "finished the cell without reaching it" in text
    assert result.state == "clean"
    check_sum(ready)


@pytest.mark.other_python
def test_message_names_the_condition(ready: Cluster) -> None:
    """The message names the condition around the call, because the mistake is in the cell itself."""
    result = ready.run("if jax.process_index() == 0:\n    total = add(x)")
    (text,) = texts(result)
    assert "line 2:  total = add(x)" in text
    assert (
        "The call is inside `if jax.process_index() == 0:`. Move the call out of the `if`, so that every rank makes it."
        in text
    )


def test_next_cell_is_right_after_one_rank_raised(ready: Cluster) -> None:
    """After an exception on one rank the other ranks do not wait for it, and the next cell's launch does not match theirs."""
    result = ready.run("if rank == 2: raise ValueError('no')\ny = float(top(x))")
    assert names(result) == ["OrderMismatch", "OrderMismatch", "ValueError", "OrderMismatch"]
    assert any("raised an error before reaching it" in text for text in texts(result))
    assert result.failed[0].rank == 2, "the first to fail is on top"
    check_sum(ready)


def test_thread_launch_beyond_the_cell_fails_it(ready: Cluster) -> None:
    """A thread that launches for ranks outside the cell fails the cell, although no code reads the thread's result."""
    code = "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool() as pool: pool.submit(lambda: add(x))"
    result = ready.run(code, ranks="0,1")
    assert names(result) == ["OrderMismatch"] * 2
    check_sum(ready)


def test_thread_launch_on_one_rank_fails_the_cell(ready: Cluster) -> None:
    """A thread that launches on one rank only fails the cell: its error is not lost with the thread."""
    result = ready.run("if rank == 1:\n    t = threading.Thread(target=lambda: add(x)); t.start(); t.join()")
    assert names(result) == ["", "OrderMismatch", "", ""]
    check_sum(ready)


def test_collective_beyond_a_subset_raises_at_once(ready: Cluster) -> None:
    """A collective of a mesh over all ranks raises at once in a `--ranks 0,1` cell."""
    result = ready.run("y = add(x)", ranks="0,1")
    assert names(result) == ["OrderMismatch", "OrderMismatch"]
    (text,) = texts(result)
    assert "needs ranks 0-3, but this cell runs only on ranks 0-1" in text
    check_sum(ready)


def test_subset_computes_on_its_own_mesh(ready: Cluster) -> None:
    """Ranks of a `--ranks` cell compute on a mesh of their own without an alarm, which is the purpose of `--ranks`."""
    code = """
sub = Mesh(np.array([d for d in jax.devices() if d.process_index in (1, 3)]), ('y',))
mine = jax.make_array_from_callback((4,), NamedSharding(sub, P('y')), lambda i: np.arange(4, dtype=np.float32)[i])
float(jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(sub, P()))(mine))"""
    result = ready.run(code, ranks="1,3").check()
    assert {rank.text for rank in result} == {"6.0"}
    check_sum(ready)


HALVES = """
shares = [NamedSharding(Mesh(np.array(jax.devices()[begin:begin + 4]), ('x',)), P('x')) for begin in (0, 4)]
def spread(half, scale):
    return jax.make_array_from_callback((8,), shares[half], lambda i: scale * np.arange(8.0)[i], dtype=jnp.float32)
f = [jax.jit(lambda a: a + 0 * a.sum()), jax.jit(lambda a: a + 0 * a.max())]
totals = [jax.jit(jnp.sum, out_shardings=NamedSharding(each.mesh, P())) for each in shares]
def total(half, a): return [float(shard.data) for shard in totals[half](a).addressable_shards][:1]
v = [spread(0, 1), spread(1, 2)]
"""
"""Ranks 0-1 hold one array and ranks 2-3 another: each half has no part in the programs of the other."""

OUTSIDE = {
    "they come late": """
if rank > 1: time.sleep(0.3)  # later than the launches of the others
for _ in range(6): v[0] = f[0](v[0])""",
    "the halves take another order": "for k in ((1, 0) if rank < 2 else (0, 1)): v[k] = f[k](v[k])",
    "they do not call it": "if rank < 2: v[0] = f[0](v[0])",
    "they call it more often": "for _ in range(3 if rank < 2 else 300): v[0] = f[0](v[0])",
    "two models in two threads": """
def train(k):
    for _ in range(50): v[k] = f[k](v[k])
threads = [threading.Thread(target=train, args=(k,)) for k in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()""",
    "a pipeline of two stages": """
carried = np.arange(8, dtype=np.float32)
for _ in range(3):
    for half in (0, 1):
        data = jax.make_array_from_callback((8,), shares[half], lambda i: carried[i], dtype=jnp.float32)
        whole_half = NamedSharding(shares[half].mesh, P())
        out = jax.jit(lambda a: 2 * a, out_shardings=whole_half)(data).addressable_shards
        mine = np.asarray(out[0].data) if out else np.zeros(8, np.float32)
        carried = multihost_utils.broadcast_one_to_all(mine, is_source=rank == 2 * half)
assert carried.sum() == 28 * 64, carried""",
    "a donated array": "g = jax.jit(lambda a: a + 0 * a.sum(), donate_argnums=0)\nfor k in (0, 1): v[k] = g(v[k])",
    "they make the data of the others once more": "if rank > 1: spread(0, 3)\nv[0] = spread(0, 1)",
}


@pytest.mark.parametrize("guard", ["lockstep", "parity", "off"])
@pytest.mark.sample(1)
def test_ranks_outside_a_program_have_no_part_in_it(ready: Cluster, guard: str) -> None:
    """A rank that holds nothing of a program's mesh may call the program or not, in any order: no rank waits for another half."""
    for how, code in OUTSIDE.items():
        ready.run(HALVES).check()
        result = ready.run(f"{code}\ntotal(0, v[0]), total(1, v[1])", guard=guard, timeout_s=120)
        assert [rank.text for rank in result] == ["([28.0], [])"] * 2 + ["([], [56.0])"] * 2, (how, result)
        # On a busy machine a rank may in truth come last to many of these launches, and be named for it.
        notes = [note for note in result.notes if "%mhjax flight" not in note]
        assert (result.state, notes) == ("clean", []), how
    check_sum(ready)


def test_end_of_a_rank_outside_is_its_own(ready: Cluster) -> None:
    """A rank outside a program that raises, or calls it in a cell of the others, changes nothing for its participants."""
    ready.run(HALVES).check()
    result = ready.run("if rank == 3: raise ValueError('no')\nfor _ in range(5): v[0] = f[0](v[0])\ntotal(0, v[0])")
    assert (names(result), result.state) == (["", "", "", "ValueError"], "clean")
    assert [rank.text for rank in result][:3] == ["[28.0]", "[28.0]", "[]"]
    assert {rank.text for rank in ready.run("total(0, f[0](v[0]))", ranks="2-3").check()} == {"[]"}
    check_sum(ready)


@pytest.mark.usefixtures("long_agreement_timeout")
def test_interrupt_with_ranks_outside_leaves_all_in_step(ready: Cluster) -> None:
    """Ctrl-C in a loop of launches stops the participants before the same launch; a rank outside may have gone on."""
    ready.run(HALVES).check()
    loop = (
        "step = 0\nwhile rank < 2 or step < 9: v[0] = f[0](v[0]); step += 1; print('on', flush=True); time.sleep(0.01)"
    )
    result = interrupt_once_printed(ready, loop, "on")
    assert [rank.outcome for rank in result][:2] == ["interrupted"] * 2
    assert result.state == "clean"
    steps = [rank.text for rank in ready.run("step").check()]
    assert steps[0] == steps[1]
    assert f"Interrupted before launch {int(steps[0] or 0) + 1} on ranks 0-1 · clean" in result.notes
    assert ready.run("total(0, v[0])").check()[0].text == "[28.0]"
    check_sum(ready)


def test_meshes_in_another_order_report_a_deadlock(ready: Cluster) -> None:
    """Ranks 0 and 1 use two shared meshes in different orders: neither could ever continue, so both report the deadlock."""
    code = """
def total(members):
    devices = [d for d in jax.devices() if d.process_index in members]
    sub = Mesh(np.array(devices), ('y',))
    n = len(devices)
    a = jax.make_array_from_callback((n,), NamedSharding(sub, P('y')), lambda i: np.ones(n, np.float32)[i])
    return float(jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(sub, P()))(a))
got = [total(m) for m in ([(0, 1), (0, 1, 2)] if rank == 0 else [(0, 1, 2), (0, 1)] if rank == 1 else [(0, 1, 2)] if rank == 2 else [])]"""
    result = ready.run(code, timeout_s=60)
    assert names(result)[:2] == ["OrderMismatch", "OrderMismatch"]
    assert result.how == "", "no time limit was needed"
    errors = {rank.error.evalue for rank in result if rank.rank < 2 and rank.error is not None}
    (text,) = errors
    assert "the ranks are waiting for each other" in text
    assert "waits for rank 1" in text
    assert "waits for rank 0" in text
    check_sum(ready)


def test_code_that_catches_a_mismatch_stays_in_step(ready: Cluster) -> None:
    """Code that catches the mismatch stays in step with the other ranks.

    It is an ordinary exception: all ranks get it at the same place, and the next launch is agreed on again.
    """
    code = """
got = None
try:
    (add if rank else top)(x)
except Exception as error:
    got = type(error).__name__
got, float(add(x))"""
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"('OrderMismatch', 28.0)"}
    assert result.notes == (
        "rank 0 caught an OrderMismatch: jit(top) f32[8] → f32[], line 3, was not launched · clean",
        "ranks 1-3 caught an OrderMismatch: jit(add) f32[8] → f32[], line 3, was not launched · clean",
    )


_CAUGHT = "if rank == 0:\n    try: s = add(x)\n    except Exception: s = -1"


@pytest.mark.parametrize(
    ("code", "ranks", "guard", "wanting"),
    [
        (_CAUGHT, None, "lockstep", "rank 0"),
        (f"async def run():\n    pass\nawait run()\n{_CAUGHT}", None, "lockstep", "rank 0"),
        ("for n in range(5):\n    try: s = add(x)\n    except Exception: pass", "1,2", "off", "ranks 1-2"),
    ],
    ids=["plain", "awaits", "subset"],
)
def test_caught_mismatch_is_noted(ready: Cluster, code: str, ranks: str | None, guard: str, wanting: str) -> None:
    """A cell that catches a mismatch ends as its code does.

    One note names the ranks, the launch that no other rank made, and its line.
    """
    result = ready.run(code, ranks=ranks, guard=guard).check()
    line = 1 + code[: code.index("add(x)")].count("\n")
    note = f"{wanting} caught an OrderMismatch: jit(add) f32[8] → f32[], line {line}, was not launched · clean"
    assert result.notes == (note,)
    assert ready.run("s = None").check().notes == (), "of its cell alone"
    check_sum(ready)


def test_caught_mismatch_behind_another_error_is_noted(ready: Cluster) -> None:
    """A caught mismatch is noted if another error hides it, because the cell's own error does not show its cause.

    If the error shows the mismatch, there is no note.
    """
    hidden = ready.run("if rank == 0:\n    try: add(x)\n    except Exception: raise ValueError('no sum') from None")
    assert names(hidden) == ["ValueError", "", "", ""]
    expected = "rank 0 caught an OrderMismatch: jit(add) f32[8] → f32[], line 2, was not launched · clean"
    assert expected in hidden.notes
    shown = ready.run("if rank == 0:\n    try: add(x)\n    except Exception: raise ValueError('no sum')")
    assert names(shown) == ["ValueError", "", "", ""]
    assert shown[0].error is not None
    assert "OrderMismatch" in "\n".join(shown[0].error.traceback)
    assert not any("caught" in note for note in shown.notes)
    check_sum(ready)


_LONE = "class Lone:\n    def __repr__(self): return str(add(x)) if rank == 0 else 'fine'"
_SWALLOWED = {
    "a repr": f"{_LONE}\nLone()",
    "display": f"{_LONE}\ndisplay(Lone())\nprint('went on')",
    "a repr, then another error": f"{_LONE}\nclass Bad:\n    def __repr__(self): return 1 / 0\ndisplay(Lone(), Bad())",
    "capture": "%%capture\nif rank == 0: add(x)",
    "run": "%run -i {script}",
    "await": f"import asyncio\nawait asyncio.sleep(0)\n{_LONE}\nLone()",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("code", _SWALLOWED.values(), ids=_SWALLOWED)
def test_mismatch_swallowed_by_ipython_fails_the_cell(ready: Cluster, tmp_path: Path, code: str) -> None:
    """A mismatch that IPython shows and passes over fails the cell, because no cell with a mismatch may succeed.

    IPython only shows what a `__repr__` raises, and the error of a script.
    """
    script = tmp_path / "lone.py"
    script.write_text("if rank == 0: add(x)\n")
    result = ready.run(code.replace("{script}", str(script)))
    assert [rank.outcome for rank in result] == ["error", "ok", "ok", "ok"]
    assert result[0].failure is not None
    assert result[0].failure.ename == "OrderMismatch"
    assert not result.ok
    assert not any("caught" in note for note in result.notes), "it was shown"
    with pytest.raises(OrderMismatch, match="rank 0"):
        result.check()
    check_sum(ready)


def test_other_error_of_a_repr_is_only_shown(ready: Cluster) -> None:
    """Another error of a `__repr__` is only shown, as in IPython: the cell goes on and succeeds."""
    result = ready.run("class Shy:\n    def __repr__(self): raise KeyError('no')\nShy()").check()
    assert [rank.failure for rank in result] == [None] * 4
    assert all(any(output["output_type"] == "error" for output in rank.outputs) for rank in result)
    check_sum(ready)


def test_earlier_mismatch_shown_again_fails_nothing(ready: Cluster) -> None:
    """`%tb` shows the last traceback; a mismatch of an earlier cell in it fails nothing."""
    ready.run("if rank == 0: add(x)")
    result = ready.run("%tb")
    assert "OrderMismatch" in str(result[0].outputs)
    assert [rank.outcome for rank in result] == ["ok"] * 4
    assert not any("caught" in note for note in result.notes)
    check_sum(ready)


@pytest.mark.usefixtures("long_agreement_timeout")
def test_interrupt_stops_all_ranks_before_the_same_launch(ready: Cluster) -> None:
    """An interrupt stops all ranks before the same launch: ten times the state is clean and the step counts are equal."""
    loop = "step = 0\nprint('on', flush=True)\nwhile True:\n    float(add(x)); step += 1; time.sleep(0.01)"
    for _ in range(10):
        result = interrupt_once_printed(ready, loop, "on")
        assert (result.how, result.state) == ("interrupted", "clean")
        assert {rank.outcome for rank in result} == {"interrupted"}
        steps = {rank.text for rank in ready.run("step").check()}
        assert len(steps) == 1
    check_sum(ready)


@pytest.mark.other_python
@pytest.mark.usefixtures("long_agreement_timeout")
def test_note_names_the_launch_before_the_stop(ready: Cluster) -> None:
    """The note names the launch before which all ranks stopped: `Interrupted before launch 812 on every rank · clean`."""
    loop = "step = 0\nprint('on', flush=True)\nwhile True:\n    float(add(x)); step += 1; time.sleep(0.01)"
    result = interrupt_once_printed(ready, loop, "on")
    step = int(ready.run("step").check()[0].text or "")
    assert result.notes[0] == f"Interrupted before launch {step + 1} on every rank · clean"


@pytest.mark.usefixtures("long_agreement_timeout")
def test_interrupted_cell_may_save_with_collectives(ready: Cluster) -> None:
    """An interrupted cell may still launch collectives, for example to save its state.

    Every rank was interrupted before the same launch, so later launches are made, and the note counts none of them.
    """
    code = """
step = 0
print('on', flush=True)
try:
    while True: float(add(x)); step += 1; time.sleep(0.01)
except KeyboardInterrupt:
    saved = [float(add(x)) for _ in range(5)]
    raise"""
    result = interrupt_once_printed(ready, code, "on")
    assert ({rank.outcome for rank in result}, result.state) == ({"interrupted"}, "clean")
    state = ready.run("step, saved").check()
    (only,) = {rank.text for rank in state}
    assert only is not None
    assert only.endswith(", [28.0, 28.0, 28.0, 28.0, 28.0])")
    assert result.notes[0] == f"Interrupted before launch {int(only[1:].partition(',')[0]) + 1} on every rank · clean"
    check_sum(ready)


@pytest.mark.usefixtures("long_agreement_timeout")
def test_cell_that_handles_an_interrupt_runs_to_its_end(ready: Cluster) -> None:
    """A cell that handles an interrupt goes on to its end like any other cell.

    It waits for what it launched, and its time limit is not shorter than that of other cells.
    """
    limit = "from mhnb.rank.execution import runner; before, runner._STOPPED_WAIT_S = runner._STOPPED_WAIT_S, 0.0"
    ready.run(limit).check()
    code = f"""
{_SLOW}
print('on', flush=True)
try:
    while True: float(add(x)); time.sleep(0.01)
except KeyboardInterrupt:
    saved = slow(x)"""
    try:
        result = interrupt_once_printed(ready, code, "on")
    finally:
        ready.run("runner._STOPPED_WAIT_S = before")
    assert ({rank.outcome for rank in result}, result.state, result.notes) == ({"ok"}, "clean", ())
    check_sum(ready)


_STOPPED_SEPARATELY = {
    "alone, twice": """
    try:
        while True: step += 1; tell(20); time.sleep(0.005 + 0.003 * rank)
    except KeyboardInterrupt:
        try: save()
        except KeyboardInterrupt: save()""",
    "alone, a thread together": """
    def work():
        try:
            while True: float(add(x)); time.sleep(0.5)
        except KeyboardInterrupt: return
    beside = threading.Thread(target=work)
    beside.start()
    try:
        while True: step += 1; tell(20); time.sleep(0.005 + 0.003 * rank)
    except KeyboardInterrupt:
        beside.join()
        save()""",
    "in two halves": """
    half = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, -1)[rank // 2], ('h',))
    y = jax.make_array_from_callback((4,), NamedSharding(half, P('h')), lambda at: np.ones(4, np.float32)[at])
    try:
        while True: float(add_half(y)); step += 1; tell(40 if rank < 2 else 1); time.sleep(0.005 if rank < 2 else 0.05)
    except KeyboardInterrupt:
        save()""",
}


@pytest.mark.parametrize("code", _STOPPED_SEPARATELY.values(), ids=_STOPPED_SEPARATELY)
@pytest.mark.sample(1)
def test_ranks_stopped_at_different_steps_cannot_save(ready: Cluster, code: str) -> None:
    """Ranks that were stopped at different steps launch no collective to save.

    Whatever they agreed on before or since, one program over all ranks would mix their steps without an error.
    """
    whole = f"""
add_half = jax.jit(jnp.sum)
step, saved = 0, None
def save():
    global saved
    saved = float(add(x))
def tell(at):
    # By then the ranks are steps apart, on a loaded machine too.
    if step == at: print('on', flush=True)
def run():
    global step
{code}
run()"""
    result = interrupt_once_printed(ready, whole, "on")
    assert (result.how, result.state) == ("interrupted", "clean")
    assert all(rank.error is not None and "launched to handle" in rank.error.evalue for rank in result)
    assert len({rank.text for rank in ready.run("step").check()}) > 1
    assert {rank.text for rank in ready.run("str(saved)").check()} == {"'None'"}
    check_sum(ready)


_SLOW = """
@partial(jax.jit, out_shardings=whole)
def slow(a): return jax.lax.fori_loop(0, 10_000_000, lambda i, s: jnp.sin(s), a).sum()
float(slow(x))"""


@pytest.mark.usefixtures("long_agreement_timeout")
def test_interrupt_of_a_loop_that_runs_ahead_is_clean(ready: Cluster) -> None:
    """An interrupt of a loop that runs ahead leaves the cluster clean.

    Launches that all ranks made end by themselves; a cell that does not wait for them abandons nothing.
    """
    code = f"{_SLOW}\nprint('on', flush=True)\nwhile True: y = slow(x)"
    result = interrupt_once_printed(ready, code, "on")
    assert (result.how, result.state) == ("interrupted", "clean"), result.notes
    assert result.notes[0].startswith("Interrupted before launch ")
    check_sum(ready)


@pytest.mark.parametrize("code", ["while True: pass", "time.sleep(1000)", "threading.Event().wait()"])
@pytest.mark.sample(1)
def test_python_code_without_launches_is_interrupted(ready: Cluster, code: str) -> None:
    """Python code that launches nothing is interrupted by a signal, after the agreement had its chance."""
    result = interrupt_once_printed(ready, f"print('on', flush=True)\n{code}", "on")
    assert (result.how, result.state) == ("interrupted", "clean")
    check_sum(ready)


@pytest.mark.parametrize("handled", [False, True])
def test_arrays_from_an_interrupted_loop_are_refused(ready: Cluster, *, handled: bool) -> None:
    """Arrays from an interrupted loop without collectives are refused, also if the code handled the interrupt.

    Each rank's shards are from a step of its own, and a sum over them would belong to no step.
    """
    loop = """
z, grow, steps = x, jax.jit(lambda a: a + 1), 0
try:
    while True:
        z, steps = grow(z), steps + 1
        if steps == (1 if rank else 5): print('on', flush=True)
        time.sleep(1000 if rank else 0.01)
except KeyboardInterrupt:
    if not handled: raise"""
    ready.run(f"handled = {handled}").check()
    result = interrupt_once_printed(ready, loop, "on")
    assert (result.ok, result.how, result.state) == (handled, "interrupted", "clean")
    assert names(ready.run("float(add(z))")) == ["OrderMismatch"] * 4
    check_sum(ready)


def test_interrupt_withdraws_a_waiting_proposal(ready: Cluster) -> None:
    """An interrupt while rank 0 waits to launch and rank 1 only computes withdraws the proposal: no rank launches."""
    code = "print('on', flush=True)\nif rank == 0: y = float(add(x))\nelse:\n    while True: pass"
    result = interrupt_once_printed(ready, code, "on")
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert result.state == "clean"
    check_sum(ready)


def test_note_names_where_a_waiting_rank_was_interrupted(ready: Cluster) -> None:
    """The note names the launch before which a waiting rank was interrupted.

    That rank was before a launch in lockstep; the other ranks may be anywhere.
    """
    requested = threading.Event()

    def interrupt(snapshot: CellResult) -> None:
        if not requested.is_set() and snapshot.where is not None and 0 in snapshot.where.waiting:
            requested.set()
            ready.interrupt()

    result = ready.run("add(x)\nif rank == 0: add(x)\nelse: time.sleep(1000)", on_snapshot=interrupt, timeout_s=100)
    assert result.notes == ("Interrupted while rank 0 waited before launch 2 (line 2) for other ranks · clean",)
    assert ready.run("time.sleep(0)").notes == ()


def test_ranks_wait_for_a_slow_rank(ready: Cluster) -> None:
    """There is no timeout: the other ranks wait for a rank that is three seconds late, as if it compiled."""
    result = ready.run("if rank == 3: time.sleep(3)\nfloat(add(x))").check()
    assert {rank.text for rank in result} == {"28.0"}
    assert result.notes == ()


def test_rank_local_programs_need_no_agreement(ready: Cluster) -> None:
    """Programs on a rank's own device need no agreement, in any number and order."""
    code = "for n in range(1 + rank): jax.jit(lambda a: a * (n + rank))(np.ones(3)).block_until_ready()\nfloat(add(x))"
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"28.0"}


def test_equal_serialised_programs_match(ready: Cluster) -> None:
    """A serialised program matches itself, whatever line it was compiled on."""
    code = """
from jax.experimental import serialize_executable as se
def passed_on(compiled): return se.deserialize_and_load(*se.serialize(compiled))
if rank % 2: step = passed_on(add.lower(x).compile())
else:
    step = passed_on(add.lower(x).compile())
float(step(x))"""
    assert {rank.text for rank in ready.run(code).check()} == {"28.0"}


DIFFERENT_SERIALISED = {
    "weights": "make = lambda n: jax.jit(lambda a: (a * weights[n]).sum(), out_shardings=whole).lower(x)",
    "a custom call": """
from jax.scipy.linalg import solve_triangular
square = jax.device_put(np.arange(1, 17, dtype=np.float32).reshape(4, 4), whole)
make = lambda n: jax.jit(lambda a, m: a.sum() + solve_triangular(m, jnp.ones(4), lower=bool(n)).sum(), out_shardings=whole).lower(x, square)
""",
}


@pytest.mark.parametrize("make", DIFFERENT_SERIALISED.values(), ids=DIFFERENT_SERIALISED.keys())
def test_different_serialised_programs_are_refused(ready: Cluster, make: str) -> None:
    """Serialised programs are distinguished by constants that XLA's text leaves out, and by the arguments of a custom call."""
    ready.run(
        "from jax.experimental import serialize_executable as se\n"
        "weights = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)\n"
        "square = None\n" + make + "\n"
        "loaded = [se.deserialize_and_load(*se.serialize(make(n).compile())) for n in (0, 1)]\n"
        "given = (x,) if square is None else (x, square)"
    ).check()
    result = ready.run("loaded[rank == 1](*given)")
    assert names(result) == ["OrderMismatch"] * 4
    ready.run("[loaded[n](*given) for n in (0, 1)]").check()
    check_sum(ready)


def test_signal_during_a_launch_is_handled_after_it(ready: Cluster) -> None:
    """A user's signal handler that is due in the middle of a launch runs after it.

    The handler raises on one rank, after that rank has agreed on the launch.
    The other ranks do not wait for it, and do not match its next launch.
    """
    code = """
import signal
from mhnb.rank.guard.launch_recorder import LaunchRecorder
class RungError(Exception): pass
def ring(*_): raise RungError
signal.signal(signal.SIGUSR1, ring)
own = LaunchRecorder.record_launch
def note(self, *given, **named):
    if rank == 1: signal.raise_signal(signal.SIGUSR1)
    return own(self, *given, **named)
LaunchRecorder.record_launch = note
try: print(float(add(x)))
except RungError: print("rung")
finally:
    LaunchRecorder.record_launch = own
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)"""
    result = ready.run(code).check()
    assert [rank.stdout for rank in result] == ["28.0\n", "rung\n", "28.0\n", "28.0\n"]
    assert ready.state == "clean"
    check_sum(ready)


DIFFERENT_LOCAL = {
    "one line": "y = jax.jit((lambda a: a * 2) if rank == 1 else (lambda a: a * 3))(x)",
    "two branches": "if rank == 1: y = jax.jit(lambda a: a * 2)(x)\nelse: y = jax.jit(lambda a: a * 3)(x)",
    "a loop left early": "y, step = x, jax.jit(lambda a: a * 2)\nfor _ in range(3 + (rank == 1)): y = step(y)",
}


@pytest.mark.other_python
@pytest.mark.parametrize("code", DIFFERENT_LOCAL.values(), ids=DIFFERENT_LOCAL.keys())
def test_outputs_of_different_local_programs_are_refused(ready: Cluster, code: str) -> None:
    """Outputs of different programs without a collective are refused where a launch takes them.

    No rank waits in these programs, so none is stopped; but one array has shards of different programs.
    """
    assert ready.run(code).check().notes == ()
    assert names(ready.run("float(add(y))")) == ["OrderMismatch"] * 4
    check_sum(ready)


@pytest.mark.parametrize("guard", ["lockstep", "parity"])
def test_harmless_local_differences_are_not_reported(ready: Cluster, guard: str) -> None:
    """Harmless differences between programs without a collective are not reported.

    These are another order, a rank that displays or keeps a value, a thread that runs ahead, and a loop that measures.
    """
    code = """
order = [lambda: x + 1, lambda: x * 2]
for step in (order if rank % 2 else order[::-1]): step()
if rank == 1: print(x * 3)
mine = jnp.arange(3) * rank
[shard.data * rank for shard in x.addressable_shards]
y = jax.device_put(np.arange(8.0), rows)
def prefetch():
    for _ in range(3 + rank): z = x / 2
thread = threading.Thread(target=prefetch)
thread.start()
thread.join()
for _ in range(5 + rank): x * 7
w = x
for _ in range(3): w = w - x
best = w if rank == 1 else None
w = w * 2"""
    assert ready.run(code, guard=guard).check().notes == ()


@pytest.mark.sample(4)
@pytest.mark.parametrize("guard", ["lockstep", "parity"])
@pytest.mark.parametrize("look", ["jnp.linalg.norm(w, 2)", "jax.lax.top_k(w[0], 2)", "jnp.linalg.inv(w)", "said(w)"])
def test_one_rank_may_inspect_a_replica_by_library_calls(ready: Cluster, look: str, guard: str) -> None:
    """One rank may inspect a replica with operations that XLA leaves to a library.

    Linear algebra, the greatest elements and a print from inside a program reach no other device.
    """
    ready.run("w = jax.device_put(np.eye(4, dtype=np.float32) * 3, whole)\nadd(w)").check()
    code = f"""
@jax.jit
def said(w):
    jax.debug.print('sum {{}}', w.sum())
    return w
if rank == 1: print({look})"""
    assert ready.run(code, guard=guard).check().notes == ()
    check_sum(ready)


@pytest.mark.parametrize("guard", ["parity", "off"])
def test_equal_launches_succeed_without_lockstep(ready: Cluster, guard: str) -> None:
    """Under parity or without a guard, which the user chooses, a cell of equal launches runs as before."""
    assert {rank.text for rank in ready.run("float(add(x))", guard=guard).check()} == {"28.0"}
    check_sum(ready)


def interrupt_once_printed(cluster: Cluster, code: str, word: str) -> CellResult:
    """Run a cell, and interrupt it once every rank has printed a word."""
    requested = threading.Event()

    def interrupt(snapshot: CellResult) -> None:
        if not requested.is_set() and all(word in rank.stdout for rank in snapshot):
            requested.set()
            cluster.interrupt()

    show: Callable[[CellResult], None] = interrupt
    return cluster.run(code, on_snapshot=show, timeout_s=100)


def test_check_finds_replicas_that_differ(ready: Cluster) -> None:
    """`check` finds replicas that were made from different values without a guard.

    Each rank reads its own value, and nothing else reports the difference.
    """
    ready.run(
        """
def replicate(value):
    shards = [jax.device_put(value, d) for d in jax.local_devices()]
    return jax.make_array_from_single_device_arrays(value.shape, whole, shards)
good, bad = replicate(np.ones(2, np.float32)), replicate(np.full(2, rank % 2, np.float32))
params = {'w': good, 'b': bad, 'rate': 0.1}""",
        guard="off",
    ).check()
    ready.run("count, long = rank % 2, 'x' * (100 + rank)").check()
    texts_by_name = {row.name: row.text for row in ready.check("count", "long")}
    assert texts_by_name["count"].endswith("ranks 0,2 hold 0, ranks 1,3 hold 1")
    assert "xx" not in texts_by_name["long"]
    rows = {row.name: row for row in ready.check("good", "bad", "params", "x")}
    assert [name for name, row in rows.items() if not row.same] == ["bad", "params['b']"]
    assert rows["good"].text == "1 shard held by ranks 0-3: equal"
    assert rows["bad"].text.startswith("shard [0:2] differs: ranks 0,2 hold ")
    assert rows["params['rate']"].text == "value held by ranks 0-3: equal"
    assert rows["x"].text == "each rank holds different shards: nothing to compare"


def test_check_reports_missing_names_and_shapes(ready: Cluster) -> None:
    """`check` reports a name that a rank lacks, and shapes that differ.

    Different local sizes make global arrays of different shapes, without an error from JAX.
    """
    ready.run(
        "if rank: there = 1\n"
        "uneven = jax.make_array_from_process_local_data(rows, np.zeros(2 * (1 + rank % 2), np.float32))",
        guard="off",
    )
    with pytest.raises(NameMissing, match="'there' does not exist on rank 0"):
        ready.check("there")
    (row,) = ready.check("uneven")
    assert not row.same
    assert "ranks 0,2 hold f32[8], ranks 1,3 hold f32[16]" in row.text


def test_array_of_different_local_sizes_is_refused(ready: Cluster) -> None:
    """No rank launches on an array of different local sizes, because the next program over it differs between the ranks."""
    result = ready.run(
        "uneven = jax.make_array_from_process_local_data(rows, np.zeros(2 * (1 + rank % 2), np.float32))\n"
        "float(add(uneven))"
    )
    assert names(result) == ["OrderMismatch"] * 4
    check_sum(ready)


def test_device_put_of_different_values_raises_on_every_rank(ready: Cluster) -> None:
    """JAX itself rejects a `device_put` of different values on every rank, and the ranks stay in step."""
    result = ready.run("y = jax.device_put(np.full(8, rank, np.float32), rows)")
    assert all(names(result))
    assert result.state == "clean"
    check_sum(ready)


def test_hang_report_covers_ranks_that_wait_to_agree(ready: Cluster) -> None:
    """The hang report covers ranks that wait to agree.

    Under lockstep nothing is launched yet, but the report names the waiting ranks, the launch, and the missing rank.
    """
    seen: list[HangReport] = []

    def on_snapshot(snapshot: CellResult) -> None:
        report = snapshot.where
        if report is not None and report.stuck and not report.progress and not seen:
            seen.append(report)
            ready.interrupt()

    result = ready.run("if rank == 2: time.sleep(1000)\nloss = float(add(x))", on_snapshot=on_snapshot, timeout_s=60)
    assert (result.how, result.state) == ("interrupted", "clean")
    (card,) = seen
    assert (card.waiting, card.absent, card.launch) == ((0, 1, 3), (2,), "jit(add)")
    assert card.lines == {0: 2, 1: 2, 2: 1, 3: 2}
    check_sum(ready)


def test_exception_while_waiting_withdraws_the_proposal(ready: Cluster, tmp_path: Path) -> None:
    """An exception from a user's signal handler during the wait withdraws the proposal.

    The rank that arrives late must not launch alone.
    """
    code = f"""
import os, signal
def bell(*_): raise TimeoutError('the bell')
flag = {str(tmp_path / "rung")!r}
if rank == 0:
    signal.signal(signal.SIGALRM, bell)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try: y = float(add(x))
    finally: open(flag, 'w').close()
while not os.path.exists(flag): time.sleep(0.05)
y = float(add(x))"""
    result = ready.run(code)
    assert names(result) == ["TimeoutError", "OrderMismatch", "OrderMismatch", "OrderMismatch"]
    assert result.state == "clean"
    check_sum(ready)


def check_repeated_withdrawals(cluster: Cluster, tmp_path: Path, quitter: int) -> None:
    """Interrupt one rank's wait five times; only then the other ranks arrive, and must not match an older attempt."""
    code = (
        f"flag, quitter = {str(tmp_path / 'done')!r}, {quitter}"
        """
import os, signal
def bell(_, frame):
    # Only in the wait: a bell before the post would not be an attempt.
    while frame is not None:
        if frame.f_code.co_name == 'wait': raise TimeoutError('the bell')
        frame = frame.f_back
told = []
if rank == quitter:
    signal.signal(signal.SIGALRM, bell)
    for attempt in range(5):
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)
        try: add(x)
        except Exception as error: told.append(type(error).__name__)
        signal.setitimer(signal.ITIMER_REAL, 0)
    open(flag, 'w').close()
else:
    while not os.path.exists(flag): time.sleep(0.05)
    try: add(x)
    except Exception as error: told.append(type(error).__name__)
' '.join(told)"""
    )
    result = cluster.run(code).check()
    assert result[quitter].text == "'TimeoutError TimeoutError TimeoutError OrderMismatch OrderMismatch'"
    assert {rank.text for rank in result if rank.rank != quitter} == {"'OrderMismatch'"}
    check_sum(cluster)


def test_repeated_withdrawals_are_refused_in_time(ready: Cluster, tmp_path: Path) -> None:
    """A rank that gives up repeatedly is refused before one of its proposals is overwritten.

    The board has four places for each rank, and a fifth attempt must not pass for the first.
    """
    check_repeated_withdrawals(ready, tmp_path, quitter=0)


@pytest.mark.usefixtures("long_agreement_timeout")
def test_agreed_stop_in_a_task_leaves_the_ranks_alive(ready: Cluster) -> None:
    """An agreed stop inside an asyncio task of the cell leaves the ranks alive.

    A KeyboardInterrupt out of a child task would end the event loop, and the rank.
    """
    code = """
import asyncio
step = 0
async def train():
    global step
    print('on', flush=True)
    while True:
        float(add(x)); step += 1; await asyncio.sleep(0.01)
async def monitor():
    while True: await asyncio.sleep(0.01)
await asyncio.gather(train(), monitor())"""
    result = interrupt_once_printed(ready, code, "on")
    assert {rank.outcome for rank in result} == {"interrupted"}
    assert result.state == "clean"
    assert len({rank.text for rank in ready.run("step").check()}) == 1
    check_sum(ready)


def test_forked_child_cannot_launch(ready: Cluster) -> None:
    """A forked child cannot launch for its parent, although it inherits the rank's memory with the shared board."""
    code = """
import os, warnings
warnings.simplefilter('ignore')
read, write = os.pipe()
if os.fork() == 0:
    try: add(x)
    except BaseException as error: os.write(write, f'{type(error).__name__}: {error}'.encode())
    os._exit(0)
os.wait()
os.read(read, 200).decode(), float(add(x))"""
    result = ready.run(code).check()
    assert all("a forked process is not a rank" in (rank.text or "") for rank in result)
    assert all("28.0" in (rank.text or "") for rank in result)


@pytest.mark.parametrize("guard", ["parity", "off"])
def test_subset_is_checked_under_every_guard(ready: Cluster, guard: str) -> None:
    """A `--ranks` cell is checked under every guard: no agreement is needed to know which ranks do not run it."""
    result = ready.run("y = add(x)", ranks="0,1", guard=guard)
    assert names(result) == ["OrderMismatch", "OrderMismatch"]
    if ready.state == "split":
        ready.accept()
    check_sum(ready)


def test_check_reports_keys_and_uncomparable_values(ready: Cluster) -> None:
    """`check` compares PRNG keys, and reports what it cannot compare.

    A seed that differs between the ranks is what users look for. Code, locks and donated arrays are neither equal nor different.
    """
    ready.run(
        """
import threading
keys = {'own': jax.random.key(rank), 'same': jax.random.key(7)}
spread = jax.jit(lambda: jax.random.split(jax.random.key(0), 8), out_shardings=rows)()
masked = np.ma.masked_array([1, 2], mask=[rank, 0])
mixed, lock, gone = {'a': 1, 3: 2}, threading.Lock(), x + 0
def double(a): return a * rank
gone.delete()
turned = Mesh(np.array(jax.devices())[:: -1 if rank else 1], ('x',))
turned = jax.make_array_from_callback((8,), NamedSharding(turned, P('x')), lambda i: np.ones(8, np.float32)[i])""",
        guard="off",
    ).check()
    names = ("keys", "spread", "masked", "mixed", "lock", "gone", "double", "turned")
    rows = {row.name: row for row in ready.check(*names)}
    assert [name for name, row in rows.items() if row.same is False] == ["keys['own']", "masked", "turned"]
    assert [name for name, row in rows.items() if row.same] == ["keys['same']", "spread"]
    assert "cannot be flattened: ValueError" in rows["mixed"].text
    assert rows["lock"].text == "not compared: TypeError: cannot pickle '_thread.lock' object on ranks 0-3"
    assert rows["gone"].text.startswith("not compared: holds an array f32[8] that has been deleted")
    assert rows["double"].text == "not compared: it is code on ranks 0-3"


FAILING = """
fail = True
def load(value):
    if fail and rank == 0: raise ValueError('no such shard')
    return np.float32(value)
def body(a): return jax.lax.psum(jax.pure_callback(load, jax.ShapeDtypeStruct((), np.float32), a.sum()), 'x')
loaded = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P(), check_vma=False))
"""


@pytest.mark.test_all
def test_failed_collective_does_not_match_a_later_one(fresh: Callable[..., Cluster]) -> None:
    """A collective that failed in a callback on one rank is not matched with a later one.

    All ranks launched it, and the other ranks wait for it forever. What rank 0 launched next used to match it, and was silently wrong.
    """
    cluster = fresh(4, 2)
    cluster.run(SETUP + FAILING).check()
    result = cluster.run("y = loaded(x)\nprint(y)", timeout_s=6)
    assert result[0].error is not None
    assert "no such shard" in result[0].error.evalue
    assert result.state == "tainted", result.notes
    assert "abandoned jit(body) (line 1) before it completed" in "\n".join(result.notes)
    cluster.accept()
    after = cluster.run("print('here', float(add(x)))", timeout_s=6)
    assert not after.ok
    assert all("here" not in rank.stdout for rank in after)
