"""Shorten the stack inside an error message: XLA writes Python's whole stack into the error of a callback that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

__all__ = ["trim_embedded_traceback"]

_TRACEBACK_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+, in .+')
_CELL = re.compile(r"<cell \d+>")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?P<name>\w+)|[/\\]lib(?:64)?[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)(?P<std>\w+)|^<frozen "
)


def trim_embedded_traceback(message: str) -> str:
    r"""Remove the frames above the cell's own first frame from a stack in a message, and count the library frames below it.

    A message without a stack, or without a frame of a cell, stays as it is.

    >>> stack = '  File "/x/loop.py", line 8, in run\n  File "<cell 3>", line 2, in f'
    >>> trim_embedded_traceback(f"INTERNAL: Traceback (most recent call last):\n{stack}\nValueError: no").splitlines()[1:]
    ['  File "<cell 3>", line 2, in f', 'ValueError: no']
    """
    if _TRACEBACK_HEADER not in message:
        return message
    lines = message.split("\n")
    kept: list[str] = []
    for is_frame, run in groupby(lines, key=lambda line: _FRAME.fullmatch(line) is not None):
        same = list(run)
        is_stack = is_frame and kept and kept[-1].endswith(_TRACEBACK_HEADER)
        kept += _trim_frames(same) if is_stack else same
    return "\n".join(kept)


def _trim_frames(frames: Sequence[str]) -> Iterator[str]:
    first = next((at for at, frame in enumerate(frames) if _CELL.fullmatch(_frame_path(frame))), None)
    if first is None:
        yield from frames
        return
    for library, run in groupby(frames[first:], key=_library_name):
        inside = list(run)
        if library:
            yield f"    … {len(inside)} {'frame' if len(inside) == 1 else 'frames'} inside {library}"
        else:
            yield from inside


def _frame_path(frame: str) -> str:
    found = _FRAME.fullmatch(frame)
    assert found is not None
    return found["path"]


def _library_name(frame: str) -> str:
    found = _LIBRARY.search(_frame_path(frame))
    return (found["name"] or found["std"] or "Python") if found else ""
