"""A rank as an ipyparallel engine: loop, kernel, shell and channel.

ipyparallel registers the engine and maintains its heartbeat; cells arrive over the channel, on the same thread and loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets import Type

from mhnb.core.messages import DebugInput, HostSpec, Message, RankReady, RankRequest, RunCell, SkipCell
from mhnb.rank.bootstrap import Bootstrap
from mhnb.rank.execution.capture import Capture
from mhnb.rank.execution.runner import CellRunner, exit_on_internal_error
from mhnb.rank.execution.shell import RankShell, include_launches_in_time
from mhnb.rank.execution.shell_patches import draw_shardings_without_color, register_array_reprs
from mhnb.rank.host_setup import RankPaths, read_versions
from mhnb.rank.requests.handlers import handle_request
from mhnb.rank.requests.inspection import describe_arrays_in_cells
from mhnb.transport.client import TransportClient

_RECONNECT_INTERVAL_S = 0.5
"""How often a rank without a notebook tries to reach another."""


class RankKernel(IPythonParallelKernel):
    """The engine's kernel with our shell."""

    shell_class = Type(RankShell)


class RankEngine(IPEngine):
    """An engine that has the rank's number, and serves once registered."""

    on_registered: Any = None

    engine_only = False

    def redirect_output(self, iopub_socket: Any) -> None:
        """Leave the streams to the rank's capture, except in a mere engine."""
        if self.engine_only:
            super().redirect_output(iopub_socket)

    def init_signal(self) -> None:
        """Leave SIGINT to the runner, and let SIGTERM end the process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.engine_only:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
        """Register as an engine, then accept cells."""
        await super().complete_registration(*args, **kwargs)
        self.on_registered(self)


class _Server:
    """Reads the channel on the engine's loop, and dispatches its messages."""

    def __init__(
        self, engine: RankEngine, spec: HostSpec, rank: int, channel: TransportClient, bootstrap: Bootstrap
    ) -> None:
        paths = RankPaths(Path(spec.run_dir), rank)
        self._rank, self._channel, self._shell = rank, channel, engine.kernel.shell
        self._bootstrap = bootstrap
        self._capture = Capture(paths.log, paths.native, paths.offsets)
        self._capture.install()
        self._postponed: deque[Message] = deque()
        """Messages that arrived while the main thread waited for a line of the debugger."""
        self._runner = CellRunner(
            self._shell,
            self._capture,
            bootstrap.recorder,
            bootstrap.interrupts,
            rank=rank,
            generation=spec.generation,
            send=channel.send,
            clock=time.perf_counter,
            changed_facts=bootstrap.changed_facts,
            can_disconnect=lambda: bootstrap.collective_sockets.is_available,
            background_check=bootstrap.collective_sockets.close_if_requested,
            prompt_input=self,
        )
        register_array_reprs(self._shell)
        describe_arrays_in_cells(self._shell.inspector)
        draw_shardings_without_color()
        include_launches_in_time(self._shell, bootstrap.recorder.wait_all, lambda: bootstrap.interrupts.was_requested)
        self._loop = asyncio.get_running_loop()
        # A cell may replace `time.monotonic` by another clock.
        vars(self._loop).update(time=time.monotonic)
        self._loop.add_reader(channel.fileno(), self._read)
        self._engine = engine
        self._is_detachable = spec.is_detachable
        # Objects created by the start live until the end, so collections between cells need not examine them.
        gc.freeze()
        # From here on `_run_forever` runs the loop.
        engine.loop.add_callback(engine.loop.stop)
        channel.send(RankReady(rank, _facts(engine, bootstrap)))

    @exit_on_internal_error
    def _read(self) -> None:
        while (message := self._next_message()) is not None:
            self._handle(message)
        if self._channel.is_closed:
            # It would be readable forever. With `is_detachable` the rank lives on without a notebook, and tries to reach
            # another.
            self._loop.remove_reader(self._channel.fileno())
            if self._is_detachable:
                self._loop.call_later(_RECONNECT_INTERVAL_S, self._reconnect)

    def _next_message(self) -> Message | None:
        return self._postponed.popleft() if self._postponed else self._channel.receive()

    def read_line(self, number: int, wake_fd: int) -> str | None:
        """Wait for the line that answers a prompt of the debugger.

        Returns:
            None if the notebook is gone, or once `wake_fd` is readable.

        It is called on the main thread, in the middle of a cell, so the loop does not read the channel meanwhile.
        """
        readable = select.poll()
        for fd in (self._channel.fileno(), wake_fd):
            readable.register(fd, select.POLLIN)
        while True:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, DebugInput):
                    if message.number == number:
                        return message.line
                    continue
                if not self._postponed:
                    self._loop.call_soon(self._read)
                self._postponed.append(message)
            if self._channel.is_closed or any(fd == wake_fd for fd, _ in readable.poll()):
                return None

    @exit_on_internal_error
    def _reconnect(self) -> None:
        # Only between cells: a cell that awaits yields to this loop, and its outcome is not known before its end.
        if self._runner.is_running or not self._channel.reconnect():
            self._loop.call_later(_RECONNECT_INTERVAL_S, self._reconnect)
            return
        state = {"runner": self._runner.describe_state(), "versions": read_versions()}
        self._channel.send(RankReady(self._rank, _facts(self._engine, self._bootstrap) | state))
        self._loop.add_reader(self._channel.fileno(), self._read)

    def _handle(self, message: Message) -> None:
        if isinstance(message, RunCell | SkipCell):
            self._runner.handle(message)
        elif isinstance(message, RankRequest):
            names, interrupts = self._shell.user_ns, self._bootstrap.interrupts
            reply = handle_request(message, names, rank=self._rank, shell=self._shell, interrupts=interrupts)
            self._channel.send(reply)


def _facts(engine: RankEngine, bootstrap: Bootstrap) -> dict[str, Any]:
    return bootstrap.facts() | {"engine_id": engine.id, "pid": os.getpid()}


def serve(spec: HostSpec, rank: int, channel: TransportClient, bootstrap: Bootstrap) -> None:
    """Register under the rank's number, and serve until the process ends."""
    # The engine creates this class; here the rank's own replaces it, because ipyparallel has no setting for it.
    import ipyparallel.engine.app as engine_app

    engine = RankEngine.instance(id=rank)
    servers: list[_Server] = []
    if spec.engine_only:
        engine.engine_only = True
        engine.on_registered = lambda ready: channel.send(RankReady(rank, _facts(ready, bootstrap)))
    else:
        engine_app.Kernel = RankKernel
        engine.on_registered = lambda ready: servers.append(_Server(ready, spec, rank, channel, bootstrap))
    profile = Path(spec.run_dir) / "profile"
    sys.argv = ["mhnb-rank"]
    engine.initialize([f"--profile-dir={profile}", "--log-level=ERROR"])
    try:
        engine.start()
    except RuntimeError:
        # Raised when the loop is stopped, once the rank serves.
        if not servers:
            raise
    if servers:
        _run_forever(engine)


def _run_forever(engine: RankEngine) -> NoReturn:
    """Run the event loop until the process ends, whatever cells do.

    A KeyboardInterrupt or SystemExit of a task or a callback leaves the loop, and `loop.stop()` ends it.
    Neither ends the rank.
    """
    while True:
        try:
            engine.loop.start()
        except (KeyboardInterrupt, SystemExit) as error:
            # A task also keeps its own error, for the cell that awaits it; that of a callback is shown nowhere else.
            traceback.print_exception(error.with_traceback(_skip_loop_frames(error.__traceback__)))


def _skip_loop_frames(found: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the event loop's frames, if others follow."""
    below = found
    while below is not None and "/asyncio/events" not in below.tb_frame.f_code.co_filename:
        below = below.tb_next
    return found if below is None or below.tb_next is None else below.tb_next
