"""The start of a cluster: ranks' phases, replaced by a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.ranks import describe_ranks, pluralize
from mhnb.types import PHASES, RankInfo, StartProgress
from mhnb.view.document import Document, Fold, InHtml, InText, Line, Progress, Span, Tiles
from mhnb.view.html import RankLocations, format_seconds, host_color, name_hosts

_MAX_ROWS = 16
_RANKS_PER_LINE = 4


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


def build_start(progress: StartProgress) -> Document:
    """Build a start's progress: a line in text, bars in HTML.

    >>> from mhnb.view.print_text import print_text
    >>> ranks = RankInfo(0, "a", phase="jax"), RankInfo(1, "b", phase="connected")
    >>> print_text(build_start(StartProgress(ranks, 1.2)))
    'mhjax · starting 2 ranks · 1.2 s · rank 0 jax · rank 1 connected'
    """
    heading, words = _start_heading(progress), _format_progress(progress)
    bar = Progress(heading, sum(map(_count_steps, progress.ranks)), len(PHASES) * len(progress.ranks))
    if progress.status or len(progress.ranks) > _MAX_ROWS:
        rows = [Line(" · ".join(words))]
    else:
        hosts = name_hosts(progress.ranks)
        rows = [_build_rank(rank, hosts[rank.rank], progress) for rank in progress.ranks]
    return [InText([Line(" · ".join([heading, *words]))]), InHtml([bar, *rows])]


def format_failed_start(progress: StartProgress, outcome: str) -> str:
    """Format how far the ranks of an unsuccessful start had come.

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
    return [progress.status] if progress.status else _format_phases(progress)


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


def _build_rank(rank: RankInfo, host: str, progress: StartProgress) -> Line:
    steps = _count_steps(rank)
    pid = "" if rank.pid is None else f" pid {rank.pid}"
    bar = f"{'▰' * steps}{'▱' * (len(PHASES) - steps)} {_format_phase(rank, progress)}"
    beside = [Span(f"{host}{pid}", is_quiet=True), Span(bar)]
    return Line(f"rank {rank.rank}", "heading", beside=beside, color=_color_of(rank))


def _color_of(rank: RankInfo) -> str:
    return host_color(RankLocations({rank.rank: rank.host}), (rank.rank,))


# -- after the start


def _format_size(summary: StartSummary) -> str:
    devices = sorted({len(rank.devices) for rank in summary.ranks})
    platform = (summary.ranks[0].platform or "cpu").upper()
    devices_per_rank = "-".join(map(str, devices[:1] + devices[1:][-1:]))
    device_words = f"{devices_per_rank} {platform} {'device' if devices_per_rank == '1' else 'devices'}"
    return f"{pluralize(len(summary.ranks), 'rank')} × {device_words}"


def _list_facts(summary: StartSummary) -> list[str]:
    """Return what is as usual after most starts."""
    is_available = summary.guard.split()[0] != "unavailable"
    return [
        f"jax {summary.jax_version}",
        f"guard {summary.guard}" if is_available else f"guard: {summary.guard}",
        *([] if summary.preflight_s is None else [f"preflight {format_seconds(summary.preflight_s)}"]),
    ]


def _format_ranks(ranks: Sequence[RankInfo]) -> list[tuple[str, ...]]:
    hosts = name_hosts(ranks)
    return [(hosts[r.rank], f"rank {r.rank}", f"pid {r.pid}", pluralize(len(r.devices), "device")) for r in ranks]


def build_summary(summary: StartSummary) -> Document:
    """Build the summary: a line; its details are folded in HTML."""
    size, ready, facts = _format_size(summary), f"ready in {format_seconds(summary.ready_s)}", _list_facts(summary)
    ranks = _format_ranks(summary.ranks)
    shown = [" ".join(words) for words in ranks[:_MAX_ROWS]]
    lines = ["  " + "   ".join(shown[at : at + _RANKS_PER_LINE]) for at in range(0, len(shown), _RANKS_PER_LINE)]
    if len(ranks) > _MAX_ROWS:
        lines.append(f"  … {len(ranks) - _MAX_ROWS} more: %mhjax status")
    log = f"logs {summary.log_dir}" if summary.log_dir else ""
    logs = [Span(log, is_quiet=True, gap=8)] if log else []
    in_text = Line(" · ".join([f"mhjax · {size} {summary.location}", *facts, ready]), beside=logs)
    # A guard that compares nothing, or not before a launch, is not to be overlooked.
    unusual = [facts[1]] if summary.guard != "lockstep" else []
    details: Document = [
        Line(" · ".join(filter(None, [summary.location, *facts, log])), "quiet"),
        Tiles([" · ".join(words) for words in ranks], [*map(_color_of, summary.ranks)]),
    ]
    in_html = Fold(Line(" · ".join([f"mhjax · {size}", *unusual, ready]), "heading"), details)
    return [InText([in_text, *map(Line, lines)]), InHtml([in_html]), *map(Line, summary.notes)]
