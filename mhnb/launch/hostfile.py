"""Read the machines that `--hosts` or a host file names, and the number of ranks per host in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mhnb.core.reach.hosts import HostName, parse_hostfile, parse_hosts
from mhnb.errors import InvalidRequest

__all__ = ["ranks_per_host", "read_hostfile", "read_hosts"]


def read_hosts(spec: str) -> tuple[HostName, ...]:
    """Parse `a,b,c`, or read a host file: `@hosts.txt`, or any path with a slash, which no machine name contains.

    Raises:
        InvalidRequest: an invalid machine name, or a file that cannot be read.
    """
    if not spec.startswith("@") and "/" not in spec:
        return parse_hosts(spec)
    return read_hostfile(spec.removeprefix("@"))


def read_hostfile(name: str) -> tuple[HostName, ...]:
    """Read a host file.

    Raises:
        InvalidRequest: it cannot be read, or contains an invalid machine name.
    """
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"cannot read the host file {path}: {error}; give a file with a machine's name on each line"
        ) from error
    return parse_hostfile(text, str(path))


def ranks_per_host(hosts: Sequence[HostName]) -> int | None:
    """Return the number of ranks that a host file sets for every host; None if it sets none.

    Raises:
        InvalidRequest: the numbers differ between hosts.
    """
    slots = {host.slots for host in hosts}
    if len(slots) > 1:
        first: dict[int | None, HostName] = {}
        for host in hosts:
            first.setdefault(host.slots, host)
        details = "".join(f"\n  {host.source}: {host} has {_format_slots(host.slots)}" for host in first.values())
        least = min(number or 1 for number in slots)
        raise InvalidRequest(
            f"slots differ, and every host needs the same number of ranks: rank r is on host r // ranks per host{details}\n"
            f"  --per-host {least} says it for all, over the file; or write the same slots= on each line"
        )
    return slots.pop() if slots else None


def _format_slots(slots: int | None) -> str:
    return "no slots=" if slots is None else f"slots={slots}"
