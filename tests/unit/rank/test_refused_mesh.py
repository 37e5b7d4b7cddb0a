"""Meshes over made-up GPU and TPU slices: JAX refuses them, and its own functions run the hint's line."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import pytest
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from mhnb.core.hints import find_hint
from mhnb.rank import jax_private
from mhnb.rank.execution.tracebacks import find_error_site
from tests.support.source import ROOT


@dataclass(frozen=True)
class Device:
    """A device of another machine."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100"
    coords: tuple[int, ...] = ()
    core_on_chip: int = 0

    @property
    def process_index(self) -> int:
        """Return its process: one per slice."""
        return self.slice_index


def gpus(*slices: int) -> list[Device]:
    """Return GPUs on one node per number, as many as the number."""
    at = [node for node, count in enumerate(slices) for _ in range(count)]
    return [Device(number, node) for number, node in enumerate(at)]


def tpus(kind: str) -> list[Device]:
    """Return two slices of 4 × 4 TPUs."""
    return [Device(number, number // 16, "tpu", kind, (number % 4, number // 4 % 4, 0)) for number in range(32)]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """Make JAX of a test see the devices that the test puts into this list."""
    devices, hybrid = list[Device](), mesh_utils.create_hybrid_device_mesh
    monkeypatch.setattr(jax, "make_mesh", jax.make_mesh)
    jax_private.allow_multi_machine_meshes()
    hooked = jax.make_mesh

    def make_mesh(*args: Any, **kwargs: Any) -> Any:
        return hooked(*args, **{"devices": devices} | kwargs)

    def create_hybrid_device_mesh(sizes: Any, parts: Any, chosen: Any = None, **kwargs: Any) -> Any:
        return hybrid(sizes, parts, chosen or kwargs.pop("devices", devices), **kwargs)

    monkeypatch.setattr(jax, "make_mesh", make_mesh)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(mesh_utils, "create_hybrid_device_mesh", create_hybrid_device_mesh)
    return devices


def hint_of(*args: Any, **kwargs: Any) -> str:
    """Return the hint of a refused call of `jax.make_mesh`."""
    with pytest.raises((ValueError, AssertionError), match=r"multi-slice|cores_per_chip") as caught:
        jax.make_mesh(*args, **kwargs)
    site = find_error_site(caught.value)
    return find_hint(caught.type.__name__, str(caught.value), site=site) or ""


def run_line(hint: str) -> Any:
    """Run the line of a hint, and return its mesh."""
    variables: dict[str, Any] = {}
    exec(hint.partition("Write instead: ")[2], variables)
    return variables["mesh"]


def slices_along(mesh: Any, axis: str) -> int:
    """Return how many slices the devices along an axis are in."""
    at = mesh.axis_names.index(axis)
    line = mesh.devices[tuple(slice(None) if number == at else 0 for number in range(mesh.devices.ndim))]
    return len({device.slice_index for device in line})


CASES: list[tuple[Sequence[int], dict[str, int], int]] = [
    ((8, 8), {"data": 4, "model": 4}, 2),
    ((8, 8), {"data": 2, "model": 8}, 2),
    ((8, 8), {"model": 8, "data": 2}, 2),
    ((4, 4, 4, 4), {"data": 16, "tp": 1}, 4),
    ((6, 6, 6, 6), {"data": 6, "stage": 2, "model": 2}, 2),
]


@pytest.mark.parametrize(("slices", "axes", "over"), CASES, ids=[f"{slices} {axes}" for slices, axes, _ in CASES])
def test_line_makes_the_mesh_with_model_inside_a_slice(
    everything: list[Device], slices: Sequence[int], axes: dict[str, int], over: int
) -> None:
    """The line makes a mesh of the same axes over all devices, splits the first axes, and keeps model inside a slice."""
    everything += gpus(*slices)
    mesh = run_line(hint_of(tuple(axes.values()), tuple(axes)))
    assert dict(mesh.shape) == axes
    assert mesh.axis_types == (AxisType.Explicit,) * len(axes)
    assert sorted(device.id for device in mesh.devices.flat) == list(range(sum(slices)))
    assert slices_along(mesh, "data") == over
    assert [slices_along(mesh, axis) for axis in axes if axis in ("model", "tp")] == [1]


def test_documented_line_is_the_one_of_the_hint(everything: list[Device]) -> None:
    """The documentation shows the line for two nodes with 8 GPUs each."""
    everything += gpus(8, 8)
    line = hint_of((4, 4), ("data", "model")).partition("Write instead: ")[2]
    page = (ROOT / "docs/how-to/gpu-nodes.md").read_text()
    blocks = [block.partition("\n```")[0] for block in page.split("```python\n")[1:]]
    assert ast.dump(ast.parse(line)) in [ast.dump(ast.parse(block)) for block in blocks]


def test_line_keeps_axis_types_and_devices(everything: list[Device]) -> None:
    """The line has the axis types and the devices of the call."""
    everything += gpus(4, 4)
    types = (AxisType.Auto, AxisType.Explicit)
    mesh = run_line(hint_of((2, 2), ("a", "b"), types, devices=everything[2:6]))
    assert mesh.axis_types == types
    assert [device.id for device in mesh.devices.flat] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("slices", "words"), [((8, 8), "use all 16 devices, or pass"), ((8, 4), "another. Pass devices=")]
)
def test_unequal_parts_get_no_line(everything: list[Device], slices: Sequence[int], words: str) -> None:
    """A mesh that needs more devices of one slice than of another gets the reason, and no line that fails."""
    everything += gpus(*slices)
    hint = hint_of((12,), ("x",))
    assert words in hint
    assert "Write instead" not in hint


def test_axes_of_a_tpu_are_split_where_they_must_be(everything: list[Device]) -> None:
    """A line for TPU slices splits their physical axes only for sizes that need it."""
    everything += tpus("TPU v4")
    assert "allow_split" not in hint_of((2, 4, 4), ("data", "x", "model"))
    hint = hint_of((4, 8), ("data", "model"))
    assert "allow_split_physical_axes=True" in hint
    assert slices_along(run_line(hint), "model") == 1


def test_assertion_within_one_tpu_slice_gets_no_hint(everything: list[Device]) -> None:
    """The same assertion about devices of one slice, which have a hole, gets no hint."""
    everything += tpus("TPU v4")[:16]
    assert hint_of((5,), ("x",)) == ""


def test_other_refusals_stay_as_they_are(everything: list[Device]) -> None:
    """A call that is wrong in another way raises JAX's error, and a refused mesh with too few names gets no numbers."""
    everything += gpus(4, 4)
    with pytest.raises(ValueError, match=re.escape("Number of devices 8 must be >= the product")):
        jax.make_mesh((9,), ("x",))
    assert "sizes_inside_a_slice" in hint_of((2, 4), ("x",))
