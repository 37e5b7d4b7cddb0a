"""Output events of a rank, in the order of their production.

In a message each is an array that begins with the name of its class.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from mhnb.core.error_site import ErrorSite
from mhnb.core.memory import AllocationFailure

StreamName: TypeAlias = Literal["stdout", "stderr"]


class _Event(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """An event; its types are checked when it is decoded."""


class Stream(_Event, frozen=True):
    """Text of a stream."""

    name: StreamName
    text: str


class DisplayData(_Event, frozen=True):
    """A new display."""

    data: dict[str, Any]
    """By MIME type."""
    metadata: dict[str, Any]
    display_id: str | None = None


class UpdateDisplayData(Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Replaces displays of that id, also in older cells; mutable until sent."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str


class ExecuteResult(_Event, frozen=True):
    """The value of the last expression."""

    data: dict[str, Any]
    metadata: dict[str, Any]


class ClearOutput(_Event, frozen=True):
    """Clears the output of the cell."""

    wait: bool
    """Clear it only when the cell shows something again."""


class ErrorRaised(_Event, frozen=True):
    """An exception that ended the cell's code."""

    ename: str
    evalue: str
    traceback: list[str]
    """Lines as IPython renders them."""
    line: int | None = None
    """Of the cell."""
    code: str | None = None
    """The text of that line."""
    at_s: float = 0.0
    """Seconds since the cell began."""
    site: ErrorSite = ErrorSite()
    memory: AllocationFailure | None = None
    """What the memory held, if an allocation failed."""
    inner_place: str = ""
    """The innermost line of an earlier cell that this line led to: `In [3], line 11`."""
    inner_code: str = ""
    """The text of that line."""


class OutputOmitted(_Event, frozen=True):
    """Output that was left out here. The log file has the text."""

    name: str
    """The stream, or `display`."""
    nbytes: Annotated[int, Meta(ge=0)]


class LibraryNoise(_Event, frozen=True):
    """Internal log lines of C++ libraries (Gloo, absl)."""

    text: str


class MetricPoints(_Event, frozen=True):
    """Points of one metric, in the order of logging."""

    name: str
    steps: bytes
    """Numbers as `core/metrics.py` packs them: JSON has no NaN and no infinity."""
    values: bytes
    """As many as steps."""
    is_same: bool = False
    """All ranks of the cell should log the same values."""
    omitted_count: int = 0
    """How many more points the rank has left out since the last event of this metric. It may be negative: then that many that counted
    as left out are here.
    """


class MetricProblem(_Event, frozen=True):
    """Values of one metric that the rank could not read."""

    name: str
    why: str
    step: float
    """The first one."""
    count: Annotated[int, Meta(ge=1)] = 1


OutputEvent: TypeAlias = (
    Stream
    | DisplayData
    | UpdateDisplayData
    | ExecuteResult
    | ClearOutput
    | ErrorRaised
    | OutputOmitted
    | LibraryNoise
    | MetricPoints
    | MetricProblem
)
"""One output of a rank."""
