"""Export a notebook as a script: its cells in order as one SPMD program that runs under srun, without mhnb.

This module only produces text: it neither reads a journal nor writes a file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mhnb.core.keep.export_cell import TranslatedCell, indent_code, translate_cell
from mhnb.core.ranks import describe_ranks
from mhnb.errors import InvalidRequest

__all__ = ["CellStep", "EXPORT_MARK", "ExportedScript", "PushStep", "Step", "export_script", "format_sbatch"]

EXPORT_MARK = "Exported by mhnb"
"""Marker in the first lines of each script: an export overwrites only files that contain it."""


_MAKE_MESH_NOTE = (
    "which JAX refuses over CPU devices of several machines; there it is "
    "Mesh(np.array(jax.devices()).reshape(sizes), names, axis_types=(AxisType.Explicit,) * n)"
)


@dataclass(frozen=True, slots=True)
class CellStep:
    """A cell that goes into the script."""

    name: str
    """Such as `cell 4`."""
    source: str
    ranks: tuple[int, ...] | None = None
    """None for all ranks."""


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
    cells = {step.name: translate_cell(step.source) for step in steps if isinstance(step, CellStep)}
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
                f"push {name}: its value is too large for a script, unknown to the file, or has no form as Python; "
                f"make {name} in a %%mhjax cell, or load it from a file there"
                for name in step.names
                if name not in step.literals
            ]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        things = "1 thing has" if len(faults) == 1 else f"{len(faults)} things have"
        raise InvalidRequest(
            f"{things} no form in a script, and nothing was written\n{listed}\n"
            "  mend it and run the cell again, or leave cells and pushed names out: --without 3,7,table"
        )


def _format_ranks_note(step: Step) -> str:
    ranks = step.ranks or ()
    where = f"{describe_ranks(ranks)} only"
    if isinstance(step, PushStep):
        return f"push {' '.join(step.names)}: made on {where}"
    return f"{step.name} runs on {where}: a collective in it that needs others would wait for ever"


# -- parts of the script


def _format_header(
    name: str, process_count: int, left_out: Sequence[str], notes: Sequence[str], cells: Iterable[TranslatedCell]
) -> str:
    lines = [
        f'r"""{EXPORT_MARK}: the cells of a notebook as one program for {process_count} processes.',
        "",
        "The same program runs in each process; they find each other in one of three ways.",
        "",
        f"    srun -n {process_count} python {name}                     under Slurm, by themselves",
        f"    mpiexec -n {process_count} python {name}                  under Open MPI, by themselves",
        f"    python {name} ADDRESS:PORT COUNT NUMBER     elsewhere: one for each NUMBER from 0 to COUNT - 1",
        "",
        "Elsewhere they may be in the environment, too: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID.",
        "Start all with PYTHONHASHSEED=0, as the notebook did: else sets have another order in each process.",
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
            f"# What the notebook's ranks had: {devices} CPU devices each. A GPU or TPU takes no notice.",
            f'os.environ.setdefault("JAX_NUM_CPU_DEVICES", "{devices}")',
            "# The threads for them are as many as the machine has cores, and two devices on few cores can wait for ever.",
            f'os.environ.setdefault("PJRT_NPROC", "{max(32, 4 * devices)}")',
        ]
    return "\n".join(lines)


_INITIALIZE = '''import jax


def _initialize():
    """Join the other processes, before anything else of JAX is used."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = sys.argv[1:4] if len(sys.argv) == 4 else [os.environ.get(name) for name in names]
    if all(given):
        address, count, number = given
        jax.distributed.initialize(address, int(count), int(number))
    elif any(given[1:]):
        sys.exit(f"give all three of {', '.join(names)}, or none: {given}")
    else:
        # Under Slurm and Open MPI, and on a TPU pod, JAX knows.
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
    warning = "# Only these run it. A collective that needs the others would wait for ever."
    listed = ", ".join(map(str, step.ranks))
    condition = f"== {listed}" if len(step.ranks) == 1 else f"in {{{listed}}}"
    return f"{title}\n{warning}\nif jax.process_index() {condition}:\n{indent_code(text)}"


def format_sbatch(script: str, *, nodes: int, tasks_per_node: int) -> str:
    """Build a batch script for Slurm.

    Args:
        script: the script's file name; the job is submitted from its directory.
        nodes: machines.
        tasks_per_node: processes on each.

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
        "# With GPUs: one process for each of them.",
        "##SBATCH --gpus-per-task=1",
        "",
        f"# {EXPORT_MARK}. Submit it from the folder of {script}; PYTHON names another interpreter.",
        "# Sets have the same order in every process.",
        "export PYTHONHASHSEED=0",
        f'srun --label "${{PYTHON:-python}}" -u {shlex.quote(script)}',
    ]
    return "\n".join(lines) + "\n"
