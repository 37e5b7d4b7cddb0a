"""The debugger on the ranks in real terminals: `ipython`, `jupyter console`, and scripts under `mhnb run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.debugger_cells import SETUP, STOPS_ALL, STOPS_RANK_1, bare, find_sums
from tests.support.terminal import CTRL_C, CTRL_D, IPYTHON, Terminal, without_codes

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(480)]

START = "%mhjax start -n 2 --devices 1"
FULL_IPYTHON = tuple(word for word in IPYTHON if word != "--simple-prompt")
CONSOLE = ("jupyter_console",)
_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"


class Prompts:
    """A shell with a line editor in a terminal, and the prompts of the debugger there.

    What the shell shows is compared with patterns: its line editor draws the typed text again and again.
    """

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._cell, self._begun = 1, 0

    def run(self, source: str) -> None:
        """Type a cell that asks for nothing, and wait for the next one."""
        self.type(source)
        self.wait()

    def type(self, source: str) -> None:
        """Paste a cell and press Enter, once the shell is ready for it. An empty line ends one of several lines."""
        self.terminal.wait_for(rf"In \[{self._cell}\]", self._begun)
        self._cell += 1
        self._begun = self.terminal.place
        ends = "\n\n" if "\n" in source.rstrip("\n") else ""
        self.terminal.press(f"{_PASTE_BEGIN}{source.rstrip()}{ends}{_PASTE_END}\r")

    def wait(self) -> None:
        """Wait for the prompt of the next cell."""
        self.terminal.wait_for(rf"In \[{self._cell}\]", self._begun)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the cell has shown a text; `jupyter console` may show it after the prompt of the next cell."""
        return self.terminal.wait_for(pattern, self._begun)

    def sum_of(self, value: str) -> int:
        """Return the sum of a value of all ranks. `jupyter console` does not show the output that replaces a live view."""
        code = f"print('sum', add({value}))"
        self.type(f'print(*(rank.stdout for rank in mhnb.current().run("{code}").check()))')
        found = int(self.wait_for(r"^sum (\d+)\n")[1])
        self.wait()
        return found

    def read_states(self, states: str) -> str:
        """Read prompts of the debugger until one says what the ranks do, such as `stopped 0-1`."""
        return read_states(self.terminal, states)

    def ask(self, line: str) -> str:
        """Type a line at the debugger's prompt; return what was shown up to the next one."""
        return ask(self.terminal, line)

    def exit(self) -> None:
        """Leave the shell, whose ranks end with it."""
        self.type("exit")
        self.terminal.read_to_end()
        assert self.terminal.process.wait(timeout=60) == 0


def read_states(terminal: Terminal, states: str) -> str:
    """Read prompts of the debugger until one says what the ranks do, such as `stopped 0-1`."""
    shown = without_codes(terminal.read_until(") > "))
    while not shown.endswith(f"({states}) > "):
        shown += terminal.ask("p 'not yet'", ") > ")
    return shown


def ask(terminal: Terminal, line: str) -> str:
    """Type a line at the debugger's prompt; return what was shown up to the next one."""
    return terminal.ask(line, ") > ").removeprefix(f"{line}\n")


@pytest.fixture(params=[FULL_IPYTHON, CONSOLE], ids=["ipython", "jupyter console"])
def prompts(request: pytest.FixtureRequest, leftovers: None) -> Iterator[Prompts]:
    """A shell in a terminal with a cluster of 2 ranks: IPython's own, and one whose kernel is another process."""
    with Terminal(request.param) as terminal:
        prompts = Prompts(terminal)
        for source in ("%load_ext mhnb", "import mhnb", START, SETUP):
            prompts.run(source)
        assert prompts.sum_of("me") == 1
        yield prompts
        prompts.exit()


def test_user_types_in_a_terminal(prompts: Prompts) -> None:
    """In a terminal the prompt is a plain line that nothing is drawn over; q, Ctrl-C and Ctrl-D end the cell, and the next one runs."""
    prompts.type(STOPS_ALL)
    shown = prompts.read_states("stopped 0-1")
    assert re.search(r"^> In \[\d+\], line 3$", shown, re.MULTILINE), shown
    assert prompts.ask("p me, own") == "(0, 1)\nrank 0 (stopped 0-1) > "
    assert prompts.ask("ranks all p me").splitlines()[:2] == ["rank 0: 0", "rank 1: 1"]
    assert prompts.ask("rank 1") == "rank 1 (stopped 0-1) > "
    prompts.terminal.press("ranks all c\n")
    prompts.wait()
    assert prompts.sum_of("own") == 30
    for base, leave in enumerate(("q\n", CTRL_C, CTRL_D)):
        prompts.type(STOPS_RANK_1)
        prompts.read_states("stopped 1; waiting 0")
        prompts.terminal.wait_until_blocked()
        prompts.terminal.press(leave)
        prompts.wait_for("CellInterrupted")
        assert prompts.sum_of(f"me + {base}") == 2 * base + 1
    if CONSOLE[0] not in prompts.terminal.process.args:  # type: ignore[operator]
        check_death(prompts)


def check_death(prompts: Prompts) -> None:
    """Check that a rank that dies ends the prompt, and that the terminal works as before.

    Not for `jupyter console`: it reads a line by itself, and learns only with Enter that its kernel waits for none any more.
    """
    prompts.type(STOPS_RANK_1)
    prompts.read_states("stopped 1; waiting 0")
    os.kill(int(prompts.ask("p __import__('os').getpid()").splitlines()[0]), signal.SIGKILL)
    prompts.wait()
    prompts.wait_for("rank 1")
    prompts.type("print('hello', 1 + 1)")
    prompts.wait_for("^hello 2$")


# -- scripts


@pytest.fixture
def script(tmp_path: Path, leftovers: None) -> tuple[str, ...]:
    """A script that stops rank 1 at line 10 of it, and the words of `mhnb run` that run it."""
    path = tmp_path / "train.py"
    path.write_text(bare(SETUP) + bare(STOPS_RANK_1))
    return ("mhnb", "run", str(path), "-n", "2", "--devices", "1")


def _line_of_breakpoint(script: tuple[str, ...]) -> int:
    return Path(script[2]).read_text().splitlines().index("    breakpoint()") + 1


def test_script_stops_in_a_terminal(script: tuple[str, ...]) -> None:
    """`mhnb run` in a terminal stops at `breakpoint()`, and the script goes on with what was changed there."""
    with Terminal(script) as terminal:
        assert f"> {script[2]}, line {_line_of_breakpoint(script)}\n" in read_states(terminal, "stopped 1; waiting 0")
        assert ask(terminal, "p me").startswith("1\n")
        ask(terminal, "own = 10")
        terminal.press("c\n")
        assert find_sums(terminal.read_to_end())[-1] == 10
        assert terminal.process.wait(timeout=60) == 0


def test_script_is_ended_at_the_prompt(script: tuple[str, ...]) -> None:
    """`q` ends a script as Ctrl-C does, and the exit status is that of an interrupted program."""
    with Terminal(script) as terminal:
        read_states(terminal, "stopped 1; waiting 0")
        terminal.press("q\n")
        terminal.read_to_end()
        assert terminal.process.wait(timeout=60) == 130


def test_script_without_a_terminal_fails_at_once(script: tuple[str, ...]) -> None:
    """Without a terminal a script fails at `breakpoint()` with the rank and the line, and does not wait."""
    done = subprocess.run(
        [sys.executable, "-m", *script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    line = _line_of_breakpoint(script)
    assert f"NoKeyboard: breakpoint() cannot stop rank 1 at line {line}, because nothing can be typed" in done.stdout
