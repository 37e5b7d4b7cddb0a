"""Trace a call for a mesh of another machine, without its devices.

The call is traced with abstract arguments over an abstract mesh, and serialised by `jax.export`; a process that has the machine's
compiler compiles it (`mhnb.rank.compile_worker`). No array is read, and nothing is launched.

A function may name today's mesh. Where that is a variable of the namespace, the planned mesh takes its place while the call is traced.
A mesh that a closure holds, or that was given to `jax.jit`, cannot be replaced by public means, so the error says what to write.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_structure
from msgspec import structs

from mhnb.adapters.variables import check_tree
from mhnb.core.program_replies import ExportedCall, FailedCall
from mhnb.core.variables import format_array
from mhnb.errors import InvalidRequest, ShardingError
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.streams import capture_thread_output
from mhnb.rank.guard.programs import forbid_launches
from mhnb.rank.requests.sharding import TRACED_TYPES, describe_failure, evaluate_call, is_plain_function, stage_call
from mhnb.sharding.fit import PlannedArgument
from mhnb.sharding.hlo_collectives import parse_meshes
from mhnb.sharding.mesh import MeshShape, format_axes
from mhnb.sharding.spec import check_spec, format_spec, parse_spec

_NO_LAUNCH = (
    "%mhjax fit runs nothing. Compute that argument in a %%mhjax cell, assign it to a variable, and pass the variable"
)
_MESH_ADVICE = (
    "the function uses a mesh of devices that are here, and mhnb cannot replace it"
    "\n  Fix: leave the mesh out, and call the function in `with jax.set_mesh(mesh):`"
    "\n  Or: pass a function of the mesh, as in (lambda mesh: make_step(mesh))(state, batch)"
)
_CALLBACK_ADVICE = (
    "the function calls back into Python (jax.debug.print, io_callback), which no compiler of another machine can compile"
    "\n  Fix: plan the call without it"
)
Rules: TypeAlias = Mapping[str, Any]
"""Specs by a regular expression that is searched for in an argument's path, as `state/params/w`; the first match counts."""


_CELL_FILE = re.compile(rb"<cell \d+>")


class Target(NamedTuple):
    """The mesh and the machine that a call is traced for."""

    axes: Mapping[str, int]
    platform: str
    """`tpu`, `cuda` or `cpu`."""
    rules: Rules = MappingProxyType({})


def describe_export(
    call: str, namespace: dict[str, Any], known: Sequence[str], request: Mapping[str, Any]
) -> ExportedCall | FailedCall:
    """Trace a call of a rank's namespace for another mesh.

    Args:
        call: for example `step(state, batch)`; its function and arguments are evaluated here.
        namespace: the user's.
        known: the user's names, for a did-you-mean hint.
        request: `axes`, `platform` and `specs`, which names a dictionary of rules or is empty.
    """
    was_traced = False

    def trace() -> ExportedCall | FailedCall:
        nonlocal was_traced
        try:
            with forbid_launches(_NO_LAUNCH), capture_thread_output() as output:
                f, args, kwargs = evaluate_call(call, namespace)
                rules = _find_rules(request["specs"], namespace) if request["specs"] else {}
                was_traced = True
                target = Target(dict(request["axes"]), request["platform"], rules)
                exported = export_call(f, (args, kwargs), target, names=_argument_names(call), namespace=namespace)
            files = {file.decode() for file in _CELL_FILE.findall(exported.module)}
            names = {file: CELL_NAMES.format_file(file) for file in sorted(files)}
            return structs.replace(exported, printed=output.text, cell_names=names)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - tracing runs the user's code, which may raise anything: it becomes the reply
            return describe_failure(error, known, was_traced=was_traced)

    own = _find_meshes(namespace)
    try:
        return run_apart(trace)
    finally:
        # After Ctrl-C, the thread may still be in code that no exception reaches.
        namespace.update(own)


_Result = TypeVar("_Result")


def run_apart(function: Callable[[], _Result]) -> _Result:
    """Call a function in its own thread, without the user's mesh.

    Inside `jax.set_mesh`, JAX refuses an abstract mesh of another size. Ctrl-C ends the function, too: what it traced of a planned
    mesh must not go on beside the next cell.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="mhnb-fit", daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        if not done.done() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
        raise


def _find_meshes(namespace: Mapping[str, Any]) -> dict[str, Mesh | NamedSharding]:
    return {name: value for name, value in namespace.items() if isinstance(value, Mesh | NamedSharding)}


def _find_rules(name: str, namespace: Mapping[str, Any]) -> Rules:
    found = namespace.get(name)
    if isinstance(found, Mapping) and found and all(isinstance(pattern, str) for pattern in found):
        return found
    kind = "does not exist" if found is None else f"is {type(found).__name__}"
    raise InvalidRequest(
        f"--specs {name}: expected the name of a dictionary of specs by path, but {name} {kind}"
        f"\n  Fix: {name} = {{'params/w': P('data', None), '.*': P()}}"
    )


def _argument_names(call: str) -> list[str]:
    node = ast.parse(call.strip(), mode="eval").body
    assert isinstance(node, ast.Call)
    return [ast.unparse(argument) for argument in node.args]


def export_call(
    f: Any,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    target: Target,
    *,
    names: Sequence[str] = (),
    namespace: dict[str, Any] | None = None,
) -> ExportedCall:
    """Trace a call for a mesh whose devices need not exist.

    Args:
        f: what `jax.jit` takes, a result of `jax.jit`, or a function of the planned mesh, named `mesh`, that returns one of these.
        arguments: positional and named; arrays, `jax.ShapeDtypeStruct`, or pytrees of them. Their specs are used.
        target: the mesh, the platform, and specs that take precedence.
        names: of the positional arguments, as the user typed them.
        namespace: where variables that hold a mesh are replaced while the function is traced.

    Raises:
        InvalidRequest: a spec does not fit the mesh, or the function needs devices that are here.
    """
    if not callable(f):
        raise InvalidRequest(
            f"{f!r:.80} is not a function but {type(f).__name__}; expected a call such as step(state, batch)"
        )
    if isinstance(f, MethodType) and isinstance(f.__self__, jax.Array):
        # `x.sum()`: the array is an argument like the others.
        arguments, names = ((f.__self__, *arguments[0]), arguments[1]), ("the array", *names)
        f = f.__func__
    check_tree(arguments)
    names = names or _parameter_names(f)
    return _Export(arguments, target, names, {} if namespace is None else namespace).run(f)


class _Export:
    """One call that is traced for a planned mesh."""

    def __init__(
        self,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        target: Target,
        names: Sequence[str],
        namespace: dict[str, Any],
    ) -> None:
        self._target, self._names, self._namespace = target, names, namespace
        self._shape = MeshShape.row_major(target.axes)
        self._mesh = AbstractMesh(
            tuple(target.axes.values()), tuple(target.axes), axis_types=tuple(self._axis_types(arguments))
        )
        self._planned: list[PlannedArgument] = []
        self._args, self._kwargs = jax.tree_util.tree_map_with_path(self._abstract, arguments)

    def _axis_types(self, arguments: Any) -> Iterator[AxisType]:
        """Yield each axis's type in the arguments' meshes, or the namespace's."""
        leaves = [getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(arguments)]
        meshes = [leaf.mesh for leaf in leaves if isinstance(leaf, NamedSharding)]
        meshes += [value for value in self._namespace.values() if isinstance(value, Mesh)]
        known: dict[str, AxisType] = {}
        for mesh in reversed(meshes):
            known.update(zip(mesh.axis_names, mesh.axis_types, strict=True))
        default = next(iter(known.values()), AxisType.Auto)
        return (known.get(name, default) for name in self._target.axes)

    def _abstract(self, path: tuple[Any, ...], leaf: Any) -> Any:
        """Return an argument without its data, laid out over the planned mesh."""
        if not isinstance(leaf, TRACED_TYPES):
            return leaf
        name, words = self._name(path)
        sharding = getattr(leaf, "sharding", None)
        if getattr(sharding, "memory_kind", None) == "pinned_host":
            raise InvalidRequest(
                f"{name} is in the memory of a host (pinned_host), but only the memory of devices can be planned"
                "\n  Fix: pass it as jax.ShapeDtypeStruct without a memory kind"
            )
        spec = next((spec for pattern, spec in self._target.rules.items() if _matches(pattern, words)), None)
        if spec is None:
            spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
        parsed = parse_spec(spec)
        if parsed.unreduced or parsed.reduced:
            raise InvalidRequest(
                f"{name} with {parsed}: only arrays without partial sums can be planned"
                "\n  Fix: pass the reduced array, or give it another spec"
            )
        try:
            check_spec(parsed, self._shape, leaf.shape)
        except ShardingError as error:
            mesh = format_axes(self._shape.axes)
            raise InvalidRequest(
                f"{name} {format_array(leaf.shape, str(leaf.dtype))} with {parsed} does not fit the mesh ({mesh}): {error}"
                f"\n  Fix: --specs NAME, with NAME = {{{re.escape(words)!r}: P(...)}}"
            ) from error
        placed = NamedSharding(self._mesh, PartitionSpec(*(entry or None for entry in parsed.dims)))
        # A program without 64 bits takes NumPy's arrays with 32.
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        nbytes = _count_nbytes(dtype, placed.shard_shape(leaf.shape))
        self._planned.append(PlannedArgument(name, str(dtype), leaf.shape, format_spec(parsed), nbytes))
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=placed, weak_type=getattr(leaf, "weak_type", False))

    def _name(self, path: tuple[Any, ...]) -> tuple[str, str]:
        """Return an argument's name in Python, and as a path for rules."""
        is_named, first, *rest = path[0].idx == 1, path[1], *path[2:]
        name = str(first.key) if is_named else self._positional_name(first.idx)
        tail = keystr(tuple(rest), simple=True, separator="/")
        return name + keystr(tuple(rest)), f"{name}/{tail}" if tail else name

    def _positional_name(self, at: int) -> str:
        return self._names[at] if at < len(self._names) else f"argument {at}"

    def run(self, f: Any) -> ExportedCall:
        """Trace and export the call."""
        with jax.sharding.use_abstract_mesh(self._mesh), self._mesh_replaced():
            try:
                if _takes_mesh(f):
                    f = f(self._mesh)
                return stage_call(f, self._args, self._kwargs, partial(self._export, is_plain=is_plain_function(f)))
            except InvalidRequest:
                raise
            except (AssertionError, NotImplementedError, ValueError) as error:
                text = str(error)
                if "the platform for the specified backend" in text:
                    raise InvalidRequest(f"{_CALLBACK_ADVICE}") from error
                if "mesh" in text.lower() or "_device_assignment" in text:
                    raise InvalidRequest(f"{text}\n{_MESH_ADVICE}") from error
                raise

    def _export(self, jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_plain: bool) -> ExportedCall:
        traced = jitted.trace(*args, **kwargs)
        infos = jax.tree_util.tree_leaves(traced.args_info)
        exported = export.export(jitted, platforms=[self._target.platform])(*args, **kwargs)
        self._check_meshes(exported)
        # The compiler needs no names: classes of the user, such as states of optimizers, are unknown where it runs.
        flat = replace(
            exported,
            in_tree=tree_structure(((0,) * len(exported.in_avals), {})),
            out_tree=tree_structure((0,) * len(exported.out_avals)),
        )
        return ExportedCall(
            exported.fun_name,
            bytes(flat.serialize()),
            tuple(self._planned),
            tuple(at for at, info in enumerate(infos) if info.donated),
            tuple(kind.name for kind in self._mesh.axis_types),
            is_plain,
        )

    def _check_meshes(self, exported: export.Exported) -> None:
        """Refuse a program of another mesh than the planned one.

        If it has as many devices, the compiler would take it for the planned one.
        """
        own = (self._mesh.axis_names, self._mesh.axis_sizes)
        others = [mesh for mesh in parse_meshes(exported.mlir_module()) if (mesh.names, mesh.sizes) != own]
        if exported.nr_devices == 1 < self._mesh.size and not others:
            raise InvalidRequest(
                "nothing in the call is laid out over the mesh: no argument that it uses, and no result"
                "\n  Fix: (lambda mesh: jax.jit(make, out_shardings=NamedSharding(mesh, P('data'))))()"
            )
        if others or exported.nr_devices != self._mesh.size:
            found = format_axes(tuple(zip(others[0].names, others[0].sizes, strict=True))) if others else "another one"
            raise InvalidRequest(
                f"the call uses the mesh ({found}), not only ({format_axes(self._shape.axes)})\n{_MESH_ADVICE}"
            )

    @contextmanager
    def _mesh_replaced(self) -> Iterator[None]:
        """Let the namespace's own meshes and shardings be of the planned mesh."""
        before: dict[str, Any] = {**_find_meshes(self._namespace)}
        planned: dict[str, Any] = {}
        for name, value in before.items():
            mesh = value if isinstance(value, Mesh) else value.mesh
            if set(mesh.axis_names) <= set(self._target.axes):
                planned[name] = self._mesh if isinstance(value, Mesh) else NamedSharding(self._mesh, value.spec)
        self._namespace.update(planned)
        try:
            yield
        finally:
            # After Ctrl-C, a cell may have run meanwhile, and assigned another value.
            for name, value in planned.items():
                if self._namespace.get(name) is value:
                    self._namespace[name] = before[name]


def _matches(pattern: str, words: str) -> bool:
    try:
        return re.search(pattern, words) is not None
    except re.error as error:
        raise InvalidRequest(f"specs: {pattern!r} is not a regular expression: {error}") from error


def _count_nbytes(dtype: Any, shape: Sequence[int]) -> int:
    """Count an array's bytes; accelerators pack types below a byte."""
    small = re.fullmatch(r"u?int([24])|float(4)_\w+", str(dtype))
    bits = int(small[1] or small[2]) if small else 8 * dtype.itemsize
    return -(-prod(shape) * bits // 8)


def _parameter_names(f: Any) -> list[str]:
    try:
        return list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        # Functions written in C may have none.
        return []


def _takes_mesh(f: Any) -> bool:
    return isinstance(f, FunctionType) and list(inspect.signature(f).parameters) == ["mesh"]
