"""Format the start of a cluster: a line with each rank's phase, and the summary that replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.types import PHASES, RankInfo, StartProgress
from mhnb.view.html import QUIET_STYLE, RankLocations, format_seconds, host_color, name_hosts, wrap_html

_MAX_ROWS = 16
_RANKS_PER_LINE = 4
_CHAR_EM = 0.52
"""Width of a character of a label, about, in most fonts of pages."""


@dataclass(frozen=True, slots=True)
class StartSummary:
    """A start that succeeded."""

    ranks: tuple[RankInfo, ...]
    ready_s: float
    jax_version: str
    guard: str
    """As `lockstep`, or `unavailable (reason)`."""
    location: str = "on this machine"
    log_dir: str = ""
    notes: tuple[str, ...] = ()
    preflight_s: float | None = None
    """Duration of the preflight checks; None if there were none."""


# -- during the start


def format_start_text(progress: StartProgress) -> str:
    """Format one line: the number of ranks, the elapsed time, and the phase of each rank.

    >>> format_start_text(StartProgress((RankInfo(0, "a", phase="jax"), RankInfo(1, "b", phase="connected")), 1.2))
    'mhjax · starting 2 ranks · 1.2 s · rank 0 jax · rank 1 connected'
    """
    return " · ".join([_start_heading(progress), *_format_progress(progress)])


def format_start_html(progress: StartProgress) -> str:
    """Format a progress bar over all ranks, and each rank's phase."""
    steps = sum(map(_count_steps, progress.ranks))
    bar = f'<progress max="{len(PHASES) * len(progress.ranks)}" value="{steps}"></progress>'
    head = f"<div>{escape(_start_heading(progress))} {bar}</div>"
    if progress.standing:
        return wrap_html(f"{head}<div>{escape(progress.standing)}</div>")
    if len(progress.ranks) > _MAX_ROWS:
        return wrap_html(head + f"<div>{escape(' · '.join(_format_phases(progress)))}</div>")
    hosts = name_hosts(progress.ranks)
    return wrap_html(head + "".join(_format_rank_row(rank, hosts[rank.rank], progress) for rank in progress.ranks))


def format_failed_start(progress: StartProgress, outcome: str) -> str:
    """Format how far each rank had come in a start that did not succeed; the error below gives the reason.

    >>> format_failed_start(StartProgress((RankInfo(0, "a", phase="jax"),), 1.2), "failed")
    'mhjax · the start of 1 rank failed after 1.2 s · rank 0 jax'
    """
    action = f"{'attaching to' if progress.is_takeover else 'the start of'} {pluralize(len(progress.ranks), 'rank')}"
    return " · ".join(
        [f"mhjax · {action} {outcome} after {format_seconds(progress.elapsed_s)}", *_format_progress(progress)]
    )


def _start_heading(progress: StartProgress) -> str:
    action = "attaching to" if progress.is_takeover else "starting"
    return f"mhjax · {action} {pluralize(len(progress.ranks), 'rank')} · {format_seconds(progress.elapsed_s)}"


def _format_progress(progress: StartProgress) -> list[str]:
    return [progress.standing] if progress.standing else _format_phases(progress)


def _format_phases(progress: StartProgress) -> list[str]:
    """Format the ranks by phase, the furthest phase first."""
    by_phase: dict[str, list[int]] = {}
    for rank in sorted(progress.ranks, key=lambda r: (-_count_steps(r), not r.host_is_up)):
        by_phase.setdefault(_format_phase(rank, progress), []).append(rank.rank)
    return [f"{describe_ranks(same)} {word}" for word, same in by_phase.items()]


def _format_phase(rank: RankInfo, progress: StartProgress) -> str:
    if progress.is_takeover and rank.phase == "spawned":
        return "running a cell, or not responding"
    return rank.phase or ("host up" if rank.host_is_up else "waiting for host")


def _count_steps(rank: RankInfo) -> int:
    return 0 if rank.phase is None else PHASES.index(rank.phase) + 1


def _format_rank_row(rank: RankInfo, host: str, progress: StartProgress) -> str:
    steps = _count_steps(rank)
    pid = "" if rank.pid is None else f" pid {rank.pid}"
    return (
        f'<div style="{_bar_style(rank)}"><b>rank {rank.rank}</b> <span style="{QUIET_STYLE}">{escape(host)}{pid}</span> '
        f"{'▰' * steps}{'▱' * (len(PHASES) - steps)} {_format_phase(rank, progress)}</div>"
    )


def _bar_style(rank: RankInfo) -> str:
    return f"border-left:3px solid {host_color(RankLocations({rank.rank: rank.host}), (rank.rank,))};padding-left:8px"


# -- after the start


def _summary_heading(summary: StartSummary) -> str:
    devices = sorted({len(rank.devices) for rank in summary.ranks})
    platform = (summary.ranks[0].platform or "cpu").upper()
    devices_per_rank = "-".join(map(str, devices[:1] + devices[1:][-1:]))
    device_words = f"{devices_per_rank} {platform} {'device' if devices_per_rank == '1' else 'devices'}"
    return " · ".join([
        f"mhjax · {pluralize(len(summary.ranks), 'rank')} × {device_words} {summary.location}",
        f"jax {summary.jax_version}",
        f"guard {summary.guard}" if summary.guard.split()[0] != "unavailable" else f"guard: {summary.guard}",
        *([] if summary.preflight_s is None else [f"preflight {format_seconds(summary.preflight_s)}"]),
        f"ready in {format_seconds(summary.ready_s)}",
    ])  # fmt: skip


def _format_ranks(ranks: Sequence[RankInfo]) -> list[str]:
    hosts = name_hosts(ranks)
    return [f"{hosts[r.rank]} rank {r.rank} pid {r.pid} {pluralize(len(r.devices), 'device')}" for r in ranks]


def format_summary_text(summary: StartSummary) -> str:
    """Format the summary: one line for the cluster, then the ranks, four per line."""
    logs = f"        logs {summary.log_dir}" if summary.log_dir else ""
    words = _format_ranks(summary.ranks)[:_MAX_ROWS]
    lines = ["  " + "   ".join(words[at : at + _RANKS_PER_LINE]) for at in range(0, len(words), _RANKS_PER_LINE)]
    if len(summary.ranks) > _MAX_ROWS:
        lines.append(f"  … {len(summary.ranks) - _MAX_ROWS} more: %mhjax status")
    return "\n".join([_summary_heading(summary) + logs, *lines, *summary.notes])


def format_summary_html(summary: StartSummary) -> str:
    """Format the summary as HTML; the ranks are collapsed if there are many."""
    logs = f' <span style="{QUIET_STYLE}">logs {escape(summary.log_dir)}</span>' if summary.log_dir else ""
    labels = _format_ranks(summary.ranks)
    # As wide as the longest, so that they stand in columns although the number of a rank may have more digits.
    width = f"min-width:{max(map(len, labels)) * _CHAR_EM:.0f}em;font-variant-numeric:tabular-nums"
    rows = "".join(
        # Block elements, so that they stay lines where styles are dropped.
        f'<div style="{_bar_style(rank)};{width};margin-right:14px;display:inline-block">{escape(words)}</div> '
        for rank, words in zip(summary.ranks, labels, strict=True)
    )
    is_open = " open" if len(summary.ranks) <= _MAX_ROWS else ""
    notes = "".join(f"<div>{escape(note, quote=False)}</div>" for note in summary.notes)
    heading = f'<summary style="cursor:pointer"><b>{escape(_summary_heading(summary))}</b>{logs}</summary>'
    return wrap_html(f"<details{is_open}>{heading}<div>{rows}</div></details>{notes}")
