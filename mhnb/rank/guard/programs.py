"""Compiled programs of this rank, and a way to forbid launches."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mhnb.core.guard.programs import CALLBACK_PREFIX
from mhnb.errors import InvalidRequest
from mhnb.rank.guard.callables import describe_callable, describe_object, returns_values
from mhnb.rank.guard.launch_recorder import LaunchRecorder

_SHOWN_TYPES = 4
_MESH_LINE = re.compile(r"^ *sdy\.mesh .*$", re.MULTILINE)
_POINTERS = re.compile(
    r'(stablehlo\.custom_call @InspectSharding\([^)]*\) \{[^\n]*?backend_config = )"(?:[^"\\]|\\.)*"'
)
"""Two addresses of this process as raw bytes: of a function of XLA, and of the Python function that it calls."""


class _ThreadState(threading.local):
    refusal_reason = ""
    """Why no launch may be made."""


_thread = _ThreadState()


@dataclass(frozen=True, slots=True, weakref_slot=True)
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
        """Return XLA's optimised text."""
        return str(self.executable.hlo_modules()[0].to_string())


def find_meshes(module: str) -> str:
    """Return the lines of a lowered module's text that name meshes."""
    return "\n".join(_MESH_LINE.findall(module))


def canonicalize_module(text: str, host_callbacks: Sequence[Any], kept_alive: Sequence[Any]) -> str:
    """Return a lowered module's text with descriptions instead of object addresses.

    Args:
        text: StableHLO without locations.
        host_callbacks: the functions that the program calls back; the text names them by their index here.
        kept_alive: objects that XLA calls while it compiles. The text names each by its address.
    """
    # since jax 0.10: `custom_partitioning` writes `str(id(info))` into the module, `inspect_array_sharding` two pointers.
    for each in kept_alive:
        # Only the whole text of an attribute is replaced. Elsewhere such a number is the user's.
        text = text.replace(f'backend_config = "{id(each)}"', f'backend_config = "{describe_object(each)}"')
    text = _POINTERS.sub(r'\1""', text)
    # A callback that returns nothing into the program does not change its numbers: it may differ, like a print's text.
    returning = ((place, each) for place, each in enumerate(host_callbacks) if returns_values(each))
    return "\n".join([text, *(f"{CALLBACK_PREFIX} {place}: {describe_callable(each)}" for place, each in returning)])


def find_launched_programs(recorder: LaunchRecorder, seq: int) -> list[tuple[str, int, CompiledProgram]] | None:
    """Return the programs a cell launched; None if another has run since."""
    if recorder.ended_seq != seq:
        return None
    counts: dict[str, int] = {}
    for row in recorder.ended_rows:
        counts[row.fingerprint] = counts.get(row.fingerprint, 0) + row.count
    programs = recorder.ended_programs
    # JAX may have dropped a program that C++ launched.
    return [(each, count, programs[each]) for each, count in counts.items() if programs[each] is not None]


@contextmanager
def forbid_launches(reason: str) -> Iterator[None]:
    """Refuse multi-rank launches in this thread: no other rank would join."""
    _thread.refusal_reason = reason
    try:
        yield
    finally:
        _thread.refusal_reason = ""


def check_may_launch(name: str) -> None:
    """Check that launches are not refused in this thread.

    Raises:
        InvalidRequest: they are.
    """
    if _thread.refusal_reason:
        raise InvalidRequest(f"{name} would be launched: {_thread.refusal_reason}")


def ranks_of_devices(devices: Sequence[Any]) -> tuple[int, ...]:
    """Return the rank of each device."""
    return tuple(device.process_index for device in devices)


def format_program_name(unloaded: Any) -> str:
    """Format name and types, as `jit(add) f32[8] → f32[]`."""
    return f"{unloaded.name} {_format_types(unloaded.input_avals)} → {_format_types(unloaded.output_avals)}"


def _format_types(avals: Sequence[Any]) -> str:
    shown = [aval.str_short(short_dtypes=True) for aval in avals[:_SHOWN_TYPES]]
    return ", ".join([*shown, "…"] if len(avals) > _SHOWN_TYPES else shown) or "()"


def optimised_texts(xla_executable: Any, *, with_constants: bool = False) -> list[str] | None:
    """Return XLA's optimised text of each module, or None if unavailable."""
    try:
        return [
            _format_with_constants(module) if with_constants else module.to_string()
            for module in xla_executable.hlo_modules()
        ]
    except (AttributeError, RuntimeError):
        return None


def _format_with_constants(module: Any) -> str:
    """Format an optimised module with the large constants that XLA omits."""
    make_options = getattr(sys.modules[type(module).__module__], "HloPrintOptions", None)
    if make_options is None:
        # A private name: without it the text has less detail, which is better than no text.
        return str(module.to_string())
    options = make_options()
    options.print_large_constants = True
    return str(module.to_string(options))
