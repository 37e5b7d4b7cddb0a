"""Requests to compile programs, and replies of ranks and the compiler's process."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from mhnb.core.error_site import ErrorSite
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


class CompileRequest(Struct, frozen=True):
    """Compile a program or an array's layout change for fake devices."""

    axes: tuple[tuple[str, int], ...]
    """Of the mesh, with their sizes."""
    arrays: tuple[ArgumentLayout, ...]
    program: str
    """A name, an expression or the source of a function; not used if `to` is given."""
    to: str | None = None
    """The spec that the one array is to have."""


class CompileReply(Struct, frozen=True):
    """The compiled program, or why it is missing."""

    program: WireProgram | None = None
    error: str = ""
