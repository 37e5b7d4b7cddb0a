"""A cell ends when its launches have finished, also on a rank's own devices: their output, errors and time belong to it."""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.journal import CellRecord
from tests.integration.ranks.test_lockstep import SETUP as LOCKSTEP
from tests.integration.ranks.test_lockstep import interrupt_once_printed

Fresh = Callable[..., Cluster]

SETUP = """
import jax, jax.numpy as jnp, time
from jax.experimental import io_callback

shape = jax.ShapeDtypeStruct((), jnp.float32)
steps = jax.jit(lambda m, n: jax.lax.fori_loop(0, n, lambda i, a: a @ a * 1e-3, m), static_argnums=1)

def tell(x):
    time.sleep(2)
    print('told', flush=True)
    return x

def refuse(x):
    time.sleep(0.5)
    raise ValueError('no such luck')

told = jax.jit(lambda m: jax.pure_callback(tell, shape, m[0, 0]))
refused = jax.jit(lambda m: jax.pure_callback(refuse, shape, m[0, 0]))
m = jnp.ones((300, 300))
steps(m, 20).block_until_ready()
steps(m, 300).block_until_ready()
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with compiled local programs that still run when Python has launched them."""
    cluster.run(textwrap.dedent(SETUP)).check()
    return cluster


@pytest.mark.other_python
def test_local_programs_have_finished_when_the_cell_ends(ready: Cluster) -> None:
    """A result that a cell started and did not read is ready on every rank in the next cell."""
    begun = ready.run("made = steps(m, 300); 'begun'").check()
    assert {rank.text for rank in begun} == {"'begun'"}
    assert {rank.text for rank in ready.run("made.is_ready()").check()} == {"True"}


def test_output_of_local_callback_belongs_to_its_cell(ready: Cluster) -> None:
    """A callback of two seconds whose result is not read has printed before the reply comes."""
    result = ready.run("made = told(steps(m, 20)); print('dispatched')").check()
    assert all("told\n" in rank.stdout for rank in result)
    assert {rank.stdout.replace("told\n", "", 1) for rank in result} == {"dispatched\n"}
    assert ready.run("'next'").check()[0].stdout == ""


@pytest.mark.test_all
def test_time_includes_launched_work(ready: Cluster) -> None:
    """`%%time` prints the time when the timed work has finished, not when it was dispatched."""
    for result in (ready.run("%%time\nmade = told(steps(m, 20))"), ready.run("%time made = told(steps(m, 20))")):
        assert all(rank.stdout.index("told") < rank.stdout.index("Wall time") for rank in result.check())


@pytest.mark.test_all
def test_time_excludes_earlier_launches(ready: Cluster) -> None:
    """`%time` does not include work that the cell launched before it."""
    result = ready.run("made = told(steps(m, 20))\n%time next = 1").check()
    assert all(rank.stdout.index("told") < rank.stdout.index("Wall time") for rank in result)
    assert all(re.search(r"Wall time: [\d.]+ (ns|μs|us|µs|ms)", rank.stdout) for rank in result)


def test_time_includes_program_without_callbacks(ready: Cluster) -> None:
    """`%time` also waits for a program that shows its end only by its array, which is ready right afterwards."""
    result = ready.run("%time made = steps(m, 300)\nmade.is_ready()").check()
    assert {rank.text for rank in result} == {"True"}


def test_deferred_error_fails_the_cell_that_launched(ready: Cluster) -> None:
    """A deferred error fails only the cell that launched the program, on the ranks that launched it."""
    result = ready.run("if jax.process_index() == 1: made = refused(steps(m, 20))")
    assert [rank.error is not None for rank in result] == [False, True, False, False]
    assert "no such luck" in str(result[1].error)
    assert ready.state == "clean"
    assert ready.run("'next'").ok


@pytest.mark.test_all
def test_interrupted_cell_does_not_wait_for_local_work(ready: Cluster) -> None:
    """Local work that cannot be stopped goes on; the interrupted cell ends, and no later cell waits for the work."""
    # Compile before, so that the interrupt comes while the cell waits.
    ready.run("slow, quick = (steps.lower(m, count).compile() for count in (10000, 1))").check()
    result = interrupt_once_printed(ready, "made = (slow if jax.process_index() == 1 else quick)(m)\nprint('on')", "on")
    assert result[1].error is not None
    assert ready.state == "clean"
    # The next cell is not delayed, and reports only its own results.
    after = ready.run("made.is_ready()").check()
    assert after[0].text == "True"
    ready.run("made.block_until_ready(); None").check()


@pytest.mark.test_all
def test_a_cell_with_many_arrays_ends(ready: Cluster) -> None:
    """With thousands of live arrays, cells end that make no array, make some, or delete them all."""
    ready.run("many = [jax.device_put(float(i)) for i in range(3000)]").check()
    for source in ("pass", "many[-1] = steps(m, 20)", "del many[10:]", "made = steps(m, 300)"):
        ready.run(source).check()
    assert {rank.text for rank in ready.run("made.is_ready()").check()} == {"True"}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.sample(1)
def test_sigint_for_an_earlier_cell_is_ignored(fresh: Fresh, hosts: int) -> None:
    """A SIGINT names no cell: after an interrupted cell it may be late, and stops no cell; in a first cell it cannot be late."""
    cluster = fresh(hosts, 1)
    self_signal = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.1)\n'went on'"
    assert {rank.error.ename for rank in cluster.run(self_signal) if rank.error} == {"KeyboardInterrupt"}
    assert cluster.run("import time\ntime.sleep(1000)", timeout_s=0.5).how == "timeout"
    assert {rank.text for rank in cluster.run(self_signal).check()} == {"'went on'"}


def test_ctrl_c_between_submit_and_wait_interrupts_the_cell(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after a cell was sent and before the caller waits interrupts the cell, and its end is waited for."""
    event_loop = cluster._event_loop
    submit = event_loop.submit

    def submit_and_interrupt(*args: Any, **kwargs: Any) -> Any:
        submission = submit(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return submission

    with monkeypatch.context() as patched:
        patched.setattr(event_loop, "submit", submit_and_interrupt)
        result = cluster.run("import time\ntime.sleep(1000)")
    assert (result.how, result.done, cluster.state) == ("interrupted", True, "clean")
    assert cluster.run("'next'").check()[0].text == "'next'"


@pytest.mark.test_all
def test_long_loop_is_recorded_completely(fresh: Fresh) -> None:
    """A loop is sent to the notebook as one iteration and a count, but every launch is compared and recorded."""
    cluster = fresh(4, 2)
    cluster.run(LOCKSTEP).check()
    result = cluster.run("for _ in range(100): made = float(add(x)), float(top(x))\nmade").check()
    assert {rank.text for rank in result} == {"(28.0, 7.0)"}
    record = next(each for each in reversed(cluster.journal.read()[0]) if isinstance(each, CellRecord))
    assert record.seq == result.seq
    assert [(trace.ranks, trace.count) for trace in record.launches or ()] == [((0, 1, 2, 3), 200)]


@pytest.mark.parametrize(
    ("source", "undo"),
    [
        ("import asyncio\nasyncio.get_event_loop().stop()", ""),
        ("import asyncio\nasyncio.get_running_loop().stop()\nawait asyncio.sleep(0.01)", ""),
        ("import asyncio\n_ = [task.cancel() for task in asyncio.all_tasks()]", ""),
        ("import time\ntrue = time.monotonic\ntime.monotonic = lambda: 0.0", "time.monotonic = true"),
        (
            "import os\ntrue = os.getpid, os.write\nos.getpid = os.write = lambda *_: 1 / 0",
            "os.getpid, os.write = true",
        ),
    ],
)
def test_event_loop_survives_cells_that_break_it(cluster: Cluster, source: str, undo: str) -> None:
    """A cell that stops the event loop, cancels its tasks or replaces its clock ends, and the next cell runs and awaits."""
    cluster.run(source).check()
    assert [rank.stdout for rank in cluster.run("print('alive')")] == ["alive\n"] * 4
    awaited = cluster.run("import asyncio\nawait asyncio.sleep(0.001)\nprint('awaited')")
    assert [rank.stdout for rank in awaited] == ["awaited\n"] * 4
    cluster.run(undo).check()


SELF_RAISED_ENDS = {
    "a task": ("asyncio.create_task(fail(KeyboardInterrupt))\nawait asyncio.sleep(0.1)", ""),
    "a task's exit": ("asyncio.create_task(fail(SystemExit(3)))\nawait asyncio.sleep(0.1)", ""),
    "a callback": ("asyncio.get_running_loop().call_soon(throw)\nawait asyncio.sleep(0.1)", ""),
    "an awaited task": ("await asyncio.create_task(fail(KeyboardInterrupt))", "KeyboardInterrupt"),
    "the loop": ("asyncio.get_running_loop().stop()\nawait asyncio.sleep(0.1)", ""),
    "a signal": ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", "KeyboardInterrupt"),
    "a signal while it awaits": ("os.kill(os.getpid(), signal.SIGINT)\nawait asyncio.sleep(60)", "KeyboardInterrupt"),
    "the main thread interrupted": ("_thread.interrupt_main()\ntime.sleep(60)", "KeyboardInterrupt"),
    "one rank": ("if jax.process_index(): raise KeyboardInterrupt", "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("code", "raised"), SELF_RAISED_ENDS.values(), ids=SELF_RAISED_ENDS.keys())
def test_own_interrupt_or_exit_ends_no_rank(cluster: Cluster, code: str, raised: str) -> None:
    """Code that raises an interrupt or an exit, or stops the loop, is not interrupted by the user and ends no rank."""
    cluster.run(
        "import _thread, asyncio, os, signal, time\nasync def fail(error): raise error\ndef throw(): raise KeyboardInterrupt"
    ).check()
    result = cluster.run(code)
    assert {rank.error.ename for rank in result if rank.error is not None} == ({raised} if raised else set())
    assert (result.how, result.state) == ("", "clean")
    assert not [note for note in result.notes if "nterrupted" in note]
    assert {rank.outcome for rank in result} <= {"ok", "error"}
    assert {rank.text for rank in cluster.run("1 + 1")} == {"2"}
