"""Ranks that failed in the same way are shown as one failure; a rank that failed differently has a failure of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from mhnb.core.output.normal_form import ORDER_MARK
from mhnb.core.output.results import RANK_STOPPED, CellResult, RankResult
from mhnb.errors import CellFailed
from mhnb.types import RankError
from mhnb.view.cell.failures import ORDER_MISMATCH, format_raised_error
from mhnb.view.cell.html import format_cell_html
from mhnb.view.cell.summary import summarise_cell
from mhnb.view.cell.text import format_cell_text
from mhnb.view.html import NOT_YET
from tests.support.view_samples import cell, rank_died

_TRACEBACK = ("Traceback (most recent call last)", "helper.py:7, in read()", "    raise it")


def raised(
    rank: int, evalue: str, *, traceback_lines: Sequence[str] = _TRACEBACK, ename: str = "ValueError", **more: Any
) -> RankResult:
    """Return the result of a rank whose cell raised at line 3, in one of the user's files."""
    error = RankError(ename, evalue, (*traceback_lines, f"{ename}: {evalue}"), line=3, code="read()")
    return RankResult(rank, "error", error=replace(error, **more))


def grouped_ranks(result: CellResult) -> list[tuple[int, ...]]:
    """Return the ranks of each failure in the summary."""
    return [failure.ranks for failure in summarise_cell(result).failures]


def test_errors_naming_their_own_rank_are_one_failure() -> None:
    """The usual `raise ValueError(f"rank {rank}: no data")` gives one failure for all ranks."""
    result = cell(*(raised(rank, f"rank {rank}: no data") for rank in range(4)))
    assert grouped_ranks(result) == [(0, 1, 2, 3)]
    assert format_cell_text(result).splitlines()[:3] == [
        "ValueError on ranks 0-3",
        "  cell 12, line 3:   read()",
        "  ValueError: rank ‹rank›: no data",
    ]


def test_differing_numbers_are_listed_per_rank() -> None:
    """Grouping loses no number: text and HTML list the differing numbers per rank."""
    result = cell(*(raised(rank, f"shapes (3,) and ({rank + 4},) do not fit") for rank in range(3)))
    for shown in (format_cell_text(result), format_cell_html(result, uid="u")):
        assert "ValueError: shapes (3,) and (‹a›,) do not fit" in shown
        assert "a  0: 4 · 1: 5 · 2: 6" in shown


@pytest.mark.parametrize("count", [2, 4, 16])
def test_numbers_of_a_list_are_listed_together(count: int) -> None:
    """From two ranks on there is one failure; a list in which several numbers differ is listed as a whole."""
    ranks = [
        raised(rank, f"got [{rank + 7}, 0, {rank + 8}] not [0, {rank + 9}] of {rank + 5}") for rank in range(count)
    ]
    (failure,) = summarise_cell(cell(*ranks)).failures
    assert failure.ranks == tuple(range(count))
    message, *values = failure.message_lines
    assert message == "got [‹a›] not [0, ‹b›] of ‹c›"
    assert [line.split(" · ")[1] for line in values] == ["1: 8, 0, 9", "1: 10", "1: 6"]


@pytest.mark.parametrize(("count", "folded"), [(4, False), (5, True)])
def test_few_wrong_answers_with_several_numbers_are_rows(count: int, *, folded: bool) -> None:
    """The card of an exercise has a row for each of a few ranks, because rows read better than a template with letters."""
    ranks = [raised(rank, f"got [{rank + 7}, {rank + 8}]", ename=NOT_YET) for rank in range(count)]
    assert len(grouped_ranks(cell(*ranks))) == (1 if folded else count)


# of jax 0.10.2 on four ranks
_NOT_ADDRESSABLE = (
    "When the second argument to `device_put` is a Device, the first argument must be a fully addressable array or a "
    "non-addressable array with a single device sharding. Got value with devices {}"
)
_DEVICES = tuple(
    f"{{{', '.join(f'CpuDevice(id={number})' for number in ids)}}}"
    for ids in (
        (2049, 0, 6144, 2048, 4096, 1, 6145, 4097),
        (2048, 2049, 6144, 4096, 1, 0, 6145, 4097),
        (2048, 2049, 4097, 6144, 1, 4096, 6145, 0),
        (2048, 0, 1, 6144, 4097, 2049, 4096, 6145),
    )
)
_UNEQUAL = (
    "<class 'numpy.ndarray'> passed to device_put is not the same on each process. Make sure you are passing the same value of "
    "<class 'numpy.ndarray'> on each process.. Expected: [ 0.  1.  2.  3.  4.  5.  6.  7.  1.  2.  3.  4.  5.  6.  7.  8.  2.  3.\n"
    "  4.  5.  6.  7.  8.  9.  3.  4.  5.  6.  7.  8.  9. 10.]; got: {}."
)
_UNEQUAL_VALUES = (
    "[0. 1. 2. 3. 4. 5. 6. 7.]",
    "[1. 2. 3. 4. 5. 6. 7. 8.]",
    "[2. 3. 4. 5. 6. 7. 8. 9.]",
    "[ 3.  4.  5.  6.  7.  8.  9. 10.]",
)
_KEY_EXISTS = (
    "ALREADY_EXISTS: key dup already exists.\nAdditional GRPC error information from remote target coordination_service while "
    "calling /xla.coordination.CoordinationService/InsertKeyValue:\n:UNKNOWN:Error received from peer  {}"
)
_GRPC_FIELDS = (
    '{grpc_message:"key dup already exists.", grpc_status:6}',
    '{grpc_status:6, grpc_message:"key dup already exists."}',
)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize(("text", "orders"), [(_NOT_ADDRESSABLE, _DEVICES), (_KEY_EXISTS, _GRPC_FIELDS * 2)])
def test_order_of_a_set_does_not_separate_failures(
    text: str, orders: Sequence[str], length: Literal["short", "long"], count: int
) -> None:
    """Errors that differ in the order of a set, or of gRPC's fields, are one failure that says so, however long they are."""
    before = "of much text " * (400 if length == "long" else 0)
    result = cell(*(raised(rank, before + text.format(orders[rank])) for rank in range(count)))
    (failure,) = summarise_cell(result).failures
    assert failure.ranks == tuple(range(count))
    assert "\n".join(failure.message_lines) == f"{before}{text.format(orders[0])} {ORDER_MARK}"
    assert orders[0] in format_cell_text(result)


def test_order_of_a_set_in_a_cause_does_not_separate_failures() -> None:
    """The order does not count either in the error that another one was raised from."""
    causes = [(f"ValueError: no {devices}", "The above exception was the direct cause of") for devices in _DEVICES]
    result = cell(*(raised(rank, "no", traceback_lines=(*cause, *_TRACEBACK)) for rank, cause in enumerate(causes)))
    assert grouped_ranks(result) == [(0, 1, 2, 3)]


@pytest.mark.parametrize("count", [2, 4])
def test_unequal_data_of_device_put_is_one_failure(count: int) -> None:
    """JAX's text about data that differ by rank is shown once, with the data of every rank."""
    result = cell(
        *(raised(rank, _UNEQUAL.format(_UNEQUAL_VALUES[rank]), ename="AssertionError") for rank in range(count))
    )
    (failure,) = summarise_cell(result).failures
    assert failure.message_lines[-2].endswith("; got: [‹a›].")
    assert failure.message_lines[-1].startswith("  a  0: 0. 1. 2. 3. 4. 5. 6. 7. · 1: 1. 2. 3. 4. 5. 6. 7. 8.")
    assert format_cell_text(result).count("is not the same on each process") == 1


def test_names_of_temporary_files_are_listed_per_rank() -> None:
    """A random name is listed like a number."""
    names = ("tmp4z4rv05h", "tmp__l0tpmu")
    result = cell(*(raised(rank, f"No such file: '/tmp/{name}/x.npy'") for rank, name in enumerate(names)))
    (failure,) = summarise_cell(result).failures
    assert failure.message_lines == ("No such file: '/tmp/‹a›/x.npy'", "  a  0: tmp4z4rv05h · 1: tmp__l0tpmu")


def test_traceback_of_first_failed_rank_is_shown() -> None:
    """The traceback of the first rank to fail is shown, with its rank unless all ranks have the same traceback."""
    # An error raised only in a file of the user's (`line=None`) shows its whole traceback.
    result = cell(raised(0, "bad part 10", at_s=0.9, line=None), raised(1, "bad part 11", at_s=0.1, line=None))
    (failure,) = summarise_cell(result).failures
    assert (failure.first_rank, failure.error and failure.error.evalue) == (1, "bad part 11")
    assert "traceback of rank 1" in format_cell_html(result, uid="u")
    assert "traceback of rank 1:" in format_cell_text(result)
    nowhere = cell(*[replace(r, error=replace(r.error, traceback=())) for r in result.ranks if r.error])
    assert "traceback of" not in format_cell_text(nowhere)
    same = cell(raised(0, "bad part"), raised(1, "bad part"))
    assert ">traceback</summary>" in format_cell_html(same, uid="u")


@pytest.mark.parametrize(
    "other",
    [
        raised(2, "bad part 12", traceback_lines=(_TRACEBACK[0], "helper.py:8, in read()", _TRACEBACK[2])),
        raised(2, "bad part 12", line=4),
        raised(2, "bad piece 12"),
        raised(2, "bad part 12", code="write()"),
        raised(2, "bad part 12", hint="mend it"),
    ],
    ids=["another way", "another line", "other words", "other code", "another cure"],
)
def test_different_failure_is_not_grouped(other: RankResult) -> None:
    """Only numbers in the message may differ within a group; traceback, line, code and hint must be equal."""
    assert grouped_ranks(cell(raised(0, "bad part 10"), raised(1, "bad part 11"), other)) == [(0, 1), (2,)]


@pytest.mark.parametrize(
    ("line", "folded"), [("----> 2 def f(x): raise it", True), ("----> 3 def g(x): raise it", False)]
)
def test_context_lines_do_not_separate_failures(line: str, *, folded: bool) -> None:
    """For a one-line function IPython shows context lines on some ranks only; the marked line alone is compared."""
    bare = ("\x1b[36mCell\x1b[39m In[1], line 2, in f(x)\n----> 2 def f(x): raise it\n",)
    around = (f"Cell In[1], line 2, in f(x)\n      1 import jax\n{line}\n      3 \n     14 y = f(1)\n",)
    result = cell(raised(0, "no", traceback_lines=bare), raised(1, "no", traceback_lines=around))
    assert grouped_ranks(result) == ([(0, 1)] if folded else [(0,), (1,)])


def test_numbered_lines_of_a_cause_are_compared() -> None:
    """Numbered lines in a cause's message are compared, because they are part of the message and not lines of code."""
    causes = [
        (f"ValueError: read\n  {count} of 40 rows are broken", "The above exception was the direct cause of")
        for count in (3, 4)
    ]
    result = cell(*(raised(rank, "no", traceback_lines=(*cause, *_TRACEBACK)) for rank, cause in enumerate(causes)))
    assert grouped_ranks(result) == [(0,), (1,)]


def test_notes_are_shown_and_grouped_with_the_message() -> None:
    """A note added to an error is shown and grouped with the message, because it is part of the message."""
    ranks = [raised(rank, "no data") for rank in range(3)]
    results_with_notes = [
        replace(one, error=replace(one.error, traceback=(*one.error.traceback, f"read by host {one.rank}")))
        for one in ranks
        if one.error
    ]
    assert grouped_ranks(cell(*results_with_notes)) == [(0, 1, 2)]
    assert format_cell_text(cell(*results_with_notes)).splitlines()[2:] == [
        "  ValueError: no data",
        "  read by host ‹rank›",
    ]


def test_lost_rank_precedes_ranks_stopped_because_of_it() -> None:
    """A lost rank comes before the ranks stopped because of it, even if its number is higher; so it does in the exception."""
    stopped = RankError(RANK_STOPPED, "stopped because rank 2 was lost")
    ranks = [RankResult(rank, "killed", error=stopped) for rank in (0, 1)]
    result = cell(*ranks, RankResult(2, "died", error=RankError("RankDied", "rank 2 was killed by SIGKILL")))
    assert summarise_cell(result).failure_heading == "RankDied on rank 2 · RankStopped on ranks 0-1"
    with pytest.raises(CellFailed) as caught:
        result.check()
    assert str(caught.value) == "RankDied on rank 2 · RankStopped on ranks 0-1"


def test_exception_names_every_failed_rank() -> None:
    """The exception's text names every rank, because a script shows only this text. A rank that only waited is not a failure."""
    ranks = [
        raised(0, "a"),
        raised(1, "b", ename="KeyError"),
        raised(2, "c", ename=ORDER_MISMATCH),
        RankResult(3, "ok"),
    ]
    with pytest.raises(CellFailed) as caught:
        cell(*ranks).check()
    assert str(caught.value) == "ValueError on rank 0 · KeyError on rank 1 · rank 2 left waiting · rank 3 finished"


@pytest.mark.parametrize(
    ("ename", "text"),
    [
        (ORDER_MISMATCH, "report of rank {}\n  all of it"),
        ("RuntimeError", "fetch {}0%|█         | file {} of 9"),
        ("ValueError", "part {} " + "of much text " * 1000),
    ],
    ids=["the guard's report", "a progress bar", "a long report"],
)
def test_messages_that_would_lose_information_are_not_grouped(ename: str, text: str) -> None:
    """A message that would lose information in a group is shown unchanged for each rank."""
    ranks = [raised(rank, text.format(rank + 1, rank + 1), ename=ename) for rank in range(3)]
    assert [failure.message_lines for failure in summarise_cell(cell(*ranks)).failures] == [(), (), ()]


def test_address_does_not_separate_messages() -> None:
    """Addresses that differ are left out, whether a number differs too or not."""
    text = "<Reader object at 0x7f112233445{}> has no part {}"
    (failure,) = summarise_cell(cell(*(raised(rank, text.format(rank, rank + 5)) for rank in range(2)))).failures
    assert failure.message_lines[0] == "<Reader object at 0x…> has no part ‹a›"
    (failure,) = summarise_cell(cell(*(raised(rank, text.format(rank, 5)) for rank in range(2)))).failures
    assert failure.message_lines == ("<Reader object at 0x…> has no part 5",)


def test_short_message_does_not_hide_line_numbers() -> None:
    """Only the message at the traceback's end is removed; equal digits elsewhere belong to the traceback."""
    tracebacks = [(_TRACEBACK[0], f"helper.py:{rank}, in read()") for rank in (3, 4)]
    assert grouped_ranks(
        cell(*(raised(at, f"py:{at + 3}", traceback_lines=way) for at, way in enumerate(tracebacks)))
    ) == [(0,), (1,)]


def test_rank_with_outlying_number_is_not_grouped() -> None:
    """A rank whose number differs from the number that all others share has a failure of its own, as with printed output."""
    ranks = [raised(rank, f"wanted 8 and got {7 if rank == 2 else 9}", at_s=rank) for rank in range(5)]
    assert grouped_ranks(cell(*ranks)) == [(0, 1, 3, 4), (2,)]


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (cell(raised(0, "a"), [], raised(2, "b")), "ValueError on ranks 0,2; details above"),
        (
            cell(raised(0, "a"), raised(1, "b", ename="KeyError")),
            "ValueError on rank 0, KeyError on rank 1; details above",
        ),
        (
            cell(*(raised(at, "a", ename=name) for at, name in enumerate(("KeyError", "OSError", "TypeError")))),
            "KeyError on rank 0, OSError on rank 1 and 1 more; details above",
        ),
        (cell(raised(0, "a"), raised(1, "b", ename=ORDER_MISMATCH)), "ValueError on rank 0; details above"),
        (
            cell(*(raised(at, "a", ename=ORDER_MISMATCH) for at in (0, 1))),
            "a launch was refused on ranks 0-1; details above",
        ),
        (cell(*(raised(at, "a") if at % 2 else [] for at in range(64))), "ValueError on 32 ranks; details above"),
        (replace(cell(raised(0, "a")), how="timeout"), "--timeout ended it; details above"),
        (replace(cell([], []), how="interrupted"), ""),
        (rank_died(), "RankDied on rank 3; details above"),
    ],
    ids=["one", "two", "three", "waiting", "guard", "many ranks", "timeout", "ended well", "death"],
)
def test_error_below_a_report_is_short(result: CellResult, line: str) -> None:
    """Below a report the exception names the causes and their ranks in one short line; without a report there is none."""
    assert format_raised_error(result) == line


_REPORT = """nothing was launched, the cluster is clean
launch 1 of cell 12 differs
  rank 0      jit(sum)   line 2:  jit(sum)(x)
  ranks 1-2   jit(max)   line 4:  jit(max)(x)"""
_LINES = {2: "    jit(sum)(x)", 4: "    jit(max)(x)", 6: "    again(x)"}


def mismatched(rank: int, line: int, *, report: str = _REPORT, frames: Sequence[str] = ()) -> RankResult:
    """Return the result of a rank that the guard stopped at this line of the cell."""
    traceback_lines = (
        "Traceback (most recent call last)",
        f"Cell In[12], line {line}\n----> {line} {_LINES[line]}",
        *frames,
    )
    return raised(rank, report, traceback_lines=traceback_lines, ename=ORDER_MISMATCH, line=line, code=_LINES[line])


def test_shared_guard_report_is_shown_once() -> None:
    """Ranks stopped at different lines share one guard report, which names each side's line; text and HTML show it once."""
    result = cell(mismatched(0, 2), mismatched(1, 4), mismatched(2, 4))
    assert grouped_ranks(result) == [(0, 1, 2)]
    first, *report_lines = _REPORT.splitlines()
    assert format_cell_text(result).splitlines() == [
        f"{ORDER_MISMATCH} · {first}",
        "  " + report_lines[0],
        *report_lines[1:],
    ]
    html = format_cell_html(result, uid="u")
    assert html.count("ranks 1-2   jit(max)   line 4:") == 1
    assert "traceback of rank 0" in html


@pytest.mark.parametrize(
    "other",
    [
        mismatched(2, 4, report=_REPORT.replace("launch 1", "launch 2")),
        mismatched(2, 4, frames=("File helper.py:7, in again(x)\n----> 7 f(x)",)),
        mismatched(2, 6),
        mismatched(2, 2),
    ],
    ids=["another text", "through a function of the user's", "a line that is not named", "a line of others"],
)
def test_failure_missing_from_the_report_is_not_grouped(other: RankResult) -> None:
    """A failure with another report, a frame in a user function or a line that the report lacks for this rank is not grouped."""
    assert grouped_ranks(cell(mismatched(0, 2), mismatched(1, 4), other)) == [(0, 1), (2,)]


@pytest.mark.parametrize("thread", ["thread prefetch", "task score #2", "a thread #1"])
def test_report_naming_a_thread_is_shown_once(thread: str) -> None:
    """A report that names a thread's line is shown once, although the ranks' main threads were refused at another line."""
    report = _REPORT.replace("jit(max) ", f"jit(max) in {thread} ").replace("jit(sum) ", "jit(sum) in the main thread ")
    assert grouped_ranks(
        cell(mismatched(0, 2, report=report), *(mismatched(at, 6, report=report) for at in (1, 2)))
    ) == [(0, 1, 2)]


def test_waiting_ranks_are_listed_by_line() -> None:
    """Waiting ranks are listed by line, because their guard report only follows from another rank's error."""
    result = cell(mismatched(0, 2), mismatched(1, 4), raised(2, "no data"))
    assert [line for line in format_cell_text(result).splitlines() if "waited" in line] == [
        "  rank 0 waited at line 2:  jit(sum)(x)",
        "  rank 1 waited at line 4:  jit(max)(x)",
    ]


@pytest.mark.parametrize(
    "text", ["x" * 50_000 + " the end", "\n".join(f"part {at}" for at in range(500))], ids=["a line", "many lines"]
)
def test_middle_of_a_long_message_is_collapsed(text: str) -> None:
    """The HTML of a long message shows its beginning, its end and the hint; a click opens the whole message."""
    html = format_cell_html(cell(raised(0, text, traceback_lines=(), hint="do this")), uid="u")
    visible, collapsed = html.split("the whole message</summary>")
    assert len(visible) < 8_000
    assert text[:6] in visible
    assert text[-7:] in visible
    assert "left out" in visible
    assert "→ do this" in visible
    assert text in collapsed


def test_message_of_a_few_lines_is_shown_whole() -> None:
    """A message that is shown completely has no fold."""
    html = format_cell_html(cell(raised(0, "\n".join(f"part {at}" for at in range(30)))), uid="u")
    assert "the whole message" not in html
    assert "left out" not in html


@pytest.mark.parametrize(
    "way", [(), ("helper.py:7, in read()\n" + "    raise it\n" * 50,) * 100], ids=["short", "deep"]
)
def test_stored_size_of_many_long_messages_is_bounded(way: tuple[str, ...]) -> None:
    """With 64 long messages what is stored is bounded. HTML has the ends of each message; text counts most."""
    result = cell(
        *(raised(rank, f"{rank} {chr(97 + rank % 26) * 60_000} {rank} ends", traceback_lines=way) for rank in range(64))
    )
    html, text = format_cell_html(result, uid="u"), format_cell_text(result)
    assert max(len(html), len(text)) < 1_000_000
    assert all(f"{rank} ends" in html for rank in range(64))
    assert "the error of rank 63 in the cell" in html
    assert "0 ends" in text
    assert "… 59 more failures (ValueError) on ranks 5-63" in text
