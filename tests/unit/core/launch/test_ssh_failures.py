"""Every kind of ssh failure is recognised by its text. The texts are real output of OpenSSH 9.2."""

from __future__ import annotations

import pickle

import pytest

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import SshOptions, build_ssh_error, explain_ssh
from mhnb.errors import HostUnfit, HostUnreachable

_CHANGED_HOST_KEY = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:p1rSQiMzW3p0LuvS2LB17xHOWFQr4YTBN/ZcBs5j/AQ.
Please contact your system administrator.
Add correct host key in /etc/known to get rid of this message.
Offending ED25519 key in /etc/known:1
  remove with:
  ssh-keygen -f "/etc/known" -R "10.77.1.1"
Host key for 10.77.1.1 has changed and you have requested strict checking.
Host key verification failed.
"""
_OPEN_KEY = """\
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
Permissions 0644 for '/etc/id' are too open.
It is required that your private key files are NOT accessible by others.
This private key will be ignored.
Load key "/etc/id": bad permissions
root@10.77.1.1: Permission denied (publickey).
"""
_LOGGED_IN = "Warning: Permanently added 'b' (ED25519) to the list of known hosts.\nmhnb: logged in\n"
_NOT_FOUND = (
    "Error while finding module specification for 'mhnb.rank.supervisor' (ModuleNotFoundError: No module named 'mhnb')"
)

CASES = [
    ("unknown_name", 255, "ssh: Could not resolve hostname b: Name or service not known\r\n", "Could not resolve"),
    ("refused", 255, "ssh: connect to host 10.77.1.1 port 23: Connection refused\r\n", "port 23: Connection refused"),
    ("silent", 255, "ssh: connect to host 10.77.1.2 port 22: Connection timed out\r\n", "Connection timed out"),
    ("silent", 255, "ssh: connect to host 10.77.1.2 port 22: No route to host\r\n", "No route to host"),
    ("silent", 255, "Connection timed out during banner exchange\nConnection to 10.77.1.2 port 22 timed out\n", "22 timed out"),
    ("login", 255, "nobody@10.77.1.1: Permission denied (publickey).\r\n", "nobody@10.77.1.1: Permission denied"),
    ("login", 255, "Received disconnect from 10.77.1.1 port 22:2: Too many authentication failures\r\n", "Too many"),
    ("key_changed", 255, _CHANGED_HOST_KEY, "Host key for 10.77.1.1 has changed"),
    ("key_unknown", 255, "Host key verification failed.\r\n", "Host key verification failed."),
    (
        "key_unknown",
        255,
        "No ED25519 host key is known for b and you have requested strict checking.\r\nHost key verification failed.\r\n",
        "Host key verification failed.",
    ),
    ("key_file", 255, _OPEN_KEY, 'Load key "/etc/id": bad permissions'),
    ("config", 255, "Can't open user config file /no/cfg: No such file or directory\r\n", "/no/cfg"),
    ("config", 255, "cfg: line 2: Bad configuration option: nonsense\r\ncfg: terminating, 1 bad configuration options\r\n", "1 bad"),
    ("closed", 255, "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22", "by 10"),
    ("shell", 1, "This account is currently not available.\n", "This account is currently not available."),
    ("failed", 255, "something that nobody has seen\n", "something that nobody has seen"),
    ("failed", -9, "", ""),
    ("python", 127, f"{_LOGGED_IN}mhnb: no python: python3\n", "no python: python3"),
    ("folder", 127, f"{_LOGGED_IN}sh: 1: cd: can't cd to /x\nmhnb: no folder: /x\n", "no folder: /x"),
    ("environment", 127, f"{_LOGGED_IN}mhnb: no virtual environment: ~/env\n", "no virtual environment: ~/env"),
    ("environment", 127, f"{_LOGGED_IN}mhnb: no conda: a\n", "no conda: a"),
    ("setup", 127, f"{_LOGGED_IN}sh: 1: module: not found\nmhnb: setup failed: module load x\n", "setup failed: module load x"),
    (
        "mhnb",
        1,
        f"{_LOGGED_IN}/usr/bin/python3: {_NOT_FOUND}\n",
        "No module named 'mhnb'",
    ),
    ("old_python", 2, f"{_LOGGED_IN}unknown option -P\nusage: python3 [option] ...\n", "unknown option -P"),
    ("lost", 255, f"{_LOGGED_IN}Timeout, server 10.77.1.1 not responding.\r\n", "not responding"),
    ("lost", 255, f"{_LOGGED_IN}Connection to 10.77.1.1 closed by remote host.\r\n", "closed by remote host"),
    ("lost", 255, f"{_LOGGED_IN}client_loop: send disconnect: Broken pipe\r\n", "Broken pipe"),
    ("killed", 255, f"{_LOGGED_IN}loading\n", "loading"),
    ("ended", 1, f"{_LOGGED_IN}ValueError: 3\n", "ValueError: 3"),
    ("mhnb", 1, f"{_LOGGED_IN}/usr/bin/python3: No module named mhnb\n", "No module named mhnb"),
    ("ended", 1, f"{_LOGGED_IN}ModuleNotFoundError: No module named 'mhnbx'\n", "No module named 'mhnbx'"),
    # Text of the program itself about connections or permissions is not an ssh failure.
    ("ended", 1, f"{_LOGGED_IN}BrokenPipeError: Broken pipe\nPermission denied\n", "Permission denied"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "code", "text", "cause"), CASES)
def test_kind_of_failure_is_recognised(kind: str, code: int, text: str, cause: str) -> None:
    """The kind is right, and the cause is the line that names it, in ssh's own words."""
    failure = explain_ssh(text, code, HostName("b"), SshOptions())
    assert failure.kind == kind
    assert cause in failure.cause
    assert failure.hint
    assert "{" not in failure.hint


def test_the_error_names_host_cause_and_next_step() -> None:
    """The error names the host, what happened, ssh's own text, and the exact command to try."""
    host, options = HostName("b", "me", 2222), SshOptions(key_file="my key")
    error = build_ssh_error(explain_ssh("me@b: Permission denied (publickey).\r\n", 255, host, options), host, "b.log")
    assert isinstance(error, HostUnreachable)
    assert str(error) == (
        "me@b:2222: refused the login: me@b: Permission denied (publickey).\n"
        "  mhnb needs passwordless ssh: run ssh-copy-id '[b]:2222', or pass --user or --key; test with: ssh -i 'my key' -p 2222 me@b\n"
        "  log b.log"
    )
    assert (error.host, error.kind) == ("b", "login")
    assert pickle.loads(pickle.dumps(error)).kind == "login"  # noqa: S301


def test_host_without_python_is_unfit() -> None:
    """After a successful login the error has another class."""
    error = build_ssh_error(
        explain_ssh(f"{_LOGGED_IN}mhnb: no python: python3\n", 127, HostName("b"), SshOptions()), HostName("b")
    )
    assert isinstance(error, HostUnfit)
    assert str(error).startswith("b: has no such Python: no python: python3\n  install it on b")


def test_hint_for_changed_key_names_its_entry() -> None:
    """The known-hosts entry of a host with another port contains the port."""
    assert "ssh-keygen -R b " in explain_ssh(_CHANGED_HOST_KEY, 255, HostName("b"), SshOptions()).hint
    assert (
        "ssh-keygen -R '[b]:2222' " in explain_ssh(_CHANGED_HOST_KEY, 255, HostName("b", port=2222), SshOptions()).hint
    )
