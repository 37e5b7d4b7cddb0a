"""Clusters in a notebook from start to stop: restart, replay, auto mode, and loading and unloading of the extension."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mhnb.cli.main import main
from mhnb.cluster import manager
from mhnb.magics import lifecycle
from mhnb.types import DeviceRef
from tests.integration.notebook.conftest import Session, hidden_clusters
from tests.integration.ranks.conftest import list_pids, wait_for_exit

COMMANDS_THAT_NEED_A_CLUSTER = ("interrupt", "accept", "vars", "pull x")


def assert_all_name_start(idle: Session) -> None:
    """Check that without a cluster every command says in one line how to start one."""
    assert idle.run("%mhjax list").out == "mhjax · no cluster is running\n  Fix: %mhjax start\n"
    cell = idle.try_("%%mhjax\n1")
    assert type(cell.error).__name__ == "NotStarted"
    assert "%mhjax start" in cell.text
    assert "Traceback" not in cell.text
    assert idle.run("%mhjax stop").out == "mhjax · this notebook has no running cluster; nothing to stop\n"
    for verb in COMMANDS_THAT_NEED_A_CLUSTER:
        assert "%mhjax start" in idle.expect_usage_error(f"%mhjax {verb}")


@pytest.fixture
def fresh_session(leftovers: None, idle: Session) -> Iterator[Session]:
    """A session whose shell has no cluster. Clusters that the test starts are stopped at its end."""
    with hidden_clusters():
        yield idle
        lifecycle.stop_all()


def test_cluster_lifecycle(fresh_session: Session) -> None:
    """Before start, after start, restart and stop the commands report what is running, and no process remains."""
    assert_all_name_start(fresh_session)
    for line in ("status", "where", "auto on"):
        # They only report, so that no cluster is an answer, and not an error.
        assert "no cluster is running\n  Fix: %mhjax start" in fresh_session.run(f"%mhjax {line}").out
    assert "mhjax · 2 ranks × 1 CPU device on this machine" in fresh_session.run("%mhjax start -n 2 --devices 1").out
    first = manager.current()
    pids = list_pids(first)
    shown = fresh_session.shell.execution_count
    fresh_session.run("%%mhjax\nold = 1")
    output = fresh_session.run("%mhjax restart").out
    assert "ready in" in output
    assert "To restore them, run `%mhjax restart --replay`" in output
    assert "To restore them" not in fresh_session.run("%mhjax start -n 2 --devices 1").out
    second = manager.current()
    assert (second.generation, second.state) == (first.generation + 1, "clean")
    hint = f"→ In [{shown}] set `old` before the restart. To get it back: %mhjax restart --replay\n"
    assert hint in fresh_session.try_("%%mhjax\nold").out
    pids += list_pids(second)
    assert fresh_session.run("%mhjax stop").out == "mhjax · default: 2 ranks stopped\n"
    assert wait_for_exit(pids) == []
    assert {rank.state for rank in second.ranks} == {"stopped"}
    assert "alive" not in fresh_session.run("%mhjax status").out
    assert_all_name_start(fresh_session)


@pytest.mark.cold_start
def test_restart_copies_the_variables_of_the_notebook(
    fresh_session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable that the notebook set after the start is named where a rank lacks it or JAX missed it; a restart copies it."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    fresh_session.run("%mhjax start -n 1 --devices 1")
    monkeypatch.setenv("MHNB_TEST_TOKEN", "the-secret")
    failed = fresh_session.try_('%%mhjax\nimport os\ntoken = os.environ["MHNB_TEST_TOKEN"]')
    assert "→ MHNB_TEST_TOKEN is set in the notebook but not on the ranks" in failed.out
    assert 'os.environ["MHNB_TEST_TOKEN"] = ... in a %%mhjax cell' in failed.out
    assert "%mhjax restart --replay" in failed.out
    assert "the-secret" not in failed.text
    for other in ('os.environ["MHNB_TEST_OTHER"]', '{}["MHNB_TEST_TOKEN"]'):
        assert "is set in the notebook" not in fresh_session.try_(f"%%mhjax\n{other}").text
    flags = f"--xla_dump_to={tmp_path}"
    set_flags = f"%%mhjax\nos.environ['XLA_FLAGS'] = {flags!r}"
    late = "XLA_FLAGS was changed after JAX had read it"
    assert fresh_session.run(set_flags).out.count(late) == 1
    assert late not in fresh_session.run(set_flags).out
    monkeypatch.setenv("XLA_FLAGS", flags)
    late_here = "XLA_FLAGS was changed in the notebook after the ranks had started"
    assert late_here in fresh_session.run("%%mhjax\n1").out
    assert late_here not in fresh_session.run("%%mhjax\n1").out
    replayed = fresh_session.run("%mhjax restart --replay").text
    assert re.search(r"In \[\d+\] raised KeyError on rank 0 before, and finished", replayed), replayed
    assert "XLA_FLAGS" not in fresh_session.run(f"{set_flags}\nassert token == 'the-secret'").out


def test_stop_leaves_detached_cluster_running(fresh_session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """`%mhjax stop NAME` leaves a detached cluster running and names the command that attaches to it."""
    fresh_session.run("%mhjax start -n 1 --devices 1 --keep --name left")
    pids = list_pids(manager.current())
    manager.current().leave()
    try:
        output = fresh_session.run("%mhjax stop left").out
        assert output == "mhjax · left: this notebook has detached from the cluster\n  Fix: %mhjax attach left\n"
        ending = "nothing to stop; %mhjax list shows other clusters on this machine\n"
        assert fresh_session.run("%mhjax stop").out.endswith(ending)
        detached_line = "left  1 rank  on 1 host x 1 device  detached: %mhjax attach left\n"
        assert fresh_session.run("%mhjax list").out == detached_line
        assert main(["where", "left"]) == 1
        assert "no notebook is attached" in capsys.readouterr().err
        assert "ready in" in fresh_session.run("%mhjax attach left").out
        assert fresh_session.run("%mhjax stop left").out == "mhjax · left: 1 rank stopped\n"
        assert fresh_session.run("%mhjax stop left").out == "mhjax · left: already stopped\n"
    finally:
        # If the test has failed, nothing else would stop the cluster.
        main(["stop", "left"])
    assert wait_for_exit(pids) == []


def test_detach_leaves_the_ranks_running(fresh_session: Session) -> None:
    """`%mhjax detach` leaves the ranks running, and `attach` has their variables; without `--keep` it is refused."""
    fresh_session.run("%mhjax start 1x1 --name short")
    assert "started without --keep" in fresh_session.expect_usage_error("%mhjax detach")
    fresh_session.run("%mhjax start 1x1 --persist --name long")
    fresh_session.run("%%mhjax\nx = 41")
    try:
        output = fresh_session.run("%mhjax detach long").out
        assert output == "mhjax · long: detached; the ranks keep running\n  to attach again: %mhjax attach long\n"
        assert fresh_session.run("%mhjax status").out.startswith("long · detached · generation 1 ·")
        assert "attach long" in fresh_session.run("%mhjax detach long").out
        fresh_session.run("%mhjax attach long")
        assert "42" in fresh_session.run("%mhjax eval x + 1").out
    finally:
        main(["stop", "long"])


def test_cluster_ends_with_its_block(fresh_session: Session) -> None:
    """`with mhnb.start() as cluster:` stops the ranks at its end, also after an exception."""
    for name in ("block", "failing-block"):
        with suppress(ZeroDivisionError), manager.start(1, 1, name=name) as cluster:
            pids = list_pids(cluster)
            assert cluster.run("1").ok
            1 / (name == "block")
        assert cluster.state == "stopped"
        assert wait_for_exit(pids) == []


def test_kept_cluster_is_detached_at_the_end_of_its_block(fresh_session: Session) -> None:
    """A cluster that was started with `keep` outlives its block."""
    with manager.start(1, 1, name="kept-block", keep=True) as cluster:
        pids = list_pids(cluster)
    try:
        assert cluster.left
        assert "mhjax attach kept-block" in fresh_session.run("%mhjax list").out
    finally:
        main(["stop", "kept-block"])
    assert wait_for_exit(pids) == []


def test_settings_shape_a_bare_start(fresh_session: Session) -> None:
    """A start that names no shape has the one of `%config Mhjax.shape`, and then uses that cluster."""
    fresh_session.run("%config Mhjax.shape = '1x1'")
    try:
        assert "1 rank × 1 CPU device" in fresh_session.run("%mhjax start").out
        fresh_session.run("%config Mhjax.shape = '2x1'")
        assert "already running" in fresh_session.run("%mhjax start").out
    finally:
        fresh_session.run("%config Mhjax.shape = ''")


def test_replay_summary(fresh_session: Session) -> None:
    """A replay shows the start's summary, then one line about the cells that ran again and those left out."""
    output = fresh_session.run("%mhjax start -n 2 --devices 1 --standby").out
    assert "2 standby ranks starting in the background" in output
    first = fresh_session.shell.execution_count
    fresh_session.run("%%mhjax\nimport os\nx = 1\nran = False\nprint('pid', os.getpid())")
    fresh_session.run("here = 7\n%mhjax push here")
    fresh_session.try_("%%mhjax --guard off\nimport jax\nassert not jax.process_index()")
    fresh_session.run("%mhjax accept")
    fresh_session.run("%%mhjax\nx += here")
    output = fresh_session.run("%mhjax restart --replay").out
    assert "ready in" in output
    assert f"mhjax · replayed In [{first},{first + 4}] and 1 push · " in output
    assert output.endswith(f"\n  left out · In [{first + 2}]: split, then accepted\n")
    # A replayed cell keeps its number, and its result takes the place of the earlier one.
    assert str(manager.current().ranks[1].pid) in fresh_session.run(f"%mhjax panel In [{first}]").out
    fresh_session.run("%mhjax panel off")
    assert "  8\n" in fresh_session.run("%%mhjax\nx").out
    output = fresh_session.run(f"%mhjax restart --replay --to {first}").out
    assert f"replayed In [{first}]" in output
    assert "1 push" not in output
    assert "  1\n" in fresh_session.run("%%mhjax\nx").out


def test_stopped_replay_is_a_short_error(fresh_session: Session, tmp_path: Path) -> None:
    """A replay that stops raises one short error of mhnb without frames, and the earlier cells have run."""
    once = tmp_path / "once"
    once.touch()
    fresh_session.run("%mhjax start -n 2 --devices 1")
    fresh_session.run("%%mhjax\nx = 1")
    fresh_session.run(f"%%mhjax\nfile = open({str(once)!r})")
    once.unlink()
    outcome = fresh_session.try_("%mhjax restart --replay")
    assert type(outcome.error).__name__ == "ReplayStopped"
    assert "mhjax · replay stopped\n" in outcome.out
    assert "ranks 0-1: before it finished, now it raised FileNotFoundError" in outcome.text
    assert "Traceback" not in outcome.text
    assert "  1\n" in fresh_session.run("%%mhjax\nx").out


def test_repeated_start_selects_cluster(fresh_session: Session) -> None:
    """A start of a running cluster selects it for the cells below, so that Run All works with two clusters."""
    for count, name in ((1, "small"), (2, "large")):
        fresh_session.run(f"%mhjax start -n {count} --devices 1 --name {name}")
    assert "ranks 0-1" in fresh_session.run("%%mhjax\n'here'").out
    assert fresh_session.run("%mhjax start -n 1 --devices 1 --name small").out.startswith("mhjax · small: 1 host")
    assert "rank 0" in fresh_session.run("%%mhjax\n'here'").out
    outcome = fresh_session.try_("%mhjax attach large")
    assert "this notebook is already attached to cluster 'large'" in outcome.text
    listed = fresh_session.run("%mhjax list").out.splitlines()
    assert [(line.split()[0], line.endswith("current")) for line in listed] == [("small", True), ("large", False)]


def test_interrupted_restart_names_replay(fresh_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupted restart no rank runs, but the journal remains: the error and the next cell name `--replay`."""
    fresh_session.run("%mhjax start -n 1 --devices 1")
    fresh_session.run("%%mhjax\nx = 41")

    def raise_interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manager, "Cluster", raise_interrupt)
        outcome = fresh_session.try_("%mhjax restart")
    assert "was interrupted; no ranks are running\n  Fix: %mhjax restart --replay" in outcome.text
    refused = fresh_session.try_("%%mhjax\nx")
    assert "Fix: %mhjax restart --replay (restores the variables of the last cluster)" in refused.text
    fresh_session.run("%mhjax restart --replay")
    assert "  41\n" in fresh_session.run("%%mhjax\nx").out


def test_auto_cell_without_cluster_names_auto_off(fresh_session: Session) -> None:
    """If the cluster was stopped in auto mode, the error of a plain cell names `%mhjax auto off` and `%%local`, which work."""
    fresh_session.run("%mhjax start -n 1 --devices 1")
    fresh_session.run("%mhjax auto on")
    fresh_session.run("%mhjax stop")
    outcome = fresh_session.try_("here = 1")
    assert type(outcome.error).__name__ == "NotStarted"
    assert "%mhjax start" in outcome.text
    assert "%mhjax auto off" in outcome.text
    assert "%%local" in outcome.text
    assert "Traceback" not in outcome.text
    assert "auto off" not in fresh_session.try_("%%mhjax\n1").text
    fresh_session.run("%%local\nhere = 2")
    fresh_session.run("%mhjax auto off")
    assert fresh_session.run("here").value == 2


def test_auto_cell_on_dead_cluster_names_auto_off(fresh_session: Session) -> None:
    """The same on a dead cluster: the error names `%mhjax auto off` as well as `%mhjax restart`."""
    fresh_session.run("%mhjax start -n 1 --devices 1")
    fresh_session.run("%mhjax auto on")
    died = fresh_session.try_("import os; os._exit(3)")
    assert died.error is not None
    outcome = fresh_session.try_("1 + 1")
    assert getattr(outcome.error, "state", None) == "dead"
    assert "%mhjax restart" in outcome.text
    assert "%mhjax auto off" in outcome.text
    fresh_session.run("%mhjax auto off")
    assert fresh_session.run("1 + 1").value == 2


def test_second_load_changes_nothing_and_unload_restores(fresh_session: Session) -> None:
    """A second load installs no hook twice, unload restores the shell, and another load brings the magics back."""
    shell = fresh_session.shell
    hooks = (list(shell.input_transformers_cleanup), list(shell.Completer.custom_matchers))
    fresh_session.run("%reload_ext mhnb\n%load_ext mhnb")
    assert (len(shell.input_transformers_cleanup), len(shell.Completer.custom_matchers)) == tuple(map(len, hooks))
    fresh_session.run("%unload_ext mhnb")
    assert not shell.Completer.custom_matchers
    assert "not found" in fresh_session.try_("%mhjax status").text
    assert fresh_session.try_("unknown_name").text.count("NameError") == 2
    fresh_session.run("%load_ext mhnb")
    assert "no cluster" in fresh_session.run("%mhjax list").out


@pytest.mark.parametrize("hosts", [2, 4])
def test_no_init_lets_a_cell_initialise_jax(fresh_session: Session, hosts: int) -> None:
    """With `--no-init` a cell calls `jax.distributed.initialize()` without arguments, as in every guide, and without warnings.

    From then on the devices are known.
    """
    output = fresh_session.run(f"%mhjax start -n {hosts} --devices 2 --no-init").out
    assert f"{hosts} ranks × 2 CPU devices" in output
    assert "jax.distributed.initialize()" in output
    cluster = manager.current()
    assert cluster.devices == ()
    assert "JAX is not initialised" in fresh_session.run("%mhjax status").out
    output = fresh_session.run("%%mhjax\nimport jax\njax.distributed.initialize()\njax.device_count()").out
    assert output.splitlines()[1:] == [f"  {2 * hosts}"]
    assert cluster.devices == tuple(DeviceRef(rank, ordinal) for rank in range(hosts) for ordinal in range(2))
    assert "JAX is not initialised" not in fresh_session.run("%mhjax status").out
    assert "nothing to do" in fresh_session.run("%%mhjax\njax.distributed.initialize()").out
    fresh_session.run(SUM)
    assert fresh_session.run("%mhjax pull total").out.startswith("total · float32[]")
    assert fresh_session.run("float(total)").value == 2 * hosts


SUM = """%%mhjax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), ("all",))
ones = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=NamedSharding(mesh, P("all")))()
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(ones)"""


def test_start_runs_the_profile_once(fresh_session: Session, tmp_path: Path) -> None:
    """`%mhjax start` runs the Python of a profile once, and once again for a cluster that runs already."""
    runs = tmp_path / "runs"
    (tmp_path / "ipcluster_config.py").write_text(f"with open({str(runs)!r}, 'a') as file:\n    file.write('x')\n")
    assert "ready in" in fresh_session.run(f"%mhjax start --profile {tmp_path} -n 2 --devices 1").out
    assert runs.read_text() == "x"
    assert "already running" in fresh_session.run(f"%mhjax start --profile {tmp_path} -n 2 --devices 1").out
    assert runs.read_text() == "xx"
