"""`mhnb fit`: what a function would need on another machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mhnb.cli.clusters import add_json_option
from mhnb.cluster.flags import add_machine_flags

if TYPE_CHECKING:
    from mhnb.sharding.fit import Candidate, Fit

DETAILS = """\
With --json, an object for one mesh, or a list of them for --search, with these keys:
  machine, mesh         as given; the mesh as an object of sizes
  fits, missing         whether it fits into the memory of a device, and the bytes that it lacks
  memory                bytes of a device: arguments, outputs, aliased, temporaries, code, needed, available
  operations, nbytes    of a device in one step: of products, and those read and written
  step                  seconds: compute, memory, communication, at_least, at_most; null if not known
  collectives           op, axes, count, nbytes, nbytes_across
  refusal               why the compiler refused it; empty if it did not"""


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mhnb fit`."""
    parser.add_argument(
        "program", metavar="FUNCTION", help="module:function, or an expression such as 'lambda x, w: x @ w'"
    )
    add_machine_flags(parser)
    parser.add_argument(
        "--array",
        action="append",
        default=[],
        metavar="ARRAY",
        help="argument of the function, for example \"x f32[8,6] P('data', None)\" (repeatable, in order)",
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if nothing fits."""
    # Tracing needs no accelerator, and would otherwise take the memory of one.
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, "")
    import jax

    from mhnb.fits import check_mesh, collect, compile_exported, count_meshes, find_platform, parse_axis_names, search
    from mhnb.rank.compile_worker import find_program
    from mhnb.rank.requests.fit import Target, export_call
    from mhnb.sharding.boxes import parse_dtype
    from mhnb.sharding.machines import parse_machine
    from mhnb.sharding.mesh import parse_axes
    from mhnb.sharding.plan import parse_planned
    from mhnb.view.print_text import print_text
    from mhnb.view.progress import ProgressLine
    from mhnb.view.reports.fit import build_fit, build_search

    machine, arrays = parse_machine(args.on), [parse_planned(text) for text in args.array]
    function, platform = find_program(args.program), find_platform(machine)
    arguments = tuple(jax.ShapeDtypeStruct(each.shape, parse_dtype(each.dtype).name) for each in arrays)
    rules = {f"^{each.name}$": each.spec for each in arrays}

    def export(axes: Mapping[str, int], _: str) -> Any:
        names = [each.name for each in arrays]
        return export_call(function, (arguments, {}), Target(axes, platform, rules), names=names)

    if args.search:
        names = parse_axis_names(args.mesh)
        candidates, count = search(export, machine, names, [""]), count_meshes(machine, names)
        if args.json:
            found = collect(candidates, machine, count, None)
            print(json.dumps([_describe_candidate(each) for each in found.candidates], indent=2))
        else:
            line = ProgressLine()
            found = collect(candidates, machine, count, line)
            line.finish_with(build_search(args.program, found, machine))
        return 0 if found.best else 1
    axes = check_mesh(machine, parse_axes(args.mesh))
    fit = compile_exported(export(axes, ""), machine, axes)
    print(json.dumps(describe_fit(fit), indent=2) if args.json else print_text(build_fit(fit)))
    return 1 if fit.missing else 0


def _describe_candidate(candidate: Candidate) -> dict[str, Any]:
    if candidate.fit is not None:
        return describe_fit(candidate.fit)
    return {"mesh": dict(candidate.mesh), "fits": False, "needed": candidate.needed, "refusal": candidate.refusal}


def describe_fit(fit: Fit) -> dict[str, Any]:
    """Return a fit with the keys of `mhnb fit --json`."""
    step = fit.step
    return {
        "machine": fit.machine.text,
        "mesh": dict(fit.mesh),
        "fits": not fit.missing,
        "missing": fit.missing,
        "memory": {**fit.memory._asdict(), "needed": fit.memory.nbytes, "available": fit.available},
        "operations": fit.cost.flops,
        "nbytes": fit.cost.nbytes,
        "step": None
        if step is None
        else {
            "compute": step.compute,
            "memory": step.memory,
            "communication": step.communication,
            "at_least": step.at_least,
            "at_most": step.at_most,
        },
        "collectives": [
            {
                "op": row.op,
                "axes": list(row.axes),
                "count": row.count,
                "nbytes": row.nbytes_per_device,
                "nbytes_across": row.nbytes_across_hosts,
            }
            for row in fit.collectives.rows
        ],
        "refusal": "",
    }
