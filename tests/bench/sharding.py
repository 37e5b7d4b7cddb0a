"""Layouts from 16 to 4,096 devices, compared with the drawings of JAX and treescope, in one run of one process.

    python -m tests.bench.sharding [--rounds N]

The peers draw what they support: `jax.debug.visualize_array_sharding` one or two dims as text, treescope an array's
sharding as HTML with its own limits. Peers need real arrays, so this process has 4,096 fake CPU devices; ours are drawn from
the same arrays. Each round draws with every contestant in turn; a figure is the median over rounds (lowest-highest).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TARGET_LAYOUT_MS, TARGET_CARD_KB, TARGET_PLAN_S = 50.0, 200.0, 0.5
COUNTS = (16, 256, 1024, 4096)
PEERS = Path(__file__).parents[2] / ".bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args(arguments).rounds
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={max(COUNTS)}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    # The peers are installed outside the environment; JAX's own drawing needs rich from there. The path is appended, so
    # that it replaces no package of the environment.
    sys.path.append(str(PEERS))
    import jax

    print(f"jax {jax.__version__}, {os.cpu_count()} cores; median of {rounds} rounds (lowest-highest), ms; size in KB")
    print(f"{'devices':>7}  {'what':<58} {'ms':>24}  {'KB':>7}")
    for count in COUNTS:
        _measure(count, rounds)
    _measure_plan(rounds)
    return 0


def _contestants(count: int) -> dict[str, Callable[[], str]]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from mhnb.adapters.jax_arrays import read_layout
    from mhnb.view.print_html import print_html
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.layout import build_layout

    side = 1 << (count.bit_length() // 2)
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(count // side, side), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    shape = (4096, 4096)
    described = jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)
    array = jax.device_put(np.zeros((count // side, side), "f4"), sharding)
    found: dict[str, Callable[[], str]] = {
        "mhnb: boxes and owners": lambda: str(len(read_layout(described).owners_by_box)),
        "mhnb: card as HTML": lambda: print_html(build_layout(read_layout(described))),
        "mhnb: card as text": lambda: print_text(build_layout(read_layout(described))),
        "jax: devices_indices_map": lambda: str(
            len(NamedSharding(_rotated(mesh), sharding.spec).devices_indices_map(shape))
        ),
        "jax: debug.visualize_sharding": lambda: _visualize(shape, sharding),
    }
    if (treescope := _treescope()) is not None:
        found["treescope: render_array_sharding as HTML"] = lambda: _treescope_html(treescope, array)
    return found


def _rotated(mesh: Any) -> Any:
    """Return the mesh with its devices rotated, so that JAX's cache of index maps is not used."""
    from jax.sharding import Mesh

    _turns[0] += 1
    return Mesh(mesh.devices.reshape(-1)[_rotated_order(mesh.size)].reshape(mesh.devices.shape), mesh.axis_names)


_turns = [0]


def _rotated_order(size: int) -> Any:
    import numpy as np

    return np.roll(np.arange(size), _turns[0])


def _visualize(shape: tuple[int, ...], sharding: Any) -> str:
    import jax

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        jax.debug.visualize_sharding(shape, sharding)
    return text.getvalue()


def _treescope() -> Any:
    try:
        return importlib.import_module("treescope")
    except ImportError as error:
        print(f"partial: without treescope ({error}); make bench installs it")
        return None


def _treescope_html(treescope: Any, array: Any) -> str:
    drawing = treescope.render_array_sharding(array)
    return str(drawing._repr_html_())


def _measure(count: int, rounds: int) -> None:
    contestants = _contestants(count)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    sizes: dict[str, int] = {}
    failed: dict[str, str] = {}
    # Thousands of fake devices make a heap that users do not have; a garbage collection of it would affect one
    # contestant at random.
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for name, draw in contestants.items():
            if name in failed:
                continue
            begun = time.perf_counter()
            try:
                sizes[name] = len(draw().encode())
            except Exception as error:  # noqa: BLE001 - a peer that cannot draw it is part of the result
                failed[name] = f"{type(error).__name__}: {str(error)[:90]}"
                continue
            times[name].append((time.perf_counter() - begun) * 1000)
    for name, durations in times.items():
        print(f"{count:>7}  {name:<58} {failed.get(name) or _spread(durations):>24}  {sizes.get(name, 0) / 1000:>7.1f}")
    _verdict(count, times, sizes)


def _spread(taken: Sequence[float]) -> str:
    return f"{statistics.median(taken):.1f} ({min(taken):.1f}-{max(taken):.1f})"


def _verdict(count: int, times: dict[str, list[float]], sizes: dict[str, int]) -> None:
    ours = statistics.median(times["mhnb: card as HTML"])
    for name, durations in times.items():
        if durations and not name.startswith("mhnb") and "map" not in name:
            print(f"{count:>7}  our card takes {ours / statistics.median(durations):.3f} of {name}")
    if count == max(COUNTS):
        layout = statistics.median(times["mhnb: boxes and owners"])
        card = max(sizes["mhnb: card as HTML"], 1) / 1000
        print(f"{count:>7}  layout {layout:.1f} ms (target {TARGET_LAYOUT_MS:.0f}): {_met(layout <= TARGET_LAYOUT_MS)}")
        print(f"{count:>7}  card {card:.1f} KB (target {TARGET_CARD_KB:.0f}): {_met(card <= TARGET_CARD_KB)}")


def _met(reached: bool) -> str:  # noqa: FBT001
    return "met" if reached else "MISSED"


def _measure_plan(rounds: int) -> None:
    from mhnb.compiler import CompileClient
    from mhnb.magics.sharding import draw_plan
    from mhnb.sharding.explorer import PlanInput
    from mhnb.sharding.plan import example_arrays
    from mhnb.view.live.screen import print_both

    arrays = example_arrays("mlp", ("data", "model"))
    with CompileClient() as compiler:
        begun = time.perf_counter()
        print_both(draw_plan(PlanInput(128, 8, "data 128, model 8", arrays, "mlp"), compiler))
        print(f"   1024  {'explorer: the first answer, its helper process started':<58} {_ms(begun):>24.1f}")
        durations = []
        for turn in range(rounds):
            # Each turn uses a new width, so that the compiler's cache is not used.
            wide = list(example_arrays("mlp", ("data", "model")))
            wide[0] = type(wide[0])(wide[0].name, (1024 * (turn + 2), 1024), wide[0].spec)
            begun = time.perf_counter()
            print_both(draw_plan(PlanInput(128, 8, "data 128, model 8", tuple(wide), "mlp"), compiler))
            durations.append(_ms(begun))
    median = statistics.median(durations)
    print(f"   1024  {'explorer: an answer with collectives':<58} {_spread(durations):>24}")
    print(f"   1024  explorer {median / 1000:.3f} s (target {TARGET_PLAN_S}): {_met(median / 1000 <= TARGET_PLAN_S)}")


def _ms(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000


if __name__ == "__main__":
    sys.exit(main())
