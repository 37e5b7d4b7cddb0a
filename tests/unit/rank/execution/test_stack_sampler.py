"""A rank reports where it is while its main thread is busy or stuck, and a short cell is never sampled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from mhnb.core.messages import CellEnded, RankStatus, ThreadStatus
from mhnb.rank.execution.stack_sampler import _find_call, read_call
from tests.support.cell_process import CellProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A process that the tests of this module share."""
    with CellProcess(tmp_path_factory.mktemp("rank")) as process:
        yield process


def receive_status(rank: CellProcess, seq: int, wanted: Callable[[RankStatus], bool]) -> RankStatus:
    """Return a cell's first status that meets a condition.

    Earlier ones are left out: on a busy machine a cell may be sampled before it has reached the line that is looked for.
    """
    status = rank.receive(lambda m: isinstance(m, RankStatus) and m.seq == seq and wanted(m))
    assert isinstance(status, RankStatus)
    return status


def stays_at(line: int) -> Callable[[RankStatus], bool]:
    """Make the condition that the cell was at a line for the whole time that a sample measures."""
    return lambda status: status.line == line and status.unchanged_s >= 1


def sample_cell(
    rank: CellProcess, source: str, wanted: Callable[[RankStatus], bool] | None = None, count: int = 1
) -> list[RankStatus]:
    """Begin a cell, return the statuses that it sends once it is where it is `wanted`, and end it.

    If `wanted` is not given, that is its last line.
    """
    seq = rank.begin(source)
    wanted = wanted or stays_at(len(source.splitlines()))
    statuses = [receive_status(rank, seq, wanted) for _ in range(count)]
    rank.interrupt()
    rank.receive(lambda m: isinstance(m, CellEnded) and m.seq == seq)
    # On a slow machine other statuses come before these, and before the end.
    rank.unread = [m for m in rank.unread if not isinstance(m, RankStatus)]
    rank.run("0")
    assert not [m for m in rank.unread if isinstance(m, RankStatus)], "a status came after the cell's end"
    return statuses


STUCK = {
    "sleep": ("import time\ntime.sleep(60)", ("sleep", "sleep", 2)),
    "sleep by another name": ("from time import sleep as nap\nnap(60)", ("blocked", "nap", 2)),
    "over several lines": ("import time\nx = [\n  1, time.sleep(\n    60)]", ("sleep", "sleep", 3)),
    "lock": ("import threading\nlock = threading.Lock(); lock.acquire()\nlock.acquire()", ("lock", "acquire", 3)),
    "with": ("import threading\nlock = threading.Lock(); lock.acquire()\nwith lock:\n    pass", ("lock", "with", 3)),
    "queue": ("import queue\nqueue.Queue().get()", ("lock", "get", 2)),
    "pipe": ("import os\nr, w = os.pipe()\nos.read(r, 1)", ("io", "read", 3)),
    "await": ("import asyncio\nawait asyncio.Event().wait()", ("lock", "wait", 2)),
    "loop": ("while True:\n    sum(range(100_000))", ("computing", "", 2)),
    "loop in a coroutine": ("import asyncio\nawait asyncio.sleep(0)\nwhile True: sum(range(10_000))", ("computing", "", 3)),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", STUCK)
def test_long_cell_reports_where_it_is(rank: CellProcess, case: str) -> None:
    """What blocks the main thread is derived from its stack, its source text and its processor time."""
    source, (activity, what, line) = STUCK[case]
    # A loop does not stay at one place.
    wanted = (lambda status: status.line == line) if activity == "computing" else stays_at(line)
    (status,) = sample_cell(rank, source, wanted)
    assert (status.activity, status.what, status.user_frame) == (activity, what, "")


@pytest.mark.parametrize(
    ("act", "participants"), [("nap(60)", [0, 1]), ("time.sleep(60)", None), ("while True: sum(range(10_000))", None)]
)
def test_unknown_call_blocked_in_c_may_wait_for_ranks(
    rank: CellProcess, act: str, participants: list[int] | None
) -> None:
    """A launch that C++ has not returned from has no record; a call that is known by its name is not a launch."""
    wanted = (lambda status: status.line == 4) if "while" in act else None
    (status,) = sample_cell(rank, f"import time\nfrom time import sleep as nap\nawaited = [0, 1]\n{act}", wanted)
    rank.run("del awaited")
    assert (status.participants, status.launch_number) == (participants, None)


def test_timed_cell_reports_its_lines(rank: CellProcess) -> None:
    """IPython compiles the code below `%%time` as another file, whose first line is the cell's second."""
    (status,) = sample_cell(rank, "%%time\nimport time\ntime.sleep(60)")
    assert (status.line, status.user_frame) == (3, "")


def test_two_samples_are_a_second_apart(rank: CellProcess) -> None:
    """The second sample reports for how long nothing has changed."""
    first, second = sample_cell(rank, "import time\ntime.sleep(60)", count=2)
    assert second.unchanged_s - first.unchanged_s > 0.9


def test_changed_line_restarts_the_unchanged_time(rank: CellProcess, tmp_path: Path) -> None:
    """The time at earlier lines of the cell does not count."""
    os.mkfifo(tmp_path / "go")
    seq = rank.begin(f"import time\nopen({str(tmp_path / 'go')!r}).read()\ntime.sleep(60)")
    receive_status(rank, seq, lambda status: status.line == 2)
    went_on = time.monotonic()
    (tmp_path / "go").write_text("")
    rank.request_report()
    status = receive_status(rank, seq, lambda status: status.line == 3)
    assert status.unchanged_s <= time.monotonic() - went_on
    rank.interrupt()
    rank.finish(seq)


def test_short_cell_is_not_sampled(rank: CellProcess) -> None:
    """A cell that ends within a second sends no status."""
    began = time.monotonic()
    seq = rank.begin("import time\ntime.sleep(0.7)")
    rank.finish(seq)
    is_short = time.monotonic() - began < 1
    assert not (is_short and [m for m in rank.unread if isinstance(m, RankStatus) and m.seq == seq])


def test_cell_that_is_asked_reports_soon(rank: CellProcess) -> None:
    """Also in its first second, and once for each time it is asked."""
    seq = rank.begin("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    rank.wait_for_output(seq, "begun")
    ages = [0.0]
    for _ in range(4):
        rank.request_report()
        status = receive_status(rank, seq, lambda status: status.line == 3)
        assert status.activity == "sleep"
        ages.append(status.unchanged_s)
    # On a busy machine some of them come late. Without a request none comes within a second of another.
    assert min(later - earlier for earlier, later in pairwise(ages)) < 0.9
    rank.interrupt()
    rank.finish(seq)


def test_function_of_another_file_is_named(rank: CellProcess, tmp_path: Path) -> None:
    """The status has the innermost frame of the user's own files, besides the cell's line."""
    (tmp_path / "shards.py").write_text("import time\n\n\ndef read():\n    time.sleep(60)\n")
    (status,) = sample_cell(rank, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport shards\nshards.read()")
    assert (status.activity, status.line, status.user_frame) == ("sleep", 3, "shards.py:5 read")


THREADS = {
    "join": ("def f():\n    stop.wait()\nt = threading.Thread(target=f); t.start()\nt.join()", ("join", "f", "lock", "wait", 3)),
    "get": ("def f():\n    time.sleep(60)\nthreading.Thread(target=f, name='feed').start()\nqueue.Queue().get()",
            ("get", "feed", "sleep", "sleep", 3)),
    "result": ("def f():\n    stop.wait()\npool = ThreadPoolExecutor(2)\npool.submit(int).result()\npool.submit(f).result()",
               ("result", "ThreadPoolExecutor", "lock", "wait", 3)),
    "wait": ("def f(): stop.wait()\npool = ThreadPoolExecutor(2)\nwait([pool.submit(f)])",
             ("wait", "ThreadPoolExecutor", "lock", "wait", 2)),
    "to_thread": ("def f():\n    time.sleep(60)\nawait asyncio.to_thread(f)",
                  ("run_in_executor", "asyncio", "sleep", "sleep", 3)),
    "as_completed": ("def f(): stop.wait()\npool = ThreadPoolExecutor(2)\nnext(as_completed([pool.submit(f)]))",
                     ("wait", "ThreadPoolExecutor", "lock", "wait", 2)),
    "no user code": ("t = threading.Thread(target=stop.wait, name='bare'); t.start()\nt.join()",
                     ("join", "bare", "lock", "wait", None)),
}  # fmt: skip
IMPORTS = (
    "import asyncio, queue, threading, time; from concurrent.futures import ThreadPoolExecutor, as_completed, wait\n"
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", THREADS)
def test_awaited_thread_is_shown(tmp_path: Path, case: str) -> None:
    """The status has the thread's name and line, because the main thread's own line shows only that it waits."""
    code, (what, name, activity, thread_what, line) = THREADS[case]
    with CellProcess(tmp_path) as rank:
        rank.run("import threading\nstop = threading.Event()")
        (status,) = sample_cell(rank, IMPORTS + code)
        assert (status.what, status.threads) == (what, [ThreadStatus(name, activity, thread_what, line, "")])


def test_threads_of_earlier_cells_and_of_the_rank_are_not_shown(tmp_path: Path) -> None:
    """Threads of earlier cells and of the rank are not known to be a reason why this cell waits."""
    with CellProcess(tmp_path) as rank:
        rank.run("import threading\nstop = threading.Event()\nthreading.Thread(target=stop.wait).start()")
        (status,) = sample_cell(rank, "import time\ntime.sleep(60)")
        assert status.threads == []


def test_code_with_unhashable_constants_is_sampled(rank: CellProcess) -> None:
    """Code objects are compared by identity, because their hash uses their constants and `==` compares them."""
    source = """
import time
def nap():
    time.sleep(60)
class Odd:
    def __eq__(self, other): raise RuntimeError
    __hash__ = None
code = nap.__code__
nap.__code__ = code.replace(co_consts=(*code.co_consts, {}, Odd()))
nap()"""
    for status in sample_cell(rank, source, stays_at(4), count=2):
        assert status.activity == "sleep"


def test_failed_sample_is_reported(tmp_path: Path) -> None:
    """A failed sample reports that nothing is known; only the log has the reason, and the other duties continue."""
    with CellProcess(tmp_path) as rank:
        seq = rank.begin("import psutil, time\nown, psutil.Process = psutil.Process, None\ntime.sleep(60)")
        status = receive_status(rank, seq, lambda status: status.activity == "unseen")
        assert status.line is None
        rank.interrupt()
        result = rank.finish(seq)
        assert (result.ended.outcome, result.stdout, result.stderr) == ("interrupted", "", "")
        assert rank.log.count("internal error in a thread of rank 0") == 1
        assert "TypeError" in rank.log
        (status,) = sample_cell(rank, "psutil.Process = own\ntime.sleep(60)")
        assert status.activity == "sleep"


def called(*_: object) -> str:
    """Return the name of what the caller's frame is calling."""
    return _find_call(sys._getframe(1))


def test_call_is_named_by_its_text() -> None:
    """A call is named by its source text, as an attribute too, and after non-ASCII text, whose positions are in bytes."""
    assert called(list) == "called"
    found = ("ä", called(list))[1]
    assert found == "called"
    assert HasFunction.asked() == "asked"


class HasFunction:
    """Has a function as an attribute."""

    asked = staticmethod(called)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("step(params, batch)", "step"),
        ("await queue.get()", "get"),
        ("np.asarray(jax.jit(f)(x))", "asarray"),
        ("models[0].layers(')')[1].apply(\n    x,  # it\n)", "apply"),
        ("', '.join(names)", "join"),
        ("f(x)(y)", ""),
        ("f(a) + g(b)", ""),
        ("not done(x)", ""),
        ("(a) + (b)", ""),
        ("x.shape", ""),
        ("'open", ""),
        ("", ""),
    ],
)
def test_call_is_read_without_a_parser(expression: str, name: str) -> None:
    """The name is what `ast` would find, because a second thread must not use `ast` in CPython 3.11."""
    assert read_call(expression) == name


def test_sample_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample parses nothing, because that broke the main thread's parse, which renders a JAX traceback for seconds."""
    monkeypatch.setattr("ast.parse", None)
    assert called(list) == "called"


_SAMPLE_A_RUNNING_COROUTINE = """
from mhnb.rank.execution.stack_sampler import _coroutine_frames

class Look:
    def __call__(self):
        return [frame.f_code.co_name for frame in _coroutine_frames(running)]

look = Look()

async def awaits_nothing():
    for _ in range(1000):
        assert look() == ["awaits_nothing"]

running = awaits_nothing()
try:
    running.send(None)
except StopIteration:
    print("still here")
"""


def test_running_coroutine_is_not_inspected() -> None:
    """A running coroutine is not inspected, because Python 3.11 then reads out of bounds and crashes the rank."""
    process = subprocess.run(
        [sys.executable, "-c", _SAMPLE_A_RUNNING_COROUTINE], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout) == (0, "still here\n"), process.stderr
