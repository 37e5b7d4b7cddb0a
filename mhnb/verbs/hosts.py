"""`%mhjax sync [DIR]` and `%mhjax pip install X`: bring the user's code and packages to the hosts of a cluster."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.errors import ClusterError
from mhnb.startup import starting
from mhnb.supply.installing import PipRun, run_pip
from mhnb.supply.syncing import HostSync, SyncReport, sync
from mhnb.verbs.verb import Verb
from mhnb.view.words import format_nbytes

if TYPE_CHECKING:
    from mhnb.frontend.notebook import Notebook

__all__ = ["VERBS", "describe_pip", "describe_sync"]

_NAMED = 6
_PIP_VERBS = ("check", "download", "freeze", "install", "list", "show", "uninstall")
_CHANGING = ("install", "uninstall")


def _sync(notebook: Notebook, args: argparse.Namespace) -> None:
    cluster = starting.current()
    print(describe_sync(sync(cluster, args.folder or cluster.options.sync or ".")))


def describe_sync(report: SyncReport) -> str:
    """Format a sync report: a line per group of hosts with equal copies, and a line of imported modules that stay unchanged."""
    alike: dict[tuple[str, tuple[str, ...], int], list[HostSync]] = {}
    for host in report.hosts:
        alike.setdefault((host.folder, host.paths, host.nbytes), []).append(host)
    lines = [f"mhjax · sync · {report.folder}, {report.file_count} file{'' if report.file_count == 1 else 's'}"]
    for (folder, paths, nbytes), hosts in alike.items():
        names = ", ".join(f"{host.host} ({host.hostname})" for host in hosts)
        what = f"{_count(paths, 'file')} copied, {format_nbytes(nbytes)}" if paths else "all there already"
        lines.append(f"  {names} {folder}: {what}")
    if imported := sorted({name for host in report.hosts for name in host.imported}):
        lines.append(
            f"  imported before, and as it was: {_list(imported)}; importlib.reload(...) or %mhjax restart takes the new one"
        )
    return "\n".join(lines)


def _count(items: Sequence[str], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _sync_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help="a folder of this machine; else that of the start, else the notebook's own. Its .gitignore says what stays here",
    )


def _pip(notebook: Notebook, args: argparse.Namespace) -> None:
    words = shlex.split(args.line)
    if not words or words[0] not in _PIP_VERBS:
        raise UsageError(
            f"%mhjax pip {args.line}: one of {', '.join(_PIP_VERBS)}, then what pip takes: %mhjax pip install einops"
        )
    runs = run_pip(starting.current(), words)
    print(describe_pip(words, runs))
    if failed := [run for run in runs if run.code != 0]:
        hosts = ", ".join(f"{run.host} ({run.hostname})" for run in failed)
        raise ClusterError(f"pip {words[0]} failed on {hosts} with exit code {failed[0].code}; what it said is above")


def describe_pip(words: Sequence[str], runs: Sequence[PipRun]) -> str:
    """Format the output of pip, with equal outputs shown once.

    If pip installed or uninstalled successfully, only the last line is shown; after a failure or a query, all of it.
    """
    alike: dict[tuple[int, str], list[PipRun]] = {}
    for run in runs:
        said = run.said.strip()
        last = said.splitlines()[-1:] if words[0] in _CHANGING and run.code == 0 else [said]
        alike.setdefault((run.code, "".join(last)), []).append(run)
    lines = []
    for (_, said), same in alike.items():
        names = ", ".join(f"{run.host} ({run.hostname})" for run in same)
        lines.append(f"{names} · {same[0].python}")
        lines += [f"  {line}" for line in said.splitlines()]
    if words[0] in _CHANGING and any(run.code == 0 for run in runs):
        lines.append("A package that the ranks have imported already stays as it was until %mhjax restart.")
    return "\n".join(lines)


def _pip_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="install X", help="as for pip; once per environment")


VERBS: dict[str, Verb] = {
    "pip": (_pip, _pip_flags),
    "sync": (_sync, _sync_flags),
}
