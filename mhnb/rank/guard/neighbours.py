"""Host labels of the ranks, as this process knows them. If `set_ranks_per_host` was not called, as in a script, each rank is a host."""

from __future__ import annotations

__all__ = ["host_label", "set_ranks_per_host"]


class _HostMap:
    ranks_per_host = 1


def set_ranks_per_host(ranks_per_host: int) -> None:
    """Set how many ranks of this process's cluster are on each host: rank r is on host r // ranks_per_host."""
    _HostMap.ranks_per_host = ranks_per_host


def host_label(rank: int) -> str:
    """Return the label of a rank's host, as the notebook shows it.

    >>> host_label(2)
    'host2'
    """
    return f"host{rank // _HostMap.ranks_per_host}"
