"""The hooks into JAX, on real ranks: what is recorded of each kind of launch, and what is left unchanged.

All cells run once, in order, in three processes of two devices each (`hooked_rank.py`); each test checks one cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mhnb.core.guard.launch_report import LaunchRow
from mhnb.core.guard.launches import LOCAL_PREFIX, compare_launches, judge_state
from mhnb.core.hints import find_hint
from mhnb.rank import jax_private
from mhnb.rank.guard.launch_recorder import LaunchRecorder
from mhnb.transport.addresses import find_free_port
from tests.support.source import ROOT

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(480)]

RANKS = 3
Answers = dict[str, dict[int, dict[str, Any]]]

CELLS: dict[str, str] = {
    "jit": "f = jax.jit(lambda a: a.sum())\nvalue = float(f(x))\nfor i in range(5):\n    f(x)",
    "other line": "f = jax.jit(lambda a: a.sum())\n\n\nfor i in range(2):\n\n    f(x)",
    "in a function": "def g(a):\n    return f(a)\n\ng(x)",
    "old function": "g(x)",
    "pmap": "jax.pmap(lambda a: jax.lax.psum(a, 'i'), axis_name='i')(np.ones((2, 3)))",
    "shard_map": """
s = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, 'x'), mesh=mesh, in_specs=P('x'), out_specs=P()))
for i in range(3): s(x)""",
    "eager": "x.sum()",
    "no collective": "y = jnp.sin(x) + 1",
    "reshard": "y = jax.device_put(x, whole)",
    "device_put": "y = jax.device_put(np.arange(12, dtype=np.float32), rows)",
    "process_allgather": "from jax.experimental import multihost_utils as m\nm.process_allgather(np.ones(3))",
    "broadcast_one_to_all": "m.broadcast_one_to_all(np.ones(3))",
    "sync_global_devices": "m.sync_global_devices('here')",
    "ahead of time": "c = jax.jit(lambda a: a.max()).lower(x).compile()\nfor i in range(4): c(x)",
    "serialised": """
from jax.experimental import serialize_executable as se
c = se.deserialize_and_load(*se.serialize(jax.jit(lambda a: a.min()).lower(x).compile()))
for i in range(3): c(x)""",
    "serialised on one rank": """
c = jax.jit(lambda a: (a + 1).min()).lower(x).compile()
c = se.deserialize_and_load(*se.serialize(c)) if rank == 1 else c
value = float(c(x))""",
    "grad and scan": """
loss = lambda w, x: jax.lax.scan(lambda c, _: (c + (w * x).sum(), None), 0.0, None, length=3)[0]
value = float(jax.jit(jax.grad(loss))(2.0, x))""",
    "donation": """
d = jax.jit(lambda a: a * 2 + a.sum(), donate_argnums=0, out_shardings=rows)
y = spread(np.arange(12))
for i in range(4): y = d(y)""",
    "donated twice": "y = spread(np.arange(12)); d(y)\nd(y)",
    "sub-mesh": """
if rank < 2:
    part = NamedSharding(Mesh(np.array(jax.devices()[:4]), ('x',)), P('x'))
    jax.jit(jnp.sum)(jax.make_array_from_callback((8,), part, lambda i: np.arange(8.0)[i], dtype=np.float32))""",
    "mutable": "r = jax.new_ref(x)\n@jax.jit\ndef bump(): r[...] += r[...].sum()\nbump()",
    "keys": """
k = jax.jit(lambda a: jax.random.split(jax.random.key(a.sum().astype(int)), 12), out_shardings=rows)
for i in range(70): value = str(k(x).dtype)""",
    "thread": "import threading\nt = threading.Thread(target=x.max); t.start(); t.join()",
    "local": "b = jax.jit(lambda a: a + 1)\nfor i in range(10): b(1.0)",
    "local stays fast": """
count = [0]
original = jax._src.pjit._pjit_call_impl_python
def counted(*args, **kwargs):
    count[0] += 1
    return original(*args, **kwargs)
jax._src.pjit._pjit_call_impl_python = counted
here, everywhere = jax.jit(lambda a: a + 2), jax.jit(lambda a: a + 3)
for i in range(10): here(1.0)
value = [count[0]]
for i in range(10): everywhere(x)
value.append(count[0] - value[0])
jax._src.pjit._pjit_call_impl_python = original""",
    "print": """
said = []
jax.jit(lambda a: (jax.debug.callback(lambda s: said.append(float(s)), a.sum()), a)[1])(x)""",
    "printed": "value = said",
    "long loop": """
st, y, most = jax.jit(lambda a: a + 0 * a.sum(), out_shardings=rows), x, 0
for i in range(1000):
    y = st(y)
    most = max(most, len(recorder._running))
value = most""",
    "variants": """
jax.jit(lambda a: a.prod())(x)
jax.jit(lambda a: a.prod(), out_shardings=whole)(x)
jax.jit(lambda a: a.prod(), donate_argnums=0)(spread(np.arange(12)))
jax.jit(lambda a: a.prod())(spread(np.arange(24)))
jax.jit(lambda a: a.prod() + 1)(x)
jax.jit(lambda a: a.prod())(jax.device_put(np.arange(12, dtype=np.float32), NamedSharding(swapped, P('x'))))""",
    "same again": "jax.jit(lambda a: a.prod())(x)",
    "callback fails": """
def boom(v): raise ValueError('boom')
jax.jit(lambda a: jax.pure_callback(boom, jax.ShapeDtypeStruct((), np.float32), a.sum()))(x)""",
    "print fails": "jax.jit(lambda a: (jax.debug.callback(boom, a.sum()), a + 1)[1])(x)",
    "after failures": "value = float(x.sum())",
    "errors": """
wrong = ["np.asarray(x)", "jax.jit(lambda a: a + x)(1.0)", "jax.distributed.initialize()",
    "jax.device_put(np.arange(12.0) + rank, rows)", "x + jax.device_put(np.ones(12), jax.local_devices()[0])",
    "jax.device_put(np.ones(7), rows)", "jax.device_put(np.ones(8), P('x'))", "NamedSharding(mesh, P('z'))",
    "jax.jit(lambda a: jax.lax.psum(a, 'zz'))(1.0)", "m.process_allgather(x)",
    "jax.jit(lambda a: a, in_shardings=rows)(np.ones(12))",
    "jax.device_put(np.ones(12), NamedSharding(mesh, P('x', None)))",
    "jax.tree_map(abs, x)", "z = spread(np.arange(12)); d(z); z + 1", "m.sync_global_devices(str(rank))",
    "jax.config.update('jax_num_cpu_devices', 4)"]
value = []
for w in wrong:
    try: exec(w)
    except Exception as e: value.append([w, type(e).__name__, str(e)])
    else: value.append([w, '', ''])""",
    "different order": "for g in (jnp.sum, jnp.max) if rank else (jnp.max, jnp.sum): g(x)",
    "alone": """
import signal
if rank == 0:
    x.min()
    bump()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()""",
}


def _spawn(rank: int, port: int, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_PREEMPTION_SERVICE": "0",
        "PJRT_NPROC": "32",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_cpu_collective_timeout_seconds=60",
        "no_proxy": "127.0.0.1",
    }
    arguments = [sys.executable, str(Path(__file__).with_name("hooked_rank.py")), str(rank), str(RANKS), str(port)]
    stdout_path, stderr_path = folder / f"{rank}.out", folder / f"{rank}.err"
    with (folder / "cells").open() as cells, stdout_path.open("w") as out, stderr_path.open("w") as err:
        return subprocess.Popen(arguments, stdin=cells, stdout=out, stderr=err, env=environment, text=True)


def _read(folder: Path) -> Answers:
    answers: Answers = {name: {} for name in CELLS}
    for rank in range(RANKS):
        for line in (folder / f"{rank}.out").read_text().splitlines():
            if line.startswith("\x00"):
                answer = json.loads(line[1:])
                answers[answer["name"]][rank] = answer
    return answers


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    """Each rank's record of each cell."""
    with tempfile.TemporaryDirectory(prefix="mhnb-") as name:
        folder, port = Path(name), find_free_port()
        (folder / "cells").write_text("".join(json.dumps(cell) + "\n" for cell in CELLS.items()))
        ranks = [_spawn(rank, port, folder) for rank in range(RANKS)]
        try:
            for process in ranks:
                process.wait(timeout=200)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        stderr_text = "".join((folder / f"{rank}.err").read_text()[-2000:] for rank in range(RANKS))
        assert all(process.returncode == 0 for process in ranks), stderr_text
        yield _read(folder)


def rows_of(answers: Answers, name: str) -> list[Any]:
    """Return the rows of a cell; they must be the same on every rank, and the cell must have no error."""
    by_rank = answers[name]
    assert [by_rank[rank]["error"] for rank in range(RANKS)] == [None] * RANKS
    assert all(by_rank[rank]["rows"] == by_rank[0]["rows"] for rank in range(RANKS))
    assert all(by_rank[rank]["abandoned"] == 0 for rank in range(RANKS))
    rows: list[Any] = by_rank[0]["rows"]
    return rows


def read_rows(answer: Mapping[str, Any]) -> list[LaunchRow]:
    """Return the launches that a rank has recorded."""
    return msgspec.convert(answer["rows"], list[LaunchRow])


def state_after(by_rank: Mapping[int, dict[str, Any]]) -> str:
    """Return the cluster's state after a cell."""
    outcomes = {rank: "error" if a["error"] else "ok" for rank, a in by_rank.items()}
    rows = {rank: read_rows(answer) for rank, answer in by_rank.items()}
    abandoned = {rank: answer["abandoned"] for rank, answer in by_rank.items()}
    abandoned_launches = {rank: "a collective" for rank, count in abandoned.items() if count}
    return judge_state(outcomes, rows, abandoned_launches, ())[0]  # type: ignore[arg-type]


def test_every_launch_is_recorded(answers: Answers) -> None:
    """Each call of a compiled function on a global array is recorded, with name, types, ranks, line and count."""
    first, loop = rows_of(answers, "jit")
    assert first[1:] == ["jit(<lambda>) f32[12] → f32[]", [0, 1, 2], 2, 1]
    assert loop == [*first[:3], 4, 5]
    assert answers["jit"][1]["value"] == 66.0


def test_fingerprint_does_not_depend_on_the_line(answers: Answers) -> None:
    """The same program called from other lines, cells and functions has the same fingerprint."""
    names = ("jit", "other line", "in a function", "old function")
    assert len({row[0] for name in names for row in rows_of(answers, name)}) == 1
    assert rows_of(answers, "other line")[0][3:] == [6, 2]


def test_line_belongs_to_the_running_cell(answers: Answers) -> None:
    """The recorded line is the innermost of the running cell: in its function, or where it calls an older cell's function."""
    assert [rows_of(answers, name)[0][3] for name in ("in a function", "old function")] == [2, 1]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("pmap", 1),
        ("shard_map", 3),
        ("eager", 1),
        ("reshard", 1),
        ("device_put", 1),
        ("process_allgather", 1),
        ("broadcast_one_to_all", 1),
        ("sync_global_devices", 1),
        ("ahead of time", 4),
        ("serialised", 3),
        ("grad and scan", 1),
        ("donation", 4),
        ("thread", 1),
    ],
)
def test_each_kind_of_launch_is_recorded(answers: Answers, name: str, count: int) -> None:
    """Every launch of a program with a collective is recorded, however it is launched, also the second and later ones."""
    rows = rows_of(answers, name)
    assert sum(row[4] for row in rows) == count
    assert all(row[2] == [0, 1, 2] and not row[0].startswith(LOCAL_PREFIX) for row in rows)


def test_program_without_collectives_is_not_recorded(answers: Answers) -> None:
    """Element-wise work on a global array leaves no row, so its order cannot cause a mismatch."""
    assert rows_of(answers, "no collective") == []


def test_participants_are_exact(answers: Answers) -> None:
    """A program on a sub-mesh names the ranks of its devices, and only those launch it."""
    by_rank = answers["sub-mesh"]
    assert [[row[2] for row in by_rank[rank]["rows"]] for rank in range(RANKS)] == [[[0, 1]], [[0, 1]], []]
    assert state_after(by_rank) == "clean"


def test_local_programs_are_not_recorded(answers: Answers) -> None:
    """A compiled function on this rank's own devices leaves no row."""
    assert rows_of(answers, "local") == []


def test_local_programs_keep_the_fast_path(answers: Answers) -> None:
    """Of ten calls, a program takes JAX's slow path once, to compile; later calls use C++ or the cache of signatures."""
    assert [answers["local stays fast"][rank]["value"] for rank in range(RANKS)] == [[1, 1]] * RANKS


def test_program_variants_differ(answers: Answers) -> None:
    """A different sharding, donation, shape, function or device order makes another program; an equal call makes the same."""
    fingerprints = [row[0] for row in rows_of(answers, "variants") if "prod" in row[1] or "<lambda>" in row[1]]
    assert len(fingerprints) == len(set(fingerprints)) == 6
    assert rows_of(answers, "same again")[0][0] == fingerprints[0]


def test_loaded_executable_has_the_fingerprint_of_the_compiled_one(answers: Answers) -> None:
    """An executable that was serialised and loaded on one rank is recorded as the program that the others compiled."""
    by_rank = answers["serialised on one rank"]
    assert [by_rank[rank]["error"] for rank in range(RANKS)] == [None] * RANKS
    assert [by_rank[rank]["value"] for rank in range(RANKS)] == [1.0] * RANKS
    assert len({row.fingerprint for rank in range(RANKS) for row in read_rows(by_rank[rank])}) == 1


def test_refused_launch_is_not_counted(answers: Answers) -> None:
    """A call with a donated array raises, launches nothing, and leaves the cluster clean."""
    by_rank = answers["donated twice"]
    assert all("has been deleted" in by_rank[rank]["error"] for rank in range(RANKS))
    assert [[row[4] for row in by_rank[rank]["rows"]] for rank in range(RANKS)] == [[1]] * RANKS
    assert state_after(by_rank) == "clean"


def test_mutable_arrays_are_waited_for(answers: Answers) -> None:
    """A program whose only result is written to a mutable array is recorded; if it is given up it is abandoned (below)."""
    assert [row[1] for row in rows_of(answers, "mutable") if "bump" in row[1]] == ["jit(bump) f32[12] → f32[12]"]


def test_arrays_of_keys_are_waited_for(answers: Answers) -> None:
    """A program that returns typed random keys, which have no readiness check, is recorded like any other."""
    assert rows_of(answers, "keys")[-1][4] == 70
    assert answers["keys"][0]["value"] == "key<fry>"


def test_callbacks_run_before_the_cell_ends(answers: Answers) -> None:
    """Output of callbacks in compiled code exists before the cell ends, on the rank that runs the callback."""
    rows_of(answers, "print")
    printed = [answers["printed"][rank]["value"] for rank in range(RANKS)]
    assert [66.0] in printed


def test_long_loop_keeps_few_arrays(answers: Answers) -> None:
    """In a loop of 1,000 launches the record keeps only those that are still running."""
    assert rows_of(answers, "long loop")[0][4] == 1000
    assert max(answers["long loop"][rank]["value"] for rank in range(RANKS)) <= 128


@pytest.mark.parametrize("name", ["callback fails", "print fails"])
def test_failures_belong_to_their_cell(answers: Answers, name: str) -> None:
    """A callback that raises fails the cell that launched it, on the rank where it ran; the ranks stay in sync."""
    errors = [answers[name][rank]["error"] for rank in range(RANKS)]
    assert any(error is not None and "boom" in error for error in errors)
    assert state_after(answers[name]) == "clean"


def test_failure_is_raised_once(answers: Answers) -> None:
    """A failure of one cell is not raised again by the next."""
    rows_of(answers, "after failures")
    assert answers["after failures"][0]["value"] == 66.0


def test_every_error_finds_its_hint(answers: Answers) -> None:
    """The errors in the hint table, provoked on the installed JAX, still find their hints."""
    missing = [case for case in answers["errors"][0]["value"] if find_hint(case[1], case[2]) is None]
    assert missing == []


def test_different_order_is_detected(answers: Answers) -> None:
    """Two collectives of equal size in another order cause no error in JAX, but the record shows the difference."""
    rows = {rank: read_rows(answers["different order"][rank]) for rank in range(RANKS)}
    difference = compare_launches(rows)
    assert difference is not None
    assert difference.index == 0
    assert [side.ranks for side in difference.groups] == [(0,), (1, 2)]
    assert state_after(answers["different order"]) == "tainted"


def test_interrupted_collective_is_abandoned(answers: Answers) -> None:
    """Ctrl-C in the wait for two collectives that no other rank launched abandons both, and the cluster is tainted."""
    by_rank = answers["alone"]
    assert by_rank[0]["error"].startswith("KeyboardInterrupt")
    assert [by_rank[rank]["abandoned"] for rank in range(RANKS)] == [2, 0, 0]
    assert state_after(by_rank) == "tainted"


class FakeCall:
    """Stands in for JAX's call object: dispatches, makes the outputs, and raises where the test wants it."""

    def __init__(self, at_dispatch: BaseException | None = None, at_outputs: BaseException | None = None) -> None:
        self.xla_executable: Any = self
        self.mut, self.ordered_effects = None, ()
        self._at_dispatch, self._at_outputs = at_dispatch, at_outputs

    def call(self) -> Any:
        return jax_private._launch_and_settle(self._launch)

    def _launch(self) -> Any:
        return self.xla_executable.execute_sharded([]).consume_with_handlers([])

    def execute_sharded(self, arguments: list[object]) -> FakeCall:
        assert arguments == []
        if self._at_dispatch is not None:
            raise self._at_dispatch
        return self

    def consume_with_handlers(self, handlers: list[object]) -> list[object]:
        assert handlers == []
        if self._at_outputs is not None:
            raise self._at_outputs
        return []


@pytest.mark.parametrize(
    ("call", "launches", "abandoned"),
    [
        (FakeCall(), 1, 0),
        (FakeCall(at_dispatch=RuntimeError("out of memory")), 0, 0),
        (FakeCall(at_outputs=FloatingPointError("nan")), 1, 0),
        (FakeCall(at_dispatch=KeyboardInterrupt()), 1, 1),
        (FakeCall(at_outputs=KeyboardInterrupt()), 1, 1),
    ],
)
def test_dispatch_that_raises(monkeypatch: pytest.MonkeyPatch, call: FakeCall, launches: int, abandoned: int) -> None:
    """A launch that the runtime refused is not recorded, one that raised afterwards is over, an interrupted one is abandoned."""
    recorder = LaunchRecorder()
    monkeypatch.setattr(jax_private, "_recorder", recorder)
    recorded = jax_private._build_hooked(
        lambda: call, jax_private._Program("a", "jit(a)", (0, 1)), lambda made, _: made
    )
    with contextlib.suppress(RuntimeError, FloatingPointError, KeyboardInterrupt):
        recorded.call()
    recorder.wait_all()
    rows, abandoned_count = recorder.end_cell()
    assert (len(rows), abandoned_count) == (launches, abandoned)


def test_hook_frames_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame of the hooks in a traceback sets `__tracebackhide__`."""
    monkeypatch.setattr(jax_private, "_recorder", LaunchRecorder())
    call = FakeCall(at_outputs=FloatingPointError("nan"))
    with pytest.raises(FloatingPointError) as caught:
        jax_private._build_hooked(
            lambda: call, jax_private._Program("a", "jit(a)", (0, 1)), lambda made, _: made
        ).call()
    frames = [
        f for f, _ in traceback.walk_tb(caught.value.__traceback__) if f.f_code.co_filename == jax_private.__file__
    ]
    assert [f.f_code.co_name for f in frames] == ["_launch_and_settle", "consume_with_handlers"]
    assert all(f.f_locals["__tracebackhide__"] for f in frames)


_BARE = """
import jax
from jax._src import pjit, xla_bridge
from jax._src.interpreters import pxla
from mhnb.rank import jax_private as jaxhooks
from mhnb.rank.guard.launch_recorder import LaunchRecorder
names = [(pxla.UnloadedMeshExecutable, "load"), (pxla.UnloadedMeshExecutable, "from_hlo")]
before = [owner.__dict__[name] for owner, name in names]
{change}
statuses = [jaxhooks.install(LaunchRecorder()) for _ in range(2)]
after = [owner.__dict__[name] for owner, name in names]
print(statuses[0] == statuses[1], statuses[0].available, before == after, xla_bridge.backends_are_initialized())
print(statuses[0].reason)
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("del pjit._get_fastpath_data", "_get_fastpath_data"),
        ("pjit._infer_params = lambda fun, args: None", "_infer_params(fun, ji, args, kwargs)"),
        ("pxla.MeshExecutable.create_cpp_call = lambda self: None", "create_cpp_call(params)"),
        ("del __import__('jax')._src.api._nan_check_posthook", "_nan_check_posthook"),
        ("pxla.MeshExecutable.unsafe_call = None", "MeshExecutable.unsafe_call"),
        ("before[0] = pxla.UnloadedMeshExecutable.load = lambda self, more: None", "UnloadedMeshExecutable.load()"),
        ("pxla.ExecuteReplicated.__call__ = lambda self, *a: self.xla_executable.run(a)", "has no attribute 'run'"),
    ],
)
@pytest.mark.sample(2)
def test_incompatible_jax_stays_unchanged(change: str, reason: str) -> None:
    """If a private name is missing or behaves differently, the status names it, and JAX stays unchanged."""
    first, second = _run_bare(change)
    assert first == "True False True False"
    assert reason in second


def test_probe_makes_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe launches through JAX's own call object, and names each step that does not pass its values on."""
    from jax._src.interpreters import pxla

    def probe(launch: Callable[[Any, object], object]) -> list[str]:
        monkeypatch.setattr(pxla.ExecuteReplicated, "__call__", launch)
        return [name.rpartition(" with ")[2] for name in jax_private._missing_launch_steps(pxla)]

    original: Any = pxla.ExecuteReplicated.__call__
    assert probe(original) == []
    assert probe(lambda call, argument: original(call, argument)[1:]) == ["these outputs"]
    assert probe(lambda call, argument: call.xla_executable.execute_sharded([argument]).outputs) == [
        "consume_with_handlers(handlers)"
    ]
    assert probe(lambda call, _: call.xla_executable.consume_with_handlers(call.out_handler.handlers)) == [
        "execute_sharded(inputs)"
    ]


def test_install_initialises_no_backend() -> None:
    """Installing the hooks, also twice, initialises no backend."""
    assert _run_bare("") == ["True True False False", ""]


def test_second_install_replaces_only_the_recorder() -> None:
    """A second install replaces only the recorder, and does not hook JAX again."""
    change = "jaxhooks.install(LaunchRecorder()); before = [owner.__dict__[name] for owner, name in names]"
    assert _run_bare(change) == ["True True True False", ""]


def test_initialize_finds_the_registered_cluster() -> None:
    """After `register_cluster_env`, `jax.distributed.initialize()` needs no arguments, even inside another cluster's job."""
    program = (
        "import jax\nfrom mhnb.rank import jax_private\n"
        f"jax_private.register_cluster_env(dict(coordinator_address='127.0.0.1:{find_free_port()}', num_processes=1, process_id=0))\n"
        "jax.distributed.initialize()\nprint(jax.process_count(), jax.distributed.is_initialized())"
    )
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "nowhere", "SLURM_NTASKS": "9", "SLURM_PROCID": "8"}
    assert _run(program, slurm | {"SLURM_LOCALID": "0"}) == ["1 True"]


def _run_bare(change: str) -> list[str]:
    return [*_run(_BARE.format(change=change), {}), ""][:2]


def _run(program: str, more: dict[str, str]) -> list[str]:
    ours = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_PREEMPTION_SERVICE": "0", "no_proxy": "127.0.0.1"}
    environment = os.environ | ours | more
    arguments = [sys.executable, "-c", program]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()
