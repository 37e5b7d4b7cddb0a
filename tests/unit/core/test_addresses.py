"""Parse and format the addresses of listening processes."""

from __future__ import annotations

import pytest

from mhnb.core.addresses import Address, parse_address, parse_host_and_port
from mhnb.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/a:b/link", Address(kind="unix", path="/run/a:b/link")),
        ("tcp:127.0.0.1:0", Address("127.0.0.1", 0, "tcp")),
        ("sealed:node1:65535", Address("node1", 65535, "sealed")),
        ("tcp:[::1]:20001", Address("::1", 20001, "tcp")),
        ("sealed:[fe80::1%eth0]:22", Address("fe80::1%eth0", 22, "sealed")),
    ],
)
def test_text_and_value_of_an_address_convert_to_each_other(text: str, address: Address) -> None:
    """Each kind is parsed, and formatted as the same text; an IPv6 address has brackets in the text only."""
    assert parse_address(text) == address
    assert str(address) == text


def test_host_and_port_convert_to_each_other() -> None:
    """An address without a kind is the one that JAX takes."""
    for text, address in (("node1:80", Address("node1", 80)), ("[::1]:80", Address("::1", 80))):
        assert parse_host_and_port(text) == address
        assert str(address) == text


def test_address_of_an_earlier_version_is_read() -> None:
    """Earlier versions wrote IPv6 addresses without brackets, and a kept cluster may have such a record."""
    assert parse_address("tcp:fe80::1:22") == Address("fe80::1", 22, "tcp")


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "tcp:", "tcp:node1", "tcp::22", "tcp:node1:", "tcp:node1:x", "tcp:[]:1", "udp:a:1", "tcp:a:65536"],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    """The error names the value, its text, and the forms that would be accepted."""
    with pytest.raises(InvalidRequest, match=r"^its url '.*' is not unix:PATH or tcp:HOST:PORT or sealed:HOST:PORT"):
        parse_address(text, "its url")


def test_only_the_named_kinds_are_accepted() -> None:
    """A caller that can listen over TCP alone refuses a socket file."""
    with pytest.raises(InvalidRequest, match=r"^board_url 'unix:/a' is not tcp:HOST:PORT with a port to 65535$"):
        parse_address("unix:/a", "board_url", kinds=("tcp",))
