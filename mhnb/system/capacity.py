"""Check that this machine can run a cluster: loopback, limits, disk space.

Soft limits are raised as far as the hard limits allow. The checks run before any process starts, because a shortage
would fail late, with an obscure message or only at the start's timeout.
"""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from pathlib import Path

from mhnb.errors import LaunchError, PreflightFailed

_LOOPBACK = "127.0.0.1"
_CONNECT_S = 3.0
_MIN_FILE_LIMIT_NBYTES = 1 << 20
"""Logs, the journal and the ranks' programs need files of this size. A lower limit ends a start, or the first cells."""
_TEST_WRITE_NBYTES = 1 << 18


def check_loopback() -> None:
    """Raise if this machine cannot connect to itself at 127.0.0.1.

    Raises:
        PreflightFailed: the address is missing, or connections to it fail.
    """
    try:
        with (
            socket.create_server((_LOOPBACK, 0)) as listener,
            socket.create_connection(listener.getsockname(), _CONNECT_S),
        ):
            return
    except OSError as error:
        raise PreflightFailed(
            f"this machine cannot reach itself at {_LOOPBACK}, where the processes of a cluster connect: {error}\n"
            "  Fix: ip link set lo up; ip addr add 127.0.0.1/8 dev lo (ip addr show lo shows the present state)\n"
            "  Or: allow connections to 127.0.0.1 in the firewall"
        ) from error


def check_limits(ranks: int, devices: int) -> None:
    """Raise if limits that the cluster's processes inherit are too low.

    Args:
        ranks: number of ranks on this machine.
        devices: number of devices per rank.

    Raises:
        PreflightFailed: a limit is too low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < (least := _min_open_files(ranks, devices)):
        raise PreflightFailed(
            f"a process can open at most {hard} files here (ulimit -Hn); "
            f"a process of a cluster with {ranks} x {devices} devices needs at least {least}\n"
            "  Fix: raise the limit with ulimit -n in the shell that starts Jupyter\n  Or: start fewer ranks"
        )
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY and size < _MIN_FILE_LIMIT_NBYTES:
        raise PreflightFailed(
            f"a file can have at most {size} bytes here (ulimit -f); the logs of a cluster need at least {_MIN_FILE_LIMIT_NBYTES}\n"
            "  Fix: raise the limit with ulimit -f in the shell that starts Jupyter"
        )


def has_memory_limit() -> bool:
    """Return whether this process and its children have limited address space."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _min_open_files(ranks: int, devices: int) -> int:
    """Return slightly less than the measured open files of hub or rank."""
    return max(110 + 6 * ranks, 56 + 2 * ranks * devices)


def raise_open_file_limit(ranks: int, devices: int) -> None:
    """Raise the open-files limit for a cluster, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each device of a rank may open a connection to every other device.
    wanted = 2 * (110 + 6 * ranks + (devices + 2) * ranks * devices)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_disk(folder: Path, ranks: int) -> None:
    """Raise if a folder's disk has no space for a cluster.

    If the disk reports too little, the files are created to find out, because some disks do not count free space.

    Raises:
        OSError: a file could not be created.
        LaunchError: the disk stored less than was written.
    """
    count, disk = 24 + 8 * ranks, os.statvfs(folder)
    if disk.f_favail >= count and disk.f_bavail * disk.f_frsize >= 2 * _TEST_WRITE_NBYTES:
        return
    with tempfile.TemporaryDirectory(prefix=".room-", dir=folder) as scratch:
        for number in range(count):
            (Path(scratch) / str(number)).touch()
        large = Path(scratch) / "large"
        large.write_bytes(bytes(_TEST_WRITE_NBYTES))
        if large.stat().st_size != _TEST_WRITE_NBYTES:
            raise LaunchError(f"{folder}: the disk stored only {large.stat().st_size} of {_TEST_WRITE_NBYTES} bytes")
