"""`python -m tests.unit.sharding.absent PLATFORM TOPOLOGY`: compile a sample of the programs for devices that are not here.

It prints what mhnb reads of each, and of meshes of such devices, as JSON. A process of its own, which alone knows the compiler.
"""

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies

from mhnb.adapters.jax_arrays import read_mesh
from mhnb.sharding.hlo_collectives import find_axes, may_communicate, parse_collectives, parse_meshes
from mhnb.sharding.hlo_cost import count_cost
from mhnb.sharding.mesh import find_axis_reach, warn_cross_host_axes
from tests.unit.sharding import programs

SAMPLE = (
    programs.data_parallel, programs.expert_parallel, programs.explicit_axes, programs.loops, programs.middle_axis,
    programs.part_of_axis, programs.pipeline, programs.reshard, programs.rings, programs.sharded_parameters,
    programs.tensor_parallel,
)  # fmt: skip


def describe_program(program: Any, devices: Any) -> dict[str, Any]:
    """Compile a program, and return its collectives with their axes."""
    f, arguments = program(programs.World(devices))
    lowered = f.lower(*arguments)
    text, meshes = str(lowered.compile().as_text()), parse_meshes(lowered.as_text(debug_info=True))
    found = [(one, find_axes(one.groups, meshes)) for one in parse_collectives(text)]
    return {
        "collectives": sorted({(one.op, along.axes) for one, along in found}),
        "times": sorted(one.times for one, _ in found),
        "may_communicate": may_communicate(text),
        "flops": count_cost(text).flops,
    }


def describe_mesh(devices: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """Read a mesh of such devices."""
    mesh = read_mesh(jax.sharding.Mesh(devices.reshape(sizes), names))
    assert mesh.origin is not None
    return {
        "slices": mesh.origin.slices,
        "ranks": [device.rank for device in mesh.devices],
        "reach": [(axis.name, axis.hosts) for axis in find_axis_reach(mesh)],
        "warnings": warn_cross_host_axes(mesh),
    }


def main(platform: str, topology: str) -> int:
    """Print what is read."""
    devices: Any = np.array(topologies.get_topology_desc(**json.loads(topology)).devices)
    found: dict[str, Any] = {"programs": {each.__name__: describe_program(each, devices) for each in SAMPLE}}
    if platform == "tpu":
        names = ("data", "model")
        found["slice"] = describe_mesh(mesh_utils.create_device_mesh((2, 4), devices=list(devices)), (2, 4), names)
        both = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4", num_slices=2).devices
        hybrid = mesh_utils.create_hybrid_device_mesh((1, 8), (2, 1), devices=both)
        found["hybrid"] = describe_mesh(hybrid, (2, 8), names)
        found["turned"] = describe_mesh(hybrid.T, (8, 2), names)
        # The line that the hint for that mesh has.
        found["cured"] = describe_mesh(
            mesh_utils.create_hybrid_device_mesh((4, 2), (2, 1), devices=both), (8, 2), names
        )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
