"""The life of a rank: connect, start JAX, serve cells until killed."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from mhnb.adapters.jax_arrays import set_ranks_per_host
from mhnb.core.messages import HostSpec, PhaseReached, StartFailed, parse_hostspec
from mhnb.rank.bootstrap import Bootstrap
from mhnb.rank.host_setup import read_versions
from mhnb.system.private_files import make_private_folder
from mhnb.system.processes import end_with_parent
from mhnb.transport.client import TransportClient
from mhnb.types import Phase

_PARENT_POLL_S = 1.0


class _PhaseReporter:
    """Reports each phase of this rank, and keeps it for error reports."""

    def __init__(self, channel: TransportClient, rank: int) -> None:
        self._channel, self._rank = channel, rank
        self.phase: Phase = "spawned"

    def __call__(self, phase: Phase, **facts: Any) -> None:
        self.phase = phase
        self._channel.send(PhaseReached(self._rank, phase, facts))


def run_rank(spec: HostSpec) -> None:
    """Run the spec's one rank until killed; exit if it cannot start."""
    from mhnb.rank.engine import serve

    (rank,) = spec.ranks
    set_ranks_per_host(spec.ranks_per_host)
    channel = TransportClient(spec.link_url, bytes.fromhex(spec.key), f"r{rank}")
    progress = _PhaseReporter(channel, rank)
    facts = {"hostname": socket.gethostname(), "versions": read_versions(), "gpus": spec.gpus}
    progress("connected", pid=os.getpid(), **facts)
    _exit_with_supervisor()
    try:
        bootstrap = Bootstrap(spec, rank, progress, channel.send)
        bootstrap.run()
        serve(spec, rank, channel, bootstrap)
    except Exception as error:
        # The edge of the process: every error that stops a start is reported.
        text = traceback.format_exc()
        channel.send(StartFailed(rank, progress.phase, type(error).__name__, str(error), text))
        channel.close()
        print(text, file=sys.stderr, flush=True)
        raise SystemExit(1) from error


def _exit_with_supervisor() -> None:
    """End with the supervisor where the kernel does not ensure that (macOS)."""
    if platform.system() == "Linux":
        return
    parent = os.getppid()

    def poll_parent() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=poll_parent, daemon=True, name="mhnb-owner").start()


def main() -> None:
    """Run a rank with the spec read from standard input."""
    end_with_parent(int(sys.argv[1]))
    spec = parse_hostspec(sys.stdin.readline())
    make_private_folder(Path(spec.run_dir))
    run_rank(spec)


if __name__ == "__main__":
    main()
