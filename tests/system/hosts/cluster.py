"""Helpers that start and check a cluster on the simulated machines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mhnb.cluster.cluster import Cluster
from tests.support.source import ROOT

__all__ = ["Begin", "check_no_key_is_visible", "check_sum", "secret_keys", "start_and_kill_notebook"]

Begin = Callable[..., Cluster]

_SUM = (
    "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\n"
    "print(m.process_allgather(jnp.float32(jax.process_index())).sum())"
)


def check_sum(cluster: Cluster) -> None:
    """Check that a collective over all ranks gives the right result on each rank."""
    count = cluster.process_count
    result = cluster.run(_SUM).check()
    assert {rank.stdout for rank in result} == {f"{count * (count - 1) / 2}\n"}


def start_and_kill_notebook(options: dict[str, Any]) -> None:
    """Run another notebook that starts the detachable cluster `kept`, sets x, and is killed."""
    program = (
        f"import mhnb, os\ncluster = mhnb.start(name='kept', keep=True, **{options!r})\n"
        "cluster.run('x = 41').check()\nprint('ready', flush=True)\nos.kill(os.getpid(), 9)"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert completed.stdout == "ready\n", completed.stderr


def secret_keys(cluster: Cluster) -> dict[str, str]:
    """Return the cluster's secret keys."""
    hub = json.loads((cluster.log_dir.parent / "profile/security/ipcontroller-client.json").read_text())
    return {"link": cluster._resources.key.hex(), "hub": hub["key"], "curve": hub["curve_serverkey"]}


_READ_PROCESSES = """
import glob, os
print(dict(os.environ))
for at in glob.glob("/proc/[0-9]*"):
    try:
        words = open(f"{at}/cmdline", "rb").read()
        if b"mhnb" in words:
            print(words, open(f"{at}/environ", "rb").read())
    except OSError:
        continue
"""
_RUN_PROGRAM = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {look!r}], capture_output=True, text=True).stdout)"


def check_no_key_is_visible(cluster: Cluster) -> None:
    """Check that a program started by a cell finds no key in its environment, nor in `/proc` of mhnb's processes on that host."""
    keys = [key for key in secret_keys(cluster).values() if key]
    for rank in cluster.run(_RUN_PROGRAM.format(look=_READ_PROCESSES)).check():
        assert "mhnb.rank.supervisor" in rank.stdout
        assert [key for key in keys if key in rank.stdout] == []
