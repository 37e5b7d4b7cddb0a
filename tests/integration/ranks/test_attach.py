"""A kept cluster outlives its notebook, and another one takes it over: state, journal and guard with it."""

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

from mhnb.cli.cleanup import end_orphan, find_orphans
from mhnb.cli.main import main
from mhnb.cluster import manager
from mhnb.cluster.attach import list_cluster_records
from mhnb.cluster.cluster import Cluster
from mhnb.cluster.event_loop import EventLoop
from mhnb.cluster.status import StartProgress
from mhnb.core.journal import CellRecord
from mhnb.core.messages import PROTOCOL_VERSION
from mhnb.core.replay import plan_replay
from mhnb.errors import AlreadyStarted, InvalidRequest, NotClean, NotDriver, NotStarted
from tests.integration.notebook.conftest import no_cluster_in_sight
from tests.integration.ranks.conftest import every_pid, wait_gone
from tests.support.source import ROOT
from tests.system.hosts.hostnet import wait_until

OWNER = """
import os, sys
import mhnb
cluster = mhnb.start(2, 1, name="kept", keep=True)
{before}
print("ready", flush=True)
{then}
"""
SUM = "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\nprint(m.process_allgather(jnp.float32(1)).sum())"


@contextmanager
def notebook(before: str = "", then: str = "sys.stdin.read()") -> Iterator[subprocess.Popen[str]]:
    """Another notebook's process, with a kept cluster; killed at the end, and what it kept is stopped."""
    code = OWNER.format(before=before, then=then)
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
    """Take a cluster over; whatever is left of it is ended afterwards."""
    taken: list[Cluster] = []

    def take(name: str | None = "kept") -> Cluster:
        taken.append(manager.attach(name))
        return taken[-1]

    yield take
    # Also what a test that failed has left: the next ones would meet it.
    for cluster in [*taken, *(cluster for cluster in manager.all_clusters() if cluster.name == "kept")]:
        pids = every_pid(cluster)
        cluster.stop()
        assert wait_gone(pids) == []
    for berth in list_cluster_records(os.environ):
        for pid in berth.local_supervisors.values():
            os.kill(pid, signal.SIGTERM)
        assert wait_gone([*berth.local_supervisors.values()]) == []


def test_a_killed_notebooks_cluster_goes_on(attach: Callable[..., Cluster]) -> None:
    """Variables are there, cells count on, the guard guards, and the journal is the same one."""
    with notebook("cluster.run('x = 41').check(); cluster.run('1/0')") as owner:
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


def test_only_one_notebook_drives(attach: Callable[..., Cluster]) -> None:
    """The second one is told who does; when that one is gone it may."""
    with notebook() as owner:
        with pytest.raises(NotDriver, match=f"driven by the notebook with pid {owner.pid}") as refused:
            attach()
        assert refused.value.driver == str(owner.pid)
        listed = subprocess.run([sys.executable, "-m", "mhnb", "list"], capture_output=True, text=True, check=True)
        assert f"driven by the notebook with pid {owner.pid}" in listed.stdout
        owner.kill()
        owner.wait()
        assert attach().state == "clean"
        with pytest.raises(AlreadyStarted, match="drives cluster 'kept' already"):
            manager.attach("kept")


def test_a_cell_that_ran_meanwhile_is_judged(attach: Callable[..., Cluster]) -> None:
    """Its notebook was killed in it, its launches differed: nobody else could say so."""
    before = f"cluster.run({SUM!r}).check(); going = cluster.submit({_LATE!r}, guard='parity')"
    with notebook(before) as owner:
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


_LATE = """
import os, time, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ('d',))
x = jax.make_array_from_callback((2,), NamedSharding(mesh, P('d')), lambda i: np.ones(2, np.float32)[i])
while not os.path.exists(os.environ["MHNB_HOME"] + "/go"): time.sleep(0.05)
print(float(jax.jit((jnp.max, jnp.sum)[jax.process_index()])(x)))
"""


def until(go: Path, rest: str) -> str:
    """Give a cell that goes on with the rest once that file is there."""
    return f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n{rest}"


def attach_after(owner: subprocess.Popen[str], go: Path, attach: Callable[..., Cluster]) -> Cluster:
    """Kill a notebook in a cell, let the cell end, and take the cluster over."""
    owner.kill()
    owner.wait()
    go.touch()
    return attach()


def test_a_cell_that_ended_unseen_is_told_of_and_comes_back(
    attach: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is in the journal as any other: a replay without it would give other values, and nobody would know."""
    go = tmp_path / "go"
    with notebook(f"cluster.run('x = 5').check(); going = cluster.submit({until(go, 'x = 10')!r})") as owner:
        cluster = attach_after(owner, go, attach)
        assert cluster.state == "clean"
        assert "cell 2 ended after its notebook: ranks 0-1 ok; what it printed is in" in capfd.readouterr().err
        assert [rank.last_cell for rank in cluster.ranks] == ["2 ok"] * 2
        fresh = cluster.restart(replay=True)
        assert fresh.replayed is not None
        assert (fresh.replayed.plan.cells, fresh.replayed.plan.left_out) == ((1, 2), ())
        assert fresh.run("print(x)").check()[1].stdout == "10\n"
        fresh.stop()


def test_a_cell_that_ended_unseen_without_the_guard_is_split(
    attach: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """There is no record of launches to say that they are in step; and what was raised is named."""
    go = tmp_path / "go"
    cell = until(go, "import jax\nif jax.process_index(): 1/0")
    with notebook(f"going = cluster.submit({cell!r}, guard='off')") as owner:
        cluster = attach_after(owner, go, attach)
        assert cluster.state == "split"
        assert "rank 0 ok, rank 1 ZeroDivisionError" in capfd.readouterr().err
        (record,) = (each for each in cluster.journal.read()[0] if isinstance(each, CellRecord))
        assert (record.state, record.errors, record.launches) == ("split", {1: "ZeroDivisionError"}, None)


def test_a_cell_that_still_runs_is_waited_for(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A training that outlives its notebook may take hours: who comes back waits, and is told for what; giving up changes nothing."""
    monkeypatch.setattr("mhnb.cluster.generation._TAKEOVER_TIMEOUT_S", 1.0)
    reports: list[StartProgress] = []

    def give_up(report: StartProgress) -> None:
        reports.append(report)
        if report.elapsed_s > 2:
            raise KeyboardInterrupt

    go = tmp_path / "go"
    with notebook(f"going = cluster.submit({until(go, 'x = 10')!r})") as owner:
        owner.kill()
        owner.wait()
        with pytest.raises(KeyboardInterrupt):
            manager.attach("kept", give_up)
        assert all(report.is_takeover for report in reports)
        assert "ranks 0-1 have not answered for 1 s: what they ran" in capfd.readouterr().err
        go.touch()
        assert attach().run("print(x)").check()[1].stdout == "10\n"


def kill_a_rank_of(owner: subprocess.Popen[str]) -> None:
    """End a notebook that has noted the process of a rank, or of the hub, and then that one."""
    owner.kill()
    owner.wait()
    os.kill(int(Path(os.environ["MHNB_HOME"], "pid").read_text()), signal.SIGKILL)


NOTE_PID = (
    "cluster.run('x = 41').check(); print(cluster.ranks[1].pid, file=open(os.environ['MHNB_HOME'] + '/pid', 'w'))"
)


def test_a_rank_that_died_meanwhile_is_named(attach: Callable[..., Cluster]) -> None:
    """The cluster is dead as if a notebook had driven it, and what it held comes back."""
    with notebook(NOTE_PID) as owner:
        kill_a_rank_of(owner)
        cluster = attach()
        pids = every_pid(cluster)
        assert cluster.state == "dead"
        assert re.match(
            r"rank 1 \(host1.*\), before this notebook took the cluster over, was killed by SIGKILL", cluster.reason
        )
        with pytest.raises(NotClean, match="nothing was sent · %mhjax restart --replay gives fresh processes"):
            cluster.run("1")
        fresh = cluster.restart(replay=True)
        assert wait_gone(pids) == []
        assert fresh.run("print(x)").check()[1].stdout == "41\n"
        assert (fresh.options.keep, fresh.state) == (True, "clean")


def test_a_hub_that_died_meanwhile_is_named(attach: Callable[..., Cluster]) -> None:
    """Whoever reports first, the ranks or their supervisor: it is no dead end, and what the ranks held comes back."""
    noted = (
        "cluster.run('x = 41').check(); "
        "print(cluster._state_machine.registry.hub_pid, file=open(os.environ['MHNB_HOME'] + '/pid', 'w'))"
    )
    with notebook(noted) as owner:
        kill_a_rank_of(owner)
        cluster = attach()
        wait_until(lambda: cluster.state == "dead", "the cluster is known to be dead")
        assert "the hub (ipyparallel's controller" in cluster.reason
        fresh = cluster.restart(replay=True)
        assert fresh.run("print(x)").check()[1].stdout == "41\n"


def test_the_same_start_line_again_gives_fresh_ranks_where_one_died(attach: Callable[..., Cluster]) -> None:
    """Who starts wants ranks; it says what brings back what the others held."""
    with notebook(NOTE_PID) as owner:
        kill_a_rank_of(owner)
        fresh = manager.start(2, 1, name="kept", keep=True)
        assert fresh.run("print('x' in globals())").check()[0].stdout == "False\n"
        assert any("%mhjax restart --replay brings it back" in note for note in fresh.notes)


def test_the_same_start_line_again_takes_it_over(attach: Callable[..., Cluster]) -> None:
    """A notebook whose kernel was restarted runs its first cell again; another shape is refused with the ways out."""
    with notebook("cluster.run('x = 41').check()") as owner:
        owner.kill()
        owner.wait()
        with pytest.raises(AlreadyStarted, match="mhnb stop kept"):
            manager.start(3, 1, name="kept", keep=True)
        cluster = manager.start(2, 1, name="kept", keep=True)
        try:
            assert cluster.run("print(x)").check()[0].stdout == "41\n"
        finally:
            cluster.stop()


def test_ranks_of_another_version_are_told_of(attach: Callable[..., Cluster]) -> None:
    """Their messages are others: nobody takes them over, and the way out is named; a field that only they know is no defect."""
    with notebook() as owner:
        owner.kill()
        owner.wait()
        (berth,) = list_cluster_records(os.environ)
        note = berth.run_dir / "attach.json"
        ours = note.read_text()
        note.write_text(ours.replace(f'"protocol": {PROTOCOL_VERSION}', '"protocol": 1').replace("{", '{"new": 1, ', 1))
        with pytest.raises(NotStarted, match=rf"another version of mhnb.*\n.*mhnb stop kept\.{owner.pid}"):
            attach()
        with pytest.raises(AlreadyStarted, match="another version of mhnb"):
            manager.start(2, 1, name="kept", keep=True)
        note.write_text(ours)
        assert attach().run("1").ok


def test_a_start_beside_a_kept_cluster_tells_of_it(attach: Callable[..., Cluster]) -> None:
    """Without `--keep` it is another cluster of that name: who meant the kept one hears how to have it."""
    with notebook() as owner:
        beside = manager.start(1, 1, name="kept")
        assert beside.notes == ()
        beside.stop()
        owner.kill()
        owner.wait()
        beside = manager.start(1, 1, name="kept")
        try:
            assert f"%mhjax stop, then %mhjax attach kept.{owner.pid}, has that instead" in beside.notes[0]
        finally:
            beside.stop()
        assert attach(f"kept.{owner.pid}").process_count == 2


def test_what_is_said_of_kept_ones_that_nobody_drives(
    attach: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a shell and in a notebook that has none of its own; of several that have one name each is named."""
    with notebook() as first, notebook() as second:
        for owner in (first, second):
            assert main(["where", f"kept.{owner.pid}"]) == 0
            assert capsys.readouterr().out == f"kept.{owner.pid}: no cell runs, or none for longer than 2 s\n"
            owner.kill()
            owner.wait()
        names = [f"kept.{owner.pid}" for owner in (first, second)]
        assert main(["where", names[0]]) == 0
        said = f"{names[0]}: no notebook drives it, and nobody looks at the ranks; %mhjax attach {names[0]} takes it over\n"
        assert capsys.readouterr().out == said
        with no_cluster_in_sight():
            with pytest.raises(NotStarted, match="%mhjax attach kept takes over the kept one that nobody drives"):
                manager.current()
            with pytest.raises(NotStarted, match=r"'kept' here; .* runs on this machine: %mhjax attach kept takes it"):
                manager.by_name("kept")
        for name in ("kept", None):
            with pytest.raises(NotStarted, match="which one") as several:
                attach(name)
            assert all(full in str(several.value) for full in names)
        with pytest.raises(NotStarted, match="no kept cluster 'other' on this machine; there are kept"):
            attach("other")
        # Ended from a shell: one by its own name, and nothing by a name that two have.
        assert main(["stop", "kept"]) == 1
        assert "nothing was stopped, give one of these names, or --all" in capsys.readouterr().err
        assert main(["stop", names[1]]) == 0
        assert capsys.readouterr().out == f"{names[1]}: 2 ranks stopped\n"
        assert attach().state == "clean"


def test_a_notebook_takes_back_what_it_has_left(attach: Callable[..., Cluster]) -> None:
    """The same process leaves and attaches, again and again: variables, state, numbers, guard and journal are there."""
    left = manager.start(2, 1, name="kept", keep=True)
    left.run("x = 41").check()
    left.run("import jax\nif jax.process_index() == 1: 1/0", guard="off")
    assert left.state == "split"
    left.leave()
    left.leave()
    assert (left.state, left in manager.all_clusters()) == ("stopped", False)
    for refused in (lambda: left.run("1"), left.restart):
        with pytest.raises(NotStarted, match="let go of the cluster; %mhjax attach kept"):
            refused()
    cluster = attach()
    assert manager.current() is cluster
    assert (cluster.state, cluster.generation) == ("split", left.generation)
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


def test_what_was_attached_between_is_not_mixed_with_ones_own(attach: Callable[..., Cluster]) -> None:
    """The journals of this notebook and of another one number their starts each by itself; a replay has those of one past."""
    manager.start(1, 1, name="kept").restart().restart().restart().stop()
    with notebook("cluster.run('x = 1').check()") as owner:
        owner.kill()
        owner.wait()
        attach().stop()
    mine = manager.start(2, 1, name="kept")
    assert plan_replay(mine.journal.read()[0], mine.generation).steps == ()
    mine.run("x = 41").check()
    fresh = mine.restart(replay=True)
    assert fresh.run("print(x)").check()[0].stdout == "41\n"
    fresh.stop()


def test_one_that_was_left_has_its_own_past(attach: Callable[..., Cluster]) -> None:
    """Another one that ran beside it meanwhile wrote to the same journal, and had a folder of its own."""
    left = manager.start(2, 1, name="kept", keep=True)
    left.run("x = 41").check()
    left.leave()
    beside = manager.start(2, 1, name="kept")
    beside.run("x = 1").check()
    beside.stop()
    fresh = attach().restart(replay=True)
    assert len({left.generation, beside.generation, fresh.generation}) == 3
    assert fresh.run("print(x)").check()[0].stdout == "41\n"
    fresh.stop()


def test_ctrl_c_while_it_is_left_does_not_lose_it(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is gone through with: the notebook has let go, and finds it again."""
    left = manager.start(2, 1, name="kept", keep=True)
    left.run("x = 41").check()
    release = left.launched[0].release

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release()

    monkeypatch.setattr(left.launched[0], "release", press)
    with pytest.raises(KeyboardInterrupt):
        left.leave()
    cluster = attach()
    assert left.left
    assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"


def test_ctrl_c_while_it_is_taken_over_leaves_it(
    attach: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the one moment in which nobody holds the cluster yet, and its ranks could hear already."""
    left = manager.start(2, 1, name="kept", keep=True)
    left.run("x = 41").check()
    left.leave()
    start = EventLoop.start

    def press(self: EventLoop) -> None:
        start(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(EventLoop, "start", press)
        with pytest.raises(KeyboardInterrupt):
            attach()
    assert attach().run("print(x + 1)").check()[1].stdout == "42\n"


def test_a_cell_that_awaits_is_not_taken_for_ended(attach: Callable[..., Cluster]) -> None:
    """Its rank could answer in between; it is heard when the cell has ended, and takes cells then."""
    before = f"cluster.run('x = 41').check(); going = cluster.submit({_AWAITS!r})"
    with notebook(before) as owner:
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


_AWAITS = """
import asyncio, jax, os
from pathlib import Path
home = Path(os.environ["MHNB_HOME"])
(home / f"awaits{jax.process_index()}").touch()
while not (home / "alone").exists(): await asyncio.sleep(0.05)
# Another notebook may come now: a rank looks for one twice a second.
await asyncio.sleep(3)
x += 1
"""


def test_what_is_not_kept_cannot_be_left(fresh: Callable[..., Cluster]) -> None:
    """It would end: the error says so, and the cluster goes on."""
    cluster = fresh(1, 1)
    with pytest.raises(InvalidRequest, match="without --keep and would end"):
        cluster.leave()
    assert cluster.run("1").ok


def test_a_name_that_nobody_has(leftovers: None) -> None:
    """The error says what there is, and how a cluster comes to outlive its notebook."""
    with pytest.raises(NotStarted, match=r"no kept cluster 'nothing'.*--keep"):
        manager.attach("nothing")


def test_what_is_kept_under_another_home_is_nobodys_stray(attach: Callable[..., Cluster], tmp_path: Path) -> None:
    """A shell that has another MHNB_HOME, or none, does not know the cluster's record; the supervisor's own environment leads to it."""
    with notebook() as owner:
        owner.kill()
        owner.wait()
        (berth,) = list_cluster_records(os.environ)
        found = find_orphans(os.environ | {"MHNB_HOME": str(tmp_path / "elsewhere")})
        assert berth.local_supervisors[0] not in [stray.pid for stray in found]
        attach()


def test_reap_ends_only_what_was_left(attach: Callable[..., Cluster]) -> None:
    """A kept cluster is nobody's stray; one whose supervisor has lost its notebook without being told to go on is."""
    with notebook() as owner:
        owner.kill()
        owner.wait()
        (berth,) = list_cluster_records(os.environ)
        # Of all strays on this machine, where another worker may have made some.
        ours = berth.local_supervisors[0]
        assert ours not in [stray.pid for stray in find_orphans(os.environ)]
        record = berth.run_dir / "cluster.json"
        record.write_text(record.read_text().replace('"keep": true', '"keep": false'))
        (stray,) = [stray for stray in find_orphans(os.environ) if stray.pid == ours]
        assert stray.process_count >= 4
        end_orphan(stray)
        assert wait_gone([ours]) == []
        assert ours not in [stray.pid for stray in find_orphans(os.environ)]
