"""`docs/tested.md` promises what the suite runs: its rows are those of tests/support/tested.py, and each has tests."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.policy.test_suite import _run_pytest
from tests.support import tested
from tests.support.source import ROOT
from tests.support.tested import HEADER, PAGE, ROWS, Record, write_table

FOLDERS = ("integration", "policy", "system", "unit")


@cache
def _find_tests() -> dict[str, list[str]]:
    """Return the files of the suite, as ids of tests, and the parts that each of them names."""
    found = {}
    for path in [path for folder in FOLDERS for path in (ROOT / "tests" / folder).rglob("test_*.py")]:
        parts = re.findall(r"requires_part\(\"(\w+)\"\)", path.read_text(encoding="utf-8"))
        found[f"{path.relative_to(ROOT).as_posix()}::"] = parts
    return found


def _rows(page: str) -> list[list[str]]:
    """Return the cells of the table, a list per row."""
    table = page.partition(HEADER)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def _differences(page: str) -> list[tuple[str, ...]]:
    """Return the rows that are only on the page, or only in the suite."""
    shown, expected = [tuple(row[:2]) for row in _rows(page)], [(row.part, row.how) for row in ROWS]
    return sorted(set(shown) ^ set(expected)) or ([] if shown == expected else [("the order differs",)])


def test_page_has_the_rows_of_the_suite() -> None:
    """The page has each row of the suite and no other. `make tested` writes them."""
    assert _differences(PAGE.read_text(encoding="utf-8")) == []


def test_another_row_on_the_page_is_found() -> None:
    """The check of the rows can fail: with a row of nothing, and with a row that promises more."""
    page = PAGE.read_text(encoding="utf-8")
    assert _differences(page.replace(HEADER, f"{HEADER}| GPU | eight of them | | 1 |\n")) == [("GPU", "eight of them")]
    assert len(_differences(page.replace("on simulated hosts", "on real hosts"))) == 2


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.part)
def test_each_row_has_tests(row: tested.Row) -> None:
    """Some file of the suite has tests of the row, and each pattern of the row has a file."""
    files = _find_tests()
    for pattern in row.tests.split():
        alone = tested.Row(row.part, row.how, pattern.removeprefix("!"))
        is_source = pattern.startswith(("mhnb/", "tests/support/", "tests/bench/", "!"))
        assert is_source or any(alone.selects(test, parts) for test, parts in files.items()), pattern


def test_each_test_has_a_row() -> None:
    """Each file of the suite belongs to a row besides that of every test."""
    assert [
        test for test, parts in _find_tests().items() if not any(row.selects(test, parts) for row in ROWS[1:])
    ] == []


def test_results_are_names_and_numbers() -> None:
    """What a run writes onto the page are versions and counts: no path, no address."""
    for *_, versions, passed in _rows(PAGE.read_text(encoding="utf-8")):
        assert re.fullmatch(r"(?:[A-Za-z ]+ \d+(?:\.\d+)+\w*(?:, )?)*", versions), versions
        assert re.fullmatch(r"[\d,]+|none: it did not run", passed), passed


_RECORD: Record = {
    "versions": {"Slurm": "22.05.8", "Open-MPI": "4.1.4"},
    "tests": {
        "tests/system/hosts/test_slurm.py::test_a": {"outcome": "passed", "parts": ["slurm"], "count": 1},
        "tests/system/hosts/test_mpi.py::test_a": {"outcome": "skipped", "parts": ["mpi"], "count": 1},
        "tests/integration/test_other_python.py::test_a": {"outcome": "passed", "parts": ["other_python"], "count": 40},
    },
}


def test_table_is_written_from_what_passed() -> None:
    """A row has the versions and the count of its tests that passed; one without a passed test says so."""
    page = write_table(f"before\n\n{HEADER}| old | | | |\n\nafter\n", _RECORD)
    assert page.startswith("before\n\n")
    assert page.endswith("|\n\nafter\n")
    results = {row[0]: row[2:] for row in _rows(page)}
    assert results["Slurm"] == ["Slurm 22.05.8", "1"]
    assert results["Open MPI"] == ["", "none: it did not run"]
    assert results["another Python and JAX"] == ["", "40"]


def test_page_is_not_written_after_a_failure() -> None:
    """A record with a failed test is refused, by the name of the test."""
    failed = _RECORD | {"tests": {"test_x.py::test_x": {"outcome": "failed", "parts": [], "count": 1}}}
    with pytest.raises(ValueError, match=r"1 tests failed, the first is test_x\.py::test_x"):
        write_table(HEADER, failed)


_SAMPLE_TESTS = """
import os
import pytest

def test_passes(): pass

def test_stands_for_several(record_property): record_property("count", 7)

def test_fails_at_first(): assert "MHNB_SECOND" in os.environ

@pytest.mark.skip
def test_skipped(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
@pytest.mark.slow
def test_runs_share_a_record(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """A second run adds to the record, and replaces the outcome of a test that it repeats."""
    (tmp_path / "test_made_up.py").write_text(_SAMPLE_TESTS)
    record = tmp_path / "build" / "tested.json"
    for environ in ({}, {"MHNB_SECOND": "1"}):
        select = ("-k", "fails") if environ else ()
        done = _run_pytest(
            tmp_path, "-p", "tests.support.tested", *workers, *select, MHNB_TESTED=str(record), **environ
        )
        assert record.exists(), done.stdout + done.stderr
    tests = json.loads(record.read_text())["tests"]
    assert {name.rpartition("::")[2]: (test["outcome"], test["count"]) for name, test in tests.items()} == {
        "test_passes": ("passed", 1),
        "test_stands_for_several": ("passed", 7),
        "test_fails_at_first": ("passed", 1),
        "test_skipped": ("skipped", 1),
    }


def test_missing_record_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a record the command says how to make one, and leaves the page as it is."""
    assert tested.main(tmp_path / "tested.json") == 1
    assert "for `make test` and `make test-all`" in capsys.readouterr().out
