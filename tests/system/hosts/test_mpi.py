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
from mhnb.cluster.status import StartProgress
from mhnb.errors import LaunchError, PreflightFailed
from tests.support.leftovers import no_leftovers
from tests.support.source import ROOT
from tests.system.hosts.cluster import check_nothing_secret, leave_kept
from tests.system.hosts.faults import ask_doctor, closed, covered, jax_metadata, loopback_hosts, make_python, without
from tests.system.hosts.hostnet import HostNet, wait_until
from tests.system.hosts.mpi import find_mpich

pytestmark = [pytest.mark.requires_part("mpi")]

Begin = Callable[..., Cluster]
_WHO = (
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
        asked: dict[str, Any] = {"devices": 1, "name": "mpi", "profile": "mpi", "ranks": ranks, "extra": _ROOT}
        started.append(manager.start(**asked | options))
        return started[-1]

    with no_leftovers(mhnb_home):
        yield start
        for cluster in started:
            cluster.stop()


def _seen(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) + str(process.environ())
    except psutil.Error:
        return ""


def test_the_rank_is_the_number_in_comm_world(begin: Begin) -> None:
    """Each rank is the process's number in Open MPI, and no secret is in any command line or environment."""
    cluster = begin()
    said = cluster.run(_WHO).check()
    assert [rank.stdout.partition(" ")[2] for rank in said] == ["[0.0, 1.0, 2.0, 3.0]\n"] * 4
    seen = [text for text in map(_seen, psutil.process_iter()) if "mhnb.rank.supervisor" in text or "mpiexec" in text]
    # The four supervisors, the hub's, mpiexec and its watchdog.
    assert len(seen) >= 7
    assert cluster._resources.key.hex() not in "".join(seen)
    check_nothing_secret(cluster)
    # The file that contained the key has been removed.
    assert not list(cluster._resources.run_dir.glob("mpi.*"))


@pytest.mark.requires_part("mpich")
def test_mpich_does_the_same(begin: Begin) -> None:
    """MPICH's mpiexec works too, though its options and variables have other names."""
    mpiexec = find_mpich()
    assert mpiexec is not None
    said = begin(2, mpiexec=mpiexec, extra=[]).run(_WHO).check()
    assert [rank.stdout.partition(" ")[2] for rank in said] == ["[0.0, 1.0]\n"] * 2


def test_several_ranks_in_a_process(begin: Begin) -> None:
    """With several ranks per host, each process of mpiexec runs neighbouring ranks."""
    cluster = begin(4, ranks_per_host=2)
    assert [rank.host for rank in cluster.ranks] == ["host0", "host0", "host1", "host1"]
    assert [rank.text for rank in cluster.run("import jax; jax.process_index()").check()] == list("0123")


def _reach(net: HostNet) -> list[str]:
    return ["--mca", "oob_tcp_if_include", f"{net.prefix}.0/24", "--mca", "plm_rsh_args", f"-F {net.ssh_config}"]


def test_over_machines(begin: Begin, net: HostNet) -> None:
    """With host names each machine has a supervisor, which mpiexec's own ssh starts."""
    reach = _reach(net)
    with pytest.MonkeyPatch.context() as patch:
        # On other machines nothing is inherited.
        patch.setenv("MHNB_TEST", "here")
        cluster = begin(
            hosts=[host.address for host in net],
            extra=[*_ROOT, *reach],
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
    said = cluster.run(_WHO).check()
    assert [rank.stdout for rank in said] == [f"{host.name} [0.0, 1.0, 2.0, 3.0]\n" for host in net]
    cluster.stop()
    wait_until(lambda: not any(host.pids() for host in net), "every machine is without a process of the test")


def test_a_start_that_is_given_up_while_processes_come_up(begin: Begin, mhnb_home: Path) -> None:
    """Ctrl-C after the first report ends mpiexec and all its processes, and removes the file with the key."""

    def give_up(report: StartProgress) -> None:
        if any(rank.host_is_up for rank in report.ranks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(3, name="given-up", keep=True, setup='test "$OMPI_COMM_WORLD_RANK" = 0 || sleep 1', on_progress=give_up)
    assert not list(mhnb_home.glob("given-up.*/mpi.start*"))
    assert len(list(mhnb_home.glob("given-up.*/log"))) == 1


def test_the_notebooks_folder_is_brought_there(begin: Begin, net: HostNet, tmp_path: Path) -> None:
    """With --sync, machines that do not share the notebook's folder get a copy before the first cell."""
    reach = ["--mca", "oob_tcp_if_include", f"{net.prefix}.0/24", "--mca", "plm_rsh_args", f"-F {net.ssh_config}"]
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
            extra=[*_ROOT, *reach],
            sync=".",
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        said = cluster.run("import os\nfrom mine import say\nprint(say(), os.getcwd())").check()
        assert {rank.stdout for rank in said} == {f"brought {folder}\n"}
        cluster.stop()


def test_what_mpiexec_refuses_is_said(begin: Begin, net: HostNet) -> None:
    """The error contains mpiexec's message, and what to do."""
    with pytest.raises(LaunchError, match=r"there is no 'mpiexec-gone' on this machine's PATH"):
        begin(2, mpiexec="mpiexec-gone")
    with pytest.raises(LaunchError, match="mpiexec must reach each host by ssh without a password"):
        begin(1, hosts=[net[0].address], extra=[*_ROOT, "--mca", "plm_rsh_args", "-F /dev/null -o BatchMode=yes"])
    if os.geteuid() == 0:
        with pytest.raises(LaunchError, match="refuses to run as root"):
            begin(1, extra=[])


def test_a_process_that_is_killed_ends_them_all(begin: Begin) -> None:
    """A rank whose supervisor is killed makes the cluster dead, and the notification names its host."""
    cluster = begin(2)
    told: list[str] = []
    cluster.on_notice(told.append)
    rank = cluster.ranks[1]
    assert rank.pid is not None
    psutil.Process(rank.pid).parent().kill()  # type: ignore[union-attr]
    wait_until(lambda: told, "it is told")
    assert cluster.state == "dead"
    assert "host1" in told[0] or "mpiexec" in told[0]


def test_a_kept_cluster_is_taken_over(mhnb_home: Path) -> None:
    """After its notebook is killed, another one attaches to the ranks with their values; a stop ends ranks and mpiexec."""
    with no_leftovers(mhnb_home):
        leave_kept({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        cluster = manager.attach("kept")
        try:
            assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        finally:
            cluster.stop()


def test_a_kept_cluster_is_stopped_from_a_shell(mhnb_home: Path) -> None:
    """`mhnb stop` ends the ranks behind mpiexec, and no process is left."""
    with no_leftovers(mhnb_home):
        leave_kept({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        told = subprocess.run(
            [sys.executable, "-m", "mhnb", "stop", "kept"], capture_output=True, text=True, check=False
        )
        assert told.stdout == "kept: 2 ranks stopped\n", told.stderr


# -- preflight


_PORT = 24_113


class Doctor:
    """Runs `mhnb doctor` for two machines that mpiexec reaches."""

    def __init__(self, net: HostNet, capsys: pytest.CaptureFixture[str]) -> None:
        self._net, self._capsys = net, capsys
        self.first, self.second = (host.address for host in list(net)[:2])

    def __call__(self, *words: str) -> tuple[int, list[str]]:
        """Run `mhnb doctor`; return its exit code and its lines."""
        extra = [f"--set=extra={word}" for word in (*_ROOT, *_reach(self._net))]
        place = [
            "--profile",
            "mpi",
            "--hosts",
            f"{self.first},{self.second}",
            "--devices",
            "1",
            "--env",
            f"PYTHONPATH={ROOT}",
        ]
        return ask_doctor(self._capsys, *place, "--coordinator-port", str(_PORT), *extra, *words)

    def finds(self, *words: str) -> str:
        """Run `mhnb doctor` and check that it finds one failure; return that failure with its fix."""
        code, lines = self(*words)
        assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
        return "\n".join(lines[4:])


@pytest.fixture
def doctor(net: HostNet, own_environment: None, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run `mhnb doctor` for machines by mpiexec."""
    return Doctor(net, capsys)


def test_doctor_looks_by_mpiexec(doctor: Doctor) -> None:
    """Each machine has a row with its given name, and nothing is reported if all is well."""
    code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 2 hosts · all well"), lines
    assert lines[1].split() == (
        f"login python jax mhnb devices link hub port {_PORT} peers name→address clock disk".split()
    )
    assert [line.split()[:2] for line in lines[2:]] == [[doctor.first, "ok"], [doctor.second, "ok"]]


@pytest.mark.parametrize("flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.requires_part("mpich"))])
def test_processes_of_this_machine_are_one_row(
    own_environment: None, capsys: pytest.CaptureFixture[str], flavour: str
) -> None:
    """Processes of either mpiexec that share a machine are checked once, in one row."""
    own = [f"--set=extra={word}" for word in _ROOT] if flavour == "openmpi" else [f"--set=mpiexec={find_mpich()}"]
    code, lines = ask_doctor(capsys, "--profile", "mpi", "-n", "3", "--devices", "1", *own)
    assert (code, lines[0], len(lines)) == (0, "preflight · 1 host · all well", 3), lines


def test_a_number_of_slurms_is_no_rank(
    own_environment: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM_PROCID is ignored, because all processes in a batch script inherit it and two ranks of one number would end JAX."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    own = [f"--set=extra={word}" for word in _ROOT]
    code, lines = ask_doctor(capsys, "--profile", "mpi", "-n", "2", "--devices", "1", *own)
    assert (code, lines[0]) == (0, "preflight · 1 host · all well"), lines


def test_another_jax_on_a_machine(doctor: Doctor, net: HostNet) -> None:
    """A machine with another version of JAX is named, with both versions."""
    with covered(net[1], *jax_metadata("0.99.1")):
        code, lines = doctor()
    assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
    # With two hosts it is unknown which one differs, so the first one counts as right.
    assert lines[4].startswith(f"✗ {doctor.second} has jax 0.99.1, and ")


def test_a_machine_without_the_python(doctor: Doctor, net: HostNet, tmp_path: Path) -> None:
    """The other machine is still checked, though mpiexec ends all processes if one fails."""
    python = make_python(tmp_path, sys.executable)
    with without(net[1], python.parent):
        said = doctor.finds("--python", str(python))
    assert said.startswith(f"✗ beta: has no such Python: no python: {python}")


def test_a_coordinator_behind_a_firewall(doctor: Doctor, net: HostNet) -> None:
    """The report says which host cannot reach which port, and what to open."""
    with closed(net[0], _PORT):
        said = doctor.finds()
    assert said.startswith(
        f"✗ {doctor.second} cannot reach JAX's coordinator on {doctor.first} at {doctor.first}:{_PORT}"
    )


def test_a_machine_whose_name_is_loopback(doctor: Doctor, net: HostNet) -> None:
    """A machine whose name is loopback gives a warning, with the address that is used instead."""
    with covered(net[1], "/etc/hosts", loopback_hosts(net, net[1])):
        code, lines = doctor()
    assert (code, lines[0]) == (0, "preflight · 2 hosts · 1 warning"), lines
    assert lines[4].startswith(f"! {doctor.second}'s name resolves to loopback")


def test_a_notebook_that_nobody_reaches(doctor: Doctor) -> None:
    """mpiexec forwards no requests: the table has only what a machine reports unrequested, and why it got no request."""
    code, lines = doctor("--address", "127.0.0.1")
    assert (code, lines[0]) == (1, "preflight · 2 hosts · 1 failure"), lines
    assert "jax" in lines[1].split()
    assert "login" not in lines[1].split()
    assert f"{doctor.first} and {doctor.second} cannot reach this notebook on this machine at 127.0.0.1:" in lines[4]


def test_a_start_by_mpiexec_behind_a_firewall_is_refused(begin: Begin, net: HostNet) -> None:
    """A start behind a firewall is refused with the table and its duration, before any rank starts."""
    with (
        closed(net[0], "20000-32000"),
        pytest.raises(PreflightFailed, match=r"(1 failure|2 failures) · [\d.]+ m?s\n") as refused,
    ):
        begin(
            hosts=[host.address for host in list(net)[:2]],
            extra=[*_ROOT, *_reach(net)],
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
    assert f"{net[1].address} cannot reach JAX's coordinator on {net[0].address}" in str(refused.value)
