"""The choices of the explorer, what a field changes, and the code.

A field has a name and text as typed. A change of one field yields new input or a reason; it never loses the other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import isqrt, prod

from mhnb.errors import InvalidRequest, MhnbError
from mhnb.sharding.boxes import parse_dtype
from mhnb.sharding.layout import format_dtype_and_shape
from mhnb.sharding.machines import parse_machine
from mhnb.sharding.mesh import format_axes, format_mesh_code, parse_axes
from mhnb.sharding.plan import Plan, PlannedArray, Refusal, example_arrays, make_plan
from mhnb.sharding.spec import Spec, format_spec, parse_spec

PROGRAMS = ("matmul", "mlp", "attention")
"""Programs with arrays of their own."""
MAX_COUNT = 4096
"""Maximum number of hosts, and of devices per host."""
_MAX_MESHES = 12
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "bool")
_AXIS_NAMES = ("data", "model", "seq")
_MAX_AXES = len(_AXIS_NAMES)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a plan is made of."""

    hosts: int = 4
    devices_per_host: int = 2
    mesh: str = "data 4, model 2"
    """As `format_axes` writes it."""
    arrays: tuple[PlannedArray, ...] = field(default_factory=lambda: example_arrays("matmul", ("data", "model")))
    program: str = ""
    """One of `PROGRAMS`, a function, `module:function` or an expression; empty for none."""
    device_nbytes: int | None = None
    """Memory of a device; None if it is unknown."""
    machine: str = ""
    """As `parse_machine` reads it; empty if hosts, devices and memory are of no known machine."""
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Specs by array with axes that a former mesh had, for when it has them again."""


def lay_out(plan_input: PlanInput) -> Plan:
    """Make the plan of any input, valid or not."""
    hosts, devices = plan_input.hosts, plan_input.devices_per_host
    try:
        return make_plan(hosts, devices, parse_axes(plan_input.mesh), plan_input.arrays)
    except InvalidRequest as error:
        return Plan(hosts, devices, None, refusal=Refusal(str(error)))


# -- meshes


def list_mesh_sizes(device_count: int) -> tuple[tuple[int, ...], ...]:
    """Return ways to divide devices over axes, fewer axes first.

    If there are many, meshes of three axes are left out first, then those with the longest axis.

    >>> list_mesh_sizes(8), list_mesh_sizes(1)
    (((8,), (4, 2), (2, 4), (2, 2, 2)), ((1,),))
    """
    pairs = [(device_count // size, size) for size in _list_divisors(device_count)]
    triples = [(first, rest // size, size) for first, rest in pairs for size in _list_divisors(rest)]
    if len(pairs) > _MAX_MESHES:
        pairs = sorted(sorted(pairs, key=max)[:_MAX_MESHES], reverse=True)
    return ((device_count,), *pairs, *(triples if len(pairs) + len(triples) < _MAX_MESHES else ()))


def _list_divisors(number: int) -> list[int]:
    """Return the divisors without 1 and the number itself, in order."""
    low = [size for size in range(2, isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})


def name_axes(names: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Return axes of given sizes; the first keep their names.

    >>> name_axes(("batch",), (4, 2))
    {'batch': 4, 'model': 2}
    """
    fresh = [*_AXIS_NAMES[len(names) :], *_AXIS_NAMES, *(f"axis{at}" for at in range(len(sizes)))]
    found = list(names)
    for name in fresh:
        found += [name] if name not in found else []
    return dict(zip(found, sizes, strict=False))


# -- axes that divide a dim


@dataclass(frozen=True, slots=True)
class DimChoice:
    """Mesh axes for one dim of an array."""

    axes: tuple[str, ...]
    """Empty for a dim that is not divided."""
    parts: int
    refusal: str = ""
    """Why they cannot divide the dim; empty if they can."""
    is_chosen: bool = False


def list_dim_choices(array: PlannedArray, axes: Mapping[str, int], dim: int) -> tuple[DimChoice, ...]:
    """Return what can divide a dim, and what cannot, with the reason.

    The array's present choice is among them, valid or not.

    >>> [choice.refusal for choice in list_dim_choices(PlannedArray("x", (6, 8), "P(None, 'b')"), {"a": 4, "b": 2}, 0)]
    ['', '4 does not divide 6', "'b' divides dim 1", "'b' divides dim 1"]
    """
    spec = _read_spec(array)
    chosen = spec.dims[dim] if dim < len(spec.dims) else ()
    used = {axis: f"{axis!r} divides dim {at}" for at, entry in enumerate(spec.dims) if at != dim for axis in entry}
    used |= {axis: f"{axis!r} holds parts of a sum" for axis in (*spec.unreduced, *spec.reduced)}
    most = len(axes) if len(axes) <= _MAX_AXES else 2
    offered = [choice for count in range(most + 1) for choice in combinations(axes, count)]

    def judge(choice: tuple[str, ...]) -> DimChoice:
        parts = prod(axes.get(axis, 1) for axis in choice)
        reasons = [f"{axis!r} is not an axis of the mesh" for axis in choice if axis not in axes]
        reasons += [used[axis] for axis in choice if axis in used]
        reasons += [f"{parts} does not divide {array.shape[dim]}"] if array.shape[dim] % parts else []
        return DimChoice(choice, parts, reasons[0] if reasons else "", choice == chosen)

    return tuple(map(judge, offered if chosen in offered else [*offered, chosen]))


def _read_spec(array: PlannedArray) -> Spec:
    """Return an array's spec; one that cannot be read divides nothing."""
    try:
        return parse_spec(array.spec)
    except MhnbError:
        return Spec()


# -- element types


def read_dtype(array: PlannedArray) -> str:
    """Return an array's element type, as typed if it is unknown.

    >>> read_dtype(PlannedArray("x", (), "P()", "bf16"))
    'bfloat16'
    """
    try:
        return parse_dtype(array.dtype).name
    except MhnbError:
        return array.dtype


def list_dtypes(chosen: str) -> tuple[str, ...]:
    """Return common element types, and the chosen one."""
    return _DTYPES if chosen in _DTYPES else (chosen, *_DTYPES)


# -- the effect of a field


def change_input(plan_input: PlanInput, name: str, text: str) -> PlanInput:
    """Return the input after a change of one field.

    Args:
        plan_input: the input before it.
        name: `machine`, `hosts`, `devices`, `memory`, `program`, `sizes` (as `4x2`), `axes`, `add`, or for an array
            `array.0.name`, `.shape`, `.dtype`, `.dim0` (as `data,model`) or `.drop`.
        text: the field's text as typed.

    Raises:
        InvalidRequest: the text is not valid in this field.

    >>> change_input(PlanInput(), "sizes", "8").mesh
    'data 8'
    """
    text = text.strip()
    if name.startswith("array."):
        _, at, part = name.split(".")
        arrays = _change_arrays(plan_input.arrays, int(at), part, text)
        changed = plan_input.arrays[int(at)].name
        wanted = {name: spec for name, spec in plan_input.wanted.items() if name != changed}
        return replace(plan_input, arrays=arrays, wanted=wanted)
    if name == "machine":
        return choose_machine(plan_input, text)
    if name == "hosts":
        return replace(plan_input, hosts=_parse_count(text), machine="")
    if name == "devices":
        return replace(plan_input, devices_per_host=_parse_count(text), machine="")
    if name == "memory":
        return replace(plan_input, device_nbytes=_parse_gib(text), machine="")
    if name in ("sizes", "axes"):
        before = parse_axes(plan_input.mesh)
        after = (
            name_axes(tuple(before), [int(size) for size in text.split("x")]) if name == "sizes" else _parse_mesh(text)
        )
        return _change_axes(plan_input, tuple(before), after)
    if name == "program":
        arrays = example_arrays(text, tuple(parse_axes(plan_input.mesh))) if text in PROGRAMS else plan_input.arrays
        return replace(plan_input, program=text, arrays=arrays)
    names = {array.name for array in plan_input.arrays}
    fresh = next(f"a{at}" for at in range(len(names) + 1) if f"a{at}" not in names)
    return replace(plan_input, arrays=(*plan_input.arrays, PlannedArray(fresh, (1024, 1024), "P()")))


def choose_machine(plan_input: PlanInput, text: str) -> PlanInput:
    """Return the input with a machine's hosts, devices, memory and mesh.

    Raises:
        InvalidRequest: no such machine is known.

    >>> planned = choose_machine(PlanInput(), "h100:8x8")
    >>> planned.hosts, planned.devices_per_host, planned.mesh
    (8, 8, 'data 8, model 8')
    """
    if not text:
        return replace(plan_input, machine="")
    machine = parse_machine(text)
    hosts, devices = machine.host_count, machine.devices_per_host
    known = replace(
        plan_input, machine=machine.text, hosts=hosts, devices_per_host=devices, device_nbytes=machine.chip.available
    )
    before = tuple(parse_axes(plan_input.mesh))
    sizes = [size for size in (hosts, devices) if size > 1] or [1]
    return _change_axes(known, before, name_axes(before, sizes))


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_COUNT:
        raise InvalidRequest(f"{text!r} is not a number from 1 to {MAX_COUNT}")
    return int(text)


def _parse_gib(text: str) -> int | None:
    if not text:
        return None
    try:
        nbytes = int(float(text.lower().removesuffix("gib")) * _GIB)
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise InvalidRequest(f"{text!r} is not a size in GiB; expected for example 16")
    return nbytes


def _parse_mesh(text: str) -> dict[str, int]:
    axes = parse_axes(text)
    if 0 in axes.values():
        raise InvalidRequest(
            f"the size of axis {next(name for name in axes if not axes[name])!r} is 0; expected at least 1"
        )
    return axes


def _change_axes(plan_input: PlanInput, before: Sequence[str], axes: Mapping[str, int]) -> PlanInput:
    """Change the mesh and the specs.

    They follow renamed axes. Axes that the mesh loses come back when it has them again.
    """
    after = tuple(axes)
    renamed = {
        old: new
        for old, new in zip(before, after, strict=False)
        if len(before) == len(after) and old not in after and new not in before
    }
    wanted, arrays = {}, []
    for array in plan_input.arrays:
        spec = _read_spec(replace(array, spec=plan_input.wanted.get(array.name, array.spec)))
        followed = _map_axes(spec, lambda axis: (renamed.get(axis, axis),))
        wanted[array.name] = format_spec(followed)
        kept = _map_axes(followed, lambda axis: (axis,) if axis in after else ())
        arrays.append(replace(array, spec=format_spec(kept)))
    return replace(plan_input, mesh=format_axes(tuple(axes.items())), arrays=tuple(arrays), wanted=wanted)


def _map_axes(spec: Spec, change: Callable[[str], tuple[str, ...]]) -> Spec:
    def follow(entry: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for axis in entry for name in change(axis))

    return Spec(tuple(map(follow, spec.dims)), follow(spec.unreduced), follow(spec.reduced))


def _change_arrays(arrays: tuple[PlannedArray, ...], at: int, part: str, text: str) -> tuple[PlannedArray, ...]:
    array = arrays[at]
    if part == "drop":
        return arrays[:at] + arrays[at + 1 :]
    if part == "name":
        if not text.isidentifier() or any(text == other.name for other in arrays if other is not array):
            raise InvalidRequest(
                f"{text!r} is {'the name of another array' if text.isidentifier() else 'not a name in Python'}"
            )
        changed = replace(array, name=text)
    elif part == "shape":
        changed = _change_shape(array, text)
    elif part == "dtype":
        changed = replace(array, dtype=text)
    else:
        changed = _change_dim(array, int(part.removeprefix("dim")), tuple(filter(None, text.split(","))))
    return (*arrays[:at], changed, *arrays[at + 1 :])


def _change_shape(array: PlannedArray, text: str) -> PlannedArray:
    sizes = [part.strip() for part in text.strip(" ()[]").split(",") if part.strip()]
    if not all(size.isdecimal() for size in sizes):
        raise InvalidRequest(f"{text!r} is not a shape; expected sizes such as 1024, 512")
    spec = _read_spec(array)
    kept = replace(spec, dims=spec.dims[: len(sizes)])
    return replace(array, shape=tuple(map(int, sizes)), spec=format_spec(kept))


def _change_dim(array: PlannedArray, dim: int, axes: tuple[str, ...]) -> PlannedArray:
    spec = _read_spec(array)
    dims = [*spec.dims, *[()] * len(array.shape)][: len(array.shape)]
    dims[dim] = axes
    return replace(array, spec=format_spec(replace(spec, dims=tuple(dims))))


# -- code


def format_plan_code(plan: Plan, machine: str = "") -> str:
    """Format code of the mesh and the shardings; empty without mesh.

    Args:
        plan: what is formatted.
        machine: that it is for, whose slices the mesh must respect; may be empty.

    >>> print(format_plan_code(lay_out(PlanInput(1, 2, "x 2", (PlannedArray("w", (4,), "P('x')"),)))))
    import jax
    from jax.sharding import NamedSharding, PartitionSpec as P
    <BLANKLINE>
    mesh = jax.make_mesh((2,), ('x',))
    w_sharding = NamedSharding(mesh, P('x'))  # f32[4]
    """
    if plan.mesh is None:
        return ""
    factors = None
    if machine and len(plan.mesh.devices) == (known := parse_machine(machine)).device_count:
        try:
            factors = known.split(dict(plan.mesh.axes))
        except InvalidRequest as error:
            return f"# {error}"
    mesh = format_mesh_code(plan.mesh.axes, ["Explicit"] * len(plan.mesh.axes), factors).partition("; ")[2]
    lines = [
        f"{name}_sharding = NamedSharding(mesh, {layout.spec})  # {format_dtype_and_shape(layout)}"
        for name, layout in plan.legal
    ]
    lines += [f"# {name}: {refusal.reason}" for name, refusal in plan.refused]
    return "\n".join(["import jax", "from jax.sharding import NamedSharding, PartitionSpec as P", "", mesh, *lines])
