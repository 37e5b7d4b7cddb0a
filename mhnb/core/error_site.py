"""Find what an error is about by reading the failing code.

It answers only if exactly one name is possible. Between two it does not choose.
It also shortens the stack inside an error message: XLA writes Python's whole stack into the error of a callback that failed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, cast

from msgspec import Struct, field

_MAX_QUOTED_CHARS = 40
"""Longer pieces of code would bury the sentence that quotes them."""
_MAX_CALL_CHARS = 100
_MAX_PARSED_CHARS = 300
"""Longer code is not parsed, because it may be nested deeper than Python recurses."""


class ArrayFacts(NamedTuple):
    """Facts for hints about a JAX array in the failing code."""

    shape: tuple[int, ...]
    is_local: bool
    """Whether all of it is on this rank's own devices."""
    is_on_mesh: bool
    """Whether it has a `NamedSharding`, and so `.sharding.mesh`."""
    is_explicit: bool
    """Whether that mesh has Explicit axes."""
    device_count: int
    device_set: int
    """Equal for two arrays that are on the same devices."""
    device_order: int
    """Equal if the shardings of two arrays list the devices in the same order."""
    is_bool: bool = False
    is_replicated: bool = False
    """Whether each of its devices has all of it."""
    has_shard: bool = True
    """Whether this rank has a part of it."""


class TreeFacts(NamedTuple):
    """Facts for hints about a container in the failing code."""

    array: str
    """An expression of its first global array."""
    array_count: int
    """How many global arrays it contains."""
    is_uniform: bool
    """Whether it contains nothing but global arrays on the same devices, which one `device_put` can move."""


REFUSED_MESH = "_mhnb_refused_mesh"
"""Attribute of JAX's refusal of a mesh: a `RefusedMesh`."""


class RefusedMesh(NamedTuple):
    """A mesh over devices of several slices, which `jax.make_mesh` refused."""

    axes: tuple[tuple[str, int], ...]
    axis_types: tuple[str, ...]
    """Such as `Explicit`, by axis."""
    slices: tuple[int, ...]
    """How many of its devices each slice has."""
    device_count: int
    """The number of all devices; 0 if the slices differ in size."""
    places: tuple[int, ...] = ()
    """Its devices by their indices in `jax.devices()`; empty for all of them."""
    splits_physical_axes: bool = False
    """Whether JAX can lay it out over a TPU's own axes only by splitting them."""


class ErrorSite(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where an exception was raised, and the cell's code that led there."""

    module: str = ""
    """The module of the innermost frame, such as `jax._src.array`."""
    function: str = ""
    """The function of the innermost frame, with its class: `ArrayImpl.__iter__`."""
    expression: str = ""
    """The part of the cell that was being evaluated, if it called directly into JAX or NumPy; otherwise empty."""
    names: dict[str, bool] = field(default_factory=dict)
    """The names and parts, `self.w`, in it that may refer to arrays or trees of arrays; true for a JAX array."""
    top_level: bool = False
    """Whether it is in the cell itself and not in a function, so that its names are the rank's variables."""
    arrays: dict[str, ArrayFacts] = field(default_factory=dict)
    """Those of the names that are JAX arrays, and the global arrays of trees. A tracer is not among them."""
    mesh: RefusedMesh | None = None
    """The mesh that `jax.make_mesh` refused, if that is the error."""
    trees: dict[str, TreeFacts] = field(default_factory=dict)
    """Those of the names that contain global arrays."""
    caller: str = ""
    """The function that called the innermost one, or its `__iter__`."""
    entry: str = ""
    """The module of the library's function that the cell called."""
    shardings: list[str] = field(default_factory=list)
    """The names and parts in it that are shardings."""


@dataclass(frozen=True, slots=True)
class NamedValue:
    """User code that refers to an array or a tree of arrays."""

    text: str
    name: str
    """The variable that holds it, `params` of `params["w"]`; empty if that is neither an array nor a tree of arrays."""
    is_array: bool
    """Whether the known part is a JAX array."""
    known: str
    """The part of it whose value the rank has seen: `x` of `x.T`."""


def find_failing_name(site: ErrorSite, code: str = "") -> NamedValue | None:
    """Return the only array or tree that the error can be about.

    It is a part of the expression that failed, so evaluating it again does not raise.

    >>> find_failing_name(ErrorSite(expression="np.asarray(p['w'])", names={"p": False})).text
    "p['w']"
    """
    node = next(_parse_candidates(site, code), None)
    # A subscript that is not known raised itself.
    if node is None or (isinstance(node, ast.Subscript) and ast.unparse(node) not in site.names):
        return None
    found = {named.text: named for named in _UseCollector(site.names).collect(node)}
    arrays = [named for named in found.values() if named.is_array]
    if len(found) != 1 and len(arrays) != 1:
        return None
    return arrays[0] if arrays else next(iter(found.values()))


class MaskedIndex(NamedTuple):
    """An array's index with a mask, which JAX has to fetch."""

    array: str
    """The indexed array, one of `ErrorSite.arrays`."""
    mask: str
    template: str
    """The expression that failed, with `{0}` in place of the array and `{1}` in place of the mask."""


def find_mask(site: ErrorSite) -> MaskedIndex | None:
    """Return the failed `x[x > 3]` or `x.at[x > 3].set(0)`, or None.

    >>> find_mask(ErrorSite(expression="x[0]", names={"x": True}))
    """
    match failed := next(_parse_candidates(site, ""), None):
        # `x.at[mask]` alone computes nothing, so the call of its method is what failed. Any other call has its value.
        case ast.Call(func=ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=whole, attr="at")) as index)):
            infix = ".at"
        case ast.Subscript(value=whole) as index:
            infix = ""
        case _:
            return None
    array, text = ast.unparse(whole), ast.unparse(failed)
    parts = index.slice.elts if isinstance(index.slice, ast.Tuple) else [index.slice]
    masks = [ast.unparse(part) for part in parts if _is_mask(site, part)]
    if array not in site.arrays or len(masks) != 1 or len(masks[0]) > _MAX_QUOTED_CHARS or len(text) > _MAX_CALL_CHARS:
        return None
    inside = ", ".join("{1}" if ast.unparse(part) == masks[0] else _escape(ast.unparse(part)) for part in parts)
    return MaskedIndex(array, masks[0], f"{{0}}{infix}[{inside}]{_escape(text[len(ast.unparse(index)) :])}")


def _is_mask(site: ErrorSite, part: ast.expr) -> bool:
    """Return whether part of an index is a global array of booleans."""
    match part:
        case ast.Compare() | ast.UnaryOp(op=ast.Invert()) | ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            used = [site.arrays.get(named.known) for named in _UseCollector(site.names).collect(part)]
            return any(facts and not facts.is_local for facts in used)
    facts = site.arrays.get(ast.unparse(part))
    return facts is not None and facts.is_bool and not facts.is_local


def find_index(site: ErrorSite) -> tuple[str, str] | None:
    """Return array and index of a failed `x[0]`.

    >>> find_index(ErrorSite(expression="x[0, i:]", names={"x": True}))
    ('x', '0, i:')
    """
    node = next(_parse_candidates(site, ""), None)
    if not isinstance(node, ast.Subscript) or not site.names.get(ast.unparse(node.value)):
        return None
    index = ast.unparse(node)[len(ast.unparse(node.value)) + 1 : -1]
    return (ast.unparse(node.value), index) if len(index) <= _MAX_QUOTED_CHARS else None


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def find_captured(site: ErrorSite, code: str = "") -> str | None:
    """Return the only array that the failing code's lambdas capture.

    >>> find_captured(ErrorSite(expression="jit(lambda a: a + x)(1.0)", names={"x": True}))
    'x'
    """
    for node in _parse_candidates(site, code):
        found = {name for part in ast.walk(node) if isinstance(part, ast.Lambda) for name in _find_captured_names(part)}
        arrays = [name for name in found if site.names.get(name)]
        if len(arrays) == 1:
            return arrays[0]
    return None


def find_operands(site: ErrorSite, code: str = "") -> tuple[str, str] | None:
    """Return the operands of a failed operator, or of a two-array call.

    >>> find_operands(ErrorSite(expression="w @ x"))
    ('w', 'x')
    """
    for node in _parse_candidates(site, code):
        if isinstance(node, ast.BinOp):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            if max(len(left), len(right)) <= _MAX_QUOTED_CHARS:
                return left, right
        if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            left, right = map(ast.unparse, node.args)
            if left in site.arrays and right in site.arrays:
                return left, right
    return None


def find_uses(site: ErrorSite, code: str = "") -> list[NamedValue]:
    """Return the arrays and trees in the expression that failed."""
    node = next(_parse_candidates(site, code), None)
    return [] if node is None else _UseCollector(site.names).collect(node)


def add_argument(site: ErrorSite, functions: Collection[str], argument: str) -> str | None:
    """Return the failing call with one more keyword argument.

    Args:
        functions: names of the functions that accept it. For any other call the result is None.

    >>> add_argument(ErrorSite(expression="jnp.dot(a, b)"), {"dot"}, "precision='high'")
    "jnp.dot(a, b, precision='high')"
    """
    node = next(_parse_candidates(site, ""), None)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in functions:
        return None
    # NumPy's function of that name does not accept the argument.
    if isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "numpy"):
        node.func.value.id = "jnp"
    text = ast.unparse(node)
    separator = ", " if node.args or node.keywords else ""
    return f"{text[:-1]}{separator}{argument})" if len(text) <= _MAX_CALL_CHARS else None


def find_first_argument(site: ErrorSite, code: str = "") -> str | None:
    """Return the failing call's first argument, if it refers to an array.

    >>> find_first_argument(ErrorSite(expression="jax.device_put(x, y.sharding)", names={"x": True, "y": True}))
    'x'
    """
    call = next(_parse_candidates(site, code), None)
    if not isinstance(call, ast.Call) or not call.args:
        return None
    uses = _UseCollector(site.names).collect(call.args[0])
    return uses[0].text if len(uses) == 1 and uses[0].text == ast.unparse(call.args[0]) else None


def find_in_sharding(site: ErrorSite, code: str = "") -> tuple[str, str]:
    """Return the only argument of a failed call, and its `in_shardings`.

    Each is empty if unknown, and both if there are several arguments, because the error does not tell which one differs.

    >>> find_in_sharding(ErrorSite(expression="jax.jit(f, in_shardings=rows)(x)", names={"x": True}, shardings=["rows"]))
    ('x', 'rows')
    """
    call = next(_parse_candidates(site, code), None)
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
        return "", ""
    keywords = call.func.keywords if isinstance(call.func, ast.Call) else []
    given = [keyword.value for keyword in keywords if keyword.arg == "in_shardings"]
    # A tuple has one sharding per argument.
    texts = [ast.unparse(value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value) for value in given]
    found = [text for value in given for text in _list_shardings(site, value)]
    return find_first_argument(site, code) or "", texts[0] if texts and texts == found else ""


def find_sharding(site: ErrorSite, code: str = "") -> str:
    """Return the only sharding of the failing expression, or empty.

    Without one, it is a replicated one on the only `mesh=` of a call. Those inside calls that make its arguments do not count.

    >>> find_sharding(ErrorSite(expression="jax.device_put(x, rows)", shardings=["rows"]))
    'rows'
    >>> find_sharding(ErrorSite(expression="jax.shard_map(f, mesh=mesh, in_specs=P('x'))(x)"))
    'NamedSharding(mesh, P())'
    """
    node = next(map(_drop_inner_calls, _parse_candidates(site, code)), None)
    found = set(_list_shardings(site, node)) if node is not None else set()
    if node is not None and not found:
        meshes = {
            ast.unparse(part.value) for part in ast.walk(node) if isinstance(part, ast.keyword) and part.arg == "mesh"
        }
        found = {f"NamedSharding({mesh}, P())" for mesh in meshes}
    return found.pop() if len(found) == 1 and all(len(text) <= _MAX_CALL_CHARS for text in found) else ""


class _CallDropper(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        return node if _makes_sharding(node) else ast.Constant(None)


def _drop_inner_calls(node: ast.expr) -> ast.expr:
    """Replace calls inside the arguments or operands by None."""
    dropper = _CallDropper()
    if not isinstance(node, ast.Call):
        return cast(ast.expr, dropper.visit(node))
    node.args = [dropper.visit(argument) for argument in node.args]
    node.keywords = [dropper.visit(keyword) for keyword in node.keywords]
    return node


def _makes_sharding(node: ast.Call) -> bool:
    return "NamedSharding" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))


def _list_shardings(site: ErrorSite, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call() if _makes_sharding(node):
            yield ast.unparse(node)
        case ast.Attribute(value=value, attr="sharding") if ast.unparse(value) in site.arrays:
            yield ast.unparse(node)
        case ast.expr() if ast.unparse(node) in site.shardings:
            yield ast.unparse(node)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _list_shardings(site, child)


def _parse_candidates(site: ErrorSite, code: str) -> Iterator[ast.expr]:
    """Yield the failing expression, then the one that its line evaluates."""
    if not site.expression:
        return
    for text in (site.expression, code):
        node = _parse_evaluated(text)
        # For an unpacking assignment, Python marks the names on the left.
        if node is not None and not isinstance(node, ast.Tuple):
            yield node


def _parse_evaluated(text: str) -> ast.expr | None:
    if len(text) > _MAX_PARSED_CHARS:
        return None
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(body) != 1:
        return None
    statement = body[0]
    # The first field that a statement of that kind evaluates.
    values = (getattr(statement, name, None) for name in ("iter", "value", "test"))
    return next((value for value in values if isinstance(value, ast.expr)), None)


class _UseCollector(ast.NodeVisitor):
    """Collects uses of names as whole expressions: `x`, `x.T`, `x["w"][0]`."""

    def __init__(self, names: Mapping[str, bool]) -> None:
        self._names = names
        self._found: list[NamedValue] = []

    def collect(self, node: ast.expr) -> list[NamedValue]:
        self.visit(node)
        return self._found

    def visit_Call(self, node: ast.Call) -> None:
        # `x.tolist()` uses x.
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Skip the lambda: it uses its names only when it is called."""

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        # Everything except the first iterable uses names of its own.
        self.visit(node.generators[0].iter)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension  # noqa: N815

    def _visit_use(self, node: ast.Name | ast.Attribute | ast.Subscript) -> None:
        if any(isinstance(part, ast.Attribute) and part.attr == "sharding" for part in ast.walk(node)):
            # Its sharding or mesh is used, not the array.
            return
        root: ast.expr = node
        parts = [ast.unparse(root)]
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
            parts.append(ast.unparse(root))
        known = next((part for part in parts if part in self._names), "")
        if not isinstance(root, ast.Name):
            self.generic_visit(node)
        elif known and len(text := ast.unparse(node)) <= _MAX_QUOTED_CHARS:
            is_array = self._names[known]
            in_object = not is_array and any(isinstance(part, ast.Attribute) for part in ast.walk(node))
            variable = root.id if root.id in self._names and not in_object else ""
            self._found.append(NamedValue(text, variable, is_array=is_array, known=known))

    visit_Name = visit_Attribute = visit_Subscript = _visit_use  # noqa: N815


def _find_captured_names(function: ast.Lambda) -> set[str]:
    """Return the names that a lambda captures from outside."""
    parameters = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    return {part.id for part in ast.walk(function.body) if isinstance(part, ast.Name)} - parameters


# -- shorten the stack inside an error message


EMBEDDED_TRACEBACK = "Traceback (most recent call last):"
"""The line above the stack in a message that contains one."""
_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+, in .+')
_CELL = re.compile(r"<cell \d+>")
_OWN = re.compile(r"[/\\]mhnb[/\\]rank[/\\]")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?P<name>\w+)|[/\\]lib(?:64)?[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)(?P<std>\w+)|^<frozen "
)


def trim_embedded_traceback(message: str) -> str:
    r"""Remove mhnb's and outer frames from a message; count library frames.

    A message without a stack, or without a frame of a cell, stays as it is.

    >>> stack = '  File "/x/loop.py", line 8, in run\n  File "<cell 3>", line 2, in f'
    >>> trim_embedded_traceback(f"INTERNAL: Traceback (most recent call last):\n{stack}\nValueError: no").splitlines()[1:]
    ['  File "<cell 3>", line 2, in f', 'ValueError: no']
    """
    if EMBEDDED_TRACEBACK not in message:
        return message
    lines = message.split("\n")
    kept: list[str] = []
    for is_frame, run in groupby(lines, key=lambda line: _FRAME.fullmatch(line) is not None):
        same = list(run)
        is_stack = is_frame and kept and kept[-1].endswith(EMBEDDED_TRACEBACK)
        kept += _trim_frames(same) if is_stack else same
    return "\n".join(kept)


def _trim_frames(frames: Sequence[str]) -> Iterator[str]:
    first = next((at for at, frame in enumerate(frames) if _CELL.fullmatch(_frame_path(frame))), None)
    if first is None:
        yield from frames
        return
    others = (frame for frame in frames[first:] if not _OWN.search(_frame_path(frame)))
    for library, run in groupby(others, key=_library_name):
        inside = list(run)
        if library:
            yield f"    … {len(inside)} {'frame' if len(inside) == 1 else 'frames'} inside {library}"
        else:
            yield from inside


def _frame_path(frame: str) -> str:
    found = _FRAME.fullmatch(frame)
    assert found is not None
    return found["path"]


def _library_name(frame: str) -> str:
    found = _LIBRARY.search(_frame_path(frame))
    return (found["name"] or found["std"] or "Python") if found else ""
