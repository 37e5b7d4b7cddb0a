"""Known errors and their hints, found by type, text and raising function.

The texts are those of jax 0.10.2 and 0.12.0 with their plugins. A hint names a `%mhjax` command only if this version has it.
Some texts can come from any code (`AssertionError` without text, `list index out of range`). They match only if the JAX
function that is known to raise them did so, because a wrong hint is worse than none.

Names that JAX removed, each with its replacement, are recognised by the error's text alone.

A value that is not the same on each process: JAX gathers the value of every process, in the types that it computes with, and
compares it with the process's own value. So a NumPy array of float64 differs from itself if JAX rounds it to float32, and NaN
differs from everything.

Limits of the machine: the text of an error that stopped a start shows what to change there. Nothing here inspects the machine.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from mhnb.core.arguments import find_meant_magic, find_missing_magic
from mhnb.core.error_site import (
    ErrorSite,
    NamedValue,
    add_argument,
    find_captured,
    find_failing_name,
    find_first_argument,
    find_in_sharding,
    find_index,
    find_mask,
    find_operands,
    find_sharding,
    find_uses,
)
from mhnb.core.memory import parse_requested_nbytes
from mhnb.core.ranks import describe_ranks
from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.mesh import format_mesh_code, slice_order, split_over_slices

_PYTHON_VARIABLES = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONIOENCODING",
    "PYTHONMALLOC",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONWARNINGS",
)
"""Variables whose wrong value keeps Python, or what the ranks import, from starting."""
_PROCESS_LIMIT_HINT = (
    "no more processes or threads can be created: raise ulimit -u (processes and threads of this user), ulimit -v if it is set "
    "(memory of a process), or the container's limit on pids; or start fewer ranks"
)
_CONDITIONS = (
    (
        r"Fatal Python error: (?:init|preconfig|config|core|Failed)|No module named 'encodings'",
        "Python does not start in this environment; unset the wrong variable",
    ),
    (
        r"Too many open files|No file descriptors available",
        "too many open files: raise the limit, for example ulimit -n 4096, where Jupyter is started or on the named host",
    ),
    (
        r"can't start new thread|pthread_create|Resource temporarily unavailable",
        _PROCESS_LIMIT_HINT,
    ),
    (
        r"[Cc]annot allocate memory|failed to map segment|MemoryError|std::bad_alloc",
        "out of memory: start fewer ranks, or raise ulimit -v if it is set, or the container's limit",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk is full or has no inodes left: check with df -h and df -i; to use other folders, set MHNB_HOME and IPYTHONDIR",
    ),
    (
        r"File too large",
        "the file size limit is reached: raise it with ulimit -f in the shell that starts Jupyter",
    ),
    (
        r"Read-only file system",
        "a folder is not writable; to use others, set MHNB_HOME, IPYTHONDIR and TMPDIR",
    ),
)


_CRASH = re.compile(r"SIGSEGV|SIGABRT|SIGBUS")
_ADDRESS_SPACE_HINT = (
    "the memory of a process is limited here, and native code crashes when it runs out: raise or remove ulimit -v"
)


def find_start_hint(text: str, environment: Mapping[str, str], *, has_memory_limit: bool = False) -> str:
    """Return how to fix the machine after a failed start, or empty.

    Args:
        text: the whole error.
        environment: of the process that started.
        has_memory_limit: whether the address space of its processes is limited (`ulimit -v`).

    >>> find_start_hint("OSError: [Errno 27] File too large", {})
    'the file size limit is reached: raise it with ulimit -f in the shell that starts Jupyter'
    """
    for pattern, hint in _CONDITIONS:
        if re.search(pattern, text):
            return hint + (_list_variables(environment) if "variable" in hint else "")
    return _ADDRESS_SPACE_HINT if has_memory_limit and _CRASH.search(text) else ""


def _list_variables(environment: Mapping[str, str]) -> str:
    found = [f"{name}={environment[name]}" for name in _PYTHON_VARIABLES if environment.get(name)]
    return f": {', '.join(found)}" if found else ": to list them, run env | grep ^PYTHON"


# -- why a value differs between processes


UnequalCause: TypeAlias = Literal["differs", "rounded", "nan", "unknown"]

_GATHERED = re.compile(r"Expected: (?P<all>.*); got: (?P<own>.*)\.\s*$", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)(?![\w.])")
_COMPLEX = re.compile(r"[\d.]j")
_VALUES = re.compile(r"\[(?:[\[\]\d\s.,+\-()]|e[-+]?\d|nan|inf|j|True|False|characters left out[^\]]*)*+")
"""Text that may be an array. The pattern is possessive (no backtracking), so a text is scanned once.

The rank has already removed the middle of a very long array, and the text says so.
"""
_MAX_VALUES_CHARS, _HEAD, _TAIL = 400, 120, 60
"""Characters: longer values are cut to their beginning and end."""
_RELATIVE_TOLERANCE = 1e-6
"""Relative: float32 has 24 bits, and NumPy prints 8 digits of it."""


def classify_unequal_value(text: str) -> UnequalCause:
    """Return why the check failed.

    `unknown` if the message has no numbers, or if they are cut short, complex, or written alike though they differ.

    Args:
        text: the whole message.

    >>> classify_unequal_value("Expected: [0.1 0.33333334 0.1 0.33333334]; got: [0.1 0.33333333].")
    'rounded'
    >>> classify_unequal_value("Expected: [0.1 0.2 0.1 0.3]; got: [0.1 0.2].")
    'differs'
    """
    found = _GATHERED.search(text)
    if found is None or "..." in found[0] or _COMPLEX.search(found[0]):
        return "unknown"
    gathered, own = (_NUMBER.findall(found[part]) for part in ("all", "own"))
    if not own or len(gathered) % len(own):
        return "unknown"
    parts = [gathered[at : at + len(own)] for at in range(0, len(gathered), len(own))]
    # All of them went through the same rounding.
    if any(part != parts[0] for part in parts):
        return "differs"
    if "nan" in own:
        return "nan"
    # Digits that are not printed may differ between ranks too, so only visible rounding counts as rounding.
    return "rounded" if parts[0] != own and all(map(_is_close, parts[0], own)) else "unknown"


def shorten_values(text: str) -> str:
    """Cut long arrays in a message down to their beginning and end.

    >>> shorten_values(f"got {list(range(1000))}!")[-40:]
    '992, 993, 994, 995, 996, 997, 998, 999]!'
    """
    return _VALUES.sub(_shorten_match, text) if len(text) > _MAX_VALUES_CHARS else text


def _shorten_match(found: re.Match[str]) -> str:
    values, closed, rest = found[0].rpartition("]")
    if len(values) <= _MAX_VALUES_CHARS:
        return found[0]
    return f"{values[:_HEAD].rpartition(' ')[0]} … {values[-_TAIL:].partition(' ')[2]}{closed}{rest}"


def _is_close(gathered: str, own: str) -> bool:
    return math.isclose(float(gathered), float(own), rel_tol=_RELATIVE_TOLERANCE)


# -- the types of the hint table


class RecognisedError(NamedTuple):
    """A recognised error."""

    match: re.Match[str]
    """The part of its text that was recognised."""
    site: ErrorSite
    code: str

    def format_array_name(self, default: str = "x") -> str:
        """Return the user's expression for the failing array; `default` if unknown."""
        named = find_failing_name(self.site, self.code)
        return named.text if named and named.text not in self.site.shardings else default


_Text: TypeAlias = str | Callable[[RecognisedError], str]


class Hint(NamedTuple):
    """A row of the table: an error's pattern and its hint."""

    pattern: re.Pattern[str]
    text: _Text
    ename: re.Pattern[str]
    """Matches the exception's whole name."""
    raised_in: re.Pattern[str]
    """Matches the module and function that raised it."""


def _make_hint(pattern: str, text: _Text, *, ename: str = ".*", raised_in: str = ".*") -> Hint:
    return Hint(re.compile(pattern, re.DOTALL), text, re.compile(ename), re.compile(raised_in))


# -- hints in the user's own names


class _Replicable(NamedTuple):
    """An array, or a tree of arrays, that one `device_put` replicates."""

    text: str
    mesh: str
    """The expression of its mesh."""
    is_array: bool
    is_explicit: bool

    @property
    def cure(self) -> str:
        return f"jax.device_put({self.text}, NamedSharding({self.mesh}, P()))"


def _find_replicable(seen: RecognisedError, named: NamedValue | None) -> _Replicable | None:
    """Return what to replicate for a value, or None.

    Only a value that the rank has seen, and that one call of `device_put` replicates.
    """
    if named is None:
        return None
    text, known, tree = named.text, named.known, seen.site.trees.get(named.text)
    if tree is not None and not tree.is_uniform:
        text = tree.array if tree.array_count == 1 else ""
    if tree is not None:
        known = tree.array
    facts = seen.site.arrays.get(known)
    # `x.at[0]` of `x.at[0].set(1).tolist()` is no array.
    if not text or ".at[" in text or facts is None or facts.is_local or not facts.is_on_mesh:
        return None
    return _Replicable(text, f"{known}.sharding.mesh", tree is None or text == known, facts.is_explicit)


def _hint_fetch(seen: RecognisedError) -> str:
    if mask := _hint_mask(seen):
        return mask
    named = find_failing_name(seen.site, seen.code)
    found = _find_replicable(seen, named)
    sentences = ["A rank holds only its own shards of a global array."]
    if named and named.name and seen.site.top_level:
        sentences.append(f"To copy it to the notebook: `%mhjax pull {named.name}`.")
    where = "On the ranks" if seen.site.top_level else "In that line"
    facts = seen.site.arrays.get(named.known) if named else None
    if named and facts and not facts.has_shard:
        sentences.append(_format_elsewhere(named.text))
    elif found is None:
        sentences.append(f"{where} replicate each global array that it reads first, on all ranks.")
    elif found.is_array:
        sentences.append(
            f"{where} use {found.text}.addressable_shards, or replicate it first on all ranks: {found.cure}."
        )
    else:
        sentences.append(f"{where} replicate it first, on all ranks: {found.cure}.")
    return " ".join(sentences)


def _hint_mask(seen: RecognisedError) -> str:
    """Return the hint for a fetched mask; empty if none was."""
    index = find_mask(seen.site)
    facts = seen.site.arrays.get(index.array) if index else None
    if index is None or facts is None or facts.is_local or not facts.is_on_mesh:
        return ""
    array, mask = (
        f"jax.device_put({text}, NamedSharding({index.array}.sharding.mesh, P()))" for text in (index.array, index.mask)
    )
    cure = index.template.format(array if facts.is_explicit else index.array, mask)
    return (
        "JAX counts the elements that a mask selects, but a rank holds only its own shards of this mask. "
        f"Replicate it on all ranks: {cure}."
    )


def _format_mesh(seen: RecognisedError, text: str) -> str:
    """Format an array's mesh as an expression; `mesh` if unknown."""
    facts = seen.site.arrays.get(text)
    return f"{text}.sharding.mesh" if facts and facts.is_on_mesh and not facts.is_local else "mesh"


_PRINTS_IN_SHARD_MAP = re.compile(r"ShardMapTracer\..*|_debug_print_eager_rule")
"""Functions of JAX that print the values inside a `jax.shard_map` that is not compiled."""


def _hint_iterate(seen: RecognisedError) -> str:
    if _PRINTS_IN_SHARD_MAP.fullmatch(seen.site.caller):
        return (
            "A jax.shard_map without jax.jit around it cannot print values that other ranks hold. "
            "Put it into jax.jit, jax.jit(jax.shard_map(...)), and print with jax.debug.print."
        )
    why = "You cannot iterate over a sharded array, because most of its rows are on other ranks."
    found = _find_replicable(seen, find_failing_name(seen.site, seen.code))
    if found is None or not found.is_array:
        return f"{why} Replicate it first on every rank, or index it."
    replicated = f"NamedSharding({found.mesh}, P())"
    index = f"{found.text}.at[0].get(out_sharding={replicated})" if found.is_explicit else f"{found.text}[0]"
    return f"{why} Replicate it first on every rank, {found.cure}, or index it: {index}."


def _hint_unequal(seen: RecognisedError) -> str:
    cause, text = classify_unequal_value(seen.match[0]), seen.format_array_name("")
    if cause == "rounded":
        rounded = f"{text}.astype(np.float32)" if text else "it as np.float32"
        return (
            f"JAX rounds {text or 'the value'} to its own dtype before it compares, so the values look different. Pass {rounded}; "
            'to keep all digits, call jax.config.update("jax_enable_x64", True) first on every rank.'
        )
    if cause == "nan":
        sharding = find_sharding(seen.site, seen.code)
        call = f"({text}.shape, {sharding}, lambda box: {text}[box])" if text and sharding else ""
        return (
            f"{text or 'The value'} contains NaN, so this equality check always fails. Use jax.make_array_from_callback{call}, "
            "which does not compare."
        )
    also = " JAX rounds to its own dtypes before it compares, so pass equal float64 values with .astype(np.float32)."
    return (
        "device_put onto a global sharding needs the same value on every rank. Use the same seed on every rank; if each rank has its own "
        "part, use jax.make_array_from_process_local_data with a sharding that splits the array."
        + (also if cause == "unknown" else "")
    )


_UPDATE = re.compile(r"\.at\[[^]]*\]\.(?!get\b)\w+\(")
TAKE_RESHAPED_SHARDING = frozenset(("ravel", "reshape"))
"""Methods of arrays and functions of `jax.numpy` that accept `out_sharding`."""
UPDATES = frozenset(("add", "divide", "max", "min", "multiply", "power", "set", "subtract"))
"""Methods of `x.at[...]` that accept `out_sharding`."""


def _hint_indexed_update(seen: RecognisedError) -> str:
    why = "An indexed update of an array with Explicit axes needs the result's sharding"
    named = next((used for used in find_uses(seen.site) if used.text.endswith("]") and ".at[" in used.text), None)
    sharding = _format_sharding(seen, named.known) if named else ""
    cure = add_argument(seen.site, UPDATES, f"out_sharding={sharding}") if sharding else None
    return f"{why}{f': {cure}' if cure else ', out_sharding='}. jax.make_mesh creates Explicit axes by default."


def _format_sharding(seen: RecognisedError, text: str) -> str:
    """Format an array's or traced value's sharding as an expression."""
    return f"{text}.sharding" if text in seen.site.arrays else f"jax.typeof({text}).sharding"


def _hint_captured(seen: RecognisedError) -> str:
    name = find_captured(seen.site, seen.code)
    if name is None and _UPDATE.search(seen.code):
        return _hint_indexed_update(seen)
    if name is None and "out_sharding" in seen.site.expression:
        return (
            "The mesh of out_sharding has several devices, but the call runs on one device. "
            "Make the call under jax.set_mesh of that mesh, on every rank."
        )
    name = name or "it"
    return f"A global array cannot be captured by a compiled function: pass {name} as an argument."


class _PlacedArgument(NamedTuple):
    """An argument of a call, and its devices."""

    text: str
    """As the user wrote it; empty if that is not known."""
    subject: str
    """The same as the subject of a sentence, or the name of the parameter."""
    shape: str
    devices: tuple[str, ...]
    is_local: bool
    """Whether these are this rank's own devices."""
    mesh: str
    """An expression of its mesh; empty if none is known."""


_PLACED = re.compile(r"argument (\S+) of (.+?) with shape \w+\[([^\]]*)\] and with device ids \[([\d, ]+)\]")
_CONTEXT = re.compile(r"\band (?!argument )[^\[\]]* with device ids \[([\d, ]+)\]")
_ADDRESS = re.compile(r"<.* object at 0x[0-9a-f]+>")
_NAME = re.compile(r"[A-Za-z_][\w.]*(?:\[[^\[\]]*\])*")


def _parse_placed_arguments(seen: RecognisedError) -> list[_PlacedArgument]:
    operands = find_operands(seen.site, seen.code)
    found, arguments = list[_PlacedArgument](), _PLACED.findall(seen.match[0])
    for name, function, shape, devices in arguments:
        text, subject = name, f"argument {name} of {_ADDRESS.sub('the function', function)}"
        if operands and name in ("x", "y"):
            # The arguments of an operator have JAX's own names.
            text = subject = _parenthesize(operands["xy".index(name)])
        elif operands and operands[0] in seen.site.arrays and len(arguments) == 2:
            text = subject = operands[len(found)]
        elif len(arguments) == 1:
            # An argument of the call itself, or of a function inside it, whose parameter names mean nothing here.
            named = find_first_argument(seen.site, seen.code) or seen.format_array_name("")
            text, subject = (named, named) if named else ("", subject)
        else:
            # The names of parameters mean nothing in the user's line.
            text = ""
        ids, facts = tuple(devices.split(", ")), seen.site.arrays.get(text)
        is_local = facts.is_local if facts else len(ids) == 1
        # An array without a NamedSharding has no mesh.
        on_mesh = f"{text}.sharding.mesh" if text and (facts is None or facts.is_on_mesh) else ""
        found.append(_PlacedArgument(text, subject, re.sub(r"@[^,\]]*", "", shape), ids, is_local, on_mesh))
    return found


def _parenthesize(text: str) -> str:
    """Format an operand so that `.sharding` can follow it."""
    return text if _NAME.fullmatch(text) else f"({text})"


def _hint_mixed_devices(seen: RecognisedError) -> str:
    found = _parse_placed_arguments(seen)
    if len(found) < 2:
        return _hint_outside_mesh(seen, found)
    one, other = found[:2]
    if set(one.devices) == set(other.devices):
        words = f"move {other.subject} to the mesh of {one.subject}"
        return (
            f"The meshes of {one.subject} and {other.subject} list the same {len(one.devices)} devices in a different order: "
            f"{_format_move(other.text, _format_target(one, other), words)}, or create both on the same mesh."
        )
    if one.is_local and other.is_local:
        words = f"move {other.subject} to the devices of {one.subject}"
        move = _format_move(other.text, one.text and f"{one.text}.sharding", words, where="")
        return f"{_capitalize(one.subject)} and {other.subject} are on different devices of this rank: {move}."
    local, spread = (one, other) if one.is_local else (other, one)
    if local.is_local:
        own = "device" if len(local.devices) == 1 else f"{len(local.devices)} devices"
        words = f"move np.asarray of {local.subject} to the mesh of {spread.subject}"
        return (
            f"{_capitalize(local.subject)} is on this rank's own {own}, but {spread.subject} is on a mesh of several ranks: "
            f"{_format_move(local.text and f'np.asarray({local.text})', _format_replicated(spread.mesh), words)}, "
            "if all ranks hold the same value."
        )
    few, many = sorted((one, other), key=lambda each: len(each.devices))
    return (
        f"{_capitalize(many.subject)} is on {len(many.devices)} devices and {few.subject} on {len(few.devices)}. {_NO_WAY_ACROSS} "
        f"{_format_rebuild(few.text, _format_replicated(many.mesh))}"
    )


def _format_target(fixed: _PlacedArgument, moved: _PlacedArgument) -> str:
    same = fixed.shape == moved.shape
    return f"{fixed.text}.sharding" if fixed.text and same else _format_replicated(fixed.mesh)


def _format_replicated(mesh: str) -> str:
    return f"NamedSharding({mesh}, P())" if mesh else ""


def _format_move(text: str, sharding: str, words: str, *, where: str = " on every rank") -> str:
    """Format a call of `device_put`; use `words` without both expressions."""
    if text and sharding:
        return f"jax.device_put({text}, {sharding}){where}"
    return f"{words} with jax.device_put{where}"


def _hint_outside_mesh(seen: RecognisedError, found: Sequence[_PlacedArgument]) -> str:
    context, sharding = _CONTEXT.search(seen.match[0]), find_sharding(seen.site, seen.code)
    subject, text = (found[0].subject, found[0].text) if found else ("an argument", "")
    moved = f"np.asarray of {subject}" if found and found[0].is_local else subject
    words = f"move {moved} to the mesh of this call"
    if found and context and set(found[0].devices) == set(context[1].split(", ")):
        return (
            f"The mesh of {subject} has the same devices as the mesh of this call, but in another order: "
            f"{_format_move(text, sharding, words)}."
        )
    if found and found[0].is_local:
        return (
            f"{_capitalize(subject)} is on this rank's own devices, and not on the mesh of this call: "
            f"{_format_move(text and f'np.asarray({text})', sharding, words)}, if all ranks hold the same value."
        )
    return f"{_capitalize(subject)} is not on the devices of this call's mesh. {_NO_WAY_ACROSS} {_format_rebuild(text, sharding)}"


_NO_WAY_ACROSS = "JAX cannot move an array between meshes with different devices across processes."


def _format_rebuild(text: str, sharding: str) -> str:
    mesh = sharding or "the other mesh"
    return (
        f"On every rank, create {text or 'it'} again on {mesh} from its host values, with jax.make_array_from_callback."
    )


def _capitalize(subject: str) -> str:
    return subject[0].upper() + subject[1:] if subject.startswith("argument ") else subject


def _hint_unreachable(seen: RecognisedError) -> str:
    text = find_first_argument(seen.site, seen.code) or seen.format_array_name("")
    return f"{_NO_WAY_ACROSS} {_format_rebuild(text, find_sharding(seen.site, seen.code))}"


def _hint_local_put(seen: RecognisedError) -> str:
    text = find_first_argument(seen.site, seen.code) or seen.format_array_name("")
    sharding = find_sharding(seen.site, seen.code)
    why = f"{text or 'The array'} is on this rank's own devices, but the sharding includes devices of other ranks"
    if not text or not sharding:
        return (
            f"{why}. If all ranks hold the same value, pass np.asarray of it on every rank. "
            "If each holds a part, use jax.make_array_from_process_local_data."
        )
    return (
        f"{why}: jax.device_put(np.asarray({text}), {sharding}) on every rank, if all hold the same value; "
        f"jax.make_array_from_process_local_data({sharding}, np.asarray({text})) if each holds its part."
    )


def _hint_in_shardings(seen: RecognisedError) -> str:
    text, sharding = find_in_sharding(seen.site, seen.code)
    move = (
        f": jax.device_put({text}, {sharding})"
        if text and sharding
        else ", with jax.device_put to the sharding in in_shardings"
    )
    return (
        f"The sharding of {text or 'an argument'} differs from the call's in_shardings, and jit does not move an argument that already has "
        f"one. Move it first on every rank{move}, or leave in_shardings out."
    )


def _hint_other_mesh(seen: RecognisedError) -> str:
    if (operands := find_operands(seen.site, seen.code)) is None:
        return (
            "The arrays are on meshes whose axes or axis types (Explicit, Auto) differ: "
            "move them to one mesh first, with jax.device_put on every rank."
        )
    left, right = map(_parenthesize, operands)
    if hint := _hint_other_devices(seen, left, right):
        return hint
    return (
        f"{left} and {right} are on meshes whose axes or axis types (Explicit, Auto) differ: "
        f"jax.device_put({right}, {_format_target_sharding(seen, left, right)}) on every rank."
    )


def _hint_other_devices(seen: RecognisedError, left: str, right: str) -> str:
    """Return the hint for arrays on different devices; empty unless known."""
    one, other = seen.site.arrays.get(left), seen.site.arrays.get(right)
    if one is None or other is None or one.device_set == other.device_set:
        return ""
    if one.is_local != other.is_local:
        local, spread = (left, right) if one.is_local else (right, left)
        return (
            f"{local} is on this rank's own devices, but {spread} is on a mesh of several ranks: jax.device_put(np.asarray({local}), "
            f"NamedSharding({_format_mesh(seen, spread)}, P())) on every rank, if all hold the same value."
        )
    few, many = (left, right) if one.device_count < other.device_count else (right, left)
    counts = sorted((one.device_count, other.device_count))
    where = f"NamedSharding({_format_mesh(seen, many)}, P())"
    return f"{many} is on {counts[1]} devices and {few} on {counts[0]}. {_NO_WAY_ACROSS} {_format_rebuild(few, where)}"


def _hint_other_memory(seen: RecognisedError) -> str:
    operands = find_operands(seen.site, seen.code)
    if not operands or ("<host>" in seen.match[1]) == ("<host>" in seen.match[2]):
        return (
            "One operand is in host memory, the other in device memory. Move the one in host memory with jax.device_put, "
            'to its own sharding with .with_memory_kind("device").'
        )
    text = _parenthesize(operands["<host>" in seen.match[2]])
    return (
        f"{text} is in host memory, the other in device memory: "
        f'jax.device_put({text}, {text}.sharding.with_memory_kind("device")) moves it.'
    )


def _format_target_sharding(seen: RecognisedError, fixed: str, moved: str) -> str:
    """Return a sharding for `moved`: `fixed`'s own unless the shapes differ."""
    one, other = seen.site.arrays.get(fixed), seen.site.arrays.get(moved)
    same = one is None or other is None or one.shape == other.shape
    return f"{fixed}.sharding" if same else f"NamedSharding({fixed}.sharding.mesh, P())"


def _hint_numpy_input(seen: RecognisedError) -> str:
    text, sharding = find_in_sharding(seen.site, seen.code)
    put, make = "jax.device_put", "jax.make_array_from_process_local_data"
    if text and sharding:
        put, make = f"{put}({text}, {sharding})", f"{make}({sharding}, {text})"
    return f"Put the NumPy array on the mesh first: {put} if all ranks hold the same values, {make} if each holds its part."


def _hint_donated(seen: RecognisedError) -> str:
    text = seen.format_array_name("It")
    return (
        f"{text} was donated to a compiled function (donate_argnums), which reused its memory, or delete() was called on it: "
        "use the function's result instead."
    )


def _hint_indivisible(seen: RecognisedError) -> str:
    return _format_padding(seen, f"dimension {seen.match['axis']}", "shard another dimension")


def _format_padding(seen: RecognisedError, dimension: str, other: str) -> str:
    """Format how to pad a dimension of `size` into `parts` parts.

    Args:
        dimension: what to pad.
        other: what the user can do instead.
    """
    parts, size = int(seen.match["parts"]), int(seen.match["size"])
    return f"{parts} does not divide {size}: pad {dimension} to {-(-size // parts) * parts}, or {other}."


def _hint_reshape(seen: RecognisedError) -> str:
    why = "With Explicit axes, JAX cannot choose a sharding for the new shape"
    mesh = _find_explicit_mesh(seen)
    cure = add_argument(seen.site, TAKE_RESHAPED_SHARDING, f"out_sharding=NamedSharding({mesh}, P())") if mesh else None
    if cure is None:
        return f"{why}. Give it one with out_sharding= in the call that reshapes."
    return f"{why}. Give it one: {cure}. P() replicates the result; name mesh axes in P to keep it sharded."


def _hint_global_to_device(seen: RecognisedError) -> str:
    if "make_array_from_callback" in seen.site.expression:
        return _hint_global_callback(seen)
    text = find_first_argument(seen.site, seen.code)
    facts = seen.site.arrays.get(text or "")
    if text is not None and facts is not None and not facts.has_shard:
        return _format_elsewhere(text)
    if text is not None and facts is not None and facts.is_replicated:
        return (
            f"{text} is replicated, so each of its ranks has a copy. Use this rank's: {text}.addressable_shards[0].data"
        )
    why = "A global array has parts on other ranks, so it cannot be moved to one rank's device."
    if text is None or facts is None or facts.is_local or not facts.is_on_mesh:
        return f"{why} Use the part that is on this rank, .addressable_shards[0].data, or replicate the array first on all ranks."
    return (
        f"{why} {text}.addressable_shards[0].data is the part on this rank's first device. For all of it, replicate it first on all ranks: "
        f"jax.device_put({text}, NamedSharding({text}.sharding.mesh, P())), then take .addressable_shards[0].data of the result."
    )


def _format_elsewhere(text: str) -> str:
    rebuild = _format_rebuild(text, "a sharding over all ranks")
    return f"{text} is on devices of other ranks only. {_NO_WAY_ACROSS} {rebuild}"


def _hint_global_callback(seen: RecognisedError) -> str:
    why = (
        "The callback of make_array_from_callback must return this rank's values, but this one returns a global array."
    )
    text = find_captured(seen.site, seen.code)
    facts = seen.site.arrays.get(text or "")
    if text is None or facts is None or facts.is_local:
        return (
            f"{why} Return a NumPy array; to move a global array to another sharding, use jax.device_put on every rank."
        )
    if not facts.has_shard:
        return f"{why} {_format_elsewhere(text)}"
    if facts.is_replicated:
        return f"{why} {text} is replicated: write np.asarray({text}) instead of {text} in the callback."
    return f"{why} To move {text} to another sharding, use jax.device_put on every rank."


def _find_named_operands(seen: RecognisedError) -> tuple[str, str] | None:
    """Return two operands, if at least one is a named array."""
    operands = find_operands(seen.site, seen.code)
    return operands if operands and any(text in seen.site.arrays for text in operands) else None


def _hint_summed(seen: RecognisedError) -> str:
    if (operands := _find_named_operands(seen)) is None:
        return ""
    return (
        f"This product sums over a dimension of size {seen.match[1]} in {operands[0]} and {seen.match[2]} in {operands[1]}; "
        "the sizes must be equal. Transpose or reshape one of them."
    )


def _hint_broadcast(seen: RecognisedError) -> str:
    if (operands := _find_named_operands(seen)) is None:
        return ""
    return (
        f"{operands[0]} has shape {seen.match[1]} and {operands[1]} has shape {seen.match[2]}. Compared from the last, two dimensions "
        f"must be equal, or one of them must be 1. Transpose or reshape {operands[0]} or {operands[1]}."
    )


def _hint_leak(seen: RecognisedError) -> str:
    function = seen.match["name"]
    return (
        f"{function or 'The function'} stored a value outside itself while JAX traced it. "
        f"Return the value from {function or 'the function'} instead; to look at it, use jax.debug.print."
    )


def _hint_device_memory(seen: RecognisedError) -> str:
    requested = parse_requested_nbytes(seen.match.string)
    return (
        f"The device has no room for {'this' if requested is None else format_nbytes(requested)}. Shard an array that each device has "
        "in full, delete what is not needed, or compute in smaller parts. What was in memory is below; %mhjax memory shows what is "
        "there now."
    )


def _hint_unknown_axis(seen: RecognisedError) -> str:
    axis, names = seen.match.groups()
    known = f"it has {names.strip('(),')}" if "'" in names else "it is empty"
    return f"The mesh has no axis {axis!r}; {known}."


def _hint_unbound_axis(seen: RecognisedError) -> str:
    return (
        f"This call is not inside a jax.shard_map or jax.pmap with the axis {seen.match[1]!r}. Collectives such as psum can use only "
        "the axes of the jax.shard_map around them, which mesh.axis_names lists, or the axis_name of the jax.pmap."
    )


def _hint_pmap_rows(seen: RecognisedError) -> str:
    if not seen.site.entry.endswith(".pmap"):
        return ""
    why = (
        f"jax.pmap takes one row for each device of this rank, but it got {seen.match[1]} for each. "
        "Pass only this rank's rows, jax.local_device_count() of them"
    )
    rows = find_first_argument(seen.site, seen.code)
    facts = seen.site.arrays.get(rows or "")
    if rows is None or rows in seen.site.trees or (facts and not facts.is_local):
        return f"{why}."
    own = "a[jax.process_index() * jax.local_device_count():][:jax.local_device_count()]"
    return f"{why}. If {rows} has those of all ranks: jax.tree.map(lambda a: {own}, {rows})."


def _hint_unchecked_replication(seen: RecognisedError) -> str:
    axes = seen.match["one"] or seen.match["several"]
    if axes is None:
        return f"JAX advises check_vma=False, but {_UNCHECKED}"
    axis = repr(axes) if "," not in axes else repr(tuple(axes.split(",")))
    return (
        f"JAX cannot see that this result is equal along {axis}, as out_specs declares. Combine it first, for example with "
        f"jax.lax.psum over {axis}, or name {axis} in out_specs. JAX advises check_vma=False, but {_UNCHECKED}"
    )


_UNCHECKED = "that only turns the check off: if a result that out_specs declares equal differs, each rank continues with its own value."


def _hint_key_timeout(seen: RecognisedError) -> str:
    # JAX's own collectives wait for keys too, such as `cuda:nccl/0`.
    if "key_value_get" not in seen.code:
        return ""
    return (
        f"No rank set the key {seen.match[1]!r} within {seen.match[2]}. Another rank must set it with key_value_set, "
        "under the same name; check that it reached that line."
    )


def _hint_barrier_timeout(seen: RecognisedError) -> str:
    name, arrived, count, missing = seen.match.groups()
    ranks = describe_ranks([int(rank) for rank in missing.split()])
    return (
        f"Only {arrived} of {count} ranks reached the barrier {name!r} in time; {ranks} did not. "
        "Every rank must reach a barrier of the same name: they may wait at another one, or be late."
    )


TAKE_OUT_SHARDING = frozenset(("dot", "dot_general", "einsum", "matmul", "tensordot"))
"""Functions of `jax.numpy` and `jax.lax` that contract arrays and accept `out_sharding`."""


def _hint_contracting(seen: RecognisedError) -> str:
    mesh, operands = _find_explicit_mesh(seen), find_operands(seen.site, seen.code)
    summed = f"that {operands[0]} and {operands[1]} are summed over" if operands else "that this line sums over"
    why = f"The dimension {summed} is sharded on both sides, so JAX cannot choose the sharding of the result."
    if mesh is None:
        return f"{why} Choose it with out_sharding= in the call that sums."
    argument = f"out_sharding=NamedSharding({mesh}, P())"
    cure = add_argument(seen.site, TAKE_OUT_SHARDING, argument)
    if cure is None and operands and "@" in seen.site.expression:
        cure = f"jnp.matmul({operands[0]}, {operands[1]}, {argument})"
    if cure is None:
        return f"{why} Choose it with out_sharding= in a call that accepts it, such as jnp.einsum."
    return f"{why} Choose it: {cure}. P() replicates the result, which costs an all-reduce."


def _find_explicit_mesh(seen: RecognisedError) -> str | None:
    """Return an expression for the mesh in the failing code, or None."""
    uses = [used for used in find_uses(seen.site, seen.code) if used.is_array]
    for used in uses:
        facts = seen.site.arrays.get(used.known)
        if facts is not None and facts.is_explicit:
            return f"{used.known}.sharding.mesh"
    # A traced value has no `.sharding`.
    traced = [used.known for used in uses if used.known not in seen.site.arrays]
    return f"jax.typeof({traced[0]}).sharding.mesh" if traced else None


def _hint_incompatible(seen: RecognisedError) -> str:
    why, automatic = (
        "With Explicit axes both operands need compatible shardings",
        "or use a mesh with axis_types=(AxisType.Auto, ...), so that the compiler chooses.",
    )
    if (operands := find_operands(seen.site, seen.code)) is None:
        return f"{why}: move one of them first with jax.reshard; {automatic}"
    left, right = map(_parenthesize, operands)
    if hint := _hint_other_devices(seen, left, right):
        return hint
    one, other = seen.site.arrays.get(left), seen.site.arrays.get(right)
    # reshard works within one mesh; device_put also moves to one that lists the same devices in another order.
    move = "jax.reshard" if not one or not other or one.device_order == other.device_order else "jax.device_put"
    return (
        f"{why}: {move}({right}, {_format_target_sharding(seen, left, right)}), which moves "
        f"{right} between the devices; {automatic}"
    )


def _hint_sharded_index(seen: RecognisedError) -> str:
    why = "Indexing a sharded dimension needs the result's sharding"
    cure = ""
    if found := find_index(seen.site):
        text, index = found
        cure = f": {text}.at[{index}].get(out_sharding=NamedSharding({_format_sharding(seen, text)}.mesh, P()))"
    return f"{why}{cure or ', with .at[...].get(out_sharding=...)'}. jax.make_mesh creates Explicit axes by default."


def _hint_allgather(seen: RecognisedError) -> str:
    text = seen.format_array_name("")
    return f"process_allgather({text}, tiled=True)." if text else "Pass tiled=True to process_allgather."


def _hint_sync_point(seen: RecognisedError) -> str:
    return (
        f"This rank reached the sync point {seen.match[1]!r}, but another rank reached a different one. "
        "Ranks that wait for each other must use the same name."
    )


def _hint_devices_fixed(seen: RecognisedError) -> str:
    requested = re.search(r"jax_num_cpu_devices\W+(\d+)", seen.code)
    return (
        f"The number of devices is fixed when a rank starts: %mhjax stop, then %mhjax start --devices "
        f"{requested[1] if requested else 'N'}. "
        "That number is per rank. If jax.device_count() is already enough, remove this line."
    )


def _hint_await(seen: RecognisedError) -> str:
    await_it = f"`await {what}`" if (what := _find_coroutine(seen.code)) else "`await` and the coroutine"
    return (
        f"A cell already runs in an event loop: write {await_it} instead of that call. "
        "A function that contains such a call must become an `async def` and be awaited too."
    )


def _find_coroutine(code: str) -> str:
    """Return what a line passes to `asyncio.run` and the like, or empty."""
    for node in ast.walk(_parse_line(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if node.func.attr in ("run", "run_until_complete"):
            first, *rest = map(ast.unparse, node.args)
            # These accept the function and its arguments separately.
            return f"{first}({', '.join(rest)})" if ast.unparse(node.func) in ("anyio.run", "trio.run") else first
    return ""


def _parse_line(code: str) -> ast.AST:
    for text in (code, f"{code} pass")[: 2 if len(code) <= _MAX_LINE_CHARS else 0]:
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ast.Module([], [])


_MAX_LINE_CHARS = 300
_PIP_NAMES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose pip name differs from the name to import."""


def _hint_not_installed(seen: RecognisedError) -> str:
    name = seen.match[1]
    return (
        f"{name} is not installed for the ranks' Python. If it is a package: `%mhjax pip install {_PIP_NAMES.get(name, name)}` installs "
        "it on every host. "
        "If it is your own module beside the notebook: `%mhjax sync` copies it to the other hosts."
    )


_SLICES = "These devices are in several slices (GPU nodes or TPU slices), and jax.make_mesh supports only one."


def _hint_slices(seen: RecognisedError) -> str:
    mesh = seen.site.mesh
    if mesh is None and "make_mesh" not in seen.match[0]:
        return ""
    if mesh is None:
        return f"{_SLICES} Use jax.experimental.mesh_utils.create_hybrid_device_mesh(sizes_inside_a_slice, parts_over_slices)."
    if len(set(mesh.slices)) > 1:
        few, many = min(mesh.slices), max(mesh.slices)
        cure = f"Choose sizes that use all {mesh.device_count} devices, or pass" if mesh.device_count else "Pass"
        return (
            f"{_SLICES} A mesh over several needs equally many devices of each, but these {sum(mesh.slices)} devices are {few} of one "
            f"slice and {many} of another. {cure} devices= with equally many of each."
        )
    names, sizes = zip(*mesh.axes, strict=True)
    arguments = [f"devices={_format_devices(mesh.places)}"] if mesh.places else []
    arguments += ["allow_split_physical_axes=True"] if mesh.splits_physical_axes else []
    factors = split_over_slices(sizes, slice_order(names), len(mesh.slices))
    return f"{_SLICES} Write instead: {format_mesh_code(mesh.axes, mesh.axis_types, factors, arguments)}"


def _format_devices(places: Sequence[int]) -> str:
    """Format devices as an expression."""
    first, step = places[0], places[1] - places[0]
    if step > 0 and list(places) == list(range(first, places[-1] + 1, step)):
        return f"jax.devices()[{first}:{places[-1] + 1}{f':{step}' if step > 1 else ''}]"
    return f"[jax.devices()[at] for at in {tuple(places)}]"


_OTHER_PROCESS = (
    "Another process looks up functions and classes by name, and cannot find those defined in a cell or a lambda. Write them to a module "
    "with "
    "%%writefile in a separate cell and import them from there, or use threads. A forked pool knows what was defined before the pool."
)

_NO_PROMPT = (
    "This prompt needs a keyboard, which ranks do not have. Pass the answer as an argument, or ask in a notebook cell "
    "and `%mhjax push` it."
)

_TOO_LONG = "The PartitionSpec has more entries than the array has dimensions: leave the last out, or give the array more dimensions."
_NO_MESH = "A bare PartitionSpec needs a mesh: jax.set_mesh(mesh) on every rank, or NamedSharding(mesh, spec)."
_UNEVEN = "Ranks with different numbers of devices cannot gather: give each the same number."

_ARGUMENTS = (
    "A cell has no command-line arguments. To pass arguments to a script, run it in a terminal: `mhnb run SCRIPT.py -- ARGUMENTS`. "
    "For this rank's number and the number of ranks, use jax.process_index() and jax.process_count()."
)

_MAGIC = "`%mhjax` and `%%mhjax` run in the notebook, not on the ranks: put that line into a separate notebook cell."


def _hint_magic(seen: RecognisedError) -> str:
    percent, name = find_missing_magic(seen.match.string) or ("", "")
    meant = find_meant_magic(name)
    if meant is None or name == "local":
        return ""
    return _MAGIC if name == "mhjax" else f"Did you mean {percent}{meant}? {_MAGIC}"


HINTS = (
    # -- in a cell but not in a script
    _make_hint(
        r"cannot be called from a running event loop|Cannot run the event loop while another loop is running"
        r"|^This event loop is already running|^Already running \w+ in this thread",
        _hint_await,
        ename="RuntimeError",
    ),
    _make_hint(
        r"^Can't get attribute '.*' on <module '__main__'|^Can't (?:pickle|get) local object '"
        r"|^Can't pickle <.*(?:not found as __main__|attribute lookup .* on __main__ failed)",
        _OTHER_PROCESS,
    ),
    _make_hint(r"^No module named '(?!jax\b|jaxlib\b)(\w+)'$", _hint_not_installed, ename="ModuleNotFoundError"),
    _make_hint(r"^$", _NO_PROMPT, ename="Abort", raised_in=r"click\.termui\.\w+"),
    # -- the notebook's own magics
    _make_hint(r"^(?:Line|Cell) magic (?:function )?`%%?\w+` not found", _hint_magic, ename="UsageError"),
    # -- fetching, closing over, mixing
    _make_hint(r"Fetching value for `jax\.Array` that spans non-addressable", _hint_fetch),
    _make_hint(r"^$", _hint_iterate, ename="AssertionError", raised_in=r"jax\._src\.array\.(?:.*__iter__|_iter)"),
    _make_hint(
        r"Closing over jax\.Array that spans non-addressable"
        r"|Length of device assignment \d+ is not equal to the size of the mesh",
        _hint_captured,
    ),
    _make_hint(r"Received incompatible devices for jitted computation.*", _hint_mixed_devices),
    _make_hint(
        r"cross-host reshard in multi-controller JAX, input and target sharding should have the same set",
        _hint_unreachable,
    ),
    _make_hint(
        r"When the second argument to `device_put` is a Device, the first argument must be a fully addressable array",
        _hint_global_to_device,
    ),
    _make_hint(
        r"device_put's second argument must be a Device or a Sharding which represents addressable devices",
        _hint_local_put,
    ),
    _make_hint(r"Sharding passed to jit does not match the sharding on the respective arg", _hint_in_shardings),
    _make_hint(r"Mesh for all inputs should be equal", _hint_other_mesh),
    _make_hint(
        r"memory_space of all inputs passed to `\w+` must be the same.*?type: (\S+) and another operand with type: (\S+)",
        _hint_other_memory,
    ),
    _make_hint(r"Passing non-trivial shardings for numpy inputs is not allowed", _hint_numpy_input),
    _make_hint(
        r"passed to device_put is not the same on each process.*",
        _hint_unequal,
    ),
    _make_hint(r"Array has been deleted", _hint_donated),
    _make_hint(
        r"^Encountered an unexpected tracer(?:.*?The function being traced when the value leaked was (?P<name>\w+) at )?",
        _hint_leak,
        ename="UnexpectedTracerError",
    ),
    # -- shardings
    _make_hint(
        r"requires contracting dimensions to have the same shape, got \(([^()]+?),?\) and \(([^()]+?),?\)",
        _hint_summed,
        ename="TypeError",
    ),
    _make_hint(
        r"got incompatible shapes for broadcasting: (\([^()]*\)), (\([^()]*\))\.", _hint_broadcast, ename="TypeError"
    ),
    _make_hint(
        r"array axis (?P<axis>\d+) is partitioned (?P<parts>\d+) times, "
        r"but (?:the|does not evenly divide the) dimension size (?:is )?(?P<size>\d+)",
        _hint_indivisible,
    ),
    _make_hint(
        r"maps array axis (?P<axis>\d+) \(of size (?P<size>\d+)\) to mesh .{0,500}?, but (?P<parts>\d+) does not evenly divide",
        _hint_indivisible,
    ),
    _make_hint(
        r"size of all_to_all split_axis \((?P<size>\d+)\) has to be divisible by the size of the named axis \S+ \((?P<parts>\d+)\)",
        lambda seen: _format_padding(seen, "the split dimension", "choose another split_axis"),
    ),
    _make_hint(
        r"reduce_scatter operand scatter dimension size (?P<size>\d+) must be divisible by shard_count (?P<parts>\d+)",
        lambda seen: _format_padding(seen, "the scattered dimension", "choose another scatter_dimension"),
    ),
    _make_hint(
        r"on sharded dims where out dim \((?P<size>\d+)\) is not divisible by mesh axes \((?P<parts>\d+)\)",
        lambda seen: (
            f"A result of size {seen.match['size']} cannot be split evenly over {seen.match['parts']} devices: choose a size that is a "
            f"multiple of {seen.match['parts']}, or replicate the array first on every rank with jax.reshard."
        ),
        ename="ShardingTypeError",
    ),
    _make_hint(
        r"This reshape is not supported\. Please specify the sharding", _hint_reshape, ename="ShardingTypeError"
    ),
    _make_hint(
        r"is only valid for values of rank at least \d+, but was applied to a value of rank"
        r"|specs entry which is too long to be compatible",
        _TOO_LONG,
    ),
    _make_hint(
        r"^list index out of range$",
        _TOO_LONG,
        ename="IndexError",
        raised_in=r"jax\._src\.named_sharding\..*",
    ),
    _make_hint(r"Contracting dimensions are sharded and it is ambiguous", _hint_contracting, ename="ShardingTypeError"),
    _make_hint(
        r"produces an illegally sharded result|got incompatible shardings|operands should have the same sharding",
        _hint_incompatible,
        ename="ShardingTypeError",
    ),
    _make_hint(r"Use `\.at\[\.\.\.\]\.get\(out_sharding=\)`", _hint_sharded_index, ename="ShardingTypeError"),
    _make_hint(r"Use `\.at\[\.\.\.\]\.set/", _hint_indexed_update, ename="ShardingTypeError"),
    _make_hint(
        r"when you are not under a mesh context|Please set a mesh via `jax\.set_mesh`"
        r"|requires a non-empty mesh in context|context mesh cannot be empty\. Use `jax\.set_mesh",
        _NO_MESH,
    ),
    # since jax 0.10: for TPU slices, whose coordinates overlap, the error is an assertion.
    _make_hint(
        r"`jax\.make_mesh` does not support multi-slice topologies|cores_per_chip=",
        _hint_slices,
        ename="ValueError|AssertionError",
    ),
    _make_hint(r"Resource axis: (\S+) of .* is not found in mesh: (\(.*?\))", _hint_unknown_axis),
    _make_hint(
        r"_specs argument must refer to an axis marked as manual \(frozenset\((?P<known>.*?)\)\).*_specs refers to '(?P<axis>[^']*)'",
        lambda seen: (
            f"shard_map's mesh has no axis {seen.match['axis']!r} to shard over; it has {seen.match['known'].strip('{}')}."
        ),
        ename="ValueError",
    ),
    _make_hint(r"unbound axis name: (\w+)", _hint_unbound_axis, ename="NameError"),
    _make_hint(
        r"^(?:.*(?:replicated across mesh axis '(?P<one>[^']*)'|varying across mesh axes \{[^}]*\} and not \{(?P<several>[^}]*)\}))?"
        r".*pass(?:ing)? the check_vma=False argument to `jax\.shard_map`",
        _hint_unchecked_replication,
    ),
    _make_hint(
        r"^cannot select an axis to squeeze out which has size not equal to one, got shape=\((\d+),.*dimensions=\(0,\)$",
        _hint_pmap_rows,
        ename="ValueError",
    ),
    _make_hint(
        # since jax 0.9: inside shard_map an unknown axis ends in an assertion without text
        r"^$",
        "A collective in this shard_map names a mesh axis that its mesh does not have: mesh.axis_names lists them.",
        ename="AssertionError",
        raised_in=r"jax\._src\.core\.pvary",
    ),
    _make_hint(
        r"`visualize_sharding` (?:only works for shapes with 1 and 2 dimensions|requires `rich`)",
        "`%mhjax vars` shows the sharding of every array; x.sharding.devices_indices_map(x.shape) lists which device holds what.",
    ),
    # -- in a script but not in a cell
    _make_hint(
        r"^list index out of range$",
        lambda seen: _ARGUMENTS if re.search(r"\bsys\.argv\s*\[", seen.code) else "",
        ename="IndexError",
    ),
    # -- helpers of JAX
    _make_hint(r"Gathering global non-fully-addressable arrays only supports tiled=True", _hint_allgather),
    _make_hint(
        r"cannot reshape array of size",
        _UNEVEN,
        ename="ValueError",
        raised_in=r"jax\.experimental\.multihost_utils\..*allgather.*",
    ),
    _make_hint(r"sync_global_devices name mismatch \('(.*?)'\)", _hint_sync_point),
    # -- starting
    _make_hint(
        r"jax\.distributed\.initialize\(\) must be called before any JAX",
        "After start --no-init, JAX was used before this call: %mhjax restart, then call it first.",
    ),
    _make_hint(
        r"Distributed system is not available",
        "The ranks are not connected. After start --no-init, call jax.distributed.initialize() before anything uses JAX. If a cell "
        "called jax.distributed.shutdown(), remove that call, then %mhjax restart; a replay would repeat it.",
    ),
    _make_hint(
        r"coordinator_address should be defined", "Under mhnb remove the call; elsewhere pass all three arguments."
    ),
    _make_hint(r"config should be updated before backends are initialized", _hint_devices_fixed),
    _make_hint(
        r"DEADLINE_EXCEEDED.*RegisterTask|RegisterTask.*DEADLINE_EXCEEDED",
        "A rank did not reach the coordinator: a wrong address, a closed port, or a rank that never started.",
    ),
    _make_hint(
        r"Aborted connect attempt|newer incarnation|connect with a different incarnation",
        "Two processes used the same process_id, but each rank needs its own. After start --no-init, leave the arguments out: "
        "jax.distributed.initialize() reads each rank's from its environment.",
    ),
    # -- memory
    _make_hint(
        r"RESOURCE_EXHAUSTED.*(?:Shared memory size limit|memory space [vs]mem)",
        "A kernel needs more of the device's small fast memory than there is: use smaller blocks or a smaller tile in it.",
        ename="JaxRuntimeError",
    ),
    _make_hint(
        r"RESOURCE_EXHAUSTED.*(?:[Mm]emory|[Aa]llocat)|[Oo]ut of memory",
        _hint_device_memory,
        ename="JaxRuntimeError",
    ),
    _make_hint(
        r"^(?:Unable to allocate .*)?$",
        "The host has no memory left for this. Read or make only the part that this rank needs, delete what is not needed, or "
        "compute in smaller parts. What was in memory is below.",
        ename="MemoryError|_ArrayMemoryError",
    ),
    _make_hint(r"Duplicate GPU detected", "Two ranks share a GPU: start one process per GPU."),
    _make_hint(
        r"Gloo context initialization failed.*(?:UNAVAILABLE|Connection refused)",
        "The ranks could not connect: one has ended, or after start --no-init a cell called jax.distributed.shutdown(), after which "
        "ranks cannot find each other. Remove that call, then %mhjax restart; a replay would repeat it.",
    ),
    # -- one rank without the others
    _make_hint(
        r"^DEADLINE_EXCEEDED: GetKeyValue\(\) timed out with key: (.+?) and duration: (\S+)",
        _hint_key_timeout,
        ename="JaxRuntimeError",
    ),
    _make_hint(
        r"^DEADLINE_EXCEEDED: Barrier timed out\. Id: (.*?)(?:::\d+)?\. .*reached the barrier: (\d+)/(\d+)\..*task names:\s*(\d[\d\s]*)",
        _hint_barrier_timeout,
        ename="JaxRuntimeError",
    ),
    _make_hint(
        r"Gloo context initialization failed|GetKeyValue\(\) timed out|may be stuck",
        "Not every rank reached this collective. x[0], x.sum() and float(...) of a global array are collectives too: "
        "compute on all ranks, print on one.",
    ),
    _make_hint(
        r"Received data size doesn't match expected size",
        "The ranks used arrays of different sizes, or entered different collectives. Pad the arrays to the same size.",
    ),
    _make_hint(
        r"Gloo \S+ failed|Application timeout caused pair closure|Connection closed by peer",
        "A collective failed: a rank did not reach it, raised or ended, or the ranks lost their connection. An error that does not "
        "mention a collective is the cause, whenever it appeared; without one, the connection failed. Then %mhjax restart.",
    ),
    _make_hint(
        r"tasks are unhealthy|stopped sending heartbeats|Failed to send RPC to coordination service",
        "A rank ended, or did not respond for a long time. If a rank is shown as died, its signal and last lines are beside it; "
        "if not, check the hosts and the network. Then %mhjax restart.",
    ),
)


# -- names that JAX removed


_REPLACEMENTS = {
    # Removed up to jax 0.12, with the replacements that JAX names in its changelog.
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map, which takes several trees",
    "jax.tree_leaves": "jax.tree.leaves",
    "jax.tree_flatten": "jax.tree.flatten",
    "jax.tree_unflatten": "jax.tree.unflatten",
    "jax.tree_structure": "jax.tree.structure",
    "jax.tree_transpose": "jax.tree.transpose",
    "jax.xla_computation": "jax.jit(f).lower(x)",
    "jax.device_put_sharded": "jax.device_put(x, NamedSharding(mesh, P('x'))) of the stacked parts",
    "jax.device_put_replicated": "jax.device_put(x, NamedSharding(mesh, P()))",
    "jax.sharding.PositionalSharding": "jax.sharding.NamedSharding(mesh, PartitionSpec(...))",
    "jax.sharding.use_mesh": "jax.set_mesh",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.array": "jax.Array",
    "jax.experimental.global_device_array": "jax.Array, made by jax.make_array_from_callback",
    "jax.experimental.host_callback": "jax.pure_callback, jax.experimental.io_callback and jax.debug.callback",
    "jax.experimental.maps": "jax.shard_map for xmap, jax.sharding.Mesh for Mesh",
    "jax.experimental.pjit": "jax.jit, which takes in_shardings and out_shardings",
    "jax.experimental.shard_map": "jax.shard_map",
}
_MESSAGES = (
    (re.compile(r"module '(jax[\w.]*)' has no attribute '(\w+)'"), "AttributeError"),
    (re.compile(r"cannot import name '(\w+)' from '(jax[\w.]*)'"), "ImportError"),
    (re.compile(r"No module named '(jax[\w.]*)'"), "ModuleNotFoundError"),
    # since jax 0.9: a name that is about to be removed raises an error with its own text
    (re.compile(r"^(jax[\w.]*) is deprecated"), "AttributeError"),
)


def find_removed_api(ename: str, evalue: str) -> str | None:
    """Return the replacement hint for a name that JAX removed, or None.

    >>> find_removed_api("AttributeError", "module 'jax' has no attribute 'tree_map'")
    'jax.tree_map was removed from JAX; use jax.tree.map.'
    """
    for pattern, kind in _MESSAGES:
        found = pattern.search(evalue) if kind == ename else None
        if found is not None:
            parts = found.groups() if kind != "ImportError" else reversed(found.groups())
            name = ".".join(parts)
            return f"{name} was removed from JAX; use {_REPLACEMENTS[name]}." if name in _REPLACEMENTS else None
    return None


# -- find the hint for an error


_PRINTED = re.compile(r"AttributeError: Can't get attribute '[^']*' on <module '__main__'[^>]*>")
_WAITING_ERRORS = ("BrokenProcessPool", "EOFError", "TimeoutError")
"""Errors that a process raises while it waits for another one that failed to start."""


def find_hint(ename: str, evalue: str, *, site: ErrorSite | None = None, code: str | None = None) -> str | None:
    """Return the hint for a known error; None for any other.

    Args:
        ename: the exception's type.
        evalue: its text.
        site: where it was raised. Without it, errors that only their site distinguishes get no hint.
        code: the line of the cell that led there. With it, the hint uses the user's own names.

    >>> find_hint("RuntimeError", "Array has been deleted with shape=float32[8].").split(":")[1]
    " use the function's result instead."
    """
    try:
        return _find_hint(ename, evalue, site or ErrorSite(), code or "")
    except Exception as error:  # noqa: BLE001 - becomes the hint: without one the cell goes on all the same
        kind = type(error).__name__
        return (
            f"mhnb could not look for a hint about this error, because of a {kind} in its own code; please report it."
        )


def _find_hint(ename: str, evalue: str, site: ErrorSite, code: str) -> str | None:
    raised_in = f"{site.module}.{site.function}"
    for hint in HINTS:
        found = hint.pattern.search(evalue)
        if found is None or not hint.ename.fullmatch(ename) or not hint.raised_in.fullmatch(raised_in):
            continue
        # The function that builds a text may find that no hint applies after all.
        if text := hint.text if isinstance(hint.text, str) else hint.text(RecognisedError(found, site, code)):
            return text
    return find_removed_api(ename, evalue)


def find_printed_hint(ename: str, printed: str) -> str | None:
    """Return the hint for an error that a child process only printed.

    Args:
        ename: the type of the cell's error.
        printed: the output of the cell's rank.

    >>> find_printed_hint("TimeoutError", "AttributeError: Can't get attribute 'f' on <module '__main__'>")[:14]
    'A process that'
    """
    found = _PRINTED.search(printed) if ename in _WAITING_ERRORS else None
    if found is None:
        return None
    kind, _, text = found[0].partition(": ")
    hint = find_hint(kind, text)
    return hint and f"A process that this cell started failed with its own error, printed below. {hint}"
