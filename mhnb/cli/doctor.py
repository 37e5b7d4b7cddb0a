"""`mhnb doctor`: print the preflight report of this machine or of hosts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from mhnb.cli.clusters import add_json_option
from mhnb.cluster.flags import add_doctor_flags

if TYPE_CHECKING:
    from mhnb.core.preflight_facts import PreflightReport


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb doctor`."""
    add_json_option(parser)
    add_doctor_flags(parser)


def report_values(report: PreflightReport) -> dict[str, Any]:
    """Return a preflight report with the keys of `mhnb doctor --json`.

    A check that has no result on a host is missing there. A level is failure, warning, note, or null.
    """
    return {
        "ok": report.ok,
        "duration_s": report.duration_s,
        "hosts": [
            {
                "host": host,
                "checks": {
                    column.header: {"text": cell.text, "level": cell.level}
                    for column in report.columns
                    if (cell := column.cells.get(at)) is not None
                },
            }
            for at, host in enumerate(report.hosts)
        ],
        "findings": [
            {
                "level": finding.level,
                "check": finding.check,
                "hosts": list(finding.hosts),
                "text": finding.text,
                "fix": finding.fix,
            }
            for finding in report.findings
        ],
    }


def run(args: argparse.Namespace) -> int:
    """Print the preflight report; return 1 if a start would fail."""
    from mhnb.cluster.preflight import run_doctor
    from mhnb.view.print_text import print_text
    from mhnb.view.reports.preflight import build_preflight

    report = run_doctor(args, on_queue_status=lambda position: print(f"mhnb doctor: {position}", file=sys.stderr))
    print(json.dumps(report_values(report), indent=2) if args.json else print_text(build_preflight(report)))
    return 0 if report.ok else 1
