"""The debugger of a rank: where code stops, what the prompt answers, how it is left, and when nothing stops."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.core.messages import Breakpoint, DebugMode, DebugPrompt, DebugResumed, Message
from mhnb.core.output.outputs import HEAD_LIMIT, TAIL_LIMIT
from tests.support.cell_process import CellAnswer, CellProcess

MAY_STOP = DebugMode()
ENDLESS_COMMAND = "p os.write(1, b'runs') and any(0 for _ in iter(int, 1))"
FACTORIAL = "def f(n):\n    if n == 0:\n        breakpoint()\n        return 1\n    return n * f(n - 1)\nf(3)"
TRACED = [
    "import pdb; pdb.set_trace()",
    "import pdb; pdb.Pdb().set_trace()",
    "from IPython.core.debugger import set_trace; set_trace()",
    "from IPython.core.debugger import Pdb; Pdb().set_trace()",
    "breakpoint()",
]


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A process that the tests of this module share."""
    with CellProcess(tmp_path_factory.mktemp("rank")) as process:
        yield process


def type_in(rank: CellProcess, source: str, *lines: str, mode: DebugMode = MAY_STOP) -> list[str]:
    """Run a cell, type lines, go on to its end; return what the debugger printed before each prompt."""
    seq = rank.begin(source, debug=mode)
    texts = [prompt.text for prompt in rank.debug(*lines)]
    rank.type_line("c")
    assert rank.finish(seq).ended.outcome == "ok"
    return texts


@pytest.mark.parametrize("call", TRACED)
def test_code_stops_at_the_call(rank: CellProcess, call: str) -> None:
    """Every way to start a debugger stops at its own line, also where no line follows."""
    seq = rank.begin(f"def f():\n    {call}\nf()", debug=MAY_STOP)
    prompt = rank.prompt()
    assert (prompt.line, prompt.is_new, prompt.prompt) == (2, True, "(Pdb) ")
    assert prompt.text == f"> cell {seq}, line 2, in f\n-> {call}\n"
    rank.type_line("c")
    assert rank.finish(seq).ended.outcome == "ok"


def test_values_frames_and_steps(rank: CellProcess) -> None:
    """pdb's commands work in the cell's own frames, and those of IPython and mhnb are hidden."""
    texts = type_in(rank, FACTORIAL, "p n", "up", "p n", "where", "down", "next", "next", "next")
    assert texts[1] == "0\n"
    assert texts[3] == "1\n"
    assert texts[4].count("return n * f(n - 1)") == 3
    assert "IPython" not in texts[4]
    assert texts[6].endswith("-> return 1\n")
    assert texts[7].startswith("--Return--\n")
    assert texts[8].endswith("-> return n * f(n - 1)\n")


def test_hidden_frames_are_shown_on_request(rank: CellProcess) -> None:
    """`skip_hidden off` shows the frames that run the cell."""
    texts = type_in(rank, "breakpoint()", "skip_hidden off", "where", "skip_hidden on", "where", "skip_hidden maybe")
    assert "interactiveshell.py" in texts[2]
    assert "interactiveshell.py" not in texts[4]
    assert texts[5] == "*** skip_hidden maybe: expected on or off\n"


def test_next_goes_from_one_statement_to_the_next(rank: CellProcess) -> None:
    """IPython runs the statements of a cell one by one; a step does not notice."""
    texts = type_in(rank, "breakpoint()\nx = 1\ny = sorted('ab')\nz = 2", "next", "next", "next")
    assert [text.splitlines()[-1] for text in texts[1:]] == ["-> x = 1", "-> y = sorted('ab')", "-> z = 2"]


def test_next_goes_over_an_await(rank: CellProcess) -> None:
    """A cell that awaits gives the event loop its turn, and stops in its next line."""
    texts = type_in(rank, "import asyncio\nbreakpoint()\nawait asyncio.sleep(0)\nx = 1", "next", "next")
    assert [text.splitlines()[-1] for text in texts[1:]] == ["-> await asyncio.sleep(0)", "-> x = 1"]


def test_step_enters_the_users_functions_only(rank: CellProcess) -> None:
    """Code of hidden packages is run through, and so is what it calls."""
    source = "def f():\n    return 1\nbreakpoint()\nget_ipython().user_ns\nf()"
    texts = type_in(rank, source, "step", "step", "step", "step")
    assert [text.splitlines()[-1] for text in texts[1:]] == [
        "-> get_ipython().user_ns",
        "-> f()",
        "-> def f():",
        "-> return 1",
    ]


def test_stop_at_the_first_line(rank: CellProcess) -> None:
    """A rank that is to stop does so before anything of the cell has run; another does not."""
    mode = DebugMode(stop_ranks=[0])
    texts = type_in(rank, "first = 1\nfirst = 2", "p 'first' in globals()", "next", "p first", mode=mode)
    assert texts[1] == "False\n"
    assert texts[3] == "1\n"
    assert rank.run("second = 1", debug=DebugMode(stop_ranks=[1])).ended.outcome == "ok"


@pytest.mark.parametrize("magic", ["", "%%time\n", "%%capture\n"])
def test_stop_at_a_line(rank: CellProcess, magic: str) -> None:
    """A breakpoint stops before its line, also below a magic that runs the cell's text itself."""
    line = 3 + magic.count("\n")
    mode = DebugMode(breakpoints=[Breakpoint(line, "i == 2 and rank == 0")])
    texts = type_in(rank, f"{magic}j = None\nfor i in range(3):\n    j = i\nj", "p i, j", "list", mode=mode)
    assert texts[1] == "(2, 1)\n"
    assert f"{line} B->\t    j = i" in texts[2]
    assert (
        rank.run(f"{magic}i = 2\nx = 1\nx = 2", debug=DebugMode(breakpoints=[Breakpoint(3, "rank == 1")])).ended.outcome
        == "ok"
    )


def test_a_breakpoint_at_a_line_without_code_is_reported(rank: CellProcess) -> None:
    """pdb's reason appears at the next stop."""
    texts = type_in(rank, "x = 1\nbreakpoint()", mode=DebugMode(breakpoints=[Breakpoint(9)]))
    assert texts[0].startswith("no breakpoint at line 9: ")


def test_breakpoints_of_a_cell_are_numbered_and_named_as_the_user_knows_it(rank: CellProcess) -> None:
    """The numbers begin at 1 in each cell, and the places are those of the notebook; values are printed as they are."""
    source = "breakpoint()\nx = 1\nx = 2\nx = '<cell 1>:2'"
    for _ in range(2):
        seq = rank.begin(source, debug=MAY_STOP)
        texts = [prompt.text for prompt in rank.debug("b 3", "b", "p 'at <cell 1>:2'", "cl 1")]
        rank.type_line("c")
        assert rank.finish(seq).ended.outcome == "ok"
        assert texts[1] == f"Breakpoint 1 at cell {seq}, line 3\n"
        assert texts[2].splitlines()[-1] == f"1   breakpoint   keep yes   at cell {seq}, line 3"
        assert texts[3] == "'at <cell 1>:2'\n"
        assert texts[4] == f"Deleted breakpoint 1 at cell {seq}, line 3\n"


def test_names_at_the_prompt(rank: CellProcess) -> None:
    """Statements, prints and errors of a command belong to its answer, not to the cell's output."""
    seq = rank.begin("def f():\n    x = 1\n    breakpoint()\n    return x\nf()", debug=MAY_STOP)
    texts = [prompt.text for prompt in rank.debug("!x = 5", "p x", "print('hi')", "p nope", "p", "p None")]
    rank.type_line("c")
    answer = rank.finish(seq)
    assert texts[1:] == [
        "",
        "5\n",
        "hi\n",
        "*** NameError: name 'nope' is not defined\n",
        "*** p needs an expression, such as p x.shape\n",
        "None\n",
    ]
    assert answer.stdout == ""


def test_variable_with_the_name_of_a_command(rank: CellProcess) -> None:
    """Lines about a variable are Python, whatever pdb calls its commands."""
    texts = type_in(rank, "q = [1, 2]\nbreakpoint()", "q[1]", "q.append(3)", "q += [4]", "n = 5", "p q, n")
    assert texts[1:6] == ["2\n", "", "", "", "([1, 2, 3, 4], 5)\n"]


def test_interpreter_at_the_prompt(rank: CellProcess) -> None:
    """`interact` reads lines with Python's prompts, and ends with exit() or the end of input."""
    seq = rank.begin("n = 4\nbreakpoint()", debug=MAY_STOP)
    prompts = rank.debug("interact", "n + 1", "for i in range(2):", "    print(i)", "", "exit()", "p n")
    rank.type_line("c")
    rank.finish(seq)
    assert [prompt.prompt for prompt in prompts] == [
        "(Pdb) ",
        ">>> ",
        ">>> ",
        "... ",
        "... ",
        ">>> ",
        "(Pdb) ",
        "(Pdb) ",
    ]
    assert [prompt.text for prompt in prompts[2:]] == ["5\n", "", "", "0\n1\n", "back in the debugger\n", "4\n"]


def test_error_in_the_interpreter_is_its_answer(rank: CellProcess) -> None:
    """It is not an error of the cell."""
    seq = rank.begin("breakpoint()", debug=MAY_STOP)
    texts = [prompt.text for prompt in rank.debug("interact", "1 / 0", "exit()")]
    rank.type_line("c")
    assert texts[2].endswith("ZeroDivisionError: division by zero\n")
    assert rank.finish(seq).outputs == ()


def test_breakpoints_are_listed_by_the_cells_name(rank: CellProcess) -> None:
    """pdb would name the file that a cell has on a rank; a value that has that name is shown as it is."""
    seq = rank.begin("breakpoint()\nx = 1", debug=MAY_STOP, execution_count=7, first_line=2)
    texts = [prompt.text for prompt in rank.debug("break 3", "break", f"p '<cell {rank.seq}>'", "clear 1", "clear 9")]
    rank.type_line("c")
    rank.finish(seq)
    assert texts[1] == "Breakpoint 1 at In [7], line 3\n"
    assert "at In [7], line 3" in texts[2]
    assert texts[3] == f"'<cell {seq}>'\n"
    assert texts[4] == "Deleted breakpoint 1 at In [7], line 3\n"
    assert texts[5] == "*** Breakpoint number 9 out of range\n"


@pytest.mark.parametrize("lines", [["!{}"], ["interact", "{}\n", "exit()"]], ids=["a command", "the interpreter"])
@pytest.mark.slow
def test_output_at_the_prompt_has_the_limits_of_a_cell(rank: CellProcess, lines: list[str]) -> None:
    """A loop that prints 100 MB at the prompt sends its beginning, its end, and how much was left out."""
    loop = "for i in range(500_000): print(i, 'x' * 200)"
    texts = type_in(rank, "breakpoint()", *(line.format(loop) for line in lines))
    text = max(texts, key=len)
    assert text.startswith(f"0 {'x' * 200}\n")
    assert text.splitlines()[-1] == f"499999 {'x' * 200}"
    assert len(text) == pytest.approx(HEAD_LIMIT + TAIL_LIMIT, abs=100)
    (left_out,) = re.findall(r"\n\[\.\.\. ([\d,]+) bytes left out \.\.\.\]\n", text)
    assert int(left_out.replace(",", "")) > 100_000_000


def test_text_without_a_line_end_is_not_the_prompt(rank: CellProcess) -> None:
    """What a command prints is its answer, however it ends."""
    assert type_in(rank, "breakpoint()", "!import sys; n = sys.stdout.write('ab')")[1] == "ab"


@pytest.mark.parametrize("command", ["p a", "pp a", "a"])
def test_error_of_a_repr_is_the_answer(rank: CellProcess, command: str) -> None:
    """It is no error of the cell, which goes on."""
    seq = rank.begin(
        "class A:\n    def __repr__(self): raise ValueError('no')\ndef f(a):\n    breakpoint()\nf(A())", debug=MAY_STOP
    )
    prompts = rank.debug(command)
    rank.type_line("c")
    answer = rank.finish(seq)
    assert "ValueError" in prompts[1].text or "a = *** repr failed" in prompts[1].text
    assert answer.ended.outcome == "ok"
    assert not answer.events


def test_returned_value_without_a_repr(rank: CellProcess) -> None:
    """A stop at a return shows the value; what its class raises does not reach the code."""
    source = (
        "class A:\n    def __repr__(self): raise ValueError('no')\ndef f():\n    breakpoint()\n    return A()\ny = f()"
    )
    assert " -> <A, whose repr raises ValueError>" in type_in(rank, source, "next", "next")[2]


def test_values_are_assigned_in_the_function(rank: CellProcess) -> None:
    """The code sees a new value in its own frame and in one that has called it, and what a call of its own has changed."""
    source = (
        "def g():\n    y = 1\n    breakpoint()\n    return y\n"
        "def f():\n    x = z = 1\n    def add():\n        nonlocal z\n        z += 1\n    y = g()\n    return x, y, z\nf()"
    )
    seq = rank.begin(source, debug=MAY_STOP)
    prompts = rank.debug("!y = 5", "up", "!x = 7", "p add()", "!x = 8", "where", "p x")
    rank.type_line("c")
    assert prompts[-1].text == "8\n"
    assert rank.finish(seq).result == "(8, 5, 2)"


def test_display_shows_values_that_cannot_be_compared(rank: CellProcess) -> None:
    """An array has no truth value; pdb's comparison would raise in the middle of the code."""
    source = "import numpy as np\ndef f():\n    a = np.arange(3)\n    breakpoint()\n    a = a + 1\n    return a\nf()"
    texts = type_in(rank, source, "display a", "next", "next")
    assert "display" not in texts[2]
    assert "display a: array([1, 2, 3])  [old: array([0, 1, 2])]\n" in texts[3]


def test_commands_of_a_breakpoint(rank: CellProcess) -> None:
    """They run when it is hit, and the prompt after them works as any other."""
    source = "breakpoint()\nfor i in range(3):\n    x = i"
    texts = type_in(rank, source, "break 3, i == 1", "commands", "p i + 10", "end", "c", "p i")
    assert texts[5].startswith("11\n> ")
    assert texts[6] == "1\n"


def test_commands_that_let_the_code_run_on_print_with_it(rank: CellProcess) -> None:
    """A breakpoint that only prints shows no prompt, and nothing of what it prints is lost."""
    seq = rank.begin("breakpoint()\nfor i in range(3):\n    x = i", debug=MAY_STOP)
    rank.debug("break 3", "commands", "silent", "p i + 10", "c")
    rank.type_line("c")
    assert rank.finish(seq).stdout == "10\n11\n12\n"


def test_other_programs_are_not_started(rank: CellProcess) -> None:
    """pdb's commands that would run the program again are refused."""
    texts = type_in(rank, "breakpoint()", "run", "restart", "debug f()")
    assert all(text.startswith("*** not available in a cell") for text in texts[1:])


def resumed(rank: CellProcess, seq: int) -> Message:
    """Wait until the rank reports that it runs on."""
    return rank.receive(lambda message: isinstance(message, DebugResumed) and message.seq == seq)


def test_prompts_are_numbered_and_the_end_is_reported(rank: CellProcess) -> None:
    """A rank that stops again at once has not run on; what it printed last is sent before the cell's end."""
    seq = rank.begin("breakpoint()\nbreakpoint()", debug=MAY_STOP)
    prompts = rank.debug("p 1", "p 2;; c")
    rank.type_line("p 3;; c")
    assert resumed(rank, seq) == DebugResumed(0, seq, "3\n")
    rank.finish(seq)
    assert not [message for message in rank.unread if isinstance(message, DebugResumed) and message.seq == seq]
    first = prompts[0].number
    assert [(prompt.number - first, prompt.is_new) for prompt in prompts] == [(0, True), (1, False), (2, True)]
    assert prompts[2].text.startswith("2\n> ")


def test_rank_that_runs_on_says_so(rank: CellProcess) -> None:
    """A step that does not come to the next line is no stop, and the rank says that it may stop later."""
    seq = rank.begin("import time\nbreakpoint()\ntime.sleep(60)\nx = 1", debug=MAY_STOP)
    rank.debug("n")
    rank.type_line("n")
    assert resumed(rank, seq) == DebugResumed(0, seq, "", is_stepping=True)
    rank.interrupt()
    rank.prompt()
    rank.type_line("q")
    assert rank.finish(seq).ended.outcome == "interrupted"


def test_output_arrives_before_the_prompt(rank: CellProcess) -> None:
    """What the cell has printed is sent first, so that the user reads it in order."""
    seq = rank.begin("print('before')\nbreakpoint()", debug=MAY_STOP)
    rank.prompt()
    rank.wait_for_output(seq, "before")
    rank.type_line("c")
    rank.finish(seq)


# -- leaving


def leave(rank: CellProcess, source: str, *lines: str | None) -> CellAnswer:
    """Run a cell, and answer its prompts with lines; None is the end of all input."""
    seq = rank.begin(source, debug=MAY_STOP)
    for line in lines:
        rank.prompt()
        rank.type_line(line)
    return rank.finish(seq)


@pytest.mark.parametrize("line", ["q", "quit", "exit", None])
def test_leaving_ends_the_cell_as_an_interrupt(rank: CellProcess, line: str | None) -> None:
    """The code gets a KeyboardInterrupt at the line at which it had stopped, and the next cell runs."""
    answer = leave(rank, "def f():\n    try:\n        breakpoint()\n    except Exception:\n        pass\nf()", line)
    assert answer.ended.outcome == "interrupted"
    assert (answer.error.ename, answer.error.line) == ("KeyboardInterrupt", 3)
    assert rank.run("1").result == "1"


def test_interrupt_at_the_prompt(rank: CellProcess) -> None:
    """Ctrl-C while the rank waits for a line ends the cell."""
    seq = rank.begin("breakpoint()", debug=MAY_STOP)
    rank.prompt()
    rank.interrupt()
    assert rank.finish(seq).ended.outcome == "interrupted"
    assert rank.run("1").result == "1"


def test_interrupt_of_a_command(rank: CellProcess) -> None:
    """Ctrl-C while a command of the prompt runs ends the command and the cell."""
    seq = rank.begin("import os\nbreakpoint()", debug=MAY_STOP)
    rank.prompt()
    rank.type_line(ENDLESS_COMMAND)
    rank.wait_for_output(seq, "runs")
    rank.interrupt()
    assert rank.finish(seq).ended.outcome == "interrupted"
    assert rank.run("1").result == "1"


def test_a_stray_signal_ends_only_the_command(rank: CellProcess) -> None:
    """SIGINT from elsewhere, with no interrupt of the cell requested, is pdb's own business."""
    rank.run("0")  # A signal in the cell after an interrupted one may be a late one for that cell, and is ignored.
    seq = rank.begin("import os\nbreakpoint()", debug=MAY_STOP)
    rank.prompt()
    rank.type_line(ENDLESS_COMMAND)
    rank.wait_for_output(seq, "runs")
    os.kill(rank.process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in rank.prompt().text
    rank.type_line("c")
    assert rank.finish(seq).ended.outcome == "ok"


def test_a_stray_signal_while_the_user_thinks_ends_nothing(rank: CellProcess) -> None:
    """There is no command to end, and a message that is being received must not be lost."""
    rank.run("0")  # As above: the signal must not be ignored as a late one.
    seq = rank.begin("breakpoint()", debug=MAY_STOP)
    rank.prompt()
    os.kill(rank.process.pid, signal.SIGINT)
    rank.type_line("p 'still here'")
    assert rank.prompt().text == "'still here'\n"
    rank.type_line("c")
    assert rank.finish(seq).ended.outcome == "ok"


def test_code_may_handle_the_interrupt(rank: CellProcess) -> None:
    """After leaving, `except KeyboardInterrupt` runs as after any interrupt."""
    answer = leave(rank, "try:\n    breakpoint()\nexcept KeyboardInterrupt:\n    print('saved')", "q")
    assert (answer.ended.outcome, answer.stdout) == ("ok", "saved\n")


def test_nothing_is_traced_afterwards(rank: CellProcess) -> None:
    """However the debugger was left, no later cell is traced."""
    leave(rank, "breakpoint()\nx = 1", "next", "q")
    leave(rank, "breakpoint()\nx = 1", "next", "c")
    leave(rank, "breakpoint()\nx = 1", "break 2", "c", "c")
    source = "import sys\nf, traced = sys._getframe(), []\nwhile f: traced.append(f.f_trace); f = f.f_back\n"
    assert rank.run(f"{source}sys.gettrace(), set(traced)").result == "(None, {None})"


def test_a_stop_keeps_no_frames(rank: CellProcess) -> None:
    """What the functions held is freed with them, not at the next collection of garbage: it may be large."""
    rank.run("import gc, weakref\nclass Big: pass\nfound = []\ngc.collect()\ngc.disable()")
    try:
        source = "def f():\n    big = Big()\n    found.append(weakref.ref(big))\n    breakpoint()\n    x = 1\nf()"
        type_in(rank, source, "display big", "next", "up")
        assert rank.run("found[0]()").result is None
    finally:
        rank.run("gc.enable()")


def test_forked_child_does_not_stop(rank: CellProcess) -> None:
    """The child of a rank that is stepped sends nothing, and goes on."""
    source = "import os\nbreakpoint()\nif (pid := os.fork()) == 0:\n    os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    seq = rank.begin(source, debug=MAY_STOP)
    rank.debug("next", "next")
    rank.type_line("c")
    assert rank.finish(seq).result == "7"
    assert not [message for message in rank.unread if isinstance(message, DebugPrompt)]


def test_child_of_a_command_leaves_the_prompt(rank: CellProcess) -> None:
    """A child that a command forks ends without a word; the rank keeps its prompt."""
    texts = type_in(rank, "import os\nbreakpoint()", "p os.waitpid(os.fork() or os.getpid(), 0) and 1", "p 2")
    assert texts[2] == "2\n"


# -- after an error


def test_post_mortem_of_a_cell_that_cannot_be_compiled(rank: CellProcess) -> None:
    """It does not open the frames of an earlier error."""
    rank.run("1 / 0")
    rank.run("x = = 1")
    assert "rank 0 has no frames to inspect" in rank.run("%debug", debug=MAY_STOP).stdout


def test_post_mortem_in_a_cell_keeps_its_breakpoints(rank: CellProcess) -> None:
    """The code goes on after it, to the lines at which it is to stop."""
    source = "import pdb\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    pdb.post_mortem()\nx = 1\nx = 2"
    texts = type_in(rank, source, "c", mode=DebugMode(breakpoints=[Breakpoint(7)]))
    assert texts[1].endswith("-> x = 2\n")


def test_post_mortem(rank: CellProcess) -> None:
    """`%debug` opens the frames of the last error, at the user's innermost one; leaving it ends well."""
    rank.run("def g(v):\n    w = v - 1\n    return 1 / w\ng(1)")
    seq = rank.begin("%debug", debug=MAY_STOP)
    texts = [prompt.text for prompt in rank.debug("p w", "up")]
    rank.type_line(None)
    assert texts[0].endswith(", in g\n-> return 1 / w\n")
    assert texts[1] == "0\n"
    assert texts[2].endswith("-> g(1)\n")
    assert rank.finish(seq).ended.outcome == "ok"


def test_post_mortem_of_pdb(rank: CellProcess) -> None:
    """`pdb.post_mortem()` in a cell uses the same debugger."""
    source = "import pdb\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    pdb.post_mortem()\nx = 1"
    assert type_in(rank, source)[0].endswith("-> 1 / 0\n")


def test_post_mortem_without_an_error(tmp_path: Path) -> None:
    """A rank that has raised nothing says so, and does not wait."""
    with CellProcess(tmp_path) as fresh:
        assert fresh.run("%debug", debug=MAY_STOP).stdout == "rank 0 has no error to inspect\n"


def test_post_mortem_of_code_that_does_not_compile(rank: CellProcess) -> None:
    """A SyntaxError has no frames of the cell, and those of an earlier error are not shown for it."""
    rank.run("1 / 0")
    rank.run("x = (1\n")
    said = rank.run("%debug", debug=MAY_STOP).stdout
    assert said == "rank 0 has no frames to inspect: its last error came before any code of the cell ran\n"


def test_post_mortem_ends_with_an_interrupt(rank: CellProcess) -> None:
    """Ctrl-C at its prompt ends its cell."""
    rank.run("1 / 0")
    seq = rank.begin("%debug", debug=MAY_STOP)
    rank.prompt()
    rank.interrupt()
    assert rank.finish(seq).ended.outcome == "interrupted"


# -- where nothing stops


@pytest.mark.parametrize("call", TRACED)
def test_where_nobody_can_type_the_call_raises(rank: CellProcess, call: str) -> None:
    """One sentence says so, with rank and line."""
    error = rank.run(f"x = 1\n{call}").error
    assert (error.ename, error.line) == ("NoKeyboard", 2)
    assert "cannot stop rank 0 at line 2, because nothing can be typed" in error.evalue


def test_post_mortem_where_nobody_can_type(rank: CellProcess) -> None:
    """`%debug` raises, too."""
    rank.run("1 / 0")
    assert rank.run("%debug").error.ename == "NoKeyboard"


def test_a_refusal_is_raised_at_the_call(rank: CellProcess) -> None:
    """The notebook's reason is the error's."""
    error = rank.run("x = 1\nbreakpoint()", debug=DebugMode("no rank would wait")).error
    assert (error.ename, error.line) == ("BreakpointRefused", 2)
    assert error.evalue == "breakpoint() cannot stop rank 0 at line 2: no rank would wait"


def test_a_replay_does_not_stop(rank: CellProcess) -> None:
    """The user has seen the breakpoints before."""
    assert rank.run("breakpoint()\n1", debug=DebugMode(is_replay=True)).result == "1"


def test_a_thread_does_not_stop(rank: CellProcess) -> None:
    """Only the main thread can wait for the user."""
    source = (
        "import threading\nfound = []\ndef f():\n    try:\n        breakpoint()\n    except Exception as error:\n"
        "        found.append(error)\nt = threading.Thread(target=f)\nt.start()\nt.join()\nraise found[0]"
    )
    error = rank.run(source, debug=MAY_STOP).error
    assert error.ename == "BreakpointRefused"
    assert "main thread" in error.evalue


def test_code_that_a_command_calls_does_not_stop(rank: CellProcess) -> None:
    """A breakpoint inside a function that is called at the prompt is passed."""
    assert type_in(rank, "def f():\n    breakpoint()\n    return 7\nbreakpoint()", "p f()")[1] == "7\n"


def test_a_thread_does_not_stop_while_the_main_thread_has(rank: CellProcess) -> None:
    """It is refused as at any other time, not passed over."""
    source = (
        "import threading\nfound, go = [], threading.Event()\ndef f():\n    go.wait()\n    try:\n        breakpoint()\n"
        "    except Exception as error:\n        found.append(type(error).__name__)\n"
        "t = threading.Thread(target=f)\nt.start()\nbreakpoint()"
    )
    assert type_in(rank, source, "!go.set(); t.join()", "p found")[2] == "['BreakpointRefused']\n"


def test_environment_turns_breakpoints_off(rank: CellProcess) -> None:
    """PYTHONBREAKPOINT=0 means what it means everywhere."""
    rank.run("import os; os.environ['PYTHONBREAKPOINT'] = '0'")
    try:
        assert rank.run("breakpoint()\n1", debug=MAY_STOP).result == "1"
    finally:
        rank.run("del os.environ['PYTHONBREAKPOINT']")


@pytest.mark.parametrize("source", ["%debug f()", "%%debug\nf()"])
def test_debug_magic_takes_no_code(rank: CellProcess, source: str) -> None:
    """The debugger of a call needs a program of its own; the message says what to use."""
    error = rank.run(source, debug=MAY_STOP).error
    assert error.ename == "BreakpointRefused"
    assert "breakpoint()" in error.evalue


def test_terminal_debugger_is_refused_at_its_line(rank: CellProcess) -> None:
    """A debugger that needs a terminal of its own cannot be created; the error has the line of the call."""
    source = "from IPython.terminal.debugger import set_trace\ndef f():\n    set_trace()\nf()"
    error = rank.run(source, debug=MAY_STOP).error
    assert (error.ename, error.line) == ("BreakpointRefused", 3)
    assert rank.run(source).error.ename == "NoKeyboard"
