"""Create and open folders and files of a single user.

Modes do not depend on the umask, and are checked on the open descriptor. A cluster record names processes and holds
a key: if another user could write it, this process would attach to that user's ranks.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GROUP_OR_OTHERS, _GROUP_OR_OTHERS_WRITE = 0o077, 0o022
_SHARED_TEMP_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # only inspected
_RECORD_LIMIT_NBYTES = 1 << 24
"""Size limit of a record. Records of clusters are far shorter."""
_write_numbers = itertools.count()


class NotPrivate(PermissionError):
    """An untrusted folder or file: another user owns or can write it."""

    reason: str = ""
    """Why, after the path in a sentence. For a file that the user named, whose next step is to name another."""


def make_not_private_error(path: Path, reason: str, next_step: str) -> NotPrivate:
    """Build the error for an untrusted path, with reason and fix."""
    error = NotPrivate(f"{path} {reason}, so mhnb does not trust its contents\n  Fix: {next_step}")
    error.reason = reason
    return error


def _format_owner(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise make_not_private_error(
            path,
            f"belongs to {_format_owner(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):04o}), not to {_format_owner(os.geteuid())}",
            f"if it is yours: chown {os.geteuid()} {shlex.quote(str(path))}; if not, set MHNB_HOME to a folder of your own",
        )


def open_private_folder(path: Path) -> int:
    """Open a folder only this user can write; the caller closes it.

    Raises:
        NotPrivate: it is a symbolic link, belongs to another user, or is writable for others.
        OSError: it cannot be opened.
    """
    fd = _open_folder(path)
    try:
        found = os.fstat(fd)
        _check_owner(path, found)
        if found.st_mode & _GROUP_OR_OTHERS_WRITE:
            raise make_not_private_error(
                path,
                f"has mode {stat.S_IMODE(found.st_mode):04o}: other users can write there",
                # A folder for temporary files is for all users: chmod 700 would lock the others out.
                "set MHNB_HOME to a folder of your own, which may be below it"
                if is_shared_temp_folder(path)
                else f"check what is in it, then: chmod 700 {shlex.quote(str(path))}",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        _refuse_link(path)
        raise


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise make_not_private_error(path, "is a symbolic link", _format_move(path)) from None


def _format_move(path: Path) -> str:
    # Not `rm`, because mhnb did not create it.
    return f"check what it is, then move it away: {shlex.join(['mv', str(path), f'{path}.moved'])}"


def is_shared_temp_folder(path: Path) -> bool:
    """Return whether a path is a shared folder for temporary files.

    The mode and the owner do not decide it: root owns such folders, and a private disk can have the same mode.
    """
    # `tempfile.gettempdir` writes a file, which the limits of this process may forbid.
    shared = filter(
        Path.is_dir, map(Path, (*_SHARED_TEMP_FOLDERS, os.environ.get("TMPDIR") or _SHARED_TEMP_FOLDERS[0]))
    )
    return bool(path.stat().st_mode & stat.S_IWOTH) and any(map(path.samefile, shared))


def is_own_folder(path: Path) -> bool:
    """Return whether a path is this user's folder, not a symbolic link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def restrict_folder(path: Path) -> None:
    """Restrict a folder of this user to mode 0700.

    Raises:
        NotPrivate: it is a symbolic link, belongs to another user, or is on a disk that does not store modes.
        OSError: it cannot be opened.
    """
    fd = _open_folder(path)
    try:
        _check_owner(path, os.fstat(fd))
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o777 != 0o700:
            os.fchmod(fd, 0o700)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & _GROUP_OR_OTHERS:
            raise make_not_private_error(
                path,
                f"keeps mode {mode:04o} after chmod 700: its disk does not store modes",
                "set MHNB_HOME to a folder on another disk",
            )
    finally:
        os.close(fd)


def make_private_folder(path: Path) -> Path:
    """Create a folder and its parents, or restrict it to mode 0700.

    Raises:
        NotPrivate: the path is a symbolic link, or belongs to another user.
        OSError: it cannot be created.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            # Another process created it at the same moment.
            continue
        if stat.S_IMODE(folder.lstat().st_mode) & 0o700 != 0o700:
            # The umask removed even the owner's permissions.
            folder.chmod(0o700)
    restrict_folder(path)
    return path


def check_ancestors(path: Path) -> None:
    """Raise if a world-writable parent lets any user replace the path.

    Such a parent has no sticky bit. The root of a mounted volume is allowed: container volumes are created that way,
    and a container's processes belong to one user. A path inside is still trusted only by its own owner and mode.

    Raises:
        NotPrivate: there is such a parent folder.
    """
    for folder in path.parents:
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not folder.is_mount():
            raise make_not_private_error(
                folder,
                f"has mode {stat.S_IMODE(mode):04o}: every user can replace {path.name} in it",
                f"set MHNB_HOME to another folder\n  Or: ask the owner to run chmod +t {shlex.quote(str(folder))}",
            )


def open_private(path: str | Path, flags: int) -> int:
    """Open this user's file and set mode 0600; an opener for `open`.

    A file that is refused keeps its contents, also with O_TRUNC.

    Raises:
        NotPrivate: the path is a symbolic link, belongs to another user, or is not a regular file.
        OSError: it cannot be opened.
    """
    fd = _open_file(Path(path), flags & ~os.O_TRUNC)
    try:
        found = os.fstat(fd)
        _check_file(Path(path), found)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
        # A child that inherits the file as its output expects a blocking descriptor.
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def touch_private(path: Path) -> None:
    """Create an empty file with mode 0600 if the file is missing."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))


def _open_file(path: Path, flags: int, folder: int | None = None) -> int:
    target = path if folder is None else path.name
    try:
        # O_NONBLOCK: opening a pipe that another user has put there must not block.
        return os.open(target, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError:
        _refuse_link(path)
        raise


def _check_file(path: Path, found: os.stat_result) -> None:
    _check_owner(path, found)
    if not stat.S_ISREG(found.st_mode):
        raise make_not_private_error(path, "is not a regular file", _format_move(path))
    if found.st_nlink > 1:
        raise make_not_private_error(path, f"has {found.st_nlink} names (hard links)", _format_move(path))


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    fd = open_private_folder(path)
    try:
        yield fd
    finally:
        os.close(fd)


def read_private(path: Path, *, limit_nbytes: int | None = _RECORD_LIMIT_NBYTES) -> bytes:
    """Read a file that, like its folder, no other user can write.

    Raises:
        NotPrivate: other users could have written the file.
        FileNotFoundError: the file is missing.
        OSError: the file cannot be read, or is too long.
    """
    with _opened_folder(path.parent) as folder, os.fdopen(_open_file(path, os.O_RDONLY, folder), "rb") as file:
        found = os.fstat(file.fileno())
        _check_file(path, found)
        # Inside a private folder, other users cannot reach the file: older versions left its mode to the umask.
        if found.st_mode & _GROUP_OR_OTHERS_WRITE and os.fstat(folder).st_mode & _GROUP_OR_OTHERS:
            raise make_not_private_error(
                path,
                f"has mode {stat.S_IMODE(found.st_mode):04o}: other users can write it",
                f"check what is in it, then: chmod 600 {shlex.quote(str(path))}",
            )
        data = file.read(-1 if limit_nbytes is None else limit_nbytes + 1)
    if limit_nbytes is not None and len(data) > limit_nbytes:
        raise OSError(f"{path} is longer than {limit_nbytes} bytes")
    return data


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 atomically, despite concurrent readers and writers.

    Raises:
        OSError: it cannot be written.
    """
    # Unique per call, because another process or thread, or a signal handler during this call, may write the same file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{next(_write_numbers)}.new")
    # A killed process may have left one, and its id may be this process's now.
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(temporary, "w", encoding="utf-8", opener=lambda name, _flags: open_private(name, flags)) as file:
        file.write(text)
    temporary.replace(path)
