"""Count the operations and memory traffic of a compiled program.

XLA's own count takes the body of a loop once, and is empty on GPU. This one multiplies by trip counts, on every backend.
It counts matrix products and convolutions, not elementwise work, and traffic at the borders of fusions. Caches may save some of
that traffic, and tiles that are read again add to it; the text shows neither. XLA for TPU and GPU compiles the product of a matrix
and a vector as elementwise work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod

from mhnb.errors import UnknownForm
from mhnb.sharding.hlo_text import (
    Computation,
    HloModule,
    HloShape,
    Instruction,
    Tree,
    flatten,
    parse_module,
)

_FREE = re.compile(
    r"add-dependency|after-all|bitcast|constant|domain|get-dimension-size|get-tuple-element|opt-barrier|parameter"
    r"|partition-id|replica-id|tuple|.*-(?:done|update)"
)
"""Operations that move nothing, or that their start operation counts."""
_CONTROL = ("async", "call", "conditional", "while")
"""Operations that only run other computations."""
_SLICES = ("dynamic-slice", "gather", "slice")
_UPDATES = ("dynamic-update-slice", "scatter")
_SAME_PLACE = ("bitcast", "reshape", "tuple")
_SAME_ELEMENTS = (*_SAME_PLACE, "convert", "copy", "transpose")
_HOST = 5
"""Memory space of the host, on every backend."""

_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_FREE_TARGET = re.compile(r"AllocateBuffer|AssumeGatherIndicesInBound|ConcatBitcast|AsyncCollective(?:Start|Done)")
_NO_PRODUCTS = re.compile(
    r"(?:__gpu\$)?TopK|ApproxTopK|PartialReduce|__cub\$.*|MoveTo(?:Host|Device)|X64\w*|\w*threefry\w*"
)
_PRODUCT = re.compile(r"__cublas\$(?:gemm|lt\$matmul(?:\$f8)?)")
_CONVOLUTION = re.compile(r"__cudnn\$conv(?:BiasActivation)?(Forward|BackwardInput|BackwardFilter)(?:Graph)?")
_COMPUTES = re.compile(r" (?:convolution|custom-call|dot|fusion|ragged-dot|scaled-dot)\(")
_TOUCHES_PART = re.compile(r"slice\(|gather\(|scatter\(| fusion\(|async_collective_fusion_config")
_IN_FLIGHT = '"async_collective_fusion_config":'

_CONTRACTED = re.compile(r'\blhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_LABELS = re.compile(r"\bdim_labels=([a-z0-9?]+)_([a-z0-9?]+)->([a-z0-9?]+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one device computes and moves in one launch."""

    flops_by_dtype: dict[str, int] = field(default_factory=dict)
    """Operations by the type of the first operand as it is in the program, as bf16."""
    nbytes: int = 0
    """Bytes read and written in the device's main memory."""
    has_unknown_loop: bool = False
    """Whether a loop of unknown length was counted once."""
    uncounted: tuple[str, ...] = ()
    """Targets of custom calls, such as attention kernels, whose operations are not in `flops`; sorted."""

    @property
    def flops(self) -> int:
        """Return twice the multiplications of matrix products and convolutions."""
        return sum(self.flops_by_dtype.values())

    def times(self, factor: int) -> Cost:
        """Return the cost of several runs."""
        flops = {dtype: flops * factor for dtype, flops in self.flops_by_dtype.items()}
        return Cost(flops, self.nbytes * factor, self.has_unknown_loop, self.uncounted)


def count_cost(text: str) -> Cost:
    r"""Count operations and bytes of a compiled program on one device.

    Loops count as often as they run. Of a conditional's branches, the one with most operations and the one with most bytes count.
    Positions of a convolution that only read padding are not counted, as in XLA's own count.

    Args:
        text: optimised HLO for CPU, TPU or CUDA, after partitioning.

    Raises:
        HloError: it is not the text of a compiled program.
        UnknownForm: a shape, a product or a convolution has an unknown form.

    >>> text = "HloModule f\n\nENTRY %m (p: f32[8,4]) -> f32[8,8] {\n  %p = f32[8,4]{1,0} parameter(0)\n"
    >>> text += "  ROOT %r = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n"
    >>> count_cost(text).flops, count_cost(text).nbytes
    (512, 512)
    """
    module = parse_module(text)
    # Only layouts for TPU are tiled. There, every other memory space is on the chip or the host's; on GPU, 1 is main memory.
    return _Counter(module, is_tpu=":T(" in text).count(module.entry)


def _add(costs: Iterable[Cost]) -> Cost:
    flops: dict[str, int] = {}
    nbytes, has_unknown_loop, uncounted = 0, False, set[str]()
    for cost in costs:
        for dtype, more in cost.flops_by_dtype.items():
            flops[dtype] = flops.get(dtype, 0) + more
        nbytes += cost.nbytes
        has_unknown_loop |= cost.has_unknown_loop
        uncounted.update(cost.uncounted)
    return Cost(flops, nbytes, has_unknown_loop, tuple(sorted(uncounted)))


class _Counter:
    """Counts each computation once."""

    def __init__(self, module: HloModule, *, is_tpu: bool) -> None:
        self.module = module
        self.is_tpu = is_tpu
        self.traffic = _Traffic(module)
        self.counted: dict[str, Cost] = {}
        self.fused: dict[str, Cost] = {}

    def count(self, name: str) -> Cost:
        """Return the cost of one run of a computation."""
        if name not in self.counted:
            computation = self.module.find(name)
            self.counted[name] = _add(
                self._count_instruction(computation, computation.read(one)) for one in computation.texts
            )
        return self.counted[name]

    def _count_products(self, name: str) -> Cost:
        """Return the cost of a fused computation without its bytes."""
        if name not in self.fused:
            computation = self.module.find(name)
            self.fused[name] = _add(
                self._compute(computation, computation.read(one))
                for one, text in computation.texts.items()
                if _COMPUTES.search(text)
            )
        return self.fused[name]

    def _count_instruction(self, computation: Computation, instruction: Instruction) -> Cost:
        opcode = instruction.opcode.removesuffix("-start")
        if _FREE.fullmatch(opcode):
            return Cost()
        if opcode in _CONTROL:
            return self._count_control(computation, instruction)
        nbytes = sum(self._iter_nbytes(computation, instruction))
        return _add((self._compute(computation, instruction), Cost(nbytes=nbytes)))

    def _count_control(self, computation: Computation, instruction: Instruction) -> Cost:
        costs: list[Cost] = []
        branches: list[Cost] = []
        unknown = False
        for called, factor, is_branch in self.module.iter_called(computation, instruction.name):
            unknown |= factor is None
            cost = self.count(called).times(1 if factor is None else factor)
            (branches if is_branch else costs).append(cost)
        if branches:
            # The branch is chosen at run time: an upper bound of each figure.
            most = max(branches, key=lambda cost: cost.flops)
            others = _add(branches)
            nbytes = max(cost.nbytes for cost in branches)
            costs.append(Cost(most.flops_by_dtype, nbytes, others.has_unknown_loop, others.uncounted))
        return _add((*costs, Cost(has_unknown_loop=unknown)))

    # -- operations

    def _compute(self, computation: Computation, instruction: Instruction) -> Cost:
        opcode = instruction.opcode.removesuffix("-start")
        if opcode == "fusion":
            return self._count_products(self.module.called_by(computation, instruction.name))
        if opcode in ("dot", "scaled-dot"):
            return self._multiply(computation, instruction)
        if opcode == "convolution":
            return self._convolve(computation, instruction, "Forward")
        if opcode == "ragged-dot":
            return Cost(uncounted=(opcode,))
        if opcode != "custom-call":
            return Cost()
        found = _TARGET.search(instruction.rest)
        target = found[1] if found else ""
        if _PRODUCT.fullmatch(target):
            return self._multiply(computation, instruction)
        if convolution := _CONVOLUTION.fullmatch(target):
            return self._convolve(computation, instruction, convolution[1])
        is_known = _FREE_TARGET.fullmatch(target) or _NO_PRODUCTS.fullmatch(target)
        return Cost() if is_known else Cost(uncounted=(target,))

    def _multiply(self, computation: Computation, instruction: Instruction) -> Cost:
        lhs = self._operand(computation, instruction, 0)
        contracted = _CONTRACTED.search(instruction.rest)
        if contracted is None:
            raise _unknown(instruction, "lhs_contracting_dims")
        dims = [int(dim) for dim in contracted[1].replace('"', "").split(",") if dim]
        # A product of complex numbers is four products.
        each = 8 if lhs.dtype in ("c64", "c128") else 2
        return Cost({lhs.dtype: each * _result(instruction).size * prod(lhs.dims[dim] for dim in dims)})

    def _convolve(self, computation: Computation, instruction: Instruction, kind: str) -> Cost:
        first, second = (self._operand(computation, instruction, index) for index in range(2))
        result = _result(instruction)
        # cuDNN's gradients keep the window and the labels of the forward convolution.
        lhs, kernel, out = {
            "Forward": (first, second, result),
            "BackwardInput": (result, second, first),
            "BackwardFilter": (first, result, second),
        }[kind]
        labels = _LABELS.search(instruction.rest)
        if labels is None or [*map(len, labels.groups())] != [len(shape.dims) for shape in (lhs, kernel, out)]:
            raise _unknown(instruction, "dim_labels for each dimension")
        window = _WINDOW.search(instruction.rest)
        fields = dict(word.split("=") for word in window[1].split()) if window else {}
        lhs_dims, kernel_dims, out_dims = (
            dict(zip(names, shape.dims, strict=True))
            for names, shape in zip(labels.groups(), (lhs, kernel, out), strict=True)
        )
        groups = _BATCH_GROUPS.search(instruction.rest)
        # The kernel has the features of one group. cuDNN packs 4 or 32 of them into a dimension of their own, "?".
        features = kernel_dims["i"] * kernel_dims["o"] * kernel_dims.get("?", 1)
        count = features * lhs_dims["b"] // (int(groups[1]) if groups else 1)
        for dim, name in enumerate(sorted(name for name in lhs_dims if name.isdecimal())):
            settings = {key: value.split("x")[dim] for key, value in fields.items()}
            count *= _count_positions(
                (lhs_dims[name], kernel_dims[name], out_dims[name]),
                int(settings.get("stride", 1)),
                int(settings.get("pad", "0_0").split("_")[0]),
                (int(settings.get("lhs_dilate", 1)), int(settings.get("rhs_dilate", 1))),
            )
        return Cost({first.dtype: 2 * count})

    def _operand(self, computation: Computation, instruction: Instruction, index: int) -> HloShape:
        names = instruction.operand_names
        tree = computation.read(names[index]).tree() if index < len(names) else ()
        if not isinstance(tree, HloShape):
            raise _unknown(instruction, "an array as operand")
        return tree

    # -- bytes

    def _iter_nbytes(self, computation: Computation, instruction: Instruction) -> Iterator[int]:
        """Yield the bytes read per operand and written per result."""
        target = _TARGET.search(instruction.rest) if instruction.opcode == "custom-call" else None
        if target and _FREE_TARGET.fullmatch(target[1]):
            return
        reads, writes = self.traffic.of(computation, instruction)
        for name, read in zip(instruction.operand_names, reads, strict=True):
            for shape in flatten(computation.read(name).tree()):
                yield self._nbytes(shape, read)
        results = list(flatten(_written(instruction)))
        if target and target[1].startswith(("__cublas$", "__cudnn$")) and len(results) > 1:
            results.pop()  # a workspace
        for shape, written in zip(results, writes or [None] * len(results), strict=False):
            yield self._nbytes(shape, written)

    def _nbytes(self, shape: HloShape, size: int | None) -> int:
        """Return the bytes of some elements in main memory; None: all."""
        if shape.memory_space == _HOST or (self.is_tpu and shape.memory_space):
            return 0
        return shape.nbytes if size is None else min(shape.nbytes, shape.nbytes_of(size))


class _Traffic:
    """Finds how many elements of their operands and results operations touch."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.found: dict[str, tuple[list[int | None], list[int | None]]] = {}

    def of(self, computation: Computation, instruction: Instruction) -> tuple[list[int | None], list[int | None]]:
        """Return the elements read per operand and written per result.

        None means all of one; an empty list of results means all of each.
        """
        count, opcode = len(instruction.operand_names), instruction.opcode.removesuffix("-start")
        if opcode == "fusion":
            called = self.module.called_by(computation, instruction.name)
            if called not in self.found:
                self.found[called] = self._of_fused(self.module.find(called), count)
            return self.found[called]
        part = _part(computation, instruction)
        if part is None or not count:
            return [None] * count, []
        # A scatter reads the rows that it changes, because it may add to them.
        first = 0 if opcode == "dynamic-update-slice" else part
        return [first, *[None] * (count - 1)], [part]

    def _of_fused(self, fused: Computation, count: int) -> tuple[list[int | None], list[int | None]]:
        texts = fused.texts.values()
        if any("AsyncCollectiveDone" in text for text in texts):
            return [0] * count, [0]
        if not any(map(_TOUCHES_PART.search, texts)):
            return [None] * count, []
        parameters = {
            int(text.partition(" parameter(")[2].partition(")")[0]): name
            for name, text in fused.texts.items()
            if " parameter(" in text
        }
        if fused.starts_overlap:
            # The result of the start contains its operands.
            return [0] * count, []
        return [self._read(fused, parameters[index]) for index in range(count)], self._written(fused, fused.root)

    def _read(self, fused: Computation, name: str, *, is_updated: bool = False) -> int | None:
        """Return how many elements of a value are read; None: all."""
        if name == fused.root:
            return 0 if is_updated else None
        total = 0
        for user in fused.users.get(name, ()):
            part = self._read_by(fused, fused.read(user), name, is_updated=is_updated)
            if part is None:
                return None
            total += part
        return total

    def _read_by(self, fused: Computation, user: Instruction, name: str, *, is_updated: bool) -> int | None:
        is_first_only = [index for index, one in enumerate(user.operand_names) if one == name] == [0]
        if _IN_FLIGHT in user.rest:
            return 0  # counted where the collective starts
        if user.opcode == "tuple" and user.name == fused.root and " parameter(" in fused.texts[name]:
            return 0  # passed through
        if user.opcode in (_SAME_PLACE if is_updated else _SAME_ELEMENTS):
            return self._read(fused, user.name, is_updated=is_updated)
        if user.opcode == "fusion":
            reads, _ = self.of(fused, user)
            parts = [read for one, read in zip(user.operand_names, reads, strict=True) if one == name]
            return None if None in parts else sum(part for part in parts if part is not None)
        part = _part(fused, user) if is_first_only else None
        if part is not None and user.opcode in _UPDATES:
            rest = self._read(fused, user.name, is_updated=True)
            own = part if user.opcode == "scatter" else 0
            return None if rest is None else rest + own
        return part

    def _written(self, fused: Computation, name: str) -> list[int | None]:
        """Return how many elements of each result are written; None: all."""
        instruction = fused.read(name)
        opcode = instruction.opcode
        if opcode == "tuple":
            parts = (
                # A parameter is only passed through.
                [0] * _count_arrays(fused.read(operand))
                if " parameter(" in fused.texts[operand]
                else self._written(fused, operand)
                for operand in instruction.operand_names
            )
            return [one for part in parts for one in part]
        if opcode in _SAME_PLACE:
            return self._written(fused, instruction.operand_names[0])
        if opcode == "fusion":
            return self.of(fused, instruction)[1] or [None] * _count_arrays(instruction)
        if _IN_FLIGHT in instruction.rest:
            return [0] * _count_arrays(instruction)
        if opcode in _UPDATES and self._is_parameter(fused, instruction.operand_names[0]):
            return [_part(fused, instruction)]
        return [None] * _count_arrays(instruction)

    def _is_parameter(self, fused: Computation, name: str) -> bool:
        """Return whether an update of this value is in place."""
        instruction = fused.read(name)
        while instruction.opcode in (*_SAME_PLACE, *_UPDATES) and instruction.operand_names:
            instruction = fused.read(instruction.operand_names[0])
        return instruction.opcode == "parameter"


def _part(computation: Computation, instruction: Instruction) -> int | None:
    """Return how many elements of the first operand are touched; None: all."""
    opcode, names = instruction.opcode.removesuffix("-start"), instruction.operand_names
    if opcode in _SLICES:
        tree = _written(instruction)
    elif opcode == "dynamic-update-slice" or (opcode == "scatter" and len(names) == 3):
        tree = computation.read(names[1 if opcode == "dynamic-update-slice" else 2]).tree()
    else:
        return None
    return tree.size if isinstance(tree, HloShape) else None


def _written(instruction: Instruction) -> Tree:
    """Return the shapes that an operation writes.

    A start operation returns its operands, too.
    """
    tree, opcode = instruction.tree(), instruction.opcode
    if opcode == "send":
        return ()
    if not isinstance(tree, tuple) or not tree or opcode == "all-reduce-start":
        return tree
    if opcode in ("copy-start", "recv"):
        return tree[0]
    return tree[1] if opcode.endswith("-start") and len(tree) > 1 else tree


def _count_arrays(instruction: Instruction) -> int:
    return sum(1 for _ in flatten(instruction.tree()))


def _result(instruction: Instruction) -> HloShape:
    """Return the first array of the result; a workspace may follow."""
    shape = next(flatten(_written(instruction)), None)
    if shape is None:
        raise _unknown(instruction, "a result")
    return shape


@lru_cache(maxsize=4096)
def _count_positions(sizes: tuple[int, int, int], stride: int, padding: int, dilations: tuple[int, int]) -> int:
    """Count the pairs of output and kernel positions that read an element.

    Args:
        sizes: of the input, the kernel and the output along one dimension.
        stride: of the window.
        padding: before the input; may be negative.
        dilations: of the input and of the kernel.
    """
    size, kernel, out = sizes
    holes, step = dilations
    divisor = gcd(stride, holes)
    period = holes // divisor
    total = 0
    for position in range(kernel):
        # Output o reads o * stride + shift of the dilated input, if that is in range and a multiple of its dilation.
        shift = position * step - padding
        if shift % divisor:
            continue
        first = max(0, -(shift // stride))
        last = min(out - 1, ((size - 1) * holes - shift) // stride)
        start = -(shift // divisor) * pow(stride // divisor, -1, period) % period
        first += (start - first) % period
        total += max(0, (last - first) // period + 1)
    return total


def _unknown(instruction: Instruction, expected: str) -> UnknownForm:
    return UnknownForm(
        f"cannot count {instruction.opcode} {instruction.name}: expected {expected}. mhnb does not guess."
        " Please report the text with your JAX version",
        form=instruction.opcode,
    )
