"""Metrics on real ranks: what cells log, on which ranks, before the arrays are computed, after an error, and over a restart."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.metrics import MetricPoint
from mhnb.core.output.results import CellResult
from mhnb.system.waiting import wait_until
from mhnb.view.cell.text import format_cell_text

SETUP = """
import asyncio, threading, time
import jax, jax.numpy as jnp, mhnb, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()), ('x',))
rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
x = jax.make_array_from_callback((8,), rows, lambda i: np.arange(8, dtype=np.float32)[i])
@partial(jax.jit, out_shardings=whole)
def total(a, step): return a.sum() + step
@jax.jit
def slow(a):
    return jax.lax.fori_loop(0, 300, lambda _, m: jnp.tanh(m @ m), jnp.full((200, 200), a)).sum()
float(total(x, 0.0))
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a global array and programs."""
    cluster.run(SETUP).check()
    return cluster


def values_of(result: CellResult, name: str, rank: int) -> list[tuple[float, float]]:
    """Return the steps and values that a rank logged."""
    return [(point.step, point.value) for point in result.metrics.select(name=name, rank=rank)]


def test_every_rank_logs(ready: Cluster) -> None:
    """Global arrays, which no rank can address as a whole, Python's numbers and functions: each rank has all points, in order."""
    result = ready.run("""
def report(step, loss):
    mhnb.log(step, loss=loss, rank_number=rank)
for step in range(20):
    report(step, total(x, float(step)))
""").check()
    assert result.metrics.names == ("loss", "rank_number")
    for rank in range(4):
        assert values_of(result, "loss", rank) == [(step, 28.0 + step) for step in range(20)]
        assert values_of(result, "rank_number", rank) == [(step, rank) for step in range(20)]
    text = format_cell_text(result)
    assert "all over 20 steps, ranks 0-3" in text
    assert "0 to 3 at the end" in text


@pytest.mark.test_all
def test_arrays_are_not_waited_for(ready: Cluster) -> None:
    """The calls return before the programs have run, and the values come with the end of the cell, which has waited for these."""
    result = ready.run("""
y, not_ready = slow(0.5), 0
for step in range(5):
    y = slow(y / 1000)
    not_ready += not y.is_ready()
    mhnb.log(step, slow=y)
print(not_ready)
""").check()
    assert any(int(rank.stdout) for rank in result)
    assert all(len(values_of(result, "slow", rank)) == 5 for rank in range(4))
    assert result.metrics.all_notes == ()


@pytest.mark.parametrize("guard", ["lockstep", "parity", "off"])
def test_one_rank_may_log_alone(ready: Cluster, guard: str) -> None:
    """Logging launches nothing, so a rank that logs what it has computed alone, or all have, is not out of step."""
    result = ready.run(
        """
loss, own = total(x, 1.0), jnp.float32(rank) * 2
if rank == 0:
    mhnb.log(1, loss=loss, own=own)
float(total(x, 2.0))
""",
        guard=guard,
    ).check()
    assert (result.state, result.notes) == ("clean", ())
    assert {(point.rank, point.name, point.value) for point in result.metrics} == {(0, "loss", 29.0), (0, "own", 0.0)}


def test_metric_that_should_agree(ready: Cluster) -> None:
    """The first step that differs, the ranks with their values, and a step that ranks lack, are notes; the cell succeeds."""
    result = ready.run("""
for step in range(10 if rank < 2 else 9):
    mhnb.log(step, rate=0.1 if step < 5 or rank != 3 else 0.2, same=True)
    mhnb.log(step, not_a_number=float("nan"), same=True)
""").check()
    assert result.metrics.all_notes == (
        "rate differs at step 5 (4 steps differ): ranks 0-2 0.1 · rank 3 0.2",
        "rate: ranks 2-3 did not log step 9",
        "not_a_number: ranks 2-3 did not log step 9",
    )
    assert result.state == "clean"


def test_async_cell_and_threads(ready: Cluster) -> None:
    """Code that awaits, and threads that it starts, log into their cell."""
    result = ready.run("""
async def report(name):
    for step in range(3):
        await asyncio.sleep(0)
        mhnb.log(step, **{name: step})
await asyncio.gather(report("a"), report("b"))
thread = threading.Thread(target=lambda: mhnb.log(7, c=1))
thread.start(); thread.join()
""").check()
    assert sorted(result.metrics.names) == ["a", "b", "c"]
    assert len(result.metrics) == 4 * 7


def test_points_before_an_error_are_kept(ready: Cluster) -> None:
    """A rank that raised keeps what it has logged, and a bad value is an error of the cell with its line."""
    result = ready.run("mhnb.log(1, a=2.0)\nmhnb.log(2, a=x)")
    assert all(rank.outcome == "error" for rank in result)
    assert all(values_of(result, "a", rank) == [(1, 2.0)] for rank in range(4))
    assert result[0].error is not None
    assert (result[0].error.ename, result[0].error.line) == ("InvalidRequest", 2)
    assert "a has shape (8,)" in result[0].error.evalue


def test_point_after_the_end_belongs_to_its_cell(ready: Cluster) -> None:
    """A thread that logs later adds to the cell that started it."""

    def found() -> list[MetricPoint]:
        return [point for point in ready.metrics if point.name == "late"]

    event = "import threading; go = threading.Event()"
    ready.run(event).check()
    result = ready.run(
        "threading.Thread(target=lambda: (go.wait(), mhnb.log(9, late=rank)), daemon=True).start()"
    ).check()
    assert not result.metrics
    ready.run("go.set()").check()
    assert wait_until(lambda: len(found()) == 4, 60.0, 0.05)
    assert [point.cell for point in found()] == [result.seq] * 4


def test_points_arrive_while_the_cell_runs(ready: Cluster) -> None:
    """A snapshot of a running cell has what was logged so far."""
    seen: list[int] = []
    ready.run(
        "for step in range(12):\n    mhnb.log(step, live=step)\n    time.sleep(0.05)",
        on_snapshot=lambda result: seen.append(len(result.metrics)),
    ).check()
    assert any(0 < count < 48 for count in seen)


def test_a_loop_does_not_flood_the_notebook(ready: Cluster) -> None:
    """Of very many points the first ones, some of the others and the last are kept, and the rest is counted."""
    result = ready.run("for step in range(50_000): mhnb.log(step, many=step)").check()
    kept = values_of(result, "many", 0)
    assert kept[:4096] == [(float(step), float(step)) for step in range(4096)]
    assert kept[-1] == (49_999.0, 49_999.0)
    assert len(result.metrics) + result.metrics.omitted_count == 4 * 50_000
    assert len(kept) < 25_000
    assert "points were left out" in format_cell_text(result)


@pytest.mark.test_all
def test_shell_prints_and_writes_the_points(ready: Cluster, tmp_path: Path) -> None:
    """`mhnb metrics NAME` has a line for each metric, and `--csv` writes what `cluster.metrics` has; no file stays behind."""
    ready.run("mhnb.log(1, of_the_shell=rank, another=1)").check()
    command = [sys.executable, "-m", "mhnb", "metrics", ready.name]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert re.search(r"of_the_shell +1   median at step 1, ranks 0-3; 0 to 3\n", printed)
    path = tmp_path / "all.csv"
    done = subprocess.run([*command, "--csv", str(path)], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == f"wrote {path}: {len(ready.metrics)} points of {len(ready.metrics.names)} metrics\n"
    assert path.read_text() == ready.metrics.to_csv()
    assert not list(ready.log_dir.parent.glob("answer*"))
    failed = subprocess.run(
        [*command, "--csv", f"{tmp_path}/no/a.csv"], capture_output=True, text=True, check=False, timeout=100
    )
    assert failed.returncode == 1
    assert "expected a file that can be written" in failed.stderr


def test_restart_keeps_points_and_a_replay_replaces_them(fresh: Callable[..., Cluster]) -> None:
    """Points of cells that are not run again keep their generation; `cluster.metrics` writes all of them."""
    cluster = fresh(2, 1, name="logged")
    cluster.run("import mhnb, jax").check()
    cluster.run("mhnb.log(1, a=jax.process_index())").check()
    cluster.run("mhnb.log(1, b=1)").check()
    with cluster.restart(replay=True, to=2) as again:
        rows = list(csv.DictReader(io.StringIO(again.metrics.to_csv() or "")))
        assert {(row["generation"], row["cell"], row["name"]) for row in rows} == {("1", "3", "b"), ("2", "2", "a")}
        again.run("mhnb.log(2, b=2)").check()
        assert [point.generation for point in again.metrics.select(cell=4)] == [2, 2]
