"""One rank per GPU, with a fake nvidia-smi: what each rank sees is real, the GPUs are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.errors import LaunchError

_FAKE_NVIDIA_SMI = "#!/bin/sh\nprintf '0, GPU-a\\n1, GPU-b\\n2, GPU-c\\n3, GPU-d\\n'\n"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make nvidia-smi report four GPUs; JAX computes on the CPU."""
    (tmp_path / "nvidia-smi").write_text(_FAKE_NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.usefixtures("gpus")
def test_each_rank_sees_its_own_gpu(fresh: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three ranks on one host sees one of the three allowed GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,0,1")
    cluster = fresh(None, None, profile="gpu")
    result = cluster.run("import os; os.environ['CUDA_VISIBLE_DEVICES']").check()
    assert [rank.text for rank in result] == ["'GPU-d'", "'GPU-a'", "'GPU-b'"]
    assert {rank.host for rank in cluster.ranks} == {"host0"}


@pytest.mark.usefixtures("gpus")
@pytest.mark.test_all
def test_two_ranks_with_one_gpu_are_refused(fresh: Callable[..., Cluster], split_profile: str) -> None:
    """Two ranks that would use the same GPU are refused by its UUID before JAX starts.

    Without an assignment every rank would use every GPU.
    """
    with pytest.raises(LaunchError, match=r"2 tasks on .* have the same GPU \(GPU-a\)"):
        fresh(2, None, profile=split_profile)


@pytest.mark.usefixtures("gpus")
@pytest.mark.test_all
def test_uneven_gpu_count_is_refused(fresh: Callable[..., Cluster]) -> None:
    """The error contains the supervisor's message."""
    with pytest.raises(LaunchError, match="has 4 GPUs for 3 ranks"):
        fresh(None, None, profile="gpu", ranks=3)
