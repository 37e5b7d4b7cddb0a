"""`mhnb lab`: open the lessons in JupyterLab, and wait until it ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

_ROOT_HINT = """mhnb lab: JupyterLab does not start for root without --allow-root
  Fix: mhnb lab --allow-root
  Or: make lab LAB=--allow-root"""


def add_lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb lab`."""
    parser.add_argument(
        "--lesson",
        default="00",
        metavar="LESSON",
        help="lesson to open first, by number or name, for example 03 or deadlock (default: 00, the tour)",
    )
    parser.add_argument(
        "--folder",
        default="mhnb-notebooks",
        help="folder for your copy of the notebooks; files that exist there are kept (default: mhnb-notebooks)",
    )


def add_progress_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb progress`."""
    parser.add_argument("lesson", metavar="LESSON", nargs="?", help="a lesson by number or name (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON; the reference lists its keys")


PROGRESS_DETAILS = """\
Answers are those of this user, in the folder of MHNB_HOME.
With --json, a list of objects, one for each lesson, with these keys:
  lesson, title         lesson is its number, such as 03
  exercises             for each: name, difficulty, done, tries, status
  predictions           for each: name, made, right; right is null until it is revealed"""


def run_progress(args: argparse.Namespace) -> int:
    """Print how far the lessons are."""
    # The exercises use NumPy, which takes a while to import.
    from mhnb.teach import progress

    if (text := progress(args.lesson, as_json=args.json)) is not None:
        print(text)
    return 0


def run_lab(args: argparse.Namespace) -> int:
    """Run JupyterLab and return its exit status."""
    from mhnb.system.resources import copy_notebooks, find_lesson, find_old_copies
    from mhnb.system.run_dir import expand_user

    if find_spec("jupyterlab") is None:
        print("mhnb lab: JupyterLab is not installed\n  Fix: pip install 'mhnb[lab]'", file=sys.stderr)
        return 2
    file = find_lesson(args.lesson)
    folder = copy_notebooks(expand_user(args.folder, "--folder"))
    lesson = folder / file
    command = [sys.executable, "-m", "jupyter", "lab", str(lesson), *args.rest]
    if old := find_old_copies(folder):
        print(f"the course has new numbers; your copies with the former ones are kept: {', '.join(old)}")
    print(
        f"opening {lesson} in JupyterLab; the other lessons are in the same folder; Ctrl-C ends JupyterLab", flush=True
    )
    status = _run_until_exit(command)
    if status != 0 and os.geteuid() == 0 and "--allow-root" not in args.rest:
        print(_ROOT_HINT, file=sys.stderr)
    return status


def _run_until_exit(command: Sequence[str]) -> int:
    """Run a program that shuts down by itself, and wait for it.

    If `mhnb` ended first, the program's kernels and their ranks would be left running.
    """
    programs: list[subprocess.Popen[bytes]] = []

    def terminate(*_: object) -> None:
        for program in programs:
            program.terminate()

    previous_handlers = {
        # A terminal sends Ctrl-C to the program too, and JupyterLab then asks for confirmation.
        # `SIG_IGN` would be inherited by the program, so use a handler that does nothing.
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    try:
        programs.append(subprocess.Popen(command))
        status = programs[0].wait()
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)
    # A program that was terminated by a requested signal has succeeded.
    return 0 if status in (-signal.SIGINT, -signal.SIGTERM) else status
