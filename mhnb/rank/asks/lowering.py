"""Find the collectives of a function by lowering and compiling it. Nothing is launched, no array is read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, TypeVar

import jax
import numpy as np

from mhnb.core.exchange.variables import format_array
from mhnb.errors import InvalidRequest
from mhnb.rank.asks.transfer_jax import host_label
from mhnb.rank.guard.programs import CompiledProgram, ranks_of_devices
from mhnb.rank.jaxhooks import read_name_and_devices
from mhnb.sharding.hlo import HloCollective, NamedMesh, parse_collectives, parse_meshes
from mhnb.sharding.hlo_module import SourceLine
from mhnb.sharding.report import Collective, Program, make_report
from mhnb.sharding.why import Explanation

__all__ = ["CALL_FILE", "collectives", "describe_compiled", "is_plain_function", "lower_program", "replace_source"]

CALL_FILE = "<this call>"
"""The file name of a call that the user typed."""
_Located = TypeVar("_Located", HloCollective, Explanation)
_TRACED_TYPES = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)
"""Argument types that are traced for every function."""


def collectives(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Collective]:
    """Return the collectives that a function would run, without running it.

    Works in any process; outside an mhnb cluster, each process counts as a host. If arrays span processes, call it on all of
    them, like everything that compiles. The bytes are those of one device in one run: `mhnb.sharding.report` defines them.

    Args:
        f: what `jax.jit` takes, or a result of `jax.jit` or of `.compile()`. Arguments of a plain function that are not arrays
            may decide what it does, as in a plain call.
        *args: arrays, `jax.ShapeDtypeStruct` with a sharding, or pytrees of them.
        **kwargs: the same, by name.

    Raises:
        InvalidRequest: f cannot be compiled.
        UnknownForm: the compiled text holds something that mhnb does not know.
    """
    program = lower_program(f, args, kwargs)
    return list(make_report(program, {rank: host_label(rank) for rank in program.ranks}).rows)


def lower_program(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Lower and compile a function for these arguments, and read the result."""
    if not callable(f):
        raise InvalidRequest(
            f"{f!r:.80} is {type(f).__name__}, no function; give what jax.jit takes, and its arguments"
        )
    if hasattr(f, "as_text") and hasattr(f, "input_shardings"):
        # Compiled ahead of time: its arguments were fixed then.
        return _describe_program(f, "", (f.input_shardings, f.output_shardings))
    lowered = _lower(f, args, kwargs)
    compiled = lowered.compile()
    program = _describe_program(compiled, lowered.as_text(debug_info=True), (args, kwargs, compiled.input_shardings))
    digest = hashlib.blake2b(lowered.as_text().encode(), digest_size=8).hexdigest()
    return dataclasses.replace(program, digest=digest, argument_types=_format_types(lowered.args_info))


def is_plain_function(f: Any) -> bool:
    """Return whether calling a function launches its operations one by one, because nothing has made one program of it."""
    return not hasattr(f, "lower") and not hasattr(f, "as_text")


def _lower(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    method: Any = getattr(f, "__func__", None)
    if hasattr(method, "lower"):
        # `jax.jit` on a method: the bound method exposes the function's own `lower`, which needs the object, too.
        return method.lower(f.__self__, *args, **kwargs)
    if isinstance(f, MethodType) and isinstance(f.__self__, jax.Array):
        # `x.sum()`: JAX does not accept a global array as a constant.
        f, args = f.__func__, (f.__self__, *args)
    if f is jax.device_put:
        # Inside a program it is only a hint and launches nothing of its own, so the report would show that nothing
        # moves.
        raise InvalidRequest(
            "jax.device_put is not compiled as a function is;"
            " %mhjax layout NAME --to SPEC tells what a move of an array takes, %%mhjax --collectives what a cell's move was"
        )
    if hasattr(f, "lower"):
        return f.lower(*args, **kwargs)
    try:
        return jax.jit(f).lower(*args, **kwargs)
    except TypeError:
        # Among them are JAX's errors about values that must be known: an axis, a flag, a text. In a plain call they are
        # known.
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if all(isinstance(leaf, _TRACED_TYPES) for leaf in leaves):
            raise
        arrays = [leaf for leaf in leaves if isinstance(leaf, _TRACED_TYPES)]
        return jax.jit(_bind_non_arrays(f, leaves, tree)).lower(*arrays)


def _bind_non_arrays(f: Callable[..., Any], leaves: list[Any], tree: Any) -> Callable[..., Any]:
    """Return a function of the arrays among the arguments; the other arguments are fixed."""

    def of_arrays(*arrays: Any) -> Any:
        rest = iter(arrays)
        args, kwargs = tree.unflatten(next(rest) if isinstance(leaf, _TRACED_TYPES) else leaf for leaf in leaves)
        return f(*args, **kwargs)

    of_arrays.__name__ = getattr(f, "__name__", type(f).__name__)
    return of_arrays


def _describe_program(compiled: Any, stablehlo: str, shardings: Any) -> Program:
    name, devices = read_name_and_devices(compiled)
    meshes = tuple(dict.fromkeys((*parse_meshes(stablehlo), *_meshes(shardings, devices))))
    found = parse_collectives(compiled.as_text())
    program = Program(name, ranks_of_devices(devices), devices[0].platform, found, meshes).with_explanations(stablehlo)
    # If no line of the user's code is between a JAX operation and this file, the operation belongs to the call itself.
    return replace_source(program, __file__, lambda _: SourceLine(CALL_FILE, 1))


def replace_source(program: Program, file: str, new_source: Callable[[int], SourceLine | None]) -> Program:
    """Replace the source location of what was traced from a file of mhnb's own.

    Args:
        new_source: returns the new location of a line of that file, or None if it is unknown.
    """

    def replaced(one: _Located) -> _Located:
        if one.source is None or one.source.file != file:
            return one
        return dataclasses.replace(one, source=new_source(one.source.line))

    why = tuple(one and replaced(one) for one in program.why)
    return dataclasses.replace(program, collectives=tuple(map(replaced, program.collectives)), why=why)


def _format_types(info: Any) -> str:
    leaves = jax.tree_util.tree_leaves(info)
    return ", ".join(format_array(leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _meshes(tree: Any, devices: list[Any]) -> Iterator[NamedMesh]:
    """Yield the meshes of arrays and shardings, because a module that was lowered ahead of time names none."""
    for leaf in jax.tree_util.tree_leaves(tree):
        mesh = getattr(getattr(leaf, "sharding", leaf), "mesh", None)
        # JAX requires the devices of a program's meshes in one order: that of the device assignment.
        if isinstance(mesh, jax.sharding.Mesh) and list(mesh.devices.flat) == devices:
            yield NamedMesh(tuple(map(str, mesh.axis_names)), tuple(mesh.axis_sizes))


def describe_compiled(compiled: CompiledProgram, line: SourceLine | None) -> Program:
    """Describe a program that was launched. Its lowered module is not kept, so its text gives the reason for a collective.

    Args:
        line: the line of the cell that launched it first. If a report traced it before that, the text names this file instead.
    """
    found, meshes = parse_collectives(compiled.text()), parse_meshes(compiled.meshes)
    program = Program(compiled.name, compiled.ranks, compiled.platform, found, meshes).with_explanations("")
    why = tuple(one and dataclasses.replace(one, is_kept=False) for one in program.why)
    return replace_source(dataclasses.replace(program, why=why), __file__, lambda _: line)
