"""The profile and the lines of a traced cell: what is recorded, read and given up."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.core.trace import TracedCollective, TraceEvent
from mhnb.rank import trace
from mhnb.rank.trace import (
    CellTrace,
    LaunchedCollectives,
    LineRecorder,
    begin_trace,
    find_trace,
    read_profile,
    release_trace,
)

CELL = "<cell 3>"


def is_cell_file(name: str) -> bool:
    """Return whether a file is the cell's."""
    return name == CELL


def run(source: str, file: str = CELL) -> None:
    """Run source as a cell."""
    exec(compile(source, file, "exec"), {})


def record(*steps: Callable[[], Any]) -> LineRecorder:
    """Record lines while steps run."""
    recorder = LineRecorder(is_cell_file)
    recorder.start()
    try:
        for step in steps:
            step()
    finally:
        recorder.stop()
    return recorder


@pytest.mark.other_python
def test_lines_of_the_cell_alone_are_recorded() -> None:
    """Each line at the top level as often as it ran; not those of functions, of other files or of other threads."""
    source = "def f():\n    return 1\nfor i in range(2):\n    f()\nx = 1"

    def in_thread() -> None:
        thread = threading.Thread(target=run, args=("y = 1",))
        thread.start()
        thread.join()

    before_ns = monotonic_ns()
    recorder = record(lambda: run(source), lambda: run("z = 1", "model.py"), in_thread)
    assert [line for line, _ in recorder.lines] == [1, 3, 4, 3, 4, 3, 5]
    times = [before_ns, *(time for _, time in recorder.lines), monotonic_ns()]
    assert times == sorted(times)
    assert recorder.problem == ""
    # A second cell is recorded like the first, and afterwards nothing is.
    assert [line for line, _ in record(lambda: run(source)).lines] == [1, 3, 4, 3, 4, 3, 5]
    count = len(recorder.lines)
    run(source)
    assert len(recorder.lines) == count


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="Python 3.12 and later observe lines by sys.monitoring")
def test_lines_are_left_to_a_debugger() -> None:
    """Where a trace function is set, it stays, and the timeline says that it has no lines."""

    def tracer(*_: object) -> None:
        """Trace nothing."""

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        recorder = record(lambda: run("x = 1"))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert recorder.lines == []
    assert "a debugger or a coverage tool" in recorder.problem


def test_number_of_recorded_lines_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop at the top level of a cell does not fill the memory."""
    monkeypatch.setattr(trace, "MAX_LINES", 10)
    assert len(record(lambda: run("for i in range(100):\n    x = i")).lines) == 10


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="as above")
def test_trace_function_of_the_cell_is_kept() -> None:
    """A cell that sets a trace function keeps it, and the timeline says from where its lines are missing."""
    before = sys.gettrace()
    try:
        recorder = record(lambda: run("import sys\nsys.settrace(print)\nx = 1"))
        assert sys.gettrace() is print
    finally:
        sys.settrace(before)
    assert [line for line, _ in recorder.lines] == [1, 2, 3]
    assert "from where the cell set a trace function" in recorder.problem


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="as above")
def test_interrupt_that_ends_the_recording_is_named() -> None:
    """An interrupt may be raised while a line is recorded; the timeline does not say that the cell set a trace function."""
    recorded: list[str] = []

    def interrupt_at_third_line(name: str) -> bool:
        recorded.append(name)
        if recorded.count(CELL) > 3:
            raise KeyboardInterrupt
        return is_cell_file(name)

    recorder = LineRecorder(interrupt_at_third_line)
    recorder.start()
    with pytest.raises(KeyboardInterrupt):
        run("x = 1\ny = 2\nz = 3")
    assert sys.gettrace() is None
    recorder.stop()
    assert [line for line, _ in recorder.lines] == [1, 2]
    assert "from where an interrupt" in recorder.problem


TOOLS = """
import sys, cProfile
from mhnb.rank.trace import LineRecorder
def record(source):
    recorder = LineRecorder(lambda name: name == "<cell 3>")
    recorder.start()
    exec(compile(source, "<cell 3>", "exec"), {})
    recorder.stop()
    return recorder
own = record("import cProfile\\nwith cProfile.Profile(): x = 1\\ny = 2")
assert [line for line, _ in own.lines] == [1, 2, 3, 2] or [line for line, _ in own.lines][:2] == [1, 2], own.lines
if hasattr(sys, "monitoring"):
    freed = record("import sys\\nfor tool in (3, 4):\\n    if sys.monitoring.get_tool(tool): sys.monitoring.free_tool_id(tool)")
    assert "freed mhnb's tool" in freed.problem, freed.problem
    for tool in (3, 4):
        sys.monitoring.use_tool_id(tool, "other")
    assert record("x = 1").problem == "lines are not in the timeline: other tools observe them"
    assert sys.monitoring.get_tool(3) == sys.monitoring.get_tool(4) == "other"
"""


@pytest.mark.other_python
def test_profilers_of_the_cell_work(tmp_path: Path) -> None:
    """Python's own profiler runs in a traced cell, and a cell that takes mhnb's tool away is no error."""
    del tmp_path
    done = subprocess.run([sys.executable, "-c", TOOLS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cell_before_jax_is_initialised_has_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler would initialise JAX, which waits for all ranks."""
    monkeypatch.setattr(trace, "backend_is_initialized", lambda: False)
    monkeypatch.setattr(trace, "number_devices", dict)
    own = begin_trace(3, is_cell_file)
    run("x = 1\ny = 2")
    own.end()
    own.finish()
    read = find_trace(3).read()
    assert read.problem.startswith("JAX was not initialised when the cell began, so there is no profile")
    assert [line for line, _ in read.lines] == [1, 2]
    assert read.began_ns == read.recorded_until_ns < read.ended_ns
    assert (read.events, read.profile_nbytes) == ((), 0)
    release_trace(3)
    with pytest.raises(LookupError, match="no trace of cell 3 any more"):
        find_trace(3)


def test_last_traces_are_kept_until_they_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may trace the next cell meanwhile; of many, the oldest is forgotten."""
    monkeypatch.setattr(trace, "backend_is_initialized", lambda: False)
    made = [begin_trace(seq, is_cell_file) for seq in range(1, trace.MAX_TRACES + 2)]
    for each in reversed(made):
        each.end()
    assert find_trace(2) is made[1]
    with pytest.raises(LookupError, match="cell 1 any more"):
        find_trace(1)


@pytest.mark.parametrize("fails", ["at the start", "at the end"])
def test_profiler_that_fails_is_a_problem_of_the_trace_alone(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Neither an error at the start of the profiler nor one at its end is the cell's."""
    monkeypatch.setattr(trace, "backend_is_initialized", lambda: True)

    def fail(*_: object) -> Any:
        raise RuntimeError("CUPTI is in use\nby another")

    monkeypatch.setattr(trace, "start_profiler", fail if fails == "at the start" else lambda _: (fail, fail))
    own = CellTrace(3, is_cell_file)
    run("x = 1")
    own.end()
    own.finish()
    read = own.read()
    what = "no profile" if fails == "at the start" else "JAX's profiler is still watched"
    assert read.problem.startswith(f"{what}: RuntimeError: CUPTI is in use")
    assert [line for line, _ in read.lines] == [1]
    assert read.recorded_until_ns == read.began_ns


PROFILE = """
import sys, time
from pathlib import Path
import jax, jax.numpy as jnp
from jax.profiler import start_trace
from mhnb.rank import trace
f = jax.jit(lambda x: jnp.sin(x) @ x)
f(jnp.ones((64, 64))).block_until_ready()
def run(code):
    own = trace.CellTrace(3, lambda _: False)
    code()
    f(jnp.ones((64, 64))).block_until_ready()
    own.end()
    own.finish()
    return own.read(), own.data
def load():
    with jax.profiler.TraceAnnotation("load batch"):
        time.sleep(0.01)
read, data = run(load)
operations = [event for event in read.events if event.kind == "compute"]
assert operations, read
assert {event.device for event in operations} == {0}
assert any(event.program.startswith("jit_") for event in operations)
for event in read.events:
    assert read.began_ns - 1_000_000 < event.start_ns < read.ended_ns + 1_000_000, (event, read.began_ns, read.ended_ns)
loads, = [event for event in read.events if event.name == "load batch"]
assert loads.kind == "host" and loads.duration_ns > 9_000_000
assert read.profile_nbytes == len(data) > 1000
assert read.recorded_until_ns == read.ended_ns
assert read.problem.endswith("the launches of the cell are not recorded"), read.problem
# Whatever starts a profile takes the place of this one, by whichever name, and stopping one that was not started is an error as ever.
folder = Path(sys.argv[1])
def whole():
    with jax.profiler.trace(folder / "a"):
        f(jnp.ones((64, 64))).block_until_ready()
def by_old_name():
    start_trace(folder / "b")
    jax.profiler.stop_trace()
def stop_only():
    try:
        jax.profiler.stop_trace()
    except RuntimeError:
        return
    raise AssertionError
for code in (whole, by_old_name):
    read, _ = run(code)
    assert read.problem.startswith("the cell started a profile of its own"), read.problem
    assert read.began_ns < read.recorded_until_ns < read.ended_ns
read, _ = run(stop_only)
assert read.problem.endswith("are not recorded") and read.events, read.problem
assert len(list(folder.rglob("*.xplane.pb"))) == 2
# One of before goes on.
start_trace(folder / "c")
read, data = run(load)
assert read.problem.startswith("no profile: "), read.problem
assert (data, read.events) == (b"", ()) and read.recorded_until_ns == read.began_ns
jax.profiler.stop_trace()
assert len(list(folder.rglob("*.xplane.pb"))) == 3
"""


@pytest.mark.other_python
@pytest.mark.slow
def test_profile_is_read_by_the_monotonic_clock(tmp_path: Path) -> None:
    """Operations, the user's own annotations and their times, from a real profile."""
    done = subprocess.run([sys.executable, "-c", PROFILE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _line(name: str, *events: tuple[str, float, float, dict[str, Any]]) -> SimpleNamespace:
    made = [SimpleNamespace(name=n, start_ns=s, duration_ns=d, stats=stats.items()) for n, s, d, stats in events]
    return SimpleNamespace(name=name, events=made)


def _read(
    monkeypatch: pytest.MonkeyPatch, *planes: SimpleNamespace, ordinals: dict[int, int] | None = None
) -> list[Any]:
    """Read planes as `ProfileData` has them. The platforms that this machine lacks have no other test."""
    import jax.profiler

    class Data:
        """Stands for a profile."""

        @staticmethod
        def from_serialized_xspace(_: bytes) -> SimpleNamespace:
            """Return the planes."""
            return SimpleNamespace(planes=planes)

    monkeypatch.setattr(jax.profiler, "ProfileData", Data)
    return read_profile(b"", time_ns() - monotonic_ns(), LaunchedCollectives(), ordinals or {})


def _plane(name: str, *lines: SimpleNamespace, stats: dict[str, Any] | None = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, lines=lines, stats=(stats or {}).items())


def test_planes_of_gpus_and_tpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a GPU's streams by their instruction; of a TPU the line of operations alone, not the sums of them."""
    gpu = _plane(
        "/device:GPU:1",
        _line("Stream #14(Compute)", ("ampere_sgemm", 5.0, 9.0, {"hlo_op": "dot.3", "hlo_module": "jit_f"})),
        _line("Stream #20(Collective)", ("ncclDevKernel", 7.0, 4.0, {"hlo_op": "all-reduce-start.1"})),
        _line("Stream #3(MemcpyD2H)", ("MemcpyD2H", 20.0, 1.0, {})),
    )
    tpu = _plane(
        "/device:TPU:0",
        _line("XLA Modules", ("jit_f(123)", 0.0, 50.0, {})),
        _line("XLA Ops", ("%fusion.7 = f32[8]{0} fusion(...)", 1.0, 2.0, {}), ("%all-gather.2 = ...", 3.0, 2.0, {})),
    )
    events = _read(monkeypatch, gpu, tpu)
    seen = [(event.device, event.kind, event.name) for event in events]
    assert seen == [
        (1, "compute", "dot.3"),
        (1, "collective", "all-reduce-start.1"),
        (1, "compute", "MemcpyD2H"),
        (0, "compute", "fusion.7"),
        (0, "collective", "all-gather.2"),
    ]
    assert events[0].program == "jit_f"


def test_devices_of_a_cpu_rank_are_numbered_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of CPUs has a device's number among all; the threads of XLA that have no operation are left out."""
    host = _plane(
        "/host:CPU",
        _line(
            "tf_XLAEigen/1", ("add.1", 1.0, 2.0, {"hlo_op": "add.1", "device_ordinal": 4097}), ("Wait", 0.0, 9e6, {})
        ),
        _line(
            "python",
            ("PjitFunction(f)", 3.0, 5000.0, {}),
            ("short", 4.0, 10.0, {}),
            ("end: add.1", 5.0, 9e6, {}),
            # Small programs run on the thread that launches them.
            ("mul.1", 6.0, 20.0, {"hlo_op": "mul.1", "device_ordinal": 4096}),
        ),
    )
    events = _read(monkeypatch, host, ordinals={4096: 0, 4097: 1})
    assert [(event.device, event.name) for event in events] == [(1, "add.1"), (-1, "PjitFunction(f)"), (0, "mul.1")]


@pytest.mark.parametrize(
    ("name", "is_collective", "is_known_as"),
    [
        ("all-reduce.2", True, True),
        ("all-gather-done.1", True, True),
        ("psum_invariant.7", True, True),
        ("ppermute.3", True, False),
        ("all_to_all", True, False),
        ("psum_of_squares.1", False, False),
        ("send_buffer.2", False, False),
        ("fusion.4", False, False),
    ],
)
def test_collectives_are_told_by_their_program(name: str, is_collective: bool, is_known_as: bool) -> None:  # noqa: FBT001
    """XLA names an instruction of shard_map by JAX's operation; where the program is known, it decides."""
    assert LaunchedCollectives().is_collective("jit_f", name) is is_collective
    known = TracedCollective("jit_f", "psum_invariant.7", "all-reduce f32[8]", "", {})
    assert LaunchedCollectives((known,), frozenset(["jit_f"])).is_collective("jit_f", name) is is_known_as


def test_programs_of_one_name_are_merged_to_what_they_have_in_common() -> None:
    """Two programs that JAX gives the same name: an instruction keeps its operation if it is the same, and no more."""
    over_x = TracedCollective("jit_f", "all-reduce.1", "all-reduce f32[8] over x", "m.py:3", {"0": (0, "0-1")})
    over_y = TracedCollective("jit_f", "all-reduce.1", "all-reduce f32[4] over y", "m.py:9", {"0": (0, "0-3")})
    gather = TracedCollective("jit_f", "one.2", "all-gather f32[4]", "", {})
    other = TracedCollective("jit_f", "one.2", "all-reduce f32[4]", "", {})
    first, second = trace._merge_variants([(over_x, gather), (over_y, other)])
    assert (first.label, first.place, first.groups, first.is_ambiguous) == ("all-reduce", "", {}, True)
    assert (second.label, second.is_ambiguous) == ("collective", True)


def test_late_events_are_left_out_of_a_long_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events are kept, so that runs of collectives can still be counted; from the first that is left out nothing is recorded."""
    monkeypatch.setattr(trace, "MAX_EVENTS", 2)
    monkeypatch.setattr(trace, "backend_is_initialized", lambda: True)
    monkeypatch.setattr(trace, "start_profiler", lambda _: (lambda: b"profile", lambda: None))
    monkeypatch.setattr(trace, "number_devices", dict)
    own = CellTrace(3, is_cell_file)
    own.end()
    own.finish()
    began_ns = own.read().began_ns
    made = [TraceEvent("compute", f"op.{start}", began_ns + start, 1, 0) for start in (9, 1, 5)]
    monkeypatch.setattr(trace, "read_profile", lambda *_: made)
    read = own.read()
    assert [event.name for event in read.events] == ["op.1", "op.5"]
    assert (read.dropped_count, read.recorded_until_ns) == (1, min(began_ns + 9, read.ended_ns))
