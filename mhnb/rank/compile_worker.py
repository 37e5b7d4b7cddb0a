"""Compile programs for devices that are not here, and describe them.

The devices are fake ones of the CPU, or those of a machine whose compiler is installed: XLA compiles for a topology without its chips.

A process of its own, because the notebook's process must not initialise JAX. Requests come over pipes: a line of JSON in, a line
of JSON out. The process ends when its input does. It evaluates what its user typed, as a rank does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mhnb.core.program_replies import CompiledFit, CompileReply, CompileRequest, FitRequest
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.rank.requests import fit
from mhnb.rank.requests.sharding import CALL_FILE, describe_program, lower_program, replace_source
from mhnb.sharding.fit import CompiledMemory
from mhnb.sharding.hlo_cost import count_cost
from mhnb.sharding.hlo_text import SourceLine
from mhnb.sharding.report import WireProgram, program_to_wire
from mhnb.sharding.spec import parse_spec


def matmul(x: Any, w: Any) -> Any:
    """Return one product."""
    return x @ w


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    """Return two products with a nonlinearity between them."""
    return jax.nn.relu(x @ w1) @ w2


def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """Return an attention block without masks; the einsums show the shapes."""
    q, k, v = (jnp.einsum("btd,dhe->bthe", x, w) for w in (wq, wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bthe,bshe->bhts", q, k) / np.sqrt(q.shape[-1]))
    return jnp.einsum("bthe,hed->btd", jnp.einsum("bhts,bshe->bthe", weights, v), wo)


_PROGRAMS: dict[str, Callable[..., Any]] = {"attention": attention, "matmul": matmul, "mlp": mlp}


_EVALUATION_NAMES = {"jax": jax, "jnp": jnp, "np": np, "lax": jax.lax, "P": PartitionSpec}
"""Names that a typed program may use without importing them."""


def find_program(name: str) -> Callable[..., Any]:
    """Find a program by its name.

    That is a built-in name, `module:function`, an expression like `lambda x, w: x @ w`, or the source of a function.
    """
    if name in _PROGRAMS:
        return _PROGRAMS[name]
    body = ast.parse(name).body
    if body and isinstance(body[-1], ast.FunctionDef):
        namespace = dict(_EVALUATION_NAMES)
        exec(compile(name, f"<{body[-1].name}>", "exec"), namespace)
        return cast("Callable[..., Any]", namespace[body[-1].name])
    module, colon, function = name.partition(":")
    if colon and all(part.isidentifier() for part in module.split(".")) and function.isidentifier():
        found = getattr(importlib.import_module(module), function)
    else:
        found = eval(compile(name, "<program>", "eval"), dict(_EVALUATION_NAMES))  # noqa: S307
    if not callable(found):
        raise TypeError(f"{name} is not a function but {type(found).__name__}")
    return cast("Callable[..., Any]", found)


def handle_request(request: CompileRequest) -> WireProgram:
    """Compile the requested program, or change of layout."""
    sizes = [size for _, size in request.axes]
    names = [name for name, _ in request.axes]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    mesh = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, _spec(spec)))
        for shape, dtype, spec in request.arrays
    ]
    if request.to is not None:
        reshard = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, _spec(request.to)))
        return program_to_wire(lower_program(reshard, tuple(arrays), {}))
    program = lower_program(find_program(request.program), tuple(arrays), {})
    return program_to_wire(replace_source(program, __file__, _locate_line))


def handle_fit(request: FitRequest) -> CompileReply:
    """Compile an exported call for the devices of a machine."""
    began = time.perf_counter()
    call = request.call
    exported = export.deserialize(bytearray(call.module))
    types = tuple(AxisType[name] for name in call.axis_types)
    mesh = Mesh(_place_devices(request), [name for name, _ in request.axes], axis_types=types)
    shardings = exported.in_shardings_jax(mesh)
    leaves = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
        for aval, sharding in zip(exported.in_avals, shardings, strict=True)
    ]

    def run(*leaves: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
        return exported.call(*args, **kwargs)

    # Without arguments, or if none is used, only the context says which devices there are.
    with jax.set_mesh(mesh):
        lowered = jax.jit(run, donate_argnums=call.donated).lower(*leaves)
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    text, stablehlo = str(compiled.as_text()), lowered.as_text(debug_info=True)
    program = describe_program(compiled, stablehlo, (leaves, compiled.input_shardings), text=text)
    # An operation of JAX that the user's call names has no other line.
    program = replace_source(program, fit.__file__, lambda _: SourceLine(CALL_FILE, 1))
    stats: Any = compiled.memory_analysis()
    memory = CompiledMemory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )
    wire = program_to_wire(replace(program, name=f"jit({call.name})"))
    places = tuple(tuple(device.coords) for device in mesh.devices.flat) if request.platform == "tpu" else ()
    return CompileReply(wire, CompiledFit(memory, count_cost(text), seconds, places))


def _place_devices(request: FitRequest) -> Any:
    """Return the machine's devices as JAX places them on the mesh."""
    topology: dict[str, Any] = dict(request.topology)
    sizes = tuple(size for _, size in request.axes)
    if request.platform == "cpu":
        return np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    devices = topologies.get_topology_desc(**topology).devices
    if request.factors is None:
        return mesh_utils.create_device_mesh(sizes, devices=devices, allow_split_physical_axes=True)
    inside = [size // factor for size, factor in zip(sizes, request.factors, strict=True)]
    # The GPUs of a host are a slice where they run, but this topology does not say so.
    is_gpu = request.platform == "cuda"
    return mesh_utils.create_hybrid_device_mesh(
        inside, request.factors, devices=devices, process_is_granule=is_gpu, allow_split_physical_axes=True
    )


def _locate_line(line: int) -> SourceLine | None:
    """Return a line's location in its built-in program, or None elsewhere."""
    for name, function in _PROGRAMS.items():
        lines, first = inspect.getsourcelines(function)
        if first <= line < first + len(lines):
            return SourceLine(f"<built-in {name}>", line - first + 1)
    return None


def _spec(text: str) -> PartitionSpec:
    spec = parse_spec(text)
    return PartitionSpec(*(entry or None for entry in spec.dims))


def main() -> None:
    """Answer requests until the input ends; the program prints to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            request: CompileRequest | FitRequest = decode_json(line, CompileRequest | FitRequest)  # type: ignore[arg-type]  # a union
            reply = handle_fit(request) if isinstance(request, FitRequest) else CompileReply(handle_request(request))
        except Exception as error:  # noqa: BLE001 - the user's program may raise anything; it becomes the reply
            reply = CompileReply(error=f"{type(error).__name__}: {error}")
        replies.write(encode_json(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
