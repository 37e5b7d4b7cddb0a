"""ssh command lines, the remote start line, and explanations of failures.

Secrets are never in a command's arguments, which every user of a machine can read. What the remote side is to run, with its
directory and its environment, is one line of POSIX shell for its standard input (`remote_line`).
So the remote login shell (bash, zsh, fish or csh) sees the same fixed arguments whatever the names are.

A failure is explained from the output and the exit code: the machine, the cause in ssh's own words, and what to do. The texts
are those of OpenSSH 8 and 9. Unknown output is shown as it is and never guessed at.
This module starts no process and opens no socket.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mhnb.core.launch.hosts import HostName, check_port
from mhnb.errors import HostUnfit, HostUnreachable, InvalidRequest, LaunchError

READ_LINE_WORDS = ("sh", "-c", 'IFS= read -r line && eval "$line"')
"""The same as READ_LINE below, for a launcher that starts a program without a shell."""
READ_LINE = """exec sh -c 'IFS= read -r line && eval "$line"'"""
"""Command for the remote login shell: the rest comes on standard input. `read` consumes no byte beyond the line's end."""
LOGGED_IN = "mhnb: logged in"
"""Written to the remote standard error as soon as the line was read: a later failure is not a failure of the login."""

CANNOT_START = "mhnb: cannot start: "
"""A supervisor begins with it what prevents its start, on standard error."""

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """Login options and remote setup; None defers to the user's ssh config.

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
            raise InvalidRequest(f"venv={self.venv!r} and conda={self.conda!r}: choose one of them")
        if self.port is not None:
            check_port(self.port, "port")
        if self.connect_timeout_s < 1:
            raise InvalidRequest(
                f"connect_timeout_s={self.connect_timeout_s}: expected a whole number of seconds from 1"
            )
        if self.setup is not None and "\n" in self.setup:
            raise InvalidRequest(f"setup={self.setup!r}: expected one line; join several commands with ` && `")
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise InvalidRequest(f"environment: {name!r} is not a valid variable name or value")


def ssh_command(host: HostName, options: SshOptions, remote_command: str = READ_LINE) -> list[str]:
    """Return the ssh command; the user's ssh config decides on unknown machines.

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
    """Use the notebook's own interpreter if none was named.

    Machines that share a file system have it.

    >>> choose_python(SshOptions(), "/env/bin/python").python, choose_python(SshOptions(venv="v"), "/py").python
    ('/env/bin/python', None)
    """
    is_named = options.python is not None or options.venv is not None or options.conda is not None
    return options if is_named else replace(options, python=own_python)


def remote_line(options: SshOptions, arguments: Sequence[str]) -> str:
    """Return the input line that starts the interpreter in the remote shell.

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


# -- explain why an ssh command ended


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
    ("old_python", r"[Uu]nknown option:? -P"),
    ("mhnb", r"No module named (?:mhnb$|'mhnb[.'])"),
    ("notebook", r"mhnb: cannot start: cannot reach the notebook"),
    ("version", r"mhnb: cannot start: the notebook uses protocol"),
    ("unfit", r"mhnb: cannot start: "),
    ("lost", r"closed by remote host|not responding|Broken pipe|Connection reset"),
)
_DESCRIPTIONS = {
    "closed": "closed the connection before the login",
    "config": "was not tried: ssh cannot read its config",
    "ended": "the remote process ended",
    "environment": "has no such environment",
    "failed": "cannot be reached",
    "folder": "has no such folder",
    "key_changed": "has a different host key than the known one",
    "key_file": "refused the login: your key file cannot be used",
    "key_unknown": "has an unknown host key",
    "killed": "the remote process was killed by a signal",
    "login": "refused the login",
    "lost": "was lost: the connection broke",
    "mhnb": "mhnb is not installed for this Python",
    "notebook": "cannot reach this notebook",
    "old_python": "has a Python that is too old",
    "python": "has no such Python",
    "refused": "refused the connection",
    "setup": "could not be set up",
    "shell": "ssh login worked, but the login shell did not run the command",
    "silent": "does not respond",
    "unfit": "cannot run ranks",
    "unknown_name": "is a name that ssh cannot resolve",
    "version": "has a different mhnb version",
}
_SSH_HINTS = {
    "closed": "its sshd may limit concurrent logins (MaxStartups) or allowed addresses; {sees}",
    "config": "fix the ssh config, or use another one",
    "ended": "the log has its full output",
    "environment": "use one that exists on {host}, by its full path",
    "failed": "{sees}",
    "folder": "create it on {host}, or use another one",
    "key_changed": "if {host} was reinstalled, run ssh-keygen -R {entry} and log in once by hand; if not, ask its administrator: "
    "this can be a man-in-the-middle attack",
    "key_file": "chmod 600 the key file, which must be a private key that you own",
    "key_unknown": "log in once by hand and compare its key: {by_hand}",
    "killed": "it ran out of memory or was stopped; check dmesg on {host}",
    "login": "mhnb needs passwordless ssh: run ssh-copy-id {entry}, or pass --user or --key; {sees}",
    "lost": "check {host} and its network, then start again",
    "mhnb": "install it into that Python on {host}: python -m pip install mhnb; or choose one that has it with --python, --venv or --conda",
    "notebook": "open the port in the firewalls, or pass an address of this machine that {host} can reach, such as --address 10.0.0.1",
    "old_python": "mhnb needs Python 3.11 or newer; choose one on {host} with --python",
    "python": "install it on {host}, or choose one that exists there with --python, --venv or --conda",
    "refused": "no sshd is listening, or a firewall rejects the connection: check sshd and the port; {sees}",
    "setup": "try that line by hand on {host}",
    "shell": "the account needs a login shell that runs commands; {sees}",
    "silent": "it is down, has another address, or a firewall drops the packets; {sees}",
    "unfit": "fix that on {host}, then start again",
    "unknown_name": "check the spelling in your ssh config or DNS, or use its address",
    "version": "install the same version on {host} as here",
}  # fmt: skip
_HOST_NOT_READY = (
    "ended", "environment", "folder", "killed", "mhnb", "old_python", "python", "setup", "unfit", "version"
)  # fmt: skip


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
    words = {"host": host.address, "entry": entry, "by_hand": by_hand, "sees": f"test with: {by_hand}"}
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
    return kind(message, host=host.address, kind=failure.kind, cause=failure.cause)


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
            return kind, hits[-1].removeprefix(CANNOT_START).removeprefix("mhnb: ")
    return None
