"""pip in the ranks' environment: it runs once, however many ranks there are."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.files import run_pip
from mhnb.magics.files import format_pip_output


@pytest.fixture
def with_pip(cluster: Cluster) -> Iterator[Cluster]:
    """Ranks that find pip: the unmodified wheel that comes with Python, if the environment has none."""
    ensurepip = pytest.importorskip("ensurepip")
    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    if wheel is None:
        pytest.skip("this Python's pip is not where it usually lies")
    cluster.run(
        "import os, sys\nbefore = os.environ.get('PYTHONPATH', '')\n"
        f"sys.path.append({str(wheel)!r}); os.environ['PYTHONPATH'] = before + {os.pathsep + str(wheel)!r}"
    ).check()
    yield cluster
    cluster.run("sys.path.pop(); os.environ['PYTHONPATH'] = before; del before").check()


def test_pip_runs_once_in_a_shared_environment(with_pip: Cluster) -> None:
    """pip runs once if ranks share an environment, as on simulated hosts, and the answer to a query is shown in full."""
    (run,) = run_pip(with_pip, ["list"])
    assert (run.host, run.python, run.exit_code) == (f"host0 ({socket.gethostname()})", sys.executable, 0)
    assert "jax" in format_pip_output(["list"], [run])


def test_unknown_package_shows_the_message_of_pip(with_pip: Cluster) -> None:
    """pip's own message about an unknown package is shown in full, and the cluster stays usable."""
    arguments = ["install", "--no-index", "no-such-package-at-all"]
    (run,) = run_pip(with_pip, arguments)
    assert run.exit_code != 0
    output = format_pip_output(arguments, [run])
    assert "no-such-package-at-all" in output
    assert "restart" not in output
    assert with_pip.run("print(1)").check()[0].stdout == "1\n"
