"""Output of a rank, from every source, in order and by cell. Every test uses a real process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhnb.core.output.events import DisplayData, ExecuteResult, OutputOmitted, Stream
from tests.support.cell_process import CellProcess


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A process that the tests of this module share."""
    with CellProcess(tmp_path_factory.mktemp("rank")) as process:
        yield process


@pytest.fixture
def own_rank(tmp_path: Path) -> Iterator[CellProcess]:
    """A process that the test may end."""
    with CellProcess(tmp_path) as process:
        yield process


def test_prints_displays_and_stderr_keep_their_order(rank: CellProcess) -> None:
    """A cell's output comes in the order in which it was produced, including unfinished lines."""
    result = rank.run("""
import sys
from IPython.display import display, HTML
print("a", end="")
print("b", file=sys.stderr, end="")
print("c", end="")
display(HTML("<i>d</i>"))
print("e")
"f"
""")
    assert result.events[:3] == [Stream("stdout", "a"), Stream("stderr", "b"), Stream("stdout", "c")]
    assert [type(event) for event in result.events[3:]] == [DisplayData, Stream, ExecuteResult]


_VIEWER = """
import sys, types
from IPython.display import HTML, display
viewer = types.ModuleType("viewer")
exec('''
from IPython.display import HTML, display
def show(*objects):
    for one in objects:
        draw(one)
def draw(value, size=3):
    display(HTML("<script>draw()</script>"))
    display(HTML("<div style='display:none'><script>data</script></div>"))
class View:
    def show(self):
        draw("data")
    def __repr__(self):
        return "View()"
''', viewer.__dict__)
def show_in_function(value): viewer.show(value)
"""


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        ("viewer.show([1])", ["[1]"]),
        ("viewer.show([1], [2])", ["[1]", "[2]"]),
        ("viewer.draw(size=4, value=[1])", ["[1]"]),
        ("viewer.View().show()", ["View()"]),
        ("show_in_function([1])", ["[1]"]),
        ("viewer.draw('text')", ["<IPython.core.display.HTML object>"]),
        ("display(HTML('<script>draw()</script>'))", ["<IPython.core.display.HTML object>"]),
    ],
)
def test_display_by_scripts_has_the_text_of_its_value(rank: CellProcess, call: str, texts: list[str]) -> None:
    """Where a library displays only scripts, the text is that of the value which the cell gave to the library."""
    events = [event for event in rank.run(_VIEWER + call).events if isinstance(event, DisplayData)]
    shown = [event for event in events if "display:none" not in event.data["text/html"]]
    assert [event.data["text/plain"] for event in shown] == texts
    assert all(event.data["text/html"] == "<script>draw()</script>" for event in shown)


def test_display_inside_a_value_s_own_display_has_no_text(rank: CellProcess) -> None:
    """A library that displays scripts while IPython formats a value leaves the text to that value's own display."""
    source = (
        "class Tree:\n    def _repr_html_(self):\n        viewer.draw(self)\n        return '<script>move()</script>'\n"
    )
    events = rank.run(_VIEWER + source + "    def __repr__(self): return 'Tree()'\nTree()").events
    shown = [event for event in events if isinstance(event, DisplayData | ExecuteResult)]
    assert [event.data["text/plain"] for event in shown if "display:none" not in event.data["text/html"]] == [
        "",
        "Tree()",
    ]


@pytest.mark.parametrize("call", ["Chart()", "display(Chart())", "Chart().show()"])
def test_value_that_displays_itself_by_scripts_has_its_text(rank: CellProcess, call: str) -> None:
    """Such a value has no other form, and is displayed once."""
    source = (
        "class Chart:\n    def show(self): display(HTML('<script>draw()</script>'))\n"
        "    def _ipython_display_(self): self.show()\n    def __repr__(self): return 'Chart()'\n"
    )
    (shown,) = [event for event in rank.run(_VIEWER + source + call).events if isinstance(event, DisplayData)]
    assert shown.data == {"text/html": "<script>draw()</script>", "text/plain": shown.data["text/plain"]}
    assert shown.data["text/plain"] == ("<IPython.core.display.HTML object>" if call == "Chart().show()" else "Chart()")


def test_display_of_a_value_whose_repr_fails(rank: CellProcess) -> None:
    """A `__repr__` that raises prints its error and does not fail the cell."""
    result = rank.run(
        _VIEWER + "class Bad:\n    def __repr__(self): raise ValueError('no text')\nviewer.draw(Bad())\nprint('on')"
    )
    assert result.stdout.endswith("on\n")


def test_streams_have_what_programs_expect(rank: CellProcess) -> None:
    """The streams have a descriptor, an encoding and names, and are not a terminal."""
    result = rank.run("""
import sys
for s in (sys.stdout, sys.stderr):
    print(s.fileno(), s.encoding, s.isatty(), s.writable(), s.name, s.closed)
""")
    assert result.stdout == "1 utf-8 False True <stdout> False\n2 utf-8 False True <stderr> False\n"


def test_closing_stdout_does_not_silence_the_rank(rank: CellProcess) -> None:
    """A cell that closes `sys.stdout` does not close it for later cells."""
    rank.run("import sys; sys.stdout.close()")
    assert rank.run("print('still here')").stdout == "still here\n"


def test_text_outside_ascii(rank: CellProcess) -> None:
    """Text outside ASCII arrives unchanged, and lone surrogates arrive escaped."""
    assert rank.run("print('né 日本 \\udc80 \\0')").stdout == "né 日本 \\udc80 \0\n"


def test_bytes_to_stdout(rank: CellProcess) -> None:
    """`sys.stdout.buffer` accepts bytes in order with the text, even a character cut in two."""
    result = rank.run("""
import sys
print("text")
sys.stdout.buffer.write("né\\n".encode()[:2])
sys.stdout.buffer.write(memoryview("né\\n".encode()[2:]))
print("more")
""")
    assert result.stdout == "text\nné\nmore\n"


def test_redirected_streams_capture_the_output(rank: CellProcess) -> None:
    """`redirect_stdout` and `%%capture` capture a cell's output as usual."""
    result = rank.run("""
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as caught:
    print("caught")
caught.getvalue()
""")
    assert (result.stdout, result.result) == ("", "'caught\\n'")
    assert rank.run("%%capture kept\nprint('kept'); 1").events == []
    assert rank.run("kept.stdout").result == "'kept\\n'"


def test_logging_handler_writes_to_later_cells(rank: CellProcess) -> None:
    """A logging handler made in one cell writes to later cells."""
    rank.run("import logging; handler = logging.StreamHandler(); logging.getLogger('t').addHandler(handler)")
    assert rank.run("logging.getLogger('t').warning('careful')").stderr == "careful\n"


def test_c_output_belongs_to_the_cell(rank: CellProcess) -> None:
    """Output of C code belongs to the cell, including unfinished lines and stderr."""
    result = rank.run("""
import ctypes, os
c = ctypes.CDLL(None)
c.puts(b"a line from C")
c.printf(b"%d without an end", 42)
os.write(2, b"straight to stderr\\n");
""")
    assert result.stdout == "a line from C\n42 without an end"
    assert result.stderr == "straight to stderr\n"


def test_c_output_is_shown_while_the_cell_runs(rank: CellProcess) -> None:
    """C output of a cell that is still running is shown before its end."""
    seq = rank.begin("""
import ctypes, time
ctypes.CDLL(None).puts(b"C says hello")
while not globals().get("enough"):
    time.sleep(0.01)
""")
    rank.wait_for_output(seq, "C says hello\n")
    rank.interrupt()
    assert rank.finish(seq).ended.outcome == "interrupted"


def test_subprocess_output_keeps_its_order(rank: CellProcess) -> None:
    """Output of a subprocess or a forked child is between what was printed before and after it."""
    result = rank.run("""
import os, subprocess
print("one")
subprocess.run(["echo", "two"])
print("three")
os.system("echo four")
print("five")
child = os.fork()
if child == 0:
    print("six")
    os._exit(0)
os.waitpid(child, 0)
print("seven")
""")
    assert result.stdout.split() == ["one", "two", "three", "four", "five", "six", "seven"]


def test_forked_child_never_answers(rank: CellProcess) -> None:
    """A child that returns from the cell ends there; the rank answers once."""
    result = rank.run("""
import os
from IPython.display import display
child = os.fork()
if child == 0:
    display("shown by the child")
else:
    os.waitpid(child, 0)
    print("parent")
""")
    assert result.ended.outcome == "ok"
    assert "shown by the child" in result.stdout
    assert result.stdout.endswith("parent\n")
    assert rank.run("1").result == "1"


def test_multiprocessing(rank: CellProcess) -> None:
    """Output of forked worker processes belongs to the cell."""
    result = rank.run("""
import multiprocessing
def work(n): print("worker", n, flush=True)
worker = multiprocessing.get_context("fork").Process(target=work, args=(7,))
worker.start(); worker.join()
""")
    assert result.stdout == "worker 7\n"


def test_thread_output_belongs_to_its_cell(rank: CellProcess) -> None:
    """Output of a cell's threads belongs to the cell."""
    result = rank.run("""
import threading
threads = [threading.Thread(target=print, args=("from thread", n)) for n in range(20)]
for t in threads: t.start()
for t in threads: t.join()
""")
    assert sorted(result.stdout.splitlines()) == sorted(f"from thread {n}" for n in range(20))


def test_older_thread_output_belongs_to_the_older_cell(rank: CellProcess) -> None:
    """Output of an older cell's thread while a newer cell runs is late output of the older one."""
    older = rank.run("""
import threading
go, gone = threading.Event(), threading.Event()
def speak():
    go.wait()
    print("an older thread")
    threading.Thread(target=lambda: (print("its own thread"), gone.set())).start()
threading.Thread(target=speak).start()
""")
    newer = rank.run("print('newer'); go.set(); gone.wait(); print('end')")
    assert newer.stdout == "newer\nend\n"
    rank.wait_for_output(older.ended.seq, "its own thread\n")


def test_output_after_the_end(rank: CellProcess) -> None:
    """Output between cells, including displays, is sent for the cell that it belongs to."""
    result = rank.run("""
import threading
from IPython.display import display
may_speak = threading.Event()
def speak():
    may_speak.wait()
    display("a display")
    print("late")
threading.Thread(target=speak).start()
import asyncio
asyncio.get_running_loop().call_later(0.05, may_speak.set)
""")
    assert [type(event) for event in result.events] == [ExecuteResult]
    rank.wait_for_output(result.ended.seq, "late\n")


def test_pool_output_belongs_to_the_submitting_cell(rank: CellProcess) -> None:
    """Work submitted to an older cell's pool belongs to the cell that submits it."""
    rank.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1); pool.submit(print, 1).result()"
    )
    assert rank.run("pool.submit(print, 'mine').result()").stdout == "mine\n"
    assert rank.run("import asyncio; await asyncio.to_thread(print, 'mine too')").stdout == "mine too\n"


def test_task_output_belongs_to_its_cell(rank: CellProcess) -> None:
    """Output of an older cell's background task belongs to the older cell."""
    older = rank.run("""
import asyncio
proceed = asyncio.Event()
async def later():
    await proceed.wait()
    print("from the task")
task = asyncio.ensure_future(later())
await asyncio.sleep(0)
""")
    newer = rank.run("proceed.set(); await task; print('awaited')")
    assert newer.stdout == "awaited\n"
    rank.wait_for_output(older.ended.seq, "from the task\n")


def test_live_output(rank: CellProcess) -> None:
    """A long cell's output is sent once, while it runs, and its end has only the rest."""
    seq = rank.begin("""
import time
print("early")
while not globals().get("enough"):
    time.sleep(0.01)
""")
    rank.wait_for_output(seq, "early\n")
    rank.interrupt()
    assert rank.finish(seq).stdout == ""


def test_short_cell_sends_one_message(rank: CellProcess) -> None:
    """A short cell's output is in its one reply."""
    result = rank.run("print('x')")
    assert result.live == []
    assert result.stdout == "x\n"


def test_many_lines_are_bounded(rank: CellProcess) -> None:
    """100,000 lines arrive as a head and a tail with the gap counted, and the log has every line."""
    result = rank.run("for i in range(100_000): print('one of many lines', i)")
    lines = result.stdout.splitlines()
    assert lines[0] == "one of many lines 0"
    assert lines[-1] == "one of many lines 99999"
    whole = sum(len(f"one of many lines {i}\n") for i in range(100_000))
    kept = sum(len(event.text) for event in result.events if isinstance(event, Stream) and event.name == "stdout")
    assert kept + sum(event.nbytes for event in result.events if isinstance(event, OutputOmitted)) == whole
    # Head and tail have half a megabyte each; each live message of a long cell adds some.
    assert kept < 1.5 * (1 << 20) + len(result.live) * (1 << 14)
    assert rank.log.count("one of many lines") == 100_000


def test_killed_rank_leaves_its_output(own_rank: CellProcess) -> None:
    """After kill -9 the log has every finished line, and the native file has the output of C code."""
    seq = own_rank.begin("""
import ctypes, os, signal
for i in range(1000): print("line", i)
ctypes.CDLL(None).puts(b"C's last line")
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert own_rank.process.wait() == -signal.SIGKILL, seq
    assert own_rank.log.splitlines() == [f"line {i}" for i in range(1000)]
    assert (own_rank.folder / "out").read_text() == "C's last line\n"


def test_log_has_everything(own_rank: CellProcess) -> None:
    """The log has both streams and native output; unfinished lines are ended with their cell."""
    own_rank.run("import sys, os; print('a'); print('b', file=sys.stderr); os.write(1, b'c\\n'); print('d', end='')")
    own_rank.run("print('e')")
    assert sorted(own_rank.log.splitlines()) == ["a", "b", "c", "d", "e"]


def test_log_is_private(own_rank: CellProcess) -> None:
    """Other users cannot read a rank's output."""
    own_rank.run("pass")
    for name in ("log", "out", "err"):
        assert (own_rank.folder / name).stat().st_mode & 0o077 == 0


def test_output_before_the_first_cell_goes_to_the_log(tmp_path: Path) -> None:
    """Output from before the first cell does not belong to any cell."""
    (tmp_path / "out").write_text("[Gloo] Rank 0 is connected\n")
    with CellProcess(tmp_path) as rank:
        assert rank.run("print('first')").stdout == "first\n"
        assert "Gloo" in rank.log


ODD_DISPLAY = """
from IPython.display import display
class Picture:
    def _repr_png_(self): return b"\\x89PNG"
class Odd:
    def _repr_mimebundle_(self, **_):
        circle = {}
        circle["self"] = circle
        data = {"text/plain": "odd", "application/json": {"set": [1, float("nan")], "kind": Odd}, "application/x-circle": circle}
        return data, {"application/json": {"root": frozenset({2})}}
display(Picture())
Odd()
"""


def test_values_without_a_json_form_are_shown(rank: CellProcess) -> None:
    """Bytes of a picture are sent as base64, as in Jupyter; other values as numbers, lists or their repr."""
    picture, odd = rank.run(ODD_DISPLAY).events
    assert isinstance(picture, DisplayData)
    assert isinstance(odd, ExecuteResult)
    assert picture.data["image/png"] == "iVBORw=="
    assert odd.data["application/json"] == {"set": [1, "nan"], "kind": "<class '__main__.Odd'>"}
    assert odd.data["application/x-circle"] == "{'self': {...}}"
    assert odd.metadata == {"application/json": {"root": [2]}}


@pytest.mark.parametrize(
    "source",
    [
        "sys.stdout.detach()",
        "sys.stderr.detach()",
        "sys.stdout.buffer.close()",
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = io.StringIO()",
        "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
        "sys.stdout.flush = lambda: 1 / 0",
        "sys.stdout.reconfigure(encoding='utf-16', line_buffering=False)",
        "sys.__stdout__.close()",
        "sys.__stdout__ = sys.__stderr__ = 3",
        "os.close(1); os.close(2)",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
        "os.getpid = lambda: 1",
        "os.fstat = os.pread = None",
        "sys.displayhook = lambda value: None",
        "threading.excepthook = None",
        "sys.setrecursionlimit(60)",
        "warnings.simplefilter('error')",
        "os.environ.clear()",
        "atexit._clear()",
        "globals().clear()",
        "__builtins__ = None",
        "where = tempfile.mkdtemp(); os.chdir(where); os.rmdir(where)",
    ],
)
@pytest.mark.sample(10)
def test_output_of_the_next_cell_is_shown_whatever_a_cell_replaces(tmp_path: Path, source: str) -> None:
    """A cell may close, detach or replace what belongs to the process; it ends, and the next cell's output is shown."""
    with CellProcess(tmp_path) as rank:
        result = rank.run(f"import atexit, io, os, sys, tempfile, threading, warnings\n{source}")
        assert result.ended.outcome == "ok"
        after = rank.run("print('alive')\n41 + 1")
        assert (after.ended.outcome, after.stdout, after.result) == ("ok", "alive\n", "42")
        assert rank.run("1 / 0").error.ename == "ZeroDivisionError"


def test_replaced_stream_is_reported(own_rank: CellProcess) -> None:
    """A stream that a cell left in `sys.stdout` gets nothing from later cells, and that cell's stderr reports it."""
    result = own_rank.run("import io, sys\nsys.stdout = io.StringIO()\nprint('into it')\nkept = sys.stdout")
    assert result.stderr == "mhnb: this cell replaced sys.stdout; the next cell uses the notebook's stream again\n"
    assert own_rank.run("print('seen'); kept.getvalue()").stdout == "seen\n"


def test_forwarding_stream_is_not_replaced(own_rank: CellProcess) -> None:
    """A wrapper around a rank's own stream stays in place from cell to cell."""
    own_rank.run(
        "import sys\nclass Tee:\n    def __init__(self, out): self.out, self.seen = out, []\n"
        "    def write(self, text): self.seen.append(text); return self.out.write(text)\n"
        "    def flush(self): self.out.flush()\nsys.stdout = Tee(sys.stdout)"
    )
    assert own_rank.run("print('both')").stdout == "both\n"
    assert own_rank.run("sys.stdout.seen").result == "['both', '\\n']"
