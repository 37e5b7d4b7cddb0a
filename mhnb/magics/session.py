"""The session of one notebook: run cells, show outputs, raise errors.

Also here: the conversion of a cluster's state to the values that views show, without any drawing; the report below a cell that
ran with `--collectives`; and the test whether the code that called a magic uses its return value.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError

from mhnb.cluster.manager import wait_for_current
from mhnb.cluster.sharding import request_launched
from mhnb.core.cell_name import NO_PLACE, CellArgument, CellPlace, format_cell_names
from mhnb.core.cell_request import check_breakpoints, check_guard, resolve_stop_ranks
from mhnb.core.debugging import DebugRequest
from mhnb.core.messages import Breakpoint
from mhnb.core.output.answers import Answer, read_answer
from mhnb.core.output.results import MAX_RESULTS, CellResult
from mhnb.core.trace import TraceReport
from mhnb.errors import CellError, InvalidRequest, MhnbError, NotYet
from mhnb.magics.settings import Mhjax
from mhnb.system import keyboard
from mhnb.types import RankError
from mhnb.view.cell.failures import are_not_yet, find_failures, format_raised_error
from mhnb.view.cell.html import View
from mhnb.view.html import RankLocations, new_uid
from mhnb.view.live.results_panel import ResultPanel
from mhnb.view.live.screen import detect_screen, hide_traceback, show_document
from mhnb.view.live.view import CellView
from mhnb.view.live.wait_line import WaitLine
from mhnb.view.reports.collectives import build_collectives
from mhnb.view.reports.lesson import parse_difference
from mhnb.view.reports.trace import build_trace

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster


def locations_from_cluster(cluster: Cluster, environment: Mapping[str, str] | None = None) -> RankLocations:
    """Return the host and the log path of each rank.

    Args:
        cluster: the cluster of the ranks.
        environment: of the kernel; if given, the notebook's folder is included, provided that the Jupyter server set it.
    """
    ranks = cluster.ranks
    logs = {r.rank: str(r.log_path) for r in ranks}
    notebook = PurePath((environment or {}).get("JPY_SESSION_NAME", ""))
    # Files on another machine cannot be opened from the notebook, and older servers pass no absolute path.
    folder = str(notebook.parent) if notebook.is_absolute() and cluster.shape.is_local else ""
    return RankLocations(hosts={r.rank: r.host for r in ranks}, logs=logs, cluster=cluster.name, notebook_dir=folder)


# -- is a magic's return value used?


_UNUSED_OPCODES = frozenset(("POP_TOP", "PRINT_EXPR", "CALL_INTRINSIC_1"))
"""Opcodes after a call whose result is unused: dropped, or shown as a cell's last expression. Python 3.12 renamed the latter."""


def uses_result(namespace: Mapping[str, Any]) -> bool:
    """Return whether the innermost caller with these globals uses the result."""
    frame = sys._getframe(1)  # noqa: SLF001  # the documented way to reach caller frames
    while frame.f_globals is not namespace:
        if frame.f_back is None:
            return True
        frame = frame.f_back
    following = (step.opname for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    # `%time` evaluates its expression and shows the value, so a return at module level is also a display.
    # The return of a function is a use by its caller.
    unused_opcodes = _UNUSED_OPCODES | {"RETURN_VALUE"} if frame.f_code.co_name == "<module>" else _UNUSED_OPCODES
    return next(following, "") not in unused_opcodes


# -- the report of `--collectives`


def show_launched_collectives(cluster: Cluster, result: CellResult) -> None:
    """Show the collectives that a cell launched, or print the error."""
    ranks = [rank.rank for rank in result if rank.outcome not in ("died", "killed", "refused")]
    if not ranks:
        # No rank can answer, and the cell's own error has already reported that.
        return
    try:
        hosts = {rank.rank: rank.host for rank in cluster.ranks}
        show_document(build_collectives(request_launched(cluster, result.seq, ranks, hosts, cell_name=result.name)))
    except MhnbError as error:
        print(f"mhjax · --collectives: {type(error).__name__}: {error}", file=sys.stderr)


# -- lessons


def _show_trace(report: TraceReport) -> None:
    show_document(build_trace(report))


def show_lesson_bar(result: CellResult) -> None:
    """Show a lesson's progress, if the cell answered one of its exercises."""
    errors = [rank.error for rank in result if rank.error is not None and rank.error.ename == NotYet.__name__]
    wrong = [Answer(parse_difference(error.evalue).title, is_right=False) for error in errors]
    shown = [answer for rank in result for output in rank.outputs if (answer := read_answer(output)) is not None]
    if answers := [*wrong, *shown]:
        # The exercises use NumPy, which takes a while to import.
        from mhnb.teach.progress import show_bar_for

        show_bar_for(answers[0].exercise)


def check_result(result: CellResult) -> None:
    """Raise the error of a failed cell.

    After an answer that is not right yet there is no traceback, because the view has shown it.

    Raises:
        CellError: the cell failed on a rank.
    """
    try:
        result.check()
    except CellError as error:
        # IPython shows the error below the report. `str(error)` stays complete, because a script has no report.
        if what := format_raised_error(result):
            error.short_text = " · ".join(filter(None, (what, error.help_line)))
        if are_not_yet(find_failures(result)):
            hide_traceback(error)
        raise


# -- the notebook session


_MAX_VIEWS = 64
_MAX_PANELS = 32
_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


@dataclass(frozen=True, slots=True)
class CellFlags:
    """The flags of one `%%mhjax` cell."""

    ranks: str | None = None
    guard: str | None = None
    timeout_s: float | None = None
    out: str | None = None
    view: View = "fold"
    quiet: bool = False
    auto: bool = False
    collectives: bool = False
    debug: str | None = None
    """Ranks that stop before the first line; empty for every rank of the cell; None for none."""
    trace: str | None = None
    """The folder for the cell's trace; empty for the cluster's own; None to trace nothing."""
    breakpoints: tuple[Breakpoint, ...] = ()
    """Where it stops."""
    takes_breakpoints: bool = True
    """Whether the breakpoints for the next cell are for this one, too."""


_ORDINARY = DebugRequest()
"""Of a cell that stops only where its own code says so."""


def can_type(shell: Any) -> bool:
    """Return whether the user can type a line for the running code.

    In a notebook that is for the front end to say, in the request that the kernel executes. A cell in a subshell has none of its own:
    the kernel asks for input in its main thread only.
    """
    if (kernel := getattr(shell, "kernel", None)) is None:
        return keyboard.can_type()
    if threading.current_thread() is not threading.main_thread():
        return False
    return kernel.get_parent("shell").get("content", {}).get("allow_stdin") is True


def cannot_type_error(what: str) -> UsageError:
    """Return the error for a command that needs a user who types."""
    return UsageError(
        f"{what}: a rank that stops waits for a line that you type, and nothing can be typed here:"
        " in a subshell, nbconvert or papermill, or without a terminal"
    )


class _TraceCollection:
    """Shows a traced cell's end, then a line while collecting its trace."""

    def __init__(self, view: CellView, add_hints: Callable[[CellResult], CellResult]) -> None:
        self._view, self._add_hints = view, add_hints
        self._line: WaitLine | None = None
        self.has_begun = False

    def begin(self, result: CellResult) -> None:
        """Show the cell's result, and that its trace is being collected."""
        self._view.finish(self._add_hints(result))
        self.has_begun = True
        self._line = WaitLine(detect_screen(), new_uid())
        _call_safely(self._line.show, f"collecting the trace of {result.name} …")

    def end(self) -> None:
        """Remove the line."""
        if self._line is not None:
            _call_safely(self._line.close)


@dataclass(slots=True)
class Session:
    """State that one IPython shell keeps between cells."""

    shell: Any
    find_place: Callable[[str], CellPlace] = lambda _: NO_PLACE
    """Returns where the notebook shows a source that runs now."""
    can_type: Callable[[], bool] = lambda: False
    """Returns whether the user can type a line for the code that runs now."""
    settings: Mhjax = field(default_factory=Mhjax)
    """The user's defaults."""
    is_auto_mode: bool = False
    views: OrderedDict[tuple[str, int, int], CellView] = field(default_factory=OrderedDict)
    has_persistent_panels: bool = False
    """Whether each cell keeps its panel widget beside its stored output."""
    persistent_panels: deque[ResultPanel] = field(default_factory=deque)
    """The panels that were kept this way, oldest first."""
    breakpoints: list[Breakpoint] = field(default_factory=list)
    """Where the next `%%mhjax` cell stops."""
    failures: WeakKeyDictionary[Cluster, CellResult] = field(default_factory=WeakKeyDictionary)
    """The last cell that failed on a rank of each cluster. A restart makes another `Cluster`, because the processes have ended."""
    _results: OrderedDict[tuple[str, int], tuple[CellResult, RankLocations]] = field(default_factory=OrderedDict)
    """Results by cluster and cell number, oldest first. The key has the cluster because each cluster numbers its own cells."""
    _running: tuple[CellResult, RankLocations] | None = None
    """The cell that runs, as far as it has come; another thread may ask for it, as a subshell does."""
    _running_view: CellView | None = None
    """Its view."""
    _panel: ResultPanel | None = None
    _is_panel_live: bool = True
    """Whether the panel also shows the cells that run next."""
    _locations: tuple[tuple[str, int], RankLocations] | None = None

    def run_cell(self, source: str, flags: CellFlags) -> None:
        """Run a cell on the ranks, show its output, bind its result.

        Raises:
            CellError: the cell failed on a rank; its output is already shown.
            ClusterError: the cell was rejected.
            UsageError: the cell is to stop for the debugger and cannot; nothing was sent.
        """
        # Before any wait, because a subshell may run other cells meanwhile.
        place = self.find_place(source)
        cluster = self.wait_for_cluster()
        debug = self._make_debug_request(source, flags, place.first_line, cluster.process_count)
        self._register_callbacks(cluster)
        locations = self._locations_of(cluster)
        with CellView(view=flags.view, quiet=flags.quiet, locations=locations, badge=flags.auto) as view:
            view.interrupt = cluster.interrupt
            on_snapshot = None if flags.quiet else self._make_snapshot_callback(view, locations)
            collection = _TraceCollection(view, self._add_hints)
            try:
                result = cluster.run(
                    source,
                    ranks=flags.ranks,
                    guard=flags.guard if debug in (None, _ORDINARY) else "lockstep",
                    timeout_s=flags.timeout_s,
                    on_snapshot=on_snapshot,
                    trace=flags.trace is not None and (flags.trace or True),
                    place=place,
                    debug=debug,
                    console=view,
                    on_trace=collection.begin,
                )
            finally:
                self._forget_running(view)
                collection.end()
            result = self._add_hints(result)
            if flags.out:
                self.shell.user_ns[flags.out] = result
            if not collection.has_begun:
                view.finish(result)
        self._store_view(cluster, result, view)
        if flags.collectives:
            show_launched_collectives(cluster, result)
        if result.trace is not None:
            _call_safely(_show_trace, result.trace)
        if result.failed:
            self.failures[cluster] = result
        self.store_result(cluster, result)
        self._open_persistent_panel(result, locations, flags)
        if not flags.quiet and "check(" in source:
            _call_safely(show_lesson_bar, result)
        check_result(result)

    def wait_for_cluster(self) -> Cluster:
        """Wait until no other thread changes the current cluster; return it."""
        lines: list[WaitLine] = []

        def show(text: str) -> None:
            # Hardly any cell waits.
            if not lines:
                lines.append(WaitLine(detect_screen(), new_uid()))
            _call_safely(lines[0].show, text)

        try:
            return wait_for_current(show)
        finally:
            for line in lines:
                _call_safely(line.close)

    def _add_hints(self, result: CellResult) -> CellResult:
        """Add hints about names that the notebook has and ranks lack."""
        if all(rank.error is None for rank in result):
            return result
        known = {name: value for name, value in self.shell.user_ns.items() if name not in self.shell.user_ns_hidden}
        hinted = tuple(
            rank if rank.error is None else replace(rank, error=add_push_hint(rank.error, known)) for rank in result
        )
        return result if hinted == result.ranks else replace(result, ranks=hinted)

    # -- the debugger

    def _make_debug_request(
        self, source: str, flags: CellFlags, first_line: int, process_count: int
    ) -> DebugRequest | None:
        """Return a cell's debugger request; None if nothing can be typed.

        Raises:
            UsageError: the cell is to stop where it cannot.
            InvalidRequest: `--debug` names other ranks than those of the cell.
        """
        earlier = self._take_breakpoints() if flags.takes_breakpoints else ()
        breakpoints = tuple({each.line: each for each in (*earlier, *flags.breakpoints)}.values())
        can_type = self.can_type()
        if flags.debug is None and not breakpoints:
            return _ORDINARY if can_type else None
        if not can_type:
            raise cannot_type_error("%%mhjax --debug" if flags.debug is not None else "%%mhjax --break")
        if flags.guard is not None and check_guard(flags.guard) != "lockstep":
            flag = "--break" if flags.debug is None else "--debug"
            raise UsageError(
                f"%%mhjax {flag} --guard {flags.guard}: without lockstep the other ranks would not wait for one that has stopped"
                f"\n  Fix: leave out --guard {flags.guard}"
            )
        stop_ranks = None if flags.debug is None else resolve_stop_ranks(flags.debug, flags.ranks, process_count)
        try:
            check_breakpoints(breakpoints, source, first_line)
        except InvalidRequest as error:
            raise UsageError(str(error)) from error
        return DebugRequest(stop_ranks, breakpoints)

    def _take_breakpoints(self) -> tuple[Breakpoint, ...]:
        breakpoints, self.breakpoints = tuple(self.breakpoints), []
        return breakpoints

    # -- panels

    @property
    def max_results(self) -> int:
        """Number of results that a panel can show."""
        return MAX_RESULTS

    def open_panel(self, cell: int | CellArgument | None, *, view: View = "fold") -> bool:
        """Open the panel for a cell's result; return False without one.

        None is the last result, which may be of a running cell. A number is mhnb's own: of several clusters with that
        cell, the one used last is taken. A panel on the last result stays live, and also shows the cells that run next.
        """
        running = self._running
        found = self._find_result(cell, running)
        if found is None:
            return False
        result, places = found
        self.close_panel()
        self._panel, self._is_panel_live = ResultPanel(result, places, view=view), cell is None or found is running
        self._panel.open()
        return True

    def describe_results(self) -> str:
        """Name the cells whose results a panel can show; may be empty."""
        return format_cell_names((result.seq, result.execution_count) for result, _ in self._results.copy().values())

    def _find_result(
        self, cell: int | CellArgument | None, running: tuple[CellResult, RankLocations] | None
    ) -> tuple[CellResult, RankLocations] | None:
        # A copy, because the cell of another thread may end meanwhile.
        known = list(reversed(self._results.copy().items()))
        latest_first = [*([running] if running is not None else []), *(found for _, found in known)]
        if isinstance(cell, CellArgument):
            # A user who sees `In [7]` types 7.
            shown = next((found for found in latest_first if found[0].execution_count == cell.number), None)
            if cell.is_shown or (shown is not None and not cell.is_own):
                return shown
        seq = cell.number if isinstance(cell, CellArgument) else cell
        if running is not None and seq in (None, running[0].seq):
            return running
        matching = [(cluster, found) for (cluster, number), found in known if seq in (None, number)]
        # Not simply the later of two: the user most likely means the cluster in use.
        return next((found for cluster, found in sorted(matching, key=lambda each: each[0] != known[0][0][0])), None)

    def close_panel(self) -> bool:
        """Replace the open panel by its stored output, or return False."""
        panel, self._panel = self._panel, None
        if panel is not None:
            panel.close()
        return panel is not None

    def _make_snapshot_callback(self, view: CellView, places: RankLocations) -> Callable[[CellResult], None]:
        def update_both(snapshot: CellResult) -> None:
            view.update(snapshot)
            if snapshot.waiting:
                return
            self._running, self._running_view = (snapshot, places), view
            # A subshell may open a panel while the cell runs.
            if (panel := self._panel) is not None and self._is_panel_live:
                _call_safely(panel.update, snapshot, places)

        return update_both

    def _forget_running(self, view: CellView) -> None:
        # Another thread's cell may run already.
        if self._running_view is view:
            self._running = self._running_view = None

    def store_result(self, cluster: Cluster, result: CellResult) -> None:
        """Store a result for panels, and update one that is live.

        The result of a replayed cell replaces the result from before the restart.
        """
        self._store_result(cluster.name, result, self._locations_of(cluster))

    def _store_result(self, cluster: str, result: CellResult, places: RankLocations) -> None:
        self._results.pop((cluster, result.seq), None)
        self._results[cluster, result.seq] = (result, places)
        while len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)
        if self._panel is not None and self._is_panel_live:
            _call_safely(self._panel.finish, result, places)

    def _open_persistent_panel(self, result: CellResult, places: RankLocations, flags: CellFlags) -> None:
        if self.has_persistent_panels and not flags.quiet and any(rank.outputs for rank in result):
            panel = ResultPanel(result, places, view=flags.view)
            if panel.is_rich and _call_safely(panel.open):
                self.persistent_panels.append(panel)
            while len(self.persistent_panels) > _MAX_PANELS:
                _call_safely(self.persistent_panels.popleft().close)

    def _store_view(self, cluster: Cluster, result: CellResult, view: CellView) -> None:
        self.views[cluster.name, cluster.generation, result.seq] = view
        while len(self.views) > _MAX_VIEWS:
            self.views.popitem(last=False)

    def _locations_of(self, cluster: Cluster) -> RankLocations:
        key = (cluster.name, cluster.generation)
        if self._locations is None or self._locations[0] != key:
            self._locations = (key, locations_from_cluster(cluster, os.environ))
        return self._locations[1]

    def _register_callbacks(self, cluster: Cluster) -> None:
        def show_late(result: CellResult) -> None:
            if (view := self.views.get((cluster.name, cluster.generation, result.seq))) is not None:
                view.show_late(self._add_hints(result))

        cluster.on_late(show_late)
        cluster.on_notice(print_notice)


def _call_safely(view_method: Callable[..., None], *arguments: Any) -> bool:
    """Call a view; if it fails, print the traceback and return False."""
    try:
        view_method(*arguments)
    except Exception:  # noqa: BLE001  # a view never fails the cell
        traceback.print_exc()
        return False
    return True


def add_push_hint(error: RankError, known: Mapping[str, Any]) -> RankError:
    """Add a hint to a NameError about a name in the notebook.

    Args:
        error: an error that a rank raised; any other error is returned unchanged.
        known: the notebook's names with their values.
    """
    found = _UNDEFINED.match(error.evalue) if error.ename == "NameError" and error.hint is None else None
    if found is None or (name := found[1]) not in known:
        return error
    value = known[name]
    if isinstance(value, ModuleType):
        fix = f"import it on the ranks too, in a %%mhjax cell: import {value.__name__}"
        fix += f" as {name}" if value.__name__ != name else ""
    elif getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
        fix = "run the cell that defines it with %%mhjax too"
    else:
        fix = f"copy it to every rank with %mhjax push {name}"
    return replace(error, hint=f"{name!r} is defined in this notebook, not on the ranks: {fix}")


def print_notice(text: str) -> None:
    """Print a message between cells, below the cell that ran last."""
    print(text, file=sys.stderr, flush=True)
