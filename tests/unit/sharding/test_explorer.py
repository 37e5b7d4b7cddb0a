"""What the explorer offers: meshes that divide the devices, axes that divide a dim, the effect of a field, and code."""

from __future__ import annotations

from math import prod

import pytest

from mhnb.errors import InvalidRequest
from mhnb.sharding.explorer import (
    PlanInput,
    change_input,
    format_plan_code,
    lay_out,
    list_dim_choices,
    list_mesh_sizes,
    name_axes,
)
from mhnb.sharding.machines import parse_machine
from mhnb.sharding.plan import PlannedArray

AXES = {"data": 4, "model": 2}


def change(*changes: tuple[str, str], start: PlanInput | None = None) -> PlanInput:
    """Return the input after changes of fields."""
    plan_input = start or PlanInput()
    for name, text in changes:
        plan_input = change_input(plan_input, name, text)
    return plan_input


def specs(plan_input: PlanInput) -> list[str]:
    """Return the spec of each array."""
    return [array.spec for array in plan_input.arrays]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [(1,)]),
        (7, [(7,)]),
        (6, [(6,), (3, 2), (2, 3)]),
        (8, [(8,), (4, 2), (2, 4), (2, 2, 2)]),
        (128, [(128,), (64, 2), (32, 4), (16, 8), (8, 16), (4, 32), (2, 64)]),
    ],
)
def test_meshes_divide_the_devices(count: int, sizes: list[tuple[int, ...]]) -> None:
    """The meshes are all divisions into up to three axes; three axes are left out if there are many."""
    assert list(list_mesh_sizes(count)) == sizes


def test_meshes_of_many_devices_are_few() -> None:
    """Of a count with many divisors, the meshes with the shortest axes are offered, and each has all devices."""
    found = list_mesh_sizes(5040)
    assert len(found) == 13
    assert {prod(sizes) for sizes in found} == {5040}
    assert (72, 70) in found


def test_axes_have_names() -> None:
    """Axes keep their names from the first on, and a new axis gets a name that is not taken."""
    assert name_axes(("model", "x"), (2, 2, 2)) == {"model": 2, "x": 2, "seq": 2}
    assert name_axes(("a", "data"), (2, 2, 2, 2)) == {"a": 2, "data": 2, "seq": 2, "model": 2}
    assert name_axes(("data", "model"), (8,)) == {"data": 8}


def test_choices_of_a_dim_have_reasons() -> None:
    """Each choice has its number of parts, and one that cannot divide the dim has the reason."""
    choices = list_dim_choices(PlannedArray("x", (6, 8), "P(None, 'model')"), AXES, 0)
    assert [(choice.axes, choice.parts, choice.refusal, choice.is_chosen) for choice in choices] == [
        ((), 1, "", True),
        (("data",), 4, "4 does not divide 6", False),
        (("model",), 2, "'model' divides dim 1", False),
        (("data", "model"), 8, "'model' divides dim 1", False),
    ]


@pytest.mark.parametrize(
    ("spec", "axes", "refusal"),
    [
        ("P(('model', 'data'))", ("model", "data"), ""),
        ("P('z')", ("z",), "'z' is not an axis of the mesh"),
        ("P('x', unreduced={'model'})", ("x",), "'x' is not an axis of the mesh"),
    ],
)
def test_present_choice_is_offered(spec: str, axes: tuple[str, ...], refusal: str) -> None:
    """The axes of a spec that was given are offered even if they are in another order or not legal."""
    last = list_dim_choices(PlannedArray("x", (8,), spec), AXES, 0)[-1]
    assert (last.axes, last.refusal, last.is_chosen) == (axes, refusal, True)


def test_axis_of_partial_sums_divides_no_dim() -> None:
    """An axis over which the array has partial sums is refused for its dims."""
    choices = list_dim_choices(PlannedArray("x", (8,), "P(unreduced={'model'})"), AXES, 0)
    assert {choice.axes: choice.refusal for choice in choices}[("model",)] == "'model' holds parts of a sum"


def test_dim_is_chosen_by_itself() -> None:
    """A choice for a dim changes the spec there only; a spec that cannot be read or is too long is replaced."""
    assert specs(change(("array.0.dim1", "model"))) == ["P('data', 'model')", "P(None, 'model')"]
    assert specs(change(("array.1.dim0", "data"), ("array.1.dim1", ""))) == ["P('data', None)", "P('data', None)"]
    for spec in ("nonsense", "P('a', 'b', 'c')"):
        start = PlanInput(arrays=(PlannedArray("x", (8, 8), spec),))
        assert specs(change(("array.0.dim0", "data"), ("array.0.dim1", ""), start=start)) == ["P('data', None)"]


def test_specs_follow_the_mesh() -> None:
    """Specs follow a renamed axis, lose one that the mesh lost, and have it again when the mesh has it again."""
    assert specs(change(("axes", "batch 4, model 2"))) == ["P('batch', None)", "P(None, 'model')"]
    assert specs(change(("sizes", "8"))) == ["P('data', None)", "P(None, None)"]
    assert specs(change(("sizes", "8"), ("axes", "rows 8"), ("sizes", "4x2"))) == [
        "P('rows', None)",
        "P(None, 'model')",
    ]
    assert specs(change(("axes", "model 2, data 4"))) == specs(PlanInput())
    assert specs(change(("sizes", "8"), ("array.1.dim1", "data"), ("sizes", "4x2")))[1] == "P(None, 'data')"


def test_fields_change_the_input() -> None:
    """Each field changes what it names."""
    changed = change(("hosts", "2"), ("devices", "16"), ("memory", "1.5"), ("sizes", "8x4"))
    assert (changed.hosts, changed.devices_per_host, changed.device_nbytes) == (2, 16, 3 << 29)
    assert changed.mesh == "data 8, model 4"
    assert change(("memory", "80 GiB"), ("memory", "")).device_nbytes is None
    arrays = change(("add", ""), ("array.2.name", "b"), ("array.2.shape", "(8,)"), ("array.2.dtype", "int8")).arrays
    assert arrays[2] == PlannedArray("b", (8,), "P()", "int8")
    assert change(("array.0.shape", "64")).arrays[0] == PlannedArray("x", (64,), "P('data')")
    assert [array.name for array in change(("add", ""), ("array.0.drop", ""), ("add", "")).arrays] == ["w", "a0", "a1"]


def test_program_brings_its_arrays() -> None:
    """A built-in program replaces the arrays, and a program of the user keeps them."""
    changed = change(("program", "attention"))
    assert [array.name for array in changed.arrays] == ["x", "wq", "wk", "wv", "wo"]
    assert change(("program", "lambda *a: a"), start=changed).arrays == changed.arrays


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hosts", "0", "'0' is not a number from 1 to 4096"),
        ("devices", "two", "'two' is not a number"),
        ("memory", "much", "'much' is not a size in GiB; expected for example 16"),
        ("memory", "-1", "is not a size in GiB"),
        ("memory", "inf", "is not a size in GiB"),
        ("axes", "data 4 model 2", "expected a form such as: data 4, model 2"),
        ("axes", "data 0", "the size of axis 'data' is 0"),
        ("array.0.name", "my x", "'my x' is not a name in Python"),
        ("array.0.name", "w", "'w' is the name of another array"),
        ("array.0.shape", "8 x 8", "'8 x 8' is not a shape; expected sizes such as 1024, 512"),
    ],
)
def test_invalid_text_has_a_reason(name: str, text: str, reason: str) -> None:
    """Text that is not valid in its field is refused with the reason."""
    with pytest.raises(InvalidRequest, match="^.*" + reason):
        change((name, text))


def test_code_names_what_is_not_legal() -> None:
    """The code has a line for each legal array, and a comment for another one; without a mesh there is none."""
    lines = format_plan_code(lay_out(change(("array.1.shape", "6, 7")))).splitlines()
    assert lines[3:5] == [
        "mesh = jax.make_mesh((4, 2), ('data', 'model'))",
        "x_sharding = NamedSharding(mesh, P('data', None))  # f32[1024,1024]",
    ]
    assert lines[5].startswith("# w: P(None, 'model') shards dim 1 of size 7 into 2 parts")
    assert format_plan_code(lay_out(change(("hosts", "1")))) == ""


def test_a_machine_sets_hosts_devices_memory_and_mesh() -> None:
    """A machine fills in what it has; a change of any of these makes it another machine; a misspelt one is refused."""
    planned = change(("machine", "h100:8x8"))
    assert (planned.hosts, planned.devices_per_host, planned.mesh) == (8, 8, "data 8, model 8")
    assert planned.device_nbytes == parse_machine("h100:8x8").chip.available
    assert change(("machine", "h100:8x8"), ("hosts", "4")).machine == ""
    # Of eight hosts, each of which is a slice of GPUs, `jax.make_mesh` is refused.
    code = format_plan_code(lay_out(planned), planned.machine)
    assert "mesh_utils.create_hybrid_device_mesh((1, 8), (8, 1))" in code
    with pytest.raises(InvalidRequest, match="unknown chip 'h10'"):
        change(("machine", "h10:8x8"))
