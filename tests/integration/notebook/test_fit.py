"""`%mhjax fit f(args) --on MACHINE`, as a user types it, on real ranks.

The compilers of TPUs and GPUs are not used here; tests/unit/test_fits.py has those tests.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from mhnb import compiler
from tests.integration.notebook.conftest import Session

SETUP = """%%mhjax
import jax, jax.numpy as jnp
from functools import partial
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 2), ('data', 'model'))
x = jax.device_put(jnp.ones((64, 32)), NamedSharding(mesh, P('data')))
state = {'w': jax.device_put(jnp.ones((32, 16)), NamedSharding(mesh, P(None, 'model'))), 'step': jnp.zeros(())}
@partial(jax.jit, donate_argnums=0)
def train(state, x):
    print('traced')
    y = jax.sharding.reshard(x @ state['w'], NamedSharding(mesh, P('data', None)))
    return {'w': state['w'] + y.sum(), 'step': state['step'] + 1}
def make(mesh):
    return jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, 'data'), mesh=mesh, in_specs=P('data'), out_specs=P()))
bound = make(mesh)
by_rows = {'state/w': P('data', 'model'), '.*': P()}
"""


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the compilers that this machine may have."""
    monkeypatch.setattr(compiler, "user_data_path", lambda _: tmp_path)


@pytest.fixture
def ready(nb: Session) -> Session:
    """A session with a mesh of (data 2, model 2), a state, a batch and a step that names the mesh."""
    nb.run(SETUP)
    return nb


def test_the_own_call_is_planned_for_another_mesh(ready: Session) -> None:
    """The ranks' values give shapes and specs; the mesh that the function names is replaced; nothing is run or changed."""
    out = ready.run('%mhjax fit train(state, x) --on cpu:4x4 --mesh "data 8, model 2"').out
    assert "fit · train · cpu:4x4 · mesh (data 8, model 2)" in out
    # 64 x 32 floats over 8, 32 x 16 over 2, and a scalar.
    assert re.search(r"^arguments +2\.0 KiB$", out, re.MULTILINE)
    assert re.search(r"^state\['w'\] +f32\[32,16\] +P\(None, 'model'\) +1\.0 KiB$", out, re.MULTILINE)
    # Of the reshard: a device receives both halves of 8 rows.
    assert re.search(r"all-gather +f32\[8,16\] +model \(inside\) +1 +256 B +0 B +In \[\d+\], line 11\n", out)
    assert re.search(r"of it in the place of donated arguments", out)
    assert "traced" in out
    assert "data: 2" in ready.run("%%mhjax --ranks 0\nprint(mesh)").out.replace("'data': 2", "data: 2")


def test_specs_by_path_take_precedence(ready: Session) -> None:
    """`--specs NAME` lays the arguments out by patterns of their paths; the first that matches counts."""
    out = ready.run('%mhjax fit train(state, x) --on cpu:2x4 --mesh "data 4, model 2" --specs by_rows').out
    assert re.search(r"^state\['w'\] +f32\[32,16\] +P\('data', 'model'\) +256 B$", out, re.MULTILINE)
    assert re.search(r"^x +f32\[64,32\] +P\(\) +8\.0 KiB$", out, re.MULTILINE)


def test_values_need_not_exist(ready: Session) -> None:
    """A state of `jax.eval_shape` is planned, even if no machine here could hold it."""
    ready.run("%%mhjax\nlarge = jax.eval_shape(lambda: jnp.zeros((1 << 20, 1 << 20)))\nrows = {'large': P('data')}")
    out = ready.run('%mhjax fit jnp.sin(large) --on cpu:2x4 --mesh "data 8" --specs rows').out
    assert re.search(r"^large +f32\[1048576,1048576\] +P\('data'\) +512\.0 GiB$", out, re.MULTILINE)


def test_search_compares_every_mesh(ready: Session) -> None:
    """`--search` compiles for each way to divide the devices; one that a shape does not allow says so."""
    ready.run("%%mhjax\nodd = jax.device_put(jnp.ones((6, 64)), NamedSharding(mesh, P('data', 'model')))")
    out = ready.run('%mhjax fit jnp.sum(odd) --on cpu:2x2 --mesh "data, model" --search').out
    assert re.search(r"^3 meshes in ", out, re.MULTILINE)
    assert re.search(r"^data 1, model 4 +\d+ B", out, re.MULTILINE)
    assert re.search(r"^data 4, model 1 .*4 does not divide 6", out, re.MULTILINE)
    assert "jax.make_mesh(" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bound(x) --on cpu:4x4 --mesh 'data 8, model 2'", "the function uses a mesh of devices that are here"),
        ("train(state, x) --on cpu:4x4 --mesh 'data 3'", "expected sizes whose product is 16"),
        ("train(state, x) --on cpu:4x4 --mesh 'rows 16'", "unknown axis 'model'; the mesh has 'rows'"),
        ("train(state, x) --on h10:4x4 --mesh 'data 16'", "unknown chip 'h10'"),
        (
            "train(state, x) --on cpu:2x2 --mesh 'data 2, model 2' --specs nope",
            "--specs nope: expected the name of a dictionary",
        ),
        ("train(state, x) --on cpu:2x2 --mesh 'data 2' --search", "expected the names of the axes alone"),
        ("train(state, missing) --on cpu:2x2 --mesh 'data 2, model 2'", "name 'missing' is not defined"),
        ("train --on cpu:2x2 --mesh 'data 2, model 2'", "expected a call such as step(params, batch)"),
    ],
)
def test_a_bad_request_names_the_next_step(ready: Session, line: str, says: str) -> None:
    """What cannot be planned is refused with the reason; the ranks' values stay as they were."""
    assert says in ready.try_(f"%mhjax fit {line}").text
    assert ready.run("%%mhjax --ranks 0\nprint(type(mesh).__name__)").out.strip().endswith("Mesh")


def test_a_function_of_the_mesh_gets_the_planned_one(ready: Session) -> None:
    """`(lambda mesh: ...)`, as the error advises, plans a function that closes over its mesh."""
    out = ready.run('%mhjax fit (lambda mesh: make(mesh))(x) --on cpu:4x4 --mesh "data 8, model 2"').out
    assert re.search(r"all-reduce +f32\[8,32\] +data \(hosts\)", out)


def test_a_missing_compiler_is_said_with_its_install_line(ready: Session) -> None:
    """Without the compiler of a machine, the CPU's partitioner answers, marked so, with the line that installs the compiler."""
    out = ready.run('%mhjax fit train(state, x) --on h100:2x2 --mesh "data 2, model 2"').out
    assert "The compiler of NVIDIA H100" in out
    assert re.search(r"-m pip install --no-deps --target '.*compilers/cuda-[\d.]+' 'jax-cuda12-plugin==", out)
    assert "all-gather" in out
    assert not re.search(r"^step ", out, re.MULTILINE)


def test_ctrl_c_while_tracing_leaves_the_own_mesh(ready: Session, tmp_path: Path) -> None:
    """After Ctrl-C, the mesh is today's at once, and a mesh that a later cell makes stays."""
    pipe = tmp_path / "tracing"
    os.mkfifo(pipe)
    ready.run(f"""%%mhjax
import pathlib, threading
go_on = threading.Event()
def waits(x):
    pathlib.Path({str(pipe)!r}).write_text('tracing')
    go_on.wait()
    return x""")

    def interrupt() -> None:
        pipe.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    interrupted = ready.try_('%mhjax fit waits(x) --on cpu:4x4 --mesh "data 8, model 2"')
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert "'data': 2" in ready.run("%%mhjax --ranks 0\nprint(dict(mesh.shape))").out
    ready.run("%%mhjax\nmesh = jax.make_mesh((4,), ('data',))")
    tracing = "[each for each in threading.enumerate() if each.name == 'mhnb-fit']"
    out = ready.run(f"%%mhjax\ngo_on.set()\nfor each in {tracing}: each.join()\nprint(dict(mesh.shape))").out
    assert "{'data': 4}" in out


def test_a_mesh_that_the_function_refuses_does_not_end_a_search(ready: Session) -> None:
    """The table gives the function's reason; the other meshes are tried."""
    ready.run("""%%mhjax
y = jnp.ones((64, 32))
def heads(y):
    assert jax.sharding.get_abstract_mesh().shape['model'] <= 2, 'too few heads'
    return y * 2""")
    out = ready.run('%mhjax fit heads(y) --on cpu:2x2 --mesh "data, model" --search').out
    assert re.search(r"^data 2, model 2 +[\d.]+ KiB", out, re.MULTILINE)
    assert re.search(r"^data 1, model 4 .*too few heads", out, re.MULTILINE)
