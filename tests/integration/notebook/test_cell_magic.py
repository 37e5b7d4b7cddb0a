"""`%%mhjax` cells: flags, shown output, bound results and refused lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.errors import CellFailed, CellTimeout
from mhnb.magics.commands import COMMANDS
from tests.integration.notebook.conftest import Session

FLAGS = (
    "--ranks",
    "--guard",
    "--timeout",
    "--out",
    "--view",
    "--trace",
    "--collectives",
    "--debug",
    "--break",
    "--quiet",
)


def test_a_cell_runs_on_every_rank(nb: Session) -> None:
    """Output that is equal on all ranks is shown once, and output that differs is shown per rank."""
    assert nb.run("%%mhjax\n6 * 7").out.splitlines()[1:] == ["  42"]
    assert nb.run("%%mhjax\n10 + me").out.splitlines()[1:] == ["rank 0 │ 10", "rank 1 │ 11"]


def test_cell_has_no_value_in_notebook(nb: Session) -> None:
    """A `%%mhjax` cell has no Out value in the notebook, because the values stay on the ranks."""
    assert nb.run("%%mhjax\n1").value is None


def test_ranks_flag_limits_cell(nb: Session) -> None:
    """`--ranks` runs the cell on the given ranks only, and the heading names them."""
    outcome = nb.run("%%mhjax --ranks 1\nprint(me)")
    assert outcome.out.startswith("rank 1 of 2")
    assert outcome.out.splitlines()[1:] == ["  1"]


@pytest.mark.parametrize("guard", ["lockstep", "parity", "off", "before", "after"])
def test_guard_choices_are_accepted(nb: Session, guard: str) -> None:
    """With each choice of `--guard` a cell runs if the ranks agree."""
    assert "2" in nb.run(f"%%mhjax --guard {guard}\n1 + 1").out


def test_timeout_ends_cell(nb: Session) -> None:
    """`--timeout` ends the cell on every rank with CellTimeout, and the cluster stays clean."""
    outcome = nb.try_("%%mhjax --timeout 2\nimport time\ntime.sleep(60)")
    assert isinstance(outcome.error, CellTimeout)
    assert "--timeout ended it" in outcome.out
    assert "time.sleep(60)" in outcome.out


def test_out_binds_the_result(nb: Session) -> None:
    """`--out` binds a CellResult that the next plain cell can use."""
    nb.run("%%mhjax --out r\nme")
    assert nb.run("[rank.text for rank in r]").value == ["0", "1"]


def test_out_binds_result_of_failed_cell(nb: Session) -> None:
    """`--out` binds the result of a failed cell too, so that the user can inspect the failure."""
    outcome = nb.try_("%%mhjax --out failed\n1 / 0 if me else 2")
    result = nb.run("failed").value
    assert isinstance(outcome.error, CellFailed)
    assert isinstance(result, CellResult)
    assert outcome.error.result is result
    assert [getattr(rank.error, "ename", None) for rank in result] == [None, "ZeroDivisionError"]


def test_refused_cell_does_not_change_the_out_variable(nb: Session) -> None:
    """A refused cell leaves the variable of `--out` unchanged."""
    nb.run("kept = 'before'")
    nb.expect_usage_error("%%mhjax --out kept --ranks 9\n1")
    assert nb.run("kept").value == "before"


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
def test_view_choices_are_accepted(nb: Session, view: str) -> None:
    """Every choice of `--view` is accepted; a terminal has only one layout."""
    outcome = nb.run(f"%%mhjax --view {view}\nf'value {{me}}'")
    assert "value ‹rank›" in outcome.out


def test_quiet_shows_nothing(nb: Session) -> None:
    """With `--quiet` a cell that succeeds shows nothing."""
    assert nb.run("%%mhjax --quiet\nprint('loud'); 3").text == ""


def test_quiet_shows_a_failure(nb: Session) -> None:
    """With `--quiet` a failed cell still shows its error and its output."""
    outcome = nb.try_("%%mhjax --quiet\nprint('before'); 1 / 0")
    assert "ZeroDivisionError: division by zero" in outcome.out
    assert "before" in outcome.out


def test_a_failure_is_one_short_block(nb: Session) -> None:
    """A failure is shown as the cell's own line, the message and one last error line, without frames of mhnb or IPython.

    The cell and the line have the numbers that the notebook shows: the `%%mhjax` line is line 1.
    """
    outcome = nb.try_("%%mhjax\nx = 1\nx / 0")
    assert outcome.out.splitlines() == [
        "ZeroDivisionError on ranks 0-1",
        f"  In [{nb.shell.execution_count - 1}], line 3:   x / 0",
        "  ZeroDivisionError: division by zero",
        "CellFailed: ZeroDivisionError on ranks 0-1; details above",
    ]
    assert outcome.err == ""
    assert str(outcome.error) == "ZeroDivisionError on ranks 0-1", "complete for code that catches it"


def test_an_error_without_a_report_above_it_is_complete(nb: Session) -> None:
    """`check()` in a plain cell shows no report, so its error is not shortened."""
    outcome = nb.try_("import mhnb\nmhnb.current().run('1 / 0').check()")
    error, note, line = outcome.out.splitlines()[-3:]
    assert error == "CellFailed: ZeroDivisionError on ranks 0-1"
    assert re.fullmatch(r"rank [01]: ZeroDivisionError: division by zero", note), "that of the rank which was first"
    assert re.fullmatch(r"  cell \d+, line 1: 1 / 0", line)


def test_only_the_next_cell_is_marked_after_a_cell_that_ended_on_some_ranks(nb: Session, tmp_path: Path) -> None:
    """The next cell has its value and one mark that names the earlier cell; the one after it has only its value."""
    once = f"import os; os.makedirs({str(tmp_path / 'once')!r}, exist_ok=False)"
    outcome = nb.try_(f"%%mhjax --out failed\n{once}")
    last = "  the ranks are still in sync, but variables set in this cell may differ"
    assert outcome.out.splitlines()[-2] == last, "below the error, in its report"
    (winner,) = [rank.rank for rank in nb.run("failed").value if rank.outcome == "ok"]
    heading, value = nb.run("%%mhjax\n1 + 1").out.splitlines()
    mark = f"[{nb.run('failed.name').value} finished on rank {winner} only: variables may differ]"
    assert re.fullmatch(rf"ranks 0-1 · [\d.]+ m?s   {re.escape(mark)}", heading)
    assert value == "  2"
    assert "finished on" not in nb.run("%%mhjax\n1 + 1").out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--bogus", "unrecognized arguments: --bogus\n  Help: %%mhjax?"),
        ("--qiet", "unrecognized arguments: --qiet (did you mean --quiet?)\n"),
        ("--guard maybe", "choose from"),
        ("--view maybe", "choose from"),
        ("--timeout soon", "expected seconds, for example 30 or 0.5; got 'soon'"),
        ("--timeout 0", "number of seconds above 0"),
        ("--timeout -1", "number of seconds above 0"),
        ("--ranks 7", "unknown rank 7; this cluster has ranks 0-1"),
        ("--ranks 1-0", "is reversed"),
        ("--ranks x", "expected ranks such as 0,2-3"),
        ("--ranks ٣", "expected ranks such as 0,2-3"),
        ("0 --ranks 1", "%%mhjax 0 contradicts --ranks 1; give one of them"),
        ("7", "unknown rank 7"),
        ("--out 1x", "expected a Python name"),
        ("--ranks", "expected one argument"),
        ("'open", "No closing quotation"),
        ("x = 1", "%%mhjax x = 1: this line takes flags only; put the code on the lines below:\n%%mhjax\nx = 1"),
        ("--quiet print('a b')", "put the code on the lines below:\n%%mhjax --quiet\nprint('a b')"),
        ("stop", "stop is a command and takes one %, in a cell of its own\n  Fix: %mhjax stop"),
    ],
)
def test_bad_flag_is_refused(nb: Session, line: str, said: str) -> None:
    """A bad flag raises a one-line UsageError that names the flag, its value and the accepted values."""
    text = nb.expect_usage_error(f"%%mhjax {line}\nprint('ran')")
    assert said in text
    assert text.startswith("%%mhjax ")


def test_first_word_may_be_ranks(nb: Session) -> None:
    """`%%mhjax 1` is `%%mhjax --ranks 1`, and may have flags after it."""
    assert nb.run("%%mhjax 1\nprint(me)").out.startswith("rank 1 of 2")
    assert nb.run("%%mhjax 1 --quiet --out r\nprint(me)").text == ""
    nb.run("%%mhjax 0-1 --out r --ranks 0-1\nme")
    assert nb.shell.user_ns["r"].ok


@pytest.mark.parametrize("cell", ["%%mhjax --help", "%%mhjax -h\n1 / 0"])
def test_help_shows_manual(idle: Session, cell: str) -> None:
    """`--help` prints the manual and runs nothing."""
    assert "%mhjax auto on|off" in idle.run(cell).out


@pytest.mark.parametrize("auto", ["on", "off"])
@pytest.mark.parametrize("body", ["", "\n", "\n  \n"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (" rank + 1", "%%mhjax rank + 1: the cell is empty; put the code on the lines below:\n%%mhjax\nrank + 1"),
        (" --ranks 1", "%%mhjax --ranks 1: the cell is empty; put the code on the lines below"),
        ("", "%%mhjax: the cell is empty; put the code on the lines below"),
        (
            " start -n 2",
            "%%mhjax start -n 2: start is a command and takes one %, in a cell of its own\n  Fix: %mhjax start -n 2",
        ),
    ],
)
def test_empty_cell_is_refused_with_example(nb: Session, line: str, said: str, body: str, auto: str) -> None:
    """An empty cell is refused with an example of what to type; the line magic is named only if a command was typed."""
    nb.run(f"%mhjax auto {auto}")
    assert nb.expect_usage_error(f"%%mhjax{line}{body}") == said


def test_terminal_continues_cell_after_magic_line(idle: Session) -> None:
    """In a terminal a cell continues after `%%mhjax` and Enter, and a blank line ends it."""
    assert idle.shell.check_complete("%%mhjax\n")[0] == "incomplete"
    assert idle.shell.check_complete("%%mhjax\n1 + 1\n\n")[0] == "complete"


def test_manual_lists_every_flag_and_command(idle: Session) -> None:
    """`%%mhjax?` lists every flag and command that the parsers accept."""
    manual = idle.run("%%mhjax?").out
    assert all(manual.count(f"  {flag}") == 1 for flag in FLAGS)
    assert all(f"%mhjax {name}" in manual for name, command in COMMANDS.items() if not command.is_hidden)
    assert "--auto" not in manual
    assert "<" not in manual
    assert idle.run("%mhjax?").out == manual


def test_name_error_on_ranks_hints_at_push(nb: Session) -> None:
    """For a NameError on the ranks about a name of the notebook the hint is `%mhjax push`, and the cell works after it."""
    nb.run("only_here = 5")
    outcome = nb.try_("%%mhjax\nonly_here + 1")
    assert (
        "→ 'only_here' is defined in this notebook, not on the ranks: copy it to every rank with %mhjax push only_here"
        in outcome.out
    )
    nb.run("%mhjax push only_here")
    assert "6" in nb.run("%%mhjax\nonly_here + 1").out


@pytest.mark.parametrize(
    ("here", "name", "way"),
    [
        ("import xml.dom as dom_here", "dom_here", "import xml.dom as dom_here"),
        ("def made_here(): ...", "made_here", "run the cell that defines it with %%mhjax too"),
    ],
)
def test_unpushable_name_has_another_hint(nb: Session, here: str, name: str, way: str) -> None:
    """For a module the hint is an import, for a function its definition on the ranks, and never a push that would fail."""
    nb.run(here)
    outcome = nb.try_(f"%%mhjax\n{name}")
    assert way in outcome.out
    assert "push" not in outcome.out


def test_undefined_name_gets_no_hint(nb: Session) -> None:
    """A name that neither side defines gets no hint."""
    assert "→" not in nb.try_("%%mhjax\nnobody_has_this").out


def test_split_and_accept(nb: Session, cluster: Cluster) -> None:
    """If outcomes differ under `--guard off` the cluster is split: the next cell is refused, and `%mhjax accept` cleans it."""
    nb.try_("%%mhjax --guard off\nassert me == 0")
    outcome = nb.try_("%%mhjax\nprint('ran')")
    assert type(outcome.error).__name__ == "NotClean"
    assert "%mhjax accept" in outcome.text
    assert "ran\n" not in outcome.text
    assert nb.run("%mhjax accept").out == "mhjax · split accepted, clean now\n"
    assert nb.run("%mhjax accept").out == "mhjax · clean: nothing to accept\n"
    assert cluster.state == manager.current().state == "clean"
