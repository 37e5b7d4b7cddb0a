"""Format the start of a cluster: a line with each rank's phase, and the summary that replaces it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.types import PHASES, Phase
from mhnb.view.html import QUIET_STYLE, RankLocations, format_seconds, host_color, wrap_html

_MAX_ROWS = 16
_RANKS_PER_LINE = 4


@dataclass(frozen=True, slots=True)
class RankStart:
    """Start progress of one rank."""

    rank: int
    host: str
    phase: Phase | None = None
    """The last phase it reached; None before its process exists."""
    pid: int | None = None
    devices: int = 0
    """Number of local devices, once the rank is ready."""
    hostname: str = ""
    """The host's own name, if it is another machine."""
    host_is_up: bool = False
    """Whether its host has reported."""

    @property
    def host_label(self) -> str:
        """Return the host as users know it: its label, and the machine's own name."""
        return f"{self.host} {self.hostname}" if self.hostname else self.host


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    """A start in progress."""

    ranks: tuple[RankStart, ...]
    elapsed_s: float
    """Seconds; 0 before any process exists."""
    queue_status: str = ""
    """What the start waits for, as its position in a scheduler's queue; empty if the ranks are starting."""
    is_attach: bool = False
    """Whether the ranks already exist, and only their notebook is new."""


@dataclass(frozen=True, slots=True)
class StartSummary:
    """A start that succeeded."""

    ranks: tuple[RankStart, ...]
    ready_s: float
    jax_version: str
    guard: str
    """As `lockstep`, or `unavailable (reason)`."""
    platform: str = "CPU"
    location: str = "on this machine"
    log_dir: str = ""
    notes: tuple[str, ...] = ()
    preflight_s: float | None = None
    """Duration of the preflight checks; None if there were none."""


# -- during the start


def format_start_text(snapshot: StartSnapshot) -> str:
    """Format one line: the number of ranks, the elapsed time, and the phase of each rank.

    >>> format_start_text(StartSnapshot((RankStart(0, "host0", "jax"), RankStart(1, "host1", "connected")), 1.2))
    'mhjax · starting 2 ranks · 1.2 s · rank 0 jax · rank 1 connected'
    """
    return " · ".join([_start_heading(snapshot), *_format_progress(snapshot)])


def format_start_html(snapshot: StartSnapshot) -> str:
    """Format a progress bar over all ranks, and each rank's phase."""
    steps = sum(map(_count_steps, snapshot.ranks))
    bar = f'<progress max="{len(PHASES) * len(snapshot.ranks)}" value="{steps}"></progress>'
    head = f"<div>{escape(_start_heading(snapshot))} {bar}</div>"
    if snapshot.queue_status:
        return wrap_html(f"{head}<div>{escape(snapshot.queue_status)}</div>")
    if len(snapshot.ranks) > _MAX_ROWS:
        return wrap_html(head + f"<div>{escape(' · '.join(_format_phases(snapshot)))}</div>")
    return wrap_html(head + "".join(_format_rank_row(rank, snapshot) for rank in snapshot.ranks))


def format_failed_start(snapshot: StartSnapshot, outcome: str) -> str:
    """Format how far each rank had come in a start that did not succeed; the error below gives the reason.

    >>> format_failed_start(StartSnapshot((RankStart(0, "host0", "jax"),), 1.2), "failed")
    'mhjax · the start of 1 rank failed after 1.2 s · rank 0 jax'
    """
    action = f"{'taking over' if snapshot.is_attach else 'the start of'} {pluralize(len(snapshot.ranks), 'rank')}"
    if not snapshot.elapsed_s:
        return f"mhjax · {action} {outcome}"
    return " · ".join(
        [f"mhjax · {action} {outcome} after {format_seconds(snapshot.elapsed_s)}", *_format_progress(snapshot)]
    )


def _start_heading(snapshot: StartSnapshot) -> str:
    elapsed = [format_seconds(snapshot.elapsed_s)] if snapshot.elapsed_s else []
    action = "taking over" if snapshot.is_attach else "starting"
    return " · ".join([f"mhjax · {action} {pluralize(len(snapshot.ranks), 'rank')}", *elapsed])


def _format_progress(snapshot: StartSnapshot) -> list[str]:
    return [snapshot.queue_status] if snapshot.queue_status else _format_phases(snapshot)


def _format_phases(snapshot: StartSnapshot) -> list[str]:
    """Format the ranks by phase, the furthest phase first."""
    by_phase: dict[str, list[int]] = {}
    for rank in sorted(snapshot.ranks, key=lambda r: (-_count_steps(r), not r.host_is_up)):
        by_phase.setdefault(_format_phase(rank, snapshot), []).append(rank.rank)
    return [f"{describe_ranks(same)} {word}" for word, same in by_phase.items()]


def _format_phase(rank: RankStart, snapshot: StartSnapshot) -> str:
    if snapshot.is_attach and rank.phase == "spawned":
        return "in a cell, or silent"
    return rank.phase or ("host up" if rank.host_is_up else "not there yet")


def _count_steps(rank: RankStart) -> int:
    return 0 if rank.phase is None else PHASES.index(rank.phase) + 1


def _format_rank_row(rank: RankStart, snapshot: StartSnapshot) -> str:
    steps = _count_steps(rank)
    pid = "" if rank.pid is None else f" pid {rank.pid}"
    return (
        f'<div style="{_bar_style(rank)}"><b>rank {rank.rank}</b> <span style="{QUIET_STYLE}">{escape(rank.host_label)}{pid}</span> '
        f"{'▰' * steps}{'▱' * (len(PHASES) - steps)} {_format_phase(rank, snapshot)}</div>"
    )


def _bar_style(rank: RankStart) -> str:
    return f"border-left:3px solid {host_color(RankLocations({rank.rank: rank.host}), (rank.rank,))};padding-left:8px"


# -- after the start


def _summary_heading(summary: StartSummary) -> str:
    devices = sorted({rank.devices for rank in summary.ranks})
    devices_per_rank = "-".join(map(str, devices[:1] + devices[1:][-1:]))
    device_words = f"{devices_per_rank} {summary.platform} {'device' if devices_per_rank == '1' else 'devices'}"
    return " · ".join([
        f"mhjax · {pluralize(len(summary.ranks), 'rank')} × {device_words} {summary.location}",
        f"jax {summary.jax_version}",
        f"guard {summary.guard}" if summary.guard.split()[0] != "unavailable" else f"guard: {summary.guard}",
        *([] if summary.preflight_s is None else [f"preflight {format_seconds(summary.preflight_s)}"]),
        f"ready in {format_seconds(summary.ready_s)}",
    ])  # fmt: skip


def _format_rank(rank: RankStart) -> str:
    return f"{rank.host_label} rank {rank.rank} pid {rank.pid} {pluralize(rank.devices, 'device')}"


def format_summary_text(summary: StartSummary) -> str:
    """Format the summary: one line for the cluster, then the ranks, four per line."""
    logs = f"        logs {summary.log_dir}" if summary.log_dir else ""
    words = list(map(_format_rank, summary.ranks[:_MAX_ROWS]))
    lines = ["  " + "   ".join(words[at : at + _RANKS_PER_LINE]) for at in range(0, len(words), _RANKS_PER_LINE)]
    if len(summary.ranks) > _MAX_ROWS:
        lines.append(f"  … {len(summary.ranks) - _MAX_ROWS} more: %mhjax status")
    return "\n".join([_summary_heading(summary) + logs, *lines, *summary.notes])


def format_summary_html(summary: StartSummary) -> str:
    """Format the summary as HTML; the ranks are collapsed if there are many."""
    logs = f' <span style="{QUIET_STYLE}">logs {escape(summary.log_dir)}</span>' if summary.log_dir else ""
    rows = "".join(
        # Block elements, so that they stay lines where styles are dropped.
        f'<div style="{_bar_style(rank)};margin-right:14px;display:inline-block">{escape(_format_rank(rank))}</div> '
        for rank in summary.ranks
    )
    is_open = " open" if len(summary.ranks) <= _MAX_ROWS else ""
    notes = "".join(f"<div>{escape(note, quote=False)}</div>" for note in summary.notes)
    heading = f'<summary style="cursor:pointer"><b>{escape(_summary_heading(summary))}</b>{logs}</summary>'
    return wrap_html(f"<details{is_open}>{heading}<div>{rows}</div></details>{notes}")
