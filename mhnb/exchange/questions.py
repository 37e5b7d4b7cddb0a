"""Requests for metadata: variables of the ranks, comparison by hash, completion, inspection. No value is transferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.exchange.variables import VarFacts, VarRow, merge_vars
from mhnb.core.guard.check import CheckRow, compare_leaves
from mhnb.core.ranks import say_ranks
from mhnb.errors import NameMissing
from mhnb.exchange.asks import Asker, ask_all, check_names, check_ranks, settle

__all__ = ["Completion", "check_values", "complete", "inspect", "list_variables", "names"]


@dataclass(frozen=True, slots=True)
class Completion:
    """Completions of code: each match replaces the characters `start:end`."""

    matches: tuple[str, ...]
    start: int
    end: int


def list_variables(asker: Asker, ranks: Sequence[int] | None = None) -> tuple[VarRow, ...]:
    """List the variables of the ranks by name, and where they differ. No array is read."""
    answers = ask_all(asker, check_ranks(ranks, asker.process_count), "vars", {})
    return merge_vars(
        {
            rank: {name: VarFacts.from_wire(row) for name, row in answer.value.items()}
            for rank, answer in answers.items()
        }
    )


def check_values(asker: Asker, wanted: Sequence[str]) -> tuple[CheckRow, ...]:
    """Compare the values of variables by hash: the replicas of each shard, and the values of each rank.

    Raises:
        InvalidRequest: no name, or a name that is not a variable's.
        NameMissing: a name is missing on some rank.
    """
    asked = check_names(wanted, "check")
    answers = ask_all(asker, check_ranks(None, asker.process_count), "check", {"names": asked})
    for name in asked:
        if absent := [rank for rank, answer in answers.items() if name not in answer.value]:
            who = say_ranks(absent)
            raise NameMissing(f"there is no {name!r} on {who}; %mhjax vars lists what the ranks hold", name=name)
    by_name = [{rank: answer.value[name] for rank, answer in answers.items()} for name in asked]
    return tuple(row for name, leaves in zip(asked, by_name, strict=True) for row in compare_leaves(name, leaves))


def names(asker: Asker, *, rank: int = 0) -> frozenset[str]:
    """Return the names that a user defined on a rank, functions and modules included."""
    return frozenset(settle(rank, "names", asker.ask(rank, "names", {})).value)


def complete(asker: Asker, text: str, cursor: int, *, rank: int = 0) -> Completion:
    """Complete code with the names of a rank; `cursor` counts characters."""
    value = settle(rank, "complete", asker.ask(rank, "complete", {"text": text, "cursor": cursor})).value
    return Completion(tuple(value["matches"]), value["start"], value["end"])


def inspect(asker: Asker, name: str, *, detail: int = 0, rank: int = 0) -> dict[str, Any] | None:
    """Return a MIME bundle that describes a name on a rank; None if the name does not exist there."""
    value = settle(rank, "inspect", asker.ask(rank, "inspect", {"name": name, "detail": detail})).value
    return dict(value["data"]) if value["found"] else None
