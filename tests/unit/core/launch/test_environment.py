"""The environment of simulated ranks."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.core.launch.environment import COLLECTIVE_TIMEOUT_S, NotebookEnvironment, StartVariables, rank_environment


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


def changes(variables: dict[str, str], *, devices: int | None = 2, **at_start: str) -> dict[str, str]:
    """Return what counts as changed if these variables replace those at the start."""
    present = dict(at_start)
    started = StartVariables(present, devices=devices)
    present.clear()
    present.update(variables)
    return started.take_changes()


def test_value_that_jax_has_read_is_no_change() -> None:
    """A replayed cell sets again what its ranks were started with; the order of flags and mhnb's own flag do not count."""
    flags = environment({"XLA_FLAGS": "--a --b"})["XLA_FLAGS"]
    assert changes({"XLA_FLAGS": "--b --a"}, XLA_FLAGS=flags) == {}
    assert changes({"XLA_FLAGS": f"{flags} --a"}, XLA_FLAGS=flags) == {}
    assert changes({"JAX_PLATFORMS": "cpu"}) == {}


def test_requested_devices_count_only_if_the_rank_has_others() -> None:
    """Both variables that request CPU devices are read."""
    forced = "--xla_force_host_platform_device_count=8"
    assert changes({"XLA_FLAGS": forced}) == {"XLA_FLAGS": "8"}
    assert changes({"XLA_FLAGS": forced}, devices=8) == {}
    assert changes({"JAX_NUM_CPU_DEVICES": "8"}, JAX_NUM_CPU_DEVICES="2") == {"JAX_NUM_CPU_DEVICES": "8"}
    assert changes({"JAX_NUM_CPU_DEVICES": "many"}, JAX_NUM_CPU_DEVICES="2") == {"JAX_NUM_CPU_DEVICES": ""}


def test_removed_variable_is_a_change() -> None:
    """JAX keeps the value also if the variable is deleted; one that was never set is no change."""
    assert changes({}, JAX_ENABLE_X64="1") == {"JAX_ENABLE_X64": ""}
    assert changes({}) == {}


def test_simulated_devices_have_no_variables_of_accelerators() -> None:
    """A CPU device never reads them, however early they are set."""
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_VISIBLE_DEVICES": "0"}
    assert changes(variables) == {}
    assert sorted(changes(variables, devices=None)) == sorted(variables)


@pytest.mark.parametrize(
    ("name", "requested", "where", "cure"),
    [
        ("XLA_FLAGS", "", {}, "set it in a cell without %%mhjax, then %mhjax restart --replay"),
        ("XLA_FLAGS", "8", {"devices": 2}, "%mhjax stop, then %mhjax start --devices 8"),
        ("XLA_FLAGS", "8", {}, "set it in a cell without %%mhjax, then %mhjax restart --replay"),
        ("XLA_FLAGS", "", {"is_local": False}, "%mhjax stop, then %mhjax start with --env XLA_FLAGS=..."),
        ("XLA_FLAGS", "", {"is_local": False, "devices": 2}, "without %%mhjax, then %mhjax restart --replay"),
        ("JAX_NUM_CPU_DEVICES", "", {"devices": 2}, "%mhjax stop, then %mhjax start --devices D"),
        ("JAX_PLATFORMS", "", {"devices": 2}, "%mhjax stop, then %mhjax start --profile gpu"),
        ("JAX_PLATFORMS", "", {"is_local": False, "devices": 2}, "%mhjax stop, then %mhjax start without --devices"),
        ("CUDA_VISIBLE_DEVICES", "", {}, "without %%mhjax, then %mhjax stop, then %mhjax start"),
        ("JAX_ENABLE_X64", "", {}, 'jax.config.update("jax_enable_x64", ...) in a %%mhjax cell'),
    ],
)
def test_note_on_late_variable_ends_with_a_cure_that_works(
    name: str, requested: str, where: dict[str, Any], cure: str
) -> None:
    """The cure depends on how the ranks get the variable: from the notebook, by a flag, or in no other way."""
    note = NotebookEnvironment(**where).describe_late_variable(name, requested, in_notebook=False)
    assert note.endswith(cure)


def test_only_a_variable_of_the_notebook_has_a_hint() -> None:
    """The hint names the variable, never its value."""
    here = NotebookEnvironment({"TOKEN": "secret"})
    hint = here.describe_missing_variable("TOKEN")
    assert hint is not None
    assert hint.endswith('os.environ["TOKEN"] = ... in a %%mhjax cell. To copy it: %mhjax restart --replay')
    assert "secret" not in hint + repr(here)
    assert here.describe_missing_variable("OTHER") is None
