"""`mhnb.log` on a rank: what is a value, when an array is read, and what is sent. A real capture, without ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mhnb
from mhnb.core.metrics import CellMetrics, Metrics
from mhnb.core.output.events import MetricPoints, OutputEvent
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.rank.execution.capture import Capture
from mhnb.rank.metrics import MetricRecorder
from tests.support.cell_process import CellProcess
from tests.support.source import ROOT

SEQ = 3


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    """A capture in the middle of a cell; it does not replace the streams of this process."""
    made = Capture(tmp_path / "log", (tmp_path / "1", tmp_path / "2"), tmp_path / "offsets")
    made.begin(SEQ)
    yield made
    made._log.close()
    made._offsets.close()


@pytest.fixture
def recorder(capture: Capture) -> MetricRecorder:
    """A recorder of that cell."""
    capture.metrics = made = MetricRecorder(capture)
    return made


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """The shell and the runner of a rank in a process of their own."""
    with CellProcess(tmp_path_factory.mktemp("rank")) as process:
        yield process


def add(recorder: MetricRecorder, step: Any, *, same: bool = False, **values: Any) -> None:
    """Log a point."""
    recorder.add(step, values, is_same=same)


def received(events: list[OutputEvent]) -> Metrics:
    """Return what the notebook makes of events."""
    metrics = CellMetrics(SEQ, (0,))
    metrics.add(0, events)
    return metrics.snapshot(done=True)


def at_end(recorder: MetricRecorder) -> Metrics:
    """Return what is sent at the end of the cell."""
    recorder.collect(SEQ, has_ended=True)
    return received(recorder.take(SEQ))


class Lazy:
    """Stands in for an array that is not computed yet: it has what the recorder asks of a JAX array."""

    def __init__(self, array: jax.Array) -> None:
        self.array, self.ready, self.read_count = array, False, 0

    def is_deleted(self) -> bool:
        return self.array.is_deleted()

    def is_ready(self) -> bool:
        return self.ready

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        assert self.ready, "it was read before it was computed"
        self.read_count += 1
        return np.asarray(self.array)


# -- values


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5), (np.int8(-3), -3.0), (np.bool_(1), 1.0), (np.array(2), 2.0),
        (np.float16(0.25), 0.25), (float("inf"), float("inf")), (10**300, 1e300),
        (jnp.float32(1.5), 1.5), (jnp.bfloat16(2.5), 2.5), (jnp.int32(7), 7.0), (jnp.array(True), 1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_are_values(recorder: MetricRecorder, value: Any, number: float) -> None:
    """Numbers of Python, NumPy and JAX arrive as floats."""
    add(recorder, 1, a=value)
    assert [point.value for point in at_end(recorder)] == [number]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "a is None; expected a number"),
        ("0.5", "a is the text '0.5'; expected a number"),
        ([1.0], "a is of type builtins.list"),
        (Fraction(1, 2), "a is of type fractions.Fraction"),
        (1j, "a is of type builtins.complex"),
        (10**400, "a is a whole number of more than 308 digits; expected a smaller one"),
        pytest.param(10**5000, "a is a whole number of more than 308 digits; expected a smaller one", id="5000 digits"),
        (np.timedelta64(5, "s"), "a is of type numpy.timedelta64; expected a number"),
        (np.str_("1.5"), "a is of type numpy.str_; expected a number"),
        (np.array("1.5"), "a is of type numpy.ndarray; expected a number"),
        (np.ones((2, 3)), "a has shape (2, 3); expected one number\n  Fix: log a.mean(), or one element of it"),
        (jnp.ones(1), "a has shape (1,); expected one number\n  Fix: log a.mean(), or one element of it"),
        (np.complex64(1), "a is a complex number"),
        (jnp.complex64(1), "a is a complex number; expected a real one\n  Fix: log abs(a)"),
        (np.array("x"), "a is of type numpy.ndarray"),
        (jax.random.key(0), "a is of type"),
    ],
    ids=str,
)
def test_other_values_are_refused(recorder: MetricRecorder, value: Any, said: str) -> None:
    """The error names the metric, what it is and what was expected, and nothing of the call is logged."""
    with pytest.raises(InvalidRequest) as refused:
        add(recorder, 1, good=1.0, a=value)
    assert said in str(refused.value)
    assert not at_end(recorder)


def test_tracer_is_refused_with_the_way_out(recorder: MetricRecorder) -> None:
    """In a function that JAX traces there is no value yet."""
    with pytest.raises(InvalidRequest, match=r"(?s)loss is a tracer.*Fix: return loss from the function"):
        jax.jit(lambda x: add(recorder, 1, loss=x))(1.0)


@pytest.mark.parametrize("step", [3, 3.0, np.int32(3), np.float64(3), np.array(3), jnp.int32(3)], ids=repr)
def test_steps_are_numbers(recorder: MetricRecorder, step: Any) -> None:
    """A step may be any number, also one of JAX, as in a training state."""
    add(recorder, step, a=1)
    assert [point.step for point in at_end(recorder)] == [3]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (float("nan"), "step nan; expected a finite number"),
        (-float("inf"), "step -inf; expected a finite number"),
        (2**60, "expected a number from -2**53 to 2**53"),
        pytest.param(10**5000, "the step is too large; expected a number from -2**53 to 2**53", id="5000 digits"),
        ("3", "step is the text '3'; expected a number, such as mhnb.log(10, loss=loss)"),
        (True, "step is of type builtins.bool"),
        (None, "step is None"),
        (jnp.ones(2), "step has shape (2,)"),
    ],
    ids=str,
)
def test_other_steps_are_refused(recorder: MetricRecorder, step: Any, said: str) -> None:
    """The error has the step and what was expected."""
    with pytest.raises(InvalidRequest) as refused:
        add(recorder, step, a=1)
    assert said in str(refused.value)


def test_no_value_is_refused(recorder: MetricRecorder) -> None:
    """The error has a line to paste."""
    with pytest.raises(InvalidRequest, match=r"mhnb.log got no value\n  Fix: mhnb.log\(step, loss=loss\)"):
        add(recorder, 1)


def test_array_of_numpy_is_read_at_once(recorder: MetricRecorder) -> None:
    """The cell may change it after the call."""
    value = np.array(1.0)
    add(recorder, 1, a=value)
    value[...] = 2.0
    assert [point.value for point in at_end(recorder)] == [1.0]


# -- arrays that are not computed yet


def test_array_is_read_only_when_it_is_ready(recorder: MetricRecorder) -> None:
    """Points behind one that is not computed wait too, so that all ranks keep the same of many; none is read before."""
    lazy = Lazy(jnp.float32(0.5))
    for step, value in enumerate((1.0, lazy, 2.0)):
        recorder._cells.setdefault(SEQ, recorder._add_cell(SEQ)).unread.append((step, {"a": value}, False))
    recorder.collect(SEQ)
    assert [point.value for point in received(recorder.take(SEQ))] == [1.0]
    lazy.ready = True
    recorder.collect(SEQ)
    assert [point.value for point in received(recorder.take(SEQ))] == [0.5, 2.0]
    assert lazy.read_count == 1


def test_array_that_is_never_ready_holds_up_nothing_at_the_end(recorder: MetricRecorder) -> None:
    """The end of the cell takes the others; the array follows as late output once it is computed."""
    lazy = Lazy(jnp.float32(0.5))
    for step, value in enumerate((lazy, 2.0)):
        recorder._add_cell(SEQ).unread.append((step, {"a": value}, False))
    assert [point.value for point in at_end(recorder)] == [2.0]
    assert recorder.take_late(running=0) == {}
    lazy.ready = True
    (events,) = recorder.take_late(running=0).values()
    assert [point.value for point in received(events)] == [0.5]
    assert recorder.take_late(running=0) == {}


def test_donated_array_is_a_note(recorder: MetricRecorder) -> None:
    """An array that a program took before it was read is counted, with the reason; the other value of the call is logged."""
    array = jnp.float32(1)
    add(recorder, 4, a=array, b=2.0)
    array.delete()
    metrics = at_end(recorder)
    assert metrics.names == ("b",)
    (note,) = metrics.all_notes
    assert note.startswith("a: 1 point missing on rank 0, first at step 4: a program took the array by donation")


def test_failed_computation_is_a_note(recorder: MetricRecorder) -> None:
    """An array whose computation has failed does not fail the cell's end."""

    class Broken(Lazy):
        def __array__(self, *arguments: Any, **options: Any) -> Any:
            raise RuntimeError("INTERNAL: out of luck\nmore")

    broken = Broken(jnp.float32(1))
    broken.ready = True
    recorder._add_cell(SEQ).unread.append((1, {"a": broken}, False))
    (note,) = at_end(recorder).all_notes
    assert note.endswith("its computation failed (RuntimeError: INTERNAL: out of luck)")


def test_reading_is_allowed_where_the_user_forbids_copies(recorder: MetricRecorder) -> None:
    """JAX's guard of transfers is for the user's program. It has no effect on CPUs, so the array looks at its setting."""
    settings: list[str] = []

    class Watching(Lazy):
        def __array__(self, *arguments: Any, **options: Any) -> Any:
            settings.append(jax.config.jax_transfer_guard)  # type: ignore[attr-defined]
            return super().__array__(*arguments, **options)

    watching = Watching(jnp.float32(1))
    watching.ready = True
    recorder._add_cell(SEQ).unread.append((1, {"a": watching}, False))
    with jax.transfer_guard("disallow"):
        assert [point.value for point in at_end(recorder)] == [1.0]
    assert settings == ["allow"]


def test_arrays_are_released(recorder: MetricRecorder, capture: Capture) -> None:
    """After the end of the launches nothing of the user's is referred to, so the guard sees what the cell itself keeps."""
    array = jnp.float32(1)
    before = sys.getrefcount(array)
    add(recorder, 1, a=array)
    assert sys.getrefcount(array) > before
    capture.release_metrics()
    assert sys.getrefcount(array) == before


# -- bounds


def test_unread_points_are_bounded(recorder: MetricRecorder) -> None:
    """If arrays are not computed, the oldest of very many points are left out, and counted."""
    lazy = Lazy(jnp.float32(0.5))
    recorder._add_cell(SEQ).unread.append((0, {"a": lazy}, False))
    for step in range(1, 10_101):
        add(recorder, step, a=1.0)
    assert len(recorder._cells[SEQ].unread) <= 10_000
    lazy.ready = True
    assert any("was not computed before" in note for note in at_end(recorder).all_notes)


def test_metrics_of_a_cell_are_bounded(recorder: MetricRecorder) -> None:
    """Beyond 256 names there is a note."""
    for at in range(300):
        recorder.add(1, {f"m{at}": 1.0}, is_same=False)
    metrics = at_end(recorder)
    assert len(metrics.names) == 256
    assert "44 points missing" in metrics.all_notes[0]


def test_long_name_is_shortened(recorder: MetricRecorder) -> None:
    """A name may be any text; a message does not grow with it."""
    recorder.add(1, {"x" * 10_000: 1.0}, is_same=False)
    (name,) = at_end(recorder).names
    assert len(name) < 300


def test_threads_log_into_their_cell(recorder: MetricRecorder) -> None:
    """Points of several threads all arrive."""

    def log_many(name: str) -> None:
        for step in range(500):
            recorder.add(step, {name: 1.0}, is_same=False)

    threads = [threading.Thread(target=log_many, args=(f"m{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    recorder.collect(SEQ)
    for thread in threads:
        thread.join()
    assert len(at_end(recorder)) == 2000


def test_points_of_a_late_thread_are_kept_beside_many_cells(recorder: MetricRecorder) -> None:
    """What a thread of an earlier cell has logged is not given up before it was sent, however many cells log after it."""
    recorder._add_cell(1).unread.append((0, {"late": 1.0}, False))
    for seq in range(2, 30):
        recorder._add_cell(seq)
    assert {seq: len(received(events)) for seq, events in recorder.take_late(29).items()} == {1: 1}
    assert len(recorder._cells) < 12
    recorder._add_cell(30)
    assert 1 not in recorder._cells


# -- in a process


def test_outside_a_rank_the_error_says_where_to_call_it() -> None:
    """In a notebook's own process there is no cell that could show the points."""
    code = "import mhnb\ntry:\n    mhnb.log(1, a=1)\nexcept mhnb.MhnbError as error:\n    print(error)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == (
        "mhnb.log was called in a process that is not a rank, so no cell has its points\n"
        "  Fix: call it in a cell that begins with %%mhjax, or in the source of cluster.run(...)\n"
    )


def test_nothing_is_imported_before_the_first_call(tmp_path: Path) -> None:
    """A cell without metrics pays nothing: the module is loaded by the first call."""
    with CellProcess(tmp_path) as own_rank:
        result = own_rank.run("import sys, mhnb; print('mhnb.rank.metrics' in sys.modules); mhnb.log(1, a=2)")
    assert result.stdout == "False\n"
    assert [point.value for point in received(result.events)] == [2.0]


def test_points_come_with_the_end_of_the_cell(rank: CellProcess) -> None:
    """Also after an error, and after the cell cleared its output."""
    result = rank.run(
        "from IPython.display import clear_output\nimport mhnb\nmhnb.log(1, a=2)\nclear_output()\nmhnb.log(2, a=3)\n1 / 0"
    )
    assert result.ended.outcome == "error"
    assert [point.value for point in received(result.events)] == [2.0, 3.0]


def test_points_come_while_the_cell_runs(rank: CellProcess) -> None:
    """A long cell sends what it has logged so far."""
    result = rank.run("import mhnb, time\nmhnb.log(1, a=2)\ntime.sleep(0.4)\nmhnb.log(2, a=3)")
    assert any(isinstance(event, MetricPoints) for event in result.live)
    assert [point.value for point in received(result.events)] == [2.0, 3.0]


def test_forked_child_is_refused(rank: CellProcess) -> None:
    """A child of the rank cannot send; the error names the way."""
    result = rank.run("""
import mhnb, os
mhnb.log(1, a=2)
pid = os.fork()
if pid == 0:
    try:
        mhnb.log(2, a=3)
    except mhnb.MhnbError as error:
        print(str(error).splitlines()[0])
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert "mhnb.log was called in a process that the rank has forked" in result.stdout
    assert [point.value for point in received(result.events)] == [2.0]


def test_public_name_is_the_function() -> None:
    """`mhnb.log` is loaded on first use."""
    assert "log" in mhnb.__all__
    with pytest.raises(MhnbError):
        mhnb.log(os.getpid(), a=1)
