"""Which files of a folder are sent to other machines, and in which messages."""

from __future__ import annotations

import pytest

from mhnb.core.file_sync import FileFacts, chunk_files, parse_excludes, remote_path
from mhnb.core.transfer import CHUNK_NBYTES

IGNORE = """
# data stays here
/data/
*.npy
!keep.npy
docs/*.html
**/cache
"""


@pytest.mark.parametrize(
    ("path", "is_folder", "stays"),
    [
        ("train.py", False, False),
        (".git", True, True),
        ("sub/__pycache__", True, True),
        ("sub/old.pyc", False, True),
        ("data", True, True),
        ("data", False, False),
        ("sub/x.npy", False, True),
        ("sub/keep.npy", False, False),
        ("docs/index.html", False, True),
        ("index.html", False, False),
        ("cache", True, True),
    ],
)
def test_excluded_files(path: str, is_folder: bool, stays: bool) -> None:  # noqa: FBT001
    """The folder's own .gitignore decides, apart from files that are never code."""
    assert parse_excludes(IGNORE).is_excluded(path, is_folder=is_folder) is stays


@pytest.mark.parametrize(
    ("folder", "place"), [("/me/p", ""), ("/me/p/a/b", "a/b"), ("/me/pq", "pq"), ("/opt/lib/", "lib"), ("/me", "me")]
)
def test_remote_path_of_a_folder(folder: str, place: str) -> None:
    """A folder inside the notebook's folder keeps its path; any other is placed under its own name."""
    assert remote_path(folder, "/me/p") == place


def test_pieces_contain_every_byte_once_in_order() -> None:
    """The last part of a large file is marked; empty files are included; no message is longer than a chunk."""
    sizes = {"big": 2 * CHUNK_NBYTES + 5, "empty": 0, "even": CHUNK_NBYTES, **{f"s{n}": 3 for n in range(1000)}}
    files = {path: FileFacts(nbytes, 0o644, "") for path, nbytes in sizes.items()}
    received = dict.fromkeys(sizes, 0)
    completed = []
    for pieces in chunk_files(files, sizes):
        assert sum(piece.stop - piece.start for piece in pieces) <= CHUNK_NBYTES
        for piece in pieces:
            assert piece.start == received[piece.path]
            received[piece.path] = piece.stop
            completed += [piece.path] if piece.is_last else []
    assert received == sizes
    assert completed == list(sizes)
