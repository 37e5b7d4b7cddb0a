"""What a rank does, judged from a stack: the stacks here were seen on jax 0.10.2 and Python 3.11."""

from __future__ import annotations

import pytest

from mhnb.core.explain.stacks import Activity, Flight, Frame, Sight, judge_sight

STDLIB = "/usr/lib/python3.11"
JAX = "/venv/lib/python3.11/site-packages/jax"
CELL = "<cell 4>"
MODULE = Frame(CELL, 3, "<module>")
STEP = Flight("jit(step) f32[8] → f32[]", (0, 1), 2, 7)


def frames(*inner: tuple[str, str]) -> tuple[Frame, ...]:
    """A stack with the cell at its bottom; `jax`, `std` and `rank` stand for their folders."""
    folders = {"jax/": f"{JAX}/_src/", "exp/": f"{JAX}/experimental/", "std/": f"{STDLIB}/", "rank/": "/src/mhnb/rank/"}
    found = []
    for file, function in inner:
        for short, folder in folders.items():
            if file.startswith(short):
                file = folder + file.removeprefix(short)  # noqa: PLW2901
        found.append(Frame(file, 31, function))
    return (*found, MODULE)


ALLGATHER = (("exp/multihost_utils.py", "_handle_array_process_allgather"), ("jax/tree.py", "map"))
COMPILE = (
    ("jax/compiler.py", "backend_compile_and_load"),
    ("jax/interpreters/pxla.py", "compile"),
    ("jax/pjit.py", "_run_python_pjit"),
)

SEEN: dict[str, tuple[Sight, Activity, str]] = {
    "float": (Sight(frames(("jax/array.py", "_value"), ("jax/array.py", "__float__")), CELL, flight=STEP), "launch", "jit(step)"),
    "a method in C": (Sight((MODULE,), CELL, call="block_until_ready", flight=STEP), "launch", "jit(step)"),
    "process_allgather": (
        Sight(frames(*ALLGATHER, ("exp/multihost_utils.py", "process_allgather")), CELL, flight=STEP),
        "launch", "process_allgather",
    ),
    "device_put": (
        Sight(
            frames(*ALLGATHER, ("exp/multihost_utils.py", "process_allgather"), ("jax/dispatch.py", "_device_put_impl"),
                   ("jax/api.py", "device_put")),
            CELL, flight=STEP),
        "launch", "device_put",
    ),
    "named barrier": (
        Sight(frames(*ALLGATHER, ("exp/multihost_utils.py", "sync_global_devices")), CELL, flight=STEP),
        "launch", "sync_global_devices",
    ),
    "coordination barrier": (Sight((MODULE,), CELL, call="wait_at_barrier"), "barrier", "wait_at_barrier"),
    "the cell's end": (
        Sight((Frame("/src/mhnb/rank/guard/launches.py", 212, "_outwait"),), CELL, flight=STEP), "launch", "jit(step)",
    ),
    "the cell's end, with a callback of this rank that waits": (
        Sight((Frame("/src/mhnb/rank/guard/localwork.py", 90, "_outwait"),), CELL, call="_sleep"),
        "blocked", "an array that is not ready",
    ),
    "the cell's end, with a program of this rank that computes": (
        Sight((Frame("/src/mhnb/rank/guard/localwork.py", 90, "_outwait"),), CELL, call="_sleep", busy=1.0), "computing", "",
    ),
    "busy in a launch": (
        Sight(frames(("jax/array.py", "_value")), CELL, busy=0.8, flight=STEP), "computing", "jit(step)",
    ),
    "left": (
        Sight(frames(("rank/guard/local_agreement.py", "pause"), ("rank/guard/left.py", "_outlast")), CELL, busy=0.5),
        "blocked", "a collective of an earlier cell, which still runs or waits",
    ),
    "agreement": (
        Sight(frames(("rank/guard/agreement.py", "agree"), ("jax/pjit.py", "cache_miss")), CELL, busy=0.5),
        "agreement", "the next launch",
    ),
    "local program": (Sight(frames(("jax/api.py", "block_until_ready")), CELL, busy=1.9), "computing", ""),
    "the first call of a program": (
        Sight(
            frames(("jax/api.py", "cache_miss"), ("jax/traceback_util.py", "reraise_with_filtered_traceback")),
            CELL, call="execute",
        ),
        "blocked", "execute",
    ),
    "stuck without a launch": (Sight(frames(("jax/api.py", "devices")), CELL), "blocked", "devices"),
    "lock": (Sight((MODULE,), CELL, call="acquire"), "lock", "acquire"),
    "with lock": (Sight((MODULE,), CELL, call="__enter__"), "lock", "with"),
    "queue": (Sight(frames(("std/threading.py", "wait"), ("std/queue.py", "get")), CELL, call="acquire"), "lock", "get"),
    "join": (Sight(frames(("std/threading.py", "_wait_for_tstate_lock"), ("std/threading.py", "join")), CELL), "lock", "join"),
    "sleep": (Sight((MODULE,), CELL, call="sleep"), "sleep", "sleep"),
    "sleep while threads of JAX compute": (Sight((MODULE,), CELL, call="sleep", busy=1.0, flight=STEP), "sleep", "sleep"),
    "a read": (Sight((MODULE,), CELL, call="read"), "io", "read"),
    "a subprocess": (Sight(frames(("std/subprocess.py", "_try_wait"), ("std/subprocess.py", "run")), CELL), "io", "run"),
    "a method called get that computes": (Sight((MODULE,), CELL, call="get", main_busy=0.9), "computing", ""),
    "a loop": (Sight((MODULE,), CELL, main_busy=0.9), "computing", ""),
    "numpy in threads of its own": (Sight((MODULE,), CELL, main_busy=0.0, busy=1.5), "computing", ""),
    "compiling": (Sight(frames(*COMPILE), CELL, main_busy=0.9, busy=0.9), "compiling", ""),
    "compiling on a crowded machine": (Sight(frames(*COMPILE), CELL), "compiling", ""),
    "compiling after a launch that still runs": (Sight(frames(*COMPILE), CELL, flight=STEP), "compiling", ""),
    "the user's function is traced": (
        Sight(frames((CELL, "big"), ("jax/interpreters/partial_eval.py", "trace_to_jaxpr_dynamic")), CELL, main_busy=0.9),
        "compiling", "",
    ),
    "filtering a traceback is no trace": (
        Sight(frames(("jax/array.py", "_value"), ("jax/traceback_util.py", "reraise_with_filtered_traceback")), CELL,
              flight=STEP),
        "launch", "jit(step)",
    ),
    "awaiting": (Sight((MODULE,), CELL, awaits=True), "await", ""),
    "unknown": (Sight((MODULE,), CELL, call="poke"), "blocked", "poke"),
}  # fmt: skip


@pytest.mark.parametrize("case", SEEN)
def test_what_a_stack_means(case: str) -> None:
    """Each stack is told from the others, also where only the processor or the launch in flight tells them apart."""
    sight, activity, what = SEEN[case]
    doing = judge_sight(sight, STDLIB)
    assert (doing.activity, doing.what) == (activity, what)


def test_the_line_is_the_cells_own() -> None:
    """The innermost line of the cell, with the innermost frame of a file of the user's."""
    deep = frames(("std/threading.py", "wait"), ("/w/me/data.py", "read_shard"), ("/w/me/train.py", "fit"))
    doing = judge_sight(Sight(deep, CELL), STDLIB)
    assert (doing.activity, doing.line, doing.place) == ("lock", 3, "data.py:31 read_shard")


def test_after_the_cells_code_the_line_is_the_launchs() -> None:
    """A cell that waits at its end has no frame any more."""
    sight = Sight((Frame("/src/mhnb/rank/guard/launches.py", 212, "_outwait"),), CELL, flight=STEP)
    assert judge_sight(sight, STDLIB).line == 2


def test_a_package_beside_the_standard_library_is_the_users() -> None:
    """site-packages lies inside the standard library's folder in some installs."""
    deep = frames((f"{STDLIB}/site-packages/loader/io.py", "fetch"))
    assert judge_sight(Sight(deep, CELL), STDLIB).place == "io.py:31 fetch"
