"""Random meshes, specs and shapes, 0-D to 6-D, without JAX."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.spec import Spec
from mhnb.types import DeviceRef

__all__ = ["Case", "cases", "meshes", "specs"]

Case = tuple[MeshShape, Spec, tuple[int, ...]]
AXES = ("a", "b", "c", "d")


@st.composite
def meshes(draw: st.DrawFn, *, devices: int = 8) -> MeshShape:
    """A mesh over some of the given number of devices, in any order."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, len(AXES)))):
        sizes.append(draw(st.sampled_from([n for n in (1, 2, 3, 4, 8) if n * prod(sizes) <= devices])))
    device_numbers = draw(st.permutations(range(devices)))[: prod(sizes)]
    return MeshShape(tuple(zip(AXES, sizes, strict=False)), tuple(DeviceRef(0, number) for number in device_numbers))


@st.composite
def specs(draw: st.DrawFn, mesh: MeshShape, ndim: int) -> Spec:
    """A spec that names each axis of the mesh at most once."""
    unused = list(draw(st.permutations(mesh.names)))
    dims: list[tuple[str, ...]] = []
    for _ in range(draw(st.integers(0, ndim))):
        count = draw(st.integers(0, min(2, len(unused))))
        dims.append(tuple(unused[:count]))
        unused = unused[count:]
    unreduced = unused[: draw(st.integers(0, len(unused)))] if draw(st.booleans()) else []
    return Spec(tuple(dims), tuple(sorted(unreduced)))


@st.composite
def cases(draw: st.DrawFn, *, devices: int = 8, even: bool = True) -> Case:
    """A mesh, a spec, and a shape of 0 to 6 dims that the spec divides evenly, or any shape if `even` is false."""
    mesh = draw(meshes(devices=devices))
    ndim = draw(st.integers(0, 6))
    spec = draw(specs(mesh, ndim))
    sizes = dict(mesh.axes)
    cuts = [prod(sizes[axis] for axis in entry) for entry in spec.dims] + [1] * (ndim - len(spec.dims))
    return mesh, spec, tuple(cut * draw(st.integers(0, 3)) if even else draw(st.integers(0, 9)) for cut in cuts)
