"""`python -m tests.bench.life`: times until mhnb reports a hang or a death, and times of a restart, a standby and a replay.

A restart is compared with a cold start of the same run; the other rows are seconds beside their targets.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import mhnb
from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult

__all__ = ["main"]

PROGRAM = """
import jax, numpy as np, time
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ('x',))
x = jax.device_put(np.arange(jax.device_count(), dtype=np.float32), NamedSharding(mesh, P('x')))
add = jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P()))
float(add(x))
"""
HANG = "if jax.process_index() == 1: time.sleep(1000)\nfloat(add(x))"
LIMIT_S = 60.0


def timed(action: Callable[[], Cluster]) -> tuple[float, Cluster]:
    """Return the seconds that an action takes, and the cluster it returns."""
    began = time.perf_counter()
    cluster = action()
    return time.perf_counter() - began, cluster


def measure_hang_report(cluster: Cluster) -> float:
    """Return the seconds from sending a cell in which one rank blocks the others to the report that names this rank."""
    seen: list[float] = []

    def on_snapshot(snapshot: CellResult) -> None:
        if not seen and snapshot.where is not None and snapshot.where.absent == (1,):
            seen.append(snapshot.wall_s)
            cluster.interrupt()

    cluster.run(HANG, on_snapshot=on_snapshot, timeout_s=LIMIT_S)
    if not seen:
        raise RuntimeError("the hang was not explained")
    return seen[0]


def measure_death_notification(cluster: Cluster) -> float:
    """Return the seconds from kill -9 of an idle rank to the notification."""
    notified = threading.Event()
    cluster.on_notice(lambda _: notified.set())
    pid = cluster.ranks[1].pid
    if pid is None:
        raise RuntimeError("rank 1 has no process")
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    if not notified.wait(LIMIT_S):
        raise RuntimeError("the death was not told")
    return time.perf_counter() - began


def wait_for_standby(cluster: Cluster) -> None:
    """Wait until the standby ranks are ready."""
    deadline = time.perf_counter() + LIMIT_S
    while cluster.standby is None or cluster.standby.cluster.state != "clean":
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the reserve did not come up: {cluster.notes}")
        time.sleep(0.05)


def measure(ranks: int) -> dict[str, float]:
    """Measure all rows once, in seconds."""
    found: dict[str, float] = {}
    found["cold start"], cluster = timed(lambda: mhnb.start(hosts=ranks, devices=2, name="bench", standby=True))
    try:
        cluster.run(PROGRAM).check()
        found["hang to card"] = measure_hang_report(cluster)
        cluster.run("y = float(add(x))").check()
        wait_for_standby(cluster)
        found["restart, standby"], cluster = timed(cluster.restart)
        found["kill to notice"] = measure_death_notification(cluster)
        found["restart, replay"], cluster = timed(lambda: cluster.restart(replay=True))
    finally:
        cluster.stop()
    found["second cold start"], cluster = timed(lambda: mhnb.start(hosts=ranks, devices=2, name="bench-plain"))
    try:
        found["restart"], cluster = timed(cluster.restart)
    finally:
        cluster.stop()
    return found


def main(argv: Sequence[str]) -> int:
    """Print the medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.life", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="ranks, 2 devices each (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="lives (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; "
          f"{arguments.ranks} ranks x 2, median of {arguments.rounds} lives, seconds")  # fmt: skip
    lives = [measure(arguments.ranks) for _ in range(arguments.rounds)]
    found = {name: statistics.median(life[name] for life in lives) for name in lives[0]}
    for name, seconds in found.items():
        print(f"{name:>18}  {seconds:6.2f}")
    ratio = found["restart"] / found["second cold start"]
    print(f"restart / cold start: {ratio:.2f} (target 1.3): {'met' if ratio <= 1.3 else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
