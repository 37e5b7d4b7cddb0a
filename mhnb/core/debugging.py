"""The debugger on the ranks, as plain values: requests, states, console.

The console decides what is printed, which ranks get a typed line, and when the next one may be typed; it neither reads nor prints.

A rank that has stopped holds the others only in lockstep: they wait before the next launch that needs it, for as long as the user
thinks. Without that agreement they would enter the launch, and nothing could get them out of it unharmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mhnb.core.messages import Breakpoint, DebugPrompt
from mhnb.core.ranks import describe_ranks, format_ranks, parse_ranks, ranks_by_key
from mhnb.errors import InvalidRequest

RankDebugState: TypeAlias = Literal["stopped", "running", "waiting", "done"]
"""What a rank does while others are in the debugger; `waiting` is before a launch that other ranks have not reached."""


@dataclass(frozen=True, slots=True)
class DebugRequest:
    """A cell's debugger request, from a caller that can answer its prompts."""

    stop_ranks: tuple[int, ...] | None = None
    """Ranks that stop before the first line; None for none."""
    breakpoints: tuple[Breakpoint, ...] = ()
    """Lines before which ranks stop."""
    is_post_mortem: bool = False
    """Whether the cell only inspects what an earlier cell left."""
    replayed_errors: frozenset[str] = frozenset()
    """Names of the errors of a replayed cell when it first ran: one that was not stopped then must not go on now."""

    @property
    def stops_for_sure(self) -> bool:
        """Whether the user asked for a stop outside of the cell's text."""
        return self.stop_ranks is not None or bool(self.breakpoints)


@dataclass(frozen=True, slots=True)
class DebugUpdate:
    """Which ranks have stopped in the debugger, and what others do."""

    states: Mapping[int, RankDebugState]
    """Every rank that runs the cell, in order."""
    prompts: Mapping[int, DebugPrompt] = field(default_factory=dict)
    """The latest prompt of each rank that waits for a line. One that still works on a line has none."""
    waits: Mapping[int, str] = field(default_factory=dict)
    """What the waiting ranks wait in, such as `line 6, jit(f)`."""
    texts: Mapping[int, str] = field(default_factory=dict)
    """What the debugger has printed on each rank since the last line was sent to it."""
    expected: frozenset[int] = frozenset()
    """Ranks whose next report is expected: they work on a line, or may be about to stop."""


# -- a line that the user types


_END_WORDS = ("q", "quit", "exit", "quit()", "exit()", "EOF")
_HELP_WORDS = ("help", "h", "?")
_OWN_HELP = re.compile(r"(?:(?:help|h)\s+|\?\s*)ranks?")
_OPERATOR_WORDS = ("and", "for", "if", "in", "is", "not", "or")
"""After one of them, `rank` is a variable of the user."""
_RANKS_LINE = re.compile(r"(?P<word>ranks?)\s+(?P<spec>[^\W_]\S*)(?:\s+(?P<line>.*))?", re.DOTALL)

HELP_TEXT = """
For several ranks (everything else goes to the ranks that the prompt names):
  rank N               send what follows to rank N
  ranks SPEC           send what follows to several ranks: 0-3 or 0,2 or all,
                       which is every rank that has stopped
  ranks SPEC COMMAND   send one command to several ranks; equal answers are
                       shown once
  skip_hidden on|off   hide or show the frames of jax, mhnb and IPython
  q                    end the cell on all ranks
"""
"""What the console adds to pdb's help."""


@dataclass(frozen=True, slots=True)
class ConsoleLine:
    """A line that the user typed, as parsed."""

    action: Literal["send", "switch", "help", "end"]
    line: str = ""
    """What the ranks get; empty for help that needs no rank."""
    spec: str = ""
    """The ranks, as typed; empty for those that the prompt names."""


def parse_console_line(line: str) -> ConsoleLine:
    """Parse a line that was typed at the debugger's own prompt.

    >>> parse_console_line("ranks 0-3 p x.shape")
    ConsoleLine(action='send', line='p x.shape', spec='0-3')
    >>> parse_console_line("rank 2").action, parse_console_line("rank == 2").action, parse_console_line(" q ").action
    ('switch', 'send', 'end')
    """
    text = line.strip()
    if text in _END_WORDS:
        return ConsoleLine("end")
    if text in _HELP_WORDS:
        return ConsoleLine("help", "help")
    if _OWN_HELP.fullmatch(text):
        return ConsoleLine("help")
    match = _RANKS_LINE.fullmatch(text)
    if match is None or match["spec"] in _OPERATOR_WORDS:
        return ConsoleLine("send", line)
    if match["line"] is None:
        return ConsoleLine("switch", spec=match["spec"])
    if match["line"] in _END_WORDS:
        # Whatever ranks it names: the others would wait for the ones that have ended the cell.
        return ConsoleLine("end")
    return ConsoleLine("send", match["line"], match["spec"])


def is_debugger_prompt(prompt: str) -> bool:
    """Return whether a prompt is the debugger's own, such as `(Pdb)`.

    >>> is_debugger_prompt("(Pdb) "), is_debugger_prompt(">>> "), is_debugger_prompt("(com) ")
    (True, False, False)
    """
    return "pdb" in prompt.lower()


# -- the console


_END_LINES = {">>> ": "exit()", "(com) ": "end"}
"""What ends Python code, or a list of commands, at these prompts."""

_STATE_PHRASES: Mapping[RankDebugState, tuple[str, str]] = {
    "running": ("is running", "are running"),
    "waiting": ("is waiting", "are waiting"),
    "done": ("has ended the cell", "have ended the cell"),
    "stopped": ("works on a command", "work on a command"),
}
_STATE_ORDER: tuple[RankDebugState, ...] = ("stopped", "running", "waiting", "done")


@dataclass(frozen=True, slots=True)
class TypedLine:
    """What a typed line leads to."""

    sent: Mapping[int, str | None] = field(default_factory=dict)
    """What each rank gets; None is the end of all input."""
    text: str = ""
    """To be printed: whole lines, or empty."""
    is_interrupt: bool = False
    """Whether the cell is interrupted."""


class Console:
    """Decides what the debugger's user sees, and which ranks get typed lines.

    Args:
        is_post_mortem: whether the cell only inspects what an earlier cell left.
    """

    def __init__(self, *, is_post_mortem: bool = False) -> None:
        self._is_post_mortem = is_post_mortem
        self._update = DebugUpdate({})
        self._focus: tuple[int, ...] = ()
        """The ranks that get what is typed, as far as they have stopped."""
        self._sent: dict[int, int] = {}
        """Ranks that got a line whose answer was not shown, and the number of the prompt that it answered."""
        self._names_ranks = False
        """Whether the answer says which rank it is from."""
        self._appendix = ""
        """Text to print after the answer."""
        self._shown: dict[int, int] = {}
        """The number of the last prompt of each rank that was shown, or left to itself."""
        self.has_left = False
        """Whether the user has left the debugger, and no more lines are read."""

    def update(self, update: DebugUpdate) -> None:
        """Take note of what the ranks do; only the newest update matters."""
        self._update = update

    def advance(self) -> tuple[str, str | None]:
        """Return the text to print, and a prompt if input is needed."""
        if self._update.expected or not all(map(self._has_taken, self._sent)):
            return "", None
        text = self._take_answers()
        if not self._update.prompts:
            return text, None
        text += self._announce_stops()
        if not self._find_focus():
            self._focus = (min(self._update.prompts),)
        return text, self._format_prompt()

    def _has_taken(self, rank: int) -> bool:
        """Return whether the newest update is newer than the rank's last line."""
        prompt = self._update.prompts.get(rank)
        return prompt is None or prompt.number != self._sent[rank]

    @property
    def is_idle(self) -> bool:
        """Whether no rank has stopped and no answer is expected."""
        return not self._update.prompts and not self._sent

    # -- what is typed

    def type_line(self, line: str) -> TypedLine:
        """Process a line that the user typed at the last prompt."""
        focus = self._find_focus()
        if not focus:
            return TypedLine(
                text=_format_error(f"{_count(self._focus, 'is', 'are')} not stopped any more; nothing was sent")
            )
        if not is_debugger_prompt(self._update.prompts[focus[0]].prompt):
            # Python code, or the commands of a breakpoint: there each word has its own meaning.
            return self._send(line, focus)
        parsed = parse_console_line(line)
        if parsed.action == "end":
            return self.leave()
        if parsed.action == "help" and not parsed.line:
            return TypedLine(text=HELP_TEXT.lstrip("\n"))
        if parsed.action == "help":
            self._appendix = HELP_TEXT
            return self._send(parsed.line, focus[:1])
        if not parsed.spec:
            return self._send(line, focus)
        try:
            ranks = self._resolve(parsed.spec)
        except InvalidRequest as error:
            return TypedLine(text=_format_error(str(error)))
        if parsed.action == "switch":
            self._focus = ranks
            return TypedLine()
        return self._send(parsed.line, ranks, names_ranks=True)

    def type_end(self) -> TypedLine:
        """Process end of input: end Python, a command list or the cell."""
        focus = self._find_focus()
        prompt = self._update.prompts[focus[0]].prompt if focus else ""
        if not focus or is_debugger_prompt(prompt):
            return self.leave()
        if prompt in _END_LINES:
            return self._send(_END_LINES[prompt], focus)
        # A block of Python code that is typed halfway is not to be run.
        return TypedLine(text=_format_error("an empty line ends the block; then the end of input ends Python"))

    def leave(self) -> TypedLine:
        """Return what ends the cell after the user has left the debugger.

        Call it after each later update too. Ranks that have stopped get the interrupt. In a post-mortem, and if they
        stop after it, they get the end of all input.
        """
        is_interrupt = not (self.has_left or self._is_post_mortem)
        known = self._shown if self.has_left else {}
        numbers = {rank: prompt.number for rank, prompt in self._update.prompts.items()}
        self.has_left, self._shown = True, self._shown | numbers
        stopped = [rank for rank, number in numbers.items() if known.get(rank) != number]
        return TypedLine({} if is_interrupt else dict.fromkeys(stopped), is_interrupt=is_interrupt)

    def _send(self, line: str, ranks: tuple[int, ...], *, names_ranks: bool = False) -> TypedLine:
        self._sent = {rank: self._update.prompts[rank].number for rank in ranks}
        self._names_ranks = names_ranks or len(ranks) > 1
        return TypedLine(dict.fromkeys(ranks, line))

    def _resolve(self, spec: str) -> tuple[int, ...]:
        """Parse the ranks that a line names; each must have stopped.

        Raises:
            InvalidRequest: the text is not a rank set, or a rank has not stopped.
        """
        states, stopped = self._update.states, tuple(self._update.prompts)
        if spec == "all":
            return stopped
        try:
            ranks = parse_ranks(spec, max(states) + 1)
        except InvalidRequest:
            ranks = ()
        if not ranks or not set(ranks) <= set(states):
            raise InvalidRequest(
                f"ranks {spec!r}: expected ranks of this cell, such as 0,2-3, or all for those that have stopped; "
                f"this cell has {describe_ranks(states)}"
            )
        if not set(ranks) <= set(stopped):
            others = "; ".join(self._describe_states(rank for rank in ranks if rank not in stopped))
            raise InvalidRequest(f"ranks {spec!r}: expected ranks that have stopped: {format_ranks(stopped)}; {others}")
        return ranks

    # -- what is shown

    def _take_answers(self) -> str:
        """Format the last line's answers, and say which ranks run on."""
        sent, update = self._sent, self._update
        answers = {rank: update.texts.get(rank, "") for rank in sent}
        text = _fold(answers) if self._names_ranks else "".join(answers.values())
        self._shown |= {rank: update.prompts[rank].number for rank in sent if rank in update.prompts}
        gone = [rank for rank in sent if rank not in update.prompts]
        code = [rank for rank in sent if rank in update.prompts and not is_debugger_prompt(update.prompts[rank].prompt)]
        if code:
            # One command has begun to read Python code on these ranks: they get it.
            self._focus = tuple(code)
        self._sent, appendix, self._appendix = {}, self._appendix, ""
        # If none has stopped, the cell just goes on, and its view shows where.
        states = [f"{line}\n" for line in self._describe_states(gone)] if update.prompts else []
        return _end_line(text) + appendix + "".join(states)

    def finish(self) -> str:
        """Return the last answers of ranks that ran to the cell's end."""
        self._sent = {rank: number for rank, number in self._sent.items() if self._has_taken(rank)}
        return "" if not self._sent else self._take_answers()

    def _announce_stops(self) -> str:
        """Return the stops that were not shown yet, each text once."""
        texts = {
            rank: prompt.text for rank, prompt in self._update.prompts.items() if self._shown.get(rank) != prompt.number
        }
        self._shown |= {rank: self._update.prompts[rank].number for rank in texts}
        if self._is_post_mortem:
            # They did not stop: their code has failed before.
            return _fold(texts) if len(self._update.states) > 1 else _end_line("".join(texts.values()))
        return "".join(
            f"{describe_ranks(ranks)} stopped\n{_end_line(text)}" for text, ranks in ranks_by_key(texts).items()
        )

    def _describe_states(self, ranks: Iterable[int]) -> list[str]:
        """Describe what ranks do, each phrase once."""
        phrases = {}
        for rank in ranks:
            wait = self._update.waits.get(rank, "")
            phrases[rank] = self._update.states[rank], f": {wait}" if wait else ""
        return [
            f"{_count(group, *_STATE_PHRASES[state])}{wait}" for (state, wait), group in ranks_by_key(phrases).items()
        ]

    def _find_focus(self) -> tuple[int, ...]:
        """Return the ranks that get what is typed now."""
        return tuple(rank for rank in self._focus if rank in self._update.prompts)

    def _format_prompt(self) -> str:
        focus = self._find_focus()
        who, prompt = describe_ranks(focus), self._update.prompts[focus[0]].prompt
        if not is_debugger_prompt(prompt):
            return f"{who} {prompt}"
        by_state: dict[RankDebugState, list[int]] = {}
        for rank, state in self._update.states.items():
            by_state.setdefault(state, []).append(rank)
        states = [f"{state} {format_ranks(by_state[state])}" for state in _STATE_ORDER if state in by_state]
        if self._is_post_mortem:
            states = ["post-mortem", *(states if len(self._update.states) > 1 else ())]
        return f"{who} ({'; '.join(states)}) > "


def _count(ranks: Iterable[int], one: str, many: str) -> str:
    """Return ranks as a subject with the verb that fits.

    >>> _count([2], "is", "are"), _count([0, 1], "is", "are")
    ('rank 2 is', 'ranks 0-1 are')
    """
    known = tuple(ranks)
    return f"{describe_ranks(known)} {one if len(known) == 1 else many}"


def _fold(answers: Mapping[int, str]) -> str:
    r"""Format answers with their ranks, equal ones once.

    >>> _fold({0: "(8,)\n", 1: "(8,)\n", 2: "a\nb\n", 3: ""})
    'ranks 0-1: (8,)\nrank 2:\na\nb\n'
    """
    lines = []
    for text, ranks in ranks_by_key({rank: answer.strip("\n") for rank, answer in answers.items()}).items():
        if text:
            lines.append(f"{describe_ranks(ranks)}:{chr(10) if chr(10) in text else ' '}{text}\n")
    return "".join(lines)


def _format_error(text: str) -> str:
    """Format an error as the debugger formats its own."""
    return f"*** {text}\n"


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
