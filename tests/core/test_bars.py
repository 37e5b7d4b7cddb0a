"""Progress bars of several ranks as one."""

from __future__ import annotations

import pytest

from mhnb.core.output.bars import merge_bars


def test_bars_that_have_come_equally_far_name_no_rank() -> None:
    """Least, median and furthest are for those that have not."""
    lines = [f"epoch: 100%|██████████| 20/20 [00:00<00:00, {speed}it/s]" for speed in (98.2, 49.5)]
    assert merge_bars(lines, (0, 1)) == f"epoch: 100 % |{'█' * 20}| all 20/20"
    assert merge_bars(["50%|█████     |"] * 2, (0, 1)) == f"50 % |{'█' * 10}{' ' * 10}| all"


@pytest.mark.parametrize("second", ["other: 50%|█████     | 2/4", "done"])
def test_lines_that_do_not_belong_together_are_not_merged(second: str) -> None:
    """Another bar's name, or no bar at all."""
    assert merge_bars(["a: 50%|█████     | 2/4", second], (0, 1)) is None
