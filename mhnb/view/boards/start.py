"""Format the start of a cluster: a line with each rank's phase, and the summary that replaces it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from mhnb.core.ranks import say_count, say_ranks
from mhnb.values import PHASES, Phase
from mhnb.view.style import QUIET, host_color, wrap
from mhnb.view.words import Places, format_seconds

__all__ = [
    "RankStart",
    "StartSnapshot",
    "StartSummary",
    "format_failed_start",
    "format_start_html",
    "format_start_text",
    "format_summary_html",
    "format_summary_text",
]

_MAX_ROWS = 16
_PER_LINE = 4


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
    machine: str = ""
    """The host's own name, if it is another machine."""
    host_is_up: bool = False
    """Whether its host has reported."""

    @property
    def place(self) -> str:
        """Return the host as users know it: its label, and the machine's own name."""
        return f"{self.host} {self.machine}" if self.machine else self.host


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    """A start in progress."""

    ranks: tuple[RankStart, ...]
    elapsed_s: float
    """Seconds; 0 before any process exists."""
    standing: str = ""
    """What the start waits for, as its position in a scheduler's queue; empty if the ranks are starting."""
    is_takeover: bool = False
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
    where: str = "on this machine"
    log_dir: str = ""
    notes: tuple[str, ...] = ()
    looked_s: float | None = None
    """Duration of the preflight checks; None if there were none."""


# -- during the start


def format_start_text(snapshot: StartSnapshot) -> str:
    """Format one line: the number of ranks, the elapsed time, and the phase of each rank.

    >>> format_start_text(StartSnapshot((RankStart(0, "host0", "jax"), RankStart(1, "host1", "connected")), 1.2))
    'mhjax · starting 2 ranks · 1.2 s · rank 0 jax · rank 1 connected'
    """
    return " · ".join([_start_heading(snapshot), *_whereabouts(snapshot)])


def format_start_html(snapshot: StartSnapshot) -> str:
    """Format a progress bar over all ranks, and each rank's phase."""
    steps = sum(map(_steps, snapshot.ranks))
    bar = f'<progress max="{len(PHASES) * len(snapshot.ranks)}" value="{steps}"></progress>'
    head = f"<div>{escape(_start_heading(snapshot))} {bar}</div>"
    if snapshot.standing:
        return wrap(f"{head}<div>{escape(snapshot.standing)}</div>")
    if len(snapshot.ranks) > _MAX_ROWS:
        return wrap(head + f"<div>{escape(' · '.join(_phase_words(snapshot)))}</div>")
    return wrap(head + "".join(_rank_row(rank, snapshot) for rank in snapshot.ranks))


def format_failed_start(snapshot: StartSnapshot, how: str) -> str:
    """Format how far each rank had come in a start that did not succeed; the error below gives the reason.

    >>> format_failed_start(StartSnapshot((RankStart(0, "host0", "jax"),), 1.2), "failed")
    'mhjax · the start of 1 rank failed after 1.2 s · rank 0 jax'
    """
    what = f"{'taking over' if snapshot.is_takeover else 'the start of'} {say_count(len(snapshot.ranks), 'rank')}"
    if not snapshot.elapsed_s:
        return f"mhjax · {what} {how}"
    return " · ".join([f"mhjax · {what} {how} after {format_seconds(snapshot.elapsed_s)}", *_whereabouts(snapshot)])


def _start_heading(snapshot: StartSnapshot) -> str:
    elapsed = [format_seconds(snapshot.elapsed_s)] if snapshot.elapsed_s else []
    doing = "taking over" if snapshot.is_takeover else "starting"
    return " · ".join([f"mhjax · {doing} {say_count(len(snapshot.ranks), 'rank')}", *elapsed])


def _whereabouts(snapshot: StartSnapshot) -> list[str]:
    return [snapshot.standing] if snapshot.standing else _phase_words(snapshot)


def _phase_words(snapshot: StartSnapshot) -> list[str]:
    """Format the ranks by phase, the furthest phase first."""
    by_word: dict[str, list[int]] = {}
    for rank in sorted(snapshot.ranks, key=lambda r: (-_steps(r), not r.host_is_up)):
        by_word.setdefault(_word(rank, snapshot), []).append(rank.rank)
    return [f"{say_ranks(same)} {word}" for word, same in by_word.items()]


def _word(rank: RankStart, snapshot: StartSnapshot) -> str:
    if snapshot.is_takeover and rank.phase == "spawned":
        return "in a cell, or silent"
    return rank.phase or ("host up" if rank.host_is_up else "not there yet")


def _steps(rank: RankStart) -> int:
    return 0 if rank.phase is None else PHASES.index(rank.phase) + 1


def _rank_row(rank: RankStart, snapshot: StartSnapshot) -> str:
    steps = _steps(rank)
    pid = "" if rank.pid is None else f" pid {rank.pid}"
    return (
        f'<div style="{_bar(rank)}"><b>rank {rank.rank}</b> <span style="{QUIET}">{escape(rank.place)}{pid}</span> '
        f"{'▰' * steps}{'▱' * (len(PHASES) - steps)} {_word(rank, snapshot)}</div>"
    )


def _bar(rank: RankStart) -> str:
    return f"border-left:3px solid {host_color(Places({rank.rank: rank.host}), (rank.rank,))};padding-left:8px"


# -- after the start


def _summary_heading(summary: StartSummary) -> str:
    devices = sorted({rank.devices for rank in summary.ranks})
    each = "-".join(map(str, devices[:1] + devices[1:][-1:]))
    what = f"{each} {summary.platform} {'device' if each == '1' else 'devices'}"
    return " · ".join([
        f"mhjax · {say_count(len(summary.ranks), 'rank')} × {what} {summary.where}",
        f"jax {summary.jax_version}",
        f"guard {summary.guard}" if summary.guard.split()[0] != "unavailable" else f"guard: {summary.guard}",
        *([] if summary.looked_s is None else [f"preflight {format_seconds(summary.looked_s)}"]),
        f"ready in {format_seconds(summary.ready_s)}",
    ])  # fmt: skip


def _rank_words(rank: RankStart) -> str:
    return f"{rank.place} rank {rank.rank} pid {rank.pid} {say_count(rank.devices, 'device')}"


def format_summary_text(summary: StartSummary) -> str:
    """Format the summary: one line for the cluster, then the ranks, four per line."""
    logs = f"        logs {summary.log_dir}" if summary.log_dir else ""
    words = list(map(_rank_words, summary.ranks[:_MAX_ROWS]))
    lines = ["  " + "   ".join(words[at : at + _PER_LINE]) for at in range(0, len(words), _PER_LINE)]
    if len(summary.ranks) > _MAX_ROWS:
        lines.append(f"  … {len(summary.ranks) - _MAX_ROWS} more: %mhjax status")
    return "\n".join([_summary_heading(summary) + logs, *lines, *summary.notes])


def format_summary_html(summary: StartSummary) -> str:
    """Format the summary as HTML; the ranks are collapsed if there are many."""
    logs = f' <span style="{QUIET}">logs {escape(summary.log_dir)}</span>' if summary.log_dir else ""
    rows = "".join(
        # Block elements, so that they stay lines where styles are dropped.
        f'<div style="{_bar(rank)};margin-right:14px;display:inline-block">{escape(_rank_words(rank))}</div> '
        for rank in summary.ranks
    )
    is_open = " open" if len(summary.ranks) <= _MAX_ROWS else ""
    notes = "".join(f"<div>{escape(note, quote=False)}</div>" for note in summary.notes)
    heading = f'<summary style="cursor:pointer"><b>{escape(_summary_heading(summary))}</b>{logs}</summary>'
    return wrap(f"<details{is_open}>{heading}<div>{rows}</div></details>{notes}")
