"""The mpiexec commands, compared in full for both implementations, and the reasons why mpiexec ended."""

from __future__ import annotations

import pytest

from mhnb.core.launch.mpi import MpiOptions, explain_mpiexec, mpiexec_command, parse_implementation
from mhnb.core.launch.tasks import HOLD_FOR_TIME, make_task_script
from mhnb.errors import InvalidRequest, LaunchError

_SCRIPT = f'unset SLURM_PROCID; exec < "$0" || exit; {make_task_script(HOLD_FOR_TIME)}'
_REMOTE_SHELL = ["sh", "-c", _SCRIPT, "/run/it's mine/mpi.start"]
_FILE = _REMOTE_SHELL[-1]


def test_open_mpi_command() -> None:
    """No stdin, no core binding, output labelled by rank; with host names one process each, otherwise the requested number."""
    plain = ["mpiexec", "-n", "4", "--stdin", "none", "--bind-to", "none", "--tag-output"]
    assert mpiexec_command(MpiOptions(), "openmpi", 4, file=_FILE) == [*plain, "--oversubscribe", *_REMOTE_SHELL]
    options = MpiOptions(mpiexec="/opt/mpiexec", extra=("--mca", "btl", "tcp"))
    assert mpiexec_command(options, "openmpi", 2, file=_FILE, machines=["a", "b"]) == [
        "/opt/mpiexec", "-n", "2", *plain[3:], "--host", "a:1,b:1", "--mca", "btl", "tcp", *_REMOTE_SHELL,
    ]  # fmt: skip


def test_mpich_command() -> None:
    """The same options are written in Hydra's form."""
    assert mpiexec_command(MpiOptions(), "hydra", 4, file=_FILE) == [
        "mpiexec",
        "-n",
        "4",
        "-prepend-rank",
        *_REMOTE_SHELL,
    ]
    assert mpiexec_command(MpiOptions(), "hydra", 2, file=_FILE, machines=["a", "b"])[1:8] == [
        "-n", "2", "-hosts", "a,b", "-ppn", "1", "-prepend-rank",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["me@a", "a:22", "::1", "a,b"])
def test_names_that_mpiexec_misreads_are_refused(name: str) -> None:
    """mpiexec accepts no user and no port in a host name; the error says where to set them."""
    with pytest.raises(InvalidRequest, match="put user and port into your ssh config"):
        mpiexec_command(MpiOptions(), "openmpi", 1, file=_FILE, machines=[name])


@pytest.mark.parametrize(
    ("version", "flavour"),
    [
        ("mpiexec (OpenRTE) 4.1.4\n", "openmpi"),
        ("mpirun (Open MPI) 5.0.11\n", "openmpi"),
        ("HYDRA build details:\n    Version: 5.0.2\n", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.19\n", "hydra"),
    ],
)
def test_implementation_is_recognised(version: str, flavour: str) -> None:
    """The implementation is recognised by mpiexec's version text."""
    assert parse_implementation(version) == flavour


@pytest.mark.parametrize("version", ["", "mpiexec: a script of the site\n"])
def test_unknown_implementation_is_refused(version: str) -> None:
    """The implementation is not guessed."""
    with pytest.raises(LaunchError, match=r"(?s)expected Open MPI or MPICH.*Fix: --set mpiexec="):
        parse_implementation(version)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mpiexec has detected an attempt to run as root.", "allow-run-as-root"),
        ("There are not enough slots available in the system to satisfy the 9", "start fewer ranks"),
        ("root@a: Permission denied (publickey).", "passwordless ssh"),
        ("sh: 1: cannot open /x/mpi.start: No such file", "a shared folder"),
    ],
)
def test_mpiexec_failure_is_explained(line: str, said: str) -> None:
    """The explanation quotes mpiexec and says what to do; a warning before the error is not the cause."""
    assert said in explain_mpiexec(["[vm:1] Warning: setpgid failed: Permission denied", line])
    assert explain_mpiexec(["a", "b"]) == "a\n    b"
