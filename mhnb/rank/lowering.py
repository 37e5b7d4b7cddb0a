"""The collectives of a function, found by lowering and compiling it: nothing is launched, no array is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from mhnb.errors import InvalidRequest
from mhnb.rank.jaxhooks import ranks_of
from mhnb.rank.programs import CompiledProgram
from mhnb.sharding.axes import NamedMesh, parse_meshes
from mhnb.sharding.hlo import parse_collectives
from mhnb.sharding.report import Collective, Program, make_report

__all__ = ["collectives", "describe_compiled", "lower_program"]


def collectives(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Collective]:
    """Say which collectives a function would run, without running it.

    Works in whatever process calls it; a process counts as a host. With arrays that span processes, call it on all of
    them, as anything that compiles. The bytes are those of one device in one run: `mhnb.sharding.traffic` defines them.

    Args:
        f: what `jax.jit` takes, or what it or `.compile()` gave.
        *args: arrays, `jax.ShapeDtypeStruct` with a sharding, or pytrees of them.
        **kwargs: the same, by name.

    Raises:
        InvalidRequest: f is nothing that can be compiled.
        UnknownForm: the compiled text holds something that mhnb does not know.
    """
    program = lower_program(f, args, kwargs)
    return list(make_report(program, {rank: rank for rank in program.ranks}).rows)


def lower_program(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Lower and compile a function for these arguments, and read the result."""
    if not callable(f):
        raise InvalidRequest(
            f"{f!r:.80} is {type(f).__name__}, no function; give what jax.jit takes, and its arguments"
        )
    if hasattr(f, "as_text") and hasattr(f, "input_shardings"):
        # Compiled ahead of time: the arguments were given then.
        return _read(f, "", (f.input_shardings, f.output_shardings))
    lowered = (f if hasattr(f, "lower") else jax.jit(f)).lower(*args, **kwargs)
    compiled = lowered.compile()
    return _read(compiled, lowered.as_text(debug_info=True), (args, kwargs, compiled.input_shardings))


def _read(compiled: Any, stablehlo: str, sharded: Any) -> Program:
    text = compiled.as_text()
    ranks = ranks_of(compiled)
    name = text.partition("HloModule ")[2].partition(",")[0].removeprefix("jit_")
    meshes = (*parse_meshes(stablehlo), *_meshes(sharded, ranks))
    program = Program(
        f"jit({name})", ranks, jax.default_backend(), parse_collectives(text), tuple(dict.fromkeys(meshes))
    )
    return program.explained(stablehlo) if stablehlo else program


def _meshes(tree: Any, ranks: tuple[int, ...]) -> Iterator[NamedMesh]:
    """The meshes of arrays and shardings, where the lowered module names none. Their order is the device assignment's."""
    for leaf in jax.tree_util.tree_leaves(tree):
        mesh = getattr(getattr(leaf, "sharding", leaf), "mesh", None)
        if mesh is not None and mesh.size == len(ranks) and mesh.axis_names:
            yield NamedMesh(tuple(map(str, mesh.axis_names)), tuple(mesh.axis_sizes))


def describe_compiled(compiled: CompiledProgram) -> Program:
    """Read a program that was launched. Its lowered module is not kept: why a collective is there is what its text says."""
    found, meshes = parse_collectives(compiled.text()), parse_meshes(compiled.meshes)
    return Program(compiled.name, compiled.ranks, compiled.platform, found, meshes).explained("")
