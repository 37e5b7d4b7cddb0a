"""`python -m tests.bench.flight`: what an event of the flight recorder costs, and how often the right rank is named as late.

The event is recorded 100,000 times in a process of its own, by the recorder of the ranks. Beside it is a function that takes the same
arguments and returns the time. The runs are cells on real ranks, in half of which one rank sleeps in each step.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mhnb
from mhnb.rank.flight import FlightRecorder, LaunchId, make_header
from mhnb.system.flight import flight_path

__all__ = ["main"]

EVENTS = 100_000
ROUNDS = 5
SETUP = """
import time, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
rank, mesh = jax.process_index(), jax.make_mesh((jax.device_count(),), ("x",))
x = jax.device_put(jnp.arange(float(jax.device_count())), NamedSharding(mesh, P("x")))
total = jax.jit(jnp.sum)
float(total(x))
"""
STEPS = """
for step in range(20):
    if rank == {late}: time.sleep(0.05)
    total(x).block_until_ready()
"""
NO_RANK = -1


def measure_event(record: Callable[..., int], ranks: int, programs: int) -> float:
    """Return the seconds that one event takes, over 100,000 of them, of launches of so many ranks and different programs."""
    names = [f"jit(step{number}) f32[8@x] → f32[]" for number in range(programs)]
    launches = [LaunchId(tuple(range(ranks)), number, 0xABCDEF + number) for number in range(programs)]
    began = time.perf_counter()
    for number in range(EVENTS):
        record("launch", number, 12, names[number % programs], launches[number % programs])
    return (time.perf_counter() - began) / EVENTS


def measure_events() -> dict[str, list[float]]:
    """Measure the recorder and a function that does nothing, in turns."""

    def return_time(kind: str, cell: int, line: int | None, program: str, launch: LaunchId) -> int:
        del kind, cell, line, program, launch
        return time.monotonic_ns()

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        recorder = FlightRecorder()
        recorder.open(flight_path(Path(folder), 0), make_header(0, 1, 64))
        for ranks, programs in ((8, 1), (64, 300)):
            case = f"{ranks} ranks, {programs} programs"
            for _ in range(ROUNDS):
                found.setdefault(f"{case}: recorded", []).append(measure_event(recorder.record, ranks, programs))
                found.setdefault(f"{case}: only the time", []).append(measure_event(return_time, ranks, programs))
    return found


def count_named(ranks: int, runs: int) -> tuple[int, int]:
    """Return in how many runs the late rank was named, and in how many without a late rank no rank was."""
    right = silent = 0
    chance = random.Random(1)  # noqa: S311  # not for secrets
    with mhnb.start(ranks, 1, name="flight-bench") as cluster:
        cluster.run(SETUP).check()
        for _ in range(runs):
            late = chance.randrange(ranks)
            cluster.run(STEPS.format(late=late)).check()
            stragglers = cluster.stragglers()
            right += stragglers is not None and stragglers.named == (late,)
            cluster.run(STEPS.format(late=NO_RANK)).check()
            stragglers = cluster.stragglers()
            silent += stragglers is not None and stragglers.named == ()
    return right, silent


def main(argv: Sequence[str]) -> int:
    """Print the medians and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flight", description=__doc__)
    parser.add_argument("--ranks", type=int, default=8, help="ranks, 1 device each (default %(default)s)")
    parser.add_argument("--runs", type=int, default=50, help="runs with and without a late rank (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; {EVENTS:,} events, {ROUNDS} rounds")
    for name, seconds in measure_events().items():
        print(f"{name:>38}  {1e6 * statistics.median(seconds):.2f} µs an event")
    right, silent = count_named(arguments.ranks, arguments.runs)
    print(
        f"50 ms more on one of {arguments.ranks} ranks in each of 20 steps: it was named in {right} of {arguments.runs} runs"
    )
    print(f"without: no rank was named in {silent} of {arguments.runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
