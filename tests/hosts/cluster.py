"""A cluster on the machines of the net, for the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mhnb.cluster import Cluster
from tests.source import ROOT

__all__ = ["Begin", "check_sum", "leave_kept"]

Begin = Callable[..., Cluster]

_SUM = (
    "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
    "print(m.process_allgather(jnp.float32(jax.process_index())).sum())"
)


def check_sum(cluster: Cluster) -> None:
    """A collective over every rank gives what it should, on each."""
    count = cluster.process_count
    said = cluster.run(_SUM).check()
    assert {rank.stdout for rank in said} == {f"{count * (count - 1) / 2}\n"}


def leave_kept(options: dict[str, Any]) -> None:
    """Another notebook starts the cluster `kept`, gives x a value, and is killed."""
    program = (
        f"import mhnb, os\ncluster = mhnb.start(name='kept', keep=True, **{options!r})\n"
        "cluster.run('x = 41').check()\nprint('ready', flush=True)\nos.kill(os.getpid(), 9)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert told.stdout == "ready\n", told.stderr
