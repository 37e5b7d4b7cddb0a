"""The commands of `%mhjax` that report what a cluster does or did."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from mhnb.cluster import manager
from mhnb.cluster.reports import REPORTS
from mhnb.commands.reports import list_reports, read_arguments
from mhnb.errors import NotStarted
from mhnb.magics.session import Session, uses_result
from mhnb.view.live.screen import show_document


def _show_report(name: str, session: Session, args: argparse.Namespace) -> Any:
    asked = getattr(args, "cluster", None)
    try:
        cluster = manager.latest() if asked is None else manager.by_name(asked)
    except NotStarted as error:
        if asked is None and name in ("status", "where"):
            print(f"mhjax · {error}")
            return None
        raise
    report = REPORTS[name](cluster, **read_arguments(_BY_NAME[name], args))
    is_used = report.table is not None and uses_result(session.shell.user_ns)
    if report.document and not is_used:
        show_document(report.document)
    if report.note:
        print(f"mhjax · {report.note}")
    if report.table is None or not is_used:
        return None
    return report.table.to_dataframe() if find_spec("pandas") is not None else report.table


def _add_cluster_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cluster", nargs="?", metavar="NAME", help="name of the cluster (default: the current one)")


_REPORTS = list_reports(lambda name: partial(_show_report, name))
_BY_NAME = {command.name: command for command in _REPORTS}
COMMANDS = tuple(
    replace(command, add_arguments=_add_cluster_argument, usage="[NAME]") if command.name == "where" else command
    for command in _REPORTS
)
"""The commands of this module."""
