"""The debugger of a rank: pdb with its prompt in the notebook.

Code that calls `breakpoint()` stops at that line; a cell can also be sent with lines before which its ranks stop. The main thread
of the rank then stays in pdb's prompt, in the middle of the user's code. Other ranks run on until they propose a launch that needs
this rank, and wait there as they wait for any rank that is late. So nothing else has to be held, and a cell without a debugger
costs nothing: Python traces no code until a cell stops.

Frames of JAX, IPython and this package are hidden, and `step` does not enter them.
"""

from __future__ import annotations

import ast
import bdb
import code
import ctypes
import functools
import inspect
import io
import linecache
import os
import pdb
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from IPython.core import debugger
from IPython.core.interactiveshell import InteractiveShell

from mhnb.core.cell_name import number_lines
from mhnb.core.hang_report import TIMED_FILES
from mhnb.core.messages import Breakpoint, DebugMode, DebugPrompt, DebugResumed, Message, RunCell
from mhnb.core.output.events import OutputEvent, OutputOmitted
from mhnb.errors import BreakpointRefused, NoKeyboard
from mhnb.rank.execution.capture import EventBuffer
from mhnb.rank.execution.cell_names import CELL_FILE, CELL_NAMES
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.streams import weak_callback
from mhnb.rank.execution.tracebacks import INNER_TEXT_MAGICS, RunningCell, is_library_file

_HIDDEN_PACKAGES = frozenset(
    (
        "IPython",
        "asyncio",
        "bdb",
        "cmd",
        "ipykernel",
        "ipyparallel",
        "jax",
        "jaxlib",
        "mhnb",
        "pdb",
        "tornado",
        "traitlets",
    )
)
"""Their frames are not the user's code; they are around it or below it."""
_PRINT_HINT = "Print the value instead, or fetch it into the notebook with %mhjax pull NAME."
_NO_TERMINAL = "{what} cannot stop {place}, because nothing can be typed where this cell was run from. " + _PRINT_HINT
_REFUSED = "{what} cannot stop {place}: {reason}"
_IN_THREAD = (
    "it was called in a thread or a callback of the cell, and only the cell's main thread can wait for the user\n"
    "  Fix: call it in the cell's own code, or print the value"
)
_IN_LAUNCH = (
    "it was called in the middle of a launch, by a callback, a signal handler or a finalizer\n"
    "  The other ranks are in that launch already, and would wait inside it.\n"
    '  Fix: jax.debug.print("{x}", x=x)'
)
_IN_JIT = (
    "jax.debug.breakpoint() cannot stop {place}: it stops inside a running program\n"
    "  The other ranks run the same program, and would wait inside its collectives.\n"
    '  Fix: jax.debug.print("{{x}}", x=x)\n'
    "  Or: breakpoint() before or after the call of the jitted function"
)
_NAME_IN_USE = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)(?:[.\[(]|\s*(?P<sets>(?:[-+*/%@&|^]|\*\*|//|<<|>>)?=(?!=)))")
"""A name of which something is used or set: pdb alone would take `q` for its command whatever follows."""
_NEEDS_TERMINAL = "{name} needs a terminal of its own, and a rank has none\n  Fix: breakpoint(), or %%mhjax --debug"
_BREAKPOINT_COMMANDS = frozenset(("b", "break", "tbreak", "cl", "clear", "enable", "disable", "ignore", "condition"))
"""Commands that print where a breakpoint is."""
_BREAKPOINT_PLACE = re.compile(rf"\bat {CELL_FILE.pattern}:(?=\d+)")
_RUNS_ON_AFTER_S = 1.0
"""Code that stops again sooner has been stepped; what is shown of it is the next stop."""
_USER_TEXTS = ("<cell ", "<captured in cell ", *TIMED_FILES)
"""How the file names of code begin that cells have, here and under IPython's magics."""


class PromptInput(Protocol):
    """Where the lines come from that the user types."""

    def read_line(self, number: int, wake_fd: int) -> str | None:
        """Wait for the line that answers a prompt.

        Return None at the end of all input, or once `wake_fd` is readable.
        """


class NoInput:
    """Nothing is typed."""

    def read_line(self, number: int, wake_fd: int) -> str | None:
        """Return the end of all input."""
        del number, wake_fd
        return None


class _Terminal(io.TextIOBase):
    """Pdb's terminal: sends prompts with earlier output, and waits for lines.

    Text has the limits of a cell's output, because a loop that prints must not fill the memory of the rank.

    Args:
        ask: sends a prompt and what was printed before it, and returns the line, or None at the end of all input.
    """

    def __init__(self, ask: Callable[[str, str], str | None]) -> None:
        self._ask = ask
        # Threads of the cell print here, too, while a command runs.
        self._lock, self._printed = threading.RLock(), EventBuffer()
        self.prompt = ""
        """The prompt that pdb prints next."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self._printed.add_text("stdout", text)
        return len(text)

    def take_printed(self) -> str:
        """Return what was printed since the last line, and forget it."""
        with self._lock:
            events, self._printed = self._printed.take(), EventBuffer()
        return "".join(map(_format_printed, events))

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]  # pdb passes no size
        del size
        text = self.take_printed()
        # What a command printed without a line end is not a part of the prompt.
        prompt = self.prompt if text.endswith(self.prompt) else text.rpartition("\n")[2]
        line = self.ask(prompt, text.removesuffix(prompt))
        return "" if line is None else f"{line}\n"

    def ask(self, prompt: str, text: str = "") -> str | None:
        """Prompt for a line; return None at end of input."""
        return self._ask(prompt, text)


def _format_printed(event: OutputEvent) -> str:
    return (
        f"\n[... {event.nbytes:,} bytes left out ...]\n"
        if isinstance(event, OutputOmitted)
        else getattr(event, "text", "")
    )


class CellDebugger(pdb.Pdb):
    """Pdb for one cell of a rank.

    Args:
        owner: the rank's debugger.
        cell: the running cell.
    """

    displaying: dict[FrameType | None, dict[str, Any]]
    """Pdb's own: the expressions of `display` with their values, by frame."""

    def __init__(self, owner: RankDebugger, cell: RunningCell) -> None:
        self._owner, self._cell = owner, cell
        self.terminal = _Terminal(owner.ask)
        # Python counts the breakpoints of a process; a user counts those of a cell.
        bdb.Breakpoint.clearBreakpoints()
        super().__init__(stdin=self.terminal, stdout=self.terminal, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.terminal.prompt = self.prompt
        self._is_hiding = True
        self._inspected: tuple[FrameType | None, Any] = (None, None)
        self._shows_none = False
        self._pending_stops: DebugMode | None = None
        """Stops that were sent with the cell, until its file is known."""
        self._stops_at_first_line = False
        self._steps_statements = False
        """Whether only the cell's own next statement stops it."""
        self._is_about_breakpoints = False
        """Whether a command runs whose messages say where breakpoints are."""

    # -- tracing

    def begin(self, mode: DebugMode) -> None:
        """Trace the cell if this rank is to stop in it."""
        self._stops_at_first_line = mode.stop_ranks is not None and self._owner.rank in mode.stop_ranks
        if not (self._stops_at_first_line or mode.breakpoints):
            return
        self._pending_stops = mode
        self.reset()
        self.botframe = sys._getframe(1)
        self.set_continue()
        sys.settrace(self.trace_dispatch)

    def end(self) -> None:
        """Trace nothing any more."""
        sys.settrace(None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back
        self.clear_all_breaks()
        # Frames that were traced refer to this object, so a reference back would keep their arrays until a collection.
        self.botframe = self.stopframe = self.returnframe = None
        # Python 3.13 keeps more of them.
        vars(self).update(enterframe=None, frame_trace_lines_opcodes={})
        self.displaying.clear()
        self._forget_frames()

    def stop_at(self, frame: FrameType) -> None:
        """Stop the frame's code now; keep tracing if it may stop again."""
        sys.settrace(None)
        bdb.Bdb.set_trace(self, frame)
        sys.settrace(None)
        self.interaction(frame, None)
        is_continuing = self.stoplineno == -1
        if self.breaks or not is_continuing:
            sys.settrace(self.trace_dispatch)

    def inspect_traceback(self, traceback: TracebackType | None) -> None:
        """Inspect an error's frames, then trace on if breakpoints are set."""
        sys.settrace(None)
        self.reset()
        self.interaction(None, traceback)
        self.botframe = sys._getframe(1)
        self.set_continue()
        if self.breaks:
            sys.settrace(self.trace_dispatch)

    def dispatch_call(self, frame: FrameType, arg: Any) -> Any:
        """Set the cell's stops when its first code begins."""
        if self._pending_stops is not None and self._is_stop_file(_file(frame)):
            mode, self._pending_stops = self._pending_stops, None
            self._set_stops(_file(frame), mode.breakpoints)
        return super().dispatch_call(frame, arg)

    def _set_stops(self, file: str, breakpoints: Sequence[Breakpoint]) -> None:
        if not linecache.getlines(file):
            # Below `%%time` the text has a name that Python does not know.
            lines = number_lines(self._cell.source, self._cell.first_line).splitlines(keepends=True)
            linecache.cache[file] = (0, None, lines, file)
        for each in breakpoints:
            condition = _define_rank(each.condition, self._owner.rank) if each.condition else None
            if problem := self.set_break(file, each.line, cond=condition):
                self.message(f"no breakpoint at line {each.line}: {problem}")

    def _is_stop_file(self, file: str) -> bool:
        """Return whether a file is the cell's text, not its `%%time` call."""
        is_magic = self._cell.source.startswith(INNER_TEXT_MAGICS) and file == self._cell.file
        return self._owner.is_cell_file(file) and not is_magic

    def break_anywhere(self, frame: FrameType) -> bool:
        """Return whether a frame may have a line to stop at."""
        wants_line = self._stops_at_first_line and self._is_stop_file(_file(frame))
        return wants_line or bool(super().break_anywhere(frame))

    def break_here(self, frame: FrameType) -> bool:
        """Return whether to stop at the line that a frame is at."""
        if self._stops_at_first_line and self._is_stop_file(_file(frame)):
            self._stops_at_first_line = False
            return True
        return bool(super().break_here(frame))

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether stepping stops here: not in hidden code or its libraries."""
        if self._steps_statements:
            return self._is_statement(frame)
        return bool(super().stop_here(frame)) and not _is_called_by_hidden(frame)

    def set_next(self, frame: FrameType) -> None:
        """Step over calls; each statement of a cell has its own frame."""
        self._steps_statements = self._is_statement(frame)
        super().set_next(frame)

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line."""
        if not _is_called_by_hidden(frame):
            super().user_line(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop when a function is entered, not at a cell's statement."""
        if not (self._is_statement(frame) or _is_called_by_hidden(frame)):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop when a function returns."""
        if not (self._is_statement(frame) or _is_called_by_hidden(frame)):
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop at an exception, but not in hidden code such as asyncio's."""
        if not _is_called_by_hidden(frame):
            super().user_exception(frame, exc_info)

    def _is_statement(self, frame: FrameType) -> bool:
        return frame.f_code.co_name == "<module>" and self._owner.is_cell_file(_file(frame))

    # -- the prompt

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Let the user type commands about a running frame or a traceback.

        Raises:
            KeyboardInterrupt: the user has left the debugger, or has interrupted the cell.
        """
        self._inspected = frame, tb_or_exc
        self._run_stop(frame, lambda: _INTERACTION(self, frame, tb_or_exc))

    def bp_commands(self, frame: FrameType) -> Any:
        """Run a breakpoint's commands; return whether to call `interaction` after them.

        Before Python 3.14 pdb runs them, and shows its prompt after them, without `interaction`.
        """
        results: list[Any] = []
        run = functools.partial(super().bp_commands, frame)
        if getattr(self, "currentbp", 0) not in self.commands:
            return run()
        self._run_stop(frame, lambda: results.append(run()))
        return results[0] if results else None

    def _run_stop(self, frame: FrameType | None, run: Callable[[], None]) -> None:
        """Run the user's commands; end the cell if quit or interrupted."""
        self._steps_statements = False
        try:
            self._owner.begin_stop()
            run()
        except KeyboardInterrupt:
            # It arrived between two commands; those catch it.
            self.set_quit()
        finally:
            self._forget_frames()
            self._owner.end_stop(is_stepping=self.stoplineno != -1 or bool(self.breaks))
        if (self.quitting and frame is not None) or self._owner.interrupts.is_requested():
            self.end()
            raise self._owner.make_interrupt()

    def _forget_frames(self) -> None:
        self.forget()
        self._inspected = None, None
        self.__dict__.pop("curframe_locals", None)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the visible frames, outermost first, and the current one's index."""
        stack, index = super().get_stack(f, t)
        if not self._is_hiding:
            return stack, index
        first = next((at for at, (frame, _) in enumerate(stack) if CELL_FILE.fullmatch(_file(frame))), 0)
        shown = [at for at in range(first, len(stack)) if not _is_hidden(stack[at][0])]
        if not shown:
            return stack, index
        return [stack[at] for at in shown], max(sum(at <= index for at in shown) - 1, 0)

    def find_line(self) -> int | None:
        """Return the innermost cell line at or above the current frame."""
        lines = [line for frame, line in self.stack[: self.curindex + 1] if self._owner.is_cell_file(_file(frame))]
        return lines[-1] if lines else None

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Format a frame with the name that the notebook gives its cell."""
        frame, line = frame_lineno
        text: str = super().format_stack_entry(frame_lineno, lprefix)
        _, separator, source = text.partition(lprefix)
        named = CELL_FILE.fullmatch(_file(frame))
        seq = int(named[1]) if named else self._cell.seq if self._owner.is_cell_file(_file(frame)) else None
        name = self.canonic(_file(frame)) if seq is None else self._owner.name_cell(seq)
        function = "" if frame.f_code.co_name == "<module>" else f", in {frame.f_code.co_name}"
        value = f" -> {self._describe(frame.f_locals['__return__'])}" if "__return__" in frame.f_locals else ""
        return f"{name}, line {line}{function}{value}{separator}{source}"

    # -- commands

    def onecmd(self, line: str) -> bool:
        """Run a command, and return whether it ends the prompt."""
        self._is_about_breakpoints = self.parseline(line)[0] in _BREAKPOINT_COMMANDS
        try:
            return bool(super().onecmd(line))
        finally:
            self._is_about_breakpoints = False

    def message(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Print a message; name a breakpoint's cell as the notebook does."""
        if self._is_about_breakpoints:
            msg = _BREAKPOINT_PLACE.sub(lambda found: f"at {self._owner.name_cell(int(found[1]))}, line ", msg)
        super().message(msg, *args, **kwargs)

    def displayhook(self, obj: Any) -> None:
        """Show the value of an expression. A global array shows its layout."""
        if obj is not None or self._shows_none:
            self.message(self._format(obj))

    def _format(self, value: Any) -> str:
        return self._owner.format_value(value)

    def _describe(self, value: Any) -> str:
        """Format a value outside of a command, where nothing may be raised."""
        try:
            return self._format(value)
        except BaseException as error:  # noqa: BLE001 - the user's class raises what it likes, and an interrupt is remembered
            return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"

    def preloop(self) -> None:
        """Show the values of `display` that have changed."""
        displayed = self.displaying.get(self.curframe, {})
        for expression, before in list(displayed.items()):
            value = self._getval_except(expression)
            # By their text: arrays have no single answer to ==, and that of a global array would be a launch.
            old, new = self._describe(before), self._describe(value)
            if value is not before and old != new:
                displayed[expression] = value
                self.message(f"display {expression}: {new}  [old: {old}]")

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        """Split a line into command and argument; `q.shape` is not a command."""
        found = _NAME_IN_USE.match(line)
        if found is not None and (found["sets"] or self._is_variable(found["name"])):
            return None, None, line.strip()
        return super().parseline(line)

    def _is_variable(self, name: str) -> bool:
        return self.curframe is not None and (name in self.curframe.f_locals or name in self.curframe.f_globals)

    def default(self, line: str) -> None:
        """Run a statement in the current frame."""
        assert self.curframe is not None
        if sys.version_info >= (3, 13) or not self.curframe.f_code.co_flags & inspect.CO_OPTIMIZED:
            super().default(line)
            return
        before = dict(self.curframe_locals)
        super().default(line)
        missing = object()
        values = {name: v for name, v in self.curframe_locals.items() if v is not before.get(name, missing)}
        if values:
            _store_locals(self.curframe, values)

    def do_p(self, arg: str) -> None:
        """Print the value of an expression: p EXPRESSION."""
        if not arg:
            self.error("p needs an expression, such as p x.shape")
            return
        self._shows_none = True
        try:
            self.default(f"({arg}\n)")
        finally:
            self._shows_none = False

    do_pp = do_p

    def do_interact(self, arg: str) -> None:
        """Start an interpreter in the current frame; exit() ends it.

        A new name is not kept.
        """
        del arg
        console = code.InteractiveConsole({**self.curframe.f_globals, **self.curframe.f_locals})  # type: ignore[union-attr]
        console.raw_input = self._read_for_console  # type: ignore[method-assign]
        console.write = self._write_for_console  # type: ignore[method-assign]
        before = sys.displayhook, sys.excepthook, getattr(sys, "ps1", ">>> "), getattr(sys, "ps2", "... ")
        # With IPython's hook an error would be the cell's.
        sys.displayhook, sys.excepthook, sys.ps1, sys.ps2 = self.displayhook, sys.__excepthook__, ">>> ", "... "
        try:
            with redirect_stdout(self.terminal), redirect_stderr(self.terminal):
                _INTERACT(
                    console, banner="An interpreter in the current frame; exit() returns to the debugger.", exitmsg=""
                )
        except SystemExit:
            self.message("back in the debugger")
        finally:
            sys.displayhook, sys.excepthook, sys.ps1, sys.ps2 = before

    def _read_for_console(self, prompt: str = "") -> str:
        line = self.terminal.ask(prompt, self.terminal.take_printed())
        if line is None:
            raise EOFError
        return line

    def _write_for_console(self, data: str) -> None:
        self.terminal.write(data)

    def do_skip_hidden(self, arg: str) -> None:
        """skip_hidden on|off: hide the frames of JAX, IPython and mhnb."""
        wanted = {"on": True, "true": True, "off": False, "false": False}.get(arg.strip().lower())
        if wanted is None:
            self.error(f"skip_hidden {arg}: expected on or off".replace("  ", " "))
            return
        self._is_hiding = wanted
        frame, tb_or_exc = self._inspected
        traceback = tb_or_exc.__traceback__ if isinstance(tb_or_exc, BaseException) else tb_or_exc
        self.setup(frame, traceback)
        self.print_stack_entry(self.stack[self.curindex])

    def do_run(self, arg: str) -> None:
        """Refuse: a cell is not started again from its debugger."""
        del arg
        self.error("not available in a cell; leave with q and run the cell again")

    do_restart = do_debug = do_run

    def error(self, msg: object) -> None:
        """Print an error: a text, or one of pdb's exceptions."""
        super().error(str(msg).removeprefix("mhnb.errors."))


_INTERACTION = pdb.Pdb.interaction
_INTERACT = code.InteractiveConsole.interact
"""Those of the libraries: `RankDebugger.install` replaces them."""


class RankDebugger:
    """Decides whether code may stop, and connects pdb to the notebook.

    Args:
        interrupts: delivers the interrupts of this rank's cells.
        rank: this rank.
        send: sends a message to the notebook.
        source: where typed lines come from.
        flush_output: sends what the cell has printed so far.
        clock: returns seconds, from any origin.
    """

    def __init__(
        self,
        interrupts: InterruptDelivery,
        *,
        rank: int,
        send: Callable[[Message], None],
        source: PromptInput,
        flush_output: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.interrupts, self.rank, self._send, self._source = interrupts, rank, send, source
        self._flush_output, self._clock = flush_output, clock
        self._shell: Any = None
        self.request: RunCell | None = None
        """The cell whose code runs; set by the runner, so that a cell that does not stop calls nothing here."""
        self.cell: RunningCell | None = None
        """The same cell, as the shell knows it."""
        self.pdb: CellDebugger | None = None
        """The debugger of that cell; None until it is needed."""
        self._prompts, self._is_new_stop = 0, False
        self._left_at: float | None = None
        """When the last prompt was left; None once the notebook knows what came of it."""
        self._is_stepping = False
        self._is_at_prompt, self._is_ended = False, False
        self._wake_read, self._wake_write = -1, -1
        """A pipe that ends the wait for a line. It is made at the first stop, and kept."""
        self._pid = os.getpid()

    # -- cells

    def make_pdb(self) -> CellDebugger:
        """Return the cell's debugger; create it at the first call."""
        assert self.cell is not None
        self.pdb = self.pdb or CellDebugger(self, self.cell)
        return self.pdb

    def end_cell(self, seq: int) -> None:
        """Report that the code ran on, if unreported; drop the debugger."""
        self._report_resumed(seq)
        self.pdb = None

    def is_cell_file(self, file: str) -> bool:
        """Return whether code of that file name belongs to the running cell."""
        return self.cell is not None and self.cell.owns_file(file)

    def name_cell(self, seq: int) -> str:
        """Return a cell's name for the user, or the running script's."""
        return getattr(self._shell, "script_name", "") or CELL_NAMES.format_name(seq)

    def format_value(self, value: Any) -> str:
        """Format a value as the shell does: global arrays without communication.

        What the value's class raises is raised here. IPython would show it as an error of the cell.
        """
        formatter = self._shell.display_formatter.formatters["text/plain"]
        call = type(formatter).__call__
        return str(getattr(call, "__wrapped__", call)(formatter, value))

    # -- stops

    def stop(self, frame: FrameType, what: str) -> None:
        """Stop the code that a frame runs.

        Args:
            what: the call that asks for it, for messages.

        Raises:
            NoKeyboard: nothing can be typed.
            BreakpointRefused: the code may not stop there.
            KeyboardInterrupt: the user has left the debugger, or has interrupted the cell.
        """
        if self._may_stop(frame, what):
            self.make_pdb().stop_at(frame)

    def post_mortem(self, error: Any, what: str) -> None:
        """Inspect the frames of an error.

        Args:
            error: an exception, or its traceback.
            what: the call that asks for it, for messages.

        Raises:
            NoKeyboard: nothing can be typed.
            BreakpointRefused: the code may not stop here.
            KeyboardInterrupt: the user has interrupted the cell.
        """
        if self._may_stop(sys._getframe(1), what):
            traceback = error.__traceback__ if isinstance(error, BaseException) else error
            self.make_pdb().inspect_traceback(traceback)

    def _may_stop(self, frame: FrameType | None, what: str) -> bool:
        """Return whether to stop; raise if the code must not continue."""
        mode = None if self.request is None else self.request.debug
        is_rank = os.getpid() == self._pid
        is_main = threading.current_thread() is threading.main_thread()
        if is_rank and ((mode is not None and mode.is_replay) or (is_main and self._is_at_prompt)):
            # A replay repeats what the user has seen; code that a command calls runs for that command alone.
            return False
        self._check_keyboard(frame, what)
        assert mode is not None
        reason = mode.refusal
        if not is_main:
            reason = _IN_THREAD
        elif self.interrupts.is_launching:
            reason = _IN_LAUNCH
        if reason:
            raise BreakpointRefused(_REFUSED.format(what=what, place=self._format_place(frame), reason=reason))
        return True

    def refuse_jax(self, frame: FrameType | None) -> NoReturn:
        """Refuse `jax.debug.breakpoint()`.

        Raises:
            NoKeyboard: nothing can be typed.
            BreakpointRefused: always otherwise.
        """
        self._check_keyboard(frame, "jax.debug.breakpoint()")
        raise BreakpointRefused(_IN_JIT.format(place=self._format_place(frame)))

    def _check_keyboard(self, frame: FrameType | None, what: str) -> None:
        if self.request is None or self.request.debug is None:
            raise NoKeyboard(_NO_TERMINAL.format(what=what, place=self._format_place(frame)), what=what)

    def _refuse_terminal_debuggers(self, original: Callable[..., None]) -> Callable[..., None]:
        """Make IPython's terminal debuggers and ipdb raise: a rank has no terminal."""
        own = self

        @functools.wraps(original)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            if hasattr(type(self), "pt_init"):
                own._check_keyboard(sys._getframe(1), type(self).__name__)
                raise BreakpointRefused(_NEEDS_TERMINAL.format(name=type(self).__name__))
            original(self, *args, **kwargs)

        return make

    def _format_place(self, frame: FrameType | None) -> str:
        while frame is not None and not self.is_cell_file(_file(frame)):
            frame = frame.f_back
        return f"rank {self.rank}" if frame is None else f"rank {self.rank} at line {frame.f_lineno}"

    # -- the prompt

    def begin_stop(self) -> None:
        """Begin to wait for the user; interrupts now go to the prompt."""
        if self._wake_write < 0:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
        self._is_ended = False
        _drain(self._wake_read)
        # Nothing may be raised while a message is sent or received. Only a command can be interrupted anywhere.
        self.interrupts.at_prompt = self._wake
        self._is_new_stop = self._is_at_prompt = True
        self._flush_output()
        # Commands of a breakpoint run before the first prompt.
        self.interrupts.at_prompt = self._interrupt_command

    def end_stop(self, *, is_stepping: bool) -> None:
        """End the wait; keep its last output for the next message."""
        self.interrupts.at_prompt = self._wake
        try:
            if not self._is_new_stop:
                self._left_at, self._is_stepping = self._clock(), is_stepping
            elif self.pdb is not None and (printed := self.pdb.terminal.take_printed()):
                # The commands of a breakpoint have let the code run on without a prompt, perhaps in each turn of a loop.
                sys.stdout.write(printed)
        finally:
            self._is_at_prompt = False
            self.interrupts.at_prompt = None

    def report_running(self, seq: int, *, waits: bool) -> None:
        """Report that code runs on, once it waits or a second passes.

        `waits` means for other ranks. Called from another thread, just before the rank reports where it is.
        """
        with self.interrupts.lock:
            if self._left_at is not None and (waits or self._clock() - self._left_at >= _RUNS_ON_AFTER_S):
                self._report_resumed(seq)

    def _report_resumed(self, seq: int) -> None:
        if self._left_at is not None and self.pdb is not None:
            self._left_at = None
            self._send(DebugResumed(self.rank, seq, self.pdb.terminal.take_printed(), self._is_stepping))

    def ask(self, prompt: str, text: str) -> str | None:
        """Prompt for a line; return None at end of input or interrupt."""
        self.interrupts.at_prompt = self._wake
        if self._is_ended or self.request is None:
            return None
        assert self.pdb is not None
        is_new, self._is_new_stop = self._is_new_stop, False
        line = self.pdb.find_line()
        self._prompts += 1
        with self.interrupts.lock:
            # The code has not run on since the prompt before.
            self._left_at = None
            self._send(DebugPrompt(self.rank, self.request.seq, self._prompts, prompt, text, line, is_new))
        typed = self._source.read_line(self._prompts, self._wake_read)
        if typed is None:
            self._is_ended = True
        else:
            self.interrupts.at_prompt = self._interrupt_command
        return typed

    def _wake(self, is_requested: bool) -> None:  # noqa: FBT001 - the signature of `at_prompt`
        """End the wait for a line; ignore a signal from elsewhere."""
        if is_requested:
            self._is_ended = True
            os.write(self._wake_write, b"x")

    def _interrupt_command(self, is_requested: bool) -> NoReturn:  # noqa: FBT001 - the signature of `at_prompt`
        """Interrupt the command at the prompt; the signal handler calls this."""
        self._is_ended = self._is_ended or is_requested
        raise KeyboardInterrupt

    def make_interrupt(self) -> BaseException:
        """Create the exception that ends the cell after the prompt."""
        if os.getpid() != self._pid:
            return KeyboardInterrupt()
        self.interrupts.mark_unsynchronized()
        return self.interrupts.make_exception()

    # -- the functions that stop code

    def install(self, shell: InteractiveShell) -> None:
        """Make `breakpoint()`, pdb, IPython's debugger and `%debug` use this debugger."""
        self._shell = shell
        _INSTALLED[:] = [self]
        os.register_at_fork(after_in_child=weak_callback(self._become_child))
        sys.breakpointhook = self._on_breakpoint
        pdb.set_trace = self._on_set_trace
        own = self

        def set_trace(_: pdb.Pdb, frame: FrameType | None = None, **__: Any) -> None:
            own.stop(frame or sys._getframe(1), "pdb.set_trace()")

        def interact(_: pdb.Pdb, frame: FrameType | None, error: Any) -> None:
            if error is None and frame is not None:
                own.stop(frame, "pdb")
            else:
                own.post_mortem(error, "pdb")

        pdb.Pdb.set_trace = set_trace  # type: ignore[method-assign, assignment]
        pdb.Pdb.interaction = interact  # type: ignore[method-assign, assignment]
        debugger.Pdb.__init__ = self._refuse_terminal_debuggers(debugger.Pdb.__init__)  # type: ignore[method-assign]
        shell.register_magic_function(self._on_debug_magic, "line_cell", "debug")  # type: ignore[arg-type]

    def _become_child(self) -> None:
        """Disable stops in a forked child: it is not the rank."""
        self.request = None
        sys.settrace(None)

    def _on_breakpoint(self, *args: Any, header: str | None = None, **kwargs: Any) -> None:
        """Stop here, as `breakpoint()` does with pdb."""
        del args, kwargs
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            self._stop_with_header(sys._getframe(1), "breakpoint()", header)

    def _on_set_trace(self, *, header: str | None = None, commands: object = None) -> None:
        """Stop here, as `pdb.set_trace()` does."""
        del commands
        self._stop_with_header(sys._getframe(1), "pdb.set_trace()", header)

    def _stop_with_header(self, frame: FrameType, what: str, header: str | None) -> None:
        if header is not None and self._may_stop(frame, what):
            self.make_pdb().message(header)
        self.stop(frame, what)

    def _on_debug_magic(self, line: str, cell: str | None = None) -> None:
        """Inspect the frames of the last error of this rank."""
        if line.strip() or cell is not None:
            raise BreakpointRefused(
                "%debug takes no code on a rank\n  Fix: put breakpoint() into the code, or use %%mhjax --debug"
            )
        self._check_keyboard(sys._getframe(1), "%debug")
        traceback = getattr(sys, "last_traceback", None)
        if traceback is None:
            print(f"rank {self.rank} has no error to inspect")
            return
        if all(_is_hidden(frame) for frame, _ in walk_tb(traceback)):
            print(f"rank {self.rank} has no frames to inspect: its last error came before any code of the cell ran")
            return
        self.post_mortem(traceback, "%debug")


_INSTALLED: list[RankDebugger] = []
"""The debugger of this process; empty in a mere engine."""


def disable_jax_breakpoint(jax: Any) -> None:
    """Make `jax.debug.breakpoint` raise, because it would stop inside a running program."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        """Raise, because a running program cannot be stopped on one rank."""
        if not _INSTALLED:
            raise NoKeyboard(
                _NO_TERMINAL.format(what="jax.debug.breakpoint()", place="a rank"), what="jax.debug.breakpoint()"
            )
        _INSTALLED[-1].refuse_jax(sys._getframe(1))

    refuse.__name__ = refuse.__qualname__ = "breakpoint"
    jax.debug.breakpoint = refuse


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_hidden(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return type(name) is str and name.partition(".")[0] in _HIDDEN_PACKAGES


def _is_called_by_hidden(frame: FrameType | None) -> bool:
    """Return whether a frame is hidden, or hidden code called its library."""
    while frame is not None:
        if _is_hidden(frame):
            return True
        file = _file(frame)
        # A named tuple, for example, has code without a file.
        if file.startswith(_USER_TEXTS) or not (file.startswith("<") or is_library_file(file)):
            return False
        frame = frame.f_back
    return True


def _store_locals(frame: FrameType, values: dict[str, Any]) -> None:
    """Set variables of a running function, for Python before 3.13."""
    frame.f_locals.update(values)
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _drain(fd: int) -> None:
    """Read what a pipe holds."""
    try:
        while os.read(fd, 1024):
            pass
    except BlockingIOError:
        return


class _DefineRank(ast.NodeTransformer):
    def __init__(self, rank: int) -> None:
        self._rank = rank

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_read = node.id == "rank" and isinstance(node.ctx, ast.Load)
        return ast.copy_location(ast.Constant(self._rank), node) if is_read else node


def _define_rank(condition: str, rank: int) -> str:
    """Replace the name `rank`, which frames may lack, by its value.

    >>> _define_rank("rank == 2 and x > 0", 3)
    '3 == 2 and x > 0'
    >>> _define_rank("(rank := 2)", 3)
    '(rank := 2)'
    """
    return ast.unparse(_DefineRank(rank).visit(ast.parse(condition, mode="eval")))
