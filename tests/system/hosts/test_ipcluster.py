"""ipyparallel's own `ipcluster start` with mhnb's profiles starts the same ranks, for ipyparallel's own client."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ipyparallel
import psutil
import pytest

from mhnb.launchers.profiles import KINDS
from mhnb.system.resources import profile_dir
from tests.support.leftovers import no_leftovers
from tests.system.hosts import kube, tpu
from tests.system.hosts.hostnet import HostNet, wait_until
from tests.system.hosts.kube import serve_pods
from tests.system.hosts.slurm import Slurm
from tests.system.hosts.tpu import serve_tpu

_SUM = "import jax; from jax.experimental import multihost_utils as m; r = m.process_allgather(jax.numpy.float32(1)).tolist()"
_START_S = 100


def test_every_kind_of_profile_is_registered() -> None:
    """ipyparallel finds a launcher for each kind of profile, and the controller launcher."""
    engines = importlib.metadata.entry_points(group="ipyparallel.engine_launchers")
    known = {point.name for point in engines if point.name.startswith("mhnb-")}
    # An older installation does not have these entry points: install mhnb again.
    assert known == {f"mhnb-{kind}" for kind in KINDS}
    for point in engines:
        if point.name in known:
            assert point.load()
    assert "mhnb" in {point.name for point in importlib.metadata.entry_points(group="ipyparallel.controller_launchers")}


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    def is_there() -> bool:
        assert process.poll() is None, log.read_text()
        return path.exists() and path.read_text().rstrip().endswith("}")

    wait_until(is_there, f"the hub is there; {log}", timeout_s=_START_S)


@contextmanager
def _ipcluster(folder: Path, *words: str) -> Iterator[ipyparallel.Client]:
    log = folder / "ipcluster.log"
    command = [sys.executable, "-m", "ipyparallel.cluster", "start", "--profile-dir", str(folder), *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    try:
        _wait_for(folder / "security" / "ipcontroller-client.json", process, log)
        with ipyparallel.Client(str(folder / "security" / "ipcontroller-client.json")) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()


def _check_engines(client: ipyparallel.Client, count: int) -> list[str]:
    """Check that each engine is the rank of its number and that a collective includes all ranks; return their host names."""
    client.wait_for_engines(count, timeout=_START_S)
    assert client.ids == list(range(count))
    view = client[:]
    assert view.apply_sync(lambda: __import__("jax").process_index()) == client.ids
    view.execute(_SUM, block=True)
    assert view["r"] == [[1.0] * count] * count
    printed = view.execute("print('said')")
    printed.wait_for_output(_START_S)
    assert printed.stdout == ["said\n"] * count
    return list(view.apply_sync(lambda: __import__("socket").gethostname()))


@pytest.mark.ranks
def test_local_profile(tmp_path: Path, mhnb_home: Path) -> None:
    """With simulated hosts each engine id is the rank, and no process is left when ipcluster ends."""
    shutil.copytree(profile_dir("local"), tmp_path / "own")
    with no_leftovers(mhnb_home), _ipcluster(tmp_path / "own", "-n", "2") as client:
        _check_engines(client, 2)
        # The default settings of the hub: it stores no results.
        with pytest.raises(ipyparallel.error.RemoteError, match="NoDB"):
            client.hub_history()
        # The hub's key is not in the environment of any process.
        environments = [str(_environment(process)) for process in psutil.process_iter()]
        assert not [text for text in environments if "IPP_CONNECTION_INFO" in text and str(tmp_path) in text]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


@pytest.mark.requires_part("hosts")
@pytest.mark.hosts
def test_ssh_profile(tmp_path: Path, net: HostNet, mhnb_home: Path) -> None:
    """Machines over ssh work with the profile's own settings alone."""
    folder = tmp_path / "own"
    shutil.copytree(profile_dir("ssh"), folder)
    with (folder / "ipcluster_config.py").open("a") as file:
        file.write(f"c.MhnbSsh.hosts = 'alpha,beta'\nc.MhnbSsh.config_file = {str(net.ssh_config)!r}\n")
        file.write(
            f"c.MhnbSsh.devices = 1\nc.MhnbSsh.environment = {{'PYTHONPATH': {os.environ.get('PYTHONPATH', '')!r}}}\n"
        )
    with no_leftovers(mhnb_home), _ipcluster(folder) as client:
        assert _check_engines(client, 2) == ["alpha", "beta"]


def _own_profile(kind: str, folder: Path, **settings: object) -> Path:
    """Copy a profile and add settings to it, as a user would."""
    shutil.copytree(profile_dir(kind), folder)
    with (folder / "ipcluster_config.py").open("a") as file:
        file.writelines(f"c.{KINDS[kind].__name__}.{name} = {value!r}\n" for name, value in settings.items())
    return folder


def _remaining_processes(net: HostNet) -> list[str]:
    return [words for host in net for words in host.pids().values() if "slurmd" not in words]


@pytest.mark.requires_part("slurm")
def test_slurm_profile(tmp_path: Path, made_up_net: HostNet, mhnb_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Slurm each rank is a task of one job, and no job or process is left when ipcluster ends."""
    with Slurm(made_up_net) as slurm:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        folder = _own_profile("slurm", tmp_path / "own", devices=1, nodes=2, partition="short")
        with no_leftovers(mhnb_home), _ipcluster(folder, "-n", "2") as client:
            assert set(_check_engines(client, 2)) < {host.name for host in made_up_net}
            assert slurm.run("squeue", "-h", "-o", "%P %D %T").split() == ["short", "2", "RUNNING"]
        wait_until(lambda: not slurm.jobs(), "no job is left", timeout_s=30)
        wait_until(
            lambda: not _remaining_processes(made_up_net),
            f"no process is left: {_remaining_processes(made_up_net)}",
            timeout_s=30,
        )


@pytest.mark.soak
@pytest.mark.requires_part("mpi")
def test_mpi_profile(tmp_path: Path, mhnb_home: Path) -> None:
    """With mpiexec each engine id is the process's number and the rank."""
    extra = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    folder = _own_profile("mpi", tmp_path / "own", devices=1, extra=extra)
    with no_leftovers(mhnb_home), _ipcluster(folder, "-n", "2") as client:
        _check_engines(client, 2)
        numbers = client[:].apply_sync(lambda: __import__("os").environ["OMPI_COMM_WORLD_RANK"])
        assert numbers == ["0", "1"]


@pytest.mark.soak
def test_kubernetes_profile(tmp_path: Path, net: HostNet, mhnb_home: Path) -> None:
    """Ranks run in pods, in the order of the pods' numbers; the API server is a fake."""
    if reason := kube.why_absent():
        pytest.skip(reason)
    with serve_pods(net, tmp_path) as kubeconfig:
        folder = _own_profile(
            "kubernetes",
            tmp_path / "own",
            devices=1,
            pod="trainer-{}",
            extra=[f"--kubeconfig={kubeconfig}"],
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        with no_leftovers(mhnb_home), _ipcluster(folder, "-n", "2", f"--ip={net.gateway}") as client:
            assert _check_engines(client, 2) == [host.name for host in list(net)[:2]]


@pytest.mark.soak
def test_tpu_profile(tmp_path: Path, net: HostNet, mhnb_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks run on the workers of a TPU VM, with one gcloud each; the API is a fake, and no TPU was available."""
    if reason := tpu.why_absent():
        pytest.skip(reason)
    (tmp_path / "gcloud").mkdir()
    with serve_tpu(net, str(tmp_path / "gcloud")) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        folder = _own_profile(
            "tpu",
            tmp_path / "own",
            devices=1,
            tpu=tpu.TPU,
            zone=tpu.ZONE,
            project=tpu.PROJECT,
            extra=tpu.login_options(net),
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )
        with no_leftovers(mhnb_home), _ipcluster(folder, "-n", "2", f"--ip={net.gateway}") as client:
            assert _check_engines(client, 2) == [host.name for host in list(net)[:2]]


@pytest.mark.ranks
def test_sigterm_ends_engines_that_wait_for_a_hub(tmp_path: Path, mhnb_home: Path) -> None:
    """SIGTERM ends engines at once while they wait for a hub that has ended."""
    folder = tmp_path / "own"
    shutil.copytree(profile_dir("local"), folder)
    (folder / "security").mkdir()
    hub = {"interface": "tcp://127.0.0.1", "location": "127.0.0.1", "registration": 1, "key": "k", "ssh": ""}
    hub |= {"signature_scheme": "hmac-sha256", "pack": "json", "unpack": "json"}
    (folder / "security" / "ipcontroller-engine.json").write_text(json.dumps(hub))
    words = [sys.executable, "-m", "mhnb.cluster.ipcluster_engines", str(folder), "-n", "1"]
    pipe = subprocess.PIPE
    with no_leftovers(mhnb_home), subprocess.Popen(words, text=True, stdout=pipe, stderr=pipe) as engines:
        assert engines.stdout is not None
        assert engines.stdout.readline().startswith("mhnb: ")
        engines.terminate()
        _, stderr = engines.communicate(timeout=_START_S)
        assert engines.returncode == 1
        # Not the rank's own end, which would come in a minute.
        assert "did not start" not in stderr
