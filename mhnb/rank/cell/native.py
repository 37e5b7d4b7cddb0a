"""Output that bypasses Python: what C code and subprocesses write to file descriptors 1 and 2.

The descriptors point to files, so that a crash loses nothing. This module reads what is added to them. It does not know cells.
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

__all__ = ["NativeFile", "flush_c_stdout", "hook_subprocesses", "line_buffer_c_stdout", "split_library_noise"]

_READ_NBYTES = 1 << 20
_IOLBF = 1
_GLOO_LINE = r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number of connected peer ranks is : \d+"
_GLOO_PREFIX = "[Gloo]"
_GLOO_FRAGMENTS = (
    r"(?:\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d)+"
)
_GLOO_MARKER = r"(?=.*(?:\[Gloo\] Rank|is connected to|peer ranks))"
# Each device has a thread that prints this line in six pieces, which are sometimes interleaved.
_GLOO = re.compile(rf"^{_GLOO_LINE}(?:\n|\Z)|^{_GLOO_MARKER}{_GLOO_FRAGMENTS}(?:\n|\Z)(?:^\d*\n)*", re.MULTILINE)

_ABSL = re.compile(
    r"^(?:[IW]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+\.(?:cc|cpp|h):\d+\] .*"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR)(?:\n|\Z)",
    re.MULTILINE,
)
"""I and W are information and warning. E and F are shown to the user: they report what went wrong."""


class NativeFile:
    """The file behind a descriptor, read from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._fd = open_private(path, os.O_RDONLY | os.O_CREAT)
        self._offset = 0
        self._partial_greeting = ""
        """The beginning of a greeting of Gloo's that was not complete."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def offset(self) -> int:
        """Number of bytes that have been read."""
        return self._offset

    def read_new(self) -> str:
        """Return what was written since the last call. An incomplete Gloo greeting is kept for the next call."""
        size = fstat(self._fd).st_size
        if size <= self._offset:
            unfinished, self._partial_greeting = self._partial_greeting, ""
            return unfinished
        parts = [self._partial_greeting]
        while self._offset < size and (data := pread(self._fd, _READ_NBYTES, self._offset)):
            self._offset += len(data)
            parts.append(self._decoder.decode(data))
        text = "".join(parts)
        last = text[text.rfind("\n") + 1 :]
        self._partial_greeting = last if last.startswith(_GLOO_PREFIX) else ""
        return text.removesuffix(self._partial_greeting)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def split_library_noise(text: str) -> tuple[str, str]:
    r"""Split output of C code into what the user should see, and what libraries print about themselves.

    Noise is the line that Gloo prints for each new set of devices, and absl's messages below the level of an error.

    >>> split_library_noise("[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\nhere\n")[0]
    'here\n'
    """
    noise: list[str] = []

    def collect(found: re.Match[str]) -> str:
        noise.append(found[0])
        return ""

    shown = _ABSL.sub(collect, _GLOO.sub(collect, text))
    return shown, "".join(noise)


@functools.cache
def _c_stdout() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """Return the C library and its `stdout`, which macOS calls `__stdoutp`. None if it has neither."""
    library = ctypes.CDLL(None)
    for name in ("stdout", "__stdoutp"):
        try:
            return library, ctypes.c_void_p.in_dll(library, name)
        except ValueError:
            continue
    return None


def line_buffer_c_stdout() -> None:
    """Make C code's output leave the process line by line, as on a terminal; in a file it would wait for 4 KiB."""
    if (found := _c_stdout()) is not None:
        library, stdout = found
        library.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def flush_c_stdout() -> None:
    """Write out an unfinished line of C's stdout.

    Only that stream is flushed: flushing all of them would wait for a thread that reads from one.
    """
    if (found := _c_stdout()) is not None:
        found[0].fflush(found[1])


def hook_subprocesses(before_start: Callable[[], None]) -> Callable[[], None]:
    """Call `before_start` before Python's own functions start a subprocess. Return a function that undoes this."""
    init, system = subprocess.Popen.__init__, os.system

    @functools.wraps(init)
    def popen(self: Any, *args: Any, **kwargs: Any) -> None:
        before_start()
        init(self, *args, **kwargs)

    @functools.wraps(system)
    def run(command: Any) -> int:
        before_start()
        return system(command)

    def undo() -> None:
        subprocess.Popen.__init__ = init  # type: ignore[method-assign]
        os.system = system

    subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
    os.system = run
    return undo
