"""Explain why an ssh command ended, from its output and exit code: the machine, the cause in ssh's own words, and what to do.

The texts are those of OpenSSH 8 and 9. Unknown output is shown as it is and never guessed at.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.ssh import LOGGED_IN, SshOptions
from mhnb.errors import HostUnfit, HostUnreachable, LaunchError

__all__ = ["SshFailure", "build_ssh_error", "explain_ssh", "format_manual_command"]

_SSH_EXIT_CODE = 255
"""ssh's exit code for its own failures, and for a program that a signal ended."""

_BEFORE_LOGIN = (
    ("key_changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed"),
    ("key_unknown", r"No .*host key is known|Host key verification failed"),
    ("config", r"Can't open user config file|Bad configuration option|terminating, \d+ bad|no argument after keyword"),
    ("key_file", r"bad permissions|Load key .*: (?!.*agent)"),
    ("unknown_name", r"Could not resolve hostname"),
    ("refused", r"Connection refused"),
    ("silent", r"timed out|No route to host|Network is unreachable|Host is down"),
    ("login", r"Permission denied|Too many authentication failures|No supported authentication methods"),
    ("closed", r"[Cc]onnection (?:closed|reset)|kex_exchange_identification|Connection to .* closed"),
)
_AFTER_LOGIN = (
    ("setup", r"mhnb: setup failed: "),
    ("folder", r"mhnb: no folder: "),
    ("environment", r"mhnb: no (?:virtual environment|conda environment|conda): "),
    ("python", r"mhnb: no python: "),
    ("old_python", r"[Uu]nknown option:? -P|mhnb: old python: "),
    ("mhnb", r"No module named (?:mhnb$|'mhnb[.'])"),
    ("lost", r"closed by remote host|not responding|Broken pipe|Connection reset"),
)
_DESCRIPTIONS = {
    "closed": "closed the connection before the login",
    "config": "was not tried: ssh cannot read its config",
    "ended": "what ran there ended",
    "environment": "has no such environment",
    "failed": "cannot be reached",
    "folder": "has no such folder",
    "key_changed": "has another host key than the one you know",
    "key_file": "refused the login: your key file cannot be used",
    "key_unknown": "has a host key that you do not know",
    "killed": "what ran there was killed by a signal",
    "login": "refused the login",
    "lost": "was lost: the connection broke",
    "mhnb": "has no mhnb for this Python",
    "old_python": "has a Python that is too old",
    "python": "has no such Python",
    "refused": "refused the connection",
    "setup": "could not be set up",
    "shell": "let you in, and its login shell did not run the command",
    "silent": "does not answer",
    "unknown_name": "is a name that ssh cannot resolve",
}
_SSH_HINTS = {
    "closed": "sshd there may limit the logins at a time (MaxStartups) or the addresses; {sees}",
    "config": "mend the ssh config, or name another one",
    "ended": "the log has all it said",
    "environment": "name one that is on {host}, by its whole path",
    "failed": "{sees}",
    "folder": "make it on {host}, or name another one",
    "key_changed": "if {host} was installed anew: ssh-keygen -R {entry}, and log in once by hand; if not, ask who runs it: "
    "somebody may stand between",
    "key_file": "chmod 600 the key file, which must be a private key that you own",
    "key_unknown": "log in once by hand and compare its key: {by_hand}",
    "killed": "out of memory there, or ended by somebody: dmesg on {host} tells",
    "login": "ssh must log you in without asking: ssh-copy-id, or name user and key; {sees}",
    "lost": "see that {host} is up and its network; then start again",
    "mhnb": "install it into that very Python on {host}: python -m pip install mhnb; or name the Python, venv or conda that has it",
    "old_python": "mhnb needs Python 3.11 or newer; name one that is on {host}",
    "python": "install it on {host}, or name the Python, venv or conda that is there",
    "refused": "no sshd listens there, or a firewall says no: see that sshd runs, and the port; {sees}",
    "setup": "try that line by hand on {host}",
    "shell": "the account needs a login shell that runs commands; {sees}",
    "silent": "it is down, elsewhere, or a firewall drops the packets; {sees}",
    "unknown_name": "spell it as your ssh config or your name server has it, or give its address",
}  # fmt: skip
_HOST_NOT_READY = ("ended", "environment", "folder", "killed", "mhnb", "old_python", "python", "setup")


@dataclass(frozen=True, slots=True)
class SshFailure:
    """One failed ssh command."""

    kind: str
    """An identifier for code: `login`, `key_changed`, `silent`, ..."""
    description: str
    """What happened, to follow the machine's name: `refused the login`."""
    cause: str
    """In the words of ssh or of the remote program; may be empty."""
    hint: str


def explain_ssh(text: str, code: int, host: HostName, options: SshOptions) -> SshFailure:
    """Explain why an ssh command ended.

    Args:
        text: all that it wrote to standard error, including the output of the remote program.
        code: its exit code; negative for a signal here.

    >>> explain_ssh("me@b: Permission denied (publickey).", 255, HostName("b"), SshOptions()).kind
    'login'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kind, cause = _classify(lines, code)
    by_hand = format_manual_command(host, options)
    entry = shlex.quote(host.address if (host.port or 22) == 22 else f"[{host.address}]:{host.port}")
    words = {"host": host.address, "entry": entry, "by_hand": by_hand, "sees": f"by hand: {by_hand}"}
    description = _DESCRIPTIONS[kind] + (f" with exit code {code}" if kind == "ended" else "")
    return SshFailure(kind, description, cause, _SSH_HINTS[kind].format(**words))


def build_ssh_error(failure: SshFailure, host: HostName, log: str = "") -> LaunchError:
    r"""Build the error: HostUnfit if the login succeeded, otherwise HostUnreachable.

    >>> str(build_ssh_error(SshFailure("refused", "refused the connection", "", "start sshd"), HostName("b")))
    'b: refused the connection\n  start sshd'
    """
    cause = f": {failure.cause}" if failure.cause else ""
    message = f"{host}: {failure.description}{cause}\n  {failure.hint}" + (f"\n  log {log}" if log else "")
    kind = HostUnfit if failure.kind in _HOST_NOT_READY else HostUnreachable
    return kind(message, host=host.address, kind=failure.kind)


def format_manual_command(host: HostName, options: SshOptions) -> str:
    """Return the command with which a user can reproduce the failure.

    >>> format_manual_command(HostName("b", "me", 2222), SshOptions(config_file="my cfg"))
    "ssh -F 'my cfg' -p 2222 me@b"
    """
    arguments = ["ssh"]
    for flag, value in (("-F", options.config_file), ("-i", options.key_file), ("-p", host.port or options.port)):
        arguments += [flag, str(value)] if value is not None else []
    arguments += [word for setting in options.extra for word in ("-o", setting)]
    user = host.user or options.user
    return shlex.join([*arguments, host.address if user is None else f"{user}@{host.address}"])


def _classify(lines: list[str], code: int) -> tuple[str, str]:
    """Return the kind of the failure, and the line that shows it."""
    login_lines = [at for at, line in enumerate(lines) if line == LOGGED_IN]
    if login_lines:
        later = lines[login_lines[-1] + 1 :]
        # Only ssh itself can report a lost connection, and then the exit code is its own.
        known = [(kind, pattern) for kind, pattern in _AFTER_LOGIN if kind != "lost" or code == _SSH_EXIT_CODE]
        return _match_line(known, later) or _classify_end(code, later)
    if (found := _match_line(_BEFORE_LOGIN, lines)) is not None and code == _SSH_EXIT_CODE:
        return found
    return ("failed" if code in (0, _SSH_EXIT_CODE) or code < 0 else "shell"), lines[-1] if lines else ""


def _classify_end(code: int, lines: list[str]) -> tuple[str, str]:
    return "killed" if code == _SSH_EXIT_CODE else "ended", lines[-1] if lines else ""


def _match_line(known: Iterable[tuple[str, str]], lines: list[str]) -> tuple[str, str] | None:
    for kind, pattern in known:
        hits = [line for line in lines if re.search(pattern, line)]
        if hits:
            # The last match is the most exact: the banner of a changed key comes before the sentence.
            return kind, hits[-1].removeprefix("mhnb: ")
    return None
