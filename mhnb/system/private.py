"""Folders and files that belong to one user alone: made so whatever the umask, and checked on the open descriptor before they are trusted.

A record of a cluster names processes and holds a key. One that another user has written would have us attach to his ranks.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "NotPrivate",
    "check_ancestors",
    "is_for_all",
    "is_own_folder",
    "make_private_folder",
    "open_private",
    "open_private_folder",
    "read_private",
    "refuse",
    "tighten_folder",
    "touch_private",
    "write_private",
]

_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # looked at alone
_LONGEST_NBYTES = 1 << 24
"""Of a record. No note of a cluster comes near it."""


class NotPrivate(PermissionError):
    """Another user owns a folder or a file, or can write it: nothing in it is trusted."""


def refuse(path: Path, why: str, next_step: str) -> NotPrivate:
    """Make the error of a path that is not trusted: what, why, what to do next."""
    return NotPrivate(f"{path} {why}, so mhnb does not trust what is in it\n  {next_step}")


def _say_owner(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise refuse(
            path,
            f"belongs to {_say_owner(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):04o}), not to {_say_owner(os.geteuid())}",
            f"if it is yours: chown {os.geteuid()} {shlex.quote(str(path))}; else leave it, and set MHNB_HOME to a folder of your own",
        )


def open_private_folder(path: Path) -> int:
    """Open a folder of ours that no other user can write to. The caller closes the descriptor.

    Raises:
        NotPrivate: it is a link, another user's, or others can write to it.
        OSError: it cannot be opened.
    """
    fd = _open_folder(path)
    try:
        found = os.fstat(fd)
        _check_owner(path, found)
        if found.st_mode & _OTHERS_WRITE:
            raise refuse(
                path,
                f"has mode {stat.S_IMODE(found.st_mode):04o}: other users can write there",
                # Such a folder is for all users, as that for temporary files: to close it would lock them out.
                "set MHNB_HOME to a folder of your own, which may be below it"
                if is_for_all(path)
                else f"look at what is in it, then: chmod 700 {shlex.quote(str(path))}",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise refuse(path, "is a symbolic link", f"remove it: rm {shlex.quote(str(path))}") from None
        raise


def is_for_all(path: Path) -> bool:
    """Whether a path is a folder for temporary files that all users share. As root it is ours; a disk of our own has the same mode."""
    # Not `tempfile.gettempdir`: it writes a file, which the limits of this process may forbid.
    shared = filter(Path.is_dir, map(Path, (*_SHARED, os.environ.get("TMPDIR") or _SHARED[0])))
    return bool(path.stat().st_mode & stat.S_IWOTH) and any(map(path.samefile, shared))


def is_own_folder(path: Path) -> bool:
    """Whether a path is a folder of this user, and no link to one."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def tighten_folder(path: Path) -> None:
    """Close a folder of ours to all other users.

    Raises:
        NotPrivate: it is a link, another user's, or on a disk that keeps no modes.
        OSError: it cannot be opened.
    """
    fd = _open_folder(path)
    try:
        _check_owner(path, os.fstat(fd))
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o777 != 0o700:
            os.fchmod(fd, 0o700)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & _OTHERS:
            raise refuse(
                path,
                f"keeps mode {mode:04o} after chmod 700: its disk knows no modes",
                "set MHNB_HOME to a folder on another disk",
            )
    finally:
        os.close(fd)


def make_private_folder(path: Path) -> Path:
    """Make a folder of mode 0700, and those above it that are missing; one that is ours already is closed to others.

    Raises:
        NotPrivate: what is there is a link, or another user's.
        OSError: it cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            # Another process has made it in this moment.
            continue
        if stat.S_IMODE(folder.lstat().st_mode) & 0o700 != 0o700:
            # The umask takes even our own rights.
            folder.chmod(0o700)
    tighten_folder(path)
    return path


def check_ancestors(path: Path) -> None:
    """Refuse a path below a folder where every user can exchange it for another one: writable for all, without the sticky bit.

    The root of a mounted volume may be so: the volumes of a container are made that way, and its processes are one user's.
    What lies in such a folder is still trusted only by its own owner and mode.

    Raises:
        NotPrivate: there is such a folder.
    """
    for folder in path.parents:
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not folder.is_mount():
            raise refuse(
                folder,
                f"has mode {stat.S_IMODE(mode):04o}: every user can exchange {path.name} there for another",
                f"set MHNB_HOME to another place, or have its owner say: chmod +t {shlex.quote(str(folder))}",
            )


def open_private(path: str | Path, flags: int) -> int:
    """Open a file of ours, made with mode 0600 where it is not there; an opener for `open`.

    Raises:
        NotPrivate: what is there is a link, another user's, or no plain file.
        OSError: it cannot be opened.
    """
    fd = _open_file(Path(path), flags)
    try:
        found = os.fstat(fd)
        _check_file(Path(path), found)
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
        # A child that gets the file as its output expects one that waits.
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def touch_private(path: Path) -> None:
    """Make an empty file of mode 0600, where there is none."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))


def _open_file(path: Path, flags: int, folder: int | None = None) -> int:
    named = path if folder is None else path.name
    try:
        # O_NONBLOCK: a pipe that another user has put there must not hold us up.
        return os.open(named, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError:
        if path.is_symlink():
            raise refuse(path, "is a symbolic link", f"remove it: rm {shlex.quote(str(path))}") from None
        raise


def _check_file(path: Path, found: os.stat_result) -> None:
    _check_owner(path, found)
    if not stat.S_ISREG(found.st_mode):
        raise refuse(path, "is no plain file", f"remove it: rm {shlex.quote(str(path))}")
    if found.st_nlink > 1:
        raise refuse(path, f"has {found.st_nlink} names (hard links)", f"remove it: rm {shlex.quote(str(path))}")


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    fd = open_private_folder(path)
    try:
        yield fd
    finally:
        os.close(fd)


def read_private(path: Path, *, limit_nbytes: int | None = _LONGEST_NBYTES) -> bytes:
    """Read a file of ours in a folder of ours: both are checked on the descriptor that is then read.

    Raises:
        NotPrivate: others could have written it.
        FileNotFoundError: it is not there.
        OSError: it cannot be read, or is too long.
    """
    with _opened_folder(path.parent) as folder, os.fdopen(_open_file(path, os.O_RDONLY, folder), "rb") as file:
        found = os.fstat(file.fileno())
        _check_file(path, found)
        # Nobody else comes as far as a file in a closed folder: older versions left its mode to the umask.
        if found.st_mode & _OTHERS_WRITE and os.fstat(folder).st_mode & _OTHERS:
            raise refuse(
                path,
                f"has mode {stat.S_IMODE(found.st_mode):04o}: other users can write it",
                f"look at what is in it, then: chmod 600 {shlex.quote(str(path))}",
            )
        data = file.read(-1 if limit_nbytes is None else limit_nbytes + 1)
    if limit_nbytes is not None and len(data) > limit_nbytes:
        raise OSError(f"{path} is longer than {limit_nbytes} bytes")
    return data


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 in one step: others may read it at any time.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(fresh, "w", encoding="utf-8", opener=lambda name, _flags: open_private(name, flags)) as file:
        file.write(text)
    fresh.replace(path)
