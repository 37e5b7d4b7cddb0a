"""`%%mhjax` cells pass through IPython's transformers, mhnb's and the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
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
"""Cells that are ambiguous, and cells that are not for the ranks."""


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


def test_auto_mode_does_not_change_magic_cells(shell: InteractiveShell) -> None:
    """In auto mode too a cell that begins with `%%mhjax` is passed to the magic as it is."""
    cells = [cell for cell in CELLS if cell.split("\n")[0].split()[:1] == ["%%mhjax"]]
    expected = [shell.transform_cell(cell) for cell in cells]
    notebook = shell.magics_manager.registry["MhjaxMagics"].session
    notebook.is_auto_mode = True
    try:
        assert [shell.transform_cell(cell) for cell in cells] == expected
    finally:
        notebook.is_auto_mode = False


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(
    ("cell", "line", "body"),
    [
        ("# text\n%%mhjax --ranks 0\nx", "--ranks 0", "# text\nx\n"),
        ("# text\n\n# more\n%%mhjax\nx", "", "# text\n\n# more\nx\n"),
        ("\n# text\n%%mhjax\nx", "", "# text\nx\n"),
        ("# text\n%%mhjax\n%%time\nx", "", "\n%%time\nx\n"),
        ("# text\n%%mhjax start", "start", "# text\n"),
    ],
)
def test_comments_may_precede_the_magic(shell: InteractiveShell, cell: str, line: str, body: str, auto: bool) -> None:  # noqa: FBT001
    """Comments and blank lines above `%%mhjax` follow it, so the cell runs on the ranks and each line of code keeps its number."""
    notebook = shell.magics_manager.registry["MhjaxMagics"].session
    notebook.is_auto_mode = auto
    try:
        assert shell.transform_cell(cell) == f"get_ipython().run_cell_magic('mhjax', {line!r}, {body!r})\n"
    finally:
        notebook.is_auto_mode = False


def test_comments_may_precede_local(shell: InteractiveShell) -> None:
    """Comments above `%%local` are no reason to refuse it, with and without auto mode."""
    assert shell.run_cell("# text\n%%local\nwas_local = 1").success
    assert shell.user_ns.pop("was_local") == 1


@pytest.mark.parametrize(
    "cell", ["# text\n%%mhjax", "# text\n%%mhjax\n", "# text\n%%mhjax\nx = [", "# text\n%%mhjax\nx = 1"]
)
def test_terminal_continues_a_cell_with_comments(shell: InteractiveShell, cell: str) -> None:
    """A terminal checks such a cell as a cell magic, which ends at an empty line."""
    assert shell.check_complete(cell)[0] == "incomplete"
    assert shell.check_complete(f"{cell}\n1\n\n")[0] == "complete"


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(
    "cell",
    [
        "misplaced_ran = 1\n%%mhjax --ranks 0\n2",
        "# text\nmisplaced_ran = 1\n\n# more\n%%mhjax --ranks 0\n2",
        "for misplaced_ran in [1]:\n    pass\n%%mhjax --ranks 0\n2",
        "%mhjax list\n%%mhjax --ranks 0\n2",
        "%%mhjax\nmisplaced_ran = 1\n%%mhjax --ranks 0\n2",
    ],
)
def test_magic_below_code_is_refused(shell: InteractiveShell, cell: str, auto: bool) -> None:  # noqa: FBT001
    """A cell with code above its `%%mhjax` line is refused as a whole, with the line and what to do; nothing of it runs."""
    notebook = shell.magics_manager.registry["MhjaxMagics"].session
    notebook.is_auto_mode = auto
    try:
        error = shell.run_cell(cell).error_in_exec
    finally:
        notebook.is_auto_mode = False
    assert type(error).__name__ == "UsageError"
    assert str(error) == (
        "%%mhjax --ranks 0: this line must be the first of its cell, but there is code above it. Nothing was run."
        " Put the code above it into a cell of its own"
    )
    assert "misplaced_ran" not in shell.user_ns


@pytest.mark.parametrize(
    "cell",
    [
        "text_ran = '''\n%%mhjax\n'''",
        "text_ran = (\n1, \\\n2)",
        "%%capture captured\ntext_ran = '''\n%%mhjax\n'''",
        "text_ran = 1\n# %%mhjax",
    ],
)
def test_text_that_looks_like_the_magic_is_not_refused(shell: InteractiveShell, cell: str) -> None:
    """`%%mhjax` at the beginning of a line of a string or a comment is not a magic."""
    assert shell.run_cell(cell).success
    assert shell.user_ns.pop("text_ran")


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


def test_unload_restores_the_transformers() -> None:
    """After unload the shell has the transformers that it had before, and `transform_cell` was never replaced."""
    bare_shell = new_shell()
    before = list(bare_shell.input_transformers_cleanup)
    mhnb.load_ipython_extension(bare_shell)
    assert bare_shell.input_transformers_cleanup != before
    assert "transform_cell" not in vars(bare_shell)
    unload(bare_shell)
    assert bare_shell.input_transformers_cleanup == before
