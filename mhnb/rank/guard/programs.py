"""What is kept of the programs that this rank compiles and launches, to be asked about later, and when none may be launched."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mhnb.errors import InvalidRequest
from mhnb.rank.guard.launches import LaunchRecorder

__all__ = [
    "CompiledProgram",
    "check_may_launch",
    "find_meshes",
    "full_name",
    "launched_programs",
    "no_launches",
    "optimised_texts",
    "ranks_of_devices",
]

_SHOWN_TYPES = 4
_MESH_LINE = re.compile(r"^ *sdy\.mesh .*$", re.MULTILINE)


class _Thread(threading.local):
    refusing = ""
    """Why no launch may be made."""


_thread = _Thread()


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A compiled program of several ranks."""

    name: str
    """As `jit(step)`."""
    ranks: tuple[int, ...]
    """The rank of each position of the device assignment."""
    platform: str
    meshes: str
    """The lines of the lowered module that name its meshes."""
    executable: Any

    def text(self) -> str:
        """XLA's optimised text."""
        return str(self.executable.hlo_modules()[0].to_string())


def find_meshes(module: str) -> str:
    """Cut the lines that name meshes out of a lowered module's text; the rest of it is long."""
    return "\n".join(_MESH_LINE.findall(module))


def launched_programs(recorder: LaunchRecorder, seq: int) -> list[tuple[str, int, CompiledProgram]] | None:
    """Fingerprint, launches and program of what a cell launched on several ranks; None where another cell has run since."""
    if recorder.ended_seq != seq:
        return None
    counts: dict[str, int] = {}
    for fingerprint, _, _, _, count in recorder.ended_rows:
        counts[fingerprint] = counts.get(fingerprint, 0) + count
    return [(each, count, recorder.ended_programs[each]) for each, count in counts.items()]


@contextmanager
def no_launches(why: str) -> Iterator[None]:
    """Refuse, in this thread, every launch of a program of several ranks: between cells no other rank would meet it."""
    _thread.refusing = why
    try:
        yield
    finally:
        _thread.refusing = ""


def check_may_launch(name: str) -> None:
    """Hold that launches are not refused here.

    Raises:
        InvalidRequest: they are.
    """
    if _thread.refusing:
        raise InvalidRequest(f"{name} would be launched: {_thread.refusing}")


def ranks_of_devices(devices: Sequence[Any]) -> tuple[int, ...]:
    """The rank of each device."""
    return tuple(device.process_index for device in devices)


def full_name(unloaded: Any) -> str:
    """Name and types, as `jit(add) f32[8] → f32[]`."""
    return f"{unloaded.name} {_types(unloaded.input_avals)} → {_types(unloaded.output_avals)}"


def _types(avals: Sequence[Any]) -> str:
    shown = [aval.str_short(short_dtypes=True) for aval in avals[:_SHOWN_TYPES]]
    return ", ".join([*shown, "…"] if len(avals) > _SHOWN_TYPES else shown) or "()"


def optimised_texts(xla_executable: Any, *, whole: bool = False) -> list[str] | None:
    """Give what XLA made of a program, with large constants if `whole`; None from a plugin that does not give it away."""
    try:
        return [_print_whole(module) if whole else module.to_string() for module in xla_executable.hlo_modules()]
    except (AttributeError, RuntimeError):
        return None


def _print_whole(module: Any) -> str:
    """Write an optimised module with its large constants, which XLA leaves out otherwise."""
    make_options = getattr(sys.modules[type(module).__module__], "HloPrintOptions", None)
    if make_options is None:
        # A private name: without it the text says less, and more than none.
        return str(module.to_string())
    options = make_options()
    options.print_large_constants = True
    return str(module.to_string(options))
