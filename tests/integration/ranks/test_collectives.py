"""The communication report on real ranks shows what a call launches, and a request for it launches nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.sharding import request_collectives, request_launched
from mhnb.errors import CallFailed, InvalidRequest, ValueDiffers
from mhnb.sharding.report import Report

SETUP = """
import jax, jax.numpy as jnp, numpy as np, mhnb
from itertools import combinations
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
def put(shape, *spec):
    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(*spec)), lambda i: np.ones(shape, np.float32)[i])
x, up, down = put((128, 64), 'data'), put((64, 256), None, 'model'), put((256, 64), 'model')
def loss(up, down, x):
    return jnp.mean((jnp.tanh(x @ up) @ down) ** 2)
@jax.jit
def step(up, down, x):
    slopes = jax.grad(loss, (0, 1))(up, down, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, (up, down), slopes)
def ring(x):
    turn = lambda _, x: jax.lax.ppermute(x, 'data', [(i, (i + 1) % 4) for i in range(4)])
    return jax.lax.fori_loop(0, 3, turn, x)
ring = jax.jit(jax.shard_map(ring, mesh=mesh, in_specs=P('data'), out_specs=P('data'), check_vma=False))
"""


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    """The shared cluster with a mesh of (data 4, model 2) and two programs."""
    cluster.run(SETUP).check()
    return cluster


def hosts_by_rank(cluster: Cluster) -> dict[int, str]:
    """Return the host of each rank."""
    return {rank.rank: rank.host for rank in cluster.ranks}


def without_reasons(report: Report) -> Report:
    """Return a report without reasons, because a launched program has no lowered module any more."""
    return replace(report, rows=tuple(replace(row, why=None) for row in report.rows), launches=1)


@pytest.mark.other_python
def test_reports_before_and_after_launch_agree(ready: Cluster) -> None:
    """The report of a call that is not made equals that of the same call when it is made; launches are counted."""
    before = [request_collectives(ready, call, hosts_by_rank(ready)) for call in ("step(up, down, x)", "ring(x)")]
    result = ready.run("for _ in range(3): new = step(up, down, x)\ny = ring(x)").check()
    after = request_launched(ready, result.seq, range(4), hosts_by_rank(ready))
    assert [without_reasons(report) for report in after] == [without_reasons(report) for report in before]
    assert [report.launches for report in after] == [3, 1]


@pytest.mark.other_python
def test_report_matches_hand_calculation(ready: Cluster) -> None:
    """The report has the traffic that was calculated by hand.

    Gradients of f32[64,128] and f32[128,64] per device over `data`, a sum of f32[32,64] over `model`, and a ring of three steps.
    """
    report = request_collectives(ready, "step(up, down, x)", hosts_by_rank(ready))
    assert {row.axes for row in report.rows} == {("data",), ("model",)}
    over_data = [row for row in report.rows if row.axes == ("data",)]
    assert sum(row.times * row.nbytes_per_device for row in over_data) == 2 * 4 * 64 * 128
    assert report.nbytes_across_hosts == 2 * 4 * 64 * 128 * 3 // 4
    assert not any(row.crosses for row in report.rows if row.axes == ("model",))
    assert {row.source.file for row in report.rows if row.source} >= {f"<cell {ready.run('0').seq - 1}>"}
    (turn,) = request_collectives(ready, "ring(x)", hosts_by_rank(ready)).rows
    assert (turn.op, turn.axes, turn.count, turn.nbytes_per_device) == ("collective-permute", ("data",), 3, 4 * 32 * 64)
    assert turn.why is not None
    assert turn.why.written


def test_ahead_of_time_program_is_reported(ready: Cluster) -> None:
    """An ahead-of-time program has no lowered module, so the mesh of its shardings names the axes.

    The mesh may have any order of devices.
    """
    code = """
turned = Mesh(np.array(jax.devices()).reshape(4, 2).T, ('model', 'data'), axis_types=(AxisType.Auto,) * 2)
given = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(turned, P(None, 'data')))
compiled = jax.jit(lambda a: a.sum(1), out_shardings=NamedSharding(turned, P())).lower(given).compile()
"""
    ready.run(code).check()
    rows = request_collectives(ready, "compiled(given)", hosts_by_rank(ready)).rows
    assert [row.axes for row in rows if row.op == "all-reduce"] == [("data",)]
    assert all(row.why is not None and row.why.after is None for row in rows)


def test_report_launches_nothing(ready: Cluster) -> None:
    """No rank launches anything for a report, and an argument that needs a launch is not computed."""
    request_collectives(ready, "step(up, down, x)", hosts_by_rank(ready))
    for call in ("step(up + 1, down, x)", "ring(x[:64])", "ring(jax.device_put(x, NamedSharding(mesh, P())))"):
        with pytest.raises(InvalidRequest, match=r"on every rank: .* would be launched: .*assign it to a variable"):
            request_collectives(ready, call, hosts_by_rank(ready))
    seq = ready.run("0").check().seq
    assert request_launched(ready, seq, range(4), hosts_by_rank(ready)) == ()


def test_ranks_with_different_programs_are_reported(ready: Cluster) -> None:
    """A rank with another shape is reported, because it has another program although its collectives are the same."""
    ready.run("part = jax.ShapeDtypeStruct((128 + 64 * (rank == 3), 64), jnp.float32, sharding=x.sharding)").check()
    with pytest.raises(ValueDiffers) as caught:
        request_collectives(ready, "ring(part)", hosts_by_rank(ready))
    assert "ranks 0-2: jit(ring) of f32[128,64] on 8 devices" in str(caught.value)
    assert "rank 3: jit(ring) of f32[192,64] on 8 devices" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("stepp(x)", "NameError: name 'stepp' is not defined; did you mean step"),
        ("step(nowhere, down, x)", "NameError: name 'nowhere' is not defined; %mhjax vars lists"),
        ("x(up)", "is not a function but ArrayImpl"),
        ("step(x)", "TypeError"),
        ("step(up, x, down)", "TypeError"),
        ("jax.nothing(x)", "AttributeError"),
        ("(lambda v: 1 if v.sum() else 2)(x)", "TracerBoolConversionError"),
        ("step('a', down, x)", "TypeError"),
        (
            "jax.device_put(x, NamedSharding(mesh, P()))",
            "%mhjax layout NAME --to SPEC, for the cost of moving an array",
        ),
        ("jax.device_put(x, device=x.sharding)", "%mhjax layout NAME --to SPEC, for the cost of moving an array"),
    ],
)
@pytest.mark.sample(4)
def test_call_that_cannot_be_compiled_is_refused(ready: Cluster, call: str, said: str) -> None:
    """A call that cannot be compiled gives one user error for all ranks, and the cluster stays clean."""
    with pytest.raises((InvalidRequest, CallFailed)) as caught:
        request_collectives(ready, call, hosts_by_rank(ready))
    assert said in str(caught.value)
    assert " on every rank: " in str(caught.value)
    assert ready.state == "clean"


def test_compile_error_has_line_and_hint(ready: Cluster) -> None:
    """A program that does not compile gives the line and the hint that the same call in a cell gives.

    An unknown name is an invalid request, because the user mistyped it.
    """
    defined = ready.run("""explicit = jax.make_mesh((8,), ('e',), axis_types=(AxisType.Explicit,))
def spread(*spec): return jax.device_put(np.ones((8, 8), np.float32), NamedSharding(explicit, P(*spec)))
left, right = spread(None, 'e'), spread('e', None)
@jax.jit
def dot(a, b):
    return a @ b + 1""").check()
    with pytest.raises(CallFailed) as caught:
        request_collectives(ready, "dot(left, right)", hosts_by_rank(ready))
    message = str(caught.value)
    assert caught.value.ename == "ShardingTypeError"
    assert message.startswith("dot(left, right) on every rank: ShardingTypeError: ")
    assert (
        f"\n  cell {defined.seq}, line 6:  return a @ b + 1\n  → The dimension that a and b are summed over" in message
    )
    with pytest.raises(CallFailed, match=r"\n  → The dimension that this line sums over"):
        request_collectives(ready, "jnp.matmul(left, right)", hosts_by_rank(ready))
    with pytest.raises(InvalidRequest, match="on every rank: NameError"):
        request_collectives(ready, "doot(left, right)", hosts_by_rank(ready))
    assert ready.state == "clean"


def test_earlier_cells_cannot_be_requested(ready: Cluster) -> None:
    """A report can be requested only for the cell that ended last."""
    seq = ready.run("y = ring(x)").check().seq
    ready.run("0").check()
    with pytest.raises(InvalidRequest, match=f"another cell has run since cell {seq}"):
        request_launched(ready, seq, range(4), hosts_by_rank(ready))


def test_program_of_two_ranks_is_reported_by_them(ready: Cluster) -> None:
    """A program of two ranks is reported by those ranks, and their devices are the positions."""
    code = """
few = Mesh(np.array(jax.devices()[2:6]).reshape(2, 2), ('r', 'c'), axis_types=(AxisType.Auto,) * 2)
small = jax.make_array_from_callback((8, 4), NamedSharding(few, P('r', 'c')), lambda i: np.ones((8, 4), np.float32)[i])
jax.jit(lambda a: a.sum(0), out_shardings=NamedSharding(few, P('c')))(small).block_until_ready();
"""
    result = ready.run(code, ranks="1-2").check()
    (report,) = request_launched(ready, result.seq, (1, 2), hosts_by_rank(ready))
    (row,) = report.rows
    assert (row.axes, row.groups, row.crosses) == (("r",), ((0, 2), (1, 3)), True)


@pytest.mark.other_python
def test_axes_of_every_mesh(ready: Cluster) -> None:
    """Sums along every choice of axes of several meshes are reported along those axes; JAX is the oracle."""
    code = """
import json
found = []
for sizes in ((8,), (4, 2), (2, 4), (2, 2, 2)):
    names = tuple('abc'[:len(sizes)])
    devices = np.array(jax.devices())[np.random.default_rng(len(found)).permutation(8)].reshape(sizes)
    m = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(sizes))
    for count in range(1, len(sizes) + 1):
        for axes in combinations(names, count):
            f = jax.shard_map(lambda a: jax.lax.psum(a, axes), mesh=m, in_specs=P(), out_specs=P(), check_vma=False)
            given = jax.ShapeDtypeStruct((24,), jnp.float32, sharding=NamedSharding(m, P()))
            (row,) = mhnb.collectives(f, given)
            size = len(row.groups[0])
            positions = [d.process_index for d in devices.flat]
            share = max(1 - sum(positions[p] == positions[q] for q in g) / size for g in row.groups for p in g)
            found.append([axes, row.axes, row.whole_axes, size, row.nbytes_across_hosts / 96, share])
json.dumps(found)
"""
    result = ready.run(code).check()
    texts = {rank.text for rank in result}
    (text,) = texts
    assert text is not None
    found = json.loads(text.strip("'"))
    assert len(found) == 1 + 3 + 3 + 7
    for axes, reported_axes, whole, size, across, share in found:
        assert (axes, whole) == (reported_axes, True)
        assert size in (2, 4, 8)
        assert across == pytest.approx(share, abs=0.02)


def test_jitted_method_gets_its_object(ready: Cluster) -> None:
    """The object on which a jitted method is called is its first argument, as in a call."""
    code = """
from functools import partial
class Model:
    @partial(jax.jit, static_argnums=0)
    def total(self, x, times=1):
        return x.sum(0)
model = Model()
"""
    ready.run(code).check()
    for call in ("model.total(x)", "model.total(x, times=2)", "Model.total(model, x)"):
        (row,) = request_collectives(ready, call, hosts_by_rank(ready)).rows
        assert (row.op, row.axes, row.nbytes_per_device) == ("all-reduce", ("data",), 4 * 64), call


def test_array_of_a_method_call_is_an_argument(ready: Cluster) -> None:
    """The array of `x.sum()` is an argument of the call, not a constant that JAX would refuse."""
    for call in ("x.sum()", "x.sum(axis=0)", "x.T.dot(x)"):
        if call.startswith("x.T"):
            # Only a launch could compute its function.
            with pytest.raises(InvalidRequest, match=r"on every rank: .* would be launched: "):
                request_collectives(ready, call, hosts_by_rank(ready))
        else:
            (row,) = request_collectives(ready, call, hosts_by_rank(ready)).rows
            assert (row.op, row.axes, str(row.source)) == ("all-reduce", ("data",), "this call, line 1")


def test_plain_function_may_branch_on_python_values(ready: Cluster) -> None:
    """A function that is not jitted is lowered over its arrays; its other arguments may choose an axis or a branch."""
    ready.run("def pick(x, how, axis=None): return x.sum(axis) if how == 'sum' else x").check()
    for call in ("jnp.sum(x, axis=0)", "pick(x, 'sum', 0)", "pick(x, axis=0, how='sum')"):
        (row,) = request_collectives(ready, call, hosts_by_rank(ready)).rows
        assert (row.op, row.nbytes_per_device) == ("all-reduce", 4 * 64), call
    assert request_collectives(ready, "pick(x, 'no')", hosts_by_rank(ready)).rows == ()


def test_launch_has_its_own_line_after_a_report_traced_it(ready: Cluster) -> None:
    """The line of a launch is reported for a program that a report in mhnb traced first.

    JAX remembers where a function of its own was traced.
    """
    ready.run("total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))").check()
    (before,) = {str(row.source) for row in request_collectives(ready, "total(up)", hosts_by_rank(ready)).rows}
    assert before == "this call, line 1"
    result = ready.run("y = 1\ns = total(up)").check()
    (after,) = request_launched(ready, result.seq, range(4), hosts_by_rank(ready))
    assert {str(row.source) for row in after.rows} == {f"cell {result.seq}, line 2"}
    assert all("are not kept after a launch" in str(row.why) for row in after.rows)
