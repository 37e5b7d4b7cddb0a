"""Mistakes that users make in a notebook: each has its message, its reason and its next step, and the step works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mhnb.cli.main import main
from mhnb.cluster import manager
from tests.integration.notebook.conftest import Session, hidden_clusters
from tests.integration.ranks.conftest import list_pids, wait_for_exit

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
    raises: bool = True
    """Whether the cell raises; otherwise the text is below its output."""


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
    "no GPU": Mistake(
        "%mhjax start --name other --profile gpu",
        "this machine has no GPU for the ranks",
        "CUDA_VISIBLE_DEVICES='' selects no GPU",
        "Fix: unset CUDA_VISIBLE_DEVICES, or set it to GPUs that `nvidia-smi -L` lists\n  Or: %mhjax start (simulated hosts",
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

UNEQUAL_REPLICAS = on_ranks(
    "total(jax.make_array_from_callback((4,), NamedSharding(mesh, P()), lambda i: np.arange(4.0) + rank))"
)

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
    "size that the mesh does not divide": Mistake(
        on_ranks("jax.device_put(jnp.arange(6.0), NamedSharding(mesh, P('data')))"),
        "ValueError",
        "4 does not divide 6",
        "pad dimension 0 to 8",
        on_ranks("jax.device_put(jnp.pad(jnp.arange(6.0), (0, 2)), NamedSharding(mesh, P('data')))"),
    ),
    "other size of the dimension that is summed over": Mistake(
        on_ranks("x @ jnp.ones((3, 8))"),
        "TypeError",
        "a dimension of size 8 in x and 3 in jnp.ones((3, 8))",
        "the sizes must be equal. Transpose or reshape one of them",
        on_ranks("x @ jnp.ones((3, 8)).T"),
    ),
    "value that leaves a traced function": Mistake(
        on_ranks("keep(1.0)\nkept[0] + 1"),
        "The function being traced when the value leaked was keep at <In [",
        "keep stored a value outside itself while JAX traced it",
        "Return the value from keep instead",
        on_ranks("@jax.jit\ndef keep(v):\n    return 2 * v\nkeep(1.0) + 1"),
        before=(on_ranks("kept = []\n@jax.jit\ndef keep(v):\n    kept.append(2 * v)\n    return v"),),
    ),
    "array too large for the host": Mistake(
        on_ranks("np.zeros((1 << 50,), np.int8)"),
        "MemoryError",
        "host memory when the allocation failed on ranks 0-1 · 1024.0 TiB requested",
        "Read or make only the part that this rank needs",
        on_ranks("np.zeros((1 << 10,), np.int8)"),
    ),
    "array too large for a device": Mistake(
        on_ranks("jnp.zeros((1 << 50,), jnp.int8)"),
        "JaxRuntimeError",
        # One rank may still hold an unnamed array of another test, until Python collects it, and then has a report of its own.
        "device memory when the allocation failed on rank",
        "The device has no room for 1024.0 TiB. Shard an array that each device has in full, delete what is not needed",
        on_ranks("jnp.zeros((1 << 10,), jnp.int8)"),
    ),
    "sys.exit": Mistake(
        on_ranks("import sys; sys.exit(3)"),
        "SystemExit: 3",
        "The rank is still running, because a cell cannot end its own rank",
        "To stop the cluster: %mhjax stop",
        on_ranks("rank"),
    ),
    "exit": Mistake(
        on_ranks("exit"),
        "SystemExit",
        "The rank is still running, because a cell cannot end its own rank",
        "To stop the cluster: %mhjax stop",
        on_ranks("rank"),
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
        "The call is in the loop on line 2, and rank 0 finished after 2 launches",
        "Run the same number of steps on every rank",
        on_ranks("for step in range(2):\n    total(x)"),
    ),
    "other order": Mistake(
        on_ranks("for f in (total, largest) if rank else (largest, total):\n    f(x)"),
        "rank 1   jit(sum)",
        "The loop on line 2 may run in a different order on some ranks",
        "Sort what it loops over (such as a set or os.listdir), and let nothing in it depend on the rank",
        on_ranks("for f in (total, largest):\n    f(x)"),
    ),
    "other functions": Mistake(
        on_ranks("f = (total, largest)[rank]\nf(x)"),
        "rank 1   jit(max)",
        "launch 1",
        "Call the same function with the same shapes on line 3 on every rank",
        on_ranks("f = total\nf(x)"),
    ),
    "calls in other branches": Mistake(
        on_ranks("if x.addressable_shards[0].data[0] > 0:\n    total(x)\nlargest(x)"),
        "rank 1   jit(sum)",
        "line 4:  largest(x)",
        "Make the calls on lines 3 and 4 on every rank, in the same order",
        on_ranks("total(x)\nlargest(x)"),
    ),
    "tree of other histories": Mistake(
        on_ranks(
            "params = {n: x * (n + rank) for n in range(40)}\nsummed = jax.jit(lambda p: sum(map(jnp.sum, p.values())))\nsummed(params)"
        ),
        "arrays that were computed differently",
        "params[0], params[1], params[2] and 37 more, f32[8], are from jit(multiply)",
        "Compute the array the same way on every rank",
        on_ranks("summed({n: x * n for n in range(40)})"),
    ),
    "other histories": Mistake(
        on_ranks("y = x * (2 if rank == 1 else 1)\ntotal(y)"),
        "y, f32[8], is from jit(multiply)",
        "arrays that were computed differently",
        "Compute the array the same way on every rank",
        on_ranks("total(x * 2)"),
    ),
    "unequal data": Mistake(
        on_ranks("jax.device_put(jnp.arange(4.0) + rank, NamedSharding(mesh, P()))"),
        "AssertionError",
        "device_put onto a global sharding needs the same value on every rank",
        "use jax.make_array_from_process_local_data with a sharding that splits the array",
        on_ranks("jax.make_array_from_process_local_data(NamedSharding(mesh, P('data')), np.arange(4.0) + rank)"),
    ),
    "unequal replicas": Mistake(
        UNEQUAL_REPLICAS,
        "the ranks have different values in replicas of one array, f32[4]",
        "for example, the values 0 and 1",
        "or %mhjax accept",
        "%mhjax accept",
        raises=False,
    ),
    "cell of a tainted cluster": Mistake(
        on_ranks("1"),
        "this cell was not run, because the cluster is tainted",
        "the ranks have different values in replicas of one array",
        "Or: %mhjax accept",
        "%mhjax accept",
        before=(UNEQUAL_REPLICAS,),
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

ENDING = {
    "export over another file": Mistake(
        "%mhjax export train.py",
        "train.py exists",
        "is not an export of mhnb",
        "choose another name, or move the file",
        "%mhjax export other.py",
        before=("open('train.py', 'w').close()",),
    ),
    "loop interrupted without a guard": Mistake(
        "%%mhjax --guard off --timeout 1\nfor step in range(2 if rank == 0 else 0):\n    y = float(total(x))",
        "--timeout ended it · KeyboardInterrupt on rank 0",
        "rank 0 ",
        "tainted (results may be wrong) · %mhjax restart --replay (",
        "%mhjax accept",
    ),
    "launch after it was accepted": Mistake(
        on_ranks("float(largest(x))"),
        "a launch was refused",
        "this rank may still be waiting in an unrecorded collective of In [",
        "tainted (results may be wrong) · %mhjax restart --replay (",
        "%mhjax restart",
    ),
    "name from before a plain restart": Mistake(
        on_ranks("total(x)"),
        "name 'total' is not defined",
        "] set `total` before the restart.",
        "To get it back: %mhjax restart --replay",
        "%mhjax restart --replay",
    ),
    "killed rank": Mistake(
        on_ranks("import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)"),
        "rank 1 (host1, pid ",
        "was killed by SIGKILL (often by the memory limit) · log ",
        "%mhjax restart --replay",
        before=(on_ranks("assert float(largest(x)) == 7"),),
    ),
    "cell of a dead cluster": Mistake(
        on_ranks("1"),
        "this cell was not run, because the cluster is dead",
        "was killed by SIGKILL",
        "Fix: %mhjax restart",
    ),
    "accept of a dead cluster": Mistake(
        "%mhjax accept",
        "a dead cluster cannot be accepted",
        "because a rank is lost",
        "Fix: %mhjax restart --replay",
        "%mhjax restart --replay",
    ),
    "rank that ends itself": Mistake(
        on_ranks("import os\nif rank == 1:\n    os._exit(3)"),
        "rank 1 (host1, pid ",
        "ended by itself with exit code 3 · log ",
        "%mhjax restart --replay",
        before=(on_ranks("assert float(largest(x)) == 7"),),
    ),
}
"""Mistakes that cost a rank or its variables, in order: each row begins with the cluster as the one above leaves it."""

SHELL = {
    "misspelt option": Mistake(
        "mhnb --hepl", "unrecognized arguments", "--hepl", "did you mean --help?)\n  Help: mhnb help", "mhnb help"
    ),
    "command of the notebook": Mistake(
        "mhnb attach",
        "'attach' is not a command of the shell",
        "because it needs a notebook",
        "Fix: in a notebook cell: %mhjax attach",
    ),
    "status of an unknown cluster": Mistake(
        "mhnb status nobody", "unknown cluster 'nobody'", "expected default", "Fix: mhnb list", "mhnb list"
    ),
}
"""Mistakes in a shell beside the notebook."""

TABLE = TYPED | ON_RANKS | VALUES


@pytest.fixture
def user(nb: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The session, whose own variables are those of before after the test; no start finds a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = set(nb.shell.user_ns)
    yield nb
    nb.shell.drop_by_id({name: nb.shell.user_ns[name] for name in set(nb.shell.user_ns) - before})


def examine(user: Session, mistake: Mistake) -> None:
    """Make a mistake; check its message, reason and step, and follow the step."""
    for cell in mistake.before:
        user.run(cell)
    outcome = user.try_(mistake.cell)
    assert (outcome.error is not None) is mistake.raises
    for part in (mistake.message, mistake.reason, mistake.step):
        assert part in outcome.text, outcome.text
    assert re.search(r"mhnb/\w+/\w+\.py", outcome.text) is None
    if mistake.then:
        user.run(mistake.then)


@pytest.mark.parametrize("name", list(TABLE))
def test_mistake_has_message_reason_and_step(user: Session, name: str) -> None:
    """The output of a mistake has no frame of mhnb, says what happened, why, and what to do; that then works."""
    user.run(SETUP)
    examine(user, TABLE[name])


@pytest.fixture
def spoilt(idle: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session in an empty folder with a cluster of its own, which need not be clean at the end."""
    monkeypatch.chdir(tmp_path)
    with hidden_clusters():
        manager.start(2, 2, name="spoilt")
        yield idle
        last = manager.by_name("spoilt")
        pids = list_pids(last)
        last.stop()
        assert wait_for_exit(pids) == []


def test_mistake_that_costs_a_rank_has_message_reason_and_step(spoilt: Session) -> None:
    """The same for mistakes that end ranks, leave them out of step, or lose their variables; a replay brings them back."""
    spoilt.run(SETUP)
    for mistake in ENDING.values():
        examine(spoilt, mistake)


@pytest.mark.parametrize("name", list(SHELL))
def test_mistake_in_the_shell_has_message_reason_and_step(
    nb: Session, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The same for a line of the shell."""
    mistake = SHELL[name]
    try:
        status = main(shlex.split(mistake.cell)[1:])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status != 0
    text = capsys.readouterr().err
    for part in (mistake.message, mistake.reason, mistake.step):
        assert part in text, text
    if mistake.then:
        assert main(shlex.split(mistake.then)[1:]) == 0


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
