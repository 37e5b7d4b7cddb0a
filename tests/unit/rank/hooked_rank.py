"""One rank of the hook tests: `python hooked_rank.py RANK COUNT PORT` runs cells from stdin and prints their record.

Each cell is a JSON line [name, source]; each answer is a JSON line {name, rows, abandoned, error, value}.
A cell's file name differs between the ranks, as in ipykernel.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import count as count_up
from typing import Any

import msgspec

from mhnb.core.messages import RunCell
from mhnb.rank import jax_private
from mhnb.rank.execution.cell_names import cell_file
from mhnb.rank.guard.array_hooks import ProcessJax
from mhnb.rank.guard.launch_recorder import LaunchRecorder

DEVICES = 2
_seqs = count_up(1000 * os.getpid())


def start(rank: int, count: int, port: int) -> tuple[LaunchRecorder, dict[str, Any]]:
    """Start JAX as a rank does: install the hooks first, which initialise no backend."""
    import jax
    import numpy as np

    recorder = LaunchRecorder(ProcessJax())
    status = jax_private.install(recorder)
    assert status.available, status.reason
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank, [0], cluster_detection_method="deactivate")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    scope = {"jax": jax, "np": np, "jnp": jax.numpy, "mesh": mesh, "os": os, "rank": rank, "recorder": recorder}
    setup = """
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    rows, whole = NamedSharding(mesh, P('x')), NamedSharding(mesh, P())
    swapped = Mesh(np.array(jax.devices())[::-1], ('x',))
    def spread(values):
        values = np.asarray(values, np.float32)
        return jax.make_array_from_callback(values.shape, rows, lambda i: values[i])
    x = spread(np.arange(2 * mesh.size))
    """
    exec(compile("if 1:\n" + setup, "<setup>", "exec"), scope)
    return recorder, scope


def run_cell(recorder: LaunchRecorder, scope: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    """Run one cell as a rank does: begin, code, wait, end."""
    scope.pop("value", None)
    seq = next(_seqs)
    file = cell_file(seq)
    # The ranks agree on nothing here. With ranks of its own a cell takes the path through Python all the same.
    recorder.begin_cell(RunCell(1, seq, source, "parity", list(range(scope["jax"].process_count()))))
    error = None
    try:
        try:
            exec(compile(source, file, "exec"), scope)
        finally:
            recorder.wait_all()
    except BaseException as problem:  # noqa: BLE001 - as on a rank: every outcome becomes an answer
        error = f"{type(problem).__name__}: {problem}"
    rows, abandoned = recorder.end_cell()
    return {"name": name, "rows": rows, "abandoned": abandoned, "error": error, "value": scope.get("value")}


def main() -> None:
    """Serve cells until stdin ends."""
    rank, count, port = map(int, sys.argv[1:])
    recorder, scope = start(rank, count, port)
    for line in sys.stdin:
        name, source = json.loads(line)
        print("\x00" + json.dumps(msgspec.to_builtins(run_cell(recorder, scope, name, source))), flush=True)
    # Exit without cleanup, because otherwise the ranks would wait for each other.
    os._exit(0)


if __name__ == "__main__":
    main()
