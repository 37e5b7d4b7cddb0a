"""`python -m tests.bench.memory`: what `%mhjax memory` costs with 1,000 live arrays. A cell costs nothing more.

The report is made in a cell on real ranks, which times the function alone, and by `cluster.memory()`, which includes the messages.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

import mhnb
from mhnb.cluster.cluster import Cluster

__all__ = ["main"]

ARRAYS = 1000
ROUNDS = 20
SETUP = """
import time, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
data = np.ones(8 * jax.device_count(), np.float32)
def make(count): return {f"layer{at}": jax.device_put(data, NamedSharding(mesh, P("x"))) for at in range(count)}
from mhnb.rank.memory import describe_memory
"""
TIMED = """
times = []
for _ in range(%d):
    began = time.perf_counter()
    found = describe_memory(globals(), seq=100)
    times.append(time.perf_counter() - began)
print(sorted(times)[len(times) // 2], sum(array.count for array in found.arrays))
"""


def measure_reports(cluster: Cluster) -> tuple[float, float, int]:
    """Return the seconds of a report on rank 0, those of `cluster.memory()`, and the number of arrays."""
    words = cluster.run(TIMED % ROUNDS).check()[0].stdout.split()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        cluster.memory()
        times.append(time.perf_counter() - began)
    return float(words[0]), statistics.median(times), int(words[1])


def main(argv: Sequence[str]) -> int:
    """Print the medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks, 4 devices each (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; medians of {ROUNDS} reports")
    with mhnb.start(arguments.ranks, 4, name="memory-bench") as cluster:
        cluster.run(SETUP).check()
        cluster.run(f"params = make({ARRAYS})").check()
        on_rank, in_all, count = measure_reports(cluster)
    print(f"report of {count} arrays on a rank  {1e3 * on_rank:6.1f} ms")
    print(f"cluster.memory() of {arguments.ranks} ranks      {1e3 * in_all:6.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
