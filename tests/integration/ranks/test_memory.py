"""What fills the memory, on real ranks: the report, and the card of a failed allocation on one rank and on all."""

from __future__ import annotations

import json
import re

import pytest

from mhnb.cli.main import main
from mhnb.cluster.cluster import Cluster
from mhnb.core.memory import NO_STATISTICS, ArrayRow, FailedAllocations, MemoryReport, group_failures, suggest_sharding
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import describe_ranks
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.print_text import print_text
from mhnb.view.reports.memory import build_memory

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank, mesh = jax.process_index(), jax.make_mesh((jax.process_count(), 2), ("data", "model"))
w = jax.device_put(np.ones((512, 64), np.float32), NamedSharding(mesh, P()))
params = {"w": w, "b": jax.jit(lambda a: a + 1, out_shardings=NamedSharding(mesh, P("data", "model")))(w)}
own = jnp.ones(3000)
if rank == 2:
    extra = jnp.ones((400, 400))
"""
TOO_LARGE = """
def grow(nbytes):
    held = jnp.ones((200, 200))
    return jnp.zeros(nbytes, jnp.uint8)

{condition}grow(1 << 46)
"""
HOSTILE = """
import enum
ran = []
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Odd:
    __class__ = property(lambda self: ran.append(1))
class View(np.ndarray):
    base = property(lambda self: self)
    nbytes = property(lambda self: 1 << 40)
data = [{'t': 'x'} for _ in range(30_000)] + list(range(300_000))
zz, zc = jnp.ones(3001), {'w': jnp.ones(3002)}
keys = {(0, 1): jnp.ones(3003), (0, 2): jnp.ones(3004)}
d = {Color.RED: jnp.ones(3005), Color.BLUE: jnp.ones(3006)}
odd, view = Odd(), np.zeros(1 << 20).view(View)
"""
LAUNCHES = """
class Lazy: pass
jax.tree_util.register_pytree_node(Lazy, lambda lazy: ((params['b'].sum(),), None), lambda _, parts: Lazy())
lazy = Lazy()
"""
"""A class that launches a program of all ranks when JAX flattens it."""
CLEAN = "for name in ('w', 'params', 'own', 'extra'): globals().pop(name, None)"


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a replicated array, a sharded one, one on each rank, and one more on rank 2."""
    cluster.run(SETUP).check()
    return cluster


def rows_of(report: MemoryReport) -> dict[str, ArrayRow]:
    """Return the arrays by their first names; unnamed ones are left out."""
    return {row.array.names[0]: row for row in report.arrays if row.array.names}


def test_report_has_names_sizes_and_lines(ready: Cluster) -> None:
    """A replicated array, a sharded one, aliases, what made them, and the rank that has an array more."""
    seq = ready.run("pass").check().seq - 1
    report = ready.memory()
    rows = rows_of(report)
    w, b, own, extra = rows["w"], rows["params['b']"], rows["own"], rows["extra"]
    nbytes = 4 * 512 * 64
    assert (w.array.names, w.array.spec, w.differs) == (("w", "params['w']"), "P()", "")
    assert (w.array.nbytes, w.array.nbytes_per_device, w.array.waste) == (nbytes, nbytes, 7 * nbytes)
    assert (b.array.spec, b.array.mesh) == ("P('data', 'model')", (("data", 4), ("model", 2)))
    assert (b.array.nbytes, b.array.nbytes_per_device, b.array.waste) == (nbytes, nbytes // 8, 0)
    assert (b.array.program, b.array.place) == ("jit(<lambda>)", f"cell {seq}, line 5")
    assert (own.array.scope, own.array.place, own.array.is_assignment) == ("local", f"cell {seq}, line 6", True)
    assert (own.groups[0][0], own.differs, extra.differs) == ((0, 1, 2, 3), "", "only on rank 2")
    assert [row.nbytes_per_device for row in report.arrays] == sorted(
        (row.nbytes_per_device for row in report.arrays), reverse=True
    )


def test_devices_are_summed_and_compared(ready: Cluster) -> None:
    """On CPU the live shards are summed, each buffer once, and the report says so; the rank with more is an outlier."""
    used = {rank: [device.used for device in memory.devices] for rank, memory in ready.memory().ranks.items()}
    ready.run("shards, again = w.addressable_shards, [s.data for s in params['b'].addressable_shards]\n"
              # Much beside what earlier tests may have left on all ranks.
              "if rank == 2: more = jnp.ones((1 << 20, 16))").check()  # fmt: skip
    report = ready.memory()
    ready.run("del shards, again; globals().pop('more', None)").check()
    now = {rank: [device.used for device in memory.devices] for rank, memory in report.ranks.items()}
    assert now == used | {2: [used[2][0] + (64 << 20), used[2][1]]}
    assert [(row.ranks, row.ordinals) for row in report.devices if row.is_outlier and row.ordinals] == [((2,), (0,))]
    assert report.notes[0] == NO_STATISTICS
    assert all((memory.host_nbytes or 0) > 50 << 20 for memory in report.ranks.values())
    assert print_text(build_memory(report)).splitlines()[1] == NO_STATISTICS


def test_report_of_some_ranks(ready: Cluster) -> None:
    """Only the named ranks are asked."""
    report = ready.memory(ranks="1,3")
    assert list(report.ranks) == [1, 3]
    assert "extra" not in rows_of(report)


def test_suggested_line_frees_what_it_says(ready: Cluster) -> None:
    """The line runs as it is printed, and takes the replicas away also where the array has another name."""
    before = ready.memory()
    advice = suggest_sharding([rows_of(before)["w"].array])
    assert advice is not None
    assert advice.keepers == ()
    ready.run(advice.code).check()
    ready.run("import gc; gc.collect()").check()
    after = ready.memory()
    assert rows_of(after)["w"].array.names == ("w", "params['w']")
    used = [report.ranks[0].devices[0].used for report in (before, after)]
    assert used[0] - used[1] == advice.saved


def test_names_are_found_beside_large_and_hostile_values(ready: Cluster) -> None:
    """One large list does not use up the search, several arrays of one name are all there, and no user's code is run."""
    ready.run(HOSTILE).check()
    report = ready.memory()
    rows = rows_of(report)
    assert {"zz", "zc['w']", "keys[(0, 1)]", "keys[(0, 2)]"} <= rows.keys()
    assert sum(row.array.names[:1] == ("d[<Color>]",) for row in report.arrays) == 2
    assert any("only the first 10,000 values of data were searched" in note for note in report.notes)
    ready.run("assert not ran; del data, zz, zc, keys, d, odd, view").check()


def newest_launches(cluster: Cluster) -> list[int]:
    """Return the number of each rank's newest proposal or launch; a full recording does not count all of them."""
    flights = cluster.flight().flights
    return [max(event.number for event in flight.events if event.kind in ("proposal", "launch")) for flight in flights]


def test_report_launches_nothing(ready: Cluster) -> None:
    """No launch of several ranks is recorded for it, and the ranks stay in sync."""
    ready.run(LAUNCHES).check()
    before = newest_launches(ready)
    memory = ready.memory().ranks[0]
    assert newest_launches(ready) == before
    (problem,) = memory.problems
    assert problem.startswith("lazy could not be searched for arrays: InvalidRequest: ")
    ready.run("del lazy; float(params['b'].sum())").check()
    assert all(now > then for now, then in zip(newest_launches(ready), before, strict=True))


def cards_of(result: CellResult) -> list[str]:
    """Return the lines of the text that begin a card."""
    return [line.strip() for line in format_cell_text(result).splitlines() if "when the allocation failed" in line]


def test_failed_allocation_of_one_rank_shows_its_memory(ready: Cluster) -> None:
    """The card has what was asked for, the local array of the failed function, and what could be sharded."""
    result = ready.run(TOO_LARGE.format(condition="if rank == 1: "))
    found = result.find(FailedAllocations) or FailedAllocations()
    assert list(found) == [1]
    allocation = found[1]
    assert (allocation.requested, allocation.is_host, allocation.problem) == (1 << 46, False, "")
    assert [array.names for array in allocation.memory.arrays if array.shape == (200, 200)] == [()]
    text = format_cell_text(result)
    assert cards_of(result) == ["device memory when the allocation failed · 64.0 TiB requested"]
    assert "%mhjax memory" in text
    assert "w = params['w'] = jax.device_put(w, NamedSharding(mesh, P('data')))" in text, "with the names of the cell"
    assert result.state == "clean"
    assert "f32[200,200]" in format_cell_html(result)


def test_failed_allocation_of_all_ranks_is_one_card(ready: Cluster) -> None:
    """Equal reports are grouped; the rank that holds a large array more has a card of its own."""
    # As large as the largest, because small ones beside it do not tell ranks apart, and earlier tests may have left some.
    largest = max(row.nbytes_per_device for row in ready.memory().arrays)
    ready.run(f"if rank == 2: more = jnp.ones({largest // 4 + 1})").check()
    result = ready.run(TOO_LARGE.format(condition=""))
    ready.run("globals().pop('more', None)").check()
    allocations = result.find(FailedAllocations) or FailedAllocations()
    assert sorted(allocations) == [0, 1, 2, 3]
    groups = [group.ranks for group in group_failures(allocations)]
    # Rank 1 may still hold what an earlier test left there.
    assert any({0, 3} <= set(ranks) and 2 not in ranks for ranks in groups), groups
    assert cards_of(result) == [
        f"device memory when the allocation failed on {describe_ranks(ranks)} · 64.0 TiB requested" for ranks in groups
    ]


def test_error_that_an_allocation_caused_has_the_card(ready: Cluster) -> None:
    """The failed allocation may be its cause; NumPy's counts as one of the host. Other errors have no card."""
    caused = "try: np.zeros(1 << 50, np.uint8)\nexcept MemoryError as error: raise ValueError('no batch') from error"
    found = ready.run(caused).find(FailedAllocations) or FailedAllocations()
    assert (found[0].requested, found[0].is_host) == (1 << 50, True)
    assert ready.run("raise ValueError('no')").find(FailedAllocations) is None


def test_report_that_fails_changes_nothing(ready: Cluster) -> None:
    """If the report fails, the card is one line; the cell's error and the cluster's state are those of the allocation."""
    broken = "from mhnb.rank import memory\nkept = memory._visit_namespace\nmemory._visit_namespace = None"
    ready.run(broken).check()
    result = ready.run("jnp.zeros(1 << 46, jnp.uint8)")
    ready.run("memory._visit_namespace = kept; del memory, kept").check()
    assert {r.error.ename for r in result.ranks if r.error} == {"JaxRuntimeError"}
    assert result.state == "clean"
    assert "the arrays in memory could not be listed: TypeError" in format_cell_text(result)


def test_collected_cell_is_cleaned_up(ready: Cluster) -> None:
    """A name that was deleted is no longer in the report."""
    ready.run(CLEAN).check()
    assert not {"w", "own", "extra"} & rows_of(ready.memory()).keys()


def test_shell_prints_the_report_between_cells(ready: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb memory` asks the notebook's process; while a cell runs it is refused."""
    assert main(["memory", ready.name, "--top", "1"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"(?m)^shared · memory · ranks 0-3 · \d+ arrays$", text)
    assert re.search(r"(?m)^\d+ more arrays, ", text)
    assert main(["memory", ready.name, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in values["ranks"]] == [0, 1, 2, 3]
    assert any(array["names"] == ["w", "params['w']"] for array in values["ranks"][0]["arrays"])
    running = ready.submit("import threading; stop = threading.Event(); stop.wait()")
    assert main(["memory", ready.name]) == 1
    assert "is running, and ranks report their memory only between cells" in capsys.readouterr().err
    ready.interrupt()
    running.wait(None)
    assert main(["memory", ready.name, "--top", "0"]) != 0
    assert "--top 0: expected how many arrays to show" in capsys.readouterr().err
