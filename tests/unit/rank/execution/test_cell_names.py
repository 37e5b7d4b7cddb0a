"""A rank names cells and numbers their lines as the notebook of the user who reads does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.core.messages import RunCell
from mhnb.rank.execution.cell_names import RankCellNames
from mhnb.view.ansi import strip_ansi
from tests.support.cell_process import CellAnswer, CellProcess


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A rank's process."""
    with CellProcess(Path(tmp_path_factory.mktemp("rank"))) as process:
        yield process


def traceback_of(answer: CellAnswer) -> str:
    """Return the text of the error's traceback."""
    return strip_ansi("\n".join(answer.error.traceback))


def test_lines_count_from_the_first_of_the_cell(rank: CellProcess) -> None:
    """The `%%mhjax` line is line 1, in tracebacks, errors of the compiler, warnings and what `inspect` reads."""
    failed = rank.run("x = 1\n1 / 0", execution_count=7, first_line=2, kernel="a")
    assert (failed.error.line, failed.error.code) == (3, "1 / 0")
    assert "Cell In[7], line 3\n      2 x = 1\n----> 3 1 / 0" in traceback_of(failed)
    invalid = rank.run("x = 1\nif", execution_count=8, first_line=3, kernel="a")
    assert (invalid.error.line, invalid.error.code) == (4, "if")
    assert "Cell In[8], line 4" in traceback_of(invalid)
    assert invalid.error.evalue.endswith("(<In [8]>, line 4)")
    warned = rank.run("import warnings\nwarnings.warn('careful')", execution_count=9, first_line=2, kernel="a")
    assert warned.stderr == "<In [9]>:3: UserWarning: careful\n  warnings.warn('careful')\n"
    source = "import inspect\ndef f():\n    return 1\nprint(inspect.getsourcelines(f))"
    read = rank.run(source, execution_count=10, first_line=2, kernel="a")
    assert read.stdout == "(['def f():\\n', '    return 1\\n'], 3)\n"


@pytest.mark.parametrize("magic", ["%%time", "%%timeit -n1 -r1"])
def test_lines_below_a_magic_count_as_the_cells_own(rank: CellProcess, magic: str) -> None:
    """The magic's line is one of the cell's."""
    failed = rank.run(f"{magic}\nx = 1\n1 / 0", execution_count=11, first_line=2, kernel="a")
    assert (failed.error.line, failed.error.code) == (4, "1 / 0")


def test_lines_below_capture_count_as_the_cells_own(rank: CellProcess) -> None:
    """`%%capture` runs them as a cell inside the cell."""
    shown = rank.run("%%capture\nx = 1\n1 / 0", execution_count=12, first_line=2, kernel="a")
    assert "Cell In[12], line 4\n      3 x = 1\n----> 4 1 / 0" in traceback_of(shown)


def test_in_and_out_have_the_numbers_that_the_notebook_shows(rank: CellProcess) -> None:
    """`In[20]`, `Out[20]`, `_20` and `_i20` are of the cell that the notebook shows as 20; a cell without a number has mhnb's."""
    rank.run("'twenty'", execution_count=20, first_line=2, kernel="a")
    found = rank.run("(In[20], Out[20], _20, _i20)", execution_count=22, first_line=2, kernel="a")
    assert found.result == """("'twenty'", 'twenty', 'twenty', "'twenty'")"""
    without = rank.run("'mine'")
    assert rank.run(f"Out[{without.ended.seq}]").result == "'mine'"


def test_an_earlier_cell_keeps_its_name_and_lines(rank: CellProcess) -> None:
    """A function that fails in a later cell names the cell that defined it; a thread and Python's own tracebacks do, too."""
    rank.run("def fail():\n    1 / 0", execution_count=30, first_line=2, kernel="a")
    failed = rank.run("fail()", execution_count=31, first_line=2, kernel="a")
    assert "Cell In[31], line 2" in traceback_of(failed)
    assert "Cell In[30], line 3, in fail" in traceback_of(failed)
    source = "import threading\nthread = threading.Thread(target=fail)\nthread.start()\nthread.join()"
    in_thread = rank.run(source, execution_count=32, first_line=2, kernel="a")
    assert 'File "<In [30]>", line 3, in fail' in in_thread.stderr
    group = rank.run("raise ExceptionGroup('two', [ValueError(1)])", execution_count=33, first_line=2, kernel="a")
    assert 'File "<In [33]>", line 2, in <module>' in traceback_of(group)


def test_jax_names_the_cell_of_a_leaked_value(rank: CellProcess) -> None:
    """JAX's own text about where a value comes from has the number that the notebook shows."""
    source = "import jax\nkept = []\n@jax.jit\ndef leaks(x):\n    kept.append(x)\n    return x\nleaks(1.0)"
    rank.run(source, execution_count=35, first_line=2, kernel="a")
    failed = rank.run("kept[0] + 1", execution_count=36, first_line=2, kernel="a")
    assert failed.error is not None
    assert "leaks at <In [35]>:4 traced for jit" in failed.error.evalue
    assert "<cell " not in failed.error.evalue + traceback_of(failed)


def test_another_kernel_has_not_seen_the_number(rank: CellProcess) -> None:
    """Its user knows no `In [40]` of this text, and may have one of another. The lines stay."""
    defined = rank.run("def fail():\n    1 / 0", execution_count=40, first_line=2, kernel="a")
    failed = rank.run("fail()", execution_count=40, first_line=2, kernel="b")
    assert "Cell In[40], line 2" in traceback_of(failed)
    assert f"Cell {defined.ended.seq}, line 3, in fail()\n      2 def fail():\n----> 3     1 / 0" in traceback_of(
        failed
    )


def test_a_request_is_answered_in_the_names_of_its_kernel() -> None:
    """Between cells another kernel may ask; a cell without a number has none, whatever number it had before."""
    names = RankCellNames()
    names.record(RunCell(1, 5, "", execution_count=9, kernel="a"))
    assert (names.format_name(5), names.format_file("<cell 5>"), names.format_file("<cell 6>")) == (
        "In [9]",
        "<In [9]>",
        "<cell 6>",
    )
    names.kernel = "b"
    assert names.format_name(5) == "cell 5"
    names.record(RunCell(2, 5, "", kernel="a"))
    assert names.format_name(5) == "cell 5"
