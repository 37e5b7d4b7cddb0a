"""Ask a cluster's notebook process for reports, such as `mhnb status`.

Its event loop finds the request, also while its main thread hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from mhnb.cli.clusters import add_json_option, add_name_argument, find_cluster, record_values, unknown_cluster_error
from mhnb.cli.logs import add_follow_options, follow_logs, has_all_logs
from mhnb.cluster.attach import has_owner
from mhnb.commands.command import Command
from mhnb.commands.reports import WITH_JSON, list_reports, read_arguments
from mhnb.core.ranks import pluralize
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.system.processes import PROCESS_UNREADABLE
from mhnb.system.run_dir import RunRecord, find_clusters_named, has_live_notebook
from mhnb.system.shell_requests import Clocks, ShellAnswer, make_answer, sent_request

_FOUND_S = 5.0
"""How long the notebook's process may take to find a request: its event loop looks several times a second."""
_ANSWER_S = 60.0
_CLOCKS = Clocks(time.time, time.monotonic)
_POSITIONAL = {"trace": "what", "logs": "ranks"}
"""Where a report has the words that are no flags."""
_NOT_A_NAME = re.compile(r"(open ?)?((In|cell) ?\[?\d+\]?)?|all|\d[\d,-]*")
"""A cell, ranks, or a word of a command, where the name of a cluster could be."""


def ask_notebook(
    record: RunRecord,
    action: str,
    limit_s: float | None,
    arguments: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> ShellAnswer | None:
    """Ask the notebook's process; return None if it does not answer.

    Args:
        record: of the cluster.
        action: what to do.
        limit_s: how long it may take once the process has answered at all; None for as long as the process runs.
        arguments: of the action, by name; None for none.
        on_progress: called with how far the action is, each time that it says so.

    Raises:
        KeyboardInterrupt: Ctrl-C; the text says whether the action goes on.
    """
    with sent_request(Path(record.run_dir), action, _FOUND_S, _CLOCKS, arguments) as pending:
        if pending.wait(_FOUND_S, until_done=False) is None:
            return None
        try:
            answer = pending.wait(_FOUND_S if limit_s is None else limit_s, on_progress=on_progress)
            while answer is None and limit_s is None and has_live_notebook(record):
                answer = pending.wait(_FOUND_S, on_progress=on_progress)
        except KeyboardInterrupt:
            goes_on = f"the notebook's process goes on with it\n  To stop that: mhnb interrupt {record.name}"
            raise KeyboardInterrupt(goes_on) from None
        if answer is None and limit_s is not None:
            return make_answer(
                "failed", f"the process of its notebook (pid {record.owner_pid}) needs more than {limit_s:g} s"
            )
        return answer


def describe_silence(record: RunRecord) -> str:
    """Describe why the notebook's process may not have answered."""
    return (
        f"the process of its notebook (pid {record.owner_pid}) did not answer within {_FOUND_S:g} s; "
        "it may be suspended, or run one long call that lets no other thread run"
    )


def find_pids_here(record: RunRecord) -> set[int]:
    """Return the ids of a cluster's processes on this machine.

    The id of a process on another machine may be that of any process here.
    """
    try:
        return {process.pid for process in psutil.Process(record.supervisor_pid).children(recursive=True)}
    except PROCESS_UNREADABLE:
        return set()


# -- reports


def _print_report(name: str, args: argparse.Namespace) -> int:
    """Print a report from the notebook's process, or from local files.

    Raises:
        NotStarted: there is no such cluster.
        ClusterError: the report needs an answer, and no notebook is attached.
        InvalidRequest: a wrong argument.
    """
    _settle_arguments(name, args)
    arguments = read_arguments(_BY_NAME[name], args)
    record = _find_record(name, args.name)
    if name == "logs" and args.follow and record is not None:
        return follow_logs(record, args.ranks, args.lines)
    if record is None or name == "trace" or (name == "logs" and has_all_logs(record)):
        # These are complete in their files.
        print(_read_recorded(name, record or args.name, arguments))
        return 0
    as_json = name in WITH_JSON and args.json
    answer, why = _ask_report(record, name, {**arguments, "as_json": as_json})
    if answer is not None and answer.outcome == "failed":
        kind = InvalidRequest if answer.values.get("error") == InvalidRequest.__name__ else ClusterError
        raise kind(answer.text)
    if name == "status":
        print(_format_status(record, answer, why, as_json=as_json))
    elif answer is not None:
        print(json.dumps(answer.values, indent=2) if as_json else answer.text)
    elif name in ("flight", "logs"):
        print(f"mhnb {name} {record.name}: {why}\nWhat follows is from the files of this machine.", file=sys.stderr)
        print(_read_recorded(name, record, arguments))
    else:
        files = f"\n  Or: mhnb flight {record.full_name} (what the ranks recorded, from their files)"
        raise ClusterError(f"{record.name}: {why}{files}")
    return 0


def _settle_arguments(report: str, args: argparse.Namespace) -> None:
    """Move a cell or ranks out of the cluster's name argument.

    Raises:
        InvalidRequest: ranks are given twice.
    """
    dest = _POSITIONAL.get(report)
    if dest is not None and args.name is not None and not find_clusters_named(os.environ, args.name):
        rest = getattr(args, dest) or []
        words = [args.name, *([rest] if isinstance(rest, str) else rest)]
        if _NOT_A_NAME.fullmatch(" ".join(words)):
            args.name = None
            setattr(args, dest, words[0] if report == "logs" else words)
    if getattr(args, "rank", None) is not None:
        if args.ranks is not None:
            raise InvalidRequest(f"logs {args.ranks} --rank {args.rank}: expected ranks once")
        args.ranks = args.rank


def _find_record(report: str, name: str | None) -> RunRecord | None:
    """Return the cluster to ask; None if only its files remain."""
    if name is None or report not in ("flight", "trace") or find_clusters_named(os.environ, name):
        return find_cluster(name)
    from mhnb.cluster.flight import find_recorded_runs

    if not find_recorded_runs(os.environ, name):
        raise unknown_cluster_error(name)
    return None


def _ask_report(record: RunRecord, name: str, arguments: Mapping[str, Any]) -> tuple[ShellAnswer | None, str]:
    """Return the answer; or None, and the reason."""
    if not (has_live_notebook(record) and has_owner(record)):
        if record.is_detachable:
            return None, f"no notebook is attached\n  Fix: %mhjax attach {record.full_name}"
        return None, f"its notebook (pid {record.owner_pid}) has ended, and the cluster is ending"
    tell = partial(print, file=sys.stderr, flush=True)
    answer = ask_notebook(record, "report", _ANSWER_S, {"name": name, "arguments": arguments}, on_progress=tell)
    return answer, "" if answer is not None else describe_silence(record)


def _read_recorded(name: str, source: RunRecord | str, arguments: Mapping[str, Any]) -> str:
    """Return a report of a running or ended cluster from its files."""
    from mhnb.cluster import reports

    if isinstance(source, str):
        return reports.RECORDED[name](source, **arguments).format()
    if name == "logs":
        return reports.read_logs(source, **arguments).format()
    return reports.RECORDED[name](source.full_name, **arguments).format()


def _format_status(record: RunRecord, answer: ShellAnswer | None, why: str, *, as_json: bool) -> str:
    log_dir = Path(record.run_dir) / "log"
    if answer is not None:
        if as_json:
            return json.dumps(record_values(record) | {"answered": True} | answer.values, indent=2)
        return f"{answer.text}\nnotebook: pid {record.owner_pid}\nlogs: {log_dir}"
    pids_here = find_pids_here(record)
    states = ["alive" if pid in pids_here else "unknown" for pid in record.rank_pids]
    logs = [str(log_dir / f"rank{rank}.log") for rank in range(len(states))]
    if as_json:
        ranks = [
            {"rank": rank, "pid": pid, "state": state, "log": log}
            for rank, (pid, state, log) in enumerate(zip(record.rank_pids, states, logs, strict=True))
        ]
        unknown = dict.fromkeys(("state", "reason", "generation", "guard", "jax_version"))
        known = {"answered": False, **unknown, "log_dir": str(log_dir), "ranks": ranks}
        return json.dumps(record_values(record) | known, indent=2)
    # Only the notebook's process knows the devices and the cells, so no table with empty columns.
    rows = [
        f"  rank {rank}  {state}{'' if pid is None else f'  pid {pid}'}  {log}"
        for rank, (pid, state, log) in enumerate(zip(record.rank_pids, states, logs, strict=True))
    ]
    heading = f"{record.name} · state unknown · {pluralize(len(rows), 'rank')}"
    return "\n".join([heading, *rows, why, f"logs: {log_dir}"])


def _add_arguments(command: Command, parser: argparse.ArgumentParser) -> None:
    add_name_argument(parser)
    command.add_arguments(parser)
    if command.name in WITH_JSON:
        add_json_option(parser)
    if command.name == "logs":
        add_follow_options(parser)


_REPORTS = list_reports(lambda name: partial(_print_report, name))
_BY_NAME = {command.name: command for command in _REPORTS}
COMMANDS = tuple(
    replace(
        command,
        add_arguments=partial(_add_arguments, command),
        details=command.shell_details or command.details,
    )
    for command in _REPORTS
)
"""The commands that report."""
