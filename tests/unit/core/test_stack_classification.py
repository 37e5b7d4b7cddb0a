"""What a rank is doing, derived from a stack; these stacks were seen on jax 0.10.2 and Python 3.11."""

from __future__ import annotations

import pytest

from mhnb.core.hang_report import Activity, Frame, PendingLaunch, StackSample, classify_stack

STDLIB = "/usr/lib/python3.11"
JAX = "/venv/lib/python3.11/site-packages/jax"
CELL = "<cell 4>"
MODULE = Frame(CELL, 3, "<module>")
STEP = PendingLaunch("jit(step) f32[8] → f32[]", (0, 1), 2, 7)


def frames(*inner: tuple[str, str]) -> tuple[Frame, ...]:
    """Return a stack with the cell at its bottom; `jax`, `std` and `rank` abbreviate their folders."""
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

GUARD = "/src/mhnb/rank/guard"
POLL = Frame(f"{GUARD}/local_agreement.py", 160, "back_off")
END_OF_CELL = Frame(f"{GUARD}/pending_work.py", 90, "any", "end of cell")

STACKS: dict[str, tuple[StackSample, Activity, str]] = {
    "float": (
        StackSample(frames(("jax/array.py", "_value"), ("jax/array.py", "__float__")), CELL, pending_launch=STEP),
        "launch", "jit(step)",
    ),
    "a method in C": (StackSample((MODULE,), CELL, c_function="block_until_ready", pending_launch=STEP), "launch", "jit(step)"),
    "process_allgather": (
        StackSample(frames(*ALLGATHER, ("exp/multihost_utils.py", "process_allgather")), CELL, pending_launch=STEP),
        "launch", "process_allgather",
    ),
    "device_put": (
        StackSample(
            frames(*ALLGATHER, ("exp/multihost_utils.py", "process_allgather"), ("jax/dispatch.py", "_device_put_impl"),
                   ("jax/api.py", "device_put")),
            CELL, pending_launch=STEP),
        "launch", "device_put",
    ),
    "named barrier": (
        StackSample(frames(*ALLGATHER, ("exp/multihost_utils.py", "sync_global_devices")), CELL, pending_launch=STEP),
        "launch", "sync_global_devices",
    ),
    "coordination barrier": (StackSample((MODULE,), CELL, c_function="wait_at_barrier"), "barrier", "wait_at_barrier"),
    "the cell's end": (
        StackSample((END_OF_CELL,), CELL, pending_launch=STEP), "launch", "jit(step)",
    ),
    "the cell's end, with a callback of this rank that waits": (
        StackSample((END_OF_CELL,), CELL, c_function="_sleep"),
        "blocked", "an array that is not ready",
    ),
    "the cell's end, with a program of this rank that computes": (
        StackSample((END_OF_CELL,), CELL, c_function="_sleep", compute_cpus=1.0),
        "computing", "",
    ),
    "busy in a launch": (
        StackSample(frames(("jax/array.py", "_value")), CELL, compute_cpus=0.8, pending_launch=STEP), "computing", "jit(step)",
    ),
    "left": (
        StackSample((POLL, Frame(f"{GUARD}/pending_work.py", 150, "any", "earlier cell"), MODULE), CELL, compute_cpus=0.5),
        "blocked", "a collective of an earlier cell, which may still be waiting",
    ),
    "agreement": (
        StackSample(
            (POLL, Frame(f"{GUARD}/launch_gate.py", 540, "any", "agreement"), *frames(("jax/pjit.py", "cache_miss"))),
            CELL, compute_cpus=0.5),
        "agreement", "the next launch",
    ),
    "local program": (StackSample(frames(("jax/api.py", "block_until_ready")), CELL, compute_cpus=1.9), "computing", ""),
    "the first call of a program": (
        StackSample(
            frames(("jax/api.py", "cache_miss"), ("jax/traceback_util.py", "reraise_with_filtered_traceback")),
            CELL, c_function="execute",
        ),
        "blocked", "execute",
    ),
    "stuck without a launch": (StackSample(frames(("jax/api.py", "devices")), CELL), "blocked", "devices"),
    "lock": (StackSample((MODULE,), CELL, c_function="acquire"), "lock", "acquire"),
    "with lock": (StackSample((MODULE,), CELL, c_function="__enter__"), "lock", "with"),
    "queue": (StackSample(frames(("std/threading.py", "wait"), ("std/queue.py", "get")), CELL, c_function="acquire"), "lock", "get"),
    "join": (StackSample(frames(("std/threading.py", "_wait_for_tstate_lock"), ("std/threading.py", "join")), CELL), "lock", "join"),
    "sleep": (StackSample((MODULE,), CELL, c_function="sleep"), "sleep", "sleep"),
    "sleep while threads of JAX compute": (
        StackSample((MODULE,), CELL, c_function="sleep", compute_cpus=1.0, pending_launch=STEP), "sleep", "sleep",
    ),
    "a read": (StackSample((MODULE,), CELL, c_function="read"), "io", "read"),
    "a subprocess": (StackSample(frames(("std/subprocess.py", "_try_wait"), ("std/subprocess.py", "run")), CELL), "io", "run"),
    "a method called get that computes": (StackSample((MODULE,), CELL, c_function="get", main_cpus=0.9), "computing", ""),
    "a loop": (StackSample((MODULE,), CELL, main_cpus=0.9), "computing", ""),
    "numpy in threads of its own": (StackSample((MODULE,), CELL, main_cpus=0.0, compute_cpus=1.5), "computing", ""),
    "compiling": (StackSample(frames(*COMPILE), CELL, main_cpus=0.9, compute_cpus=0.9), "compiling", ""),
    "compiling on a crowded machine": (StackSample(frames(*COMPILE), CELL), "compiling", ""),
    "compiling after a launch that still runs": (StackSample(frames(*COMPILE), CELL, pending_launch=STEP), "compiling", ""),
    "the user's function is traced": (
        StackSample(frames((CELL, "big"), ("jax/interpreters/partial_eval.py", "trace_to_jaxpr_dynamic")), CELL, main_cpus=0.9),
        "compiling", "",
    ),
    "filtering a traceback is no trace": (
        StackSample(frames(("jax/array.py", "_value"), ("jax/traceback_util.py", "reraise_with_filtered_traceback")), CELL,
              pending_launch=STEP),
        "launch", "jit(step)",
    ),
    "awaiting": (StackSample((MODULE,), CELL, is_awaiting=True), "await", ""),
    "unknown": (StackSample((MODULE,), CELL, c_function="poke"), "blocked", "poke"),
}  # fmt: skip


@pytest.mark.parametrize("case", STACKS)
def test_stack_is_classified(case: str) -> None:
    """Each stack gets its own activity, even if only CPU use or the pending launch distinguishes it from another."""
    stack, activity, what = STACKS[case]
    found = classify_stack(stack, STDLIB)
    assert (found.activity, found.what) == (activity, what)


def test_line_is_the_innermost_of_the_cell() -> None:
    """The result has the innermost line of the cell, and the innermost frame in a file of the user's."""
    deep = frames(("std/threading.py", "wait"), ("/w/me/data.py", "read_shard"), ("/w/me/train.py", "fit"))
    found = classify_stack(StackSample(deep, CELL), STDLIB)
    assert (found.activity, found.line, found.user_frame) == ("lock", 3, "data.py:31 read_shard")


def test_line_of_pending_launch_is_used_at_the_cells_end() -> None:
    """A cell that waits at its end has no frame of its own any more."""
    stack = StackSample((END_OF_CELL,), CELL, pending_launch=STEP)
    assert classify_stack(stack, STDLIB).line == 2


def test_package_inside_the_stdlib_folder_is_user_code() -> None:
    """In some installations site-packages is inside the standard library's folder."""
    deep = frames((f"{STDLIB}/site-packages/loader/io.py", "fetch"))
    assert classify_stack(StackSample(deep, CELL), STDLIB).user_frame == "io.py:31 fetch"
