"""`python -m tests.bench.guard`: what the guard adds to a launch, and to a step of a small sharded training loop.

The first table has launches of several kinds, bare and guarded in turns inside one cell, in the same processes. It shows minima,
and the limit of each ratio beside it. The second table compares a training step with bare processes, as medians.
All contestants run at once and take turns, so that other load on the machine affects all of them equally.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.bench.contestants import Bare, Contestant, Mhnb, Workspace
from tests.bench.launches import name_kinds
from tests.bench.program import Shape

__all__ = ["GUARDS", "Cost", "find_bar", "format_launches", "main", "measure_launches", "measure_steps"]

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
PLAIN = "plain"
"""Column of processes without mhnb, beside the guards."""
OFF_BAR, LOCAL_BAR = 1.05, 1.1
BARS: dict[str, dict[str, float]] = {
    "collective, one small argument": {"parity": 1.15, "lockstep": 2.0},
    "no collective, one small argument": {"lockstep": 1.5},
    "collective, 1,000 leaves": {"parity": 1.1, "lockstep": 1.3},
    "collective, 1,000 leaves, donated": {"parity": 1.1, "lockstep": 1.3},
    "no collective, 1,000 leaves": {"lockstep": 1.5},
    "a training step, 601 leaves": {"lockstep": 1.05},
    "collective, NumPy argument of 15 MB": {"parity": 1.5, "lockstep": 1.5},
    "making replicated data of 15 MB": {"parity": 3.0, "lockstep": 3.0},
}
"""Upper limit of the guarded call's time, as a multiple of the bare call's, by row; `off` has OFF_BAR in every row."""


_Cell: TypeAlias = Callable[[str], float]


# -- launches, bare and guarded in turns


@dataclass(frozen=True, slots=True)
class Cost:
    """The minimum seconds of a call in one row under one guard."""

    bare: float
    guarded: float

    @property
    def ratio(self) -> float:
        """The guarded call's time as a multiple of the bare call's."""
        return self.guarded / self.bare


def find_bar(row: str, guard: str) -> float | None:
    """Return the upper limit of a row's ratio under a guard; None if it has no limit.

    >>> find_bar("collective, one small argument", "lockstep"), find_bar("collective, 100 leaves", "parity")
    (2.0, None)
    """
    if row.startswith("one process"):
        return LOCAL_BAR
    return OFF_BAR if guard == "off" else BARS.get(row, {}).get(guard)


@dataclass(frozen=True, slots=True)
class Turns:
    """How often each row is measured."""

    rounds: int
    """Cells per row and guard."""
    turns: int
    """Turns per cell, for bare and guarded calls each."""


def measure_launches(
    shape: Shape, rows: Sequence[tuple[str, int]], turns: Turns, *, plain: bool
) -> Iterator[tuple[str, dict[str, Cost]]]:
    """Yield each row of the table once it is measured: its name and its costs by guard; `plain` adds processes without mhnb."""
    with _running_contestants(shape) as (bare, ours, folder):
        for row in rows:
            cells: dict[str, _Cell] = {guard: partial(_guarded, ours, guard) for guard in GUARDS}
            if plain:
                cells[PLAIN] = bare.cell
            yield _name(row), _measure_row(row, cells, turns, folder / "took.json")


def _measure_row(row: tuple[str, int], cells: Mapping[str, _Cell], turns: Turns, path: Path) -> dict[str, Cost]:
    code = f"from tests.bench.launches import measure\nmeasure({row!r}, {turns.turns}, {str(path)!r})"
    took: dict[str, dict[str, list[float]]] = {name: {"bare": [], "guarded": []} for name in cells}
    for round_ in range(turns.rounds):
        for name in list(cells)[round_ % len(cells) :] + list(cells)[: round_ % len(cells)]:
            path.unlink(missing_ok=True)
            cells[name](code)
            for side, seconds in json.loads(path.read_text()).items():
                took[name][side] += seconds
    return {name: Cost(min(sides["bare"]), min(sides["guarded"])) for name, sides in took.items()}


@contextmanager
def _running_contestants(shape: Shape) -> Iterator[tuple[Bare, Mhnb, Path]]:
    """Start bare processes and mhnb; stop both at the end, and close them in any case."""
    with tempfile.TemporaryDirectory(prefix="mhnb-bench-") as folder, ExitStack() as stack:
        bare = Bare(Workspace(shape, Path(folder, "bare"), Path(folder)))
        ours = Mhnb(Workspace(shape, Path(folder, "mhnb"), Path(folder)))
        contestants: tuple[Contestant, ...] = (bare, ours)
        for contestant in contestants:
            stack.callback(contestant.close)
            contestant.prepare()
            contestant.start()
        yield bare, ours, Path(folder)
        for contestant in contestants:
            contestant.end()


def _name(row: tuple[str, int]) -> str:
    """Return the row's name in the table.

    >>> _name(("collective, N leaves", 1000)), _name(("a training step, 601 leaves", 601))
    ('collective, 1,000 leaves', 'a training step, 601 leaves')
    """
    return row[0].replace("N leaves", f"{row[1]:,} leaves")


_WIDTH = 36


def format_head(*, plain: bool) -> str:
    """Format the line above the rows."""
    names = [*GUARDS, *((PLAIN,) if plain else ())]
    return f"{'us a call':{_WIDTH}}{'bare':>9}" + "".join(f"  {name:>21}" for name in names)


def format_launches(name: str, costs: Mapping[str, Cost]) -> str:
    """Format one row: the minimum bare time, then per guard the time, the ratio, and the limit with a mark if it is exceeded.

    For processes without mhnb: their time, and the bare call's time of the others as a multiple of it.

    >>> costs = {"off": Cost(1e-4, 1.02e-4), "lockstep": Cost(1e-4, 3e-4), "plain": Cost(0.8e-4, 0.8e-4)}
    >>> format_launches("collective, one small argument", costs).split()[-11:]
    ['100.0', '102.0', 'x1.02', '<=', '1.05', '300.0', 'x3.00', '>', '2', '80.0', 'x1.25']
    """
    bare = min(cost.bare for guard, cost in costs.items() if guard != PLAIN)
    cells = [_format_cell(name, guard, cost) for guard, cost in costs.items() if guard != PLAIN]
    if PLAIN in costs:
        least = min(costs[PLAIN].bare, costs[PLAIN].guarded)
        cells.append(f"{least * 1e6:.1f} x{bare / least:.2f}")
    return f"{name:{_WIDTH}}{bare * 1e6:>9.1f}" + "".join(f"  {cell:>21}" for cell in cells)


def _format_cell(name: str, guard: str, cost: Cost) -> str:
    bar = find_bar(name, guard)
    limit_text = "       " if bar is None else f"{'<=' if round(cost.ratio, 2) <= bar else '>':>2} {bar:<4g}"
    return f"{cost.guarded * 1e6:.1f} x{cost.ratio:.2f} {limit_text}"


# -- a training step beside bare processes


def measure_steps(shape: Shape, rounds: int) -> dict[str, float]:
    """Return the median seconds of a step, by guard; `bare` is JAX alone."""
    with _running_contestants(shape) as (bare, ours, _):
        for contestant in (bare, ours):
            contestant.cell(SETUP + LOOP)
        took: dict[str, list[float]] = {name: [] for name in ("bare", *GUARDS)}
        for round_ in range(rounds):
            for name in list(took)[round_ % 4 :] + list(took)[: round_ % 4]:
                took[name].append((bare.cell(LOOP) if name == "bare" else _guarded(ours, name, LOOP)) / STEPS)
    return {name: statistics.median(values) for name, values in took.items()}


def _guarded(ours: Mhnb, guard: str, code: str) -> float:
    return ours.local(f"%%mhjax --guard {guard}\n{code}")


# -- the command


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    arguments = _parse(argv)
    # Without this, a time limit from outside would leave the contestants' processes running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if arguments.table != "steps":
        _print_launches(arguments)
    if arguments.table != "launches":
        _print_steps(arguments)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.guard", description=__doc__)
    parser.add_argument("--table", choices=("both", "launches", "steps"), default="both", help="default: %(default)s")
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each rank (default: %(default)s)")
    launches = parser.add_argument_group("launches")
    launches.add_argument("--leaves", default="1000", help="numbers of leaves, comma-separated (default: %(default)s)")
    launches.add_argument("--launch-ranks", type=int, default=2, help="number of ranks (default: %(default)s)")
    launches.add_argument("--rows", default="", help="only rows whose name has this in it (default: all)")
    launches.add_argument("--cells", type=int, default=3, help="cells of each row and guard (default: %(default)s)")
    launches.add_argument("--turns", type=int, default=8, help="turns in each cell (default: %(default)s)")
    launches.add_argument("--plain", action="store_true", help="measure processes without mhnb, too")
    steps = parser.add_argument_group("steps")
    steps.add_argument("--ranks", default="2,4,8", help="rank counts, comma-separated (default: %(default)s)")
    steps.add_argument("--rounds", type=int, default=12, help="turns of each (default: %(default)s)")
    return parser.parse_args(argv)


def _print_launches(arguments: argparse.Namespace) -> None:
    shape = Shape(arguments.launch_ranks, arguments.devices)
    rows = [row for row in name_kinds([int(n) for n in arguments.leaves.split(",")]) if arguments.rows in _name(row)]
    turns = Turns(arguments.cells, arguments.turns)
    print(f"a launch: {os.cpu_count()} cores, {_load()} when it began; {shape.ranks} ranks of {shape.devices} devices\n"
          f"the least of {turns.rounds} x {turns.turns} turns, bare and guarded in turns inside one cell; "
          "x: times the bare call of the same cells; after it the bar")  # fmt: skip
    print(format_head(plain=arguments.plain))
    for name, costs in measure_launches(shape, rows, turns, plain=arguments.plain):
        print(format_launches(name, costs), flush=True)
    print(f"{_load()} when it ended\n", flush=True)


def _print_steps(arguments: argparse.Namespace) -> None:
    print(f"a training step: {os.cpu_count()} cores, {_load()} when it began; a step's median over "
          f"{arguments.rounds} turns of {STEPS} steps, {arguments.devices} CPU devices a rank")  # fmt: skip
    print(f"{'ranks':>5}  {'bare ms':>8}" + "".join(f"  {guard + ' ms':>16}" for guard in GUARDS))
    for ranks in map(int, arguments.ranks.split(",")):
        found = measure_steps(Shape(ranks, arguments.devices), arguments.rounds)
        cells = [f"{found[g] * 1e3:.2f} ({100 * (found[g] / found['bare'] - 1):+.0f} %)" for g in GUARDS]
        print(f"{ranks:>5}  {found['bare'] * 1e3:>8.2f}" + "".join(f"  {cell:>16}" for cell in cells), flush=True)


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
