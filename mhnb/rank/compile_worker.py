"""Compile programs for a fake CPU mesh, and report their communication.

A process of its own, because the notebook's process must not initialise JAX. Requests come over pipes: a line of JSON in, a line
of JSON out. The process ends when its input does. It evaluates what its user typed, as a rank does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mhnb.core.program_replies import CompileReply, CompileRequest
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.rank.requests.sharding import lower_program, replace_source
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
            reply = CompileReply(handle_request(decode_json(line, CompileRequest)))
        except Exception as error:  # noqa: BLE001 - the user's program may raise anything; it becomes the reply
            reply = CompileReply(error=f"{type(error).__name__}: {error}")
        replies.write(encode_json(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
