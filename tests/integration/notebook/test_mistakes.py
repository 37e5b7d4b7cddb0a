"""Mistakes that users make in a notebook: each has its message, its reason and its next step, and the step works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.notebook.conftest import Session, hidden_clusters

SETUP = """%%mhjax
import threading
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((4,), ("data",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("data")))
total, largest = jax.jit(jnp.sum), jax.jit(jnp.max)
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a user does, what the output says, and what helps."""

    cell: str
    message: str
    """What happened."""
    reason: str
    """Why, with the values."""
    step: str
    """The next step, as the output names it."""
    then: str = ""
    """The cell that follows the step; empty if that is not a line for this notebook."""
    before: tuple[str, ...] = ()
    """Cells that must succeed before."""


def on_ranks(code: str) -> str:
    """Return a cell that runs on the ranks."""
    return f"%%mhjax\n{code}"


TYPED = {
    "misspelt command": Mistake(
        "%mhjax statsu", "unknown command", "'statsu'", "Did you mean 'status'?", "%mhjax status"
    ),
    "misspelt flag": Mistake(
        "%mhjax start --devcies 2",
        "unrecognized arguments",
        "--devcies",
        "did you mean --devices?",
        "%mhjax start -n 2 --devices 2",
    ),
    "shape that is a word": Mistake(
        "%mhjax start abc", "argument N|NxD", "got 'abc'", "for example 4 or 4x2", "%mhjax start 2x2"
    ),
    "no device": Mistake(
        "%mhjax start 4x0", "devices=0", "from 1 to 256", "for example --devices 2", "%mhjax start 2x2"
    ),
    "misspelt profile": Mistake("%mhjax start --profile slrum", "unknown profile", "'slrum'", "Did you mean 'slurm'?"),
    "other shape": Mistake(
        "%mhjax start 8",
        "cluster 'default' is already running",
        "you requested 8 hosts x 2 devices",
        "%mhjax restart (same shape, fresh processes)",
    ),
    "Slurm off the cluster": Mistake(
        "%mhjax start -n 2 --name other --profile slurm --set srun=no-srun",
        "'no-srun' is not",
        "on this machine's PATH",
        "Fix: run the notebook's kernel on a login node of the Slurm cluster, which has it\n  Or: install",
    ),
    "MPI without mpiexec": Mistake(
        "%mhjax start --name other --profile mpi --set mpiexec=no-mpiexec",
        "'no-mpiexec' is not",
        "on this machine's PATH",
        "Fix: install Open MPI or MPICH",
    ),
    "misspelt host": Mistake(
        "%mhjax start --name other --hosts nowhere.invalid,nobody.invalid",
        "this machine cannot resolve the names of hosts",
        "nowhere.invalid, nobody.invalid",
        "Fix: correct the name, and test it: ssh nowhere.invalid true\n  Or: if only a jump host knows the name: --address",
    ),
    "empty host": Mistake(
        "%mhjax start --name other --hosts a,,b", "hosts 'a,,b'", "a name before a comma is empty", "for example a,b"
    ),
    "unknown rank": Mistake(
        "%%mhjax 7\nrank", "unknown rank 7", "this cluster has ranks 0-1", "ranks 0-1", "%%mhjax 0-1\nrank"
    ),
    "misspelt cell magic": Mistake("%%mhjx\nrank", "`%%mhjx`", "not found", "did you mean %%mhjax?", on_ranks("rank")),
    "code above the magic": Mistake(
        "y = 1\n%%mhjax\nrank",
        "%%mhjax: this line must be the first of its cell",
        "there is code above it. Nothing was run",
        "Put the code above it into a cell of its own",
        on_ranks("rank"),
    ),
    "command as a cell": Mistake(
        "%%mhjax status\n1", "status is a command", "takes one %", "Fix: %mhjax status", "%mhjax status"
    ),
    "code on the line of flags": Mistake(
        "%%mhjax y = 1\nrank",
        "%%mhjax y = 1",
        "this line takes flags only",
        "put the code on the lines below:\n%%mhjax\ny = 1",
        on_ranks("y = 1\nrank"),
    ),
    "unknown guard": Mistake(
        "%%mhjax --guard strict\nrank",
        "argument --guard",
        "invalid choice: 'strict'",
        "choose from 'lockstep', 'parity', 'off'",
        "%%mhjax --guard parity\nrank",
    ),
}
"""Mistakes in a line, which send nothing to the ranks."""

ON_RANKS = {
    "array of the ranks in the notebook": Mistake(
        "x + 1",
        "NameError",
        "'x' is defined on the ranks, not in this notebook",
        "copy it here with %mhjax pull x",
        "%mhjax pull x",
        before=("globals().pop('x', None)",),
    ),
    "whole array on one rank": Mistake(
        on_ranks("np.asarray(x)"),
        "RuntimeError",
        "A rank holds only its own shards of a global array",
        "jax.device_put(x, NamedSharding(x.sharding.mesh, P()))",
        on_ranks("np.asarray(jax.device_put(x, NamedSharding(x.sharding.mesh, P())))"),
    ),
    "unknown axis": Mistake(
        on_ranks("NamedSharding(mesh, P('model'))"), "ValueError", "no axis 'model'", "it has 'data'", SETUP
    ),
    "loop over a sharded array": Mistake(
        on_ranks("[float(each) for each in x]"),
        "AssertionError",
        "most of its rows are on other ranks",
        "jax.device_put(x, NamedSharding(x.sharding.mesh, P()))",
        on_ranks("[float(each) for each in jax.device_put(x, NamedSharding(x.sharding.mesh, P()))]"),
    ),
    "two meshes": Mistake(
        on_ranks("jax.jit(lambda a, b: a + b)(x, z)"),
        "ValueError",
        "a and b are on meshes whose axes or axis types (Explicit, Auto) differ",
        "jax.device_put(b, a.sharding)",
        on_ranks("jax.jit(lambda a, b: a + b)(x, jax.device_put(z, x.sharding))"),
        before=(
            on_ranks(
                "other = jax.sharding.Mesh(np.array(jax.devices()), ('data',))\n"
                "z = jax.device_put(jnp.arange(8.0), NamedSharding(other, P('data')))"
            ),
        ),
    ),
    "index of a sharded dimension": Mistake(
        on_ranks("x[0]"),
        "ShardingTypeError",
        "Indexing a sharded dimension needs the result's sharding",
        "x.at[0].get(out_sharding=NamedSharding(x.sharding.mesh, P()))",
        on_ranks("x.at[0].get(out_sharding=NamedSharding(x.sharding.mesh, P()))"),
    ),
    "removed function": Mistake(
        on_ranks("jax.tree_map(abs, [1])"),
        "AttributeError",
        "jax.tree_map was removed from JAX",
        "use jax.tree.map",
        on_ranks("jax.tree.map(abs, [1])"),
    ),
    "removed module": Mistake(
        on_ranks("from jax.experimental.maps import Mesh"),
        "ModuleNotFoundError",
        "jax.experimental.maps was removed from JAX",
        "jax.sharding.Mesh for Mesh",
        on_ranks("jax.sharding.Mesh"),
    ),
    "second initialize": Mistake(
        on_ranks("jax.distributed.initialize('localhost:1234', 7, 0)"),
        "RuntimeError",
        "jax.distributed is already initialised with num_processes=2, and this call has num_processes=7",
        "remove this call",
    ),
    "collective on one rank": Mistake(
        on_ranks("if rank == 0:\n    print(total(x))"),
        "rank 1   finished the cell without reaching it",
        "The call is inside `if rank == 0:`",
        "Compute on every rank; put only the print inside",
        on_ranks("t = total(x)\nif rank == 0:\n    print(t)"),
    ),
    "loops of other lengths": Mistake(
        on_ranks("for step in range(2 + rank):\n    total(x)"),
        "launch 3",
        "rank 0   finished the cell without reaching it",
        "%mhjax help order-mismatch",
        "%mhjax help order-mismatch",
    ),
    "other order": Mistake(
        on_ranks("for f in (total, largest) if rank else (largest, total):\n    f(x)"),
        "launch 1",
        "rank 1   jit(sum)",
        "%mhjax help order-mismatch",
        "%mhjax help order-mismatch",
    ),
    "other histories": Mistake(
        on_ranks("total(x * (2 if rank == 1 else 1))"),
        "launch 1",
        "arrays that were computed differently",
        "Compute the array the same way on every rank",
        on_ranks("total(x * 2)"),
    ),
    "unequal data": Mistake(
        on_ranks("jax.device_put(jnp.arange(4.0) + rank, NamedSharding(mesh, P()))"),
        "AssertionError",
        "device_put onto a global sharding needs the same value on every rank",
        "jax.make_array_from_process_local_data(sharding, part)",
        on_ranks("jax.make_array_from_process_local_data(NamedSharding(mesh, P('data')), np.arange(4.0) + rank)"),
    ),
    "cell of a tainted cluster": Mistake(
        on_ranks("1"),
        "this cell was not run, because the cluster is tainted",
        "the ranks have different values in replicas of one array",
        "Or: %mhjax accept",
        "%mhjax accept",
        before=(
            on_ranks(
                "total(jax.make_array_from_callback((4,), NamedSharding(mesh, P()), lambda i: np.arange(4.0) + rank))"
            ),
        ),
    ),
}
"""Mistakes in code that runs on the ranks."""

VALUES = {
    "push of a lock": Mistake(
        "%mhjax push lock",
        "lock cannot be pushed",
        "cannot pickle '_thread.lock' object",
        "Push its parts instead: arrays, numbers or containers of them",
        before=("import threading; lock = threading.Lock()",),
    ),
    "push of a lambda": Mistake(
        "%mhjax push double",
        "double cannot be pushed",
        "Can't pickle <function <lambda>",
        "Define it in a %%mhjax cell",
        on_ranks("double = lambda v: 2 * v"),
        before=("double = lambda v: 2 * v",),
    ),
    "push of an instance": Mistake(
        "%mhjax push thing",
        "thing cannot be pushed",
        "on ranks 0-1 it needs __main__.Thing",
        "Define or import it on the ranks first (%%mhjax)",
        on_ranks("class Thing: pass"),
        before=("class Thing: pass", "thing = Thing()"),
    ),
    "pull of a lock": Mistake(
        "%mhjax pull lock",
        "lock cannot be sent",
        "cannot pickle '_thread.lock' object",
        "Pull its parts instead: arrays, numbers, containers",
        before=(on_ranks("lock = threading.Lock()"),),
    ),
    "pull of an unknown name": Mistake(
        "%mhjax pull nothing_like_it", "nothing_like_it", "does not exist on ranks 0-1", "%mhjax vars", "%mhjax vars"
    ),
    "pull of a value of each rank": Mistake("%mhjax pull rank", "rank", "differs", "--each", "%mhjax pull rank --each"),
    "check of an unknown name": Mistake(
        "%mhjax check nothing_like_it", "'nothing_like_it'", "does not exist on ranks 0-1", "%mhjax vars", "%mhjax vars"
    ),
    "layout of an unknown name": Mistake(
        "%mhjax layout opne",
        "layout opne",
        "unknown variable 'opne'",
        "%mhjax vars lists all",
        "%mhjax vars",
    ),
    "unknown metric": Mistake(
        "%mhjax metrics los",
        "unknown metric",
        "'los'",
        "Did you mean 'loss'?",
        "%mhjax metrics loss",
        before=(on_ranks("import mhnb; mhnb.log(1, loss=2.0)"),),
    ),
    "pip without a package": Mistake(
        "%mhjax pip install", "pip install", "expected a package", "Fix: %mhjax pip install einops"
    ),
    "pip of a path that does not exist": Mistake(
        "%mhjax pip install /no/such/package",
        "pip install failed on host0",
        "with exit code 1: Invalid requirement: '/no/such/package'",
        "Fix: correct what pip's output above names",
    ),
    "attach to an unknown cluster": Mistake(
        "%mhjax attach nobody",
        "unknown cluster 'nobody'",
        "no cluster that can be attached",
        "Fix: %mhjax start --keep",
    ),
    "--to without --replay": Mistake(
        "%mhjax restart --to 3", "--to 3", "needs --replay", "Fix: %mhjax restart --replay --to 3"
    ),
    "sync of an unknown folder": Mistake(
        "%mhjax sync /no/such/folder", "sync /no/such/folder", "does not exist", "such as . or src"
    ),
}
"""Mistakes with values, packages and files."""

TABLE = TYPED | ON_RANKS | VALUES


@pytest.fixture
def user(nb: Session) -> Iterator[Session]:
    """The session, whose own variables are those of before after the test."""
    before = set(nb.shell.user_ns)
    yield nb
    nb.shell.drop_by_id({name: nb.shell.user_ns[name] for name in set(nb.shell.user_ns) - before})


@pytest.mark.parametrize("name", list(TABLE))
def test_mistake_has_message_reason_and_step(user: Session, name: str) -> None:
    """The output of a mistake has no frame of mhnb, says what happened, why, and what to do; that then works."""
    mistake = TABLE[name]
    for cell in (SETUP, *mistake.before):
        user.run(cell)
    outcome = user.try_(mistake.cell)
    assert outcome.error is not None
    for part in (mistake.message, mistake.reason, mistake.step):
        assert part in outcome.text, outcome.text
    assert re.search(r"mhnb/\w+/\w+\.py", outcome.text) is None
    if mistake.then:
        user.run(mistake.then)


def test_cell_without_a_cluster_names_the_start(idle: Session) -> None:
    """A cell before the first start says that no cluster runs, and how to start one."""
    with hidden_clusters():
        text = idle.try_(on_ranks("1")).text
    assert "no cluster is running\n  Fix: %mhjax start (4 simulated hosts × 2 CPU devices on this machine)" in text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "os.environ['XLA_FLAGS'] = '--xla_dump_to=x'",
            "set it in a cell without %%mhjax, then %mhjax restart --replay",
        ),
        ("%env XLA_FLAGS=--xla_force_host_platform_device_count=8", "%mhjax stop, then %mhjax start --devices 8"),
        ("os.environ.update(JAX_ENABLE_X64='1')", 'jax.config.update("jax_enable_x64", ...) in a %%mhjax cell'),
        ("os.environ.setdefault('JAX_DEBUG_NANS', '1')", 'jax.config.update("jax_debug_nans", ...) in a %%mhjax cell'),
        ("os.environ['JAX_PLATFORMS'] = 'cpu'", ""),
        ("os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'", ""),
    ],
)
def test_variable_that_jax_has_read_is_noted_once(user: Session, code: str, said: str) -> None:
    """A cell that changes a variable after JAX has read it gets one note with the cure; a value that JAX has gets none."""
    user.run("%%mhjax\nimport os\nbefore = dict(os.environ)")
    try:
        text = user.run(on_ranks(code)).text
    finally:
        restored = user.run("%%mhjax\nos.environ.clear(); os.environ.update(before)").text
    assert text.count("after JAX had read it, so the change has no effect on JAX") == bool(said), text
    assert said in text
    assert "after JAX had read it" not in restored
