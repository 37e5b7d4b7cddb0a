"""The console of the debugger: which ranks get a typed line, what is shown of the answers, and when the next line is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mhnb.core.debugging import (
    HELP_TEXT,
    Console,
    ConsoleLine,
    DebugUpdate,
    RankDebugState,
    TypedLine,
    is_debugger_prompt,
    parse_console_line,
)
from mhnb.core.messages import DebugInput, DebugPrompt, DebugResumed, RankStatus, ReportSoon
from mhnb.core.state.cell import Cell
from mhnb.core.state.cell_parts import DebuggerPart
from mhnb.core.state.events import CellRequest, DebugLineTyped, SendToHosts, SendToRank, ShowDebugger, TimePassed

SEQ = 5
NOTHING = ("", None)
PLACE = "> In [5], line 4\n-> breakpoint()\n"


@dataclass
class Ranks:
    """Ranks that stop and run on; `update` tells a console what they do, as the state machine does."""

    count: int = 4
    is_post_mortem: bool = False
    states: dict[int, RankDebugState] = field(default_factory=dict)
    prompts: dict[int, DebugPrompt] = field(default_factory=dict)
    waits: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    expected: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = dict.fromkeys(range(self.count), "running")
        self.console = Console(is_post_mortem=self.is_post_mortem)

    def stop(self, *ranks: int, text: str = PLACE) -> Ranks:
        """Stop ranks at a new place."""
        return self.answer(*ranks, text=text)

    def answer(self, *ranks: int, text: str = "", prompt: str = "(Pdb) ") -> Ranks:
        """Let ranks print an answer and prompt again."""
        for rank in ranks:
            self.states[rank] = "stopped"
            self.numbers[rank] = self.numbers.get(rank, 0) + 1
            self.prompts[rank] = DebugPrompt(rank, SEQ, self.numbers[rank], prompt, text, 4)
            self.texts[rank] = self.texts.get(rank, "") + text
            self.expected.discard(rank)
        return self.update()

    def resume(self, *ranks: int, state: RankDebugState = "running", wait: str = "", text: str = "") -> Ranks:
        """Let ranks say that they run on."""
        for rank in ranks:
            self.prompts.pop(rank, None)
            self.expected.discard(rank)
            self.states[rank] = state
            self.texts[rank] = self.texts.get(rank, "") + text
            if wait:
                self.waits[rank] = wait
        return self.update()

    def update(self) -> Ranks:
        """Tell the console the present state."""
        self.console.update(
            DebugUpdate(
                dict(self.states),
                dict(sorted(self.prompts.items())),
                dict(self.waits),
                dict(self.texts),
                frozenset(self.expected),
            )
        )
        return self

    def type(self, line: str) -> Mapping[int, str | None]:
        """Type a line that ranks get; they work on it from now on."""
        typed = self.console.type_line(line)
        assert typed.text == ""
        assert not self.console.has_left
        # The newest update may be older than the line.
        assert not typed.sent or self.advance() == NOTHING
        for rank in typed.sent:
            self.prompts.pop(rank)
            self.texts[rank] = ""
            self.expected.add(rank)
        self.update()
        return typed.sent

    def advance(self) -> tuple[str, str | None]:
        """Ask the console what to do."""
        return self.console.advance()


@pytest.fixture
def stopped() -> Ranks:
    """Four ranks that have stopped at the same place, which the console has shown."""
    ranks = Ranks().stop(0, 1, 2, 3)
    ranks.advance()
    return ranks


# -- a typed line


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("p x.shape", ConsoleLine("send", "p x.shape")),
        ("", ConsoleLine("send", "")),
        ("rank 2", ConsoleLine("switch", spec="2")),
        ("ranks all", ConsoleLine("switch", spec="all")),
        ("  ranks 0,2-3   p x  ;;  c ", ConsoleLine("send", "p x  ;;  c", "0,2-3")),
        ("ranks two", ConsoleLine("switch", spec="two")),
        ("help", ConsoleLine("help", "help")),
        ("help ranks", ConsoleLine("help")),
        ("?rank", ConsoleLine("help")),
        ("help p", ConsoleLine("send", "help p")),
        ("q", ConsoleLine("end")),
        (" quit ", ConsoleLine("end")),
        ("exit()", ConsoleLine("end")),
        ("q = 3", ConsoleLine("send", "q = 3")),
        # A variable of the user.
        ("rank", ConsoleLine("send", "rank")),
        ("rank == 2", ConsoleLine("send", "rank == 2")),
        ("rank in (0, 1)", ConsoleLine("send", "rank in (0, 1)")),
        ("rank[0]", ConsoleLine("send", "rank[0]")),
        ("ranks = 3", ConsoleLine("send", "ranks = 3")),
        ("ranking 2", ConsoleLine("send", "ranking 2")),
    ],
)
def test_line_is_parsed(line: str, parsed: ConsoleLine) -> None:
    """Only the commands of the console are taken out; everything else goes to the ranks as typed."""
    assert parse_console_line(line) == parsed


@pytest.mark.parametrize(
    ("prompt", "is_own"),
    [("(Pdb) ", True), ("((Pdb)) ", True), ("ipdb> ", True), ("(com) ", False), (">>> ", False), ("In : ", False)],
)
def test_prompt_of_the_debugger_is_known(prompt: str, is_own: bool) -> None:  # noqa: FBT001
    """The prompts of Python code, and of a list of commands, are not the debugger's own."""
    assert is_debugger_prompt(prompt) is is_own


# -- the first stop


def test_nothing_is_read_while_no_rank_has_stopped() -> None:
    """A cell without a stop shows nothing."""
    ranks = Ranks().update()
    assert ranks.advance() == NOTHING
    assert ranks.console.is_idle


def test_ranks_that_stop_together_are_shown_together() -> None:
    """The prompt comes when every rank has said what it does, and goes to the lowest."""
    ranks = Ranks(expected={0, 1, 3}).stop(2)
    assert ranks.advance() == NOTHING
    ranks.resume(0).resume(3, state="waiting")
    assert ranks.advance() == NOTHING
    assert ranks.stop(1).advance() == (
        f"ranks 1-2 stopped\n{PLACE}",
        "rank 1 (stopped 1-2; running 0; waiting 3) > ",
    )


def test_stops_at_different_places_are_shown_apart() -> None:
    """Ranks with the same text share it."""
    text, _ = Ranks().stop(0, 1, 3).stop(2, text="> elsewhere").advance()
    assert text == f"ranks 0-1,3 stopped\n{PLACE}rank 2 stopped\n> elsewhere\n"


def test_later_stop_is_shown_once_and_before_the_next_prompt() -> None:
    """The rank that is asked stays the same, although a lower one has stopped."""
    ranks = Ranks().stop(2)
    ranks.advance()
    ranks.stop(0)
    assert ranks.advance() == (f"rank 0 stopped\n{PLACE}", "rank 2 (stopped 0,2; running 1,3) > ")
    assert ranks.advance() == ("", "rank 2 (stopped 0,2; running 1,3) > ")


# -- answers


def test_answer_of_one_rank_is_only_its_text(stopped: Ranks) -> None:
    """No line is read until it is there; the same command again has the same answer."""
    for _ in range(2):
        assert stopped.type("p 1") == {0: "p 1"}
        assert stopped.advance() == NOTHING
        assert stopped.answer(0, text="1\n").advance() == ("1\n", "rank 0 (stopped 0-3) > ")


def test_answers_of_several_ranks_are_folded(stopped: Ranks) -> None:
    """Equal ones are shown once; a long one begins on a line of its own, and an empty one is not shown."""
    assert stopped.type("ranks all p x") == dict.fromkeys(range(4), "p x")
    stopped.answer(0, 2, text="(8,)\n").answer(1, text="a\nb\n")
    assert stopped.advance() == NOTHING
    assert stopped.answer(3).advance() == ("ranks 0,2: (8,)\nrank 1:\na\nb\n", "rank 0 (stopped 0-3) > ")


def test_one_command_for_another_rank_names_it(stopped: Ranks) -> None:
    """The prompt stays where it is."""
    assert stopped.type("ranks 2 p 1") == {2: "p 1"}
    assert stopped.answer(2, text="1\n").advance() == ("rank 2: 1\n", "rank 0 (stopped 0-3) > ")


def test_ranks_that_step_are_shown_in_one_block(stopped: Ranks) -> None:
    """Each of them has stopped, waits, or has ended the cell; what it printed on its way is shown, too."""
    stopped.type("ranks all n")
    stopped.stop(0, 1, text="> line 5\n").resume(2, state="waiting", wait="line 4, jit(f)")
    assert stopped.advance() == NOTHING
    assert stopped.resume(3, state="done", text="bye\n").advance() == (
        "ranks 0-1: > line 5\nrank 3: bye\nrank 2 is waiting: line 4, jit(f)\nrank 3 has ended the cell\n",
        "rank 0 (stopped 0-1; waiting 2; done 3) > ",
    )


def test_rank_that_runs_on_and_stops_during_a_command_has_one_answer(stopped: Ranks) -> None:
    """It has said that it runs on, but another rank still worked on the line."""
    stopped.type("ranks 0-1 n")
    stopped.resume(0, text="on\n").stop(0).stop(1)
    assert stopped.advance()[0] == f"rank 0:\non\n{PLACE}rank 1:\n{PLACE}"


def test_prompt_moves_on_when_its_rank_waits(stopped: Ranks) -> None:
    """The user sees why: the rank has reached a launch that others have not."""
    stopped.type("c")
    stopped.resume(0, state="waiting", wait="line 6, jit(f)")
    assert stopped.advance() == ("rank 0 is waiting: line 6, jit(f)\n", "rank 1 (stopped 1-3; waiting 0) > ")


def test_prompt_moves_on_when_its_rank_runs_on(stopped: Ranks) -> None:
    """A rank that stops again much later is shown as a new stop."""
    stopped.type("c")
    assert stopped.resume(0).advance() == ("rank 0 is running\n", "rank 1 (stopped 1-3; running 0) > ")
    assert stopped.stop(0).advance()[0] == f"rank 0 stopped\n{PLACE}"


def test_prompt_moves_on_when_its_rank_has_ended(stopped: Ranks) -> None:
    """The last rank may reach the end of the cell without any launch."""
    stopped.type("c")
    assert stopped.resume(0, state="done").advance() == (
        "rank 0 has ended the cell\n",
        "rank 1 (stopped 1-3; done 0) > ",
    )


def test_nothing_is_read_when_all_run_on(stopped: Ranks) -> None:
    """The view of the cell shows the rest; the next stop is shown like the first one."""
    stopped.type("ranks all c")
    assert not stopped.console.is_idle
    assert stopped.resume(0, 1, 2, 3).advance() == NOTHING
    assert stopped.stop(3).advance() == (f"rank 3 stopped\n{PLACE}", "rank 3 (stopped 3; running 0-2) > ")


def test_last_text_before_the_end_is_not_lost(stopped: Ranks) -> None:
    """A rank that ran on to the end of the cell may have printed something."""
    stopped.type("ranks all c")
    stopped.resume(0, 1, text="bye\n")
    assert stopped.console.finish() == "ranks 0-1: bye\n"
    assert stopped.console.finish() == ""


# -- switching


def test_switch_to_another_rank(stopped: Ranks) -> None:
    """All that follows goes to it."""
    assert stopped.type("rank 2") == {}
    assert stopped.advance() == ("", "rank 2 (stopped 0-3) > ")
    assert stopped.type("p 1") == {2: "p 1"}


def test_switch_to_several_ranks(stopped: Ranks) -> None:
    """Those of them that have stopped get what follows; one that stops again later gets it again."""
    stopped.type("ranks 0-2")
    assert stopped.advance()[1] == "ranks 0-2 (stopped 0-3) > "
    assert set(stopped.type("n")) == {0, 1, 2}
    stopped.resume(0, 1, 2).resume(2, state="waiting").stop(0, 1, text="> line 5\n")
    assert stopped.advance() == ("ranks 0-1: > line 5\nrank 2 is waiting\n", "ranks 0-1 (stopped 0-1,3; waiting 2) > ")
    assert stopped.stop(2).advance()[1] == "ranks 0-2 (stopped 0-3) > "


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("rank 7", "*** ranks '7': expected ranks of this cell, such as 0,2-3, or all for those that have stopped; "),
        ("ranks two p x", "*** ranks 'two': expected ranks of this cell, such as 0,2-3, or all"),
        ("ranks 3-0", "*** ranks '3-0': expected ranks of this cell, such as 0,2-3, or all"),
        (
            "ranks 0-3 c",
            "*** ranks '0-3': expected ranks that have stopped: 0-1; rank 2 is waiting: line 6; rank 3 is running",
        ),
    ],
)
def test_wrong_ranks_are_refused(line: str, error: str) -> None:
    """The error names what was typed and what was expected; nothing is sent."""
    ranks = Ranks()
    ranks.states[2], ranks.waits[2] = "waiting", "line 6"
    ranks.stop(0, 1).advance()
    typed = ranks.console.type_line(line)
    assert typed.text.startswith(error)
    assert not typed.sent
    assert ranks.advance()[1] == "rank 0 (stopped 0-1; running 3; waiting 2) > "


def test_line_for_a_rank_that_has_gone_is_not_sent(stopped: Ranks) -> None:
    """While the user typed, the rank may have ended; no other rank gets the line."""
    stopped.resume(0, state="done")
    assert stopped.console.type_line("c") == TypedLine(text="*** rank 0 is not stopped any more; nothing was sent\n")
    assert stopped.advance()[1] == "rank 1 (stopped 1-3; done 0) > "


# -- help, and the end


def test_help_of_the_console_follows_that_of_the_debugger(stopped: Ranks) -> None:
    """One rank prints the debugger's help, also if several are asked."""
    stopped.type("ranks all")
    stopped.advance()
    assert stopped.type("help") == {0: "help"}
    assert stopped.answer(0, text="Documented commands\n").advance()[0] == f"Documented commands\n{HELP_TEXT}"
    assert stopped.console.type_line("help ranks") == TypedLine(text=HELP_TEXT.lstrip("\n"))
    assert max(map(len, HELP_TEXT.splitlines())) <= 80


@pytest.mark.parametrize("line", ["q", "quit", "exit", "EOF", "rank 1 q", "ranks all quit ", "ranks 0-1 exit()"])
def test_user_ends_the_cell(stopped: Ranks, line: str) -> None:
    """It is interrupted, once; no rank gets a line for it."""
    assert stopped.console.type_line(line) == TypedLine(is_interrupt=True)
    assert stopped.console.has_left
    assert stopped.console.type_end() == TypedLine()


def test_rank_that_stops_after_the_user_has_left_gets_the_end_of_input(stopped: Ranks) -> None:
    """The interrupt ends the stops that there were; code that handles it may stop again."""
    assert stopped.console.leave() == TypedLine(is_interrupt=True)
    assert stopped.console.leave() == TypedLine()
    stopped.resume(0, 1).stop(1)
    assert stopped.console.leave() == TypedLine({1: None})
    assert stopped.console.leave() == TypedLine()


def test_post_mortem_ends_with_the_end_of_input() -> None:
    """No code runs that an interrupt could end; Python code at a prompt of its own needs one more."""
    ranks = Ranks(2, is_post_mortem=True).stop(0, 1)
    assert ranks.console.leave() == TypedLine({0: None, 1: None})
    ranks.answer(1)
    assert ranks.console.leave() == TypedLine({1: None})


@pytest.mark.parametrize("prompt", [">>> ", "... ", "(com) ", "In : "])
@pytest.mark.parametrize("line", ["rank 2", "q", "ranks all p x", "help", "  x = 1", ""])
def test_python_code_is_passed_as_it_is(stopped: Ranks, prompt: str, line: str) -> None:
    """At a prompt for Python code, or for the commands of a breakpoint, the console has no commands of its own."""
    stopped.type("interact")
    assert stopped.answer(0, prompt=prompt).advance() == ("", f"rank 0 {prompt}")
    assert stopped.type(line) == {0: line}


@pytest.mark.parametrize(("prompt", "line"), [(">>> ", "exit()"), ("(com) ", "end")])
def test_end_of_input_ends_only_python_code(stopped: Ranks, prompt: str, line: str) -> None:
    """After that the debugger prompts again."""
    stopped.type("interact")
    stopped.answer(0, prompt=prompt).advance()
    assert stopped.console.type_end() == TypedLine({0: line})


def test_end_of_input_runs_no_unfinished_block(stopped: Ranks) -> None:
    """The user is asked to end it, and nothing is sent."""
    stopped.type("interact")
    stopped.answer(0, prompt="... ").advance()
    assert stopped.console.type_end().text.startswith("*** an empty line ends the block")
    assert not stopped.console.type_end().sent
    assert stopped.advance()[1] == "rank 0 ... "


def test_one_command_that_reads_python_code_takes_the_prompt(stopped: Ranks) -> None:
    """Otherwise no line could be typed for the other ranks that read code now."""
    stopped.type("ranks 1-2 interact")
    assert stopped.answer(1, 2, prompt=">>> ").advance() == ("", "ranks 1-2 >>> ")


# -- after an error


def test_post_mortem_of_one_rank() -> None:
    """The rank did not stop: the prompt says what it is."""
    ranks = Ranks(1, is_post_mortem=True).stop(0)
    assert ranks.advance() == (PLACE, "rank 0 (post-mortem) > ")


def test_post_mortem_of_several_ranks() -> None:
    """The prompt also says which ranks there are."""
    ranks = Ranks(2, is_post_mortem=True).stop(0, 1)
    assert ranks.advance() == (f"ranks 0-1:\n{PLACE}", "rank 0 (post-mortem; stopped 0-1) > ")


# -- updates of a cell


@dataclass
class Stops:
    """A cell whose ranks report, one report each tenth of a second."""

    count: int = 3
    now: float = 10.0

    def __post_init__(self) -> None:
        request = CellRequest("", None, "lockstep", None)
        self.cell = Cell(1, request, seq=SEQ, ranks=tuple(range(self.count)), now=self.now)
        self.cell.added_parts = [DebuggerPart()]
        self.update = DebugUpdate({})
        self.asked = 0
        """How often the ranks were asked where they are."""

    def report(self, *reports: DebugPrompt | DebugResumed | RankStatus | TimePassed) -> DebugUpdate:
        """Record reports of ranks, and return the newest update."""
        for report in reports:
            self.now += 0.1
            if isinstance(report, RankStatus):
                self.cell.record_report(report, self.now)
            for command in self.cell.handle(report, self.now):
                if isinstance(command, ShowDebugger):
                    self.update = command.update
                else:
                    assert command == SendToHosts(ReportSoon())
                    self.asked += 1
        return self.update

    def type(self, *ranks: int) -> None:
        """Send a line to ranks."""
        for rank in ranks:
            (sent,) = self.cell.handle(DebugLineTyped(1, rank, "n"), self.now)
            number = self.update.prompts[rank].number
            assert sent == SendToRank(rank, DebugInput(SEQ, number, "n"))


def prompt_of(rank: int, number: int = 1, *, text: str = "", is_new: bool = True) -> DebugPrompt:
    """Return a prompt of a rank in the cell."""
    return DebugPrompt(rank, SEQ, number, "(Pdb) ", text, 4, is_new)


def sample_of(rank: int, activity: str = "agreement") -> RankStatus:
    """Return where a rank is."""
    return RankStatus(rank, SEQ, activity, "jit(f) (x)", 6, "", 1.0, [])


def test_first_stop_asks_every_rank_where_it_is() -> None:
    """The others may be about to stop at the same line; one that is too busy to report is not."""
    stops = Stops()
    stops.report(sample_of(2))
    assert stops.report(prompt_of(0)).expected == {1, 2}
    assert stops.report(prompt_of(1)).expected == {2}
    update = stops.report(sample_of(2))
    assert not update.expected
    assert update.waits == {2: "line 6, jit(f)"}
    stops.type(1)
    assert stops.report(prompt_of(1, 2)).expected == set()
    assert stops.asked == 1
    silent = Stops()
    assert silent.report(prompt_of(0)).expected == {1, 2}
    silent.now += 1.0
    update = silent.report(TimePassed())
    assert not update.expected
    assert update.states == {0: "stopped", 1: "running", 2: "running"}


def test_rank_with_a_line_is_expected_until_it_answers_or_runs_on() -> None:
    """Where it runs on comes just after that it does; its texts are what it printed since the line."""
    stops = Stops(1)
    stops.report(prompt_of(0, text="> line 4\n"))
    assert not stops.asked
    stops.type(0)
    assert stops.report(sample_of(0, "python")).expected == {0}
    assert stops.report(prompt_of(0, 2, text="1\n", is_new=False)).texts == {0: "1\n"}
    stops.type(0)
    assert stops.report(DebugResumed(0, SEQ, "on\n")).expected == {0}
    update = stops.report(sample_of(0))
    assert not update.expected
    assert (update.states, update.texts) == ({0: "waiting"}, {0: "on\n"})


@pytest.mark.parametrize("is_stepping", [True, False])
def test_stepped_rank_is_expected_when_the_others_have_reached_its_launch(is_stepping: bool) -> None:  # noqa: FBT001
    """So the next `ranks all` is for it, too. One that continues stops nowhere."""
    stops = Stops()
    stops.report(prompt_of(0), prompt_of(1), prompt_of(2))
    stops.type(0)
    assert stops.report(DebugResumed(0, SEQ, "", is_stepping), sample_of(0)).expected == set()
    stops.type(1)
    assert stops.report(prompt_of(1, 2)).expected == set(), "rank 2 has not run on"
    stops.type(1, 2)
    assert stops.report(prompt_of(1, 3), prompt_of(2, 2)).expected == ({0} if is_stepping else set())
    assert stops.report(prompt_of(0, 2)).expected == set()
