"""The devices of two TPU slices that lesson 04 has recorded.

`python -m tests.integration.lessons.recorded` prints them again, as the lines of the lesson's table. It needs the compiler for TPUs
on the path, as `ask_compiler` puts it there for a process of its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from mhnb.compiler import compiler_folder
from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.support.source import ROOT

LESSON = NOTEBOOKS / "04_slices.ipynb"
TOPOLOGY = "v5e:2x4"
SLICES = 2
_PER_LINE = 4
"""Devices of a host."""

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
    print(format_table(list(_describe_devices())))
