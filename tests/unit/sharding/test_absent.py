"""Programs and meshes of devices that are not here, read by the readers that serve the guard, the reports and the maps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from mhnb.compiler import compiler_folder
from mhnb.sharding.hlo_collectives import find_axes, parse_meshes
from mhnb.sharding.machines import parse_machine
from tests.support.source import ROOT
from tests.unit.sharding.texts import CPU, lowered, read

pytestmark = [pytest.mark.slow, pytest.mark.requires_part("compilers")]


@cache
def compile_sample(text: str) -> dict[str, Any]:
    """Compile the sample for a machine, and return what mhnb reads."""
    machine = parse_machine(text)
    paths = [str(compiler_folder(machine.chip.platform)), str(ROOT)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-m", "tests.unit.sharding.absent", machine.chip.platform, json.dumps(machine.topology)]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("machine", ["h100:2x4", "v5e:2x4"])
def test_programs_communicate_as_on_cpu(machine: str) -> None:
    """No form is unknown, and kinds, axes and runs of collectives are those of the recorded texts for CPU."""
    for name, found in compile_sample(machine)["programs"].items():
        meshes = parse_meshes(lowered(name, CPU[0]))
        on_cpu = {(one.op, find_axes(one.groups, meshes).axes) for one in read(name, CPU[0])}
        assert found["may_communicate"], name
        assert {(op, tuple(axes)) for op, axes in found["collectives"]} == on_cpu, name
        assert found["times"] == sorted(one.times for one in read(name, CPU[0])), name


def test_operations_are_those_of_the_formulas() -> None:
    """On both machines, products have the operations of one of eight devices."""
    expected = {
        # Two products of 128 rows of a quarter of the batch; four matrices of a sixteenth; one of 64 x 64.
        "data_parallel": 2 * 2 * 128 * 128 * 64,
        "tensor_parallel": 2 * 2 * 32 * 64 * 128,
        "sharded_parameters": 2 * 2 * 32 * 64 * 64,
    }
    for machine in ("h100:2x4", "v5e:2x4"):
        programs = compile_sample(machine)["programs"]
        assert {name: programs[name]["flops"] for name in expected} == expected


def test_devices_of_slices_drive_the_map_and_the_hint() -> None:
    """In real topologies, slices are known by device; an axis inside a slice is fine, and the hint cures one that is not."""
    found = compile_sample("v5e:2x4")
    # Four chips have a host; one slice needs no slices.
    assert (found["slice"]["slices"], found["slice"]["reach"]) == ([], [["data", 2], ["model", 1]])
    assert found["hybrid"]["slices"] == [0] * 8 + [1] * 8
    assert found["hybrid"]["ranks"] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert found["hybrid"]["warnings"] == []
    (warning,) = found["turned"]["warnings"]
    assert "axis 'model' (2) crosses slices" in warning
    assert "to keep it inside a slice: " in warning
    assert "create_hybrid_device_mesh((4, 2), (2, 1))" in warning
    assert found["cured"]["warnings"] == []
