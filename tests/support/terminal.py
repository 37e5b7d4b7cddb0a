"""A program in a pseudo-terminal: a test types keys and reads what is on the screen."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

__all__ = ["CTRL_C", "CTRL_D", "IPYTHON", "Terminal", "without_codes"]

CTRL_C, CTRL_D = "\x03", "\x04"
IPYTHON = ("IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", "--colors=nocolor")
"""`ipython` that shows text alone, as arguments of `python -m`."""
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\x1b\([A-Z]")
_CLAIM_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A Python program that runs in a pseudo-terminal of 30 lines by 120 characters.

    Args:
        module: the name of a module and its arguments, as of `python -m`.
        source: the text of a program, in place of a module.
        folder: where it runs; the current directory if None.
        environ: variables in addition to those of this process.
    """

    LIMIT_S = 90.0

    def __init__(
        self,
        module: Sequence[str] = IPYTHON,
        *,
        source: str | None = None,
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._controller, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        # A program in between makes the terminal the controlling one, which Ctrl-C needs.
        arguments = ["-m", *module] if source is None else ["-c", source]
        command = [sys.executable, "-c", _CLAIM_TERMINAL, sys.executable, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=folder,
            # A pseudo-terminal answers no question about the place of its cursor.
            env=os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"} | dict(environ or {}),
            start_new_session=True,
        )
        os.close(terminal)
        self._unread = self._shown = ""

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._controller, text.encode())

    def read_until(self, text: str) -> str:
        """Return what is shown up to and including a text, with the codes that move the cursor or set a colour."""
        while text not in self._unread:
            assert self._receive(repr(text)), f"the program ended before {text!r}, after {self._unread[-2000:]!r}"
        shown, _, self._unread = self._unread.partition(text)
        return shown + text

    def ask(self, line: str, until: str) -> str:
        """Type a line; return what is shown up to a text, without codes."""
        self.press(line + "\n")
        return without_codes(self.read_until(until))

    def read_to_end(self) -> str:
        """Return all that is shown until the program ends, without codes."""
        while self._receive("the end of the program"):
            continue
        return without_codes(self._unread)

    @property
    def place(self) -> int:
        """How much was shown so far, for `wait_for`."""
        return len(self._shown)

    def wait_for(self, pattern: str, since: int) -> re.Match[str]:
        """Wait until what was shown since a place, without codes, has a match. It may have been read before, and is not consumed."""
        while (found := re.search(pattern, without_codes(self._shown[since:]), re.MULTILINE)) is None:
            assert self._receive(repr(pattern)), f"the program ended before {pattern!r}, after {self._shown[since:]!r}"
        return found

    def wait_until_blocked(self) -> None:
        """Wait until the program waits for a key. Python may miss a Ctrl-C that comes just before, or while it waits for a lock."""
        pid = self.process.pid
        waits_for = Path(f"/proc/{pid}/wchan")
        while psutil.Process(pid).status() != psutil.STATUS_SLEEPING or (
            waits_for.exists() and waits_for.read_text().startswith("futex")
        ):
            os.sched_yield()

    def _receive(self, what: str) -> bool:
        """Read what there is, or wait for it. Return False if the program has ended."""
        ready, _, _ = select.select([self._controller], [], [], self.LIMIT_S)
        assert ready, f"no {what} after {self._unread[-2000:]!r}"
        try:
            read = os.read(self._controller, 1 << 16).decode(errors="replace")
        except OSError:  # Linux reports the end of the program in this way, other systems with an empty read
            return False
        self._unread += read
        self._shown += read
        return bool(read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        os.close(self._controller)


def without_codes(shown: str) -> str:
    """Return a text of a terminal without the codes that move the cursor or set a colour, and with plain line ends."""
    return _CONTROLS.sub("", shown).replace("\r", "")
