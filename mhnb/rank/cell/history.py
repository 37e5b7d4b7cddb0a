"""`In` and `Out` of a rank: lists in memory, numbered by cell number. No database, no thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from IPython.core.history import HistoryManager

__all__ = ["RankHistory"]


class RankHistory(HistoryManager):
    """IPython's history without its database, which costs a cell more than everything else in `run_cell`."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits, enabled=False)
        self._recent = ("", "", "")

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Store a cell under its number. Numbers between, of cells that this rank did not run, get empty text."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        _store_at(self.input_hist_parsed, line_num, source.rstrip("\n"))
        _store_at(self.input_hist_raw, line_num, raw)
        earlier = dict(zip(("_i", "_ii", "_iii"), self._recent, strict=True))
        self._recent = (raw, *self._recent[:2])
        shell = self.shell
        for names in (shell.user_ns, shell.user_ns_hidden):
            names.update(earlier)
            names[f"_i{line_num}"] = raw

    def store_output(self, line_num: int) -> None:
        """Do nothing: outputs are in `Out` already."""

    def get_tail(
        self,
        n: int | None = 10,
        raw: bool = True,  # noqa: FBT001, FBT002 - IPython's signature
        output: bool = False,  # noqa: FBT001, FBT002
        include_latest: bool = False,  # noqa: FBT001, FBT002
    ) -> Iterable[tuple[int, int, Any]]:
        """Return the last cells of this session, which is the only one."""
        stop = len(self.input_hist_raw) - (not include_latest)
        return list(self._get_range_session(max(1, stop - (n or 10)), stop, raw, output))


def _store_at(history: list[str], number: int, text: str) -> None:
    history.extend([""] * (number + 1 - len(history)))
    history[number] = text
