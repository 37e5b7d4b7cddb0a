"""Format host names in Slurm's compressed form: `host[1-2,5]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mhnb.core.ranks import format_ranks

__all__ = ["format_hosts"]

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)$")


def format_hosts(hosts: Iterable[str]) -> str:
    """Format host names; names that differ only in a number at their end are combined.

    >>> format_hosts(["host1", "host2", "login", "host5"])
    'host[1-2,5],login'
    """
    numbers: dict[str, list[int]] = {}
    for host in dict.fromkeys(hosts):
        found = _NUMBERED.match(host)
        numbers.setdefault(found[1] if found else host, []).extend([int(found[2])] if found else [])
    return ",".join(_format_numbered(stem, found) for stem, found in sorted(numbers.items()))


def _format_numbered(stem: str, numbers: list[int]) -> str:
    if not numbers:
        return stem
    return f"{stem}{numbers[0]}" if len(numbers) == 1 else f"{stem}[{format_ranks(numbers)}]"
