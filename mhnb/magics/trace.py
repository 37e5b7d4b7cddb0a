"""The command of `%mhjax` for the timelines of traced cells."""

from __future__ import annotations

import argparse
import shutil
from functools import partial

from IPython.core.error import UsageError

from mhnb.commands.command import Command
from mhnb.core.cell_name import parse_cell_argument
from mhnb.core.trace import TraceReport
from mhnb.magics.session import Session
from mhnb.system.trace import write_page
from mhnb.view.live.screen import show_document
from mhnb.view.reports.trace import build_trace, format_open_text, format_trace_page


def _trace(session: Session, args: argparse.Namespace) -> None:
    """Show the summary of a trace again, or how its timeline is opened.

    Raises:
        UsageError: no cell was traced, or the named one was not.
        InvalidRequest: the timeline was removed.
    """
    words = list(args.what)
    is_open = words[:1] == ["open"]
    report = _find_trace(session, words[1:] if is_open else words)
    if not is_open:
        show_document(build_trace(report))
    elif report.path:
        page = write_page(report.path, partial(format_trace_page, report))
        print(format_open_text(report, str(page), has_xprof=shutil.which("xprof") is not None))
    else:
        raise UsageError(f"%mhjax trace open: {report.cell_name} has no timeline. {' '.join(report.notes)}".rstrip())


def _find_trace(session: Session, words: list[str]) -> TraceReport:
    if len(words) > 1:
        raise UsageError(f"%mhjax trace {' '.join(words)}: expected one cell, such as In[7] or 7")
    cell = parse_cell_argument(words[0]) if words else None
    if words and cell is None:
        raise UsageError(f"%mhjax trace {words[0]!r}: expected open, or a cell, such as In[7] or 7")
    report = session.find_trace(cell)
    if report is None:
        what = (
            "no cell was traced yet"
            if cell is None
            else f"{cell.name} was not traced, or is not among the last results"
        )
        raise UsageError(f"%mhjax trace: {what}\n  Fix: %%mhjax --trace, as the first line of a cell")
    return report


def _trace_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="open|CELL",
        help="open: how to look at the timeline; the cell, such as In[7] or 7 (default: the last one that was traced)",
    )


COMMANDS = (
    Command(
        "trace",
        _trace,
        "Show where the time of a cell that ran with --trace went; trace open says how to look at its timeline.",
        "look",
        _trace_flags,
        "[open] [CELL]",
        splits="cells",
    ),
)
"""The commands of this module."""
