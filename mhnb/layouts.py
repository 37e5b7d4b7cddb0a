"""`mhnb.layout`, `mhnb.reshard` and `mhnb.expect`, also for arrays that do not exist.

JAX is imported only for objects of JAX. No data is fetched and no program launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

from mhnb.errors import InvalidRequest, LayoutDiffers
from mhnb.sharding.layout import Layout, LayoutTree, format_layout_devices
from mhnb.sharding.mesh import MeshShape, parse_axes
from mhnb.sharding.plan import Reshard, plan_reshard
from mhnb.view.document import Document
from mhnb.view.drawings.layout import format_layout_svg
from mhnb.view.html import RankLocations, new_uid
from mhnb.view.layout_grid import format_layout_text
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.mesh import build_mesh, build_tree
from mhnb.view.reports.plan import build_reshard


class _Displayable:
    """A value that draws itself when printed or shown by IPython."""

    places: RankLocations | None = None
    """Hosts of the ranks that hold the value; None if it need not exist, and each rank is a host."""

    @classmethod
    def from_value(cls, value: Any, places: RankLocations | None = None) -> Self:
        """Return a displayable copy of a plain value."""
        drawn = cls(**{field.name: getattr(value, field.name) for field in fields(value)})
        # The values are frozen, and this is not one of their fields: equal layouts are equal wherever they are.
        object.__setattr__(drawn, "places", places)
        return drawn

    def _build(self) -> Document:
        raise NotImplementedError

    def to_text(self) -> str:
        """Draw it as text."""
        return print_text(self._build())

    def to_html(self) -> str:
        """Draw it as HTML."""
        return print_html(self._build())

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


class DisplayableLayout(_Displayable, Layout):
    """A layout that displays itself."""

    def _build(self) -> Document:
        return build_layout(self, locations=self.places, uid=new_uid())

    def to_svg(self) -> str:
        """Draw it as SVG, for a file."""
        return format_layout_svg(self, locations=self.places)


class DisplayableTree(_Displayable, LayoutTree):
    """A table of layouts that displays itself."""

    def _build(self) -> Document:
        return build_tree(self)


class DisplayableMesh(_Displayable, MeshShape):
    """A mesh that displays itself."""

    def _build(self) -> Document:
        return build_mesh(self, locations=self.places)


class DisplayableReshard(_Displayable, Reshard):
    """A reshard that displays itself."""

    def _build(self) -> Document:
        return build_reshard(self, locations=self.places, uid=new_uid())


def layout(
    x: Any,
    mesh: Any = None,
    spec: Any = None,
    *,
    dtype: Any = "float32",
    devices_per_host: int | None = None,
    uneven: bool = False,
) -> DisplayableLayout | DisplayableTree | DisplayableMesh:
    """Return which device stores which shard of an array.

    `layout(x)` reads a jax.Array, a ShapeDtypeStruct that has a sharding, a pytree of them (a table) or a mesh (a map).
    `layout(shape, mesh, spec)` needs no cluster and no JAX.

    Args:
        x: the value, or the shape of an array that need not exist.
        mesh: with a shape: sizes by axis, or a jax Mesh or AbstractMesh.
        spec: with a shape: `P('data', None)`, as JAX's object, text or a list of axes.
        dtype: with a shape: the element type.
        devices_per_host: for a mesh without devices of its own, which is placed on hosts row by row; None for one host.
        uneven: allow axes that do not divide their dim, padded as the compiler does it inside a jitted function.

    Raises:
        ShardingError: the spec is not legal; `jax_says` is JAX's own reason.
        InvalidRequest: an argument cannot be read.
    """
    if mesh is None:
        if spec is not None:
            raise InvalidRequest("layout got a spec without a mesh\n  Fix: mhnb.layout(shape, mesh, spec)")
        return _layout_of(x, devices_per_host)
    shape = (x,) if isinstance(x, int) else x
    if not isinstance(shape, Sequence):
        raise InvalidRequest(f"layout with a mesh expected a shape such as (8, 6); got {type(x).__name__}")
    plain = Layout.of(shape, as_mesh(mesh, devices_per_host), spec, dtype=dtype, uneven=uneven)
    return DisplayableLayout.from_value(plain)


def as_mesh(mesh: Any, devices_per_host: int | None = None) -> MeshShape:
    """Convert a mesh, axis sizes, or text like `data 4, model 2`.

    Raises:
        InvalidRequest: it is of another type.
    """
    if isinstance(mesh, MeshShape):
        return mesh
    if isinstance(mesh, str):
        mesh = parse_axes(mesh)
    if isinstance(mesh, Mapping):
        return MeshShape.row_major(mesh, devices_per_host=devices_per_host)
    if hasattr(mesh, "axis_names"):
        # JAX is already imported, because the caller has an object of it.
        from mhnb.adapters.jax_arrays import is_mesh, read_mesh

        if is_mesh(mesh):
            return read_mesh(mesh, devices_per_host=devices_per_host)
    raise InvalidRequest(
        f"mesh is {type(mesh).__name__}; expected sizes such as {{'data': 4, 'model': 2}}, or a JAX mesh"
    )


def _layout_of(x: Any, devices_per_host: int | None) -> DisplayableLayout | DisplayableTree | DisplayableMesh:
    if isinstance(x, MeshShape):
        return DisplayableMesh.from_value(x)
    if isinstance(x, Layout):
        return DisplayableLayout.from_value(x)
    if isinstance(x, LayoutTree):
        return DisplayableTree.from_value(x)
    from jax.sharding import Mesh

    from mhnb.adapters.jax_arrays import has_layout, is_mesh, read_layout, read_mesh, read_tree

    if is_mesh(x):
        mesh = read_mesh(x, devices_per_host=devices_per_host)
        # The ranks of an abstract mesh are invented.
        return DisplayableMesh.from_value(mesh, _find_places(mesh) if isinstance(x, Mesh) else None)
    if has_layout(x):
        plain = read_layout(x)
        return DisplayableLayout.from_value(plain, _find_places(plain))
    return DisplayableTree.from_value(read_tree(x))


def _find_places(of: Layout | MeshShape) -> RankLocations:
    """Return the hosts of the ranks that hold a JAX object."""
    from mhnb.adapters.jax_arrays import host_label

    return RankLocations({device.rank: host_label(device.rank) for device in of.devices})


def reshard(
    x: Any, mesh: Any = None, spec: Any = None, *, to: Any, dtype: Any = "float32", devices_per_host: int | None = None
) -> DisplayableReshard:
    """Return which shards a reshard to another spec would move.

    `reshard(x, to=spec)` reads an array or a Layout; `reshard(shape, mesh, spec, to=...)` needs no cluster and no JAX.

    Raises:
        ShardingError: a spec is not legal there.
        InvalidRequest: an argument cannot be read, or the array holds partial sums.
    """
    before = x if isinstance(x, Layout) else layout(x, mesh, spec, dtype=dtype, devices_per_host=devices_per_host)
    if not isinstance(before, Layout) or before.mesh is None:
        raise InvalidRequest("reshard needs one array on a mesh; pass a leaf of a pytree, or shape, mesh and spec")
    after = Layout.of(before.shape, before.mesh, to, dtype=before.dtype)
    places = before.places if isinstance(before, DisplayableLayout) else None
    return DisplayableReshard.from_value(plan_reshard(before, after, places.hosts if places else None), places)


def expect(x: Any, spec: Any) -> None:
    """Assert that an array has a spec's layout on its mesh.

    Any other spec with the same layout passes too.

    Raises:
        LayoutDiffers: it is not; the message draws both.
        ShardingError: the spec is not legal for that array.
        InvalidRequest: `x` has no layout, or none over a mesh.
    """
    have, places = (x, getattr(x, "places", None)) if isinstance(x, Layout) else (None, None)
    if have is None:
        from mhnb.adapters.jax_arrays import has_layout, read_layout

        if not has_layout(x):
            kind = type(x).__name__
            raise InvalidRequest(f"expect needs one jax.Array; got {kind}. For a pytree, call it for each leaf")
        have = read_layout(x)
        places = _find_places(have)
    if have.mesh is None or have.spec is None:
        raise InvalidRequest(
            f"expect needs an array on a mesh, but this one is on {format_layout_devices(have)} without a mesh\n"
            "  Fix: x = jax.device_put(x, NamedSharding(mesh, spec))"
        )
    want = Layout.of(have.shape, have.mesh, spec, dtype=have.dtype)
    if want.spec is None or (want.boxes, want.spec.unreduced) != (have.boxes, have.spec.unreduced):
        wanted, found = (format_layout_text(each, locations=places) for each in (want, have))
        drawn = f"expected\n{wanted}\n\nfound\n{found}"
        raise LayoutDiffers(
            f"the array is sharded as {have.spec}, not as {want.spec}\n{drawn}", expected=want, found=have
        )
