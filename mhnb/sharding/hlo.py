"""The collectives of a compiled program, from its text: what each moves, between whom, how often, and which line wants it.

Nothing is passed over in silence: a communicating operation, a spelling of its groups or a shape that is not known is an
`UnknownForm`. It knows no mesh and no hosts: groups are positions in the device assignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mhnb.errors import UnknownForm
from mhnb.sharding.hlo_groups import Groups, parse_groups, parse_pairs
from mhnb.sharding.hlo_module import Computation, HloModule, Instruction, SourceLine, parse_module
from mhnb.sharding.hlo_shape import HloShape, Tree, flatten
from mhnb.sharding.widened import is_widened

__all__ = ["HloCollective", "OPS", "parse_collectives"]

OPS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
    "send",
)
"""What is reported. `recv` is the other end of `send` and not counted again."""

_SECOND_HALVES = ("recv", "recv-done", *(f"{op}{end}" for op in OPS for end in ("-done", "-update")))
_PAIRED = ("collective-permute", "send")
_LOOKS_LIKE = re.compile(r"(?:all-|collective-|ragged-|reduce-scatter|send|recv|\w*-all-)")
_WORTH_A_LOOK = re.compile(
    r"[ )](?:all-|collective-|ragged-|reduce-scatter|send|recv)[\w\-]*\(|\b(?:replica_groups|source_target_pairs)="
)
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SEND_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[{}\d, ]*\})')


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a compiled program, as its text states it."""

    op: str
    """One of OPS, whether or not it is started and ended apart."""
    name: str
    """The instruction's, unique in its computation."""
    operands: tuple[HloShape, ...]
    """What one device puts in."""
    results: tuple[HloShape, ...]
    """What one device gets."""
    groups: Groups
    """Positions in the device assignment, who communicates with whom; for pairs, the chains and rings they form."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(source, target) of collective-permute and send."""
    times: int = 1
    """How often it runs in one launch; a loop of unknown length counts once."""
    unknown: bool = False
    """Whether it is in a loop of unknown length."""
    at_most: bool = False
    """Whether it is in a branch that may not be taken."""
    is_async: bool = False
    """Started and ended apart, so that it may overlap with computation."""
    op_name: str = ""
    """JAX's name of the operation, as `jit(step)/dot_general`; empty where the text has none."""
    source: SourceLine | None = None
    widened: bool = False
    """Whether its f32 seem to be 16-bit floats that the compiler widened for this backend (CPU does)."""

    @property
    def nbytes(self) -> int:
        """Bytes that one device puts in, each time."""
        return sum(shape.nbytes for shape in self.operands)

    def to_wire(self) -> list[Any]:
        """Write it as lists for JSON; groups apart, they are few and long."""
        shapes = [[[shape.dtype, *shape.dims] for shape in part] for part in (self.operands, self.results)]
        runs = [self.times, self.unknown, self.at_most, self.is_async, self.widened]
        return [self.op, self.name, *shapes, self.pairs, runs, self.op_name, self.source]

    @classmethod
    def from_wire(cls, row: list[Any], groups: Groups) -> HloCollective:
        """Read what `to_wire` wrote."""
        op, name, operands, results, pairs, runs, op_name, source = row
        times, unknown, at_most, is_async, widened = runs
        given, got = (tuple(HloShape(dtype, tuple(dims)) for dtype, *dims in part) for part in (operands, results))
        line = None if source is None else SourceLine(*source)
        couples = tuple((start, end) for start, end in pairs)
        return cls(op, name, given, got, groups, couples, times, unknown, at_most, is_async, op_name, line, widened)


def parse_collectives(text: str) -> tuple[HloCollective, ...]:
    r"""Read the collectives of a compiled program, in the order of its text.

    Args:
        text: what `jax.jit(f).lower(...).compile().as_text()` gives: one program after partitioning.

    Raises:
        HloError: no such text.
        UnknownForm: it holds a communicating operation or a spelling that is not known here.

    >>> text = "HloModule f, num_partitions=2\n\nENTRY %m (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
    >>> text += "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%add\n}\n"
    >>> parse_collectives(text)[0].groups, parse_collectives(text)[0].nbytes
    (((0, 1),), 32)
    """
    module = parse_module(text)
    return tuple(
        _read(module, computation, instruction)
        for computation in module.computations.values()
        for instruction in _communicating(computation)
    )


def _communicating(computation: Computation) -> Iterator[Instruction]:
    """Give the instructions that are collectives, or the first halves of them."""
    for name, text in computation.texts.items():
        if _WORTH_A_LOOK.search(text) is None:
            continue
        instruction = computation.read(name)
        opcode = instruction.opcode
        if opcode.removesuffix("-start") in OPS:
            if not _is_later_part(computation, text) and "is_host_transfer=true" not in text:
                yield instruction
        elif opcode not in _SECOND_HALVES and (_LOOKS_LIKE.match(opcode) or _has_groups(instruction)):
            raise UnknownForm(
                f"{name} is a {opcode!r}, which seems to communicate and is not known here (known: {', '.join(OPS)})."
                " Nothing is guessed; report the text with the version of JAX",
                form=opcode,
            )


def _has_groups(instruction: Instruction) -> bool:
    attributes = instruction.rest.partition("metadata=")[0].partition("backend_config=")[0]
    return "replica_groups=" in attributes or "source_target_pairs=" in attributes


def _is_later_part(computation: Computation, text: str) -> bool:
    # TPU: a collective that overlaps with several fusions is written out in each of them. The one that starts it counts.
    return '"async_collective_fusion_config":' in text and not computation.starts_overlap


def _read(module: HloModule, computation: Computation, instruction: Instruction) -> HloCollective:
    op, rest = instruction.opcode.removesuffix("-start"), instruction.rest
    if not module.is_called(computation.name):
        # Its caller names it in a way that is not known: to leave it out would be a wrong number.
        raise UnknownForm(
            f"nothing seems to call {computation.name}, which holds {instruction.name}", form=computation.name
        )
    pairs = _read_pairs(op, instruction) if op in _PAIRED else ()
    metadata = rest.partition("metadata={")[2]
    op_name = _OP_NAME.search(metadata)
    starts = instruction.opcode.endswith("-start") or op == "send"
    operands = tuple(_operands(op, computation, instruction))
    results = operands if op == "send" else tuple(flatten(_result(op, instruction, starts=starts)))
    return HloCollective(
        op,
        instruction.name,
        results if op == "collective-permute" else operands,
        results,
        _chains(pairs) if op in _PAIRED else _read_groups(module, instruction),
        pairs,
        *module.runs_of(computation.name),
        is_async=starts or computation.name in module.started or computation.starts_overlap,
        op_name=op_name[1].replace('\\"', '"') if op_name else "",
        source=module.source_of(metadata),
        widened=is_widened(computation, instruction),
    )


def _operands(op: str, computation: Computation, instruction: Instruction) -> Iterator[HloShape]:
    if op == "collective-permute" and "slice_sizes=" in instruction.rest:
        raise UnknownForm(f"{instruction.name} permutes slices in place, which is not known here", form="slice_sizes=")
    names = instruction.operand_names
    # The others are offsets and sizes, or a token.
    for name in names[:1] if op in ("ragged-all-to-all", "send") else names:
        yield from flatten(computation.read(name).tree())


def _result(op: str, instruction: Instruction, *, starts: bool) -> Tree:
    """The result; of a start, whose own result is (operands, result, contexts...) but for all-reduce."""
    tree = instruction.tree()
    if not starts or op == "all-reduce":
        return tree
    if not isinstance(tree, tuple) or len(tree) < 2:
        raise UnknownForm(
            f"{instruction.name} starts as {instruction.shape!r}: expected (operands, result, …)", form=op
        )
    return tree[1]


def _read_groups(module: HloModule, instruction: Instruction) -> Groups:
    if module.replicas > 1 and module.partitions > 1 and "use_global_device_ids=true" not in instruction.rest:
        raise UnknownForm(
            f"{instruction.name} counts replicas in a program of {module.replicas} replicas x {module.partitions}"
            " partitions: how its groups lie there is not known here",
            form="replica_count",
        )
    count = module.replicas * module.partitions
    _, there, text = instruction.rest.partition("replica_groups=")
    return parse_groups(_until_attribute(text), count) if there else parse_groups("{}", count)


def _until_attribute(text: str) -> str:
    """Cut the text after the groups, so that equal groups are read once."""
    end = re.search(r",\s*(?!device_ids)[a-z_]+=", text)
    return text[: end.start()] if end else text


def _read_pairs(op: str, instruction: Instruction) -> tuple[tuple[int, int], ...]:
    if op == "send":
        found = _SEND_PAIRS.search(instruction.rest)
        if found is None:
            raise UnknownForm(f"{instruction.name} is a send that does not say who sends to whom", form=op)
        return parse_pairs(found[1])
    return parse_pairs(instruction.rest.partition("source_target_pairs=")[2])


def _chains(pairs: tuple[tuple[int, int], ...]) -> Groups:
    """Who can reach whom along the pairs: the rings and chains they form."""
    group: dict[int, list[int]] = {}
    for source, target in pairs:
        one, other = group.setdefault(source, [source]), group.setdefault(target, [target])
        if one is not other:
            one.extend(other)
            group.update(dict.fromkeys(other, one))
    return tuple(sorted({tuple(sorted(members)) for members in group.values()}))
