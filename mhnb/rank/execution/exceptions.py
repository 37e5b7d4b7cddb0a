"""Read an error that a cell raised, whatever its class overrides.

A class may override `__class__`, `__cause__`, `__str__` and the like, and raise there or return anything. Everything but the
text is therefore read as the interpreter itself keeps it. The text has to be computed; an error that this raises is named in
its place.
"""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeGuard, TypeVar

_MAX_NAME_CHARS = 200
_MAX_NEAREST, _MAX_DEEPEST = 12, 4
"""In a longer chain of causes, the errors next to the one that was raised are drawn, and the earliest ones."""
_MAX_GROUP_SIZE, _MAX_GROUP_DEPTH, _MAX_ERRORS = 15, 10, 200
"""How many errors of one group, groups within groups, and errors in all are drawn."""
_MAX_NOTES = 100
_BROKEN = "<its __str__ raised "
_READ_ATTRIBUTES = frozenset(
    ("__bool__", "__cause__", "__class__", "__context__", "__getattr__", "__getattribute__", "__len__", "__notes__")
) | {"__suppress_context__", "__traceback__"}
"""Attributes that code that draws errors reads. A user's class that defines one of these may return anything."""

_T = TypeVar("_T")
_Hide: TypeAlias = Callable[[TracebackType | None], TracebackType | None]


def _get_accessor(owner: type, name: str) -> Any:
    """Return the interpreter's own accessor of an attribute, which no class of the user's can override."""
    return type.__dict__["__dict__"].__get__(owner)[name].__get__


_get_traceback, _get_cause, _get_context, _get_suppresses, _get_dict = (
    _get_accessor(BaseException, name)
    for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__", "__dict__")
)
_get_members = _get_accessor(BaseExceptionGroup, "exceptions")
_get_name, _get_mro, _get_class_dict = (type.__dict__[name].__get__ for name in ("__name__", "__mro__", "__dict__"))
_get_message = _get_accessor(SyntaxError, "msg")
_SYNTAX = tuple(
    (name, kind, _get_accessor(SyntaxError, name))
    for name, kind in (
        ("filename", str),
        ("text", str),
        ("lineno", int),
        ("offset", int),
        ("end_lineno", int),
        ("end_offset", int),
    )
)
"""What a SyntaxError stores about its location, each with the type that it should have."""


def is_a(value: object, kind: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """Return whether a value is of a type: its real class counts, not the one that it claims."""
    return issubclass(type(value), kind)


def class_has(kind: type, name: str) -> bool:
    """Return whether a class or one of its bases defines a name. Unlike `hasattr` it runs no code of the class's."""
    return any(name in _get_class_dict(base) for base in _get_mro(kind))


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
    """Return the text of an error. Its `__str__` is the user's code: an error that it raises is named instead.

    >>> text_of(KeyError("missing"))
    "'missing'"
    """
    return _format_safely(error)


def _format_safely(value: object) -> str:
    try:
        # The class of the text may be the user's, too.
        return _escape_surrogates(str.__str__(str(value)))
    except BaseException as broken:  # noqa: BLE001 - an interrupt that ends a `__str__` has done its work
        return f"{_BROKEN}{name_of(broken)}>"


def _escape_surrogates(text: str) -> str:
    """Return a text in a form that can be sent: half a character, a lone surrogate, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an error's traceback."""
    found: TracebackType | None = _get_traceback(error)
    return found


def cause_of(error: BaseException) -> BaseException | None:
    """Return what Python shows as the origin of an error: its cause, or else its context unless that is suppressed."""
    cause: BaseException | None = _get_cause(error)
    if cause is not None:
        return cause
    context: BaseException | None = None if _get_suppresses(error) else _get_context(error)
    return context


def list_chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, each once, because a chain may be circular."""
    chain: list[BaseException] = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        chain.append(each)
        each = cause_of(each)
    return chain


_ALLOCATION_TEXT = re.compile(
    r"RESOURCE_EXHAUSTED.*(?:memory|alloc|reserve)|out of memory|out-of-memory", re.IGNORECASE | re.DOTALL
)
_KERNEL_LIMIT = re.compile(r"shared memory size limit|memory space [vs]mem", re.IGNORECASE)
"""Of the small memories of a kernel, which no array of the user's fills."""
_RUNTIME_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")


def find_failed_allocation(error: BaseException) -> BaseException | None:
    """Return the failed allocation that an error is, or that led to it; None if memory was not short.

    >>> find_failed_allocation(ValueError("no")) is None, find_failed_allocation(MemoryError())
    (True, MemoryError())
    """
    pending, seen = [error], 0
    while pending and seen < _MAX_ERRORS:
        each = pending.pop(0)
        for one in list_chain(each):
            seen += 1
            if is_a(one, MemoryError):
                return one
            text = text_of(one)[:_MAX_STATUS_CHARS] if is_runtime_error(one) else ""
            if _ALLOCATION_TEXT.search(text) and not _KERNEL_LIMIT.search(text):
                return one
            pending += members_of(one)[:_MAX_GROUP_SIZE]
    return None


_MAX_STATUS_CHARS = 4096
"""Where the status and its reason are in the text of an error of XLA, which may go on with a list of buffers."""


def is_runtime_error(error: BaseException) -> bool:
    """Return whether an error is one of XLA's: its class is JAX's own, whatever a class of the user's is called."""
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
    return any(is_a(each, BaseExceptionGroup) for each in list_chain(error))


def notes_of(error: BaseException) -> list[str]:
    """Return the notes that were added to an error (PEP 678), as text."""
    # `add_note` stores them there. `__notes__` of a class that overrides it is not read.
    notes = dict.get(_get_dict(error), "__notes__")
    if notes is None:
        return []
    if not is_a(notes, list):
        return [_format_safely(notes)]
    kept = [_format_safely(note) for note in list.__getitem__(notes, slice(_MAX_NOTES))]
    more = list.__len__(notes) - len(kept)
    return [*kept, f"… {more} more notes"] if more else kept


def syntax_error_location(error: BaseException) -> tuple[str | None, int | None]:
    """Return file and line of a SyntaxError, each None if it has none; two None for any other error."""
    if not is_a(error, SyntaxError):
        return None, None
    fields = {name: get(error) for name, _, get in _SYNTAX}
    file, line = fields["filename"], fields["lineno"]
    return (str.__str__(file) if is_a(file, str) else None), (int.__int__(line) if is_a(line, int) else None)


# -- a stand-in for a misbehaving exception


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading an error."""

    error: BaseException
    plain: BaseException
    """An error with the same text, chain, group and notes, and no other behaviour. It has counts in place of what is too long."""
    is_ordinary: bool
    """Whether code that draws errors can be given the error itself: its chain is short, and no class overrides attributes."""


def read_error(error: BaseException, hide: _Hide) -> Reading:
    """Read an error of any class, and compute its text and the texts of its causes once.

    Args:
        error: of any class.
        hide: removes the frames that are not drawn.
    """
    plainer = _PlainErrorBuilder(hide)
    plain = plainer.build(error, _MAX_GROUP_DEPTH)
    return Reading(error, plain, not plainer.has_unusual)


def _is_unusual(error: BaseException, text: str) -> bool:
    kind = type(error)
    notes = dict.get(_get_dict(error), "__notes__", [])
    return (
        type(kind) not in (type, ABCMeta)
        or any(
            _READ_ATTRIBUTES & _get_class_dict(base).keys() for base in _get_mro(kind)[: -len(BaseException.__mro__)]
        )
        or _in_one_line(_get_name(kind)) != _get_name(kind)
        or is_a(error, BaseExceptionGroup)
        or (is_a(error, SyntaxError) and any(type(get(error)) not in (type(None), of) for _, of, get in _SYNTAX))
        or type(notes) is not list
        or len(notes) > _MAX_NOTES
        or any(type(note) is not str for note in notes)
        or text.startswith(_BROKEN)
    )


class _PlainErrorBuilder:
    def __init__(self, hide: _Hide) -> None:
        self._hide, self._remaining = hide, _MAX_ERRORS
        self.has_unusual = False
        """Whether one of the errors was not ordinary."""

    def build(self, error: BaseException, depth: int) -> BaseException:
        """Build the plain error, with its causes."""
        chain = list_chain(error)
        between = len(chain) - _MAX_NEAREST - _MAX_DEEPEST
        if between > 1:
            self.has_unusual = True
            chain[_MAX_NEAREST:-_MAX_DEEPEST] = [_make_count_error(between, "in between")]
        plain = self._build_one(chain[-1], depth)
        for each in reversed(chain[:-1]):
            above = self._build_one(each, depth)
            if _get_cause(each) is not None:
                above.__cause__ = plain
            else:
                above.__context__ = plain
            plain = above
        return plain

    def _build_one(self, error: BaseException, depth: int) -> BaseException:
        self._remaining -= 1
        text = text_of(error)
        self.has_unusual = self.has_unusual or _is_unusual(error, text)
        namespace = {"__str__": lambda _: text, "__module__": "builtins"}
        if is_a(error, SyntaxError):
            plain: BaseException = type(name_of(error), (SyntaxError,), namespace)()
            _copy_location(error, plain, text)
        elif (members := members_of(error)) and depth > 0:
            inner = [self.build(each, depth - 1) for each in members[:_MAX_GROUP_SIZE] if self._remaining > 0]
            if more := len(members) - len(inner):
                inner.append(_make_count_error(more, "more"))
            plain = type(name_of(error), (BaseExceptionGroup,), namespace)("", inner)
        else:
            plain = type(name_of(error), (Exception,), namespace)()
        plain.__traceback__ = self._hide(traceback_of(error))
        for note in notes_of(error):
            plain.add_note(note)
        return plain


def _make_count_error(number: int, where: str) -> BaseException:
    """Build an error that stands for those that are not drawn."""
    kind: type[Exception] = type("…", (Exception,), {"__module__": "builtins"})
    return kind(f"{number} {'error' if number == 1 else 'errors'} {where}")


def _copy_location(error: BaseException, plain: Any, text: str) -> None:
    """Copy the location of a SyntaxError. Any code may set these attributes, to anything."""
    for name, kind, get in _SYNTAX:
        value = get(error)
        if kind is str:
            setattr(plain, name, _escape_surrogates(str.__str__(value)) if is_a(value, str) else None)
        else:
            setattr(plain, name, int.__int__(value) if is_a(value, int) else None)
    message = _get_message(error)
    plain.msg = _format_safely(message) if is_a(message, str) else text
