"""`python -m tests.bench`: run every contestant in turns, print medians and ratios, fail if a peer does not run."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.contestants import CONTESTANTS, PEERS, ROOT, Bare, Contestant, Mhnb, Plain, Workspace
from tests.bench.frontend import CellBroke
from tests.bench.program import CELLS, Shape
from tests.bench.report import Sample, format_headlines, format_table, headlines, summarise

__all__ = ["main"]

PACKAGES = ("mhnb", "jax", "ipykernel", "ipyparallel", "jupyter-client", "jupyter-distributed", "pyzmq")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    names = [c.name for c in CONTESTANTS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8", help="rank counts, comma-separated (default %(default)s)")
    parser.add_argument("--devices", type=int, default=2, help="CPU devices of each rank (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="lives of each contestant (default %(default)s)")
    parser.add_argument("--cells", type=int, default=40, help="timed cells of each kind (default %(default)s)")
    parser.add_argument("--warm", type=int, default=10, help="cells before those (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--peers", type=Path, default=ROOT / ".bench", help="where requirements.txt is installed")
    parser.add_argument("--only", default=",".join(names), help="some contestants; the result then says it is partial")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.only.split(",")) - set(names)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} not among {', '.join(names)}")
    return arguments


def measure_life(contestant: Contestant, *, cells: int, warm: int) -> dict[str, tuple[float, ...]]:
    """Start, use and stop a contestant once, and return seconds by metric.

    Raises:
        CellBroke: it did not start, run, compute the right sum, or stop.
    """
    try:
        contestant.prepare()
        seconds: dict[str, tuple[float, ...]] = {metric: (value,) for metric, value in contestant.start().items()}
        contestant.check()
        for metric, code in CELLS.items():
            took = [contestant.cell(code) for _ in range(warm + cells)]
            seconds[metric] = tuple(took[warm:])
        seconds["stop"] = (contestant.stop(),)
    finally:
        contestant.close()
    return seconds


def run(arguments: argparse.Namespace) -> tuple[list[Sample], dict[str, str]]:
    """Run every contestant in every round, rotating the order by one each round. A contestant that fails is dropped."""
    entered = [c for c in CONTESTANTS if c.name in arguments.only.split(",")]
    samples: list[Sample] = []
    failures: dict[str, str] = {}
    counts = [int(n) for n in arguments.ranks.split(",")]
    # Round 0 only fills the disk cache; its samples are discarded.
    plan = [(counts[0], 0)] + [(n, r) for n in counts for r in range(1, arguments.rounds + 1)]
    for ranks, round_ in plan:
        for kind in entered[round_ % len(entered) :] + entered[: round_ % len(entered)]:
            if kind.name in failures:
                continue
            print(f"{ranks} ranks, round {round_ or 'to warm up'}: {kind.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="mhnb-bench-") as directory:
                workspace = Workspace(Shape(ranks, arguments.devices), Path(directory), arguments.peers.resolve())
                try:
                    seconds = measure_life(kind(workspace), cells=arguments.cells, warm=arguments.warm)
                except (CellBroke, OSError, RuntimeError) as error:
                    failures[kind.name] = f"{ranks} ranks, round {round_}: {type(error).__name__}: {error}"
                    continue
            if round_:
                samples += [Sample(kind.name, ranks, round_, metric, values) for metric, values in seconds.items()]
    return samples, failures


def machine(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the facts about the machine that a reader needs to judge the numbers."""
    versions = {}
    for name in PACKAGES:
        path = [str(arguments.peers), *sys.path]
        found = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
        versions[name] = found.version if found else None
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; return 0 if every contestant ran, else print the reasons and return 1."""
    arguments = parse(argv)
    about = machine(arguments)
    samples, failures = run(arguments)
    summaries = summarise(samples)
    found = headlines(summaries, ours=Mhnb.name, plain=Plain.name, floor=Bare.name, peers=PEERS)
    names = [c.name for c in CONTESTANTS if c.name in arguments.only.split(",")]
    versions = ", ".join(f"{k} {v}" for k, v in dict(about["versions"]).items() if v)  # type: ignore[call-overload]
    print(f"{about['system']}, {about['cores']} cores, load {about['load_at_start']} when it began, "
          f"Python {about['python']}, {versions}")  # fmt: skip
    print(f"{arguments.devices} CPU devices a rank; median of {arguments.rounds} rounds (lowest-highest round); "
          f"a round's cell time is the median of {arguments.cells} after {arguments.warm}\n")  # fmt: skip
    print(format_table(summaries, names), format_headlines(found), sep="\n\n")
    left_out = [c.name for c in CONTESTANTS if c.name not in names]
    if left_out:
        print(f"\npartial: without {', '.join(left_out)}")
    for name, reason in failures.items():
        print(f"\nFAILED {name}: {reason}")
    if arguments.json:
        values = {"about": about, "samples": [dataclasses.asdict(s) for s in samples], "failures": failures}
        values["headlines"] = [dataclasses.asdict(h) for h in found]
        arguments.json.write_text(json.dumps(values, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
