"""A running training loop is shown as it will be stored, whatever step each rank is at, at a bounded cost."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mhnb.core.output.folding import group_outputs
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.output.template import Slot
from mhnb.view.cell.blocks import BlockLine, RepeatedLines, block_items, find_repeated_lines
from mhnb.view.cell.html import format_cell_html
from mhnb.view.live.frame import build_frame
from mhnb.view.live.repeated import RepeatedBlock, RepeatedHistory
from tests.support.view_samples import StrictPage, cell, equal_loop, loop, out


def _running(result: CellResult, counts: Sequence[int]) -> CellResult:
    """Return a cell while it runs: of each rank only so many lines."""
    ranks = tuple(
        RankResult(
            rank.rank, "running", (out("".join(rank.stdout.splitlines(keepends=True)[:count])),) if count else ()
        )
        for rank, count in zip(result, counts, strict=True)
    )
    return replace(result, ranks=ranks, done=False)


def _blocks(*snapshots: CellResult) -> list[RepeatedBlock]:
    history = RepeatedHistory()
    for snapshot in snapshots:
        history.read(snapshot)
    return history.find_blocks(snapshots[-1].ranks)


def _run_of(block: RepeatedBlock) -> RepeatedLines:
    (run,) = (item for item in block.items if isinstance(item, RepeatedLines))
    return run


def test_block_is_what_is_stored() -> None:
    """Up to a hundred lines, the block of ranks at the same step is exactly the stored one, however its lines arrived."""
    result = loop(100, start="compiling\n")
    (block,) = _blocks(*(_running(result, [count] * 4) for count in (1, 2, 3, 40, 101)))
    (group,) = group_outputs([((rank.rank,), rank.outputs) for rank in result])
    stored = find_repeated_lines(block_items(group), group.ranks)
    assert block.ranks == group.ranks
    assert [replace(item, indexes=()) if isinstance(item, RepeatedLines) else item for item in block.items] == stored


def test_ranks_at_different_steps_share_a_block() -> None:
    """A rank that is behind has no value yet in the last rows. It is neither odd nor named until it is far behind."""
    result = loop(100, odd=None)
    (block,) = _blocks(_running(result, [50, 48, 47, 50]))
    run = _run_of(block)
    assert (block.ranks, run.count, run.note) == ((0, 1, 2, 3), 50, "")
    last = [column[-1] for column in run.columns]
    assert last[0] == "49"
    assert isinstance(last[1], Slot)
    assert [bool(value) for value in last[1].values] == [True, False, False, True]
    assert last[1].outliers == frozenset()
    (far,) = _blocks(_running(result, [50, 48, 10, 50]))
    assert _run_of(far).count_label == "× 50 lines · rank 2 at 10"


def test_own_rank_in_the_line_does_not_split_ranks_at_different_steps() -> None:
    """A rank that is behind keeps its own number in the rows that it has not reached."""
    said = [
        [out("".join(f"rank {rank}: step {at} loss {1 + at + rank / 7:.3f}\n" for at in range(60)))]
        for rank in range(4)
    ]
    (block,) = _blocks(_running(cell(*said), [40, 38, 40, 33]))
    assert block.ranks == (0, 1, 2, 3)


@pytest.mark.slow
def test_drawn_lines_stay_the_same() -> None:
    """The lines in regular distances only ever become fewer, so that the curve keeps its form while more arrive."""
    result, history, before = loop(600, odd=None), RepeatedHistory(), set[int]()
    for count in range(20, 600, 7):
        snapshot = _running(result, [count, count - 1, count - 2, count])
        history.read(snapshot)
        (block,) = history.find_blocks(snapshot.ranks)
        indexes = _run_of(block).line_indexes
        assert len(indexes) <= 140
        assert {*range(count - 5, count)} <= set(indexes)
        distance = max(after - here for here, after in itertools.pairwise(indexes))
        regular = {index for index in indexes if index % distance == 0}
        assert regular >= {index for index in before if index % distance == 0}
        before = regular


def test_lines_after_the_loop_stay_below_it() -> None:
    """A few lines after a long run do not replace it, because they may be a checkpoint's; after many it is history."""
    lines = [f"step {at} loss {1 / (1 + at):.3f}" for at in range(30)]
    few = _running(cell(*[[out("\n".join([*lines, "saved", ""]))]] * 2), [31, 30])
    (block,) = _blocks(few)
    assert not any(isinstance(item, BlockLine) for item in block.items)
    (block,) = _blocks(_running(cell(*[[out("\n".join([*lines, "saved", ""]))]] * 2), [31, 31]))
    assert [item.text for item in block.items if isinstance(item, BlockLine)] == ["saved"]
    many = cell(*[[out("\n".join([*lines, *["word"] * 20, ""]))]] * 2)
    assert _blocks(_running(many, [50, 50])) == []


def test_other_output_is_not_a_loop() -> None:
    """Nothing is found where ranks print lines of other forms, or where the last output is a figure."""
    result = loop(40)
    other = cell(*[[out("".join(f"line {at} of {rank}\n" for at in range(40)))] for rank in range(4)])
    mixed = replace(result, ranks=(*result.ranks[:3], other.ranks[3]))
    assert _blocks(mixed) == []
    figure = {"output_type": "display_data", "data": {"image/png": "A"}, "metadata": {}}
    shown = replace(result, ranks=tuple(replace(rank, outputs=(*rank.outputs, figure)) for rank in result.ranks))
    assert _blocks(shown) == []


def test_cleared_output_starts_anew() -> None:
    """Output that was cleared and printed again is read again, and so is the next cell's."""
    result = loop(60)
    again = _running(loop(60, odd=None, start="again\n"), [20] * 4)
    (block,) = _blocks(_running(result, [50] * 4), again)
    assert _run_of(block).count == 19
    other_cell = replace(_running(result, [15] * 4), seq=99)
    (block,) = _blocks(_running(result, [50] * 4), other_cell)
    assert _run_of(block).count == 15


def test_a_flood_is_not_read_line_by_line() -> None:
    """Of megabytes between two frames only the end is read, and what is kept of a long run is bounded."""
    flood = [
        out("".join(f"step {at} loss {at / 7:.3f}\n" for at in range(start, start + 1500)))
        for start in range(0, 60_000, 1500)
    ]
    history = RepeatedHistory()
    history.read(cell(flood, done=False))
    (reader,) = history._readers.values()
    run = reader.view().run  # type: ignore[union-attr]
    assert run.count <= 1500
    assert len(run._sampled) <= 128
    history.read(replace(cell([out("".join(one["text"] for one in flood))], done=False), seq=7))
    (block,) = history.find_blocks(cell([]).ranks)
    assert _run_of(block).count < 4000


def test_a_flood_of_many_ranks_is_read_in_part() -> None:
    """What is read for one frame is shared by the ranks, so that it costs as much for many as for a few."""
    history = RepeatedHistory()
    for lines in (10, 60_000):
        text = "".join(f"step {at} loss {at / 7:.3f}\n" for at in range(lines))
        history.read(cell(*[[out(text)]] * 64, done=False))
    views = [reader.view() for reader in history._readers.values()]
    assert len(views) == 64
    assert all(view is not None and view.run.count < 300 for view in views)


def test_long_lines_around_a_loop_are_shortened() -> None:
    """A frame with lines that are much longer than a page is wide fits the bytes that may be sent."""
    loop_lines = "".join(f"step {at} loss {1 / (1 + at):.3f}\n" for at in range(30))
    snapshot = cell(*[[out(f"{'x' * 9000}\n{loop_lines}{'y' * 9000}\n")]] * 2, done=False)
    (block,) = _blocks(snapshot)
    lines = [item.text for item in block.items if isinstance(item, BlockLine)]
    assert [(line[0], "left out" in line, len(line) < 1100) for line in lines] == [("x", True, True), ("y", True, True)]
    long = cell(*[[out("".join(f"step {at} {'x' * 2000}\n" for at in range(30)))]] * 2, done=False)
    assert _blocks(long) == []


def test_many_blocks_with_curves_are_not_sent() -> None:
    """Ranks that say different things after their loop are a few blocks at most; of more, the last lines are shown."""
    loop_lines = "".join(f"step {at} loss {1 / (1 + at):.3f}\n" for at in range(30))
    words = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
    assert [len(_blocks(cell(*[[out(f"{loop_lines}{word}\n")] for word in words[:count]]))) for count in (4, 6)] == [
        4,
        0,
    ]


def test_frame_has_the_rows_of_the_stored_form() -> None:
    """The frame has the curve, the first two and the last five rows, and the number of lines between, without those lines."""
    result = loop(100)
    snapshot, history = _running(result, [100] * 4), RepeatedHistory()
    history.read(snapshot)
    (block,) = build_frame(snapshot, history=history).blocks
    live, stored = StrictPage(block.html), StrictPage(format_cell_html(result))
    visible = re.sub(r"ranks 0-3 · 0.21 s · rank 2 differs: loss, acc|each rank word for word", "", stored.visible)
    assert live.visible == visible
    assert live.text == live.visible
    assert "details" not in [tag for tag, _ in live.tags]
    assert [attributes for tag, attributes in live.tags if tag == "img"] == [
        attributes for tag, attributes in stored.tags if tag == "img"
    ]


@pytest.mark.slow
def test_frame_of_a_loop_is_small() -> None:
    """A frame of many lines, ranks or fields fits the bytes that may be sent."""
    for result in (loop(2000), loop(60, ranks=64), equal_loop(500, ranks=16)):
        snapshot, history = replace(result, done=False), RepeatedHistory()
        history.read(snapshot)
        assert sum(len(block.html) for block in build_frame(snapshot, history=history).blocks) < 12_000
    fields = " ".join(f"f{at} {{}}.{at}" for at in range(20))
    said = [
        [out("".join(f"step {at} {fields}\n".format(*[at * (rank + 2)] * 20) for at in range(50)))]
        for rank in range(16)
    ]
    snapshot, history = replace(cell(*said), done=False), RepeatedHistory()
    history.read(snapshot)
    assert sum(len(block.html) for block in build_frame(snapshot, history=history).blocks) < 25_000
