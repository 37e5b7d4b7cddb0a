"""The notebook's side of a cell: parse is done; here it is sent, watched, shown and, where it failed, raised."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mhnb.boards import gather_places
from mhnb.core.results import CellResult
from mhnb.starting import current
from mhnb.view.html import View
from mhnb.view.live import CellView
from mhnb.view.words import Places

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["CellFlags", "Notebook"]

_KEPT_VIEWS = 64


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


@dataclass(slots=True)
class Notebook:
    """What one IPython shell remembers between cells."""

    shell: Any
    auto: bool = False
    views: OrderedDict[tuple[str, int, int], CellView] = field(default_factory=OrderedDict)
    _places: tuple[tuple[str, int], Places] | None = None

    def run_cell(self, source: str, flags: CellFlags) -> None:
        """Run a cell on the ranks, show it, bind its result.

        Raises:
            CellError: it failed on some rank; shown already.
            ClusterError: it was refused.
        """
        cluster = current()
        self._listen(cluster)
        submission = cluster.submit(
            source, ranks=flags.ranks, guard=flags.guard, timeout_s=flags.timeout_s, live=not flags.quiet
        )
        view = CellView(view=flags.view, quiet=flags.quiet, places=self._places_of(cluster), badge=flags.auto)
        result = cluster.follow(submission, view.update)
        if flags.out:
            self.shell.user_ns[flags.out] = result
        view.finish(result)
        self._keep(cluster, result, view)
        result.check()

    def _keep(self, cluster: Cluster, result: CellResult, view: CellView) -> None:
        self.views[cluster.name, cluster.generation, result.seq] = view
        while len(self.views) > _KEPT_VIEWS:
            self.views.popitem(last=False)

    def _places_of(self, cluster: Cluster) -> Places:
        key = (cluster.name, cluster.generation)
        if self._places is None or self._places[0] != key:
            self._places = (key, gather_places(cluster))
        return self._places[1]

    def _listen(self, cluster: Cluster) -> None:
        def late(result: CellResult) -> None:
            if (view := self.views.get((cluster.name, cluster.generation, result.seq))) is not None:
                view.late(result)

        cluster.on_late(late)
        cluster.on_notice(tell)


def tell(text: str) -> None:
    """Say something between cells, where the user looks: under the cell that ran last."""
    print(text, file=sys.stderr, flush=True)
