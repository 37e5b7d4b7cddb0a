"""Whether a compiled program reaches other devices, from the text that XLA made of it."""

from __future__ import annotations

import re

__all__ = ["may_communicate"]

_COLLECTIVE = re.compile(
    r"\b(?:all-gather|all-reduce|all-to-all|collective-\w+|ragged-all-to-all|recv|reduce-scatter|send)"
    r"(?:-start|-done|-update)?\("
)
_CUSTOM_CALL = re.compile(r"\bcustom-call(?:-start|-done|-update)?\(.*")
"""With the rest of its line."""
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_LOCAL = re.compile(
    # CPU's linear algebra, the greatest elements, Python's callbacks; then the libraries of GPUs, and what lays memory out.
    r"lapack_\w+|blas_\w+|TopK|ApproxTopK|PartialReduce|xla_(?:ffi_)?python_(?:cpu|gpu)_callback|xla_ffi_partitioned_python_\w+"
    r"|__cu(?:blas|blasLt|dnn|b|solver|sparse)\$.*|cu(?:solver|blas|sparse|_threefry)\w*|hip(?:solver|blas|sparse)\w*"
    r"|AllocateBuffer|MoveToHost|MoveToDevice|annotate_device_placement|X64\w*|SliceToDynamic|PadToStatic"
)
"""Targets of custom calls that are known to stay on their device; of any other one nobody knows."""


def may_communicate(text: str) -> bool:
    """Say whether a program has a collective, or a custom call that could be one.

    Args:
        text: optimised HLO; XLA's partitioner puts most collectives in after lowering.

    >>> may_communicate('x = f32[] all-reduce(y)'), may_communicate('x = custom-call(y), custom_call_target="new"')
    (True, True)
    >>> may_communicate('x = f32[2] custom-call(y), custom_call_target="lapack_spotrf_ffi"')
    False
    """
    return _COLLECTIVE.search(text) is not None or any(map(_is_unknown, _CUSTOM_CALL.findall(text)))


def _is_unknown(custom_call: str) -> bool:
    target = _TARGET.search(custom_call)
    return target is None or _LOCAL.fullmatch(target[1]) is None
