"""Run the blocks of a documentation page as one notebook session: `python -m tests.support.page_session`.

A process of its own for each page counts from In [1], has no variables and no clusters of other tests.
It reads a JSON list of [source, kind] from stdin and writes a JSON list of the outputs to stdout.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mhnb.cluster import manager
from mhnb.magics import completion

_COMMAND_TIMEOUT_S = 100.0
_SETTLED = "no progress"
_MAX_LOOKS = 60


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


def _run_cell(shell: InteractiveShell, source: str) -> str:
    """Run a notebook cell and return what it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        shell.run_cell(source, store_history=True)
    return printed.getvalue()


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
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    shell = InteractiveShell.instance(config=config)
    blocks = json.load(sys.stdin)
    outputs: list[str] = []
    try:
        while len(outputs) < len(blocks):
            source, kind = blocks[len(outputs)]
            if kind == "hanging cell":
                command, _ = blocks[len(outputs) + 1]
                outputs += _run_hanging_cell(shell, source, command)
            else:
                outputs.append(_run_command(source) if kind == "command" else _run_cell(shell, source))
    finally:
        for cluster in manager.all_clusters():
            cluster.stop()
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main()
