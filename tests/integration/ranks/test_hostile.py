"""Hostile cells on real ranks: each one ends, is reported, and does not break the next cell.

`MHNB_HOSTILE_CELLS` and `MHNB_HOSTILE_SEED` choose how many cells run and which; `make soak` runs many.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from html import unescape

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import LEFT_WAITING, RANK_STOPPED, CellResult, RankResult
from mhnb.core.ranks import parse_ranks
from mhnb.errors import NotClean, OrderMismatch, ReplayStopped
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from tests.integration.ranks.hostile import (
    FAMILIES,
    PIECES,
    PROBE,
    RIGHT_ANSWER,
    SESSION_SETUP,
    HostileCell,
    HostileStep,
    draw_hostile_cell,
    draw_hostile_step,
)
from tests.support.source import PACKAGE

CELLS = int(os.environ.get("MHNB_HOSTILE_CELLS", "30"))
STEPS = CELLS // 10
"""Steps of sessions: one takes as long as many cells, because most are interrupted, and then restarted."""
SEED = int(os.environ.get("MHNB_HOSTILE_SEED", "20261125"))
END_TIMEOUT_S = 120.0
"""Far more than any of the cells needs; a cell that has not ended by then never ends."""
ERASERS = {"clear_output", "escape sequences"}
"""Pieces that may erase output that was shown before them."""
MAX_BYTES = 4 << 20
"""Most bytes that one rank may put into a notebook with one cell."""

Fresh = Callable[..., Cluster]
SETUP = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
RANK = jax.process_index()
_rows = NamedSharding(Mesh(np.array(jax.devices()), ('x',)), PartitionSpec('x'))
_total = jax.jit(lambda a: a.sum())
"""


def test_seed_covers_every_family() -> None:
    """With the suite's seed, 1000 cells use every piece, and the first `CELLS` of them use every family."""
    rng = random.Random(SEED)  # noqa: S311  # reproducible from its seed; nothing here is secret
    cells = [draw_hostile_cell(rng, f"c{i}") for i in range(1000)]
    assert {name for cell in cells for name in cell.pieces} == {piece.name for piece in PIECES}
    assert {family for cell in cells[:CELLS] for family in cell.families} == set(FAMILIES)


@pytest.mark.timeout(3600)
@pytest.mark.test_all
def test_hostile_cells_end_and_do_not_break_the_next(fresh: Fresh, default_kill_timeout: None) -> None:
    """A hostile cell ends as its own code says, is reported on each rank, and the next cell is right."""
    rng = random.Random(SEED)  # noqa: S311  # reproducible from its seed; nothing here is secret
    faults: list[str] = []
    cluster = start_cluster(fresh)
    for index in range(CELLS):
        cell = draw_hostile_cell(rng, f"c{index}")
        found = list(try_cell(cluster, cell))
        faults += [f"seed {SEED} {cell.tag} {cell.pieces}: {fault}\n{cell.source}" for fault in found]
        if cluster.state != "clean" or found:
            cluster.stop()
            cluster = start_cluster(fresh)
    assert not faults, "\n\n".join(faults)


def start_cluster(fresh: Fresh) -> Cluster:
    """Start two ranks with the names that every cell may use."""
    cluster = fresh(2, 1)
    cluster.run(SETUP).check()
    return cluster


def run_to_end(
    cluster: Cluster, source: str, timeout_s: float | None = None, guard: str | None = None
) -> CellResult | None:
    """Run a cell; return None if it does not end, or if the cluster died before it."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(cluster.run, source, timeout_s=timeout_s, guard=guard)
        try:
            return future.result(END_TIMEOUT_S)
        except WaitTimeout:
            cluster.stop()  # ends the wait in the thread too
            return None
        except NotClean:
            return None


def try_cell(cluster: Cluster, cell: HostileCell) -> Iterator[str]:
    """Run a cell, its undo code and the next cell; yield every fault."""
    result = run_to_end(cluster, cell.source, cell.timeout_s)
    if result is None:
        yield f"did not end: {cluster.state} {cluster.reason}"
        return
    for rank in result:
        yield from check_rank(rank, cell)
    yield from check_views(result)
    died = any(rank.outcome == "died" for rank in result)
    if died != (result.state == "dead") or (not died and result.state != "clean"):
        yield f"state {result.state}: {result.notes}"
    if result.state != "clean":
        return
    if cell.undo:
        undone = run_to_end(cluster, cell.undo)
        if undone is None or not undone.ok:
            yield f"undo: {cluster.state} {cluster.reason} {undone and [rank.error for rank in undone]}"
            return
    yield from check_next_cell(cluster, cell)


def check_rank(rank: RankResult, cell: HostileCell) -> Iterator[str]:
    """Compare what a rank reports with what the cell's code does on it; yield every fault."""
    raises, ends = cell.raises[rank.rank], cell.allowed_outcomes[rank.rank]
    others_die = any("died" in other for other in cell.allowed_outcomes)
    if rank.outcome not in ends and not (others_die and rank.outcome in ("killed", "interrupted")):
        yield f"rank {rank.rank} ended {rank.outcome}, expected {ends}: {rank.error}"
    if rank.outcome == "error":
        error = rank.failure
        if error is None:
            yield f"rank {rank.rank} failed without an error"
        elif {type(error.ename), type(error.evalue)} != {str}:
            yield f"rank {rank.rank} reports what is not text: {error.ename!r}, {error.evalue!r}"
        elif raises not in ("*", error.ename):
            yield f"rank {rank.rank} reports {error.ename!r}, raised {raises!r}: {error.evalue[:300]}"
        elif f"{PACKAGE}{os.sep}" in "".join(error.traceback):
            yield f"rank {rank.rank} shows mhnb's own frames: {''.join(error.traceback)[-2000:]}"
    if rank.outcome in ("ok", "error") and f"begin {cell.tag}" not in rank.stdout and not ERASERS & set(cell.pieces):
        yield f"rank {rank.rank} lost the first line: {rank.stdout[:200]!r}"
    size = len(json.dumps([rank.outputs, rank.error and (rank.error.ename, rank.error.evalue, rank.error.traceback)]))
    if size > MAX_BYTES:
        yield f"rank {rank.rank} put {size} bytes into the notebook"


def _names_failure(drawn: str, rank: RankResult) -> bool:
    """Return whether a view names a rank's error, or, of a rank that was lost or only waited, says in words how it ended."""
    assert rank.failure is not None
    if rank.failure.ename in drawn:
        return True
    in_words = rank.failure.ename in ("RankDied", LEFT_WAITING, RANK_STOPPED, OrderMismatch.__name__)
    named = [parse_ranks(spec, 10**6) for spec in re.findall(r"\branks? (\d+(?:[,-]\d+)*)", drawn) if in_words]
    return any(rank.rank in ranks for ranks in named)


def check_views(result: CellResult) -> Iterator[str]:
    """Render the result in each view, which must name every rank's error; yield every fault."""
    ways: dict[str, Callable[[], str]] = {
        "fold": lambda: format_cell_html(result, view="fold", uid="u"),
        "tabs": lambda: format_cell_html(result, view="tabs", uid="u"),
        "grid": lambda: format_cell_html(result, view="grid", uid="u"),
        "text": lambda: format_cell_text(result),
    }
    for name, draw in ways.items():
        try:
            drawn = unescape(draw())
        except Exception as error:  # noqa: BLE001  # the error belongs in the list of faults
            yield f"the view {name} raises {error!r}"
            continue
        if not drawn and not result.is_silent:
            yield f"the view {name} is empty"
        for rank in result:
            if rank.failure is not None and rank.failure.ename and not _names_failure(drawn, rank):
                yield f"the view {name} does not name {rank.failure.ename}"


def check_next_cell(cluster: Cluster, cell: HostileCell) -> Iterator[str]:
    """Run an ordinary cell that prints, shows a value and launches a collective; yield every fault."""
    code = f"print('next {cell.tag}')\nint(_total(jax.device_put(np.arange(4, dtype=np.int32), _rows)))"
    result = run_to_end(cluster, code)
    if result is None:
        yield f"the next cell did not end: {cluster.state} {cluster.reason}"
        return
    for rank in result:
        if rank.outcome != "ok" or rank.text != "6":
            yield f"the next cell on rank {rank.rank}: {rank.outcome}, {rank.text!r}, {rank.error}"
        elif rank.stdout != f"next {cell.tag}\n":
            yield f"the next cell on rank {rank.rank} printed {rank.stdout[:300]!r}"
    if result.state != "clean":
        yield f"the next cell left the cluster {result.state}: {result.notes}"


# -- sessions


@pytest.mark.timeout(3600)
@pytest.mark.test_all
def test_hostile_sessions_give_no_wrong_number(
    fresh: Fresh, default_kill_timeout: None, default_disconnect_timeout: None
) -> None:
    """Whatever hung, raised or was interrupted before: after `accept` a cell is right or refused, and a replay restores the rest.

    No step costs a rank, and the ranks answer requests after each.
    """
    rng = random.Random(SEED)  # noqa: S311  # reproducible from its seed; nothing here is secret
    session = Session(fresh(3, rng.choice((1, 2)), name="session"), rng)
    faults = [f"seed {SEED} step {index}: {fault}" for index in range(STEPS) for fault in session.take_step()]
    session.cluster.stop()
    assert not faults, "\n\n".join(faults)


class Session:
    """A cluster on which one hostile step follows another, and the values that it should hold.

    Args:
        cluster: just started, of three ranks.
        rng: draws the steps, and what comes between them.
    """

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster, self._rng = cluster, rng
        self._kept: list[int] = []
        cluster.run(SESSION_SETUP).check()

    def take_step(self) -> Iterator[str]:
        """Take a step, and look at the cluster afterwards; yield every fault."""
        step = draw_hostile_step(self._rng)
        for fault in self._try_step(step):
            yield f"{step.name}: {fault}\n{step.source}"

    def _try_step(self, step: HostileStep) -> Iterator[str]:
        result = run_to_end(self.cluster, step.source, step.timeout_s, step.guard)
        if result is None or self.cluster.state == "dead":
            yield f"{self.cluster.state}: {self.cluster.reason}"
            yield from self._restart(replay=True)
            return
        yield from check_views(result)
        self.cluster.vars()
        was_clean = self.cluster.state == "clean"
        if not was_clean:
            self.cluster.accept()
        is_right = yield from self._probe(must_launch=was_clean)
        if not is_right:
            yield from self._restart(replay=True)
        elif self._rng.random() < 0.3:
            yield from self._restart(replay=False)
        if self.cluster.state == "clean":
            self._kept.append(len(self._kept))
            self.cluster.run(f"kept = [*kept, {self._kept[-1]}]").check()

    def _probe(self, *, must_launch: bool) -> Generator[str, None, bool]:
        result = run_to_end(self.cluster, PROBE, timeout_s=60)
        texts = {None} if result is None else {rank.text for rank in result}
        if not texts <= {RIGHT_ANSWER, None}:
            yield f"a wrong number: {texts}"
        if result is None or result.how or (must_launch and texts != {RIGHT_ANSWER}):
            yield f"the next cell: {result} {self.cluster.state} {self.cluster.reason}"
        return texts == {RIGHT_ANSWER}

    def _restart(self, *, replay: bool) -> Iterator[str]:
        """Restart, and replay then or later; yield a fault if a value is not there again."""
        try:
            self.cluster = self.cluster.restart(replay=replay)
            if not replay:
                self.cluster.run("between = RANK = None").check()
                self.cluster = self.cluster.restart(replay=True)
        except ReplayStopped as error:
            yield f"the replay stopped: {error}"
            return
        kept = {rank.stdout for rank in self.cluster.run("print(kept)").check()}
        if kept != {f"{self._kept}\n"}:
            yield f"after a replay kept is {kept}, expected {self._kept}"
        if (yield from self._probe(must_launch=True)):
            return
