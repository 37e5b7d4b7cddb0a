"""Type checks for the arguments of `start`: a wrong type is reported by name before it causes an unrelated error.

`core/asked/shape.py` checks whether numbers fit together, and whether there is memory for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mhnb.errors import InvalidRequest

__all__ = ["is_positive_seconds", "validate_start_arguments"]


def is_positive_seconds(value: object) -> bool:
    """Return whether a value is a positive number of seconds.

    >>> [is_positive_seconds(value) for value in (2, 0, "2", float("nan"), True)]
    [True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) and value > 0


class _Rule(NamedTuple):
    is_valid: Callable[[Any], bool]
    expected: str


def _is_optional_int(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _is_optional_path(value: object) -> bool:
    return value is None or isinstance(value, str) or hasattr(value, "__fspath__")


def _is_optional_mapping(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))


_COUNT = _Rule(_is_optional_int, "a whole number")
_SWITCH = _Rule(lambda value: isinstance(value, bool), "True or False")
_DURATION = _Rule(is_positive_seconds, "a number of seconds above 0")
_TEXT = _Rule(lambda value: isinstance(value, str), "a text")

_RULES: dict[str, _Rule] = {
    "address": _TEXT,
    "connection": _TEXT,
    "devices": _COUNT,
    "encrypt": _SWITCH,
    "fork": _SWITCH,
    "host_timeout_s": _DURATION,
    "init": _SWITCH,
    "initialize": _Rule(
        _is_optional_mapping,
        "the arguments of jax.distributed.initialize by name, like {'heartbeat_timeout_seconds': 30}",
    ),
    "keep": _SWITCH,
    "name": _Rule(lambda value: isinstance(value, str), "a text of letters, digits, - and _"),
    "on_progress": _Rule(lambda value: value is None or callable(value), "a function of one argument"),
    "profile": _Rule(_is_optional_path, "the name of a profile, like 'ssh', or the folder of one"),
    "ranks": _COUNT,
    "ranks_per_host": _COUNT,
    "spare": _SWITCH,
    "start_timeout_s": _DURATION,
    "sync": _Rule(lambda value: value is not None and _is_optional_path(value), "a folder of this machine"),
}  # fmt: skip


def validate_start_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the types of the arguments of `start`.

    Raises:
        InvalidRequest: an argument has a wrong type.

    >>> validate_start_arguments({"devices": 2, "keep": True, "settings of a profile": object()})
    """
    for name, value in arguments.items():
        rule = _RULES.get(name)
        if rule is not None and not rule.is_valid(value):
            kind = "" if rule is _DURATION and isinstance(value, int | float) else f", not {type(value).__name__}"
            raise InvalidRequest(f"{name}={value!r:.80}: give {rule.expected}{kind}")
