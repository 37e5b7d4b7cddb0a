"""`mhnb logs -f`: where the last lines of a log begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.cluster.logs import find_tail


@pytest.mark.parametrize(
    ("text", "count", "tail"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nunfinished", 2, b"b\nunfinished"),
        (b"a\nb\n", 0, b""),
        (b"first\n" + b"x" * 200_000 + b"\nlast\n", 2, b"x" * 200_000 + b"\nlast\n"),
    ],
)
def test_last_lines_are_found(tmp_path: Path, text: bytes, count: int, tail: bytes) -> None:
    """The offset is that of the last lines, also in a file of more than one block, and with an unfinished line."""
    path = tmp_path / "rank0.log"
    path.write_bytes(text)
    with path.open("rb") as file:
        offset = find_tail(file, count)
    assert text[offset:] == tail
