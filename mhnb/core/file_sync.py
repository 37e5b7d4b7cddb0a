"""Decide which files go to other machines, and in which messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mhnb.core.transfer import CHUNK_NBYTES

MAX_SYNC_NBYTES = 1 << 30
"""A folder of code is smaller. A folder that holds data belongs on a shared file system."""
_DEFAULT_EXCLUDES = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".ipynb_checkpoints/", ".venv/", "venv/", "node_modules/",
    ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".DS_Store", "*.mhnb-part",
)  # fmt: skip
_BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts that identify one version of a file."""

    nbytes: int
    mode: int
    """Permission bits."""
    digest: str
    """Hash of the contents."""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """Part of a file: bytes `[start, stop)`."""

    path: str
    start: int
    stop: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    is_folder_only: bool
    is_negated: bool

    def matches(self, path: str) -> bool:
        name = path if "/" in self.text else path.rpartition("/")[2]
        return fnmatchcase(name, self.text.removeprefix("/").removeprefix("**/"))


@dataclass(frozen=True, slots=True)
class Excludes:
    """Exclude patterns; the last match decides, as in a .gitignore."""

    patterns: tuple[_Pattern, ...]

    def is_excluded(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path relative to the folder, with slashes, is excluded."""
        matching = [p for p in self.patterns if (is_folder or not p.is_folder_only) and p.matches(path)]
        return bool(matching) and not matching[-1].is_negated


def parse_excludes(gitignore: str = "") -> Excludes:
    r"""Parse a .gitignore, and add patterns for version control, caches and environments.

    Supported are names, `*`, paths from the folder, a slash at the end for folders, `!` to include, `#` for comments.

    >>> parse_excludes("data/\n*.npy\n!keep.npy").is_excluded("sub/x.npy", is_folder=False)
    True
    """
    lines = [*_DEFAULT_EXCLUDES, *(line.strip() for line in gitignore.splitlines())]
    return Excludes(tuple(_parse_pattern(line) for line in lines if line and not line.startswith("#")))


def _parse_pattern(line: str) -> _Pattern:
    text = line.removeprefix("!")
    return _Pattern(text.rstrip("/"), text.endswith("/"), line.startswith("!"))


def remote_path(folder: str, cwd: str) -> str:
    """Return the destination of a folder, relative to the ranks' working directory.

    A folder inside the notebook's directory keeps its relative path. Any other folder goes there under its own name.

    Args:
        folder: absolute.
        cwd: the notebook's directory, where ranks run if their machine has it too.

    >>> remote_path("/me/project", "/me/project"), remote_path("/me/project/lib", "/me/project"), remote_path("/opt/tools", "/me")
    ('', 'lib', 'tools')
    """
    if folder == cwd:
        return ""
    inside = cwd.rstrip("/") + "/"
    return folder.removeprefix(inside) if folder.startswith(inside) else folder.rstrip("/").rpartition("/")[2]


def chunk_files(files: Mapping[str, FileFacts], paths: Iterable[str]) -> Iterator[Sequence[FileChunk]]:
    """Yield each message's content: small files or part of a large one.

    >>> [len(pieces) for pieces in chunk_files({"a": FileFacts(3, 0o644, ""), "b": FileFacts(0, 0o644, "")}, ["a", "b"])]
    [2]
    """
    batch: list[FileChunk] = []
    remaining = CHUNK_NBYTES
    for path in paths:
        nbytes, start = files[path].nbytes, 0
        while True:
            stop = min(nbytes, start + remaining)
            batch.append(FileChunk(path, start, stop, stop == nbytes))
            remaining -= stop - start
            if remaining == 0 or len(batch) == _BATCH_FILES:
                yield batch
                batch, remaining = [], CHUNK_NBYTES
            start = stop
            if start == nbytes:
                break
    if batch:
        yield batch
