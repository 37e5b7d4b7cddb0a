"""PartitionSpec as a value: parse, format and check it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mhnb.errors import AxisUsedTwice, Indivisible, InvalidRequest, ShardingError, SpecTooLong, UnknownAxis
from mhnb.sharding.mesh import MeshShape

_UNCONSTRAINED = "UNCONSTRAINED"


@dataclass(frozen=True, slots=True)
class Spec:
    """Axes for each dim, outermost first; later dims are not partitioned."""

    dims: tuple[tuple[str, ...], ...] = ()
    """Empty for a dim that is not partitioned."""
    unreduced: tuple[str, ...] = ()
    """Axes over which each device stores a partial sum that is not reduced yet, sorted."""
    reduced: tuple[str, ...] = ()
    """Axes over which the gradient will be such a partial sum, sorted; the array itself is replicated along them."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return every named axis in order, including repetitions."""
        return (*(axis for entry in self.dims for axis in entry), *self.unreduced, *self.reduced)

    def __str__(self) -> str:
        return format_spec(self)


def parse_spec(value: Any) -> Spec:
    """Parse a spec from text, a sequence, a PartitionSpec or None (`P()`).

    Raises:
        InvalidRequest: it is of another type, or has another form.
        ShardingError: it leaves a dim to the compiler.

    >>> parse_spec("P('data', None)").dims, parse_spec([("data", "model")]).dims
    ((('data',), ()), (('data', 'model'),))
    """
    if isinstance(value, Spec):
        return value
    if isinstance(value, str):
        return _parse_text(value)
    # A PartitionSpec with unreduced axes raises when it is iterated over.
    entries = getattr(value, "partitions", value)
    if entries is None:
        return Spec()
    if not isinstance(entries, Iterable):
        raise _invalid_spec(value)
    axes = {word: tuple(sorted(getattr(value, word, None) or ())) for word in ("unreduced", "reduced")}
    return Spec(tuple(_read_entry(entry, value) for entry in entries), **axes)


def _read_entry(entry: Any, value: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry):
        return tuple(entry)
    if _UNCONSTRAINED in repr(entry):
        raise ShardingError(
            f"{value} leaves a dim to the compiler (UNCONSTRAINED), so it has no layout yet; name its axes"
        )
    raise _invalid_spec(value)


def _invalid_spec(value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"{value!r} is not a spec; expected a form such as P('data', None): an axis, a tuple of axes or None for each dim"
    )


def _parse_text(text: str) -> Spec:
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            return parse_spec(ast.literal_eval(node))
        if ast.unparse(node.func).rpartition(".")[2] not in ("P", "PartitionSpec"):
            raise _invalid_spec(text)
        entries = [ast.literal_eval(argument) for argument in node.args]
        words = {str(word.arg): tuple(sorted(ast.literal_eval(word.value))) for word in node.keywords}
        return Spec(tuple(_read_entry(entry, text) for entry in entries), **words)
    except (SyntaxError, ValueError, TypeError) as error:
        if isinstance(error, ShardingError | InvalidRequest):
            raise
        raise _invalid_spec(text) from error


def format_spec(spec: Spec) -> str:
    """Format a spec as a user would type it.

    >>> format_spec(Spec((("data",), (), ("x", "y")), unreduced=("z",)))
    "P('data', None, ('x', 'y'), unreduced={'z'})"
    """
    words = [repr(entry[0]) if len(entry) == 1 else repr(entry) if entry else "None" for entry in spec.dims]
    for name, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced)):
        words += [f"{name}={{{', '.join(map(repr, axes))}}}"] if axes else []
    return f"P({', '.join(words)})"


def count_parts(spec: Spec, mesh: MeshShape, ndim: int) -> tuple[int, ...]:
    """Return the number of parts into which each dim is partitioned.

    >>> count_parts(parse_spec("P(('data', 'model'))"), MeshShape.row_major({"data": 4, "model": 2}), 2)
    (8, 1)
    """
    sizes = dict(mesh.axes)
    entries = (*spec.dims, *((),) * (ndim - len(spec.dims)))
    return tuple(prod(sizes[axis] for axis in entry) for entry in entries)


def check_spec(spec: Spec, mesh: MeshShape, shape: Sequence[int], *, uneven: bool = False) -> None:
    """Check that a spec is legal for an array on a mesh.

    Args:
        uneven: whether axes that do not divide their dim are allowed, as inside a jitted function.

    Raises:
        ShardingError: it is not legal; the class gives the reason, `jax_says` JAX's message.

    >>> check_spec(parse_spec("P('x')"), MeshShape.row_major({"x": 2}), (4,))
    """
    _check_axes(spec, mesh)
    if len(spec.dims) > len(shape):
        jax_message = f"is only valid for values of rank at least {len(spec.dims)}, but was applied to a value of rank {len(shape)}"
        raise SpecTooLong(
            f"{spec} has {len(spec.dims)} entries, but an array of shape {tuple(shape)} has {len(shape)} dims;"
            " expected at most one entry per dim",
            jax_says=jax_message,
        )
    for dim, (size, parts) in enumerate(zip(shape, count_parts(spec, mesh, len(shape)), strict=True)):
        if size % parts and not uneven:
            raise _indivisible(spec, mesh, dim, size, parts)


def _check_axes(spec: Spec, mesh: MeshShape) -> None:
    names = mesh.names
    seen: set[str] = set()
    for axis in spec.axes:
        if axis not in names:
            known_axes = f"the mesh has {', '.join(map(repr, names))}" if names else "the mesh has no axes"
            jax_message = f"Resource axis: {axis} of {_format_as_jax(spec)} is not found in mesh: {names}."
            raise UnknownAxis(
                f"{spec}: unknown axis {axis!r}; {known_axes}",
                axis=axis,
                jax_says=jax_message,
            )
        if axis in seen:
            jax_message = "can map every mesh axis to at most one positional dimension"
            raise AxisUsedTwice(
                f"{spec} uses axis {axis!r} twice, but a mesh axis can shard only one dim; use another axis or None",
                axis=axis,
                jax_says=jax_message,
            )
        seen.add(axis)


def _format_as_jax(spec: Spec) -> str:
    """Format a spec as JAX does: `P('x',)` for a single entry."""
    text = format_spec(spec)
    return text[:-1] + ",)" if len(spec.dims) == 1 and not (spec.unreduced or spec.reduced) else text


def _indivisible(spec: Spec, mesh: MeshShape, dim: int, size: int, parts: int) -> Indivisible:
    axes = " × ".join(f"{axis} {dict(mesh.axes)[axis]}" for axis in spec.dims[dim])
    padded = -(-size // parts) * parts
    return Indivisible(
        f"{spec} shards dim {dim} of size {size} into {parts} parts ({axes}), but {parts} does not divide {size};"
        f" pad it to {padded}, or shard another dim",
        dim=dim,
        size=size,
        ways=parts,
        jax_says=f"implies that array axis {dim} is partitioned {parts} times, but the dimension size is {size}",
    )
