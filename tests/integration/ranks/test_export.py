"""An exported script prints the same in N plain processes without mhnb as the notebook's ranks printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.export import export_cluster
from mhnb.core.export import CellStep, export_script
from mhnb.rank.execution.streams import split_library_noise
from mhnb.transport.addresses import find_free_port

CELLS = (
    "import jax, jax.numpy as jnp, numpy as np\nfrom jax.sharding import NamedSharding, PartitionSpec as P",
    "mesh = jax.make_mesh((4,), ('data',))",
    "x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P('data')))\nprint('process', jax.process_index())",
    "float(jax.jit(jnp.sum)(x)) * scale + float(table.sum())",
    "[shard.data.tolist() for shard in x.addressable_shards]",
)
TIMEOUT_S = 120


def _run_plain(commands: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> list[str]:
    """Run processes at the same time; return what each printed.

    Their output is buffered. An unbuffered print would be written in pieces, and Gloo's lines could come between them.
    """
    own_environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONUNBUFFERED")
    }
    own_environment |= {"PYTHONHASHSEED": "0", "JAX_PLATFORMS": "cpu"} | (environment or {})
    started = [
        subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own_environment)
        for each in commands
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), outputs
    return [_without_gloo(out) for out, _ in outputs]


def _without_gloo(output: str) -> str:
    """Remove the lines that two threads of Gloo print to stdout without synchronization; the notebook omits them too."""
    return split_library_noise(output)[0]


@pytest.fixture
def recorded_cluster(fresh: Callable[..., Cluster]) -> tuple[Cluster, list[str]]:
    """A cluster that has run cells, including pushes and a failing cell, and what each rank printed."""
    cluster = fresh(2, 2)
    printed = ["", ""]
    cluster.push(scale=10, table=np.array([1, 2], np.int32))
    for source in CELLS:
        for result in cluster.run(source).check():
            printed[result.rank] += result.stdout + (f"{result.text}\n" if result.text else "")
    assert not cluster.run("import jax\nif jax.process_index() == 1: raise ValueError").ok
    one_rank = cluster.run("print('alone', jax.process_index())", ranks=[1]).check()
    printed[1] += one_rank[1].stdout
    return cluster, printed


@pytest.mark.test_all
def test_plain_processes_print_what_the_ranks_printed(
    recorded_cluster: tuple[Cluster, list[str]], tmp_path: Path
) -> None:
    """Two processes get their arguments and cannot import mhnb; the failed cell is listed and not run."""
    cluster, printed = recorded_cluster
    script = tmp_path / "train.py"
    report_lines = export_cluster(cluster, script, sbatch=True)
    assert any("raised ValueError on rank 1" in line for line in report_lines)
    # This file ends a script that imports mhnb.
    (tmp_path / "mhnb.py").write_text("raise SystemExit('the script imports mhnb')")
    port = find_free_port()
    commands = [[sys.executable, str(script), f"127.0.0.1:{port}", "2", str(rank)] for rank in range(2)]
    assert _run_plain(commands) == printed


def _find_missing_open_mpi() -> str:
    if shutil.which("mpiexec") is None:
        return "no mpiexec on PATH"
    version_text = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    return "" if "Open" in version_text else f"mpiexec is not Open MPI's: {version_text.splitlines()[:1]}"


@pytest.mark.test_all
def test_open_mpi_needs_no_argument(tmp_path: Path) -> None:
    """JAX finds the other processes itself under Open MPI, and each process prints the sum over all."""
    if reason := _find_missing_open_mpi():
        pytest.skip(reason)
    script = tmp_path / "train.py"
    cells = [CellStep(f"cell {number}", source) for number, source in enumerate(CELLS[:3], 1)]
    cells.append(CellStep("cell 4", "float(jax.jit(jnp.sum)(x))"))
    script.write_text(export_script(cells, name="train.py", process_count=2, devices=2).text)
    mpi = ["mpiexec", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--output-filename", str(tmp_path / "out")]
    _run_plain([[*mpi, sys.executable, str(script)]])
    files = [next(tmp_path.glob(f"out/*/rank.{rank}/stdout")) for rank in range(2)]
    assert [_without_gloo(file.read_text()) for file in files] == ["process 0\n28.0\n", "process 1\n28.0\n"]


def test_omitted_cells_are_listed_after_a_replay(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """An export lists the cells that a replay omitted, in order, and the names that other cells read from them."""
    cluster = fresh(2, 1)
    cluster.run("a = 1").check()
    cluster.run("n = 2\nimport time\nwhile True: time.sleep(0.1)", timeout_s=2)
    assert cluster.state == "clean"
    cluster.run("print(a)").check()
    before = export_cluster(cluster, tmp_path / "script.py")
    restarted = cluster.restart(replay=True)
    restarted.run("n")
    restarted.run("n = 3; raise ValueError")
    restarted.run("print(n)").check()
    after = export_cluster(restarted, tmp_path / "script.py")
    restarted.stop()
    timeout_line = "  left out · cell 2: stopped by its --timeout"
    assert timeout_line in before
    assert not any("reads" in line for line in before)
    raised_lines = [
        f"  left out · cell {seq}: raised {name} on ranks 0-1" for seq, name in ((4, "NameError"), (5, "ValueError"))
    ]
    assert [line for line in after if "left out ·" in line] == [timeout_line, *raised_lines]
    assert "  note · cell 6 reads n, which only cell 2 sets, and that is left out" in after
    assert "cell 2: stopped by its --timeout" in (tmp_path / "script.py").read_text(encoding="utf-8")
