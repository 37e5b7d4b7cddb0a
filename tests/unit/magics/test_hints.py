"""Hints below plain cells: what IPython's events report about a cell, in a bare shell without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mhnb.magics import magics
from mhnb.magics.session import CellFlags, Session
from tests.unit.magics.test_transformers import new_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """A bare shell with the extension loaded."""
    new = new_shell()
    magics.load(new)
    yield new
    magics.unload(new)


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("%%mhajx\n1", "did you mean %%mhjax?"),
        ("%%MHJAX\n1", "did you mean %%mhjax?"),
        ("%%mhnb\n1", "did you mean %%mhjax?"),
        ("%%locla\n1", "did you mean %%local?"),
        ("%mhjx status", "did you mean %mhjax?"),
        ("x = 1\n%mhjx status", "did you mean %mhjax?"),
        ("%status", "did you mean %mhjax status?"),
        ("x = 1\nmhjax status", "mhjax needs a % before it: %mhjax status"),
        ("y = mhjax pull x", "mhjax needs a % before it: y = %mhjax pull x"),
        (
            "if 1:\n    %%mhjax",
            "%%mhjax must be the first line of its cell: put the code above it into a cell of its own",
        ),
    ],
)
def test_misspelt_magic_gets_a_hint(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, hint: str
) -> None:
    """IPython's error for a magic that does not exist is followed by what the user may have meant, in one line."""
    assert not shell.run_cell(cell).success
    captured = capsys.readouterr()
    assert hint in captured.err.splitlines()
    assert (captured.out + captured.err).count(hint) == 1


@pytest.mark.parametrize(
    "cell", ["%%nothing_like_it\n1", "%qwertz", "1 / 0", "x = (", "mhjax = 1 +", "mhjax", "x = 1\ny"]
)
def test_other_errors_get_no_hint(shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str) -> None:
    """An error that has nothing to do with mhnb's magics is shown as IPython shows it."""
    shell.run_cell(cell)
    captured = capsys.readouterr()
    assert "did you mean" not in captured.out + captured.err
    assert "takes a %" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%%mhjax stauts", "\nIf you meant the command status, use one %:\n%mhjax status"),
        ("%%mhjax stauts\n1", "If you meant the command status, put it into a cell of its own: %mhjax status"),
        ("%%mhjax -ranks 0\n1", "(did you mean --ranks?)"),
        ("%%mhjax ranks=0\n1", "(did you mean --ranks?)"),
        ("%%mhjax quiet\n1", "(did you mean --quiet?)"),
        ("%mhjax statuss", "Did you mean 'status'?"),
    ],
)
def test_misspelt_word_of_a_magic_line_gets_a_hint(shell: InteractiveShell, cell: str, said: str) -> None:
    """The usage error for an unknown word names the command or the flag that is close to it."""
    error = shell.run_cell(cell).error_in_exec
    assert type(error).__name__ == "UsageError"
    assert said in str(error)


def test_cell_without_a_result_gets_no_hint(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """IPython reports none of a cell that was interrupted before it had one."""
    shell.events.trigger("post_run_cell", None)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_unloading_ends_the_hints(capsys: pytest.CaptureFixture[str]) -> None:
    """After the extension is unloaded, IPython's error stands alone."""
    bare = new_shell()
    magics.load(bare)
    magics.unload(bare)
    bare.run_cell("%%mhajx\n1")
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("place", ["cell", "function"])
def test_only_code_for_the_ranks_is_not_expanded(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """IPython's `{x}` and `$x` are values of the notebook on every line but that of `eval`, whose names are the ranks'."""
    lines: list[str] = []
    cells: list[str] = []
    cell_lines: list[str] = []

    def parse(line: str, _defaults: object) -> CellFlags:
        cell_lines.append(line)
        return CellFlags()

    monkeypatch.setattr("mhnb.magics.commands.run_command", lambda _session, line: lines.append(line))
    monkeypatch.setattr(magics, "parse_cell_flags", parse)
    monkeypatch.setattr(Session, "run_cell", lambda _self, source, _flags: cells.append(source))
    magic_lines = ["%mhjax eval f'{n} $n'", "%mhjax start -n {n} --name $n"]
    body = ["def start():\n    n = 3", *(f"    {line}" for line in magic_lines), "start()"]
    shell.run_cell("\n".join(["n = 2", *(body if place == "function" else magic_lines)])).raise_error()
    n = 3 if place == "function" else 2
    assert lines == ["eval f'{n} $n'", f"start -n {n} --name {n}"]
    shell.run_cell("%%mhjax --ranks {n}\nf'{n} $n'").raise_error()
    assert (cell_lines, cells) == (["--ranks 2"], ["f'{n} $n'\n"])
