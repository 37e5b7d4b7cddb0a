"""Which line of a dead process's last output is quoted."""

from __future__ import annotations

import pytest

from mhnb.core.state.rank_registry import drop_flag_help, drop_stack_frames, pick_error_line

STACKS = {
    "absl's check": ("*** Check failure stack trace: ***", "    @     0x7ff985358ba3  PyObject_Vectorcall"),
    "absl's signal": (
        "*** SIGABRT received at time=1763 on cpu 1 ***",
        "PC: @     0x7ff1  (unknown)  raise",
        "    @ 0x7f  f",
    ),
    "TSL's": (
        "*** Begin stack trace ***",
        "\ttsl::CurrentStackTrace()",
        "\t",
        "\tPyObject_Call",
        "*** End stack trace ***",
    ),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_cpp_stack_is_removed(stack: tuple[str, ...]) -> None:
    """The lines above and below the stack remain."""
    assert drop_stack_frames(["why", *stack, "after"]) == ["why", "after"]


@pytest.mark.parametrize("line", ["  @ 12:03 step 4", "*** loss is nan", "*** loading shard 3 ***", "  @decorator"])
def test_user_output_is_not_a_frame(line: str) -> None:
    """Only an address after the `@` makes a frame, and only the libraries' own texts between stars are headings."""
    assert drop_stack_frames([line]) == [line]


def test_a_fatal_message_is_quoted_before_what_follows_it() -> None:
    """A fatal message ends the process, so whatever its library writes below it belongs to it."""
    fatal = "F1122 23:44:07.924468   97 check.cc:8] Check failed: n == 3"
    assert pick_error_line(["a", fatal, "RPC: /xla"]) == "check.cc:8] Check failed: n == 3"


def test_last_line_is_quoted_without_fatal_message() -> None:
    """If there is no output, the quote is empty."""
    assert pick_error_line(["a", "E1122 23:44:07.924468   97 a.cc:8] no end", "b"]) == "b"
    assert pick_error_line([]) == ""


def test_flag_help_ends_at_the_next_log_line() -> None:
    """XLA writes some ninety lines about its flags below the one that it could not parse; the lines after them count."""
    output = [
        "E1 why",
        "usage: --xla_a=b",
        "Flags:",
        "  --xla_a=true  bool  On or off.",
        "  1. Names.",
        "W1123 05:01:44.449499 7 a.cc:1] end",
    ]
    assert drop_flag_help(output) == ["E1 why", "usage: --xla_a=b", output[-1]]
    assert drop_flag_help([*output[:5], "Fatal Python error: Aborted"])[-1] == "Fatal Python error: Aborted"
    for others in (["Flags:", "  of my own"], ["usage: tool [-h]", "Flags:", "  -h"]):
        assert drop_flag_help(others) == others


@pytest.mark.parametrize("said", ["tok " * 20_000, "F1122 23:44:07.924468   97 check.cc:8] " + "x" * 9_999])
def test_very_long_line_is_shortened(said: str) -> None:
    """The beginning and the end are quoted, so that the hint, which follows the quote, stays visible."""
    line = pick_error_line(["a", said])
    assert len(line) < 300
    assert line.endswith(said[-100:])
