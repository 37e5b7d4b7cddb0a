"""The digest by which two machines find out whether a file is the same on both."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["digest_file"]


def digest_file(path: Path) -> str:
    """Hash what is in a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
