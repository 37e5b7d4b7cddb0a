"""A cluster in a real Slurm: its job, its queue, its end, and a step inside an existing job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.errors import LaunchError, PreflightFailed
from mhnb.types import StartProgress
from tests.support.leftovers import kill_new, processes_of
from tests.support.source import ROOT
from tests.support.typed_lines import User
from tests.system.hosts.cluster import check_no_key_is_visible, check_sum, start_and_kill_notebook
from tests.system.hosts.debugger import check_debugger
from tests.system.hosts.faults import (
    blocked_ports,
    emptied_folder,
    jax_metadata,
    loopback_hosts,
    make_python,
    replaced_file,
    run_doctor,
)
from tests.system.hosts.hostnet import NAMES, HostNet, wait_until
from tests.system.hosts.slurm import Slurm

pytestmark = [pytest.mark.requires_part("slurm")]

Begin = Callable[..., Cluster]
_SUM = (
    "import socket, jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
    "print(socket.gethostname(), m.process_allgather(jnp.float32(jax.process_index())).tolist())"
)
_NOTEBOOK = """
import sys, mhnb
from mhnb.cluster.manager import start
def tell(report):
    print("status", report.status, flush=True)
cluster = start(ranks=2, devices=1, profile="slurm", partition="debug", on_progress=tell, name="own")
print("ready", [r.stdout for r in cluster.run("import socket; print(socket.gethostname())").check()], flush=True)
sys.stdin.read()
cluster.stop()
"""


def _visible(process: psutil.Process) -> str:
    """Return what users can see of a process: command line and environment."""
    try:
        return " ".join(process.cmdline()) + str(process.environ())
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def daemons(made_up_net: HostNet) -> Iterator[Slurm]:
    """Slurm's daemons, for the tests of this module."""
    with Slurm(made_up_net) as slurm:
        yield slurm


def _remaining_processes(net: HostNet) -> list[str]:
    return [words for host in net for words in host.pids().values() if "slurmd" not in words]


@pytest.fixture
def slurm(daemons: Slurm, made_up_net: HostNet, mhnb_home: Path) -> Iterator[Slurm]:
    """Slurm with its variables in the environment; at the end no job and no process of one may be left."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in daemons.environment.items():
            patch.setenv(name, value)
        before = processes_of(mhnb_home)
        yield daemons
        try:
            wait_until(lambda: not daemons.jobs(), "no job is left")
            wait_until(lambda: not _remaining_processes(made_up_net), "no process is left")
        except AssertionError as error:
            remaining = (daemons.jobs(), _remaining_processes(made_up_net))
            # One leak must not fail every later test.
            kill_new(mhnb_home, before)
            daemons.run("scancel", f"--user={os.getuid()}")
            wait_until(lambda: not daemons.jobs(), "no job is left")
            raise AssertionError(f"{error}: {remaining}") from None


@pytest.fixture
def begin(slurm: Slurm) -> Iterator[Begin]:
    """Start a cluster by Slurm, and stop it at the end."""
    started: list[Cluster] = []

    def start(ranks: int = 4, **options: Any) -> Cluster:
        defaults: dict[str, Any] = {"devices": 1, "name": "jobs", "profile": "slurm", "ranks": ranks}
        started.append(manager.start(**defaults | options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


@pytest.mark.cold_start
def test_cluster_over_four_nodes(begin: Begin, slurm: Slurm, made_up_net: HostNet) -> None:
    """Each rank is a task on a machine of its own, and no secret is in any command line or environment."""
    cluster = begin(nodes=4, partition="short", time="10")
    result = cluster.run(_SUM).check()
    assert sorted(rank.stdout for rank in result) == sorted(
        f"{host.name} [0.0, 1.0, 2.0, 3.0]\n" for host in made_up_net
    )
    assert slurm.run("squeue", "-h", "-o", "%P %l %D %T").split() == ["short", "10:00", "4", "RUNNING"]
    visible = [
        text for text in map(_visible, psutil.process_iter()) if "mhnb.rank.supervisor" in text or "srun" in text
    ]
    # The four supervisors, the hub's, srun and its watchdog.
    assert len(visible) >= 7
    assert cluster._resources.key.hex() not in "".join(visible)
    check_no_key_is_visible(cluster)
    cluster.stop()
    wait_until(lambda: not slurm.jobs(), "the job is given back")


def test_several_ranks_per_node(begin: Begin) -> None:
    """With several ranks per host each host is a node, and its ranks are neighbours."""
    cluster = begin(4, ranks_per_host=2)
    names = [rank.hostname for rank in cluster.ranks]
    assert [rank.host for rank in cluster.ranks] == ["host0", "host0", "host1", "host1"]
    assert names[0] == names[1] != names[2] == names[3]
    assert [rank.text for rank in cluster.run("import jax; jax.process_index()").check()] == list("0123")


def test_debugger_works_across_nodes(begin: Begin, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank on another node stops and answers while the others wait; the cell goes on, or `q` ends it on all nodes."""
    check_debugger(begin(3), user, capsys)


class BlockingJob:
    """A job that occupies every node."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self.process = subprocess.Popen(
            ["srun", "--exclusive", "-N4", "-J", "busy", "sleep", "600"], stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: any("RUNNING busy" in job for job in slurm.jobs()), "the nodes are taken")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the nodes."""
        self._slurm.run("scancel", "--name=busy")
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture
def busy(slurm: Slurm) -> Iterator[BlockingJob]:
    """Occupy all nodes."""
    job = BlockingJob(slurm)
    yield job
    job.release()


def test_queue_position_is_shown_before_the_start(begin: Begin, busy: BlockingJob) -> None:
    """While the job is queued, the progress has its state, reason and position; the time limit of the start begins after that."""
    seen: list[str] = []

    def follow(report: StartProgress) -> None:
        seen.append(report.status)
        if report.status and sum(map(bool, seen)) == 3:
            threading.Thread(target=busy.release).start()

    cluster = begin(2, on_progress=follow)
    assert any("is PENDING (Resources), number 1 of 1 waiting in debug" in each for each in seen), seen
    assert cluster.run("1").check().ok


@pytest.mark.parametrize("keep", [pytest.param(False, marks=pytest.mark.soak), True])
def test_start_interrupted_in_the_queue_leaves_no_job(
    begin: Begin,
    slurm: Slurm,
    busy: BlockingJob,
    keep: bool,  # noqa: FBT001
) -> None:
    """Ctrl-C while the job is queued cancels it, even if the cluster was started as detachable."""

    def interrupt_start(report: StartProgress) -> None:
        if report.status:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(2, keep=keep, on_progress=interrupt_start)
    assert [job.split()[2] for job in slurm.jobs()] == ["busy"]


@pytest.mark.cold_start
def test_start_interrupted_with_first_task_up_leaves_no_job(begin: Begin, slurm: Slurm) -> None:
    """Ctrl-C after the first report cancels the job, with the other tasks still starting."""

    def interrupt_start(report: StartProgress) -> None:
        if any(rank.host_is_up for rank in report.ranks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(4, keep=True, setup='test "$SLURM_PROCID" = 0 || sleep 1', on_progress=interrupt_start)
    wait_until(lambda: not slurm.jobs(), "the job is gone", timeout_s=60)


def test_job_that_can_never_run_is_reported(begin: Begin) -> None:
    """Slurm queues a job that can never run; the progress says what to do, and Ctrl-C cancels the job."""

    def interrupt_start(report: StartProgress) -> None:
        # Slurm gives the reason only after it has tried to run the job.
        if re.search(r"\(Partition\w+\), number 1 of 1 waiting in short; it may never start", report.status):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(2, partition="short", time="9-0", on_progress=interrupt_start)


@pytest.mark.parametrize("when", ["running", "queued", pytest.param("queued, to be kept", marks=pytest.mark.soak)])
def test_killed_notebook_leaves_no_job(slurm: Slurm, request: pytest.FixtureRequest, when: str) -> None:
    """kill -9 of the notebook ends the job, also a queued one with `keep`, because no cluster exists before the job begins."""
    program = _NOTEBOOK.replace('name="own"', f"name='own', keep={'kept' in when}")
    if when != "running":
        request.getfixturevalue("busy")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as notebook:
        assert notebook.stdout is not None
        for line in notebook.stdout:
            if line.startswith("ready") or (when != "running" and "PENDING" in line):
                break
        else:
            pytest.fail("the notebook ended")
        assert any("mhnb-own" in job for job in slurm.jobs())
        notebook.send_signal(signal.SIGKILL)
    wait_until(lambda: not any("mhnb-own" in job for job in slurm.jobs()), "the job is gone")


def test_notebook_attaches_to_detached_job_and_restarts(slurm: Slurm) -> None:
    """After its notebook is killed the job continues, and another one attaches; a restart submits a new job, a stop ends it."""
    start_and_kill_notebook({"profile": "slurm", "ranks": 2, "devices": 1, "partition": "debug"})
    (before,) = slurm.run("squeue", "-h", "-o", "%i").split()
    cluster = manager.attach("kept")
    try:
        assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        cluster = cluster.restart()
        (job,) = slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
        assert job != before
        check_sum(cluster)
    finally:
        cluster.stop()


def test_notebook_folder_is_synced_before_first_cell(
    begin: Begin, made_up_net: HostNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --sync, nodes that do not share the notebook's folder get a copy before the first cell."""
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("def say(): return 'brought'\n")
    for host in made_up_net:
        host.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder.parent)
    try:
        monkeypatch.chdir(folder)
        cluster = begin(2, nodes=2, sync=".")
        result = cluster.run("import os\nfrom mine import say\nprint(say(), os.getcwd())").check()
        assert {rank.stdout for rank in result} == {f"brought {folder}\n"}
        cluster.stop()
    finally:
        for host in made_up_net:
            host.run("umount", "--lazy", folder.parent)


def _list_clusters() -> list[str]:
    completed = subprocess.run([sys.executable, "-m", "mhnb", "list"], capture_output=True, text=True, check=True)
    return completed.stdout.splitlines()


def test_restart_keeps_the_job(begin: Begin, slurm: Slurm) -> None:
    """A restart starts a new step of the same job, though another job waits for the machines; a stop releases them."""
    cluster = begin(2, nodes=2, partition="debug", extra=["--exclusive", "--mpi=none"])
    (before,) = slurm.run("squeue", "-h", "-o", "%i").split()
    (listed,) = [line for line in _list_clusters() if line.startswith("jobs ")]
    assert " 2 hosts x 1 device, profile slurm: " in listed
    assert all(rank.hostname in listed for rank in cluster.ranks)
    machines, pids = [rank.hostname for rank in cluster.ranks], {rank.pid for rank in cluster.ranks}
    cluster.run("x = 1").check()
    with subprocess.Popen(["srun", "--exclusive", "-N4", "-J", "next", "true"], stderr=subprocess.DEVNULL) as waiting:
        wait_until(lambda: any("PENDING next" in job for job in slurm.jobs()), "another job waits for the machines")
        fresh = cluster.restart()
        assert fresh.generation == cluster.generation + 1
        assert [rank.hostname for rank in fresh.ranks] == machines
        assert not {rank.pid for rank in fresh.ranks} & pids
        states = {job.split()[2]: job.split()[:2] for job in slurm.jobs()}
        assert states.pop("next")[1] == "PENDING"
        assert list(states.values()) == [[before, "RUNNING"]]
        check_sum(fresh)
        assert {rank.error.ename for rank in fresh.run("x") if rank.error} == {"NameError"}
        fresh.stop()
        assert waiting.wait(60) == 0


@pytest.mark.cold_start
def test_restart_after_cancelled_job_submits_a_new_one(begin: Begin, slurm: Slurm) -> None:
    """A restart after the job was cancelled submits a new job."""
    cluster = begin(2)
    (before,) = slurm.run("squeue", "-h", "-o", "%i").split()
    slurm.run("scancel", before)
    wait_until(lambda: cluster.state == "dead", "it is told")
    fresh = cluster.restart()
    check_sum(fresh)
    # For a while the job is shown as completing.
    wait_until(lambda: before not in slurm.run("squeue", "-h", "-o", "%i").split(), "the job is gone")
    fresh.stop()


def test_start_inside_a_job_is_a_step(slurm: Slurm) -> None:
    """Inside an allocation no other job is submitted, even if the notebook is itself a step that uses all of it."""
    before = len(slurm.run("squeue", "-h", "-t", "all").splitlines())
    words = ["srun", "-N2", "-n2", "-J", "mine", "--ntasks-per-node=1", "--input=0", "sh", "-c"]
    script = f'test "$SLURM_PROCID" = 0 && exec "{sys.executable}" -c "$PROGRAM"; exec sleep 1'
    done = subprocess.run(
        [*words, script], env=os.environ | {"PROGRAM": _NOTEBOOK}, input="", capture_output=True, text=True, check=False
    )
    ready = [line for line in done.stdout.splitlines() if line.startswith("ready")]
    assert ready, done.stdout + done.stderr
    assert len(slurm.run("squeue", "-h", "-t", "all").splitlines()) == before + 1


def test_documented_batch_script_has_a_notebook_on_all_nodes(
    slurm: Slurm, made_up_net: HostNet, tmp_path: Path
) -> None:
    """The page's script prints the tunnel to its node; a notebook in its job starts ranks on every node, in no other job."""
    before = len(slurm.run("squeue", "-h", "-t", "all").splitlines())
    page = (ROOT / "docs" / "how-to" / "jupyterlab-on-a-cluster.md").read_text(encoding="utf-8")
    [script] = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    instead = {"source": "true", "jupyter": f'"{sys.executable}" -c "$PROGRAM"'}
    words = [(line.partition(" ")[0], line) for line in script.splitlines()]
    assert instead.keys() <= {word for word, _ in words}
    (tmp_path / "lab.sbatch").write_text("\n".join(instead.get(word, line) for word, line in words) + "\n")
    program = _NOTEBOOK.replace("ranks=2", "ranks=4")
    done = subprocess.run(
        ["sbatch", "--parsable", "--wait", "lab.sbatch"],
        cwd=tmp_path, env=os.environ | {"PROGRAM": program}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = (tmp_path / f"mhnb-lab-{done.stdout.strip()}.log").read_text()
    [tunnel] = re.findall(r"^tunnel: ssh -N -L 8888:localhost:4\d{4} -J LOGIN \S*@(\S+)$", log, re.MULTILINE)
    names = {host.name for host in made_up_net}
    assert tunnel in names
    [ready] = [line for line in log.splitlines() if line.startswith("ready")]
    assert {name for name in names if name in ready} == names
    assert len(slurm.run("squeue", "-h", "-t", "all").splitlines()) == before + 1


def _write_job(folder: Path) -> None:
    """Export the cells of the capstone that are the job, as the lesson does."""
    notebook = json.loads(next((ROOT / "notebooks").glob("*_capstone.ipynb")).read_text(encoding="utf-8"))
    ids = [cell["id"] for cell in notebook["cells"]]
    notebook["cells"] = notebook["cells"][: ids.index("export")]
    (folder / "job.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    words = ["export", "job.ipynb", "-o", "train.py", "--sbatch"]
    subprocess.run([sys.executable, "-m", "mhnb", *words], cwd=folder, check=True)


@pytest.mark.timeout(500)
def test_killed_batch_job_goes_on_with_the_same_loss(slurm: Slurm, tmp_path: Path) -> None:
    """The script of the capstone, killed and submitted again, restores its checkpoint and repeats the same losses."""
    _write_job(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    environment = os.environ | {
        "CHECKPOINTS": str(checkpoints), "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu", "STEPS": "24",
    }  # fmt: skip

    def submit(*options: str) -> Path:
        done = subprocess.run(
            ["sbatch", "--parsable", *options, "train.sbatch"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return tmp_path / f"train-{done.stdout.strip()}.log"

    def read_losses(log: Path) -> dict[str, str]:
        text = log.read_text() if log.exists() else ""
        return dict(re.findall(r"^0: step (\d+) loss (\S+)$", text, re.MULTILINE))

    first = submit()
    wait_until(lambda: "9" in read_losses(first), "step 9 is printed", timeout_s=200)
    # As if the nodes had failed: on its own, scancel lets a process go on for a while.
    slurm.run("scancel", "--signal=KILL", "--full", first.stem.removeprefix("train-"))
    wait_until(lambda: not slurm.jobs(), "the job is gone")
    # Without the newer checkpoints, some steps are certainly repeated.
    oldest, *newer = sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
    for number in newer:
        shutil.rmtree(checkpoints / str(number))
    second = submit("--wait")
    assert f"0: begin at {oldest}\n" in second.read_text()
    before, after = read_losses(first), read_losses(second)
    assert [int(n) for n in after] == list(range(oldest + 1, 25))
    repeated = before.keys() & after.keys()
    assert repeated
    assert {n: before[n] for n in repeated} == {n: after[n] for n in repeated}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "nowhere"}, "nowhere"),
        ({"extra": ["--constraint=moon"]}, "Invalid feature specification"),
        ({"constraint": "moon"}, "choose others with --constraint"),
        ({"memory": "900G"}, "Memory specification can not be satisfied[^$]*request less with --mem"),
        ({"gpus_per_rank": 1}, "request fewer ranks, nodes, GPUs"),
    ],
)
@pytest.mark.sample(2)
def test_refusal_of_slurm_is_reported(begin: Begin, options: dict[str, Any], said: str) -> None:
    """The error contains Slurm's message and what to do, and no job is left."""
    with pytest.raises(LaunchError, match=said):
        begin(2, **options)


def test_resource_flags_reach_slurm(slurm: Slurm, made_up_net: HostNet, tmp_path: Path) -> None:
    """--constraint chooses the machines, --mem is what Slurm shows of the job, and --qos is accepted.

    This Slurm has no GPUs, and without a database it forgets the quality of service.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import os, socket, subprocess\n"
        "shown = subprocess.run(['squeue', '-h', '-o', '%m %f'], capture_output=True, text=True).stdout\n"
        "print(socket.gethostname(), shown)\n"
    )
    flags = ["--mem", "300M", "--qos", "normal", "--constraint", "odd", "--nodes", "2", "-n", "2", "--devices", "1"]
    words = ["run", "--profile", "slurm", *flags, str(script)]
    done = subprocess.run([sys.executable, "-m", "mhnb", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for host in list(made_up_net)[1::2]:
        assert f"{host.name} 300M odd" in done.stdout


def test_srun_without_salloc_is_reported(begin: Begin, tmp_path: Path) -> None:
    """The missing salloc is reported before a job is submitted."""
    (tmp_path / "srun").symlink_to(str(shutil.which("srun")))
    with pytest.raises(LaunchError, match=f"salloc not found next to {tmp_path}/srun"):
        begin(2, srun=str(tmp_path / "srun"))


@pytest.mark.cold_start
def test_cancelled_job_makes_the_cluster_dead(begin: Begin, slurm: Slurm, tmp_path: Path) -> None:
    """A cancelled job makes the cluster dead, and the notification says so."""
    cluster = begin(2)
    notifications: list[str] = []
    cluster.on_notice(notifications.append)
    slurm.run("scancel", *(job.split()[0] for job in slurm.jobs()))
    wait_until(lambda: notifications, "it is told")
    assert cluster.state == "dead"
    assert "lost" in notifications[0] or "srun" in notifications[0]


def test_mhnb_run_accepts_start_flags(slurm: Slurm, tmp_path: Path) -> None:
    """`mhnb run` accepts the same flags as `%mhjax start`."""
    script = tmp_path / "script.py"
    script.write_text("import jax\nprint('rank', jax.process_index(), 'of', jax.process_count())\n")
    words = [
        "run",
        str(script),
        "--profile",
        "slurm",
        "-n",
        "2",
        "--devices",
        "1",
        "--partition",
        "debug",
        "--set",
        "extra=--exclusive",
    ]
    done = subprocess.run([sys.executable, "-m", "mhnb", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 2" in done.stdout


# -- preflight


_PORT = 24_112
_SORTED = sorted(NAMES)
"""In the order in which Slurm numbers its tasks."""
_NODES = ("--profile", "slurm", "-n", "4", "--nodes", "4", "--devices", "1", "--coordinator-port", str(_PORT))


def test_doctor_checks_nodes_in_one_job(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks run in one job that is released at once; each node has a row, and nothing is reported if all is well."""
    before = len(slurm.run("squeue", "-h", "-t", "all").splitlines())
    code, lines = run_doctor(capsys, *_NODES)
    assert (code, lines[0]) == (0, "preflight · 4 hosts · all well"), lines
    assert lines[1].split() == (
        f"login python jax mhnb devices link hub port {_PORT} peers name→address clock disk".split()
    )
    assert [line.split()[:2] for line in lines[2:]] == [[name, "ok"] for name in _SORTED]
    assert len(slurm.run("squeue", "-h", "-t", "all").splitlines()) == before + 1


def test_doctor_inside_a_job_submits_no_other(slurm: Slurm) -> None:
    """Inside an allocation the checks run there without another job, and tasks on one node share a row."""
    before = len(slurm.run("squeue", "-h", "-t", "all").splitlines())
    words = [sys.executable, "-m", "mhnb", "doctor", "--profile", "slurm", "-n", "4", "--devices", "1"]
    completed = subprocess.run(["salloc", "-N2", "-n4", *words], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.startswith("preflight · 2 hosts · all well · ")
    assert len(slurm.run("squeue", "-h", "-t", "all").splitlines()) == before + 1


def test_different_jax_version_is_reported(
    slurm: Slurm, made_up_net: HostNet, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node with another version of JAX is named, with both versions and the command that fixes it."""
    with replaced_file(made_up_net[3], *jax_metadata("0.99.1")):
        code, lines = run_doctor(capsys, *_NODES)
    assert (code, lines[0]) == (1, "preflight · 4 hosts · 1 failure"), lines
    assert lines[6].startswith("✗ delta has jax 0.99.1, the other hosts have ")
    assert lines[7].startswith("  on delta: ")


def test_missing_python_is_reported(
    slurm: Slurm, made_up_net: HostNet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other nodes are still checked, though Slurm ends a job if one task of it fails."""
    python = make_python(tmp_path, sys.executable)
    with emptied_folder(made_up_net[1], python.parent):
        code, lines = run_doctor(capsys, *_NODES, "--python", str(python))
    assert (code, lines[0]) == (1, "preflight · 4 hosts · 1 failure"), lines
    assert lines[6].startswith(f"✗ beta: has no such Python: no python: {python}")
    assert [line.split()[1] for line in lines[2:6]] == ["ok", "failed", "ok", "ok"]


def test_a_start_behind_a_firewall_is_refused(begin: Begin, slurm: Slurm, made_up_net: HostNet) -> None:
    """A start that JAX would abort after minutes is refused with the table before any rank starts, and the job is released."""
    with (
        blocked_ports(made_up_net[0], "20000-32000"),
        pytest.raises(
            PreflightFailed, match="beta, delta and gamma cannot reach JAX's coordinator on alpha at"
        ) as refused,
    ):
        begin(nodes=4)
    assert refused.value.report.failures[0].hosts == tuple(_SORTED[1:])
    wait_until(lambda: not slurm.jobs(), "the job is given back")


def test_host_name_on_loopback_is_a_warning(
    slurm: Slurm, made_up_net: HostNet, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node whose name is loopback gives a warning, with the address that is used instead."""
    host = made_up_net[1]
    with replaced_file(host, "/etc/hosts", loopback_hosts(made_up_net, host)):
        code, lines = run_doctor(capsys, *_NODES)
    assert (code, lines[0]) == (0, "preflight · 4 hosts · 1 warning"), lines
    assert lines[6].startswith("! beta's name resolves to loopback")
    assert f"mhnb will use {host.address} instead" in lines[7]
