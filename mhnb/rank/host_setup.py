"""Prepare a host for its ranks: environment, directory, GPUs and files.

A rank writes one log for people, and its C-level output goes to files of its own. Where the latest cell began in these files is
recorded in a file that outlives the rank: what the rank printed before that cell is not its last output.
The versions of a rank's software are read here, too; they must be the same on all ranks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from mhnb.core.launch.environment import divide_gpus
from mhnb.core.messages import HostSpec
from mhnb.core.state.rank_registry import drop_flag_help, drop_stack_frames
from mhnb.errors import LaunchError
from mhnb.rank.execution.streams import split_library_noise
from mhnb.system.private_files import NotPrivate, check_ancestors, make_private_folder, open_private, write_private
from mhnb.system.processes import list_gpus, require_gpus
from mhnb.system.resources import profile_dir
from mhnb.system.run_dir import (
    SUPERVISOR_MARK,
    find_home,
    format_supervisor_mark,
    lock_as_alive,
    make_run_dir,
    write_supervisor_record,
)
from mhnb.system.waiting import read_whole_json, wait_until


class Offsets(NamedTuple):
    """Bytes that each file had when the rank's latest cell began."""

    log: int = 0
    out: int = 0
    err: int = 0


class LogOffsets:
    """The offsets of one rank: a one-line file, overwritten in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._written: Offsets | None = None

    def write(self, offsets: Offsets) -> None:
        """Record the sizes in one short write, or none if unchanged."""
        if offsets == self._written:
            return
        self._written = offsets
        line = " ".join(f"{nbytes:020}" for nbytes in offsets) + "\n"
        try:
            os.pwrite(self._fd, line.encode(), 0)
        except OSError:
            # For example, the disk is full. No record is better than that of an earlier cell, and the cell still runs.
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            return
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_offsets(path: Path) -> Offsets:
    """Read the record; without one, all output counts."""
    numbers = path.read_text().split() if path.exists() else []
    return Offsets(*map(int, numbers)) if len(numbers) == len(Offsets._fields) else Offsets()


# -- paths of a rank's output


_TAIL_NBYTES = 64 * 1024


def hub_log(run_dir: Path) -> Path:
    """Return the path of the hub's log."""
    return run_dir / "log" / "hub.log"


def read_hub_lines(run_dir: Path, count: int) -> list[str]:
    """Return the last lines of the hub's log."""
    return _tail(hub_log(run_dir), 0)[-count:]


@dataclass(frozen=True, slots=True)
class RankPaths:
    """The files of one rank in the cluster's run directory."""

    run_dir: Path
    rank: int

    @property
    def log(self) -> Path:
        """All output of the rank, for people."""
        return self.run_dir / "log" / f"rank{self.rank}.log"

    @property
    def native(self) -> tuple[Path, Path]:
        """Files of the rank's descriptors 1 and 2, for native output."""
        log_dir = self.run_dir / "log"
        return log_dir / f"rank{self.rank}.native.out", log_dir / f"rank{self.rank}.native.err"

    @property
    def offsets(self) -> Path:
        """The record of where its latest cell began in the other files."""
        return self.run_dir / "log" / f"rank{self.rank}.begun"

    def read_last_lines(self, count: int) -> list[str]:
        """Return a dead rank's last lines; append native output to the log.

        Only output since its latest cell began counts: earlier output did not lead to its end.
        """
        offsets = read_offsets(self.offsets)
        out, err = self.native
        native = [*_tail(out, offsets.out), *_tail(err, offsets.err)]
        logged = _tail(self.log, offsets.log)
        unlogged = [line for line in native if line not in logged]
        if unlogged:
            with open(self.log, "a", encoding="utf-8", errors="replace", opener=open_private) as log:
                log.write("\n--- native output at the end ---\n" + "\n".join(unlogged) + "\n")
        # Greetings of libraries are not last output.
        return drop_flag_help(drop_stack_frames(split_library_noise("\n".join([*logged, *unlogged]))[0].splitlines()))[
            -count:
        ]


def _tail(path: Path, since_nbytes: int) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(since_nbytes, os.fstat(file.fileno()).st_size - _TAIL_NBYTES))
        text = file.read().decode("utf-8", "replace")
    return [line for line in text.splitlines() if line.strip()]


# -- prepare a host for its ranks


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
    raise LaunchError(f"the launcher did not number this task: none of {', '.join(_TASK_VARIABLES)} is set")


def prepare_host(spec: HostSpec, environment: MutableMapping[str, str]) -> HostSpec:
    """Prepare this process as the spec requires; return the completed spec.

    Raises:
        LaunchError: the interpreter was started with another seed of its hashes; sets would differ between the ranks.
    """
    seed = spec.environment.get("PYTHONHASHSEED")
    if spec.staged_start and environment.get("PYTHONHASHSEED") != seed:
        raise LaunchError(f"this interpreter has PYTHONHASHSEED={environment.get('PYTHONHASHSEED')}; expected {seed}")
    if spec.supervisor is None:
        number, ranks_per_host = find_task_number(environment), len(spec.ranks)
        spec = structs.replace(
            spec, supervisor=number, ranks=list(range(number * ranks_per_host, (number + 1) * ranks_per_host))
        )
    environment.update(spec.environment)
    if not spec.run_dir:
        spec = structs.replace(spec, run_dir=str(_make_local_run_dir(spec)))
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
    try:
        if spec.creates_cwd:
            Path(spec.cwd).mkdir(parents=True, exist_ok=True)
        os.chdir(spec.cwd)
    except OSError as error:
        home = find_home()
        if not spec.staged_start or home is None:
            raise
        # Another machine may not have the notebook's folder.
        fallback = home / Path(spec.cwd).name if spec.creates_cwd else home
        print(
            f"mhnb: cannot use the folder {spec.cwd} on this host ({error.strerror}); the ranks run in {fallback}",
            file=sys.stderr,
        )
        fallback.mkdir(exist_ok=True)
        os.chdir(fallback)


def _make_local_run_dir(spec: HostSpec) -> Path:
    """Create a run directory on this machine's own disk.

    A shared home may be slow, and pids are unique only per machine.

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
            "  Ask its owner to fix or remove it, or use another folder for temporary files there.\n"
            "  Fix: %mhjax start --env TMPDIR=/your/path"
        ) from error
    run_environment = {"MHNB_HOME": str(home)}
    # A pid is not unique either if several containers share this folder.
    run_dir = make_run_dir(
        f"host-{secrets.token_hex(4)}", spec.generation, environment=run_environment, profile=profile_dir("local")
    )
    # Held until this process ends, and so without a name.
    lock_as_alive(run_dir)
    write_supervisor_record(run_dir, is_detachable=spec.is_detachable)
    return run_dir


def assign_gpus(spec: HostSpec, environment: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the GPUs of each rank: its own part, or all.

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
    """Write the hub's connection file, with its key, for local engines."""
    path = run_dir / _CONNECTION
    make_private_folder(path.parent)
    write_private(path, text)


def await_connection_file(run_dir: Path, wait_s: float = _CONNECTION_WAIT_S) -> str:
    """Wait for the hub's connection file on this host; return its content.

    Raises:
        LaunchError: the hub has not written it in that time; its log says why.
    """
    path = run_dir / _CONNECTION
    if text := wait_until(lambda: read_whole_json(path), wait_s, _POLL_S):
        return text
    raise LaunchError(f"ipyparallel's controller did not start within {wait_s:g} s; its log is {hub_log(run_dir)}")


# -- versions of a rank's software


def read_versions() -> dict[str, str]:
    """Return versions of the interpreter and of packages that ranks must share."""
    names = ("jax", "jaxlib", "mhnb", "numpy")
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **{name: v for name, v in found.items() if v}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
