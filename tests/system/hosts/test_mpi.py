"""A cluster that a real mpiexec starts, on this machine and on simulated ones. No part of mhnb uses MPI itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.errors import LaunchError, PreflightFailed
from mhnb.types import StartProgress
from tests.support.leftovers import no_leftovers
from tests.support.source import ROOT
from tests.support.typed_lines import User
from tests.system.hosts.cluster import check_no_key_is_visible, start_and_kill_notebook
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
from tests.system.hosts.hostnet import HostNet, wait_until
from tests.system.hosts.mpi import find_mpich

pytestmark = [pytest.mark.requires_part("mpi")]

Begin = Callable[..., Cluster]
_PRINT_RANK = (
    "import os, socket, jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
    "number = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
    "assert int(number) == jax.process_index()\n"
    "print(socket.gethostname(), m.process_allgather(jnp.float32(jax.process_index())).tolist())"
)
_ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []


@pytest.fixture
def begin(mhnb_home: Path) -> Iterator[Begin]:
    """Start a cluster by mpiexec, and stop it at the end; no process of it may be left."""
    started: list[Cluster] = []

    def start(ranks: int = 4, **options: Any) -> Cluster:
        defaults: dict[str, Any] = {"devices": 1, "name": "mpi", "profile": "mpi", "ranks": ranks, "extra": _ROOT}
        started.append(manager.start(**defaults | options))
        return started[-1]

    with no_leftovers(mhnb_home):
        yield start
        for cluster in started:
            cluster.stop()


def _visible(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) + str(process.environ())
    except psutil.Error:
        return ""


@pytest.mark.cold_start
def test_rank_is_the_number_in_comm_world(begin: Begin) -> None:
    """Each rank is the process's number in Open MPI, and no secret is in any command line or environment."""
    cluster = begin()
    result = cluster.run(_PRINT_RANK).check()
    assert [rank.stdout.partition(" ")[2] for rank in result] == ["[0.0, 1.0, 2.0, 3.0]\n"] * 4
    visible = [
        text for text in map(_visible, psutil.process_iter()) if "mhnb.rank.supervisor" in text or "mpiexec" in text
    ]
    # The four supervisors, the hub's, mpiexec and its watchdog.
    assert len(visible) >= 7
    assert cluster._resources.key.hex() not in "".join(visible)
    check_no_key_is_visible(cluster)
    # The file that contained the key has been removed.
    assert not list(cluster._resources.run_dir.glob("mpi.*"))


@pytest.mark.requires_part("mpich")
def test_mpich_starts_a_cluster(begin: Begin) -> None:
    """MPICH's mpiexec works too, though its options and variables have other names."""
    mpiexec = find_mpich()
    assert mpiexec is not None
    result = begin(2, mpiexec=mpiexec, extra=[]).run(_PRINT_RANK).check()
    assert [rank.stdout.partition(" ")[2] for rank in result] == ["[0.0, 1.0]\n"] * 2


def test_several_ranks_per_process(begin: Begin) -> None:
    """With several ranks per host, each process of mpiexec runs neighbouring ranks."""
    cluster = begin(4, ranks_per_host=2)
    assert [rank.host for rank in cluster.ranks] == ["host0", "host0", "host1", "host1"]
    assert [rank.text for rank in cluster.run("import jax; jax.process_index()").check()] == list("0123")


def _mpiexec_options(net: HostNet) -> list[str]:
    return ["--mca", "oob_tcp_if_include", f"{net.prefix}.0/24", "--mca", "plm_rsh_args", f"-F {net.ssh_config}"]


@pytest.mark.cold_start
def test_cluster_over_machines(begin: Begin, net: HostNet) -> None:
    """With host names each machine has a supervisor, which mpiexec's own ssh starts."""
    mpiexec_options = _mpiexec_options(net)
    with pytest.MonkeyPatch.context() as patch:
        # On other machines nothing is inherited.
        patch.setenv("MHNB_TEST", "here")
        cluster = begin(
            hosts=[host.address for host in net],
            extra=[*_ROOT, *mpiexec_options],
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
    result = cluster.run(_PRINT_RANK).check()
    assert [rank.stdout for rank in result] == [f"{host.name} [0.0, 1.0, 2.0, 3.0]\n" for host in net]
    cluster.stop()
    wait_until(lambda: not any(host.pids() for host in net), "every machine is without a process of the test")


def test_debugger_works_across_machines(
    begin: Begin, net: HostNet, user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank on another machine stops and answers while the others wait; the cell goes on, or `q` ends it everywhere."""
    cluster = begin(
        hosts=[host.address for host in list(net)[:3]],
        ranks=None,
        extra=[*_ROOT, *_mpiexec_options(net)],
        environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    check_debugger(cluster, user, capsys)
    cluster.stop()
    wait_until(lambda: not any(host.pids() for host in net), "every machine is without a process of the test")


@pytest.mark.cold_start
def test_interrupted_start_leaves_no_process_and_no_key(begin: Begin, mhnb_home: Path) -> None:
    """Ctrl-C after the first report ends mpiexec and all its processes, and removes the file with the key."""

    def interrupt_start(report: StartProgress) -> None:
        if any(rank.host_is_up for rank in report.ranks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(
            3,
            name="given-up",
            keep=True,
            setup='test "$OMPI_COMM_WORLD_RANK" = 0 || sleep 1',
            on_progress=interrupt_start,
        )
    assert not list(mhnb_home.glob("given-up.*/mpi.start*"))
    assert len(list(mhnb_home.glob("given-up.*/log"))) == 1


def test_notebook_folder_is_synced_before_first_cell(begin: Begin, net: HostNet, tmp_path: Path) -> None:
    """With --sync, machines that do not share the notebook's folder get a copy before the first cell."""
    mpiexec_options = [
        "--mca",
        "oob_tcp_if_include",
        f"{net.prefix}.0/24",
        "--mca",
        "plm_rsh_args",
        f"-F {net.ssh_config}",
    ]
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("def say(): return 'brought'\n")
    for host in list(net)[:2]:
        host.mount_disk(folder.parent, nbytes=8 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cluster = begin(
            hosts=[host.address for host in list(net)[:2]],
            ranks=None,
            extra=[*_ROOT, *mpiexec_options],
            sync=".",
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        result = cluster.run("import os\nfrom mine import say\nprint(say(), os.getcwd())").check()
        assert {rank.stdout for rank in result} == {f"brought {folder}\n"}
        cluster.stop()


def test_refusal_of_mpiexec_is_reported(begin: Begin, net: HostNet) -> None:
    """The error contains mpiexec's message, and what to do."""
    with pytest.raises(LaunchError, match=r"'mpiexec-gone' is not on this machine's PATH"):
        begin(2, mpiexec="mpiexec-gone")
    with pytest.raises(LaunchError, match="mpiexec needs passwordless ssh to each host"):
        begin(1, hosts=[net[0].address], extra=[*_ROOT, "--mca", "plm_rsh_args", "-F /dev/null -o BatchMode=yes"])
    if os.geteuid() == 0:
        with pytest.raises(LaunchError, match="refuses to run as root"):
            begin(1, extra=[])


@pytest.mark.cold_start
def test_killed_supervisor_makes_the_cluster_dead(begin: Begin) -> None:
    """A rank whose supervisor is killed makes the cluster dead, and the notification names its host."""
    cluster = begin(2)
    notifications: list[str] = []
    cluster.on_notice(notifications.append)
    rank = cluster.ranks[1]
    assert rank.pid is not None
    psutil.Process(rank.pid).parent().kill()  # type: ignore[union-attr]
    wait_until(lambda: notifications, "it is told")
    assert cluster.state == "dead"
    assert "host1" in notifications[0] or "mpiexec" in notifications[0]


def test_notebook_attaches_to_cluster_behind_mpiexec(mhnb_home: Path) -> None:
    """After its notebook is killed, another one attaches to the ranks with their values; a stop ends ranks and mpiexec."""
    with no_leftovers(mhnb_home):
        start_and_kill_notebook({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        cluster = manager.attach("kept")
        try:
            assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        finally:
            cluster.stop()


def test_detached_cluster_is_stopped_from_a_shell(mhnb_home: Path) -> None:
    """`mhnb stop` ends the ranks behind mpiexec, and no process is left."""
    with no_leftovers(mhnb_home):
        start_and_kill_notebook({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        completed = subprocess.run(
            [sys.executable, "-m", "mhnb", "stop", "kept"], capture_output=True, text=True, check=False
        )
        assert completed.stdout == "kept: 2 ranks stopped\n", completed.stderr


# -- preflight


_PORT = 24_113


class Doctor:
    """Runs `mhnb doctor` for two machines that mpiexec reaches."""

    def __init__(self, net: HostNet, capsys: pytest.CaptureFixture[str]) -> None:
        self._net, self._capsys = net, capsys
        self.first, self.second = (host.address for host in list(net)[:2])

    def __call__(self, *words: str) -> tuple[int, list[str]]:
        """Run `mhnb doctor`; return its exit code and its lines."""
        extra = [f"--set=extra={word}" for word in (*_ROOT, *_mpiexec_options(self._net))]
        options = [
            "--profile",
            "mpi",
            "--hosts",
            f"{self.first},{self.second}",
            "--devices",
            "1",
            "--env",
            f"PYTHONPATH={ROOT}",
        ]
        return run_doctor(self._capsys, *options, "--coordinator-port", str(_PORT), *extra, *words)

    def find_failure(self, *words: str) -> str:
        """Run `mhnb doctor` and check that it finds one failure; return that failure with its fix."""
        code, lines = self(*words)
        assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
        return "\n".join(lines[4:])


@pytest.fixture
def doctor(net: HostNet, own_environment: None, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run `mhnb doctor` for machines by mpiexec."""
    return Doctor(net, capsys)


def test_doctor_checks_machines_by_mpiexec(doctor: Doctor) -> None:
    """Each machine has a row with its given name, and nothing is reported if all is well."""
    code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 2 hosts · all well"), lines
    assert lines[1].split() == (
        f"login python jax mhnb devices link hub port {_PORT} peers name→address clock disk".split()
    )
    assert [line.split()[:2] for line in lines[2:]] == [[doctor.first, "ok"], [doctor.second, "ok"]]


@pytest.mark.parametrize("flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.requires_part("mpich"))])
def test_processes_of_one_machine_share_a_row(
    own_environment: None, capsys: pytest.CaptureFixture[str], flavour: str
) -> None:
    """Processes of either mpiexec that share a machine are checked once, in one row."""
    options = [f"--set=extra={word}" for word in _ROOT] if flavour == "openmpi" else [f"--set=mpiexec={find_mpich()}"]
    code, lines = run_doctor(capsys, "--profile", "mpi", "-n", "3", "--devices", "1", *options)
    assert (code, lines[0], len(lines)) == (0, "preflight · 1 host · all well", 3), lines


def test_slurm_procid_is_ignored(
    own_environment: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM_PROCID is ignored, because all processes in a batch script inherit it and two ranks of one number would end JAX."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    options = [f"--set=extra={word}" for word in _ROOT]
    code, lines = run_doctor(capsys, "--profile", "mpi", "-n", "2", "--devices", "1", *options)
    assert (code, lines[0]) == (0, "preflight · 1 host · all well"), lines


def test_different_jax_version_is_reported(doctor: Doctor, net: HostNet) -> None:
    """A machine with another version of JAX is named, with both versions."""
    with replaced_file(net[1], *jax_metadata("0.99.1")):
        code, lines = doctor()
    assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
    # With two hosts it is unknown which one differs, so the first one counts as right.
    assert lines[4].startswith(f"✗ {doctor.second} has jax 0.99.1, the other hosts have ")


def test_missing_python_is_reported(doctor: Doctor, net: HostNet, tmp_path: Path) -> None:
    """The other machine is still checked, though mpiexec ends all processes if one fails."""
    python = make_python(tmp_path, sys.executable)
    with emptied_folder(net[1], python.parent):
        finding = doctor.find_failure("--python", str(python))
    assert finding.startswith(f"✗ beta: has no such Python: no python: {python}")


def test_blocked_coordinator_port_is_reported(doctor: Doctor, net: HostNet) -> None:
    """The report says which host cannot reach which port, and what to open."""
    with blocked_ports(net[0], _PORT):
        finding = doctor.find_failure()
    assert finding.startswith(
        f"✗ {doctor.second} cannot reach JAX's coordinator on {doctor.first} at {doctor.first}:{_PORT}"
    )


def test_host_name_on_loopback_is_a_warning(doctor: Doctor, net: HostNet) -> None:
    """A machine whose name is loopback gives a warning, with the address that is used instead."""
    with replaced_file(net[1], "/etc/hosts", loopback_hosts(net, net[1])):
        code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 2 hosts · 1 warning"), lines
    assert lines[4].startswith(f"! {doctor.second}'s name resolves to loopback")


def test_unreachable_notebook_is_reported(doctor: Doctor) -> None:
    """Each process prints why it does not reach the notebook, and the others are still waited for."""
    code, lines = doctor("--address", "127.0.0.1")
    assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
    assert "login" not in lines[1].split()
    assert f"{doctor.first} and {doctor.second} cannot reach this notebook on this machine at 127.0.0.1:" in lines[4]


def test_start_behind_a_firewall_is_refused(begin: Begin, net: HostNet) -> None:
    """A start behind a firewall is refused with the table and its duration, before any rank starts."""
    with (
        blocked_ports(net[0], "20000-32000"),
        pytest.raises(PreflightFailed, match=r"(1 failure|2 failures) · [\d.]+ m?s\n") as refused,
    ):
        begin(
            hosts=[host.address for host in list(net)[:2]],
            extra=[*_ROOT, *_mpiexec_options(net)],
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
    assert f"{net[1].address} cannot reach JAX's coordinator on {net[0].address}" in str(refused.value)
