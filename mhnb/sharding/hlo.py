"""Parse the collectives of a compiled program from its text: bytes, groups, how often each runs, and the source line it serves.

Nothing is skipped silently: an unknown communicating operation, spelling of groups or shape raises `UnknownForm`.
The module knows no mesh and no hosts: groups are positions in the device assignment.
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
"""Reported operations. `recv` is the other end of `send` and is not counted again."""

_END_OPS = ("recv", "recv-done", *(f"{op}{end}" for op in OPS for end in ("-done", "-update")))
_PAIRED = ("collective-permute", "send")
_SUSPECTED_COLLECTIVE = re.compile(r"(?:all-|collective-|ragged-|reduce-scatter|send|recv|\w*-all-)")
_CANDIDATE = re.compile(
    r"[ )](?:all-|collective-|ragged-|reduce-scatter|send|recv)[\w\-]*\(|\b(?:replica_groups|source_target_pairs)="
)
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SEND_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[{}\d, ]*\})')


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a compiled program, as stated in its text."""

    op: str
    """One of OPS, for synchronous and asynchronous forms alike."""
    name: str
    """Name of the instruction, unique in its computation."""
    operands: tuple[HloShape, ...]
    """What one device contributes."""
    results: tuple[HloShape, ...]
    """What one device receives."""
    groups: Groups
    """Positions in the device assignment that communicate with each other; for pairs, the chains and rings that they form."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(source, target) of collective-permute and send."""
    times: int = 1
    """Number of runs per launch; a loop of unknown length counts once."""
    has_unknown_loop: bool = False
    """Whether it is in a loop of unknown length."""
    is_conditional: bool = False
    """Whether it is in a branch that the program may skip."""
    is_async: bool = False
    """Whether it has separate start and done operations, so that it may overlap with computation."""
    op_name: str = ""
    """JAX's name of the operation, as `jit(step)/dot_general`; empty if the text has none."""
    source: SourceLine | None = None
    is_widened: bool = False
    """Whether its f32 values seem to be 16-bit floats that the compiler widened for this backend (CPU does)."""

    @property
    def nbytes(self) -> int:
        """Bytes that one device contributes, per run."""
        return sum(shape.nbytes for shape in self.operands)

    def to_wire(self) -> list[Any]:
        """Encode it as lists for JSON, without its groups, which are few and long."""
        shapes = [[[shape.dtype, *shape.dims] for shape in part] for part in (self.operands, self.results)]
        runs = [self.times, self.has_unknown_loop, self.is_conditional, self.is_async, self.is_widened]
        return [self.op, self.name, *shapes, self.pairs, runs, self.op_name, self.source]

    @classmethod
    def from_wire(cls, row: list[Any], groups: Groups) -> HloCollective:
        """Decode the result of `to_wire`."""
        op, name, operands, results, pairs, runs, op_name, source = row
        times, unknown, at_most, is_async, widened = runs
        operand_shapes, result_shapes = (
            tuple(HloShape(dtype, tuple(dims)) for dtype, *dims in part) for part in (operands, results)
        )
        line = None if source is None else SourceLine(*source)
        couples = tuple((start, end) for start, end in pairs)
        return cls(
            op,
            name,
            operand_shapes,
            result_shapes,
            groups,
            couples,
            times,
            unknown,
            at_most,
            is_async,
            op_name,
            line,
            widened,
        )


def parse_collectives(text: str) -> tuple[HloCollective, ...]:
    r"""Parse the collectives of a compiled program, in the order of its text.

    Args:
        text: result of `jax.jit(f).lower(...).compile().as_text()`: one program after partitioning.

    Raises:
        HloError: it is not the text of a compiled program.
        UnknownForm: it contains an unknown communicating operation or spelling.

    >>> text = "HloModule f, num_partitions=2\n\nENTRY %m (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
    >>> text += "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%add\n}\n"
    >>> parse_collectives(text)[0].groups, parse_collectives(text)[0].nbytes
    (((0, 1),), 32)
    """
    module = parse_module(text)
    return tuple(
        _parse_collective(module, computation, instruction)
        for computation in module.computations.values()
        for instruction in _iter_communicating(computation)
    )


def _iter_communicating(computation: Computation) -> Iterator[Instruction]:
    """Yield the instructions that are collectives, or the start operations of collectives."""
    for name, text in computation.texts.items():
        if _CANDIDATE.search(text) is None:
            continue
        instruction = computation.read(name)
        opcode = instruction.opcode
        if opcode.removesuffix("-start") in OPS:
            if not _is_overlap_continuation(computation, text) and "is_host_transfer=true" not in text:
                yield instruction
        elif opcode not in _END_OPS and (_SUSPECTED_COLLECTIVE.match(opcode) or _has_groups(instruction)):
            raise UnknownForm(
                f"{name} is a {opcode!r}, which seems to communicate and is not known here (known: {', '.join(OPS)})."
                " Nothing is guessed; report the text with the version of JAX",
                form=opcode,
            )


def _has_groups(instruction: Instruction) -> bool:
    attributes = instruction.rest.partition("metadata=")[0].partition("backend_config=")[0]
    return "replica_groups=" in attributes or "source_target_pairs=" in attributes


def _is_overlap_continuation(computation: Computation, text: str) -> bool:
    # TPU: a collective that overlaps with several fusions is written out in each. Only the fusion that starts it is
    # counted.
    return '"async_collective_fusion_config":' in text and not computation.starts_overlap


def _parse_collective(module: HloModule, computation: Computation, instruction: Instruction) -> HloCollective:
    op, rest = instruction.opcode.removesuffix("-start"), instruction.rest
    if not module.is_called(computation.name):
        # Its caller names it in an unknown way. Omitting it would make the count wrong.
        raise UnknownForm(
            f"nothing seems to call {computation.name}, which holds {instruction.name}", form=computation.name
        )
    pairs = _read_pairs(op, instruction) if op in _PAIRED else ()
    metadata = rest.partition("metadata={")[2]
    op_name = _OP_NAME.search(metadata)
    starts = instruction.opcode.endswith("-start") or op == "send"
    operands = tuple(_iter_operands(op, computation, instruction))
    results = operands if op == "send" else tuple(flatten(_parse_result(op, instruction, starts=starts)))
    return HloCollective(
        op,
        instruction.name,
        results if op == "collective-permute" else operands,
        results,
        _connected_groups(pairs) if op in _PAIRED else _read_groups(module, instruction),
        pairs,
        *module.trip_count_of(computation.name),
        is_async=starts or computation.name in module.async_computations or computation.starts_overlap,
        op_name=op_name[1].replace('\\"', '"') if op_name else "",
        source=module.source_of(metadata),
        is_widened=is_widened(computation, instruction),
    )


def _iter_operands(op: str, computation: Computation, instruction: Instruction) -> Iterator[HloShape]:
    if op == "collective-permute" and "slice_sizes=" in instruction.rest:
        raise UnknownForm(f"{instruction.name} permutes slices in place, which is not known here", form="slice_sizes=")
    names = instruction.operand_names
    # Further operands are offsets and sizes, or a token.
    for name in names[:1] if op in ("ragged-all-to-all", "send") else names:
        yield from flatten(computation.read(name).tree())


def _parse_result(op: str, instruction: Instruction, *, starts: bool) -> Tree:
    """Return the result's shape. Except for all-reduce, the shape of a start operation is (operands, result, contexts...)."""
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
    _, has_groups, text = instruction.rest.partition("replica_groups=")
    return parse_groups(_truncate_after_groups(text), count) if has_groups else parse_groups("{}", count)


def _truncate_after_groups(text: str) -> str:
    """Truncate the text after the groups, so that equal groups are parsed once."""
    end = re.search(r",\s*(?!device_ids)[a-z_]+=", text)
    return text[: end.start()] if end else text


def _read_pairs(op: str, instruction: Instruction) -> tuple[tuple[int, int], ...]:
    if op == "send":
        found = _SEND_PAIRS.search(instruction.rest)
        if found is None:
            raise UnknownForm(f"{instruction.name} is a send that does not say who sends to whom", form=op)
        return parse_pairs(found[1])
    return parse_pairs(instruction.rest.partition("source_target_pairs=")[2])


def _connected_groups(pairs: tuple[tuple[int, int], ...]) -> Groups:
    """Return the rings and chains that the pairs form: positions that can reach each other."""
    group: dict[int, list[int]] = {}
    for source, target in pairs:
        one, other = group.setdefault(source, [source]), group.setdefault(target, [target])
        if one is not other:
            one.extend(other)
            group.update(dict.fromkeys(other, one))
    return tuple(sorted({tuple(sorted(members)) for members in group.values()}))
