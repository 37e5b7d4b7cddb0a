"""Parse and format addresses at which processes listen, such as `tcp:HOST:PORT`.

In text an IPv6 address is in brackets, because it contains colons itself. A value never has the brackets: sockets do not accept them.
How a user names a machine, with an optional port, is another grammar (`core/launch/hosts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mhnb.errors import InvalidRequest

AddressKind: TypeAlias = Literal["unix", "tcp", "sealed", ""]

_FORMS: dict[AddressKind, str] = {
    "unix": "unix:PATH",
    "tcp": "tcp:HOST:PORT",
    "sealed": "sealed:HOST:PORT",
    "": "HOST:PORT",
}
# Without brackets, the last colon is the one before the port: earlier versions wrote IPv6 addresses like this.
_HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]]+)):([0-9]{1,5})")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process listens.

    >>> str(Address("::1", 22)), str(Address("10.0.0.1", 22, "tcp")), str(Address(kind="unix", path="/run/link"))
    ('[::1]:22', 'tcp:10.0.0.1:22', 'unix:/run/link')
    """

    host: str = ""
    """A name or an IP address, without brackets; empty for a socket file."""
    port: int = 0
    kind: AddressKind = ""
    """`sealed` is TCP with encrypted messages. Empty if the text names only the host and the port."""
    path: str = ""
    """The socket file of the kind `unix`."""

    def __str__(self) -> str:
        prefix = f"{self.kind}:" if self.kind else ""
        return f"{prefix}{self.path}" if self.kind == "unix" else f"{prefix}{bracket_host(self.host)}:{self.port}"


def bracket_host(host: str) -> str:
    """Format a host for a text in which a port may follow.

    >>> bracket_host("fe80::1%eth0"), bracket_host("node1")
    ('[fe80::1%eth0]', 'node1')
    """
    return f"[{host}]" if ":" in host else host


def parse_address(
    text: str, what: str = "address", *, kinds: Sequence[AddressKind] = ("unix", "tcp", "sealed")
) -> Address:
    """Parse the text of an address.

    Args:
        text: in one of the forms of `kinds`.
        what: the name of the value, for the message.
        kinds: the accepted kinds; the empty one is `HOST:PORT` alone.

    Raises:
        InvalidRequest: the text has none of these forms, or its port is above 65535.

    >>> parse_address("sealed:[::1]:22")
    Address(host='::1', port=22, kind='sealed', path='')
    """
    for kind in kinds:
        prefix = f"{kind}:" if kind else ""
        rest = text.removeprefix(prefix)
        if not text.startswith(prefix) or not rest:
            continue
        if kind == "unix":
            return Address(kind=kind, path=rest)
        if (found := _HOST_AND_PORT.fullmatch(rest)) and int(found[3]) <= _MAX_PORT:
            return Address(found[1] or found[2], int(found[3]), kind)
    forms = " or ".join(_FORMS[kind] for kind in kinds)
    port = "" if tuple(kinds) == ("unix",) else f" with a port to {_MAX_PORT}"
    raise InvalidRequest(f"{what} {text!r} is not {forms}{port}")


def parse_host_and_port(text: str, what: str = "address") -> Address:
    """Parse `HOST:PORT`.

    Raises:
        InvalidRequest: the text has another form, or its port is above 65535.

    >>> parse_host_and_port("[fe80::1%eth0]:80"), parse_host_and_port("::1:80").host
    (Address(host='fe80::1%eth0', port=80, kind='', path=''), '::1')
    """
    return parse_address(text, what, kinds=("",))
