"""`%mhjax sync` and `%mhjax pip` in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.notebook.conftest import Session


def test_simulated_hosts_have_the_folder_already(nb: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated hosts have the folder already, and one line reports its path; the ranks can import from it.

    A folder from outside goes to the ranks' own folder, once for all ranks.
    """
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "only_here.py").write_text("x = 7")
    nb.run(f"%%mhjax\nimport os; before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    output = nb.run(f"%mhjax sync {tmp_path / 'mine'}").out
    assert output.splitlines()[0] == f"mhjax · sync · {tmp_path / 'mine'}, 1 file"
    assert output.splitlines()[1].endswith(f"{tmp_path / 'mine'}: already up to date")
    assert "7" in nb.run("%%mhjax\nfrom mine.only_here import x; x").out
    nb.run("%%mhjax\nos.chdir(before)")


@pytest.mark.parametrize("line", ["pip", "pip jax"])
def test_unknown_pip_command_is_refused(nb: Session, line: str) -> None:
    """`%mhjax pip` without a known pip command is refused, and the error lists the known ones."""
    assert "check, download, freeze, install, list, show, uninstall" in nb.expect_usage_error(f"%mhjax {line}")


def test_missing_folder_is_refused(nb: Session) -> None:
    """`%mhjax sync` of a folder that does not exist is refused with its name."""
    assert "does not exist; expected a folder on this machine" in nb.expect_usage_error("%mhjax sync no/such/folder")
