"""Stragglers from arrival times: who came last, how long the others waited, who stands out, and how clocks are aligned."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest

from mhnb.core.stragglers import (
    ARRIVAL,
    Arrival,
    ArrivalLog,
    CellArrivals,
    ClockBound,
    ClockBounds,
    Stragglers,
    align_clocks,
    bound_offsets,
    describe_standing_out,
    list_stragglers,
    measure_stragglers,
    merge_bounds,
)

MS = 1_000_000
HERE = dict.fromkeys(range(8), "clock")
ALONE = {rank: f"host{rank}" for rank in range(8)}


def arrive(
    steps: Iterable[Mapping[int, float]], offsets_ms: Mapping[int, float] | None = None, *, delay_ms: float = 0.2
) -> dict[int, list[Arrival]]:
    """Return what ranks note of launches.

    Args:
        steps: of each launch, when each rank comes to it, in ms.
        offsets_ms: by how much the clock of a rank is ahead.
        delay_ms: how long after the last arrival each rank learns of the decision.
    """
    noted: dict[int, list[Arrival]] = {}
    for number, times in enumerate(steps, 1):
        ranks = f"{min(times)}-{max(times)}"
        for rank, arrived_ms in times.items():
            ahead = (offsets_ms or {}).get(rank, 0.0)
            decided_ms = max(times.values()) + delay_ms
            noted.setdefault(rank, []).append(
                Arrival(ranks, (1, number), round((arrived_ms + ahead) * MS), round((decided_ms + ahead) * MS))
            )
    return noted


def make_steps(
    late: Mapping[int, float], *, ranks: int = 8, count: int = 20, noise_ms: float = 2.0, seed: int = 0
) -> list[dict[int, float]]:
    """Return launches 60 ms apart in which each rank has some noise, and some ranks come later by so many ms."""
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    return [
        {rank: 60.0 * step + abs(chance.gauss(0, noise_ms)) + late.get(rank, 0.0) for rank in range(ranks)}
        for step in range(count)
    ]


def measure(steps: Iterable[Mapping[int, float]]) -> Stragglers:
    """Measure ranks of one machine."""
    stragglers = measure_stragglers(arrive(steps), HERE, dict.fromkeys(range(8), "host"))
    assert stragglers is not None
    return stragglers


def test_last_rank_and_the_wait_for_it_are_measured() -> None:
    """Rank 1 comes last twice, 30 and 10 ms after the others' mean; rank 0 once."""
    stragglers = measure([{0: 0.0, 1: 30.0}, {0: 100.0, 1: 110.0}, {0: 220.0, 1: 215.0}])
    assert stragglers.agreement_count == 3
    assert stragglers.span_s == pytest.approx(0.2202)
    first, second = stragglers.ranks
    assert (first.rank, first.last_count, first.late_count) == (1, 2, 2)
    assert [first.waited_s, first.worst_s] == pytest.approx([0.040, 0.030])
    assert first.share == pytest.approx(0.040 / 0.2202)
    assert (second.rank, second.last_count) == (0, 1)
    assert second.waited_s == pytest.approx(0.005)


def test_no_wait_is_below_zero() -> None:
    """Ranks that come at the same time wait 0 s, whatever the rounding of their mean."""
    together = dict.fromkeys(range(64), 40105.1)
    stragglers = measure_stragglers(
        arrive([together]), dict.fromkeys(together, "clock"), dict.fromkeys(together, "host")
    )
    assert stragglers is not None
    assert [row.waited_s for row in stragglers.ranks if row.waited_s < 0] == []


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("noise_ms", [0.5, 2.0, 6.0])
def test_rank_that_is_50_ms_late_is_named(seed: int, noise_ms: float) -> None:
    """50 ms more on one of 8 ranks in each of 20 steps: that rank is named."""
    late = seed % 8
    stragglers = measure(make_steps({late: 50.0}, noise_ms=noise_ms, seed=seed))
    assert (stragglers.named, stragglers.ranks[0].rank) == ((late,), late)
    assert describe_standing_out(stragglers).startswith(f"rank {late} came last at ")


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("noise_ms", [0.5, 2.0, 6.0])
def test_no_rank_is_named_without_a_delay(seed: int, noise_ms: float) -> None:
    """Some rank always comes last most often. That alone is no reason to name it."""
    stragglers = measure(make_steps({}, noise_ms=noise_ms, seed=seed))
    assert stragglers.named == ()
    assert describe_standing_out(stragglers) == ""


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(make_steps({3: 50.0}, count=4), id="too few"),
        pytest.param([*make_steps({3: 50.0}, count=10), *make_steps({5: 50.0}, count=10)], id="two ranks in turns"),
        pytest.param([{0: 1000.0 * n, 1: 1000.0 * n + 20} for n in range(20)], id="too little of the time"),
        pytest.param([{0: 0.0 + n, 1: 4.0 + n} for n in range(20)], id="less than the scheduler's noise"),
    ],
)
def test_what_is_not_worth_a_sentence_is_not_said(steps: list[dict[int, float]]) -> None:
    """Chance, ranks that take turns, and waits that cost nothing name no rank."""
    assert measure(steps).named == ()


def test_host_whose_ranks_are_all_late_is_named() -> None:
    """If both ranks of a machine are late, neither is later than the other: the ranks of the machine are named."""
    hosts = {rank: f"host{rank // 2}" for rank in range(8)}
    late = {4: 50.0, 5: 50.0}
    stragglers = measure_stragglers(arrive(make_steps(late)), HERE, hosts)
    assert stragglers is not None
    assert stragglers.named == (4, 5)
    assert describe_standing_out(stragglers).startswith("ranks 4-5 came last at 20 of 20 launches")


def test_one_rank_alone_has_no_stragglers() -> None:
    """There is nothing to measure without a launch that all its participants have noted."""
    assert measure_stragglers({}, {}, {}) is None
    noted = arrive([{0: 0.0, 1: 1.0}])
    assert measure_stragglers({0: noted[0]}, HERE, ALONE) is None


# -- clocks


@pytest.mark.parametrize("seed", range(10))
def test_clocks_are_aligned_within_the_stated_error(seed: int) -> None:
    """With unknown offsets of up to an hour, each clock's error is at most the one that is stated."""
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    offsets_ms = {rank: chance.uniform(-3.6e6, 3.6e6) if rank else 0.0 for rank in range(4)}
    steps = [{rank: 60.0 * n + chance.uniform(0, 5) for rank in range(4)} for n in range(30)]
    noted = arrive(steps, offsets_ms)
    clocks = {rank: f"clock{rank}" for rank in range(4)}
    launches = [{rank: noted[rank][n] for rank in range(4)} for n in range(30)]
    found = align_clocks(bound_offsets(launches, clocks), clocks)
    assert found.error_ns < 2 * MS
    for rank, ahead_ms in offsets_ms.items():
        assert abs(found.by_clock[f"clock{rank}"] - ahead_ms * MS) <= found.error_ns + 1


def test_late_rank_of_another_host_is_named_in_spite_of_its_clock() -> None:
    """A clock that is an hour ahead does not make its ranks late, and the one that is late is found."""
    offsets_ms = {rank: 3.6e6 * (rank // 2) for rank in range(8)}
    clocks = {rank: f"clock{rank // 2}" for rank in range(8)}
    for late in (1, 6):
        # Where one host alone is ever late, a clock that is ahead looks like a late rank, so the others vary too.
        steps = make_steps({late: 50.0}, noise_ms=3.0, count=40)
        steps += make_steps({rank: 8.0 for rank in range(8) if rank != late}, noise_ms=3.0, count=8, seed=1)
        stragglers = measure_stragglers(arrive(steps, offsets_ms), clocks, ALONE)
        assert stragglers is not None
        assert stragglers.named == (late,)
        assert 0 < stragglers.clock_error_s < 0.01


@pytest.mark.parametrize("others", [1, 3])
def test_constant_delay_of_a_host_is_found_by_earlier_launches(others: int) -> None:
    """A rank that is late at every launch of a cell looks like a clock that is ahead. Launches before the cell tell them apart."""
    offsets_ms = {rank: 3.6e6 * rank for rank in range(1 + others)}
    clocks = {rank: f"clock{rank}" for rank in offsets_ms}
    ranks = len(clocks)
    before = arrive(make_steps({}, ranks=ranks, count=5, noise_ms=3.0, seed=1), offsets_ms)
    noted = arrive(make_steps({1: 50.0}, ranks=ranks), offsets_ms)
    alone = measure_stragglers(noted, clocks, ALONE)
    assert alone is not None
    assert alone.named == ()
    assert alone.clock_error_s > 0.02
    bounds: ClockBounds = {}
    for cell, own in enumerate((before, noted), 1):
        arrivals = CellArrivals(cell, {rank: make_log(each) for rank, each in own.items()})
        bounds = arrivals.bound_clocks(clocks, bounds)
    stragglers = arrivals.measure(clocks, ALONE, bounds)
    assert stragglers is not None
    assert (stragglers.named, stragglers.ranks[0].late_count) == ((1,), 20)
    assert 0 < stragglers.clock_error_s < 0.01


def test_earlier_bounds_are_widened_by_drift() -> None:
    """After a long time an earlier bound says little, and one that contradicts the newest is dropped."""
    new = {("a", "b"): ClockBound(0, 50 * MS, 10**15)}
    assert merge_bounds({("a", "b"): ClockBound(0, MS, 0)}, new) == new
    assert merge_bounds({("a", "b"): ClockBound(-90 * MS, -80 * MS, 10**15)}, new) == new
    assert merge_bounds({("a", "b"): ClockBound(0, MS, 10**15)}, new) == {("a", "b"): ClockBound(0, MS, 10**15)}
    assert merge_bounds({("a", "c"): ClockBound(0, MS, 0)}, new).keys() == {("a", "b"), ("a", "c")}


@pytest.mark.parametrize("rank", [0, 2])
def test_hosts_without_a_common_launch_are_measured_each_for_itself(rank: int) -> None:
    """Ranks that never launch with those of another host, as in a pipeline, need no alignment with its clock."""
    late = {rank: 50.0}
    noted = arrive(make_steps(late, ranks=2)) | {
        other + 2: [each._replace(participants="2-3") for each in own]
        for other, own in arrive(make_steps({0: late.get(2, 0.0)}, ranks=2), {0: 3.6e6, 1: 3.6e6}).items()
    }
    stragglers = measure_stragglers(noted, {0: "a", 1: "a", 2: "b", 3: "b"}, ALONE)
    assert stragglers is not None
    assert (stragglers.named, stragglers.agreement_count, stragglers.clock_error_s) == ((rank,), 40, 0)
    assert stragglers.span_s < 2


def test_launches_without_rank_0_are_measured() -> None:
    """A cell whose launches are all of ranks on other hosts has its stragglers."""
    noted = {rank + 1: own for rank, own in arrive(make_steps({1: 50.0}, ranks=2)).items()}
    noted = {rank: [each._replace(participants="1-2") for each in own] for rank, own in noted.items()}
    stragglers = measure_stragglers(noted, {0: "a", 1: "b", 2: "b"}, ALONE)
    assert stragglers is not None
    assert stragglers.named == (2,)


def test_launch_of_ranks_that_do_not_exist_is_never_complete() -> None:
    """A damaged set of ranks is not measured."""
    noted = {rank: [Arrival("0-999999", (1, 1), 1, 2)] for rank in (0, 1)}
    assert measure_stragglers(noted, HERE, ALONE) is None


# -- what a rank sends


def make_log(noted: list[Arrival]) -> ArrivalLog:
    """Pack what one rank has noted, as the rank does."""
    packed = b"".join(ARRIVAL.pack(0, each.number[1], each.arrived_ns, each.decided_ns) for each in noted)
    return ArrivalLog([noted[0].participants], packed)


def test_cell_is_measured_from_its_logs() -> None:
    """The logs of a cell give what the arrivals give, and a quick look says that a rank may stand out."""
    noted = arrive(make_steps({2: 50.0}))
    cell = CellArrivals(7, {rank: make_log(own) for rank, own in noted.items()})
    assert cell.may_stand_out()
    stragglers = cell.measure(HERE, ALONE)
    assert stragglers is not None
    assert stragglers.named == (2,)


def test_quick_look_never_misses_a_rank_that_stands_out() -> None:
    """Where nobody waited, nothing is measured at the end of a cell."""
    noted = arrive(make_steps({}, noise_ms=0.1))
    assert not CellArrivals(7, {rank: make_log(own) for rank, own in noted.items()}).may_stand_out()


@pytest.mark.parametrize(
    ("participants", "packed"),
    [
        (["0-1"], b"123"),
        ([], ARRIVAL.pack(0, 1, 2, 3)),
        (["0-1"], ARRIVAL.pack(1, 1, 2, 3)),
        (["x"], b""),
        (["0-1"] * 257, b""),
        (["0-1"], ARRIVAL.pack(0, 1, 2, 3) * 257),
    ],
)
def test_damaged_log_is_refused(participants: list[str], packed: bytes) -> None:
    """A log that a rank could not have made is an invalid message."""
    with pytest.raises(ValueError, match=r"damaged|rank"):
        ArrivalLog(participants, packed)


def test_launches_that_were_dropped_are_mentioned() -> None:
    """Of a long loop the last launches are kept, and the sentence says so."""
    noted = arrive(make_steps({2: 50.0}))
    logs = {rank: make_log(own) for rank, own in noted.items()}
    cell = CellArrivals(7, {rank: ArrivalLog(log.participants, log.packed, 5) for rank, log in logs.items()})
    stragglers = cell.measure(HERE, ALONE)
    assert stragglers is not None
    assert stragglers.dropped_count == 5
    assert "came last at 20 of the last 20 launches" in describe_standing_out(stragglers)


def test_values_are_json() -> None:
    """The values have what the table shows."""
    values = list_stragglers(measure(make_steps({2: 50.0})))
    assert (values["stands_out"], values["launches"], values["ranks"][0]["rank"]) == ([2], 20, 2)
