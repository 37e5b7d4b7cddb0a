"""Read a lowered StableHLO module: explanations, unchanged outputs, donated arguments.

An explanation is the operation and line that a collective serves, and the shardings stated before partitioning. It uses the module's
debug locations, and only what the module states is returned. A sharding that the module does not state was chosen by the compiler: it
is reported as "not known", never guessed.
Outputs that are unchanged arguments are copies, and mutable arrays that are only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_text import SourceLine

_LOC = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
_NAMED = re.compile(r'^"((?:[^"\\]|\\.)*)"\(#(loc\d*)\)$')
_FILE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):')
_CALLSITE = re.compile(r"^callsite\(#(loc\d*) at #loc\d*\)$")
_RESULT = re.compile(r"^\s*(%[\w#]+)(?::\d+)? = \"?([\w.]+)\"?")
_END = re.compile(r"loc\(#(loc\d*)\)$")
_VALUE = re.compile(r"%[\w]+")
_ARGUMENT = re.compile(r"(%arg\d+): tensor<[^>]*>(?: \{((?:[^{}]|\{[^{}]*\})*)\})?(?: loc\(\"([^\"]*)\"\))?")
_SHARDING = re.compile(r"sdy\.sharding = #sdy\.sharding<@[\w.]+, (\[[^\]]*\](?:, \w+=\{[^}]*\})*)>")
_STATED = re.compile(r"<@[\w.]+, (\[[^\]]*\](?:, \w+=\{[^}]*\})*)>")
_EXPLICIT_OP = re.compile(r"stablehlo\.(?:all_|collective_|reduce_scatter|ragged_|send)")
_EXPLICIT_NAME = re.compile(
    r"(?:^|/)shard_map/(?:.*/)?(?:all_gather\w*|all_to_all|pmax|pmin|ppermute|psum\w*|ragged_all_to_all|reduce_scatter)$"
)
"""JAX's own collectives: an operation with such a name was requested by the program."""
_MANUAL = "sdy.manual_computation"
_IN_SHARDINGS = re.compile(r"in_shardings=\[(.*?)\] out_shardings=")
_DIM = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a collective."""

    operation: str
    """JAX's name of the operation, as `jit(step)/dot_general`; empty if it is not known."""
    source: SourceLine | None
    written: bool = False
    """Whether the program itself requests it (psum, all_gather, ...); otherwise the compiler inserted it."""
    before: tuple[str | None, ...] = ()
    """The shardings stated for the operation's inputs, as `P('data', None)`; None for an input without one."""
    after: str | None = None
    """The sharding stated for the operation's output."""
    is_kept: bool = True
    """Whether the module before partitioning was available; it is not kept for launched programs."""

    def __str__(self) -> str:
        line = f"{self.operation or 'operation not known'}, {self.source or 'line not known'}"
        if self.written:
            return f"{line}: written in the program"
        if not self.is_kept:
            return (
                f"{line}: the stated shardings are not kept after a launch; %mhjax collectives --why f(args) shows them"
            )
        inputs = ", ".join(spec or "not known" for spec in self.before) or "not known"
        return f"{line}: {inputs} → {self.after or 'not known'}"


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    """The location's name."""
    source: tuple[str, int] | None
    results: str
    kind: str
    operands: tuple[str, ...]
    stated: str | None
    """The sharding stated for its result."""
    required: tuple[str, ...] = ()
    """For a shard_map: the shardings that it requires for its operands."""


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """Shardings and operations that a lowered module states."""

    operations: dict[tuple[str, int], list[_Operation]] = field(default_factory=dict)
    """By source line of the program."""
    stated: dict[str, str] = field(default_factory=dict)
    """Shardings by value."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Shardings by the argument's name, as `params['w']`."""


def format_shardy_spec(text: str) -> str:
    """Format Shardy's dimensions as JAX writes a PartitionSpec.

    >>> format_shardy_spec('[{"data"}, {}, {"a", "b"}]')
    "P('data', None, ('a', 'b'))"
    """
    dims, end, rest = text.partition("]")
    words = [_format_dim(dim) for dim in _DIM.findall(dims)]
    return f"P({', '.join(words)})" + rest.replace('"', "'") if end else text


def _format_dim(dim: str) -> str:
    axes = [word.strip().replace('"', "'") for word in dim.split(",") if word.strip()]
    if not axes:
        return "None"
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


@lru_cache(maxsize=8)
def parse_lowered(stablehlo: str) -> LoweredModule:
    r"""Parse a lowered module's text with debug locations.

    >>> text = 'func.func public @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>} loc("x"))'
    >>> parse_lowered(text).arguments
    {'x': "P('data')"}
    """
    lines = stablehlo.splitlines()
    locations = {found[1]: found[2] for line in lines if (found := _LOC.match(line))}
    lowered = LoweredModule()
    function, signature, opened = "", "", list[str]()
    for line in lines:
        text = line.lstrip()
        if text.startswith("func.func"):
            # Each function numbers its values from 0.
            function, signature = text.partition("@")[2].partition("(")[0], text
            _read_arguments(lowered, text, function)
        elif text.startswith("return "):
            _read_results(lowered, text, function, signature)
        elif text.endswith("({") or (_MANUAL in text and text.endswith("{")):
            opened.append(text)
        elif end := _END.search(text):
            # An operation with a region ends some lines after its first line.
            begin = opened.pop() if opened and text.startswith(("})", "} :")) else text
            if found := _RESULT.match(begin):
                _add(lowered, _read_operation(begin, found, function, *_resolve(locations, end[1])))
    return lowered


def _add(lowered: LoweredModule, operation: _Operation) -> None:
    if operation.stated is not None:
        lowered.stated[operation.results] = operation.stated
    if operation.source is not None:
        lowered.operations.setdefault(operation.source, []).append(operation)


def _read_arguments(lowered: LoweredModule, signature: str, function: str) -> None:
    for value, attributes, name in _ARGUMENT.findall(signature.partition(") -> (")[0]):
        if found := _SHARDING.search(attributes):
            lowered.stated[function + value] = format_shardy_spec(found[1])
            if name and function == "main":
                lowered.arguments[name] = format_shardy_spec(found[1])


def _read_results(lowered: LoweredModule, line: str, function: str, signature: str) -> None:
    """Record the shardings that a function's signature states for its results."""
    values = _VALUE.findall(line.partition(" : ")[0])
    results = re.split(r"(?<=[}>]), (?=tensor<)", signature.partition(") -> (")[2])
    for value, text in zip(values, results, strict=False):
        if found := _SHARDING.search(text):
            lowered.stated.setdefault(function + value, format_shardy_spec(found[1]))


def _read_operation(
    line: str, found: re.Match[str], function: str, name: str, source: tuple[str, int] | None
) -> _Operation:
    rest = line.partition(" = ")[2]
    if found[2] == _MANUAL:
        taken = _IN_SHARDINGS.search(rest)
        wanted = tuple(format_shardy_spec(text) for text in _STATED.findall(taken[1])) if taken else ()
        operands = tuple(function + value for value in _VALUE.findall(rest.partition(")")[0]))
        return _Operation(name, source, function + found[1], found[2], operands, None, wanted)
    stated = _STATED.findall(rest) if found[2] == "sdy.sharding_constraint" or "sdy.sharding" in rest else []
    # If several shardings are stated, their assignment to the results is not parsed.
    spec = format_shardy_spec(stated[0]) if len(stated) == 1 else None
    operands = tuple(function + value for value in _VALUE.findall(rest.partition(" : ")[0]))
    return _Operation(name, source, function + found[1], found[2], operands, spec)


def _resolve(locations: dict[str, str], key: str) -> tuple[str, tuple[str, int] | None]:
    """Follow a location to the operation's name and innermost line."""
    name = ""
    for _ in range(len(locations)):
        text = locations.get(key, "")
        if found := _NAMED.match(text):
            # The first name is the operation's; the names below it are functions.
            name, key = name or found[1], found[2]
        elif found := _CALLSITE.match(text):
            key = found[1]
        elif found := _FILE.match(text):
            return name, (found[1], int(found[2]))
        else:
            break
    return name, None


def explain_collective(collective: HloCollective, stablehlo: str) -> Explanation:
    """Explain a collective as far as the lowered module states the reason.

    Args:
        collective: from `parse_collectives`.
        stablehlo: `lowered.as_text(debug_info=True)`; may be empty.

    >>> explain_collective(HloCollective("all-gather", "g", (), (), (), op_name="w"), "").after is None
    True
    """
    lowered, source = parse_lowered(stablehlo), collective.source
    if source is None:
        stated = lowered.arguments.get(collective.op_name)
        return Explanation(collective.op_name, None, before=(stated,) if stated else ())
    found = list(_matching(lowered, collective.op_name, (source.file, source.line)))
    if _EXPLICIT_NAME.search(collective.op_name) or any(_EXPLICIT_OP.match(operation.kind) for operation in found):
        return Explanation(collective.op_name, source, written=True)
    before, after = _stated_at_entry(lowered, found) if _is_manual(found) else _stated_around(lowered, found)
    return Explanation(collective.op_name, source, before=before, after=after)


def _matching(lowered: LoweredModule, op_name: str, source: tuple[str, int]) -> Iterator[_Operation]:
    for operation in lowered.operations.get(source, ()):
        name = operation.name
        if name and (op_name == name or op_name.endswith(f"/{name}")):
            yield operation


def _is_manual(found: list[_Operation]) -> bool:
    return len(found) == 1 and found[0].kind == _MANUAL


def _stated_at_entry(lowered: LoweredModule, found: list[_Operation]) -> tuple[tuple[str | None, ...], str | None]:
    """Return the stated and required sharding of the only mismatched operand."""
    pairs = zip(found[0].operands, found[0].required, strict=False)
    mismatches = [(lowered.stated.get(value), wanted) for value, wanted in pairs if lowered.stated.get(value) != wanted]
    return ((mismatches[0][0],), mismatches[0][1]) if len(mismatches) == 1 else ((), None)


def _stated_around(lowered: LoweredModule, found: list[_Operation]) -> tuple[tuple[str | None, ...], str | None]:
    """Return the input and output shardings of one (possibly composed) operation."""
    if len({operation.kind for operation in found}) < len(found):
        # Two operations of a kind on one line: it is unknown which of them the collective serves.
        return (), None
    made = {operation.results for operation in found}
    inner = {value for operation in found for value in operation.operands}
    last = [operation for operation in found if operation.results not in inner]
    if len(last) != 1:
        # There is no final operation, or several that cannot be distinguished.
        return (), None
    incoming = tuple(dict.fromkeys(value for operation in found for value in operation.operands if value not in made))
    return tuple(lowered.stated.get(value) for value in incoming), lowered.stated.get(last[0].results)


# -- passed-through outputs and donated arguments


_RETURN = re.compile(r"^\s*return (.+?) :", re.MULTILINE)
_ARGUMENT_INDEX = re.compile(r"%arg(\d+): ")
_DONATED = ("jax.buffer_donor = true", "tf.aliasing_output = ")
_IDENTITY_OPS = re.compile(
    r"^\s*(%\w+) = (?:sdy\.sharding_constraint|stablehlo\.optimization_barrier) (%\w+)(?= [:<])", re.MULTILINE
)
"""Operations that return their only operand unchanged."""


def find_passthrough_outputs(module: str) -> tuple[tuple[int, int], ...]:
    r"""Return the 0-based indices of unchanged outputs and of their arguments.

    Args:
        module: the text of a StableHLO module.

    >>> find_passthrough_outputs("func.func public @main(%arg0: t, %arg1: t) -> (t, t) {\n    return %0, %arg1 : t, t\n  }")
    ((1, 1),)
    """
    _, _, main = module.partition("@main(")
    found = _RETURN.search(main)
    if found is None:
        return ()
    aliases: dict[str, str] = {}
    for result, operand in _IDENTITY_OPS.findall(main, 0, found.start()):
        aliases[result] = aliases.get(operand, operand)
    values = [aliases.get(value, value) for value in found[1].split(", ")]
    return tuple((place, int(value[4:])) for place, value in enumerate(values) if re.fullmatch(r"%arg\d+", value))


def find_donated(module: str) -> tuple[int, ...] | None:
    r"""Return 0-based indices of donated arguments; None if not a StableHLO module.

    >>> find_donated("func.func public @main(%arg0: t {jax.buffer_donor = true}, %arg1: t) -> (t) {\n    return %0 : t\n  }")
    (0,)
    """
    _, found, main = module.partition("@main(")
    if not found:
        return None
    head, _, _ = main.partition("\n")
    _, *parts = _ARGUMENT_INDEX.split(head)
    return tuple(
        int(place)
        for place, text in zip(parts[::2], parts[1::2], strict=True)
        if any(each in text for each in _DONATED)
    )


_MAIN_ARGUMENTS = re.compile(r"(?<=@main\().*?(?=\) -> )")
_REPLICATED = r"sdy\.sharding = #sdy\.sharding<@[^,]+, \[(?:\{\}(?:, )?)*\]>"
_REPLICATED_ATTRIBUTE = re.compile(rf" \{{{_REPLICATED}\}}|, {_REPLICATED}(?=[,}}])|(?<=\{{){_REPLICATED}, ")
_MESH_DECLARATION = re.compile(r"^ *sdy\.mesh (@\S+) .*\n", re.MULTILINE)


def omit_replicated_arguments(module: str) -> str:
    r"""Remove the shardings of replicated arguments, and then unused meshes.

    >>> omit_replicated_arguments("@main(%arg0: t {sdy.sharding = #sdy.sharding<@m, [{}, {}]>}, %arg1: u {a = 1 : i32}) -> (t) {")
    '@main(%arg0: t, %arg1: u {a = 1 : i32}) -> (t) {'
    >>> text = "  sdy.mesh @m = <[]>\n@main(%arg0: t {sdy.sharding = #sdy.sharding<@m, []>, tf.aliasing_output = 0 : i32}) -> (t) {"
    >>> omit_replicated_arguments(text)
    '@main(%arg0: t {tf.aliasing_output = 0 : i32}) -> (t) {'
    >>> text = '@main(%arg0: t {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> (t) {'
    >>> omit_replicated_arguments(text) == text
    True
    """
    module = _MAIN_ARGUMENTS.sub(lambda found: _REPLICATED_ATTRIBUTE.sub("", found[0]), module, count=1)
    return _MESH_DECLARATION.sub(lambda found: found[0] if _count_symbol(found[1], module) > 1 else "", module)


def _count_symbol(name: str, module: str) -> int:
    return len(re.findall(rf"{re.escape(name)}(?!\w)", module))
