"""Which ranks share a host, as this process knows it. Where nobody has told it, as in a script, each rank is a host."""

from __future__ import annotations

__all__ = ["host_label", "settle"]


class _Known:
    ranks_per_host = 1


def settle(ranks_per_host: int) -> None:
    """Note how the ranks of this process's cluster lie: rank r is on host r // ranks_per_host."""
    _Known.ranks_per_host = ranks_per_host


def host_label(rank: int) -> str:
    """Name the host of a rank, as the notebook does.

    >>> host_label(2)
    'host2'
    """
    return f"host{rank // _Known.ranks_per_host}"
