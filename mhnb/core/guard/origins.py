"""Where arrays come from, in words: which launch made them, and on which ranks another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.ranks import group_ranks, say_ranks

__all__ = ["ANY", "HOST_DATA", "format_makers", "say_maker", "tell_origins"]

_SHOWN = 3
HOST_DATA = "host data"
"""What made an array that no launch made."""
ANY = (1 << 63) - 1
"""The origin of what was made without a guard: it is like every other."""


def say_maker(name: str, seq: int, line: int | None) -> str:
    """Name a launch.

    >>> say_maker("jit(multiply)", 4, 2)
    'jit(multiply) (cell 4, line 2)'
    """
    return f"{name} (cell {seq}{f', line {line}' if line else ''})"


def format_makers(letter: str, makers: Sequence[tuple[str, int, int | None]]) -> str:
    """Say which launches made the arrays of one side of a mismatch: only its own ranks know.

    Args:
        makers: name, cell and line.

    >>> format_makers("A", [("jit(multiply)", 4, 2), ("jit(step)", 3, None)])
    'arrays A come from jit(multiply) (cell 4, line 2) and jit(step) (cell 3)'
    """
    told = [say_maker(*maker) for maker in makers[:_SHOWN]]
    told += ["others"] if len(makers) > _SHOWN else []
    who = " and ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else "".join(told)
    return f"arrays {letter} come from {who or HOST_DATA}"


def tell_origins(origins: Mapping[int, tuple[int, str]]) -> str:
    """Say where the ranks have one array from, where that is not the same; empty where it is.

    Args:
        origins: by rank, the hash of it, and the launch in words; those are empty where no launch made it.

    >>> tell_origins({0: (7, "jit(f) (cell 2)"), 1: (0, ""), 2: (0, "")}), tell_origins({0: (7, "jit(f)"), 1: (7, "jit(f)")})
    ('from host data on ranks 1-2, from jit(f) (cell 2) on rank 0', '')
    """
    groups = group_ranks({rank: origin for rank, (origin, _) in origins.items() if origin != ANY})
    if len(groups) < 2:
        return ""
    words = [f"from {origins[ranks[0]][1] or HOST_DATA}" for ranks, _ in groups]
    words = [f"{word} once more" if word in words[:at] else word for at, word in enumerate(words)]
    return ", ".join(f"{word} on {say_ranks(ranks)}" for word, (ranks, _) in zip(words, groups, strict=True))
