"""A detachable cluster outlives its notebook, and another notebook attaches to it with its state, journal and guard."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mhnb.cli.main import main
from mhnb.cluster import manager
from mhnb.cluster.attach import list_cluster_records
from mhnb.cluster.cleanup import end_orphan, find_orphans
from mhnb.cluster.cluster import Cluster
from mhnb.cluster.event_loop import EventLoop
from mhnb.core.journal import CellRecord
from mhnb.core.messages import PROTOCOL_VERSION
from mhnb.core.replay import plan_replay
from mhnb.errors import AlreadyStarted, InvalidRequest, NotClean, NotDriver, NotStarted
from mhnb.types import StartProgress
from tests.integration.notebook.conftest import hidden_clusters
from tests.integration.ranks.conftest import list_pids, wait_for_exit
from tests.support.source import ROOT
from tests.system.hosts.hostnet import wait_until

OWNER_SCRIPT = """
import os, sys
import mhnb
from tests.support.warm_start import use_warm_supervisors
use_warm_supervisors()
cluster = mhnb.start(2, 1, name="kept", keep=True)
{before}
print("ready", flush=True)
{then}
"""
SUM = "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\nprint(m.process_allgather(jnp.float32(1)).sum())"


@contextmanager
def run_notebook(before: str = "", then: str = "sys.stdin.read()") -> Iterator[subprocess.Popen[str]]:
    """Run a process that owns a detachable cluster, as another notebook would; kill the process at the end."""
    code = OWNER_SCRIPT.format(before=before, then=then)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            yield owner
        finally:
            owner.kill()


@pytest.fixture
def attach(leftovers: None) -> Iterator[Callable[..., Cluster]]:
    """Attach to a cluster; everything that remains of it is ended afterwards."""
    attached: list[Cluster] = []

    def attach_cluster(name: str | None = "kept") -> Cluster:
        attached.append(manager.attach(name))
        return attached[-1]

    yield attach_cluster
    # Also end what a failed test has not ended, because the next tests would meet it.
    for cluster in [*attached, *(cluster for cluster in manager.all_clusters() if cluster.name == "kept")]:
        pids = list_pids(cluster)
        cluster.stop()
        assert wait_for_exit(pids) == []
    for record in list_cluster_records(os.environ):
        for pid in record.local_supervisors.values():
            os.kill(pid, signal.SIGTERM)
        assert wait_for_exit([*record.local_supervisors.values()]) == []


def test_cluster_of_killed_notebook_can_be_attached(attach: Callable[..., Cluster]) -> None:
    """A cluster whose notebook was killed keeps its variables, cell numbers, guard and journal."""
    with run_notebook("cluster.run('x = 41').check(); cluster.run('1/0')") as owner:
        owner.kill()
        owner.wait()
        cluster = attach()
        assert (cluster.state, cluster.generation, cluster.guard) == ("clean", 1, "lockstep")
        result = cluster.run("print(x + 1)").check()
        assert (result.seq, [rank.stdout for rank in result]) == (3, ["42\n", "42\n"])
        assert cluster.run(SUM).check()[1].stdout == "2.0\n"
        mismatch = cluster.run("import jax\nif jax.process_index() == 0: m.process_allgather(jnp.float32(1))")
        assert mismatch.failed[0].error is not None
        assert mismatch.failed[0].error.ename == "OrderMismatch"
        fresh = cluster.restart(replay=True)
        assert fresh.replayed is not None
        assert fresh.run("print(x)").check()[0].stdout == "41\n"
        fresh.stop()


def test_only_one_notebook_owns_a_cluster(attach: Callable[..., Cluster]) -> None:
    """A second notebook is refused with the owner's pid, and can attach once the owner has ended."""
    with run_notebook() as owner:
        with pytest.raises(NotDriver, match=f"attached to another notebook .pid {owner.pid}.") as refused:
            attach()
        assert refused.value.driver == str(owner.pid)
        listed = subprocess.run([sys.executable, "-m", "mhnb", "list"], capture_output=True, text=True, check=True)
        assert f"  pid {owner.pid} " in listed.stdout
        owner.kill()
        owner.wait()
        assert attach().state == "clean"
        with pytest.raises(AlreadyStarted, match="already attached to cluster 'kept'"):
            manager.attach("kept")


def test_cell_that_ran_while_detached_is_checked(attach: Callable[..., Cluster]) -> None:
    """Attaching taints the cluster if the launches of a cell differed after its notebook was killed."""
    before = f"cluster.run({SUM!r}).check(); going = cluster.submit({_DIFFERING_CELL!r}, guard='parity')"
    with run_notebook(before) as owner:
        owner.kill()
        owner.wait()
        Path(os.environ["MHNB_HOME"], "go").touch()
        cluster = attach()
        assert cluster.state == "tainted"
        assert "launch" in cluster.reason
        with pytest.raises(NotClean, match="tainted"):
            cluster.run("1")
        cluster.accept()
        assert cluster.run("1").seq == 3


_DIFFERING_CELL = """
import os, time, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ('d',))
x = jax.make_array_from_callback((2,), NamedSharding(mesh, P('d')), lambda i: np.ones(2, np.float32)[i])
while not os.path.exists(os.environ["MHNB_HOME"] + "/go"): time.sleep(0.05)
print(float(jax.jit((jnp.max, jnp.sum)[jax.process_index()])(x)))
"""


def make_waiting_cell(go: Path, rest: str) -> str:
    """Return a cell that runs `rest` once the file `go` exists."""
    return f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n{rest}"


def kill_owner_and_attach(owner: subprocess.Popen[str], go: Path, attach: Callable[..., Cluster]) -> Cluster:
    """Kill a notebook during a cell, let the cell end, and attach to the cluster."""
    owner.kill()
    owner.wait()
    go.touch()
    return attach()


def test_cell_that_ended_detached_is_reported_and_replayed(
    attach: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A cell that ended without its notebook is reported and is in the journal like any other.

    A replay without it would silently give other values.
    """
    go = tmp_path / "go"
    with run_notebook(
        f"cluster.run('x = 5').check(); going = cluster.submit({make_waiting_cell(go, 'x = 10')!r})"
    ) as owner:
        cluster = kill_owner_and_attach(owner, go, attach)
        assert cluster.state == "clean"
        assert (
            "cell 2 finished while no notebook was attached: ranks 0-1 ok. Its output is only in"
            in capfd.readouterr().err
        )
        assert [rank.last_cell for rank in cluster.ranks] == ["2 ok"] * 2
        fresh = cluster.restart(replay=True)
        assert fresh.replayed is not None
        assert (fresh.replayed.plan.cells, fresh.replayed.plan.left_out) == ((1, 2), ())
        assert fresh.run("print(x)").check()[1].stdout == "10\n"
        fresh.stop()


@pytest.mark.test_all
def test_unguarded_cell_that_ended_detached_gives_split(
    attach: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An unguarded cell that ended without its notebook gives `split`, and its errors are reported.

    No record of launches shows that the ranks are in sync.
    """
    go = tmp_path / "go"
    cell = make_waiting_cell(go, "import jax\nif jax.process_index(): 1/0")
    with run_notebook(f"going = cluster.submit({cell!r}, guard='off')") as owner:
        cluster = kill_owner_and_attach(owner, go, attach)
        assert cluster.state == "split"
        assert "rank 0 ok, rank 1 ZeroDivisionError" in capfd.readouterr().err
        (record,) = (each for each in cluster.journal.read()[0] if isinstance(each, CellRecord))
        assert (record.state, record.errors, record.launches) == ("split", {1: "ZeroDivisionError"}, None)


def test_attach_waits_for_running_cell(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Attaching waits for a running cell and reports what it waits for, and giving up changes nothing.

    A training that outlives its notebook may take hours.
    """
    monkeypatch.setattr("mhnb.cluster.generation._TAKEOVER_TIMEOUT_S", 1.0)
    reports: list[StartProgress] = []

    def give_up(report: StartProgress) -> None:
        reports.append(report)
        if report.elapsed_s > 2:
            raise KeyboardInterrupt

    go = tmp_path / "go"
    with run_notebook(f"going = cluster.submit({make_waiting_cell(go, 'x = 10')!r})") as owner:
        owner.kill()
        owner.wait()
        with pytest.raises(KeyboardInterrupt):
            manager.attach("kept", give_up)
        assert all(report.is_takeover for report in reports)
        assert "ranks 0-1 have not answered for 1 s. They may still be running a cell" in capfd.readouterr().err
        go.touch()
        assert attach().run("print(x)").check()[1].stdout == "10\n"


def kill_owner_and_noted_process(owner: subprocess.Popen[str]) -> None:
    """Kill a notebook that wrote the pid of a rank or of the hub to a file, and then kill that process."""
    owner.kill()
    owner.wait()
    os.kill(int(Path(os.environ["MHNB_HOME"], "pid").read_text()), signal.SIGKILL)


NOTE_PID = (
    "cluster.run('x = 41').check(); print(cluster.ranks[1].pid, file=open(os.environ['MHNB_HOME'] + '/pid', 'w'))"
)


def test_rank_that_died_while_detached_is_reported(attach: Callable[..., Cluster]) -> None:
    """A rank that died without a notebook makes the cluster dead, and a replay restores its variables."""
    with run_notebook(NOTE_PID) as owner:
        kill_owner_and_noted_process(owner)
        cluster = attach()
        pids = list_pids(cluster)
        assert cluster.state == "dead"
        assert re.match(r"rank 1 \(host1.*\), before this notebook attached, was killed by SIGKILL", cluster.reason)
        with pytest.raises(NotClean, match="was not run, because the cluster is dead"):
            cluster.run("1")
        fresh = cluster.restart(replay=True)
        assert wait_for_exit(pids) == []
        assert fresh.run("print(x)").check()[1].stdout == "41\n"
        assert (fresh.options.keep, fresh.state) == (True, "clean")


@pytest.mark.test_all
def test_hub_that_died_while_detached_is_reported(attach: Callable[..., Cluster]) -> None:
    """A hub that died without a notebook makes the cluster dead, and a replay restores the variables.

    This holds whether the ranks or their supervisor report first.
    """
    hub_pid_code = (
        "cluster.run('x = 41').check(); "
        "print(cluster._state_machine.registry.hub_pid, file=open(os.environ['MHNB_HOME'] + '/pid', 'w'))"
    )
    with run_notebook(hub_pid_code) as owner:
        kill_owner_and_noted_process(owner)
        cluster = attach()
        wait_until(lambda: cluster.state == "dead", "the cluster is known to be dead")
        assert "the hub (ipyparallel's controller" in cluster.reason
        fresh = cluster.restart(replay=True)
        assert fresh.run("print(x)").check()[1].stdout == "41\n"


@pytest.mark.test_all
def test_same_start_after_a_death_starts_new_ranks(attach: Callable[..., Cluster]) -> None:
    """The same `start` after a rank died starts new ranks, and a note says how to restore the variables."""
    with run_notebook(NOTE_PID) as owner:
        kill_owner_and_noted_process(owner)
        fresh = manager.start(2, 1, name="kept", keep=True)
        assert fresh.run("print('x' in globals())").check()[0].stdout == "False\n"
        assert any("run `%mhjax restart --replay`" in note for note in fresh.notes)


def test_same_start_attaches_to_detached_cluster(attach: Callable[..., Cluster]) -> None:
    """The same `start` attaches to the detached cluster, and another spec is refused with a fix.

    A notebook whose kernel was restarted runs its first cell again.
    """
    with run_notebook("cluster.run('x = 41').check()") as owner:
        owner.kill()
        owner.wait()
        with pytest.raises(AlreadyStarted, match="mhnb stop kept"):
            manager.start(3, 1, name="kept", keep=True)
        cluster = manager.start(2, 1, name="kept", keep=True)
        try:
            assert cluster.run("print(x)").check()[0].stdout == "41\n"
        finally:
            cluster.stop()


def test_cluster_of_another_version_is_refused(attach: Callable[..., Cluster]) -> None:
    """A cluster of another version is refused with a fix, because its messages differ; an unknown field is accepted."""
    with run_notebook() as owner:
        owner.kill()
        owner.wait()
        (record,) = list_cluster_records(os.environ)
        record_path = record.run_dir / "attach.json"
        original_text = record_path.read_text()
        record_path.write_text(
            original_text.replace(f'"protocol": {PROTOCOL_VERSION}', '"protocol": 1').replace("{", '{"new": 1, ', 1)
        )
        with pytest.raises(NotStarted, match=rf"another version of mhnb.*\n.*\n.*mhnb stop kept\.{owner.pid}"):
            attach()
        with pytest.raises(AlreadyStarted, match="another version of mhnb"):
            manager.start(2, 1, name="kept", keep=True)
        record_path.write_text(original_text)
        assert attach().run("1").ok


@pytest.mark.test_all
def test_start_mentions_detached_cluster_of_same_name(attach: Callable[..., Cluster]) -> None:
    """A `start` without `--keep` starts another cluster, and a note says how to attach to the detached one of that name."""
    with run_notebook() as owner:
        other = manager.start(1, 1, name="kept")
        assert other.notes == ()
        other.stop()
        owner.kill()
        owner.wait()
        other = manager.start(1, 1, name="kept")
        try:
            assert f"To use it: %mhjax stop, then %mhjax attach kept.{owner.pid}. " in other.notes[0]
        finally:
            other.stop()
        assert attach(f"kept.{owner.pid}").process_count == 2


@pytest.mark.test_all
def test_messages_say_how_to_attach_to_detached_clusters(
    attach: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell and a notebook without a cluster learn how to attach to a detached cluster.

    If several clusters have one name, each is listed with its full name.
    """
    with run_notebook() as first, run_notebook() as second:
        for owner in (first, second):
            assert main(["where", f"kept.{owner.pid}"]) == 0
            assert capsys.readouterr().out == "no cell is running\n"
            owner.kill()
            owner.wait()
        names = [f"kept.{owner.pid}" for owner in (first, second)]
        assert main(["where", names[0]]) == 1
        expected = f"mhnb where: kept: no notebook is attached\n  Fix: %mhjax attach {names[0]}\n"
        assert capsys.readouterr().err.startswith(expected)
        with hidden_clusters():
            with pytest.raises(NotStarted, match=r"Fix: %mhjax attach kept \(a detached cluster on this machine\)"):
                manager.current()
            with pytest.raises(NotStarted, match=r"'kept' is running on this machine.*\n  Fix: %mhjax attach kept"):
                manager.by_name("kept")
        for name in ("kept", None):
            with pytest.raises(NotStarted, match=r"^2 clusters ") as refusal:
                attach(name)
            assert all(full in str(refusal.value) for full in names)
        with pytest.raises(NotStarted, match="unknown cluster 'other'; expected kept"):
            attach("other")
        # A shell ends a cluster by its full name, and ends nothing by a name that two clusters have.
        assert main(["stop", "kept"]) == 1
        assert "nothing was stopped, because 2 clusters have that name" in capsys.readouterr().err
        assert main(["stop", names[1]]) == 0
        assert capsys.readouterr().out == f"{names[1]}: 2 ranks stopped\n"
        assert attach().state == "clean"


def test_attaching_does_not_initialise_the_devices(attach: Callable[..., Cluster]) -> None:
    """Ranks that have connected to each other, but not used JAX, are as they were: a cell can still configure JAX."""
    detached = manager.start(2, None, name="kept", keep=True, init=False)
    detached.run("import jax\njax.distributed.initialize()").check()
    detached.leave()
    configured = attach().run("jax.config.update('jax_num_cpu_devices', 3)\nprint(jax.device_count())").check()
    assert [rank.stdout for rank in configured] == ["6\n", "6\n"]


@pytest.mark.test_all
def test_notebook_can_attach_again_after_detaching(attach: Callable[..., Cluster]) -> None:
    """A process can detach and attach repeatedly, and keeps variables, state, cell numbers, guard and journal."""
    detached = manager.start(2, 1, name="kept", keep=True)
    detached.run("x = 41").check()
    detached.run("import jax\nif jax.process_index() == 1: 1/0", guard="off")
    assert detached.state == "split"
    detached.leave()
    detached.leave()
    assert (detached.state, detached in manager.all_clusters()) == ("stopped", False)
    for refused in (lambda: detached.run("1"), detached.restart):
        with pytest.raises(NotStarted, match=r"has detached from the cluster\n  Fix: %mhjax attach kept"):
            refused()
    cluster = attach()
    assert manager.current() is cluster
    assert (cluster.state, cluster.generation) == ("split", detached.generation)
    cluster.accept()
    cluster.leave()
    cluster = attach()
    assert cluster.state == "clean"
    assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
    assert cluster.run(SUM).check()[0].stdout == "2.0\n"
    mismatch = cluster.run("if jax.process_index() == 0: m.process_allgather(jnp.float32(1))")
    assert mismatch.failed[0].error is not None
    assert mismatch.failed[0].error.ename == "OrderMismatch"
    fresh = cluster.restart(replay=True)
    assert fresh.run("print(x)").check()[0].stdout == "41\n"
    fresh.stop()


@pytest.mark.test_all
def test_replay_excludes_cells_of_other_notebooks(attach: Callable[..., Cluster]) -> None:
    """A replay uses the cells of one history only, because each notebook's journal numbers its starts separately."""
    manager.start(1, 1, name="kept").restart().restart().restart().stop()
    with run_notebook("cluster.run('x = 1').check()") as owner:
        owner.kill()
        owner.wait()
        attach().stop()
    own = manager.start(2, 1, name="kept")
    assert plan_replay(own.journal.read()[0], own.generation).steps == ()
    own.run("x = 41").check()
    fresh = own.restart(replay=True)
    assert fresh.run("print(x)").check()[0].stdout == "41\n"
    fresh.stop()


@pytest.mark.test_all
def test_detached_cluster_keeps_its_own_history(attach: Callable[..., Cluster]) -> None:
    """A detached cluster replays its own cells, although another cluster of that name wrote to the same journal.

    The other cluster ran at the same time and had its own folder.
    """
    detached = manager.start(2, 1, name="kept", keep=True)
    detached.run("x = 41").check()
    detached.leave()
    other = manager.start(2, 1, name="kept")
    other.run("x = 1").check()
    other.stop()
    fresh = attach().restart(replay=True)
    assert len({detached.generation, other.generation, fresh.generation}) == 3
    assert fresh.run("print(x)").check()[0].stdout == "41\n"
    fresh.stop()


@pytest.mark.test_all
def test_ctrl_c_during_detach_does_not_lose_cluster(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a notebook detaches does not stop the detaching, and the notebook can attach again."""
    detached = manager.start(2, 1, name="kept", keep=True)
    detached.run("x = 41").check()
    release = detached.launched[0].release

    def interrupt_and_release() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release()

    monkeypatch.setattr(detached.launched[0], "release", interrupt_and_release)
    with pytest.raises(KeyboardInterrupt):
        detached.leave()
    cluster = attach()
    assert detached.left
    assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"


def test_ctrl_c_during_attach_leaves_cluster_detached(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during an attach leaves the cluster detached.

    It comes when no notebook owns the cluster yet, but its ranks could already receive messages.
    """
    detached = manager.start(2, 1, name="kept", keep=True)
    detached.run("x = 41").check()
    detached.leave()
    start = EventLoop.start

    def start_and_interrupt(self: EventLoop) -> None:
        start(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(EventLoop, "start", start_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            attach()
    assert attach().run("print(x + 1)").check()[1].stdout == "42\n"


@pytest.mark.test_all
def test_awaiting_cell_is_not_mistaken_for_ended(attach: Callable[..., Cluster]) -> None:
    """A rank whose cell awaits counts as busy until the cell has ended, although it could answer in between."""
    before = f"cluster.run('x = 41').check(); going = cluster.submit({_AWAITING_CELL!r})"
    with run_notebook(before) as owner:
        home = Path(os.environ["MHNB_HOME"])
        while not all((home / f"awaits{rank}").exists() for rank in range(2)):
            assert owner.poll() is None
            time.sleep(0.01)
        owner.kill()
        owner.wait()
        (home / "alone").touch()
        cluster = attach()
        assert cluster.state == "clean"
        assert cluster.run("print(x)").check()[1].stdout == "42\n"


_AWAITING_CELL = """
import asyncio, jax, os
from pathlib import Path
home = Path(os.environ["MHNB_HOME"])
(home / f"awaits{jax.process_index()}").touch()
while not (home / "alone").exists(): await asyncio.sleep(0.05)
# Another notebook may come now: a rank looks for one twice a second.
await asyncio.sleep(3)
x += 1
"""


def test_cluster_without_keep_cannot_be_detached(fresh: Callable[..., Cluster]) -> None:
    """Detaching without `--keep` is refused because it would end the cluster, and the cluster goes on."""
    cluster = fresh(1, 1)
    with pytest.raises(InvalidRequest, match="started without --keep, so it stops"):
        cluster.leave()
    assert cluster.run("1").ok


def test_unknown_cluster_name_is_refused(leftovers: None) -> None:
    """The error for an unknown name says which clusters exist, and how a cluster can outlive its notebook."""
    with pytest.raises(NotStarted, match=r"unknown cluster 'nothing'.*--keep"):
        manager.attach("nothing")


@pytest.mark.test_all
def test_cluster_with_another_home_is_not_orphan(attach: Callable[..., Cluster], tmp_path: Path) -> None:
    """A detached cluster is not an orphan for a shell with another MHNB_HOME or without one.

    That shell does not know the cluster's record, but the supervisor's own environment leads to it.
    """
    with run_notebook() as owner:
        owner.kill()
        owner.wait()
        (record,) = list_cluster_records(os.environ)
        found = find_orphans(os.environ | {"MHNB_HOME": str(tmp_path / "elsewhere")})
        assert record.local_supervisors[0] not in [orphan.pid for orphan in found]
        attach()


def test_cleanup_ends_only_orphans(attach: Callable[..., Cluster]) -> None:
    """A detached cluster is not an orphan; a supervisor that has lost its notebook without `keep` is one."""
    with run_notebook() as owner:
        owner.kill()
        owner.wait()
        (cluster_record,) = list_cluster_records(os.environ)
        # Check only this cluster, because another test worker may have left orphans on this machine.
        supervisor_pid = cluster_record.local_supervisors[0]
        assert supervisor_pid not in [orphan.pid for orphan in find_orphans(os.environ)]
        owner_path = cluster_record.run_dir / "cluster.json"
        owner_path.write_text(owner_path.read_text().replace('"keep": true', '"keep": false'))
        (stray,) = [stray for stray in find_orphans(os.environ) if stray.pid == supervisor_pid]
        assert stray.process_count >= 4
        end_orphan(stray)
        assert wait_for_exit([supervisor_pid]) == []
        assert supervisor_pid not in [stray.pid for stray in find_orphans(os.environ)]
