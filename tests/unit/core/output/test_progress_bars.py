"""Progress bars of several ranks as one."""

from __future__ import annotations

import pytest

from mhnb.core.output.rich import ignore_bars, merge_bars


def test_bars_with_equal_progress_name_no_rank() -> None:
    """Least, median and furthest are shown only for bars that differ in progress."""
    lines = [f"epoch: 100%|██████████| 20/20 [00:00<00:00, {speed}it/s]" for speed in (98.2, 49.5)]
    assert merge_bars(lines, (0, 1)) == f"epoch: 100 % |{'█' * 20}| all 20/20"
    assert merge_bars(["50%|█████     |"] * 2, (0, 1)) == f"50 % |{'█' * 10}{' ' * 10}| all"


@pytest.mark.parametrize("second", ["other: 50%|█████     | 2/4", "done"])
def test_unrelated_lines_are_not_merged(second: str) -> None:
    """The second line has another bar's name, or no bar."""
    assert merge_bars(["a: 50%|█████     | 2/4", second], (0, 1)) is None


def bar_line(percent: int, name: str = "train:") -> tuple[str, str]:
    """Return a rank's line of a bar."""
    return "stderr", f"{name} {percent}%|███       | {percent}/100"


@pytest.mark.parametrize(("last", "is_reported"), [(100, False), (40, True)])
def test_only_the_last_position_of_a_bar_counts(last: int, is_reported: bool) -> None:  # noqa: FBT001
    """Only the last position of a bar is compared: a bar that stopped early is a difference. Lines between the bars are still compared."""
    merged = [("stderr", merge_bars([bar_line(at)[1], bar_line(at + 2)[1]], (0, 1)) or "") for at in (20, 50, 98)]
    there = [merged[0], ("stdout", "step 0"), merged[1], merged[2]]
    here = [bar_line(25), ("stdout", "step 1"), bar_line(60), bar_line(last), bar_line(7, "other:")]
    different_lines = [
        line for line, usual in zip(ignore_bars(here, there), [*there, None], strict=True) if line != usual
    ]
    assert different_lines == [("stdout", "step 1"), *([bar_line(last)] if is_reported else []), bar_line(7, "other:")]
