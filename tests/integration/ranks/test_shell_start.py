"""`mhnb start --keep` and `mhnb logs`: a cluster that a shell starts, a notebook attaches to, and a shell follows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mhnb.cluster import manager
from mhnb.system.run_dir import find_clusters_named

_MHNB = [sys.executable, "-m", "mhnb"]


def _mhnb(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_MHNB, *words], capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def started(leftovers: None) -> Iterator[subprocess.CompletedProcess[str]]:
    """A cluster of two ranks that a shell has started."""
    try:
        yield _mhnb("start", "--keep", "-n", "2", "--devices", "1", "--name", "shell", "--guard", "after")
    finally:
        if find_clusters_named(os.environ, "shell"):
            _mhnb("stop", "shell")


def test_notebook_attaches_to_cluster_of_a_shell(started: subprocess.CompletedProcess[str]) -> None:
    """`mhnb start --keep` prints a summary and how to attach and stop, and ends; a notebook then attaches to the cluster."""
    assert started.returncode == 0, started.stderr
    first, *_, attach, stop = started.stdout.splitlines()
    assert first.startswith("mhjax · 2 ranks")
    assert (attach, stop) == ("  in a notebook: %mhjax attach shell", "  to stop it: mhnb stop shell")
    cluster = manager.attach("shell")
    try:
        assert cluster.guard == "parity"
        assert cluster.run("import jax; print(jax.process_count())").check()[1].stdout == "2\n"
    finally:
        cluster.stop()


@pytest.mark.test_all
def test_logs_are_printed_and_followed(started: subprocess.CompletedProcess[str]) -> None:
    """`mhnb logs` prints the last lines of chosen ranks; with -f also new ones, until the processes of the cluster end."""
    assert started.returncode == 0, started.stderr
    cluster = manager.attach("shell")
    try:
        cluster.run("print('early', jax.process_index() if 'jax' in globals() else '')").check()
        with subprocess.Popen(
            [*_MHNB, "logs", "shell", "--rank", "1", "-n", "1", "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline().startswith("rank 1 │ ")
            cluster.run("print('late line')").check()
            while "late line" not in (line := following.stdout.readline()):
                assert line.startswith("rank 1 │ "), following.stderr.read()
            lines = _mhnb("logs", "shell", "-n", "500").stdout.splitlines()
            assert {line.split(" │ ")[0] for line in lines} == {"rank 0", "rank 1"}
            assert [line for line in lines if line.startswith("rank 0") and "late line" in line]
            one = _mhnb("logs", "shell", "-n", "1", "--rank", "0").stdout.splitlines()
            assert len(one) == 1
            cluster.stop()
            assert following.wait(60) == 0
            assert "the processes of the cluster have ended" in following.stderr.read()
    finally:
        cluster.stop()


@pytest.mark.test_all
def test_logs_of_a_missing_rank_are_refused(started: subprocess.CompletedProcess[str]) -> None:
    """A rank that the cluster does not have is an error that names the existing ones."""
    done = _mhnb("logs", "shell", "--rank", "7")
    assert done.returncode == 1
    assert "7" in done.stderr
    assert "Help: mhnb help logs" in done.stderr
