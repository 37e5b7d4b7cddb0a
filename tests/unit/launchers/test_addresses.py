"""The address of this machine for the hosts that a user names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhnb.core.launch.hosts import parse_hosts
from mhnb.core.launch.mpi import MpiOptions
from mhnb.core.launch.slurm import SlurmOptions
from mhnb.core.launch.ssh import SshOptions
from mhnb.errors import LaunchError
from mhnb.launchers.mpi import MpiLauncher
from mhnb.launchers.slurm import SlurmLauncher
from mhnb.launchers.ssh import SshLauncher


def find_by_ssh(names: str) -> str:
    """Return the address that the ssh launcher finds."""
    return SshLauncher(parse_hosts(names), SshOptions(config_file="none")).find_own_address()


def find_by_mpi(names: str) -> str:
    """Return the address that the MPI launcher finds."""
    return MpiLauncher(MpiOptions(), SshOptions(), parse_hosts(names), {}).find_own_address()


@pytest.mark.parametrize("find", [find_by_ssh, find_by_mpi])
def test_misspelt_host_is_named_with_its_cure(find: Callable[[str], str]) -> None:
    """If no name can be resolved, the error names each, and the first cure is to correct the name."""
    with pytest.raises(LaunchError) as raised:
        find("me@nowhere.invalid:2222,a..b")
    first, fix, other = str(raised.value).splitlines()
    assert first.startswith("this machine cannot resolve the names of hosts me@nowhere.invalid:2222, a..b (")
    assert fix == "  Fix: correct the name, and test it: ssh me@nowhere.invalid true"
    assert other.startswith("  Or: if only a jump host knows the name: --address 10.0.0.1 ")


def test_slurm_off_the_cluster_names_the_login_node() -> None:
    """Without Slurm's commands, the first cure is the machine that has them."""
    with pytest.raises(LaunchError) as raised:
        SlurmLauncher(SlurmOptions(srun="no-such-srun"), SshOptions()).find_own_address()
    assert str(raised.value).splitlines() == [
        "'no-such-srun' is not on this machine's PATH",
        "  Fix: run the notebook's kernel on a login node of the Slurm cluster, which has it",
        "  Or: install Slurm's client commands on this machine",
        "  Or: --set srun=/path/to/no-such-srun",
    ]


@pytest.mark.parametrize("find", [find_by_ssh, find_by_mpi])
def test_any_host_with_a_known_name_gives_the_address(find: Callable[[str], str]) -> None:
    """A misspelt name beside a known one does not end the search, because its own login reports it."""
    assert find("nowhere.invalid,127.0.0.1") == "127.0.0.1"
