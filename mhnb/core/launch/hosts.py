"""Parse, format and group the machines of `--hosts`, host files and tasks.

Several host names are shown in Slurm's compressed form, `host[1-2,5]`. How machines are reached is not known here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mhnb.core.addresses import bracket_host
from mhnb.core.preflight_facts import HostChecks, HostFacts  # noqa: F401  # the example uses HostFacts
from mhnb.core.ranks import format_ranks
from mhnb.errors import InvalidRequest

_MAX_HOSTS = 1024
_NAME = re.compile(r"[\w.%-]+|[\w.%:]*:[\w.%:]*", re.ASCII)
_USER = re.compile(r"[\w.$@\\+-]+")
_RANGE = re.compile(r"\[([\d,\s-]+)\]")


@dataclass(frozen=True, slots=True)
class HostName:
    """A machine as the user named it: name, ssh alias or address."""

    address: str
    """Without brackets, also for an IPv6 address."""
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks on it; None for as many as on every other host."""
    source: str = field(default="", compare=False, repr=False)
    """The file and line that name it; empty if it is not from a file."""

    def __str__(self) -> str:
        return format_host(self)


def parse_hosts(text: str) -> tuple[HostName, ...]:
    """Parse the machines of `--hosts`: comma-separated names, `user@name:port`, `[::1]:22`, `name[1-4]`, `name[01-16,20]`.

    Raises:
        InvalidRequest: the text is empty, a name is not possible, or the same machine is named twice.

    >>> [str(host) for host in parse_hosts("a, me@b:2222, n[09-10]")]
    ['a', 'me@b:2222', 'n09', 'n10']
    """
    if text.strip().isdecimal():
        raise InvalidRequest(f"--hosts {text}: give names of machines, like --hosts a,b; -n {text} says how many hosts")
    found = [parse_host(name) for part in _split_names(text) for name in _expand_ranges(part)]
    return _check_distinct(found, f"--hosts {text!r}")


def parse_hostfile(text: str, source: str = "the host file") -> tuple[HostName, ...]:
    r"""Parse a host file with names, `slots=` for ranks, and `#` comments.

    Args:
        text: the contents of the file.
        source: its name, for messages.

    Raises:
        InvalidRequest: as for `parse_hosts`; names the line.

    >>> [(host.address, host.slots) for host in parse_hostfile("# rack 1\nn[1-2] slots=8\n")]
    [('n1', 8), ('n2', 8)]
    """
    found: list[HostName] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            named = _parse_line(line.partition("#")[0].split())
        except InvalidRequest as error:
            raise InvalidRequest(f"{source}, line {number}: {error}") from error
        found += [replace(host, source=f"{source}, line {number}") for host in named]
    return _check_distinct(found, source)


def parse_host(text: str) -> HostName:
    """Parse one machine.

    Raises:
        InvalidRequest: the name is not possible.

    >>> parse_host("me@[fe80::1%eth0]:2222")
    HostName(address='fe80::1%eth0', user='me', port=2222, slots=None)
    """
    user, at, endpoint = text.strip().rpartition("@")
    if at and (not _USER.fullmatch(user) or user.startswith("-")):
        raise InvalidRequest(f"host {text!r}: {user!r} is not a valid user name; expected for example me@name:22")
    address, port = _split_port(endpoint)
    if not _NAME.fullmatch(address) or address.startswith("-"):
        raise InvalidRequest(
            f"host {text!r}: {address!r} is not a valid host name; expected for example name, me@name:22, [::1]:22 or name[1-4]"
        )
    return HostName(address, user or None, None if port is None else _parse_port(port, text))


def format_host(host: HostName) -> str:
    """Format a machine in the form that `parse_host` reads.

    >>> format_host(HostName("::1", "me", 22))
    'me@[::1]:22'
    """
    user = "" if host.user is None else f"{host.user}@"
    return f"{user}{bracket_host(host.address)}" + ("" if host.port is None else f":{host.port}")


def _split_names(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text)]
    names = [part for part in parts if part]
    if names and not all(parts[:-1]):
        raise InvalidRequest(f"hosts {text!r}: a name before a comma is empty; expected for example {','.join(names)}")
    yield from names


def _expand_ranges(text: str) -> list[str]:
    """Expand the ranges of a name; the last one changes fastest."""
    if (match := _RANGE.search(text)) is None:
        return [text]
    head, tail = text[: match.start()], text[match.end() :]
    rest = _expand_ranges(tail)
    numbers = list(_expand_numbers(match.group(1), text))
    if len(numbers) * len(rest) > _MAX_HOSTS:
        raise InvalidRequest(f"hosts {text!r}: more than {_MAX_HOSTS} machines")
    return [f"{head}{number}{end}" for number in numbers for end in rest]


def _expand_numbers(text: str, full_text: str) -> Iterator[str]:
    """Yield the numbers of `01-03,7`, keeping each range's leading zeros."""
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidRequest(
                f"hosts {full_text!r}: {part.strip()!r} is not a number or a range; expected for example name[1-4,7]"
            )
        low, high = int(first), int(last if dash else first)
        if low > high or high - low >= _MAX_HOSTS:
            raise InvalidRequest(
                f"hosts {full_text!r}: the range {part.strip()} is reversed or has more than {_MAX_HOSTS} machines"
            )
        width = len(first) if first.startswith("0") else 0
        yield from (str(number).zfill(width) for number in range(low, high + 1))


def _split_port(endpoint: str) -> tuple[str, str | None]:
    if match := re.fullmatch(r"\[([^\]]*:[^\]]*)\](?::(.*))?", endpoint):
        return match.group(1), match.group(2)
    if endpoint.count(":") == 1:
        address, _, port = endpoint.partition(":")
        return address, port
    # With several colons and no brackets, all of it is an IPv6 address.
    return endpoint, None


def _parse_port(text: str, full_text: str) -> int:
    if not text.isdecimal():
        raise InvalidRequest(f"host {full_text!r}: {text!r} is not a port; expected for example name:22")
    return check_port(int(text), f"host {full_text!r}: port")


def check_port(port: int, what: str) -> int:
    """Return a port.

    Args:
        what: the owner of the port, for the message.

    Raises:
        InvalidRequest: the port is not from 1 to 65535.

    >>> check_port(22, "port")
    22
    """
    if not 0 < port < 65536:
        raise InvalidRequest(f"{what} {port}: expected a number from 1 to 65535")
    return port


def _parse_line(words: Sequence[str]) -> list[HostName]:
    if not words:
        return []
    name, *settings = words
    slots = None
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "slots" or not value.isdecimal() or int(value) < 1:
            raise InvalidRequest(f"unknown setting {setting!r}; after the name only slots=N is allowed, with N from 1")
        slots = int(value)
    hosts = [parse_host(each) for part in _split_names(name) for each in _expand_ranges(part)]
    return [HostName(host.address, host.user, host.port, slots) for host in hosts]


def _check_distinct(hosts: Sequence[HostName], what: str) -> tuple[HostName, ...]:
    if not hosts:
        raise InvalidRequest(f"{what}: expected host names, for example a,b,c or name[1-4]")
    for at, host in enumerate(hosts):
        if any((host.address, host.port) == (other.address, other.port) for other in hosts[:at]):
            raise InvalidRequest(
                f"{what}: {host} is named twice; name it once, and set the ranks per host with --per-host (slots= in a file)"
            )
    return tuple(hosts)


# -- group tasks by machine


def group_by_machine(hosts: Sequence[HostChecks]) -> list[list[int]]:
    """Group supervisors by machine; one without facts is its own group.

    >>> a, b = HostFacts("a", "3.11"), HostFacts("b", "3.11")
    >>> group_by_machine([HostChecks("a", facts=a), HostChecks("a", facts=a), HostChecks("?"), HostChecks("b", facts=b)])
    [[0, 1], [2], [3]]
    """
    groups: dict[object, list[int]] = {}
    for at, host in enumerate(hosts):
        facts = host.facts
        groups.setdefault(at if facts is None else (facts.boot_id, facts.hostname, host.address), []).append(at)
    return list(groups.values())


def label_hosts(hostnames: Sequence[str], addresses: Sequence[str | None]) -> list[str]:
    """Label machines by name (with address if duplicate), or by number.

    >>> label_hosts(["a", "", "c", "c"], ["10.0.0.1", None, "10.0.0.3", "10.0.0.4"])
    ['a', 'host1', 'c (10.0.0.3)', 'c (10.0.0.4)']
    """
    counts = Counter(hostnames)
    return [
        f"host{at}" if not name else name if counts[name] == 1 else f"{name} ({address})"
        for at, (name, address) in enumerate(zip(hostnames, addresses, strict=True))
    ]


# -- format host names in Slurm's compressed form: `host[1-2,5]`


_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)$")


def format_hosts(hosts: Iterable[str]) -> str:
    """Format host names; those that differ in a final number are combined.

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
