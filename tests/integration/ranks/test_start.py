"""Start and stop with real processes: what starts, what is refused, and what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster import manager
from mhnb.cluster.attach import list_cluster_records
from mhnb.cluster.cluster import Cluster
from mhnb.core.debugging import DebugRequest
from mhnb.errors import (
    AlreadyStarted,
    BreakpointRefused,
    EnginesMissing,
    InvalidRequest,
    LaunchError,
    MhnbError,
    NotStarted,
    PreflightFailed,
)
from mhnb.system.run_dir import read_running_clusters
from mhnb.transport.addresses import find_free_port
from mhnb.types import PHASES, DeviceRef, StartProgress
from tests.integration.ranks.conftest import is_running, list_pids, wait_for_exit
from tests.support.typed_lines import User

pytestmark = pytest.mark.cold_start

Fresh = Callable[..., Cluster]


@pytest.mark.other_python
def test_rank_numbers_match_jax(cluster: Cluster) -> None:
    """On each rank, JAX's process index and the engine id are the rank's number, and the process count is right."""
    result = cluster.run(
        "import jax; print(jax.process_index(), jax.process_count(), get_ipython().kernel.engine_id)"
    ).check()
    assert [r.stdout for r in result] == [f"{rank} 4 {rank}\n" for rank in range(4)]


def test_devices_have_a_rank_and_a_local_index(cluster: Cluster) -> None:
    """A cluster of 4 x 2 has its devices by rank and local index, and JAX on each rank counts the same."""
    assert cluster.devices == tuple(DeviceRef(rank, ordinal) for rank in range(4) for ordinal in range(2))
    result = cluster.run("jax.device_count(), jax.local_device_count()").check()
    assert {r.text for r in result} == {"(8, 2)"}


def test_ranks_are_processes_with_logs(cluster: Cluster) -> None:
    """Each rank has a live process and a log file of its own, under a host label."""
    assert len({rank.pid for rank in cluster.ranks}) == 4
    assert all(rank.pid and is_running(rank.pid) and rank.log_path.exists() for rank in cluster.ranks)
    assert [rank.host for rank in cluster.ranks] == ["host0", "host1", "host2", "host3"]


def test_environment_of_ranks(cluster: Cluster) -> None:
    """Ranks have one hash seed, CPU only, a pool for many devices, and the notebook's folder."""
    code = """
    import os, signal
    names = ("PYTHONHASHSEED", "JAX_PLATFORMS", "PJRT_NPROC")
    print([os.environ[n] for n in names], os.getcwd(), hash("a"))
    """
    result = cluster.run(textwrap.dedent(code)).check()
    assert len({r.stdout for r in result}) == 1
    assert result[0].stdout.startswith(f"['0', 'cpu', '32'] {Path.cwd()}")


_QUERY_PREEMPTION = (
    "from jax.experimental import multihost_utils as m; print([m.reached_preemption_sync_point(s) for s in range(3)])"
)


def test_preemption_service_is_on(cluster: Cluster) -> None:
    """JAX's preemption service is on, because training loops query it at every step, and it reports no preemption."""
    assert cluster.run(_QUERY_PREEMPTION).check()[0].stdout == "[False, False, False]\n"


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.sample(1)
def test_sigterm_ends_a_rank(fresh: Callable[..., Cluster], init: bool) -> None:  # noqa: FBT001
    """The preemption service takes over SIGTERM; the rank takes it back, also after an `initialize` in a cell."""
    cluster = fresh(2, 1, init=init)
    queried = cluster.run(f"import jax; jax.distributed.initialize()\n{_QUERY_PREEMPTION}").check()
    assert queried[0].stdout == "[False, False, False]\n"
    result = cluster.run(
        "import os, signal, threading; os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()", ranks=[1]
    )
    assert result[1].outcome == "died"


def test_everything_listens_on_loopback_only(cluster: Cluster) -> None:
    """Nothing listens on another interface than loopback, because coordinator and controller have no real password."""
    listening = [
        connection
        for pid in list_pids(cluster)
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {connection.laddr.ip for connection in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_modules_in_the_notebook_folder_import(fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks run where the notebook runs; a file there that hides a standard module does so only for the user's code."""
    (tmp_path / "beside.py").write_text("value = 42")
    monkeypatch.chdir(tmp_path)
    result = fresh(1, 1).run("import beside; beside.value").check()
    assert result[0].text == "42"


def test_progress_names_every_phase(fresh: Fresh) -> None:
    """Progress reports for the progress line show each rank in every phase, and end with all ranks ready."""
    reports: list[StartProgress] = []
    fresh(2, 1, on_progress=reports.append)
    seen = {info.phase for report in reports for info in report.ranks}
    assert {"connected", "jax", "initialised", "devices", "checked", "ready"} <= seen
    assert reports[-1].ready
    assert not any(info.phase for info in reports[0].ranks), "the line is there before the ranks are"


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")
@pytest.mark.test_all
def test_mhnb_modules_are_imported_before_the_fork(fresh: Fresh) -> None:
    """The mhnb modules that ranks need at the start are imported before the ranks are forked.

    A module that is missing there costs every rank its import. Installed packages are found as usual.
    """
    program = "import sys, mhnb.rank.supervisor\nfrom mhnb.rank.spawn import preload\npreload()\nprint(*sys.modules)"
    before = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    cell = "import sys, importlib.metadata as m\nprint(*sys.modules)\n'mhnb' in {d.name for d in m.distributions()}"
    rank = fresh(1, 1).run(cell).check()[0]
    imported_later = {name for name in set(rank.stdout.split()) - set(before) if name.startswith("mhnb.")}
    # The controller is forked before all others.
    assert imported_later <= {"mhnb.rank.controller"}
    assert rank.text == "True"


def test_repeated_start_returns_the_cluster(cluster: Cluster) -> None:
    """A start with the same name and size returns the running cluster, so Run All works twice."""
    assert manager.start(4, 2, name="shared") is cluster


def test_start_with_another_size_is_refused(cluster: Cluster) -> None:
    """A start with another size loses nothing, and its error names `restart` and `stop`."""
    with pytest.raises(AlreadyStarted, match=r"stop[^$]*restart"):
        manager.start(2, 2, name="shared")


@pytest.mark.parametrize(("hosts", "devices"), [(0, 2), (1000, 2), (4, 0)])
def test_invalid_counts_start_nothing(hosts: int, devices: int) -> None:
    """Invalid counts are refused before any process starts."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(InvalidRequest):
        manager.start(hosts, devices, name="bad")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("argument", ["coordinator_address", "coordinator_bind_address"])
def test_coordinator_port_in_use_is_refused(argument: str) -> None:
    """A coordinator port that is in use is refused, because JAX would crash or share it silently."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        free = f"127.0.0.1:{find_free_port()}"
        with pytest.raises(PreflightFailed, match=f"{argument} {address}"):
            manager.start(2, 1, name="taken", initialize={"coordinator_address": free, argument: address})


def test_coordinator_on_an_unknown_host_is_refused() -> None:
    """A coordinator on an unknown host is refused, with the value and what to give instead."""
    with pytest.raises(PreflightFailed, match=r"coordinator_address nowhere.invalid:5555: unknown host"):
        manager.start(2, 1, name="nowhere", initialize={"coordinator_address": "nowhere.invalid:5555"})


def test_a_free_coordinator_port_is_used(fresh: Fresh) -> None:
    """The coordinator address that the user sets is used."""
    port = find_free_port()
    cluster = fresh(2, 1, initialize={"coordinator_address": f"127.0.0.1:{port}", "initialization_timeout": 60})
    listeners = psutil.Process(cluster.ranks[0].pid).net_connections(kind="tcp")
    assert port in {c.laddr.port for c in listeners if c.status == psutil.CONN_LISTEN}


def failed_start(**options: object) -> tuple[MhnbError, list[int]]:
    """Make a start fail; return the error and every pid that was seen."""
    pids: set[int] = set()

    def on_progress(report: StartProgress) -> None:
        pids.update(info.pid for info in report.ranks if info.pid)
        if spoil := options.get("spoil"):
            spoil(report)  # type: ignore[operator]

    arguments = {key: value for key, value in options.items() if key != "spoil"}
    with pytest.raises(MhnbError) as caught:
        manager.start(2, 1, name="failing", on_progress=on_progress, **arguments)  # type: ignore[arg-type]
    return caught.value, sorted(pids)


@pytest.mark.usefixtures("leftovers")
@pytest.mark.test_all
def test_invalid_xla_flag_is_named_and_its_log_stays(monkeypatch: pytest.MonkeyPatch, fresh: Fresh) -> None:
    """An invalid value of an XLA flag is named, although XLA explains all its flags below it.

    A user who starts again still finds the log that the first error names.
    """
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_collective_timeout_seconds=abc")
    error, _ = failed_start()
    assert "Couldn't interpret value abc for flag xla_cpu_collective_timeout_seconds" in str(error)
    log = Path(str(error).partition(" log ")[2].partition(" ")[0])
    text = log.read_text()
    monkeypatch.delenv("XLA_FLAGS")
    fresh(1, 1, name="failing")
    assert log.read_text() == text


def test_device_count_in_xla_flags_is_overridden(monkeypatch: pytest.MonkeyPatch, fresh: Fresh) -> None:
    """The start's own number of devices overrides the one in `XLA_FLAGS`, and a note says so."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    (note,) = fresh(1, 2).notes
    assert "requests 8 CPU devices, but each rank has 2" in note


@pytest.mark.usefixtures("leftovers")
def test_rank_that_dies_while_starting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an unknown XLA flag aborts JAX, the error has rank, phase, cause and JAX's own words, and nothing is left."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_there_is_no_such_flag=1")
    error, pids = failed_start()
    assert isinstance(error, EnginesMissing)
    assert "there_is_no_such_flag" in str(error)
    assert wait_for_exit(pids) == []


@pytest.mark.usefixtures("leftovers")
def test_rank_killed_while_starting_is_named() -> None:
    """A rank killed by kill -9 during the start is a failed start with the signal's name."""
    killed: list[int] = []

    def kill(report: StartProgress) -> None:
        pid = report.ranks[1].pid
        if not killed and pid and report.ranks[1].phase == "connected":
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    error, pids = failed_start(spoil=kill)
    assert isinstance(error, EnginesMissing)
    assert (error.parts["rank"], "SIGKILL" in str(error)) == (1, True)
    assert wait_for_exit(pids) == []


@pytest.mark.usefixtures("leftovers")
@pytest.mark.parametrize("phase", ["spawned", "jax"])
@pytest.mark.test_all
@pytest.mark.sample(1)
def test_rank_suspended_while_starting_is_named(phase: str) -> None:
    """A suspended process reaches no further phase; the other ranks wait for it in the same phase, and are not named."""
    stopped: list[int] = []

    def freeze(report: StartProgress) -> None:
        row = report.ranks[1]
        if not stopped and row.pid and row.phase and PHASES.index(row.phase) >= PHASES.index(phase):
            stopped.append(row.pid)
            os.kill(row.pid, signal.SIGSTOP)

    error, pids = failed_start(spoil=freeze, start_timeout_s=8.0)
    assert isinstance(error, LaunchError)
    first_line = str(error).splitlines()[0]
    assert "8 s" in first_line
    assert f"rank 1 (host1, pid {stopped[0]}) is suspended after phase" in first_line
    assert "rank 0" not in first_line
    assert error.parts["rank"] == 1
    assert wait_for_exit(pids) == []


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "afresh"])
@pytest.mark.sample(1)
def test_killed_supervisor_leaves_nothing(fresh: Fresh, fork: bool) -> None:  # noqa: FBT001
    """If the supervisor is killed, ranks, controller and what a cell started end with it, also if ranks are not forked."""
    cluster = fresh(1, 1, fork=fork)
    pids = list_pids(cluster)
    result = cluster.run("import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)").check()
    os.kill(cluster.supervisor_pid, signal.SIGKILL)
    assert wait_for_exit([*pids, int(result[0].stdout)]) == []


@pytest.mark.usefixtures("leftovers")
@pytest.mark.parametrize(
    "wrong",
    [{"guard": "none"}, {"initialize": {"initialization_timeout": object()}}],
    ids=["a word", "a value"],  # the same in every xdist worker
)
def test_invalid_options_start_nothing(wrong: dict[str, Any]) -> None:
    """Invalid options are refused before any process starts."""
    with pytest.raises(InvalidRequest):
        manager.start(1, 1, name="bad", **wrong)


@pytest.mark.usefixtures("leftovers")
def test_unknown_argument_of_initialize_is_refused_by_the_ranks() -> None:
    """The ranks refuse it before they connect, because only their JAX has the names; the error names the closest one."""
    error, pids = failed_start(initialize={"heartbeat_timeout": 30})
    assert isinstance(error, EnginesMissing)
    assert f"jax.distributed.initialize of jax {version('jax')}: unknown argument 'heartbeat_timeout'." in str(error)
    assert "Did you mean 'heartbeat_timeout_seconds'?" in str(error)
    assert (error.phase, wait_for_exit(pids)) == ("jax", [])


def test_cluster_can_be_found_while_it_starts(mhnb_home: Path) -> None:
    """`mhnb stop` must find a starting cluster: with `--keep` it outlives a notebook that is killed at this moment."""
    found: list[str] = []

    def on_progress(_report: StartProgress) -> None:
        found.extend(record.name for record in read_running_clusters({"MHNB_HOME": str(mhnb_home)}))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        manager.start(1, 1, name="early", on_progress=on_progress)
    assert "early" in found


def test_stop_ends_stuck_ranks(fresh: Fresh) -> None:
    """A stop ends a rank in a C-level wait and one that ignores signals with the rest."""
    cluster = fresh(2, 1)
    pids = list_pids(cluster)
    cluster.submit(
        "import signal, ctypes\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nctypes.CDLL(None).sleep(1000)"
    )
    cluster.stop()
    assert wait_for_exit(pids) == []
    with pytest.raises(NotStarted):
        cluster.run("1")


def test_stop_ends_child_processes_of_a_rank(fresh: Fresh) -> None:
    """A stop ends a rank's own child processes, because they are in its process group."""
    cluster = fresh(1, 1)
    code = "import subprocess; p = subprocess.Popen(['sleep', '1000']); p.pid"
    child = int(cluster.run(code).check()[0].text or 0)
    assert is_running(child)
    cluster.stop()
    assert wait_for_exit([child]) == []


@pytest.mark.test_all
def test_ranks_that_are_not_forked_work_the_same(fresh: Fresh) -> None:
    """Where a fork is not safe (macOS), each rank is a new interpreter, and starts and ends like a forked rank."""
    cluster = fresh(2, 1, fork=False)
    pids = list_pids(cluster)
    code = "import jax; (jax.process_index(), jax.device_count(), hash('a'))"
    result = cluster.run(code).check()
    assert [str(r.text).split(",")[:2] for r in result] == [["(0", " 2"], ["(1", " 2"]]
    assert len({str(r.text).split(",")[2] for r in result}) == 1
    cluster.stop()
    assert wait_for_exit(pids) == []


def test_new_set_of_devices_prints_nothing(cluster: Cluster) -> None:
    """Gloo announces each new set of devices on every rank; the log has this, and the cell does not."""
    code = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()[1::2]), ("x",))
    x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("x")), lambda i: np.ones(4, np.float32)[i])
    float(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(x))
    """
    result = cluster.run(textwrap.dedent(code)).check()
    assert {(r.stdout, r.text) for r in result} == {("", "4.0")}
    assert "[Gloo]" in cluster.ranks[0].log_path.read_text()


def test_restart_gives_new_processes_and_next_generation(fresh: Fresh) -> None:
    """A restart gives the same size, no variables, and another process for each rank."""
    cluster = fresh(2, 1)
    cluster.run("x = 1").check()
    pids = list_pids(cluster)
    again = manager.restart(cluster)
    try:
        assert again.generation == cluster.generation + 1
        assert not set(pids) & set(list_pids(again))
        assert again.run("x")[0].error is not None
        assert wait_for_exit(pids) == []
    finally:
        again.stop()


@pytest.mark.test_all
def test_restart_through_an_old_object_ends_the_successor(fresh: Fresh) -> None:
    """An old cluster object still refers to the cluster of that name: there are never two of them in one folder."""
    old = fresh(1, 1)
    second = old.restart()
    pids = list_pids(second)
    third = old.restart()
    try:
        assert wait_for_exit(pids) == []
        assert third.generation == second.generation + 1
        assert third.run("1").ok
    finally:
        third.stop()


OWNER = """
import os, sys, time
import mhnb
from mhnb.cluster.cluster import Cluster
cluster = mhnb.start(2, 1, name="owned", **{options})
pids = [cluster.supervisor_pid, cluster.hub_pid, *(r.pid for r in cluster.ranks)]
print(*pids, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then", ["sys.stdin.read()", "cluster.run('import time; time.sleep(1000)')"], ids=["idle", "in a cell"]
)
@pytest.mark.sample(1)
def test_ranks_end_when_the_owner_is_killed(then: str) -> None:
    """After kill -9 of the notebook's process nothing is left within 10 s."""
    code = OWNER.format(options={}, then=then)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(is_running, pids))
        owner.kill()
        owner.wait()
    assert wait_for_exit(pids) == []


def test_ranks_end_when_the_owner_exits() -> None:
    """A script that exits without a stop leaves nothing either."""
    code = OWNER.format(options={}, then="")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert wait_for_exit([int(word) for word in done.stdout.split()]) == []


@pytest.mark.parametrize("named", ["owned", "owned.PID"])
@pytest.mark.sample(1)
def test_keep_outlives_the_owner_and_stop_ends_it(leftovers: None, named: str) -> None:
    """A cluster started with `--keep` outlives its owner; `mhnb stop` ends it by its name or by its full name."""
    code = OWNER.format(options={"keep": True}, then="os._exit(0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    pids = [int(word) for word in done.stdout.split()]
    assert all(map(is_running, pids))
    (record,) = list_cluster_records(os.environ)
    name = named if named == record.name else record.full_name
    stop = subprocess.run([sys.executable, "-m", "mhnb", "stop", name], capture_output=True, text=True, check=True)
    assert stop.stdout == f"{name}: 2 ranks stopped\n"
    # A user who starts again at once must not find the old cluster ending.
    assert not any(map(is_running, pids))


@pytest.mark.test_all
def test_stop_of_an_ambiguous_name_ends_nothing(leftovers: None) -> None:
    """If several notebooks use one name, `mhnb stop NAME` ends none and lists their full names; `--all` ends the rest."""
    code = OWNER.format(options={}, then="sys.stdin.read()")
    owners = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    pids = [[int(word) for word in owner.stdout.readline().split()] for owner in owners if owner.stdout]
    assert [len(each) for each in pids] == [4, 4, 4]

    def stop(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "mhnb", "stop", *words], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    names = [f"owned.{owner.pid}" for owner in owners]
    code_, output, error = stop("owned")
    assert (code_, output) == (1, "")
    assert "3 clusters have that name" in error
    assert all(name in error for name in names)
    assert all(map(is_running, chain(*pids)))
    assert stop(names[0]) == (0, f"{names[0]}: 2 ranks stopped\n", "")
    assert [any(map(is_running, each)) for each in pids] == [False, True, True]
    assert stop("owned", "--all")[0] == 0
    assert not any(map(is_running, chain(*pids)))
    for owner in owners:
        owner.communicate(timeout=60)


_NO_PROBE = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'mhnb.rank.jax_private':
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module
            def run_and_refuse(module):
                run(module)
                module._probe = lambda: 'this JAX has no such hook'
            spec.loader.exec_module = run_and_refuse
            return spec
sys.meta_path.insert(0, Finder())
"""
"""Runs in the ranks' Python before their own code: simulates an unknown version of JAX."""


@pytest.mark.test_all
def test_jax_without_the_hooks_runs_without_a_guard(
    fresh: Fresh, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a JAX that does not fit, the cluster starts and computes without a guard.

    The start line and `status` say so, a cell that differs between the ranks ends as `split`, and an interrupted one as `tainted`.
    """
    (tmp_path / "sitecustomize.py").write_text(_NO_PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cluster = fresh(2, 1)
    assert cluster.guard == "unavailable (this JAX has no such hook)"
    assert cluster.run("import jax\njax.process_index()").check()[1].text == "1"
    result = cluster.run("if jax.process_index(): raise ValueError('no')")
    assert result.state == "split"
    assert "no launch record shows if they are still in sync" in result.notes[0]
    # Without a guard no rank is held, so none stops; what a cell has left can be inspected, also while no other cell is taken.
    user.types("p jax.process_index()", "q")
    assert cluster.run("%debug", ranks=[1], debug=DebugRequest(is_post_mortem=True)).ok
    assert "rank 1 (post-mortem) > " in user.prompts
    assert cluster.state == "split"
    cluster.accept()
    with pytest.raises(BreakpointRefused, match="guard is unavailable"):
        cluster.run("1", debug=DebugRequest(stop_ranks=(0,)))
    result = cluster.run("import time\nif jax.process_index(): time.sleep(1000)", timeout_s=1)
    assert (result[1].outcome, result.state) == ("interrupted", "tainted")
    assert result.notes[0].startswith("rank 1 was interrupted, and no launch record shows")
    cluster.accept()
    assert cluster.run("1").ok


def test_two_threads_that_start_one_name_share_one_cluster(fresh: Fresh) -> None:
    """The second thread waits for the first and gets its cluster, not half of its folder."""
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: fresh(2, 1, name="twice"), range(2))
    assert first is second
    assert first.generation == 1
    assert first.run("1").ok


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"guard": "strict"}, "expected lockstep, parity or off"),
        ({"start_timeout_s": -1}, "start_timeout_s=-1"),
        ({"initialize": {"process_id": 1}}, "process_id=1: mhnb sets it"),
        ({"ranks_per_host": 0}, "ranks_per_host=0"),
    ],
)
def test_invalid_argument_is_refused_for_a_running_cluster(
    cluster: Cluster, wrong: dict[str, Any], expected: str
) -> None:
    """A repeated start returns the running cluster, but refuses an invalid argument."""
    with pytest.raises(InvalidRequest, match=expected):
        manager.start(4, 2, name="shared", **wrong)


def test_rank_cannot_start_a_cluster(cluster: Cluster) -> None:
    """`mhnb.start()` in a `%%mhjax` cell is refused, because it would start one cluster on each rank."""
    result = cluster.run("import mhnb\nmhnb.start()")
    assert {rank.error.ename for rank in result if rank.error is not None} == {"InvalidRequest"}
    assert "this process is a rank of a cluster" in str(result[0].error)
    loaded = cluster.run("%load_ext mhnb")
    assert "Run the line in a notebook cell" in str(loaded[1].error)
    error = cluster.run("%mhjax status")[0].error
    assert error is not None
    assert "run in the notebook, not on the ranks" in str(error.hint)
