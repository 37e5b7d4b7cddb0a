"""Answer requests about shardings and collectives without launching programs or reading arrays.

Collectives of a function are found by lowering and compiling it. Those of a cell are read from the programs that it launched.

The expression of `%mhjax layout EXPRESSION` is looked up, never run. Allowed are names, attributes and subscripts of containers,
and containers of those. Anything that could compute is refused, because a program launched here would be launched outside of
any cell.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import getattr_static
from types import MethodType
from typing import Any, TypeVar

import jax
import numpy as np

from mhnb.adapters.jax_arrays import has_layout, host_label, is_mesh, read_mesh, read_row, read_tree
from mhnb.adapters.variables import check_tree
from mhnb.core.arguments import closest_matches, did_you_mean
from mhnb.core.program_replies import CompiledCall, FailedCall, LaunchedProgram, LaunchedPrograms
from mhnb.core.variables import format_array
from mhnb.errors import HloError, InvalidRequest, MhnbError
from mhnb.rank.execution.cell_names import CELL_NAMES, cell_file
from mhnb.rank.execution.streams import capture_thread_output
from mhnb.rank.execution.tracebacks import find_user_location
from mhnb.rank.guard.programs import CompiledProgram, find_launched_programs, forbid_launches, ranks_of_devices
from mhnb.rank.jax_private import current_recorder, read_name_and_devices
from mhnb.sharding.hlo_collectives import HloCollective, NamedMesh, parse_collectives, parse_meshes
from mhnb.sharding.hlo_text import SourceLine
from mhnb.sharding.layout import LayoutTree, encode_mesh, encode_tree
from mhnb.sharding.report import Collective, Program, make_report, program_to_wire
from mhnb.sharding.shardy import Explanation

CALL_FILE = "<this call>"
"""The file name of a call that the user typed."""
_Located = TypeVar("_Located", HloCollective, Explanation)
_Staged = TypeVar("_Staged")
TRACED_TYPES = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)
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
            f"{f!r:.80} is not a function but {type(f).__name__}; expected a function that jax.jit accepts, and its arguments"
        )
    if hasattr(f, "as_text") and hasattr(f, "input_shardings"):
        # Compiled ahead of time: its arguments were fixed then.
        return describe_program(f, "", (f.input_shardings, f.output_shardings))
    check_tree((args, kwargs))
    lowered = _lower(f, args, kwargs)
    compiled = lowered.compile()
    program = describe_program(compiled, lowered.as_text(debug_info=True), (args, kwargs, compiled.input_shardings))
    digest = hashlib.blake2b(lowered.as_text().encode(), digest_size=8).hexdigest()
    return dataclasses.replace(program, digest=digest, argument_types=_format_types(lowered.args_info))


def is_plain_function(f: Any) -> bool:
    """Return whether a function, without `jit`, launches its operations one by one."""
    return not hasattr(f, "lower") and not hasattr(f, "as_text")


def _lower(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return stage_call(f, args, kwargs, lambda jitted, args, kwargs: jitted.lower(*args, **kwargs))


def stage_call(
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stage: Callable[[Any, tuple[Any, ...], dict[str, Any]], _Staged],
) -> _Staged:
    """Trace or lower a call of any function, jitted or not.

    Args:
        stage: takes the jitted function and its arguments, and lowers or traces it.
    """
    method: Any = getattr(f, "__func__", None)
    if hasattr(method, "lower"):
        # `jax.jit` on a method: the bound method exposes the function's own `lower`, which needs the object, too.
        return stage(method, (f.__self__, *args), kwargs)
    if isinstance(f, MethodType) and isinstance(f.__self__, jax.Array):
        # `x.sum()`: JAX does not accept a global array as a constant.
        f, args = f.__func__, (f.__self__, *args)
    if f is jax.device_put:
        # Inside a program it is only a hint and launches nothing of its own, so the report would show that nothing
        # moves.
        raise InvalidRequest(
            "jax.device_put cannot be analysed as a function"
            "\n  Fix: %mhjax layout NAME --to SPEC, for the cost of moving an array"
            "\n  Or: %%mhjax --collectives, for the move that a cell made"
        )
    if hasattr(f, "lower"):
        return stage(f, args, kwargs)
    try:
        return stage(jax.jit(f), args, kwargs)
    except TypeError:
        # Among them are JAX's errors about values that must be known: an axis, a flag, a text. In a plain call they are
        # known.
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if all(isinstance(leaf, TRACED_TYPES) for leaf in leaves):
            raise
        arrays = tuple(leaf for leaf in leaves if isinstance(leaf, TRACED_TYPES))
        return stage(jax.jit(_bind_non_arrays(f, leaves, tree)), arrays, {})


def _bind_non_arrays(f: Callable[..., Any], leaves: list[Any], tree: Any) -> Callable[..., Any]:
    """Return a function of the array arguments, with the others fixed."""

    def of_arrays(*arrays: Any) -> Any:
        rest = iter(arrays)
        args, kwargs = tree.unflatten(next(rest) if isinstance(leaf, TRACED_TYPES) else leaf for leaf in leaves)
        return f(*args, **kwargs)

    of_arrays.__name__ = getattr(f, "__name__", type(f).__name__)
    return of_arrays


def describe_program(compiled: Any, stablehlo: str, shardings: Any, *, text: str = "") -> Program:
    """Read the collectives of a compiled program.

    Args:
        compiled: of JAX.
        stablehlo: its lowered module, with debug locations; may be empty.
        shardings: a pytree in which the meshes of its arguments are found.
        text: its compiled module; printing a large one takes long.
    """
    name, devices = read_name_and_devices(compiled)
    meshes = tuple(dict.fromkeys((*parse_meshes(stablehlo), *_meshes(shardings, devices))))
    found = parse_collectives(text or compiled.as_text(), [device.id for device in devices])
    program = Program(name, ranks_of_devices(devices), devices[0].platform, found, meshes).with_explanations(stablehlo)
    # If no line of the user's code is between a JAX operation and this file, the operation belongs to the call itself.
    return replace_source(program, __file__, lambda _: SourceLine(CALL_FILE, 1))


def replace_source(program: Program, file: str, new_source: Callable[[int], SourceLine | None]) -> Program:
    """Replace source locations in one of mhnb's own files.

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
    """Yield meshes of arrays and shardings; modules lowered ahead name none."""
    for leaf in jax.tree_util.tree_leaves(tree):
        mesh = getattr(getattr(leaf, "sharding", leaf), "mesh", None)
        # JAX requires the devices of a program's meshes in one order: that of the device assignment.
        if isinstance(mesh, jax.sharding.Mesh) and list(mesh.devices.flat) == devices:
            yield NamedMesh(tuple(map(str, mesh.axis_names)), tuple(mesh.axis_sizes))


def name_cells(program: Program) -> Program:
    """Name cells in a program's locations as the notebook shows them."""
    return program.with_files(CELL_NAMES.format_file)


def describe_compiled(compiled: CompiledProgram, line: SourceLine | None) -> Program:
    """Describe a launched program by its text; its module is not kept.

    Args:
        line: the line of the cell that launched it first. If a report traced it before that, the text names this file instead.
    """
    found, meshes = parse_collectives(compiled.text()), parse_meshes(compiled.meshes)
    program = Program(compiled.name, compiled.ranks, compiled.platform, found, meshes).with_explanations("")
    why = tuple(one and dataclasses.replace(one, is_kept=False) for one in program.why)
    return replace_source(dataclasses.replace(program, why=why), __file__, lambda _: line)


# -- answer `%mhjax layout`


_METADATA_ATTRIBUTES = ("sharding",)
"""Attributes of an array that compute nothing."""


def describe_layout(namespace: Mapping[str, Any], expression: str, known: Sequence[str]) -> dict[str, Any]:
    """Describe where the value of an expression is stored.

    Args:
        namespace: the rank's.
        expression: as the user typed it.
        known: the user's own names, for suggestions.

    Returns:
        `kind`: `mesh`, `array`, `tree`, or `error` with a `text`; and the value as encoded by `sharding.layout`.
    """
    try:
        value = evaluate_metadata(namespace, expression, known)
        if is_mesh(value):
            return {"kind": "mesh", "mesh": encode_mesh(read_mesh(value))}
        if has_layout(value):
            return {"kind": "array", "tree": encode_tree(LayoutTree((read_row("", value),)))}
        return {"kind": "tree", "tree": encode_tree(read_tree(value))}
    except InvalidRequest as error:
        return {"kind": "error", "text": str(error)}


def evaluate_metadata(namespace: Mapping[str, Any], expression: str, known: Sequence[str]) -> Any:
    """Return the value that an expression names.

    Raises:
        InvalidRequest: the expression is not valid, its value does not exist, or finding it would compute something.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidRequest(
            f"{expression!r} is not an expression ({error.msg}); expected a name, or an expression such as params['w']"
        ) from error
    return _SafeEvaluator(namespace, known).visit(tree)


class _SafeEvaluator(ast.NodeVisitor):
    """Evaluates an expression, and refuses nodes that could compute something."""

    def __init__(self, namespace: Mapping[str, Any], known: Sequence[str]) -> None:
        self._namespace, self._known = namespace, known

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._namespace:
            meant = did_you_mean(node.id, self._known)
            raise InvalidRequest(f"unknown variable {node.id!r}{meant}; %mhjax vars lists all")
        return self._namespace[node.id]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, jax.Array):
            if node.attr not in _METADATA_ATTRIBUTES:
                raise self._refusal(node)
        elif _runs_code(owner, node.attr):
            raise self._refusal(node)
        try:
            return getattr(owner, node.attr)
        except AttributeError as error:
            raise InvalidRequest(f"{ast.unparse(node)}: {error}") from error

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, jax.Array) or not isinstance(owner, Mapping | list | tuple):
            raise self._refusal(node)
        try:
            return owner[self.visit(node.slice)]
        except (LookupError, TypeError) as error:
            raise InvalidRequest(f"{ast.unparse(node)}: {type(error).__name__}: {error}") from error

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        number = self.visit(node.operand)
        if isinstance(node.op, ast.USub) and type(number) is int:
            return -number
        raise self._refusal(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(map(self.visit, node.elts))

    def visit_List(self, node: ast.List) -> Any:
        return list(map(self.visit, node.elts))

    def visit_Dict(self, node: ast.Dict) -> Any:
        if None in node.keys:
            raise self._refusal(node)
        return {self.visit(key): self.visit(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def generic_visit(self, node: ast.AST) -> Any:
        raise self._refusal(node)

    @staticmethod
    def _refusal(node: ast.AST) -> InvalidRequest:
        return InvalidRequest(
            f"{ast.unparse(node)} may compute something, but this command only reads variables\n"
            "  Assign it to a variable in a %%mhjax cell, then use the variable's name here"
        )


def _runs_code(owner: object, name: str) -> bool:
    """Return whether reading an attribute runs code other than JAX's."""
    found = getattr_static(type(owner), name, None)
    return isinstance(found, property | cached_property) and not type(owner).__module__.startswith("jax.")


# -- answer `%mhjax collectives` and `--collectives`


_COLLECTOR = "__mhnb_take__"
_NO_LAUNCH = "%mhjax collectives runs nothing. Compute that argument in a %%mhjax cell, assign it to a variable, and pass the variable"


def describe_call(call: str, namespace: dict[str, Any], known: Sequence[str]) -> CompiledCall | FailedCall:
    """Compile a call without running it.

    Args:
        call: for example `step(params, batch)`; its function and arguments are evaluated here.
        namespace: the user's namespace.
        known: the user's names, for a did-you-mean hint.

    Returns:
        The program; if evaluating, lowering or reading the call raised, the error instead.
    """
    was_traced = False
    try:
        with forbid_launches(_NO_LAUNCH), capture_thread_output() as output:
            f, args, kwargs = evaluate_call(call, namespace)
            was_traced = True
            program = lower_program(f, args, kwargs)
        return CompiledCall(program_to_wire(name_cells(program)), is_plain_function(f), output.text)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - tracing runs the user's code, which may raise anything: it becomes the reply
        return describe_failure(error, known, was_traced=was_traced)


def describe_failure(error: BaseException, known: Sequence[str], *, was_traced: bool) -> FailedCall:
    """Describe why a call could not be evaluated, traced or lowered.

    Args:
        error: what was raised.
        known: the user's names, for suggestions if one is missing.
        was_traced: whether the function and its arguments had been evaluated.
    """
    name = getattr(error, "name", None) if isinstance(error, NameError) else None
    close_names = closest_matches(name, known) if isinstance(name, str) else []
    place, code, site = find_user_location(error)
    is_own = isinstance(error, MhnbError)
    return FailedCall(type(error).__name__, str(error), is_own, tuple(close_names), was_traced, place, code, site)


def evaluate_call(call: str, namespace: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Evaluate a call's function and arguments, but not the call."""
    tree = ast.parse(call.strip(), mode="eval")
    node = tree.body
    assert isinstance(node, ast.Call)
    collector_call = ast.Call(ast.Name(_COLLECTOR, ast.Load()), node.args, node.keywords)
    tree.body = ast.Tuple([node.func, collector_call], ast.Load())
    code = compile(ast.fix_missing_locations(tree), CALL_FILE, "eval")
    f, (args, kwargs) = eval(code, namespace, {_COLLECTOR: lambda *args, **kwargs: (args, kwargs)})  # noqa: S307 - on a rank
    return f, args, kwargs


def describe_launched(seq: int) -> LaunchedPrograms:
    """Describe a cell's multi-rank programs, in order of their first launches."""
    recorder = current_recorder()
    if recorder is None:
        raise HloError("launches are not recorded, because the guard is unavailable; %mhjax status shows the reason")
    programs = find_launched_programs(recorder, seq)
    if programs is None:
        return LaunchedPrograms(is_gone=True)
    # Keep the line of each program's first launch. Launches from no line of the cell have none.
    lines = {row.fingerprint: SourceLine(cell_file(seq), row.line) for row in reversed(recorder.ended_rows) if row.line}
    rows: list[LaunchedProgram] = []
    for fingerprint, count, compiled in programs:
        try:
            program = program_to_wire(name_cells(describe_compiled(compiled, lines.get(fingerprint))))
            rows.append(LaunchedProgram(fingerprint, count, program))
        except HloError as error:
            rows.append(LaunchedProgram(fingerprint, count, f"{compiled.name}: {error}"))
    return LaunchedPrograms(is_gone=False, programs=tuple(rows))
