"""The commands of `%mhjax` for hosts: `doctor`, `sync` and `pip`.

`doctor` runs the preflight checks on this machine, or on hosts, before a start. `sync [DIR]` and `pip install X` bring the user's
code and packages to the hosts of a cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence

from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.cluster.cleanup import end_orphan, find_orphans
from mhnb.cluster.files import HostSync, PipRun, SyncReport, run_pip, sync
from mhnb.cluster.flags import add_doctor_flags
from mhnb.cluster.preflight import run_doctor
from mhnb.commands.command import Command
from mhnb.errors import ClusterError
from mhnb.magics.session import Session
from mhnb.sharding.layout import format_nbytes
from mhnb.view.live.screen import show_document
from mhnb.view.reports.preflight import build_preflight

_MAX_NAMES = 6
_PIP_COMMANDS = ("check", "download", "freeze", "install", "list", "show", "uninstall")
_MODIFYING_COMMANDS = ("install", "uninstall")
_PACKAGE_COMMANDS = (*_MODIFYING_COMMANDS, "download", "show")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _sync(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    print(format_sync_report(sync(cluster, args.folder or cluster.options.sync or ".")))


def format_sync_report(report: SyncReport) -> str:
    """Format a sync report: groups of equal hosts, and stale imported modules."""
    groups: dict[tuple[str, tuple[str, ...], int], list[HostSync]] = {}
    for host in report.hosts:
        groups.setdefault((host.folder, host.paths, host.nbytes), []).append(host)
    lines = [f"mhjax · sync · {report.folder}, {report.file_count} file{'' if report.file_count == 1 else 's'}"]
    for (folder, paths, nbytes), hosts in groups.items():
        names = ", ".join(host.host for host in hosts)
        copied = f"{_format_count(paths, 'file')} copied, {format_nbytes(nbytes)}" if paths else "already up to date"
        lines.append(f"  {names} {folder}: {copied}")
    if imported := sorted({name for host in report.hosts for name in host.imported}):
        lines.append(
            f"  already imported, so still the old version: {_format_names(imported)}\n"
            "  Fix: importlib.reload(MODULE) in a %%mhjax cell, or %mhjax restart"
        )
    return "\n".join(lines)


def _format_count(items: Sequence[str], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _sync_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help="folder on this machine (default: that of start --sync, else the notebook's), without what its .gitignore names",
    )


def _pip(session: Session, args: argparse.Namespace) -> None:
    words = shlex.split(args.line)
    if not words or words[0] not in _PIP_COMMANDS:
        raise UsageError(
            f"%mhjax pip{f' {args.line}'.rstrip()}: expected one of {', '.join(_PIP_COMMANDS)}, then arguments of pip\n"
            "  Fix: %mhjax pip install einops"
        )
    if words[0] in _PACKAGE_COMMANDS and len(words) == 1:
        raise UsageError(f"%mhjax pip {words[0]}: expected a package\n  Fix: %mhjax pip {words[0]} einops")
    runs = run_pip(manager.current(), words)
    print(format_pip_output(words, runs))
    if failed := [run for run in runs if run.exit_code != 0]:
        hosts = ", ".join(run.host for run in failed)
        raise ClusterError(
            f"pip {words[0]} failed on {hosts} with exit code {failed[0].exit_code}{_find_reason(failed[0].output)}"
            "\n  Fix: correct what pip's output above names, then run the line again"
        )


def _find_reason(output: str) -> str:
    """Return pip's last error, after a colon; empty without one."""
    lines = [_ANSI.sub("", line).strip() for line in output.splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f": {errors[-1]}" if errors else ""


def format_pip_output(words: Sequence[str], runs: Sequence[PipRun]) -> str:
    """Format the output of pip, with equal outputs shown once.

    If pip installed or uninstalled successfully, only the last line is shown; after a failure or a query, all of it.
    """
    groups: dict[tuple[int, str], list[PipRun]] = {}
    for run in runs:
        output = run.output.strip()
        shown = output.splitlines()[-1:] if words[0] in _MODIFYING_COMMANDS and run.exit_code == 0 else [output]
        groups.setdefault((run.exit_code, "".join(shown)), []).append(run)
    lines = []
    for (_, output), group in groups.items():
        names = ", ".join(run.host for run in group)
        lines.append(f"{names} · {group[0].python}")
        lines += [f"  {line}" for line in output.splitlines()]
    if words[0] in _MODIFYING_COMMANDS and any(run.exit_code == 0 for run in runs):
        lines.append("Ranks keep the version of a package that they have already imported until %mhjax restart.")
    return "\n".join(lines)


def _pip_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="install X",
        help="arguments of pip; it runs once per Python environment",
    )


# -- `%mhjax doctor` and `%mhjax cleanup`


def _doctor(session: Session, args: argparse.Namespace) -> None:
    # A failed check is shown and does not raise, because finding it is the purpose of the command.
    show_document(build_preflight(run_doctor(args)))


def _cleanup(session: Session, args: argparse.Namespace) -> None:
    orphans = find_orphans(os.environ)
    for orphan in orphans:
        end_orphan(orphan)
        count = "1 process" if orphan.process_count == 1 else f"{orphan.process_count} processes"
        print(f"mhjax · stopped {count} of {orphan.kind} {orphan.pid}: {orphan.reason}")
    if not orphans:
        print("mhjax · no orphaned processes on this machine; %mhjax list shows what is running")


COMMANDS = (
    Command(
        "pip",
        _pip,
        "Run pip on the hosts, once per Python environment.",
        "this machine and other hosts",
        _pip_flags,
        "install PACKAGE...",
    ),
    Command(
        "sync",
        _sync,
        "Copy a folder of this machine to every host.",
        "this machine and other hosts",
        _sync_flags,
        "[DIR]",
    ),
    Command(
        "doctor",
        _doctor,
        "Run the preflight checks on this machine or on hosts before a start.",
        "this machine and other hosts",
        add_doctor_flags,
        "[--hosts A,B | --profile NAME]",
    ),
    Command(
        "cleanup",
        _cleanup,
        "Stop the processes that exited notebooks have left on this machine.",
        "this machine and other hosts",
        aliases=("reap",),
        is_hidden=True,
    ),
)
"""The commands of this module."""
