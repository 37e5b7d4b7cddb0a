"""The commands `%mhjax history` and `%mhjax version`. Neither asks a rank."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable
from importlib import metadata

from mhnb.cluster import manager
from mhnb.commands.command import Command
from mhnb.core.journal import CellRecord, Record
from mhnb.errors import NotStarted
from mhnb.magics.session import Session
from mhnb.view.document import Document, Line, Table
from mhnb.view.html import format_seconds
from mhnb.view.live.screen import show_document

_MAX_LINE = 60
"""Characters of a cell's first line that the history shows."""


def _history(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.latest()
    show_document(build_history(cluster.journal.read()[0], cluster.generation))


def build_history(records: Iterable[Record], generation: int) -> Document:
    """Build a table of the cells of a journal, oldest first.

    Args:
        records: of all generations.
        generation: the current one. A cell of an earlier one has its generation after its number.
    """
    rows = []
    for record in records:
        if isinstance(record, CellRecord):
            earlier = "" if record.generation == generation else f" (generation {record.generation})"
            shown = "" if record.execution_count is None else f"In [{record.execution_count}]"
            first_line = next(iter(record.source.splitlines()), "")
            rows.append(
                (
                    f"{record.seq}{earlier}",
                    shown,
                    _describe_end(record),
                    format_seconds(record.wall_s),
                    first_line if len(first_line) <= _MAX_LINE else f"{first_line[: _MAX_LINE - 1]}…",
                )
            )
    if not rows:
        return [Line("mhjax · no cell has run on the ranks yet")]
    return [Table(("cell", "notebook", "state", "time", "first line"), rows)]


def _describe_end(record: CellRecord) -> str:
    """Describe how a cell ended, with the cluster's state unless clean."""
    errors = ", ".join(dict.fromkeys(record.errors.values()))
    bad = next((outcome for outcome in record.outcomes.values() if outcome not in ("ok", "skipped", "error")), "")
    end = record.how or errors or bad or "ok"
    parts = [end, *([record.state] if record.state != "clean" else []), *(["replayed"] if record.replayed else [])]
    return " · ".join(parts)


def _version(session: Session, args: argparse.Namespace) -> None:
    try:
        cluster = manager.current()
    except NotStarted:
        ranks = ""
    else:
        ranks = f"\nranks of {cluster.name} · jax {cluster.jax_version}"
    print(
        f"mhnb {metadata.version('mhnb')} · jax {_find_version('jax')} in this notebook · "
        f"Python {platform.python_version()}{ranks}"
    )


def _find_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


COMMANDS = (
    Command("history", _history, "List the cells that ran on the ranks.", "look"),
    Command(
        "version",
        _version,
        "Print the versions of mhnb, JAX and Python.",
        "this machine and other hosts",
        is_hidden=True,
    ),
)
"""The commands of this module."""
