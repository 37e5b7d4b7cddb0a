"""How a machine is logged in to, as the words of the ssh command and one line for its standard input.

Nothing secret stands in a command's words, where every user of a machine can read it: what the far side is to run, with its
folder and its environment, is one line of POSIX shell for its standard input (`remote_line`).
So the far side's login shell, be it bash, zsh, fish or csh, sees the same fixed words whatever the names are.
Knows no process and no socket.
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
"""What the login shell over there is told: the rest comes on standard input. `read` takes no byte beyond the line's end."""
LOGGED_IN = "mhnb: logged in"
"""Said on the far side's standard error as soon as the line was read: what fails later is no failure of the login."""

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How to log in, and what there is on the far side. What is None is left to the user's own ssh config.

    Raises:
        InvalidRequest: a port, a number of seconds or a variable's name that cannot be.
    """

    user: str | None = None
    port: int | None = None
    key_file: str | None = None
    config_file: str | None = None
    extra: tuple[str, ...] = ()
    """More options as in an ssh config, `ProxyJump=gate`. They stand first, so they win."""
    python: str | None = None
    """The interpreter over there; None: `python` of the environment below, `python3` without one. `~/` is the far home."""
    venv: str | None = None
    """The folder of a virtual environment over there."""
    conda: str | None = None
    """Name or folder of a conda environment over there."""
    setup: str | None = None
    """One line of POSIX shell to run first, `. /etc/profile && module load cuda`."""
    cwd: str | None = None
    """The folder to run in; None: the far home."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Set before the interpreter starts. Travels on standard input."""
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
    """Give the words of the ssh command; whether to trust an unknown machine is left to the user's own ssh config.

    Args:
        host: its user and port win over those of the options.
        options: how to log in.
        remote_command: for the far side's login shell, whichever it is.

    >>> ssh_command(HostName("a", "me"), SshOptions(), "true")[-5:]
    ['-l', 'me', '--', 'a', 'true']
    """
    settings = [
        *options.extra,
        # Nobody is there to type a password or "yes".
        "BatchMode=yes",
        f"ConnectTimeout={options.connect_timeout_s}",
        # A machine that has gone silent is given up after 15 s; else only after hours.
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        # What a user's own config may ask for, and what would break a session that carries data or harm the user there.
        "ForwardAgent=no",
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        # A connection that the user shares already is used (so one can log in once with a second factor), none is left behind.
        "ControlMaster=no",
        # A config that says QUIET would take away the cause of every failure.
        "LogLevel=INFO",
    ]
    words = ["ssh", *(["-F", options.config_file] if options.config_file is not None else []), "-T"]
    for setting in settings:
        words += ["-o", setting]
    if options.key_file is not None:
        words += ["-o", "IdentitiesOnly=yes", "-i", options.key_file]
    if (port := host.port or options.port) is not None:
        words += ["-p", str(port)]
    if (user := host.user or options.user) is not None:
        words += ["-l", user]
    return [*words, "--", host.address, remote_command]


def choose_python(options: SshOptions, here: str) -> SshOptions:
    """Take the notebook's own interpreter where none was named: machines that share a file system have it.

    >>> choose_python(SshOptions(), "/env/bin/python").python, choose_python(SshOptions(venv="v"), "/py").python
    ('/env/bin/python', None)
    """
    is_named = options.python is not None or options.venv is not None or options.conda is not None
    return options if is_named else replace(options, python=here)


def remote_line(options: SshOptions, arguments: Sequence[str]) -> str:
    """Give the line for standard input after which the far side is the interpreter with these arguments.

    >>> print(remote_line(SshOptions(), ["-V"]), end="")
    echo 'mhnb: logged in' >&2; command -v python3 >/dev/null 2>&1 || { echo 'mhnb: no python: python3' >&2; exit 127; }; exec python3 -V
    """
    steps = [f"echo {shlex.quote(LOGGED_IN)} >&2"]
    if options.setup is not None:
        steps.append(f"{{ {options.setup.strip()}; }} || {_give_up('setup failed', options.setup)}")
    if options.cwd is not None:
        steps.append(f"cd -- {_path(options.cwd)} || {_give_up('no folder', options.cwd)}")
    steps += _enter_environment(options)
    steps += [f"export {name}={shlex.quote(value)}" for name, value in options.environment.items()]
    python = options.python or ("python3" if options.venv is None and options.conda is None else "python")
    steps.append(f"command -v {_path(python)} >/dev/null 2>&1 || {_give_up('no python', python)}")
    steps.append(f"exec {_path(python)} {shlex.join(arguments)}".rstrip())
    return _on_one_line("; ".join(steps))


def _enter_environment(options: SshOptions) -> list[str]:
    if options.venv is not None:
        return [
            f"VIRTUAL_ENV={_path(options.venv)}",
            f'test -x "$VIRTUAL_ENV/bin/python" || {_give_up("no virtual environment", options.venv)}',
            'PATH="$VIRTUAL_ENV/bin:$PATH"',
            "export VIRTUAL_ENV PATH",
        ]
    if options.conda is not None:
        missing = _give_up("no conda environment", options.conda)
        # A shell that is not a login shell often has no conda on its PATH.
        places = '"$CONDA_EXE" "$HOME"/*conda*/bin/conda "$HOME"/*forge*/bin/conda /opt/*conda*/bin/conda /opt/*forge*/bin/conda'
        return [
            "mhnb_conda=$(command -v conda)",
            f'for each in {places}; do test -x "$mhnb_conda" || mhnb_conda=$each; done',
            f'test -x "$mhnb_conda" || {_give_up("no conda", options.conda)}',
            f'mhnb_script=$("$mhnb_conda" shell.posix activate {_path(options.conda)}) || {missing}',
            'eval "$mhnb_script"',
        ]
    return []


def _give_up(what: str, name: str) -> str:
    return f"{{ echo {shlex.quote(f'mhnb: {what}: {name}')} >&2; exit 127; }}"


def _path(text: str) -> str:
    """Quote a path; the far home is the far shell's to know."""
    if text == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)


def _on_one_line(text: str) -> str:
    if "\n" not in text:
        return f"{text}\n"
    # `$(...)` drops newlines at its end, hence the dot.
    return "nl=$(printf '\\n.'); nl=${nl%.}; " + text.replace("\n", "'\"$nl\"'") + "\n"
