"""Read an error that a cell raised, whatever its class overrides.

A class may override `__class__`, `__cause__`, `__str__` and the like, and raise there or return anything. Everything but the
text is therefore read as the interpreter itself keeps it. The text has to be computed; an error that this raises is named in
its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeGuard, TypeVar

_MAX_NAME_CHARS = 200
_MAX_DRAWN, _MAX_ERRORS = 200, 10_000
"""An error with more causes and errors in groups than the first number is drawn alone, with a list of the first and the last of
these below its text; more than the second are not counted."""
_MAX_FIRST, _MAX_LAST, _MAX_LINE_CHARS = 12, 4, 200
_BROKEN = "<its __str__ raised "
_READ_ATTRIBUTES = frozenset(
    ("__bool__", "__cause__", "__class__", "__context__", "__getattr__", "__getattribute__", "__len__", "__notes__")
) | {"__suppress_context__", "__traceback__"}
"""Attributes that code that draws errors reads. A user's class that defines one of these may return anything."""

_T = TypeVar("_T")
_Hide: TypeAlias = Callable[[TracebackType | None], TracebackType | None]


def _get_accessor(owner: type, name: str) -> Any:
    """Return the interpreter's accessor of an attribute, which no class can override."""
    return type.__dict__["__dict__"].__get__(owner)[name].__get__


_get_traceback, _get_cause, _get_context, _get_suppresses = (
    _get_accessor(BaseException, name) for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__")
)
_get_members = _get_accessor(BaseExceptionGroup, "exceptions")
_get_name, _get_mro, _get_class_dict = (type.__dict__[name].__get__ for name in ("__name__", "__mro__", "__dict__"))
_get_file, _get_line = (_get_accessor(SyntaxError, name) for name in ("filename", "lineno"))


def is_a(value: object, kind: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """Return whether a value is of a type, ignoring its `__class__`."""
    return issubclass(type(value), kind)


def class_has(kind: type, name: str) -> bool:
    """Return whether a class or base defines a name, running no code."""
    return any(name in _get_class_dict(base) for base in _get_mro(kind))


def is_jax_class(kind: type, name: str) -> bool:
    """Return whether a class is JAX's, running no code."""
    module = _get_class_dict(kind).get("__module__")
    return str.__eq__(_get_name(kind), name) and type(module) is str and module.startswith("jax")


def has_jax_base(kind: type, name: str) -> bool:
    """Return whether a class or base is JAX's, running no code."""
    return any(is_jax_class(base, name) for base in _get_mro(kind))


def name_of(error: BaseException) -> str:
    r"""Return the name of an error's class, in one line.

    >>> name_of(type("Odd\nname", (ValueError,), {})())
    'Odd name'
    """
    # The name of a class may be empty, or a str subclass of the user's.
    names = (_in_one_line(str.__str__(_get_name(base))) for base in _get_mro(type(error)))
    name = next(filter(None, names))
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"


def _in_one_line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 2 * _MAX_NAME_CHARS]).split())


def text_of(error: BaseException) -> str:
    """Return an error's text, or name what its `__str__` raises.

    >>> text_of(KeyError("missing"))
    "'missing'"
    """
    try:
        # The class of the text may be the user's, too. Half a character, a lone surrogate, cannot be sent: it becomes its escape.
        return str.__str__(str(error)).encode("utf-8", "backslashreplace").decode()
    except BaseException as broken:  # noqa: BLE001 - an interrupt that ends a `__str__` has done its work
        return f"{_BROKEN}{name_of(broken)}>"


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an error's traceback."""
    found: TracebackType | None = _get_traceback(error)
    return found


def cause_of(error: BaseException) -> BaseException | None:
    """Return an error's cause, else its context unless that is suppressed."""
    cause: BaseException | None = _get_cause(error)
    if cause is not None:
        return cause
    context: BaseException | None = None if _get_suppresses(error) else _get_context(error)
    return context


def list_related(error: BaseException) -> list[BaseException]:
    """List an error, its causes and group members, up to a limit."""
    found: dict[int, BaseException] = {}
    pending = [error]
    while pending and len(found) <= _MAX_ERRORS:
        each = pending.pop(0)
        if id(each) not in found:
            found[id(each)] = each
            cause = cause_of(each)
            pending += ([] if cause is None else [cause]) + list(members_of(each))
    return list(found.values())


_ALLOCATION_TEXT = re.compile(
    r"RESOURCE_EXHAUSTED.*(?:memory|alloc|reserve)|out of memory|out-of-memory", re.IGNORECASE | re.DOTALL
)
_KERNEL_LIMIT = re.compile(r"shared memory size limit|memory space [vs]mem", re.IGNORECASE)
"""Of the small memories of a kernel, which no array of the user's fills."""
_RUNTIME_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")


def find_failed_allocation(error: BaseException) -> BaseException | None:
    """Return the failed allocation behind an error, or None.

    >>> find_failed_allocation(ValueError("no")) is None, find_failed_allocation(MemoryError())
    (True, MemoryError())
    """
    for each in list_related(error):
        if is_a(each, MemoryError):
            return each
        text = text_of(each)[:_MAX_STATUS_CHARS] if is_runtime_error(each) else ""
        if _ALLOCATION_TEXT.search(text) and not _KERNEL_LIMIT.search(text):
            return each
    return None


_MAX_STATUS_CHARS = 4096
"""Where the status and its reason are in the text of an error of XLA, which may go on with a list of buffers."""


def is_runtime_error(error: BaseException) -> bool:
    """Return whether an error is XLA's, by its class's name and module."""
    kind = type(error)
    module = _get_class_dict(kind).get("__module__")
    # A name may be of a str subclass of the user's.
    return (
        str.__str__(_get_name(kind)) in _RUNTIME_ERRORS
        and type(module) is str
        and module.partition(".")[0] in ("jax", "jaxlib")
    )


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of a group; empty for any other error."""
    return tuple(_get_members(error)) if is_a(error, BaseExceptionGroup) else ()


def contains_group(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is a group."""
    return any(is_a(each, BaseExceptionGroup) for each in list_related(error))


def syntax_error_location(error: BaseException) -> tuple[str | None, int | None]:
    """Return file and line of a SyntaxError, each None if unknown."""
    if not is_a(error, SyntaxError):
        return None, None
    file, line = _get_file(error), _get_line(error)
    return (str.__str__(file) if is_a(file, str) else None), (int.__int__(line) if is_a(line, int) else None)


# -- a stand-in for a misbehaving exception


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading an error."""

    error: BaseException
    plain: BaseException
    """An error with the same name, text and traceback, and nothing else."""
    is_ordinary: bool
    """Whether code that draws errors can be given the error itself: it has few causes, and no class overrides attributes."""


def read_error(error: BaseException, hide: _Hide) -> Reading:
    """Read an error of any class, and compute its text once.

    Args:
        error: of any class.
        hide: removes the frames that are not drawn, in place.
    """
    text = text_of(error)
    related = list_related(error)
    shown = text if len(related) <= _MAX_DRAWN else "\n".join([text, *_list_lines(related[1:])])
    for each in related:
        hide(traceback_of(each))
    plain: BaseException = type(name_of(error), (Exception,), {"__str__": lambda _: shown, "__module__": "builtins"})()
    plain.__traceback__ = hide(traceback_of(error))
    is_ordinary = shown == text and not text.startswith(_BROKEN) and not any(map(_is_unusual, related))
    return Reading(error, plain, is_ordinary)


def _list_lines(errors: list[BaseException]) -> list[str]:
    """Return lines for the first and the last (deepest) errors."""
    lines = [
        f"  {name_of(each)}: {_in_one_line(text_of(each))}"[:_MAX_LINE_CHARS]
        for each in (*errors[:_MAX_FIRST], *errors[-_MAX_LAST:])
    ]
    between = f"  … {len(errors) - _MAX_FIRST - _MAX_LAST} errors in between"
    return [*lines[:_MAX_FIRST], between, *lines[_MAX_FIRST:]]


def _is_unusual(error: BaseException) -> bool:
    bases = _get_mro(type(error))[: -len(BaseException.__mro__)]
    return any(_READ_ATTRIBUTES & _get_class_dict(base).keys() for base in bases)
