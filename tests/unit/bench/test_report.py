"""The arithmetic of the benchmark, on made-up samples."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import main
from tests.bench.report import Sample, Summary, format_headlines, format_table, headlines, summarise

ROLES = {"ours": "mhnb", "plain": "plain", "floor": "bare", "peers": ("px", "jd")}


def samples(**seconds: float) -> list[Sample]:
    """Build a sample of one empty cell for each contestant, at two ranks."""
    return [Sample(name, 2, 1, "empty", (value,)) for name, value in seconds.items()]


def test_median_is_taken_per_round_first() -> None:
    """A round with many values counts as much as one with few, because each round's median is taken first."""
    rounds = [Sample("px", 2, 1, "empty", (1.0, 1.0, 1.0, 1.0)), Sample("px", 2, 2, "empty", (3.0,))]
    assert summarise(rounds) == {("px", 2, "empty"): Summary(median=2.0, low=1.0, high=3.0, rounds=2)}


def test_empty_cell_is_compared_over_plain_kernel() -> None:
    """The plain kernel's time is subtracted from both sides, and mhnb is compared with the best peer."""
    found = headlines(summarise(samples(plain=4.0, mhnb=5.0, px=24.0, jd=14.0)), **ROLES)  # type: ignore[arg-type]
    assert [(h.whose, h.ours, h.theirs, round(h.ratio, 6), h.met) for h in found] == [("jd", 1.0, 10.0, 0.1, True)]


def test_no_headline_without_every_peer() -> None:
    """No ratio is reported if a peer was not measured, because the best peer is then unknown."""
    assert headlines(summarise(samples(plain=4.0, mhnb=5.0, px=24.0)), **ROLES) == []  # type: ignore[arg-type]


def test_start_is_compared_with_bare_processes() -> None:
    """The ratio of mhnb's start to the bare processes' start is compared with its own target."""
    starts = [Sample("mhnb", 4, 1, "start", (3.0,)), Sample("bare", 4, 1, "start", (2.0,))]
    found = headlines(summarise(starts), **ROLES)  # type: ignore[arg-type]
    assert [(h.ranks, h.ratio, h.met) for h in found] == [(4, 1.5, False)]
    assert "MISSED" in format_headlines(found)


def test_missing_value_is_shown_as_dash() -> None:
    """A contestant without a value keeps its column, so that the missing value is visible."""
    table = format_table(summarise(samples(plain=0.004)), ("plain", "mhnb"))
    assert table.splitlines()[-1].split() == ["2", "4.00", "-"]


def test_peer_that_does_not_run_fails_the_benchmark(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1 and the reason is printed when a peer is not installed."""
    code = main(["--only", "jupyter-distributed", "--peers", f"{tmp_path}/absent", "--ranks", "2", "--rounds", "1"])
    assert code == 1
    output = capsys.readouterr().out
    assert "FAILED jupyter-distributed: 2 ranks, round 0: CellBroke: not installed: pip install" in output
