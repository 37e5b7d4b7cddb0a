"""Detect collectives whose f32 values are 16-bit floats that the compiler widened: XLA for CPU sends those as f32.

XLA names the reducer of a widened all-reduce `..._promoted` (AllReducePromotion). Other collectives are widened by a
conversion before and one after, so these conversions are searched for. On another backend the bytes would be half.
"""

from __future__ import annotations

import re

from mhnb.sharding.hlo_module import Computation, Instruction
from mhnb.sharding.hlo_shape import flatten

__all__ = ["is_widened"]

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
