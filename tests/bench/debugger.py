"""`python -m tests.bench.debugger`: how long the user of the debugger waits for an answer.

The front end types at the prompt of a rank and waits for the next prompt, as JupyterLab does. Beside it is the same command in
pdb of a plain cell, which no other process takes part in.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from tests.support.debugger_cells import SETUP, STOPS_RANK_2
from tests.support.front_end import FrontEnd, TypedCell

__all__ = ["main"]

PLAIN = "import pdb\nme = 2\npdb.set_trace()\nme"


def measure(cell: TypedCell, command: str, rounds: int) -> list[float]:
    """Return the seconds from each of several typed lines to the next prompt."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        cell.ask(command)
        found.append(time.perf_counter() - began)
    return found


def measure_plain(front: FrontEnd, rounds: int) -> list[float]:
    """Measure `p me` in a plain cell's own pdb."""
    cell = front.start(PLAIN)
    cell.read_prompt()
    found = measure(cell, "p me", rounds)
    cell.answer("c")
    cell.end()
    return found


def measure_ranks(front: FrontEnd, ranks: int, rounds: int) -> dict[str, list[float]]:
    """Measure commands on rank 2, while the others wait for it."""
    for code in (f"%load_ext mhnb\n%mhjax start -n {ranks} --devices 1", SETUP):
        reply, shown = front.run(code)
        if reply["status"] != "ok":
            raise RuntimeError(shown)
    cell = front.start(STOPS_RANK_2)
    cell.read_prompt()
    while "stopped 2; waiting" not in cell.prompt or "running" in cell.prompt:
        cell.ask("p me")
    found = {f"{command}, rank 2 of {ranks}": measure(cell, command, rounds) for command in ("p me", "w")}
    cell.answer("c")
    cell.end()
    # All have stopped, and all answer.
    cell = front.start("%%mhjax --debug\nme\nme")
    cell.read_prompt()
    while "running" in cell.prompt or "waiting" in cell.prompt:
        cell.ask("p me")
    found[f"ranks all p me, {ranks} ranks"] = measure(cell, "ranks all p me", rounds)
    cell.answer("q")
    cell.end()
    return found


def main(argv: Sequence[str]) -> int:
    """Print the median, and what nine of ten lines are below."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.debugger", description=__doc__)
    parser.add_argument("--ranks", type=int, default=8, help="ranks, 1 device each (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="lines of each kind (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began; "
          f"{arguments.rounds} lines of each kind, milliseconds from Enter to the next prompt")  # fmt: skip
    front = FrontEnd()
    try:
        rows = {"p me, pdb of a plain cell": measure_plain(front, arguments.rounds)}
        rows |= measure_ranks(front, arguments.ranks, arguments.rounds)
    finally:
        front.close()
    print(f"{'':>30}  {'median':>7}  {'9 of 10 below':>13}")
    for name, seconds in rows.items():
        print(
            f"{name:>30}  {1e3 * statistics.median(seconds):7.1f}  {1e3 * statistics.quantiles(seconds, n=10)[-1]:13.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
