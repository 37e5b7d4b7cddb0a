"""The hierarchy of mhnb's exceptions; the parts of a message are attributes.

    MhnbError
    ├── LaunchError            processes could not be started or reached
    │   ├── HostUnreachable    a host or its supervisor does not respond
    │   ├── HostUnfit          the login to a host works, but a program or file that is needed there is missing
    │   ├── EnginesMissing     a rank did not start; names rank, phase and cause
    │   ├── CoordinatorTimeout jax.distributed did not form in time
    │   └── PreflightFailed    a check failed before any rank was started
    ├── ClusterError           the cluster cannot execute a request
    │   ├── NotStarted         there is no cluster
    │   ├── AlreadyStarted     a cluster with that name and another spec exists
    │   ├── NotDriver          another notebook owns the cluster
    │   ├── NotClean           the cluster is split, tainted or dead and accepts no cells
    │   ├── RanksLost          a rank or the hub was lost
    │   └── ReplayStopped      a replayed cell gave a different result than before
    ├── CellError              a cell did not succeed
    │   ├── CellFailed         the user's code raised on at least one rank
    │   ├── CellInterrupted    Ctrl-C
    │   ├── CellTimeout        --timeout
    │   └── OrderMismatch      the ranks did not launch the same programs
    ├── ProtocolError          the two ends of a connection disagree
    │   ├── OutOfOrder         a cell has a number that is not the next one
    │   ├── VersionMismatch    the two ends use different versions
    │   └── UnknownMessage     a message cannot be read
    ├── ValueDiffers           a value differs between ranks
    │   └── NameMissing        a name is missing on some ranks or on all
    ├── CallFailed             a call that was only to be compiled raised on a rank
    ├── NotYet                 an answer to an exercise is not correct yet
    ├── HloError               the text of a compiled program cannot be read
    │   └── UnknownForm        HLO syntax that mhnb does not know
    ├── NoKeyboard             code on a rank asked for input or a debugger; also an EOFError
    ├── BreakpointRefused      code on a rank cannot be stopped for the debugger
    ├── LayoutDiffers          an array has another layout than expected; also an AssertionError
    ├── ShardingError          an invalid sharding spec; also a ValueError
    │   ├── UnknownAxis        the mesh has no axis with that name
    │   ├── AxisUsedTwice      an axis can partition only one dim
    │   ├── SpecTooLong        more entries than the array has dims
    │   └── Indivisible        the axes do not divide the dim
    └── InvalidRequest         an invalid argument from the user; also a ValueError

Every message names the object, its value, what was expected and the next step.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

__all__ = [
    "AlreadyStarted",
    "AxisUsedTwice",
    "BreakpointRefused",
    "CallFailed",
    "CellError",
    "CellFailed",
    "CellInterrupted",
    "CellTimeout",
    "ClusterError",
    "CoordinatorTimeout",
    "EnginesMissing",
    "HloError",
    "HostUnfit",
    "HostUnreachable",
    "Indivisible",
    "InvalidRequest",
    "LaunchError",
    "LayoutDiffers",
    "MhnbError",
    "NameMissing",
    "NoKeyboard",
    "NotClean",
    "NotDriver",
    "NotStarted",
    "NotYet",
    "OrderMismatch",
    "OutOfOrder",
    "PreflightFailed",
    "ProtocolError",
    "RanksLost",
    "ReplayStopped",
    "ShardingError",
    "SpecTooLong",
    "UnknownAxis",
    "UnknownForm",
    "UnknownMessage",
    "ValueDiffers",
    "VersionMismatch",
]


def _rebuild(cls: type[MhnbError], message: str, parts: dict[str, Any]) -> MhnbError:
    """Recreate an error from its pickled parts."""
    return cls(message, **parts)


def name_topic(class_name: str) -> str:
    """Return the name of the help topic for an error class.

    >>> name_topic("OrderMismatch")
    'order-mismatch'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", class_name).lower()


class MhnbError(Exception):
    """Base class of every error that mhnb raises on purpose.

    Keyword arguments become attributes and survive pickling.
    In a notebook the error is shown as its message alone, because the user's code is not at fault and mhnb's stack does not help.
    """

    has_help: ClassVar[bool] = True
    """Whether a help topic explains errors of this class."""
    help_command: ClassVar[str] = ""
    """The command of this process that shows a help topic; empty where no such command exists, as on a rank."""
    short_text = ""
    """Shown instead of the message and the help command where a report or a card has shown them; may be empty."""

    def __init__(self, message: str, **parts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.parts = parts
        for name, value in parts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)
        return _rebuild, (type(self), self.message, self.parts), {"__notes__": notes} if notes else None

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        """Return the lines for IPython, without frames and what is shown above."""
        if self.short_text:
            return [f"{type(self).__name__}: {self.short_text}"]
        help_line = self.help_line
        notes = getattr(self, "__notes__", [])
        return [f"{type(self).__name__}: {self.message}", *notes, *([f"  Help: {help_line}"] if help_line else [])]

    @property
    def help_line(self) -> str:
        """The help command, such as `%mhjax help order-mismatch`, or an empty string."""
        return f"{self.help_command} {name_topic(type(self).__name__)}" if self.has_help and self.help_command else ""


class LaunchError(MhnbError):
    """Processes could not be started or reached."""


class HostUnreachable(LaunchError):
    """A host, or its supervisor, does not respond.

    `host` is its name, `kind` the kind of failure, and `cause` the reported reason.
    """

    host: str
    kind: str
    cause: str


class HostUnfit(LaunchError):
    """A host accepts logins, but a needed program is missing or ended.

    The attributes are those of `HostUnreachable`.
    """

    host: str
    kind: str
    cause: str


class EnginesMissing(LaunchError):
    """A rank did not start.

    `rank` is its number, `phase` the last phase that it reached, and `cause` why it failed.
    """

    rank: int
    phase: str | None
    cause: str


class CoordinatorTimeout(LaunchError):
    """`jax.distributed.initialize` timed out; `rank` is the furthest behind."""

    rank: int
    phase: str | None


class PreflightFailed(LaunchError):
    """A preflight check failed; `report` has the findings, if hosts were checked."""

    report: Any


class ClusterError(MhnbError):
    """The cluster cannot execute the request."""


class NotStarted(ClusterError):
    """No cluster exists; start one first."""


class AlreadyStarted(ClusterError):
    """A cluster with that name already exists, with a different spec."""


class NotDriver(ClusterError):
    """Another notebook owns the cluster; `driver` is its process id, as text."""

    driver: str


class NotClean(ClusterError):
    """A cluster in `state` split, tainted or dead accepts no cells."""

    state: str


class RanksLost(ClusterError):
    """Ranks or the hub were lost; `ranks` is in order of death."""

    ranks: tuple[int, ...]


class ReplayStopped(ClusterError):
    """A replayed cell differed or could not run; `report` describes the replay."""

    report: Any


class CellError(MhnbError):
    """A cell did not succeed; `result` has the ranks' results, if any."""

    result: Any


class CellFailed(CellError):
    """The user's code raised on at least one rank.

    The exception is the user's own, so no help topic is named.
    """

    has_help = False


class CellInterrupted(CellError):
    """The user interrupted the cell."""


class CellTimeout(CellError):
    """The cell ran longer than its `--timeout`."""


class OrderMismatch(CellError):
    """The ranks did not launch the same programs in the same order."""


class ProtocolError(MhnbError):
    """The two ends of a connection disagree."""


class OutOfOrder(ProtocolError):
    """A rank received a cell of another generation, or out of sequence."""


class VersionMismatch(ProtocolError):
    """The two ends differ in their protocol version or installed software."""


class UnknownMessage(ProtocolError):
    """A message cannot be read: unknown kind, missing field or wrong signature."""


class ValueDiffers(MhnbError):
    """A value differs between ranks; a missing name raises `NameMissing`."""


class NameMissing(ValueDiffers):
    """The variable `name` does not exist on one or more ranks."""

    name: str


class CallFailed(MhnbError):
    """Tracing or compiling a user's call raised; `ename` names the exception."""

    ename: str


class NotYet(MhnbError):
    """An answer to the exercise `exercise` is not correct yet.

    `rank` is the rank; None in the notebook.
    """

    has_help = False
    exercise: str
    rank: int | None


class HloError(MhnbError):
    """The text of a compiled program cannot be read."""


class UnknownForm(HloError):
    """HLO syntax that mhnb does not know; `form` is its text.

    It is an error because a guess could give a wrong number.
    """

    form: str


class NoKeyboard(MhnbError, EOFError):
    """Code on a rank asked for keyboard input, by calling `what`."""


class BreakpointRefused(MhnbError):
    """The debugger cannot stop a rank, or launch a multi-rank program."""


class LayoutDiffers(MhnbError, AssertionError):
    """`mhnb.expect` found another layout than expected; the message draws both."""


class ShardingError(MhnbError, ValueError):
    """An invalid sharding spec; `jax_says` is JAX's own reason, if any."""

    jax_says: str


class UnknownAxis(ShardingError):
    """The mesh has no axis with that name. `axis` is the name."""

    axis: str


class AxisUsedTwice(ShardingError):
    """A spec uses `axis` twice, but it can partition only one dim."""

    axis: str


class SpecTooLong(ShardingError):
    """A spec has more entries than the array has dims."""


class Indivisible(ShardingError):
    """Dim `dim` of size `size` does not divide into `ways` parts."""

    dim: int
    size: int
    ways: int


class InvalidRequest(MhnbError, ValueError):
    """A user's request is invalid: a bad rank, count, flag or name."""
