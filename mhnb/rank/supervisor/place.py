"""Prepare a host for its ranks: task number, directory, environment, GPUs, and the files that the ranks read."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path

from mhnb.core.reach.environment import divide_gpus
from mhnb.core.wire.protocol import HostSpec
from mhnb.errors import LaunchError
from mhnb.rank.cell.paths import hub_log
from mhnb.system.private import NotPrivate, check_ancestors, make_private_folder, write_private
from mhnb.system.processes import list_gpus, require_gpus
from mhnb.system.resources import profile_dir
from mhnb.system.rundir import SUPERVISOR_MARK, format_supervisor_mark, lock_as_alive, make_run_dir, prune_run_dirs

__all__ = ["assign_gpus", "await_connection_file", "find_task_number", "prepare_host", "write_connection_file"]

_TASK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""What Slurm, Open MPI, PMIx and MPICH call the number of a task.

Slurm's comes first: an mpiexec may run under it, but not the reverse.
"""
_CONNECTION = Path("profile", "security", "ipcontroller-engine.json")
_POLL_S = 0.02
_CONNECTION_WAIT_S = 60.0


def find_task_number(environment: Mapping[str, str]) -> int:
    """Find which of several equal tasks this process is.

    Raises:
        LaunchError: no variable of the environment contains the number.

    >>> find_task_number({"SLURM_PROCID": "3"})
    3
    """
    for name in _TASK_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    raise LaunchError(f"the launcher has not numbered this task: none of {', '.join(_TASK_VARIABLES)} is set")


def prepare_host(spec: HostSpec, environment: MutableMapping[str, str]) -> HostSpec:
    """Prepare this process as the spec requires, and return the spec with what this host adds.

    Raises:
        LaunchError: the interpreter was started with another seed of its hashes; sets would differ between the ranks.
    """
    seed = spec.environment.get("PYTHONHASHSEED")
    if spec.staged_start and environment.get("PYTHONHASHSEED") != seed:
        raise LaunchError(
            f"this interpreter has PYTHONHASHSEED={environment.get('PYTHONHASHSEED')}, and {seed} is needed"
        )
    if spec.supervisor is None:
        number, ranks_per_host = find_task_number(environment), len(spec.ranks)
        spec = replace(
            spec, supervisor=number, ranks=list(range(number * ranks_per_host, (number + 1) * ranks_per_host))
        )
    environment.update(spec.environment)
    if not spec.run_dir:
        spec = replace(spec, run_dir=str(_make_local_run_dir(spec)))
    # Processes that a cell starts inherit it: if this process is killed with its notebook, they are found by it.
    environment[SUPERVISOR_MARK] = format_supervisor_mark(Path(spec.run_dir))
    _enter_cwd(spec)
    if importlib.util.find_spec("matplotlib") is not None:
        environment.update(_set_matplotlib_dirs(environment, Path(spec.run_dir)))
    return spec


def _set_matplotlib_dirs(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Return variables that give matplotlib writable folders, if it has none.

    Otherwise each rank would make a folder of its own, report it in a cell, and leave it behind.
    """
    home, run_dir_settings = environment.get("HOME", ""), {"MPLCONFIGDIR": str(run_dir / "matplotlib")}
    if named := environment.get("MPLCONFIGDIR"):
        return {} if _is_writable(Path(named)) else run_dir_settings
    if sys.platform == "darwin":
        return {} if home and _is_writable(Path(home, ".matplotlib")) else run_dir_settings
    settings = environment.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")
    cache = environment.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    if not settings or not _is_writable(Path(settings, "matplotlib")):
        return run_dir_settings
    # The user's settings stay in force.
    return {} if cache and _is_writable(Path(cache, "matplotlib")) else {"XDG_CACHE_HOME": str(run_dir / "cache")}


def _is_writable(folder: Path) -> bool:
    """Return whether the folder exists, created if necessary, and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _enter_cwd(spec: HostSpec) -> None:
    if not spec.cwd:
        return
    home = Path.home()
    try:
        if spec.creates_cwd:
            Path(spec.cwd).mkdir(parents=True, exist_ok=True)
        os.chdir(spec.cwd)
    except OSError as error:
        if not spec.staged_start:
            raise
        # Another machine may not have the notebook's folder.
        fallback = home / Path(spec.cwd).name if spec.creates_cwd else home
        print(f"mhnb: {spec.cwd} is not here ({error.strerror}); the ranks run in {fallback}", file=sys.stderr)
        fallback.mkdir(exist_ok=True)
        os.chdir(fallback)


def _make_local_run_dir(spec: HostSpec) -> Path:
    """Create a directory on this machine's own disk: a shared home may be slow, and pids are unique only per machine.

    Raises:
        LaunchError: its place belongs to another user.
    """
    safe_hostname = re.sub(r"[^\w-]", "-", socket.gethostname())
    home = Path(tempfile.gettempdir()) / f"mhnb-{os.getuid()}-{safe_hostname}"
    try:
        check_ancestors(home)
        make_private_folder(home)
    except NotPrivate as error:
        # MHNB_HOME, which the error's next step may name, means nothing here; and in a sticky folder only its owner can
        # remove it.
        raise LaunchError(
            f"{str(error).partition(chr(10))[0]}\n"
            "  have its owner mend or remove it, or choose another folder for temporary files there: "
            "%mhjax start --env TMPDIR=/path/of/yours"
        ) from error
    run_environment = {"MHNB_HOME": str(home)}
    prune_run_dirs(run_environment)
    # A pid is not unique either if several containers share this folder.
    run_dir = make_run_dir(
        f"host-{secrets.token_hex(4)}", spec.generation, environment=run_environment, profile=profile_dir("local")
    )
    # Held until this process ends, and so without a name.
    lock_as_alive(run_dir)
    write_private(run_dir / "supervisor.json", json.dumps({"pid": os.getpid(), "keep": spec.is_detachable}))
    return run_dir


def assign_gpus(spec: HostSpec, environment: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the GPUs of each rank of this host: its own part, or all that there are.

    Raises:
        LaunchError: there are no GPUs, or they cannot be shared out.
    """
    if spec.share_gpus:
        shared = divide_gpus(require_gpus(environment), spec.ranks, socket.gethostname())
        return {rank: list(own) for rank, own in shared.items()}
    # Simulated devices are CPUs, even if a GPU is present.
    gpus = [] if spec.devices is not None else list(list_gpus(environment))
    return dict.fromkeys(spec.ranks, gpus)


def write_connection_file(run_dir: Path, text: str) -> None:
    """Write the hub's connection file to where the engines of this host look for it. It contains the hub's key."""
    path = run_dir / _CONNECTION
    make_private_folder(path.parent)
    write_private(path, text)


def await_connection_file(run_dir: Path, wait_s: float = _CONNECTION_WAIT_S) -> str:
    """Wait until the hub of this host has written its connection file; return its content.

    Raises:
        LaunchError: the hub has not written it in that time; its log says why.
    """
    path = run_dir / _CONNECTION
    for _ in range(int(wait_s / _POLL_S)):
        if path.exists() and (text := path.read_text()).rstrip().endswith("}"):
            return text
        time.sleep(_POLL_S)
    raise LaunchError(f"the hub did not come up in {wait_s:g} s; its log is {hub_log(run_dir)}")
