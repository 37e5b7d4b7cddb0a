"""The shell command `mhnb`: parse a command line, and run it."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from mhnb.cli import ask, clusters, completion, control, doctor, fit, lab, profiles, run, start
from mhnb.cli.command import INTERRUPTED_STATUS, CommandParser
from mhnb.cli.help import add_help_arguments, find_topic, format_overview, print_help
from mhnb.commands.command import NOTEBOOK_ONLY, Command, order_by_group
from mhnb.core.arguments import format_unknown
from mhnb.errors import MhnbError

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html", metavar="FILE", default="mhnb-tour.html", help="page to write (default: mhnb-tour.html)"
    )


def _demo(args: argparse.Namespace) -> int:
    from mhnb.cli.demo import run_demo
    from mhnb.system.run_dir import expand_user

    return run_demo(expand_user(args.html, "--html"))


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", metavar="NOTEBOOK", help="the notebook file")
    parser.add_argument(
        "-o", metavar="SCRIPT", help="script to write (default: the notebook's name with .py, in this folder)"
    )
    parser.add_argument("--sbatch", action="store_true", help="also write a batch script for Slurm next to it")
    parser.add_argument(
        "--without",
        metavar="N,NAME,...",
        help="leave out these code cells, given as their position from 1 or as In[3], and these pushed names",
    )


def _export(args: argparse.Namespace) -> int:
    from mhnb.cluster.export import export_notebook, parse_without
    from mhnb.system.run_dir import expand_user

    notebook = expand_user(args.notebook, "export")
    script = expand_user(args.o or notebook.with_suffix(".py").name, "-o")
    without = parse_without(args.without)
    print(*export_notebook(notebook, script, sbatch=args.sbatch, without=without), sep="\n")
    return 0


def _version(args: argparse.Namespace) -> int:
    python = sys.version.split()[0]
    print(f"mhnb {metadata.version('mhnb')}, JAX {metadata.version('jax')}, Python {python} ({sys.executable})")
    return 0


def _help(args: argparse.Namespace) -> int:
    parser = build_parser()
    return print_help(args.name, parser, find_commands(parser), list_names())


_LIST_DETAILS = """\
With --json, a list of objects with these keys:
  name, full_name       full_name is unique also among clusters of the same name
  rank_count, rank_pids the process ids are null until the ranks have reported
  location              hosts, devices per rank and profile
  keep, attached        whether it was started with --keep; whether a notebook is attached
  notebook_pid          the process that is, or was last, attached
  supervisor_pid, run_dir"""
_DOCTOR_DETAILS = """\
The hosts are given as for `mhnb run`. Exit status 1 means that a start would fail.
With --json, an object with these keys:
  ok, duration_s
  hosts                 for each host: host, checks (name of the check -> text, level)
  findings              for each fault: level, check, hosts, text, fix
A level is failure, warning, note, or null."""

COMMANDS: Mapping[str, Command] = order_by_group(
    (
        Command(
            "run",
            run.run,
            "Run a Python script on every rank, and stop the ranks when it ends.",
            "run programs",
            run.add_run_arguments,
            details=run.DETAILS,
            settings={"usage": run.USAGE},
        ),
        Command(
            "export",
            _export,
            "Write the %%mhjax cells of a notebook as one script that runs without mhnb.",
            "take away",
            _add_export_arguments,
        ),
        Command(
            "start",
            start.start_kept,
            "Start a cluster that keeps running, so that notebooks can attach to it.",
            "start and stop",
            start.add_start_arguments,
            details=start.DETAILS,
            settings={"usage": start.USAGE},
        ),
        Command(
            "list",
            clusters.list_clusters,
            "List your clusters on this machine, their hosts, and the notebooks attached.",
            "start and stop",
            clusters.add_json_option,
            details=_LIST_DETAILS,
        ),
        Command(
            "interrupt",
            control.interrupt,
            "Interrupt the running cell of a cluster, also if the notebook's kernel hangs.",
            "get unstuck",
            clusters.add_name_argument,
            details="The process of the notebook interrupts it, in a thread that runs also while a cell hangs.\n"
            "Without a notebook attached, this command attaches to the cluster, ends the cell, and detaches.",
        ),
        Command(
            "restart",
            control.restart,
            "Replace all processes of a cluster, also if the notebook's kernel hangs; --replay restores the variables.",
            "start and stop",
            control.add_restart_arguments,
            details="The process of the notebook replays the cells, and goes on if this command is interrupted; mhnb interrupt ends it.\n"
            "Without a notebook attached, this command attaches to the cluster, restarts it, and detaches.",
        ),
        Command(
            "stop",
            clusters.stop_clusters,
            "Stop a cluster in any state, and all its processes.",
            "start and stop",
            clusters.add_stop_arguments,
            settings={"usage": "mhnb stop [-h] [NAME] [--all]"},
        ),
        Command(
            "cleanup",
            clusters.end_orphans,
            "End the processes that notebooks left behind on this machine.",
            "this machine and other hosts",
            details="Clusters that were started with --keep are not ended; `mhnb stop NAME` stops them.",
            aliases=("reap",),
        ),
        Command(
            "doctor",
            doctor.run,
            "Check this machine, or hosts, for problems that would stop a start.",
            "this machine and other hosts",
            doctor.add_doctor_arguments,
            details=_DOCTOR_DETAILS,
        ),
        Command(
            "fit",
            fit.run,
            "Compile a function for a machine that you do not have: memory, collectives, time.",
            "sharding",
            fit.add_fit_arguments,
            details=fit.DETAILS,
        ),
        Command(
            "profile",
            profiles.run_profile_command,
            "List, show and copy cluster profiles, which say how hosts are reached.",
            "this machine and other hosts",
            profiles.add_profile_command,
        ),
        Command(
            "completion",
            completion.print_completion,
            "Print the code with which a shell completes commands, options and cluster names.",
            "this machine and other hosts",
            completion.add_completion_arguments,
            details=completion.DETAILS,
        ),
        Command(
            "version",
            _version,
            "Print the versions of mhnb, JAX and Python.",
            "this machine and other hosts",
        ),
        Command(
            "demo",
            _demo,
            "Run the tour in this terminal, on simulated hosts.",
            "lessons",
            _add_demo_arguments,
        ),
        Command(
            "lab",
            lab.run_lab,
            "Open the tour and the lessons in JupyterLab.",
            "lessons",
            lab.add_lab_arguments,
            details="Every other option goes to JupyterLab: mhnb lab --no-browser --port 9999.\n`jupyter lab --help` lists those options.",
            settings={
                "usage": "mhnb lab [-h] [--lesson LESSON] [--folder FOLDER] [OPTION OF JUPYTERLAB ...]",
                # Otherwise argparse would take a JupyterLab option for one of ours if its prefix matches.
                "allow_abbrev": False,
            },
        ),
        Command(
            "progress",
            lab.run_progress,
            "Show how far you are in the lessons: exercises done, tries, predictions.",
            "lessons",
            lab.add_progress_arguments,
            details=lab.PROGRESS_DETAILS,
        ),
        Command(
            "help",
            _help,
            "Show this overview, the help of a command, or the text of a help topic.",
            "help",
            add_help_arguments,
        ),
        *ask.COMMANDS,
    )
)
"""Every command by its name, in the order of the overview."""


def list_names() -> list[str]:
    """Return the names of the commands that the overview has."""
    return [name for name, command in COMMANDS.items() if not command.is_hidden]


class _MainParser(CommandParser):
    """The parser of the whole command line. Its help is the overview."""

    def format_help(self) -> str:
        """Return the overview of all commands."""
        return format_overview(COMMANDS.values())


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands, also for the generated reference."""
    parser = _MainParser(prog="mhnb", description="One notebook, many JAX hosts.")
    parser.add_argument("--version", action="version", version=f"mhnb {metadata.version('mhnb')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for command in COMMANDS.values():
        command_parser = commands.add_parser(
            command.name,
            help=command.summary.replace("%", "%%"),
            description=command.summary,
            epilog=command.details or None,
            aliases=command.aliases,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **command.settings,
        )
        command.add_arguments(command_parser)
        command_parser.set_defaults(function=command.run)
    return parser


def find_commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command and alias."""
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001  # argparse has no public list
    return commands.choices


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line.

    Options that `lab` does not know go to `rest`, for JupyterLab; the arguments of a script of `run` go to `arguments`.
    """
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    commands = find_commands(parser)
    completion.complete(parser, commands, hidden=set(commands) - set(list_names()))
    if not words:
        words = ["help"]
    if not words[0].startswith("-") and words[0] not in commands:
        _exit_unknown_command(words, parser)
    arguments: list[str] = []
    if words[0] == "run":
        words[1:], arguments = run.split_run_words(words[1:])
    args, rest = parser.parse_known_args(words)
    args.arguments = arguments
    if args.command is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest and args.command != "lab":
        fault = f"unrecognized arguments: {' '.join(rest)}"
        commands[args.command].error(run.describe_unknown_words(words[1:], rest) if args.command == "run" else fault)
    args.rest = [word for word in rest if word != "--"]
    return args


def _exit_unknown_command(words: Sequence[str], parser: argparse.ArgumentParser) -> NoReturn:
    if words[0] in NOTEBOOK_ONLY:
        parser.exit(
            2,
            f"mhnb: {words[0]!r} is not a command of the shell, because it needs a notebook"
            f"\n  Fix: in a notebook cell: %mhjax {shlex.join(words)}\n  Help: mhnb help\n",
        )
    parser.exit(2, f"mhnb: {format_unknown('command', words[0], list_names())}\n  Help: mhnb help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "help"
    try:
        return _run(words)
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe.
        _discard_unwritten()
        return 0
    except KeyboardInterrupt as error:
        print(f"mhnb {command}: {error.args[0] if error.args else 'interrupted'}", file=sys.stderr)
        return INTERRUPTED_STATUS
    except MhnbError as error:
        print(f"mhnb {command}: {error}{_format_help_line(error, command)}", file=sys.stderr)
        return 1
    except OSError as error:
        _discard_unwritten()
        print(f"mhnb {command}: {describe_os_error(error)}", file=sys.stderr)
        return 1


def _run(words: Sequence[str]) -> int:
    """Run one command, and write all of its output."""
    try:
        args = parse_arguments(words)
        status = int(args.function(args))
    except SystemExit:
        # After a help text, too: Python could only print "Exception ignored" at its exit.
        print(end="", flush=True)
        raise
    print(end="", flush=True)
    return status


def _discard_unwritten() -> None:
    """Discard unwritten output, which Python would write at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe_os_error(error: OSError) -> str:
    """Describe an error of the system, with a next step.

    >>> print(describe_os_error(PermissionError(13, "Permission denied", "/srv/a b")))
    /srv/a b: Permission denied
      Fix: ls -ld /srv '/srv/a b'    (shows owners and modes: correct them, or give another path)
    """
    if error.errno is None:
        # It is mhnb's own, and has its next step.
        return str(error) or type(error).__name__
    name = None if error.filename is None else os.fsdecode(error.filename)
    if error.errno in _FULL_DISK:
        return (
            f"{name or 'the output'} cannot be written: {error.strerror}"
            "\n  Fix: df -h    (shows the disk that is full: remove files there, or write to another disk)"
        )
    if name is None:
        return f"{error.strerror or error}\n  Fix: mhnb doctor"
    folder = str(Path(name).parent)
    if error.errno == errno.ENOENT:
        return f"{name}: {error.strerror}\n  Fix: ls {shlex.quote(folder)}    (shows what is there: give another path)"
    return (
        f"{name}: {error.strerror}"
        f"\n  Fix: ls -ld {shlex.join([folder, name])}    (shows owners and modes: correct them, or give another path)"
    )


def _format_help_line(error: Exception, command: str) -> str:
    """Return the line that names an error's help; empty without one."""
    topic = find_topic(error, command)
    return f"\n  Help: mhnb help {topic}" if topic else ""
