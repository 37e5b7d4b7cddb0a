"""A running cell, sent in small parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mhnb.core.hang_report import HangReport, RankLocation
from mhnb.view.html import RankLocations
from mhnb.view.live.frame import MAX_BLOCKS, ByteBudget, build_frame, changed_parts, frame_parts, frame_to_html
from tests.support.metric_samples import log_points
from tests.support.view_samples import StrictPage, cell, failed, out

BAR = "train:  {}%|████▏     | {}/100 [00:04<00:05, 9it/s]"


def test_only_what_changed_is_sent() -> None:
    """If one rank printed a line, its block and the heading are sent, but not the strip or the other blocks."""
    before = build_frame(cell([out("a\n")], [out("b\n")], [out("c\n")], done=False, wall_s=1.0))
    after = build_frame(cell([out("a\n")], [out("b\n")], [out("c\nd\n")], done=False, wall_s=1.1))
    assert set(changed_parts(frame_parts(before), frame_parts(after))) == {"head", "block_2"}


def test_every_frame_has_the_same_parts() -> None:
    """A part that is no longer present is sent as empty."""
    few, many = (
        build_frame(cell([], done=False)),
        build_frame(cell(*[[out(chr(97 + r % 26) * r)] for r in range(300)], done=False)),
    )
    assert set(frame_parts(few)) == set(frame_parts(many))
    assert len(many.blocks) == MAX_BLOCKS
    assert "and ranks" in many.overflow


def test_ranks_at_different_steps_are_one_line() -> None:
    """Ranks at different steps share a block, because they print the same kind of line."""
    said = [[out("".join(f"step {n} loss {1 / (n + 1):.3f}\n" for n in range(20 + rank)))] for rank in range(4)]
    (block,) = build_frame(cell(*said, done=False)).blocks
    assert block.html.count("step") == 1
    assert "<td" in block.html


def test_a_loop_shows_its_last_lines() -> None:
    """A loop that prints the same on all ranks shows its last lines, as any other output does, without a fold."""
    said = [out("".join(f"step {n} loss {1 / (n + 1):.3f}\n" for n in range(5000)))]
    (block,) = build_frame(cell(*[said] * 4, done=False)).blocks
    assert [line.split()[1] for line in StrictPage(block.html).visible.splitlines()] == [
        str(n) for n in range(4988, 5000)
    ]
    assert "details" not in block.html


def test_bars_of_many_ranks_are_one_bar() -> None:
    """Moving progress bars are combined."""
    (block,) = build_frame(cell(*[[out(BAR.format(r, r), "stderr")] for r in range(64)], done=False)).blocks
    assert "0-63 %" in block.html
    assert "median 31 %" in block.html


@pytest.mark.parametrize("said", ["7\n", "0\n1\n2\n", "nan\n"])
def test_equal_numbers_are_one_block(said: str) -> None:
    """This also holds if only numbers are printed, because equal values need no text around them."""
    running = cell(*[[out(said)]] * 3, [out("8\n")], done=False)
    assert [block.label for block in build_frame(running).blocks] == ["rank 3", "ranks 0-2"]
    (block,) = build_frame(cell(*[[out(said)]] * 4, done=False)).blocks
    assert said.splitlines()[-1] in block.html


def test_failed_rank_has_its_own_block() -> None:
    """A rank that failed has its own block, even if its output is equal."""
    labels = [block.label for block in build_frame(cell([out("a")], failed(1, said=[out("a")]), done=False)).blocks]
    assert labels == ["rank 0", "rank 1"]


def test_hosts_are_beside_the_labels() -> None:
    """The host stands beside the ranks' label, and is quiet in HTML; one block of all ranks has neither."""
    running = cell([out("a")], [out("b")], done=False)
    frame = build_frame(running, RankLocations({0: "host0", 1: "host1"}), view="rows")
    assert [(block.label, block.host) for block in frame.blocks] == [("rank 0", "host0"), ("rank 1", "host1")]
    assert '<b>rank 0</b> <span style="opacity:.65">host0</span>' in frame_to_html(frame)
    (block,) = build_frame(cell([out("a")], done=False), RankLocations({0: "host0"})).blocks
    assert (block.label, block.host) == ("", "")


def test_the_budget_allows_a_burst_and_then_a_rate() -> None:
    """A burst is allowed up to the budget, and an amount that is too large now is allowed later."""
    budget = ByteBudget(rate_nbytes_per_s=100, burst_nbytes=1000, remaining_nbytes=1000)
    spent = budget.spend(900, 1.0)
    assert spent is not None
    assert spent.spend(200, 1.5) is None
    assert spent.spend(200, 2.5) is not None


def test_bars_at_different_places_are_one_bar() -> None:
    """Bars are combined although their drawn parts differ too."""
    lines = [
        "train:  80%|████████  | 80/100 [00:04<00:01, 19.89it/s]",
        "train:  68%|██████▊   | 68/100 [00:04<00:01, 16.61it/s]",
    ]
    (block,) = build_frame(cell(*[[out(line, "stderr")] for line in lines], done=False)).blocks
    assert "train: 68-80 %" in block.html
    assert "min 68/100 (rank 1) [00:04&lt;00:01, 16.61it/s] · median 68 % · max 80/100 (rank 0)" in block.html
    assert "19.89" not in block.html


@pytest.mark.parametrize(("last", "said"), [((7, 7), "step 7"), ((7, 5), "steps 5-7"), ((0, -1), "step 0")])
def test_heading_has_the_last_steps_that_ranks_have_logged(last: tuple[int, int], said: str) -> None:
    """It says how far a loop has come; a metric that is logged less often does not count."""
    points = log_points(
        lambda rank: [
            *(("loss", float(step), 1.0) for step in range(last[rank] + 1)),
            *([("epoch", 99.0, 1.0)] if last[rank] > 1 else []),
        ],
        2,
    )
    running = replace(cell([], [], done=False, wall_s=7.9), added=(points,))
    assert build_frame(running).heading.endswith(f"running 7.9 s · {said}")


def test_nested_bars_are_shown_together() -> None:
    """The outer bar stays visible while ranks are at different positions of the inner bar; finished bars do not."""
    ended, outer = BAR.format(100, 100).replace("train", "before"), BAR.format(40, 40)
    said = [[out(f"{ended}\n{outer}\n{BAR.format(r, r).replace('train', 'step')}", "stderr")] for r in (10, 50)]
    (block,) = build_frame(cell(*said, done=False)).blocks
    assert "train:  40%|" in block.html
    assert "step: 10-50 %" in block.html
    assert "before" not in block.html


def test_cell_with_recent_output_is_not_reported_as_hanging() -> None:
    """Ranks at the same line in each sample are reported only if they print nothing or wait for others."""
    sleeping = HangReport(
        1, (), (), launch=None, lines={0: 2}, age_s=4.0, progress=False, known=True, stuck=True,
        places=(RankLocation((0,), "blocked", "sleep"),),
    )  # fmt: skip
    running = replace(cell([out("step 1\n")], done=False, wall_s=4.0), where=sleeping)
    assert build_frame(running, has_recent_output=True).hang_html == ""
    assert "no progress" in build_frame(running, has_recent_output=False).hang_html
    waiting = replace(running, where=replace(sleeping, waiting=(0,)))
    assert build_frame(waiting, has_recent_output=True).hang_html != ""
