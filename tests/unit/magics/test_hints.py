"""Hints below plain cells: what IPython's events report about a cell, in a bare shell without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mhnb.magics import magics
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
        ("x = 1\nmhjax status", "%mhjax takes a %: %mhjax status"),
        ("y = mhjax pull x", "%mhjax takes a %: y = %mhjax pull x"),
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
        ("%%mhjax stauts", "\nOr, if the verb status is meant, with one %:\n%mhjax status"),
        ("%%mhjax stauts\n1", "if the verb status is meant, it takes one %, in a cell of its own: %mhjax status"),
        ("%%mhjax -ranks 0\n1", "(did you mean --ranks?)"),
        ("%%mhjax ranks=0\n1", "(did you mean --ranks?)"),
        ("%%mhjax quiet\n1", "(did you mean --quiet?)"),
        ("%mhjax statuss", "did you mean status?"),
    ],
)
def test_misspelt_word_of_a_magic_line_gets_a_hint(shell: InteractiveShell, cell: str, said: str) -> None:
    """The usage error for an unknown word names the verb or the flag that is close to it."""
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
