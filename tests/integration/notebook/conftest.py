"""Fixtures: an IPython shell with the magics, and one cluster of 2 hosts x 2 devices that every test leaves clean."""

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
from tests.integration.ranks.conftest import list_pids, wait_for_exit, warm_starts, warm_supervisors
from tests.support.timeouts import longer_interrupt_timeouts

__all__ = ["longer_interrupt_timeouts", "warm_starts", "warm_supervisors"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder with `ranks`, because all of them start ranks."""
    for item in items:
        if "tests/integration/notebook/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.ranks)


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The output and the outcome of one notebook cell."""

    out: str
    """stdout without ANSI colours."""
    err: str
    error: BaseException | None
    value: Any

    @property
    def text(self) -> str:
        """stdout followed by stderr."""
        return self.out + self.err


class Session:
    """Runs cells in a bare IPython shell, as a user would."""

    def __init__(self, capsys: pytest.CaptureFixture[str], shell: InteractiveShell) -> None:
        self.shell = shell
        self._capsys = capsys

    def try_(self, source: str) -> CellOutcome:
        """Run a cell that may fail."""
        self._capsys.readouterr()
        result = self.shell.run_cell(source, store_history=True)
        captured = self._capsys.readouterr()
        error = result.error_before_exec or result.error_in_exec
        return CellOutcome(_ANSI.sub("", captured.out), _ANSI.sub("", captured.err), error, result.result)

    def run(self, source: str) -> CellOutcome:
        """Run a cell that must succeed."""
        outcome = self.try_(source)
        assert outcome.error is None, outcome.text
        return outcome

    def expect_usage_error(self, source: str) -> str:
        """Run a cell that must raise a UsageError before it reaches any rank; return the text of the error."""
        before = manager.current().run("0").seq if manager.all_clusters() else 0
        outcome = self.try_(source)
        assert type(outcome.error).__name__ == "UsageError", outcome.text
        assert "Traceback" not in outcome.text
        if before:
            assert manager.current().run("0").seq == before + 1
        return str(outcome.error)


@pytest.fixture(autouse=True)
def wait_for_slow_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait up to 30 s for a rank's answer to Tab and `?`, because the usual half second is too short on a loaded machine."""
    monkeypatch.setattr(completion, "_ANSWER_TIMEOUT_S", 30.0)


@contextmanager
def hidden_clusters() -> Iterator[None]:
    """Hide the clusters that are running, so that `%mhjax` finds only those started inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "_clusters", {})
        patch.setattr(manager, "_names_by_use", [])
        yield


@pytest.fixture(scope="package")
def one_shell(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """Create an IPython shell with the magics, as a script would. Clusters of other test folders are hidden from it."""
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    with hidden_clusters(), pytest.MonkeyPatch.context() as patch:
        # A kernel that a test kills may leave half a file in the cache that all processes share, and then Tab finds nothing.
        patch.setattr("jedi.settings.cache_directory", str(tmp_path_factory.mktemp("jedi")))
        shell = InteractiveShell.instance(config=config)
        shell.run_cell("%load_ext mhnb")
        yield shell
        shell.run_line_magic("unload_ext", "mhnb")
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()


@pytest.fixture
def idle(one_shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Session:
    """A session for tests that need no cluster."""
    return Session(capsys, one_shell)


_SET_RANK_NUMBER = "import jax\nme = jax.process_index()"


@pytest.fixture(scope="package")
def one_cluster(one_shell: InteractiveShell) -> Iterator[Cluster]:
    """A cluster of 2 hosts x 2 devices, started by the magic."""
    assert one_shell.run_cell("%mhjax start -n 2 --devices 2").success
    cluster = manager.current()
    cluster.run(_SET_RANK_NUMBER).check()
    yield cluster
    # If a test spoiled the cluster, this is its replacement.
    last = manager.by_name(cluster.name)
    pids = list_pids(last)
    last.stop()
    assert wait_for_exit(pids) == []


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, clean before and after each test. An extra cell absorbs notes about cells of another test."""
    now = manager.by_name(one_cluster.name)
    if now.state != "clean":
        # The test that spoiled the cluster has failed already. Other tests should not fail because of it.
        now = now.restart()
        now.run(_SET_RANK_NUMBER).check()
    now.run("0").check()
    yield now
    assert now.state == "clean", now.reason


@pytest.fixture
def nb(idle: Session, cluster: Cluster) -> Iterator[Session]:
    """A session with the shared cluster. Auto mode is off before and after each test."""
    yield idle
    idle.run("%mhjax auto off")
