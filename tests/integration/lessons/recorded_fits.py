"""The memory of a training step that lesson 17 has recorded from three compilers.

`python -m tests.integration.lessons.recorded_fits` prints it again, from the lesson's own cells. It needs the compilers for TPUs and GPUs;
that for TPUs takes minutes for each variant. Names of machines as arguments ask only these: `h100:4x2`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from mhnb.errors import InvalidRequest
from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.support.source import ROOT

LESSON = NOTEBOOKS / "17_four_ways.ipynb"
MACHINES = ("v5e:2x4", "h100:4x2", "cpu:4x2")
OPS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute")
_CELLS = ("setup", "attention", "block", "weights", "step", "variants", "large")
_COUNTED = "remat"
"""The variant whose collectives the lesson has."""


def read_table() -> dict[str, tuple[float, ...]]:
    """Return the table of the lesson: for each variant, GiB per device by machine."""
    (cell,) = (cell for cell in read_lesson(LESSON).code if cell.id == "recorded")
    (table,) = (
        node.value
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "recorded"
    )
    found: dict[str, tuple[float, ...]] = ast.literal_eval(table)
    return found


def ask_compilers(machines: Sequence[str]) -> list[str]:
    """Return the lines that this module prints in a process of its own, with eight CPU devices for the lesson's mesh."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "tests.integration.lessons.recorded_fits", *machines]
    return subprocess.run(
        command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def format_size(variant: str, machine: str, size: float) -> str:
    """Format one figure of the table."""
    return f"{variant} on {machine}: {size:.1f} GiB"


def _compile_all(machines: Sequence[str]) -> Iterator[str]:
    import jax.numpy as jnp

    import mhnb

    names: dict[str, Any] = {"optimizer": import_module("optax").adam(1e-3)}
    cells = {cell.id: cell.source for cell in read_lesson(LESSON).code}
    for each in _CELLS:
        # The first line is the magic.
        exec(compile(cells[each].partition("\n")[2], each, "exec"), names)
    for variant, step in names["steps"].items():
        x = names["tokens"][jnp.bfloat16 if variant.endswith("bf16") else jnp.float32]
        args = names["layers"], names["adam_state"], x, x
        for machine in machines:
            try:
                fit = mhnb.fit(step, *args, on=machine, mesh="data 4, model 2", specs=names["rules"])
            except InvalidRequest as refused:
                yield format_size(variant, machine, refused.parts["needed"] / 2**30)
                continue
            yield format_size(variant, machine, fit.memory.nbytes / 2**30)
            if variant == _COUNTED:
                counts: Counter[str] = Counter()
                for row in fit.collectives.rows:
                    counts[row.op] += row.times
                yield f"| {machine.partition(':')[0]} | {' | '.join(str(counts[op]) for op in OPS)} |"


if __name__ == "__main__":
    for line in _compile_all(sys.argv[1:] or MACHINES):
        print(line, flush=True)
