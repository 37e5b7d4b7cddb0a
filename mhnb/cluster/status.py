"""Descriptions of ranks and their start, and the listener for events.

The listener passes on start progress, late output and notifications from the event loop. It knows the receiver of each
event, but not how the event is shown.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from mhnb.cluster.shell_control import ShellRequests
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.output.results import CellResult
from mhnb.core.ranks import pluralize
from mhnb.core.replay import ReplayReport, format_report
from mhnb.core.state.interrupt import KILLED_AFTER_INTERRUPT
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankEntry
from mhnb.errors import MhnbError
from mhnb.types import DeviceRef, RankInfo, StartProgress
from mhnb.view.html import format_seconds


def describe_ranks(state_machine: ClusterStateMachine) -> tuple[RankInfo, ...]:
    """Return what is known of each rank, in rank order."""
    return tuple(_describe_rank(state_machine, entry) for entry in state_machine.registry.entries)


def _describe_rank(state_machine: ClusterStateMachine, entry: RankEntry) -> RankInfo:
    registry, facts = state_machine.registry, entry.facts
    slow = (
        KILLED_AFTER_INTERRUPT in state_machine.reason
        and entry.last_cell is not None
        and entry.last_cell[1] == "killed"
    )
    state = registry.describe_end(entry, KILLED_AFTER_INTERRUPT if slow else "")
    if state_machine.state == "stopped" and state == "alive" and not registry.is_detached:
        # After the order to end, the end of processes is no longer reported.
        state = "stopped"
    return RankInfo(
        entry.rank,
        entry.host,
        str(facts.get("hostname", "")),
        entry.pid,
        Path(entry.log_path),
        entry.phase,
        state,
        tuple(DeviceRef(entry.rank, ordinal) for _, ordinal, _ in facts.get("devices", [])),
        str(facts.get("platform", "")),
        entry.nbytes if state == "alive" else None,
        _describe_last_cell(state_machine, entry),
        registry.has_host(entry),
    )


def _describe_last_cell(state_machine: ClusterStateMachine, entry: RankEntry) -> str:
    cell = state_machine.current
    if cell is not None and entry.rank in cell.running_ranks:
        what = "stopped in the debugger" if cell.parts[entry.rank].is_stopped else "running"
        return f"{_number_cell(state_machine, cell.seq)} {what}"
    if not entry.last_cell:
        return ""
    seq, outcome = entry.last_cell
    return f"{_number_cell(state_machine, seq)} {outcome}"


def _number_cell(state_machine: ClusterStateMachine, seq: int) -> str:
    names = state_machine.cell_names
    return str(seq) if names.execution_count(seq) is None else names.format_name(seq)


def describe_guard(state_machine: ClusterStateMachine, requested: str) -> str:
    """Describe the active guard, its gaps, or why it is unavailable."""
    for entry in state_machine.registry.entries:
        guard = entry.facts.get("guard")
        if guard and not guard["available"]:
            return f"unavailable ({guard['reason']})"
        if guard and guard.get("unseen"):
            return f"{requested}, unavailable for {', '.join(guard['unseen'])}"
    return requested


def describe_location(shape: ClusterSpec, ranks: Sequence[RankInfo]) -> str:
    """Describe the hosts and profile, and machines that a scheduler has chosen.

    >>> describe_location(ClusterSpec(2, None, profile="ssh", machines=("a", "b")), [])
    '2 hosts (a, b), profile ssh'
    """
    chosen = dict.fromkeys(rank.hostname for rank in ranks if rank.hostname)
    if shape.is_local or shape.machines or not chosen:
        return shape.describe()
    return f"{shape.describe()}: {', '.join(chosen)}"


def start_progress(state_machine: ClusterStateMachine, now: float) -> StartProgress:
    """Return the progress of a start."""
    ready = state_machine.state in ("clean", "split", "tainted", "dead")
    ranks, registry = describe_ranks(state_machine), state_machine.registry
    status = registry.queue_position
    if not status and registry.is_waiting_for_hosts:
        count = pluralize(len({rank.host for rank in ranks}), "host")
        status = f"waiting for {count}" if registry.missing_hosts else f"checking {count}"
    return StartProgress(ranks, now - state_machine.started_at, ready, status, is_takeover=registry.is_takeover)


# -- deliver events to the cluster's user


_Value = TypeVar("_Value")


class EventListener(Protocol):
    """Receiver of events that no submitter waits for, in the event-loop thread."""

    def on_progress(self, state_machine: ClusterStateMachine, now: float) -> None:
        """Handle start progress: a new phase, a second, or all ranks ready."""

    def on_failure(self, error: MhnbError) -> None:
        """Handle a failed start."""

    def on_late(self, result: CellResult) -> None:
        """Handle output that arrived for a cell that had ended."""

    def on_notice(self, text: str) -> None:
        """Handle a text that the user must see."""

    def on_tick(self) -> None:
        """Handle a tick, several times per second, also between cells."""


class ClusterListener:
    """Listener that queues start progress and passes other events to callbacks."""

    def __init__(self) -> None:
        self.start_updates: queue.SimpleQueue[StartProgress | MhnbError] = queue.SimpleQueue()
        self.show_late: Callable[[CellResult], None] | None = None
        self.show_notice: Callable[[str], None] = print_notice
        self._shells: list[Callable[[str], None]] = []
        """Functions that show a notice to a shell, which waits for a report."""
        self._shells_lock = threading.Lock()
        self._requests: ShellRequests | None = None

    def enable_shell_requests(self, requests: ShellRequests) -> None:
        """Look for requests of shells from now on."""
        self._requests = requests

    def wait_ready(self, on_progress: Callable[[StartProgress], None] | None) -> float:
        """Wait until the ranks can take cells; return the duration in seconds.

        Raises:
            MhnbError: the start failed.
        """
        while True:
            update = self.start_updates.get()
            if isinstance(update, MhnbError):
                raise update
            if on_progress is not None:
                on_progress(update)
            if update.ready:
                return update.elapsed_s

    def on_progress(self, state_machine: ClusterStateMachine, now: float) -> None:
        """Queue the progress of the ranks."""
        self.start_updates.put(start_progress(state_machine, now))

    def on_failure(self, error: MhnbError) -> None:
        """Queue the error of the failed start."""
        self.start_updates.put(error)

    def on_late(self, result: CellResult) -> None:
        """Show late output, if a callback is registered."""
        if self.show_late is not None:
            _call_view(self.show_late, result)

    def on_notice(self, text: str) -> None:
        """Show a text to the user."""
        _call_view(self.show_notice, text)
        with self._shells_lock:
            for show in self._shells:
                _call_view(show, text)

    @contextmanager
    def show_to_shell(self, show: Callable[[str], None]) -> Iterator[None]:
        """Pass notices also to a shell while its report is made."""
        with self._shells_lock:
            self._shells.append(show)
        try:
            yield
        finally:
            with self._shells_lock:
                self._shells.remove(show)

    def on_tick(self) -> None:
        """Serve shells' requests until one fails: another user may have written it."""
        if self._requests is not None and not _call_view(lambda requests: requests.poll(), self._requests):
            self._requests = None


def print_notice(text: str) -> None:
    """Print to the current stderr, which rich replaces while it redraws lines."""
    print(text, file=sys.stderr)


def _call_view(view: Callable[[_Value], None], value: _Value) -> bool:
    """Call a view; if it fails, print the traceback and return False."""
    try:
        view(value)
    except Exception:  # noqa: BLE001  # a view is arbitrary code
        traceback.print_exc()
        return False
    return True


def describe_restart(process_count: int, report: ReplayReport | None) -> str:
    """Describe a restart for a shell, with its replay's summary, if any."""
    text = f"{pluralize(process_count, 'rank')} restarted"
    return text if report is None else f"{text}\n{format_report(report, format_seconds(report.wall_s))}"
