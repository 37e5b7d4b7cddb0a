"""A rank's shell in an IPython that lacks the private names which it uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell

from mhnb.rank.execution import ipython_private
from mhnb.rank.execution.ipython_private import PublicShell, describe_missing_names
from tests.support.cell_process import CellProcess


def _remove(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ZMQInteractiveShell, InteractiveShell):
        if name in vars(kind):
            monkeypatch.delattr(kind, name)


def test_installed_ipython_has_every_private_name() -> None:
    """Nothing is reported for the versions that the tests run with."""
    assert describe_missing_names() == []


@pytest.mark.parametrize("name", sorted(ipython_private._EFFECTS))
def test_missing_name_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that IPython no longer has is named, with what that means."""
    _remove(name, monkeypatch)
    (line,) = describe_missing_names()
    assert line == f"this IPython has no InteractiveShell.{name}: {ipython_private._EFFECTS[name]}"


def test_error_is_printed_if_ipython_cannot_show_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the start, before the rank's own output exists, is not lost."""
    _remove("_showtraceback", monkeypatch)
    error = ValueError("told")
    object.__new__(PublicShell).show_drawn_error(ValueError, error, ["line 1", "ValueError: told"])
    assert capsys.readouterr().err == "line 1\nValueError: told\n"


@pytest.mark.slow
def test_cells_run_without_the_private_names(tmp_path: Path) -> None:
    """Without all of them, values and errors arrive as ever, and the rank's log says what is missing."""
    with CellProcess(tmp_path, preload=["tests.support.shell_without_private_names"]) as rank:
        assert rank.run("1 + 1").result == "2"
        answer = rank.run("x = 1\nraise ValueError('told')")
        assert (answer.error.ename, answer.error.evalue, answer.error.line) == ("ValueError", "told", 2)
        assert rank.run("a b").error.ename == "SyntaxError"
        assert [rank.log.count(f"has no InteractiveShell.{name}: ") for name in ipython_private._EFFECTS] == [1, 1]
