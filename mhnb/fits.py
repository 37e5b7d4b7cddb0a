"""Plan a call for another machine: export, compile, estimate, search.

A call is exported where its function is: on a rank, or in the user's own process. The compiler runs in a helper process
(`mhnb.compiler`). What it answers is kept on disk, because the same layouts are asked for again and again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from msgspec import structs

from mhnb.compiler import (
    MAX_DEVICES,
    compiler_folder,
    format_install_line,
    is_compiler_installed,
    shared_compiler,
)
from mhnb.core.program_replies import CompiledFit, CompileReply, ExportedCall, FitRequest
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import CallFailed, InvalidRequest
from mhnb.sharding.fit import Candidate, Fit, Search, divide_devices, estimate_step
from mhnb.sharding.machines import Machine, parse_machine
from mhnb.sharding.mesh import format_axes, parse_axes
from mhnb.sharding.report import Program, make_report, program_from_wire, program_to_wire
from mhnb.system.private_files import make_private_folder, write_private
from mhnb.system.run_dir import state_home
from mhnb.view.progress import ProgressLine

_CACHE_NBYTES = 200 * 2**20


def fit(
    f: Any, /, *args: Any, on: str, mesh: str | Mapping[str, int], specs: Mapping[str, Any] | None = None, **kwargs: Any
) -> Fit:
    """Compile a call for a machine that need not exist.

    Works in any process, without a cluster; nothing is run, and no array is read.

    Args:
        f: what `jax.jit` takes, or its result; or a function of one argument, `mesh`, that returns one of these.
        *args: arrays, `jax.ShapeDtypeStruct`, or pytrees of them. Their specs are used; those without a mesh are replicated.
        on: the machine, as `v5p:4x4x4`, `v5e:16x16*2` (slices), `h100:8x8` (hosts x GPUs), `cpu:4x2`.
        mesh: its axes, as `data 16, model 4`; their product is the number of devices.
        specs: specs by a regular expression that is searched for in the path of an argument, as `state/params/w`. They take
            precedence.
        **kwargs: further arguments of `f`.

    Raises:
        InvalidRequest: the machine, the mesh or a spec is not valid, or the compiler refuses the call.

    Returns:
        Memory in bytes of one device, collectives, operations, and the estimated seconds of a step.
    """
    from mhnb.rank.requests.fit import Target, export_call, run_apart

    if not isinstance(mesh, str | Mapping):
        raise InvalidRequest(
            f"mesh is {type(mesh).__name__}; expected axes such as 'data 16, model 4', or their sizes by name"
        )
    machine = parse_machine(on)
    axes = check_mesh(machine, parse_axes(mesh) if isinstance(mesh, str) else mesh)
    target = Target(axes, find_platform(machine), specs or {})
    return compile_exported(run_apart(lambda: export_call(f, (args, kwargs), target)), machine, axes)


def find_platform(machine: Machine) -> str:
    """Return the machine's platform, or `cpu` without its compiler."""
    return machine.chip.platform if is_compiler_installed(machine.chip.platform) else "cpu"


def compile_exported(call: ExportedCall, machine: Machine, axes: Mapping[str, int]) -> Fit:
    """Compile an exported call for a machine, and estimate its step.

    Args:
        call: exported for the platform that `find_platform` returns.
        machine: with as many devices as the mesh.
        axes: of the mesh.

    Raises:
        InvalidRequest: the compiler refuses the call; the message is its own.
        ClusterError: the compiler's process ended.
    """
    platform = find_platform(machine)
    is_own = platform == machine.chip.platform
    if platform == "cpu" and machine.device_count > MAX_DEVICES:
        if is_own:
            raise InvalidRequest(
                f"{machine.text} has {machine.device_count} devices; expected at most {MAX_DEVICES} CPU devices"
            )
        raise InvalidRequest(
            f"the compiler of {machine.chip.label} is not installed, and without it {machine.device_count} devices are"
            f" too many: at most {MAX_DEVICES}\n  Fix: {format_install_line(machine.chip.platform)}"
        )
    factors = machine.split(axes)
    # What the compiler does not need is left out, so that its answer is found again.
    bare = structs.replace(call, arguments=(), printed="", cell_names={})
    request = FitRequest(bare, platform, machine.topology if is_own else {}, tuple(axes.items()), factors)
    program, compiled = _compile_or_recall(request)
    program = program.with_files(lambda file: call.cell_names.get(file, file))
    if platform == "cpu":
        # All fake devices belong to one process.
        program = replace(program, ranks=tuple(map(machine.host_index, range(machine.device_count))))
    hosts_per_slice = machine.host_count // machine.slices
    domains = {rank: rank // hosts_per_slice for rank in program.ranks}
    step = None
    if is_own:
        positions = [domains[rank] for rank in program.ranks]
        step = estimate_step(program, compiled.cost, machine, positions, compiled.places)
    return Fit(
        call.name,
        machine,
        tuple(axes.items()),
        call.axis_types,
        call.arguments,
        compiled.memory,
        compiled.cost,
        replace(make_report(program, domains), is_plain=call.is_plain, printed=tuple(call.printed.splitlines())),
        step,
        compiled.seconds,
        "" if is_own else format_install_line(machine.chip.platform),
    )


def check_mesh(machine: Machine, axes: Mapping[str, int]) -> dict[str, int]:
    """Return the axes of a mesh over all devices of a machine.

    Raises:
        InvalidRequest: they have another number of devices.
    """
    if prod(axes.values()) != machine.device_count:
        raise InvalidRequest(
            f"mesh ({format_axes(tuple(axes.items()))}) has {prod(axes.values())} devices, but {machine.text} has"
            f" {machine.device_count}; expected sizes whose product is {machine.device_count}"
        )
    return dict(axes)


# -- search


def search(
    export: Callable[[Mapping[str, int], str], ExportedCall],
    machine: Machine,
    names: Sequence[str],
    rules: Sequence[str],
) -> Iterator[Candidate]:
    """Yield a call's result for every mesh over a machine's devices.

    Args:
        export: traces the call for the axes of a mesh, and a name of rules.
        machine: whose devices are divided.
        names: of the axes.
        rules: names of dictionaries of specs; one empty name for the arguments' own specs.
    """
    for sizes in divide_devices(machine.device_count, len(names)):
        axes = dict(zip(names, sizes, strict=True))
        for name in rules:
            candidate = Candidate(tuple(axes.items()), name)
            try:
                call = export(axes, name)
                needed = sum(each.nbytes for each in call.arguments)
                available = machine.chip.available
                if available is not None and needed > available:
                    # The arguments alone do not fit, so the compiler need not be asked.
                    yield replace(candidate, needed=needed, is_compiled=False)
                    continue
                yield replace(candidate, fit=compile_exported(call, machine, axes))
            except (CallFailed, InvalidRequest) as error:
                # The function may refuse a mesh, too.
                yield replace(candidate, needed=error.parts.get("needed"), refusal=str(error).partition("\n")[0])


def parse_axis_names(text: str) -> tuple[str, ...]:
    """Parse the names of axes for a search.

    Raises:
        InvalidRequest: one is not a name, or is there twice.

    >>> parse_axis_names("data, model")
    ('data', 'model')
    """
    names = tuple(name.strip() for name in text.strip(" ()").split(","))
    if not all(map(str.isidentifier, names)) or len(set(names)) < len(names):
        raise InvalidRequest(
            f"cannot read mesh {text!r}; with --search, expected the names of the axes alone, such as: data, model"
        )
    return names


def collect(found: Iterator[Candidate], machine: Machine, count: int, line: ProgressLine | None) -> Search:
    """Collect a search's candidates, with progress; Ctrl-C keeps those found.

    Args:
        found: the candidates.
        machine: for which they are.
        count: how many there will be.
        line: where the progress is shown; None for nowhere.
    """
    candidates: list[Candidate] = []
    began = time.monotonic()
    try:
        for done in range(count):
            if line is not None:
                line.update(f"fit · {machine.text} · mesh {done + 1} of {count}", done / count)
            candidates.append(next(found))
    except KeyboardInterrupt:
        if not candidates:
            raise
    return Search(tuple(sorted(candidates, key=lambda each: each.sort_key)), count, time.monotonic() - began)


def count_meshes(machine: Machine, names: Sequence[str]) -> int:
    """Count the ways to divide a machine's devices over some axes."""
    return sum(1 for _ in divide_devices(machine.device_count, len(names)))


# -- what the compilers answered


def _compile_or_recall(request: FitRequest) -> tuple[Program, CompiledFit]:
    """Return the compiler's answer, from the disk if it was asked before."""
    packages = sorted(path.name for path in compiler_folder(request.platform).glob("*.dist-info"))
    # Another mhnb may count differently.
    asked = "\n".join([version("mhnb"), version("jaxlib"), *packages, encode_json(request)])
    file = state_home(os.environ) / "fit" / f"{blake2b(asked.encode(), digest_size=16).hexdigest()}.json"
    # A disk that is full, or cannot be written, costs the next compilation, but not this answer.
    try:
        reply = decode_json(file.read_bytes(), CompileReply)
        with suppress(OSError):
            file.touch()
    except (OSError, ValueError):
        # It is not there, or damaged.
        program, compiled = shared_compiler(request.platform).compile_fit(request)
        reply = CompileReply(program_to_wire(program), compiled)
        with suppress(OSError):
            make_private_folder(file.parent)
            write_private(file, encode_json(reply))
            _prune(file.parent)
    assert reply.program is not None
    assert reply.fit is not None
    return program_from_wire(reply.program), reply.fit


def _prune(folder: Path) -> None:
    """Remove the answers that are oldest in use, beyond the limit."""
    total = 0
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True):
        total += file.stat().st_size
        if total > _CACHE_NBYTES:
            file.unlink(missing_ok=True)
