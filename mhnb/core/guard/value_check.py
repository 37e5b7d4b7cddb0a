"""Compare the ranks' values of one name by hash, for `%mhjax check`.

This module compares shapes and hashes; the ranks compute the hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.guard.provenance import describe_provenance
from mhnb.core.ranks import describe_ranks, ranks_by_key


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One array, or other value, of a name, compared across the ranks."""

    name: str
    """With its path inside the value, such as `params['w']`."""
    kind: str
    """Such as `f32[8,6]`, as on the first rank."""
    same: bool | None
    """None if it cannot be compared."""
    text: str
    """What was compared, or where the ranks differ; one line per difference."""


def compare_leaves(name: str, leaves_by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> tuple[CheckRow, ...]:
    """Compare what each rank reports for a name.

    Args:
        leaves_by_rank: for each rank its leaves as `{"path", "kind", "boxes": [[box, digest], ...]}`; a box is the text of
            its ranges, empty for a value of the rank's own. A global array also has its provenance as "origin", a hash and a text, and
            as "placed" a hash of which device holds what. A leaf that cannot be compared has the reason as "unread".

    >>> leaf = {"path": "", "kind": "f32[2]", "boxes": [["0:2", "a1"]]}
    >>> compare_leaves("w", {0: [leaf], 1: [leaf]})[0].text
    '1 shard held by ranks 0-1: equal'
    >>> print(compare_leaves("w", {0: [leaf], 1: [{**leaf, "boxes": [["0:2", "b2"]]}]})[0].text)
    shard [0:2] differs: rank 0 holds a1, rank 1 holds b2
    """
    paths = list(dict.fromkeys(str(leaf["path"]) for leaves in leaves_by_rank.values() for leaf in leaves))
    return tuple(_compare_leaf(name, path, leaves_by_rank) for path in paths)


def _compare_leaf(name: str, path: str, leaves_by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> CheckRow:
    found = {rank: leaf for rank, leaves in leaves_by_rank.items() for leaf in leaves if leaf["path"] == path}
    kinds = ranks_by_key({rank: str(leaf["kind"]) for rank, leaf in found.items()})
    first = next(iter(kinds))
    if missing := [rank for rank in leaves_by_rank if rank not in found]:
        return CheckRow(name + path, first, False, f"missing on {describe_ranks(missing)}")
    if len(kinds) > 1:
        described = ", ".join(
            f"{describe_ranks(ranks)} {'hold' if len(ranks) > 1 else 'holds'} {kind}" for kind, ranks in kinds.items()
        )
        return CheckRow(name + path, first, False, described)
    if unread := {rank: str(leaf["unread"]) for rank, leaf in found.items() if "unread" in leaf}:
        why = ", ".join(f"{text} on {describe_ranks(ranks)}" for text, ranks in ranks_by_key(unread).items())
        return CheckRow(name + path, first, None, f"not compared: {why}")
    shardings = ranks_by_key({rank: str(leaf.get("placed", "")) for rank, leaf in found.items()})
    if len(shardings) > 1:
        groups = " and ".join(map(describe_ranks, shardings.values()))
        return CheckRow(name + path, first, False, f"the shardings differ between {groups}")
    return _compare_boxes(name + path, first, found)


def _compare_boxes(name: str, kind: str, found: Mapping[int, Mapping[str, Any]]) -> CheckRow:
    boxes: dict[str, dict[str, list[int]]] = {}
    for rank, leaf in found.items():
        for box, digest in leaf["boxes"]:
            holders = boxes.setdefault(box, {}).setdefault(digest, [])
            if rank not in holders:
                holders.append(rank)
    differing = [_format_box_difference(box, digests) for box, digests in boxes.items() if len(digests) > 1]
    if differing:
        return CheckRow(name, kind, False, "\n".join(differing))
    shared = [box for box, digests in boxes.items() if len(next(iter(digests.values()))) > 1]
    origins = {rank: leaf["origin"] for rank, leaf in found.items() if "origin" in leaf and leaf["boxes"]}
    is_spread = any(len({box for box, _ in found[rank]["boxes"]}) < len(boxes) for rank in origins)
    if is_spread and (provenances := describe_provenance(origins)):
        return CheckRow(name, kind, False, f"the shards were computed differently: {provenances}")
    if not shared:
        return CheckRow(name, kind, True, "each rank holds different shards: nothing to compare")
    word = "value" if shared == [""] else f"{len(shared)} {'shard' if len(shared) == 1 else 'shards'}"
    return CheckRow(name, kind, True, f"{word} held by {describe_ranks(sorted(found))}: equal")


def _format_box_difference(box: str, digests: Mapping[str, Sequence[int]]) -> str:
    holders = ", ".join(
        f"{describe_ranks(ranks)} {'hold' if len(ranks) > 1 else 'holds'} {digest[:6]}"
        for digest, ranks in digests.items()
    )
    return f"{f'shard [{box}]' if box else 'the value'} differs: {holders}"
