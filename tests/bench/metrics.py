"""`python -m tests.bench.metrics`: what a point that a cell logs with `mhnb.log` costs on the rank.

One rank logs points of Python floats, and of JAX scalars that are computed and were never read, in a loop.
The cost includes what the service thread and the end of the cell do with them: reading, packing and sending.
Beside it is a function that does nothing with the same arguments.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence

import mhnb

__all__ = ["main"]

POINTS = 20_000
LIMIT_US = 20.0
SETUP = """
import time, jax.numpy as jnp, mhnb
number = 0.5
scalars = [jnp.float32(step) for step in range({points})]
scalars[-1].block_until_ready()
def nothing(step, /, *, same=False, **values): pass
"""
LOOP = """
began = time.perf_counter()
for step in range({points}):
    {function}(step, {values})
print(time.perf_counter() - began)
"""
CASES = (
    ("nothing", "nothing", "loss=number"),
    ("a Python float", "mhnb.log", "loss=number"),
    ("a Python float, same=True", "mhnb.log", "loss=number, same=True"),
    ("four Python floats", "mhnb.log", "loss=number, norm=number, rate=number, time=number"),
    ("a JAX scalar", "mhnb.log", "loss=scalars[step]"),
)


def measure(cluster: mhnb.Cluster, function: str, values: str, points: int) -> tuple[float, float]:
    """Return the microseconds of a call, and of a call with its share of the cell's end and of the service thread."""
    # New arrays, because JAX keeps a value that was read.
    cluster.run(SETUP.format(points=points)).check()
    result = cluster.run(LOOP.format(points=points, function=function, values=values)).check()
    return 1e6 * float(result[0].stdout) / points, 1e6 * result[0].wall_s / points


def main(argv: Sequence[str]) -> int:
    """Print the medians; return 1 if a point costs more than 20 µs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.metrics", description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS, help="calls of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; {arguments.points:,} points")
    worst = 0.0
    with mhnb.start(1, 1, name="metrics-bench") as cluster:
        for name, function, values in CASES:
            rounds = [measure(cluster, function, values, arguments.points) for _ in range(arguments.rounds)]
            call, whole = (statistics.median(each) for each in zip(*rounds, strict=True))
            worst = max(worst, whole)
            print(f"{name:>26}  {call:5.2f} µs a call, {whole:5.2f} µs with the end of the cell")
    return int(worst > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
