"""Preflight inside the allocation of srun or mpiexec: probes run in place of the supervisors and share one command.

Each task first runs a probe instead of its supervisor. If preflight succeeds, the probes end and the supervisors start. Otherwise
everything ends before any process has imported JAX.
Each request goes to all tasks, and the answers arrive in one log. The first of the tasks on a machine answers for it. The answers are
not evaluated here.
MPI passes standard input to the first process only, so those probes connect to a TCP server of the notebook. Answers use the same
connection, because an mpiexec may mix up output that several processes print at a time. Each side proves that it knows the secret in a
file that only this user can read. A peer that cannot is disconnected without an answer.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import LOGGED_IN, SshOptions, build_ssh_error, explain_ssh
from mhnb.core.preflight_facts import AnswerChunk, OtherOutput, PreflightReport, ProbeExited, parse_probe_line
from mhnb.errors import HostUnreachable, LaunchError
from mhnb.launchers.probe_client import Probe
from mhnb.launchers.probe_script import sign_challenge
from mhnb.launchers.remote_command import CommandHosts, CommandSpec
from mhnb.transport.addresses import ACCEPT_PAUSE_S, RESOURCE_ERRNOS

_CONNECT_TIMEOUT_S = 8.0
_PROOF_LENGTH = 64
_NUMBER_LENGTH = 6


class ProbeServer:
    """Accepts the connections of one launch's probes, and sends each line to all of them.

    Args:
        address: address of this machine, as the probes reach it.

    Raises:
        LaunchError: the address does not belong to this machine.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._secret = secrets.token_hex(16)
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=512)
        except OSError as error:
            raise LaunchError(
                f"cannot listen at {address} ({error.strerror}); give an address of this machine that the hosts reach: --address 10.0.0.1"
            ) from error
        self._address = address
        self._connections: dict[int, socket.socket] = {}
        self._received: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="mhnb-calls", daemon=True).start()

    @property
    def connection_info(self) -> dict[str, Any]:
        """Return what a probe needs to connect, including the secret."""
        port = self._listener.getsockname()[1]
        return {"address": self._address, "port": port, "word": self._secret, "timeout_s": _CONNECT_TIMEOUT_S}

    def send(self, line: bytes) -> None:
        """Send a line to every connected probe."""
        with self._lock:
            for connection in self._connections.values():
                # A probe that has ended reports the reason in the log.
                with contextlib.suppress(OSError):
                    connection.sendall(line)

    def received_lines(self) -> Iterator[str]:
        """Yield the lines received since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._received.get_nowait()

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._closed.set()
        # Otherwise the accepting thread would keep the port open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections.values():
                # The reading thread closes the socket when it ends.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in RESOURCE_ERRNOS and not self._closed.wait(ACCEPT_PAUSE_S):
                    # The caller waits in the system's queue.
                    continue
                # The listener was closed.
                return
            threading.Thread(target=self._serve_probe, args=(connection,), daemon=True).start()

    def _serve_probe(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.sendall(sign_challenge(self._secret, "notebook"))
            reply = _receive(connection, _PROOF_LENGTH + _NUMBER_LENGTH)
            number = reply[_PROOF_LENGTH:].strip()
            proof = sign_challenge(self._secret, f"probe {int(number)}") if number.isdigit() else b""
            if not hmac.compare_digest(proof, reply[:_PROOF_LENGTH]):
                return
            with self._lock:
                self._connections[int(number)] = connection
                connection.sendall(b"!")
            connection.settimeout(None)
            # A frozen machine would block `sendall`, and so delay the shutdown of all.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_CONNECT_TIMEOUT_S), 0))
            with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._received.put(line)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := connection.recv(count - len(data))):
        data += chunk
    return data


# -- multiplex requests over one shared command


_POLL_S = 0.01
_QUEUE_POLL_S = 0.1
_GREETING_S = 30.0
_END_S = 20.0


class ProbesExited(LaunchError):
    """The command itself has ended, or is being stopped; its output contains the reason."""


class MultiplexedProbes:
    """The probes of one command, and the probe of the notebook's own machine, which is last.

    Args:
        count: number of tasks.
        log: receives all output of the command.
        send: sends a line to every task.
        server: server for requests and answers, if the command cannot pass them; each task first reports whether it is reachable.
        has_ended: returns whether the command has ended.
        remote_options: remote options, used to explain failures.
    """

    def __init__(
        self,
        count: int,
        log: Path,
        *,
        send: Callable[[bytes], None],
        has_ended: Callable[[], bool],
        remote_options: SshOptions,
        server: ProbeServer | None = None,
    ) -> None:
        self._log, self._has_ended, self._remote_options = log, has_ended, remote_options
        self._send, self._server = send if server is None else server.send, server
        self._all_tasks, self._tasks = list(range(count)), list(range(count))
        self._log_offset, self._last_request = 0, 0
        self._parts: dict[tuple[int, int], dict[int, str]] = {}
        self._answers: dict[tuple[int, int], Any] = {}
        self._output: dict[int, list[str]] = {}
        self._exited: dict[int, ProbeExited] = {}
        self._timed_out: dict[int, float] = {}
        self._has_begun = self._is_final_read = False
        self._stopped = threading.Event()
        self._own_probe: Probe | None = None
        self._pool = ThreadPoolExecutor(1, "mhnb-preflight-own")

    @property
    def count(self) -> int:
        """Return the number of machines without this one, which is last."""
        return len(self._tasks)

    def add_local_probe(self, probe: Probe) -> None:
        """Add this machine's probe as the last one."""
        self._own_probe = probe

    def stop(self) -> None:
        """Stop sending requests: a caller that waits for an answer gets ChorusEnded."""
        self._stopped.set()

    def close(self) -> None:
        """Shut the thread pool down."""
        self._pool.shutdown()

    # -- requests

    def await_begin(self) -> None:
        """Wait until the tasks run: they may be queued.

        Raises:
            ChorusEnded: they will never run.
        """
        self._read()
        while not self._has_begun:
            # This may take hours.
            self._pause(_QUEUE_POLL_S)
            self._read()

    def request(self, function: str, arguments: Mapping[int, Mapping[str, Any]], *, timeout_s: float) -> list[Any]:
        """Send a request to the machines in `arguments`; return all answers in order, this machine's last, None if missing.

        Raises:
            ChorusEnded: the command has ended.
        """
        own = self._pool.submit(self._request_own, function, arguments, timeout_s)
        if self._server is not None:
            # A probe that has not connected yet would miss the request.
            self._wait_for_answers(0, self._all_tasks, _GREETING_S)
        number = self._send_request(
            function, {task: arguments[at] for at, task in enumerate(self._tasks) if at in arguments}
        )
        self._wait_for_answers(number, [task for at, task in enumerate(self._tasks) if at in arguments], timeout_s)
        return [*(self._answer(task, number, function) for task in self._tasks), own.result()]

    def measure_clocks(self, timeout_s: float, clock: Callable[[], float]) -> list[tuple[float, float] | None]:
        """Compare every machine's clock with this one's: seconds ahead, and the error bound."""
        before = clock()
        number = self._send_request("time", {task: {} for task in self._tasks})
        arrived_at: dict[int, float] = {}
        self._wait_for_answers(number, self._tasks, timeout_s, lambda task: arrived_at.setdefault(task, clock()))
        found: list[tuple[float, float] | None] = []
        for task in self._tasks:
            there, after = self._answers.get((task, number)), arrived_at.get(task, 0.0)
            found.append(None if there is None else (there - (before + after) / 2, (after - before) / 2))
        return [*found, None]

    def _request_own(self, function: str, arguments: Mapping[int, Mapping[str, Any]], timeout_s: float) -> Any:
        at = len(self._tasks)
        if self._own_probe is None or at not in arguments:
            return None
        return self._own_probe.request(function, arguments[at], timeout_s=timeout_s)

    def select_tasks(self, chosen: Sequence[int]) -> None:
        """Send later requests only to these positions, because one of several tasks on a machine is enough."""
        self._tasks = [self._tasks[at] for at in chosen]

    def end_probes(self) -> None:
        """Make every probe end, so that the supervisor of its task can start.

        Raises:
            ChorusEnded: the command has ended.
            HostUnreachable: a task did not end its probe.
        """
        number = self._send_request("end", {})
        self._wait_for_answers(number, self._all_tasks, _END_S)
        if failed := [failure for task in self._all_tasks if (failure := self._failure(task)) is not None]:
            raise failed[0]

    # -- failures

    def failures(self) -> list[LaunchError | None]:
        """Return why each machine cannot answer requests, None if it can; this machine is last."""
        return [*map(self._failure, self._tasks), None if self._own_probe is None else self._own_probe.failure]

    def unreachable(self) -> dict[int, str]:
        """Return the machines that requests cannot reach, by position, and why. Only facts sent unrequested are known."""
        return {at: why for at, task in enumerate(self._tasks) if (why := self._greeting(task).get("error"))}

    def hostname(self, at: int) -> str:
        """Return the name of a machine whose probe has ended; empty if it is unknown."""
        exited = self._exited.get(self._tasks[at])
        return "" if exited is None else exited.hostname

    def _greeting(self, task: int) -> dict[str, Any]:
        return self._answers.get((task, 0)) or {}

    def _failure(self, task: int) -> LaunchError | None:
        if (exited := self._exited.get(task)) is not None and not self._greeting(task).get("error"):
            host = HostName(exited.hostname or f"host{task}")
            output = "\n".join(self._output.get(task, []))
            return build_ssh_error(
                explain_ssh(f"{LOGGED_IN}\n{output}", exited.code, host, self._remote_options), host, str(self._log)
            )
        if (late_s := self._timed_out.get(task)) is None:
            return None
        return HostUnreachable(
            f"host{task}: gave no answer within {late_s:g} s\n  it may be overloaded, or a disk there may hang: log in by hand and see",
            host=f"host{task}",
            kind="late",
        )

    # -- sending and reading

    def _send_request(self, function: str, arguments: Mapping[int, Mapping[str, Any]]) -> int:
        """Send a request and return its number. Arguments that are the same for all are sent once."""
        self._last_request += 1
        all_arguments = list(arguments.values())
        common = {
            name: value
            for name, value in (all_arguments[0] if all_arguments else {}).items()
            if _is_common(name, value, all_arguments)
        }
        each = {task: {k: v for k, v in own.items() if k not in common} for task, own in arguments.items()}
        request = {"id": self._last_request, "do": function, "common": common, "each": each}
        self._send(json.dumps(request).encode() + b"\n")
        return self._last_request

    def _answer(self, task: int, number: int, function: str) -> Any:
        if function == "facts" and self._greeting(task).get("error"):
            return self._greeting(task)["facts"]
        return self._answers.get((task, number))

    def _wait_for_answers(
        self, number: int, tasks: Sequence[int], timeout_s: float, on_answer: Callable[[int], object] = lambda _: None
    ) -> None:
        """Wait for the answers to a request from all tasks that can answer."""
        for _ in range(int(timeout_s / _POLL_S)):
            self._read()
            for task in tasks:
                if (task, number) in self._answers:
                    on_answer(task)
            missing = [task for task in tasks if (task, number) not in self._answers and self._can_answer(task)]
            if not missing:
                return
            self._pause()
        self._timed_out.update(dict.fromkeys(missing, timeout_s))

    def _can_answer(self, task: int) -> bool:
        return task not in self._exited and task not in self._timed_out and not self._greeting(task).get("error")

    def _pause(self, poll_s: float = _POLL_S) -> None:
        # Read once more after the end: the last output may contain the awaited answer.
        if self._is_final_read or self._stopped.wait(poll_s):
            raise ProbesExited("the command that carries the probes has ended")
        self._is_final_read = self._has_ended()

    def _read(self) -> None:
        """Read the new output up to the last complete line."""
        with self._log.open("rb") as log:
            log.seek(self._log_offset)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._log_offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._record(parse_probe_line(line))
        for line in () if self._server is None else self._server.received_lines():
            self._record(parse_probe_line(line))

    def _record(self, line: AnswerChunk | ProbeExited | OtherOutput) -> None:
        match line:
            case AnswerChunk(task, request, at, count, text):
                self._has_begun = True
                parts = self._parts.setdefault((task, request), {})
                parts[at] = text
                if len(parts) == count:
                    self._answers[task, request] = json.loads("".join(parts[each] for each in range(count)))
            case ProbeExited(task):
                self._has_begun = True
                self._exited[task] = line
            case OtherOutput(task, text):
                self._has_begun = self._has_begun or text == LOGGED_IN
                if task is not None:
                    self._output.setdefault(task, []).append(text)


def _is_common(name: str, value: Any, all_arguments: Sequence[Mapping[str, Any]]) -> bool:
    return all(name in each and each[name] == value for each in all_arguments)


# -- preflight inside the allocation


PreflightCheck: TypeAlias = Callable[[MultiplexedProbes], PreflightReport]
"""Runs preflight; raises LaunchError if a start could not work."""


@dataclass(frozen=True, slots=True)
class PreflightStage:
    """The preflight before the supervisors start."""

    check: PreflightCheck | None
    """None: no preflight."""
    start_input: bytes | None
    """Input that starts the supervisors afterwards; None if only preflight was requested."""
    remote_options: SshOptions
    """Options of the remote side."""
    probe_server: ProbeServer | None = None
    """Server to which the probes connect, if the command cannot pass them requests."""


class CheckedHosts(CommandHosts):
    """The supervisors of one command, after a preflight of their machines.

    Args:
        command_spec: the command, with the input that turns each task into a probe.
        supervisors: their numbers.
        preflight: the preflight.
    """

    def __init__(self, command_spec: CommandSpec, supervisors: Sequence[int], preflight: PreflightStage) -> None:
        super().__init__(command_spec, supervisors)
        self.preflight_error: LaunchError | None = None
        self.report: PreflightReport | None = None
        """Result of preflight, if no finding prevents a start."""
        self.preflight_done = threading.Event()
        self._preflight = preflight
        self._probes = MultiplexedProbes(
            len(supervisors),
            command_spec.log,
            send=self.write_stdin,
            has_ended=self.has_command_ended,
            remote_options=preflight.remote_options,
            server=preflight.probe_server,
        )
        self._preflight_thread = threading.Thread(target=self._run_preflight, name="mhnb-rehearsal", daemon=True)
        self._preflight_thread.start()

    @property
    def preflight_s(self) -> float | None:
        """Return the duration of preflight."""
        return None if self.report is None else self.report.duration_s

    def has_exited(self) -> bool:
        """Return whether the command has ended, or preflight failed."""
        return self.preflight_error is not None or super().has_exited()

    def explain(self) -> str:
        """Describe the findings of preflight, or why the command ended."""
        return super().explain() if self.preflight_error is None else str(self.preflight_error)

    def wait(self, pids: tuple[int, ...]) -> None:
        """Close the watchdog's input, which ends everything, and wait for the end."""
        self._probes.stop()
        super().wait(pids)
        self._preflight_thread.join()

    def _run_preflight(self) -> None:
        try:
            self._probes.await_begin()
            if self._preflight.check is not None:
                self.report = self._preflight.check(self._probes)
            if self._preflight.start_input is not None:
                self._probes.end_probes()
                self.write_stdin(self._preflight.start_input)
        except ProbesExited:
            # The command's output contains the reason, and `explain` reads it.
            return
        except LaunchError as error:
            self.preflight_error = error
        except Exception as error:  # noqa: BLE001  # an exception in this thread would not be reported otherwise
            self.preflight_error = LaunchError(f"the look at the machines failed: {type(error).__name__}: {error}")
        finally:
            self._probes.close()
            if self._preflight.probe_server is not None:
                self._preflight.probe_server.close()
            self.preflight_done.set()
