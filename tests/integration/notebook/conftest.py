"""A bare shell with the magics, and one cluster of 2 x 2 that every test leaves clean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.magics import completion
from tests.integration.ranks.conftest import every_pid, wait_gone
from tests.support.timeouts import patience

__all__ = ["patience"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here starts ranks."""
    for item in items:
        if "tests/integration/notebook/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.ranks)


@dataclass(frozen=True, slots=True)
class Said:
    """What a cell of the notebook led to."""

    out: str
    """stdout, without colours."""
    err: str
    error: BaseException | None
    value: Any

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err


class Session:
    """A user who types cells into a bare shell."""

    def __init__(self, capsys: pytest.CaptureFixture[str], shell: InteractiveShell) -> None:
        self.shell = shell
        self._capsys = capsys

    def try_(self, source: str) -> Said:
        """Run a cell, whatever comes of it."""
        self._capsys.readouterr()
        result = self.shell.run_cell(source, store_history=True)
        heard = self._capsys.readouterr()
        error = result.error_before_exec or result.error_in_exec
        return Said(_ANSI.sub("", heard.out), _ANSI.sub("", heard.err), error, result.result)

    def run(self, source: str) -> Said:
        """Run a cell that ends well."""
        said = self.try_(source)
        assert said.error is None, said.text
        return said

    def refuse(self, source: str) -> str:
        """Run a cell that is a usage error and reaches no rank; return the error's text."""
        before = manager.current().run("0").seq if manager.all_clusters() else 0
        said = self.try_(source)
        assert type(said.error).__name__ == "UsageError", said.text
        assert "Traceback" not in said.text
        if before:
            assert manager.current().run("0").seq == before + 1
        return str(said.error)


@pytest.fixture(autouse=True)
def hears_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what a rank answers to Tab and `?`, however loaded the machine is: a user types on after half a second."""
    monkeypatch.setattr(completion, "_ANSWER_TIMEOUT_S", 30.0)


@contextmanager
def no_cluster_in_sight() -> Iterator[None]:
    """Hide what runs already: `%mhjax` finds only what is started within."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "_clusters", {})
        patch.setattr(manager, "_names_by_use", [])
        yield


@pytest.fixture(scope="package")
def one_shell(own_environment: None) -> Iterator[InteractiveShell]:
    """A shell as a script would make it, with the magics; clusters that other folders share are out of its sight."""
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    with no_cluster_in_sight():
        shell = InteractiveShell.instance(config=config)
        shell.run_cell("%load_ext mhnb")
        yield shell
        shell.run_line_magic("unload_ext", "mhnb")
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()


@pytest.fixture
def idle(one_shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Session:
    """The shell, where no cluster is needed."""
    return Session(capsys, one_shell)


_ENTER = "import jax\nme = jax.process_index()"


@pytest.fixture(scope="package")
def one_cluster(one_shell: InteractiveShell) -> Iterator[Cluster]:
    """2 x 2, started by the magic."""
    assert one_shell.run_cell("%mhjax start -n 2 --devices 2").success
    cluster = manager.current()
    cluster.run(_ENTER).check()
    yield cluster
    # The one that a spoilt one was replaced by, too.
    last = manager.by_name(cluster.name)
    pids = every_pid(last)
    last.stop()
    assert wait_gone(pids) == []


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """The folder's cluster, clean before and after; no other test's cell is spoken of in the first cell's note."""
    now = manager.by_name(one_cluster.name)
    if now.state != "clean":
        # The test that spoilt it has failed for that, and no other is to.
        now = now.restart()
        now.run(_ENTER).check()
    now.run("0").check()
    yield now
    assert now.state == "clean", now.reason


@pytest.fixture
def nb(idle: Session, cluster: Cluster) -> Iterator[Session]:
    """A user in front of the cluster; auto mode is off before and after."""
    yield idle
    idle.run("%mhjax auto off")
