"""The debugger from a notebook: what `--debug`, `%mhjax break`, `%mhjax debug` and `%debug` ask of the cluster, and what they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from mhnb.core.debugging import DebugRequest
from mhnb.core.messages import Breakpoint
from mhnb.core.output.results import RANK_STOPPED, CellResult, RankResult
from mhnb.errors import CellFailed, NotClean
from mhnb.magics import magics
from mhnb.magics.commands import cell_parser, run_command
from mhnb.magics.completion import complete_line
from mhnb.magics.magics import parse_cell_flags
from mhnb.magics.session import CellFlags, Session, can_type
from tests.support.view_samples import failed, out
from tests.unit.magics.test_transformers import new_shell

RANKS = 4


class FakeCluster:
    """Records the cells that it is given, and answers with results or errors that a test has prepared."""

    name, generation, state, process_count, ranks = "demo", 1, "clean", RANKS, ()
    shape = SimpleNamespace(is_local=False)

    def __init__(self) -> None:
        self.cells: list[dict[str, Any]] = []
        self.answers: list[tuple[RankResult, ...] | Exception] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a cell runs."""

    def run(self, source: str, **arguments: Any) -> CellResult:
        self.cells.append({"source": source, **arguments})
        answer = self.answers.pop(0) if self.answers else tuple(RankResult(rank, "ok") for rank in range(RANKS))
        if isinstance(answer, Exception):
            raise answer
        self.meanwhile()
        return CellResult(
            len(self.cells), source, answer, 0.1, process_count=RANKS, execution_count=len(self.cells) + 4
        )

    @property
    def sources(self) -> list[str]:
        """What was sent."""
        return [cell["source"].strip() for cell in self.cells]

    @property
    def last(self) -> Any:
        """The ranks, the guard and the request of the last cell."""
        cell = self.cells[-1]
        return cell["ranks"], cell["guard"], cell["debug"]

    def interrupt(self) -> None:
        """A button of the view calls it."""

    def on_late(self, _callback: object) -> None:
        """No output is late."""

    on_notice = on_late


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The current cluster."""
    fake = FakeCluster()
    monkeypatch.setattr("mhnb.magics.session.wait_for_current", lambda _: fake)
    monkeypatch.setattr("mhnb.cluster.manager.current", lambda: fake)
    return fake


@pytest.fixture
def shell(cluster: FakeCluster) -> Iterator[InteractiveShell]:
    """A shell with the extension, in which the user can type."""
    new = new_shell()
    magics.load(new)
    session_of(new).can_type = lambda: True
    yield new
    magics.unload(new)


def session_of(shell: InteractiveShell) -> Session:
    """Return the session of a shell's magics."""
    session: Session = shell.mhnb_assist._session  # type: ignore[attr-defined]
    return session


def run(shell: InteractiveShell, cell: str) -> BaseException | None:
    """Run a cell as the notebook does, and return its error."""
    error: BaseException | None = shell.run_cell(cell, store_history=True).error_in_exec
    return error


def refusal(shell: InteractiveShell, cluster: FakeCluster, cell: str) -> str:
    """Run a cell that must be a usage error before anything is sent, and return its text."""
    before = len(cluster.cells)
    error = run(shell, cell)
    assert isinstance(error, UsageError)
    assert len(cluster.cells) == before
    return str(error)


# -- whether the front end can type


def make_kernel_shell(**content: Any) -> Any:
    """Return a shell of a kernel that executes a request with this content."""
    kernel = SimpleNamespace(get_parent=lambda channel: {"content": content} if channel == "shell" else {})
    return SimpleNamespace(kernel=kernel)


def test_front_end_says_whether_it_can_type() -> None:
    """In a kernel the request that is executed says so; outside of a request, as in a button's callback, no user can."""
    assert can_type(make_kernel_shell(allow_stdin=True))
    assert not can_type(make_kernel_shell(allow_stdin=False))
    assert not can_type(make_kernel_shell())
    assert not can_type(SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda _: {})))


def test_only_the_main_thread_can_type() -> None:
    """A subshell runs its cells in another thread, also if its request allows input."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(can_type(make_kernel_shell(allow_stdin=True))))
    thread.start()
    thread.join()
    assert answers == [False]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_terminal_shell_asks_standard_input(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001  # a parameter
    """A shell without a kernel can type if its standard input is a terminal; loading the extension installs that."""
    monkeypatch.setattr("mhnb.system.keyboard.can_type", lambda: is_terminal)
    bare = new_shell()
    magics.load(bare)
    assert session_of(bare).can_type() == is_terminal
    magics.unload(bare)


# -- an ordinary cell


def test_ordinary_cell_says_whether_the_user_can_type(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """`breakpoint()` in its code needs that, and nothing else about the cell changes."""
    run(shell, "%%mhjax\nx = 1")
    assert cluster.last == (None, None, DebugRequest())
    session_of(shell).can_type = lambda: False
    run(shell, "%%mhjax --guard off\nx = 1")
    assert cluster.last == (None, "off", None)


# -- %%mhjax --debug


@pytest.mark.parametrize(
    ("line", "ranks", "stop_ranks"),
    [
        ("--debug", None, (0, 1, 2, 3)),
        ("--debug 2", None, (2,)),
        ("--debug=0,2-3", None, (0, 2, 3)),
        ("0-1 --debug", "0-1", (0, 1)),
        ("--debug 1 --ranks 0-1", "0-1", (1,)),
        ("--ranks 1,3 --quiet --debug all", "1,3", (1, 3)),
        ("--debug --guard before", None, (0, 1, 2, 3)),
        ("--guard lockstep --debug", None, (0, 1, 2, 3)),
    ],
)
def test_debug_flag_stops_ranks_of_the_cell(
    shell: InteractiveShell, cluster: FakeCluster, line: str, ranks: str | None, stop_ranks: tuple[int, ...]
) -> None:
    """Without ranks every rank of the cell stops. The cell runs in lockstep, whatever guard the cluster was started with."""
    assert run(shell, f"%%mhjax {line}\nx = 1") is None
    assert cluster.last == (ranks, "lockstep", DebugRequest(stop_ranks))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "0-1 --debug 1-2",
            "--debug 1-2: the cell does not run on rank 2, only on ranks 0-1\n  Fix: %%mhjax --ranks 0-1 --debug",
        ),
        ("--debug 4", "%%mhjax --debug '4': unknown rank 4; this cluster has ranks 0-3"),
        ("--debug two", "%%mhjax --debug 'two': expected ranks such as 0,2-3 or all; got 'two'"),
        ("--debug --guard off", "without lockstep the other ranks would not wait for one that has stopped"),
        ("--guard after --debug", "--guard parity: without lockstep"),
        ("--break 2 --guard off", "--break --guard off: without lockstep"),
    ],
)
def test_debug_flag_is_refused(shell: InteractiveShell, cluster: FakeCluster, line: str, message: str) -> None:
    """A rank that the cell does not have, and another guard, are usage errors before anything is sent."""
    assert message in refusal(shell, cluster, f"%%mhjax {line}\nx = 1")


@pytest.mark.parametrize("cell", ["%%mhjax --debug\nx = 1", "%%mhjax --break 2\nx = 1", "%mhjax debug"])
def test_commands_of_the_debugger_need_a_user_who_types(
    shell: InteractiveShell, cluster: FakeCluster, cell: str
) -> None:
    """They are refused in one sentence where no line can be typed, before anything is sent."""
    session_of(shell).can_type = lambda: False
    text = refusal(shell, cluster, cell)
    assert "nothing can be typed here" in text
    assert cell.split("\n", maxsplit=1)[0].removesuffix(" 2") in text


# -- %%mhjax --break


def test_cell_stops_at_its_breakpoints(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """Several lines add up, a line that is given again has the new condition, and the cell runs in lockstep."""
    run(shell, "%%mhjax --break '3 if rank == 2' --break 2 --break '3 if rank == 1'\nx = 1\ny = 2")
    assert cluster.last == (None, "lockstep", DebugRequest(None, (Breakpoint(3, "rank == 1"), Breakpoint(2))))
    run(shell, "%%mhjax\nx = 1\ny = 2")
    assert cluster.last == (None, None, DebugRequest())


def test_breakpoints_and_stop_ranks_go_together(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """`--debug` in a cell with breakpoints does both."""
    run(shell, "%%mhjax 0-1 --debug 0 --break 2\nx = 1")
    assert cluster.last == ("0-1", "lockstep", DebugRequest((0,), (Breakpoint(2),)))


def test_older_spelling_sets_breakpoints_of_the_next_cell(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """`%mhjax break` goes on working; an expression between does not use them up, and a cell that is refused does."""
    run(shell, "%mhjax break 3 if rank == 2")
    run(shell, "%mhjax break 2")
    run(shell, "%mhjax eval 1 + 1")
    assert cluster.last == (None, None, DebugRequest())
    run(shell, "%%mhjax --break 2\nx = 1\ny = 2")
    assert cluster.last == (None, "lockstep", DebugRequest(None, (Breakpoint(2), Breakpoint(3, "rank == 2"))))
    run(shell, "%mhjax break 7")
    assert "has no code in line 7" in refusal(shell, cluster, "%%mhjax\nx = 1")
    assert session_of(shell).breakpoints == []


def test_condition_is_not_expanded(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """Braces and dollar signs of a condition are the rank's, not values of the notebook."""
    shell.user_ns["rank"] = 7
    run(shell, '%mhjax break 2 if f"{rank}" == "$rank"')
    assert session_of(shell).breakpoints == [Breakpoint(2, 'f"{rank}" == "$rank"')]


def test_breakpoints_are_listed_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    """Setting one prints all; `break` alone lists them; `--clear` removes them."""
    session = Session(shell=None, can_type=lambda: True)
    said = []
    for line in ("break", "break --clear", "break 9", "break 4 if rank == 1", "break", "break --clear", "break"):
        run_command(session, line)
        said.append(capsys.readouterr().out.strip().removeprefix("mhjax · break · "))
    none, both = "the next %%mhjax cell has no breakpoint", "the next %%mhjax cell stops at line 4 if rank == 1, 9"
    assert said == [
        none,
        "nothing to clear",
        "the next %%mhjax cell stops at line 9",
        both,
        both,
        "2 cleared",
        none,
    ]


def test_bad_condition_is_reported_at_once(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """With the compiler's text and a mark below the place."""
    lines = refusal(shell, cluster, "%%mhjax --break '4 if rank = 2'\nx = 1").splitlines()
    assert "the condition is not a Python expression: invalid syntax" in lines[0]
    assert lines[1:3] == ["    rank = 2", "         ^"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (1, "has no code in line 1; its code is in lines 2-5"),
        (3, "cannot stop at line 3, which is a comment"),
        (4, "cannot stop at line 4, which is blank"),
        (6, "has no code in line 6; its code is in lines 2-5"),
    ],
)
def test_line_without_code_is_refused(shell: InteractiveShell, cluster: FakeCluster, line: int, message: str) -> None:
    """Before anything is sent. The `%%mhjax` line is line 1."""
    text = refusal(shell, cluster, f"%%mhjax --break {line}\nx = 1\n  # why\n\ny = 2\n\n")
    assert f"--break {line}: this cell {message}. It was not run" in text


def test_lines_count_as_the_notebook_shows_them(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """What stands above the `%%mhjax` line counts too."""
    for cell, first in (("\n%%time\n%%mhjax --break {}\n\nx = 1", 5), ("# why\n%%mhjax --break {}\nx = 1", 3)):
        assert run(shell, cell.format(first)) is None
        assert cluster.last[2] == DebugRequest(None, (Breakpoint(first),))
        # The line of the magic, or a blank one.
        refused = str(run(shell, cell.format(first - 1)))
        assert "cannot stop" in refused or "has no code" in refused


def test_auto_mode_has_breakpoints_and_the_debugger(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """There a plain cell is the next cell, and its first line is line 1; `%debug` goes to the ranks of the failed cell."""
    session_of(shell).is_auto_mode = True
    run(shell, "%mhjax break 1")
    cluster.answers = [(RankResult(0, "ok"), failed(1))]
    run(shell, "1 / rank")
    assert cluster.last == (None, "lockstep", DebugRequest(None, (Breakpoint(1),)))
    assert run(shell, "# look\n%debug") is None
    assert (cluster.sources[-1], cluster.last) == ("%debug", ((1,), "lockstep", DebugRequest(is_post_mortem=True)))


# -- %mhjax debug and %debug


def stopped(rank: int) -> RankResult:
    """Return the result of a rank that was stopped because another one had failed."""
    return failed(rank, RANK_STOPPED, at_s=0.05)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("%mhjax debug", (2,)), ("%mhjax debug 1", (1,)), ("%mhjax debug 1-3", (1, 2, 3)), ("%debug", (2,))],
)
def test_last_failed_cell_is_inspected(
    shell: InteractiveShell, cluster: FakeCluster, line: str, ranks: tuple[int, ...]
) -> None:
    """By default on the first rank that raised: one that was only stopped because of it is not the place to look.

    A cell that succeeded in between changes nothing.
    """
    cluster.answers = [(RankResult(0, "ok"), stopped(1), failed(2, at_s=0.2), failed(3, at_s=0.3))]
    run(shell, "%%mhjax\n1 / 0")
    run(shell, "%%mhjax\nx = 1")
    assert run(shell, line) is None
    assert cluster.sources == ["1 / 0", "x = 1", "%debug"]
    assert cluster.last == (ranks, "lockstep", DebugRequest(is_post_mortem=True))
    assert "timeout_s" not in cluster.cells[-1]


def test_lowest_of_equal_failures_is_inspected(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """Ranks that raise the same error at the same line do so at nearly the same moment; one that raises another comes first in time."""
    cluster.answers = [
        (failed(0, "TypeError", at_s=0.3), failed(1, at_s=0.2), RankResult(2, "ok"), failed(3, at_s=0.1))
    ]
    run(shell, "%%mhjax\n1 / 0")
    assert run(shell, "%mhjax debug") is None
    assert cluster.last[0] == (1,)


def test_post_mortem_shows_no_cell(
    shell: InteractiveShell, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompts have shown everything. The result is not the last one, of a panel or of the next post-mortem."""
    session = session_of(shell)
    cluster.answers = [(failed(0),), (RankResult(0, "ok", noise="[Gloo] connected"),)]
    run(shell, "%%mhjax\n1 / 0")
    failure, results = session.failures[cluster], dict(session._results)  # type: ignore[index]  # a fake
    capsys.readouterr()
    assert run(shell, "%mhjax debug") is None
    assert capsys.readouterr().out == ""
    assert (session.failures[cluster], dict(session._results)) == (failure, results)  # type: ignore[index]


def test_rank_without_an_error_says_so(
    shell: InteractiveShell, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a rank prints outside of its prompts is shown."""
    cluster.answers = [(failed(0),), (RankResult(0, "ok", (out("rank 0 has no error to inspect\n"),)),)]
    run(shell, "%%mhjax\n1 / 0")
    capsys.readouterr()
    assert run(shell, "%mhjax debug") is None
    assert "rank 0 has no error to inspect" in capsys.readouterr().out


def test_post_mortem_that_fails_is_shown(
    shell: InteractiveShell, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank that could not be inspected says why, and a second try is for the same cell, also with `%debug`."""
    session = session_of(shell)
    cluster.answers = [(failed(0), failed(1)), (failed(0, "NoKeyboard"),)]
    run(shell, "%%mhjax\n1 / 0")
    capsys.readouterr()
    assert isinstance(run(shell, "%mhjax debug"), CellFailed)
    assert "NoKeyboard" in capsys.readouterr().out
    assert [rank.rank for rank in session.failures[cluster].failed] == [0, 1]  # type: ignore[index]
    assert run(shell, "%debug") is None
    assert cluster.sources[-1] == "%debug"


def test_rank_that_did_not_fail_is_refused(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """The error names the ranks that did, with the line to type."""
    cluster.answers = [(RankResult(0, "ok"), RankResult(1, "ok"), failed(2), failed(3))]
    run(shell, "%%mhjax\n1 / 0")
    assert refusal(shell, cluster, "%mhjax debug 0-2").splitlines() == [
        "debug 0-2: In [5] did not fail on ranks 0-1, only on ranks 2-3",
        "  Fix: %mhjax debug 2-3",
        "  Help: %mhjax help debug",
    ]
    assert "debug '7': unknown rank 7" in refusal(shell, cluster, "%mhjax debug 7")


def test_without_a_failed_cell_there_is_nothing_to_inspect(
    shell: InteractiveShell, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after cells that succeeded, nor after a restart, which ends the processes that the cell failed in."""
    run(shell, "%%mhjax\nx = 1")
    assert "no cell of this notebook has failed on these ranks" in refusal(shell, cluster, "%mhjax debug")
    cluster.answers = [(failed(0),)]
    run(shell, "%%mhjax\n1 / 0")
    fresh = FakeCluster()
    monkeypatch.setattr("mhnb.magics.session.wait_for_current", lambda _: fresh)
    # The refusal itself is no error that IPython's debugger could help with.
    for line in ("%mhjax debug", "%debug", "%debug"):
        assert "no cell of this notebook has failed on these ranks" in refusal(shell, fresh, line)


def test_refusal_of_the_cluster_is_raised(shell: InteractiveShell, cluster: FakeCluster) -> None:
    """A dead cluster takes no post-mortem either."""
    cluster.answers = [(failed(0),), NotClean("the cluster is dead")]
    run(shell, "%%mhjax\n1 / 0")
    assert isinstance(run(shell, "%debug"), NotClean)


@pytest.fixture
def own_debugger(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The calls of IPython's own post-mortem debugger."""
    calls: list[bool] = []
    monkeypatch.setattr(shell.InteractiveTB, "debugger", lambda force=False: calls.append(force))
    return calls


def test_error_of_the_notebook_has_ipythons_debugger(
    shell: InteractiveShell, cluster: FakeCluster, own_debugger: list[bool]
) -> None:
    """`%debug` is IPython's own after an error of the notebook, also of a `CellError` that its own code raised."""
    cluster.answers = [(failed(0),)]
    run(shell, "%%mhjax\n1 / 0")
    for count, cell in enumerate(("1 / 0", "import mhnb; raise mhnb.errors.CellFailed('mine')"), start=1):
        run(shell, cell)
        run(shell, "%debug")
        assert (own_debugger, cluster.sources) == ([True] * count, ["1 / 0"])


def test_code_under_ipythons_debugger_stays_in_the_notebook(
    shell: InteractiveShell, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`%debug CODE` is not a post-mortem."""
    codes: list[str] = []
    execution = shell.find_line_magic("debug").__self__
    monkeypatch.setattr(execution, "_run_with_debugger", lambda code, *_, **__: codes.append(code))
    cluster.answers = [(failed(0),)]
    run(shell, "%%mhjax\n1 / 0")
    assert run(shell, "%debug f(1)") is None
    assert (codes, cluster.sources) == (["f(1)"], ["1 / 0"])


def test_unloading_restores_ipythons_debugger(
    shell: InteractiveShell, cluster: FakeCluster, own_debugger: list[bool]
) -> None:
    """After that `%debug` is about the frames of this process."""
    cluster.answers = [(failed(0),)]
    run(shell, "%%mhjax\n1 / 0")
    magics.unload(shell)
    run(shell, "%debug")
    assert (own_debugger, cluster.sources) == ([True], ["1 / 0"])


def test_pdb_on_opens_the_debugger_of_the_rank(
    shell: InteractiveShell, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `%pdb on` IPython opens a debugger at each error. Where that is refused, the cell's own error stays the error."""
    shell.call_pdb = True
    cluster.answers = [(failed(1),), (RankResult(1, "ok"),), (failed(1),)]
    assert isinstance(run(shell, "%%mhjax\n1 / 0"), CellFailed)
    assert (cluster.sources, cluster.last[0]) == (["1 / 0", "%debug"], (1,))
    session_of(shell).can_type = lambda: False
    assert isinstance(run(shell, "%%mhjax\n1 / 0"), CellFailed)
    assert "%pdb: %mhjax debug: a rank that stops" in capsys.readouterr().err
    assert cluster.sources == ["1 / 0", "%debug", "1 / 0"]


# -- flags and completion


def test_flag_is_parsed() -> None:
    """Without the flag nothing stops; without ranks every rank of the cell does."""
    assert [parse_cell_flags(line).debug for line in ("", "--debug", "--debug 0-1")] == [None, "", "0-1"]
    assert parse_cell_flags("2 --debug", CellFlags(view="tabs")) == replace(CellFlags(view="tabs"), ranks="2", debug="")


def test_flags_and_ranks_are_completed(
    shell: InteractiveShell, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `--debug` come ranks, or another flag; after `debug` the ranks that failed."""
    names = shell.mhnb_assist._names_for  # type: ignore[attr-defined]

    def complete(line: str) -> list[str]:
        # Only here, because unloading stops all clusters.
        with monkeypatch.context() as patched:
            patched.setattr("mhnb.cluster.manager.all_clusters", lambda: [cluster])
            return complete_line(line, cell_parser(), names)[0]

    assert complete("%%mhjax --deb") == ["--debug"]
    offered = complete("%%mhjax --debug ")
    assert offered[:5] == ["0", "0-3", "1", "2", "3"]
    assert "--quiet" in offered
    assert "--debug" not in offered
    assert complete("%mhjax debug ") == ["--help"]
    cluster.answers = [(RankResult(0, "ok"), failed(1), failed(2), RankResult(3, "ok"))]
    run(shell, "%%mhjax\n1 / 0")
    assert complete("%mhjax debug ") == ["1", "1-2", "2", "--help"]
    assert complete("%mhjax break --") == ["--clear", "--help"]
    assert complete("%%mhjax --br") == ["--break"]
