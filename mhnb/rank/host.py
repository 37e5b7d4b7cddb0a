"""The supervisor of one host: starts the hub and the ranks, reaps them, signals them, ends them.

It imports the heavy libraries once and forks every rank from itself, so that a host pays for `import jax` once and not per rank.
It stays single-threaded until the last fork. It knows processes, but no cells and no JAX programs.

Started as `python -m mhnb.rank.host`, with one line of JSON (a HostSpec) on standard input. If the cluster has other hosts too,
it reports first and waits for `BeginRanks`: what each must know of the others is not known before all have reported.
Standard input stays open: its end means that the owner is gone, and every process here ends with it unless the spec says keep.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mhnb.core.reach.environment import add_to_no_proxy
from mhnb.core.wire.hostspec import HostSpec, parse_hostspec
from mhnb.core.wire.protocol import (
    Beat,
    BeginRanks,
    CloseConnections,
    HostUp,
    HubExited,
    InterruptCell,
    Message,
    RankExited,
    RankSpawned,
    SignalRank,
    StopHost,
)
from mhnb.rank.cell.paths import RankPaths, read_hub_words
from mhnb.rank.channel import Channel
from mhnb.rank.supervisor.abandoned import Abandonment, has_callers
from mhnb.rank.supervisor.keeping import BoardKeeper
from mhnb.rank.supervisor.place import assign_gpus, await_connection_file, settle_in, write_connection_file
from mhnb.rank.supervisor.spawn import preload, spawn_hub, spawn_rank
from mhnb.system.ports import find_free_port
from mhnb.system.private import open_private, touch_private
from mhnb.system.processes import is_halted, resident_nbytes
from mhnb.system.room import raise_open_files
from mhnb.system.rundir import remove_keys

__all__ = ["Supervisor", "main"]

_LOOK_S = 1.0
_LOOK_AGAIN_S = 0.5
_LAST_LINES = 12


class Supervisor:
    """Owns the processes of one host from spawn to reap."""

    def __init__(self, spec: HostSpec, owner: int, clock: Callable[[], float]) -> None:
        self._spec, self._owner, self._clock = spec, owner, clock
        self._heard_at = clock()
        self._ranks: dict[int, int] = {}
        self._hub: int | None = None
        self._wake_read = _child_exit_pipe()
        self._channel: Channel | None = None
        self._board: BoardKeeper | None = None
        self._exited: list[HubExited | RankExited] = []
        # On several hosts only once the notebook has recorded where they are: before that, no process could find them.
        self._stays = spec.keep and not spec.waits
        self._abandoned = Abandonment(spec.host_timeout_s, self._is_bare)

    def start(self) -> None:
        """Start the processes of this host: at once, or, if there are other hosts, once the notebook says so."""
        if not self._spec.waits:
            self._bring_up_alone()
            return
        self._open_channel()
        self._report()
        if self._spec.ranks and self._spec.fork:
            preload()

    def _bring_up_alone(self) -> None:
        """Start the hub and every rank, then open the channel, so that no rank inherits it."""
        if self._spec.hub:
            self._hub = spawn_hub(self._spec)
        elif self._spec.connection:
            write_connection_file(Path(self._spec.run_dir), self._spec.connection)
        self._spawn_ranks(self._spec)
        self._open_channel()
        self._report()
        self._tell_spawned()

    def _report(self) -> None:
        assert self._channel is not None
        spec, address = self._spec, self._spec.address or self._channel.address
        connection = spec.connection
        if spec.waits and spec.hub:
            self._hub = spawn_hub(spec)
            connection = await_connection_file(Path(spec.run_dir))
        ports = [find_free_port(address) for _ in range(2)] if spec.waits and spec.ranks else []
        log_dir = str(Path(spec.run_dir) / "log")
        up = HostUp(
            spec.supervisor or 0, os.getpid(), socket.gethostname(), self._hub, address, ports, connection, log_dir
        )
        self._say(up)

    def _report_again(self) -> None:
        """Report to another notebook which processes there are, and which have ended meanwhile."""
        address = self._spec.address or (self._channel.address if self._channel is not None else "")
        log_dir = str(Path(self._spec.run_dir) / "log")
        self._say(
            HostUp(self._spec.supervisor or 0, os.getpid(), socket.gethostname(), self._hub, address, log_dir=log_dir)
        )
        self._tell_spawned()
        for exited in self._exited:
            self._say(exited)

    def _begin(self, begin: BeginRanks) -> None:
        """Start the ranks: every host has reported."""
        if not self._spec.ranks:
            return
        write_connection_file(Path(self._spec.run_dir), begin.connection)
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = add_to_no_proxy(
            os.environ.get("no_proxy", ""), begin.names.values()
        )
        alone = len(self._spec.ranks) == self._spec.process_count
        self._spec = replace(
            self._spec,
            coordinator_address=begin.coordinator_address,
            # On one host only, that of rank 0.
            board=0 in self._spec.ranks and not self._spec.engine_only,
            board_url="" if alone or self._spec.engine_only else begin.board_url,
            address=self._spec.address or begin.names[f"host{self._spec.supervisor}"],
        )
        self._spawn_ranks(self._spec)
        self._tell_spawned()

    def _spawn_ranks(self, spec: HostSpec) -> None:
        self._board = BoardKeeper(spec)
        if spec.fork:
            preload()
        gpus = assign_gpus(spec, os.environ)
        for rank in spec.ranks:
            self._ranks[spawn_rank(replace(spec, gpus=gpus[rank]), rank)] = rank

    def _tell_spawned(self) -> None:
        for pid, rank in self._ranks.items():
            self._say(RankSpawned(rank, pid))

    def _open_channel(self) -> None:
        self._channel = Channel(self._spec.link_url, bytes.fromhex(self._spec.key), f"s{self._spec.supervisor}")
        # A rank that is forked later has its own channel.
        os.register_at_fork(after_in_child=self._channel.close)

    def _say(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def serve(self) -> None:
        """Reap processes and handle messages until the supervisor is stopped or its owner is gone."""
        assert self._channel is not None
        watched = [self._channel.fileno(), self._wake_read, sys.stdin.fileno()]
        while True:
            self._reap()
            if self._obey():
                return
            if self._channel.closed and self._channel.fileno() in watched:
                # The notebook is gone, or has closed the link: the lifeline shows which rule applies.
                watched.remove(self._channel.fileno())
            if self._channel.closed and self._spec.keep and not self._stays:
                return
            if self._channel.closed and self._stays and self._channel.try_again():
                self._report_again()
                watched.append(self._channel.fileno())
            if self._is_forgotten():
                return
            ready, _, _ = select.select(watched, [], [], _LOOK_S if not self._channel.closed else _LOOK_AGAIN_S)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                watched.remove(sys.stdin.fileno())
                # The message that the cluster stays may have come in the same moment.
                if self._obey() or (self._spec.lifeline and not self._stays):
                    return
                self._speak_alone()
            if os.getppid() != self._owner and not self._stays:
                # A copy of the pipe in another child of the owner can outlive the owner: the change of parent is the
                # second sign.
                return

    def _speak_alone(self) -> None:
        """Redirect stdout and stderr to the supervisor log: if a login started this process, its output is no longer read."""
        log = open_private(Path(self._spec.run_dir) / "log" / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.close(log)

    def _is_forgotten(self) -> bool:
        """Return whether the notebook or the way to it must be gone; for a cluster that stays, whether nothing is left to keep."""
        if self._stays:
            assert self._channel is not None
            if not self._abandoned.is_over(not self._channel.closed, self._clock()):
                return False
            print("mhnb: kept, but no rank is left and no notebook drives this cluster: ended", file=sys.stderr)
            return True
        # The hub's supervisor, on the notebook's own machine, sees its end: once the ranks are ready it receives
        # nothing.
        return bool(self._spec.ranks) and 0 < self._spec.host_timeout_s < self._clock() - self._heard_at

    def _is_bare(self) -> bool:
        """Return whether no process here could serve a notebook that returns: no rank, or a hub without connected engines."""
        if self._spec.ranks:
            return not self._ranks
        return self._hub is not None and not has_callers(self._hub)

    def _obey(self) -> bool:
        """Handle the messages that have arrived. Return whether one of them is a request to stop."""
        assert self._channel is not None
        while (message := self._channel.receive()) is not None:
            self._heard_at = self._clock()
            if isinstance(message, Beat):
                self._stays = self._stays or (message.kept and self._spec.keep)
                self._say(self._beat())
            if isinstance(message, BeginRanks):
                self._begin(message)
            if isinstance(message, StopHost):
                return True
            if isinstance(message, InterruptCell) and self._board is not None:
                self._board.ask_interrupt(message.seq)
            if isinstance(message, CloseConnections) and self._board is not None:
                self._board.ask_close()
            if isinstance(message, SignalRank):
                self._signal(message.rank, message.signum)
        return False

    def _beat(self) -> Beat:
        weighed = ((rank, resident_nbytes(pid)) for pid, rank in self._ranks.items())
        nbytes = {str(rank): nbytes for rank, nbytes in weighed if nbytes is not None}
        halted = [rank for pid, rank in self._ranks.items() if is_halted(pid)]
        hub_halted = self._hub is not None and is_halted(self._hub)
        return Beat(self._spec.supervisor or 0, nbytes, self._stays, halted, hub_halted)

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
            self._tell_exit(pid, status)

    def _tell_exit(self, pid: int, status: int) -> None:
        # Processes that this one has started itself end with it.
        _signal_group(pid, signal.SIGKILL)
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = None if signum is not None else os.waitstatus_to_exitcode(status)
        if pid == self._hub:
            self._hub = None
            self._tell_ended(HubExited(code, signum, read_hub_words(Path(self._spec.run_dir), _LAST_LINES)))
        elif (rank := self._ranks.pop(pid, None)) is not None:
            last = RankPaths(Path(self._spec.run_dir), rank).gather_last_words(_LAST_LINES)
            self._tell_ended(RankExited(rank, code, signum, last))
        elif self._board is not None and pid == self._board.delegate:
            self._board.lose_delegate(status)

    def _tell_ended(self, exited: HubExited | RankExited) -> None:
        self._exited.append(exited)
        self._say(exited)

    def end(self) -> None:
        """Kill every process of this host and wait until each has ended."""
        # Schedulers send it more than once: the shutdown that was begun runs to completion, to the last key.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        services = (self._hub, self._board.delegate if self._board is not None else None)
        pids = [*self._ranks, *(pid for pid in services if pid is not None)]
        for pid in pids:
            _signal_group(pid, signal.SIGKILL)
        for pid in pids:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue
        remove_keys(Path(self._spec.run_dir))
        try:
            touch_private(Path(self._spec.end_mark))
        except OSError as error:
            # The disk is full: the processes have ended all the same.
            print(f"mhnb: {self._spec.end_mark}: {error}", file=sys.stderr)
        if self._channel is not None:
            self._channel.close()


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
    """Run the supervisor of this machine."""
    owner = os.getppid()
    line = b""
    # Unbuffered, byte by byte: what follows the line belongs to the lifeline.
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    spec = settle_in(parse_hostspec(line.decode()), os.environ)
    os.environ.update(spec.environment)
    raise_open_files(spec.process_count, spec.devices or 1)
    # The notebook interprets a terminal's Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = Supervisor(spec, owner, time.monotonic)
    signal.signal(signal.SIGTERM, lambda _signum, _frame: sys.exit(0))
    try:
        supervisor.start()
        supervisor.serve()
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
