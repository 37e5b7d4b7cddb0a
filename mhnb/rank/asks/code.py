"""Completion and `?` on a rank. Neither reads an array or launches a program, whatever text is before the cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import getattr_static
from typing import Any

import jax

from mhnb.rank.asks.variables import describe_briefly, facts_of

__all__ = ["complete", "inspect"]

_UNREACHED_LEVEL = 99
"""A detail level above that of any request, so that IPython leaves `str(obj)` out."""


def complete(shell: Any, text: str, cursor: int) -> dict[str, Any]:
    """Complete code at `cursor`, in characters, as the shell's own completer does without jedi.

    Returns:
        `matches`, and the range `start:end` of characters that they replace.
    """
    from IPython.core.completer import provisionalcompleter, rectify_completions

    cursor = max(0, min(cursor, len(text)))
    with provisionalcompleter(), _without_jedi(shell.Completer) as completer:
        found = list(rectify_completions(text, completer.completions(text, cursor)))
    if not found:
        return {"matches": [], "start": cursor, "end": cursor}
    # Rectified completions all replace the same range.
    return {"matches": [match.text for match in found], "start": found[0].start, "end": found[0].end}


@contextmanager
def _without_jedi(completer: Any) -> Iterator[Any]:
    before = completer.use_jedi
    completer.use_jedi = False
    try:
        yield completer
    finally:
        completer.use_jedi = before


def inspect(shell: Any, name: str, detail: int) -> dict[str, Any]:
    """Describe the object that a name refers to.

    Returns:
        `found`, and `data`, a mime bundle that always has text/plain when found.
    """
    owner, last = _find_owner(shell.user_ns, name)
    if isinstance(owner, jax.Array):
        text = _attribute_text(shell, owner, last)
        return {"found": bool(text), "data": {"text/plain": text} if text else {}}
    obj = shell.user_ns.get(name)
    if isinstance(obj, jax.Array):
        return {"found": True, "data": {"text/plain": _array_text(obj)}}
    try:
        with _without_str(shell.inspector, obj):
            bundle = {} if owner is _NEEDS_COMPUTATION else shell.object_inspect_mime(name, detail_level=detail)
    except KeyError:
        bundle = {}
    return {"found": bool(bundle), "data": bundle}


_NEEDS_COMPUTATION = object()
"""Marks an owner that only a property's code could compute."""


def _find_owner(namespace: dict[str, Any], name: str) -> tuple[Any, str]:
    """Return the object on which the last part of a dotted name is looked up, and that part. No property is run."""
    first, *rest = name.split(".")
    obj = namespace.get(first)
    if not rest:
        return None, first
    for part in rest[:-1]:
        if isinstance(obj, jax.Array) or isinstance(getattr_static(type(obj), part, None), property | cached_property):
            return _NEEDS_COMPUTATION, rest[-1]
        obj = getattr(obj, part, None)
    return obj, rest[-1]


def _attribute_text(shell: Any, array: jax.Array, attribute: str) -> str:
    """Describe an attribute of arrays from their class, because reading it from the array could compute something."""
    if (found := getattr_static(type(array), attribute, None)) is None:
        return ""
    info = shell.inspector.info(found.fget if isinstance(found, property) else found, oname=attribute)
    kind = "property" if isinstance(found, property) else info["definition"] or info["type_name"]
    return f"{attribute}: {kind}, of jax.Array\n\n{info['docstring'] or ''}".strip()


@contextmanager
def _without_str(inspector: Any, obj: object) -> Iterator[None]:
    """Stop the inspector from calling `str(obj)`, which reads the arrays in a container. Strings and plain numbers keep it."""
    before = inspector.str_detail_level
    inspector.str_detail_level = before if isinstance(obj, str | int | float | complex | None) else _UNREACHED_LEVEL
    try:
        yield
    finally:
        inspector.str_detail_level = before


def _array_text(array: jax.Array) -> str:
    facts = facts_of(array)
    lines = [
        f"Type:      jax.Array, {facts.place}",
        f"Value:     {describe_briefly(array).removeprefix(facts.place + ' ')}",
    ]
    if facts.spec is not None and facts.mesh is not None:
        axes = ", ".join(f"{axis} {size}" for axis, size in facts.mesh)
        lines.append(f"Sharding:  {facts.spec} on mesh ({axes})")
    if facts.nbytes_per_device is not None:
        lines.append(f"Memory:    {facts.nbytes_per_device} B a device")
    return "\n".join(lines)
