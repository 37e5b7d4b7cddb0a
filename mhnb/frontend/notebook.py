"""The session of one notebook: send a parsed cell to the ranks, show its output, and raise its error if it failed."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mhnb.core.output.results import MAX_RESULTS, CellResult
from mhnb.frontend.boards import locations_from_cluster
from mhnb.frontend.launched import show_launched_collectives
from mhnb.startup.starting import current
from mhnb.values import RankError
from mhnb.view.cell.html import View
from mhnb.view.live.live import CellView
from mhnb.view.live.resultpanel import ResultPanel
from mhnb.view.style import RankLocations

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["CellFlags", "Session", "add_push_hint"]

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


@dataclass(slots=True)
class Session:
    """State that one IPython shell keeps between cells."""

    shell: Any
    is_auto_mode: bool = False
    views: OrderedDict[tuple[str, int, int], CellView] = field(default_factory=OrderedDict)
    produced_no_output: bool = False
    """Whether the last cell showed no output in the notebook."""
    has_persistent_panels: bool = False
    """Whether each cell keeps its panel widget beside its stored output."""
    persistent_panels: deque[ResultPanel] = field(default_factory=deque)
    """The panels that were kept this way, oldest first."""
    _results: OrderedDict[tuple[str, int], tuple[CellResult, RankLocations]] = field(default_factory=OrderedDict)
    """Results by cluster and cell number, oldest first. The key has the cluster because each cluster numbers its own cells."""
    _panel: ResultPanel | None = None
    _is_panel_live: bool = True
    """Whether the panel also shows the cells that run next."""
    _locations: tuple[tuple[str, int], RankLocations] | None = None

    def run_cell(self, source: str, flags: CellFlags) -> None:
        """Run a cell on the ranks, show its output and bind its result.

        Raises:
            CellError: the cell failed on a rank; its output is already shown.
            ClusterError: the cell was rejected.
        """
        self.produced_no_output = False
        cluster = current()
        self._register_callbacks(cluster)
        locations = self._locations_of(cluster)
        with CellView(view=flags.view, quiet=flags.quiet, locations=locations, badge=flags.auto) as view:
            view.interrupt = cluster.interrupt
            on_snapshot = None if flags.quiet else self._make_snapshot_callback(view, locations)
            result = self._add_hints(
                cluster.run(
                    source, ranks=flags.ranks, guard=flags.guard, timeout_s=flags.timeout_s, on_snapshot=on_snapshot
                )
            )
            if flags.out:
                self.shell.user_ns[flags.out] = result
            view.finish(result)
        self._store_view(cluster, result, view)
        if flags.collectives:
            show_launched_collectives(cluster, result)
        self.store_result(cluster, result)
        self._open_persistent_panel(result, locations, flags)
        result.check()
        self.produced_no_output = view.is_blank and self._panel is None and not flags.collectives

    def _add_hints(self, result: CellResult) -> CellResult:
        """Add a hint to each error about a name that the ranks lack but this notebook has."""
        if all(rank.error is None for rank in result):
            return result
        known = {name: value for name, value in self.shell.user_ns.items() if name not in self.shell.user_ns_hidden}
        hinted = tuple(
            rank if rank.error is None else replace(rank, error=add_push_hint(rank.error, known)) for rank in result
        )
        return result if hinted == result.ranks else replace(result, ranks=hinted)

    # -- panels

    @property
    def max_results(self) -> int:
        """Number of results that a panel can show."""
        return MAX_RESULTS

    def open_panel(self, seq: int | None, *, view: View = "fold") -> bool:
        """Open the panel for a cell's result, or the last result if `seq` is None. Return False if that result is not available.

        If several clusters have a cell with that number, the cluster whose cell ran last is used.
        A panel on the last result stays live: it also shows the cells that run next.
        """
        found = self._find_result(seq)
        if found is None:
            return False
        result, places = found
        self.close_panel()
        self._panel, self._is_panel_live = ResultPanel(result, places, view=view), seq is None
        self._panel.open()
        return True

    def _find_result(self, seq: int | None) -> tuple[CellResult, RankLocations] | None:
        keys = [key for key in reversed(self._results) if seq in (None, key[1])]
        # Not simply the later of the two: the user most likely means the cluster in use.
        last = next(reversed(self._results), None)
        return (
            next((self._results[key] for key in sorted(keys, key=lambda key: key[0] != last[0])), None)
            if last
            else None
        )

    def close_panel(self) -> bool:
        """Replace the panel by its stored output; return False if no panel is open."""
        panel, self._panel = self._panel, None
        if panel is not None:
            panel.close()
        return panel is not None

    def _make_snapshot_callback(self, view: CellView, places: RankLocations) -> Callable[[CellResult], None]:
        panel = self._panel
        if panel is None or not self._is_panel_live:
            return view.update

        def update_both(snapshot: CellResult) -> None:
            view.update(snapshot)
            _call_safely(panel.update, snapshot, places)

        return update_both

    def store_result(self, cluster: Cluster, result: CellResult) -> None:
        """Make a result available to the panel, and update a panel that shows the last result.

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
    """Call a view that is independent of the cell. If it fails, print the traceback and return False."""
    try:
        view_method(*arguments)
    except Exception:  # noqa: BLE001  # a view never fails the cell
        traceback.print_exc()
        return False
    return True


def add_push_hint(error: RankError, known: Mapping[str, Any]) -> RankError:
    """Add a hint to a NameError about a name that the notebook has; return any other error unchanged.

    Args:
        error: an error that a rank raised.
        known: the notebook's names with their values.
    """
    found = _UNDEFINED.match(error.evalue) if error.ename == "NameError" and error.hint is None else None
    if found is None or (name := found[1]) not in known:
        return error
    value = known[name]
    if isinstance(value, ModuleType):
        fix = f"import it there too, in a %%mhjax cell: import {value.__name__}"
        fix += f" as {name}" if value.__name__ != name else ""
    elif getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
        fix = "run the cell that defines it with %%mhjax too"
    else:
        fix = f"%mhjax push {name} binds it on every rank"
    return replace(error, hint=f"{name!r} lives in this notebook, not on the ranks: {fix}")


def print_notice(text: str) -> None:
    """Print a message between cells. It appears below the cell that ran last, where the user looks."""
    print(text, file=sys.stderr, flush=True)
