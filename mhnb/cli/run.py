"""`mhnb run`: its command line, and a cluster for one script."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mhnb.cli.command import TIMEOUT_STATUS, CommandParser
from mhnb.cluster.flags import add_start_flags, start_arguments
from mhnb.core.arguments import is_positive_seconds, seconds_argument
from mhnb.core.cell_request import GUARDS, guard_argument
from mhnb.errors import InvalidRequest

if TYPE_CHECKING:
    from mhnb.types import StartProgress

USAGE = "mhnb run [OPTIONS] SCRIPT [ARGS ...]\n       mhnb run SCRIPT [OPTIONS] [-- ARGS ...]"
DETAILS = """\
The position of SCRIPT decides whose the words after it are:
  mhnb run -n 4 train.py --lr 3      options before SCRIPT are mhnb's, everything after it belongs to the script
  mhnb run train.py -n 4 -- --lr 3   SCRIPT comes first, or the line has a --: options before -- are mhnb's,
                                     everything after it belongs to the script
The exit status is that of the script: that of the first rank that failed, or 0.
breakpoint() in the script opens the debugger in the terminal; without a terminal it is an error of that rank."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb run`."""
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    _add_run_options(parser)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds_argument,
        metavar="SECONDS",
        help=f"interrupt the script after this time; the exit status is then {TIMEOUT_STATUS} (default: no limit)",
    )
    add_guard_option(parser)
    parser.add_argument(
        "--name", metavar="NAME", help="name of the cluster while the script runs, for mhnb where (default: run-PID)"
    )
    add_start_flags(parser)


def add_guard_option(parser: argparse._ActionsContainer) -> None:
    """Add the option that chooses how the guard compares launches."""
    parser.add_argument(
        "--guard",
        type=guard_argument,
        choices=GUARDS,
        help="compare the programs of the ranks before each launch (lockstep), after the cell (parity), or not (default: lockstep)",
    )


def split_run_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into mhnb's and the script's, by the rule in `DETAILS`.

    >>> split_run_words(["-n", "4", "a.py", "--lr", "3"])
    (['-n', '4', 'a.py'], ['--lr', '3'])
    >>> split_run_words(["a.py", "-n", "4", "--", "--lr", "3"])
    (['a.py', '-n', '4'], ['--lr', '3'])
    """
    if "--" in words:
        at = words.index("--")
        return list(words[:at]), list(words[at + 1 :])
    if not words or not words[0].startswith("-"):
        return list(words), []
    probe = CommandParser(prog="mhnb run", add_help=False)
    _add_run_options(probe)
    probe.add_argument("from_script", nargs=argparse.REMAINDER)
    from_script = probe.parse_known_args(list(words))[0].from_script
    at = len(words) - max(len(from_script) - 1, 0)
    return list(words[:at]), list(words[at:])


def describe_unknown_words(words: Sequence[str], unknown: Sequence[str]) -> str:
    """Return the message for words that are not mhnb's options.

    Args:
        words: of mhnb, after `run`.
        unknown: those of them that argparse did not know, in order.

    >>> describe_unknown_words(["a.py", "-n", "2", "--lr", "3"], ["--lr", "3"]).splitlines()[1]
    '  Fix: mhnb run a.py -n 2 -- --lr 3    (if they belong to the script)'
    """
    fault = f"unrecognized arguments: {' '.join(unknown)}"
    if words[0].startswith("-"):
        return fault
    known = list(words)
    for word in unknown:
        known.remove(word)
    return f"{fault}\n  Fix: {shlex.join(['mhnb', 'run', *known, '--', *unknown])}    (if they belong to the script)"


def run(args: argparse.Namespace) -> int:
    """Run the script on ranks of its own; return its exit status."""
    from mhnb.cli.run_script import read_script, run_script
    from mhnb.cluster.manager import start

    source = read_script(args.script)
    if args.timeout is not None and not is_positive_seconds(args.timeout):
        # Before a rank is started.
        raise InvalidRequest(f"--timeout {args.timeout:g}: expected a number of seconds above 0")
    arguments = {"name": f"run-{os.getpid()}"} | start_arguments(args)
    cluster = start(**arguments, on_progress=QueueProgress("run"))
    try:
        return run_script(cluster, args.script, source, args.arguments, timeout_s=args.timeout)
    finally:
        cluster.stop()


class QueueProgress:
    """Progress callback that prints each new position in a scheduler's queue."""

    def __init__(self, command: str) -> None:
        self._command, self._last_printed = command, ""

    def __call__(self, report: StartProgress) -> None:
        """Print the position if it is new."""
        if report.status not in ("", self._last_printed):
            self._last_printed = report.status
            print(f"mhnb {self._command}: {self._last_printed}", file=sys.stderr)
