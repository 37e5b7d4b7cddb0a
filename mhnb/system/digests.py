"""Digest of a file, by which two machines compare whether they have the same content."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["digest_file"]


def digest_file(path: Path) -> str:
    """Return the BLAKE2b digest of a file's content.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
