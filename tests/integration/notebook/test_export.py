"""`%mhjax export FILE.py`: the cells of a notebook as a script, the cells it leaves out, and the cells it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from tests.integration.notebook.conftest import Session, hidden_clusters
from tests.integration.ranks.conftest import list_pids, wait_for_exit


@pytest.fixture
def own(idle: Session) -> Iterator[Cluster]:
    """A cluster of one rank with a new journal that no other test has written to."""
    with hidden_clusters():
        cluster = manager.start(1, 1, name="export")
        pids = list_pids(cluster)
        yield cluster
        cluster.stop()
        assert wait_for_exit(pids) == []


def test_export_writes_script(idle: Session, own: Cluster, tmp_path: Path) -> None:
    """The script has the cells in order and reports failed ones; cells that cannot be exported are refused or left out.

    The refusal names the cell or variable; `--without` leaves it out.
    """
    script = tmp_path / "train.py"
    idle.run("%%mhjax\nexported = 7")
    idle.run("small = {'rate': 0.5}\n%mhjax push small")
    failed = f"In [{idle.shell.execution_count}]"
    idle.try_("%%mhjax\nexported / 0")
    output = idle.run(f"%mhjax export {script} --sbatch").out
    assert f"left out · {failed}: raised ZeroDivisionError on rank 0" in output
    text = script.read_text()
    assert text.index("exported = 7") < text.index("small = {'rate': 0.5}")
    assert "exported / 0" not in text
    assert "srun" in (tmp_path / "train.sbatch").read_text()
    shell_command = f"In[{idle.shell.execution_count}]"
    idle.run("%%mhjax\n!true")
    other = tmp_path / "other.py"
    name = shell_command.replace("In[", "In [")
    assert f"{name}, line 2: !true: a shell command" in idle.expect_usage_error(f"%mhjax export {other}")
    assert not other.exists()
    assert (
        f"left out · {name}: excluded by --without" in idle.run(f"%mhjax export {other} --without {shell_command}").out
    )
    assert (
        f"left out · {name}: excluded by --without"
        in idle.run(f"%mhjax export {other} --without {shell_command[3:-1]}").out
    )
    idle.run("large = list(range(5000))\n%mhjax push large")
    assert "push large: its value is too large" in idle.expect_usage_error(
        f"%mhjax export {other} --without {shell_command}"
    )
    assert (
        "left out · push large: excluded by --without"
        in idle.run(f"%mhjax export {other} --without {shell_command},large").out
    )
    assert "expected the name of a Python file" in idle.expect_usage_error("%mhjax export train.txt")
