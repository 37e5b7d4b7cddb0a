"""Plans: which arrays are legal, what a program communicates on a hypothetical mesh, and the helper process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from mhnb.compiler import MAX_DEVICES, CompileClient
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.magics.sharding import draw_plan
from mhnb.sharding.explorer import PlanInput
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.plan import PlannedArray, example_arrays, make_plan, parse_planned
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from tests.support.source import ROOT
from tests.support.view_samples import StrictPage

pytestmark = pytest.mark.slow

GRID = MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2)


@pytest.fixture(scope="module")
def compiler() -> Iterator[CompileClient]:
    """One helper process, shared by tests that keep it alive."""
    with CompileClient() as helper:
        yield helper


def make_layouts(*arrays: str, mesh: MeshShape = GRID) -> list[Layout]:
    """Return the layouts of arrays written as a user writes them."""
    planned = [parse_planned(text) for text in arrays]
    return [Layout.of(array.shape, mesh, array.spec, dtype=array.dtype) for array in planned]


def test_a_contracted_axis_is_reduced(compiler: CompileClient) -> None:
    """x[m, k] @ w[k, n] with k over the model axis is one all-reduce of a device's rows, inside the hosts."""
    report = compiler.compile_program(
        "matmul", make_layouts("x f32[64,32] P('data', 'model')", "w f32[32,16] P('model', None)")
    )
    (row,) = report.rows
    assert (row.op, row.axes, row.count, row.nbytes_per_device) == ("all-reduce", ("model",), 1, 16 * 16 * 4)
    assert row.nbytes_across_hosts == 0


_CONTRACTED = ("x f32[64,32] P('data', 'model')", "w f32[32,16] P('model', None)")


@pytest.mark.parametrize(("program", "line"), [("matmul", 3), ("mlp", 3), ("attention", 5)])
def test_built_in_program_is_named_in_its_line(compiler: CompileClient, program: str, line: int) -> None:
    """A built-in program's line is reported with the program's name and never with mhnb's own file."""
    plan = make_plan(4, 2, {"data": 4, "model": 2}, example_arrays(program, ("data", "model")))
    arrays = make_layouts(*_CONTRACTED) if program == "matmul" else [layout for _, layout in plan.legal]
    (row,) = compiler.compile_program(program, arrays).rows
    assert str(row.source) == f"built-in {program}, line {line}"
    assert "plan_compiler" not in str(row.why)


def test_axis_over_hosts_crosses_hosts(compiler: CompileClient) -> None:
    """Over the data axis, which visits every host, the all-reduce crosses hosts; with two host labels fewer bytes cross."""
    arrays = make_layouts("x f32[64,32] P(None, 'data')", "w f32[32,16] P('data', None)")
    (row,) = compiler.compile_program("lambda x, w: x @ w", arrays).rows
    assert row.axes == ("data",)
    assert row.crosses
    (near,) = compiler.compile_program("lambda x, w: x @ w", arrays, {0: "a", 1: "a", 2: "b", 3: "b"}).rows
    assert 0 < near.nbytes_across_hosts < row.nbytes_across_hosts


@pytest.mark.parametrize("program", ["mlp", "attention"])
def test_built_in_blocks_reduce_over_model_axis(compiler: CompileClient, program: str) -> None:
    """With weights split by columns and then by rows there is one all-reduce, over the model axis."""
    plan = make_plan(4, 2, {"data": 4, "model": 2}, example_arrays(program, ("data", "model")))
    (row,) = compiler.compile_program(program, [layout for _, layout in plan.legal]).rows
    assert (row.op, row.axes) == ("all-reduce", ("model",))


def test_module_function_is_imported(compiler: CompileClient) -> None:
    """The helper imports `module:function`."""
    (row,) = compiler.compile_program("jax.numpy:sum", make_layouts("x f32[8] P('data')")).rows
    assert row.op == "all-reduce"


def test_a_function_is_sent_as_its_source(compiler: CompileClient) -> None:
    """A function of the notebook is sent as source text, with its decorators and helpers of JAX."""
    source = "@jax.jit\ndef step(x):\n    return jnp.sum(x * 2)\n"
    (row,) = compiler.compile_program(source, make_layouts("x f32[8] P('data')")).rows
    assert row.op == "all-reduce"


def test_lines_refer_to_the_typed_source(compiler: CompileClient) -> None:
    """A row names the line of the function or the expression, never a file of mhnb or `<string>`."""
    layout = Layout.of((8, 8), {"x": 4}, "P('x')")
    rows = compiler.compile_program("def twice(a):\n    b = a * 2\n    return b.sum()", [layout]).rows
    assert {str(row.source) for row in rows} == {"twice, line 3"}
    rows = compiler.compile_program("lambda a: a.sum()", [layout]).rows
    assert {str(row.source) for row in rows} == {"program, line 1"}


def test_a_reshard_names_its_collectives(compiler: CompileClient) -> None:
    """A reshard from rows to the whole array is an all-gather over the data axis."""
    before, after = make_layouts("x f32[8,6] P('data')", "x f32[8,6] P()")
    assert [(row.op, row.axes) for row in compiler.compile_reshard(before, after).rows] == [("all-gather", ("data",))]


@pytest.mark.parametrize("program", ["nope(", "nope", "3", "json:nothing", "lambda x: x @ x", "lambda x, y: x"])
def test_failing_program_is_an_error(compiler: CompileClient, program: str) -> None:
    """The error has the text of any exception of the program, and the helper stays alive."""
    with pytest.raises(InvalidRequest, match=r"cannot be compiled for these arrays: \w+:"):
        compiler.compile_program(program, make_layouts("x f32[8,6] P('data')"))
    assert compiler.compile_program("lambda x: x.sum()", make_layouts("x f32[8,6] P('data')")).rows


def test_a_helper_that_dies_is_replaced(compiler: CompileClient) -> None:
    """A program that ends the helper is an error, and the next request starts another helper."""
    with pytest.raises(ClusterError, match="stopped unexpectedly"):
        compiler.compile_program("__import__('os')._exit(3)", make_layouts("x f32[8] P('data')"))
    assert compiler.compile_program("jax.numpy:sum", make_layouts("x f32[8] P('data')")).rows


def test_helper_ends_with_its_context() -> None:
    """At the end of the context the helper's process has ended."""
    with CompileClient() as helper:
        helper.compile_program("jax.numpy:sum", make_layouts("x f32[8] P('data')"))
        assert helper._process is not None
        pid = helper._process.pid
    assert not psutil.pid_exists(pid)


def test_too_many_devices_are_refused(compiler: CompileClient) -> None:
    """More devices than the limit are refused, and the error reason that the layouts are still valid."""
    mesh = MeshShape.row_major({"a": 2 * MAX_DEVICES})
    with pytest.raises(InvalidRequest, match="compiled for at most 2048 fake devices"):
        compiler.compile_program("jax.numpy:sum", make_layouts("x f32[8192] P('a')", mesh=mesh))


def test_notebook_process_does_not_import_jax() -> None:
    """A fresh process that renders a plan with collectives does not import JAX."""
    program = (
        "import sys\nfrom mhnb.magics.sharding import draw_plan\nfrom mhnb.sharding.explorer import PlanInput\n"
        "from mhnb.view.print_text import print_text\n"
        "from mhnb.compiler import close_shared\n"
        "print('all-reduce' in print_text(draw_plan(PlanInput(program='lambda x, w: (x @ w).sum()'))), 'jaxlib' in sys.modules)\n"
        "close_shared()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["True", "False"], "")


def test_plan_of_1024_devices_is_drawn(compiler: CompileClient) -> None:
    """A plan of 128 hosts x 8 devices with collectives is legal, complete and small."""
    plan_input = PlanInput(128, 8, "data 128, model 8", example_arrays("mlp", ("data", "model")), "mlp")
    drawing = draw_plan(plan_input, compiler)
    assert "all-reduce" in print_text(drawing)
    html = print_html(drawing)
    assert len(html) < 200_000
    assert StrictPage(html).unclosed == []


@pytest.mark.parametrize(
    ("plan_input", "reason"),
    [
        (PlanInput(2, 2), "JAX: … Number of devices 4 must be >= the product of mesh_shape (4, 2)"),
        (PlanInput(mesh="data 4 model 2"), "expected a form such as: data 4, model 2"),
        (
            PlanInput(arrays=(PlannedArray("x", (6,), "P('data')"),)),
            "JAX: … implies that array axis 0 is partitioned 4 times",
        ),
        (PlanInput(arrays=(PlannedArray("x", (-1,), "P()"),)), "sizes must be integers >= 0"),
        (
            PlanInput(arrays=(PlannedArray("x", (8,), "P('z')"),), program="matmul"),
            "collectives are shown once every array is legal",
        ),
    ],
)
def test_invalid_plan_shows_its_reason(plan_input: PlanInput, reason: str) -> None:
    """The reason for invalid input is shown, in JAX's words if it has any, without a compile request."""
    assert reason in print_text(draw_plan(plan_input))


def test_threads_take_turns(compiler: CompileClient) -> None:
    """Threads that share a helper each get their own answer."""

    def move(rows: int) -> int:
        before, after = make_layouts(f"x f32[{rows},8] P('data')", f"x f32[{rows},8] P()")
        (row,) = compiler.compile_reshard(before, after).rows
        return row.nbytes_per_device

    sizes = [4 * 2**power for power in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(move, sizes)) == [rows // 4 * 8 * 4 for rows in sizes]
