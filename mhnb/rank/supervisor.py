"""Supervisor of one host: starts, reaps, signals and ends its processes.

It imports the heavy libraries once and forks every rank from itself, so that a host pays for `import jax` once and not per rank.
It stays single-threaded until the last fork. It knows processes, but no cells and no JAX programs.

Started with `python -m` and one line of JSON (a HostSpec) on standard input. If the cluster has other hosts too,
it reports first, checks this host as the notebook asks, and waits for `StartRanks`: what each must know of the others is not known
before all have reported. Until then it imports no JAX.
Standard input stays open: its end means that the owner is gone, and every process here ends with it unless the spec says keep.
A detachable supervisor ends by itself if it has no ranks left and no notebook drives its cluster.

For launch agreement it keeps the shared board, with a server for other hosts, or one interrupt word for the ranks of its host.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
from msgspec import structs

from mhnb.core.addresses import parse_address
from mhnb.core.flight import encode_flight
from mhnb.core.launch.environment import add_to_no_proxy
from mhnb.core.launch.ssh import CANNOT_START
from mhnb.core.messages import (
    CheckHost,
    CloseConnections,
    Heartbeat,
    HostChecked,
    HostSpec,
    HostUp,
    HubExited,
    InterruptCell,
    Message,
    RankExited,
    RankSpawned,
    ReportSoon,
    SignalRank,
    StartRanks,
    StopHost,
    parse_hostspec,
)
from mhnb.errors import LaunchError, MhnbError
from mhnb.rank.guard.agreement_server import listen
from mhnb.rank.guard.local_agreement import mark_rank_lost
from mhnb.rank.guard.shared_board import InterruptFlag, SharedBoard, create_board, create_interrupt_flag
from mhnb.rank.host_setup import (
    RankPaths,
    assign_gpus,
    await_connection_file,
    prepare_host,
    read_hub_lines,
    write_connection_file,
)
from mhnb.rank.spawn import CheckProcess, preload, spawn_agreement_server, spawn_hub, spawn_rank
from mhnb.system.capacity import raise_open_file_limit
from mhnb.system.flight import flight_path, read_last_event
from mhnb.system.host_checks import CONNECT_S, find_connect_error
from mhnb.system.private_files import open_private, touch_private
from mhnb.system.processes import PROCESS_UNREADABLE, is_stopped, resident_nbytes
from mhnb.system.run_dir import remove_keys
from mhnb.transport.addresses import find_free_port
from mhnb.transport.client import TransportClient

_CHECKS_PER_LIMIT = 8
"""How many checks there are within the limit: a detachable cluster may be idle for days, and must cost nothing."""


class OrphanTimer:
    """Measures how long an empty cluster has had no notebook.

    Args:
        limit_s: seconds after which it is over; 0 for never.
        has_nothing_left: returns whether nothing is left to drive.

    >>> alone = OrphanTimer(10.0, lambda: True)
    >>> samples = ((False, 0.0), (True, 9.0), (False, 12.0), (False, 21.0), (False, 24.0))
    >>> [alone.has_expired(is_attached, now) for is_attached, now in samples]
    [False, False, False, False, True]
    """

    def __init__(self, limit_s: float, has_nothing_left: Callable[[], bool]) -> None:
        self._limit_s, self._has_nothing_left = limit_s, has_nothing_left
        self._since: float | None = None
        self._checked_at: float | None = None

    def has_expired(self, is_attached: bool, now: float) -> bool:  # noqa: FBT001  # a state, and its time
        """Return whether the limit has passed; to be called repeatedly.

        Args:
            is_attached: whether a notebook is attached.
            now: seconds of a clock that only goes forward.
        """
        if is_attached or self._limit_s <= 0:
            self._since = self._checked_at = None
            return False
        if self._checked_at is not None and now - self._checked_at < self._limit_s / _CHECKS_PER_LIMIT:
            return False
        self._checked_at = now
        if not self._has_nothing_left():
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._limit_s


def has_connections(pid: int) -> bool:
    """Return whether a process or its children have outside TCP connections.

    A machine that lost its power has not closed its connection. The connection stays until the kernel gives it up, on Linux
    a quarter of an hour after something was sent.
    """
    own, others = set(), set()
    try:
        hub = psutil.Process(pid)
        for process in (hub, *hub.children(recursive=True)):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_ESTABLISHED:
                    own.add(tuple(connection.laddr))
                    others.add(tuple(connection.raddr))
    except PROCESS_UNREADABLE:
        # It is ending in this moment and its parent will learn of it, or it cannot be seen and is not judged.
        return True
    return bool(others - own)


# -- launch agreement: the supervisor's side


class AgreementHost:
    """This host's part of launch agreement; create it before the ranks.

    Raises:
        LaunchError: the board's address is not available.
    """

    def __init__(self, spec: HostSpec) -> None:
        run_dir = Path(spec.run_dir)
        self.server_pid: int | None = None
        """The process that takes part in agreement for ranks of other hosts, if there are any."""
        self._board: SharedBoard | None = None
        self._interrupt_flag: InterruptFlag | None = None
        self._remote_ranks = sorted(set(range(spec.process_count)) - set(spec.ranks))
        if spec.has_shared_board:
            create_board(run_dir, spec.process_count)
            self._board = SharedBoard(run_dir, spec.process_count)
            if spec.board_url:
                with listen(spec.board_url) as listener:
                    self.server_pid = spawn_agreement_server(spec, listener)
        elif spec.board_url:
            create_interrupt_flag(run_dir, spec.supervisor or 0)
            self._interrupt_flag = InterruptFlag(run_dir, spec.supervisor or 0)

    def request_interrupt(self, seq: int) -> None:
        """Ask this host's ranks to stop a cell before their next launch."""
        for target in (self._board, self._interrupt_flag):
            if target is not None:
                target.request_interrupt(seq)

    def request_close(self) -> None:
        """Ask this host's ranks to close their mutual connections."""
        for target in (self._board, self._interrupt_flag):
            if target is not None:
                target.request_close()

    def request_report(self) -> None:
        """Request that the ranks of this host report soon where they are."""
        for target in (self._board, self._interrupt_flag):
            if target is not None:
                target.request_report()

    def mark_server_lost(self, status: int) -> None:
        """Mark other hosts' ranks as lost, because the agreement server ended.

        Args:
            status: the status from `waitpid`.
        """
        self.server_pid = None
        print(f"mhnb: the agreement server ended with status {status}; see log/board.log", file=sys.stderr, flush=True)
        assert self._board is not None
        for rank in self._remote_ranks:
            mark_rank_lost(self._board, rank)


# -- the supervisor


_POLL_S = 1.0
_RECONNECT_POLL_S = 0.5
_LAST_LINES = 12


class Supervisor:
    """Owns the processes of one host from spawn to reap.

    Args:
        spec: what to start.
        owner: the id of the process that started this one.
        clock: monotonic time in seconds.
        environment: the variables that the launcher's command had, for the checks of this host.
    """

    def __init__(
        self, spec: HostSpec, owner: int, clock: Callable[[], float], environment: Mapping[str, str] = os.environ
    ) -> None:
        self._spec, self._owner, self._clock, self._environment = spec, owner, clock, environment
        self._last_message_at = clock()
        self._ranks: dict[int, int] = {}
        self._hub: int | None = None
        self._wake_read = _child_exit_pipe()
        self._channel: TransportClient | None = None
        self._agreement_host: AgreementHost | None = None
        self._checks: CheckProcess | None = None
        self._exited: list[HubExited | RankExited] = []
        # On several hosts only once the notebook has recorded where they are: before that, no process could find them.
        self._is_detachable = spec.is_detachable and not spec.staged_start
        self._orphan_timer = OrphanTimer(spec.host_timeout_s, self._has_nothing_left)

    def start(self) -> None:
        """Start this host's processes at once, or report and await the notebook."""
        if not self._spec.staged_start:
            self._start_all()
            return
        self._open_channel()
        self._report()

    def _start_all(self) -> None:
        """Start hub and ranks, then open the channel, which none inherits."""
        if self._spec.starts_hub:
            self._hub = spawn_hub(self._spec)
        elif self._spec.connection:
            write_connection_file(Path(self._spec.run_dir), self._spec.connection)
        self._spawn_ranks(self._spec)
        self._open_channel()
        self._report()
        self._send_spawned()

    def _report(self) -> None:
        assert self._channel is not None
        spec, address = self._spec, self._spec.address or self._channel.address
        connection = spec.connection
        if spec.staged_start and spec.starts_hub:
            self._hub = spawn_hub(spec)
            connection = await_connection_file(Path(spec.run_dir))
        ports = [find_free_port(address) for _ in range(2)] if spec.staged_start and spec.ranks else []
        log_dir = str(Path(spec.run_dir) / "log")
        up = HostUp(
            spec.supervisor or 0, os.getpid(), socket.gethostname(), self._hub, address, ports, connection, log_dir
        )
        self._send(up)

    def _report_again(self) -> None:
        """Report to another notebook which processes run and which have ended."""
        address = self._spec.address or (self._channel.address if self._channel is not None else "")
        log_dir = str(Path(self._spec.run_dir) / "log")
        self._send(
            HostUp(self._spec.supervisor or 0, os.getpid(), socket.gethostname(), self._hub, address, log_dir=log_dir)
        )
        self._send_spawned()
        for exited in self._exited:
            self._send(exited)

    def _begin_ranks(self, begin: StartRanks) -> None:
        """Start the ranks: every host has reported and was checked."""
        self._end_checks()
        if not self._spec.ranks:
            return
        write_connection_file(Path(self._spec.run_dir), begin.connection)
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = add_to_no_proxy(
            os.environ.get("no_proxy", ""), begin.addresses.values()
        )
        is_single_host = len(self._spec.ranks) == self._spec.process_count
        self._spec = structs.replace(
            self._spec,
            coordinator_address=begin.coordinator_address,
            # On one host only, that of rank 0.
            has_shared_board=0 in self._spec.ranks and not self._spec.engine_only,
            board_url="" if is_single_host or self._spec.engine_only else begin.board_url,
            address=self._spec.address or begin.addresses[f"host{self._spec.supervisor}"],
        )
        self._spawn_ranks(self._spec)
        self._send_spawned()

    def _spawn_ranks(self, spec: HostSpec) -> None:
        self._agreement_host = AgreementHost(spec)
        if spec.fork:
            preload()
        gpus = assign_gpus(spec, os.environ)
        for rank in spec.ranks:
            self._ranks[spawn_rank(structs.replace(spec, gpus=gpus[rank]), rank)] = rank

    def _send_spawned(self) -> None:
        for pid, rank in self._ranks.items():
            self._send(RankSpawned(rank, pid))

    def _open_channel(self) -> None:
        if self._spec.staged_start and (why := find_link_error(self._spec.link_url)):
            # The notebook compares it with its own address: `SSH_CONNECTION` begins with the client's.
            client = self._environment.get("SSH_CONNECTION", "").partition(" ")[0]
            login = f"; the login came from {client}" if client else ""
            raise LaunchError(
                f"cannot reach the notebook at {replace(parse_address(self._spec.link_url), kind='')}: {why}{login}"
            )
        self._channel = TransportClient(self._spec.link_url, bytes.fromhex(self._spec.key), f"s{self._spec.supervisor}")
        # A rank that is forked later has its own channel.
        os.register_at_fork(after_in_child=self._channel.close)

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def serve(self) -> None:
        """Reap processes and handle messages until stopped or the owner is gone."""
        assert self._channel is not None
        watched = [self._channel.fileno(), self._wake_read, sys.stdin.fileno()]
        while True:
            self._reap()
            if self._handle_messages():
                return
            if self._channel.is_closed and self._channel.fileno() in watched:
                # The notebook is gone, or has closed the connection: standard input shows which rule applies.
                watched.remove(self._channel.fileno())
            if self._channel.is_closed and self._spec.is_detachable and not self._is_detachable:
                return
            if self._channel.is_closed and self._is_detachable and self._channel.reconnect():
                self._report_again()
                watched.append(self._channel.fileno())
            if self._is_orphaned():
                return
            poll_s = _POLL_S if not self._channel.is_closed else _RECONNECT_POLL_S
            ready, _, _ = select.select([*watched, *([self._checks] if self._checks else [])], [], [], poll_s)
            if self._checks in ready:
                self._send_checked()
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                watched.remove(sys.stdin.fileno())
                # The message that the cluster stays may have come in the same moment.
                if self._handle_messages() or (self._spec.ends_with_stdin and not self._is_detachable):
                    return
                self._redirect_to_log()
            if os.getppid() != self._owner and not self._is_detachable:
                # A copy of the pipe in another child of the owner can outlive the owner: the change of parent is the
                # second sign.
                return

    def _check(self, request: CheckHost) -> None:
        if self._checks is None:
            log = Path(self._spec.run_dir) / "log" / "checks.log"
            self._checks = CheckProcess(self._spec.supervisor or 0, self._environment, log)
        self._checks.send(request)

    def _send_checked(self) -> None:
        assert self._checks is not None
        answers = self._checks.read_answers()
        if answers is None:
            self._end_checks()
        for answer in answers or ():
            self._send(answer)

    def _end_checks(self) -> None:
        """End the checks, whose listeners may hold ports that ranks need."""
        if self._checks is not None:
            self._checks.close()
            self._checks = None

    def _redirect_to_log(self) -> None:
        """Redirect stdout and stderr to the log, because no login reads them."""
        log = open_private(Path(self._spec.run_dir) / "log" / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.close(log)

    def _is_orphaned(self) -> bool:
        """Return whether the notebook is lost, or a detachable cluster is empty."""
        if self._is_detachable:
            assert self._channel is not None
            if not self._orphan_timer.has_expired(not self._channel.is_closed, self._clock()):
                return False
            print("mhnb: stopped this cluster, because no rank is left and no notebook is attached", file=sys.stderr)
            return True
        # The hub's supervisor, on the notebook's own machine, sees its end: once the ranks are ready it receives
        # nothing.
        return bool(self._spec.ranks) and 0 < self._spec.host_timeout_s < self._clock() - self._last_message_at

    def _has_nothing_left(self) -> bool:
        """Return whether no rank or hub here could serve a returning notebook."""
        if self._spec.ranks:
            return not self._ranks
        return self._hub is not None and not has_connections(self._hub)

    def _handle_messages(self) -> bool:
        """Handle the messages that have arrived; return whether to stop."""
        assert self._channel is not None
        while (message := self._channel.receive()) is not None:
            self._last_message_at = self._clock()
            if isinstance(message, Heartbeat):
                self._is_detachable = self._is_detachable or (message.outlives_notebook and self._spec.is_detachable)
                self._send(self._make_heartbeat())
            if isinstance(message, CheckHost):
                if message.check == "flight":
                    self._send(self._read_flight(message))
                else:
                    self._check(message)
            if isinstance(message, StartRanks):
                self._begin_ranks(message)
            if isinstance(message, StopHost):
                return True
            if isinstance(message, InterruptCell) and self._agreement_host is not None:
                self._agreement_host.request_interrupt(message.seq)
            if isinstance(message, CloseConnections) and self._agreement_host is not None:
                self._agreement_host.request_close()
            if isinstance(message, ReportSoon) and self._agreement_host is not None:
                self._agreement_host.request_report()
            if isinstance(message, SignalRank):
                self._signal(message.rank, message.signum)
        return False

    def _read_flight(self, request: CheckHost) -> HostChecked:
        """Return the answer to a request for a rank's flight recorder."""
        supervisor, rank = self._spec.supervisor or 0, request.arguments.get("rank")
        if rank not in self._spec.ranks:
            return HostChecked(supervisor, request.request_id, None, f"rank {rank} is not on this host")
        path = flight_path(Path(self._spec.run_dir), rank)
        try:
            return HostChecked(supervisor, request.request_id, encode_flight(path.read_bytes()))
        except OSError as error:
            return HostChecked(supervisor, request.request_id, None, f"{path}: {error.strerror}")

    def _make_heartbeat(self) -> Heartbeat:
        measured = ((rank, resident_nbytes(pid)) for pid, rank in self._ranks.items())
        nbytes = {str(rank): nbytes for rank, nbytes in measured if nbytes is not None}
        stopped = [rank for pid, rank in self._ranks.items() if is_stopped(pid)]
        hub_halted = self._hub is not None and is_stopped(self._hub)
        read = ((rank, read_last_event(flight_path(Path(self._spec.run_dir), rank))) for rank in self._ranks.values())
        events = {str(rank): event for rank, event in read if event is not None}
        return Heartbeat(self._spec.supervisor or 0, nbytes, self._is_detachable, stopped, hub_halted, events)

    def _signal(self, rank: int, signum: int) -> None:
        for pid, known in self._ranks.items():
            if known == rank:
                _signal_group(pid, signum)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._handle_exit(pid, status)

    def _handle_exit(self, pid: int, status: int) -> None:
        # Processes that this one has started itself end with it.
        _signal_group(pid, signal.SIGKILL)
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = None if signum is not None else os.waitstatus_to_exitcode(status)
        if pid == self._hub:
            self._hub = None
            self._send_exited(HubExited(code, signum, read_hub_lines(Path(self._spec.run_dir), _LAST_LINES)))
        elif (rank := self._ranks.pop(pid, None)) is not None:
            run_dir = Path(self._spec.run_dir)
            last = RankPaths(run_dir, rank).read_last_lines(_LAST_LINES)
            event = read_last_event(flight_path(run_dir, rank))
            self._send_exited(RankExited(rank, code, signum, last, event))
        elif self._agreement_host is not None and pid == self._agreement_host.server_pid:
            self._agreement_host.mark_server_lost(status)

    def _send_exited(self, exited: HubExited | RankExited) -> None:
        self._exited.append(exited)
        self._send(exited)

    def end(self) -> None:
        """Kill every process of this host and wait until each has ended."""
        # Schedulers send it more than once: the shutdown that was begun runs to completion, to the last key.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        services = (self._hub, self._agreement_host.server_pid if self._agreement_host is not None else None)
        pids = [*self._ranks, *(pid for pid in services if pid is not None)]
        for pid in pids:
            _signal_group(pid, signal.SIGKILL)
        for pid in pids:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue
        self._end_checks()
        remove_keys(Path(self._spec.run_dir))
        try:
            touch_private(Path(self._spec.ended_path))
        except OSError as error:
            # The disk is full: the processes have ended all the same.
            print(f"mhnb: {self._spec.ended_path}: {error}", file=sys.stderr)
        if self._channel is not None:
            self._channel.close()


def find_link_error(url: str) -> str:
    """Return why the notebook cannot be reached, or an empty string.

    The connection itself would be tried for minutes.
    """
    address = parse_address(url)
    return "" if address.kind == "unix" else find_connect_error(address.host, address.port, "", CONNECT_S)


def _signal_group(pid: int, signum: int) -> None:
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        # It ended by itself in this moment; the reaper reports it. macOS says "not permitted" of a group that has only
        # a zombie.
        return


def _child_exit_pipe() -> int:
    """Make SIGCHLD readable, so that one `select` waits for everything."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    return read


def main() -> None:
    """Run the supervisor of this machine.

    What prevents a start is written to standard error, which the notebook reads if its connection cannot report it.
    """
    owner = os.getppid()
    line = b""
    # Unbuffered, byte by byte: the rest of standard input is left for `Supervisor.serve`.
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    environment = dict(os.environ)
    try:
        spec = prepare_host(parse_hostspec(line.decode()), os.environ)
    except MhnbError as error:
        sys.exit(f"{CANNOT_START}{error}")
    os.environ.update(spec.environment)
    raise_open_file_limit(spec.process_count, spec.devices or 1)
    # The notebook interprets a terminal's Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = Supervisor(spec, owner, time.monotonic, environment)
    signal.signal(signal.SIGTERM, lambda _signum, _frame: sys.exit(0))
    try:
        supervisor.start()
        supervisor.serve()
    except MhnbError as error:
        sys.exit(f"{CANNOT_START}{error}")
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
