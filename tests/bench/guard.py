"""`python -m tests.bench.guard`: what the guard adds to a step of a small sharded training loop, beside bare processes.

All contestants live at once and take turns of a few dozen steps, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.contestants import Bare, Contestant, Mhnb, Place
from tests.bench.program import Shape

__all__ = ["main"]

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ('data',))
rows, whole = NamedSharding(mesh, P('data')), NamedSharding(mesh, P())
w = jax.device_put(np.zeros((160, 160), np.float32), whole)
shape = (48 * jax.device_count(), 160)
x = jax.make_array_from_callback(shape, rows, lambda i: np.ones(shape, np.float32)[i])
@partial(jax.jit, donate_argnums=0, out_shardings=(whole, whole))
def step(w, x):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - 1) ** 2))(w)
    return w - 0.1 * slope, loss
"""
STEPS = 40
LOOP = f"for _ in range({STEPS}): w, loss = step(w, x)\nloss.block_until_ready()"
GUARDS = ("off", "parity", "lockstep")


def measure(shape: Shape, rounds: int) -> dict[str, float]:
    """Median seconds of a step, by guard; `bare` is JAX alone."""
    with tempfile.TemporaryDirectory(prefix="mhnb-bench-") as folder, ExitStack() as stack:
        bare = Bare(Place(shape, Path(folder, "bare"), Path(folder)))
        ours = Mhnb(Place(shape, Path(folder, "mhnb"), Path(folder)))
        contestants: tuple[Contestant, ...] = (bare, ours)
        for contestant in contestants:
            stack.callback(contestant.close)
            contestant.prepare()
            contestant.start()
            contestant.cell(SETUP + LOOP)
        took: dict[str, list[float]] = {name: [] for name in ("bare", *GUARDS)}
        for round_ in range(rounds):
            for name in list(took)[round_ % 4 :] + list(took)[: round_ % 4]:
                took[name].append((bare.cell(LOOP) if name == "bare" else _guarded(ours, name)) / STEPS)
        for contestant in contestants:
            contestant.end()
    return {name: statistics.median(values) for name, values in took.items()}


def _guarded(ours: Mhnb, guard: str) -> float:
    return ours.local(f"%%mhjax --guard {guard}\n{LOOP}")


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.guard", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8", help="rank counts, comma-separated (default %(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each rank (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; a step's median over "
          f"{arguments.rounds} turns of {STEPS} steps, {arguments.devices} CPU devices a rank")  # fmt: skip
    print(f"{'ranks':>5}  {'bare ms':>8}" + "".join(f"  {guard + ' ms':>16}" for guard in GUARDS))
    for ranks in map(int, arguments.ranks.split(",")):
        found = measure(Shape(ranks, arguments.devices), arguments.rounds)
        cells = [f"{found[g] * 1e3:.2f} ({100 * (found[g] / found['bare'] - 1):+.0f} %)" for g in GUARDS]
        print(f"{ranks:>5}  {found['bare'] * 1e3:>8.2f}" + "".join(f"  {cell:>16}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
