"""Run `!command` as a terminal's user expects it, on a rank that has no keyboard: what it says comes at once, and reading ends at once.

IPython's own way forks Python, which JAX warns of as a deadlock to come; and there a command that asks something waits for ever.
It knows nothing of cells.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import selectors
import signal
import subprocess
import termios
from collections.abc import Callable

import psutil

__all__ = ["run_command"]

_LOOK_S = 0.05
_LAST_WORDS_S = 2.0
"""How long a command may take to end after an interrupt."""
_LAST_READS = 64
"""Once it has ended: more than a terminal holds, and an end where what it left behind never stops to speak."""
_SIZE = (24, 80)
"""Rows and columns: those of a terminal that nobody has resized."""
_SIGNALLED = 128
"""A shell ends with this and the signal's number for a command that a signal has ended."""
_NBYTES = 1 << 16


def run_command(command: str, write: Callable[[str], object]) -> int:
    """Run a shell's command to its end.

    Args:
        command: for the user's shell, `$SHELL`.
        write: is given what the command says, on stdout and stderr alike.

    Returns:
        Its exit status; minus the signal's number where a signal has ended it.

    Raises:
        KeyboardInterrupt: as it came; the command has got it too, and has ended.
        OSError: there is no such shell, or no process to be had.
    """
    ours, its = pty.openpty()
    try:
        _set_up(its)
        process = subprocess.Popen(  # noqa: S602 - the user's own command, as typed
            command,
            shell=True,
            executable=os.environ.get("SHELL") or None,
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(its)
    try:
        _copy(ours, process, write)
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        os.close(ours)
    return _SIGNALLED - code if code > _SIGNALLED else code


def _set_up(terminal: int) -> None:
    attributes = termios.tcgetattr(terminal)
    # Lines end as they were written.
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    termios.tcsetwinsize(terminal, _SIZE)


def _copy(terminal: int, process: subprocess.Popen[bytes], write: Callable[[str], object]) -> None:
    """Copy what comes, until the command has ended and no more is there: what it has left behind may have the terminal for ever."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    reads_left = _LAST_READS
    # Not `select`, which takes no descriptor above 1023.
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        while reads_left:
            has_ended = process.poll() is not None
            reads_left -= has_ended
            data = _read(terminal) if selector.select(0 if has_ended else _LOOK_S) else None
            if data:
                write(decoder.decode(data))
            elif has_ended:
                break
            elif data is not None:
                # It has closed its output, and goes on.
                process.wait()
    if rest := decoder.decode(b"", final=True):
        write(rest)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, _NBYTES)
    except OSError:
        # Linux says so where nobody has the other end any more.
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    # Not by a group of its own: what a rank has started is to end with it, however it ends.
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid)
        for signum in (signal.SIGINT, signal.SIGKILL):
            for each in [*started.children(recursive=True), started]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_S)
                return
