"""ssh command lines, and the one line for standard input that starts the remote interpreter.

Secrets are never in a command's arguments, which every user of a machine can read. What the remote side is to run, with its
directory and its environment, is one line of POSIX shell for its standard input (`remote_line`).
So the remote login shell (bash, zsh, fish or csh) sees the same fixed arguments whatever the names are.
This module starts no process and opens no socket.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mhnb.core.reach.hosts import HostName, check_port
from mhnb.errors import InvalidRequest

__all__ = [
    "LOGGED_IN",
    "READ_LINE",
    "READ_LINE_WORDS",
    "SshOptions",
    "choose_python",
    "remote_line",
    "ssh_command",
]

READ_LINE_WORDS = ("sh", "-c", 'IFS= read -r line && eval "$line"')
"""The same as READ_LINE below, for a launcher that starts a program without a shell."""
READ_LINE = """exec sh -c 'IFS= read -r line && eval "$line"'"""
"""Command for the remote login shell: the rest comes on standard input. `read` consumes no byte beyond the line's end."""
LOGGED_IN = "mhnb: logged in"
"""Written to the remote standard error as soon as the line was read: a later failure is not a failure of the login."""

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How to log in, and what the remote side has. A field that is None is left to the user's own ssh config.

    Raises:
        InvalidRequest: a port, a number of seconds or a variable's name is not possible, or settings contradict each other.
    """

    user: str | None = None
    port: int | None = None
    key_file: str | None = None
    config_file: str | None = None
    extra: tuple[str, ...] = ()
    """More options as in an ssh config, `ProxyJump=gate`. They come first, so they win."""
    python: str | None = None
    """The remote interpreter; None for `python` of the environment below, or `python3` without one. `~/` is the remote home."""
    venv: str | None = None
    """The directory of a remote virtual environment."""
    conda: str | None = None
    """Name or directory of a remote conda environment."""
    setup: str | None = None
    """One line of POSIX shell to run first, `. /etc/profile && module load cuda`."""
    cwd: str | None = None
    """The directory to run in; None for the remote home."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Set before the interpreter starts. It is sent on standard input."""
    connect_timeout_s: int = 10

    def __post_init__(self) -> None:
        if self.venv is not None and self.conda is not None:
            raise InvalidRequest(f"venv={self.venv!r} and conda={self.conda!r}: give the one that the ranks are to use")
        if self.port is not None:
            check_port(self.port, "port")
        if self.connect_timeout_s < 1:
            raise InvalidRequest(f"connect_timeout_s={self.connect_timeout_s}: give a whole number of seconds from 1")
        if self.setup is not None and "\n" in self.setup:
            raise InvalidRequest(f"setup={self.setup!r}: give one line; ` && ` joins several commands")
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise InvalidRequest(f"environment: {name!r} is not a variable that a shell could set")


def ssh_command(host: HostName, options: SshOptions, remote_command: str = READ_LINE) -> list[str]:
    """Return the ssh command. The user's own ssh config decides whether to trust an unknown machine.

    Args:
        host: its user and port win over those of the options.
        options: how to log in.
        remote_command: for the remote login shell, whichever it is.

    >>> ssh_command(HostName("a", "me"), SshOptions(), "true")[-5:]
    ['-l', 'me', '--', 'a', 'true']
    """
    settings = [
        *options.extra,
        # No user is present to type a password or "yes".
        "BatchMode=yes",
        f"ConnectTimeout={options.connect_timeout_s}",
        # A silent machine is given up after 15 s; otherwise only after hours.
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        # Options that a user's own config may set, and that would break a session that carries data or harm the user on
        # that machine.
        "ForwardAgent=no",
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        # Use a connection that the user already shares (so that one login with a second factor suffices), but leave
        # none behind.
        "ControlMaster=no",
        # A config with QUIET would hide the cause of every failure.
        "LogLevel=INFO",
    ]
    arguments = ["ssh", *(["-F", options.config_file] if options.config_file is not None else []), "-T"]
    for setting in settings:
        arguments += ["-o", setting]
    if options.key_file is not None:
        arguments += ["-o", "IdentitiesOnly=yes", "-i", options.key_file]
    if (port := host.port or options.port) is not None:
        arguments += ["-p", str(port)]
    if (user := host.user or options.user) is not None:
        arguments += ["-l", user]
    return [*arguments, "--", host.address, remote_command]


def choose_python(options: SshOptions, own_python: str) -> SshOptions:
    """Use the notebook's own interpreter if none was named, because machines that share a file system have it.

    >>> choose_python(SshOptions(), "/env/bin/python").python, choose_python(SshOptions(venv="v"), "/py").python
    ('/env/bin/python', None)
    """
    is_named = options.python is not None or options.venv is not None or options.conda is not None
    return options if is_named else replace(options, python=own_python)


def remote_line(options: SshOptions, arguments: Sequence[str]) -> str:
    """Return the line for standard input that turns the remote shell into the interpreter with these arguments.

    >>> print(remote_line(SshOptions(), ["-V"]), end="")
    echo 'mhnb: logged in' >&2; command -v python3 >/dev/null 2>&1 || { echo 'mhnb: no python: python3' >&2; exit 127; }; exec python3 -V
    """
    steps = [f"echo {shlex.quote(LOGGED_IN)} >&2"]
    if options.setup is not None:
        steps.append(f"{{ {options.setup.strip()}; }} || {_fail_snippet('setup failed', options.setup)}")
    if options.cwd is not None:
        steps.append(f"cd -- {_quote_path(options.cwd)} || {_fail_snippet('no folder', options.cwd)}")
    steps += _enter_environment(options)
    steps += [f"export {name}={shlex.quote(value)}" for name, value in options.environment.items()]
    python = options.python or ("python3" if options.venv is None and options.conda is None else "python")
    steps.append(f"command -v {_quote_path(python)} >/dev/null 2>&1 || {_fail_snippet('no python', python)}")
    steps.append(f"exec {_quote_path(python)} {shlex.join(arguments)}".rstrip())
    return _on_one_line("; ".join(steps))


def _enter_environment(options: SshOptions) -> list[str]:
    if options.venv is not None:
        return [
            f"VIRTUAL_ENV={_quote_path(options.venv)}",
            f'test -x "$VIRTUAL_ENV/bin/python" || {_fail_snippet("no virtual environment", options.venv)}',
            'PATH="$VIRTUAL_ENV/bin:$PATH"',
            "export VIRTUAL_ENV PATH",
        ]
    if options.conda is not None:
        missing = _fail_snippet("no conda environment", options.conda)
        # A shell that is not a login shell often has no conda on its PATH.
        places = '"$CONDA_EXE" "$HOME"/*conda*/bin/conda "$HOME"/*forge*/bin/conda /opt/*conda*/bin/conda /opt/*forge*/bin/conda'
        return [
            "mhnb_conda=$(command -v conda)",
            f'for each in {places}; do test -x "$mhnb_conda" || mhnb_conda=$each; done',
            f'test -x "$mhnb_conda" || {_fail_snippet("no conda", options.conda)}',
            f'mhnb_script=$("$mhnb_conda" shell.posix activate {_quote_path(options.conda)}) || {missing}',
            'eval "$mhnb_script"',
        ]
    return []


def _fail_snippet(what: str, name: str) -> str:
    return f"{{ echo {shlex.quote(f'mhnb: {what}: {name}')} >&2; exit 127; }}"


def _quote_path(text: str) -> str:
    """Quote a path; the remote shell expands the remote home."""
    if text == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)


def _on_one_line(text: str) -> str:
    if "\n" not in text:
        return f"{text}\n"
    # `$(...)` drops newlines at its end, so a dot follows them.
    return "nl=$(printf '\\n.'); nl=${nl%.}; " + text.replace("\n", "'\"$nl\"'") + "\n"
