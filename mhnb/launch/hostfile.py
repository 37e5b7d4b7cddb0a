"""Reads the machines that `--hosts` names, from its text or from a file."""

from __future__ import annotations

from pathlib import Path

from mhnb.core.hosts import HostName, parse_hostfile, parse_hosts
from mhnb.errors import InvalidRequest

__all__ = ["read_hosts"]


def read_hosts(spec: str) -> tuple[HostName, ...]:
    """Read `a,b,c`, or a host file: `@hosts.txt`, or any path with a slash, which no machine's name has.

    Raises:
        InvalidRequest: a machine that cannot be, or a file that cannot be read.
    """
    if not spec.startswith("@") and "/" not in spec:
        return parse_hosts(spec)
    path = Path(spec.removeprefix("@")).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--hosts {spec}: cannot read the host file: {error}") from error
    return parse_hostfile(text, str(path))
