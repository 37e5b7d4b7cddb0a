"""The recorded texts of real compiled programs; `record.py` writes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mhnb.sharding.hlo_collectives import HloCollective, parse_collectives

__all__ = ["CPU", "TPU", "hlo", "line_of", "lowered", "read"]

FOLDER = Path(__file__).parent / "texts"
CPU = ("cpu.jax-0.10.2", "cpu.jax-0.12.0.1")
TPU = ("tpu.jax-0.10.2",)


def hlo(program: str, kind: str) -> str:
    """Return XLA's optimised text."""
    return (FOLDER / f"{program}.{kind}.hlo").read_text(encoding="utf-8")


def lowered(program: str, kind: str) -> str:
    """Return the module before partitioning, with debug locations."""
    return (FOLDER / f"{program}.{kind}.mlir").read_text(encoding="utf-8")


@cache
def read(program: str, kind: str) -> tuple[HloCollective, ...]:
    """Return the collectives of a recorded program."""
    return parse_collectives(hlo(program, kind))


def line_of(code: str) -> int:
    """Return the number of the one line of `programs.py` that contains a piece of code."""
    lines = (Path(__file__).parent / "programs.py").read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if code in line]
    return found
