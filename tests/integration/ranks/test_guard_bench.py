"""The bare and guarded calls of the guard's benchmark, on real ranks; no time is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from tests.bench.launches import KINDS
from tests.support.source import ROOT

SETUP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.bench import launches
from tests.bench.launches import KINDS, check_bare, find_hooks, lift, measure
hooks = find_hooks()
now = lambda: [vars(hook.owner)[hook.name] for hook in hooks]
wrapped = [hook.wrapped for hook in hooks]
"""
REMOVE_BENCHMARK = f"""
launches._kinds.clear()
for name in [name for name in sys.modules if name.partition('.')[0] == 'tests']: del sys.modules[name]
sys.path.remove({str(ROOT)!r})
"""
LEAF_COUNTS = {"a training step, 601 leaves": 13}


@pytest.fixture
def ready(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster with the benchmark imported; its modules are removed afterwards."""
    cluster.run(SETUP).check()
    yield cluster
    cluster.run(REMOVE_BENCHMARK).check()


FIRST_KIND = next(iter(KINDS))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "guard"), [*((kind, "lockstep") for kind in KINDS), (FIRST_KIND, "off"), (FIRST_KIND, "parity")]
)
@pytest.mark.test_all
def test_each_kind_is_called_bare_and_guarded(ready: Cluster, kind: str, guard: str, tmp_path: Path) -> None:
    """Both sides make the same number of calls, a bare call runs no line of mhnb, and the cluster stays clean."""
    row = (kind, LEAF_COUNTS.get(kind, 3))
    result = ready.run(f"measure({row!r}, 2, {str(tmp_path / 'took.json')!r})", guard=guard).check()
    durations = json.loads((tmp_path / "took.json").read_text())
    assert len(durations["bare"]) == len(durations["guarded"]) == 2 * KINDS[kind].often
    assert result.state == "clean"


@pytest.mark.test_all
def test_guarded_call_is_not_mistaken_for_bare(ready: Cluster) -> None:
    """The check that a call is bare finds lines of mhnb in a launch under lockstep."""
    ready.run("kind = KINDS['collective, one small argument'](1); given = kind.make()").check()
    result = ready.run("check_bare(lambda: kind.call(given))")
    assert {rank.error.ename for rank in result if rank.error} == {"RuntimeError"}
    assert all(rank.error and "the bare call is not bare: it ran" in rank.error.evalue for rank in result)


def test_lifted_hooks_are_restored(ready: Cluster) -> None:
    """JAX has no hook of mhnb while the hooks are lifted, and all of them afterwards, even if the block raised."""
    ready.run("with lift(hooks): inside = find_hooks()").check()
    assert {rank.text for rank in ready.run("len(hooks) > 5, inside, now() == wrapped").check()} == {"(True, [], True)"}
    ready.run("try:\n    with lift(hooks): 1 / 0\nexcept ZeroDivisionError: pass").check()
    assert {rank.text for rank in ready.run("now() == wrapped").check()} == {"True"}
