"""A start as it goes on, and its summary."""

from __future__ import annotations

import dataclasses

import pytest

from mhnb.types import PHASES
from mhnb.view.tables import show
from mhnb.view.tables.show import ProgressLine, StartDisplay
from mhnb.view.tables.start import (
    RankStart,
    StartSnapshot,
    StartSummary,
    format_failed_start,
    format_start_html,
    format_start_text,
    format_summary_html,
    format_summary_text,
)
from tests.support.view_samples import RecordingScreen, StrictPage


@pytest.fixture(autouse=True)
def nothing_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would import what other tests take away."""
    monkeypatch.setattr(show, "warm_up", lambda: None)
    # No test may depend on how long its own lines take.
    monkeypatch.setattr(StartDisplay, "_clock", staticmethod(lambda: 0.0))


RANKS = tuple(RankStart(rank, f"host{rank}", "ready", 4711 + rank, 2) for rank in range(4))
SUMMARY = StartSummary(RANKS, 3.1, "0.10.2", "lockstep", log_dir="/l")
SNAPSHOT = StartSnapshot((*RANKS[:2], RankStart(2, "host2", "jax", 4713), RankStart(3, "host3")), 1.2)


def test_progress_is_one_line_with_each_phase() -> None:
    """The furthest first; a rank without a process is named too."""
    assert format_start_text(SNAPSHOT) == (
        "mhjax · starting 4 ranks · 1.2 s · ranks 0-1 ready · rank 2 jax · rank 3 not there yet"
    )


@pytest.mark.parametrize("count", [4, 40])
def test_progress_names_every_rank_in_html(count: int) -> None:
    """Few ranks have a line each, many are grouped by phase."""
    snapshot = StartSnapshot(tuple(RankStart(r, f"host{r}", PHASES[r % 7]) for r in range(count)), 1.0)
    page = StrictPage(format_start_html(snapshot))
    assert not page.unclosed
    assert all(phase in page.visible for phase in PHASES[: min(count, 7)])


def test_the_summary_is_the_line_and_the_ranks() -> None:
    """Tone and order of the line are settled."""
    assert format_summary_text(SUMMARY).splitlines() == [
        "mhjax · 4 ranks × 2 CPU devices on this machine · jax 0.10.2 · guard lockstep · ready in 3.1 s        logs /l",
        "  " + "   ".join(f"host{rank} rank {rank} pid {4711 + rank} 2 devices" for rank in range(4)),
    ]


def test_what_the_look_at_the_hosts_cost_is_in_the_line() -> None:
    """Beside what the start took; on this machine nothing is looked at, and nothing said."""
    looked = format_summary_text(dataclasses.replace(SUMMARY, preflight_s=0.26)).splitlines()[0]
    assert " · guard lockstep · preflight 0.26 s · ready in 3.1 s" in looked
    assert "preflight" not in format_summary_text(SUMMARY)


def test_who_waits_sees_which_hosts_have_reported() -> None:
    """Ranks begin once all have: it is the other one that everybody waits for."""
    ranks = (RankStart(0, "host0"), RankStart(1, "host1", host_is_up=True), RankStart(2, "host2", "spawned"))
    text = format_start_text(StartSnapshot(ranks, 1.2))
    assert text == "mhjax · starting 3 ranks · 1.2 s · rank 2 spawned · rank 1 host up · rank 0 not there yet"


def test_a_look_at_the_hosts_has_no_time_yet() -> None:
    """No process of the start's own exists; the error's table says how long the look took."""
    snapshot = StartSnapshot((RankStart(0, "host0"), RankStart(1, "host1")), 0.0, "looking at 2 hosts")
    assert format_start_text(snapshot) == "mhjax · starting 2 ranks · looking at 2 hosts"
    assert format_failed_start(snapshot, "failed") == "mhjax · the start of 2 ranks failed"


def test_a_takeover_starts_nothing() -> None:
    """The ranks are there, and live on where it fails."""
    snapshot = StartSnapshot((RankStart(0, "host0", "ready"), RankStart(1, "host1", "spawned")), 3.0, is_attach=True)
    assert (
        format_start_text(snapshot)
        == "mhjax · taking over 2 ranks · 3.0 s · rank 0 ready · rank 1 in a cell, or silent"
    )
    failed = format_failed_start(snapshot, "was broken off")
    assert failed.startswith("mhjax · taking over 2 ranks was broken off after 3.0 s · ")


def test_a_guard_that_is_not_there_is_in_plain_sight() -> None:
    """Never silently off."""
    summary = StartSummary(RANKS, 3.1, "0.10.2", "unavailable (no hook)")
    assert "guard: unavailable (no hook)" in format_summary_text(summary)
    assert "guard: unavailable (no hook)" in StrictPage(format_summary_html(summary)).visible


def test_a_start_leaves_its_summary_alone() -> None:
    """One display from the first phase to the summary."""
    screen = RecordingScreen()
    with StartDisplay(screen, uid="s") as shown:
        shown.update(SNAPSHOT)
        shown.update(SNAPSHOT)
        shown.finish(SUMMARY)
    assert screen.names == ["show", "replace", "replace"]
    assert "ready in 3.1 s" in screen.acts[-1][1]["text/html"]


def test_a_start_that_fails_leaves_the_last_phases() -> None:
    """No bar stays that no longer moves."""
    screen = RecordingScreen()
    shown = StartDisplay(screen, uid="s")
    shown.update(SNAPSHOT)
    with pytest.raises(RuntimeError), shown:
        raise RuntimeError
    page = screen.acts[-1][1]["text/html"]
    assert "<progress" not in page
    assert "the start of 4 ranks failed after 1.2 s" in page
    assert "rank 3 not there yet" in page


def test_a_terminal_follows_the_start_and_keeps_the_summary() -> None:
    """The lines of the ranks are drawn anew in one place."""
    screen = RecordingScreen(terminal=True)
    with StartDisplay(screen, uid="s") as shown:
        shown.update(SNAPSHOT)
        shown.update(SNAPSHOT)
        shown.finish(SUMMARY)
    (region,) = screen.regions
    assert [("rank 3" in text, region.closed) for text in region.texts] == [(True, True)] * 2
    assert screen.names == ["show"]


def test_a_start_that_fails_leaves_on_a_terminal_how_far_each_rank_was() -> None:
    """As in a notebook."""
    screen = RecordingScreen(terminal=True)
    shown = StartDisplay(screen, uid="s")
    shown.update(SNAPSHOT)
    with pytest.raises(KeyboardInterrupt), shown:
        raise KeyboardInterrupt
    assert screen.regions[0].closed
    text = screen.acts[-1][1]["text/plain"]
    assert text.startswith("mhjax · the start of 4 ranks was broken off after 1.2 s · ")
    assert "rank 3 not there yet" in text


def test_a_file_gets_the_summary_alone() -> None:
    """Progress would only scroll."""
    screen = RecordingScreen(rich=False)
    with StartDisplay(screen, uid="s") as shown:
        shown.update(SNAPSHOT)
        shown.finish(SUMMARY)
    assert screen.names == ["show"]


def test_a_progress_line_becomes_its_outcome() -> None:
    """One display, with a bar that goes with the line; a file gets the outcome alone."""
    screen, terminal = RecordingScreen(), RecordingScreen(rich=False)
    for each in (screen, terminal):
        line = ProgressLine(each, uid="s")
        line.update("replaying cell 1 of <4>", 0.0)
        line.update("replaying cell 3 of <4>", 0.5)
        line.finish("replayed")
    assert screen.names == ["show", "replace", "replace"]
    page = screen.acts[1][1]["text/html"]
    assert "replaying cell 3 of &lt;4&gt;" in page
    assert 'value="0.500"' in page
    assert "<progress" not in screen.acts[-1][1]["text/html"]
    assert [act[1]["text/plain"] for act in terminal.acts] == ["replayed"]


def test_the_queue_of_a_scheduler_is_in_the_line() -> None:
    """While hosts wait for it no rank has a phase to show: where they stand is shown instead."""
    standing = "Slurm job 8 is PENDING (Priority), number 2 of 2 that wait in <debug>"
    snapshot = StartSnapshot((RankStart(0, "host0"), RankStart(1, "host1")), 61.0, standing)
    assert format_start_text(snapshot) == f"mhjax · starting 2 ranks · 1 min 1 s · {standing}"
    assert standing in StrictPage(format_start_html(snapshot)).visible


def test_other_machines_are_named() -> None:
    """The label that every view uses, and the machine's own name beside it; how they were reached is in the line."""
    ranks = (RankStart(0, "host0", "ready", 7, 1, "node<7>"),)
    summary = StartSummary(ranks, 3.1, "0.10.2", "lockstep", "GPU", "by slurm")
    heading, row = format_summary_text(summary).splitlines()
    assert heading.startswith("mhjax · 1 rank × 1 GPU device by slurm · jax")
    assert row == "  host0 node<7> rank 0 pid 7 1 device"
    assert "host0 node<7> rank 0" in StrictPage(format_summary_html(summary)).visible
