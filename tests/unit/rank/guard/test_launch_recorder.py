"""The record of launches, with arrays that become ready when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mhnb.core.guard.launch_report import LaunchPlace
from mhnb.core.hang_report import PendingLaunch
from mhnb.core.messages import RunCell
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launch_recorder import Launch, LaunchRecorder, NoJax


class FakeArray:
    """An array that is ready, deleted or failed when the test says so."""

    def __init__(self, *, ready: bool = False, failure: Exception | None = None) -> None:
        self.ready, self.failure, self.deleted = ready, failure, False

    def is_ready(self) -> bool:
        if self.deleted:
            raise RuntimeError("Array has been deleted")
        return self.ready

    def is_deleted(self) -> bool:
        return self.deleted

    def block_until_ready(self) -> None:
        assert self.is_ready(), "would block"
        if self.failure is not None:
            raise self.failure


class FakeJax(NoJax):
    """Has the live arrays that the test wants, and counts how often effects are waited for."""

    def __init__(self, *arrays: FakeArray) -> None:
        self.arrays, self.finish_count = arrays, 0

    def list_arrays(self) -> Sequence[Sequence[Any]]:
        return [self.arrays]

    def finish_effects(self) -> None:
        self.finish_count += 1


class Sleeper:
    """Stands in for time.sleep: counts its calls, and does what the test wants meanwhile."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.count, self._then = 0, then

    def __call__(self, pause_s: float) -> None:
        assert pause_s <= 0.1
        self.count += 1
        if self.count == 200:
            self._then()


def note(
    recorder: LaunchRecorder, outputs: Sequence[object] | None = (), fingerprint: str = "a", line: int = 1
) -> Launch:
    """Record a launch on ranks 0 and 1."""
    return recorder.record_launch(fingerprint, f"jit({fingerprint})", (0, 1), line, outputs)


def test_equal_launches_share_a_row() -> None:
    """Launches of one program from one line make one row with a count; another line or program starts a new row."""
    recorder = LaunchRecorder()
    for fingerprint, line in [("a", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 2)]:
        note(recorder, (), fingerprint, line)
    rows, abandoned = recorder.end_cell()
    assert [(r.fingerprint, r.line, r.count) for r in rows] == [("a", 1, 2), ("a", 2, 1), ("b", 2, 1), ("a", 2, 1)]
    assert abandoned == 0


def test_cell_begins_without_launches() -> None:
    """Launches of one cell are not reported again by the next."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray()])
    recorder.end_cell()
    recorder.begin_cell()
    recorder.wait_all()
    assert recorder.end_cell() == ([], 0)


def test_launches_are_kept_until_the_next_cell_has_ended() -> None:
    """A cell's number, rows and programs are kept; a launch between two cells belongs to the next one."""
    recorder = LaunchRecorder()
    recorder.begin_cell(RunCell(1, 4, "", "lockstep"))
    recorder.record_launch("a", "jit(a)", (0, 1), 1, (), program="A")
    rows, _ = recorder.end_cell()
    recorder.record_launch("b", "jit(b)", (0, 1), None, (), program="B")
    assert (recorder.ended_seq, recorder.ended_rows, recorder.ended_programs) == (4, rows, {"a": "A"})
    recorder.begin_cell(RunCell(1, 5, "", "lockstep"))
    assert recorder.ended_programs == {"a": "A"}
    recorder.end_cell()
    assert (recorder.ended_seq, recorder.ended_programs) == (5, {"b": "B"})


def test_wait_ends_when_all_arrays_are_ready() -> None:
    """The wait polls again until the last array is ready."""
    array = FakeArray()
    sleeper = Sleeper(lambda: setattr(array, "ready", True))
    recorder = LaunchRecorder(sleep=sleeper)
    note(recorder, [FakeArray(ready=True)])
    note(recorder, [array])
    recorder.wait_all()
    assert sleeper.count == 200
    assert recorder.end_cell()[1] == 0


def test_wait_without_launches_does_not_sleep() -> None:
    """A cell that launched nothing ends at once, and still waits for prints from compiled code."""
    sleeper, jax = Sleeper(), FakeJax()
    LaunchRecorder(jax, sleep=sleeper).wait_all()
    assert (sleeper.count, jax.finish_count) == (0, 1)


def test_interrupt_ends_the_wait() -> None:
    """KeyboardInterrupt leaves the wait at once, and what still runs counts as abandoned."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    recorder = LaunchRecorder(sleep=Sleeper(interrupt))
    note(recorder, [FakeArray()])
    with pytest.raises(KeyboardInterrupt):
        recorder.wait_all()
    assert recorder.end_cell()[1] == 1


def test_limited_wait_gives_up() -> None:
    """With a limit the wait returns, and what did not end in time counts as abandoned."""
    recorder = LaunchRecorder(sleep=Sleeper())
    note(recorder, [FakeArray()])
    recorder.wait_all(limit_s=0.5)
    assert recorder.end_cell()[1] == 1


@pytest.mark.parametrize(
    ("launches", "left"),
    [
        ([("a", 1, {"ready": True}), ("b", 2, {}), ("c", 3, {})], LaunchPlace("jit(b)", 2)),
        ([("a", 1, {}), ("b", 2, {"ready": True})], LaunchPlace("jit(a)", 1)),
        ([("a", 1, {"ready": True, "failure": RuntimeError("Gloo failed")}), ("b", 2, {})], LaunchPlace("jit(a)", 1)),
        ([("a", 1, {}), ("b", 2, {"ready": True, "failure": RuntimeError("Gloo failed")})], LaunchPlace("jit(a)", 1)),
        ([("a", 1, {"ready": True})], None),
    ],
)
def test_first_abandoned_launch_is_reported(launches: list[tuple[str, int, Any]], left: LaunchPlace | None) -> None:
    """The first abandoned launch is reported by its row: others may have ended after it, and a failed one is not kept."""
    recorder = LaunchRecorder()
    for fingerprint, line, state in launches:
        note(recorder, [FakeArray(**state)], fingerprint, line)
    assert recorder.close_cell(1, "interrupted")[0].abandoned_launch == left
    assert recorder.close_cell(2, "ok")[0].abandoned_launch is None


def test_agreed_launch_is_reported_if_no_other_is_abandoned() -> None:
    """An agreed launch ends by itself, unless another rank has failed in it: then this rank was blocked in it."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray()]).is_agreed = True
    note(recorder, [FakeArray()], "b", 2).is_agreed = True
    assert recorder.close_cell(1, "interrupted")[0].abandoned_launch == LaunchPlace("jit(a)", 1)


def test_failed_launch_is_raised() -> None:
    """The wait raises the error of the first failed launch, and the launch counts as abandoned."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray(ready=True, failure=RuntimeError("Gloo all-reduce failed"))])
    note(recorder, [FakeArray(ready=True, failure=RuntimeError("later"))])
    with pytest.raises(RuntimeError, match="Gloo"):
        recorder.wait_all()
    assert recorder.end_cell()[1] == 2


@pytest.mark.parametrize(("launches_after", "abandoned"), [(0, 0), (1, 1)])
def test_failure_in_a_callback(launches_after: int, abandoned: int) -> None:
    """A callback that raised in this rank's last launch abandons nothing; before another launch it might."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray(ready=True, failure=RuntimeError("CpuCallback error calling callback"))])
    for _ in range(launches_after):
        note(recorder, [FakeArray(ready=True)])
    assert recorder.count_failed() == 1
    with pytest.raises(RuntimeError, match="CpuCallback"):
        recorder.wait_all()
    assert recorder.end_cell()[1] == abandoned


def test_donated_arrays_are_ignored() -> None:
    """A donated array cannot be polled: its launch is judged by another of its arrays, or has ended."""
    recorder = LaunchRecorder()
    donated, loss = FakeArray(), FakeArray()
    note(recorder, [donated, loss])
    note(recorder, [donated_too := FakeArray()])
    donated.deleted = donated_too.deleted = True
    assert recorder.end_cell()[1] == 1


def test_long_loops_keep_no_arrays() -> None:
    """Of 10,000 launches that end one by one, no arrays are kept, even if one old launch never ends."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray()])
    most = 0
    for _ in range(10_000):
        note(recorder, [FakeArray(ready=True)])
        most = max(most, len(recorder._running))
    assert most < 100
    assert recorder.end_cell()[1] == 1


def test_refused_launch_is_withdrawn() -> None:
    """A launch that the runtime refused before anything ran does not count."""
    recorder = LaunchRecorder()
    note(recorder, [])
    recorder.withdraw(note(recorder, None))
    recorder.withdraw(note(recorder, None, "b"))
    rows, abandoned = recorder.end_cell()
    assert [(r.fingerprint, r.count) for r in rows] == [("a", 1)]
    assert abandoned == 0


def test_launch_of_an_ended_cell_is_not_withdrawn() -> None:
    """A launch that is refused in a thread after its interrupted cell has ended leaves the cell's report unchanged."""
    recorder = LaunchRecorder()
    launched = note(recorder, None)
    rows, _ = recorder.end_cell()
    recorder.withdraw(launched)
    assert [(r.fingerprint, r.count) for r in rows] == [("a", 1)]
    assert recorder.end_cell() == ([], 0)


@pytest.mark.parametrize("moment", ["is_ready", "block_until_ready"])
def test_array_donated_during_a_poll_has_not_failed(moment: str) -> None:
    """An array that a user's thread donates between two checks has not failed; the other output shows if the launch runs."""
    recorder, donated, other = LaunchRecorder(), FakeArray(ready=True), FakeArray()
    original = getattr(donated, moment)

    def donate() -> object:
        donated.deleted = True
        return original()

    setattr(donated, moment, donate)
    note(recorder, [other, donated])
    assert recorder.count_running() == 0
    assert recorder.sample_launches()[1] is not None
    other.ready = True
    recorder.wait_all()
    assert recorder.end_cell()[1] == 0


def test_interrupted_dispatch_is_abandoned() -> None:
    """After an interrupt between dispatch and record the result is unknown: it is not waited for, and is abandoned."""
    recorder = LaunchRecorder()
    note(recorder, None).fail_dispatch(KeyboardInterrupt())
    recorder.wait_all()
    assert recorder.end_cell()[1] == 1


def test_line_is_the_innermost_of_the_cell() -> None:
    """The recorded line is that of the running cell's innermost frame; library frames and older cells may be below it."""
    recorder = LaunchRecorder()
    recorder.begin_cell(RunCell(1, 2, ""))
    scope: dict[str, Any] = {"find": recorder.find_line}
    exec(compile("def old(f):\n\n\n    return f()", "<cell 1>", "exec"), scope)
    exec(compile("def new():\n    return old(find)\nline = new()", "<cell 2>", "exec"), scope)
    assert scope["line"] == 2
    assert recorder.find_line() is None


def test_each_cell_has_its_own_lines() -> None:
    """Which file is the running cell's is determined again for each cell."""
    recorder = LaunchRecorder()
    recorder.begin_cell(RunCell(1, 1, ""))
    code = {name: compile("line = find()", name, "exec") for name in ("<cell 1>", "<cell 2>")}
    scope: dict[str, Any] = {"find": recorder.find_line}
    exec(code["<cell 1>"], scope)
    assert scope["line"] == 1
    recorder.begin_cell(RunCell(1, 2, ""))
    exec(code["<cell 1>"], scope)
    assert scope["line"] is None


def test_sample_counts_launches_and_finds_the_oldest() -> None:
    """A sample has counts by participants, and the oldest unfinished launch with its number; the record stays unchanged."""
    recorder = LaunchRecorder()
    note(recorder, [FakeArray(ready=True)])
    note(recorder, [stuck := FakeArray()], line=2)
    recorder.record_launch("5b", "jit(sub)", (0, 2), 3, [FakeArray()])
    note(recorder, [FakeArray()], line=4)
    counts, pending = recorder.sample_launches()
    assert counts == {(0, 1): 3, (0, 2): 1}
    assert pending == PendingLaunch("jit(a)", (0, 1), 2, 2)
    stuck.ready = True
    assert recorder.sample_launches()[1] == PendingLaunch("jit(sub)", (0, 2), 3, 1)
    assert recorder.sample_launches()[0] == counts
    assert sum(row.count for row in recorder.end_cell()[0]) == 4
    assert recorder.sample_launches() == ({}, None)


def test_sample_sees_a_dispatch_in_progress() -> None:
    """A launch that blocks during its dispatch is pending; one that was refused is not counted."""
    recorder = LaunchRecorder()
    launched = note(recorder, None)
    assert recorder.sample_launches() == ({(0, 1): 1}, PendingLaunch("jit(a)", (0, 1), 1, 1))
    recorder.withdraw(launched)
    assert recorder.sample_launches() == ({}, None)


def test_sample_accepts_a_donated_array() -> None:
    """The cell's thread may donate an array between two checks of the sampling thread."""
    array = FakeArray()
    array.is_deleted = lambda: False  # type: ignore[method-assign]
    array.deleted = True
    recorder = LaunchRecorder()
    note(recorder, [array])
    assert recorder.sample_launches()[1] is None


def test_sample_of_a_growing_record_counts_each_row_once() -> None:
    """Each row is counted once, even after a launch was withdrawn from a row that was counted."""
    recorder = LaunchRecorder()
    launches = [note(recorder, (), fingerprint) for fingerprint in "aabba"]
    assert recorder.sample_launches()[0] == {(0, 1): 5}
    note(recorder, (), "c")
    refused = note(recorder, None, "c")
    assert recorder.sample_launches()[0] == {(0, 1): 7}
    recorder.withdraw(refused)
    assert recorder.sample_launches()[0] == {(0, 1): 6}
    assert len(launches) == 5


def test_launch_that_would_meet_an_abandoned_one_is_refused() -> None:
    """A launch that would meet an abandoned one is refused until that one ends; launches on other ranks never are."""
    recorder, abandoned = LaunchRecorder(sleep=Sleeper()), FakeArray(ready=False)
    recorder.begin_cell(RunCell(1, 4, "", "lockstep"))
    note(recorder, [abandoned])
    assert recorder.end_cell()[1] == 1
    recorder.begin_cell(RunCell(1, 5, "", "lockstep"))
    with pytest.raises(OrderMismatch, match=r"waiting in .* of cell 4\. jit\(g\) could join it") as caught:
        recorder.abandoned.check("jit(g)", (1, 2))
    assert "nothing was launched" in str(caught.value)
    recorder.abandoned.check("jit(g)", (2, 3))
    abandoned.ready = True
    recorder.abandoned.check("jit(g)", (1, 2))


def test_agreed_launch_is_not_abandoned() -> None:
    """An agreed launch is not abandoned: the others make it too, it ends by itself, and the next collectives follow it."""
    recorder, slow = LaunchRecorder(sleep=Sleeper()), FakeArray(ready=False)
    recorder.begin_cell(RunCell(1, 4, "", "lockstep"))
    note(recorder, [slow]).is_agreed = True
    recorder.wait_all(0.01)
    report, notes = recorder.close_cell(4, "interrupted")
    assert (report.running_count, report.abandoned_count) == (1, 0)
    assert notes == [
        "some of its launches are still running; all ranks made them, and the next collective waits for them"
    ]
    recorder.begin_cell(RunCell(1, 5, "", "lockstep"))
    recorder.abandoned.check("jit(g)", (2, 3))
    polls = iter([False] * 100 + [True] * 100)
    slow.is_ready = lambda: next(polls)  # type: ignore[method-assign]
    recorder.abandoned.check("jit(g)", (0, 1))
    assert next(polls)


def test_interrupted_wait_abandons_earlier_launches() -> None:
    """Launches of an interrupted wait may hang: they are abandoned with their cell, and what would meet them is refused."""
    recorder, hung = LaunchRecorder(sleep=Sleeper()), FakeArray(ready=False)
    recorder.begin_cell(RunCell(1, 4, "", "lockstep"))
    note(recorder, [hung]).is_agreed = True
    recorder.wait_all(0.01)
    recorder.close_cell(4, "interrupted")
    recorder.begin_cell(RunCell(1, 5, "", "lockstep"))
    polls = 0

    def interrupt() -> bool:
        nonlocal polls
        polls += 1
        if polls > 3:
            hung.is_ready = lambda: False  # type: ignore[method-assign]
            raise KeyboardInterrupt
        return False

    hung.is_ready = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        recorder.abandoned.check("jit(g)", (0, 1))
    report, _ = recorder.close_cell(5, "interrupted")
    assert (report.abandoned_count, report.abandoned_launch) == (1, LaunchPlace("jit(a)", 1, 4))
    recorder.begin_cell(RunCell(1, 6, "", "lockstep"))
    with pytest.raises(OrderMismatch, match="of cell 4"):
        recorder.abandoned.check("jit(g)", (0, 1))
    assert recorder.close_cell(6, "error")[0].abandoned_count == 0
