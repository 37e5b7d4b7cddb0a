"""Requests to compile programs, and replies of ranks and the compiler's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from mhnb.core.error_site import ErrorSite
from mhnb.sharding.fit import CompiledMemory, PlannedArgument
from mhnb.sharding.hlo_cost import Cost
from mhnb.sharding.report import WireProgram


class CompiledCall(Struct, frozen=True, tag="compiled"):
    """The program of a call on one rank."""

    program: WireProgram
    is_plain: bool
    """Whether the function was not jitted."""
    printed: str
    """What the function printed while it was traced."""


class FailedCall(Struct, frozen=True, tag="failed"):
    """Why a rank could not evaluate, lower or read a call."""

    ename: str
    evalue: str
    is_mhnb_error: bool
    close_names: tuple[str, ...]
    """The user's names that are similar to one that is missing."""
    was_traced: bool
    """Whether the error is of the function itself, not of its arguments."""
    place: str
    """The line in the user's own code; may be empty."""
    code: str
    """The text of that line."""
    site: ErrorSite


class LaunchedProgram(NamedTuple):
    """A program that a cell launched on a rank."""

    fingerprint: str
    launches: int
    program: WireProgram | str
    """The text of the error if its compiled form cannot be read."""


class LaunchedPrograms(Struct, frozen=True):
    """A cell's launched programs on one rank, in order of first launch."""

    is_gone: bool
    """Whether another cell has run since."""
    programs: tuple[LaunchedProgram, ...] = ()


class ArgumentLayout(NamedTuple):
    """An argument of a program that is compiled for fake devices."""

    shape: tuple[int, ...]
    dtype: str
    spec: str


class CompileRequest(Struct, frozen=True, tag="compile"):
    """Compile a program or an array's layout change for fake devices."""

    axes: tuple[tuple[str, int], ...]
    """Of the mesh, with their sizes."""
    arrays: tuple[ArgumentLayout, ...]
    program: str
    """A name, an expression or the source of a function; not used if `to` is given."""
    to: str | None = None
    """The spec that the one array is to have."""


class ExportedCall(Struct, frozen=True, tag="exported"):
    """A call that was traced for devices that are not there."""

    name: str
    """Of the function."""
    module: bytes
    """As `jax.export` serialises it."""
    arguments: tuple[PlannedArgument, ...]
    donated: tuple[int, ...]
    """Positions of the arguments whose memory the results take over."""
    axis_types: tuple[str, ...]
    """Such as `Explicit`, by axis of the mesh."""
    is_plain: bool
    """Whether the function was not jitted."""
    printed: str = ""
    """What the function printed while it was traced."""
    cell_names: Mapping[str, str] = {}
    """How the notebook names the cells that the module names: `<In [7]>` by `<cell 12>`."""


class FitRequest(Struct, frozen=True, tag="fit"):
    """Compile an exported call for the devices of a machine."""

    call: ExportedCall
    platform: str
    """`tpu`, `cuda` or `cpu`."""
    topology: Mapping[str, str | int | tuple[int, ...]]
    """Arguments of `jax.experimental.topologies.get_topology_desc`; for CPU none."""
    axes: tuple[tuple[str, int], ...]
    factors: tuple[int, ...] | None
    """Into how many parts each axis is split over the slices; None for one slice."""


class CompiledFit(Struct, frozen=True):
    """What the compiler of a machine says about a call."""

    memory: CompiledMemory
    cost: Cost
    seconds: float
    """How long lowering and compiling took."""
    places: tuple[tuple[int, ...], ...]
    """The coordinates of the TPU chip at each position of the device assignment; empty on other platforms."""


class CompileReply(Struct, frozen=True):
    """The compiled program, or why it is missing."""

    program: WireProgram | None = None
    fit: CompiledFit | None = None
    """For a `FitRequest`."""
    error: str = ""
