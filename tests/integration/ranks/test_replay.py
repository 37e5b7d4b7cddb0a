"""Restart with a replay on real ranks: what is restored, what is left out, where it stops; and the journal after a kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mhnb
from mhnb.cluster import journal, manager, replay
from mhnb.cluster.cluster import Cluster
from mhnb.core.journal import CellRecord, parse_records
from mhnb.core.replay import ReplayStep
from mhnb.errors import InvalidRequest, NameMissing, ReplayStopped
from mhnb.types import StartProgress
from tests.support.source import ROOT

Fresh = Callable[..., Cluster]

SETUP = """import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
values = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))"""


@pytest.fixture
def begin(fresh: Fresh) -> Iterator[Fresh]:
    """Start a cluster of two ranks; the clusters that replace it are stopped at the end."""
    names: list[str] = []

    def start(hosts: int = 2, devices: int = 1, **options: Any) -> Cluster:
        cluster = fresh(hosts, devices, **options)
        names.append(cluster.name)
        return cluster

    yield start
    for name in names:
        mhnb.cluster.manager.by_name(name).stop()


def cells_of(cluster: Cluster) -> list[CellRecord]:
    """Return the journal's records of this generation's cells."""
    records, faults = cluster.journal.read()
    assert not faults
    return [r for r in records if isinstance(r, CellRecord) and r.generation == cluster.generation]


def interrupt_in_cell(cluster: Cluster, folder: Path) -> None:
    """Run a loop and interrupt it once it runs on every rank."""
    source = f"import pathlib, time\npathlib.Path({str(folder)!r}, str(jax.process_index())).touch()\nwhile True: time.sleep(0.01)"
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(cluster.run(source)))
    thread.start()
    arrived = threading.Event()
    while not arrived.wait(0.02) and len(list(folder.iterdir())) < cluster.process_count:
        assert thread.is_alive()
    cluster.interrupt()
    thread.join(100)
    assert result[0].how == "interrupted"


def test_replay_restores_everything(begin: Fresh, tmp_path: Path) -> None:
    """A replay restores variables, pushed values, a global array, cells of some ranks, and errors that must be raised again.

    The interrupted cell is left out.
    """
    cluster = begin()
    cluster.run(SETUP).check()
    cluster.push(batch=np.arange(6).reshape(2, 3), rate=0.5)
    assert not cluster.run("total = float(jax.jit(jnp.sum)(values))\nraise KeyError('alike')").ok
    interrupt_in_cell(cluster, tmp_path)
    cluster.run("only = 'here'", ranks=[1]).check()
    assert not cluster.run("if jax.process_index(): raise ValueError('one of us')\nrest = batch.sum() * rate").ok
    cluster.push(ranks=[0], batch="replaced")
    before = cells_of(cluster)

    after = cluster.restart(replay=True)
    assert after.replayed is not None
    assert (after.replayed.cells, after.replayed.pushes) == ((1, 2, 4, 5), 2)
    assert list(map(str, after.replayed.left_out)) == ["cell 3: interrupted"]
    assert [(r.seq, r.outcomes, r.launches) for r in cells_of(after)] == [
        (r.seq, r.outcomes, r.launches) for r in before if r.seq != 3
    ]
    assert any(record.launches for record in before)
    result = after.run("total, str(batch)[:4], rate, 'only' in dir(), 'rest' in dir()")
    assert (result.seq, result[0].text, result[1].text) == (
        6,
        "(28.0, 'repl', 0.5, False, True)",
        "(28.0, '[[0 ', 0.5, True, False)",
    )


@pytest.mark.test_all
def test_second_replay_runs_no_cell_twice(begin: Fresh) -> None:
    """A second replay runs no cell twice: cells keep their numbers, new cells follow, and a counter ran once per generation.

    So it is after a restart without a replay: the cells before it come back, then those after it.
    """
    cluster = begin()
    cluster.run("count = 1").check()
    cluster.run("count += 1").check()
    cluster.push(extra=5)
    second = cluster.restart(replay=True)
    second.run("count += extra").check()
    third = second.restart(replay=True)
    assert [record.seq for record in cells_of(third)] == [1, 2, 3]
    assert third.run("count")[1].text == "7"
    plain = third.restart()
    assert plain.run("'count' in dir()")[0].text == "False"
    last = plain.restart(replay=True)
    assert last.replayed is not None
    assert (last.replayed.cells, last.replayed.pushes) == ((1, 2, 3, 4, 5), 1)
    assert last.run("count")[1].text == "7"


@pytest.mark.test_all
def test_time_goes_on_in_restart_and_replay(begin: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user sees that time passes while the ranks before end, while others start, and while a cell runs again.

    All of it is told in the caller's thread, and the time of the restart never goes back.
    """
    cluster = begin(1)
    cluster.run("import time; time.sleep(2.5)").check()
    end = Cluster._end

    def end_slowly(ending: Cluster) -> None:
        time.sleep(0.7)
        end(ending)

    monkeypatch.setattr(Cluster, "_end", end_slowly)
    told: list[StartProgress] = []
    after = manager.restart(cluster, told.append)
    monkeypatch.undo()
    waits = [progress for progress in told if "have ended" in progress.status]
    assert len(waits) >= 2
    assert {len(progress.ranks) for progress in told} == {1}
    assert [progress.elapsed_s for progress in told] == sorted(progress.elapsed_s for progress in told)
    assert told[-1].ready
    threads: list[threading.Thread] = []
    replay.replay(after, on_wait=lambda: threads.append(threading.current_thread()))
    assert len(threads) >= 2
    assert set(threads) == {threading.current_thread()}


def test_to_replays_up_to_a_cell(begin: Fresh) -> None:
    """`to` replays no later cell.

    A missing cell number is refused before anything is stopped, and so is `to` without `replay`.
    """
    cluster = begin()
    for number in (1, 2, 3):
        cluster.run(f"x = {number}").check()
    wrong: list[dict[str, Any]] = [{"replay": True, "to": 9}, {"to": 2}]
    for bad in wrong:
        with pytest.raises(InvalidRequest, match="--to"):
            cluster.restart(**bad)
    assert cluster.state == "clean"
    steps: list[str] = []
    after = cluster.restart()
    replay.replay(after, 2, lambda step: steps.append(f"{step.what} {step.done}/{len(step.plan.steps)}"))
    assert steps == ["cell 1 0/2", "cell 2 1/2"]
    result = after.run("x")
    assert (result.seq, result[0].text) == (4, "2")
    after.run("x = 7").check()
    # Called on an earlier cluster object, it replays the cells of the cluster that runs now.
    assert cluster.restart(replay=True, to=5).run("x")[0].text == "7"


COUNTER = """import pathlib
file = pathlib.Path(FOLDER, str(jax.process_index()))
ran = int(file.read_text()) if file.exists() else 0
file.write_text(str(ran + 1))"""


def test_another_outcome_stops_the_replay(begin: Fresh, tmp_path: Path) -> None:
    """A cell with another outcome stops the replay, and the cluster goes on.

    The error names the cell, the rank, both outcomes and what was not run. An older state is one command away.
    """
    cluster = begin()
    cluster.run(SETUP).check()
    cluster.run("x = 1").check()
    cluster.run(
        COUNTER.replace("FOLDER", repr(str(tmp_path))) + "\nif ran and jax.process_index(): raise OSError('once only')"
    ).check()
    cluster.run("x = 2").check()
    with pytest.raises(ReplayStopped) as stopped:
        cluster.restart(replay=True)
    assert str(stopped.value).splitlines() == [
        "replay stopped: cell 3 behaved differently from before",
        "  rank 1: before it finished, now it raised OSError",
        "  now OSError: once only",
        (
            "  cells 1-2 gave the same result as before; cell 4 was not run · the cluster is clean:"
            " continue from here by hand, or %mhjax restart --replay --to 2"
        ),
    ]
    after = mhnb.current()
    assert (after.generation, after.state) == (cluster.generation + 1, "clean")
    assert after.run("x")[0].text == "1"
    # A replay up to the cell before it, and a new version of the cell: from now on, a replay runs this one instead.
    before = after.restart(replay=True, to=2)
    before.run("x = 3").check()
    again = before.restart(replay=True).replayed
    assert again is not None
    assert again.cells == (1, 2, 6)


@pytest.mark.test_all
def test_cell_that_finishes_now_is_listed(begin: Fresh, tmp_path: Path) -> None:
    """A cell that raised before and finishes now is listed, and the replay goes on; from then on it has to finish.

    A rank that then waited in vain for the others may go on, too.
    """
    flag = tmp_path / "cured"
    cluster = begin()
    cluster.run(SETUP).check()
    source = f"import os\nif jax.process_index(): assert os.path.exists({str(flag)!r})\ntotal = float(jax.jit(jnp.sum)(values))"
    assert {rank.error.ename for rank in cluster.run(source) if rank.error} == {"OrderMismatch", "AssertionError"}
    cluster.run("z = 5").check()
    flag.touch()
    after = cluster.restart(replay=True)
    assert after.replayed is not None
    assert after.replayed.cells == (1, 2, 3)
    assert after.replayed.notes == (
        "cell 2 raised AssertionError and OrderMismatch on ranks 0-1 before, and finished there this time",
    )
    assert after.run("total, z")[0].text == "(28.0, 5)"
    flag.unlink()
    with pytest.raises(ReplayStopped, match="before it finished, now it raised AssertionError"):
        after.restart(replay=True)


def test_other_launches_stop_the_replay(begin: Fresh, tmp_path: Path) -> None:
    """A cell that launches another program stops the replay: every rank finishes, but its value would differ."""
    cluster = begin()
    cluster.run(SETUP + "\nadd, top = jax.jit(jnp.sum), jax.jit(jnp.max)").check()
    cluster.run(COUNTER.replace("FOLDER", repr(str(tmp_path))) + "\nf = top if ran else add\ny = f(values)").check()
    with pytest.raises(ReplayStopped, match=r"ranks 0-1: launch 1 was jit\(sum\) .*line 6, now jit\(max\) .*line 6"):
        cluster.restart(replay=True)
    assert mhnb.current().run("float(y)")[0].text == "7.0"


def test_stopped_replay_can_start_again(begin: Fresh, tmp_path: Path) -> None:
    """A replay that stopped can start again: once the cause is fixed outside, all cells run.

    A partial replay does not replace the journal of what the user had.
    """
    flag = tmp_path / "data"
    flag.write_text("here")
    cluster = begin()
    for source in ("x = 1", f"data = open({str(flag)!r}).read()", "x = 3"):
        cluster.run(source).check()
    flag.unlink()
    with pytest.raises(ReplayStopped, match="cell 3 was not run"):
        cluster.restart(replay=True)
    flag.write_text("here")
    after = mhnb.current().restart(replay=True)
    assert after.run("x, data")[0].text == "(3, 'here')"


def test_push_too_large_for_the_journal_is_reported_twice(
    begin: Fresh, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that the journal did not keep is reported when it is made, and in the list of what a replay left out.

    A cell that needs it stops the replay.
    """
    monkeypatch.setattr(journal, "PUSH_NBYTES", 1000)
    cluster = begin()
    cluster.push(big=np.zeros(1000))
    assert "push big: it has 7.8 KiB, and the journal stores at most" in capfd.readouterr().err
    cluster.run("big.sum()").check()
    stop = r"(?s)now NameError.*push big set `big`, but a replay leaves it out \(it has 7\.8.*left out · push big: it has 7\.8 KiB"
    with pytest.raises(ReplayStopped, match=stop):
        cluster.restart(replay=True)


def test_accepted_split_cell_is_not_replayed(begin: Fresh) -> None:
    """A cell that ended as `split` is left out even if it was accepted.

    The journal and the list contain the accept; later cells run again.
    """
    cluster = begin()
    cluster.run("import jax").check()
    assert cluster.run("assert not jax.process_index()", guard="off").state == "split"
    cluster.accept()
    cluster.run("x = 1").check()
    after = cluster.restart(replay=True)
    assert list(map(str, after.replayed.left_out)) == ["cell 2: split, then accepted"]  # type: ignore[union-attr]
    assert after.run("x")[0].text == "1"


def test_missing_name_is_traced_to_the_cell_left_out(begin: Fresh) -> None:
    """The error about a name that only a left-out cell set names that cell, because the list of left-out cells has no names."""
    cluster = begin()
    cluster.run("import jax").check()
    cluster.run("import time as clock\nassert not jax.process_index()", guard="off")
    cluster.accept()
    cluster.run("clock").check()
    pattern = r"now NameError: name 'clock' is not defined\n  cell 2 set `clock`, but a replay leaves it out \(split, then accepted\)\. "
    with pytest.raises(ReplayStopped, match=pattern):
        cluster.restart(replay=True)


def test_name_from_before_a_restart_is_explained(begin: Fresh) -> None:
    """The error of a cell, of a pull and of a check says which cell had set the name, and the line to paste brings it back."""
    cluster = begin()
    cluster.run("x = 41").check()
    plain = cluster.restart()
    hint = "cell 1 set `x` before the restart. To get it back: %mhjax restart --replay"
    with pytest.raises(NameMissing, match=f"does not exist on ranks 0-1(?s:.*)  {hint}"):
        plain.pull("x")
    with pytest.raises(NameMissing, match=f"does not exist on ranks 0-1(?s:.*)  {hint}"):
        plain.check("x")
    assert {rank.error.hint for rank in plain.run("y = x + 1") if rank.error} == {hint}
    after = plain.restart(replay=True)
    assert after.replayed is not None
    assert after.replayed.notes == ("cell 2 raised NameError on ranks 0-1 before, and finished there this time",)
    assert after.pull("y") == 42


def test_dead_cluster_is_restored(begin: Fresh) -> None:
    """A dead cluster is restored without the cell that killed it, and the note names the command and its cost."""
    cluster = begin()
    cluster.run("x = 1").check()
    dead = cluster.run(
        "import os, signal, time\nif not os.path.exists('/nowhere'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert "%mhjax restart --replay (1 cell, about " in dead.notes[0]
    after = cluster.restart(replay=True)
    assert str(after.replayed.left_out[0]).startswith("cell 2: rank")  # type: ignore[union-attr]
    assert after.run("x")[1].text == "1"


@pytest.mark.parametrize("hosts", [2, 1])
@pytest.mark.sample(1)
def test_start_after_a_death_names_the_replay(begin: Fresh, hosts: int) -> None:
    """A start after a death names the replay: its processes are new, but the earlier cells are not lost.

    With another number of ranks the cells could not be run again.
    """
    cluster = begin()
    assert cluster.process_count == 2
    assert cluster.notes == ()
    cluster.run("x = 1").check()
    cluster.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    fresh = mhnb.start(hosts, 1, name=cluster.name)
    notes = " ".join(fresh.notes)
    assert ("%mhjax restart --replay" in notes) == (hosts == 2)
    if hosts == 2:
        assert fresh.restart(replay=True).run("x")[0].text == "1"


def test_ctrl_c_interrupts_a_replay(begin: Fresh, tmp_path: Path) -> None:
    """Ctrl-C interrupts the replayed cell, the error says so, and the next replay starts from the first cell."""
    cluster = begin()
    flag = tmp_path / "go"
    flag.touch()
    cluster.run("x = 1").check()
    cluster.run(f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\nx = 2").check()
    flag.unlink()
    after = cluster.restart()

    def interrupt_cell_2(step: ReplayStep) -> None:
        if step.what == "cell 2":
            # As the stop button does it, and as soon as that cell runs.
            threading.Thread(target=_interrupt_when_running, args=(after,)).start()

    with pytest.raises(ReplayStopped, match="the replay was interrupted in cell 2"):
        replay.replay(after, None, interrupt_cell_2)
    flag.touch()
    assert after.restart(replay=True).run("x")[0].text == "2"


def _interrupt_when_running(cluster: Cluster) -> None:
    while cluster.state != "running":
        threading.Event().wait(0.01)
    cluster.interrupt()


def test_push_is_recorded_where_the_ranks_bound_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cell that runs while the journal stores the values, a replay must know whether it had them."""
    store = journal.JournalStore.write_parts

    def store_during_a_cell(self: journal.JournalStore, name: str, parts: Sequence[memoryview]) -> None:
        cluster.run("had_it = 'pushed_late' in globals()").check()
        store(self, name, parts)

    monkeypatch.setattr(journal.JournalStore, "write_parts", store_during_a_cell)
    cluster.push(pushed_late=1)
    kinds = [record.kind for record in cluster.journal.records[-2:]]
    assert kinds == (["push", "cell"] if cluster.pull("had_it") else ["cell", "push"])


def test_journal_survives_kill_9(leftovers: None) -> None:
    """After kill -9 the journal has everything that ended before, complete, but not the cell that ran."""
    program = """
        import mhnb, numpy
        cluster = mhnb.start(2, 1, name="killed")
        cluster.run("x = 1")
        cluster.push(y=numpy.arange(3))
        cluster.run("x + y.sum()")
        print(cluster.journal.path, flush=True)
        cluster.run("import time\\nwhile True: time.sleep(1)")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        os.kill(process.pid, signal.SIGKILL)
    records, faults = parse_records(path.read_bytes())
    assert not faults
    assert [record.kind for record in records] == ["start", "cell", "push", "cell"]
    assert (path.parent / records[2].file).stat().st_size == sum(records[2].sizes)  # type: ignore[union-attr]


def test_replay_before_the_diverging_cell_restores_arrays(begin: Fresh) -> None:
    """A replay that stops before the cell that made arrays differ restores them.

    A replay of all cells makes them differ again; the note of the mismatch names the replay that does not.
    """
    cluster = begin()
    cluster.run(f"{SETUP}\nadd = jax.jit(lambda a: a.sum())").check()
    cluster.run("float(add(values))").check()
    cluster.run("if jax.process_index() == 0: values = values * 2\nfloat(add(values))")
    (note,) = [note for note in cluster.run("float(add(values))").notes if "--to" in note]
    assert note.startswith("To make the values equal again: %mhjax restart --replay --to 2 (stops before cell 3)")
    again = cluster.restart(replay=True, to=2)
    assert {rank.text for rank in again.run("float(add(values))").check()} == {"28.0"}
