"""Every test has its own directories and an environment without JAX settings, and leaves nothing behind."""

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
from tests.support.timeouts import write_kernel_timeouts

pytest_plugins = [
    "tests.support.parts",
    "tests.support.samples",
    "tests.support.split_hosts",
    "tests.support.teardown_limits",
    "tests.support.tested",
    "tests.support.timings",
    "tests.support.workers",
]

# A stall of a loaded machine is not a defect of the code under test. Each run tries other examples; where the variable CI is set,
# Hypothesis by itself would try the same ones for ever.
settings.register_profile(
    "suite", max_examples=40, derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

_DIRECTORY_VARIABLES = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "MHNB_HOME",
    "MPLCONFIGDIR",
)


@pytest.fixture(scope="session")
def own_folders() -> Iterator[Path]:
    """Return a directory of this session (with xdist: of this worker), removed at its end.

    Its path is short, because socket paths are below it.
    """
    folder = Path(tempfile.mkdtemp(prefix="mhnb-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def own_environment(own_folders: Path) -> Iterator[None]:
    """Set directories of this session for IPython, Jupyter, matplotlib and mhnb, and remove the user's JAX settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _DIRECTORY_VARIABLES:
            folder = own_folders / name.lower()
            folder.mkdir()
            patch.setenv(name, str(folder))
        write_kernel_timeouts(own_folders / "ipythondir")
        for name in [n for n in os.environ if n.startswith(("JAX_", "XLA_")) or n == "PYTHONHASHSEED"]:
            patch.delenv(name)
        # A shell that starts the suite in the background makes it and every process that it starts ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Ranks that crash on purpose leave no core file of a gigabyte.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        yield


@pytest.fixture(scope="session")
def mhnb_home(own_environment: None) -> Path:
    """Return the directory of logs and files of this session's clusters; every process of theirs inherits it."""
    return Path(os.environ["MHNB_HOME"])


@pytest.fixture
def leftovers(mhnb_home: Path) -> Iterator[None]:
    """Assert at the end that no cluster process and no thread that is not a daemon is left.

    A fixture that starts a cluster for one test requests this one, so that the check follows its own teardown.
    Clusters of wider scope ran before and may stay.
    """
    with no_leftovers(mhnb_home):
        yield
