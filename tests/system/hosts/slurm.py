"""A real Slurm over the simulated machines: slurmctld and munge on this machine, and a slurmd on each of the others.

All its files are in a folder of the net; a Slurm that is installed here is not touched. The daemons die with the test session.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests.system.hosts.hostnet import Host, HostNet, wait_until

__all__ = ["Slurm", "why_absent"]

_TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CPUS = 4
"""CPUs per machine, as configured in Slurm."""
_CONFIG = """\
ClusterName=made-up
SlurmctldHost={here}({gateway})
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=5
MinJobAge=36000
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=1:00:00 State=UP
"""


def why_absent() -> str | None:
    """Return the reason why Slurm cannot run on this system; None if it can."""
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None})
    return f"not installed: {', '.join(missing)}" if missing else None


class Slurm:
    """Slurm's daemons. Its commands find them by the variables in `environment`."""

    def __init__(self, net: HostNet) -> None:
        # A folder of its own, because one net may run several instances one after the other.
        self._net, self.folder = net, Path(tempfile.mkdtemp(prefix="slurm-", dir=net.folder))
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        try:
            self._write_files()
            self._start(
                *("munged", "--foreground", "--force", "--key-file", self.folder / "munge.key"),
                *("--socket", self.folder / "munge.socket", "--pid-file", self.folder / "munged.pid"),
                *("--log-file", self.folder / "munged.log", "--seed-file", self.folder / "munged.seed"),
            )
            wait_until((self.folder / "munge.socket").exists, "munged listens")
            self._start("slurmctld", "-D", "-c", "-f", self.folder / "slurm.conf")
            for host in self._net:
                self._start_node(host)
            wait_until(
                lambda: self.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%T").split() == ["idle"] * 4, self._logs()
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_node(self, host: Host) -> None:
        # The daemons of a machine run in its namespaces, and are killed with its process 1.
        enter = ["nsenter", "-t", str(host._init), "-m", "-u", "-i", "-n", "-p"]
        self._start(*enter, "slurmd", "-D", "-N", host.name, "-f", self.folder / "slurm.conf")

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                for child in psutil.Process(daemon.pid).children(recursive=True):
                    child.kill()
                daemon.kill()
            daemon.wait()

    def run(self, *words: str) -> str:
        """Run a command of Slurm; return its output."""
        done = subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the pending and running jobs, as `number state name`."""
        return self.run("squeue", "-h", "-o", "%i %T %j").splitlines()

    def _logs(self) -> str:
        return f"every node is idle; {self.folder}/*.log"

    def _start(self, *words: str | Path) -> None:
        with (self.folder / "start.log").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment | {"PATH": _PATH},
                start_new_session=True,
            )
        self._daemons.append(process)

    def _write_files(self) -> None:
        for name in ("state", *(f"spool.{host.name}" for host in self._net)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        # since slurm 22.05: slurmd loads a cgroup plugin even when nothing uses it; v1 starts without any cgroup file system.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        nodes = [
            f"NodeName={host.name} NodeHostname={host.name} NodeAddr={host.address} CPUs={_CPUS} RealMemory=4000 "
            f"Feature={'even' if at % 2 == 0 else 'odd'} State=UNKNOWN"
            for at, host in enumerate(self._net)
        ]
        text = _CONFIG.format(
            here=socket.gethostname().split(".")[0],
            gateway=self._net.gateway,
            folder=self.folder,
            nodes="\n".join(nodes),
            # Concurrent sessions use different ports. They are below those of clusters on this machine: hubs have ports from 12000 on.
            ctld_port=11000 + self._net.number,
            slurmd_port=11200 + self._net.number,
        )
        (self.folder / "slurm.conf").write_text(text)


if __name__ == "__main__":
    with HostNet() as net, Slurm(net) as slurm:
        print(slurm.run("sinfo"), slurm.run(*sys.argv[1:]))
