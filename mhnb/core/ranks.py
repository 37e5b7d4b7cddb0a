"""Parse, format and group rank sets such as `0,2-3`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from mhnb.errors import InvalidRequest

_K = TypeVar("_K")
_T = TypeVar("_T")

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_ranks(spec: str, process_count: int, *, argument: str = "--ranks") -> tuple[int, ...]:
    """Parse a rank set: comma-separated ranks and inclusive ranges, or `all`.

    Args:
        spec: the rank set.
        process_count: number of ranks of the cluster.
        argument: what the user has typed before it, for messages.

    Raises:
        InvalidRequest: the text is not a rank set, or a rank does not exist.

    >>> parse_ranks("0,2-3", 4)
    (0, 2, 3)
    """
    if spec.strip() == "all":
        return tuple(range(process_count))
    ranks: set[int] = set()
    for part in spec.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InvalidRequest(f"{argument} {spec!r}: expected ranks such as 0,2-3 or all; got {part.strip()!r}")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise InvalidRequest(f"{argument} {spec!r}: the range {part.strip()} is reversed; write {high}-{low}")
        if high >= process_count:
            raise InvalidRequest(
                f"{argument} {spec!r}: unknown rank {high}; this cluster has {describe_ranks(range(process_count))}"
            )
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def resolve_ranks(ranks: str | Sequence[int] | None, process_count: int) -> tuple[int, ...] | None:
    """Resolve the ranks that a user names; None for all.

    Raises:
        InvalidRequest: a rank does not exist.

    >>> resolve_ranks([2, 0], 4), resolve_ranks("0-3", 4)
    ((0, 2), None)
    """
    if ranks is None:
        return None
    if not isinstance(ranks, str | Iterable):
        raise InvalidRequest(
            f"ranks={ranks!r:.80}: expected a text such as '0,2-3' or numbers such as [0, 2]; leave it out for all"
        )
    spec = ranks if isinstance(ranks, str) else ",".join(str(rank) for rank in ranks)
    if not spec.strip():
        raise InvalidRequest(
            f"ranks={ranks!r:.80} is empty: expected ranks such as 0,2-3; leave it out for all ranks, 0-{process_count - 1}"
        )
    chosen = parse_ranks(spec, process_count)
    return None if len(chosen) == process_count else chosen


def format_ranks(ranks: Iterable[int]) -> str:
    """Format a rank set; runs of two or more become ranges.

    >>> format_ranks([6, 0, 1, 2, 3])
    '0-3,6'
    """
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def describe_ranks(ranks: Iterable[int]) -> str:
    """Format ranks as the subject or object of a sentence.

    >>> describe_ranks([0, 1, 2]), describe_ranks([4])
    ('ranks 0-2', 'rank 4')
    """
    chosen = sorted(set(ranks))
    return f"{'rank' if len(chosen) == 1 else 'ranks'} {format_ranks(chosen)}"


_MAX_SHORT_CHARS = 24


def describe_ranks_short(ranks: Iterable[int]) -> str:
    """Describe ranks briefly: a long list becomes a count.

    >>> describe_ranks_short([0, 1, 3]), describe_ranks_short(range(0, 64, 2))
    ('ranks 0-1,3', '32 ranks')
    """
    known = list(ranks)
    text = describe_ranks(known)
    return text if len(text) <= _MAX_SHORT_CHARS else f"{len(set(known))} ranks"


_MAX_LABEL_CHARS = 40
_RANGES_IN_LABEL = 4


def describe_many_ranks(ranks: Iterable[int]) -> str:
    """Describe ranks in a label; shorten a long list to its ends.

    >>> describe_many_ranks([0, 1, 3]), describe_many_ranks(range(0, 64, 2))
    ('ranks 0-1,3', '32 ranks 0,2,4,6…62')
    """
    known = set(ranks)
    label = describe_ranks(known)
    if len(label) <= _MAX_LABEL_CHARS:
        return label
    ranges = format_ranks(known).split(",")
    return f"{len(known)} ranks {','.join(ranges[:_RANGES_IN_LABEL])}…{ranges[-1]}"


def pluralize(count: int, noun: str) -> str:
    """Format a number with its noun.

    >>> pluralize(1, "rank"), pluralize(4, "CPU device"), pluralize(2, "mesh")
    ('1 rank', '4 CPU devices', '2 meshes')
    """
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 'sh')) else 's'}"


def split_list(items: Sequence[_T], limit: int) -> tuple[Sequence[_T], Sequence[_T]]:
    """Return the first items, which a message lists, and those it counts.

    A single item beyond the limit is listed, because a count of it would take the same line.

    >>> split_list("abc", 2), split_list("abcd", 2)
    (('abc', ''), ('ab', 'cd'))
    """
    count = limit + 1 if len(items) == limit + 1 else limit
    return items[:count], items[count:]


def group_ranks(keys: Mapping[int, _K]) -> tuple[tuple[tuple[int, ...], _K], ...]:
    """Group ranks by equal keys: largest group first, then by first rank.

    >>> group_ranks({0: "a", 1: "b", 2: "b"})
    (((1, 2), 'b'), ((0,), 'a'))
    """
    ordered = sorted(ranks_by_key(keys).items(), key=lambda item: (-len(item[1]), item[1][0]))
    return tuple((tuple(ranks), key) for key, ranks in ordered)


def ranks_by_key(keys: Mapping[int, _K]) -> dict[_K, list[int]]:
    """Return the ranks of each key, ordered by each key's first rank.

    >>> ranks_by_key({2: "b", 1: "b", 0: "a"})
    {'a': [0], 'b': [1, 2]}
    """
    groups: dict[_K, list[int]] = {}
    for rank in sorted(keys):
        groups.setdefault(keys[rank], []).append(rank)
    return groups
