"""Watchdog: ends a command that cannot detect the notebook's end itself.

`python -m mhnb.launchers.watchdog [--keep] [--clean-up WORDS] -- COMMAND...` forwards standard input to the command. When it ends,
because the notebook closed it or was killed, the command's input is closed too. A command that has not ended a moment later is
terminated, because an srun that waits in the queue reads nothing. SIGTERM has the same effect at once, also when the end of standard
input is ignored (`--keep`).
If the command had to be killed, WORDS are run to cancel what it had requested, and the processes it started here are killed with it:
gcloud and mpiexec leave their ssh behind.
`--keep` applies from the line `: mhnb-keep` on. Before that line there is no cluster that another notebook could attach to.
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

KEEP_MARKER = b": mhnb-keep; "
"""Beginning of the line after which `--keep` ignores the end of standard input. A shell ignores it too."""

_GRACE_S = 3.0
"""Time for the ranks to end by themselves when they see the end of their standard input."""
_KILL_S = 8.0
"""Time for a terminated command to end the processes it started."""
_PR_SET_PDEATHSIG = 1


def watchdog_command(command: Sequence[str], *, keep: bool = False, clean_up: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a command under this watchdog.

    Args:
        command: the command to run.
        keep: ignore the end of standard input after the line that begins with `KEEP_MARKER`, so that the command lives on.
        clean_up: command to run if it had to be killed.
    """
    flags = [*(["--keep"] if keep else []), *([f"--clean-up={shlex.join(clean_up)}"] if clean_up else [])]
    return [sys.executable, "-P", "-m", "mhnb.launchers.watchdog", *flags, "--", *command]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, or 128 plus signal number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--clean-up", default="")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signum, _frame: terminated.set())
    # preexec_fn is safe, because there is no other thread yet.
    child = subprocess.Popen(args.command, stdin=subprocess.PIPE, process_group=0, preexec_fn=_terminate_with_parent)  # noqa: PLW1509
    # The notebook decides what a terminal's Ctrl-C means. SIGTERM is passed on to the command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signum, _frame: _start_thread(_terminate, child, 0.0))
    if terminated.is_set():
        # SIGTERM arrived before the handler above was set.
        _start_thread(_terminate, child, 0.0)
    _start_thread(_forward_input, child, args.keep)
    code = child.wait()
    if code < 0:
        _kill_all(child)
    if code < 0 and args.clean_up:
        subprocess.run(shlex.split(args.clean_up), stdin=subprocess.DEVNULL, check=False)
    return code if code >= 0 else 128 - code


def _start_thread(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _terminate_with_parent() -> None:
    """Let Linux terminate the command if this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _forward_input(child: subprocess.Popen[bytes], keep: bool) -> None:  # noqa: FBT001  # started as a thread
    assert child.stdin is not None
    is_kept, tail = False, b""
    while data := os.read(0, 65536):
        # The marker may arrive in two pieces.
        is_kept, tail = is_kept or KEEP_MARKER in tail + data, (tail + data)[-len(KEEP_MARKER) :]
        try:
            child.stdin.write(data)
            child.stdin.flush()
        except BrokenPipeError:
            # The command has ended, or no longer reads: the main thread waits for its end.
            break
    if keep and is_kept:
        return
    # Data that the command has not read is lost.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    _terminate(child, _GRACE_S)


def _terminate(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Terminate the command after the grace period; kill it if necessary."""
    for limit_s, act in ((grace_s, child.terminate), (_KILL_S, lambda: _kill_all(child))):
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            act()


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill the command, and the processes it started in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Another thread may be blocked in a read that never returns.
    os._exit(status)
