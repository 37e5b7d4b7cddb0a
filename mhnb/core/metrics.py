"""Metrics that ranks log in cells, and where ranks disagree about them.

Decides how many points are kept, and which differences between ranks are pointed out. How points are read on a rank, and how they are
drawn, is handled elsewhere. A step is a whole number or a fraction, a value any number: also NaN or infinity.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from mhnb.core.arguments import format_unknown
from mhnb.core.cell_name import CellArgument, find_cell, format_cell_name, format_cell_names
from mhnb.core.output.events import MetricPoints, MetricProblem, OutputEvent
from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.errors import InvalidRequest

MAX_POINTS = 2_000_000
"""Points that a cluster keeps, of 16 bytes each. Beyond it those of the oldest cells are dropped."""
MAX_NAMES = 256
"""Different metrics of one cell on one rank."""
MAX_NAME_CHARS = 200
_MAX_COMPARED = 100_000
"""Steps of a metric that are compared between ranks."""
_MAX_EXACT = 2.0**53
"""Up to here a float holds each whole number exactly."""
_MAX_LISTED = 3
_COLUMNS = ("generation", "cell", "rank", "step", "name", "value")


def pack_numbers(numbers: Sequence[float]) -> bytes:
    """Pack numbers as IEEE 754 doubles, the least significant byte first."""
    return struct.pack(f"<{len(numbers)}d", *numbers)


def unpack_numbers(packed: bytes) -> array[float]:
    """Return packed numbers.

    >>> list(unpack_numbers(pack_numbers([1.0, math.inf])))
    [1.0, inf]
    """
    return array("d", struct.unpack(f"<{len(packed) // 8}d", packed))


def format_number(number: float) -> str:
    """Format a number for people: whole, or with six digits.

    >>> [format_number(each) for each in (10.0, 0.1 + 0.2, 1e-9, math.nan, -math.inf)]
    ['10', '0.3', '1e-09', 'nan', '-inf']
    """
    return str(int(number)) if _is_whole(number) else f"{number:.6g}"


def format_exactly(number: float) -> str:
    """Format a number so that two different numbers have different texts.

    >>> format_exactly(0.1 + 0.2), format_exactly(3.0), format_exactly(-0.0)
    ('0.30000000000000004', '3', '-0.0')
    """
    return str(int(number)) if _is_whole(number) and not is_equal(number, -0.0) else repr(number)


def _is_whole(number: float) -> bool:
    return abs(number) <= _MAX_EXACT and number.is_integer()


def is_equal(one: float, other: float) -> bool:
    """Return whether two values have the same bits; NaN equals NaN.

    >>> is_equal(math.nan, math.nan), is_equal(0.0, -0.0), is_equal(0.5, 0.5)
    (True, False, True)
    """
    if one == other:
        return one != 0.0 or math.copysign(1.0, one) == math.copysign(1.0, other)
    return one != one and other != other  # noqa: PLR0124 - only NaN differs from itself


# -- values


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value that one rank logged."""

    cell: int
    """The cell's number, as mhnb counts."""
    rank: int
    step: float
    name: str
    value: float
    generation: int = 1
    """The number of the cluster's start: a restart numbers cells from 1 again."""


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A metric's points from one rank and cell, in logged order."""

    name: str
    rank: int
    cell: int
    _steps: Sequence[float]
    _values: Sequence[float]
    count: int
    """Number of points; more may follow in a cell that runs."""
    omitted_count: int = 0
    """Points that were left out, because there were too many."""
    is_same: bool = False
    generation: int = 1
    execution_count: int | None = None
    """The number that the notebook shows beside the cell."""

    @property
    def steps(self) -> Sequence[float]:
        """The steps."""
        return self._steps[: self.count]

    @property
    def values(self) -> Sequence[float]:
        """The value of each step."""
        return self._values[: self.count]

    @property
    def cell_name(self) -> str:
        """The cell's name in messages."""
        return format_cell_name(self.cell, self.execution_count)

    def __iter__(self) -> Iterator[MetricPoint]:
        for step, value in islice(zip(self._steps, self._values, strict=False), self.count):
            yield MetricPoint(self.cell, self.rank, step, self.name, value, self.generation)


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric on which ranks should agree, and do not."""

    name: str
    step: float
    """The first step at which values differ, or that only some ranks have logged."""
    groups: tuple[tuple[tuple[int, ...], float | None], ...]
    """Ranks with their value, the largest group first; None if they did not log this step."""
    count: int
    """Number of such steps."""
    cell: int = 0
    generation: int = 1

    def __str__(self) -> str:
        step, missing = format_number(self.step), [ranks for ranks, value in self.groups if value is None]
        more = f" ({self.count} such steps)" if self.count > 1 else ""
        if missing:
            return f"{self.name}: {describe_ranks(missing[0])} did not log step {step}{more}"
        sides = " · ".join(
            f"{describe_ranks(ranks)} {format_exactly(value)}" for ranks, value in self.groups if value is not None
        )
        more = f" ({self.count} steps differ)" if self.count > 1 else ""
        return f"{self.name} differs at step {step}{more}: {sides}"


@dataclass(frozen=True, slots=True, repr=False)
class Metrics:
    """Points that ranks have logged.

    Iterating yields each as a `MetricPoint`, by cell, name and rank, in logged order.
    """

    series: tuple[MetricSeries, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Of metrics logged with `same=True`."""
    notes: tuple[str, ...] = ()
    """What could not be read or kept, each a sentence."""
    dropped_count: int = 0
    """Points of older cells that are not kept any more."""

    def __iter__(self) -> Iterator[MetricPoint]:
        for series in self.series:
            yield from series

    def __len__(self) -> int:
        return sum(series.count for series in self.series)

    def __bool__(self) -> bool:
        return bool(self.series or self.notes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were first logged."""
        return tuple(dict.fromkeys(series.name for series in self.series))

    @property
    def omitted_count(self) -> int:
        """Points that were left out, because a cell logged too many."""
        return sum(series.omitted_count for series in self.series)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The differences and the notes, as sentences."""
        left_out = f"{self.omitted_count:,} points were left out; the curves have the others"
        dropped = f"{self.dropped_count:,} points of older cells are not kept: a cluster keeps {MAX_POINTS:,}"
        return (
            *map(str, self.differences),
            *self.notes,
            *([left_out] if self.omitted_count > 0 else []),
            *([dropped] if self.dropped_count else []),
        )

    def select(self, *, name: str | None = None, rank: int | None = None, cell: int | None = None) -> Metrics:
        """Return the points of one name, one rank or one cell.

        Of a cell number that a restart has used again, the latest cell counts.

        Raises:
            InvalidRequest: no point has that name, rank or cell.
        """
        found = self if name is None else self.select_names([name])
        if cell is not None:
            found = found.select_cell(CellArgument(cell, is_shown=False, is_own=True))
        if rank is not None:
            return found.select_rank(rank)
        return found

    def select_rank(self, rank: int) -> Metrics:
        """Return the points of a rank, without the comparison with others.

        Raises:
            InvalidRequest: it has none.
        """
        series = tuple(each for each in self.series if each.rank == rank)
        if not series:
            ranks = describe_ranks(sorted({each.rank for each in self.series}))
            raise InvalidRequest(f"rank {rank} has logged no such metric; logged on {ranks}")
        return Metrics(series)

    def select_names(self, names: Sequence[str]) -> Metrics:
        """Return the points of some names.

        Raises:
            InvalidRequest: no point has such a name.
        """
        for name in names:
            if name not in self.names:
                lost = [note for note in self.notes if note.startswith(f"{name}: ")]
                if lost:
                    raise InvalidRequest(f"metric {name!r} has no value that could be read; {lost[0]}")
                if self.names:
                    raise InvalidRequest(format_unknown("metric", name, self.names))
                example = name if name.isidentifier() else "loss"
                raise InvalidRequest(
                    f"unknown metric {name!r}: no cell has logged a metric\n  Fix: in a cell: mhnb.log(step, {example}=value)"
                )
        return self._keep([series for series in self.series if series.name in names])

    def select_cell(self, argument: CellArgument) -> Metrics:
        """Return the points of a cell as a user names it.

        Raises:
            InvalidRequest: it has none.
        """
        cells = {series.cell: series for series in sorted(self.series, key=lambda each: (each.generation, each.cell))}
        seq = find_cell(argument, {cell: series.execution_count for cell, series in cells.items()})
        if seq is None:
            names = format_cell_names((series.cell, series.execution_count) for series in cells.values())
            raise InvalidRequest(f"{argument.name} has logged no metric; logged in: {names or 'no cell'}")
        generation = cells[seq].generation
        return self._keep([each for each in self.series if (each.cell, each.generation) == (seq, generation)])

    def _keep(self, series: Sequence[MetricSeries]) -> Metrics:
        names = {each.name for each in series}
        cells = {(each.generation, each.cell) for each in series}
        differences = [
            each for each in self.differences if each.name in names and (each.generation, each.cell) in cells
        ]
        notes = tuple(note for note in self.notes if any(note.startswith(f"{name}: ") for name in names))
        return Metrics(tuple(series), tuple(differences), notes, self.dropped_count)

    def __repr__(self) -> str:
        if not self.series:
            return "<Metrics: no point was logged>"
        cells = {(series.generation, series.cell) for series in self.series}
        ranks = describe_ranks(sorted({series.rank for series in self.series}))
        names = ", ".join(self.names[:_MAX_LISTED]) + (
            f" and {len(self.names) - _MAX_LISTED} more" * (len(self.names) > _MAX_LISTED)
        )
        return f"<Metrics: {pluralize(len(self), 'point')} of {names}, {ranks}, {pluralize(len(cells), 'cell')}>"


NO_METRICS = Metrics()


def format_csv(metrics: Metrics) -> str:
    r"""Format points as CSV with a head; numbers are exact.

    >>> format_csv(Metrics((MetricSeries("loss", 0, 3, [1.0], [0.5], 1),)))
    'generation,cell,rank,step,name,value\n1,3,0,1,loss,0.5\n'
    """
    lines = [",".join(_COLUMNS)]
    quoted = {name: _quote(name) for name in metrics.names}
    for point in metrics:
        step, value = format_exactly(point.step), format_exactly(point.value)
        lines.append(f"{point.generation},{point.cell},{point.rank},{step},{quoted[point.name]},{value}")
    return "\n".join([*lines, ""])


def _quote(text: str) -> str:
    """Quote a CSV field where needed; `csv` misses carriage returns before 3.13.

    >>> print(_quote("loss"), _quote('a "b", c'))
    loss "a ""b"", c"
    """
    return '"{}"'.format(text.replace('"', '""')) if any(sign in text for sign in '",\r\n') else text


def list_columns(metrics: Metrics) -> dict[str, list[object]]:
    """Return points as table columns; steps are int if all are whole."""
    columns: dict[str, list[object]] = {name: [] for name in _COLUMNS}
    for point in metrics:
        row = (point.generation, point.cell, point.rank, point.step, point.name, point.value)
        for name, value in zip(_COLUMNS, row, strict=True):
            columns[name].append(value)
    steps = [step for step in columns["step"] if isinstance(step, float)]
    if all(map(_is_whole, steps)):
        columns["step"] = [int(step) for step in steps]
    return columns


# -- the points of one cell


@dataclass(slots=True)
class _Series:
    points: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    """Steps and values. They are only added to, steps first, so that another thread may read the first points."""
    omitted_count: int = 0
    is_same: bool = False

    def halve(self) -> int:
        """Leave out every second point without changing views; return how many."""
        steps, values = self.points
        self.points = steps[::2], values[::2]
        count = len(values) - len(self.points[1])
        self.omitted_count += count
        return count


class _Comparison:
    """Compares what ranks log for each step of one metric."""

    def __init__(self) -> None:
        self._seen: dict[tuple[float, int], list[float]] = {}
        """By step and which of a rank's points of this step it is, from 0: the value, and the number of ranks with the step."""
        self._counts: dict[int, dict[float, int]] = {}
        """By rank, how often it has logged each step: a second epoch may begin with the first step again."""
        self.differing: set[tuple[float, int]] = set()
        self.is_whole = True

    def add(self, rank: int, steps: Sequence[float], values: Sequence[float]) -> None:
        """Record points."""
        counts = self._counts.setdefault(rank, {})
        for step, value in zip(steps, values, strict=True):
            number = counts.get(step, 0)
            if number or len(counts) < _MAX_COMPARED:
                counts[step] = number + 1
            key = (step, number)
            seen = self._seen.get(key)
            if seen is not None:
                seen[1] += 1
                if not is_equal(seen[0], value):
                    self.differing.add(key)
            elif len(self._seen) < _MAX_COMPARED:
                self._seen[key] = [value, 1]
            else:
                self.is_whole = False

    def find_missing(self, ranks: int) -> list[tuple[float, int]]:
        """Return the keys that not all of so many ranks have logged."""
        return [key for key, (_, count) in list(self._seen.items()) if count < ranks]


class CellMetrics:
    """Accumulates what the ranks log in one cell.

    Args:
        cell: its number.
        ranks: the ranks that run it.
        generation: the number of the cluster's start.
        execution_count: the number that the notebook shows beside it.
    """

    def __init__(
        self, cell: int, ranks: Sequence[int], generation: int = 1, execution_count: int | None = None
    ) -> None:
        self.cell, self.generation = cell, generation
        self._ranks, self._execution_count = tuple(ranks), execution_count
        self._series: dict[str, dict[int, _Series]] = {}
        self._compared: dict[str, _Comparison] = {}
        self._problems: dict[tuple[str, str], dict[int, MetricProblem]] = {}
        self._differences: dict[str, Difference] = {}
        """The first difference of a metric, from before points of it were left out here."""
        self.count = 0
        self.is_done = False
        """Whether the cell has ended, so that a step which a rank has not logged is missing."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was logged."""
        return not (self._series or self._problems)

    def add(self, rank: int, events: Iterable[OutputEvent]) -> bool:
        """Record the metrics among a rank's events; return whether there are any."""
        found = False
        for event in events:
            if isinstance(event, MetricPoints):
                found = True
                self._add_points(rank, event)
            elif isinstance(event, MetricProblem):
                found = True
                known = self._problems.setdefault((event.name, event.why), {})
                earlier = known.get(rank)
                count = event.count + (0 if earlier is None else earlier.count)
                step = event.step if earlier is None else earlier.step
                known[rank] = MetricProblem(event.name, event.why, step, count)
        return found

    def _add_points(self, rank: int, event: MetricPoints) -> None:
        by_rank = self._series.setdefault(event.name, {})
        series = by_rank.setdefault(rank, _Series())
        steps, values = unpack_numbers(event.steps), unpack_numbers(event.values)
        length = min(len(steps), len(values))
        series.points[0].extend(steps[:length])
        series.points[1].extend(values[:length])
        series.omitted_count += event.omitted_count
        series.is_same = series.is_same or event.is_same
        self.count += length
        if event.is_same:
            self._compared.setdefault(event.name, _Comparison()).add(rank, steps[:length], values[:length])

    def halve(self) -> None:
        """Leave out every second point of each series."""
        for name, compared in self._compared.items():
            if compared.differing and (found := self._describe(name, compared.differing)) is not None:
                self._differences.setdefault(name, found)
        self.count -= sum(series.halve() for by_rank in self._series.values() for series in by_rank.values())

    def snapshot(self, *, done: bool) -> Metrics:
        """Return the points so far.

        Args:
            done: whether the cell has ended, so that a step which a rank has not logged is missing.
        """
        if self.is_empty:
            return NO_METRICS
        series = tuple(
            self._view(name, rank, each)
            for name, by_rank in list(self._series.items())
            for rank, each in sorted(by_rank.items())
        )
        differences = tuple(
            difference for name in list(self._compared) for difference in self._find_differences(name, done=done)
        )
        return Metrics(series, differences, tuple(self._format_problems()))

    def _view(self, name: str, rank: int, series: _Series) -> MetricSeries:
        steps, values = series.points
        return MetricSeries(
            name,
            rank,
            self.cell,
            steps,
            values,
            len(values),
            series.omitted_count,
            series.is_same,
            self.generation,
            self._execution_count,
        )

    def _find_differences(self, name: str, *, done: bool) -> Iterator[Difference]:
        compared, by_rank = self._compared[name], self._series[name]
        if compared.differing:
            found = self._differences.get(name) or self._describe(name, compared.differing)
            if found is not None:
                yield replace(found, count=len({step for step, _ in compared.differing}))
        # Ranks that log other numbers of points leave out other ones. A value that was lost was logged.
        is_lost = any(problem == name for problem, _ in self._problems)
        if done and compared.is_whole and not is_lost and not any(each.omitted_count for each in by_rank.values()):
            missing = compared.find_missing(len(self._ranks))
            if missing and (found := self._describe(name, missing, are_missing=True)) is not None:
                yield found

    def _describe(
        self, name: str, keys: Iterable[tuple[float, int]], *, are_missing: bool = False
    ) -> Difference | None:
        """Describe the first of some steps; None if no two sides remain."""
        listed = list(keys)
        step, number = min(listed)
        groups: list[tuple[list[int], float | None]] = []
        for rank in self._ranks:
            value = _find_value(self._series[name].get(rank), step, number)
            if value is None and not are_missing:
                continue
            same = next((ranks for ranks, other in groups if _is_same_value(value, other)), None)
            if same is None:
                groups.append(([rank], value))
            else:
                same.append(rank)
        if len(groups) < 2:
            return None
        groups.sort(key=lambda group: (-len(group[0]), group[0][0]))
        sides = tuple((tuple(ranks), value) for ranks, value in groups)
        return Difference(name, step, sides, len({key[0] for key in listed}), self.cell, self.generation)

    def _format_problems(self) -> Iterator[str]:
        for (name, why), by_rank in list(self._problems.items()):
            count = sum(problem.count for problem in by_rank.values())
            first = min(problem.step for problem in by_rank.values())
            where = f"{describe_ranks(sorted(by_rank))}, first at step {format_number(first)}"
            yield f"{name}: {pluralize(count, 'point')} missing on {where}: {why}"


def _find_value(series: _Series | None, step: float, number: int) -> float | None:
    """Return the n-th value of a step, from 0, or None."""
    at = -1
    for _ in range(number + 1):
        try:
            at = -1 if series is None else series.points[0].index(step, at + 1)
        except ValueError:
            return None
    return None if series is None else series.points[1][at]


def _is_same_value(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else is_equal(one, other)


# -- the points of a cluster


class MetricStore:
    """The metrics of a cluster's cells, with an upper bound.

    The event loop writes it; any thread may read it.

    Args:
        limit: number of points.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        self._limit = limit
        self._cells: dict[tuple[int, int], CellMetrics] = {}
        """By generation and number, in the order in which they first logged."""
        self._dropped_count = 0

    def adopt(self, earlier: MetricStore) -> None:
        """Take over the cells of an earlier generation."""
        self._cells = {**earlier._cells, **self._cells}
        self._dropped_count += earlier._dropped_count

    def add(self, cell: CellMetrics) -> None:
        """Record a cell that has logged more; drop points above the limit."""
        self._cells.setdefault((cell.generation, cell.cell), cell)
        total = sum(each.count for each in self._cells.values())
        while total > self._limit:
            key, oldest = next(iter(self._cells.items()))
            if len(self._cells) == 1:
                cell.halve()
            else:
                self._dropped_count += oldest.count
                del self._cells[key]
            total = sum(each.count for each in self._cells.values())

    def replace_earlier(self, cell: int) -> None:
        """Forget a replayed cell's points of the last generation that ran it."""
        last = max((generation for generation, number in self._cells if number == cell), default=0)
        self._cells.pop((last, cell), None)

    def snapshot(self) -> Metrics:
        """Return the points of all cells."""
        found = [cell.snapshot(done=cell.is_done) for cell in list(self._cells.values())]
        return Metrics(
            tuple(series for each in found for series in each.series),
            tuple(difference for each in found for difference in each.differences),
            tuple(note for each in found for note in each.notes),
            self._dropped_count,
        )


# -- what a rank sends


_STRIDE_POINTS = 4096
"""Points of a metric after which only every second one is kept, and so on: of 1,000,000 about 32,000."""


class PointBuffer:
    """Points of one metric on a rank that were not sent yet.

    The first 4,096 points are kept, then every second of the next 8,192, then every fourth, and so on. All ranks that log alike keep
    the same. The cell's last point is kept too.
    """

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._values: list[float] = []
        self._omitted_count = self._count = self._kept_count = 0
        self._stride, self._is_same = 1, False
        self._last: tuple[float, float] | None = None

    def add(self, step: float, value: float, *, is_same: bool) -> None:
        """Add a point, or leave it out."""
        self._is_same = self._is_same or is_same
        at, self._count = self._count, self._count + 1
        if at % self._stride:
            self._last = (step, value)
            self._omitted_count += 1
            return
        self._last = None
        self._steps.append(step)
        self._values.append(value)
        self._kept_count += 1
        if self._kept_count == _STRIDE_POINTS:
            self._kept_count, self._stride = 0, 2 * self._stride

    def take(self, name: str, *, is_final: bool) -> MetricPoints | None:
        """Return what was added since the last call; None if nothing was.

        Args:
            name: of the metric.
            is_final: whether the cell has ended, so that the last point is the last one.
        """
        if is_final and self._last is not None:
            self._steps.append(self._last[0])
            self._values.append(self._last[1])
            self._last = None
            self._omitted_count -= 1
        if not (self._steps or self._omitted_count):
            return None
        event = MetricPoints(
            name, pack_numbers(self._steps), pack_numbers(self._values), self._is_same, self._omitted_count
        )
        self._steps, self._values, self._omitted_count = [], [], 0
        return event
