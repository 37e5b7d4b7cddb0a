"""Check in a compiled program's HLO text whether it communicates with other devices."""

from __future__ import annotations

import re

__all__ = ["may_communicate"]

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
    """Check whether a program has a collective, or a custom call that could be one.

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
