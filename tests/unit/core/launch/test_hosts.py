"""Host names as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.core.launch.hosts import HostName, format_host, parse_host, parse_hostfile, parse_hosts
from mhnb.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [HostName("a")]),
        (" a , b,", [HostName("a"), HostName("b")]),
        ("me@a:2222", [HostName("a", "me", 2222)]),
        ("10.0.0.1:22,10.0.0.2", [HostName("10.0.0.1", None, 22), HostName("10.0.0.2")]),
        ("fe80::1", [HostName("fe80::1")]),
        ("[fe80::1]:22,me@[::1]", [HostName("fe80::1", None, 22), HostName("::1", "me")]),
        ("fe80::1%eth0", [HostName("fe80::1%eth0")]),
        ("n[1-3]", [HostName("n1"), HostName("n2"), HostName("n3")]),
        ("n[08-10,2].x:22", [HostName(f"n{n}.x", None, 22) for n in ("08", "09", "10", "2")]),
        ("r[1-2]n[1-2]", [HostName(name) for name in ("r1n1", "r1n2", "r2n1", "r2n2")]),
        ("first.last@gpu_box", [HostName("gpu_box", "first.last")]),
        ("a:1,a:2", [HostName("a", None, 1), HostName("a", None, 2)]),
    ],
)
def test_hosts_are_read(text: str, hosts: list[HostName]) -> None:
    """Commas, users, ports, IPv6 addresses and ranges are parsed."""
    assert list(parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected host names"),
        (" , ", "expected host names"),
        ("a,,b", "hosts 'a,,b': a name before a comma is empty; expected for example a,b"),
        (", a", "a name before a comma is empty"),
        ("a,b,a", "a is named twice"),
        ("n[1-2],n1", "n1 is named twice"),
        ("a:ssh", "'ssh' is not a port"),
        ("a:0", "port 0: expected a number from 1 to 65535"),
        ("a:65536", "port 65536"),
        ("-oProxyCommand=x", "is not a valid host name"),
        ("-l@a", "'-l' is not a valid user name"),
        ("a b", "'a b' is not a valid host name"),
        ("a;reboot", "is not a valid host name"),
        ("n[3-1]", "is reversed"),
        ("n[1-]", "'1-' is not a number or a range"),
        ("n[1-4000]", "more than 1024"),
        ("n[1-99][1-99]", "more than 1024"),
        ("n[x]", "is not a valid host name"),
    ],
)
def test_bad_hosts_are_refused(text: str, said: str) -> None:
    """The error names the invalid host, what is wrong with it, and how to write it."""
    with pytest.raises(InvalidRequest, match=said.replace("[", r"\[")):
        parse_hosts(text)


def test_a_host_file_is_read() -> None:
    """A host file has one host per line, comments, blank lines, slots and ranges."""
    text = "# the rack\n\nme@a:22  slots=4   # the big one\n  b\nn[1-2] slots=2\r\n"
    assert parse_hostfile(text) == (
        HostName("a", "me", 22, 4),
        HostName("b"),
        HostName("n1", slots=2),
        HostName("n2", slots=2),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb slots=0", "hosts.txt, line 2: unknown setting 'slots=0'"),
        ("a max_slots=2", "hosts.txt, line 1: unknown setting 'max_slots=2'"),
        ("a b", "hosts.txt, line 1: unknown setting 'b'"),
        ("a;b", "hosts.txt, line 1: host 'a;b'"),
        ("a\na", "hosts.txt: a is named twice"),
        ("# a\n", "hosts.txt: expected host names"),
    ],
)
def test_a_bad_host_file_is_refused(text: str, said: str) -> None:
    """The message names the file and the line."""
    with pytest.raises(InvalidRequest, match=said):
        parse_hostfile(text, "hosts.txt")


@given(
    st.builds(
        HostName,
        st.from_regex(r"[a-z0-9][a-z0-9.-]{0,10}|[0-9a-f]{1,4}:(:[0-9a-f]{1,4}){1,4}", fullmatch=True),
        st.none() | st.from_regex(r"[a-z][a-z0-9.]{0,5}", fullmatch=True),
        st.none() | st.integers(1, 65535),
    )
)
@pytest.mark.slow
def test_host_round_trip(host: HostName) -> None:
    """`parse_host` reverses `format_host`."""
    assert parse_host(format_host(host)) == host
