"""Reports merged from the ranks' replies: replies must agree, and errors use the user's terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mhnb.cluster.requests import read_values
from mhnb.cluster.sharding import check_call, merge_compiled, merge_launched
from mhnb.core.error_site import ErrorSite
from mhnb.core.messages import RankReply
from mhnb.core.program_replies import CompiledCall, FailedCall, LaunchedProgram, LaunchedPrograms
from mhnb.core.variables import VariableInfo
from mhnb.errors import CallFailed, ClusterError, HloError, InvalidRequest, UnknownForm, ValueDiffers
from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_text import HloShape
from mhnb.sharding.report import Program, program_to_wire

HOSTS = {0: "host0", 1: "host1"}
SUM = HloCollective("all-reduce", "r", (HloShape("f32", (8,)),), (HloShape("f32", (8,)),), ((0, 1),))
STEP = Program("jit(step)", (0, 1), "cpu", (SUM,), digest="a", argument_types="f32[8]")
LOCAL_PROGRAM = Program("jit(add)", (0, 1), "cpu", ())


def call_reply(program: Program) -> CompiledCall:
    """Return a rank's reply about a call."""
    return CompiledCall(program_to_wire(program), is_plain=False, printed="")


def cell_reply(*rows: tuple[str, int, Program | str]) -> LaunchedPrograms:
    """Return a rank's reply about a cell."""
    wires = [
        LaunchedProgram(key, count, one if isinstance(one, str) else program_to_wire(one)) for key, count, one in rows
    ]
    return LaunchedPrograms(is_gone=False, programs=tuple(wires))


def failure_reply(ename: str, evalue: str, *near: str, ours: bool = False, **more: Any) -> FailedCall:
    """Return a rank's reply about a call that it cannot compile."""
    given: dict[str, Any] = {"was_traced": False, "place": "", "code": "", "site": ErrorSite()} | more
    return FailedCall(ename, evalue, is_mhnb_error=ours, close_names=near, **given)


def test_any_form_of_call_is_accepted() -> None:
    """A call in any form is accepted as it was typed."""
    for call in ("step(w, x)", "jax.jit(f)(x)", "f(*a, **k)", "(lambda v: v)(x)", "f('a  b')"):
        assert check_call(f" {call} ") == call


def test_empty_call_is_refused() -> None:
    """Empty input is not reported as invalid Python: the error says what is missing and how to write it."""
    with pytest.raises(InvalidRequest, match=r"^collectives: expected a call such as step\(params, batch\)$"):
        check_call("  ")


@pytest.mark.parametrize("text", ["step", "step(w,", "x = f(x)", "f(x) + 1", "import os", "f(x); g(x)"])
def test_text_that_is_not_a_call_is_refused(text: str) -> None:
    """The error has the text that was typed and the form of a call."""
    with pytest.raises(InvalidRequest) as caught:
        check_call(text)
    assert repr(text) in str(caught.value)
    assert "expected a call such as step(params, batch)" in str(caught.value)


def test_ranks_that_agree_are_one_report() -> None:
    """The report is the program that all ranks returned."""
    assert merge_compiled("step(x)", {0: call_reply(STEP), 1: call_reply(STEP)}) == STEP


@pytest.mark.parametrize(
    "other",
    [replace(STEP, digest="b", argument_types="f32[4]"), replace(STEP, collectives=()), replace(STEP, ranks=(1, 0))],
    ids=["another module", "other collectives", "other devices"],
)
def test_ranks_that_differ_are_shown(other: Program) -> None:
    """Each version is shown with its ranks."""
    with pytest.raises(ValueDiffers) as caught:
        merge_compiled("step(x)", {0: call_reply(STEP), 1: call_reply(other), 2: call_reply(STEP)})
    assert "ranks 0,2: jit(step) of f32[8] on 2 devices" in str(caught.value)
    assert "\n  rank 1: jit(step) of " in str(caught.value)


def test_programs_with_equal_collectives_are_reported() -> None:
    """If both versions look the same, a line says that the difference lies between the collectives."""
    with pytest.raises(ValueDiffers) as caught:
        merge_compiled("step(x)", {0: call_reply(STEP), 1: call_reply(replace(STEP, digest="b"))})
    assert "their collectives are the same; another operation, a constant or a branch differs" in str(caught.value)
    with pytest.raises(ValueDiffers) as caught:
        merge_compiled(
            "step(x)", {0: call_reply(STEP), 1: call_reply(replace(STEP, digest="b", argument_types="f32[4]"))}
        )
    assert "alike" not in str(caught.value)


def test_names_of_xla_are_not_compared() -> None:
    """XLA's names may differ between hosts, so they are not compared."""
    other = replace(STEP, collectives=(replace(SUM, name="all-reduce.7"),))
    assert merge_compiled("step(x)", {0: call_reply(STEP), 1: call_reply(other)}) == STEP


def test_local_programs_on_own_devices_are_equal() -> None:
    """The same program on each rank's own devices is not a difference."""
    local = replace(STEP, ranks=(0, 0))
    assert merge_compiled("f(x)", {0: call_reply(local), 1: call_reply(replace(local, ranks=(1, 1)))}) == local


def test_error_on_every_rank_is_reported_once() -> None:
    """The error is reported once, with its name and similar names."""
    answer = failure_reply("NameError", "name 'stepp' is not defined", "step")
    with pytest.raises(InvalidRequest) as caught:
        merge_compiled("stepp(x)", {0: answer, 1: answer})
    assert str(caught.value) == "stepp(x) on every rank: NameError: name 'stepp' is not defined; did you mean step?"


def test_unknown_name_without_similar_names_has_a_hint() -> None:
    """Without a similar name, the error says where to look and how to send a value."""
    with pytest.raises(InvalidRequest, match=r"%mhjax vars .* %mhjax push"):
        merge_compiled("f(q)", {0: failure_reply("NameError", "name 'q' is not defined")})


def test_an_error_on_some_ranks_names_them() -> None:
    """The error names the failed rank, because the others could compile the call."""
    answers: dict[int, CompiledCall | FailedCall] = {
        0: call_reply(STEP),
        1: failure_reply("TypeError", "no"),
        2: call_reply(STEP),
    }
    with pytest.raises(InvalidRequest, match=r"^step\(x\) on rank 1: TypeError: no$"):
        merge_compiled("step(x)", answers)


def test_failing_program_is_reported_as_in_a_cell() -> None:
    """A failing program is not a wrong use of the command, so the error line and the hint are shown if they are known."""
    said = "Contracting dimensions are sharded and it is ambiguous how the output should be sharded."
    answer = failure_reply("ShardingTypeError", said, was_traced=True, place="cell 3, line 2", code="return a @ b")
    with pytest.raises(CallFailed) as caught:
        merge_compiled("step(a, b)", {0: answer})
    first, line, hint = str(caught.value).splitlines()
    assert first == f"step(a, b) on every rank: ShardingTypeError: {said}"
    assert line == "  cell 3, line 2:  return a @ b"
    assert hint.startswith("  → The dimension that this line sums over is sharded on both sides")
    with pytest.raises(CallFailed, match=r"^step\(x\) on every rank: TypeError: no$"):
        merge_compiled("step(x)", {0: failure_reply("TypeError", "no", was_traced=True)})


def test_errors_of_mhnb_have_no_class_name() -> None:
    """Errors of mhnb have no class name before their text, and `UnknownForm` keeps its class."""
    with pytest.raises(InvalidRequest, match=r"^f\(x\) on every rank: 3 is not a function but int$"):
        merge_compiled("f(x)", {0: failure_reply("InvalidRequest", "3 is not a function but int", ours=True)})
    with pytest.raises(UnknownForm):
        merge_compiled("f(x)", {0: failure_reply("UnknownForm", "what is this", ours=True)})


def test_launches_of_all_ranks_are_one_report_per_program() -> None:
    """Programs are in the order of their first launch, and only those that communicate if any does, also on some ranks only."""
    rank_0 = cell_reply(("a", 3, STEP), ("free:b", 1, LOCAL_PROGRAM), ("c", 1, replace(STEP, name="jit(c)")))
    rank_1 = cell_reply(("a", 3, STEP), ("free:b", 1, LOCAL_PROGRAM))
    reports = merge_launched("cell 4", {0: rank_0, 1: rank_1}, HOSTS)
    assert [(report.name, report.launches) for report in reports] == [("jit(step)", 3), ("jit(c)", 1)]
    (local,) = merge_launched("cell 4", {0: cell_reply(("free:b", 1, LOCAL_PROGRAM))}, HOSTS)
    assert (local.name, local.rows) == ("jit(add)", ())
    assert merge_launched("cell 4", {0: cell_reply()}, HOSTS) == ()


@pytest.mark.parametrize("other", [("a", 2, STEP), ("a", 3, replace(STEP, collectives=()))], ids=["count", "program"])
def test_launches_that_differ_are_shown(other: tuple[str, int, Program]) -> None:
    """One fingerprint has two different reports."""
    with pytest.raises(ValueDiffers) as caught:
        merge_launched("cell 4", {0: cell_reply(("a", 3, STEP)), 1: cell_reply(other)}, HOSTS)
    assert "rank 0: 3 × jit(step)" in str(caught.value)
    assert f"rank 1: {other[1]} × jit(step)" in str(caught.value)


def test_earlier_cell_is_refused() -> None:
    """Launches of the last cell only are recorded."""
    with pytest.raises(InvalidRequest, match="another cell has run since cell 4"):
        merge_launched("cell 4", {0: cell_reply(), 1: LaunchedPrograms(is_gone=True)}, HOSTS)


def test_unreadable_program_is_an_error() -> None:
    """An unreadable program is an error, never a shorter report."""
    with pytest.raises(HloError, match=r"rank 1 cannot read a program that it launched: jit.f.: all-shuffle"):
        merge_launched("cell 4", {0: cell_reply(), 1: cell_reply(("a", 1, "jit(f): all-shuffle"))}, HOSTS)


def test_reply_of_another_type_is_reported() -> None:
    """The error names the rank, the request, the field that is wrong, and how to compare the versions of the hosts."""
    facts = {"x": {"place": "host", "type": "int"}}
    answers = {
        rank: RankReply(rank, 1, ok=True, value=value) for rank, value in enumerate((facts, {"x": {"place": "host"}}))
    }
    with pytest.raises(
        ClusterError, match=r"^rank 1 sent an unexpected reply to 'vars': .* required field `type` .*\n.*%mhjax doctor"
    ):
        read_values("vars", answers, dict[str, VariableInfo])
    del answers[1]
    assert read_values("vars", answers, dict[str, VariableInfo]) == {0: {"x": VariableInfo("host", "int")}}
