"""Commands that report on a cluster; `cluster/reports.py` builds the reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from mhnb.cluster.logs import DEFAULT_LINES
from mhnb.commands.command import Command
from mhnb.core.arguments import int_argument, unquote
from mhnb.core.memory import DEFAULT_TOP
from mhnb.errors import InvalidRequest
from mhnb.system.run_dir import expand_user

WITH_JSON = ("status", "memory")
"""Reports that the shell also prints as JSON."""
_STATUS_DETAILS = """\
With --json, an object with the keys of `mhnb list --json` and these:
  answered              whether the notebook's process answered; if not, the values up to jax_version are null
  state, reason         as %mhjax status shows them
  generation, guard, jax_version, log_dir
  ranks                 for each rank: rank, pid, state; if answered also host, hostname, phase, platform, devices,
                        memory_bytes, last_cell, log"""
_WHERE_DETAILS = "What each rank does is known once a cell has run for 2 s."
_FLIGHT_DETAILS = """\
The notebook's process answers as long as it runs. After that, the
recordings on this machine are read. After a restart, the run before it has a
name such as main.4711.1; the last five runs that have ended are kept."""
_TRACE_DETAILS = """\
A cell that begins with %%mhjax --trace is traced. In a shell, the traces of a
cluster that has ended are shown too."""
_MEMORY_DETAILS = """\
Ranks answer between cells only: while a cell runs, the command says so. With --json, it prints all arrays that the ranks report."""
_METRICS_DETAILS = "A line of the file has one point: generation, cell, rank, step, name, value."
_SHELL_METRICS_DETAILS = f"{_METRICS_DETAILS}\nMetrics are named after the cluster: mhnb metrics NAME loss."
_LOGS_DETAILS = "A log on another machine is named with its host and path."


def _path_argument(text: str) -> str:
    """Return an absolute path, because another process may write the file."""
    try:
        return str(expand_user(unquote(text)).absolute())
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_flight_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", metavar="SPEC", help="ranks whose last events to show, for example 2 or 0,2-3")
    parser.add_argument(
        "--json", metavar="FILE", type=_path_argument, help="write all recorded events of all ranks to this file"
    )


def _add_stragglers_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="all launches that the flight recorders hold (default: those of the last cell)",
    )


def _add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="open|CELL",
        help="open: how to look at the timeline; the cell, such as In[7] or 7 (default: the last one that was traced)",
    )


def _add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top",
        type=int_argument,
        default=DEFAULT_TOP,
        metavar="N",
        help=f"how many arrays to show, the largest ones (default: {DEFAULT_TOP})",
    )
    parser.add_argument("--ranks", metavar="SPEC", help="ask these ranks only, such as 0,2-3")


def _add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="METRIC", help="metrics to show, with each rank (default: all)")
    parser.add_argument("--cell", metavar="CELL", help="only those of this cell, such as In[7] or 7")
    parser.add_argument("--csv", metavar="FILE", type=_path_argument, help="write all points to this file instead")


def _add_logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ranks", nargs="?", metavar="RANKS", help="ranks, such as 0,2-3 (default: all)")
    parser.add_argument(
        "-n",
        dest="lines",
        type=int_argument,
        default=DEFAULT_LINES,
        metavar="LINES",
        help=f"lines of each rank (default: {DEFAULT_LINES})",
    )


_MakeRun: TypeAlias = Callable[[str], Callable[..., Any]]


def list_reports(make_run: _MakeRun) -> tuple[Command, ...]:
    """Return the commands, each with what `make_run` returns for its name."""
    return (*_list_present(make_run), *_list_recorded(make_run))


def _list_present(make_run: _MakeRun) -> tuple[Command, ...]:
    """Return the commands about the ranks as they are now."""
    return (
        Command(
            "status",
            make_run("status"),
            "Show the ranks, their processes and the state of the cluster.",
            "look",
            shell_details=_STATUS_DETAILS,
        ),
        Command(
            "where",
            make_run("where"),
            "Show where each rank is in the running cell, and which ranks wait for others.",
            "look",
            details=_WHERE_DETAILS,
        ),
        Command(
            "memory",
            make_run("memory"),
            "Show what fills the memory of the devices: bytes in use, and the largest arrays by name.",
            "look",
            _add_memory_arguments,
            "[--top N] [--ranks SPEC]",
            shell_details=_MEMORY_DETAILS,
        ),
        Command(
            "metrics",
            make_run("metrics"),
            "Show the metrics that cells have logged, or write them to a file.",
            "look",
            _add_metrics_arguments,
            "[METRIC ...] [--cell CELL] [--csv FILE]",
            details=_METRICS_DETAILS,
            shell_details=_SHELL_METRICS_DETAILS,
        ),
        Command(
            "logs",
            make_run("logs"),
            "Print the last lines of the ranks' logs.",
            "look",
            _add_logs_arguments,
            "[RANKS] [-n LINES]",
            details=_LOGS_DETAILS,
        ),
    )


def _list_recorded(make_run: _MakeRun) -> tuple[Command, ...]:
    """Return the commands about what the ranks have recorded."""
    return (
        Command(
            "flight",
            make_run("flight"),
            "Show what each rank did last, where the ranks first differed, and which came last to launches.",
            "look",
            _add_flight_arguments,
            "[--ranks SPEC] [--json FILE]",
            shell_details=_FLIGHT_DETAILS,
        ),
        Command(
            "stragglers",
            make_run("stragglers"),
            "Show how often each rank came last to a launch, and how long the others waited.",
            "look",
            _add_stragglers_arguments,
            is_hidden=True,
        ),
        Command(
            "trace",
            make_run("trace"),
            "Show where the time of a cell that ran with --trace went; trace open says how to look at its timeline.",
            "look",
            _add_trace_arguments,
            "[open] [CELL]",
            splits="cells",
            details=_TRACE_DETAILS,
        ),
    )


def read_arguments(command: Command, args: argparse.Namespace) -> dict[str, Any]:
    """Return a report's arguments by name, without those of the surface."""
    own = argparse.ArgumentParser(add_help=False)
    command.add_arguments(own)
    return {action.dest: getattr(args, action.dest) for action in own._actions}  # noqa: SLF001  # argparse has no public list
