"""Export a notebook as one SPMD script that runs without mhnb.

Each cell is translated to plain Python; IPython syntax without a translation is refused by name. The cells come from the journal or
from a notebook file: those that run on the ranks, and the values pushed before them. Stored outputs show whether a cell failed.

This module only produces text: it neither reads a journal nor writes a file, and it never runs a cell.
"""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mhnb.core.cell_request import lift_cell_magic, route_cell
from mhnb.core.ranks import describe_ranks, resolve_ranks
from mhnb.core.shorthand import find_shape_word, split_ranks_word
from mhnb.errors import InvalidRequest

_MAGIC = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?(?P<magic>%%?\w*|!|\?)|\S+\?{1,2}\s*$")
_TIMED = ("%time", "%timeit")
_DROPPED = ("%matplotlib", "%config", "%load_ext", "%reload_ext", "%autoreload", "%pdb", "%xmode", "%precision")
_LINE = re.compile(r"^line (\d+)")
_DROPPED_CELL = ("%%time", "%%capture")
_SHELL_NAMES = {"get_ipython", "In", "Out", "_", "__", "___"}
_REFUSAL_REASONS = {
    "!": "a shell command; use subprocess, or do it in the batch script",
    "?": "help is shown only in a notebook",
    "await": "await at top level; put it into `async def main()` and call `asyncio.run(main())`",
    "mhnb": "the script runs without mhnb",
}


@dataclass(frozen=True, slots=True)
class TranslatedCell:
    """A cell as plain Python."""

    text: str
    """As many lines as the cell had; a dropped line is empty."""
    notes: tuple[str, ...] = ()
    """What was changed or dropped, each with its line."""
    refused: tuple[str, ...] = ()
    """What cannot be translated, each with its line; if there is anything, `text` is not valid."""
    futures: tuple[str, ...] = ()
    """Names from `__future__`, which must be imported at the top of the script."""
    shows_value: bool = False
    """Whether its last expression became a call of `_show`."""
    uses_display: bool = False
    """Whether it calls IPython's `display`."""
    initializes_distributed: bool = False
    """Whether it calls jax.distributed.initialize itself."""


def translate_cell(source: str, first_line: int = 1) -> TranslatedCell:
    r"""Translate a cell to plain Python.

    Args:
        source: the cell's text.
        first_line: the number that the notebook gives its first line.

    >>> translate_cell("%time y = f(x)\ny").text
    'y = f(x)\n_show(y)'
    >>> translate_cell("!ls").refused
    ('line 1: !ls: a shell command; use subprocess, or do it in the batch script',)
    """
    lines = source.rstrip().split("\n")
    notes: list[str] = []
    refused = _remove_cell_magics(lines, notes)
    tree = None if refused else _parse(lines, notes, refused)
    if tree is None:
        return TranslatedCell("\n".join(lines), _number_texts(notes, first_line), _number_texts(refused, first_line))
    refused += [f"line {line}: {what}" for line, what in sorted(_find_untranslatable(tree))]
    futures = _remove_future_imports(tree, lines)
    shows = _print_last_value(tree, lines)
    return TranslatedCell(
        "\n".join(lines).strip("\n"),
        _number_texts(notes, first_line),
        _number_texts(refused, first_line),
        futures,
        shows,
        _only_reads(tree, "display"),
        any(_is_initialize(node) for node in ast.walk(tree)),
    )


def _number_texts(texts: Iterable[str], first_line: int) -> tuple[str, ...]:
    """Replace the line number in each text with the notebook's number."""
    return tuple(_LINE.sub(lambda found: f"line {int(found[1]) + first_line - 1}", text) for text in texts)


# -- magics


def _remove_cell_magics(lines: list[str], notes: list[str]) -> list[str]:
    """Remove a cell's leading `%%` lines; return those that are refused."""
    for at, line in enumerate(lines):
        if line.strip() and not line.startswith("%%"):
            break
        word = (line.split() or [""])[0]
        if word in _DROPPED_CELL:
            notes.append(f"line {at + 1}: {word} dropped")
            lines[at] = ""
        elif word:
            return [f"line {at + 1}: {word}: a notebook magic; write it as Python"]
    return []


def _parse(lines: list[str], notes: list[str], refused: list[str]) -> ast.Module | None:
    """Parse the cell, and translate lines that stop the parser to Python."""
    for _ in range(len(lines) + 1):
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = _find_magic(lines, error.lineno or 1)
            if at is None:
                refused.append(f"line {error.lineno}: {error.msg}: this is not valid Python")
                return None
            if not _translate_line(lines, at, notes, refused):
                return None
    return None


def _find_magic(lines: Sequence[str], lineno: int) -> int | None:
    """Return the index of the magic that stops the parser, or None."""
    likely = [at for at, line in enumerate(lines) if _MAGIC.search(line)]
    named = min(lineno, len(lines)) - 1
    return named if named in likely else next(iter(likely), None)


def _translate_line(lines: list[str], at: int, notes: list[str], refused: list[str]) -> bool:
    line = lines[at].strip()
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    word, _, rest = line.partition(" ")
    if word in _TIMED and rest and not rest.startswith("-"):
        notes.append(f"line {at + 1}: {word} dropped, its statement kept")
        lines[at] = indent + rest.strip()
    elif word in _DROPPED:
        notes.append(f"line {at + 1}: {line} dropped")
        # A block must not be empty.
        lines[at] = f"{indent}pass" if indent else ""
    else:
        refused.append(f"line {at + 1}: {line}: {_refusal_reason(line)}")
        return False
    return True


def _refusal_reason(line: str) -> str:
    if line.startswith("%mhjax"):
        return "runs only in the notebook, and the script runs without mhnb"
    found = _MAGIC.search(line)
    sign = (found["magic"] or "?")[0] if found else "?"
    return _REFUSAL_REASONS.get(sign, "a notebook magic; write it as Python")


# -- what does not exist in a script


def _find_untranslatable(tree: ast.Module) -> Iterator[tuple[int, str]]:
    yield from ((line, _REFUSAL_REASONS["await"]) for line in map(_await_line, _at_top_level(tree)) if line)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if name := _imported_mhnb_module(node):
            yield node.lineno, f"import {name}: {_REFUSAL_REASONS['mhnb']}"  # type: ignore[attr-defined]
        elif isinstance(node, ast.Name) and node.id in _SHELL_NAMES - stored:
            yield node.lineno, f"{node.id}: exists only in a notebook"


def _await_line(node: ast.AST) -> int:
    """Return a node's line if it needs an event loop, else 0."""
    if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return node.lineno
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and any(part.is_async for part in node.generators):
        return node.lineno
    return 0


def _at_top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that is not inside a function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _at_top_level(child)


def _imported_mhnb_module(node: ast.AST) -> str:
    """Return the mhnb module that a statement imports; otherwise empty."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return next((name for name in names if name.partition(".")[0] == "mhnb"), "")


def _is_initialize(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("distributed.initialize")


def _only_reads(tree: ast.Module, name: str) -> bool:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    bound = any(
        (alias.asname or alias.name) == name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    return bool(names) and not bound and all(isinstance(node.ctx, ast.Load) for node in names)


# -- changes to the cell's lines


def _remove_future_imports(tree: ast.Module, lines: list[str]) -> tuple[str, ...]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found += [alias.name for alias in node.names]
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    return tuple(found)


def _print_last_value(tree: ast.Module, lines: list[str]) -> bool:
    """Wrap the cell's last expression in `_show`; return whether it did."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _is_print(last.value) or _ends_with_semicolon(last, lines):
        return False
    opening, closing = ("_show((", "))") if isinstance(last.value, ast.Tuple) else ("_show(", ")")
    end = last.end_lineno or last.lineno
    # Insert from the end, because an insertion moves what follows it.
    _insert(lines, end, last.end_col_offset or 0, closing)
    _insert(lines, last.lineno, last.col_offset, opening)
    return True


def _is_print(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("print", "display")


def _ends_with_semicolon(last: ast.Expr, lines: Sequence[str]) -> bool:
    line = lines[(last.end_lineno or last.lineno) - 1].encode()
    return line[last.end_col_offset or 0 :].decode().strip().startswith(";")


def _insert(lines: list[str], lineno: int, col_offset: int, text: str) -> None:
    """Insert text at a column as the parser counts it: in bytes."""
    line = lines[lineno - 1].encode()
    lines[lineno - 1] = (line[:col_offset] + text.encode() + line[col_offset:]).decode()


# -- a cell for some ranks


def indent_code(text: str) -> str:
    r"""Indent Python by four spaces, except inside strings, whose value would change.

    >>> indent_code('x = 1\ny = 2')
    '    x = 1\n    y = 2'
    """
    inside = {line for first, last in _string_lines(text) for line in range(first + 1, last + 1)}
    lines = text.split("\n")
    return "\n".join(
        line if number in inside or not line.strip() else f"    {line}" for number, line in enumerate(lines, 1)
    )


def _string_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield each string's line range; f-strings are several tokens since Python 3.12."""
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            yield token.start[0], token.end[0]
        elif kind == "FSTRING_START":
            opened.append(token.start[0])
        elif kind == "FSTRING_END":
            yield opened.pop(), token.end[0]


# -- export a notebook as a script


EXPORT_MARK = "Exported by mhnb"
"""Marker in the first lines of each script: an export overwrites only files that contain it."""


_MAKE_MESH_NOTE = (
    "which JAX refuses over several GPU nodes, TPU slices or machines with CPU devices; there use "
    "jax.experimental.mesh_utils.create_hybrid_device_mesh(sizes_inside_a_slice, parts_over_slices)"
)


@dataclass(frozen=True, slots=True)
class CellStep:
    """A cell that goes into the script."""

    name: str
    """Such as `In [7]` or `cell 4`; no other step has it."""
    source: str
    ranks: tuple[int, ...] | None = None
    """None for all ranks."""
    first_line: int = 1
    """The number that the notebook gives the first line of the source."""


@dataclass(frozen=True, slots=True)
class PushStep:
    """Values that the notebook pushed to the ranks."""

    names: tuple[str, ...]
    ranks: tuple[int, ...] | None = None
    literals: Mapping[str, str] = field(default_factory=dict)
    """Name -> the value as Python source; without names whose value was too large, or has no such form."""


Step = CellStep | PushStep


@dataclass(frozen=True, slots=True)
class ExportedScript:
    """A script, and notes for its author."""

    text: str
    notes: tuple[str, ...] = ()


def export_script(
    steps: Sequence[Step],
    *,
    name: str,
    process_count: int,
    devices: int | None = None,
    left_out: Iterable[str] = (),
) -> ExportedScript:
    """Build the script.

    Args:
        steps: in the order in which they ran.
        name: the file's name, which the script's own text mentions.
        process_count: of the notebook's cluster.
        devices: CPU devices per simulated rank; None if the ranks used the devices of their machines.
        left_out: a sentence for each cell that is not in the script.

    Raises:
        InvalidRequest: a part of a cell or a pushed value cannot be exported; the message lists all of them.

    >>> export_script([CellStep("cell 1", "x = 1")], name="a.py", process_count=2).text.splitlines()[-1]
    'x = 1'
    """
    cells = {step.name: translate_cell(step.source, step.first_line) for step in steps if isinstance(step, CellStep)}
    _check_exportable(steps, cells)
    notes = [f"{cell}, {note}" for cell, each in cells.items() for note in each.notes]
    initializer = next((cell for cell, each in cells.items() if each.initializes_distributed), None)
    if initializer:
        notes.append(f"{initializer} calls jax.distributed.initialize itself, so the script does not")
    notes += [_format_ranks_note(step) for step in steps if step.ranks is not None]
    if devices is not None and (
        meshes := next((cell for cell, each in cells.items() if "make_mesh(" in each.text), None)
    ):
        notes.append(f"{meshes} calls make_mesh, {_MAKE_MESH_NOTE}")
    parts = [
        _format_header(name, process_count, [*left_out], notes, cells.values()),
        _format_settings(devices),
        "import jax" if initializer else _INITIALIZE,
        *_format_helpers(cells.values()),
        *(_format_step(step, cells) for step in steps),
    ]
    return ExportedScript("\n\n".join(part for part in parts if part) + "\n", tuple(notes))


def _check_exportable(steps: Sequence[Step], cells: Mapping[str, TranslatedCell]) -> None:
    faults = [f"{cell}, {fault}" for cell, each in cells.items() for fault in each.refused]
    for step in steps:
        if isinstance(step, PushStep):
            faults += [
                f"push {name}: its value is too large for a script, not in the file, or cannot be written as Python; "
                f"create {name} in a %%mhjax cell, or load it there from a file"
                for name in step.names
                if name not in step.literals
            ]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        things = "1 item" if len(faults) == 1 else f"{len(faults)} items"
        raise InvalidRequest(
            f"nothing was written, because {things} cannot be exported:\n{listed}\n"
            "  Fix: change these cells and run them again\n"
            "  Or: leave cells and pushed names out, for example --without 3,7,table"
        )


def _format_ranks_note(step: Step) -> str:
    ranks = step.ranks or ()
    where = f"{describe_ranks(ranks)} only"
    if isinstance(step, PushStep):
        return f"push {' '.join(step.names)}: made on {where}"
    return f"{step.name} runs on {where}: a collective in it that needs other ranks would hang"


# -- parts of the script


def _format_header(
    name: str, process_count: int, left_out: Sequence[str], notes: Sequence[str], cells: Iterable[TranslatedCell]
) -> str:
    lines = [
        f'r"""{EXPORT_MARK}: the cells of a notebook as one program for {process_count} processes.',
        "",
        "The same program runs in each process; the processes find each other in one of three ways.",
        "",
        f"    srun -n {process_count} python {name}                     under Slurm, automatically",
        f"    mpiexec -n {process_count} python {name}                  under Open MPI, automatically",
        f"    python {name} ADDRESS:PORT COUNT NUMBER     elsewhere: one for each NUMBER from 0 to COUNT - 1",
        "",
        "Elsewhere you can also set environment variables: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID.",
        "Start all processes with PYTHONHASHSEED=0, as the notebook did; otherwise the order of sets differs between them.",
        *_format_list("Left out:", left_out),
        *_format_list("Notes:", notes),
        '"""',
    ]
    futures = sorted({name for cell in cells for name in cell.futures})
    return "\n".join(lines) + (f"\n\nfrom __future__ import {', '.join(futures)}" if futures else "")


def _format_list(title: str, texts: Sequence[str]) -> list[str]:
    safe = [text.replace('"""', "'''") for text in texts]
    return ["", title, *(f"- {text}" for text in safe)] if texts else []


def _format_settings(devices: int | None) -> str:
    lines = ["import os", "import sys"]
    if devices is not None:
        lines += [
            "",
            f"# What the notebook's ranks had: {devices} CPU devices each. It has no effect on GPUs and TPUs.",
            f'os.environ.setdefault("JAX_NUM_CPU_DEVICES", "{devices}")',
            "# Threads for these devices: the default is the number of cores, and with few cores two devices can deadlock.",
            f'os.environ.setdefault("PJRT_NPROC", "{max(32, 4 * devices)}")',
        ]
    return "\n".join(lines)


_INITIALIZE = '''import jax


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


_initialize()'''


def _format_helpers(cells: Iterable[TranslatedCell]) -> list[str]:
    cells = list(cells)
    helpers = []
    if any(cell.shows_value for cell in cells):
        helpers.append(
            '\ndef _show(value):\n    """Print what a notebook shows: the last value of a cell."""\n'
            "    if value is not None:\n        print(repr(value))\n"
        )
    if any(cell.uses_display for cell in cells):
        helpers.append("display = print")
    return helpers


def _format_step(step: Step, cells: Mapping[str, TranslatedCell]) -> str:
    if isinstance(step, PushStep):
        title = f"# -- pushed from the notebook: {' '.join(step.names)}"
        text = "\n".join(f"{name} = {step.literals[name]}" for name in step.names)
        if "numpy.array(" in text:
            text = f"import numpy\n{text}"
    else:
        title, text = f"# -- {step.name}", cells[step.name].text
    is_code = any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())
    if step.ranks is None or not is_code:
        return f"{title}\n{text}".rstrip()
    warning = "# Only these run it. A collective that needs the other ranks would hang."
    listed = ", ".join(map(str, step.ranks))
    condition = f"== {listed}" if len(step.ranks) == 1 else f"in {{{listed}}}"
    return f"{title}\n{warning}\nif jax.process_index() {condition}:\n{indent_code(text)}"


def format_sbatch(script: str, *, nodes: int, tasks_per_node: int, resources: Sequence[str] = ()) -> str:
    """Build a batch script for Slurm.

    Args:
        script: the script's file name; the job is submitted from its directory.
        nodes: machines.
        tasks_per_node: processes on each.
        resources: further options of the job, as `--mem=16G`.

    >>> print(format_sbatch("train.py", nodes=4, tasks_per_node=1).splitlines()[1])
    #SBATCH --job-name=train
    """
    job = script.removesuffix(".py")
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.replace(' ', '_')}",
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={tasks_per_node}",
        "#SBATCH --output=%x-%j.log",
        *(f"#SBATCH {option}" for option in resources),
    ]
    if not any(option.startswith("--gpus") for option in resources):
        lines += ["# With GPUs: one process for each of them.", "##SBATCH --gpus-per-task=1"]
    lines += [
        "",
        f"# {EXPORT_MARK}. Submit it from the folder of {script}; set PYTHON to use another interpreter.",
        "# Makes the order of sets the same in every process.",
        "export PYTHONHASHSEED=0",
        f'srun --label "${{PYTHON:-python}}" -u {shlex.quote(script)}',
    ]
    return "\n".join(lines) + "\n"


# -- convert a notebook file to export steps


_LITERAL_CHARS = 2000
_RAISES_TAG = "raises-exception"


@dataclass(slots=True)
class NotebookSteps:
    """A notebook's steps on its ranks, and the state of reading it."""

    steps: list[Step] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each cell that failed or is meant to fail, or that the caller left out."""
    process_count: int = 4
    devices: int | None = 2
    is_auto: bool = False
    """Whether plain cells go to the ranks at this point."""
    literals: dict[str, str] = field(default_factory=dict)
    """Variables that plain cells have bound to a literal, which can therefore be pushed."""


def read_notebook(notebook: Mapping[str, Any], without: Sequence[str] = ()) -> NotebookSteps:
    r"""Read a notebook's cells in order.

    Args:
        notebook: the JSON of an .ipynb file.
        without: what to leave out: code cells, counted from 1 or by the number that is stored beside them, as `In[3]`; and names
            that are pushed.

    Raises:
        InvalidRequest: the file is not a notebook, or a `%%mhjax` line is invalid.

    >>> read_notebook({"cells": [{"cell_type": "code", "source": "%%mhjax\nx = 1"}]}).steps[0].source
    'x = 1'
    """
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise InvalidRequest(
            "this file is not a notebook, because it has no cells; expected an .ipynb file of format 4"
        )
    found = NotebookSteps()
    for number, cell in enumerate((each for each in cells if each.get("cell_type") == "code"), 1):
        source = cell.get("source", "")
        text = source if isinstance(source, str) else "".join(source)
        name = f"code cell {number}"
        names = {str(number), f"cell{number}", f"In[{cell.get('execution_count')}]"}
        if not names.isdisjoint(without):
            found.left_out.append(f"{name}: excluded by --without")
        else:
            _read_cell(found, name, text, cell)
    found.steps, dropped = drop_pushed(found.steps, without)
    found.left_out += dropped
    return found


def drop_pushed(steps: Sequence[Step], without: Sequence[str]) -> tuple[list[Step], list[str]]:
    """Remove the requested pushed names; return steps and a note for each.

    >>> drop_pushed([PushStep(("a", "b"))], ["b", "3"])[1]
    ['push b: excluded by --without; add b to the script yourself']
    """
    kept: list[Step] = []
    dropped: list[str] = []
    for step in steps:
        if isinstance(step, PushStep):
            dropped_names = [name for name in step.names if name in without]
            dropped += [
                f"push {name}: excluded by --without; add {name} to the script yourself" for name in dropped_names
            ]
            names = tuple(name for name in step.names if name not in dropped_names)
            kept += [replace(step, names=names)] if names else []
        else:
            kept.append(step)
    return kept, dropped


def _read_cell(found: NotebookSteps, name: str, text: str, cell: Mapping[str, Any]) -> None:
    flags, body = _split_flags(text)
    if flags is None and not (found.is_auto and route_cell(text) == "ranks"):
        _read_plain_cell(found, text)
    elif why := _omission_reason(cell):
        found.left_out.append(f"{name}: {why}")
    else:
        typed_ranks = split_ranks_word((flags or "").split())[0] or _flag_value(flags or "", "--ranks")
        ranks = resolve_ranks(typed_ranks, found.process_count)
        first_line = 1 + text.rstrip().count("\n") - body.rstrip().count("\n")
        found.steps.append(CellStep(name, body, ranks, first_line))


def _split_flags(text: str) -> tuple[str | None, str]:
    """Split a cell into `%%mhjax` flags (None for plain cells) and body."""
    lines = lift_cell_magic(text.lstrip("\n").splitlines(keepends=True))
    if not lines or lines[0].split()[:1] != ["%%mhjax"]:
        return None, text
    return lines[0].removeprefix("%%mhjax").strip(), "".join(lines[1:])


def _flag_value(words: str, name: str) -> str | None:
    found = shlex.split(words)
    for at, word in enumerate(found):
        if word == name and at + 1 < len(found):
            return found[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _omission_reason(cell: Mapping[str, Any]) -> str:
    errors = [output for output in cell.get("outputs", ()) if output.get("output_type") == "error"]
    if errors:
        return f"it failed with {errors[0].get('ename', 'an error')}"
    is_meant_to = _RAISES_TAG in cell.get("metadata", {}).get("tags", ())
    return f"it is meant to fail (tag {_RAISES_TAG})" if is_meant_to else ""


def _read_plain_cell(found: NotebookSteps, text: str) -> None:
    """Read starts, pushes, auto mode and literals from a plain cell."""
    magic_lines = [line.strip() for line in text.splitlines() if line.strip().startswith("%mhjax ")]
    code = [line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))]
    found.literals |= dict(_find_literals("\n".join(code)))
    for line in magic_lines:
        command, _, rest = line.removeprefix("%mhjax ").strip().partition(" ")
        if command == "start":
            _read_start(found, rest)
        elif command == "auto":
            found.is_auto = rest.strip() == "on"
        elif command == "push":
            found.steps.append(_build_push_step(found, rest))


def _read_start(found: NotebookSteps, rest: str) -> None:
    machines, devices = _flag_value(rest, "--hosts"), _flag_value(rest, "--devices")
    shape = find_shape_word(rest.split())
    ranks = _flag_value(rest, "-n") or (shape.ranks if shape else 4)
    devices = devices or (str(shape.devices) if shape and shape.devices else None)
    hosts = len(machines.split(",")) if machines else int(ranks)
    found.process_count = hosts * int(_flag_value(rest, "--per-host") or 1)
    # Simulated hosts have two devices each by default; real machines have their own.
    is_simulated = machines is None and (_flag_value(rest, "--profile") or "local") == "local"
    found.devices = int(devices) if devices else 2 if is_simulated else None


def _build_push_step(found: NotebookSteps, rest: str) -> PushStep:
    ranks = _flag_value(rest, "--ranks")
    names = tuple(word for word in rest.split() if word.isidentifier() and word != ranks)
    literals = {name: found.literals[name] for name in names if name in found.literals}
    return PushStep(names, resolve_ranks(ranks, found.process_count), literals)


def _find_literals(code: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        # For example magics inside a block: the cell's literals are unknown.
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if (text := format_literal(value)) is not None:
                yield node.targets[0].id, text


def format_literal(value: object) -> str | None:
    """Format a value as a Python literal of limited size, or None.

    >>> format_literal({"lr": 0.1}), format_literal(object()), format_literal(float("nan"))
    ("{'lr': 0.1}", None, None)
    """
    text = repr(value)
    if len(text) > _LITERAL_CHARS:
        return None
    try:
        again = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return text if type(again) is type(value) and again == value else None
