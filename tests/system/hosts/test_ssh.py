"""`SshProcess` on simulated machines: programs run there, and each failure is reported with its cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import SshOptions
from mhnb.errors import HostUnfit, HostUnreachable
from mhnb.launchers.ssh import SshProcess
from tests.system.hosts.hostnet import HostNet, wait_until

_ECHO = "import sys; print('up', flush=True); print(sys.stdin.read(), end='')"


class SshStarter:
    """Starts programs on machines, and ends every ssh at the end."""

    def __init__(self, net: HostNet, folder: Path) -> None:
        self.options = SshOptions(config_file=str(net.ssh_config), python=sys.executable, connect_timeout_s=5)
        self.log = folder / "ssh.log"
        self._all: list[SshProcess] = []

    def __call__(self, host: str = "alpha", program: str = _ECHO, **changed: Any) -> SshProcess:
        where = HostName(host)
        options = replace(self.options, **changed)
        process = SshProcess(where, options, ["-c", program], log=self.log, stdin=b"first ")
        self._all.append(process)
        return process

    def start_failing(self, host: str = "alpha", **changed: Any) -> HostUnreachable | HostUnfit:
        """Start a program that fails; return the error."""
        process = self(host, **changed)
        assert process.wait(60), process.explain()
        error = process.failure()
        assert isinstance(error, HostUnreachable | HostUnfit)
        return error

    def close(self) -> None:
        """End all started programs."""
        for process in self._all:
            process.kill()


def wait_until_up(process: SshProcess) -> None:
    """Wait until the program has begun."""
    wait_until(lambda: "up\n" in process.output(), "the program is up")


@pytest.fixture
def start(net: HostNet, tmp_path: Path) -> Iterator[SshStarter]:
    """Start programs on the machines."""
    started = SshStarter(net, tmp_path)
    yield started
    started.close()


def test_program_ends_with_its_standard_input(start: SshStarter) -> None:
    """A program gets its input in order, and ends by itself when its standard input ends."""
    process = start()
    wait_until_up(process)
    assert not process.has_exited()
    process.write(b"second")
    process.close_input()
    assert process.wait(20)
    assert process.output().endswith("up\nfirst second")
    assert process.failure() is None


@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "tcsh", "zsh"])
def test_special_characters_survive_every_login_shell(start: SshStarter, net: HostNet, shell: str) -> None:
    """With every login shell, a folder, variable and argument with special characters arrive unchanged."""
    path = Path("/bin") / shell
    if not path.exists():
        pytest.skip(f"{shell} is not installed")
    passwd = Path("/etc/passwd").read_text().splitlines()
    changed_lines = [line.rpartition(":")[0] + f":{path}" if line.startswith("root:") else line for line in passwd]
    net[0].replace_file("/etc/passwd", "\n".join(changed_lines) + "\n")
    special = 'it\'s "a" $HOME `id`\\ !x\n ü'
    folder = start.log.parent / "it's a $HOME !x"
    folder.mkdir()
    program = "import os; print(ascii([os.getcwd(), os.environ['NASTY']]))"
    process = start(program=program, cwd=str(folder), environment={"NASTY": special})
    assert process.wait(20)
    assert process.output().endswith(ascii([str(folder), special]) + "\n"), process.explain()


def test_variables_are_in_no_command_line(start: SshStarter, net: HostNet) -> None:
    """No process list, on this machine or the other, shows a variable's value."""
    process = start(environment={"TOKEN": "s3cret"}, program=f"import os; assert os.environ['TOKEN']; {_ECHO}")
    wait_until_up(process)
    assert "s3cret" not in " ".join(net[0].pids().values())
    assert "s3cret" not in " ".join(psutil.Process(process.pid).cmdline())


def test_refused_or_silent_connection_is_reported(start: SshStarter, net: HostNet) -> None:
    """A port without sshd is refused; a firewall that drops packets and an unplugged cable give no answer."""
    error = start.start_failing(port=23)
    assert str(error).startswith(f"alpha: refused the connection: ssh: connect to host {net[0].address} port 23")
    for fault in (lambda: net[0].block_port(22), net[0].unplug_cable):
        fault()
        error = start.start_failing(connect_timeout_s=1)
        assert isinstance(error, HostUnreachable)
        assert error.kind == "silent"
        net[0].heal()


def test_unresolvable_name_is_reported(start: SshStarter) -> None:
    """A name that cannot be resolved is named in the error."""
    error = start.start_failing("nowhere.invalid")
    assert str(error).startswith("nowhere.invalid: is a name that ssh cannot resolve: ssh: Could not resolve hostname")


def _other_key(net: HostNet, folder: Path) -> str:
    key = folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return str(key)


def test_refused_login_is_reported(start: SshStarter, net: HostNet, tmp_path: Path) -> None:
    """With another key, and as an unknown user, the login is refused, with sshd's message and the command to try."""
    config = net.new_file(net.ssh_config.read_text().replace(f"IdentityFile {net.folder}/id_ed25519", ""))
    error = start.start_failing(config_file=str(config), key_file=_other_key(net, tmp_path))
    assert str(error).startswith("alpha: refused the login: root@")
    assert f"test with: ssh -F {config} -i {tmp_path}/other alpha" in str(error)
    assert start.start_failing(user="nobody-here").kind == "login"


def test_unknown_and_changed_host_keys_are_refused(start: SshStarter, net: HostNet, tmp_path: Path) -> None:
    """An unknown and a changed host key give different errors, and neither is accepted."""
    text = net.ssh_config.read_text()
    config = net.new_file(text.replace(f"{net.folder}/known_hosts", "/dev/null"))
    assert start.start_failing(config_file=str(config)).kind == "key_unknown"
    key = Path(f"{_other_key(net, tmp_path)}.pub").read_text()
    known = net.new_file("".join(f"{host.name},{host.address} {key}" for host in net))
    config = net.new_file(text.replace(f"{net.folder}/known_hosts", str(known)))
    error = start.start_failing(config_file=str(config))
    assert str(error).startswith("alpha: has a different host key than the known one: Host key for ")
    assert "ssh-keygen -R alpha" in str(error)


def test_missing_python_folder_or_mhnb_is_reported(start: SshStarter, net: HostNet) -> None:
    """If the login succeeds but Python, the folder or mhnb is missing there, the error names it."""
    for changed, expected in (
        ({"python": "/no/python"}, "alpha: has no such Python: no python: /no/python\n"),
        ({"cwd": "/no/folder"}, "alpha: has no such folder: no folder: /no/folder\n"),
        ({"program": "import mhnb_not_there"}, "alpha: the remote process ended with exit code 1"),
    ):
        error = start.start_failing(**changed)
        assert isinstance(error, HostUnfit)
        assert str(error).startswith(expected)
    process = SshProcess(
        HostName("alpha"),
        replace(start.options, environment={"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}),
        ["-I", "-S", "-m", "mhnb.rank.supervisor"],
        log=start.log,
    )
    assert process.wait(30)
    assert "alpha: mhnb is not installed for this Python" in process.explain()
    process.kill()


@pytest.mark.parametrize(
    ("fault", "kind"), [(lambda net: net[0].kill_all(), "lost"), (lambda net: net[0].cut_power(), "lost")], ids=["kill_all", "cut_power"]
)  # fmt: skip
@pytest.mark.sample(1)
def test_lost_machine_ends_ssh(start: SshStarter, net: HostNet, fault: Callable[[HostNet], None], kind: str) -> None:
    """The end of the machine ends ssh with the cause, whether connections were closed or not."""
    process = start()
    wait_until_up(process)
    fault(net)
    assert process.wait(60)
    error = process.failure()
    assert isinstance(error, HostUnreachable)
    assert error.kind == kind


def test_killed_program_is_not_a_lost_connection(start: SshStarter, net: HostNet) -> None:
    """A program that a signal ended, as when memory runs out, is not reported as a lost connection."""
    process = start()
    wait_until_up(process)
    [program] = [pid for pid, words in net[0].pids().items() if "sys.stdin.read" in words]
    os.kill(program, signal.SIGKILL)
    assert process.wait(20)
    assert "the remote process was killed by a signal" in process.explain()


def test_killed_ssh_ends_the_program(start: SshStarter, net: HostNet) -> None:
    """If the local ssh is killed, the remote program gets the end of its standard input."""
    process = start()
    wait_until_up(process)
    process.kill()
    assert process.failure() is None
    wait_until(lambda: not net[0].pids(), "the program there has ended")


_OWNER = """
import sys
import time
from pathlib import Path
from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import SshOptions
from mhnb.launchers.ssh import SshProcess
options = SshOptions(config_file=sys.argv[1], python=sys.executable)
process = SshProcess(HostName("alpha"), options, ["-c", sys.argv[2]], log=Path(sys.argv[3]))
while "up\\n" not in process.output():
    time.sleep(0.01)
print("up", flush=True)
sys.stdin.read()
"""


def test_killed_notebook_leaves_no_process(net: HostNet, tmp_path: Path) -> None:
    """If the notebook is killed, the local ssh and the remote program end by themselves."""
    words = [sys.executable, "-c", _OWNER, str(net.ssh_config), _ECHO, str(tmp_path / "log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        [ssh] = psutil.Process(owner.pid).children()
        assert net[0].pids()
        owner.kill()
    wait_until(lambda: not net[0].pids(), "the program there has ended")
    psutil.wait_procs([ssh], timeout=20)
    assert not ssh.is_running() or ssh.status() == psutil.STATUS_ZOMBIE
