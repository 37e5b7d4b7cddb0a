"""The debugger with real ranks: what a user types at `input()` reaches them, and the cell goes on, or ends, as it should."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.debugging import DebugRequest
from mhnb.core.journal import AcceptRecord
from mhnb.core.messages import Breakpoint
from mhnb.core.output.results import CellResult
from mhnb.errors import BreakpointRefused
from tests.integration.ranks.test_lockstep import SETUP, check_sum
from tests.support.terminal import CTRL_C, Terminal
from tests.support.typed_lines import Step, User

CELL = """y = rank * 2
breakpoint()
z = y + 1
total = float(add(x))
total + z"""
TEXTS = ["29.0", "31.0", "33.0", "35.0"]


@pytest.fixture
def shared(shared: Cluster, shared_clusters: list[Cluster]) -> Cluster:
    """The shared cluster, restarted if another test has accepted a split or tainted state: after that no rank may stop."""
    records, _ = shared.journal.read()
    if any(isinstance(record, AcceptRecord) and record.generation == shared.generation for record in records):
        shared_clusters.append(shared.restart())
    return shared_clusters[-1]


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a mesh, a global array and two collectives."""
    cluster.run(SETUP).check()
    return cluster


def debug(cluster: Cluster, source: str = CELL, request: DebugRequest | None = None) -> CellResult:
    """Run a cell whose ranks may stop."""
    return cluster.run(source, debug=request or DebugRequest())


def texts(result: CellResult) -> list[str | None]:
    """Return the value of each rank."""
    return [rank.text for rank in result.check()]


def block() -> NoReturn:
    """Type nothing, until a signal ends the read."""
    threading.Event().wait()
    raise AssertionError("the read was not ended")


# -- commands


def test_ranks_stop_answer_and_go_on(ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """All ranks stop at the line of `breakpoint()`; one or all of them answer; the value of the cell is right."""
    user.types(
        "p y", "p y", "ranks all p y", "ranks 1-2 p x.shape", "rank 2", "p y", "n", "p z", "n", "p z", "ranks all c"
    )
    result = debug(ready)
    assert texts(result) == TEXTS
    name = result.name
    assert capsys.readouterr().out.splitlines() == [
        "ranks 0-3 stopped",
        f"> {name}, line 2",
        "-> breakpoint()",
        "0",
        "0",
        "rank 0: 0",
        "rank 1: 2",
        "rank 2: 4",
        "rank 3: 6",
        "ranks 1-2: (8,)",
        "4",
        f"> {name}, line 3",
        "-> z = y + 1",
        "*** NameError: name 'z' is not defined",
        f"> {name}, line 4",
        "-> total = float(add(x))",
        "5",
    ]
    assert user.prompts == [*["rank 0 (stopped 0-3) > "] * 5, *["rank 2 (stopped 0-3) > "] * 6]
    check_sum(ready)


def test_rank_that_goes_on_waits_for_the_others(ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds at the launch, the prompt moves to the lowest rank that has stopped, and nothing is lost."""
    user.types("rank 2", "c", "p y", "ranks all c")
    assert texts(debug(ready)) == TEXTS
    assert user.prompts[2].startswith("rank 0 (stopped 0-1,3; ")
    assert "rank 2 is " in capsys.readouterr().out
    check_sum(ready)


def test_waiting_rank_is_shown_with_its_line(ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """Once the rank has reported where it is, the prompt says that it waits."""
    seen = threading.Event()

    def wait_for_report() -> str:
        seen.wait()
        return "p y"

    def look(snapshot: CellResult) -> None:
        if snapshot.where is not None and any(each.activity == "agreement" for each in snapshot.where.places):
            seen.set()

    user.types("rank 2", "c", wait_for_report, "ranks 0-2 p y", "ranks all c")
    result = ready.run(CELL, debug=DebugRequest(), on_snapshot=look)
    assert texts(result) == TEXTS
    assert user.prompts[3] == "rank 0 (stopped 0-1,3; waiting 2) > "
    assert "rank 2 is waiting: line 4, jit(add)" in capsys.readouterr().out


def test_first_prompt_says_which_ranks_wait(ready: Cluster, user: User) -> None:
    """They are asked where they are; without that, they would count as running, because they report first after 1.8 s."""
    check_sum(ready)
    user.types("c")
    assert texts(debug(ready, CELL.replace("breakpoint()", "if rank == 2: breakpoint()"))) == TEXTS
    assert user.prompts == ["rank 2 (stopped 2; waiting 0-1,3) > "]


def test_stop_at_the_first_line_and_at_a_breakpoint(
    ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the ranks that were asked for stop; a condition knows the rank."""
    user.types("c", "p y", "c")
    request = DebugRequest(stop_ranks=(1,), breakpoints=(Breakpoint(3, "rank == 1"),))
    source = CELL.replace("breakpoint()\n", "w = 1\n")
    result = debug(ready, source, request)
    assert texts(result) == TEXTS
    out = capsys.readouterr().out
    assert f"rank 1 stopped\n> {result.name}, line 1\n-> y = rank * 2\n" in out
    assert f"> {result.name}, line 3\n-> z = y + 1\n2\n" in out


def test_empty_line_repeats_and_python_code_is_read(
    ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rank repeats the last command; in `interact` each line is code, and the end of input leads back."""
    user.types("p y + 100", "", "interact", "rank + 10", EOFError(), "p y + 200", "ranks all c")
    assert texts(debug(ready)) == TEXTS
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("100") == 2
    assert lines.index("10") < lines.index("200")
    assert user.prompts[3:6] == ["rank 0 >>> ", "rank 0 >>> ", "rank 0 (stopped 0-3) > "]


def test_wrong_rank_is_refused(ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which ranks there are, and the prompt stays."""
    user.types("rank 9", "p y", "ranks all c")
    assert texts(debug(ready)) == TEXTS
    assert "*** ranks '9': expected ranks of this cell" in capsys.readouterr().out


# -- ends


@pytest.mark.parametrize("step", ["q", EOFError(), KeyboardInterrupt()], ids=["q", "end", "ctrl-c"])
def test_user_ends_the_cell(ready: Cluster, user: User, step: Step) -> None:
    """It ends on all ranks as by an interrupt, and the cluster stays clean."""
    user.types(step)
    result = debug(ready)
    assert [rank.outcome for rank in result] == ["interrupted"] * 4
    assert (result.how, result.state) == ("interrupted", "clean")
    check_sum(ready)


def test_real_ctrl_c_ends_the_cell_while_others_wait(ready: Cluster, user: User) -> None:
    """Also ranks that wait for a stopped one end."""

    def press_ctrl_c() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        block()

    user.types("rank 3", "c", press_ctrl_c)
    result = debug(ready)
    assert (result.how, result.state) == ("interrupted", "clean")
    check_sum(ready)


def test_interrupt_from_elsewhere_ends_the_read(ready: Cluster, user: User) -> None:
    """A button, or a command in a shell, ends the cell, and no more lines are asked for."""

    def interrupt() -> str:
        ready.interrupt()
        block()

    user.types(interrupt)
    result = debug(ready)
    assert (result.how, result.state) == ("interrupted", "clean")
    check_sum(ready)


def test_dead_rank_ends_the_read(fresh: Callable[..., Cluster], user: User) -> None:
    """A rank that is killed while the user types ends the cell, and the user is not asked any more."""
    cluster = fresh(2, 1)

    def kill() -> str:
        pid = cluster.ranks[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        block()

    user.types(kill)
    result = debug(cluster, "breakpoint()")
    assert result[1].outcome == "died"
    assert cluster.state == "dead"


def test_time_at_a_prompt_does_not_count(ready: Cluster, user: User) -> None:
    """A cell with a limit is not interrupted while the user thinks."""
    limit_s, late = 1.0, threading.Event()

    def think() -> str:
        late.wait()
        return "ranks all c"

    def look(snapshot: CellResult) -> None:
        if snapshot.wall_s > 2 * limit_s:
            late.set()

    user.types(think)
    result = ready.run(CELL, debug=DebugRequest(), timeout_s=limit_s, on_snapshot=look)
    assert texts(result) == TEXTS


# -- a program in a terminal


@pytest.mark.test_all
def test_program_in_a_terminal_stops_at_breakpoint() -> None:
    """Nothing has to be asked for: the prompt is in the terminal, and Ctrl-C there ends the cell."""
    source = """
import mhnb
with mhnb.start(2, 1, name="terminal") as cluster:
    print("value", [rank.text for rank in cluster.run("import jax\\ny = jax.process_index() + 5\\nbreakpoint()\\ny")])
    print("ended", cluster.run("breakpoint()").how, cluster.state)
"""
    with Terminal(source=source, environ={"TERM": "dumb", "INPUTRC": os.devnull}) as terminal:
        terminal.read_until("rank 0 (stopped 0-1) > ")
        terminal.press("ranks all p y\n")
        terminal.read_until("rank 0: 5\r\nrank 1: 6\r\n")
        terminal.read_until("rank 0 (stopped 0-1) > ")
        terminal.press("ranks all c\n")
        terminal.read_until("value ['5', '6']")
        terminal.read_until("rank 0 (stopped 0-1) > ")
        terminal.wait_until_blocked()
        terminal.press(CTRL_C)
        assert "ended interrupted clean" in terminal.read_to_end()


# -- after an error, and refusals


def test_post_mortem_inspects_what_failed(ready: Cluster, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """The variables of the frame that raised are there, and the cluster is as it was."""
    assert not ready.run("def f(a):\n    return 1 / a\nf(rank)").ok
    user.types("p a", "up", "q")
    result = ready.run("%debug", ranks=[0], debug=DebugRequest(is_post_mortem=True))
    assert result.ok
    assert user.prompts == ["rank 0 (post-mortem) > "] * 3
    assert "0\n" in capsys.readouterr().out
    check_sum(ready)


def test_stop_without_lockstep_is_refused(ready: Cluster) -> None:
    """The other ranks would not wait; nothing is sent."""
    with pytest.raises(BreakpointRefused, match="runs with --guard parity"):
        ready.run(CELL, guard="parity", debug=DebugRequest(stop_ranks=(0,)))
    check_sum(ready)
