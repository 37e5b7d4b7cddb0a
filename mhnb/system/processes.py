"""Inspect and end processes, list GPUs, and compute file digests.

A process is observed from outside (memory, state, exit status, start time), whatever it runs.
GPUs are those in the output of nvidia-smi that CUDA_VISIBLE_DEVICES allows.
Two machines compare digests of a file to find out whether they have the same content.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from mhnb.core.launch.environment import parse_gpus, select_visible
from mhnb.core.preflight_facts import Gpu
from mhnb.errors import LaunchError
from mhnb.system.waiting import wait_until

PROCESS_ENDED = (psutil.NoSuchProcess, FileNotFoundError)
"""What psutil raises for a process that has ended.

The second is raised if a process (or only a thread) of another owner has the number a moment later.
"""

PROCESS_UNREADABLE = (psutil.Error, FileNotFoundError)
"""The same errors, and those for a process that this user may not inspect."""

_EXIT_CODE_FIELD = 49
"""Field of `/proc/PID/stat`, counted from 0 after the name: the status as `waitpid` would return it."""
_START_TIME_TOLERANCE_S = 2.0
"""Tolerance for two readings of a start time: the rounding of the boot time, with a margin. No process id is reused so soon."""
_PR_SET_PDEATHSIG = 1


def resident_nbytes(pid: int) -> int | None:
    """Return a process's resident bytes with shared pages; None if unreadable.

    >>> import os
    >>> (resident_nbytes(os.getpid()) or 0) > 1_000_000
    True
    """
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except PROCESS_UNREADABLE:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger.

    >>> import os
    >>> is_stopped(os.getpid())
    False
    """
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except PROCESS_UNREADABLE:
        return False


def find_exit_status(pid: int) -> tuple[int | None, int | None] | None:
    """Return exit code and signal of a zombie; None for other processes.

    Both are None if the system does not show them.

    >>> import os
    >>> find_exit_status(os.getpid()) is None
    True
    """
    try:
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return None
    except PROCESS_UNREADABLE:
        return None
    try:
        status = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_EXIT_CODE_FIELD])
    except (OSError, IndexError):
        # Not Linux, or its parent reaped it at this moment.
        return None, None
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.waitstatus_to_exitcode(status), None)


def find_start_time_s(pid: int) -> float | None:
    """Return when a process started, in seconds after boot.

    Clock changes do not affect it. None if the process has ended, and on macOS, which stores only the time of day: the
    process id alone has to suffice there.

    >>> import os
    >>> find_start_time_s(os.getpid()) == find_start_time_s(os.getpid())
    True
    """
    if sys.platform != "linux":
        return None
    try:
        # Read first: older psutil adds the boot time as of its last `boot_time` call.
        boot = psutil.boot_time()
        return psutil.Process(pid).create_time() - boot
    except PROCESS_UNREADABLE:
        return None


def is_same_process(pid: int, start_time_s: float | None) -> bool:
    """Return whether the process with this id and start time lives.

    Args:
        pid: the process id.
        start_time_s: the result of `find_start_time_s`; None if unknown, so that the id has to suffice.

    >>> import os
    >>> is_same_process(os.getpid(), find_start_time_s(os.getpid()))
    True
    """
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            # It has ended, but its parent, which may be stopped, has not reaped it.
            return False
    except PROCESS_UNREADABLE:
        return psutil.pid_exists(pid) and start_time_s is None
    if start_time_s is None:
        return True
    now_s = find_start_time_s(pid)
    return now_s is not None and abs(now_s - start_time_s) < _START_TIME_TOLERANCE_S


def end_with_parent(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL.

    Linux only; elsewhere the rank checks its parent itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


# -- GPUs of this machine


_QUERY_TIMEOUT_S = 30.0


def query_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """Return this process's GPUs; None if nvidia-smi is missing or lists none."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return None
    command = [program, "--query-gpu=index,name,uuid", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_QUERY_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        # The driver hangs. JAX reports that with a message of its own.
        return None
    names = {gpu.uuid: gpu.name for gpu in parse_gpus(result.stdout)}
    visible = select_visible(list(names), environment.get("CUDA_VISIBLE_DEVICES"))
    return tuple(Gpu(names.get(uuid, "MIG"), uuid) for uuid in visible) if names else None


def list_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process may use."""
    return tuple(gpu.uuid for gpu in query_gpus(environment) or ())


def require_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process may use.

    Raises:
        LaunchError: this process may use no GPU.
    """
    found = list_gpus(environment)
    if not found:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        why, fix = (
            ("nvidia-smi lists no GPU", "check the GPU driver: `nvidia-smi -L` must list the GPUs")
            if visible is None
            else (
                f"CUDA_VISIBLE_DEVICES={visible!r} selects no GPU that nvidia-smi lists",
                "unset CUDA_VISIBLE_DEVICES, or set it to GPUs that `nvidia-smi -L` lists",
            )
        )
        raise LaunchError(
            f"this machine has no GPU for the ranks: {why}\n"
            f"  Fix: {fix}\n"
            "  Or: %mhjax start (simulated hosts, without a GPU)\n"
            "  Or: --profile ssh --set share_gpus=True (GPUs of other machines)"
        )
    return found


# -- wait for processes and kill groups


_POLL_S = 0.01
_KILL_WAIT_S = 2.0
"""How long a killed process may take to end: it must free its memory, and may get little processor time on a busy machine."""


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except PROCESS_ENDED:
        return False


def wait_until_ended(processes: Sequence[psutil.Process], limit_s: float = _KILL_WAIT_S) -> bool:
    """Wait until all have ended; return False after the limit."""
    return wait_until(lambda: not any(map(is_running, processes)), limit_s, _POLL_S)


def kill_groups(pids: Iterable[int]) -> None:
    """Kill process groups, and return when their leaders have ended."""
    leaders: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(*PROCESS_ENDED):
            leaders.append(psutil.Process(pid))
        # It ended at this moment; macOS raises "not permitted" for a group that has only a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    wait_until_ended(leaders)


# -- digest of a file


def digest_file(path: Path) -> str:
    """Return the BLAKE2b digest of a file's content.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
