"""Writes the figures, all of them or those that are named."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.integration.lessons import figures
from tests.integration.lessons.figures.drawing import Drawing
from tests.support.source import ROOT

DEVICES = 8


def find_figures() -> Iterator[tuple[str, Callable[[], Drawing]]]:
    """Yield each figure's file name and function, from the modules `l00` to `l99`."""
    for found in pkgutil.iter_modules(figures.__path__):
        if found.name[0] == "l" and found.name[1:].isdigit():
            yield from importlib.import_module(f"{figures.__name__}.{found.name}").FIGURES.items()


def main() -> None:
    """Draw the figures and write their files."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.lessons.figures", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="file names, such as 05_ring.svg (default: all)")
    parser.add_argument("--output", type=Path, default=ROOT / "notebooks" / "img", help="(default: notebooks/img)")
    args = parser.parse_args()
    # Before the modules of the lessons import JAX.
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"}
    known = dict(find_figures())
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"unknown figure {unknown[0]!r}; expected one of {', '.join(known)}")
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.names or known:
        (args.output / name).write_text(known[name]().to_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
