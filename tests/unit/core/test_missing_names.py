"""Which cell or push had set a name that a cell lacks, and the command that gets it back."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from mhnb.core.journal import AcceptRecord, CellRecord, PushRecord, Record, ReplayRecord, StartRecord
from mhnb.core.missing_names import describe_missing_name, find_missing_name, find_missing_variable
from mhnb.rank.execution.tracebacks import find_error_site

START = StartRecord(1, "2 hosts x 1 device")
RESTART = replace(START, generation=2, after=1, is_restart=True)
FIRST: list[Record] = [
    START,
    CellRecord(1, 1, "import numpy as np\n%time rate = 0.1\ndef step(w, n):\n    inner = w\n    return inner"),
    PushRecord(1, ("batch", "labels"), None),
    PushRecord(1, ("big",), None, why_not="too large"),
    CellRecord(
        1,
        2,
        "from tqdm import tqdm\nfor i in tqdm(steps): w = step(w)",
        how="interrupted",
        errors={0: "KeyboardInterrupt"},
    ),
    CellRecord(1, 3, "loaded = open('gone').read()", errors={0: "FileNotFoundError", 1: "FileNotFoundError"}),
    CellRecord(1, 4, "x = 1\nold = 1\ntry: y = await f()\nexcept OSError as error: pass"),
    CellRecord(1, 5, "!ls\nlisted = 1"),
    CellRecord(1, 6, "del old\nx = 2"),
    CellRecord(1, 7, "half = 1", state="split"),
    AcceptRecord(1, "split"),
]
BACK = "before the restart. To get it back: %mhjax restart --replay"


def describe(name: str, *records: Record, source: str = "f(x)", generation: int = 2, seq: int = 30) -> str | None:
    """Describe a name that a cell after these records lacks."""
    failed = CellRecord(generation, seq, source, errors={0: "NameError"})
    return describe_missing_name(name, [*FIRST, *records, failed], generation, seq)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", f"cell 6 set `x` {BACK}"),
        ("np", f"cell 1 set `np` {BACK}"),
        ("rate", f"cell 1 set `rate` {BACK}"),
        ("step", f"cell 1 set `step` {BACK}"),
        ("y", f"cell 4 set `y` {BACK}"),
        ("labels", f"push batch labels set `labels` {BACK}"),
        ("w", "cell 2 set `w`, but a replay leaves it out (interrupted). To get it back: run that cell again"),
        ("half", "cell 7 set `half`, but a replay leaves it out (split, then accepted). To get it back: run that cell again"),
        ("big", "push big set `big`, but a replay leaves it out (too large). To get it back: %mhjax push big"),
        ("inner", None),
        ("n", None),
        ("error", None),
        ("loaded", None),
        ("old", None),
        ("listed", None),
        ("steps", None),
        ("unknown", None),
    ],
)  # fmt: skip
def test_name_from_before_the_restart_is_explained(name: str, expected: str | None) -> None:
    """The last cell or push that set it is named, with what brings it back.

    Names of functions and handlers, deleted names, and those of cells that raised or that are not Python are not known.
    """
    assert describe(name, RESTART) == expected


def test_other_errors_name_nothing() -> None:
    """A NameError may say something else."""
    assert find_missing_name("x is strange") is None


def test_name_of_this_generation_is_not_explained() -> None:
    """A name that was set after the restart is missing for another reason; a cell that raised has not set it."""
    assert describe("x", RESTART, CellRecord(2, 10, "x = 3\ndel x")) is None
    assert describe("x", RESTART, CellRecord(2, 10, "x = 3")) is None
    assert describe("x", RESTART, CellRecord(2, 10, "x = x + 1", errors={0: "NameError"})) is not None
    replayed = [replace(r, generation=2, replayed=True) for r in FIRST if isinstance(r, CellRecord) and not r.errors]
    assert describe("x", RESTART, *replayed, ReplayRecord(2, 1, None, complete=True)) is None


def test_name_of_an_earlier_start_is_not_explained() -> None:
    """A start begins afresh, so that a replay does not bring it back."""
    assert describe("x", replace(RESTART, is_restart=False)) is None


@pytest.mark.parametrize("to", [1, None], ids=["to", "stopped"])
def test_name_that_the_last_replay_did_not_reach(to: int | None) -> None:
    """The next replay brings it back, unless the user has gone on after `--to`, if only with the cell that lacks it."""
    partial: list[Record] = [
        CellRecord(2, 1, "import numpy as np", replayed=True),
        ReplayRecord(2, 1, to, complete=to is not None),
    ]
    discarded = "cell 6 set `x`, but --to discarded it. To get it back: run that cell again"
    assert describe("x", RESTART, *partial) == (discarded if to else f"cell 6 set `x` {BACK}")


def test_replayed_cell_lacks_only_what_was_set_before_it() -> None:
    """Cells that follow it in the replay had not set a name yet when it first ran."""
    assert describe("x", RESTART, seq=6, source="f(x)") == f"cell 4 set `x` {BACK}"
    assert describe("x", RESTART, seq=4) is None


def test_missing_variable_is_one_that_os_environ_lacks() -> None:
    """A KeyError of another mapping, or of a deletion, names no variable that could be set."""
    lookup = find_error_site(_catch(lambda: os.environ["MHNB_MISSING"]))
    assert find_missing_variable("KeyError", "'MHNB_MISSING'", lookup) == "MHNB_MISSING"
    for other in (lambda: os.environ.__delitem__("MHNB_MISSING"), lambda: dict[str, str]()["MHNB_MISSING"]):
        assert find_missing_variable("KeyError", "'MHNB_MISSING'", find_error_site(_catch(other))) is None


def _catch(function: Callable[[], object]) -> BaseException:
    with pytest.raises(KeyError) as caught:
        function()
    return caught.value
