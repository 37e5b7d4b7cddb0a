"""The debugger on the ranks, from a kernel whose front end can type, and from one that cannot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.integration.ranks.conftest import wait_for_exit
from tests.support.debugger_cells import SETUP, STOPS_ALL, STOPS_RANK_1, STOPS_RANK_2, find_sums, sum_cell
from tests.support.front_end import END_OF_FILE, FrontEnd, TypedCell
from tests.support.leftovers import processes_of

LEAVINGS = int(os.environ.get("MHNB_DEBUGGER_LEAVINGS", "6"))
"""How often in a row each way to leave the debugger is taken; `make soak` takes each more often."""
RESTARTS = LEAVINGS if LEAVINGS >= 100 else 1 + LEAVINGS // 8
"""The same for the ways after which the ranks have to be started again, which take longer: fewer in the suite."""
_START = "%load_ext mhnb\n%mhjax start -n {ranks} --devices 1 --name {name}"
_WAIT_LONG = 200.0


class Notebook:
    """A kernel with a cluster, and a user who types at its prompts."""

    def __init__(self, ranks: int, name: str, home: Path) -> None:
        self.ranks, self.name, self._home = ranks, name, home
        self._others = {process.pid for process in processes_of(home)}
        self.front = FrontEnd()
        self._base = 0
        self.begin()
        self.is_usable = True

    def begin(self) -> None:
        """Start the cluster, in a new kernel or in one that has been restarted."""
        _, shown = self.front.run(_START.format(ranks=self.ranks, name=self.name))
        assert "ready in" in shown, shown
        self.set_up()

    def set_up(self) -> None:
        """Define on new ranks what the cells need."""
        reply, shown = self.front.run(SETUP)
        assert reply["status"] == "ok", shown

    @property
    def pids(self) -> set[int]:
        """The processes of the cluster, and those of earlier ones that have not ended."""
        known = self._others | {self.front.pid}
        return {process.pid for process in processes_of(self._home) if process.pid not in known}

    def check_usable(self) -> None:
        """Check that no cell is left at a prompt, and that the next cell runs on all ranks and has the right value."""
        assert self.front.running is None, f"a cell was left running after:\n{self.front.running.text}"
        self._base += 1
        reply, shown = self.front.run(sum_cell(self._base))
        assert reply["status"] == "ok", shown
        assert set(find_sums(shown)) == {self.ranks * self._base + sum(range(self.ranks))}, shown

    def stop_at(self, code: str, states: str) -> TypedCell:
        """Start a cell; return it once its prompt says what the ranks do, such as `stopped 2; waiting 0-1,3`."""
        cell = self.front.start(code)
        read_states(cell, states)
        return cell

    def close(self) -> None:
        """End the kernel; nothing of its cluster may be left."""
        pids = self.pids
        self.front.close()
        assert wait_for_exit(list(pids)) == []


def read_states(cell: TypedCell, states: str) -> str:
    """Read the prompt, and ask for another one until it says what the ranks do: they do not stop at the same moment.

    Returns:
        What was shown on the way.
    """
    shown = cell.read_prompt()
    while not cell.prompt.endswith(f"({states}) > "):
        cell.answer("p 'not yet'")
        shown += cell.read_prompt()
    return shown


def sum_of(cell: TypedCell) -> int:
    """Return the sum that a cell shows at its end, which all ranks must agree on."""
    (value,) = set(find_sums(cell.displays))
    return value


@pytest.fixture(scope="module")
def one_notebook(mhnb_home: Path) -> Iterator[Notebook]:
    """A kernel with a cluster of 4 ranks of one device."""
    notebook = Notebook(4, "typed", mhnb_home)
    yield notebook
    notebook.close()


@pytest.fixture
def notebook(one_notebook: Notebook) -> Iterator[Notebook]:
    """The shared kernel. Every test leaves its cluster usable, with the processes that it had.

    If one does not, it fails for that reason, and the next one gets a restarted kernel.
    """
    if not one_notebook.is_usable:
        one_notebook.front.restart()
        one_notebook.begin()
    before, one_notebook.is_usable = one_notebook.pids, False
    yield one_notebook
    one_notebook.check_usable()
    assert one_notebook.pids == before
    one_notebook.is_usable = True


@pytest.fixture
def pair(leftovers: None, mhnb_home: Path) -> Iterator[Notebook]:
    """A kernel of its own with 2 ranks, for a test that kills some of them."""
    notebook = Notebook(2, "pair", mhnb_home)
    yield notebook
    notebook.close()


# -- stops and commands


def test_breakpoint_stops_every_rank(notebook: Notebook) -> None:
    """`breakpoint()` stops each rank at its own line, and commands go to the rank of the prompt, to another one, or to several."""
    cell = notebook.front.start(STOPS_ALL)
    begun = read_states(cell, "stopped 0-3")
    assert re.search(r"^ranks? 0\S* stopped\n> In \[\d+\], line 3\n-> breakpoint\(\)\n", begun, re.MULTILINE), begun
    assert cell.prompt == "rank 0 (stopped 0-3) > "
    assert cell.ask("p me, own") == "(0, 1)\n"
    assert cell.ask("ranks all p me").splitlines() == ["rank 0: 0", "rank 1: 1", "rank 2: 2", "rank 3: 3"]
    assert cell.ask("ranks 0-3 p add.__name__") == "ranks 0-3: 'add'\n"
    assert re.fullmatch(r"> In \[\d+\], line 4\n-> own = own \* 10\n", cell.ask("n"))
    assert cell.ask("rank 2") == ""
    assert cell.prompt == "rank 2 (stopped 0-3) > "
    assert cell.ask("p me") == "2\n"
    cell.answer("ranks all c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 100


def test_other_ranks_wait_for_a_stopped_one(notebook: Notebook) -> None:
    """A rank that stops alone holds the others at their next launch; what is changed on it is in the value of all."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    assert "rank 2 stopped\n" in cell.text
    assert cell.ask("p me") == "2\n"
    assert "rank 3" in cell.ask("rank 3"), "rank 3 runs on, and takes no command"
    assert cell.ask("own = 30") == ""
    cell.answer("c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 0 + 1 + 30 + 3


def test_ranks_continue_one_after_the_other(notebook: Notebook) -> None:
    """A rank that continues to a launch waits there, the prompt goes to the lowest that is stopped, and the last one ends the cell."""
    cell = notebook.stop_at(STOPS_ALL, "stopped 0-3")
    cell.ask("rank 2")
    shown = cell.ask("c")
    assert "rank 2 is waiting: line 5" in shown or cell.prompt.endswith("; running 2) > "), shown
    read_states(cell, "stopped 0-1,3; waiting 2")
    assert cell.prompt.startswith("rank 0 ")
    cell.answer("c")
    read_states(cell, "stopped 1,3; waiting 0,2")
    cell.answer("ranks 1,3 c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 100


def test_debug_flag_stops_before_the_first_line(notebook: Notebook) -> None:
    """`--debug 2` stops rank 2 before the first line of the cell, and no other rank."""
    cell = notebook.front.start('%%mhjax --debug 2\nown = me\nprint("sum", add(own))')
    shown = read_states(cell, "stopped 2; waiting 0-1,3")
    assert re.search(r"^> In \[\d+\], line 2\n-> own = me\n", shown, re.MULTILINE), shown
    assert "-> print(" in cell.ask("n")
    cell.ask("own = 20")
    cell.answer("c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 0 + 1 + 20 + 3


def test_debug_flag_alone_stops_every_rank(notebook: Notebook) -> None:
    """`--debug` without ranks stops every rank of the cell."""
    cell = notebook.stop_at('%%mhjax --debug\nown = me\nprint("sum", add(own))', "stopped 0-3")
    cell.answer("ranks all c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 6


def test_break_with_condition_is_for_its_cell(notebook: Notebook) -> None:
    """`%%mhjax --break 'LINE if rank == 2'` stops that rank there, and nothing in the cell after that."""
    code = '%%mhjax\nown = me\nown = own + 1\nprint("sum", add(own))'
    cell = notebook.front.start(code.replace("%%mhjax", "%%mhjax --break '3 if rank == 2'"))
    shown = read_states(cell, "stopped 2; waiting 0-1,3")
    assert re.search(r"^> In \[\d+\], line 3\n-> own = own \+ 1\n", shown, re.MULTILINE), shown
    assert cell.ask("p own") == "2\n"
    cell.answer("c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 10
    after = notebook.front.start(code)
    assert after.end().prompts == ()
    assert sum_of(after) == 10


FAILS_ON_1_AND_3 = """\
%%mhjax
def divide(number):
    rest = number % 2
    return number // (1 - rest)
divide(me)
"""


@pytest.mark.parametrize("command", ["%mhjax debug", "%debug"])
def test_post_mortem_inspects_the_first_rank_that_raised(notebook: Notebook, command: str) -> None:
    """After a failed cell, `%mhjax debug` and `%debug` open the frames of the first rank that raised, and `q` just ends them."""
    assert notebook.front.run(FAILS_ON_1_AND_3)[0]["status"] == "error"
    cell = notebook.front.start(command)
    assert "return number // (1 - rest)" in cell.read_prompt()
    assert cell.prompt == "rank 1 (post-mortem) > "
    assert cell.ask("p number, rest") == "(1, 1)\n"
    assert "divide(me)" in cell.ask("up")
    assert cell.ask("p me") == "1\n"
    cell.answer("q")
    end = cell.end()
    assert (end.status, end.error) == ("ok", "")


def test_post_mortem_of_several_ranks(notebook: Notebook) -> None:
    """`%mhjax debug RANKS` opens the frames of all of these ranks, each with its own values."""
    notebook.front.run(FAILS_ON_1_AND_3)
    cell = notebook.front.start("%mhjax debug 1,3")
    read_states(cell, "post-mortem; stopped 1,3")
    assert cell.ask("ranks all p number").splitlines() == ["rank 1: 1", "rank 3: 3"]
    cell.answer("q")
    assert cell.end().status == "ok"


@pytest.mark.parametrize("leave", ["end of file", "interrupt"])
def test_leaving_a_post_mortem_ends_its_prompts(notebook: Notebook, leave: str) -> None:
    """The end of the input and the stop button end the inspection of all ranks, and are no error."""
    notebook.front.run(FAILS_ON_1_AND_3)
    cell = notebook.stop_at("%mhjax debug 1,3", "post-mortem; stopped 1,3")
    if leave == "interrupt":
        cell.interrupt()
    else:
        cell.answer(END_OF_FILE)
    assert cell.end().status == "ok"


def test_interact_runs_python_in_the_frame(notebook: Notebook) -> None:
    """`interact` reads statements of several lines in the frame that has stopped; `exit()` returns to the debugger."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    cell.ask("interact")
    assert cell.prompt == "rank 2 >>> "
    assert cell.ask("me + 40") == "42\n"
    assert cell.ask("for n in range(2):") == ""
    assert cell.prompt == "rank 2 ... "
    cell.ask("    print('number', n)")
    assert cell.ask("") == "number 0\nnumber 1\n"
    cell.ask("exit()")
    assert cell.prompt == "rank 2 (stopped 2; waiting 0-1,3) > "
    cell.answer("c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 6


def test_command_that_needs_other_ranks_is_refused(notebook: Notebook) -> None:
    """A command that would launch a program of several ranks is refused at once, and the rank stays at its prompt."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    assert "*** BreakpointRefused: " in cell.ask("p add(1)")
    assert cell.prompt == "rank 2 (stopped 2; waiting 0-1,3) > "
    cell.answer("c")
    assert cell.end().status == "ok"
    assert sum_of(cell) == 6


def test_live_view_names_stopped_and_waiting_ranks(notebook: Notebook) -> None:
    """While the user types, the live view says which rank has stopped, and that the others wait for it."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    cell.wait_for_widget("rank 2 is stopped in the debugger at line 4")
    cell.wait_for_widget("ranks 0-1,3 wait for it")
    cell.answer("c")
    assert cell.end().status == "ok"
    assert "stopped in the debugger" not in cell.displays


def test_reloaded_page_says_how_to_leave_a_prompt(notebook: Notebook) -> None:
    """A reloaded page gets no prompt: the stop button ends the cell, and the cell can be run again to stop there."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    cell.wait_for_display("After a reload, the debugger has no input field. Press the stop button")
    notebook.front.reload()
    notebook.front.interrupt()
    assert "KeyboardInterrupt on ranks 0-3" in notebook.front.wait_for_end()
    notebook.check_usable()
    again = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    again.answer("c")
    assert again.end().status == "ok"


# -- refusals


def test_other_guards_refuse_to_stop(notebook: Notebook) -> None:
    """Without lockstep a stopped rank would not hold the others, so the cell fails with the reason and the fix, without a prompt."""
    cell = notebook.front.start(STOPS_ALL.replace("%%mhjax", "%%mhjax --guard parity"))
    end = cell.end()
    assert (end.status, end.prompts) == ("error", ())
    assert "BreakpointRefused" in cell.displays
    assert "Fix: %%mhjax --guard lockstep" in cell.displays


def test_front_end_without_keyboard_fails_at_once(notebook: Notebook) -> None:
    """Where the front end cannot type, the cell fails with one sentence that names line and rank, and asks for nothing."""
    cell = notebook.front.start(STOPS_ALL, allow_stdin=False)
    end = cell.end()
    assert (end.status, end.error, end.prompts) == ("error", "CellFailed", ())
    assert re.search(
        r"NoKeyboard: breakpoint\(\) cannot stop rank \S+ at line 3, because nothing can be typed", cell.displays
    )


def test_plain_cells_keep_their_keyboard(notebook: Notebook) -> None:
    """`input()` and pdb of a plain cell are those of the notebook, and the ranks are not asked."""
    end = notebook.front.type("print('hello', input('who? '))", "me")
    assert end.text == "who? me\nhello me\n"
    end = notebook.front.type("import pdb\nhere = 41\npdb.set_trace()\nprint('here', here)", "p here + 1", "c")
    assert "42\n" in end.text
    assert "here 41\n" in end.text


# -- runs without a user


NOTEBOOK_CELLS = (_START.format(ranks=2, name="alone"), SETUP, STOPS_ALL, sum_cell(7))


def _run_in_nbclient(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=100, kernel_name="python3", allow_errors=True).execute()
    nbformat.write(notebook, path)


def _run_in_nbconvert(path: Path) -> None:
    command = [sys.executable, "-m", "nbconvert", "--execute", "--allow-errors", "--to", "notebook", "--inplace"]
    done = subprocess.run(
        [*command, path.name], cwd=path.parent, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("run", [_run_in_nbclient, _run_in_nbconvert], ids=["nbclient", "nbconvert"])
@pytest.mark.sample(1)
def test_executed_notebook_does_not_wait(leftovers: None, tmp_path: Path, run: Callable[[Path], None]) -> None:
    """A notebook that a program executes gets an error at `breakpoint()`, with its line and ranks, and its next cell runs."""
    path = tmp_path / "alone.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in NOTEBOOK_CELLS]), path)
    run(path)
    *_, stops, after = [_shown(cell) for cell in nbformat.read(path, as_version=4).cells]
    assert re.search(
        r"NoKeyboard: breakpoint\(\) cannot stop rank \S+ at line 3, because nothing can be typed", stops
    ), stops
    assert set(find_sums(after)) == {2 * 7 + 1}


def _shown(cell: nbformat.NotebookNode) -> str:
    """Return the text of a cell's outputs."""
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def test_replay_passes_breakpoints_over(pair: Notebook) -> None:
    """A replay runs the cell in which the user stopped without a prompt, and what the cell computed is there again."""
    cell = pair.stop_at(STOPS_ALL + "kept = own", "stopped 0-1")
    cell.answer("ranks all c")
    assert cell.end().status == "ok"
    replay = pair.front.start("%mhjax restart --replay")
    end = replay.end()
    assert (end.status, end.prompts) == ("ok", ()), replay.displays
    assert "sum 30" in pair.front.run('%%mhjax\nprint("sum", add(kept))')[1]
    pair.check_usable()


# -- leaving


def _quit(cell: TypedCell) -> None:
    cell.answer("q")


def _end_input(cell: TypedCell) -> None:
    cell.answer(END_OF_FILE)


def _interrupt(cell: TypedCell) -> None:
    cell.interrupt()


@pytest.mark.timeout(_WAIT_LONG + 5 * LEAVINGS)
@pytest.mark.parametrize("leave", [_quit, _end_input, _interrupt], ids=["quit", "end of file", "interrupt"])
@pytest.mark.sample(1)
def test_leaving_ends_the_cell_on_all_ranks(notebook: Notebook, leave: Callable[[TypedCell], None]) -> None:
    """`q`, the end of the input and the stop button end the cell as an interrupt does, again and again, and the ranks are clean."""
    before = notebook.pids
    for turn in range(LEAVINGS):
        # In turns: all have stopped; others wait for one; others may still be on their way.
        code = (STOPS_ALL, STOPS_RANK_2, STOPS_RANK_1)[turn % 3]
        cell = notebook.front.start(code)
        if turn % 3 == 2:
            cell.read_prompt()
        else:
            read_states(cell, ("stopped 0-3", "stopped 2; waiting 0-1,3")[turn % 3])
        leave(cell)
        end = cell.end()
        assert (end.status, end.error) == ("error", "CellInterrupted"), f"turn {turn}: {end}"
        notebook.check_usable()
        assert notebook.pids == before


def _rank_pid(cell: TypedCell) -> int:
    return int(cell.ask("p __import__('os').getpid()"))


@pytest.mark.timeout(_WAIT_LONG + 30 * RESTARTS)
@pytest.mark.parametrize("code", [STOPS_ALL, STOPS_RANK_1], ids=["all stopped", "one waits"])
@pytest.mark.sample(1)
@pytest.mark.test_all
def test_death_of_a_rank_ends_the_prompt(pair: Notebook, code: str) -> None:
    """If a rank is killed while the user is asked, the prompt ends with the cell, which names the rank; a restart works."""
    for _ in range((RESTARTS + 1) // 2):
        cell = pair.stop_at(code, "stopped 0-1" if code == STOPS_ALL else "stopped 1; waiting 0")
        cell.ask("rank 1")
        os.kill(_rank_pid(cell), signal.SIGKILL)
        end = cell.end_unanswered()
        assert end.status == "error", end
        assert "rank 1" in cell.displays + end.message, end
        assert pair.front.run("%mhjax restart")[0]["status"] == "ok"
        pair.set_up()
        pair.check_usable()


@pytest.mark.timeout(_WAIT_LONG + 30 * RESTARTS)
@pytest.mark.test_all
def test_death_of_the_kernel_ends_its_ranks(pair: Notebook) -> None:
    """If the kernel is killed or restarted while the user is asked, all processes of the cluster end, and a new one can be started."""
    for turn in range(RESTARTS):
        pair.stop_at(STOPS_RANK_1, "stopped 1; waiting 0")
        pids = pair.pids
        assert len(pids) >= 4, "the supervisor, the hub, which has a helper, and two ranks"
        if turn % 2:
            pair.front.kill()
            assert wait_for_exit(list(pids)) == []
        pair.front.restart()
        assert wait_for_exit(list(pids)) == []
        pair.begin()
        pair.check_usable()


@pytest.mark.timeout(_WAIT_LONG + 30 * RESTARTS)
@pytest.mark.test_all
def test_restart_from_a_shell_ends_the_prompt(pair: Notebook) -> None:
    """`mhnb restart` replaces ranks that wait for the user: the prompt and its cell end, and the next cell runs on the new ranks."""
    for _ in range(RESTARTS):
        cell = pair.stop_at(STOPS_RANK_1, "stopped 1; waiting 0")
        before = pair.pids
        command = [sys.executable, "-m", "mhnb", "restart", pair.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert (done.returncode, done.stdout) == (0, "pair: 2 ranks restarted\n"), done.stderr
        assert cell.end_unanswered().status == "error"
        pair.set_up()
        pair.check_usable()
        assert wait_for_exit(list(before - pair.pids)) == []


def test_interrupt_from_a_shell_ends_the_prompt(notebook: Notebook) -> None:
    """`mhnb interrupt` ends a cell in which a rank waits for the user, and its prompt."""
    cell = notebook.stop_at(STOPS_RANK_2, "stopped 2; waiting 0-1,3")
    command = [sys.executable, "-m", "mhnb", "interrupt", notebook.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    end = cell.end_unanswered()
    assert (end.status, end.error) == ("error", "CellInterrupted")


def test_cell_without_a_stop_is_not_slowed_by_a_prompt(notebook: Notebook) -> None:
    """A cell that never stops runs as before although the user could type: it asks for nothing and shows no debugger."""
    cell = notebook.front.start(sum_cell(0))
    end = cell.end()
    assert (end.status, end.prompts) == ("ok", ())
    assert sum_of(cell) == 6
    assert "stopped" not in cell.displays
