"""The ssh command, compared in full, and its line for standard input, run in a real shell."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import READ_LINE, SshOptions, remote_line, ssh_command
from mhnb.errors import InvalidRequest

_SETTINGS = shlex.split(
    "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o ForwardAgent=no "
    "-o ForwardX11=no -o ClearAllForwardings=yes -o PermitLocalCommand=no -o RemoteCommand=none -o ControlMaster=no "
    "-o LogLevel=INFO"
)


def test_command_without_options() -> None:
    """The command has only what every connection needs: user, address and trusted keys come from the user's ssh config."""
    assert ssh_command(HostName("a"), SshOptions()) == [
        "ssh", "-T", *_SETTINGS, "--", "a", """exec sh -c 'IFS= read -r line && eval "$line"'""",
    ]  # fmt: skip


def test_the_command_with_every_option() -> None:
    """Every option is used; the host's own user and port take precedence, and the user's extra settings come first and win."""
    options = SshOptions(
        user="me", port=22, key_file="~/my key", config_file="cfg", extra=("ProxyJump=gate", "BatchMode=no"), connect_timeout_s=3,
        python="/opt/py", cwd="/x", environment={"TOKEN": "secret"},
    )  # fmt: skip
    assert ssh_command(HostName("::1", "you", 2222), options) == [
        "ssh", "-F", "cfg", "-T", "-o", "ProxyJump=gate", "-o", "BatchMode=no",
        *[word.replace("ConnectTimeout=10", "ConnectTimeout=3") for word in _SETTINGS],
        "-o", "IdentitiesOnly=yes", "-i", "~/my key", "-p", "2222", "-l", "you", "--", "::1", READ_LINE,
    ]  # fmt: skip


def test_the_line_with_every_option() -> None:
    """The order is setup, folder, environment, variables, interpreter; each step reports what it did not find."""
    options = SshOptions(
        setup="module load cuda", cwd="~/my work", venv="/opt/it's", environment={"A": "1", "B": "$new"}
    )
    assert remote_line(options, ["-m", "x y"]) == (
        "echo 'mhnb: logged in' >&2; "
        "{ module load cuda; } || { echo 'mhnb: setup failed: module load cuda' >&2; exit 127; }; "
        "cd -- \"$HOME\"/'my work' || { echo 'mhnb: no folder: ~/my work' >&2; exit 127; }; "
        """VIRTUAL_ENV='/opt/it'"'"'s'; test -x "$VIRTUAL_ENV/bin/python" || """
        """{ echo 'mhnb: no virtual environment: /opt/it'"'"'s' >&2; exit 127; }; """
        'PATH="$VIRTUAL_ENV/bin:$PATH"; export VIRTUAL_ENV PATH; '
        "export A=1; export B='$new'; "
        "command -v python >/dev/null 2>&1 || { echo 'mhnb: no python: python' >&2; exit 127; }; "
        "exec python -m 'x y'\n"
    )


@pytest.mark.parametrize(
    "faulty",
    [
        {"venv": "a", "conda": "b"},
        {"port": 0},
        {"connect_timeout_s": 0},
        {"environment": {"A B": "1"}},
        {"environment": {"A": "\0"}},
        {"setup": "a\nb"},
    ],
)
def test_invalid_options_are_refused(faulty: dict[str, object]) -> None:
    """Values that no shell or ssh accepts are refused when the options are created."""
    with pytest.raises(InvalidRequest):
        SshOptions(**faulty)  # type: ignore[arg-type]


def test_secret_is_neither_in_command_nor_repr() -> None:
    """A variable's value appears neither in the command nor in a repr."""
    options = SshOptions(environment={"TOKEN": "s3cret"})
    assert "s3cret" not in repr(options) + " ".join(ssh_command(HostName("a"), options))


# -- the line, run in a real shell


_PRINT_CONTEXT = "import os, sys; print(ascii([os.getcwd(), sys.argv[1:], os.environ.get('NASTY'), sys.stdin.read()]))"
_NASTY = [
    "it's",
    'a "b"',
    "$HOME `id` $(id)",
    "back\\slash\\",
    "!!",
    "two\nlines\n",
    "*?[a]~",
    "ü 漢",
    "",
    " ",
    "-n",
    "#x;&|",
]


def _run(options: SshOptions, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Pass the line, and the text after it, to a shell as the remote sshd would."""
    line = remote_line(options, arguments) + "the rest\n"
    assert line.count("\n") == 2
    return subprocess.run(["sh", "-c", READ_LINE], input=line, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("nasty", _NASTY, ids=ascii)
def test_special_characters_arrive_unchanged(nasty: str, tmp_path: Path) -> None:
    """Folder, variable and argument arrive unchanged, and the text after the line is left for the program."""
    folder = tmp_path / (nasty.strip() or "x")
    folder.mkdir(exist_ok=True)
    options = SshOptions(python=sys.executable, cwd=str(folder), environment={"NASTY": nasty})
    done = _run(options, ["-c", _PRINT_CONTEXT, nasty])
    assert done.stderr == "mhnb: logged in\n"
    assert done.stdout == ascii([str(folder), [nasty], nasty, "the rest\n"]) + "\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (SshOptions(python="/no/python"), "mhnb: no python: /no/python"),
        (SshOptions(cwd="/no/such folder"), "mhnb: no folder: /no/such folder"),
        (SshOptions(venv="/no/venv"), "mhnb: no virtual environment: /no/venv"),
        (SshOptions(setup="exit_with_nothing"), "mhnb: setup failed: exit_with_nothing"),
        (SshOptions(conda="nothing"), "mhnb: no conda: nothing"),
    ],
)
def test_missing_things_are_named(options: SshOptions, said: str, tmp_path: Path) -> None:
    """The last line on standard error names what is missing, and the exit code is the shell's own code for that."""
    done = _run(options, ["-c", _PRINT_CONTEXT], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})  # type: ignore[arg-type]
    assert done.stderr.splitlines()[-1] == said
    assert done.returncode == 127


def test_virtual_environment_is_activated(tmp_path: Path) -> None:
    """The environment's python runs, and its programs come first in PATH; `~` is the remote home."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to("/bin/sh")
    line = 'echo "$VIRTUAL_ENV|${PATH%%:*}"'
    done = _run(SshOptions(venv="~/env"), ["-c", line], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})  # type: ignore[arg-type]
    assert done.stdout == f"{tmp_path}/env|{tmp_path}/env/bin\n", done.stderr


def test_a_conda_environment_is_activated(tmp_path: Path) -> None:
    """conda is found in its usual folder even if it is not in PATH, and its output is evaluated."""
    conda = tmp_path / "miniforge3" / "bin" / "conda"
    conda.parent.mkdir(parents=True)
    conda.write_text("#!/bin/sh\necho \"export ACTIVE='$*'\"\n")
    conda.chmod(0o755)
    options = SshOptions(conda="my env", python="/bin/sh")
    done = _run(options, ["-c", 'echo "$ACTIVE"'], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})  # type: ignore[arg-type]
    assert done.stdout == "shell.posix activate my env\n", done.stderr
    assert shlex.quote("my env") in remote_line(options, [])
