"""A running cell as HTML of bounded size."""

from __future__ import annotations

import pytest

from mhnb.core.output.results import CellResult
from mhnb.view.live.frame import build_frame, frame_to_html, tail_text
from tests.support.view_samples import StrictPage, cell, failed, out, shown


@pytest.mark.parametrize(
    "result",
    [
        cell(*[[out(f"rank {rank} said <&>\n" * 25000)] for rank in range(4)], done=False),
        cell(*[[out("<&>" * 300000)] for _ in range(4)], done=False),
        cell(*[[out(f"é{rank}\n" * 3000)] for rank in range(512)], done=False),
        cell(*[[out(f"{chr(0x100 + rank)} <&>\n" * 3000)] for rank in range(512)], done=False),
        cell(*[[shown(image__png="A" * 10**6, text__plain=f"fig {rank}")] for rank in range(64)], done=False),
    ],
    ids=["100,000 lines", "one line", "512 ranks", "512 words", "figures"],
)
def test_update_size_is_bounded(result: CellResult) -> None:
    """The size has a limit, because each update is sent whole."""
    assert len(frame_to_html(build_frame(result)).encode()) <= 40_000


def test_the_last_lines_are_shown() -> None:
    """The last lines are shown, because the user waits for the latest output."""
    page = StrictPage(frame_to_html(build_frame(cell([out("".join(f"step {n}\n" for n in range(9999)))], done=False))))
    assert page.visible.endswith("step 9998")
    assert "step 1\n" not in page.visible


def test_ranks_with_the_same_last_lines_share_a_block() -> None:
    """Ranks with the same last lines share a block, and the rank that is behind comes first."""
    page = StrictPage(
        frame_to_html(build_frame(cell([out("b\n")], [out("a\n")], [out("b\n")], done=False, wall_s=2.0)))
    )
    assert page.visible == "ranks 0-2 · running 2.0 srank 1aranks 0,2b"


def test_error_of_a_rank_is_shown_immediately() -> None:
    """An error is shown immediately, because the other ranks may run for minutes."""
    assert "ValueError: cannot reshape" in frame_to_html(build_frame(cell([], failed(1), done=False)))


def test_ranks_of_further_groups_are_named() -> None:
    """Ranks without room are named."""
    html = frame_to_html(build_frame(cell(*[[out(f"{chr(97 + rank)}\n")] for rank in range(30)], done=False)))
    assert "… and ranks 24-29, shown when the cell ends" in html


def test_other_stream_starts_a_new_line_after_a_bar() -> None:
    """A bar leaves its line open, and only output of the same stream continues that line."""
    bar, said = out("train: 67%", "stderr"), out("step 40\n")
    assert tail_text([bar, said], max_lines=3, max_chars=99) == "train: 67%\nstep 40"
    assert tail_text([said, bar, shown(text__plain="fig")], max_lines=3, max_chars=99) == "step 40\ntrain: 67%\nfig"
    assert tail_text([bar, out(" more", "stderr")], max_lines=3, max_chars=99) == "train: 67% more"


def test_a_tail_crosses_outputs() -> None:
    """The tail counts streams and displays in the order of arrival."""
    outputs = [out("a\nb\n"), shown(text__plain="fig"), out("\x1b[31mc\x1b[0m\n")]
    assert tail_text(outputs, max_lines=3, max_chars=99) == "b\nfig\nc"
