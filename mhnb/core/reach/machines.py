"""Group a launcher's tasks by machine, and label the machines for a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mhnb.core.preflight.facts import HostFacts

__all__ = ["group_by_machine", "label_hosts"]


def group_by_machine(facts: Sequence[HostFacts | None]) -> list[list[int]]:
    """Group tasks by machine, in the order of the first task on each. A task without facts forms a group of its own.

    >>> group_by_machine([HostFacts("a", "3.11"), HostFacts("a", "3.11"), None, HostFacts("b", "3.11")])
    [[0, 1], [2], [3]]
    """
    groups: dict[object, list[int]] = {}
    for at, fact in enumerate(facts):
        groups.setdefault(at if fact is None else (fact.boot_id, fact.hostname, fact.address), []).append(at)
    return list(groups.values())


def label_hosts(hostnames: Sequence[str], addresses: Sequence[str | None]) -> list[str]:
    """Label each machine by its name, with its address if two have the same name, or by its number if it has none.

    >>> label_hosts(["a", "", "c", "c"], ["10.0.0.1", None, "10.0.0.3", "10.0.0.4"])
    ['a', 'host1', 'c (10.0.0.3)', 'c (10.0.0.4)']
    """
    counts = Counter(hostnames)
    return [
        f"host{at}" if not name else name if counts[name] == 1 else f"{name} ({address})"
        for at, (name, address) in enumerate(zip(hostnames, addresses, strict=True))
    ]
