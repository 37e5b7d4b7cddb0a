"""`mhnb.fit`: the same figures as compiled by hand, a cache, and machines whose compilers are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mhnb import compiler, fits
from mhnb.compiler import close_shared, compiler_folder
from mhnb.core.program_replies import CompiledFit, FitRequest
from mhnb.errors import InvalidRequest
from mhnb.fits import fit
from mhnb.sharding.fit import Fit
from tests.support.source import ROOT

pytestmark = pytest.mark.slow

MACHINES = [("cpu:4x2", "cpu"), ("h100:2x4", "cuda"), ("v5e:2x4", "tpu")]
installed = [
    pytest.param(machine, platform, marks=[] if platform == "cpu" else pytest.mark.requires_part("compilers"))
    for machine, platform in MACHINES
]

BY_HAND = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
platform, topology = sys.argv[1], json.loads(sys.argv[2])
devices = jax.devices()[:8] if platform == 'cpu' else topologies.get_topology_desc(**topology).devices
grid = mesh_utils.create_device_mesh((4, 2), devices=devices) if platform == 'tpu' else np.array(devices).reshape(4, 2)
mesh = Mesh(grid, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
def array(spec, *shape): return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
def step(w, x): return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
found = jax.jit(step, donate_argnums=0).lower(array(P(None, 'model'), 512, 1024), array(P('data'), 256, 512)).compile().memory_analysis()
print(json.dumps([found.argument_size_in_bytes, found.output_size_in_bytes, found.alias_size_in_bytes, found.temp_size_in_bytes]))
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the answers of each test apart."""
    monkeypatch.setenv("MHNB_HOME", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def ended() -> object:
    """End the helper processes after the last test."""
    yield
    close_shared()


def plan_step(machine: str) -> Fit:
    """Plan one step of gradient descent on (data 4, model 2)."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        gradient: jax.Array = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * gradient

    weights, batch = jax.ShapeDtypeStruct((512, 1024), jnp.float32), jax.ShapeDtypeStruct((256, 512), jnp.float32)
    specs = {"^w$": P(None, "model"), "^x$": P("data")}
    return fit(jax.jit(step, donate_argnums=0), weights, batch, on=machine, mesh="data 4, model 2", specs=specs)


@pytest.mark.parametrize(("machine", "platform"), installed)
def test_figures_are_those_of_a_compilation_by_hand(machine: str, platform: str) -> None:
    """Memory is, byte for byte, that of the same program compiled for the same devices in a plain process."""
    planned = plan_step(machine)
    paths = [str(compiler_folder(platform)), str(ROOT)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    environment |= {"JAX_NUM_CPU_DEVICES": "8", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-c", BY_HAND, platform, json.dumps(planned.machine.topology)]
    by_hand = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert list(planned.memory)[:4] == json.loads(by_hand.splitlines()[-1])
    # x @ w on 4 x 2 devices, and the gradient of w: 2 * 256 * 512 * 1024 operations each, divided by 8.
    assert planned.cost.flops == 2 * 2 * 256 * 512 * 1024 // 8
    # The gradient is added up over data: half of w on each device.
    (gradient,) = [row for row in planned.collectives.rows if row.axes == ("data",)]
    assert (gradient.op, gradient.nbytes_per_device) == ("all-reduce", 512 * 1024 * 4 // 2)
    assert (planned.step is None) == (platform == "cpu")


class Weights(NamedTuple):
    """A class that the helper process does not know, as states of optimizers."""

    w: Any
    key: jax.Array


def test_arguments_are_of_any_class_and_type() -> None:
    """Classes of the user, keys, NumPy's 64 bits and packed types: the bytes of the arguments are the compiler's."""

    def step(state: Weights, x: jax.Array, q: jax.Array) -> Weights:
        key, own = jax.random.split(state.key)
        return Weights(state.w + jax.random.normal(own, state.w.shape) * x.sum() + q.astype(jnp.float32)[:, None], key)

    state = Weights(jax.ShapeDtypeStruct((64, 8), jnp.float32), jax.random.key(0))
    small = jax.ShapeDtypeStruct((64,), jnp.int4)
    found = fit(
        jax.jit(step, donate_argnums=0), state, np.zeros((8,)), small, on="cpu:2x2", mesh="x 4", specs={"w": P("x")}
    )
    types = {each.name: (each.dtype, each.nbytes) for each in found.arguments}
    assert types == {
        "state.w": ("float32", 64 * 8 * 4 // 4),
        "state.key": ("key<fry>", 8),
        "x": ("float32", 8 * 4),
        "q": ("int4", 32),
    }
    assert found.memory.arguments == sum(each.nbytes for each in found.arguments)


def test_the_same_question_is_not_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is kept, for its owner alone; another mesh is another question."""
    first = plan_step("cpu:4x2")
    monkeypatch.setattr(fits, "shared_compiler", lambda _: pytest.fail("asked again"))
    assert plan_step("cpu:4x2").memory == first.memory
    (kept,) = (Path(os.environ["MHNB_HOME"]) / "fit").glob("*.json")
    assert kept.stat().st_mode & 0o077 == 0
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        fit(jnp.sin, jnp.ones((8, 8)), on="cpu:4x2", mesh="x 8")


def test_an_answer_that_cannot_be_read_is_asked_for_again() -> None:
    """A file of another version, or half a file, is replaced."""
    first = plan_step("cpu:4x2")
    (kept,) = (Path(os.environ["MHNB_HOME"]) / "fit").glob("*.json")
    kept.write_text("{")
    assert plan_step("cpu:4x2").memory == first.memory
    assert len(kept.read_text()) > 1


def test_an_answer_that_cannot_be_kept_counts(tmp_path: Path) -> None:
    """A home that cannot be written costs the next compilation, not this answer."""
    (tmp_path / "fit").touch()
    assert plan_step("cpu:4x2").memory.arguments


def test_old_answers_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, the answers that were not asked for the longest are removed."""
    monkeypatch.setattr(fits, "_CACHE_NBYTES", 1)
    plan_step("cpu:4x2")
    assert not list((Path(os.environ["MHNB_HOME"]) / "fit").glob("*.json"))


@pytest.mark.requires_part("compilers")
def test_two_processes_compile_for_tpus_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waits for the other's lock, nor fails because of it."""
    asked: list[FitRequest] = []

    def remember(request: FitRequest) -> None:
        asked.append(request)
        raise InvalidRequest("remembered")

    monkeypatch.setattr(fits, "_compile_or_recall", remember)
    with pytest.raises(InvalidRequest, match="remembered"):
        plan_step("v5e:2x4")

    def compile_once(_: int) -> CompiledFit:
        with compiler.CompileClient("tpu") as helper:
            return helper.compile_fit(asked[0])[1]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(compile_once, range(2))
    assert first.memory == second.memory


@pytest.mark.requires_part("compilers")
def test_what_does_not_fit_is_said_in_bytes() -> None:
    """The TPU's compiler refuses what exceeds the memory; the error gives both sizes."""
    with pytest.raises(InvalidRequest, match=r"does not fit: the compiler needs [\d.]+ GiB of 15\.8 GiB on a device"):
        fit(lambda x: x @ x, jax.ShapeDtypeStruct((65536, 65536), jnp.float32), on="v5e:1x1", mesh="x 1")


@pytest.mark.requires_part("compilers")
def test_slices_communicate_over_their_hosts() -> None:
    """A sum over an axis of 4 slices, 2 x 4 chips each: 3 of 4 parts leave each slice, and take that time on its network."""
    array = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    found = fit(
        lambda x, w: jax.lax.with_sharding_constraint(x @ w, P()),
        array,
        array,
        on="v5e:2x4*4",
        mesh="data 4, model 8",
        specs={"x": P(None, "data"), "w": P("data")},
    )
    (row,) = found.collectives.rows
    nbytes = 2 * 1024 * 1024
    assert (row.op, row.axes, row.nbytes_per_device) == ("all-reduce", ("data",), nbytes)
    assert row.nbytes_across_hosts == nbytes * 3 // 4
    network = found.machine.chip.network
    assert found.step is not None
    assert network is not None
    assert found.step.communication == pytest.approx(2 * nbytes * 3 / 4 / network)


def test_without_a_compiler_the_install_line_names_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line installs into a folder that JAX does not search, with the versions that fit the installed JAX."""
    monkeypatch.setattr(compiler, "user_data_path", lambda _: tmp_path)
    planned = plan_step("v5e:2x4")
    assert planned.step is None
    assert f"--target '{tmp_path}/compilers/tpu-" in planned.missing_compiler
    assert "'libtpu==" in planned.missing_compiler
    # Arguments are exact all the same.
    assert planned.memory.arguments == 512 * 1024 * 4 // 2 + 256 * 512 * 4 // 4


def test_where_uv_made_the_environment_uv_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that uv made has no pip, so the line uses uv's."""
    monkeypatch.setattr(compiler, "find_spec", lambda name: None if name == "pip" else name)
    assert compiler.format_install_line("cuda").startswith(f"uv pip install --python {sys.executable} --no-deps")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on": "v5p:4x4", "mesh": "x 16"}, "has 2 sizes, but a v5p slice has 3"),
        ({"on": "cpu:2x2", "mesh": "x 8"}, "expected sizes whose product is 4"),
        ({"on": "cpu:2x2", "mesh": jax.sharding.AbstractMesh((4,), ("x",))}, "mesh is AbstractMesh; expected axes"),
        ({"on": "cpu:2x2", "mesh": "x 4", "specs": {".*": "P(unreduced={'x'})"}}, "only arrays without partial sums"),
        ({"on": "cpu:2x2", "mesh": "x 4", "specs": {".*": P("y")}}, "unknown axis 'y'; the mesh has 'x'"),
        ({"on": "cpu:2x2", "mesh": "x 4", "specs": {".*": P(None, "x")}}, "4 does not divide"),
        ({"on": "cpu:2x2", "mesh": "x 4", "specs": {"(": P("x")}}, r"'\(' is not a regular expression: missing \)"),
        ({"on": "cpu:64x64", "mesh": "x 4096"}, "4096 devices; expected at most 2048"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], says: str) -> None:
    """Each error names what was given and what was expected."""
    with pytest.raises(InvalidRequest, match=says):
        fit(jnp.sin, jax.ShapeDtypeStruct((8, 6), jnp.float32), **arguments)  # type: ignore[arg-type]  # that is what is tested


def test_a_call_without_arrays_is_laid_out_by_its_results() -> None:
    """What makes a state needs no arguments; if nothing lays its results out, the error shows how."""

    def make() -> jax.Array:
        return jnp.zeros((64, 8))

    found = fit(lambda mesh: jax.jit(make, out_shardings=NamedSharding(mesh, P("x"))), on="cpu:2x2", mesh="x 4")
    assert found.memory.outputs == 64 * 8 * 4 // 4
    explicit = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    array = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(explicit, P("x")))
    unused = fit(jax.grad(jnp.sum), array, on="cpu:2x2", mesh="x 4")
    assert unused.memory.outputs == 64 * 8 * 4 // 4
    with pytest.raises(InvalidRequest, match="nothing in the call is laid out") as refused:
        fit(make, on="cpu:2x2", mesh="x 4")
    assert "devices that are here" not in str(refused.value)


@pytest.mark.parametrize("mesh", ["data 1, model 1", "data 8, model 1"])
def test_a_mesh_of_a_closure_is_refused(mesh: str) -> None:
    """The compiler would take it for the planned mesh if both have as many devices."""
    own = NamedSharding(jax.make_mesh((1,), ("own",), axis_types=(jax.sharding.AxisType.Auto,)), P("own"))
    machine = "cpu:1x1" if mesh.startswith("data 1") else "cpu:2x4"
    with pytest.raises(InvalidRequest, match="mhnb cannot replace it"):
        fit(lambda x: jax.lax.with_sharding_constraint(x, own), jnp.ones((64, 8)), on=machine, mesh=mesh)


def test_an_operation_of_jax_has_the_line_of_the_call() -> None:
    """Not one of mhnb's own files."""
    found = fit(jnp.sum, jax.ShapeDtypeStruct((64, 8), jnp.float32), on="cpu:2x2", mesh="x 4", specs={"a": P("x")})
    assert str(found.collectives.rows[0].source) == "this call, line 1"


def test_arrays_of_a_host_are_refused() -> None:
    """They need none of the device's memory, which is what is planned."""
    on_host = NamedSharding(jax.sharding.AbstractMesh((4,), ("x",)), P("x"), memory_kind="pinned_host")
    with pytest.raises(InvalidRequest, match="pinned_host"):
        fit(jnp.sin, jax.ShapeDtypeStruct((8, 6), jnp.float32, sharding=on_host), on="cpu:2x2", mesh="x 4")


def test_shell_prints_json() -> None:
    """`mhnb fit FUNCTION --json` prints what the report has, and exits with 0 because it fits."""
    command = [
        sys.executable,
        "-m",
        "mhnb",
        "fit",
        "lambda x, w: x @ w",
        "--on",
        "cpu:2x2",
        "--mesh",
        "data 2, model 2",
        "--json",
    ]
    command += ["--array", "x f32[64,32] P('data')", "--array", "w f32[32,16] P(None, 'model')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["memory"]["arguments"] == 64 * 32 * 4 // 2 + 32 * 16 * 4 // 2
    assert (found["fits"], found["operations"], found["collectives"]) == (True, 2 * 64 * 32 * 16 // 4, [])


def test_shell_prints_a_search_as_json() -> None:
    """Nothing but JSON is on stdout; the exit status says whether anything fits."""
    command = [
        sys.executable,
        "-m",
        "mhnb",
        "fit",
        "lambda x: x.sum()",
        "--on",
        "cpu:2x2",
        "--mesh",
        "a, b",
        "--search",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--array", "x f32[6,64] P('a', 'b')"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert [(each["mesh"], each["fits"]) for each in found if each["refusal"]] == [({"a": 4, "b": 1}, False)]
    assert sorted((each["mesh"]["a"], each["fits"]) for each in found) == [(1, True), (2, True), (4, False)]
