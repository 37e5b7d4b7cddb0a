"""Four simulated machines for the tests of this folder, restored for each test, with no process left from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.core.launch.environment import rank_environment
from mhnb.launchers import remote_command, ssh
from tests.integration.ranks.conftest import warm_starts, warm_supervisors
from tests.support.leftovers import keep_for_session, kill_new, processes_of
from tests.support.source import ROOT
from tests.support.timeouts import longer_interrupt_timeouts
from tests.support.typed_lines import user
from tests.support.warm_python import write
from tests.support.warm_start import WarmProcess
from tests.system.hosts.cluster import Begin
from tests.system.hosts.hostnet import HostNet, wait_until

__all__ = ["longer_interrupt_timeouts", "user", "warm_starts", "warm_supervisors"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder as one that needs the machines."""
    for item in items:
        if "tests/system/hosts/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.requires_part("hosts"))
            item.add_marker(pytest.mark.hosts)


@pytest.fixture(scope="session")
def made_up_net() -> Iterator[HostNet]:
    """The machines of this test session."""
    with HostNet() as net:
        yield net


@pytest.fixture
def net(made_up_net: HostNet, mhnb_home: Path) -> Iterator[HostNet]:
    """The machines, all on and without faults. At the end, no process of the test may be left on any machine."""
    before = processes_of(mhnb_home)
    yield made_up_net
    try:
        wait_until(lambda: not _remaining_processes(made_up_net), "every machine is without a process of the test")
    except AssertionError as error:
        remaining = _remaining_processes(made_up_net)
        # One leak must not fail every later test. First kill the logins from this machine: gcloud logs in again when a
        # machine ends the login.
        kill_new(mhnb_home, before)
        for host in made_up_net:
            if host.name in remaining:
                host.kill_all()
        raise AssertionError(f"{error}: {remaining}") from None
    finally:
        made_up_net.restore()


def _remaining_processes(net: HostNet) -> dict[str, dict[int, str]]:
    return {host.name: pids for host in net if (pids := host.pids())}


@pytest.fixture(scope="session")
def warm_interpreter(made_up_net: HostNet, warm_supervisors: WarmProcess) -> Iterator[str]:
    """An interpreter for machines, whose supervisors are forked.

    One warm process has the environment of a login, the other that of the tests.
    """
    login = {name: os.environ[name] for name in ("HOME", "PATH")}
    simulated = rank_environment({}, devices=None, simulated=True)
    warm = WarmProcess("supervisor", {**login, "PYTHONPATH": str(ROOT), **simulated})
    keep_for_session(warm.pid)
    yield str(write(made_up_net.folder / "python", [warm.address, warm_supervisors.address]))
    warm.close()


@pytest.fixture(autouse=True)
def warm_machines(request: pytest.FixtureRequest, warm_interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let that be the machines' interpreter, unless the test is marked `cold_start` or names another."""
    if request.node.get_closest_marker("cold_start") is None:
        for launcher in (ssh, remote_command):
            monkeypatch.setattr(launcher, "sys", SimpleNamespace(executable=warm_interpreter))


@pytest.fixture
def begin(net: HostNet, own_environment: None) -> Iterator[Begin]:
    """Start a cluster on the machines, and stop it at the end. A process left by it fails the test in `net`."""
    started: list[Cluster] = []

    def start(count: int = 4, devices: int | None = 2, **options: Any) -> Cluster:
        names = [host.name for host in list(net)[:count]]
        # The tree under test, whatever the environment's own installation points to.
        environment = {"PYTHONPATH": str(ROOT)}
        options = {"name": "remote", "config_file": str(net.ssh_config), "environment": environment} | options
        started.append(manager.start(names, devices, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
