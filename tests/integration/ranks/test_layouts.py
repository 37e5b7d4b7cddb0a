"""Layouts on real ranks: how global arrays are displayed, what `mhnb.layout` prints on a rank, and that nothing is launched."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.cluster.sharding import request_collectives, request_layout
from mhnb.errors import InvalidRequest
from mhnb.sharding.layout import Layout, LayoutTree, format_layout_devices
from mhnb.sharding.mesh import MeshShape
from mhnb.view.print_text import print_text
from mhnb.view.reports.memory import build_memory

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("data", "model"))
def put(shape, *spec, dtype="f4", **more):
    sharding = NamedSharding(mesh, P(*spec, **more))
    return jax.make_array_from_callback(shape, sharding, lambda index: np.zeros(shape, dtype)[index])
x, w, b = put((8, 8), "data", "model"), put((8, 6), "data"), put((4,), dtype="i1")
own = jnp.arange(3) + jax.process_index()
params = {"layers": [{"w": w, "b": b}], "x": x, "steps": 3, "own": own}
"""
LINE = "f32[8,8] on mesh (data 4, model 2) spec P('data', 'model') · 256 B, 32 B per device"


@pytest.fixture
def ranks(cluster: Cluster) -> Cluster:
    """The shared cluster, with arrays of several kinds on every rank."""
    cluster.run(SETUP).check()
    return cluster


@pytest.mark.other_python
def test_global_array_is_shown_by_its_sharding(ranks: Cluster) -> None:
    """A global array is displayed with its type, mesh, spec and size in one line that is the same on every rank."""
    result = ranks.run("x")
    assert [rank.text for rank in result] == [LINE] * 4
    assert len(result.groups) == 1


def test_local_array_is_shown_with_its_values(ranks: Cluster) -> None:
    """An array that is local to one rank is displayed with its values, as in JAX."""
    assert [rank.text for rank in ranks.run("own")] == [
        f"Array([{k}, {k + 1}, {k + 2}], dtype=int32)" for k in range(4)
    ]


def test_pytree_shows_the_sharding_of_each_array(ranks: Cluster) -> None:
    """Containers keep their form, and every global array in them is displayed by its sharding."""
    text = ranks.run("{'x': x, 'n': [1, b]}")[0].text
    assert text == f"{{'x': {LINE},\n 'n': [1, i8[4] on mesh (data 4, model 2) spec P() · 4 B, 4 B per device]}}"


@pytest.mark.other_python
def test_deleted_array_or_key_never_fails_the_cell(ranks: Cluster) -> None:
    """Deleted arrays and PRNG keys are displayed, and never fail the cell."""
    ranks.run(
        "gone = put((8, 8), 'data'); gone.delete()\nkeys = jax.random.wrap_key_data(put((8, 2), 'data', dtype='u4'))"
    )
    assert ranks.run("gone")[0].text == (
        "f32[8,8] on mesh (data 4, model 2) spec P('data') · 256 B, 64 B per device · deleted"
    )
    assert "key<fry>[8] on mesh" in str(ranks.run("keys")[0].text)


def test_layout_on_one_rank_launches_nothing(ranks: Cluster) -> None:
    """`mhnb.layout(x)` on one rank shows what all ranks hold; it launches nothing, because otherwise it would hang."""
    result = ranks.run("import mhnb\nmhnb.layout(w)", ranks="2").check()
    assert str(result[2].text).splitlines() == [
        "f32[8,6]  P('data') on mesh (data 4, model 2)     48 B per device · 2 replicas",
        "            cols 0:6",
        "rows 0:2    0:0 0:1     host0",
        "rows 2:4    1:0 1:1     host1",
        "rows 4:6    2:0 2:1     host2",
        "rows 6:8    3:0 3:1     host3",
    ]


def test_expect_draws_found_and_expected(ranks: Cluster) -> None:
    """`mhnb.expect` accepts another spelling of the same spec, and draws the found and the expected layout if they differ."""
    ranks.run("import mhnb\nmhnb.expect(w, P('data', None))").check()
    error = ranks.run("mhnb.expect(w, P(None, 'model'))")[1].error
    assert error is not None
    assert error.ename == "LayoutDiffers"
    assert "rows 0:8    0:0 1:0 2:0 3:0     0:1 1:1 2:1 3:1     host[0-3]" in error.evalue
    assert "rows 2:4    1:0 1:1     host1" in error.evalue


def test_layout_request_between_cells(ranks: Cluster) -> None:
    """A layout request returns one view if all ranks agree, for an array, a tree or a mesh.

    Arrays that are local to each rank count as the same.
    """
    (view,) = request_layout(ranks, "params['layers'][0]['w']")
    assert view.ranks == (0, 1, 2, 3)
    assert view.view == Layout.of((8, 6), {"data": 4, "model": 2}, "P('data')", devices_per_host=2)
    (tree,) = request_layout(ranks, "params")
    assert isinstance(tree.view, LayoutTree)
    assert tree.is_local
    assert [row.path for row in tree.view.rows] == [
        "['layers'][0]['b']", "['layers'][0]['w']", "['own']", "['steps']", "['x']",
    ]  # fmt: skip
    (mesh,) = request_layout(ranks, "x.sharding.mesh")
    assert mesh.view == MeshShape.row_major({"data": 4, "model": 2}, devices_per_host=2)


def test_rank_that_differs_gets_its_own_view(ranks: Cluster) -> None:
    """A rank whose value differs or is missing gets a view of its own."""
    ranks.run("y = put((8, 8), 'data')")
    ranks.run("y = 3", ranks="2")
    views = request_layout(ranks, "y")
    assert [view.ranks for view in views] == [(0, 1, 3), (2,)]
    assert "got int" in str(views[1].view)
    ranks.run("del y", ranks="1")
    assert [view.ranks for view in request_layout(ranks, "y")] == [(0, 3), (1,), (2,)]


@pytest.mark.parametrize("expression", ["x + 1", "x.T", "x[0]", "put((8,))", "x.sum()", "[a for a in [x]]"])
def test_expression_that_may_compute_is_refused(ranks: Cluster, expression: str) -> None:
    """An expression that is more than a look-up is refused with advice, because nothing is run between cells."""
    with pytest.raises(InvalidRequest, match="Assign it to a variable in a %%mhjax cell"):
        request_layout(ranks, expression)


def test_missing_name_is_an_error(ranks: Cluster) -> None:
    """A name that no rank has raises an error instead of a drawing."""
    with pytest.raises(InvalidRequest, match=r"layout nowhere: unknown variable 'nowhere'; %mhjax vars lists"):
        request_layout(ranks, "nowhere")


def test_sub_mesh_array_is_shown_on_its_ranks(ranks: Cluster) -> None:
    """An array over reordered devices of two ranks is shown there as JAX places it, and is missing on other ranks."""
    ranks.run(
        "if jax.process_index() in (1, 2):\n"
        "    some = np.array([jax.devices()[at] for at in (5, 2, 4, 3)]).reshape(2, 2)\n"
        "    sharding = NamedSharding(jax.sharding.Mesh(some, ('a', 'b')), P(('b', 'a')))\n"
        "    part = jax.make_array_from_callback((8,), sharding, lambda index: np.zeros(8)[index])\n"
        "    from mhnb.adapters.jax_arrays import device_ref\n"
        "    said = {str(device_ref(d)): index[0].indices(8)[:2] for d, index in sharding.devices_indices_map((8,)).items()}"
    ).check()
    views = request_layout(ranks, "part")
    assert [view.ranks for view in views] == [(1, 2), (0, 3)]
    assert isinstance(views[0].view, Layout)
    boxes = {str(device): box[0] for device, box in views[0].view.boxes.items()}
    assert boxes == {"2:1": (0, 2), "2:0": (2, 4), "1:0": (4, 6), "1:1": (6, 8)}
    assert ranks.run("said", ranks="1,2")[1].text == repr(boxes)


def test_replicated_value_is_shown_with_its_numbers(cluster: Cluster) -> None:
    """A replicated value such as a loss is displayed with its numbers, because every rank has it and users look at it.

    As the last expression it comes with its layout, and in a container without it.
    """
    cluster.run(
        "import jax, jax.numpy as jnp\nfrom jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((jax.device_count(),), ('d',))\n"
        "loss = jax.jit(lambda: jnp.float32(1.5), out_shardings=NamedSharding(mesh, P()))()"
    ).check()
    result = cluster.run("loss").check()
    assert {str(rank.text).splitlines()[0] for rank in result} == {"Array(1.5, dtype=float32)"}
    assert all("on mesh (d 8) spec P()" in str(rank.text) for rank in result)
    assert {rank.text for rank in cluster.run("{'loss': loss}").check()} == {"{'loss': Array(1.5, dtype=float32)}"}


def test_deleted_array_is_marked_as_deleted(ranks: Cluster) -> None:
    """A deleted array has a layout but no bytes: it is marked as deleted, and a tree does not count its bytes."""
    ranks.run("gone = put((8, 8), 'data'); both = {'gone': gone, 'x': x}; gone.delete()").check()
    (view,) = request_layout(ranks, "gone")
    assert view.is_deleted
    assert isinstance(view.view, Layout)
    (view,) = request_layout(ranks, "both")
    assert isinstance(view.view, LayoutTree)
    assert [(row.path, view.view.remark(row)) for row in view.view.rows] == [("['gone']", "deleted"), ("['x']", "")]
    assert view.view.nbytes == 256
    ranks.run("gone = put((8, 8), 'data')\nif jax.process_index() == 3: gone.delete()").check()
    assert [(view.ranks, view.is_deleted) for view in request_layout(ranks, "gone")] == [
        ((0, 1, 2), False),
        ((3,), True),
    ]


def test_expect_says_what_it_accepts(ranks: Cluster) -> None:
    """`mhnb.expect` accepts one array; for a pytree or a NumPy array its error says so."""
    for value, kind in (("{'x': x}", "dict"), ("np.ones(3)", "ndarray")):
        error = ranks.run(f"import mhnb\nmhnb.expect({value}, P())")[0].error
        assert error is not None
        assert error.evalue == f"expect needs one jax.Array; got {kind}. For a pytree, call it for each leaf"
    error = ranks.run("mhnb.expect(jnp.ones(3), P())")[0].error
    assert error is not None
    assert "this one is on 1 device without a mesh" in error.evalue


SHARED_HOSTS = """
import jax, jax.numpy as jnp, numpy as np, mhnb
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("data")), lambda index: np.zeros(8, "f4")[index])
(row,) = mhnb.collectives(lambda x: x.sum(), x)
"""


@pytest.mark.timeout(480)
def test_ranks_on_shared_hosts_report_like_the_notebook(fresh: Callable[..., Cluster]) -> None:
    """With two ranks on each of two hosts, a rank reports the same hosts and inter-host bytes as the notebook."""
    cluster = fresh(2, 1, ranks_per_host=2)
    cluster.run(SHARED_HOSTS).check()
    drawn = str(cluster.run("mhnb.layout(x)")[3].text).splitlines()
    assert [line.split()[-1] for line in drawn[1:]] == ["host0", "host0", "host1", "host1"]
    mapped = str(cluster.run("mhnb.layout(mesh)")[3].text)
    assert "4 devices on 2 hosts" in mapped
    assert "data crosses 2 hosts" in mapped
    assert "4 devices on 1 host" in str(cluster.run("mhnb.layout(jax.sharding.AbstractMesh((4,), ('data',)))")[3].text)
    moved = str(cluster.run("mhnb.reshard(x, to=P())")[3].text)
    # Of the 24 B that each device lacks, one host has 8 B and the other 16 B.
    assert "96 B move · 64 B of it across hosts" in moved
    reported = cluster.run("row.nbytes_per_device, row.nbytes_across_hosts")[3].text
    (report,) = request_collectives(cluster, "(lambda x: x.sum())(x)", {r.rank: r.host for r in cluster.ranks}).rows
    assert reported == repr((report.nbytes_per_device, report.nbytes_across_hosts)) == "(4, 2)"
    planned = str(cluster.run("mhnb.layout((8,), {'a': 4}, 'P(\"a\")', devices_per_host=1)")[3].text)
    assert [line.split()[-1] for line in planned.splitlines()[1:]] == ["host0", "host1", "host2", "host3"]


def test_array_on_the_device_of_another_rank_says_whose(ranks: Cluster) -> None:
    """An array that is wholly on one rank's device is named with that rank everywhere but there."""
    ranks.run(
        "from jax.sharding import SingleDeviceSharding\n"
        "away = SingleDeviceSharding(next(d for d in jax.devices() if d.process_index == 1))\n"
        "parts = [jax.device_put(np.arange(4.0, dtype='f4'), away._device)] if jax.process_index() == 1 else []\n"
        "lone = jax.make_array_from_single_device_arrays((4,), away, parts, dtype=jnp.float32)\n"
        "own = jnp.arange(4)"
    ).check()
    shown = {rank.rank: rank.text for rank in ranks.run("lone")}
    assert (shown[0] or "").splitlines()[-1] == "f32[4] on 1 device of rank 1 · 16 B, 16 B per device"
    assert shown[1] == "Array([0., 1., 2., 3.], dtype=float32)"
    (view,) = request_layout(ranks, "lone")
    assert isinstance(view.view, Layout)
    assert format_layout_devices(view.view) == "1 device of rank 1"
    (view,) = request_layout(ranks, "own")
    assert isinstance(view.view, Layout)
    assert format_layout_devices(view.view) == "1 device"
    memory = print_text(build_memory(ranks.memory(), 20))
    assert re.search(r"(?m)^lone .* f32\[4\] .* 1 device of rank 1 ", memory)
    assert re.search(r"(?m)^own .* i32\[4\] .* 1 device  ", memory)
    kinds = {row.name: row.kind for row in ranks.vars()}
    assert (kinds["lone"], kinds["own"]) == ("global Array on 1 device of rank 1", "local Array")
