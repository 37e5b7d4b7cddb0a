"""What lessons have recorded of other machines: the devices of two TPU slices in 04, and answers of `%mhjax fit` in 16.

`python -m tests.integration.lessons.recorded` prints the devices again, as the lines of the lesson's table. It needs the compiler for
TPUs on the path, as `ask_compiler` puts it there for a process of its own. With a machine and a mesh, it prints what `fit` reports.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mhnb.compiler import compiler_folder
from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.support.source import ROOT

LESSON = NOTEBOOKS / "04_slices.ipynb"
TOPOLOGY = "v5e:2x4"
SLICES = 2
_PER_LINE = 4
"""Devices of a host."""

FIT_LESSON = NOTEBOOKS / "16_cost.ipynb"
_FIT_CELLS = ("mesh", "block", "arguments")
"""The cells that define the arguments of its `%mhjax fit`."""
_FIT = re.compile(
    r'^%mhjax fit step\(weights, tokens\) --on (?P<machine>\S+) --mesh "(?P<mesh>[^"]+)"\n```\n\n```text\n(?P<text>.*?)\n```',
    re.DOTALL | re.MULTILINE,
)

Row = tuple[int, ...]
"""Id, process, slice, x and y of a device."""


def read_table() -> list[Row]:
    """Return the table of the lesson."""
    (cell,) = (cell for cell in read_lesson(LESSON).code if cell.id == "recorded")
    # The first line is the magic.
    tree = ast.parse(cell.source.partition("\n")[2])
    (table,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "table"
    )
    rows: list[Row] = ast.literal_eval(table)
    return rows


def format_table(rows: list[Row]) -> str:
    """Format rows as the lines between the brackets of the table."""
    lines = (rows[at : at + _PER_LINE] for at in range(0, len(rows), _PER_LINE))
    return "\n".join(f"    {', '.join(map(str, line))}," for line in lines)


@dataclass(frozen=True, slots=True)
class RecordedFit:
    """An answer of `%mhjax fit` in a Markdown cell: its command, and below it the text, with `...` for lines that are left out."""

    machine: str
    mesh: str
    text: str


def read_fits() -> list[RecordedFit]:
    """Return the recorded answers of lesson 16."""
    return [
        RecordedFit(found["machine"], found["mesh"], found["text"])
        for cell in read_lesson(FIT_LESSON).cells
        if cell.kind == "markdown"
        for found in _FIT.finditer(cell.source)
    ]


def ask_fit(fit: RecordedFit) -> str:
    """Return what `fit` reports of the lesson's step, from a process with the lesson's devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "tests.integration.lessons.recorded", fit.machine, fit.mesh]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _format_fit(machine: str, mesh: str) -> str:
    import mhnb
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.fit import build_fit

    sources = {cell.id: cell.source.partition("\n")[2] for cell in read_lesson(FIT_LESSON).code}
    names: dict[str, Any] = {}
    for cell in _FIT_CELLS:
        exec(sources[cell], names)
    return print_text(build_fit(mhnb.fit(names["step"], names["weights"], names["tokens"], on=machine, mesh=mesh)))


def ask_compiler() -> str:
    """Return what this module prints in a process that knows the compiler."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(compiler_folder("tpu")), str(ROOT)])
    command = [sys.executable, "-m", "tests.integration.lessons.recorded"]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _describe_devices() -> Iterator[Row]:
    from jax.experimental import topologies

    devices: Any = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY, num_slices=SLICES).devices
    for device in devices:
        x, y, z = device.coords
        assert z == 0, device
        yield device.id, device.process_index, device.slice_index, x, y


if __name__ == "__main__":
    print(_format_fit(*sys.argv[1:]) if sys.argv[1:] else format_table(list(_describe_devices())))
