"""The report of `%mhjax memory` and the card of a failed allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mhnb.core.memory import (
    AllocationFailure,
    ArrayMemory,
    DeviceMemory,
    FailedAllocations,
    MemoryReport,
    RankMemory,
    group_failures,
)
from mhnb.core.output.results import CellResult
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.print_text import print_text
from mhnb.view.reports.memory import build_memory, build_shortage
from tests.support.view_samples import cell, failed

MESH = (("data", 2),)
W = ArrayMemory(
    ("w", "params['w']"),
    (512, 512),
    "float32",
    "global",
    1 << 20,
    1 << 20,
    2,
    "P()",
    MESH,
    "",
    "jit(f)",
    "In [3], line 2",
)
H = ArrayMemory(("h[0]",), (64,), "float32", "local", 256, 256, 1, place="In [4], line 1", is_assignment=True)
LOOSE = ArrayMemory((), (8,), "float32", "local", 32, 32, 1, count=3)
DATA = ArrayMemory(("data",), (1 << 18,), "float64", "host", 2 << 20, 2 << 20, 0)
CARD = DeviceMemory(0, "H100", 5 << 30, 6 << 30, 80 << 30, card_used=7 << 30, card_total=81 << 30)


def rank_memory(*arrays: ArrayMemory, used: int = 5 << 30) -> RankMemory:
    """Make the memory of a rank with one device."""
    return RankMemory((structs.replace(CARD, used=used),), arrays, host_nbytes=400 << 20)


@pytest.fixture
def report() -> MemoryReport:
    """Three ranks, of which rank 1 holds an array more, and has more in use."""
    ranks = [rank_memory(DATA, W, H, LOOSE), rank_memory(DATA, W, H, LOOSE, used=9 << 30), rank_memory(DATA, W, LOOSE)]
    return MemoryReport("main", dict(enumerate(ranks)))


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of each row by its first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if not line.startswith((" ", "→"))}


def test_text_has_devices_then_arrays(report: MemoryReport) -> None:
    """One row for what agrees, the outlier marked; arrays with names, sizes, spec, waste, the line, and which ranks differ."""
    text = print_text(build_memory(report))
    assert text.splitlines()[0] == "main · memory · ranks 0-2 · 6 arrays"
    assert "device 0 (H100)" in text
    outlier = next(line for line in text.splitlines() if "unlike most others" in line)
    assert outlier.split()[:6] == ["1", "device", "0", "(H100)", "9.0", "GiB"]
    assert "7.0 GiB of 81.0 GiB" in text
    rows = rows_of(text)
    assert "w (also params['w'])" in text
    assert " ".join(rows["w"][3:]) == "f32[512,512] 1.0 MiB 1.0 MiB P() 1.0 MiB jit(f) In [3], line 2"
    assert " ".join(rows["h[0]"][1:]) == "f32[64] 256 B 256 B 1 device assigned In [4], line 1 missing on rank 2"
    assert " ".join(rows["3"]) == "3 unnamed f32[8] 96 B 96 B 1 device"
    assert " ".join(rows["data"]) == "data f64[262144] 2.0 MiB NumPy, host memory"


def test_text_ends_with_what_could_be_sharded(report: MemoryReport) -> None:
    """The array, what it would save, and the line of code."""
    assert print_text(build_memory(report)).splitlines()[-4:] == [
        "→ w: each device has a full copy. Sharded along 'data', it would take 512.0 KiB less on each device:",
        "    w = params['w'] = jax.device_put(",
        "        w, jax.NamedSharding(w.sharding.mesh, jax.P('data'))",
        "    )",
    ]


def test_columns_without_a_value_are_left_out() -> None:
    """Without statistics there is no peak and no limit; without differences no column for them."""
    memory = RankMemory((DeviceMemory(0, "cpu", 288, is_sum=True),), (LOOSE,))
    lines = print_text(build_memory(MemoryReport("main", {0: memory}))).splitlines()
    assert lines[1].startswith("CPU devices report no memory statistics; ")
    assert lines[2].split() == ["ranks", "memory", "of", "in", "use"]
    assert lines[-2].split() == ["array", "type", "per", "device", "total", "spec"]


def test_smaller_arrays_are_one_line(report: MemoryReport) -> None:
    """`--top` limits the rows; the rest is counted, with what the ranks did not list."""
    text = print_text(build_memory(report, 2))
    assert "4 more arrays, 352 B per device in total" in text
    assert "h[0]" not in text
    longer = MemoryReport("main", {0: structs.replace(report.ranks[0], more_count=10, more_nbytes=1000)})
    assert "14 more arrays, 1.3 KiB per device in total" in print_text(build_memory(longer, 2))
    assert "more array" not in print_text(build_memory(report, 4))


def test_empty_report_says_so() -> None:
    """Ranks that hold no arrays have no table of them."""
    text = print_text(build_memory(MemoryReport("main", {0: rank_memory()})))
    assert "no arrays" in text
    assert "the largest arrays" not in text


# -- the card


def failed_cell(*failures: AllocationFailure) -> CellResult:
    """Return a cell in which the allocation of rank 0 failed, of rank 1, and so on."""
    ranks = [failed(rank, "JaxRuntimeError") for rank in range(len(failures))]
    return replace(cell(*ranks), added=(FailedAllocations(enumerate(failures)),))


FAILURE = AllocationFailure(1 << 40, memory=rank_memory(W, H))


def test_card_is_below_the_failure() -> None:
    """What was asked for, the device, the arrays with their lines, and what could be sharded; once for equal ranks."""
    text = format_cell_text(failed_cell(FAILURE, FAILURE))
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "when the allocation failed" in line)
    assert lines[at].strip() == "device memory when the allocation failed on ranks 0-1 · 1.0 TiB requested"
    assert any("cannot reshape" in line for line in lines[:at])
    below = "\n".join(lines[at:])
    assert below.count("h[0]") == 1
    assert "w = params['w'] = jax.device_put(" in below
    assert "w, jax.NamedSharding(w.sharding.mesh, jax.P('data'))" in below
    assert "5.0 GiB" in below
    assert "80.0 GiB" in below


def test_card_is_in_the_stored_html() -> None:
    """The HTML that a notebook stores has the card, too, for each group of ranks."""
    other = structs.replace(FAILURE, memory=rank_memory(W, structs.replace(W, names=("v",))))
    html = format_cell_html(failed_cell(FAILURE, FAILURE, other))
    assert html.count("when the allocation failed on") == 2
    assert "on ranks 0-1 ·" in html
    assert "on rank 2 ·" in html


def test_many_different_reports_are_not_all_shown() -> None:
    """The ranks of the others are named."""
    shown = [structs.replace(FAILURE, requested=nbytes) for nbytes in range(1, 8)]
    groups = group_failures(dict(enumerate(shown)))
    text = print_text(build_shortage(groups))
    assert text.count("when the allocation failed") == 4
    assert "an allocation also failed on ranks 4-6, with other arrays in memory" in text


def test_card_says_when_the_arrays_could_not_be_listed() -> None:
    """A failure of the report itself is one line with its reason."""
    broken = AllocationFailure(problem="the arrays in memory could not be listed: MemoryError")
    (group,) = group_failures({0: broken})
    lines = print_text(build_shortage([group])).splitlines()
    assert lines == ["device memory when the allocation failed", f"  {broken.problem}"]


def test_card_says_that_nothing_could_be_sharded() -> None:
    """An array without a mesh is no candidate, and the card says that there is none."""
    (group,) = group_failures({0: AllocationFailure(is_host=True, memory=rank_memory(H))})
    lines = print_text(build_shortage([group])).splitlines()
    assert lines[0] == "host memory when the allocation failed"
    assert lines[-1].strip() == "no named array here can be sharded along one more mesh axis"
    (empty,) = group_failures({0: AllocationFailure(memory=rank_memory())})
    assert print_text(build_shortage([empty])).splitlines()[-1].strip() == "no live arrays"


def test_cell_that_ended_well_has_no_card() -> None:
    """An error that was shown and did not end the cell, such as one of a `__repr__`, has no card."""
    result = replace(failed_cell(FAILURE).ranks[0], outcome="ok")
    assert "allocation" not in format_cell_text(cell(result))
