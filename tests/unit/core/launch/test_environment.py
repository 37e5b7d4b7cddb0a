"""The environment of simulated ranks."""

from __future__ import annotations

from mhnb.core.launch.environment import COLLECTIVE_TIMEOUT_S, NotebookEnvironment, rank_environment


def environment(user: dict[str, str] | None = None, *, devices: int = 2, simulated: bool = True) -> dict[str, str]:
    """Return the environment of a rank with 2 devices on a simulated host, by default."""
    return rank_environment(user or {}, devices=devices, simulated=simulated)


def test_the_users_own_xla_flags_are_kept() -> None:
    """mhnb appends its own flags."""
    flags = environment({"XLA_FLAGS": "--xla_dump_to=/tmp/x"})["XLA_FLAGS"]
    assert flags == f"--xla_dump_to=/tmp/x --xla_cpu_collective_timeout_seconds={COLLECTIVE_TIMEOUT_S}"


def test_the_users_own_collective_timeout_wins() -> None:
    """A user who sets it has a reason."""
    flags = "--xla_cpu_collective_timeout_seconds=7"
    assert environment({"XLA_FLAGS": flags})["XLA_FLAGS"] == flags


def test_simulated_ranks_run_on_cpu_even_if_gpu_is_set() -> None:
    """Four processes must not share one GPU."""
    assert environment({"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in environment({"JAX_PLATFORMS": "cuda"}, simulated=False)


def test_all_ranks_get_the_same_hash_seed() -> None:
    """`random` is not a seed, but a number that the user sets is one."""
    assert environment({"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "0"
    assert environment({"PYTHONHASHSEED": "7"})["PYTHONHASHSEED"] == "7"


def test_loopback_bypasses_the_proxy() -> None:
    """gRPC uses http_proxy; hosts that the user excluded stay excluded."""
    assert environment({"no_proxy": "intra.net,localhost"})["no_proxy"] == "intra.net,localhost,127.0.0.1,::1"


def test_the_execution_pool_grows_with_the_devices() -> None:
    """A pool that is only as large as the machine deadlocks correct programs."""
    assert environment(devices=2)["PJRT_NPROC"] == "32"
    assert environment(devices=16)["PJRT_NPROC"] == "64"


def test_only_a_variable_of_the_notebook_has_a_hint() -> None:
    """The hint names the variable, never its value."""
    here = NotebookEnvironment({"TOKEN": "secret"})
    hint = here.describe_missing_variable("TOKEN")
    assert hint is not None
    assert hint.endswith('os.environ["TOKEN"] = ... in a %%mhjax cell. To copy it: %mhjax restart --replay')
    assert "secret" not in hint + repr(here)
    assert here.describe_missing_variable("OTHER") is None
