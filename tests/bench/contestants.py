"""The contestants: mhnb, its peers, a plain kernel and bare processes, each started, used and stopped as its users do.

This module defines what each clock covers. How often each is measured, and what the numbers mean, is defined elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.frontend import CellBroke, FrontEnd, descendants, end_tree, wait_until_ended
from tests.bench.program import Shape, first_psum, initialise

__all__ = ["CONTESTANTS", "PEERS", "ROOT", "Bare", "Contestant", "Mhnb", "Workspace", "Plain"]

ROOT = Path(__file__).resolve().parents[2]
IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher")
STOP_LIMIT_S = 60.0
# PYTHON*: with PYTHONDONTWRITEBYTECODE each process would compile JAX's source again, 2 s that no user pays for.
DROPPED = ("JAX_", "JUPYTER", "MHNB_", "PYTHON", "XLA_")
OWN_DIRS = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MHNB_HOME")


@dataclass(frozen=True, slots=True)
class Workspace:
    """What one life of a contestant uses: its shape, an empty directory, and the folder where extra peers are installed."""

    shape: Shape
    directory: Path
    peers: Path

    def env(self, **extra: str) -> dict[str, str]:
        """Return the environment of a contestant: the user's, minus the variables that would configure JAX or Jupyter."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
        own = {k: str(self.directory / k.lower()) for k in OWN_DIRS}
        # Without PJRT_NPROC, correct programs deadlock if a process has two CPU devices and few cores.
        jax = {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(max(32, 4 * self.shape.devices)), "no_proxy": "*"}
        return {**inherited, **own, **jax, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", **extra}

    def address(self) -> str:
        """Return a loopback address whose port was free a moment ago."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"


class Contestant(ABC):
    """One life of one system: prepared, started, used, stopped, and closed even after a failure."""

    name: str

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.ranks: list[psutil.Process] = []

    def prepare(self) -> None:
        """Start what the contestant's user has running before the start; not timed."""
        self.workspace.directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def start(self) -> dict[str, float]:
        """Start the ranks. Return `start`: seconds to the first checked psum; `first`: to the first psum of the user's own."""

    @abstractmethod
    def cell(self, code: str) -> float:
        """Run code on every rank; return the seconds."""

    @abstractmethod
    def end(self) -> None:
        """Request the end of the ranks and wait for the reply."""

    @abstractmethod
    def close(self) -> None:
        """End every process, also after a failure."""

    def stop(self) -> float:
        """Return the seconds from the request until no rank's process runs.

        Raises:
            CellBroke: a rank's process still runs.
        """
        started = time.perf_counter()
        self.end()
        wait_until_ended(self.ranks, STOP_LIMIT_S)
        return time.perf_counter() - started

    def check(self) -> None:
        """Read the report of each rank after the first psum, and record its process.

        Raises:
            CellBroke: a rank is missing, or computed with fewer devices than it should.
        """
        shape, files = self.workspace.shape, sorted(self.workspace.directory.glob("rank-*.json"))
        reports = [json.loads(f.read_text()) for f in files]
        want = {"process_count": self.processes, "device_count": shape.ranks * shape.devices}
        if len(reports) != self.processes or any({k: r[k] for k in want} != want for r in reports):
            raise CellBroke(f"wanted {self.processes} reports with {want}, got {reports}")
        self.ranks = [psutil.Process(r["pid"]) for r in reports]

    @property
    def processes(self) -> int:
        """The number of JAX processes."""
        return self.workspace.shape.ranks


class InKernel(Contestant):
    """A contestant whose cells run through one kernel process."""

    front: FrontEnd | None = None
    magic = ""
    """What its user writes above a cell."""

    def kernel(self, argv: tuple[str, ...] = IPYKERNEL, **env: str) -> FrontEnd:
        """Start the kernel process that runs the cells."""
        self.front = FrontEnd(argv, self.workspace.directory, self.workspace.env(**env))
        return self.front

    def local(self, code: str) -> float:
        """Run a cell in the kernel itself; return the seconds."""
        if self.front is None:
            raise CellBroke("its kernel was never started")
        return self.front.cell(code)

    def cell(self, code: str) -> float:
        """Run code under the magic."""
        return self.local(self.magic + code)

    def close(self) -> None:
        """Kill the kernel and everything below it."""
        if self.front is not None:
            self.front.kill()


class Plain(InKernel):
    """One ipykernel with all the devices in one process: the baseline for the others."""

    name = "plain kernel"

    @property
    def processes(self) -> int:
        """One process, with all the devices."""
        return 1

    def start(self) -> dict[str, float]:
        """Start from no kernel at all, up to the psum."""
        started, shape = time.perf_counter(), self.workspace.shape
        self.kernel()
        count = f"import jax\njax.config.update('jax_num_cpu_devices', {shape.ranks * shape.devices})\n"
        self.cell(count + first_psum(self.workspace.directory))
        took = time.perf_counter() - started
        return {"start": took, "first": took}

    def end(self) -> None:
        """Shut the kernel down."""
        if self.front is not None:
            self.front.shutdown()


class Mhnb(InKernel):
    """mhnb in a kernel: `%mhjax start`, `%%mhjax`, `%mhjax stop`."""

    name = "mhnb"
    magic = "%%mhjax\n"

    def prepare(self) -> None:
        """Start a kernel and load the extension."""
        self.kernel()
        self.local("%load_ext mhnb")

    def start(self) -> dict[str, float]:
        """Run `%mhjax start`, which ends with a psum over all devices that mhnb checks itself."""
        shape = self.workspace.shape
        start = self.local(f"%mhjax start -n {shape.ranks} --devices {shape.devices}")
        return {"start": start, "first": start + self.cell(first_psum(self.workspace.directory))}

    def end(self) -> None:
        """Run `%mhjax stop`; the kernel stays."""
        self.local("%mhjax stop")


class Px(InKernel):
    """ipyparallel: a local cluster and `%%px`; a cell initialises jax.distributed."""

    name = "%%px"
    magic = "%%px\n"

    def prepare(self) -> None:
        """Start a kernel and import ipyparallel."""
        self.kernel()
        self.local("import ipyparallel as ipp")

    def start(self) -> dict[str, float]:
        """Start cluster and client in one cell, JAX and the psum in the next."""
        shape = self.workspace.shape
        code = (
            f"cluster = ipp.Cluster(n={shape.ranks}, log_level=40)\n"
            "client = cluster.start_and_connect_sync(activate=True)\n"
            f"client[:].scatter('rank', range({shape.ranks}), flatten=True, block=True)"
        )
        joined = initialise(shape, self.workspace.address(), "rank") + first_psum(self.workspace.directory)
        took = self.local(code) + self.cell(joined)
        return {"start": took, "first": took}

    def end(self) -> None:
        """Stop the cluster; the kernel stays."""
        self.local("cluster.stop_cluster_sync()")


class JupyterDistributed(InKernel):
    """jupyter-distributed: its kernel, started with the variables that its server extension sets."""

    name = "jupyter-distributed"

    def prepare(self) -> None:
        """Check the installation. Nothing runs before the start, because choosing a number of processes restarts the kernel."""
        super().prepare()
        found = (
            importlib.util.find_spec("jupyter_distributed") or (self.workspace.peers / "jupyter_distributed").is_dir()
        )
        if not found:
            requirement = "-r tests/bench/requirements.txt"
            raise CellBroke(f"not installed: pip install --target {self.workspace.peers.name} --no-deps {requirement}")

    def start(self) -> dict[str, float]:
        """Start the kernel and its ranks, then JAX and the psum in a cell."""
        started, shape = time.perf_counter(), self.workspace.shape
        self.kernel(
            (sys.executable, "-m", "jupyter_distributed.kernel"),
            JUPYTER_DISTRIBUTED_BASE_KERNEL="python3",
            JUPYTER_DISTRIBUTED_WORLD_SIZE=str(shape.ranks),
            JUPYTER_DISTRIBUTED_CWD=str(self.workspace.directory),
            PYTHONPATH=os.pathsep.join([str(ROOT), str(self.workspace.peers)]),
        )
        rank = "int(__import__('os').environ['RANK'])"
        self.cell(initialise(shape, self.workspace.address(), rank) + first_psum(self.workspace.directory))
        took = time.perf_counter() - started
        return {"start": took, "first": took}

    def end(self) -> None:
        """Shut the kernel down, and the ranks with it."""
        if self.front is not None:
            self.front.shutdown()


class Bare(Contestant):
    """N Python processes with jax.distributed and a pipe each: the lower bound, without kernel, front end or display."""

    name = "bare processes"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.commands: list[subprocess.Popen[bytes]] = []
        self.log = workspace.directory / "bare.log"

    def start(self) -> dict[str, float]:
        """Start all processes, send the program, and wait for every answer."""
        shape, address = self.workspace.shape, self.workspace.address()
        started = time.perf_counter()
        for _ in range(shape.ranks):
            self._spawn()
        for rank, command in enumerate(self.commands):
            _write(command, initialise(shape, address, str(rank)) + first_psum(self.workspace.directory))
        self._wait_done(120)
        took = time.perf_counter() - started
        return {"start": took, "first": took}

    def cell(self, code: str) -> float:
        """Write the code to every pipe, and read until every process has reported that it is done."""
        started = time.perf_counter()
        for command in self.commands:
            _write(command, code)
        self._wait_done(60)
        return time.perf_counter() - started

    def _spawn(self) -> None:
        argv, pipe = (sys.executable, "-m", "tests.bench.bare"), subprocess.PIPE
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=log, env=self.workspace.env(), cwd=self.workspace.directory
            )
        self.commands.append(process)

    def _wait_done(self, limit_s: float) -> None:
        """Wait for the mark of every process. Raises CellBroke if a process ends or time runs out."""
        deadline, poll = time.perf_counter() + limit_s, select.poll()
        output = {command.stdout.fileno(): b"" for command in self.commands if command.stdout}
        for fd in output:
            poll.register(fd, select.POLLIN | select.POLLHUP)
        while output:
            ready = poll.poll(max(0.0, deadline - time.perf_counter()) * 1000)
            for fd, _ in ready:
                chunk = os.read(fd, 65536)
                output[fd] += chunk
                if output[fd].endswith(b"\ndone\n"):
                    poll.unregister(fd)
                    del output[fd]
                elif not chunk:
                    ready = []
            if not ready:
                log = self.log.read_text(errors="replace")
                raise CellBroke(f"a process ended or was silent for {limit_s} s; the log ends:\n{log[-1500:]}")

    def end(self) -> None:
        """Close the pipes."""
        for command in self.commands:
            if command.stdin:
                command.stdin.close()  # the processes return from main, through JAX's own shutdown
        for command in self.commands:
            command.wait(STOP_LIMIT_S)

    def close(self) -> None:
        """Kill the processes that still run and close the pipes."""
        started = [psutil.Process(c.pid) for c in self.commands if c.poll() is None]
        end_tree(started + [p for process in started for p in descendants(process)])
        for command in self.commands:
            command.wait(STOP_LIMIT_S)
            if command.stdout:
                command.stdout.close()


def _write(command: subprocess.Popen[bytes], code: str) -> None:
    if command.stdin is None:
        raise CellBroke("a bare process has no pipe")
    command.stdin.write(json.dumps(code).encode() + b"\n")
    command.stdin.flush()


CONTESTANTS: tuple[type[Contestant], ...] = (Plain, Mhnb, Px, JupyterDistributed, Bare)
PEERS = (Px.name, JupyterDistributed.name)
"""The contestants that run one cell on N processes from a notebook."""
