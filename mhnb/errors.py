"""The one tree of errors that mhnb raises, and the parts of each message as attributes.

    MhnbError
    ├── LaunchError            starting or reaching the processes
    │   ├── HostUnreachable    a machine or the supervisor on it does not answer
    │   ├── HostUnfit          a machine lets us in, and what is to run there is missing
    │   ├── EnginesMissing     a rank did not come up; names rank, phase and cause
    │   ├── CoordinatorTimeout jax.distributed did not form in time
    │   └── PreflightFailed    a check made before any process was started
    ├── ClusterError           the cluster cannot take what was asked
    │   ├── NotStarted         there is no cluster
    │   ├── AlreadyStarted     there is one, of another shape
    │   ├── NotDriver          another notebook drives it
    │   ├── NotClean           split, tainted or dead: the gate
    │   ├── RanksLost          a rank or the hub went away
    │   └── ReplayStopped      a cell that ran again did other than before
    ├── CellError              a cell did not end well
    │   ├── CellFailed         the user's code raised on some rank
    │   ├── CellInterrupted    Ctrl-C
    │   ├── CellTimeout        --timeout
    │   └── OrderMismatch      the ranks did not launch the same programs
    ├── ProtocolError          two ends of the link disagree
    │   ├── OutOfOrder         a cell with a number that is not the next
    │   ├── VersionMismatch    the two ends speak different versions
    │   └── UnknownMessage     a message that cannot be read
    ├── ValueDiffers           a value differs between the ranks
    │   └── NameMissing        a name is missing, on some ranks or on all
    ├── CallFailed             a call that was to be compiled raised on a rank
    ├── NotYet                 an answer to an exercise that is not right yet
    ├── HloError               a compiled program's text cannot be read
    │   └── UnknownForm        a spelling of HLO that mhnb does not know
    ├── NoKeyboard             code on a rank asked for input or a debugger, also an EOFError
    ├── LayoutDiffers          an array lies otherwise than expected, also an AssertionError
    ├── ShardingError          a spec that cannot be, also a ValueError
    │   ├── UnknownAxis        the mesh has no such axis
    │   ├── AxisUsedTwice      an axis can cut one dim only
    │   ├── SpecTooLong        more entries than the array has dims
    │   └── Indivisible        the axes do not divide the dim
    └── InvalidRequest         a bad argument of the user's, also a ValueError

Every message says the thing, its value, what was expected and the next step.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlreadyStarted",
    "AxisUsedTwice",
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
    """Make the error again from its pickled parts."""
    return cls(message, **parts)


class MhnbError(Exception):
    """Base of every error that mhnb raises on purpose.

    Keyword arguments become attributes and survive pickling.
    In a notebook it renders as its message alone: the user's code is not at fault, nor is mhnb's stack of interest.
    """

    def __init__(self, message: str, **parts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.parts = parts
        for name, value in parts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.parts)

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        """Give IPython the short form: kind and message, no frames."""
        return [f"{type(self).__name__}: {self.message}"]


class LaunchError(MhnbError):
    """Processes could not be started or reached."""


class HostUnreachable(LaunchError):
    """A machine, or the supervisor on it, does not answer. `host` and `kind` say which and why, where it was tried by ssh."""

    host: str
    kind: str


class HostUnfit(LaunchError):
    """A machine lets us in, and what is to run there is missing or ended. `host` and `kind` say where and what."""

    host: str
    kind: str


class EnginesMissing(LaunchError):
    """A rank did not come up. `rank`, `phase` and `cause` say which, where and why."""

    rank: int
    phase: str | None
    cause: str


class CoordinatorTimeout(LaunchError):
    """`jax.distributed.initialize` did not finish in time; `rank` is the one furthest behind."""

    rank: int
    phase: str | None


class PreflightFailed(LaunchError):
    """A check that runs before any process is started failed. `report` is what was found, where hosts were looked at."""

    report: Any


class ClusterError(MhnbError):
    """The cluster cannot take what was asked of it."""


class NotStarted(ClusterError):
    """There is no cluster; start one first."""


class AlreadyStarted(ClusterError):
    """There is a cluster of that name and it has another shape."""


class NotDriver(ClusterError):
    """Another notebook drives the cluster. `driver` is its process id, as text."""

    driver: str


class NotClean(ClusterError):
    """The gate: a split, tainted or dead cluster takes no cell. `state` says which."""

    state: str


class RanksLost(ClusterError):
    """A rank or the hub went away. `ranks` are the lost ones, the first to die first."""

    ranks: tuple[int, ...]


class ReplayStopped(ClusterError):
    """A cell that ran again did other than before, or could not be run. `report` says what was done until then."""

    report: Any


class CellError(MhnbError):
    """A cell did not end well. `result` holds what every rank said, where there is one."""

    result: Any


class CellFailed(CellError):
    """The user's code raised on at least one rank."""


class CellInterrupted(CellError):
    """The user interrupted the cell."""


class CellTimeout(CellError):
    """The cell outlasted its `--timeout`."""


class OrderMismatch(CellError):
    """The ranks did not launch the same programs in the same order."""


class ProtocolError(MhnbError):
    """The two ends of the link disagree."""


class OutOfOrder(ProtocolError):
    """A rank was sent a cell whose number is not its next, or of another generation."""


class VersionMismatch(ProtocolError):
    """The two ends speak different versions of the protocol, or hold different software."""


class UnknownMessage(ProtocolError):
    """A message that cannot be read: unknown kind, missing field, wrong signature."""


class ValueDiffers(MhnbError):
    """A value is not the same on every rank. What is missing on some is not the same either: see `NameMissing`."""


class NameMissing(ValueDiffers):
    """There is no such name on some rank, or on any."""


class CallFailed(MhnbError):
    """A call of the user's that was to be compiled, not made, raised while it was traced or compiled. `ename` says what."""

    ename: str


class NotYet(MhnbError):
    """An answer to an exercise is not right yet. `exercise` and `rank` say which and where; `rank` is None in the notebook."""

    exercise: str
    rank: int | None


class HloError(MhnbError):
    """The text of a compiled program cannot be read."""


class UnknownForm(HloError):
    """A spelling of HLO that mhnb does not know: it is refused, since a guess would be a wrong number. `form` is it."""

    form: str


class NoKeyboard(MhnbError, EOFError):
    """Code on a rank asked for a keyboard, which no rank has. `what` is what it called."""


class LayoutDiffers(MhnbError, AssertionError):
    """An array lies otherwise than `mhnb.expect` was told; the message draws both layouts."""


class ShardingError(MhnbError, ValueError):
    """A spec that cannot be. `jax_says` is the reason in JAX's own words, where JAX gives one."""

    jax_says: str


class UnknownAxis(ShardingError):
    """The mesh has no axis of that name. `axis` is the name."""

    axis: str


class AxisUsedTwice(ShardingError):
    """An axis stands at two places of a spec; it can cut one dim only. `axis` is its name."""

    axis: str


class SpecTooLong(ShardingError):
    """A spec has more entries than the array has dims."""


class Indivisible(ShardingError):
    """The axes of a dim do not divide its size. `dim`, `size` and `ways` say which and into how many parts."""

    dim: int
    size: int
    ways: int


class InvalidRequest(MhnbError, ValueError):
    """What the user asked for cannot be: a bad rank, count, flag or name."""
