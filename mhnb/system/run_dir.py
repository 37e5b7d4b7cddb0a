"""Run directories (logs and IPython profile) and the list of running clusters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import psutil
from msgspec import field
from platformdirs import user_state_path

from mhnb.core.typed_json import convert, decode_json, encode_json
from mhnb.errors import InvalidRequest, LaunchError
from mhnb.system.private_files import (
    NotPrivate,
    check_ancestors,
    is_own_folder,
    is_shared_temp_folder,
    make_private_folder,
    open_private,
    open_private_folder,
    read_private,
    restrict_folder,
    write_private,
)
from mhnb.system.processes import PROCESS_UNREADABLE, find_start_time_s, is_same_process
from mhnb.system.resources import HUB_SETTINGS, read_profile_files

_RETAINED_RUNS, _RETAINED_RECORDINGS = 20, 5
"""How many ended runs keep their directory, and how many of them their flight recordings and traces, which are larger than logs."""
_NAME_LIMIT_NBYTES = 150
"""In bytes. File names derived from it are longer, and no file system accepts more than 255."""
_KEY_FILES = ("attach.json*", "berth.json*", "mpi.start", "profile/security/*.json")
"""Files of a run directory that hold a key: the transport's key in the first three, the hub's in the others.

The second is of earlier versions.
"""
_ALIVE_FILE = "alive"
_PROFILE_FOLDERS = ("security", "log", "startup", "pid", "db", "static")
SUPERVISOR_MODULES = ("mhnb.rank.supervisor", "mhnb.rank.host")
"""The `python -m` name of a supervisor. The second is that of older versions, whose supervisors may still run."""
SUPERVISOR_MARK = "MHNB_SUPERVISOR"
"""Environment variable that marks a process as started by a supervisor, by one of its ranks or by a cell."""
_RUN_NAME = re.compile(r"[\w-]+\.\d+\.\d+")
_KNOWN_NAMES = re.compile(r"[\w-]+\.\d+(\.\d+)?(\.journal)?|lessons|doctor-.*|\..*")
"""Names that mhnb or (hidden files) file systems create in `state_home`. A folder with only such names is mhnb's alone."""
_FILE = "cluster.json"
_SUPERVISOR_FILE = "supervisor.json"
Pid: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
"""A process id; 0 and negative numbers would name groups of processes, and the system has no larger ones."""


def parse_full_name(run_dir: Path) -> str:
    """Return a cluster's full name: its name and its starter's process id.

    >>> parse_full_name(Path("mhnb/kept.317.2"))
    'kept.317'
    """
    return run_dir.name.rpartition(".")[0]


class _RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `cluster.json`; older versions omit fields with a default."""

    name: str
    machine: str = ""
    """The machine whose process ids these are; empty for this one."""
    owner_pid: Pid = field(name="owner")
    owner_began_s: float | None = None
    """None if the system did not report the start time, here and below."""
    supervisor_pid: Pid = field(name="supervisor")
    supervisor_began_s: float | None = None
    rank_pids: tuple[int | None, ...] = field(name="ranks")
    is_detachable: bool = field(name="keep")
    location: str = field(name="place", default="")
    """Where the ranks run, such as `2 hosts (a, b), profile ssh`."""


class RunRecord(_RunFile, frozen=True, kw_only=True):
    """The processes of a cluster, as its run directory names them."""

    run_dir: str

    @property
    def full_name(self) -> str:
        """The name that is unique among clusters of the same name."""
        return parse_full_name(Path(self.run_dir))


class SupervisorRecord(msgspec.Struct, frozen=True):
    """A supervisor that a notebook on another machine started here."""

    pid: Pid
    is_detachable: bool = field(name="keep")


class _Process(NamedTuple):
    pid: Pid
    began_s: float | None


class _SupervisorMark(NamedTuple):
    """The value of `SUPERVISOR_MARK`."""

    processes: tuple[_Process, ...]
    run_dir: str


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the folder for clusters' files: MHNB_HOME, or the user's state folder.

    Raises:
        InvalidRequest: MHNB_HOME names an unknown user's folder, or this user has no home folder.
    """
    if chosen := environment.get("MHNB_HOME"):
        # Absolute: the notebook may change its working directory while the cluster runs.
        return expand_user(chosen, "MHNB_HOME").absolute()
    try:
        home = user_state_path("mhnb")
    except RuntimeError:
        # Newer versions of platformdirs raise it; older ones return a path that begins with `~`.
        home = Path()
    if not home.is_absolute():
        raise InvalidRequest(
            f"this user (uid {os.geteuid()}) has no home folder, and HOME is not set, so mhnb cannot store journals and logs"
            "\n  Fix: export MHNB_HOME=/path/to/your/folder"
        )
    return home


def expand_user(path: str | os.PathLike[str], label: str = "") -> Path:
    """Return a path with `~` or `~name` replaced.

    Args:
        path: as the user typed it.
        label: of the flag or variable, for the message.

    Raises:
        InvalidRequest: there is no such user here, or the user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        raise InvalidRequest(
            f"{f'{label} {path}'.strip()}: this machine knows no home folder for {user}"
            f"\n  Fix: write the path in full; for a folder that is named {user}: ./{path}"
        ) from error


def find_home() -> Path | None:
    """Return this user's home folder; None for a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


@contextlib.contextmanager
def report_home_errors(environment: Mapping[str, str]) -> Iterator[None]:
    """Turn the block's errors into a LaunchError with folder and fix.

    Raises:
        LaunchError: a file or folder could not be created there.
    """
    try:
        yield
    except NotPrivate as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(
            f"{state_home(environment)}: mhnb cannot store journals and logs here: {error}\n"
            "  Fix: set MHNB_HOME to a writable folder with free space, then start again"
        ) from error


def make_home(environment: Mapping[str, str]) -> Path:
    """Create the folder of `state_home`, accessible to this user only.

    Raises:
        LaunchError: it cannot be created, is writable for others, or belongs to another user.
    """
    with report_home_errors(environment):
        home = state_home(environment)
        if home.exists():
            _check_home(home)
        else:
            make_private_folder(home)
            check_ancestors(home.resolve())
    return home


def _check_home(home: Path) -> None:
    """Restrict the folder to mode 0700, if it has only mhnb's files.

    Raises:
        NotPrivate: it belongs to another user, or holds other files and is writable for others.
    """
    # A user may link it to another disk: the target of the link is checked.
    real = home.resolve()
    check_ancestors(real)
    is_ours = is_own_folder(real) and not is_shared_temp_folder(real)
    if is_ours and all(_KNOWN_NAMES.fullmatch(path.name) for path in real.iterdir()):
        restrict_folder(real)
    else:
        os.close(open_private_folder(real))


def find_cwd() -> str:
    """Return the working directory of this process, which the ranks use too.

    Raises:
        LaunchError: it was removed.
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise LaunchError("the current directory no longer exists\n  Fix: %cd ~ (or any existing directory)") from error


def check_name(name: str) -> str:
    """Return a cluster's name after checking it.

    Raises:
        InvalidRequest: it has characters other than letters, digits, `-` and `_`, or is too long.
    """
    value: object = name
    if not isinstance(value, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"--name {name!r}: expected only letters, digits, - and _")
    if len(name.encode()) > _NAME_LIMIT_NBYTES:
        raise InvalidRequest(
            f"--name {name[:20]}…: {len(name)} characters are too many for a file name; expected at most {_NAME_LIMIT_NBYTES}"
        )
    return name


def make_run_dir(name: str, generation: int, *, environment: Mapping[str, str], profile: Path) -> Path:
    """Create a run directory for this user only, and prune old ones.

    Args:
        name: the cluster's name, a plain word.
        generation: number of the start.
        environment: its MHNB_HOME selects another parent folder.
        profile: the IPython profile directory to start from; the defaults stand for files that it has not.

    Raises:
        InvalidRequest: the name is not a plain word.
        LaunchError: the directory cannot be created.
    """
    check_name(name)
    run_dir = state_home(environment) / f"{name}.{os.getpid()}.{generation}"
    settings = read_profile_files(profile)
    make_home(environment)
    prune_run_dirs(environment)
    with report_home_errors(environment):
        if run_dir.exists():
            shutil.rmtree(run_dir)
        fill_run_dir(run_dir, settings)
    return run_dir


def fill_run_dir(run_dir: Path, settings: Mapping[str, bytes]) -> None:
    """Create the folders and settings files of a run directory.

    IPython creates missing profile folders itself, but with the modes of the umask.
    """
    for folder in (run_dir / "log", *(run_dir / "profile" / name for name in _PROFILE_FOLDERS)):
        make_private_folder(folder)
    for name, text in {**settings, "startup/README": b""}.items():
        with open(run_dir / "profile" / name, "wb", opener=open_private) as file:
            file.write(text)


def configure_hub(run_dir: Path, address: str, *, encrypt: bool) -> None:
    """Set the hub's address for other machines, and its encryption.

    The lines are appended to the run's own copy of the profile, where they can be read.
    """
    lines = [
        "",
        "# Hosts on other machines: added by this start.",
        f"c.IPController.ip = {address!r}",
        f"c.IPController.location = {address!r}",
        f"c.IPController.enable_curve = {encrypt!r}",
    ]
    with (run_dir / "profile" / HUB_SETTINGS).open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def prune_run_dirs(environment: Mapping[str, str]) -> None:
    """Remove directories of ended runs; the most recent keep their logs."""
    home = state_home(environment)
    with report_home_errors(environment):
        if not home.is_dir():
            return
        _check_home(home)
        ended = [
            path
            for path in home.iterdir()
            if _is_run_dir(path) and _is_run_dir_of_this_machine(path) and _has_ended(path)
        ]
    for path in ended:
        # A process that was killed, or whose machine lost power, did not remove its own keys.
        remove_keys(path)
    for name in ("flight", "trace"):
        folders = [folder for path in ended if (folder := path / name).is_dir()]
        prune_folders(folders, retained_count=_RETAINED_RECORDINGS)
    # By what a run creates at its start: removing its keys and recordings changes the time of its own folder.
    prune_folders(ended, retained_count=_RETAINED_RUNS, dated_by="profile")


def list_run_dirs(environment: Mapping[str, str]) -> list[Path]:
    """Return this user's run directories, including those of ended clusters.

    Raises:
        LaunchError: the folder cannot be read.
    """
    with report_home_errors(environment):
        home = state_home(environment)
        return [path for path in home.iterdir() if _is_run_dir(path)] if home.is_dir() else []


def prune_folders(
    ended: Iterable[Path], *, retained_count: int, retained_nbytes: int | None = None, dated_by: str = "."
) -> None:
    """Remove the oldest of some folders, whose processes have ended.

    Args:
        ended: the folders.
        retained_count: how many stay, the most recent ones.
        retained_nbytes: the most that those may have in total; None for no limit.
        dated_by: the file whose time is that of its folder.
    """
    total_nbytes = 0
    for at, path in enumerate(sorted(ended, key=lambda folder: _changed_at(folder / dated_by), reverse=True)):
        is_beyond = at >= retained_count
        if retained_nbytes is not None:
            total_nbytes += _nbytes(path)
            # The newest stays whatever its size, because a user may look for it.
            is_beyond |= at > 0 and total_nbytes > retained_nbytes
        if is_beyond:
            # Another notebook that starts at the same moment may be removing it too.
            shutil.rmtree(path, ignore_errors=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _nbytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        # Another notebook that starts at the same moment is removing it.
        return 0


def remove_keys(run_dir: Path) -> None:
    """Remove the keys of a cluster that has ended; its logs stay."""
    # Another process may be removing the whole directory.
    with contextlib.suppress(FileNotFoundError):
        for pattern in _KEY_FILES:
            for path in run_dir.glob(pattern):
                path.unlink(missing_ok=True)


def _is_run_dir(path: Path) -> bool:
    """Return whether this is a run directory, not the user's own folder."""
    named = _RUN_NAME.fullmatch(path.name) is not None and is_own_folder(path)
    return named and (path / "log").is_dir() and (path / "profile").is_dir()


def _is_run_dir_of_this_machine(path: Path) -> bool:
    """Return whether a run's process ids are valid on this machine."""
    record, _ = _try_read_run_record(path / _FILE)
    return record is None or _is_record_of_this_machine(record)


def _is_record_of_this_machine(record: RunRecord) -> bool:
    return record.machine in ("", socket.gethostname())


def lock_as_alive(run_dir: Path) -> int:
    """Lock a directory as in use while the descriptor is open.

    A forked process has it open too. The process id in the directory's name is not enough: a container that shares this
    folder has other process ids.
    """
    fd = open_private(run_dir / _ALIVE_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def format_supervisor_mark(run_dir: Path) -> str:
    """Return the value of `SUPERVISOR_MARK` for this supervisor's processes.

    It has the run directory, and id and start time of the supervisor and of its parent: the notebook, or its
    representative on another machine.
    """
    processes = tuple(_Process(pid, find_start_time_s(pid)) for pid in (os.getpid(), os.getppid()))
    return encode_json(_SupervisorMark(processes, str(run_dir)))


def is_abandoned_mark(mark: str) -> bool:
    """Return whether a mark's supervisor, its parent and all ranks have ended.

    False if the text is not a mark.
    """
    try:
        found = decode_json(mark, _SupervisorMark)
        return not any(is_same_process(*process) for process in found.processes) and not is_locked(
            Path(found.run_dir) / _ALIVE_FILE
        )
    except ValueError:
        return False


def is_locked(file: Path) -> bool:
    """Return whether a process of any container or machine locks a file."""
    try:
        # Also for writing: some disks can lock no other way.
        with file.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # The file is missing, or its disk has no locks: the process id in a name has to suffice.
        return False
    return False


def is_in_use(lock: Path, pid: int | None) -> bool:
    """Return whether a folder's lock is held or its process lives.

    `pid` is the id in the folder's name; None if another process may have it now.
    """
    return is_locked(lock) or (pid is not None and psutil.pid_exists(pid))


def _has_ended(path: Path) -> bool:
    """Return whether a run has ended; its notebook may still live."""
    record, _ = _try_read_run_record(path / _FILE)
    if record is not None:
        return not (is_locked(path / _ALIVE_FILE) or _has_live_supervisor(record))
    # Without a record it may be starting.
    return not is_in_use(path / _ALIVE_FILE, int(path.name.split(".")[1]))


def write_run_record(
    run_dir: Path,
    name: str,
    supervisor_pid: int,
    rank_pids: Sequence[int | None],
    *,
    is_detachable: bool,
    location: str = "",
) -> None:
    """Record a cluster's processes and location for `mhnb list` and `mhnb stop`."""
    record = _RunFile(
        name=name,
        machine=socket.gethostname(),
        owner_pid=os.getpid(),
        owner_began_s=find_start_time_s(os.getpid()),
        supervisor_pid=supervisor_pid,
        supervisor_began_s=find_start_time_s(supervisor_pid),
        rank_pids=tuple(rank_pids),
        is_detachable=is_detachable,
        location=location,
    )
    write_private(run_dir / _FILE, encode_json(record))


def write_supervisor_record(run_dir: Path, *, is_detachable: bool) -> None:
    """Record whether this supervisor outlives its notebook on another machine."""
    write_private(run_dir / _SUPERVISOR_FILE, encode_json(SupervisorRecord(os.getpid(), is_detachable)))


def read_supervisor_records(home: Path) -> list[SupervisorRecord]:
    """Return the supervisor records in a folder of run directories."""
    read = [_try_read_supervisor_record(path) for path in home.glob(f"*/{_SUPERVISOR_FILE}")]
    return [record for record in read if record is not None]


def _try_read_supervisor_record(path: Path) -> SupervisorRecord | None:
    try:
        return decode_json(read_private(path), SupervisorRecord)
    except (OSError, ValueError):
        # It was just removed or is being written, or it belongs to another user.
        return None


def _read_run_record(path: Path) -> RunRecord:
    """Read the record of a cluster's processes.

    Raises:
        OSError: it cannot be read, or another user could have written it (`NotPrivate`).
        ValueError: it is not such a record, or is one of another version.
    """
    body = decode_json(read_private(path), dict[str, Any])
    return convert(body | {"run_dir": str(path.parent)}, RunRecord)


def _try_read_run_record(path: Path) -> tuple[RunRecord | None, str]:
    """Return a cluster's record, or why it is unreadable; neither if missing."""
    try:
        return _read_run_record(path), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except NotPrivate as error:
        return None, f"left out: {error}"
    except (OSError, ValueError) as error:
        return None, (
            f"left out: {path} cannot be read: {error}\n"
            f"  Fix: if no cluster of yours is running there: rm -r {shlex.quote(str(path.parent))}"
        )


def list_running_clusters(environment: Mapping[str, str]) -> tuple[list[RunRecord], list[str]]:
    """Return this user's running clusters here, and why records were left out.

    Raises:
        LaunchError: the folder of the records is not readable, or is writable for others.
    """
    with report_home_errors(environment):
        home = state_home(environment)
        if home.exists():
            _check_home(home)
        # A user may have such a file in a folder of another name, and no message should propose to remove that.
        files = [path for path in sorted(home.glob(f"*/{_FILE}")) if _RUN_NAME.fullmatch(path.parent.name)]
        read = [_try_read_run_record(path) for path in files]
    running = [
        record
        for record, _ in read
        if record is not None and _is_record_of_this_machine(record) and _has_live_supervisor(record)
    ]
    return running, [fault for _, fault in read if fault]


def read_running_clusters(environment: Mapping[str, str]) -> list[RunRecord]:
    """Return the clusters of this user on this machine whose supervisor lives.

    Raises:
        LaunchError: the folder of the records is not readable, or is writable for others.
    """
    return list_running_clusters(environment)[0]


def find_clusters_named(environment: Mapping[str, str], name: str) -> list[RunRecord]:
    """Return the running clusters with this name or full name."""
    return [record for record in read_running_clusters(environment) if name in (record.name, record.full_name)]


def has_live_notebook(record: RunRecord) -> bool:
    """Return whether the notebook of a cluster of `read_running_clusters` lives."""
    return is_same_process(record.owner_pid, record.owner_began_s)


def _has_live_supervisor(record: RunRecord) -> bool:
    try:
        # Older versions recorded only the id, so check that the process is at least a supervisor.
        return is_same_process(record.supervisor_pid, record.supervisor_began_s) and not set(
            SUPERVISOR_MODULES
        ).isdisjoint(psutil.Process(record.supervisor_pid).cmdline())
    except PROCESS_UNREADABLE:
        return False
