"""The rank's IPython shell: interprets cells and sends output to the capture.

It does not know messages, nor when a cell may run; that is the runner's part.
`%time` and `%%time` include what the cell has launched, which continues when Python is done with it.
"""

from __future__ import annotations

import asyncio
import builtins
import keyword
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Coroutine
from subprocess import CalledProcessError
from types import CodeType, TracebackType
from typing import Any, NamedTuple, TypeVar

from IPython.core.autocall import IPyAutocall, ZMQExitAutocall
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult
from IPython.core.macro import Macro
from IPython.utils import timing
from IPython.utils.process import system  # type: ignore[attr-defined]  # chosen by platform there
from traitlets import Type, default

from mhnb.core.cell_name import NO_PLACE, CellPlace, number_lines
from mhnb.core.error_site import EMBEDDED_TRACEBACK, ErrorSite, trim_embedded_traceback
from mhnb.core.memory import AllocationFailure
from mhnb.core.output.events import ErrorRaised
from mhnb.rank.execution.callbacks import is_interrupt
from mhnb.rank.execution.capture import Capture
from mhnb.rank.execution.cell_names import CELL_NAMES, cell_file
from mhnb.rank.execution.display import RankDisplayHook, RankDisplayPublisher, clean_bundle
from mhnb.rank.execution.exceptions import (
    Reading,
    cause_of,
    class_has,
    contains_group,
    find_failed_allocation,
    is_a,
    is_runtime_error,
    name_of,
    read_error,
    text_of,
    traceback_of,
)
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.execution.ipython_private import PublicShell, describe_missing_names
from mhnb.rank.execution.shell_patches import (
    NO_BROWSER_NOTE,
    RankHistory,
    disable_stdin,
    install_text_output,
    name_cells_in_warnings,
    without_input,
)
from mhnb.rank.execution.tracebacks import (
    INNER_TEXT_MAGICS,
    CellCompiler,
    RunningCell,
    align_lines,
    cut_library_frames,
    find_cell_line,
    find_error_site,
    find_inner_line,
    format_folded,
    format_frames,
    has_cell,
    hide_own_frames,
    name_innermost_line,
    print_thread_error,
)

_T = TypeVar("_T")

_FIRST_WORD = re.compile(r"[^\W\d]\w*")
_PROMPT = re.compile(r"In \[\d+\]: ")
"""Code that is pasted with its prompt parses as Python too, as an annotation; IPython removes the prompt."""
_INLINE = "module://matplotlib_inline.backend_inline"
_INLINE_BACKENDS = (None, "auto", "inline", _INLINE, "agg", "Agg", "pdf", "svg", "ps", "cairo", "template")
"""Backends that `%matplotlib` may request on a rank."""
_EXIT_NOTE = "The rank is still running, because a cell cannot end its own rank. To stop the cluster: %mhjax stop"


class PreparedCell(NamedTuple):
    """A cell after IPython's transformations."""

    source: str
    transformed: str
    failure: Any
    """`exc_info` of a failed transformation, else None."""
    awaits: bool
    """Whether it has a top-level await and needs the event loop."""


class _Exit(ZMQExitAutocall):
    """`exit` and `quit`."""

    def __call__(self, keep_kernel: bool = False) -> None:  # noqa: FBT001, FBT002
        del keep_kernel
        raise SystemExit


class RankShell(PublicShell):
    """An IPython shell that sends its output to an attached capture.

    `execution_count` is the number that the notebook shows beside the cell, or else mhnb's own.
    """

    displayhook_class = Type(RankDisplayHook)
    display_pub_class = Type(RankDisplayPublisher)
    # Plain attributes instead of traits: they have no observers, and setting a trait costs more than running a short
    # cell.
    execution_count = 1
    last_execution_result: ExecutionResult | None = None
    last_execution_succeeded = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.capture: Capture | None = None
        self.cell: RunningCell | None = None
        self.clock: Callable[[], float] = float
        self.shows_exit_code = False
        """Whether a script is run: then the argument of `sys.exit` is shown, as Python writes it."""
        self.script_name = ""
        """The name of the script that is run, for the debugger; empty if cells are."""
        self.before_time_magic: Callable[[], None] = lambda: None
        self._interrupts = InterruptDelivery()
        self.error_shown: BaseException | None = None
        """The latest exception of the running cell that was shown."""
        self._reading: Reading | None = None
        """The reading of the latest exception that was read."""
        self._replaced_error: tuple[BaseException, BaseException] | None = None
        """The running cell's error if IPython must not evaluate it, and the error that IPython gets instead."""
        self._note_shown: Callable[[BaseException], None] = lambda _: None
        """Called with every exception that is shown."""
        kwargs["compiler_class"] = CellCompiler
        super().__init__(*args, **kwargs)
        manager = self.input_transformer_manager
        self._own_transformers = (
            len(manager.cleanup_transforms),
            len(manager.line_transforms),
            len(manager.token_transformers),
        )

    # -- replaced parts of IPython

    def system_piped(self, cmd: str) -> None:
        """Run `!cmd` with empty input, because a prompt would wait forever."""
        if cmd.rstrip().endswith("&"):
            # It raises with the reason why IPython does not accept such a command.
            super().system_piped(cmd)
            return
        # Not by the method above: quoted text must not be expanded, nor expanded text a second time.
        self.user_ns["_exit_code"] = code = system(without_input(self.var_expand(cmd, depth=1)))
        if code and getattr(self, "system_raise_on_error", False):
            raise CalledProcessError(code, cmd)

    system = system_piped

    @default("exiter")
    def _make_exiter(self) -> _Exit:
        return _Exit(self)

    def init_history(self) -> None:
        """Keep the history in memory."""
        self.history_manager = RankHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]  # its list is typed by its first item

    def attach_capture(
        self,
        capture: Capture,
        clock: Callable[[], float],
        interrupts: InterruptDelivery,
        *,
        note_shown: Callable[[BaseException], None],
    ) -> None:
        """Send output to the capture from now on; make keyboard reads raise.

        Args:
            note_shown: called with every exception that is shown.
        """
        assert isinstance(self.display_pub, RankDisplayPublisher)
        assert isinstance(self.displayhook, RankDisplayHook)
        self.capture = self.display_pub.capture = self.displayhook.capture = capture
        self.clock, self._interrupts, self._note_shown = clock, interrupts, note_shown
        for line in describe_missing_names():
            capture.write_to_log(f"mhnb: {line}\n")
        threading.excepthook = print_thread_error
        install_text_output()
        name_cells_in_warnings()
        disable_stdin(self)
        # Entered once, not for each cell: only cells use this process.
        self.builtin_trap.__enter__()
        self.display_trap.__enter__()
        # IPython adds to each SystemExit how to leave a terminal.
        warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)
        # What `!` forks becomes another program at once. JAX's warning of a deadlock would appear above the first one.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning, module="pty")
        # ipykernel names a terminal of 16 colours, in which neighbours of `visualize_array_sharding` share one. rich
        # does not
        # recognise this shell as a notebook's, which is good: its widgets would reach no browser.
        os.environ.setdefault("COLORTERM", "truecolor")
        os.environ.setdefault("MPLBACKEND", _INLINE)
        # Otherwise plotly sends its whole script, 5 MB per rank; the front end has it, or draws nothing anyway.
        os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
        if os.environ["MPLBACKEND"] == _INLINE:
            _reload_inline_backend()

    # -- a cell

    def prepare(self, seq: int, source: str, place: CellPlace = NO_PLACE) -> PreparedCell:
        """Begin a cell: number it and its lines, and transform it."""
        self.cell = RunningCell(seq, source, self.clock(), place.first_line)
        self.error_shown, self._reading = None, None
        self.execution_count = seq if place.execution_count is None else place.execution_count
        # The previous cell may have replaced it.
        sys.displayhook = self.displayhook
        if "_oh" not in self.user_ns or self.user_ns.get("__builtins__") is None:
            self._restore_names()
        assert isinstance(self.compile, CellCompiler)
        self.compile.running, self.compile.execution_count = seq, self.execution_count
        self.compile.inner_first_line = place.first_line + 1 if source.startswith(INNER_TEXT_MAGICS) else 1
        # Empty lines above the source give its lines their numbers wherever Python counts them, also in a SyntaxError.
        numbered = number_lines(source, place.first_line)
        if self._needs_no_transformation(seq, source, numbered):
            return PreparedCell(source, numbered, None, awaits=False)
        try:
            transformed = number_lines(align_lines(source, self.transform_cell(source)), place.first_line)
        except Exception:  # noqa: BLE001
            # IPython shows it as the cell's own error, as it does in `run_cell`.
            return PreparedCell(source, source, sys.exc_info(), awaits=False)
        # Asking IPython costs a compilation; without one of these words the answer is no.
        maybe = "await" in transformed or "async" in transformed
        awaits = maybe and self.should_run_async(source, transformed_cell=transformed)
        return PreparedCell(source, transformed, None, awaits=awaits)

    def _restore_names(self) -> None:
        """Restore the names that cells need, after one cleared its globals."""
        self.user_ns.setdefault("__name__", "__main__")
        self.user_ns["__builtins__"] = self.user_ns["__builtin__"] = builtins
        self.init_user_ns()

    def _needs_no_transformation(self, seq: int, source: str, numbered: str) -> bool:
        """Return whether IPython's transformation would not change the cell.

        Text that parses as Python has no `%`, `!` or `?` syntax. Only a single line can still be a magic or a call without
        parentheses. This check costs a tenth of the transformation.
        """
        manager = self.input_transformer_manager
        transformers = (manager.cleanup_transforms, manager.line_transforms, manager.token_transformers)
        if (
            tuple(map(len, transformers)) != self._own_transformers
            or self.input_transformers_post
            or source[:1].isspace()
            or _PROMPT.match(source)
        ):
            return False
        if "await" in source or "async" in source:
            return False
        if "\n" not in source.strip() and self._may_be_magic(source):
            return False
        assert isinstance(self.compile, CellCompiler)
        return self.compile.parse_ahead(numbered, cell_file(seq))

    def _may_be_magic(self, line: str) -> bool:
        found = _FIRST_WORD.match(line)
        if found is None or keyword.iskeyword(word := found[0]):
            return False
        if self.autocall:
            return True
        # Its real class: `__class__` is the user's code.
        kind = type(self.user_ns.get(word))
        return word in self.magics_manager.magics["line"] or issubclass(kind, IPyAutocall | Macro)

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run a magic; before `%time`, wait for earlier launches."""
        if magic_name == "time":
            self.before_time_magic()
        return super().run_line_magic(magic_name, line, _stack_depth + 1)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """Run a cell magic, like `run_line_magic`."""
        if magic_name == "time":
            self.before_time_magic()
        return super().run_cell_magic(magic_name, line, cell)

    def run_prepared(self, cell: PreparedCell) -> ExecutionResult:
        """Run a cell that needs no event loop."""
        try:
            self._coroutine(cell).send(None)
        except StopIteration as done:
            return self._finish(done.value)
        finally:
            self._trigger_end_events()
        raise RuntimeError("IPython awaited in a cell without await")

    async def run_prepared_async(self, cell: PreparedCell) -> ExecutionResult:
        """Run a cell on the event loop."""
        try:
            return self._finish(await self._coroutine(cell))
        finally:
            self._trigger_end_events()

    def _finish(self, result: ExecutionResult) -> ExecutionResult:
        replaced, self._replaced_error = self._replaced_error, None
        if replaced is not None and result.error_in_exec is replaced[1]:
            result.error_in_exec = replaced[0]
        return result

    async def run_code(
        self, code_obj: CodeType, result: ExecutionResult | None = None, *, async_: bool = False
    ) -> bool:
        """Run code; keep its error even if showing or testing it raises."""
        try:
            raised: bool = await super().run_code(code_obj, result, async_=async_)
        except Exception as broken:
            if result is None or result.error_in_exec is None:
                raise
            why = f"{name_of(broken)}: {text_of(broken)}".removesuffix(": ")
            print(
                f"mhnb: a cell replaced IPython's function to show errors, and the replacement raised {why}",
                file=sys.stderr,
            )
            raised = True
        error = None if result is None else result.error_in_exec
        if (
            result is not None
            and error is not None
            and (class_has(type(error), "__bool__") or class_has(type(error), "__len__"))
        ):
            # IPython tests next whether it is true. The original error is restored at the cell's end.
            result.error_in_exec = plain = self._read(error).plain
            self._replaced_error = error, plain
        return raised

    def _coroutine(self, cell: PreparedCell) -> Coroutine[Any, Any, ExecutionResult]:
        self.drawn_error = None
        coroutine: Coroutine[Any, Any, ExecutionResult] = self.run_cell_async(
            cell.source, store_history=True, transformed_cell=cell.transformed, preprocessing_exc_tuple=cell.failure
        )
        return coroutine

    def _trigger_end_events(self) -> None:
        """Trigger a cell's end events, at which matplotlib shows its figures."""
        self.events.trigger("post_execute")
        self.events.trigger("post_run_cell", self.last_execution_result)

    def is_cell_file(self, name: str) -> bool:
        """Return whether code of that file name belongs to the running cell."""
        return self.cell is not None and self.cell.owns_file(name)

    # -- errors

    def showtraceback(
        self,
        exc_tuple: tuple[Any, Any, Any] | None = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,  # noqa: FBT001, FBT002
        running_compiled_code: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Show the exception that was just raised, without this package's frames.

        A library or a cell may have replaced this method, or the one that shows drawn lines: such a hook is called, as IPython calls it.
        """
        _, raised, tb = exc_tuple or sys.exc_info()
        if self.capture is None or not is_a(raised, BaseException):
            super().showtraceback(exc_tuple, filename, tb_offset, exception_only, running_compiled_code)
            return
        value = self._find_interrupt(raised)
        tb = hide_own_frames(tb if value is raised else traceback_of(value))
        # `%tb` and hooks read these.
        sys.last_type, sys.last_value, sys.last_traceback = type(value), value, tb
        if is_a(value, SyntaxError):
            self.showsyntaxerror(filename, running_compiled_code)
        elif type(value) is UsageError:
            self.show_usage_error(value)
        else:
            self.call_error_hook(value, self._format_error(value, tb, tb_offset))
            self.error_shown = raised if self.error_shown is value else self.error_shown

    def showsyntaxerror(self, filename: str | None = None, running_compiled_code: bool = False) -> None:  # noqa: FBT001, FBT002
        """Show a compiler error of the cell or a file it imports."""
        value = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if self.capture is None or value is None:
            super().showsyntaxerror(filename, running_compiled_code)
            return
        # As in `showtraceback`: IPython calls this one at once if the cell itself cannot be compiled.
        sys.last_type, sys.last_value, sys.last_traceback = type(value), value, hide_own_frames(traceback_of(value))
        self.call_error_hook(value, self._format_error(value, traceback_of(value)))

    def _format_error(self, error: BaseException, tb: TracebackType | None, tb_offset: int | None = None) -> list[str]:
        """Format an error with its traceback, by IPython if that succeeds."""
        if is_a(error, SystemExit):
            # For the code that runs a script `sys.exit` has one name, also for a derived class.
            code = f"SystemExit: {_format_exit_code(error)}"
            line = code if self.shows_exit_code else f"{name_of(error)}: {text_of(error)}"
            return [line, _EXIT_NOTE]
        if is_a(error, (KeyboardInterrupt, asyncio.CancelledError)):
            # Where in JAX it arrived is of no use, and rendering those frames takes seconds on a busy machine.
            cut_library_frames(tb)
        reading = self._read(error)
        plain = reading.plain
        broken: BaseException | None = None
        for each in (error, plain) if reading.is_ordinary else (plain,):
            try:
                if class_has(type(error), "_render_traceback_") and broken is None:
                    return _check_lines(error._render_traceback_())  # type: ignore[attr-defined]
                return _check_lines(self._format_by_ipython(each, tb, tb_offset))
            except BaseException as raised:  # noqa: BLE001 - the report says so; an interrupt ends only the drawing
                broken = raised
        assert broken is not None
        why = f"(IPython could not format it: {name_of(broken)}: {text_of(broken)})"
        return [*format_frames(_skip_to_cell_code(tb) or tb), f"{name_of(plain)}: {plain}", why]

    def _format_by_ipython(self, error: BaseException, tb: TracebackType | None, tb_offset: int | None) -> Any:
        if contains_group(error):
            # IPython's own renderer does not draw groups.
            return [
                CELL_NAMES.name_frames(text)
                for text in traceback.format_exception(type(error), error, _skip_ipython_frames(tb))
            ]
        if is_a(error, SyntaxError):
            return self.SyntaxTB.structured_traceback(type(error), error, traceback.extract_tb(_skip_to_cell_code(tb)))  # type: ignore[arg-type]
        return self.InteractiveTB.structured_traceback(type(error), error, tb, tb_offset=tb_offset)

    def _read(self, error: BaseException) -> Reading:
        """Read an error once: its text may be long, or change."""
        if self._reading is None or self._reading.error is not error:
            self._reading = read_error(error, hide_own_frames)
        return self._reading

    def ensure_error_shown(self, error: BaseException) -> None:
        """Show the cell's error unless shown; a hook's output does not count."""
        if self.error_shown is error:
            return
        shown = self._find_interrupt(error)
        tb = hide_own_frames(traceback_of(shown))
        self._publish_error(shown, self._format_error(shown, tb, tb_offset=0))
        self.error_shown = error

    def _find_interrupt(self, error: BaseException) -> BaseException:
        """Return the interrupt behind a program's failure, at the failure's line.

        It has closed the program's connections, or given up its callback. The signal may hit the shell when the
        failure has left the cell's code. Any other error is returned as it is.
        """
        if not (self._interrupts.was_requested and is_interrupt(error)):
            return error
        failed = cause_of(error) if is_a(error, KeyboardInterrupt) else error
        if failed is None or not is_runtime_error(failed):
            return error
        is_in_cell, has_reached_cell = (has_cell(traceback_of(each)) for each in (error, failed))
        # The cell's code may have handled a failure that has reached it, before the interrupt.
        if failed is not error and ((is_in_cell and has_reached_cell) or "Gloo" not in text_of(failed)):
            return error
        return KeyboardInterrupt().with_traceback(traceback_of(error if is_in_cell else failed))

    def show_usage_error(self, exc: BaseException) -> None:
        """Show a magic's usage error as an error of the cell."""
        if self.capture is None:
            super().show_usage_error(exc)
        else:
            self.call_error_hook(exc, [f"UsageError: {text_of(exc)}"])

    def show_drawn_error(self, kind: type[BaseException], error: BaseException, drawn: list[str]) -> None:
        """Send an error to the notebook."""
        if self.capture is None:
            super().show_drawn_error(kind, error, drawn)
        else:
            self._publish_error(error, drawn)

    def _publish_error(self, error: BaseException, drawn: list[str]) -> None:
        """Send an error to the notebook: its name, text, traceback and place."""
        assert self.capture is not None
        self.drawn_error = drawn
        self._note_shown(error)
        plain = self._read(error).plain
        name, full = name_of(plain), str(plain)
        text = CELL_NAMES.name_frames(trim_embedded_traceback(full)) if EMBEDDED_TRACEBACK in full else full
        text = CELL_NAMES.name_file_in(text) if is_a(error, SyntaxError) else CELL_NAMES.name_places(text)
        if text != full:
            drawn = [piece.replace(full, text) for piece in drawn]
        if self._interrupts.was_requested and is_a(error, asyncio.CancelledError):
            name, drawn = "KeyboardInterrupt", [*drawn[:-1], "KeyboardInterrupt: "]
        elif is_a(error, SystemExit):
            text = f"{text} · {_EXIT_NOTE}" if text else _EXIT_NOTE
        at_s = self.clock() - self.cell.began_s if self.cell else 0.0
        nowhere: tuple[int | None, str | None] = (None, None)
        line, code = self._find(find_cell_line, error, nowhere)
        site = self._find(lambda error, _: find_error_site(error), error, ErrorSite())
        memory = self._describe_failed_allocation(error)
        inner = self._find(find_inner_line, error, ("", ""))
        self.capture.publish(ErrorRaised(name, text, list(drawn), line, code, at_s, site, memory, *inner))
        self.error_shown = error

    def describe_callback_error(self, failed: Reading, program: str) -> ErrorRaised:
        """Describe what a function raised that a program called. From any thread."""
        error, plain = failed.error, failed.plain
        tb = traceback_of(error)
        at_s = self.clock() - self.cell.began_s if self.cell else 0.0
        line, code = (None, None) if self.cell is None else find_cell_line(error, self.cell)
        place = name_innermost_line(tb)
        called = f"in a callback of {program}{f', {place}' if place else ''}"
        name, text = name_of(error), text_of(plain)
        evalue, folded = f"{text}\n{called}".strip(), format_folded(plain, tb).rstrip()
        # The card shows the text once if it is the traceback's last entry.
        frames = folded.removesuffix(f"{name}: {text}".removesuffix(": "))
        last = [f"{name}: {evalue}"] if frames != folded else []
        return ErrorRaised(name, evalue, [*frames.splitlines(), *last], line, code, at_s)

    def _describe_failed_allocation(self, error: BaseException) -> AllocationFailure | None:
        """Describe memory after a failed allocation, while frames hold their arrays."""
        cause = find_failed_allocation(error)
        if cause is None:
            return None
        try:
            # Imported only here: most cells never need it.
            from mhnb.rank.memory import describe_failure

            seq = 0 if self.cell is None else self.cell.seq
            return describe_failure(cause, self.user_ns, self.user_ns_hidden, seq=seq)
        except BaseException as broken:  # noqa: BLE001 - memory may be short for this, too; an interrupt ends only the card
            why = f"{name_of(broken)}: {text_of(broken)}".removesuffix(": ")
            return AllocationFailure(problem=f"the arrays in memory could not be listed: {why}")

    def _find(self, find: Callable[[BaseException, RunningCell], _T], error: BaseException, unknown: _T) -> _T:
        """Return what `find` finds of an error; `unknown` if it raises."""
        assert self.capture is not None
        if self.cell is None:
            return unknown
        try:
            return find(error, self.cell)
        except Exception as broken:  # noqa: BLE001 - the cell's own scope raised, or a function that the cell replaced
            why = f"{name_of(broken)}: {text_of(broken)}"
            self.capture.write_to_log(f"mhnb: the line of this cell's error could not be found: {why}\n")
            return unknown

    def summarise_error(self, error: BaseException) -> dict[str, Any]:
        """Return what was shown; IPython would render every traceback a second time."""
        plain = self._read(error).plain
        return {"ename": name_of(plain), "evalue": str(plain), "traceback": self.drawn_error or []}

    # -- tasks of a notebook's front end

    def enable_matplotlib(self, gui: str | None = None) -> Any:
        """Draw inline if `%matplotlib` requests a browser or a screen."""
        if self.capture is None or gui in _INLINE_BACKENDS:
            return super().enable_matplotlib(gui)
        print(f"mhnb: {NO_BROWSER_NOTE.format(f'%matplotlib {gui}')}", file=sys.stderr)
        return super().enable_matplotlib("inline")

    def payloadpage_page(self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
        """Show `name?` in the cell's output; a rank has no pager."""
        del start, screen_lines, pager_cmd
        data = strg if isinstance(strg, dict) else {"text/plain": strg}
        self.display_pub.publish(clean_bundle(data.get("data", data)))

    def set_next_input(self, text: str, replace: bool = False) -> None:  # noqa: FBT001, FBT002
        """Show the text that %load and similar magics would insert."""
        del replace
        self.display_pub.publish({"text/plain": text})

    def ask_exit(self) -> None:
        """Refuse to end the rank."""
        raise SystemExit


def _skip_ipython_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without IPython's frames that ran the cell."""
    while tb is not None and "IPython" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    return tb


def _skip_to_cell_code(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the cell's code on; None if not compiled."""
    while tb is not None and not (
        tb.tb_frame.f_code.co_name == "run_code" and "IPython" in tb.tb_frame.f_code.co_filename
    ):
        tb = tb.tb_next
    return None if tb is None else tb.tb_next


def _check_lines(drawn: Any) -> list[str]:
    """Check that foreign code has drawn a traceback as lines of text."""
    if not is_a(drawn, list) or not all(is_a(piece, str) for piece in drawn):
        raise TypeError("it is not a list of strings")
    return [str.__str__(piece) for piece in drawn]


def _format_exit_code(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return repr(code) if type(code) in (int, str, bool, type(None)) else text_of(error)


def _reload_inline_backend() -> None:
    """Make the next import load the inline backend again.

    It looks for a shell only when it is imported, and the supervisor did that before one existed.
    """
    sys.modules.pop("matplotlib_inline.backend_inline", None)
    if (matplotlib := sys.modules.get("matplotlib")) is not None:
        matplotlib.rcParams["backend"] = _INLINE


# -- `%time` and `%%time` include pending launches


def include_launches_in_time(shell: RankShell, wait: Callable[[], None], is_stopped: Callable[[], bool]) -> None:
    """Make IPython's processor clock wait for launches; `%time` reads it twice.

    The wall clock is read before the first and after the second reading: so the magics themselves wait before they begin.

    Args:
        shell: the rank's shell.
        wait: waits until what was launched has finished, and raises its error. Called on the main thread.
        is_stopped: returns whether the cell was asked to stop, so that there is nothing more to measure.
    """
    read = timing.clock2

    def finish() -> None:
        if threading.current_thread() is threading.main_thread() and not is_stopped():
            wait()

    def wait_and_read() -> tuple[float, float]:
        finish()
        return read()

    timing.clock2 = wait_and_read
    shell.before_time_magic = finish
