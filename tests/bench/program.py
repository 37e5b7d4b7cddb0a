"""The JAX program that every contestant runs, as source text.

This module defines "one warm psum" and "checked". It does not depend on how the text reaches the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CELLS", "Shape", "first_psum", "initialise"]

CELLS = {"empty": "pass", "psum": "y = total(x).block_until_ready()"}
"""The timed cells. The psum waits explicitly, because not every contestant waits at a cell's end for what the cell launched."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks, and how many CPU devices on each."""

    ranks: int
    devices: int


def initialise(shape: Shape, address: str, rank: str) -> str:
    """Return the lines that make N processes one JAX program; `rank` is a Python expression for the rank.

    Detection is off because it would find a scheduler's variables if the benchmark itself runs under one.
    """
    return (
        "import jax\n"
        f"jax.config.update('jax_num_cpu_devices', {shape.devices})\n"
        f"jax.distributed.initialize({address!r}, {shape.ranks}, {rank}, cluster_detection_method='deactivate')\n"
    )


def first_psum(directory: Path) -> str:
    """Return the lines that build the warm psum, check its first value, and write a report file for each rank.

    A file, because the contestants show output in five different ways.
    """
    return f"""\
import json, os, jax, numpy as np
from pathlib import Path
from jax.sharding import NamedSharding, PartitionSpec as P
count = jax.device_count()
mesh = jax.make_mesh((count,), ("all",))
total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "all"), mesh=mesh, in_specs=P("all"), out_specs=P()))
values = np.arange(1, count + 1, dtype=np.float32)
x = jax.make_array_from_callback((count,), NamedSharding(mesh, P("all")), lambda index: values[index])
got = float(total(x).addressable_data(0)[0])
assert got == values.sum(), (got, values.sum())
report = dict(pid=os.getpid(), process_count=jax.process_count(), device_count=count, psum=got)
Path({str(directory)!r}, f"rank-{{jax.process_index()}}.json").write_text(json.dumps(report))
"""
