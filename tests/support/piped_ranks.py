"""Real ranks over pipes: what transfers and requests need from a cluster, without a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from mhnb.cluster.requests import call_after_success
from mhnb.core.codec import decode, encode
from mhnb.core.messages import RankReply, RankRequest
from mhnb.transport.addresses import find_free_port
from tests.support.piped_rank import read_frames, write_frames
from tests.support.source import ROOT

__all__ = ["PipedRanks"]


class PipedRanks:
    """A `RankClient` over processes of `piped_rank`; a context manager.

    Args:
        count: number of ranks; above 1 they form a JAX cluster.
        devices: number of devices per rank.
    """

    def __init__(self, count: int, *, devices: int) -> None:
        self.process_count = count
        self._devices = devices
        self.sent_requests: list[tuple[int, str]] = []
        self._waiting: dict[int, Future[RankReply]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> PipedRanks:
        port = find_free_port()
        env = {**os.environ, "JAX_ENABLE_PREEMPTION_SERVICE": "0", "PYTHONHASHSEED": "0"}
        for rank in range(self.process_count):
            command = [sys.executable, "-m", "tests.support.piped_rank"]
            command += map(str, (rank, self.process_count, port, self._devices))
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=env)
            thread = threading.Thread(target=self._read, args=(process,))
            thread.start()
            self._processes.append(process)
            self._threads.append(thread)
        return self

    def __exit__(self, *reason: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        for thread in self._threads:
            thread.join()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            while (frames := read_frames(stream)) is not None:
                answer = decode(frames)  # type: ignore[arg-type]
                assert isinstance(answer, RankReply)
                self._waiting.pop(answer.request_id).set_result(answer)
        for future in [*self._waiting.values()]:
            if not future.done():
                future.set_exception(EOFError("a rank ended"))

    def ask(
        self, rank: int, handler: str, arguments: dict[str, Any], payload: tuple[Any, ...] = ()
    ) -> Future[RankReply]:
        """Send a request to one rank."""
        number = len(self.sent_requests)
        self.sent_requests.append((rank, handler))
        future = self._waiting[number] = Future()
        stream = self._processes[rank].stdin
        assert stream is not None
        write_frames(stream, encode(RankRequest(number, handler, arguments, payload)))
        return future

    def ask_all(
        self,
        ranks: Iterable[int],
        handler: str,
        arguments: dict[str, Any],
        on_success: Callable[[], None] | None = None,
    ) -> dict[int, Future[RankReply]]:
        """Send the request to each rank."""
        futures = {rank: self.ask(rank, handler, arguments) for rank in ranks}
        if on_success is not None:
            call_after_success(futures.values(), on_success)
        return futures

    def interrupt_requests(self) -> None:
        """Send Ctrl-C to the ranks."""
        for process in self._processes:
            process.send_signal(signal.SIGINT)

    def run(self, source: str, *, ranks: tuple[int, ...] | None = None) -> list[Any]:
        """Run a cell on ranks, and return what each rank bound to `answer`."""
        text = textwrap.dedent(source)
        chosen = range(self.process_count) if ranks is None else ranks
        futures = [self.ask(rank, "run", {"source": text}) for rank in chosen]
        return [future.result(60).value for future in futures]

    def take_requested_handlers(self) -> list[str]:
        """Return the handlers requested from rank 0 since the last call."""
        seen = [handler for rank, handler in self.sent_requests if rank == 0 and handler != "run"]
        self.sent_requests = [(rank, "run") for rank, _ in self.sent_requests]
        return seen
