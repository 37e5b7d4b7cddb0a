"""Parse a compiled program's text into computations, shapes and source lines.

The text is what XLA prints (`HloModule::ToString`). It is split into lines first; an instruction is parsed only when requested.
Shapes are written as `f32[8,4]{1,0:T(8,128)}`, or as tuples of those.
Without metadata, only the computation remains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from mhnb.errors import HloError, UnknownForm

_NBITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_NUMBERED = re.compile(r"(?:bf|f|s|u)(\d+)(?:e\d+m\d+\w*)?$")
_SMALL = re.compile(r"f(\d+)e\d+m\d+\w*$")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\]|(token|opaque)")
_SPACE = re.compile(r"S\((\d+)\)\}")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, slots=True)
class HloShape:
    """An array on one device, as `f32[8,4]`."""

    dtype: str
    """HLO's name, as bf16 or pred."""
    dims: tuple[int, ...]
    memory_space: int = field(default=0, compare=False)
    """Where it is; 0 is the device's main memory, 5 the host's. On TPU 1 is on the chip."""

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Return the bytes without padding; types under 8 bits are packed."""
        return self.nbytes_of(self.size)

    def nbytes_of(self, size: int) -> int:
        """Return the bytes of some of its elements."""
        return (size * _nbits(self.dtype) + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Tree = HloShape | tuple["Tree", ...]
"""A shape, or a tuple of them, nested."""


def flatten(tree: Tree) -> Iterator[HloShape]:
    """Yield the arrays of a shape in order.

    >>> [str(shape) for shape in flatten(parse_shape("((f32[8]{0}), u32[])"))]
    ['f32[8]', 'u32[]']
    """
    if isinstance(tree, HloShape):
        yield tree
    else:
        for part in tree:
            yield from flatten(part)


def split_shape(text: str) -> tuple[str, str]:
    """Split an instruction's text into its shape and the rest.

    >>> split_shape("(f32[8]{0}, u32[]{:T(128)}) send(%x)")
    ('(f32[8]{0}, u32[]{:T(128)})', 'send(%x)')
    """
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: index + 1], text[index + 2 :]
    raise _unknown(text, "its parentheses do not close")


@lru_cache(maxsize=4096)
def parse_shape(text: str) -> Tree:
    """Parse a shape, ignoring layouts and tilings.

    Raises:
        UnknownForm: the text is not a shape, or has an element type of unknown size or a dimension unknown at compile time.

    >>> str(parse_shape("bf16[8,4]{1,0:T(8,128)(2,1)}"))
    'bf16[8,4]'
    """
    text = _COMMENT.sub("", text).strip()
    if text.startswith("("):
        return tuple(parse_shape(part) for part in _split_tuple(text))
    found = _ARRAY.match(text)
    if found is None:
        raise _unknown(text, "it is not a shape")
    dtype = found[1] or found[3]
    # `<=8` is a dimension of at most 8: XLA allocates and sends all 8.
    words = [word.strip().removeprefix("<=") for word in (found[2] or "").split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise _unknown(text, "a dimension is not a number")
    _nbits(dtype)
    space = _SPACE.search(text, found.end())
    return HloShape(dtype, tuple(int(word) for word in words), int(space[1]) if space else 0)


def _split_tuple(text: str) -> Iterator[str]:
    depth, start = 0, 1
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            if part := text[start:index].strip():
                yield part
            start = index + 1
        if depth == 0:
            return


@lru_cache(maxsize=128)
def _nbits(dtype: str) -> int:
    if dtype in _NBITS:
        return _NBITS[dtype]
    found = _SMALL.match(dtype) or _NUMBERED.match(dtype)
    if found is None:
        raise _unknown(dtype, "the size of its elements is unknown")
    return int(found[1])


def _unknown(text: str, why: str) -> UnknownForm:
    form = text[:120]
    return UnknownForm(
        f"cannot read the shape {form!r}: {why}. mhnb does not guess. Please report the text with your JAX version",
        form=form,
    )


# -- parse the structure of a compiled program


_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LIST = re.compile(r"\b(branch_computations|called_computations|calls)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INTEGER = re.compile(r"(-?\d+)\)")
_INDEX = re.compile(r"\bindex=(\d+)")
_COUNTS = re.compile(r"\b(replica_count|num_partitions)=(\d+)")
_ROW = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})$')
_NOTEBOOK_SOURCE = re.compile(r"<([^<>]+)>")
"""File name of code that was not compiled from a file: a cell, a call, or a function of the notebook."""
_NAME = re.compile(r"%([\w.\-]+)")


class TripCount(NamedTuple):
    """How often something runs per launch."""

    times: int
    """Number of runs, with loops of unknown length counted once."""
    has_unknown_loop: bool = False
    """Whether it is inside a loop whose length XLA does not know."""
    is_conditional: bool = False
    """Whether it is in a branch that may not be executed."""

    def nested_in(self, factor: int | None, *, branch: bool) -> TripCount:
        """Return the runs inside a loop (factor None: unknown) or branch."""
        return TripCount(
            self.times * (1 if factor is None else factor),
            self.has_unknown_loop or factor is None,
            self.is_conditional or branch,
        )

    def plus(self, other: TripCount) -> TripCount:
        """Return the total of two call sites."""
        return TripCount(
            self.times + other.times,
            self.has_unknown_loop or other.has_unknown_loop,
            self.is_conditional or other.is_conditional,
        )


class SourceLine(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        """Format it as `model.py:18`, or `cell 12, line 3`."""
        in_notebook = _NOTEBOOK_SOURCE.fullmatch(self.file)
        return f"{in_notebook[1]}, line {self.line}" if in_notebook else f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, split into shape, opcode and the text after it."""

    name: str
    shape: str
    opcode: str
    rest: str
    """Text of the operands without the first parenthesis, and the attributes."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the operands' texts: names, in older texts after their shapes."""
        depth, start, found = 1, 0, []
        for index, character in enumerate(self.rest):
            if character in "([{":
                depth += 1
            elif character in ")]}":
                depth -= 1
            if depth == 0 or (depth == 1 and character == ","):
                found.append(_COMMENT.sub("", self.rest[start:index]).strip())
                start = index + 1
            if depth == 0:
                break
        return tuple(word for word in found if word)

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Return the names of the operands."""
        return tuple(word.rsplit(" ", 1)[-1].removeprefix("%") for word in self.operands)

    def tree(self) -> Tree:
        """Return the shape of the result."""
        return parse_shape(self.shape)


def _read_instruction(name: str, text: str) -> Instruction:
    shape, rest = split_shape(text)
    opcode, _, rest = rest.partition("(")
    return Instruction(name, shape, opcode, rest)


@dataclass(eq=False)
class Computation:
    """One computation: the texts of its instructions by name."""

    name: str
    texts: dict[str, str] = field(default_factory=dict)
    root: str = ""
    """Name of the instruction whose value it returns."""
    _read: dict[str, Instruction] = field(default_factory=dict)

    def read(self, name: str) -> Instruction:
        """Parse one instruction.

        Raises:
            UnknownForm: the computation has no instruction of that name.
        """
        if name not in self.texts:
            raise UnknownForm(f"computation {self.name} uses {name!r} but does not define it", form=name)
        if name not in self._read:
            self._read[name] = _read_instruction(name, self.texts[name])
        return self._read[name]

    @cached_property
    def starts_overlap(self) -> bool:
        """Return whether this fusion starts an overlapping collective (XLA for TPU)."""
        return any('custom_call_target="AsyncCollectiveStart"' in text for text in self.texts.values())

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """Return the users of each instruction, by its name."""
        found: dict[str, list[str]] = {}
        for user, text in self.texts.items():
            for name in _NAME.findall(text.partition("metadata=")[0]):
                found.setdefault(name, []).append(user)
        return found


@dataclass(eq=False)
class HloModule:
    """A compiled program's text, split into computations."""

    name: str
    replicas: int
    partitions: int
    computations: dict[str, Computation]
    entry: str
    tables: dict[str, dict[int, str]]
    """FileNames, FunctionNames, FileLocations, StackFrames: rows by number."""
    _trip_counts: dict[str, TripCount] = field(default_factory=dict)

    @cached_property
    def _callers(self) -> dict[str, list[tuple[str, int | None, bool]]]:
        callers: dict[str, list[tuple[str, int | None, bool]]] = {}
        for computation in self.computations.values():
            for name in computation.texts:
                for called, factor, branch in self.iter_called(computation, name):
                    callers.setdefault(called, []).append((computation.name, factor, branch))
        return callers

    @cached_property
    def async_computations(self) -> frozenset[str]:
        """Return the computations that run asynchronously."""
        return frozenset(
            called
            for computation in self.computations.values()
            for name, text in computation.texts.items()
            if "-start(" in text
            for called, _, _ in self.iter_called(computation, name)
        )

    def is_called(self, name: str) -> bool:
        """Return whether the program ever calls a computation."""
        return name == self.entry or any(self.is_called(caller) for caller, _, _ in self._callers.get(name, ()))

    def trip_count_of(self, name: str) -> TripCount:
        """Return a computation's runs per launch; 0 if nothing calls it."""
        if name == self.entry:
            return TripCount(1)
        if name not in self._trip_counts:
            total = TripCount(0)
            for caller, factor, branch in self._callers.get(name, ()):
                total = total.plus(self.trip_count_of(caller).nested_in(factor, branch=branch))
            self._trip_counts[name] = total
        return self._trip_counts[name]

    def find(self, name: str) -> Computation:
        """Return a computation.

        Raises:
            UnknownForm: the program has no computation of that name.
        """
        if name not in self.computations:
            raise UnknownForm(f"the program calls the computation {name!r} but does not define it", form=name)
        return self.computations[name]

    def iter_called(self, computation: Computation, name: str) -> Iterator[tuple[str, int | None, bool]]:
        """Yield each called computation: name, iterations (None: unknown), whether a branch."""
        text = computation.texts[name]
        found = _CALLED.findall(text)
        found += [
            (kind, one.strip().removeprefix("%"))
            for kind, many in _CALLED_LIST.findall(text)
            for one in many.split(",")
        ]
        if not found:
            return
        opcode = computation.read(name).opcode
        if opcode.endswith(("-done", "-update")):
            # The done operation names the same computation as its start operation; it does not run it again.
            return
        trips = self._count_trips(computation, name, dict(found)) if opcode == "while" else 1
        for kind, called in found:
            iterations = trips + 1 if kind == "condition" and trips is not None else trips
            yield called, iterations, kind in ("branch_computations", "true_computation", "false_computation")

    def called_by(self, computation: Computation, name: str) -> str:
        """Return the computation that a fusion calls."""
        found = next(self.iter_called(computation, name), None)
        if found is None:
            raise UnknownForm(f"{name} of computation {computation.name} does not name what it calls", form=name)
        return found[0]

    def _count_trips(self, computation: Computation, name: str, called: dict[str, str]) -> int | None:
        """Return how often a loop's body runs; None if unknown.

        XLA for TPU does not write it down. There it is found for a counter that grows by a constant up to a constant.
        """
        if known := _TRIPS.search(computation.texts[name]):
            return int(known[1])
        condition, body = (self.computations.get(called.get(kind, "")) for kind in ("condition", "body"))
        if condition is None or body is None or not condition.root or not body.root:
            return None
        compare, update = condition.read(condition.root), body.read(body.root)
        if compare.opcode != "compare" or "direction=LT" not in compare.rest or update.opcode != "tuple":
            return None
        counter, limit = (_trace(condition, one) for one in compare.operand_names)
        if isinstance(limit, _Carried):
            limit = self._find_unchanged(body, limit)
        if not isinstance(counter, _Carried) or limit is None:
            return None
        start = self._find_initial(body, counter)
        add = body.read(update.operand_names[counter.place])
        if start is None or add.opcode != "add":
            return None
        terms = [_trace(body, one) for one in add.operand_names]
        steps = [self._find_unchanged(body, term) if term != counter else None for term in terms]
        step = next((one for one in steps if one is not None), 0)
        return max(0, -((start - limit) // step)) if counter in terms and step > 0 else None

    @cached_property
    def _loops(self) -> dict[str, tuple[Computation, Instruction]]:
        """The loop that each body belongs to, if it is one."""
        found: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation in self.computations.values():
            for name, text in computation.texts.items():
                if " while(" in text and (body := dict(_CALLED.findall(text)).get("body")):
                    found.setdefault(body, []).append((computation, computation.read(name)))
        return {body: loops[0] for body, loops in found.items() if len(loops) == 1}

    def _find_initial(self, body: Computation, value: _Carried) -> int | None:
        """Return the constant that an element of a loop's state begins with."""
        if body.name not in self._loops:
            return None
        computation, loop = self._loops[body.name]
        state = computation.read(loop.operand_names[0])
        if state.opcode != "tuple":
            return None
        return self._find_unchanged(computation, _trace(computation, state.operand_names[value.place]))

    def _find_unchanged(self, body: Computation, value: int | _Carried | None) -> int | None:
        """Return a value that no iteration of the loops around it changes."""
        if not isinstance(value, _Carried):
            return value
        update = body.read(body.root)
        if update.opcode != "tuple" or _trace(body, update.operand_names[value.place]) != value:
            return None
        return self._find_initial(body, value)

    def source_of(self, metadata: str) -> SourceLine | None:
        """Return an operation's source line, from metadata or stack-frame tables."""
        if found := re.search(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?', metadata):
            return SourceLine(found[1], int(found[2] or 0))
        found = re.search(r"stack_frame_id=(\d+)", metadata)
        if found is None or (frame := self.tables.get("StackFrames", {}).get(int(found[1]))) is None:
            return None
        location = self._row("FileLocations", frame, "file_location_id")
        file = self._row("FileNames", location, "file_name_id")
        line = re.search(r"\bline=(\d+)", location)
        return SourceLine(file, int(line[1]) if line else 0, self._row("FunctionNames", location, "function_name_id"))

    def _row(self, table: str, row: str, key: str) -> str:
        found = re.search(rf"\b{key}=(\d+)", row)
        return self.tables.get(table, {}).get(int(found[1]), "") if found else ""


class _Carried(NamedTuple):
    """An element of a loop's state."""

    place: int


def _trace(computation: Computation, name: str) -> int | _Carried | None:
    """Return the constant or the loop state that a value is."""
    instruction = computation.read(name)
    while instruction.opcode in ("bitcast", "copy", "copy-done", "copy-start"):
        instruction = computation.read(instruction.operand_names[0])
    if instruction.opcode == "constant" and (number := _INTEGER.match(instruction.rest)):
        return int(number[1])
    if instruction.opcode == "get-tuple-element" and (index := _INDEX.search(instruction.rest)):
        (state,) = instruction.operand_names
        return _Carried(int(index[1])) if computation.read(state).opcode == "parameter" else None
    return None


def parse_module(text: str) -> HloModule:
    r"""Split a compiled program's text into computations.

    Raises:
        HloError: it is not the text of a compiled program.

    >>> parse_module("HloModule f, num_partitions=4\n\nENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(1)\n}\n").entry
    'main'
    """
    first = next((line for line in text.splitlines() if line.startswith("HloModule ")), None)
    if first is None:
        raise HloError(
            f"this is not the text of a compiled program: no line begins with HloModule. It begins {text[:60]!r}"
        )
    counts = {name: int(number) for name, number in _COUNTS.findall(first)}
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, current, table = "", None, None
    for line in text.splitlines():
        if line.startswith(" "):
            if current is not None:
                _add_instruction(current, line)
        elif line.startswith("}"):
            current = None
        elif table is not None and (row := _ROW.match(line)):
            table[int(row[1])] = row[2] if row[2] is not None else row[3]
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif header := _HEADER.match(line):
            current, table = computations.setdefault(header[2], Computation(header[2])), None
            entry = header[2] if header[1] else entry
    if not entry:
        raise HloError("this is not the text of a complete compiled program: it has no ENTRY computation")
    name = first.split()[1].rstrip(",")
    return HloModule(name, counts.get("replica_count", 1), counts.get("num_partitions", 1), computations, entry, tables)


def _add_instruction(computation: Computation, line: str) -> None:
    if found := _INSTRUCTION.match(line):
        computation.texts[found[2]] = line[found.end() :]
        if found[1]:
            computation.root = found[2]
    elif "replica_groups=" in line or "source_target_pairs=" in line:
        raise UnknownForm(f"cannot read this line of computation {computation.name}: {line.strip()[:120]!r}", form=line)


# -- strip metadata


_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*", re.MULTILINE)
"""Tables that the numbers in `metadata` refer to; since jaxlib 0.9 at the head of the text."""
_BACKEND_CONFIG = re.compile(r"^((?!.* custom-call(?:-start)?\().*?), backend_config=.*", re.MULTILINE)
"""A backend's settings for running an operation on its own machine. For a custom call they define what it computes."""
_AUTOTUNING = re.compile(r'"(?:autotune_workspace_size|selected_algorithm)":"[^"]*",?')
"""Except for the results of autotuning."""


def strip_metadata(hlo: str) -> str:
    """Remove files, functions, lines, and a backend's own settings.

    >>> strip_metadata('  %a = f32[] add(%b, %c), metadata={op_name="jit(f)/add" stack_frame_id=3}')
    '  %a = f32[] add(%b, %c)'
    """
    return _AUTOTUNING.sub("", _BACKEND_CONFIG.sub(r"\1", _METADATA.sub("", _TABLES.sub("", hlo))))
