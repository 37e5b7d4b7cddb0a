"""What every test can count on: folders of its own, an environment without JAX settings, nothing left behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.leftovers import no_leftovers
from tests.support.timeouts import write_patience

pytest_plugins = ["tests.support.parts"]

# A stall of a loaded machine is no defect of what is tried.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_OWN_FOLDERS = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "MHNB_HOME",
    "MPLCONFIGDIR",
)
_TOGETHER = {"hosts": "hosts", "ranks": "ranks", "browser": "ranks"}
"""By mark, the first that fits: which tests one xdist worker runs, one after the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that start ranks in one xdist worker: there are more ranks than cores already.

    Those on made-up machines have another: they mostly wait, for a network that is gone, say, and the machines are there once.
    """
    for item in items:
        group = next((group for mark, group in _TOGETHER.items() if item.get_closest_marker(mark)), None)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def own_folders() -> Iterator[Path]:
    """A folder of this session (with xdist: of this worker), removed at its end. Short: socket paths go below it."""
    folder = Path(tempfile.mkdtemp(prefix="mhnb-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def own_environment(own_folders: Path) -> Iterator[None]:
    """Point IPython, Jupyter, matplotlib and mhnb at folders of this session; drop the user's JAX settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _OWN_FOLDERS:
            folder = own_folders / name.lower()
            folder.mkdir()
            patch.setenv(name, str(folder))
        write_patience(own_folders / "ipythondir")
        for name in [n for n in os.environ if n.startswith(("JAX_", "XLA_")) or n == "PYTHONHASHSEED"]:
            patch.delenv(name)
        # A shell that starts the suite in the background has it ignore Ctrl-C, and every process that it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Ranks that are made to crash leave no gigabyte behind.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        yield


@pytest.fixture(scope="session")
def mhnb_home(own_environment: None) -> Path:
    """Where clusters of this session keep their logs and files; inherited by every process of theirs."""
    return Path(os.environ["MHNB_HOME"])


@pytest.fixture
def leftovers(mhnb_home: Path) -> Iterator[None]:
    """Assert at the end that no process of a cluster and no lasting thread is left.

    A fixture that starts a cluster for one test asks for this one, so that the look comes after its own end.
    Clusters of wider scope were there before and may stay.
    """
    with no_leftovers(mhnb_home):
        yield
