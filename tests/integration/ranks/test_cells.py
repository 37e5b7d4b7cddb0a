"""Cells on real ranks: each rank runs a cell as IPython does, and all ranks run cells in one order."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.core.state.interrupt import SECOND_INTERRUPT_AFTER_S
from mhnb.errors import CellFailed, CellInterrupted, CellTimeout, InvalidRequest, NotClean

Fresh = Callable[..., Cluster]


def run(cluster: Cluster, code: str, **flags: Any) -> CellResult:
    """Run dedented code and check that it succeeds."""
    return cluster.run(textwrap.dedent(code), **flags).check()


@pytest.mark.other_python
def test_last_expression_of_every_rank(cluster: Cluster) -> None:
    """Each rank shows its own value."""
    result = run(cluster, "import jax\n10 * jax.process_index()")
    assert [r.text for r in result] == ["0", "10", "20", "30"]
    assert result.ok
    assert [g.ranks for g in result.groups] == [(0,), (1,), (2,), (3,)]


def test_equal_outputs_make_one_group(cluster: Cluster) -> None:
    """Equal outputs are shown once, and the rank that differs has its own group."""
    result = run(cluster, "print('same' if jax.process_index() != 2 else 'other')")
    assert [g.ranks for g in result.groups] == [(0, 1, 3), (2,)]


def test_variables_persist_and_seq_is_the_execution_count(cluster: Cluster) -> None:
    """Variables persist between cells, and every rank counts the cells in the same way."""
    first = run(cluster, "kept = 41")
    second = run(cluster, "kept += 1; kept")
    assert second.seq == first.seq + 1
    assert {(r.text, r.outputs[-1]["execution_count"]) for r in second} == {("42", second.seq)}


def test_underscore_and_out_stay_aligned_over_skipped_cells(cluster: Cluster) -> None:
    """A rank that skips a cell still counts it, so `Out` and `In` mean the same on every rank."""
    a = run(cluster, "'a'")
    run(cluster, "'b'", ranks="0")
    result = run(cluster, f"(Out[{a.seq}], In[{a.seq}], len(In))")
    assert len({r.text for r in result}) == 1
    assert "'a'" in str(result[3].text)


@pytest.mark.other_python
def test_top_level_await(cluster: Cluster) -> None:
    """`await` works as in a notebook, on every rank at once."""
    result = run(cluster, "import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.sleep(0, 'done')")
    assert {r.text for r in result} == {"'done'"}


def test_magics_and_shell(cluster: Cluster) -> None:
    """Line magics, cell magics and `!` work on the ranks."""
    result = run(cluster, "%%time\nx = 1")
    assert all("Wall time" in r.stdout for r in result)
    result = run(cluster, "!echo from the shell")
    assert {r.stdout.strip() for r in result} == {"from the shell"}
    assert {r.stdout for r in run(cluster, "%%bash\necho bash")} == {"bash\n"}


def test_c_prints_subprocesses_and_threads(cluster: Cluster) -> None:
    """Output that does not go through Python's stdout is shown too."""
    code = """
    import ctypes, subprocess, threading, sys
    ctypes.CDLL(None).puts(b"from C")
    subprocess.run(["echo", "from a child"])
    t = threading.Thread(target=lambda: print("from a thread")); t.start(); t.join()
    print("on stderr", file=sys.stderr)
    """
    for rank in run(cluster, code):
        assert sorted(rank.stdout.splitlines()) == ["from C", "from a child", "from a thread"]
        assert rank.stderr == "on stderr\n"


def test_drawing_of_a_sharding_has_lines(cluster: Cluster) -> None:
    """JAX's drawing of a sharding has lines between shards, for plain text and for sites that drop styles."""
    code = """
    import jax, numpy as np
    drawn = jax.make_array_from_callback(
        (8,), jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("all",)), jax.P("all")), lambda box: np.arange(8)[box]
    )
    jax.debug.visualize_array_sharding(drawn)
    """
    for rank in run(cluster, code):
        plain = re.sub(r"\x1b\[[\d;]*m", "", rank.stdout)
        assert plain.startswith("┌───────┬───────┬")
        assert "│ CPU 0 │ CPU 1 │" in plain


def test_main_thread_and_main_module(cluster: Cluster) -> None:
    """Cells run in the main thread and in `__main__`, where signal handlers and pickles expect them."""
    result = run(cluster, "import threading\n(threading.current_thread() is threading.main_thread(), __name__)")
    assert {r.text for r in result} == {"(True, '__main__')"}


def test_rich_display_update_and_clear(cluster: Cluster) -> None:
    """Displays keep their MIME types, are replaced by id, and can be cleared."""
    code = """
    from IPython.display import display, HTML, clear_output
    print("gone"); clear_output()
    handle = display(HTML("<b>one</b>"), display_id=True)
    handle.update(HTML("<b>two</b>"))
    """
    (output,) = run(cluster, code)[0].outputs
    assert output["data"]["text/html"] == "<b>two</b>"


def test_matplotlib_inline(cluster: Cluster) -> None:
    """A figure left open at the cell's end is shown as an image."""
    pytest.importorskip("matplotlib")
    result = run(cluster, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert all(any("image/png" in o.get("data", {}) for o in r.outputs) for r in result)


def test_error_has_line_of_cell_and_rich_traceback(cluster: Cluster) -> None:
    """The first rank to fail is shown first, with its line of the cell; the values of the other ranks are kept."""
    result = cluster.run("x = 1\nif jax.process_index() == 2:\n    1 / 0\nx")
    assert not result.ok
    error = result[2].error
    assert error is not None
    assert (error.ename, error.line, (error.code or "").strip()) == ("ZeroDivisionError", 3, "1 / 0")
    assert any("1 / 0" in line.replace("\x1b[39m", "") or "ZeroDivision" in line for line in error.traceback)
    assert result[0].text == "1"
    assert result.notes == ()
    with pytest.raises(CellFailed, match="ZeroDivisionError on rank 2"):
        result.check()


def test_syntax_error_fails_everywhere_and_state_stays_clean(cluster: Cluster) -> None:
    """A syntax error fails on every rank and leaves the cluster clean, because nothing ran."""
    result = cluster.run("def f(:")
    assert {r.error.ename for r in result if r.error} == {"SyntaxError"}


@pytest.mark.parametrize("code", ["input('? ')", "breakpoint()", "%debug", "import getpass; getpass.getpass()"])
def test_keyboard_input_raises_at_once(cluster: Cluster, code: str) -> None:
    """Code that needs a keyboard raises at once instead of waiting forever, where nothing can be typed."""
    result = cluster.run(code, timeout_s=30)
    assert result.how == ""
    assert all(r.outcome == "error" and r.error and r.error.ename == "NoKeyboard" for r in result)


def test_exit_does_not_end_a_rank(cluster: Cluster) -> None:
    """`exit()` does not end a rank, because users type it out of habit."""
    assert not cluster.run("raise SystemExit(3)").ok
    assert cluster.state == "clean"


def test_a_cell_on_some_ranks(cluster: Cluster) -> None:
    """Only the chosen ranks run it, and only they are in the result."""
    result = run(cluster, "jax.process_index()", ranks="0,2-3")
    assert [r.rank for r in result] == [0, 2, 3]
    with pytest.raises(InvalidRequest, match="rank 1"):
        result[1]


@pytest.mark.parametrize(
    "flags", [{"ranks": "7"}, {"ranks": "x"}, {"guard": "none"}, {"timeout_s": 0}, {"ranks": "3-1"}], ids=str
)
def test_bad_flags_send_nothing(cluster: Cluster, flags: dict[str, Any]) -> None:
    """Bad input is refused before anything is sent."""
    before = run(cluster, "0").seq
    with pytest.raises(InvalidRequest):
        cluster.run("1", **flags)
    assert run(cluster, "0").seq == before + 1


@pytest.mark.parametrize("source", [b"1", 1, None], ids=str)
def test_cell_that_is_not_text_is_refused(cluster: Cluster, source: Any) -> None:
    """A cell that is not text is refused, because it would end the event loop or leave a rank without an answer."""
    with pytest.raises(InvalidRequest, match="text"):
        cluster.run(source)
    assert run(cluster, "1").ok


def test_cells_of_two_threads_have_one_order_on_all_ranks(cluster: Cluster) -> None:
    """300 cells from two threads reach every rank in the same order."""
    run(cluster, "seen = []")

    def submit(name: str) -> None:
        for number in range(150):
            cluster.run(f"seen.append(('{name}', {number}))").check()

    threads = [threading.Thread(target=submit, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = run(cluster, "(len(seen), __import__('hashlib').sha256(repr(seen).encode()).hexdigest())")
    assert len({r.text for r in result}) == 1
    assert str(result[0].text).startswith("(300,")


@pytest.mark.other_python
def test_late_output_belongs_to_the_cell_that_started_it(cluster: Cluster) -> None:
    """Output that a thread prints after its cell ended is shown under that cell."""
    results: list[CellResult] = []
    arrived = threading.Event()

    def on_result(result: CellResult) -> None:
        results.append(result)
        if all("late" in r.stdout for r in result):
            arrived.set()

    cluster.on_late(on_result)
    code = """
    import threading
    go = threading.Event()
    threading.Thread(target=lambda: (go.wait(), print("late"))).start()
    """
    first = run(cluster, code)
    run(cluster, "go.set()")
    assert arrived.wait(100)
    assert results[-1].seq == first.seq


def test_running_cell_gives_snapshots(cluster: Cluster) -> None:
    """Snapshots show what a cell printed before its end."""
    snapshots: list[CellResult] = []
    code = "import time\nfor i in range(10):\n    print(i)\n    time.sleep(0.1)"
    result = cluster.follow(cluster.submit(code, live=True), snapshots.append)
    assert result.ok
    assert any(0 < len(s[0].stdout.split()) < 10 for s in snapshots)
    assert all(not s.done for s in snapshots)


def test_long_output_is_truncated_here_and_complete_in_log(cluster: Cluster) -> None:
    """The notebook has the head and tail of a long output and says what is missing; the log file has every line."""
    result = run(cluster, "for i in range(100_000):\n    print('line', i, 'of a cell that talks too much')")
    for rank in result:
        assert len(rank.stdout) < 2_000_000
        assert "line 0 of" in rank.stdout
        assert "line 99999 of" in rank.stdout
        assert rank.omitted_nbytes > 0
        log = cluster.ranks[rank.rank].log_path.read_text()
        assert all(f"line {i} of" in log for i in (0, 50_000, 99_999))


@pytest.mark.other_python
def test_interrupt_ends_python_code_and_state_stays_clean(cluster: Cluster) -> None:
    """Ctrl-C raises `KeyboardInterrupt` on every rank, and the next cell runs."""
    submission = cluster.submit("import time\nprint('on')\nwhile True: time.sleep(0.01)", live=True)
    result = cluster.follow(submission, lambda _snapshot: cluster.interrupt())
    assert {r.outcome for r in result} == {"interrupted"}
    with pytest.raises(CellInterrupted):
        result.check()
    assert run(cluster, "1 + 1")[0].text == "2"


@pytest.mark.usefixtures("default_kill_timeout")
@pytest.mark.test_all
def test_interrupt_handler_of_a_cell_is_not_interrupted(cluster: Cluster) -> None:
    """A cell that handles `KeyboardInterrupt` may save for longer than it takes to kill a rank that does not stop."""
    source = """
        import time
        print("on", flush=True)
        saved = 0
        try:
            while True: time.sleep(0.01)
        except KeyboardInterrupt:
            for _ in range(600): time.sleep(0.01); saved += 1
            print("saved")"""
    result = run_and_interrupt(cluster, source, lambda _: False)
    assert {(rank.outcome, rank.stdout) for rank in result} == {("ok", "on\nsaved\n")}
    assert (result.how, result.state) == ("interrupted", "clean")
    assert {rank.text for rank in run(cluster, "saved")} == {"600"}


def test_second_interrupt_ends_the_handler(cluster: Cluster) -> None:
    """A second interrupt ends the handler once every rank is in it and the cell reports that."""
    source = """
        import time
        print("on", flush=True)
        try:
            while True: time.sleep(0.01)
        except KeyboardInterrupt:
            while True: time.sleep(0.01)"""
    result = run_and_interrupt(cluster, source, lambda snapshot: snapshot.handling == (0, 1, 2, 3))
    assert {(rank.outcome, rank.error and rank.error.line) for rank in result} == {("interrupted", 6)}
    assert result.state == "clean"


def run_and_interrupt(cluster: Cluster, source: str, is_second_due: Callable[[CellResult], bool]) -> CellResult:
    """Interrupt a cell once it has printed `on` on every rank, and once more when `is_second_due` returns true."""
    interrupt_times: list[float] = []

    def interrupt_if_due(snapshot: CellResult) -> None:
        first = not interrupt_times and all("on\n" in rank.stdout for rank in snapshot)
        second = (
            len(interrupt_times) == 1
            and snapshot.wall_s > interrupt_times[0] + SECOND_INTERRUPT_AFTER_S
            and is_second_due(snapshot)
        )
        if first or second:
            interrupt_times.append(snapshot.wall_s)
            cluster.interrupt()

    return cluster.run(textwrap.dedent(source), on_snapshot=interrupt_if_due, timeout_s=100)


def test_a_timeout_ends_the_cell(cluster: Cluster) -> None:
    """`--timeout` interrupts the cell and raises `CellTimeout`."""
    result = cluster.run("while True: pass", timeout_s=0.5)
    with pytest.raises(CellTimeout):
        result.check()
    assert run(cluster, "1")[0].text == "1"


PSUM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
ones = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda i: np.ones(8, np.float32)[i])
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))
"""


@pytest.mark.other_python
def test_a_global_sum_over_all_ranks(cluster: Cluster) -> None:
    """A global sum gives the same number on every rank under the guard, which is the purpose of mhnb."""
    assert cluster.guard == "lockstep"
    run(cluster, PSUM)
    assert {r.text for r in run(cluster, "float(total(ones))")} == {"8.0"}


def test_printing_a_global_array_never_fails(cluster: Cluster) -> None:
    """The value of a global array shows its sharding and `print` shows JAX's text, without communication.

    One rank can therefore do both alone.
    """
    run(cluster, PSUM)
    assert all("f32[8] on mesh (x " in str(r.text) for r in run(cluster, "ones"))
    one_rank = cluster.run("print(ones)\nones", ranks="1").check()
    assert "shape=(8,)" in one_rank[1].stdout
    assert "spec P('x')" in str(one_rank[1].text)


def test_pasted_initialize_gives_a_note_if_count_and_id_agree(cluster: Cluster) -> None:
    """A pasted `initialize` returns with a note, because every guide begins with it; the note says what it ignored."""
    done = "mhnb: jax.distributed is already initialised on every rank; nothing to do"
    result = run(cluster, "import jax\njax.distributed.initialize()")
    assert {r.stderr for r in result} == {f"{done}\n"}
    pasted = "n, i = jax.process_count(), jax.process_index()\njax.distributed.initialize('10.0.0.1:1', n, i, initialization_timeout=9)"
    result = run(cluster, pasted)
    assert {r.stderr for r in result} == {
        f"{done}; ignored: coordinator_address='10.0.0.1:1', initialization_timeout=9\n"
    }


def test_pasted_initialize_of_another_cluster_says_what_differs(cluster: Cluster) -> None:
    """Another count or id raises, with the values of both and a next step; an unknown argument raises in JAX's own words."""
    count = len(cluster.ranks)
    result = cluster.run("import jax\njax.distributed.initialize('10.0.0.1:1', num_processes=7, process_id=1)")
    said = [r.error.evalue if r.error else "" for r in result]
    assert said[1] == (
        f"jax.distributed is already initialised with num_processes={count}, and this call has num_processes=7\n"
        "  Fix: remove this call\n  Or: %mhjax stop, then %mhjax start -n 7"
    )
    assert f"with num_processes={count}, process_id=0, and this call has num_processes=7, process_id=1" in said[0]
    assert {r.error.ename for r in result if r.error} == {"RuntimeError"}
    result = cluster.run(f"jax.distributed.initialize('10.0.0.1:1', {count}, 0)")
    assert result[0].error is None
    assert result[1].error is not None
    assert result[1].error.evalue.splitlines() == [
        "jax.distributed is already initialised with process_id=1, and this call has process_id=0",
        "  Fix: remove this call",
    ]
    assert "bootstrap.py" not in "".join(result[1].error.traceback)
    unknown = cluster.run("jax.distributed.initialize(nosuch=3)")
    error = next(r.error for r in unknown if r.error)
    assert "initialize() got an unexpected keyword argument 'nosuch'" in error.evalue
    assert "inspect.py" not in "".join(error.traceback)


def test_different_launches_taint_and_are_refused(fresh: Fresh, default_disconnect_timeout: None) -> None:
    """A cluster whose ranks launched different programs is tainted and refuses the next cell."""
    cluster = fresh(2, 1)
    run(cluster, PSUM.replace("8", "2"))
    # Rank 1 never waits for its extra launch, and rank 0 never makes it.
    code = "if jax.process_index() == 1:\n    extra = total(ones)"
    result = cluster.run(code, timeout_s=5, guard="parity")
    assert result.state == "tainted"
    with pytest.raises(NotClean):
        cluster.run("1")


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.sample(1)
def test_rank_killed_in_a_cell_is_named(fresh: Fresh, victim: int) -> None:
    """The first rank to die, by `kill -9`, is named with its signal, and the others are stopped with it."""
    cluster = fresh(2, 1)
    pid = cluster.ranks[victim].pid
    assert pid is not None
    submission = cluster.submit("import time; print('on'); time.sleep(1000)", live=True)
    killed: list[int] = []

    def kill(_snapshot: CellResult) -> None:
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    result = cluster.follow(submission, kill)
    assert (result[victim].outcome, result[1 - victim].outcome) == ("died", "killed")
    assert result.state == "dead"
    assert any(f"rank {victim}" in note and "SIGKILL" in note for note in result.notes)
    with pytest.raises(NotClean, match="restart"):
        cluster.run("1")


def collect_notices(cluster: Cluster) -> tuple[list[str], threading.Event]:
    """Collect notices between cells; return their texts, and an event that is set when one arrives."""
    texts: list[str] = []
    received = threading.Event()

    def record(text: str) -> None:
        texts.append(text)
        received.set()

    cluster.on_notice(record)
    return texts, received


@pytest.mark.parametrize("who", ["rank", "hub", "supervisor"])
@pytest.mark.sample(2)
def test_death_between_cells_is_reported(fresh: Fresh, who: str) -> None:
    """A process that dies between cells is reported to the user, although no cell is waited for."""
    cluster = fresh(2, 1)
    texts, received = collect_notices(cluster)
    pid = {"rank": cluster.ranks[1].pid, "hub": cluster.hub_pid, "supervisor": cluster.supervisor_pid}[who]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert received.wait(100)
    assert who in texts[0]
    assert cluster.state == "dead"


def test_hub_that_ends_by_itself_is_reported_with_reason(fresh: Fresh) -> None:
    """The message about a hub that ended by itself contains its last line; a killed hub writes no reason."""
    cluster = fresh(2, 1)
    texts, received = collect_notices(cluster)
    assert cluster.hub_pid is not None
    os.kill(cluster.hub_pid, signal.SIGTERM)
    assert received.wait(100)
    assert f"pid {cluster.hub_pid}) ended by itself with exit code 0 (" in texts[0]
    assert "terminating children" in texts[0]


def test_last_output_of_aborted_rank_is_reported(fresh: Fresh) -> None:
    """What C code wrote before a rank aborted is in the notebook's message and in the log."""
    cluster = fresh(2, 1)
    code = "import os, jax\nif jax.process_index() == 0:\n    os.write(2, b'the last words\\n'); os.abort()\nimport time; time.sleep(1000)"
    result = cluster.run(code)
    assert any("SIGABRT" in note and "the last words" in note for note in result.notes)
    assert "the last words" in cluster.ranks[0].log_path.read_text()


@pytest.mark.parametrize("idle", [False, True], ids=["in a cell", "idle"])
@pytest.mark.sample(1)
def test_output_of_earlier_cell_is_not_quoted(fresh: Fresh, idle: bool) -> None:  # noqa: FBT001
    """The report of a death does not quote what Python or C code printed in an earlier cell.

    For a death between cells, only output of the last cell counts.
    """
    cluster = fresh(2, 1)
    texts, received = collect_notices(cluster)
    cluster.run("print('earlier')\nimport ctypes, os, signal; ctypes.CDLL(None).puts(b'earlier in C')").check()
    if idle:
        cluster.run("1").check()
        pid = cluster.ranks[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert received.wait(60)
    else:
        code = "import time, jax\nif jax.process_index() == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
        texts += cluster.run(code, timeout_s=100).notes
    assert texts[0].startswith("rank 0 ")
    assert "SIGKILL" in texts[0]
    assert "last line" not in texts[0]
    assert "earlier" in cluster.ranks[0].log_path.read_text()


DEATHS = {
    "it ends itself": ("os._exit(3)", "ended by itself with exit code 3"),
    "a crash in native code": ("ctypes.string_at(0)", "SIGSEGV"),
    "out of memory": ("os.kill(os.getpid(), signal.SIGKILL)", "often by the memory limit"),
}
"""The kernel of a machine that runs out of memory sends SIGKILL."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("idle", [False, True], ids=["in a cell", "idle"])
@pytest.mark.parametrize(("act", "cause"), DEATHS.values(), ids=DEATHS.keys())
def test_dead_rank_is_reported_with_cause(
    fresh: Fresh,
    tmp_path: Path,
    act: str,
    cause: str,
    idle: bool,  # noqa: FBT001
) -> None:
    """The death of rank 0, which runs the coordinator, is reported with its cause.

    The report is in the notes of the cell, or in a notice between cells.
    """
    cluster, flag = fresh(2, 1), tmp_path / "die"
    texts, received = collect_notices(cluster)
    define = f"""
import ctypes, jax, os, signal, threading, time
def die():
    while not os.path.exists({str(flag)!r}): time.sleep(0.01)
    {act}
"""
    if idle:
        cluster.run(f"{define}if jax.process_index() == 0: threading.Thread(target=die).start()").check()
        flag.touch()
        assert received.wait(60)
    else:
        flag.touch()
        result = cluster.run(f"{define}if jax.process_index() == 0: die()\ntime.sleep(1000)", timeout_s=100)
        assert [rank.outcome for rank in result] == ["died", "killed"]
        assert result.how == ""
        texts += result.notes
    assert texts[0].startswith("rank 0 ")
    assert cause in texts[0]
    assert cluster.state == "dead"


@pytest.mark.parametrize("code", ["1", "import asyncio\nawait asyncio.sleep(0)"], ids=["plain", "awaits"])
@pytest.mark.sample(1)
def test_internal_error_ends_the_rank_and_is_logged(fresh: Fresh, code: str) -> None:
    """A rank in which mhnb itself fails ends and its last output says why, so that no notebook waits for its answer."""
    cluster = fresh(2, 1)
    breaks = "import jax\nif jax.process_index() == 1: get_ipython().capture.end = None\n"
    result = cluster.run(breaks + code, timeout_s=60)
    assert (result[1].outcome, result.state, result.how) == ("died", "dead", "")
    assert any("exit code 70" in note for note in result.notes)
    assert "TypeError" in cluster.ranks[1].log_path.read_text()
