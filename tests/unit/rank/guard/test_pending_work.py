"""The unfinished results of local programs, with arrays that become ready when the test says so."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from mhnb.core.messages import RunCell
from mhnb.rank.guard.launch_recorder import LaunchRecorder
from mhnb.rank.guard.pending_work import LocalArrays, poll_pauses_s
from tests.unit.rank.guard.test_launch_recorder import FakeArray, FakeJax, Sleeper, note


class LocalArray(FakeArray):
    """An array that counts how often it is polled."""

    poll_count = 0

    def is_ready(self) -> bool:
        self.poll_count += 1
        return super().is_ready()


def test_wait_ends_when_the_last_array_is_ready() -> None:
    """The wait polls again until every array is ready."""
    array = LocalArray()
    sleeper = Sleeper(lambda: setattr(array, "ready", True))
    assert LocalArrays(lambda: [[LocalArray(ready=True), array]], sleeper).wait() is None
    assert sleeper.count == 200


def test_wait_does_not_sleep_for_ready_arrays() -> None:
    """The wait does not sleep for no array, for ready ones or for deleted ones."""
    deleted = LocalArray()
    deleted.deleted = True
    sleeper = Sleeper()
    for arrays in ([], [LocalArray(ready=True)], [deleted]):
        assert LocalArrays(partial(list, [arrays]), sleeper).wait() is None
    assert sleeper.count == 0


def test_failure_of_the_oldest_array_is_returned_once() -> None:
    """Of a chain of failures the first is returned, by the wait in which it arose and by no other."""
    first, second = LocalArray(failure=ValueError("first")), LocalArray(failure=ValueError("second"))

    def fail() -> None:
        first.ready = second.ready = True

    work = LocalArrays(lambda: [[second, first]], Sleeper(fail))
    assert str(work.wait()) == "first"
    assert work.wait() is None


def test_failure_before_the_wait_is_not_returned() -> None:
    """A failure from before the wait is not returned, because the cell may have met and handled it."""
    assert LocalArrays(lambda: [[LocalArray(ready=True, failure=ValueError("dealt with"))]], Sleeper()).wait() is None


def test_abandoned_array_does_not_delay_later_cells() -> None:
    """An array that waits for a collective that never ends is abandoned for good; a newer one is waited for."""
    stuck, later = LocalArray(), LocalArray()
    arrays = [stuck]
    sleeper = Sleeper(lambda: setattr(later, "ready", True))
    work = LocalArrays(lambda: [arrays], sleeper)
    work.wait(limit_s=0.0)
    assert sleeper.count == 0
    # All arrays that were polled with it have been deleted, so it is polled again.
    arrays[:] = [later, stuck]
    work._polled.clear()
    assert work.wait() is None
    assert sleeper.count == 200


def test_older_arrays_are_not_polled_again() -> None:
    """Of many arrays only the new ones are polled, even if the newest one has been deleted."""
    arrays = [LocalArray(ready=True) for _ in range(1000)]
    work = LocalArrays(lambda: [arrays], Sleeper())
    work.wait()
    new = LocalArray(ready=True)
    arrays.insert(0, new)
    work.wait()
    assert (new.poll_count, sum(array.poll_count for array in arrays[1:])) == (1, 1000)
    del arrays[0], new
    arrays.insert(0, LocalArray(ready=True))
    work.wait()
    assert sum(array.poll_count for array in arrays[1:]) <= 1001


def test_platforms_are_polled_separately() -> None:
    """Platforms are polled separately: what is known of the CPU's arrays says nothing about a GPU's."""
    near, far = [LocalArray(ready=True)], [LocalArray(ready=True)]
    sleeper = Sleeper(lambda: setattr(far[0], "ready", True))
    work = LocalArrays(lambda: [near, far], sleeper)
    work.wait()
    far.insert(0, LocalArray())
    work.wait()
    assert sleeper.count == 200


def test_cell_that_starts_nothing_lists_no_arrays() -> None:
    """`pass` lists no arrays; any cell that could call something does, and showing a value can."""
    calls: list[int] = []

    def list_none() -> list[list[LocalArray]]:
        calls.append(1)
        return []

    work = LocalArrays(list_none)
    for source, expected in (
        ("pass", 0),
        (" pass \n", 0),
        (" x \n", 1),
        ("", 0),
        ("f()", 1),
        ("x + y", 1),
        ("x\ny", 1),
        ("import m", 1),
    ):
        calls.clear()
        work.begin_cell(RunCell(1, 1, source))
        work.wait()
        assert len(calls) == expected, source


def test_interrupt_ends_the_wait() -> None:
    """KeyboardInterrupt leaves the wait, and the next wait has the same arrays."""
    array = LocalArray()

    def interrupt() -> None:
        raise KeyboardInterrupt

    work = LocalArrays(lambda: [[array]], Sleeper(interrupt))
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    array.ready, array.failure = False, None
    work.wait(limit_s=0.0)
    assert [ref() for ref in work._abandoned] == [array]


def test_recorder_waits_for_launches_and_local_arrays() -> None:
    """A launch's failure is raised first, but local arrays are waited for too; without it, their failure is raised."""
    local = LocalArray(failure=ValueError("local"))
    recorder = LaunchRecorder(FakeJax(local), sleep=Sleeper(lambda: setattr(local, "ready", True)))
    note(recorder, [FakeArray(ready=True, failure=ValueError("launch"))])
    with pytest.raises(ValueError, match="launch"):
        recorder.wait_all()
    assert local.ready
    local.ready = False
    recorder = LaunchRecorder(FakeJax(local), sleep=Sleeper(lambda: setattr(local, "ready", True)))
    with pytest.raises(ValueError, match="local"):
        recorder.wait_all()


def test_abandoned_launch_abandons_local_arrays() -> None:
    """Local arrays may depend on an abandoned launch, so they are abandoned at once."""
    local = LocalArray()
    recorder = LaunchRecorder(FakeJax(local), sleep=Sleeper())
    note(recorder, [FakeArray()])
    recorder.wait_all(limit_s=0.01)
    assert [ref() for ref in recorder.local_arrays._abandoned] == [local]
    assert recorder.end_cell()[1] == 1


@pytest.mark.other_python
@pytest.mark.slow
def test_jax_lists_the_newest_first() -> None:
    """Older arrays are not polled again because of this order of JAX's list, which holds for arrays of other threads too."""
    program = """
import threading, numpy as np
from mhnb.rank.jax_private import list_arrays
assert list_arrays() == []
import jax
assert list_arrays() == []
kept = [jax.device_put(np.float32(0))]
def put(i):
    kept.append(jax.device_put(np.float32(i)))
for i in range(1, 20):
    thread = threading.Thread(target=put, args=(i,))
    thread.start()
    thread.join()
    put(-i)
del kept[7]
assert all(a is b for a, b in zip(*list_arrays(), reversed(kept), strict=True))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def test_long_wait_polls_rarely_and_ends_promptly() -> None:
    """JAX leaks a little per poll: an hour has some ten thousand. A pause is a fiftieth of the time waited before it."""
    waited_s, polls, pauses = 0.0, 0, poll_pauses_s()
    while waited_s < 3600:
        pause_s = next(pauses)
        assert pause_s <= 2e-3 + waited_s / 50
        waited_s, polls = waited_s + pause_s, polls + 1
    assert polls < 50_000


def test_local_work_of_an_interrupted_cell_is_noted() -> None:
    """Local work that an interrupted cell leaves is noted, because it may never end, and delays what is launched there later.

    The next cell, which leaves nothing, has no note.
    """
    recorder = LaunchRecorder(FakeJax(LocalArray()), sleep=Sleeper(), clock=iter(range(1000)).__next__)
    recorder.begin_cell(RunCell(1, 1, "f(x)"))
    recorder.wait_all(1.5)
    _, (note_,) = recorder.close_cell(1, "interrupted")
    assert "still running on their own devices" in note_
    assert "%mhjax restart --replay" in note_
    recorder.begin_cell(RunCell(1, 2, "1 + 1"))
    recorder.wait_all()
    assert recorder.close_cell(2, "ok")[1] == []
