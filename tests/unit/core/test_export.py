"""Export of a notebook as a script: complete texts, translated and refused code, and reading a notebook file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mhnb.cli.main import main
from mhnb.cluster.export import parse_without
from mhnb.core.export import (
    CellStep,
    PushStep,
    Step,
    export_script,
    format_literal,
    format_sbatch,
    indent_code,
    read_notebook,
    translate_cell,
)
from mhnb.errors import InvalidRequest

STEPS: list[Step] = [
    CellStep("cell 1", "from __future__ import annotations\nimport jax\n%matplotlib inline\n%time x = 1"),
    PushStep(("lr", "table"), None, {"lr": "0.1", "table": "numpy.array([1, 2], dtype='int32')"}),
    CellStep("cell 2", "%%time\ntext = '''a\n  b'''\nx, text  # both"),
    CellStep("cell 4", "text = '''a\n b'''\n(x +\n  1)", (0, 2)),
]

WHOLE_SCRIPT = '''r"""Exported by mhnb: the cells of a notebook as one program for 4 processes.

The same program runs in each process; the processes find each other in one of three ways.

    srun -n 4 python train.py                     under Slurm, automatically
    mpiexec -n 4 python train.py                  under Open MPI, automatically
    python train.py ADDRESS:PORT COUNT NUMBER     elsewhere: one for each NUMBER from 0 to COUNT - 1

Elsewhere you can also set environment variables: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID.
Start all processes with PYTHONHASHSEED=0, as the notebook did; otherwise the order of sets differs between them.

Left out:
- cell 3: raised ValueError on rank 2

Notes:
- cell 1, line 3: %matplotlib inline dropped
- cell 1, line 4: %time dropped, its statement kept
- cell 2, line 1: %%time dropped
- cell 4 runs on ranks 0,2 only: a collective in it that needs other ranks would hang
"""

from __future__ import annotations

import os
import sys

# What the notebook's ranks had: 2 CPU devices each. It has no effect on GPUs and TPUs.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# Threads for these devices: the default is the number of cores, and with few cores two devices can deadlock.
os.environ.setdefault("PJRT_NPROC", "32")

import jax


def _initialize():
    """Connect to the other processes before anything else uses JAX."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = sys.argv[1:4] if len(sys.argv) == 4 else [os.environ.get(name) for name in names]
    if all(given):
        address, count, number = given
        jax.distributed.initialize(address, int(count), int(number))
    elif any(given[1:]):
        sys.exit(f"set all three of {', '.join(names)}, or none of them: {given}")
    else:
        # Under Slurm and Open MPI, and on a TPU pod, JAX detects them.
        jax.distributed.initialize()


_initialize()


def _show(value):
    """Print what a notebook shows: the last value of a cell."""
    if value is not None:
        print(repr(value))


# -- cell 1
import jax

x = 1

# -- pushed from the notebook: lr table
import numpy
lr = 0.1
table = numpy.array([1, 2], dtype='int32')

# -- cell 2
text = \'\'\'a
  b\'\'\'
_show((x, text))  # both

# -- cell 4
# Only these run it. A collective that needs the other ranks would hang.
if jax.process_index() in {0, 2}:
    text = \'\'\'a
 b\'\'\'
    _show((x +
      1))
'''

BATCH_SCRIPT = """#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --output=%x-%j.log
# With GPUs: one process for each of them.
##SBATCH --gpus-per-task=1

# Exported by mhnb. Submit it from the folder of my train.py; set PYTHON to use another interpreter.
# Makes the order of sets the same in every process.
export PYTHONHASHSEED=0
srun --label "${PYTHON:-python}" -u 'my train.py'
"""


def _export(*steps: Step) -> str:
    return export_script(steps, name="train.py", process_count=4).text


# -- complete texts


def test_the_whole_script() -> None:
    """The script has the header, the start, pushes and cells in order, unchanged strings, and a condition for some ranks."""
    script = export_script(
        STEPS, name="train.py", process_count=4, devices=2, left_out=["cell 3: raised ValueError on rank 2"]
    )
    assert script.text == WHOLE_SCRIPT
    assert len(script.notes) == 4
    compile(script.text, "train.py", "exec")


def test_batch_script_is_complete_and_valid_bash() -> None:
    """The batch script has the expected text, quotes a name with a space, and is valid bash."""
    text = format_sbatch("my train.py", nodes=4, tasks_per_node=2)
    assert text == BATCH_SCRIPT
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_cell_that_initializes_replaces_the_scripts_start() -> None:
    """Initializing twice would be an error: if a cell calls initialize, the script does not, and a note says so."""
    script = export_script(
        [CellStep("cell 1", "import jax\njax.distributed.initialize()")], name="a.py", process_count=1
    )
    assert "_initialize" not in script.text
    assert script.notes == ("cell 1 calls jax.distributed.initialize itself, so the script does not",)


def test_a_mesh_over_machines_is_noted() -> None:
    """The ranks' `jax.make_mesh` accepts CPU devices of several machines, but JAX's own in a script does not."""
    cells = [CellStep("cell 2", "mesh = jax.make_mesh((8,), ('x',))"), CellStep("cell 3", "x = 1")]
    script = export_script(cells, name="a.py", process_count=4, devices=2)
    (note,) = script.notes
    assert note.startswith("cell 2 calls make_mesh, which JAX refuses over several GPU nodes, ")
    assert "create_hybrid_device_mesh(sizes_inside_a_slice, parts_over_slices)" in note
    assert export_script(cells, name="a.py", process_count=4).notes == ()


def test_display_becomes_print() -> None:
    """A script prints what a notebook displays; an imported `display` stays unchanged."""
    assert "display = print" in _export(CellStep("cell 1", "display(x)"))
    assert "display = print" not in _export(CellStep("cell 1", "from IPython.display import display\ndisplay(x)"))


def test_cells_of_some_ranks_get_conditions() -> None:
    """One rank is compared, several are looked up in a set, and a cell without code needs no condition."""
    text = _export(CellStep("cell 1", "f()", (3,)), CellStep("cell 2", "# later", (0, 1)))
    assert "if jax.process_index() == 3:\n    _show(f())" in text
    assert text.endswith("# -- cell 2\n# later\n")


# -- one cell


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x", "_show(x)"),
        ("x;", "x;"),
        ("print(x)", "print(x)"),
        ("x = 1", "x = 1"),
        ("é = 1; é + 1  # sum", "é = 1; _show(é + 1)  # sum"),
        ("(a +\n b)", "_show((a +\n b))"),
        ("1, 2", "_show((1, 2))"),
        ("%time f(x)", "_show(f(x))"),
        ("for i in y:\n    %time f(i)", "for i in y:\n    f(i)"),
        ("if x:\n    %matplotlib inline", "if x:\n    pass"),
        ("async def f():\n    await g()", "async def f():\n    await g()"),
        ("for _ in range(3):\n    f(_)", "for _ in range(3):\n    f(_)"),
        ("text = '''\n%cd /\n'''", "text = '''\n%cd /\n'''"),
        ("y = (x\n % 3)", "y = (x\n % 3)"),
    ],
)
def test_cell_is_translated(source: str, text: str) -> None:
    """A final expression is printed unless it ends in a semicolon; magics without effect in a script are removed."""
    translated = translate_cell(source)
    assert (translated.text, translated.refused) == (text, ())


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("!ls -l", "line 1: !ls -l: a shell command"),
        ("x = 1\nfiles = !ls", "line 2: files = !ls: a shell command"),
        ("%cd /tmp", "line 1: %cd /tmp: a notebook magic"),
        ("%%bash\nls", "line 1: %%bash: a notebook magic"),
        ("%timeit -n 3 f()", "line 1: %timeit -n 3 f(): a notebook magic"),
        ("%mhjax status", "line 1: %mhjax status: runs only in the notebook"),
        ("f?", "line 1: f?: help"),
        ("x = await f()", "line 1: await at top level"),
        ("async with f() as g:\n    pass", "line 1: await at top level"),
        ("[x async for x in y]", "line 1: await at top level"),
        ("import os, mhnb.teach", "line 1: import mhnb.teach"),
        ("from mhnb import start", "line 1: import mhnb"),
        ("get_ipython().run_line_magic('time', '')", "line 1: get_ipython: exists only in a notebook"),
        ("y = _ + 1", "line 1: _: exists only in a notebook"),
        ("def f(:\n    pass", "line 1: "),
        ("x = 1\n!echo 'it\ny = 2", "line 2: !echo 'it: a shell command"),
    ],
)
def test_code_without_script_form_is_refused(source: str, refused: str) -> None:
    """The error names the code, its line and what to do."""
    assert [each for each in translate_cell(source).refused if each.startswith(refused)], translate_cell(source)


def test_all_refused_code_is_named_at_once() -> None:
    """One error lists everything that cannot be exported, with the cell numbers to exclude."""
    with pytest.raises(InvalidRequest) as refused:
        _export(CellStep("cell 2", "!ls"), CellStep("cell 7", "x = 1\nawait f()"), PushStep(("data",)))
    text = str(refused.value)
    assert "nothing was written, because 3 items cannot be exported:" in text
    assert all(
        words in text for words in ("cell 2, line 1: !ls", "cell 7, line 2: await", "push data: its value is too")
    )
    assert "--without 3,7" in text


@pytest.mark.parametrize(
    "source", ["x = '''a\nb\n  c'''\nprint(x)", "y = 3\nprint(f'''{\ny}\n z''')", "print('a\\\nb')"]
)
def test_indenting_changes_no_value(source: str) -> None:
    """A cell inside a condition prints the same as before, also with strings over several lines."""
    printed = []
    for text in (source, f"if True:\n{indent_code(source)}"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(text, "cell", "exec"), {})
        printed.append(out.getvalue())
    assert printed[0] == printed[1] != ""


def test_literals_are_written_if_they_read_back_equal() -> None:
    """A value is written only if reading it back gives the same value."""
    assert format_literal((1, "a", None)) == "(1, 'a', None)"
    assert format_literal(list(range(5000))) is None
    assert format_literal(float("inf")) is None


# -- a notebook file


def _code(source: str, *tags: str, error: str = "") -> dict[str, Any]:
    outputs = [{"output_type": "error", "ename": error}] if error else []
    return {
        "cell_type": "code",
        "source": source.splitlines(keepends=True),
        "metadata": {"tags": tags},
        "outputs": outputs,
    }


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": "# title"},
        _code("%load_ext mhnb\n%mhjax start -n 2 --devices 3\nlr = 0.5"),
        _code("%mhjax push lr"),
        _code("%%mhjax --ranks 1 --timeout 5\nx = lr"),
        _code("%%mhjax\n1 / 0", error="ZeroDivisionError"),
        _code("%%mhjax\n2 / 0", "raises-exception"),
        _code("here = 1"),
        _code("%mhjax auto on"),
        _code("y = 2"),
        _code("%%local\nz = 3"),
        _code("%mhjax auto off"),
        _code("%%mhjax\nlast = 1"),
    ]
}


def test_a_notebook_is_read() -> None:
    """Cells for the ranks are in order, including auto mode; failed cells are left out, and pushed literals are known."""
    found = read_notebook(NOTEBOOK, ["11"])
    assert found.steps == [
        PushStep(("lr",), None, {"lr": "0.5"}),
        CellStep("code cell 3", "x = lr", (1,), first_line=2),
        CellStep("code cell 8", "y = 2"),
    ]
    assert (found.process_count, found.devices) == (2, 3)
    assert found.left_out == [
        "code cell 4: it failed with ZeroDivisionError",
        "code cell 5: it is meant to fail (tag raises-exception)",
        "code cell 11: excluded by --without",
    ]


def test_comments_above_the_magic_are_part_of_the_cell() -> None:
    """They stay above its code, as on the ranks, and its lines keep their numbers."""
    found = read_notebook({"cells": [_code("# why\n\n%%mhjax --ranks 1\nx = 1")]})
    assert found.steps == [CellStep("code cell 1", "# why\n\nx = 1", (1,), first_line=2)]


@pytest.mark.parametrize("named", ["2", "cell 2", "In[7]"])
def test_cell_of_a_notebook_is_left_out_by_either_number(named: str) -> None:
    """Its place among the code cells, or the number that is stored beside it."""
    cells = [_code("%%mhjax\nx = 1") | {"execution_count": count} for count in (6, 7)]
    found = read_notebook({"cells": cells}, parse_without(named))
    assert [step.name for step in found.steps if isinstance(step, CellStep)] == ["code cell 1"]
    assert found.left_out == ["code cell 2: excluded by --without"]


@pytest.mark.parametrize(
    ("flags", "shape"),
    [
        ("", (4, 2)),
        ("-n 8 --devices 4", (8, 4)),
        ("--hosts a,b,c --per-host 2", (6, None)),
        ("--profile slurm -n 16", (16, None)),
    ],
)
def test_process_and_device_counts_are_read(flags: str, shape: tuple[int, int | None]) -> None:
    """As in `start`, simulated hosts have two devices each, and other hosts have their own devices."""
    found = read_notebook({"cells": [_code(f"%mhjax start {flags}")]})
    assert (found.process_count, found.devices) == shape


def test_push_of_computed_value_is_refused() -> None:
    """The notebook file does not contain its value."""
    found = read_notebook({"cells": [_code("lr = f()\n%mhjax push lr")]})
    with pytest.raises(InvalidRequest, match="push lr: its value"):
        _export(*found.steps)
    without = read_notebook({"cells": [_code("lr = f()\n%mhjax push lr other")]}, parse_without("2-3,lr"))
    assert without.steps == [PushStep(("other",))]
    assert without.left_out == ["push lr: excluded by --without; add lr to the script yourself"]


def test_without_flag_is_parsed() -> None:
    """Numbers, ranges and names are accepted; the error names anything else."""
    assert parse_without("3,5-7, table") == ["3", "5", "6", "7", "table"]
    assert parse_without(None) == []
    with pytest.raises(InvalidRequest, match="'a b' is neither"):
        parse_without("3,a b")


def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb export` writes both files and reports what is left out; it does not overwrite, or wait for, a file of another origin."""
    source, script = tmp_path / "n.ipynb", tmp_path / "train.py"
    source.write_text(json.dumps(NOTEBOOK))
    assert main(["export", str(source), "-o", str(script), "--sbatch"]) == 0
    assert "left out · code cell 4: it failed with ZeroDivisionError" in capsys.readouterr().out
    assert "last = 1" in script.read_text()
    assert "--nodes=2" in script.with_suffix(".sbatch").read_text()
    assert main(["export", str(source), "-o", str(script)]) == 0
    script.write_text("mine")
    assert main(["export", str(source), "-o", str(script)]) == 1
    assert "exists and is not an export of mhnb" in capsys.readouterr().err
    assert script.read_text() == "mine"
    os.mkfifo(tmp_path / "pipe.py")
    assert main(["export", str(source), "-o", str(tmp_path / "pipe.py")]) == 1
    assert "pipe.py exists and is not an export of mhnb" in capsys.readouterr().err
    source.write_text("[]")
    assert main(["export", str(source), "-o", str(script)]) == 1
    assert str(source) in capsys.readouterr().err


@pytest.mark.slow
def test_incomplete_process_settings_are_refused(tmp_path: Path) -> None:
    """A count without an address would start something that the user did not intend."""
    script = tmp_path / "train.py"
    script.write_text(_export(CellStep("cell 1", "print(1)")))
    done = subprocess.run(
        [sys.executable, script],
        env={"JAX_NUM_PROCESSES": "2", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "set all three of JAX_COORDINATOR_ADDRESS" in done.stderr
