"""Rank sets as people write them: `0,2-3`."""

from __future__ import annotations

from collections.abc import Iterable

from mhnb.errors import InvalidRequest

__all__ = ["format_ranks", "parse_ranks"]


def parse_ranks(spec: str, process_count: int) -> tuple[int, ...]:
    """Read a rank set: comma-separated ranks and inclusive ranges, or `all`.

    Raises:
        InvalidRequest: not a rank set, or a rank that is not there.

    >>> parse_ranks("0,2-3", 4)
    (0, 2, 3)
    """
    if spec.strip() == "all":
        return tuple(range(process_count))
    ranks: set[int] = set()
    for part in spec.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidRequest(
                f"--ranks {spec!r}: {part.strip()!r} is not a rank or a range; write like 0,2-3 or all"
            )
        low, high = int(first), int(last) if dash else int(first)
        if low > high:
            raise InvalidRequest(f"--ranks {spec!r}: the range {part.strip()} runs backwards; write {high}-{low}")
        if high >= process_count:
            raise InvalidRequest(
                f"--ranks {spec!r}: there is no rank {high}; this cluster has ranks 0-{process_count - 1}"
            )
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def format_ranks(ranks: Iterable[int]) -> str:
    """Write a rank set, runs of two or more as ranges.

    >>> format_ranks([6, 0, 1, 2, 3])
    '0-3,6'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
