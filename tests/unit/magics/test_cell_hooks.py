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
    bare_shell = new_shell()
    mhnb.load_ipython_extension(bare_shell)
    yield bare_shell
    unload(bare_shell)


def transform_with_ipython(shell: InteractiveShell, cell: str) -> str:
    """Return the code that IPython alone makes of a cell."""
    code: str = InteractiveShell.transform_cell(shell, cell)
    return code


@pytest.mark.other_python
@pytest.mark.parametrize("cell", CELLS)
def test_cell_is_transformed_as_by_ipython(shell: InteractiveShell, cell: str) -> None:
    """For each cell the fast path returns the same code as IPython."""
    assert shell.transform_cell(cell) == transform_with_ipython(shell, cell)


def test_auto_mode_does_not_change_magic_cells(shell: InteractiveShell) -> None:
    """In auto mode too a cell that begins with `%%mhjax` is passed to the magic."""
    notebook = shell.magics_manager.registry["MhjaxMagics"].session
    notebook.is_auto_mode = True
    try:
        assert [shell.transform_cell(cell) for cell in CELLS] == [transform_with_ipython(shell, cell) for cell in CELLS]
    finally:
        notebook.is_auto_mode = False


@settings(max_examples=300, deadline=None)
@given(
    head=st.sampled_from(("%%mhjax", "%%mhjax ", "%%mhjax --quiet")),
    body=st.text(st.sampled_from("ax =>.[]():?!%'\"\\\n\n\t\r\x0c\N{SNOWMAN}")),
)
def test_random_cell_is_transformed_as_by_ipython(shell: InteractiveShell, head: str, body: str) -> None:
    """For random cells too, however unusual, the fast path returns the same code as IPython."""
    cell = f"{head}\n{body}"
    assert shell.transform_cell(cell) == transform_with_ipython(shell, cell)


def test_ordinary_cell_takes_the_fast_path(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary `%%mhjax` cell skips IPython's transformers."""
    transformed: list[str] = []
    monkeypatch.setattr(shell.input_transformer_manager, "transform_cell", transformed.append)
    assert shell.transform_cell("%%mhjax\npass") == "get_ipython().run_cell_magic('mhjax', '', 'pass\\n')\n"
    assert not transformed


@pytest.mark.parametrize("where", ["input_transformers_cleanup", "input_transformers_post"])
def test_user_transformer_runs_on_the_cell(shell: InteractiveShell, where: str) -> None:
    """If the user has a transformer, IPython runs it on `%%mhjax` cells too."""
    seen: list[list[str]] = []

    def record(lines: list[str]) -> list[str]:
        seen.append(lines)
        return lines

    getattr(shell, where).append(record)
    try:
        shell.transform_cell("%%mhjax\npass")
    finally:
        getattr(shell, where).remove(record)
    assert seen


def test_earlier_transformers_run_on_the_cell() -> None:
    """Transformers that a startup file added, and one that replaces another, are run on `%%mhjax` cells too."""
    bare_shell = new_shell()
    bare_shell.input_transformers_cleanup.insert(0, lambda lines: [line.replace("λ", "lambda ") for line in lines])
    mhnb.load_ipython_extension(bare_shell)
    assert "f = lambda x: x" in bare_shell.transform_cell("%%mhjax\nf = λx: x")
    bare_shell.input_transformers_cleanup[0] = lambda lines: [*lines, "y\n"]
    assert "x\\ny\\n" in bare_shell.transform_cell("%%mhjax\nx")
    unload(bare_shell)


def test_raising_transformer_does_not_run_at_load() -> None:
    """A transformer that raises SyntaxError does not run while the extension loads, because the error belongs to a cell."""
    bare_shell = new_shell()

    def refuse(_lines: list[str]) -> list[str]:
        raise SyntaxError("not today")

    bare_shell.input_transformers_cleanup.append(refuse)
    mhnb.load_ipython_extension(bare_shell)
    unload(bare_shell)


def test_other_transform_cell_patch_stays_in_use() -> None:
    """A `transform_cell` of another extension stays in use, whether it was patched before mhnb or later and calls mhnb's."""
    bare_shell = new_shell()
    bare_shell.transform_cell = lambda cell: f"mine({cell!r})\n"  # type: ignore[method-assign]
    mhnb.load_ipython_extension(bare_shell)
    assert bare_shell.transform_cell("%%mhjax\nx") == "mine('%%mhjax\\nx')\n"
    unload(bare_shell)
    assert bare_shell.transform_cell("x") == "mine('x')\n"
    del bare_shell.transform_cell
    mhnb.load_ipython_extension(bare_shell)
    ours = bare_shell.transform_cell
    bare_shell.transform_cell = lambda cell: ours(cell).upper()  # type: ignore[method-assign]
    unload(bare_shell)
    assert bare_shell.transform_cell("x") == "X\n"


def test_different_ipython_output_disables_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this IPython transforms such a cell differently, the fast path is not installed."""
    bare_shell = new_shell()
    monkeypatch.setattr(TransformerManager, "transform_cell", lambda _, cell: f"run({cell!r})\n")
    mhnb.load_ipython_extension(bare_shell)
    assert "transform_cell" not in vars(bare_shell)
    unload(bare_shell)


def test_unload_restores_transform_cell() -> None:
    """After unload the shell transforms cells by itself again."""
    bare_shell = new_shell()
    mhnb.load_ipython_extension(bare_shell)
    assert "transform_cell" in vars(bare_shell)
    unload(bare_shell)
    assert "transform_cell" not in vars(bare_shell)
