"""A cluster that a real mpiexec starts: on this machine, and over the made-up ones. Nothing of it speaks MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb import starting
from mhnb.cluster import Cluster
from mhnb.errors import LaunchError
from tests.hosts.cluster import leave_kept
from tests.hosts.hostnet import HostNet, wait_until
from tests.hosts.mpi import find_mpich
from tests.leftovers import no_leftovers

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
    """Start a cluster by mpiexec; stopped at the end, and nothing may be left of it."""
    started: list[Cluster] = []

    def start(ranks: int = 4, **options: Any) -> Cluster:
        asked: dict[str, Any] = {"devices": 1, "name": "mpi", "profile": "mpi", "ranks": ranks, "extra": _ROOT}
        started.append(starting.start(**asked | options))
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
    """Open MPI numbers the processes, JAX counts the same, and nothing secret is in any command line or environment."""
    cluster = begin()
    said = cluster.run(_WHO).check()
    assert [rank.stdout.partition(" ")[2] for rank in said] == ["[0.0, 1.0, 2.0, 3.0]\n"] * 4
    seen = [text for text in map(_seen, psutil.process_iter()) if "mhnb.rank.host" in text or "mpiexec" in text]
    # The four supervisors, the hub's, mpiexec and what holds it.
    assert len(seen) >= 7
    assert cluster._ground.key.hex() not in "".join(seen)
    # The file that brought it is gone.
    assert not list(cluster._ground.run_dir.glob("mpi.*"))


@pytest.mark.requires_part("mpich")
def test_mpich_does_the_same(begin: Begin) -> None:
    """MPICH's mpiexec has other words for it all."""
    mpiexec = find_mpich()
    assert mpiexec is not None
    said = begin(2, mpiexec=mpiexec, extra=[]).run(_WHO).check()
    assert [rank.stdout.partition(" ")[2] for rank in said] == ["[0.0, 1.0]\n"] * 2


def test_several_ranks_in_a_process(begin: Begin) -> None:
    """With ranks per host each process of mpiexec holds neighbours."""
    cluster = begin(4, ranks_per_host=2)
    assert [rank.host for rank in cluster.ranks] == ["host0", "host0", "host1", "host1"]
    assert [rank.text for rank in cluster.run("import jax; jax.process_index()").check()] == list("0123")


def test_over_machines(begin: Begin, net: HostNet) -> None:
    """With names each machine has a supervisor, reached by mpiexec's own ssh."""
    reach = ["--mca", "oob_tcp_if_include", f"{net.prefix}.0/24", "--mca", "plm_rsh_args", f"-F {net.ssh_config}"]
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


def test_the_notebooks_folder_is_brought_there(begin: Begin, net: HostNet, tmp_path: Path) -> None:
    """Machines that do not share the notebook's folder get it by --sync before the first cell."""
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
    """Its own sentence, and what to do."""
    with pytest.raises(LaunchError, match=r"there is no 'mpiexec-gone' on this machine's PATH"):
        begin(2, mpiexec="mpiexec-gone")
    with pytest.raises(LaunchError, match="mpiexec must reach each host by ssh without a password"):
        begin(1, hosts=[net[0].address], extra=[*_ROOT, "--mca", "plm_rsh_args", "-F /dev/null -o BatchMode=yes"])
    if os.geteuid() == 0:
        with pytest.raises(LaunchError, match="refuses to run as root"):
            begin(1, extra=[])


def test_a_process_that_is_killed_ends_them_all(begin: Begin) -> None:
    """When a rank's supervisor is killed, the cluster is dead and says which host it was."""
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
    """Its notebook is killed; another one finds the ranks behind mpiexec with their values, a stop ends them and mpiexec."""
    with no_leftovers(mhnb_home):
        leave_kept({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        cluster = starting.attach("kept")
        try:
            assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        finally:
            cluster.stop()


def test_a_kept_cluster_is_stopped_from_a_shell(mhnb_home: Path) -> None:
    """`mhnb stop` reaches the ranks behind mpiexec as a notebook would, and nothing is left."""
    with no_leftovers(mhnb_home):
        leave_kept({"profile": "mpi", "ranks": 2, "devices": 1, "extra": _ROOT})
        told = subprocess.run(
            [sys.executable, "-m", "mhnb", "stop", "kept"], capture_output=True, text=True, check=False
        )
        assert told.stdout == "kept: 2 ranks stopped\n", told.stderr
