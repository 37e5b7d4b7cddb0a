"""Output that bypasses Python: what C code and subprocesses write to file descriptors 1 and 2.

The descriptors point to files, so that a crash loses nothing; here the files are read on. It does not know about cells.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Callable
from os import fstat, pread
from pathlib import Path
from typing import Any

from mhnb.system.private import open_private

__all__ = ["NativeFile", "flush_c_stdout", "line_buffer_c_stdout", "part_noise", "watch_subprocesses"]

_READ_NBYTES = 1 << 20
_IOLBF = 1
_WHOLE = r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number of connected peer ranks is : \d+"
_GREETING = "[Gloo]"
_PIECES = r"(?:\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d)+"
_TELLING = r"(?=.*(?:\[Gloo\] Rank|is connected to|peer ranks))"
# Each device has a thread that prints this line in six pieces: now and then they come interleaved.
_GLOO = re.compile(rf"^{_WHOLE}(?:\n|\Z)|^{_TELLING}{_PIECES}(?:\n|\Z)(?:^\d*\n)*", re.MULTILINE)

_ABSL = re.compile(
    r"^(?:[IW]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+\.(?:cc|cpp|h):\d+\] .*"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR)(?:\n|\Z)",
    re.MULTILINE,
)
"""I and W are information and warning. E and F stay with the user: they tell of what went wrong."""


class NativeFile:
    """The file behind a descriptor, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_RDONLY | os.O_CREAT)
        self._offset = 0
        self._unfinished = ""
        """A greeting of Gloo's of which only the beginning was there."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def offset(self) -> int:
        """Bytes that have been read."""
        return self._offset

    def read_new(self) -> str:
        """Return what was written since the last call. A greeting that is still being written waits for the next one, to be told whole."""
        size = fstat(self._fd).st_size
        if size <= self._offset:
            unfinished, self._unfinished = self._unfinished, ""
            return unfinished
        parts = [self._unfinished]
        while self._offset < size and (data := pread(self._fd, _READ_NBYTES, self._offset)):
            self._offset += len(data)
            parts.append(self._decoder.decode(data))
        text = "".join(parts)
        last = text[text.rfind("\n") + 1 :]
        self._unfinished = last if last.startswith(_GREETING) else ""
        return text.removesuffix(self._unfinished)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._fd)


def part_noise(text: str) -> tuple[str, str]:
    r"""Part what C code printed into what is the user's to see, and what libraries say of themselves.

    Noise is the line that Gloo prints for each new set of devices, and absl's messages below an error.

    >>> part_noise("[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\nhere\n")[0]
    'here\n'
    """
    noise: list[str] = []

    def take(found: re.Match[str]) -> str:
        noise.append(found[0])
        return ""

    shown = _ABSL.sub(take, _GLOO.sub(take, text))
    return shown, "".join(noise)


@functools.cache
def _c_stdout() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """The C library and its `stdout`, which macOS calls `__stdoutp`."""
    library = ctypes.CDLL(None)
    for name in ("stdout", "__stdoutp"):
        try:
            return library, ctypes.c_void_p.in_dll(library, name)
        except ValueError:
            continue
    return None


def line_buffer_c_stdout() -> None:
    """Make C code's prints leave the process line by line, as on a terminal; in a file they would wait for 4 KiB."""
    if (found := _c_stdout()) is not None:
        library, stdout = found
        library.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def flush_c_stdout() -> None:
    """Write out an unfinished line of C's stdout.

    Only that stream: flushing all of them would wait for a thread that reads from one.
    """
    if (found := _c_stdout()) is not None:
        found[0].fflush(found[1])


def watch_subprocesses(seen: Callable[[], None]) -> Callable[[], None]:
    """Call `seen` before each subprocess is started through Python's own doors; return what undoes it."""
    init, system = subprocess.Popen.__init__, os.system

    @functools.wraps(init)
    def popen(self: Any, *args: Any, **kwargs: Any) -> None:
        seen()
        init(self, *args, **kwargs)

    @functools.wraps(system)
    def run(command: Any) -> int:
        seen()
        return system(command)

    def undo() -> None:
        subprocess.Popen.__init__ = init  # type: ignore[method-assign]
        os.system = system

    subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
    os.system = run
    return undo
