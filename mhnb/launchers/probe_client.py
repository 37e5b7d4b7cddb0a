"""Run the probe on many machines: one login per machine, requests to all in parallel, and every probe is ended.

Answers are passed on, not evaluated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import SshOptions, choose_python, remote_line
from mhnb.errors import HostUnreachable, LaunchError
from mhnb.launchers import probe_script
from mhnb.launchers.ssh import SshProcess
from mhnb.system.private_files import open_private

_PRELUDE_START = (
    "import sys; sys.version_info >= (3, 8) or sys.exit('mhnb: old python: ' + sys.version.split()[0]); "
    # A file of the user in the working directory must not replace a standard module.
    "sys.path[:] = [each for each in sys.path if each]; import json; "
)
PRELUDE = _PRELUDE_START + "exec(compile(json.loads(sys.stdin.readline()), 'probe', 'exec')); main()"
PRELUDE_MULTIPLEXED = PRELUDE.replace("main()", "main_multiplexed()")
PRELUDE_CALLBACK = (
    _PRELUDE_START + "exec(compile(json.loads(sys.stdin.buffer.readline()), 'probe', 'exec')); main_callback()"
)
_ANSWER = probe_script.ANSWER.encode()
_GRACE_S = 3.0


class _Process(Protocol):
    """The process that a probe runs in."""

    @property
    def stdout(self) -> IO[bytes]: ...
    def write(self, data: bytes) -> None: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def failure(self) -> LaunchError | None: ...
    def end(self, grace_s: float) -> None: ...
    def kill(self) -> None: ...


class ChildProcess:
    """A local command that runs a probe on another machine, or is one itself.

    Args:
        command: the command line.
        log: receives standard error.
    """

    def __init__(self, command: Sequence[str], *, log: Path) -> None:
        self._log = log
        with open(log, "ab", opener=open_private) as err:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, start_new_session=True
            )

    @property
    def code(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> IO[bytes]:
        """Return the program's standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def write(self, data: bytes) -> None:
        """Write to its standard input; do nothing if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return False if it has not within that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, grace_s: float) -> None:
        """Close its standard input, wait for the grace period, then kill it."""
        try:
            self._process.stdin.close()  # type: ignore[union-attr]
        except BrokenPipeError:
            # It ended without reading everything.
            self.kill()
        if not self.wait(grace_s):
            self.kill()
        self.stdout.close()

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()
        self._process.wait()


class LocalPython(ChildProcess):
    """A Python on this machine, in place of one reached by ssh."""

    def __init__(self, arguments: Sequence[str], *, log: Path, python: str = sys.executable) -> None:
        super().__init__([python, *arguments], log=log)

    def failure(self) -> LaunchError | None:
        """Describe why it ended; None while it runs, or if it ended on request."""
        if not (code := self.code):
            return None
        last_line = self._log.read_text(errors="replace").splitlines()[-1:]
        return LaunchError(f"this machine: the look at it ended with exit code {code}: {''.join(last_line)}")


def probe_source() -> bytes:
    """Return the probe's own source text, as one line."""
    return json.dumps(Path(probe_script.__file__).read_text(encoding="utf-8")).encode() + b"\n"


def probe_input(remote_options: SshOptions, prelude: str) -> bytes:
    """Return the input that makes each task a probe: a shell line, and the source of the probe."""
    line = remote_line(choose_python(remote_options, sys.executable), ["-c", prelude])
    return line.encode() + probe_source()


class Probe:
    """The probe on one machine."""

    def __init__(self, name: str, process: _Process) -> None:
        self.name, self._process = name, process
        self.failure: LaunchError | None = None
        """Why it can no longer answer requests."""
        self._process.write(probe_source())

    def request(self, function: str, arguments: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Send a request and return the answer; None if there is none, with the reason in `failure`."""
        if self.failure is not None:
            return None
        self._process.write(json.dumps({"do": function, **arguments}).encode() + b"\n")
        timed_out = threading.Event()

        def give_up() -> None:
            timed_out.set()
            self._process.kill()

        limit = threading.Timer(timeout_s, give_up)
        limit.start()
        try:
            for line in self._process.stdout:
                if line.startswith(_ANSWER):
                    return json.loads(line.removeprefix(_ANSWER))
        finally:
            limit.cancel()
            limit.join()
        self._process.wait()
        self.failure = self._describe_failure(is_timeout=timed_out.is_set(), timeout_s=timeout_s)
        return None

    def _describe_failure(self, *, is_timeout: bool, timeout_s: float) -> LaunchError:
        if not is_timeout and (failure := self._process.failure()) is not None:
            return failure
        how = f"gave no answer within {timeout_s:g} s" if is_timeout else "ended without an answer"
        return HostUnreachable(
            f"{self.name}: {how}\n  it may be overloaded, or a disk there may hang: log in by hand and see",
            host=self.name,
            kind="late" if is_timeout else "ended",
        )

    def close(self, grace_s: float) -> None:
        """End it."""
        self._process.end(grace_s)


class Probes:
    """The probes on all machines, which get requests at the same time."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._pool = ThreadPoolExecutor(max(1, len(probes)), thread_name_prefix="mhnb-preflight")

    @property
    def count(self) -> int:
        """Return the number of machines without this one, which is last."""
        return len(self._probes) - 1

    def request(self, function: str, arguments: Mapping[int, Mapping[str, Any]], *, timeout_s: float) -> list[Any]:
        """Send a request to the machines in `arguments`; return the answers of all in order, None if missing."""

        def one(at: int) -> Any:
            return self._probes[at].request(function, arguments[at], timeout_s=timeout_s) if at in arguments else None

        return list(self._pool.map(one, range(len(self._probes))))

    def measure_clocks(self, timeout_s: float, clock: Callable[[], float]) -> list[tuple[float, float] | None]:
        """Compare every machine's clock with this one's: seconds ahead, and the error bound."""

        def one(each: Probe) -> tuple[float, float] | None:
            before = clock()
            there = each.request("time", {}, timeout_s=timeout_s)
            after = clock()
            return None if there is None else (there - (before + after) / 2, (after - before) / 2)

        return list(self._pool.map(one, self._probes))

    def failures(self) -> list[LaunchError | None]:
        """Return why each machine cannot answer requests, None if it can."""
        return [each.failure for each in self._probes]

    def close(self) -> None:
        """End all probes at once, also while requests are running, as after a Ctrl-C."""
        with ThreadPoolExecutor(max(1, len(self._probes))) as pool:
            list(pool.map(lambda each: each.close(_GRACE_S), self._probes))
        self._pool.shutdown()


ProbeOpener: TypeAlias = Callable[[Path], Probe]
"""Starts the probe on one machine; the file receives the output of the login."""


def make_ssh_opener(host: HostName, options: SshOptions) -> ProbeOpener:
    """Return an opener that reaches a machine by ssh."""
    return lambda log: Probe(str(host), SshProcess(host, options, ["-c", PRELUDE], log=log, piped=True))


def open_local_probe(log: Path) -> Probe:
    """Start the probe of this machine."""
    return Probe("this machine", LocalPython(["-c", PRELUDE], log=log))


@contextmanager
def open_probes(openers: Sequence[ProbeOpener], folder: Path) -> Iterator[Probes]:
    """Start a probe on every machine and end them all; the last one is on this machine, where the transport listens.

    Args:
        openers: for each of the other machines.
        folder: for a log of each login.
    """
    started: list[Probe] = []
    try:
        for at, opener in enumerate([*openers, open_local_probe]):
            started.append(opener(folder / f"probe{at}.log"))
    except BaseException:
        for each in started:
            each.close(0)
        raise
    probes = Probes(started)
    try:
        yield probes
    finally:
        probes.close()
