"""Text helpers that every view shares: seconds, bytes, ranks, and the host and log file of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mhnb.core.reach.hosts import format_hosts
from mhnb.sharding.layout import format_nbytes
from mhnb.values import RankError

__all__ = ["RankLocations", "format_error", "format_hosts_of", "format_nbytes", "format_seconds", "join_words"]


_MAX_HOSTS_CHARS = 32
_MAX_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class RankLocations:
    """Host and log file of each rank. A rank that is missing is shown without them."""

    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host label by rank, as `host2`."""
    logs: Mapping[int, str] = field(default_factory=dict)
    """Path of the log file with the rank's complete output."""
    cluster: str = ""
    """The cluster's name."""
    notebook_dir: str = ""
    """The notebook's folder, from which a front end opens files; empty if it is unknown."""
    script_path: str = ""
    """The file that runs instead of cells; empty if cells run."""

    def describe_source(self, seq: int) -> str:
        """Return what a line number refers to: the script, or else the cell."""
        return self.script_path or f"cell {seq}"

    def host_of(self, ranks: Iterable[int]) -> str | None:
        """Return the host that holds all of `ranks`; None if there are several or it is unknown."""
        hosts = {self.hosts.get(rank) for rank in ranks}
        return hosts.pop() if len(hosts) == 1 else None


def format_error(error: RankError) -> str:
    """Format an error in one line, for views in which a failure report has the rest.

    >>> format_error(RankError("ValueError", "no", ())), format_error(RankError("KeyboardInterrupt", "", ()))
    ('ValueError: no', 'KeyboardInterrupt')
    """
    return ": ".join(filter(None, (error.ename, error.evalue[:_MAX_ERROR_CHARS])))


def format_hosts_of(locations: RankLocations, ranks: Iterable[int]) -> str:
    """Format the hosts that ranks are on; an empty string if one is unknown, or if they are all of several hosts.

    >>> format_hosts_of(RankLocations(hosts={0: "host0", 1: "host1", 2: "host2"}), (1, 2))
    'host[1-2]'
    """
    hosts = [locations.hosts.get(rank) for rank in ranks]
    known = [host for host in hosts if host is not None]
    if len(known) < len(hosts) or (len(known) > 1 and set(known) == set(locations.hosts.values())):
        return ""
    named = format_hosts(known)
    # A long list is shown as a count, because the ranks before it identify the hosts.
    return named if len(named) <= _MAX_HOSTS_CHARS else f"{len(set(known))} hosts"


def format_seconds(seconds: float) -> str:
    """Format a duration with two or three digits.

    >>> [format_seconds(s) for s in (0.004, 0.21, 1.44, 23.4, 200.0)]
    ['4 ms', '0.21 s', '1.4 s', '23 s', '3 min 20 s']
    """
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    >>> join_words(["jax", "mhnb", "flax"])
    'jax, mhnb and flax'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
