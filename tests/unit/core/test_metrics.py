"""Points of metrics: what is packed, kept, compared and written."""

from __future__ import annotations

import csv
import io
import math

import pytest

from mhnb.core.cell_name import parse_cell_argument
from mhnb.core.codec import decode, encode
from mhnb.core.messages import OutputProduced
from mhnb.core.metrics import (
    CellMetrics,
    MetricPoint,
    Metrics,
    MetricStore,
    PointBuffer,
    format_csv,
    is_equal,
    list_columns,
    pack_numbers,
    unpack_numbers,
)
from mhnb.core.output.events import MetricPoints, MetricProblem, Stream
from mhnb.errors import InvalidRequest
from tests.support.metric_samples import cell_metrics, log_curve, log_points, send

ODD_NUMBERS = [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, 2.0**53]


def test_numbers_arrive_exactly() -> None:
    """Each number, also one that JSON does not have, crosses the transport with its bits."""
    sent = OutputProduced(1, 2, [MetricPoints("loss", pack_numbers(ODD_NUMBERS), pack_numbers(ODD_NUMBERS), True, -3)])
    received = decode(encode(sent))
    assert received == sent
    assert isinstance(received, OutputProduced)
    (event,) = received.events
    assert isinstance(event, MetricPoints)
    assert all(map(is_equal, unpack_numbers(event.values), ODD_NUMBERS))


def test_points_are_rows() -> None:
    """Each point has its cell, rank, step, name and value; other events are ignored."""
    metrics = CellMetrics(3, (0, 2), 2)
    assert not metrics.add(0, [Stream("stdout", "x")])
    assert metrics.is_empty
    metrics.add(0, send([("a", 1, 0.5), ("b", 1, 1.0)]))
    metrics.add(2, send([("a", 1, 0.25)]))
    assert list(metrics.snapshot(done=True)) == [
        MetricPoint(3, 0, 1.0, "a", 0.5, 2),
        MetricPoint(3, 2, 1.0, "a", 0.25, 2),
        MetricPoint(3, 0, 1.0, "b", 1.0, 2),
    ]


def test_a_snapshot_does_not_change() -> None:
    """Points that arrive later, and a cell that is thinned, leave what was returned before as it was."""
    metrics = cell_metrics(lambda _: [("a", step, step) for step in range(10)], 1)
    before = metrics.snapshot(done=False)
    metrics.add(0, send([("a", 10, 10.0)]))
    metrics.halve()
    assert [point.step for point in before] == list(range(10))
    after = metrics.snapshot(done=False)
    assert [point.step for point in after] == [0, 2, 4, 6, 8, 10]
    assert after.omitted_count == 5


# -- same=True


def test_values_that_agree_are_not_mentioned() -> None:
    """NaN equals NaN, and the order in which the ranks' points arrive does not matter."""
    values = [0.5, math.nan, math.inf, 0.0]
    assert log_points(lambda _: [("a", s, v) for s, v in enumerate(values)], same=True).all_notes == ()


def test_first_step_that_differs_is_described() -> None:
    """The note has the first such step, the ranks by value with exact numbers, and how many steps differ."""
    metrics = log_points(lambda r: [("lr", s, 0.1 + (1e-17 + 0.2) * (r == 2 and s >= 3)) for s in range(5)], same=True)
    assert metrics.all_notes == ("lr differs at step 3 (2 steps differ): ranks 0-1,3 0.1 · rank 2 0.30000000000000004",)


@pytest.mark.parametrize(("one", "other"), [(0.1 + 0.2, 0.3), (0.0, -0.0), (math.nan, 1.0), (math.inf, -math.inf)])
def test_values_are_compared_by_their_bits(one: float, other: float) -> None:
    """Values that would be printed alike differ, and so do a zero and a negative zero."""
    (difference,) = log_points(lambda r: [("a", 7, one if r else other)], 2, same=True).differences
    assert (difference.step, difference.count) == (7, 1)
    sides = str(difference).removeprefix("a differs at step 7: ").split(" · ")
    assert len({side.split()[-1] for side in sides}) == 2


def test_a_step_that_a_rank_lacks_is_missing_at_the_end() -> None:
    """While the cell runs, a rank may be behind; when it has ended, the note names the ranks and the first such step."""
    metrics = cell_metrics(lambda r: [("a", s, 1.0) for s in range(12 if r < 2 else 10)], same=True)
    assert metrics.snapshot(done=False).differences == ()
    assert metrics.snapshot(done=True).all_notes == ("a: ranks 2-3 did not log step 10 (2 such steps)",)


def test_metric_that_only_one_rank_logs_is_missing_on_the_others() -> None:
    """Ranks that have never logged the metric count too, because all ranks of the cell should agree on it."""
    metrics = log_points(lambda r: [("a", 1, 1.0)] if r == 0 else [], same=True)
    assert metrics.all_notes == ("a: ranks 1-3 did not log step 1",)
    all_but_one = log_points(lambda r: [("a", 1, 1.0)] if r != 3 else [], same=True)
    assert all_but_one.all_notes == ("a: rank 3 did not log step 1",)


def test_successive_points_of_one_step_are_compared_in_order() -> None:
    """A rank that logs a step twice is compared point by point, not with itself."""
    assert log_points(lambda _: [("a", 1, 1.0), ("a", 1, 2.0)], same=True).differences == ()
    (difference,) = log_points(lambda r: [("a", 1, 1.0), ("a", 1, 2.0 + r)], 2, same=True).differences
    assert difference.groups == (((0,), 2.0), ((1,), 3.0))


def test_second_epoch_is_compared_with_the_second_of_other_ranks() -> None:
    """Steps may begin anew: each is compared with the same one of other ranks, and never a rank with itself."""
    epochs = [(step, 0.1 * step + epoch) for epoch in range(2) for step in range(3)]
    assert log_points(lambda _: [("a", step, value) for step, value in epochs], same=True).all_notes == ()
    assert log_points(lambda _: [("a", step, value) for step, value in epochs], 1, same=True).all_notes == ()
    differs = log_points(
        lambda r: [("a", s, v + (r if at == 4 else 0)) for at, (s, v) in enumerate(epochs)], 2, same=True
    )
    (difference,) = differs.differences
    assert (difference.step, difference.count) == (1, 1)
    assert [ranks for ranks, _ in difference.groups] == [(0,), (1,)]
    (missing,) = log_points(lambda r: [("a", s, v) for s, v in epochs[: 6 - r]], 2, same=True).all_notes
    assert missing == "a: rank 1 did not log step 2"


def test_value_that_was_lost_is_not_called_missing() -> None:
    """The rank has logged it; a note says why it is not there."""
    metrics = CellMetrics(12, range(2))
    metrics.add(0, send([("a", 1, 1.0), ("a", 2, 1.0)], same=True))
    metrics.add(1, [*send([("a", 1, 1.0)], same=True), MetricProblem("a", "donated", 2.0, 1)])
    assert metrics.snapshot(done=True).all_notes == ("a: 1 point missing on rank 1, first at step 2: donated",)


def test_difference_outlives_the_points_of_its_step() -> None:
    """Of too many points every second one goes; the first difference is kept with its values."""
    metrics = cell_metrics(lambda r: [("a", step, float(r) if step == 5 else 1.0) for step in range(8)], 3, same=True)
    (before,) = metrics.snapshot(done=True).differences
    metrics.halve()
    metrics.halve()
    (after,) = metrics.snapshot(done=True).differences
    assert (before.step, len(before.groups)) == (5, 3)
    assert after == before


def test_replay_replaces_the_run_that_it_repeats() -> None:
    """Cells of the same number in earlier generations had other code, and their points stay."""
    store = MetricStore()
    for generation in (1, 2):
        own = cell_metrics(lambda _: [("a", 1, 1.0)], 1, seq=3)
        own.generation = generation
        store.add(own)
    store.replace_earlier(3)
    assert [series.generation for series in store.snapshot().series] == [1]


def test_notes_go_with_their_metric() -> None:
    """A metric of which every value was lost is not said to be unknown, and a chosen one keeps its own notes."""
    metrics = CellMetrics(12, range(1))
    metrics.add(
        0, [*send([("x", 1, 1.0)]), MetricProblem("x", "failed", 2.0, 1), MetricProblem("loss", "donated", 1.0, 3)]
    )
    found = metrics.snapshot(done=True)
    assert found.select_names(["x"]).all_notes == ("x: 1 point missing on rank 0, first at step 2: failed",)
    with pytest.raises(
        InvalidRequest, match=r"'loss' has no value that could be read; loss: 3 points missing on rank 0"
    ):
        found.select_names(["loss"])


def test_metrics_without_same_are_not_compared() -> None:
    """Most metrics differ between ranks."""
    assert log_points(lambda rank: [("a", 1, rank)]).all_notes == ()


# -- bounds


@pytest.mark.parametrize("count", [4096, 4097, 100_000])
def test_many_points_are_thinned_alike(count: int) -> None:
    """The first 4,096 points and the last are kept, of the others fewer and fewer; all are counted, however they are sent."""
    whole, pieces = PointBuffer(), PointBuffer()
    steps: list[float] = []
    omitted = 0
    for step in range(count):
        whole.add(step, step / 2, is_same=False)
        pieces.add(step, step / 2, is_same=False)
        if step % 1000 == 999 and (event := pieces.take("a", is_final=False)) is not None:
            steps += unpack_numbers(event.steps)
            omitted += event.omitted_count
    last, event = pieces.take("a", is_final=True), whole.take("a", is_final=True)
    assert event is not None
    if last is not None:
        steps += unpack_numbers(last.steps)
        omitted += last.omitted_count
    assert steps == list(unpack_numbers(event.steps))
    assert steps[:4096] == list(range(4096))
    assert steps[-1] == count - 1
    assert len(steps) + omitted == len(steps) + event.omitted_count == count
    assert len(steps) <= 25_000
    assert whole.take("a", is_final=True) is None


def test_a_million_points_stay_small() -> None:
    """What a rank sends of 1,000,000 points is less than 1 MB."""
    buffer = PointBuffer()
    for step in range(1_000_000):
        buffer.add(step, 0.5, is_same=False)
    event = buffer.take("a", is_final=True)
    assert event is not None
    assert len(event.steps) + len(event.values) < 1_000_000


def test_store_drops_the_oldest_cells() -> None:
    """Beyond its limit the store drops whole cells, and says how many points; a cell that is too large alone is thinned."""
    store = MetricStore(limit=30)
    for seq in (1, 2, 3):
        store.add(cell_metrics(lambda _: [("a", step, 1.0) for step in range(14)], 1, seq=seq))
    metrics = store.snapshot()
    assert [series.cell for series in metrics.series] == [2, 3]
    assert metrics.all_notes == ("14 points of older cells are not kept: a cluster keeps 2,000,000",)
    store.add(cell_metrics(lambda _: [("a", step, 1.0) for step in range(100)], 1, seq=4))
    metrics = store.snapshot()
    assert ([series.cell for series in metrics.series], len(metrics), metrics.omitted_count) == ([4], 25, 75)


def test_replayed_cell_replaces_its_earlier_points() -> None:
    """A restart keeps what was logged, with its generation; a replayed cell logs again, and its earlier points go."""
    store, fresh = MetricStore(), MetricStore()
    for seq in (1, 2):
        store.add(cell_metrics(lambda _: [("a", 1, 1.0)], 1, seq=seq))
    fresh.adopt(store)
    fresh.replace_earlier(2)
    again = CellMetrics(2, (0,), 2)
    again.add(0, send([("a", 1, 5.0)]))
    fresh.add(again)
    found = [(point.generation, point.cell, point.value) for point in fresh.snapshot()]
    assert found == [(1, 1, 1.0), (2, 2, 5.0)]


def test_problems_are_counted_over_the_ranks() -> None:
    """A value that could not be read is a note with the ranks, the first step and the reason."""
    metrics = CellMetrics(1, range(3))
    for rank, step in ((1, 5.0), (2, 3.0), (2, 4.0)):
        metrics.add(rank, [MetricProblem("loss", "it was donated", step, 2)])
    found = metrics.snapshot(done=True)
    assert found
    assert found.all_notes == ("loss: 6 points missing on ranks 1-2, first at step 3: it was donated",)


# -- the value


def test_select_by_name_rank_and_cell() -> None:
    """Each argument keeps the points that have it."""
    metrics = log_points(lambda rank: [("a", 1, rank), ("b", 2, rank)])
    assert [point.value for point in metrics.select(name="b", rank=3, cell=12)] == [3.0]
    assert metrics.select(name="a").names == ("a",)
    assert len(metrics.select(rank=0)) == 2


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"name": "los"}, "unknown metric 'los'; expected a or b"),
        ({"rank": 9}, "rank 9 has logged no such metric; logged on ranks 0-3"),
        ({"cell": 7}, "cell 7 has logged no metric; logged in: cell 12"),
    ],
)
def test_unknown_selection_names_what_there_is(chosen: dict[str, int], said: str) -> None:
    """The error has the value and the alternatives."""
    metrics = log_points(lambda rank: [("a", 1, rank), ("b", 2, rank)])
    with pytest.raises(InvalidRequest) as refused:
        metrics.select(**chosen)  # type: ignore[arg-type]
    assert str(refused.value) == said


def test_cell_is_named_as_the_notebook_shows_it() -> None:
    """`In[7]` finds the cell by the notebook's number, which differs from mhnb's."""
    metrics = CellMetrics(3, (0,), 1, 7)
    metrics.add(0, send([("a", 1, 1.0)]))
    argument = parse_cell_argument("In[7]")
    assert argument is not None
    (series,) = metrics.snapshot(done=True).select_cell(argument).series
    assert (series.cell, series.cell_name) == (3, "In [7]")


def test_csv_is_exact_and_quoted() -> None:
    """Reading the file gives the same numbers back; a name with a comma, a quote or a line end is one field."""
    name = 'a,"b"\n=c\rd'
    metrics = log_points(lambda _: [(name, step, value) for step, value in enumerate(ODD_NUMBERS)], 1)
    head, *rows = csv.reader(io.StringIO(format_csv(metrics), newline=""))
    assert head == ["generation", "cell", "rank", "step", "name", "value"]
    assert {row[4] for row in rows} == {name}
    assert all(map(is_equal, (float(row[5]) for row in rows), ODD_NUMBERS))
    assert [row[3] for row in rows] == [str(step) for step in range(len(ODD_NUMBERS))]


def test_columns_have_whole_steps() -> None:
    """Steps are whole numbers in a table if all of them are."""
    assert list_columns(log_curve([[0.5, 0.25]]))["step"] == [0, 1]
    assert list_columns(log_points(lambda _: [("a", 0.5, 1.0)], 1))["step"] == [0.5]
    assert list_columns(Metrics())["value"] == []


def test_repr_counts() -> None:
    """The text of the value has the number of points, the names, the ranks and the cells."""
    assert repr(log_curve([[1.0, 2.0]] * 3)) == "<Metrics: 6 points of loss, ranks 0-2, 1 cell>"
    assert repr(Metrics()) == "<Metrics: no point was logged>"
