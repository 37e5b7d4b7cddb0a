"""The progress of a start, and its summary."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from mhnb.core.journal import CellRecord
from mhnb.core.replay import ReplayPlan, ReplayStep
from mhnb.types import PHASES, DeviceRef, Phase, RankInfo, StartProgress
from mhnb.view.html import name_hosts
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.progress import ProgressLine, ReplayLine, StartDisplay, TransferLine
from mhnb.view.reports.start import StartSummary, build_start, build_summary, format_failed_start
from tests.support.view_samples import RecordingScreen, StrictPage


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent the warm-up, because its thread would import modules that other tests remove."""
    monkeypatch.setattr("mhnb.view.progress.warm_up", lambda: None)
    # No test may depend on how long its own lines take.
    monkeypatch.setattr(StartDisplay, "_clock", staticmethod(lambda: 0.0))


def make_rank(rank: int, phase: Phase | None = None, *, host_is_up: bool = False) -> RankInfo:
    """Return a rank of a start on this machine."""
    return RankInfo(rank, f"host{rank}", phase=phase, host_is_up=host_is_up)


RANKS = tuple(
    RankInfo(
        rank,
        f"host{rank}",
        pid=4711 + rank,
        phase="ready",
        devices=(DeviceRef(rank, 0), DeviceRef(rank, 1)),
        platform="cpu",
    )
    for rank in range(4)
)
SUMMARY = StartSummary(RANKS, 3.1, "0.10.2", "lockstep", log_dir="/l")
PROGRESS = StartProgress((*RANKS[:2], make_rank(2, "jax"), make_rank(3)), 1.2)


def test_progress_is_one_line_with_each_phase() -> None:
    """The furthest phase comes first; a rank without a process is named too."""
    assert print_text(build_start(PROGRESS)) == (
        "mhjax · starting 4 ranks · 1.2 s · ranks 0-1 ready · rank 2 jax · rank 3 waiting for host"
    )


@pytest.mark.parametrize("count", [4, 40])
def test_progress_names_every_rank_in_html(count: int) -> None:
    """A few ranks have a line each; many are grouped by phase."""
    progress = StartProgress(tuple(make_rank(r, PHASES[r % 7]) for r in range(count)), 1.0)
    page = StrictPage(print_html(build_start(progress)))
    assert not page.unclosed
    assert all(phase in page.visible for phase in PHASES[: min(count, 7)])


def test_summary_has_a_line_and_the_ranks() -> None:
    """The wording and the order of the line are fixed."""
    assert print_text(build_summary(SUMMARY)).splitlines() == [
        "mhjax · 4 ranks × 2 CPU devices on this machine · jax 0.10.2 · guard lockstep · ready in 3.1 s        logs /l",
        "  " + "   ".join(f"host{rank} rank {rank} pid {4711 + rank} 2 devices" for rank in range(4)),
    ]


def test_ranks_of_the_summary_are_in_columns() -> None:
    """Each rank's label has the width of the longest, so that the columns do not jump where numbers get another digit."""
    ranks = tuple(RankInfo(rank, f"host{rank}", pid=4711 + rank, platform="cpu") for rank in range(16))
    html = print_html(build_summary(dataclasses.replace(SUMMARY, ranks=ranks)))
    assert html.count("min-width:20em;font-variant-numeric:tabular-nums") == 16


def test_preflight_duration_is_in_the_line() -> None:
    """The duration is beside that of the start; there is no preflight on this machine, so none is mentioned."""
    with_preflight = print_text(build_summary(dataclasses.replace(SUMMARY, preflight_s=0.26))).splitlines()[0]
    assert " · guard lockstep · preflight 0.26 s · ready in 3.1 s" in with_preflight
    assert "preflight" not in print_text(build_summary(SUMMARY))


def test_progress_shows_which_hosts_have_reported() -> None:
    """Ranks start once all hosts have reported, so the missing host is the one that delays them."""
    ranks = (make_rank(0), make_rank(1, host_is_up=True), make_rank(2, "spawned"))
    text = print_text(build_start(StartProgress(ranks, 1.2)))
    assert text == "mhjax · starting 3 ranks · 1.2 s · rank 2 spawned · rank 1 host up · rank 0 waiting for host"


def test_preflight_is_named() -> None:
    """While the hosts are checked, the line says so instead of the ranks' phases, which have not begun."""
    progress = StartProgress((make_rank(0), make_rank(1)), 1.5, status="checking 2 hosts")
    assert print_text(build_start(progress)) == "mhjax · starting 2 ranks · 1.5 s · checking 2 hosts"
    assert (
        format_failed_start(progress, "failed") == "mhjax · the start of 2 ranks failed after 1.5 s · checking 2 hosts"
    )


def test_attach_shows_the_running_ranks() -> None:
    """The ranks already exist, and continue to run if the attach fails."""
    progress = StartProgress((make_rank(0, "ready"), make_rank(1, "spawned")), 3.0, is_takeover=True)
    assert (
        print_text(build_start(progress))
        == "mhjax · attaching to 2 ranks · 3.0 s · rank 0 ready · rank 1 running a cell, or not responding"
    )
    failed = format_failed_start(progress, "was interrupted")
    assert failed.startswith("mhjax · attaching to 2 ranks was interrupted after 3.0 s · ")


def test_unavailable_guard_is_shown() -> None:
    """The guard is never off without a message."""
    summary = StartSummary(RANKS, 3.1, "0.10.2", "unavailable (no hook)")
    assert "guard: unavailable (no hook)" in print_text(build_summary(summary))
    assert "guard: unavailable (no hook)" in StrictPage(print_html(build_summary(summary))).visible


def test_only_the_summary_remains_after_a_start() -> None:
    """One display shows every phase and then the summary."""
    screen = RecordingScreen()
    with StartDisplay(screen, uid="s") as shown:
        shown.update(PROGRESS)
        shown.update(PROGRESS)
        shown.finish(SUMMARY)
    assert screen.call_names == ["show", "replace", "replace"]
    assert "ready in 3.1 s" in screen.calls[-1][1]["text/html"]


def test_failed_start_shows_the_last_phases() -> None:
    """No progress bar remains that no longer moves."""
    screen = RecordingScreen()
    shown = StartDisplay(screen, uid="s")
    shown.update(PROGRESS)
    with pytest.raises(RuntimeError), shown:
        raise RuntimeError
    page = screen.calls[-1][1]["text/html"]
    assert "<progress" not in page
    assert "the start of 4 ranks failed after 1.2 s" in page
    assert "rank 3 waiting for host" in page


def test_terminal_redraws_progress_and_keeps_the_summary() -> None:
    """The ranks' lines are redrawn in one region."""
    screen = RecordingScreen(terminal=True)
    with StartDisplay(screen, uid="s") as shown:
        shown.update(PROGRESS)
        shown.update(PROGRESS)
        shown.finish(SUMMARY)
    (region,) = screen.regions
    assert [("rank 3" in text, region.closed) for text in region.texts] == [(True, True)] * 2
    assert screen.call_names == ["show"]


def test_failed_start_shows_the_last_phases_on_a_terminal() -> None:
    """The last phases remain, as in a notebook."""
    screen = RecordingScreen(terminal=True)
    shown = StartDisplay(screen, uid="s")
    shown.update(PROGRESS)
    with pytest.raises(KeyboardInterrupt), shown:
        raise KeyboardInterrupt
    assert screen.regions[0].closed
    text = screen.calls[-1][1]["text/plain"]
    assert text.startswith("mhjax · the start of 4 ranks was interrupted after 1.2 s · ")
    assert "rank 3 waiting for host" in text


def test_file_gets_only_the_summary() -> None:
    """Progress would only add lines to the file."""
    screen = RecordingScreen(rich=False)
    with StartDisplay(screen, uid="s") as shown:
        shown.update(PROGRESS)
        shown.finish(SUMMARY)
    assert screen.call_names == ["show"]


def test_a_progress_line_becomes_its_outcome() -> None:
    """A bar accompanies the line on one display; a file gets only the outcome."""
    screen, terminal = RecordingScreen(), RecordingScreen(rich=False)
    for each in (screen, terminal):
        line = ProgressLine(each, uid="s")
        line.update("replaying cell 1 of <4>", 0.0)
        line.update("replaying cell 3 of <4>", 0.5)
        line.finish("replayed")
    assert screen.call_names == ["show", "replace", "replace"]
    page = screen.calls[1][1]["text/html"]
    assert "replaying cell 3 of &lt;4&gt;" in page
    assert 'value="0.500"' in page
    assert "<progress" not in screen.calls[-1][1]["text/html"]
    assert [act[1]["text/plain"] for act in terminal.calls] == ["replayed"]


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of transfer lines."""
    new = Clock()
    monkeypatch.setattr(TransferLine, "_clock", new)
    return new


def test_short_transfer_prints_its_outcome_only(clock: Clock) -> None:
    """A transfer that ends within half a second has no line of progress."""
    screen = RecordingScreen()
    with TransferLine("pulling x", screen, uid="s") as line:
        clock.now_s = 0.4
        line.report(2**20, 2**22)
        line.end("x · float32[8], 32 B")
    assert screen.calls == []
    assert screen.written == ["x · float32[8], 32 B"]


@pytest.mark.parametrize("rich", [True, False])
def test_long_transfer_has_a_line_that_becomes_its_outcome(clock: Clock, rich: bool) -> None:  # noqa: FBT001
    """From half a second on, one display or one line of a terminal shows the bytes, five times a second; then the outcome."""
    screen = RecordingScreen(terminal=not rich)
    with TransferLine("pulling x", screen, uid="s") as line:
        for now_s in (0.1, 0.6, 0.7, 0.85):
            clock.now_s = now_s
            line.report(int(now_s * 10) * 2**20, 2**24)
        line.end("x · float32[8], 32 B")
    outcome = screen.calls[-1][1]
    assert outcome["text/plain"] == "x · float32[8], 32 B"
    assert "<progress" not in outcome["text/html"]
    seen = ["mhjax · pulling x · 6.0 MiB of 16.0 MiB", "mhjax · pulling x · 8.0 MiB of 16.0 MiB"]
    assert screen.written == []
    if rich:
        assert screen.call_names == ["show", "replace", "replace"]
        assert [data["text/plain"] for _, data, _ in screen.calls[:2]] == seen
        assert 'value="0.500"' in screen.calls[1][1]["text/html"]
    else:
        assert screen.call_names == ["show"]
        assert screen.regions[0].texts == seen
        assert screen.regions[0].closed


@pytest.mark.parametrize(("error", "word"), [(ValueError, "stopped"), (KeyboardInterrupt, "interrupted")])
def test_failed_transfer_leaves_how_far_it_came(clock: Clock, error: type[BaseException], word: str) -> None:
    """A transfer that fails leaves a line that no longer moves; the error itself follows it."""
    screen = RecordingScreen()

    def fail() -> None:
        with TransferLine("pushing x to ranks 0-3", screen, uid="s") as line:
            clock.now_s = 1.0
            line.report(2**20, 2**21)
            raise error

    with pytest.raises(error):
        fail()
    last = screen.calls[-1][1]
    assert last["text/plain"] == f"mhjax · pushing x to ranks 0-3 · 1.0 MiB of 2.0 MiB · {word}"
    assert "<progress" not in last["text/html"]


def test_time_of_a_replay_goes_on_while_a_cell_runs() -> None:
    """The line has the time since the replay began, once it has lasted a second; what has not changed is not shown again."""
    times = iter([100.0, 100.2, 100.4, 103.2, 103.21, 104.3, 104.4])
    screen = RecordingScreen()
    line = ReplayLine(screen, uid="s", clock=lambda: next(times))
    plan = ReplayPlan((1,), steps=tuple(CellRecord(1, seq, "f()") for seq in (7, 11)))
    line.tick()
    line.begin(ReplayStep("cell 7", 0, plan))
    for _ in range(4):
        line.tick()
    line.begin(ReplayStep("cell 11", 1, plan))
    assert [data["text/plain"] for _, data, _ in screen.calls] == [
        "mhjax · replaying cell 7 of 11",
        "mhjax · replaying cell 7 of 11 · 3.2 s",
        "mhjax · replaying cell 7 of 11 · 4.3 s",
        "mhjax · replaying cell 11 of 11 · 4.4 s",
    ]
    assert screen.call_names == ["show", "replace", "replace", "replace"]


def test_scheduler_queue_position_is_in_the_line() -> None:
    """Ranks have no phase while hosts are queued, so the position in the queue is shown."""
    status = "Slurm job 8 is PENDING (Priority), number 2 of 2 waiting in <debug>"
    progress = StartProgress((make_rank(0), make_rank(1)), 61.0, status=status)
    assert print_text(build_start(progress)) == f"mhjax · starting 2 ranks · 1 min 1 s · {status}"
    assert status in StrictPage(print_html(build_start(progress))).visible


def test_remote_hosts_are_named() -> None:
    """A host has the label that every view uses and its own name; the line says how hosts were reached."""
    ranks = (RankInfo(0, "host0", "node<7>", 7, phase="ready", devices=(DeviceRef(0, 0),), platform="gpu"),)
    summary = StartSummary(ranks, 3.1, "0.10.2", "lockstep", "by slurm")
    heading, row = print_text(build_summary(summary)).splitlines()
    assert heading.startswith("mhjax · 1 rank × 1 GPU device by slurm · jax")
    assert row == "  host0 node<7> rank 0 pid 7 1 device"
    html = print_html(build_summary(summary))
    assert StrictPage(html).visible == "mhjax · 1 rank × 1 GPU device · ready in 3.1 s"
    assert "by slurm · jax 0.10.2 · guard lockstep" in html
    assert "host0 node&lt;7&gt; · rank 0 · pid 7" in html
    unusual = print_html(build_summary(dataclasses.replace(summary, guard="unavailable (old jax)")))
    assert (
        StrictPage(unusual).visible == "mhjax · 1 rank × 1 GPU device · guard: unavailable (old jax) · ready in 3.1 s"
    )


def test_this_machine_is_not_named() -> None:
    """Simulated hosts all have this machine's name, which would tell nothing; it is shown if another machine is beside it."""
    own = [RankInfo(rank, f"host{rank}", socket.gethostname()) for rank in range(2)]
    assert name_hosts(own) == {0: "host0", 1: "host1"}
    assert name_hosts([own[0], RankInfo(1, "host1", "node7")]) == {0: f"host0 {socket.gethostname()}", 1: "host1 node7"}
