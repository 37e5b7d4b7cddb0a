"""The fast path transforms a `%%mhjax` cell exactly as IPython does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import mhnb
from mhnb.magics.magics import unload

CELLS = (
    "%%mhjax\npass",
    "%%mhjax\npass\n",
    "%%mhjax\n\n",
    "%%mhjax\n \n",
    "%%mhjax --ranks 0,2-3 --out 'r'  \nx = 1\nx",
    "%%mhjax  --ranks '0'\nx?",
    "%%mhjax --ranks $which {them}\nx = 1",
    "%%mhjax ä \N{SNOWMAN}\nx = 'ä'",
    "%%mhjax\tx\npass",
    "%%mhjax\x0cx\npass",
    "%%mhjax x\ty\npass",
    "%%mhjax x\x0cy\npass",
    "%%mhjax --quiet",
    "%%mhjax\r\npass\r\n",
    "%%mhjax\npass\r\nx\x0cy\u2028z",
    "%%mhjaxes\npass",
    "%%mhjax?\npass",
    "%%mhjax?",
    "%%mhjax",
    "%%mhjax\n",
    "%%mhjax\n%%time\n!ls\nx = !ls\n%time f(x)\n?x",
    "%%mhjax\n    indented\n  less\n",
    "%%mhjax\nif x:\n    \n    y\n\t\nz",
    "%%mhjax\n>>> x = 1\n>>> x\n",
    "%%mhjax\nx\n>>> x = 1\n... y",
    "%%mhjax\nIn [1]: x = 1\n   ...: y",
    "%%mhjax\n   ...: y\nz",
    "%%mhjax\n...\nx[...]\n'''\ntext\n'''",
    "%%mhjax\nx = 'a\\n' \"b\" '''c'''",
    "\n%%mhjax\npass",
    "  %%mhjax\n  pass",
    "%mhjax status",
    "pass",
    "",
)
"""Cells that are ambiguous, and cells that the fast path must not touch."""


def new_shell() -> InteractiveShell:
    """Return a bare shell without a history on disk."""
    return InteractiveShell(config=Config(HistoryManager={"enabled": False}))


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """A bare shell with the magics and without a cluster."""
    made = new_shell()
    mhnb.load_ipython_extension(made)
    yield made
    unload(made)


def ipythons(shell: InteractiveShell, cell: str) -> str:
    """Return the code that IPython alone makes of a cell."""
    made: str = InteractiveShell.transform_cell(shell, cell)
    return made


@pytest.mark.other_python
@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_comes_out_as_ipython_makes_it(shell: InteractiveShell, cell: str) -> None:
    """For each cell the fast path returns the same code as IPython."""
    assert shell.transform_cell(cell) == ipythons(shell, cell)


def test_auto_mode_changes_nothing_of_it(shell: InteractiveShell) -> None:
    """In auto mode too a cell that begins with `%%mhjax` is passed to the magic."""
    notebook = shell.magics_manager.registry["MhjaxMagics"].session
    notebook.is_auto_mode = True
    try:
        assert [shell.transform_cell(cell) for cell in CELLS] == [ipythons(shell, cell) for cell in CELLS]
    finally:
        notebook.is_auto_mode = False


@settings(max_examples=300, deadline=None)
@given(
    head=st.sampled_from(("%%mhjax", "%%mhjax ", "%%mhjax --quiet")),
    body=st.text(st.sampled_from("ax =>.[]():?!%'\"\\\n\n\t\r\x0c\N{SNOWMAN}")),
)
def test_no_cell_comes_out_otherwise(shell: InteractiveShell, head: str, body: str) -> None:
    """For random cells too, however unusual, the fast path returns the same code as IPython."""
    cell = f"{head}\n{body}"
    assert shell.transform_cell(cell) == ipythons(shell, cell)


def test_an_ordinary_cell_takes_it(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary `%%mhjax` cell skips IPython's transformers."""
    looked: list[str] = []
    monkeypatch.setattr(shell.input_transformer_manager, "transform_cell", looked.append)
    assert shell.transform_cell("%%mhjax\npass") == "get_ipython().run_cell_magic('mhjax', '', 'pass\\n')\n"
    assert not looked


@pytest.mark.parametrize("where", ["input_transformers_cleanup", "input_transformers_post"])
def test_a_transformer_of_the_users_sees_the_cell(shell: InteractiveShell, where: str) -> None:
    """If the user has a transformer, IPython runs it on `%%mhjax` cells too."""
    seen: list[list[str]] = []

    def look(lines: list[str]) -> list[str]:
        seen.append(lines)
        return lines

    getattr(shell, where).append(look)
    try:
        shell.transform_cell("%%mhjax\npass")
    finally:
        getattr(shell, where).remove(look)
    assert seen


def test_transformers_that_were_there_before_see_the_cell() -> None:
    """Transformers that a startup file added, and one that replaces another, are run on `%%mhjax` cells too."""
    made = new_shell()
    made.input_transformers_cleanup.insert(0, lambda lines: [line.replace("λ", "lambda ") for line in lines])
    mhnb.load_ipython_extension(made)
    assert "f = lambda x: x" in made.transform_cell("%%mhjax\nf = λx: x")
    made.input_transformers_cleanup[0] = lambda lines: [*lines, "y\n"]
    assert "x\\ny\\n" in made.transform_cell("%%mhjax\nx")
    unload(made)


def test_a_transformer_that_refuses_all_is_asked_nothing_while_loading() -> None:
    """A transformer that raises SyntaxError does not run while the extension loads, because the error belongs to a cell."""
    made = new_shell()

    def refuse(_lines: list[str]) -> list[str]:
        raise SyntaxError("not today")

    made.input_transformers_cleanup.append(refuse)
    mhnb.load_ipython_extension(made)
    unload(made)


def test_whoever_transforms_instead_is_left_alone() -> None:
    """A `transform_cell` of another extension stays in use, whether it was patched before mhnb or later and calls mhnb's."""
    made = new_shell()
    made.transform_cell = lambda cell: f"mine({cell!r})\n"  # type: ignore[method-assign]
    mhnb.load_ipython_extension(made)
    assert made.transform_cell("%%mhjax\nx") == "mine('%%mhjax\\nx')\n"
    unload(made)
    assert made.transform_cell("x") == "mine('x')\n"
    del made.transform_cell
    mhnb.load_ipython_extension(made)
    ours = made.transform_cell
    made.transform_cell = lambda cell: ours(cell).upper()  # type: ignore[method-assign]
    unload(made)
    assert made.transform_cell("x") == "X\n"


def test_an_ipython_that_says_it_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this IPython transforms such a cell differently, the fast path is not installed."""
    made = new_shell()
    monkeypatch.setattr(TransformerManager, "transform_cell", lambda _, cell: f"run({cell!r})\n")
    mhnb.load_ipython_extension(made)
    assert "transform_cell" not in vars(made)
    unload(made)


def test_unload_gives_the_shell_back() -> None:
    """After unload the shell transforms cells by itself again."""
    made = new_shell()
    mhnb.load_ipython_extension(made)
    assert "transform_cell" in vars(made)
    unload(made)
    assert "transform_cell" not in vars(made)
