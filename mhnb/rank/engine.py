"""A rank as an ipyparallel engine: the engine's loop, our kernel and shell, and the channel that delivers cells.

ipyparallel registers the engine and maintains its heartbeat; cells arrive over the channel, on the same thread and loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets import Type

from mhnb.core.wire.hostspec import HostSpec
from mhnb.core.wire.protocol import Ask, Message, RankReady, RunCell, SkipCell
from mhnb.rank.asks.verbs import answer
from mhnb.rank.bootstrap import Bootstrap
from mhnb.rank.cell.arrays_shown import draw_shardings_in_lines, show_global_arrays
from mhnb.rank.cell.capture import Capture
from mhnb.rank.cell.paths import RankPaths
from mhnb.rank.cell.runner import CellRunner
from mhnb.rank.cell.shell import RankShell
from mhnb.rank.cell.timed import time_to_the_end
from mhnb.rank.channel import Channel
from mhnb.rank.defects import ends_rank_on_defect
from mhnb.rank.versions import versions

__all__ = ["RankEngine", "RankKernel", "serve"]

_LOOK_S = 0.5
"""How often a rank without a notebook tries to reach another."""


class RankKernel(IPythonParallelKernel):
    """The engine's kernel with our shell."""

    shell_class = Type(RankShell)


class RankEngine(IPEngine):
    """An engine whose id is the rank, and which starts to serve the rank once it is registered."""

    rank_serve: Any = None

    engine_only = False

    def redirect_output(self, iopub_socket: Any) -> None:
        """Leave the streams alone, because the rank's own capture has them. Those of a mere engine go to ipyparallel's client."""
        if self.engine_only:
            super().redirect_output(iopub_socket)

    def init_signal(self) -> None:
        """Leave SIGINT to the runner. SIGTERM ends the rank as it ends any process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.engine_only:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
        """Register as an engine, then accept cells."""
        await super().complete_registration(*args, **kwargs)
        self.rank_serve(self)


class _Server:
    """Reads the channel on the engine's loop and passes each message to its handler."""

    def __init__(self, engine: RankEngine, spec: HostSpec, rank: int, channel: Channel, bootstrap: Bootstrap) -> None:
        paths = RankPaths(Path(spec.run_dir), rank)
        self._rank, self._channel, self._shell = rank, channel, engine.kernel.shell
        self._bootstrap = bootstrap
        self._capture = Capture(paths.log, paths.native, paths.begun)
        self._capture.install()
        self._runner = CellRunner(
            self._shell,
            self._capture,
            bootstrap.recorder,
            rank=rank,
            generation=spec.generation,
            send=channel.send,
            clock=time.perf_counter,
            news=bootstrap.news,
            frees=lambda: bootstrap.severing.available,
            look_beside=bootstrap.severing.look,
        )
        show_global_arrays(self._shell)
        draw_shardings_in_lines()
        time_to_the_end(self._shell, bootstrap.recorder.wait, lambda: self._shell.interrupted)
        self._loop = asyncio.get_running_loop()
        # A cell may replace `time.monotonic` by another clock.
        vars(self._loop).update(time=time.monotonic)
        self._loop.add_reader(channel.fileno(), self._read)
        self._engine = engine
        self._keep = spec.keep
        # Objects that the start has made live until the end: a collection between cells need not examine them.
        gc.freeze()
        # From here on `_run_on` runs the loop.
        engine.loop.add_callback(engine.loop.stop)
        channel.send(RankReady(rank, _facts(engine, bootstrap)))

    @ends_rank_on_defect
    def _read(self) -> None:
        while (message := self._channel.receive()) is not None:
            self._take(message)
        if self._channel.closed:
            # It would be readable forever. With `keep` the rank lives on without a notebook, and tries to reach
            # another.
            self._loop.remove_reader(self._channel.fileno())
            if self._keep:
                self._loop.call_later(_LOOK_S, self._look_for_notebook)

    @ends_rank_on_defect
    def _look_for_notebook(self) -> None:
        # Only between cells: a cell that awaits yields to this loop, and its outcome is not known before its end.
        if self._runner.is_running or not self._channel.try_again():
            self._loop.call_later(_LOOK_S, self._look_for_notebook)
            return
        standing = {"standing": self._runner.standing(), "versions": versions()}
        self._channel.send(RankReady(self._rank, _facts(self._engine, self._bootstrap) | standing))
        self._loop.add_reader(self._channel.fileno(), self._read)

    def _take(self, message: Message) -> None:
        if isinstance(message, RunCell | SkipCell):
            self._runner.handle(message)
        elif isinstance(message, Ask):
            self._channel.send(answer(message, self._shell.user_ns, rank=self._rank, shell=self._shell))


def _facts(engine: RankEngine, bootstrap: Bootstrap) -> dict[str, Any]:
    return bootstrap.facts() | {"engine_id": engine.id, "pid": os.getpid()}


def serve(spec: HostSpec, rank: int, channel: Channel, bootstrap: Bootstrap) -> None:
    """Register with the hub under the rank's own number, and serve until the process ends."""
    # The engine creates this class; here the rank's own replaces it, because ipyparallel has no setting for it.
    import ipyparallel.engine.app as engine_app

    engine = RankEngine.instance(id=rank)
    servers: list[_Server] = []
    if spec.engine_only:
        engine.engine_only = True
        engine.rank_serve = lambda ready: channel.send(RankReady(rank, _facts(ready, bootstrap)))
    else:
        engine_app.Kernel = RankKernel
        engine.rank_serve = lambda ready: servers.append(_Server(ready, spec, rank, channel, bootstrap))
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
        _run_on(engine)


def _run_on(engine: RankEngine) -> NoReturn:
    """Run the event loop until the process ends, whatever code of a cell does to it.

    A KeyboardInterrupt or SystemExit of a task or a callback leaves the loop, and `loop.stop()` ends it.
    Neither ends the rank.
    """
    while True:
        try:
            engine.loop.start()
        except (KeyboardInterrupt, SystemExit) as error:
            # A task also keeps its own error, for the cell that awaits it; that of a callback is shown nowhere else.
            traceback.print_exception(error.with_traceback(_below_loop(error.__traceback__)))


def _below_loop(found: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames that run the loop, unless none are below them."""
    below = found
    while below is not None and "/asyncio/events" not in below.tb_frame.f_code.co_filename:
        below = below.tb_next
    return found if below is None or below.tb_next is None else below.tb_next
