"""Simulated machines on one Linux machine, as root: each with its own address, name, /etc/hosts, sshd and processes.

A machine is a set of namespaces (network, name, mounts, IPC, processes) on a bridge. Tests can apply faults to it:
unplug its cable, cut its power, or replace its files. All machines share the disk, as machines with one home on NFS do.

Concurrent sessions use different numbers, by a lock that the kernel releases when a session is killed. The next session with
that number removes what the killed one left. The machines die with the thread that started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

__all__ = ["NAMES", "Host", "HostNet", "wait_until", "why_absent"]

NAMES = ("alpha", "beta", "gamma", "delta")
_HERE = Path(__file__).parent
_TOOLS = {
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "tc": "iproute2",
    "unshare": "util-linux",
}
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Ends every machine when its test session is killed."""
_NAMESPACES = ("unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child")
_TRIAL_COMMANDS = "ip link add mhb type bridge; ip link add mhv type veth peer name mhw; nft add table netdev mht"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SSHD_CONFIG = """\
Port 22
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100:30:200
PrintMotd no
PrintLastLog no
"""
_SSH_CONFIG = """\
Host {names}
  User root
  IdentityFile {folder}/id_ed25519
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
"""


def why_absent() -> str | None:
    """Return the reason why machines cannot be simulated on this system; None if they can."""
    if sys.platform != "linux":
        return f"needs Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_SYSTEM_PATH) is None})
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun, for a cable with a delay"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", _TRIAL_COMMANDS], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"no namespaces, bridges or packet filters here: {tried.stderr.strip()}"


def _run(*words: str | Path, check: bool = True, stdin: str | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], input=stdin, capture_output=True, encoding="utf-8", errors="replace", check=False,
        env=os.environ | {"PATH": _SYSTEM_PATH},
    )  # fmt: skip
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = 60.0) -> None:
    """Poll until the condition is true, for conditions that send no signal of their own."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.01)


class Host:
    """One simulated machine."""

    def __init__(self, net: HostNet, at: int) -> None:
        self._net, self._at = net, at
        self.name = NAMES[at]
        self.address = f"{net.prefix}.{at + 1}"
        self.netns = f"mh{net.number}-{at}"
        self._cable = f"mhv{net.number}.{at}"
        self._table = f"mh{net.number}_{at}"
        self._outer: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[str] | None = None
        self._altered = self._faulty = False

    # -- start and state

    def create_network(self) -> None:
        """Create its network: a cable to the bridge, and the machine's end of it with its address."""
        _run("ip", "netns", "add", self.netns)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.netns)
        _run("ip", "link", "set", self._cable, "master", self._net.bridge, "up")
        _run("ip", "-n", self.netns, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run("ip", "-n", self.netns, "link", "set", "eth0", "up")
        _run("ip", "-n", self.netns, "link", "set", "lo", "up")
        _run("ip", "-n", self.netns, "route", "add", "default", "via", self._net.gateway)

    def switch_on(self) -> None:
        """Start the machine's processes."""
        log = self._net.folder / "log" / f"init.{self.name}"
        init = [sys.executable, "-I", str(_HERE / "init.py"), self.name, str(self._net.folder)]
        with log.open("ab") as out:
            self._outer = subprocess.Popen(
                [*_DIE_WITH_PARENT, "ip", "netns", "exec", self.netns, *_NAMESPACES, *init],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={"PATH": _SYSTEM_PATH, "HOME": str(Path.home())},
            )

    def wait_for_sshd(self) -> None:
        """Wait until the machine's sshd answers."""
        log = self._net.folder / "log" / f"init.{self.name}"
        wait_until(self._answers, f"sshd of {self.name} answers; {log}")

    def _answers(self) -> bool:
        assert self._outer is not None
        assert self._outer.poll() is None, (self._net.folder / "log" / f"init.{self.name}").read_text()
        try:
            with socket.create_connection((self.address, 22), 1) as link:
                return link.recv(3) == b"SSH"
        except OSError:
            return False

    @property
    def is_on(self) -> bool:
        """Whether the machine runs."""
        return self._outer is not None and self._outer.poll() is None

    @property
    def _init(self) -> int:
        """Process id of the machine's process 1, in this machine's numbering."""
        assert self._outer is not None
        pid = self._outer.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def run(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run a command on the machine without the network; return its output."""
        return _run("nsenter", "-t", str(self._init), "-m", "-u", "-i", "-n", "-p", *words, stdin=stdin)

    def pids(self) -> dict[int, str]:
        """Return the command line of each process except process 1, the listening sshd and the suite's own, by process id here."""
        found = {}
        for pid in _list_pids(self.netns):
            words = _command(pid)
            if words and not any(
                each in words for each in ("unshare", str(_HERE / "init.py"), "[listener]", "warm_process.py")
            ):
                found[pid] = words
        return found

    # -- faults

    def replace_file(self, path: str | Path, text: str, *, executable: bool = False) -> None:
        """Replace the text of a file of the shared disk on this machine only."""
        self._altered = True
        replacement = self._net.new_file(text)
        replacement.chmod(0o755 if executable else 0o644)
        self.run("mount", "--bind", replacement, path)

    def mount_disk(self, folder: str | Path, *, nbytes: int) -> None:
        """Mount a separate disk of that size on the folder."""
        self._altered = True
        self.run("mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", folder)

    def kill_all(self) -> None:
        """Kill every process at once, including init and sshd; the network stays, so other machines get a FIN or RST."""
        assert self._outer is not None
        self._altered = True
        os.kill(self._init, signal.SIGKILL)
        self._outer.wait()
        wait_until(lambda: not _list_pids(self.netns), f"{self.name} is dead")

    def kill_programs(self) -> None:
        """Kill the processes except process 1 and the listening sshd; the machine stays on."""
        for pid in self.pids():
            # Some may be processes of sshd that were about to end.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def unplug_cable(self) -> None:
        """Partition the machine: packets are dropped, and neither end is notified."""
        self._faulty = True
        _run("ip", "link", "set", self._cable, "down")

    def plug_cable_in(self) -> None:
        """End the partition."""
        _run("ip", "link", "set", self._cable, "up")

    def cut_power(self) -> None:
        """Cut the power: to other machines it is silent at once, and all its processes are dead."""
        self.unplug_cable()
        self.kill_all()

    def restart(self) -> None:
        """Boot again, with the disk unchanged and without faults."""
        if self.is_on:
            self.kill_all()
        self.heal()
        self.switch_on()
        self.wait_for_sshd()
        self._altered = False

    def drop_packets(self, percent: float, *, each_way: bool = True) -> None:
        """Drop that share of packets at random: of those that it sends and, with `each_way`, of those that it receives."""
        self._faulty = True
        ends: list[tuple[str, tuple[str, ...]]] = [(self._cable, ())]
        if each_way:
            ends.append(("eth0", ("ip", "netns", "exec", self.netns)))
        for device, where in ends:
            rule = "drop" if percent >= 100 else f"numgen random mod 10000 < {round(percent * 100)} drop"
            hook = f'type filter hook ingress device "{device}" priority 0;'
            _run(*where, "nft", "-f", "-", stdin=f"table netdev {self._table} {{ chain c {{ {hook} {rule}\n }}\n }}\n")

    def block_port(self, port: int | str, verdict: str = "drop") -> None:
        """Block connections from outside to a TCP port or range, such as `1024-65535`. `reject` answers, `drop` is silent."""
        self._faulty = True
        rule = f'iifname "eth0" tcp dport {port} tcp flags & (syn | ack) == syn {verdict}'
        hook = "type filter hook input priority 0;"
        table = f"table inet {self._table} {{ chain c {{ {hook} {rule}\n }}\n }}\n"
        _run("ip", "netns", "exec", self.netns, "nft", "-f", "-", stdin=table)

    def block_outgoing(self, address: str, verdict: str = "drop") -> None:
        """Block connections from this machine to an address. `reject` answers, `drop` is silent."""
        self._faulty = True
        answer = "reject with tcp reset" if verdict == "reject" else verdict
        rule = f'oifname "eth0" ip daddr {address} tcp flags & (syn | ack) == syn {answer}'
        hook = "type filter hook output priority 0;"
        table = f"table inet {self._table} {{ chain o {{ {hook} {rule}\n }}\n }}\n"
        _run("ip", "netns", "exec", self.netns, "nft", "-f", "-", stdin=table)

    def limit_bandwidth(self, mbit_per_s: float) -> None:
        """Limit the bandwidth of its cable, in both directions."""
        self._faulty = True
        shape = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", "32kbit", "latency", "400ms")
        _run("tc", "-n", self.netns, "qdisc", "add", "dev", "eth0", *shape)
        _run("tc", "qdisc", "add", "dev", self._cable, *shape)

    def delay_packets(self, ms: float) -> None:
        """Delay packets on its cable by that many milliseconds in each direction."""
        assert self._relay is None, f"{self.name} has a delay already"
        self._faulty = True
        taps = [f"mht{self._net.number}.{self._at}{end}" for end in "ab"]
        bridge = f"mhd{self._net.number}.{self._at}"
        command = [sys.executable, str(_HERE / "relay.py"), *taps, str(ms)]
        self._relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline() == "ready\n"
        _run("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0")
        for tap, master in zip(taps, (bridge, self._net.bridge), strict=True):
            _run("ip", "link", "set", tap, "master", master, "up")
        _run("ip", "link", "set", bridge, "up")
        _run("ip", "link", "set", self._cable, "master", bridge)

    def heal(self) -> None:
        """Remove all network faults."""
        if not self._faulty:
            return
        self._faulty = False
        if self._relay is not None:
            _run("ip", "link", "set", self._cable, "master", self._net.bridge)
            self._relay.kill()
            self._relay.communicate()
            self._relay = None
            _run("ip", "link", "del", f"mhd{self._net.number}.{self._at}", check=False)
        inside = ("ip", "netns", "exec", self.netns)
        for where, family in (((), "netdev"), (inside, "netdev"), (inside, "inet")):
            _run(*where, "nft", "delete", "table", family, self._table, check=False)
        _run("tc", "-n", self.netns, "qdisc", "del", "dev", "eth0", "root", check=False)
        _run("tc", "qdisc", "del", "dev", self._cable, "root", check=False)
        self.plug_cable_in()

    def restore(self) -> None:
        """Restore the machine after a test."""
        if self._altered or not self.is_on:
            self.restart()
        self.heal()

    def switch_off(self) -> None:
        """End the machine for good."""
        if self.is_on:
            self.kill_all()
        self.heal()


def _list_pids(netns: str) -> list[int]:
    """Return the processes in a named network, which may not exist. `ip netns pids` would be a process for each look."""
    try:
        wanted = Path("/run/netns", netns).stat().st_ino
    except FileNotFoundError:
        return []
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # it has ended, or is the system's own
            if Path(f"/proc/{pid}/ns/net").stat().st_ino == wanted:
                found.append(pid)
    return found


def _command(pid: int) -> str:
    """Return the command line of a running process; empty string if it has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class HostNet:
    """Four simulated machines and the bridge between them; the machine that runs the tests is on it as `head`."""

    def __init__(self) -> None:
        self.number, self._lock = _reserve_number()
        self.prefix = f"10.77.{self.number}"
        self.gateway = f"{self.prefix}.254"
        """This machine's address on the bridge, and a name for it in every /etc/hosts: `head`."""
        self.bridge = f"mhb{self.number}"
        self.folder = Path(f"/run/mhnb-hosts-{self.number}")
        self.hosts = tuple(Host(self, at) for at in range(len(NAMES)))
        self._files = 0

    def __getitem__(self, at: int) -> Host:
        return self.hosts[at]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    @property
    def ssh_config(self) -> Path:
        """Path of the configuration for ssh -F: names, user, key and known hosts."""
        return self.folder / "ssh_config"

    def new_file(self, text: str) -> Path:
        """Write a file that exists as long as the network."""
        self._files += 1
        path = self.folder / f"file{self._files}"
        path.write_text(text)
        return path

    def __enter__(self) -> HostNet:
        try:
            self._wipe()
            self._write_files()
            _run("ip", "link", "add", self.bridge, "type", "bridge", "forward_delay", "0")
            _run("ip", "addr", "add", f"{self.gateway}/24", "dev", self.bridge)
            _run("ip", "link", "set", self.bridge, "up")
            for host in self.hosts:
                host.create_network()
                host.switch_on()
            for host in self.hosts:
                host.wait_for_sshd()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.switch_off()
        self._wipe()
        self._lock.close()

    def restore(self) -> None:
        """Restore every machine; if one fails, the others are still restored."""
        with contextlib.ExitStack() as each:
            for host in self.hosts:
                each.callback(host.restore)

    def hosts_file(self, *, without: Sequence[str] = (), own: tuple[str, str] | None = None) -> str:
        """Return the text of /etc/hosts.

        Args:
            without: names to leave out.
            own: a name, and the address to give it instead of its own.
        """
        known = {host.name: host.address for host in self.hosts} | {"head": self.gateway}
        known |= dict([own] if own is not None else [])
        lines = [f"{address} {name}" for name, address in known.items() if name not in without]
        return "\n".join(["127.0.0.1 localhost", *lines, ""])

    def _write_files(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        (self.folder / "log").mkdir(parents=True)
        for name in ("id_ed25519", "hostkey"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "made up for a test", "-f", self.folder / name)
        key = " ".join((self.folder / "hostkey.pub").read_text().split()[:2])
        known = "".join(f"{host.name},{host.address} {key}\n" for host in self.hosts)
        per_host = "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts)
        every = " ".join(f"{host.name} {host.address}" for host in self.hosts)
        texts = {
            "authorized_keys": (self.folder / "id_ed25519.pub").read_text(),
            "empty": "",
            "hosts": self.hosts_file(),
            "known_hosts": known,
            "ssh_config": per_host + _SSH_CONFIG.format(names=every, folder=self.folder),
            "sshd_config": _SSHD_CONFIG.format(folder=self.folder),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text)

    def _wipe(self) -> None:
        """Remove what an earlier, killed session with this number left, or what this session leaves at its end."""
        for host in self.hosts:
            for pid in _list_pids(host.netns):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if Path(f"/run/netns/{host.netns}").exists():
                _run("ip", "netns", "del", host.netns)
        devices = [line.split(":")[1].strip().split("@")[0] for line in _run("ip", "-o", "link").splitlines()]
        for device in devices:
            if device == self.bridge or device.startswith((f"mhv{self.number}.", f"mhd{self.number}.")):
                _run("ip", "link", "del", device, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _reserve_number() -> tuple[int, IO[str]]:
    """Reserve a number that no other session uses, until the file is closed."""
    for number in range(1, 100):
        lock = Path(f"/run/mhnb-hosts-{number}.lock").open("w")  # noqa: SIM115  # held as long as the net
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return number, lock
    raise RuntimeError("99 sessions hold made-up machines here; /run/mhnb-hosts-*.lock")
