"""The text of an error stays short on many ranks: what differs by rank is counted beyond a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mhnb.cluster.preflight import preflight_error
from mhnb.core.guard.agreement import MismatchDetails, Vote, format_deadlock, format_mismatch
from mhnb.core.guard.host_data import HostDataMismatch, format_host_data
from mhnb.core.hang_report import HangReport, RankLocation
from mhnb.core.output.results import LEFT_WAITING, RANK_STOPPED, CellResult, RankResult
from mhnb.core.preflight_checks import build_preflight_report
from mhnb.core.preflight_facts import HostChecks, Requirements
from mhnb.errors import HostUnreachable
from mhnb.types import RankError
from mhnb.view.cell.failures import ORDER_MISMATCH, format_raised_error
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import RankLocations
from mhnb.view.print_text import print_text
from mhnb.view.reports.hang import build_hang
from tests.support.view_gallery import _report
from tests.support.view_samples import cell, failed_in_a_helper, not_yet

COUNT = 64
MAX_LINES = 20
_NAMES = [f"{a}{b}" for a in "abcdefgh" for b in "klmnopqr"]
"""A word for each rank: a number could be listed beside a message that all ranks share."""


def raised(rank: int, evalue: str, ename: str = "ValueError", line: int = 3, hint: str | None = None) -> RankResult:
    """Return the result of a rank whose cell raised in one of its lines."""
    error = RankError(ename, evalue, (f"{ename}: {evalue}",), line=line, code=f"read(shards[{line}])", hint=hint)
    return RankResult(rank, "error", error=error)


def format_error(*ranks: RankResult | list[object], **more: object) -> str:
    """Return the text of a cell's error, with the line that IPython adds."""
    result: CellResult = replace(cell(*ranks), **more)  # type: ignore[arg-type]
    return f"{format_cell_text(result)}\n{format_raised_error(result)}"


def on_all(make: Callable[[int], RankResult]) -> str:
    """Return the text of an error that each rank makes."""
    return format_error(*map(make, range(COUNT)))


def mismatch(number_of_programs: int, *, provenance: bool = False, differences: bool = False) -> str:
    """Return the guard's text; each program has a name and a line of its own."""
    programs = {2 * at + 1: f"jit({_NAMES[at]}) f32[8]" for at in range(number_of_programs)}
    votes = [
        Vote(
            rank,
            1 if provenance else 2 * (rank % number_of_programs) + 1,
            (2 + rank % number_of_programs,),
            provenance=rank + 1 if provenance else 0,
        )
        for rank in range(COUNT)
    ]
    details = MismatchDetails({each: f"constant {each}" for each in programs}) if differences else MismatchDetails()
    source = "\n".join(f"step{at}(x)" for at in range(COUNT + 2))
    return format_mismatch(votes, programs, number=1, cell_name="In [4]", source=source, details=details)


def refused(text: str, line_of: Callable[[int], int]) -> str:
    """Return the text of a cell of which the guard refused a launch on all ranks."""
    return on_all(lambda rank: raised(rank, text, ORDER_MISMATCH, line_of(rank)))


def hung() -> str:
    """Return the text of a stopped cell in which each rank was somewhere else, half of them waiting."""
    places = tuple(
        RankLocation((rank,), "launch" if rank % 2 else "io", f"jit({_NAMES[rank]})", rank + 1, "step(x)")
        for rank in range(COUNT)
    )
    waiting, absent = tuple(range(1, COUNT, 2)), tuple(range(0, COUNT, 2))
    lines = {rank: rank + 1 for rank in range(COUNT)}
    report = HangReport(
        12, waiting, absent, "jit(f)", lines, 6.2, progress=False, known=True, stuck=True, places=places
    )
    ranks = [replace(raised(rank, "", "KeyboardInterrupt", rank + 1), outcome="interrupted") for rank in range(COUNT)]
    return format_error(*ranks, where=report, notes=("split · %mhjax restart --replay",), state="split")


def unreachable() -> str:
    """Return the error of a start of which no host could be reached."""
    hosts = [
        HostChecks(name, failure=HostUnreachable(f"{name}: no answer\n  Fix: ssh {name} true", host=name, kind="late", cause="no answer"))
        for name in _NAMES
    ]  # fmt: skip
    return str(preflight_error(build_preflight_report(hosts, Requirements())))


_UNEQUAL = (
    "<class 'numpy.ndarray'> passed to device_put is not the same on each process. Expected: [{}]; got: [{}. {}.]."
)
_ALL_VALUES = "\n ".join(f"{rank}. {rank + 1}." for rank in range(COUNT))
_DIED = "rank 3 (host3, pid 4714) was killed by SIGKILL (often by the memory limit) · log /l/rank3.log"

ERRORS: dict[str, Callable[[], str]] = {
    "the same error": lambda: on_all(lambda rank: raised(rank, "no data")),
    "the rank's number in it": lambda: on_all(lambda rank: raised(rank, f"rank {rank}: no data of {rank * 7}")),
    "a path of each rank": lambda: on_all(lambda rank: raised(rank, f"no file /data/{_NAMES[rank]}", "OSError")),
    "a class of each rank": lambda: on_all(lambda rank: raised(rank, "no", f"No{_NAMES[rank]}")),
    "a line of each rank": lambda: on_all(lambda rank: raised(rank, "no data", line=rank + 1)),
    "a hint for each rank": lambda: on_all(lambda rank: raised(rank, "no", hint=f"write {_NAMES[rank]}")),
    "errors on some ranks": lambda: format_error(
        *(raised(rank, f"no {_NAMES[rank]}") if rank % 2 else [] for rank in range(COUNT))
    ),
    "an error in a file of the user's": lambda: on_all(failed_in_a_helper),
    "one error, at lines where others waited": lambda: format_error(
        raised(0, "no data"), *(raised(rank, "left", LEFT_WAITING, rank) for rank in range(1, COUNT))
    ),
    "unequal data of device_put": lambda: on_all(
        lambda rank: raised(rank, _UNEQUAL.format("0. 1.", rank, rank + 1), "AssertionError")
    ),
    "answers that are not right": lambda: on_all(lambda rank: not_yet(rank, _NAMES[rank], f"not {_NAMES[rank]}")),
    "ranks that died": lambda: format_error(
        *(RankResult(rank, "died", error=RankError("RankDied", f"{rank} {_NAMES[rank]}")) for rank in range(32)),
        *(RankResult(rank, "killed", error=RankError(RANK_STOPPED, "stopped")) for rank in range(32, COUNT)),
        notes=(f"{_DIED}\n  ranks 32-63 were stopped with it. %mhjax restart --replay",),
        state="dead",
    ),
    "programs in another order": lambda: refused(mismatch(2), lambda rank: 2 + rank % 2),
    "a program of each rank": lambda: refused(mismatch(COUNT), lambda rank: 2 + rank),
    "programs of one name": lambda: refused(mismatch(COUNT, differences=True), lambda rank: 2 + rank),
    "arrays with a history on each rank": lambda: refused(mismatch(COUNT, provenance=True), lambda rank: 2 + rank),
    "ranks that wait for each other": lambda: refused(
        format_deadlock({rank: ("jit(f)", 2, ((rank + 1) % COUNT,)) for rank in range(COUNT)}), lambda _: 2
    ),
    "unequal replicas": lambda: format_host_data(
        HostDataMismatch(1, "0:2", "f32[2]", 1, {name: (at,) for at, name in enumerate(_NAMES)}), "w = make(v)"
    ),
    "a hang": lambda: print_text(build_hang(_report(COUNT), name="demo")),
    "a cell that was stopped": hung,
    "hosts that do not answer": unreachable,
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_of_many_ranks_is_short(name: str) -> None:
    """On 64 ranks an error has at most 20 lines, none longer than 1,000 characters."""
    lines = ERRORS[name]().splitlines()
    assert len(lines) <= MAX_LINES, "\n".join(lines)
    assert max(map(len, lines)) <= 1000, max(lines, key=len)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("a path of each rank", "… 59 more failures (OSError) on ranks 5-63"),
        ("a program of each rank", "ranks 8-63   56 more"),
        ("a program of each rank", "Make the calls on lines 2, 3, 4 and 61 more lines"),
        ("programs of one name", "    ranks 4-63 differ too"),
        ("ranks that wait for each other", "ranks 8-63 wait too"),
        ("unequal replicas", "have 60 other values"),
        (
            "hosts that do not answer",
            "… 59 more hosts and 60 more findings: run %mhjax doctor (in a shell: mhnb doctor) with",
        ),
    ],
)
def test_rest_of_an_error_is_counted(name: str, counted: str) -> None:
    """What is not listed is counted, so that no rank or host seems to be without a fault."""
    assert counted in ERRORS[name]()


def test_rest_is_where_the_text_says() -> None:
    """The text names the log of the first rank of the rest: by a magic, or in a shell, which has none, by its path."""
    result = cell(*(raised(rank, f"no {_NAMES[rank]}") for rank in range(COUNT)))
    assert "on ranks 5-63: see %mhjax logs 5\n" in f"{format_cell_text(result)}\n"
    logs = {rank: f"/log/rank{rank}.log" for rank in range(COUNT)}
    shell = format_cell_text(result, locations=RankLocations(logs=logs, script_path="train.py"))
    assert "on ranks 5-63: see /log/rank5.log\n" in f"{shell}\n"


@pytest.mark.parametrize("count", [2, 5])
def test_few_failures_are_all_shown(count: int) -> None:
    """As in HTML, a few failures are shown in full however long they are."""
    text = format_error(*(raised(rank, "\n".join([f"no {_NAMES[rank]}"] * 9)) for rank in range(count)))
    assert [text.count(f"no {name}") for name in _NAMES[: count + 1]] == [*[9] * count, 0]
    assert "more failure" not in text


def test_html_folds_the_rest() -> None:
    """HTML has the failure of every rank, most of them in a fold."""
    html = format_cell_html(cell(*(raised(rank, f"no {_NAMES[rank]}") for rank in range(COUNT))), uid="u")
    shown, label, folded = html.partition("60 more failures on ranks 4-63")
    assert label
    assert [name for name in _NAMES if f"no {name}" in shown] == _NAMES[:4]
    assert all(f"no {name}" in folded for name in _NAMES[4:])


def test_own_message_is_shown_in_full() -> None:
    """The first error's message is the user's text, as long as in one process; only the others are left out."""
    text = on_all(
        lambda rank: raised(rank, "\n".join(f"{_NAMES[rank]} {line}" for line in "abcdefghijklmnopqrstuvwxyz"))
    )
    assert len(text.splitlines()) == 26 + 5
    assert "… 63 more failures" in text
