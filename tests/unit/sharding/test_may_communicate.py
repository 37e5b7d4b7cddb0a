"""Which operations of optimised HLO reach other devices. An unknown custom call is assumed to do so."""

from __future__ import annotations

import pytest

from mhnb.sharding.hlo_collectives import may_communicate

CALL = "  %c.1 = (f32[8,8]{0,1}, s32[]) custom-call(%x), custom_call_target="


@pytest.mark.parametrize(
    "line",
    [
        "  ROOT %all-reduce = f32[] all-reduce(%x), channel_id=1",
        "  %s = f32[8]{0} all-gather-start(%x)",
        "  %s = f32[8]{0} collective-permute(%x)",
        "  %s = (f32[8]{0}, u32[], token[]) recv(%t)",
        f'{CALL}"mosaic_gpu_v2"',
        f'{CALL}"tpu_custom_call"',
        f'{CALL}"mosaic_gpu_v2", backend_config={{module = "ML nvshmem_ptr", uses_xla_collective_metadata = false}}',
        f'{CALL}"mosaic_gpu_v2", backend_config={{uses_xla_collective_metadata = true, xla_replica_ids = "0,1"}}',
        f'{CALL}"tpu_custom_call", backend_config={{"custom_call_config": {{"body": "TUz", "has_communication": true}}}}',
        f'{CALL}"tpu_custom_call", backend_config="{{\\"custom_call_config\\": {{\\"collective_id\\": 3}}}}"',
        f'{CALL}"cu_all_reduce"',
        f'{CALL}"nccl_custom"',
        f'{CALL}"user_ffi_lapack_spotrf_ffi"',
        "  %c.1 = f32[] custom-call(%x)",
    ],
)
def test_operation_that_may_communicate(line: str) -> None:
    """One operation that reaches, or may reach, another device is enough, at any position."""
    assert may_communicate(f'HloModule jit_f\n{CALL}"TopK"\n{line}\n')


@pytest.mark.parametrize(
    "target",
    [
        "lapack_sgesdd_ffi",
        "TopK",
        "xla_ffi_python_cpu_callback",
        "__cublas$gemm",
        "cusolver_syrk_ffi",
        "__cudnn$convForward",
        "__cub$DeviceRadixSort",
        "__onednn$matmul",
        "cu_lu_pivots_to_permutation",
        "hip_lu_pivots_to_permutation",
        "cu_cholesky_update_ffi",
        "cu_tridiagonal_solve_perturbed",
        "hip_threefry2x32_ffi",
        "cuhybrid_geqp3",
        "hiphybrid_eig_comp",
        "cudnn_rnn_bwd_ffi",
        "xla_buffer_python_gpu_callback_cmd_buffer",
        "triton_kernel_call",
        "__gpu$xla.gpu.triton",
        "__op$block_scaled_dot",
        "Eigh",
    ],
)
def test_known_target_is_local(target: str) -> None:
    """A library's routine and a callback into Python stay on their device."""
    assert not may_communicate(f'HloModule jit_f\n  %a.all-reduce.1 = f32[] add(%x, %y)\n{CALL}"{target}"\n')


@pytest.mark.parametrize(
    "line",
    [
        f'{CALL}"mosaic_gpu_v2", backend_config={{module = "ML", uses_xla_collective_metadata = false}}',
        f'{CALL}"tpu_custom_call", backend_config={{"custom_call_config": {{"body": "TUz", "serialization_format": 1}}}}',
    ],
)
def test_kernel_marked_local_is_local(line: str) -> None:
    """A Mosaic kernel is local if its own metadata says that it does not communicate."""
    assert not may_communicate(f"HloModule jit_f\n{line}\n")
