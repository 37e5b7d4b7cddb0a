"""`mhnb interrupt` and `mhnb restart`, also while the notebook's kernel hangs.

The event loop of the notebook's process does it. Without a notebook, this process attaches, does it, and detaches.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhnb.cli.ask import ask_notebook, describe_silence, find_pids_here
from mhnb.cli.clusters import add_name_argument, find_cluster
from mhnb.cluster.attach import has_owner
from mhnb.cluster.flags import add_replay_flags
from mhnb.core.ranks import pluralize
from mhnb.core.replay import format_step
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.system.flight import flight_path, read_last_event
from mhnb.system.run_dir import RunRecord
from mhnb.system.shell_requests import ShellAnswer
from mhnb.view.live.screen import open_region

if TYPE_CHECKING:
    from mhnb.types import StartProgress

_INTERRUPT_S = 30.0
_RESTART_S = 600.0
_SIGNAL_AFTER_S = 2.0
"""Seconds after which ranks without a notebook that have not answered are taken to run a cell."""


def interrupt(args: argparse.Namespace) -> int:
    """Interrupt the running cell of a cluster."""
    record = find_cluster(args.name)
    if has_owner(record):
        return _report(record, "interrupt", ask_notebook(record, "interrupt", _INTERRUPT_S))
    _check_detachable(record)
    from mhnb.cluster.manager import attach

    interrupter = _RankInterrupter(record)
    cluster = attach(record.full_name, interrupter)
    state = cluster.state
    cluster.leave()
    done = f"interrupted cell {interrupter.cell}" if interrupter.cell else "no cell is running"
    print(f"{record.name}: {done}; state {state}")
    return 0


def add_restart_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb restart`."""
    add_name_argument(parser)
    add_replay_flags(parser)


def restart(args: argparse.Namespace) -> int:
    """Replace the processes of a cluster, and replay its cells if requested."""
    record = find_cluster(args.name)
    arguments = {"replay": args.replay, "to": args.to, "this_generation": args.this_generation}
    if not has_owner(record):
        return _restart_detached(record, arguments)
    with _progress_line() as show:
        # A replay takes as long as its cells.
        answer = ask_notebook(record, "restart", None if args.replay else _RESTART_S, arguments, show)
    return _report(record, "restart", answer)


def _restart_detached(record: RunRecord, arguments: Mapping[str, Any]) -> int:
    _check_detachable(record)
    from mhnb.cluster.manager import attach, current_generation
    from mhnb.cluster.status import describe_restart

    cluster = attach(record.full_name, _RankInterrupter(record))
    try:
        with _progress_line() as show:
            fresh = cluster.restart(**arguments, on_step=lambda step: show(format_step(step)))
    finally:
        # After a replay that stopped it is the new one, as far as that came.
        current_generation(cluster).leave()
    print(
        f"{record.name}: {describe_restart(fresh.process_count, fresh.replayed)}\n  In a notebook: %mhjax attach {record.name}"
    )
    return 0


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress in a temporary terminal line."""
    region = open_region()
    try:
        yield (lambda _: None) if region is None else region.show
    finally:
        if region is not None:
            region.close()


def _report(record: RunRecord, command: str, answer: ShellAnswer | None) -> int:
    if answer is None:
        print(
            f"mhnb {command} {record.name}: {describe_silence(record)}"
            f"\n  Fix: mhnb stop {record.full_name}, which needs no answer",
            file=sys.stderr,
        )
        return 1
    if answer.outcome == "failed":
        print(f"mhnb {command} {record.name}: {answer.text}", file=sys.stderr)
        return 1
    print(f"{record.name}: {answer.text}")
    return 0


def _check_detachable(record: RunRecord) -> None:
    if not record.is_detachable:
        raise InvalidRequest(
            f"the notebook of cluster {record.name!r} (pid {record.owner_pid}) has ended, and the cluster is ending with it"
        )


class _RankInterrupter:
    """Progress callback of an attach that interrupts ranks running a cell.

    Their supervisors take orders from a notebook once all ranks have answered. Ranks on this machine can be signalled before.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.cell = 0
        """The number of the cell that was interrupted; 0 for none."""

    def __call__(self, progress: StartProgress) -> None:
        """Interrupt the ranks that have not answered.

        Raises:
            ClusterError: they did not answer in time.
        """
        busy = [rank for rank in progress.ranks if rank.phase != "ready"]
        if not busy or progress.elapsed_s < _SIGNAL_AFTER_S:
            return
        if progress.elapsed_s > _INTERRUPT_S:
            raise ClusterError(
                f"{pluralize(len(busy), 'rank')} did not end the running cell within {_INTERRUPT_S:g} s; nothing else was changed"
                f"\n  Fix: mhnb stop {self._record.full_name}"
            )
        pids_here = find_pids_here(self._record)
        here = [rank for rank in busy if rank.pid in pids_here]
        self._name_cell([rank.rank for rank in here])
        for rank in here:
            with suppress(ProcessLookupError):
                os.kill(rank.pid or 0, signal.SIGINT)

    def _name_cell(self, ranks: Sequence[int]) -> None:
        """Record for the ranks which cell a signal is to stop.

        A signal alone may be a late one for an earlier cell.
        """
        from mhnb.cluster.host_monitor import open_shared_board

        run_dir = Path(self._record.run_dir)
        events = [read_last_event(flight_path(run_dir, rank)) for rank in ranks]
        board = open_shared_board(run_dir, len(self._record.rank_pids))
        if board is not None:
            self.cell = max((event.cell for event in events if event is not None), default=0)
            board.request_interrupt(self.cell)
            board.close()
