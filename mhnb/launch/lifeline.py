"""Holds a command that must not outlive the notebook, and that would not see by itself that the notebook is gone.

`python -m mhnb.launch.lifeline [--keep] [--clean-up WORDS] -- COMMAND...`: standard input goes on to the command as it comes. When it ends,
because the notebook let go of it or was killed, so does the command's, and what has not ended a moment later is told to: an srun that
waits in the queue reads nothing. SIGTERM says the same at once, also where the end of standard input means nothing (`--keep`).
Where the command had to be killed, WORDS are run, to take back what it had asked for; and what it has started here goes with it:
gcloud and mpiexec leave their ssh behind.
What is to be kept is kept from the line `: mhnb-keep` on: before that it is no cluster yet, and nobody could take it over.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

__all__ = ["KEEP", "lifeline_command", "main"]

KEEP = b": mhnb-keep; "
"""Begins the line from which on the end of standard input means nothing, with `--keep`. To a shell it is nothing either."""

_GRACE_S = 3.0
"""For the ranks to end by themselves, when they see the end of their standard input."""
_KILL_S = 8.0
"""For the command to end what it has started, once it was told to."""
_PR_SET_PDEATHSIG = 1


def lifeline_command(command: Sequence[str], *, keep: bool = False, clean_up: Sequence[str] = ()) -> list[str]:
    """Give the words that run a command so.

    Args:
        command: to be held.
        keep: after the line that begins with `KEEP`, the end of standard input means nothing: it lives on.
        clean_up: words to run where it had to be killed.
    """
    flags = [*(["--keep"] if keep else []), *([f"--clean-up={shlex.join(clean_up)}"] if clean_up else [])]
    return [sys.executable, "-P", "-m", "mhnb.launch.lifeline", *flags, "--", *command]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command to its end; return its exit code, 128 and the signal's number where a signal ended it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--clean-up", default="")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signum, _frame: told.set())
    # There is no other thread yet.
    child = subprocess.Popen(args.command, stdin=subprocess.PIPE, process_group=0, preexec_fn=_end_with_us)  # noqa: PLW1509
    # A terminal's Ctrl-C is the notebook's to interpret; to be told to end is to tell the command so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signum, _frame: _begin(_end, child, 0.0))
    if told.is_set():
        # In the moment before.
        _begin(_end, child, 0.0)
    _begin(_feed, child, args.keep)
    code = child.wait()
    if code < 0:
        _kill_all(child)
    if code < 0 and args.clean_up:
        subprocess.run(shlex.split(args.clean_up), stdin=subprocess.DEVNULL, check=False)
    return code if code >= 0 else 128 - code


def _begin(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _end_with_us() -> None:
    """Have the command told to end when this process is killed: it may read nothing, and so not see the end of its input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _feed(child: subprocess.Popen[bytes], keep: bool) -> None:  # noqa: FBT001  # of a thread
    assert child.stdin is not None
    kept, tail = False, b""
    while data := os.read(0, 65536):
        # The word may come in two pieces.
        kept, tail = kept or KEEP in tail + data, (tail + data)[-len(KEEP) :]
        try:
            child.stdin.write(data)
            child.stdin.flush()
        except BrokenPipeError:
            # It has ended, or reads no more: the main thread waits for its end.
            break
    if keep and kept:
        return
    # What it has not read goes with it.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    _end(child, _GRACE_S)


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Tell it to end, after so long, and kill it where that does not help."""
    for limit_s, act in ((grace_s, child.terminate), (_KILL_S, lambda: _kill_all(child))):
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            act()


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill it, and what it has started and left in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Another thread may stand in a read that nothing ends.
    os._exit(status)
