"""Run the blocks of a documentation page as one notebook session: `python -m tests.support.page_session`.

A process of its own for each page counts from In [1], has no variables and no clusters of other tests.
It reads a JSON list of [source, kind, typed lines] from stdin and writes a JSON list of the outputs to stdout.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mhnb.cluster import manager
from mhnb.core.state import cell_parts
from mhnb.magics import completion

_COMMAND_TIMEOUT_S = 100.0
_SETTLED = "no progress"
_MAX_LOOKS = 60
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _run_command(line: str) -> str:
    """Run a command line of the page and return all that it printed."""
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(
        command,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    return done.stdout


class _Keyboard(io.TextIOBase):
    """Standard input of a terminal at which a user types the given lines, one each time a line is read, and then Ctrl-D."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = iter(lines)

    def isatty(self) -> bool:
        """Return True, because a user types here."""
        return True

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        """Return the next line, and show it as a terminal does; empty at the end."""
        line = next((line + "\n" for line in self._lines), "")
        sys.stdout.write(line)
        return line


class _Screen(io.StringIO):
    """Standard output of a terminal that cannot redraw what it has shown."""

    def isatty(self) -> bool:
        """Return True, because the user reads here."""
        return True


@contextmanager
def _typing(lines: Sequence[str]) -> Iterator[None]:
    """Let a user type the lines in a terminal."""
    stdin, sys.stdin = sys.stdin, _Keyboard(lines)
    try:
        yield
    finally:
        sys.stdin = stdin


def _run_cell(shell: InteractiveShell, source: str, typed: Sequence[str] | None = None) -> str:
    """Run a notebook cell and return what it printed.

    Args:
        shell: of the session.
        source: of the cell.
        typed: what the user types in a terminal, and what the output then has where it was read; None without a terminal.
    """
    printed = io.StringIO() if typed is None else _Screen()
    with redirect_stdout(printed), redirect_stderr(printed), nullcontext() if typed is None else _typing(typed):
        shell.run_cell(source, store_history=True)
    return _ANSI.sub("", printed.getvalue())


def _run_hanging_cell(shell: InteractiveShell, source: str, command: str) -> tuple[str, str]:
    """Run a cell that hangs; interrupt it as soon as the command has seen twice that no rank moves. Return both outputs."""
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(_watch, command)
        output = _run_cell(shell, source)
        return output, watch.result()


def _watch(command: str) -> str:
    """Run the command until it says that the ranks make no progress, then interrupt the main thread as Ctrl-C does."""
    try:
        for _ in range(_MAX_LOOKS):
            if _SETTLED in (output := _run_command(command)):
                break
        return output
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Run the blocks; stop the clusters that they leave."""
    completion._ANSWER_TIMEOUT_S = 30.0  # half a second is too short on a loaded machine
    # A prompt comes when every rank has stopped, waits or has ended, however long that takes on a loaded machine.
    cell_parts._SILENT_AFTER_S = 30.0
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    shell = InteractiveShell.instance(config=config)
    blocks = json.load(sys.stdin)
    # On a page with sessions, all cells are typed in one terminal.
    has_terminal = any(typed for _, _, typed in blocks)
    outputs: list[str] = []
    try:
        while len(outputs) < len(blocks):
            source, kind, typed = blocks[len(outputs)]
            if kind == "hanging cell":
                command = blocks[len(outputs) + 1][0]
                outputs += _run_hanging_cell(shell, source, command)
            else:
                lines = typed if has_terminal else None
                outputs.append(_run_command(source) if kind == "command" else _run_cell(shell, source, lines))
    finally:
        for cluster in manager.all_clusters():
            cluster.stop()
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main()
