"""Which operations of optimised HLO reach other devices; of a custom call that nobody knows one must believe it."""

from __future__ import annotations

import pytest

from mhnb.core.guard.reach import may_communicate

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
        f'{CALL}"user_ffi_lapack_spotrf_ffi"',
        "  %c.1 = f32[] custom-call(%x)",
    ],
)
def test_what_reaches_another_device_or_may(line: str) -> None:
    """One such operation is enough, wherever it stands."""
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
    ],
)
def test_what_stays_on_its_device(target: str) -> None:
    """A library's routine, and a callback into Python."""
    assert not may_communicate(f'HloModule jit_f\n  %a.all-reduce.1 = f32[] add(%x, %y)\n{CALL}"{target}"\n')
