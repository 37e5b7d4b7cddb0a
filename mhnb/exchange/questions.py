"""Requests for metadata: variables of the ranks, comparison by hash, completion, inspection. No value is transferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.exchange.variables import VariableInfo, VariableRow, merge_variables
from mhnb.core.guard.check import CheckRow, compare_leaves
from mhnb.core.ranks import describe_ranks
from mhnb.errors import NameMissing
from mhnb.exchange.asks import RankClient, await_reply, check_names, check_ranks, request_all

__all__ = ["Completion", "check_values", "complete", "inspect", "list_names", "list_variables"]


@dataclass(frozen=True, slots=True)
class Completion:
    """Completions of code: each match replaces the characters `start:end`."""

    matches: tuple[str, ...]
    start: int
    end: int


def list_variables(client: RankClient, ranks: Sequence[int] | None = None) -> tuple[VariableRow, ...]:
    """List the variables of the ranks by name, and where they differ. No array is read."""
    answers = request_all(client, check_ranks(ranks, client.process_count), "vars", {})
    return merge_variables(
        {
            rank: {name: VariableInfo.from_wire(row) for name, row in answer.value.items()}
            for rank, answer in answers.items()
        }
    )


def check_values(client: RankClient, wanted: Sequence[str]) -> tuple[CheckRow, ...]:
    """Compare the values of variables by hash: the replicas of each shard, and the values of each rank.

    Raises:
        InvalidRequest: no name, or a name that is not a variable's.
        NameMissing: a name is missing on some rank.
    """
    checked_names = check_names(wanted, "check")
    answers = request_all(client, check_ranks(None, client.process_count), "check", {"names": checked_names})
    for name in checked_names:
        if missing := [rank for rank, answer in answers.items() if name not in answer.value]:
            rank_text = describe_ranks(missing)
            raise NameMissing(f"there is no {name!r} on {rank_text}; %mhjax vars lists what the ranks hold", name=name)
    by_name = [{rank: answer.value[name] for rank, answer in answers.items()} for name in checked_names]
    return tuple(
        row for name, leaves in zip(checked_names, by_name, strict=True) for row in compare_leaves(name, leaves)
    )


def list_names(client: RankClient, *, rank: int = 0) -> frozenset[str]:
    """Return the names that a user defined on a rank, functions and modules included."""
    return frozenset(await_reply(rank, "names", client.ask(rank, "names", {})).value)


def complete(client: RankClient, text: str, cursor: int, *, rank: int = 0) -> Completion:
    """Complete code with the names of a rank; `cursor` counts characters."""
    value = await_reply(rank, "complete", client.ask(rank, "complete", {"text": text, "cursor": cursor})).value
    return Completion(tuple(value["matches"]), value["start"], value["end"])


def inspect(client: RankClient, name: str, *, detail: int = 0, rank: int = 0) -> dict[str, Any] | None:
    """Return a MIME bundle that describes a name on a rank; None if the name does not exist there."""
    value = await_reply(rank, "inspect", client.ask(rank, "inspect", {"name": name, "detail": detail})).value
    return dict(value["data"]) if value["found"] else None
