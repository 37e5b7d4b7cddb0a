"""`python -m tests.bench.collectives`: the time of the communication report for a program with 1,000 collectives.

The program is compiled for 8 devices of this process; parse, bytes, axes, reasons, text and HTML are timed, compiling is not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["main"]

LIMIT_S = 0.5
RANKS = (0, 0, 1, 1, 2, 2, 3, 3)


def compile_program(collectives: int) -> tuple[str, str]:
    """Compile a chain of gathers and scatters; return the text of XLA's module and of the lowered module."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    # One line per layer, so that each layer has a row of its own in the report.
    lines = ["def layers(x):"]
    for layer in range(collectives // 2):
        axis = "model" if layer % 3 else "data"
        lines.append(f"    x = lax.all_gather(x, '{axis}', tiled=True)")
        lines.append(f"    x = lax.psum_scatter(jnp.tanh(x), '{axis}', tiled=True)")
    names: dict[str, Any] = {"lax": lax, "jnp": jnp}
    exec(compile("\n".join([*lines, "    return x"]), "layers.py", "exec"), names)

    mapped = jax.jit(
        jax.shard_map(names["layers"], mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    )
    given = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    lowered = mapped.lower(given)
    return str(lowered.compile().as_text()), lowered.as_text(debug_info=True)


def measure(text: str, stablehlo: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step, one value per round."""
    from mhnb.sharding import hlo_groups, hlo_text, shardy
    from mhnb.sharding.hlo_collectives import _find_group_axes, parse_collectives, parse_meshes
    from mhnb.sharding.report import Program, make_report
    from mhnb.view.print_html import print_html
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.collectives import build_collectives

    took: dict[str, list[float]] = {"parse": [], "axes, bytes, reasons": [], "text and HTML": [], "together": []}
    for _ in range(rounds):
        # Clear the caches, so that each round measures the first report of a process.
        for cached in (hlo_groups.parse_groups, hlo_text.parse_shape, shardy.parse_lowered, _find_group_axes):
            cached.cache_clear()
        times = [time.perf_counter()]
        found = parse_collectives(text)
        times.append(time.perf_counter())
        program = Program("jit(layers)", RANKS, "cpu", found, parse_meshes(stablehlo)).with_explanations(stablehlo)
        report = make_report(program, {rank: rank for rank in RANKS})
        times.append(time.perf_counter())
        print_text(build_collectives([report], why=True))
        print_html(build_collectives([report]))
        times.append(time.perf_counter())
        for name, seconds in zip(took, [b - a for a, b in pairwise(times)], strict=False):
            took[name].append(seconds)
        took["together"].append(times[-1] - times[0])
    return took


def timed(make: Callable[[], tuple[str, str]]) -> tuple[tuple[str, str], float]:
    """Build something, and return it with the seconds that it took."""
    began = time.perf_counter()
    return make(), time.perf_counter() - began


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 if the report takes longer than its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.collectives", description=__doc__)
    parser.add_argument("--collectives", type=int, default=1000, help="in the program (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="reports (default %(default)s)")
    arguments = parser.parse_args(argv)
    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    from mhnb.sharding.hlo_collectives import parse_collectives

    (text, stablehlo), compiled_s = timed(lambda: compile_program(arguments.collectives))
    count = len(parse_collectives(text))
    took = measure(text, stablehlo, arguments.rounds)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {count} collectives in {len(text) / 1e6:.1f} MB of text"
          f" ({compiled_s:.1f} s to compile); median of {arguments.rounds} (slowest)")  # fmt: skip
    for name, seconds in took.items():
        print(f"{name:>22}  {statistics.median(seconds) * 1e3:7.1f} ms ({max(seconds) * 1e3:.1f})")
    if count < arguments.collectives:
        print(f"the compiler made {count} collectives of {arguments.collectives}: this is no measurement")
        return 1
    return int(statistics.median(took["together"]) > LIMIT_S * arguments.collectives / 1000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
