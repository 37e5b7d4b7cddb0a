"""Parse the collectives in a compiled program's text: bytes, groups, axes, source.

Nothing is skipped silently: an unknown communicating operation, spelling of groups or shape raises `UnknownForm`.
The text knows no mesh and no hosts: groups are positions in the device assignment, without axis names (names in XLA's own spellings
are often invented). So the mesh axes are found by comparing the groups with the meshes that the program was written for.

XLA for CPU widens 16-bit floats to f32, so on another backend the bytes would be half. It names the reducer of a widened all-reduce
`..._promoted` (AllReducePromotion). Other collectives are widened by a conversion before and one after, so these conversions are
searched for.

A cheaper check on the text returns whether a program may communicate with other devices at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mhnb.errors import UnknownForm
from mhnb.sharding.hlo_groups import Groups, parse_groups, parse_pairs
from mhnb.sharding.hlo_text import (
    Computation,
    HloModule,
    HloShape,
    Instruction,
    SourceLine,
    Tree,
    flatten,
    parse_module,
)

_MESH = re.compile(r"sdy\.mesh @[\w.\"]+ = <\[([^\]]*)\](?:, device_ids=\[([\d, ]*)\])?>")
_AXIS = re.compile(r'"([^"]*)"=(\d+)')


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """A mesh over positions of the device assignment."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...] = ()
    """The position at each mesh coordinate, in row-major order; empty if the positions are in order."""


@dataclass(frozen=True, slots=True)
class GroupAxes:
    """The mesh axes that a collective runs along."""

    axes: tuple[str, ...] = ()
    """In the mesh's order; empty if there is no mesh, or nothing moves."""
    spans_whole_axes: bool = True
    """Whether the groups span exactly these axes; False if they span parts of them."""


def parse_meshes(stablehlo: str) -> tuple[NamedMesh, ...]:
    """Parse the meshes that a lowered module names (Shardy's).

    >>> parse_meshes('sdy.mesh @mesh = <["data"=4, "model"=2]> loc(#loc)')
    (NamedMesh(names=('data', 'model'), sizes=(4, 2), positions=()),)
    """
    return tuple(dict.fromkeys(_iter_meshes(stablehlo)))


def _iter_meshes(stablehlo: str) -> Iterator[NamedMesh]:
    for axes, order in _MESH.findall(stablehlo):
        found = _AXIS.findall(axes)
        if found:
            positions = tuple(int(word) for word in order.split(",") if word.strip())
            yield NamedMesh(tuple(name for name, _ in found), tuple(int(size) for _, size in found), positions)


def find_axes(groups: Groups, meshes: Iterable[NamedMesh]) -> GroupAxes:
    """Return the axes of the first mesh that fits, preferring whole axes.

    >>> mesh = NamedMesh(("data", "model"), (4, 2))
    >>> find_axes(((0, 2, 4, 6), (1, 3, 5, 7)), [mesh]).axes, find_axes(((0, 2), (1, 3)), [mesh])
    (('data',), GroupAxes(axes=('data',), spans_whole_axes=False))
    """
    if all(len(group) < 2 for group in groups):
        return GroupAxes()
    found = [along for mesh in meshes if (along := _find_group_axes(groups, mesh)) is not None]
    return next(
        (along for along in found if along.spans_whole_axes),
        found[0] if found else GroupAxes((), spans_whole_axes=False),
    )


@lru_cache(maxsize=256)
def _find_group_axes(groups: Groups, mesh: NamedMesh) -> GroupAxes | None:
    """Return the axes that groups span; None for positions outside the mesh."""
    count = prod(mesh.sizes)
    if any(not 0 <= position < count for group in groups for position in group):
        return None
    coordinates = {position: place for place, position in enumerate(mesh.positions or range(count))}
    strides = [prod(mesh.sizes[axis + 1 :]) for axis in range(len(mesh.sizes))]
    differ: set[int] = set()
    for group in groups:
        members = [coordinates[position] for position in group]
        differ.update(
            axis
            for axis, (size, stride) in enumerate(zip(mesh.sizes, strides, strict=True))
            if axis not in differ and len({place // stride % size for place in members}) > 1
        )
    size = prod(mesh.sizes[axis] for axis in differ)
    # Members of a group agree in all other axes, so a group as large as the product of these axes spans them
    # completely.
    whole = sum(len(group) for group in groups) == count and all(len(group) == size for group in groups)
    return GroupAxes(_names(mesh.names, sorted(differ)), whole)


def _names(names: Sequence[str], axes: Sequence[int]) -> tuple[str, ...]:
    return tuple(names[axis] for axis in axes)


# -- does a compiled program communicate?


_COLLECTIVE_CALL = re.compile(
    r"\b(?:all-gather|all-reduce|all-to-all|collective-\w+|ragged-all-to-all|recv|reduce-scatter|send)"
    r"(?:-start|-done|-update)?\("
)
_CUSTOM_CALL = re.compile(r"\bcustom-call(?:-start|-done|-update)?\(.*")
"""With the rest of its line."""
_CUSTOM_CALL_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_LOCAL_TARGET = re.compile(
    # CPU linear algebra, top-k, Python callbacks; then the GPU libraries, and memory layout.
    r"lapack_\w+|blas_\w+|__onednn\$\w+|TopK|ApproxTopK|PartialReduce|xla_(?:ffi_)?python_(?:cpu|gpu)_callback"
    r"|xla_ffi_partitioned_python_\w+|xla_buffer_python_(?:cpu|gpu)_callback\w*"
    r"|__cu(?:blas|blasLt|dnn|b|solver|sparse)\$.*|cu(?:solver|blas|sparse|_threefry)\w*|hip(?:solver|blas|sparse|_threefry)\w*"
    # jaxlib's own GPU kernels: one device's arrays in, one device's arrays out. `hybrid` ones compute on the host.
    r"|(?:cu|hip)_(?:cholesky_update|lu_pivots_to_permutation|tridiagonal_solve_perturbed)\w*|(?:cu|hip)(?:hybrid|dnn_rnn)_\w+"
    # cuDNN's scaled products, and Triton: JAX and XLA link no communication library into code that Triton compiles.
    r"|__op\$block_scaled_dot|xla\.scaled_dot|__gpu\$xla\.gpu\.triton|triton_kernel_call(?:_ffi)?"
    # TPU linear algebra.
    r"|Cholesky|Eigh|LuDecomposition|Qr|ProductOfElementaryHouseholderReflectors"
    r"|AllocateBuffer|MoveToHost|MoveToDevice|annotate_device_placement|X64\w*|SliceToDynamic|PadToStatic"
)
"""Targets of custom calls that are known to stay on their device; any other target is unknown."""
_USER_KERNEL = re.compile(r"mosaic_gpu_v\d+|tpu_custom_call")
"""Kernels written by the user: Mosaic can read and write the memory of other devices, also of other processes."""
_LOCAL_METADATA = re.compile(r'uses_xla_collective_metadata\s*[=:]\s*(?:false|0)\b|\\?"custom_call_config\\?"')
_REMOTE_METADATA = re.compile(r"nvshmem|xla_replica_ids|has_communication|collective_id")
"""Metadata that the compilers of such kernels add. A kernel without any known metadata may communicate."""


def may_communicate(text: str) -> bool:
    """Return whether a program may communicate with other devices.

    Args:
        text: optimised HLO, because XLA's partitioner adds most collectives after lowering.

    >>> may_communicate('x = f32[] all-reduce(y)'), may_communicate('x = custom-call(y), custom_call_target="new"')
    (True, True)
    >>> may_communicate('x = f32[2] custom-call(y), custom_call_target="lapack_spotrf_ffi"')
    False
    """
    return _COLLECTIVE_CALL.search(text) is not None or any(map(_may_call_communicate, _CUSTOM_CALL.findall(text)))


def _may_call_communicate(custom_call: str) -> bool:
    target = _CUSTOM_CALL_TARGET.search(custom_call)
    if target is None:
        return True
    if _USER_KERNEL.fullmatch(target[1]):
        return _LOCAL_METADATA.search(custom_call) is None or _REMOTE_METADATA.search(custom_call) is not None
    return _LOCAL_TARGET.fullmatch(target[1]) is None


# -- 16-bit values that XLA widened to f32


_PROMOTED = re.compile(r"\bto_apply=%?[\w.\-]*_promoted\b")
_REDUCING = ("all-reduce", "reduce-scatter")
_NARROW = ("bf16[", "f16[")
_SAME_VALUES = ("bitcast", "copy", "get-tuple-element", "reshape", "transpose")
_MAX_DEPTH = 4


def is_widened(computation: Computation, instruction: Instruction) -> bool:
    """Return whether a collective carries widened 16-bit floats.

    >>> is_widened(Computation("main"), Instruction("r", "f32[8]", "all-reduce", "%p), to_apply=%add_promoted"))
    True
    """
    if "f32[" not in instruction.shape:
        return False
    if instruction.opcode.removesuffix("-start") in _REDUCING:
        return _PROMOTED.search(instruction.rest) is not None
    return _is_converted_from_16_bit(computation, instruction, _MAX_DEPTH) or _is_converted_to_16_bit(
        computation, instruction.name, _MAX_DEPTH
    )


def _is_converted_from_16_bit(computation: Computation, instruction: Instruction, depth: int) -> bool:
    for name in instruction.operand_names:
        if depth == 0 or name not in computation.texts:
            return False
        source = computation.read(name)
        if source.opcode in _SAME_VALUES:
            if _is_converted_from_16_bit(computation, source, depth - 1):
                return True
        elif "convert" in name or source.opcode == "convert":
            inputs = [computation.texts.get(one, "") for one in source.operand_names]
            return any(text.lstrip("(").startswith(_NARROW) for text in inputs)
    return False


def _is_converted_to_16_bit(computation: Computation, name: str, depth: int) -> bool:
    """Return whether every use of a value converts it to 16-bit floats."""
    users = computation.users.get(name, ())
    return depth > 0 and bool(users) and all(_is_narrowing_use(computation, user, depth) for user in users)


def _is_narrowing_use(computation: Computation, name: str, depth: int) -> bool:
    user = computation.read(name)
    if user.opcode in _SAME_VALUES:
        return _is_converted_to_16_bit(computation, name, depth - 1)
    return all(shape.dtype in ("bf16", "f16") for shape in flatten(user.tree())) and (
        "convert" in name or user.opcode == "convert"
    )


# -- parse the collectives


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
_TRANSFER = re.compile(r"_xla_megascale_transfer_type=\"?(\w+)")
"""TPU: between slices, the hosts transfer the data. The program of one slice has only a send and a recv."""
_TRANSFER_OPS = {
    "ALL_GATHER": "all-gather",
    "ALL_REDUCE": "all-reduce",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
    "REDUCE_SCATTER": "reduce-scatter",
}
_TRANSFER_TARGET = re.compile(r'_xla_megascale_target=(?:"\{([\d,:]+)\}x\{([\d,:]+)\}"|\{((?:\{[\d,>-]+\},?)+)\})')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="[^"]*"')
_SLICE_STRIDE = 100_000
"""Device 3 of the second slice is 200003."""
_SEND_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[{}\d, ]*\})')


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a compiled program, as stated in its text."""

    op: str
    """One of OPS, for both synchronous and asynchronous forms."""
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

    @property
    def is_paired(self) -> bool:
        """Whether devices send in pairs, instead of in groups."""
        return self.op in _PAIRED


def parse_collectives(text: str, device_ids: Sequence[int] = ()) -> tuple[HloCollective, ...]:
    r"""Parse the collectives of a compiled program, in text order.

    Args:
        text: result of `jax.jit(f).lower(...).compile().as_text()`: one program after partitioning.
        device_ids: JAX's id of each device, by position in the device assignment; without it, transfers between slices of TPUs
            are left out.

    Raises:
        HloError: it is not the text of a compiled program.
        UnknownForm: it contains an unknown communicating operation or spelling.

    >>> text = "HloModule f, num_partitions=2\n\nENTRY %m (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
    >>> text += "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%add\n}\n"
    >>> parse_collectives(text)[0].groups, parse_collectives(text)[0].nbytes
    (((0, 1),), 32)
    """
    module = parse_module(text)
    slices = _Slices(device_ids) if module.replicas * module.partitions < len(device_ids) else None
    return tuple(
        _parse_collective(module, computation, instruction, slices)
        for computation in module.computations.values()
        for instruction in _iter_communicating(computation, with_slices=slices is not None)
    )


def _iter_communicating(computation: Computation, *, with_slices: bool) -> Iterator[Instruction]:
    """Yield the instructions that are collectives, or the start operations of collectives."""
    for name, text in computation.texts.items():
        if _CANDIDATE.search(text) is None:
            continue
        instruction = computation.read(name)
        opcode = instruction.opcode
        if opcode.removesuffix("-start") in OPS:
            is_to_host = "is_host_transfer=true" in text and not (with_slices and _TRANSFER.search(text))
            if not _is_overlap_continuation(computation, text) and not is_to_host:
                yield instruction
        elif opcode not in _END_OPS and (_SUSPECTED_COLLECTIVE.match(opcode) or _has_groups(instruction)):
            raise UnknownForm(
                f"mhnb does not know the HLO instruction {opcode!r} ({name}), which seems to communicate."
                " mhnb does not guess. Please report the text with your JAX version",
                form=opcode,
            )


def _has_groups(instruction: Instruction) -> bool:
    attributes = instruction.rest.partition("metadata=")[0].partition("backend_config=")[0]
    return "replica_groups=" in attributes or "source_target_pairs=" in attributes


def _is_overlap_continuation(computation: Computation, text: str) -> bool:
    # TPU: a collective that overlaps with several fusions is written out in each. Only the fusion that starts it is
    # counted.
    return '"async_collective_fusion_config":' in text and not computation.starts_overlap


class _Slices:
    """Positions of the devices of several TPU slices, by slice."""

    def __init__(self, device_ids: Sequence[int]) -> None:
        self._positions = {device: position for position, device in enumerate(device_ids)}
        members: dict[int, list[int]] = {}
        for position, device in enumerate(device_ids):
            members.setdefault(device // _SLICE_STRIDE, []).append(position)
        self._members = tuple(members.values())

    def repeat(self, groups: Groups) -> Groups:
        """Return the groups or pairs of one slice as those of each."""
        return tuple(tuple(map(slice_.__getitem__, group)) for slice_ in self._members for group in groups)

    def read_target(self, instruction: Instruction) -> Groups:
        """Return the groups or pairs of a transfer between slices."""
        found = _TRANSFER_TARGET.search(instruction.rest)
        if found is None:
            raise UnknownForm(f"{instruction.name} transfers between slices without known groups", form="send")
        if found[3] is None:
            slices, devices = _read_range(found[1]), _read_range(found[2])
            groups = [[one * _SLICE_STRIDE + device for one in slices] for device in devices]
        else:
            groups = [[*map(int, re.findall(r"\d+", group))] for group in found[3].split("},")]
        return tuple(tuple(map(self._positions.__getitem__, group)) for group in groups)


def _read_range(text: str) -> list[int]:
    """Read `1,2` or `0:7`, whose end is included."""
    ends = [[*map(int, part.split(":"))] for part in text.split(",")]
    return [number for each in ends for number in range(each[0], each[-1] + 1)]


def _parse_transfer(
    module: HloModule, computation: Computation, instruction: Instruction, slices: _Slices
) -> HloCollective:
    """Parse a collective between slices: its send, with the recv's result."""
    kind = _TRANSFER.search(instruction.rest)
    op = _TRANSFER_OPS.get(kind[1]) if kind else None
    if op is None:
        raise UnknownForm(
            f"{instruction.name} transfers between slices in an unknown way: {kind and kind[1]}", form="send"
        )
    target, rendezvous = slices.read_target(instruction), _RENDEZVOUS.search(instruction.rest)
    operands = results = tuple(_iter_operands("send", computation, instruction))
    for name, text in computation.texts.items():
        if rendezvous and rendezvous[0] in text and " recv(" in text:
            results = tuple(flatten(computation.read(name).tree()))[:1]
    pairs = tuple((source, to) for source, to in target) if op in _PAIRED else ()
    groups = _connected_groups(pairs) if pairs else target
    metadata = instruction.rest.partition("metadata={")[2]
    return HloCollective(
        op,
        instruction.name,
        operands,
        results,
        groups,
        pairs,
        *module.trip_count_of(computation.name),
        is_async=True,
        op_name=_read_op_name(metadata),
        source=module.source_of(metadata),
    )


def _parse_collective(
    module: HloModule, computation: Computation, instruction: Instruction, slices: _Slices | None
) -> HloCollective:
    op, rest = instruction.opcode.removesuffix("-start"), instruction.rest
    if not module.is_called(computation.name):
        # Its caller names it in an unknown way. Omitting it would make the count wrong.
        raise UnknownForm(
            f"cannot find the caller of HLO computation {computation.name!r}, which contains {instruction.name}",
            form=computation.name,
        )
    if slices and "is_host_transfer=true" in rest:
        return _parse_transfer(module, computation, instruction, slices)
    pairs = _read_pairs(op, instruction) if op in _PAIRED else ()
    groups = () if op in _PAIRED else _read_groups(module, instruction)
    if slices:
        pairs, groups = tuple((a, b) for a, b in slices.repeat(pairs)), slices.repeat(groups)
    metadata = rest.partition("metadata={")[2]
    starts = instruction.opcode.endswith("-start") or op == "send"
    operands = tuple(_iter_operands(op, computation, instruction))
    results = operands if op == "send" else tuple(flatten(_parse_result(op, instruction, starts=starts)))
    return HloCollective(
        op,
        instruction.name,
        results if op == "collective-permute" else operands,
        results,
        _connected_groups(pairs) if op in _PAIRED else groups,
        pairs,
        *module.trip_count_of(computation.name),
        is_async=starts or computation.name in module.async_computations or computation.starts_overlap,
        op_name=_read_op_name(metadata),
        source=module.source_of(metadata),
        is_widened=is_widened(computation, instruction),
    )


def _read_op_name(metadata: str) -> str:
    found = _OP_NAME.search(metadata)
    return found[1].replace('\\"', '"') if found else ""


def _iter_operands(op: str, computation: Computation, instruction: Instruction) -> Iterator[HloShape]:
    if op == "collective-permute" and "slice_sizes=" in instruction.rest:
        raise UnknownForm(
            f"{instruction.name} permutes slices in place, a form that mhnb does not know", form="slice_sizes="
        )
    names = instruction.operand_names
    # Further operands are offsets and sizes, or a token.
    for name in names[:1] if op in ("ragged-all-to-all", "send") else names:
        yield from flatten(computation.read(name).tree())


def _parse_result(op: str, instruction: Instruction, *, starts: bool) -> Tree:
    """Return the result's shape, which start operations wrap as (operands, result, ...)."""
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
            " partitions; mhnb does not know the order of its groups there",
            form="replica_count",
        )
    count = module.replicas * module.partitions
    _, has_groups, text = instruction.rest.partition("replica_groups=")
    return parse_groups(_truncate_after_groups(text), count) if has_groups else parse_groups("{}", count)


def _truncate_after_groups(text: str) -> str:
    """Truncate the text after the groups, for the cache of `parse_groups`."""
    end = re.search(r",\s*(?!device_ids)[a-z_]+=", text)
    return text[: end.start()] if end else text


def _read_pairs(op: str, instruction: Instruction) -> tuple[tuple[int, int], ...]:
    if op == "send":
        found = _SEND_PAIRS.search(instruction.rest)
        if found is None:
            raise UnknownForm(f"{instruction.name} is a send without its pairs of source and target", form=op)
        return parse_pairs(found[1])
    return parse_pairs(instruction.rest.partition("source_target_pairs=")[2])


def _connected_groups(pairs: tuple[tuple[int, int], ...]) -> Groups:
    """Return the rings and chains that the pairs form, as groups."""
    group: dict[int, list[int]] = {}
    for source, target in pairs:
        one, other = group.setdefault(source, [source]), group.setdefault(target, [target])
        if one is not other:
            one.extend(other)
            group.update(dict.fromkeys(other, one))
    return tuple(sorted({tuple(sorted(members)) for members in group.values()}))
