"""Launches from threads, tasks, handlers and finalizers: none is mistaken for another, and none waits forever."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.view.cell.failures import find_failures
from tests.integration.ranks.test_lockstep import SETUP, check_sum, names, texts


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a mesh, a global array and two collectives."""
    cluster.run(SETUP).check()
    cluster.run("import asyncio, gc, signal, weakref\nfrom concurrent.futures import ThreadPoolExecutor").check()
    cluster.run("folds = [x, x * 100]\none = threading.Event(); two = threading.Event()").check()
    return cluster


TWO_THREADS = """
from mhnb.rank.jax_private import current_recorder as launches
gate = threading.Event()
def loader():
    if rank == 1: gate.wait()
    top(x).block_until_ready()
thread = threading.Thread(target=loader{name}); thread.start()
try:
    while rank != 1 and thread.is_alive() and launches().gate.undecided_launch is None: time.sleep(0.01)
    add(x).block_until_ready()
finally:
    gate.set()
    thread.join()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [(", name='prefetch'", "thread prefetch"), (", name='io-' + str(rank)", "thread io #1"), ("", "thread loader #1")],
)
def test_mismatch_names_the_thread(ready: Cluster, name: str, said: str) -> None:
    """Every rank names the thread in the same words, and the thread's traceback has only the cell's own frames."""
    result = ready.run(TWO_THREADS.format(name=name))
    assert names(result) == ["OrderMismatch"] * 4
    (text,) = texts(result)
    assert f"in {said} " in text
    assert "in the main thread" in text
    assert "Several threads or tasks launch programs" in text
    printed = {output["text"] for rank in result for output in rank.outputs if output.get("name") == "stderr"}
    assert len(printed) == 1, printed
    (trace,) = printed
    assert trace.startswith(
        f'Exception in {said}:\nTraceback (most recent call last):\n  File "<cell {result.seq}>", line 5, in loader'
    )
    assert trace.count("File ") == 1
    assert "    top(x).block_until_ready()\n" in trace
    check_sum(ready)


def test_mismatch_in_a_thread_is_reported_once(ready: Cluster) -> None:
    """A mismatch in a thread is reported once.

    The report has the thread's line; the line on which the main thread was refused adds nothing.
    """
    result = ready.run(TWO_THREADS.format(name=", name='prefetch'"))
    assert [failure.ranks for failure in find_failures(result)] == [(0, 1, 2, 3)]
    check_sum(ready)


def test_thread_error_hides_library_frames(ready: Cluster) -> None:
    """The traceback of a thread's error counts the frames inside libraries instead of showing them."""
    code = (
        "def work(): jnp.ones(3) + jnp.ones(4)\nthread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    result = ready.run(code).check()
    for rank in result:
        (output,) = rank.outputs
        assert output["text"].startswith(
            f'Exception in thread work #1:\nTraceback (most recent call last):\n  File "<cell {result.seq}>"'
        )
        assert re.search(r"^    … \d+ frames inside jax$", output["text"], re.MULTILINE)
        assert "site-packages" not in output["text"]


def test_finalizer_error_hides_library_frames(ready: Cluster) -> None:
    """The error of a finalizer is printed the same on all ranks, without addresses and frames of libraries."""
    result = ready.run("class Left:\n    def __del__(self): jnp.ones(3) + jnp.ones(4)\nLeft()\nNone").check()
    (text,) = {rank.stderr for rank in result}
    assert text.startswith(
        f'Exception ignored in Left.__del__:\nTraceback (most recent call last):\n  File "<cell {result.seq}>", line 2'
    )
    assert re.search(r"^    … \d+ frames inside jax$", text, re.MULTILINE)
    assert "site-packages" not in text


# In each of them the launches of two threads or tasks come in another order on rank 1.
SWAPPED = {
    "a pool": """
def score(at, v):
    if at == (rank == 1): two.wait()
    try: return float(add(v))
    finally: two.set()
with ThreadPoolExecutor(2) as pool: got = list(pool.map(score, range(2), folds))""",
    "threads": """
got = {}
def score(at, v):
    if at == (rank == 1): two.wait()
    try: got[at] = float(add(v))
    finally: two.set()
threads = [threading.Thread(target=score, args=each) for each in enumerate(folds)]
for thread in threads: thread.start()
for thread in threads: thread.join()""",
    "a pool of multiprocessing": """
from multiprocessing.pool import ThreadPool
def score(at, v):
    if at == (rank == 1): two.wait()
    try: return float(add(v))
    finally: two.set()
with ThreadPool(2) as pool: got = pool.starmap(score, enumerate(folds), chunksize=1)""",
    "tasks": """
async def score(at, v):
    if at == (rank == 1): await asyncio.sleep(0.01)
    return float(add(v))
got = await asyncio.gather(*(score(*each) for each in enumerate(folds)))""",
    "asyncio.to_thread": """
def score(at, v):
    if at == (rank == 1): two.wait()
    try: return float(add(v))
    finally: two.set()
got = await asyncio.gather(*(asyncio.to_thread(score, *each) for each in enumerate(folds)))""",
}


@pytest.mark.parametrize("code", SWAPPED.values(), ids=SWAPPED.keys())
def test_two_launches_of_one_program_do_not_swap(ready: Cluster, code: str) -> None:
    """Two launches of one program from different threads are not swapped.

    Only the threads distinguish them: program and arrays are the same.
    """
    ready.run("folds = [x, x]").check()
    result = ready.run(code)
    assert set(names(result)) == {"OrderMismatch"}
    assert all(re.search(r"(?:task|thread) score #[12]", text) for text in texts(result))
    assert result.state == "clean"
    check_sum(ready)


SAME = {
    "a pool whose threads take the work by chance": """
def score(v): return float(add(v))
with ThreadPoolExecutor(3) as pool: got = [pool.submit(score, fold).result() for fold in folds * 5]
got[:2]""",
    "threads that differ beside those that launch": """
def log(): pass
if rank == 1:
    for _ in range(3): each = threading.Thread(target=log); each.start(); each.join()
got = []
thread = threading.Thread(target=lambda: got.extend(float(add(fold)) for fold in folds)); thread.start(); thread.join()
got""",
    "a thread named after its rank": """
got = []
thread = threading.Thread(target=lambda: got.extend(float(add(fold)) for fold in folds), name=f'worker-{rank}')
thread.start(); thread.join()
got""",
    "a pool of multiprocessing": """
from multiprocessing.pool import ThreadPool
def score(v): return float(add(v))
with ThreadPool(2) as pool:
    got = [pool.apply(score, (fold,)) for fold in folds] + pool.starmap(score, [folds[:1]]) + pool.map(score, folds[:1])
    got += pool.imap(score, folds[:1])
got[:2] if got[2:] == [28.0] * 3 else got""",
    "tasks one after another": """
async def score(v): return float(add(v))
[await asyncio.create_task(score(fold)) for fold in folds]""",
    "asyncio.run in a thread": """
got = []
async def score(v): return float(add(v))
async def both(): return [await score(fold) for fold in folds]
thread = threading.Thread(target=lambda: got.extend(asyncio.run(both()))); thread.start(); thread.join()
got""",
}


@pytest.mark.parametrize("code", SAME.values(), ids=SAME.keys())
def test_threads_that_launch_in_one_order_are_not_refused(ready: Cluster, code: str) -> None:
    """Threads that launch in one order are accepted, whichever pool thread does the work and whatever else a rank started."""
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"[28.0, 2800.0]"}
    assert (result.state, result.notes) == ("clean", ())


MADE = """
from concurrent.futures import as_completed
import queue
def load(n): return jax.make_array_from_process_local_data(rows, np.full(2, n, np.float32))
async def load_later(n):
    await asyncio.sleep(0.001 * rank)
    return load(n)
failed = set()
def load_twice(n):
    if rank == 1 and n not in failed:
        failed.add(n)
        raise OSError('no file')
    return load(n)
def add_all(values): return [float(add(value)) for value in values]"""
MADE_IN_CALLS = {
    "a pool": "with ThreadPoolExecutor(2) as pool: a, b = pool.map(load, (1, 100))",
    "a pool of multiprocessing": (
        "from multiprocessing.pool import ThreadPool\nwith ThreadPool(2) as pool: a, b = pool.map(load, (1, 100))"
    ),
    "tasks": "a, b = await asyncio.gather(load_later(1), load_later(100))",
    "asyncio.to_thread": "a, b = await asyncio.gather(asyncio.to_thread(load, 1), asyncio.to_thread(load, 100))",
    "a pool, and computed from": "with ThreadPoolExecutor(2) as pool: a, b = (double(v) for v in pool.map(load, (1, 100)))",
}


@pytest.mark.parametrize("code", MADE_IN_CALLS.values(), ids=MADE_IN_CALLS.keys())
def test_data_that_calls_make_does_not_swap(ready: Cluster, code: str) -> None:
    """Sharded data that calls of an earlier cell's function make is not swapped, and used in one order it is accepted."""
    ready.run(f"{MADE}\ndouble = jax.jit(lambda a: a * 2)").check()
    result = ready.run(f"{code}\nadd_all([a, b] if rank % 2 else [b, a])")
    assert set(names(result)) == {"OrderMismatch"}
    assert result.state == "clean"
    accepted = ready.run(f"{code}\nadd_all([a, b])[1] / add_all([a])[0]").check()
    assert {rank.text for rank in accepted} == {"100.0"}
    assert accepted.notes == ()


MADE_RIGHT = {
    "submitted in an order of the rank's own": """
with ThreadPoolExecutor(2) as pool: made = {n: pool.submit(load, n) for n in ((0, 1, 2) if rank % 2 else (2, 1, 0))}
add_all(made[n].result() for n in range(3))""",
    "a call that is made again": """
made, pool = {}, ThreadPoolExecutor(2)
waiting = {pool.submit(load_twice, n): n for n in range(3)}
while waiting:
    for future in as_completed(list(waiting)):
        n = waiting.pop(future)
        if future.exception() is None: made[n] = future.result()
        else: waiting[pool.submit(load_twice, n)] = n
add_all(made[n] for n in range(3))""",
    "arguments of the rank's own": """
with ThreadPoolExecutor(2) as pool: made = list(pool.map(load, [n + rank - 1.5 for n in range(3)]))
add_all(made)""",
}
MADE_BY_THREADS = {
    "workers on one queue": """
made, jobs = {}, queue.Queue()
def work():
    while (n := jobs.get()) is not None: made[n] = load(n)
workers = [threading.Thread(target=work) for _ in range(2)]
for n in range(3): jobs.put(n)
for worker in workers: jobs.put(None); worker.start()
for worker in workers: worker.join()
add_all(made[n] for n in range(3))""",
    "a worker that is started anew": """
made = []
def work(first, last): made.extend(load(n) for n in range(first, last))
for each in ([(0, 2), (2, 3)] if rank == 1 else [(0, 3)]):
    worker = threading.Thread(target=work, args=each); worker.start(); worker.join()
add_all(made)""",
    "calls without plain arguments": """
numbers = np.arange(3)
with ThreadPoolExecutor(2) as pool: made = list(pool.map(lambda n: load(n[0]), [numbers[n:] for n in range(3)]))
add_all(made)""",
}


@pytest.mark.parametrize("code", MADE_RIGHT.values(), ids=MADE_RIGHT.keys())
def test_data_that_calls_make_in_other_orders_is_accepted(ready: Cluster, code: str) -> None:
    """Data is accepted if the ranks make equal calls in other orders, again, or with arguments of their own in one order."""
    ready.run(MADE).check()
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"[0.0, 8.0, 16.0]"}
    assert (result.state, result.notes) == ("clean", ())


@pytest.mark.parametrize("code", MADE_BY_THREADS.values(), ids=MADE_BY_THREADS.keys())
def test_data_that_nothing_identifies_is_noted(ready: Cluster, code: str) -> None:
    """Data of threads of the user's own, or of calls that nothing identifies, is not compared; a note counts the arrays."""
    ready.run(MADE).check()
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"[0.0, 8.0, 16.0]"}
    (note,) = result.notes
    assert note.startswith("3 arrays were not compared: made in a thread, ")
    assert result.state == "clean"


def test_callback_of_a_future_may_launch(ready: Cluster) -> None:
    """A callback of a future launches as what has added it, in whichever thread it runs."""
    code = """
got, go = [], threading.Event()
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(go.wait)
    if rank % 2: go.set(); future.result()
    future.add_done_callback(lambda future: got.append(float(add(x))))
    go.set()
got"""
    assert {rank.text for rank in ready.run(code).check()} == {"[28.0]"}


SCHEDULED = {
    "call_soon_threadsafe": """
def hand_over(at):
    if at != rank % 2: two.wait()
    loop.call_soon_threadsafe(score, at)
    loop.call_soon_threadsafe(two.set)
await asyncio.gather(*(asyncio.to_thread(hand_over, at) for at in range(2)))""",
    "a task's callback": """
async def wait(at):
    for _ in range(3 * (at == rank % 2)): await asyncio.sleep(0)
    return at
tasks = [asyncio.create_task(wait(at)) for at in range(2)]
for task in tasks: task.add_done_callback(lambda task: score(task.result()))
await asyncio.gather(*tasks)""",
}


@pytest.mark.parametrize("code", SCHEDULED.values(), ids=SCHEDULED.keys())
def test_two_callbacks_of_a_loop_do_not_swap(ready: Cluster, code: str) -> None:
    """Launches of two callbacks of an event loop are not swapped: what scheduled them distinguishes them."""
    ready.run("folds = [x, x]\nloop = asyncio.get_running_loop()").check()
    result = ready.run(f"""
got = {{}}
def score(at):
    try: got[at] = float(add(folds[at]))
    except Exception as error: got[at] = type(error).__name__
{code}
while len(got) < 2: await asyncio.sleep(0)
got[0], got[1]""").check()
    assert {rank.text for rank in result} == {"('OrderMismatch', 'OrderMismatch')"}
    check_sum(ready)


def test_thread_of_an_earlier_cell_does_not_fail_a_later_one(ready: Cluster) -> None:
    """A thread of an earlier cell that is refused gets the error itself; the cell that runs meanwhile does not."""
    ready.run("""
told, go = [], threading.Event()
def work():
    go.wait()
    try: add(x)
    except Exception as error: told.append(type(error).__name__)
thread = threading.Thread(target=work); thread.start()""").check()
    result = ready.run("if rank == 0: go.set(); thread.join()").check()
    assert result.state == "clean"
    assert {rank.text for rank in ready.run("go.set(); thread.join(); told").check()} == {"['OrderMismatch']"}
    check_sum(ready)


def test_what_a_thread_makes_between_cells_belongs_to_the_next(ready: Cluster) -> None:
    """Replicas that a thread makes with other values after its cell are reported by the next cell."""
    ready.run("""
from mhnb.rank.jax_private import current_recorder
made, cell = 0, current_recorder().host_data._seq
def work():
    global late, made
    while current_recorder().host_data._seq == cell: time.sleep(0.001)
    late = jax.make_array_from_callback((8,), whole, lambda i: np.full(8, rank, np.float32)[i])
    made = 1
thread = threading.Thread(target=work); thread.start()""").check()
    while set(ready.pull("made", each=True)) != {1}:
        continue
    result = ready.run("1")
    assert result.state == "tainted"
    assert "the ranks have different values in replicas of one array" in " ".join(result.notes)
    ready.accept()


def test_thread_of_a_failed_cell_launches_nothing_later(ready: Cluster) -> None:
    """A thread of a failed cell launches nothing in the next cell, because it may come later on one rank than on others."""
    begun = ready.run(
        "def late():\n    one.wait()\n    try: add(x)\n    finally: two.set()\n"
        "thread = threading.Thread(target=late); thread.start()\nif rank == 2: raise ValueError('no')\nadd(x)"
    )
    assert names(begun)[2] == "ValueError"
    result = ready.run("one.set()\nif rank == 1: two.wait()\nfloat(add(x))").check()
    assert {rank.text for rank in result} == {"28.0"}
    ready.run("thread.join()").check()


def test_launch_in_a_signal_handler_is_refused(ready: Cluster) -> None:
    """A launch from a signal handler in the middle of an agreement is refused.

    The handler runs while the rank waits for the other ranks. The launch around it is made, and the cell goes on.
    """
    code = """
said = []
def ring(*_):
    try: add(x)
    except RuntimeError as error: said.append(str(error))
before = signal.signal(signal.SIGUSR1, ring)
from mhnb.rank.guard.local_agreement import Participant
wait = Participant.wait
def wait_and_ring(self, interrupted):
    signal.raise_signal(signal.SIGUSR1)
    return wait(self, interrupted)
Participant.wait = wait_and_ring
try: y = float(top(x))
finally: Participant.wait = wait; signal.signal(signal.SIGUSR1, before)
len(said), y"""
    assert {rank.text for rank in ready.run(code).check()} == {"(1, 7.0)"}
    refusal = ready.run("said[0]").check()[0].text or ""
    assert "was not launched: a signal handler, a finalizer" in refusal
    check_sum(ready)


def test_uncaught_refusal_withdraws_the_outer_launch(ready: Cluster, tmp_path: Path) -> None:
    """If a handler does not catch the refusal, the launch around it is withdrawn.

    The other ranks are notified, and do not wait.
    """
    code = f"""
from pathlib import Path
gone = Path({str(tmp_path / "gone")!r})
def ring(*_): add(x)
before = signal.signal(signal.SIGUSR1, ring)
from mhnb.rank.guard.local_agreement import Participant
wait = Participant.wait
def wait_and_ring(self, interrupted):
    if rank == 0: signal.raise_signal(signal.SIGUSR1)
    return wait(self, interrupted)
Participant.wait = wait_and_ring
try:
    while rank == 1 and not gone.exists(): time.sleep(0.01)
    y = float(top(x))
finally:
    Participant.wait = wait; signal.signal(signal.SIGUSR1, before)
    if rank == 0: gone.touch()"""
    result = ready.run(code)
    assert names(result) == ["RuntimeError", *["OrderMismatch"] * 3]
    assert result.state == "clean"
    check_sum(ready)


def test_launch_in_a_finalizer_is_refused(ready: Cluster) -> None:
    """A launch from a finalizer that the collector runs in the middle of an agreement is refused.

    The launch around it is made, and the next one too.
    """
    code = """
said = []
class Cycle:
    def __init__(self): self.me = self
    def __del__(self):
        try: add(x)
        except RuntimeError as error: said.append(str(error))
from mhnb.rank.guard.local_agreement import Participant
ask = Participant.propose
def ask_and_collect(self, wish):
    Cycle(); gc.collect()
    return ask(self, wish)
Participant.propose = ask_and_collect
try: y = float(top(x))
finally: Participant.propose = ask
len(said), y"""
    result = ready.run(code).check()
    assert {rank.text for rank in result} == {"(1, 7.0)"}
    check_sum(ready)


def test_dropped_output_is_released_before_the_cell_ends(ready: Cluster) -> None:
    """An output that the cell drops is freed as JAX frees it, without another launch that would release it."""
    code = """
big = jax.jit(lambda a: jnp.broadcast_to(a.sum(), (8, 1024)), out_shardings=rows)(x)
big.block_until_ready()
freed = threading.Event()
weakref.finalize(big, freed.set)
del big
freed.wait(60)"""
    assert {rank.text for rank in ready.run(code).check()} == {"True"}


def test_cell_waits_for_a_launch_with_dropped_outputs(ready: Cluster) -> None:
    """The end of a launch whose outputs the cell dropped is still known from the smallest of them."""
    ready.run("""
@jax.jit
def slow(a):
    s = jax.lax.fori_loop(0, 3_000_000, lambda i, s: jnp.sin(s), a)
    return jnp.broadcast_to(s.sum(), (8, 1024)), s.sum()
slow(x)""").check()
    result = ready.run("_ = slow(x); del _").check()
    assert result.state == "clean"
    check_sum(ready)


@pytest.mark.parametrize("call", ["twice(y, y)", "nested({'a': y, 'b': [y]})"])
def test_array_donated_and_passed_again_is_refused(ready: Cluster, call: str) -> None:
    """An array that is donated and passed again in one call is refused with the cause, and still exists.

    JAX ends the process with SIGSEGV.
    """
    ready.run(
        "y = x + 0\ntwice = jax.jit(lambda u, v: u + v, donate_argnums=0)\n"
        "nested = jax.jit(lambda d: d['a'] + d['b'][0], donate_argnums=0)"
    ).check()
    result = ready.run(call)
    assert names(result) == ["ValueError"] * 4
    (text,) = texts(result)
    assert "is donated, and the same array is passed twice in this call" in text
    assert "y.copy()" in text
    assert result.state == "clean"
    assert {rank.text for rank in ready.run("float(add(twice(y, y.copy())))").check()} == {"56.0"}


def test_message_names_the_line_of_the_call(ready: Cluster) -> None:
    """The message names the line of the call, because the condition that keeps the other ranks away is around the call."""
    result = ready.run("def mean(v): return float(add(v))\nif jax.process_index() == 0:\n    print(mean(x))")
    (text,) = texts(result)
    assert "line 1:  def mean(v): return float(add(v)) ← line 3:  print(mean(x))" in text
    assert (
        "The call is inside `if jax.process_index() == 0:`. Compute on every rank; put only the print inside." in text
    )


@pytest.mark.parametrize(
    "code",
    [
        "def f(v):\n    return add(v)\nf(x) if rank == 0 else None",
        "def f(v):\n    if rank == 0: return add(v)\ndef g(v): return f(v)\ng(x)",
        "!true\nif rank == 0: add(x)",
    ],
)
def test_condition_is_found_anywhere(ready: Cluster, code: str) -> None:
    """The condition is found in an expression, in a function between the call and the launch, and in a cell with a magic."""
    (text,) = texts(ready.run(code))
    assert "The call is inside `if rank == 0:`" in text


EARLIER_THREAD = """
begin, done = threading.Event(), threading.Event()
def loader():
    begin.wait()
    try: rank == 1 or top(x).block_until_ready()
    finally: done.set()
threading.Thread(target=loader).start()
"""
LATER_CELL = """
try:
    if rank == 1: add(x).block_until_ready()
    begin.set()
    done.wait()
    if rank != 1: add(x).block_until_ready()
finally: begin.set()
"""


def test_mismatch_names_the_cell_of_an_earlier_thread(ready: Cluster) -> None:
    """A thread that an earlier cell started is named with that cell, and the hint does not call it one of this cell."""
    earlier = ready.run(EARLIER_THREAD).check()
    result = ready.run(LATER_CELL)
    assert names(result) == ["OrderMismatch"] * 4
    assert result[1].error is not None
    text = result[1].error.evalue
    assert f"in thread loader #1 of cell {earlier.seq}\n" in text
    assert "in the main thread " in text
    assert "Several threads or tasks launch programs" in text
    check_sum(ready)
