"""The commands of `%mhjax` about shardings: `layout`, `plan` and `collectives`."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.cluster.flags import add_machine_flags
from mhnb.cluster.sharding import LayoutView, request_collectives, request_export, request_layout
from mhnb.commands.command import Command
from mhnb.compiler import CompileClient, shared_compiler
from mhnb.core.arguments import int_argument, unquote
from mhnb.core.program_replies import ExportedCall
from mhnb.core.ranks import describe_ranks
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.fits import check_mesh, collect, compile_exported, count_meshes, find_platform, parse_axis_names, search
from mhnb.magics.session import Session, locations_from_cluster
from mhnb.sharding.explorer import PlanInput, choose_machine, lay_out
from mhnb.sharding.layout import Layout, LayoutTree
from mhnb.sharding.machines import parse_machine
from mhnb.sharding.mesh import MeshShape, parse_axes
from mhnb.sharding.plan import Plan, example_arrays, parse_planned, plan_reshard
from mhnb.sharding.report import Report
from mhnb.system.run_dir import expand_user
from mhnb.view.document import Code, Document, InText, Line, Section
from mhnb.view.html import RankLocations, new_uid
from mhnb.view.live.explorer import Explorer
from mhnb.view.live.screen import Screen, detect_screen, show_document
from mhnb.view.print_text import print_text
from mhnb.view.progress import ProgressLine
from mhnb.view.reports.collectives import build_collectives
from mhnb.view.reports.fit import build_fit, build_search
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.mesh import build_mesh, build_tree
from mhnb.view.reports.plan import build_plan, build_reshard


def _layout(session: Session, args: argparse.Namespace) -> None:
    expression = " ".join(args.expression)
    cluster = manager.current()
    views = request_layout(cluster, expression)
    places = locations_from_cluster(cluster)
    if args.to is not None:
        _reshard(expression, views, unquote(args.to), places)
    elif args.csv is not None:
        _write_csv(expression, views, expand_user(unquote(args.csv), "--csv"))
    else:
        show_views(expression, views, places)


def _single_layout(expression: str, views: Sequence[LayoutView], flag: str) -> Any:
    """Return the single layout that all ranks report, which a flag needs."""
    if len(views) > 1:
        rank_sets = "; ".join(f"{describe_ranks(view.ranks)}" for view in views)
        raise UsageError(
            f"{flag}: the layout of {expression} differs between ranks ({rank_sets}). %mhjax layout {expression} shows each"
        )
    return views[0].view


def _reshard(expression: str, views: Sequence[LayoutView], to: str, places: RankLocations) -> None:
    before = _single_layout(expression, views, "--to")
    if not isinstance(before, Layout) or before.mesh is None:
        raise UsageError(f"--to needs an array on a mesh, but {expression} is not one; name one array of it")
    after = Layout.of(before.shape, before.mesh, to, dtype=before.dtype)
    plan = replace(
        plan_reshard(before, after, places.hosts), collective=_describe_chosen_collectives(before, after, places)
    )
    show_document(build_reshard(plan, name=expression, locations=places, uid=new_uid()))


def _describe_chosen_collectives(before: Layout, after: Layout, places: RankLocations) -> str:
    """Describe the compiler's collectives for a reshard, or the compilation error."""
    try:
        rows = shared_compiler().compile_reshard(before, after, places.hosts).rows
    except MhnbError as error:
        return f"unknown: {error}"
    words = [f"{row.op} over {', '.join(row.axes) or 'groups'}" for row in rows]
    return " then ".join(words) or "none (each device already has its data)"


def _write_csv(expression: str, views: Sequence[LayoutView], path: Path) -> None:
    seen = _single_layout(expression, views, "--csv")
    if not isinstance(seen, LayoutTree):
        raise UsageError(f"--csv writes the table of a pytree, but {expression} is not a pytree")
    try:
        path.write_text(seen.to_csv(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--csv {path}: {error.strerror}; expected a file that can be written") from error
    print(f"mhjax · {len(seen.rows)} rows written to {path}")


def show_views(
    name: str, views: Sequence[LayoutView], places: RankLocations | None = None, screen: Screen | None = None
) -> None:
    """Show a value's layout, once per group of ranks that agree."""
    sections = [Section(_build_view(name, view, places, several=len(views) > 1)) for view in views]
    if len(views) > 1:
        differing_ranks = ", ".join(describe_ranks(view.ranks) for view in views[1:])
        heading = f"the layout of {name} differs: {differing_ranks} vs. {describe_ranks(views[0].ranks)}"
        sections.insert(0, Section([Line(heading, "bad heading")]))
    gap = InText([Line("")])
    show_document([part for section in sections for part in (gap, section)][1:], screen)


def _build_view(name: str, view: LayoutView, places: RankLocations | None, *, several: bool) -> Document:
    seen, notes = view.view, _format_view_notes(view)
    if isinstance(seen, str):
        return [Code(f"{describe_ranks(view.ranks)}: {seen}")]
    title = f"{name} on {describe_ranks(view.ranks)}" if several else name
    if isinstance(seen, Layout):
        return build_layout(seen, name=title, locations=places, notes=notes, uid=new_uid())
    if isinstance(seen, MeshShape):
        return build_mesh(seen, name=title, locations=places)
    return build_tree(seen, name=title, notes=notes)


def _format_view_notes(view: LayoutView) -> tuple[str, ...]:
    notes = ("deleted: the data no longer exists; this is where it was stored",) if view.is_deleted else ()
    if not view.is_local or len(view.ranks) == 1:
        return notes
    own = f"local: {describe_ranks(view.ranks)} each have their own arrays; this shows those of rank {view.ranks[0]}"
    return (*notes, own)


def _layout_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expression", nargs="+", metavar="EXPRESSION", help="array, pytree or mesh on the ranks")
    parser.add_argument(
        "--to", metavar="SPEC", help="show what a reshard to this spec moves, for example P(None, 'model')"
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table of a pytree to this file")


def _plan(session: Session, args: argparse.Namespace) -> None:
    arrays = tuple(parse_planned(unquote(text)) for text in args.array or ())
    mesh, program = unquote(args.mesh) or "data 4, model 2", unquote(args.program)
    axes = tuple(parse_axes(mesh))
    names = [array.name for array in arrays]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--array: two arrays are named {twice[0]}; give each a name of its own")
    plan_input = PlanInput(args.hosts, args.devices, mesh, arrays or example_arrays(program, axes), program)
    if args.on:
        chosen = choose_machine(plan_input, unquote(args.on))
        # A mesh that was asked for stays.
        plan_input = replace(chosen, mesh=mesh, arrays=plan_input.arrays) if args.mesh else chosen

    def find_named(program: str) -> str | None:
        return find_source(session.shell.user_ns, program)

    screen = detect_screen()
    if args.text or not screen.rich:
        screen.write(print_text(draw_plan(plan_input, source=find_named(program))))
        return
    Explorer(
        plan_input, lambda wanted, plan: find_collectives(wanted, plan, source=find_named(wanted.program)), screen
    ).open()


def find_source(namespace: Mapping[str, Any], name: str) -> str | None:
    """Return the source of a notebook function; None for other names."""
    found = namespace.get(name)
    # The result of jax.jit keeps the function that it wraps.
    unwrapped = inspect.unwrap(found) if callable(found) else found
    if not isinstance(unwrapped, FunctionType):
        return None
    try:
        return textwrap.dedent(inspect.getsource(unwrapped))
    except OSError as error:
        raise InvalidRequest(
            f"the source of {name} is not available ({error}); give an expression or module:function"
        ) from error


def draw_plan(plan_input: PlanInput, compiler: CompileClient | None = None, *, source: str | None = None) -> Document:
    """Draw a plan for any input; arguments as for `find_collectives`."""
    plan = lay_out(plan_input)
    report, problem = find_collectives(plan_input, plan, compiler, source=source)
    device_nbytes, machine = plan_input.device_nbytes, plan_input.machine
    return build_plan(plan, report, problem=problem, device_nbytes=device_nbytes, machine=machine, uid=new_uid())


def find_collectives(
    plan_input: PlanInput, plan: Plan, compiler: CompileClient | None = None, *, source: str | None = None
) -> tuple[Report | None, str]:
    """Return the collectives of a plan's program, or the reason why not.

    Args:
        plan_input: the program to compile, if any.
        plan: its plan.
        compiler: None for the shared compiler of this process; called only if a program is chosen.
        source: source of the program, if it is a function that only the notebook defines.
    """
    if not plan_input.program:
        return None, ""
    if not plan.is_legal:
        return None, "collectives are shown once every array is legal"
    layouts = [layout for _, layout in plan.legal]
    try:
        return (compiler or shared_compiler()).compile_program(source or plan_input.program, layouts), ""
    except MhnbError as error:
        return None, str(error)


def _plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int_argument, default=4, metavar="N", help="number of hosts (default: 4)")
    parser.add_argument("--devices", type=int_argument, default=2, metavar="D", help="devices per host (default: 2)")
    parser.add_argument(
        "--mesh",
        default="",
        metavar="AXES",
        help="mesh axes and their sizes (default: 'data 4, model 2', or all devices of --on)",
    )
    parser.add_argument(
        "--on", default="", metavar="MACHINE", help="machine that need not exist, such as h100:8x8 or v5p:4x4x4"
    )
    parser.add_argument(
        "--array",
        action="append",
        metavar="ARRAY",
        help="array, for example \"x f32[8,6] P('data', None)\" (repeatable)",
    )
    parser.add_argument(
        "--program",
        default="",
        metavar="PROGRAM",
        help="program whose collectives to show: matmul, mlp, attention, a notebook function, module:function, or 'lambda x, w: x @ w'",
    )
    parser.add_argument("--text", action="store_true", help="print text instead of showing controls")


# -- `%mhjax collectives f(args)`


def _collectives(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    call, why = args.line.removeprefix("--why").strip() if args.why else args.line, args.why
    if call.endswith(" --why"):
        # After the call, `--why` is also valid Python (two minus signs), so it arrives as part of the call.
        call, why = call.removesuffix("--why").strip(), True
    hosts = {rank.rank: rank.host for rank in cluster.ranks}
    show_document(build_collectives([request_collectives(cluster, call, hosts)], why=why))


def _collectives_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--why", action="store_true", help="show for each the operation, its line, and the shardings in its source"
    )
    parser.add_argument(
        "call", nargs=argparse.REMAINDER, metavar="f(args)", help="call to compile on every rank without running it"
    )


# -- `%mhjax fit f(args) --on MACHINE`


def _fit(session: Session, args: argparse.Namespace) -> None:
    machine, call = parse_machine(unquote(args.on)), " ".join(args.call)
    platform, rules = find_platform(machine), [unquote(name) for name in args.specs or [""]]

    def export(axes: Mapping[str, int], specs: str) -> ExportedCall:
        return request_export(manager.current(), call, axes, platform, specs)

    if not args.search:
        axes = check_mesh(machine, parse_axes(unquote(args.mesh)))
        for name in rules:
            show_document(build_fit(compile_exported(export(axes, name), machine, axes)))
        return
    names = parse_axis_names(unquote(args.mesh))
    found = search(export, machine, names, rules)
    line, count = ProgressLine(), count_meshes(machine, names) * len(rules)
    line.finish_with(build_search(call, collect(found, machine, count, line), machine))


def _fit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "call", nargs="+", metavar="f(args)", help="call to compile, with the ranks' values as shapes and specs"
    )
    add_machine_flags(parser)
    parser.add_argument(
        "--specs",
        action="append",
        metavar="NAME",
        help="dictionary of specs by a pattern of the argument's path, such as {'params/w': P('data')} (repeatable)",
    )


COMMANDS = (
    Command(
        "layout",
        _layout,
        "Show which device stores which part of an array, a pytree or a mesh.",
        "sharding",
        _layout_flags,
        "EXPRESSION [--to SPEC]",
        aliases=("sharding",),
        splits="expression",
    ),
    Command(
        "plan",
        _plan,
        "Plan hosts, a mesh, arrays and specs that need not exist.",
        "sharding",
        _plan_flags,
        "[--hosts N] [--mesh AXES] [--array ARRAY]",
        splits="expression",
    ),
    Command(
        "collectives",
        _collectives,
        "List the collectives of a call without running it, and the bytes they move.",
        "sharding",
        _collectives_flags,
        "[--why] f(args)",
    ),
    Command(
        "fit",
        _fit,
        "Compile a call for a machine that you do not have: memory, collectives, time.",
        "sharding",
        _fit_flags,
        "f(args) --on MACHINE --mesh AXES",
        splits="expression",
    ),
)
"""The commands of this module."""
