"""What the ranks hold, what a name means there, how code goes on: questions that move no value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.variables import VarFacts, VarRow, merge_vars
from mhnb.exchange.asks import Asker, ask_all, check_ranks, settle

__all__ = ["Completion", "complete", "inspect", "list_variables", "names"]


@dataclass(frozen=True, slots=True)
class Completion:
    """How code can go on: each match replaces the characters `start:end`."""

    matches: tuple[str, ...]
    start: int
    end: int


def list_variables(asker: Asker, ranks: Sequence[int] | None = None) -> tuple[VarRow, ...]:
    """List what the ranks hold, by name, and where they differ. No array is read."""
    answers = ask_all(asker, check_ranks(ranks, asker.process_count), "vars", {})
    return merge_vars(
        {
            rank: {name: VarFacts.from_wire(row) for name, row in answer.value.items()}
            for rank, answer in answers.items()
        }
    )


def names(asker: Asker, *, rank: int = 0) -> frozenset[str]:
    """Return the names a user made on a rank, functions and modules included."""
    return frozenset(settle(rank, "names", asker.ask(rank, "names", {})).value)


def complete(asker: Asker, text: str, cursor: int, *, rank: int = 0) -> Completion:
    """Complete code with the names of a rank; `cursor` counts characters."""
    value = settle(rank, "complete", asker.ask(rank, "complete", {"text": text, "cursor": cursor})).value
    return Completion(tuple(value["matches"]), value["start"], value["end"])


def inspect(asker: Asker, name: str, *, detail: int = 0, rank: int = 0) -> dict[str, Any] | None:
    """Return a mime bundle that describes a name on a rank; None where there is no such name."""
    value = settle(rank, "inspect", asker.ask(rank, "inspect", {"name": name, "detail": detail})).value
    return dict(value["data"]) if value["found"] else None
