"""`cluster.metrics`: points that cells have logged, for files and tables."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhnb.core.metrics import MetricPoint, Metrics, format_csv, list_columns
from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest, MhnbError


@dataclass(frozen=True, slots=True, repr=False)
class MetricTable:
    """Points that ranks have logged, as an iterable of `MetricPoint`."""

    metrics: Metrics
    """The points by cell, name and rank, and where ranks disagree."""

    def __iter__(self) -> Iterator[MetricPoint]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were first logged."""
        return self.metrics.names

    def select(self, *, name: str | None = None, rank: int | None = None, cell: int | None = None) -> MetricTable:
        """Return the points of a name, rank and cell, each optional.

        If a restart has used a cell number again, the latest cell counts.

        Raises:
            InvalidRequest: no point has that name, rank or cell.
        """
        return MetricTable(self.metrics.select(name=name, rank=rank, cell=cell))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return the points as CSV with exact numbers, or write a file.

        Raises:
            InvalidRequest: the file cannot be written.
        """
        text = format_csv(self.metrics)
        if path is None:
            return text
        try:
            Path(path).write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidRequest(f"{os.fspath(path)!r}: {reason}; expected a file that can be written") from error
        return None

    def to_dataframe(self) -> Any:
        """Return the points as a pandas DataFrame.

        Raises:
            MhnbError: pandas is not installed in this process.
        """
        try:
            # mhnb does not need it, so it is not among the dependencies.
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MhnbError(
                "a DataFrame needs pandas, which is not installed in this notebook\n"
                "  Fix: %pip install pandas\n"
                "  Or: cluster.metrics.to_csv(), or a loop over cluster.metrics"
            ) from error
        return pandas.DataFrame(list_columns(self.metrics))

    def __repr__(self) -> str:
        return repr(self.metrics)

    def _repr_html_(self) -> str:
        """Format the charts of all cells."""
        from mhnb.view.print_html import print_html
        from mhnb.view.reports.metrics import build_metrics

        return print_html(build_metrics(self.metrics))


def _summarise(table: MetricTable) -> str:
    return f"{pluralize(len(table), 'point')} of {pluralize(len(table.names), 'metric')}"


def write_csv(table: MetricTable, path: Path) -> str:
    """Write points as CSV; return a sentence about the file.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    table.to_csv(path)
    return f"wrote {path}: {_summarise(table)}"
