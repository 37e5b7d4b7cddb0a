"""Reports that ranks must agree on: collectives and the layouts of values.

Collectives are those that a call would launch, or that a cell launched. For a value, the views of all ranks are compared.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from mhnb.cluster.requests import RankClient, check_ranks, read_values, request_all
from mhnb.core.cell_name import format_cell_name
from mhnb.core.hints import find_hint
from mhnb.core.program_replies import CompiledCall, ExportedCall, FailedCall, LaunchedPrograms
from mhnb.core.ranks import describe_ranks, format_ranks, ranks_by_key
from mhnb.errors import CallFailed, HloError, InvalidRequest, UnknownForm, ValueDiffers
from mhnb.sharding.layout import Layout, LayoutTree, decode_mesh, decode_tree
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.report import Program, Report, make_report, program_from_wire
from mhnb.types import DeviceRef

_EXPECTED = "expected a call such as step(params, batch)"


def check_call(text: str, command: str = "collectives") -> str:
    """Return the text of a call.

    Args:
        text: as the user typed it.
        command: the command that takes it.

    Raises:
        InvalidRequest: the text is empty, or not a call.

    >>> check_call("step(params, batch) ")
    'step(params, batch)'
    """
    if not text.strip():
        raise InvalidRequest(f"{command}: {_EXPECTED}", text=text)
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidRequest(
            f"{command}: {_EXPECTED}; {text.strip()!r} is not valid Python: {error.msg}", text=text
        ) from error
    if not isinstance(node, ast.Call):
        raise InvalidRequest(f"{command}: {_EXPECTED}, got {text.strip()!r}", text=text)
    return text.strip()


def request_collectives(client: RankClient, call: str, hosts: Mapping[int, str]) -> Report:
    """Compile a call on every rank without running it; report its collectives.

    Args:
        client: the cluster.
        call: as `step(params, batch)`.
        hosts: the host of each rank.

    Raises:
        InvalidRequest: the text is not a call, or the ranks cannot evaluate it.
        CallFailed: the function raised while it was traced or compiled.
        ValueDiffers: the ranks would launch different programs.
        UnknownForm: the compiled text holds something that mhnb does not know.
    """
    call_text = check_call(call)
    answers = request_all(client, check_ranks(None, client.process_count), "collectives", {"call": call_text})
    replies: dict[int, CompiledCall | FailedCall] = read_values(
        "collectives",
        answers,
        CompiledCall | FailedCall,  # type: ignore[arg-type]  # a union
    )
    report = make_report(merge_compiled(call_text, replies), hosts)
    compiled = {rank: reply for rank, reply in replies.items() if isinstance(reply, CompiledCall)}
    printed = _merge_printed({rank: reply.printed for rank, reply in compiled.items()})
    return replace(report, is_plain=any(reply.is_plain for reply in compiled.values()), printed=printed)


def request_export(client: RankClient, call: str, axes: Mapping[str, int], platform: str, specs: str) -> ExportedCall:
    """Trace a call on the first rank for another machine's mesh.

    Args:
        client: the cluster.
        call: as `step(state, batch)`.
        axes: of the planned mesh.
        platform: of the machine: `tpu`, `cuda` or `cpu`.
        specs: the name of a dictionary of specs by path; empty for the arguments' own.

    Raises:
        InvalidRequest: the text is not a call, or the rank cannot evaluate it for this mesh.
        CallFailed: the function raised while it was traced.
    """
    call_text, rank = check_call(call, "fit"), check_ranks(None, client.process_count)[:1]
    arguments = {"call": call_text, "axes": list(axes.items()), "platform": platform, "specs": specs}
    replies: dict[int, ExportedCall | FailedCall] = read_values(
        "fit",
        request_all(client, rank, "fit", arguments),
        ExportedCall | FailedCall,  # type: ignore[arg-type]  # a union
    )
    reply = replies[rank[0]]
    if isinstance(reply, FailedCall):
        _raise_failed(call_text, {rank[0]: reply}, everywhere=True)
    return reply


def _merge_printed(texts: Mapping[int, str]) -> tuple[str, ...]:
    """Return lines printed during tracing, with ranks if their texts differ."""
    if len(set(texts.values())) == 1:
        return tuple(next(iter(texts.values())).splitlines())
    return tuple(f"rank {rank}: {line}" for rank, text in sorted(texts.items()) for line in text.splitlines())


def merge_compiled(call: str, answers: Mapping[int, CompiledCall | FailedCall]) -> Program:
    """Check that all ranks report one program for a call; return it."""
    failed = {rank: answer for rank, answer in answers.items() if isinstance(answer, FailedCall)}
    if failed:
        _raise_failed(call, failed, everywhere=len(failed) == len(answers))
    programs = {
        rank: program_from_wire(answer.program) for rank, answer in answers.items() if isinstance(answer, CompiledCall)
    }
    groups = ranks_by_key({rank: _comparison_key(program) for rank, program in programs.items()})
    if len(groups) > 1:
        sides = [(ranks, _describe(programs[ranks[0]])) for ranks in groups.values()]
        listing = "\n".join(f"  {describe_ranks(ranks)}: {words}" for ranks, words in sides)
        hint = "%mhjax vars shows where the arguments differ"
        if len({words for _, words in sides}) == 1:
            # The descriptions do not distinguish the programs.
            hint = f"their collectives are the same; another operation, a constant or a branch differs\n{hint}"
        raise ValueDiffers(
            f"{call} is not the same program on all ranks; running it would raise OrderMismatch\n{listing}\n{hint}",
            name=call,
        )
    return programs[min(programs)]


def _raise_failed(call: str, failed: Mapping[int, FailedCall], *, everywhere: bool) -> NoReturn:
    first = failed[min(failed)]
    same_error_ranks = [rank for rank, answer in failed.items() if answer.ename == first.ename]
    where = (
        "on every rank"
        if everywhere and len(same_error_ranks) == len(failed)
        else f"on {describe_ranks(same_error_ranks)}"
    )
    near = f"; did you mean {' or '.join(first.close_names)}?" if first.close_names else ""
    # Error messages of mhnb are complete without their type.
    ename = "" if first.is_mhnb_error else f"{first.ename}: "
    message = f"{call} {where}: {ename}{first.evalue}{near}"
    if first.ename == UnknownForm.__name__:
        raise UnknownForm(message, form=call)
    if first.was_traced and not first.is_mhnb_error:
        raise CallFailed("\n".join([message, *_format_site_and_hint(call, first)]), ename=first.ename)
    if first.ename == "NameError" and not near:
        message += "; %mhjax vars lists the variables on the ranks, %mhjax push NAME copies one from this notebook"
    raise InvalidRequest(message, text=call)


def _format_site_and_hint(call: str, answer: FailedCall) -> list[str]:
    """Return the user's line that raised and a hint, where known."""
    hint = find_hint(answer.ename, answer.evalue, site=answer.site, code=answer.code or call)
    line = [f"  {answer.place}:  {answer.code}"] if answer.place else []
    return [*line, *([f"  → {hint}"] if hint else [])]


def _comparison_key(program: Program) -> object:
    """Return a comparison key, without XLA's per-host names or a single rank."""
    is_local = len(set(program.ranks)) == 1
    ranks: object = len(program.ranks) if is_local else program.ranks
    return replace(program, ranks=(), collectives=tuple(replace(one, name="") for one in program.collectives)), ranks


def _describe(program: Program) -> str:
    ops = ", ".join(f"{one.op} {one.results[0] if one.results else ''}" for one in program.collectives[:4])
    more = ", …" if len(program.collectives) > 4 else ""
    takes = f" of {program.argument_types:.120}" if program.argument_types else ""
    return f"{program.name}{takes} on {len(program.ranks)} devices of ranks {format_ranks(program.ranks)}: {ops or 'no collective'}{more}"


def request_launched(
    client: RankClient, seq: int, ranks: Sequence[int], hosts: Mapping[int, str], *, cell_name: str = ""
) -> tuple[Report, ...]:
    """Return reports of a cell's multi-rank programs, in order of first launch.

    Args:
        client: the cluster.
        seq: the cell's number.
        ranks: the ranks that ran it.
        hosts: the host of each rank.
        cell_name: the cell's name; empty for its number.

    Raises:
        InvalidRequest: another cell has run since.
        ValueDiffers: the ranks report different things of a program.
        HloError: a compiled text holds something that mhnb does not know.
    """
    answers = request_all(client, ranks, "launched", {"seq": seq})
    return merge_launched(
        cell_name or format_cell_name(seq, None), read_values("launched", answers, LaunchedPrograms), hosts
    )


def merge_launched(
    cell_name: str, answers: Mapping[int, LaunchedPrograms], hosts: Mapping[int, str]
) -> tuple[Report, ...]:
    """Merge the ranks' launched programs, which must agree where they are shared."""
    if any(answer.is_gone for answer in answers.values()):
        raise InvalidRequest(
            f"only the collectives of the latest cell are kept, and another cell has run since {cell_name}"
        )
    found: dict[str, tuple[int, Program, int]] = {}
    for rank, answer in sorted(answers.items()):
        for fingerprint, count, wire in answer.programs:
            if isinstance(wire, str):
                raise HloError(f"rank {rank} cannot read a program that it launched: {wire}")
            program = program_from_wire(wire)
            before = found.setdefault(fingerprint, (rank, program, count))
            if (_comparison_key(before[1]), before[2]) != (_comparison_key(program), count):
                raise ValueDiffers(
                    f"ranks {before[0]} and {rank} report different launches of one program:\n"
                    f"  rank {before[0]}: {before[2]} × {_describe(before[1])}\n  rank {rank}: {count} × {_describe(program)}",
                    name=program.name,
                )
    return tuple(
        _select_communicating(make_report(program, hosts, launches=count) for _, program, count in found.values())
    )


def _select_communicating(reports: Iterable[Report]) -> list[Report]:
    """Return the reports that have communication; all of them if none has."""
    every = list(reports)
    return [report for report in every if report.rows] or every


# -- compare the ranks' views of a value


RankView: TypeAlias = Layout | LayoutTree | MeshShape | str
"""What a rank reports of a value; an error text if it has nothing to report."""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """What some ranks report, all the same."""

    ranks: tuple[int, ...]
    view: RankView
    is_local: bool = False
    """Whether these ranks report arrays of their own, one each; `view` has the first rank's."""
    is_deleted: bool = False
    """Whether it is one array whose bytes were deleted."""


def request_layout(client: RankClient, expression: str, ranks: Sequence[int] | None = None) -> tuple[LayoutView, ...]:
    """Request where a value is stored, without fetching data or launching programs.

    Returns:
        The views that differ, with the view of most ranks first.

    Raises:
        InvalidRequest: no rank has such a value.
    """
    answers = request_all(client, check_ranks(ranks, client.process_count), "layout", {"expression": expression})
    wires = {rank: answer.value for rank, answer in answers.items()}
    views = compare_views(_decode_all(wires), deleted={rank for rank, wire in wires.items() if _is_deleted(wire)})
    if all(isinstance(view.view, str) for view in views):
        texts = "; ".join(
            f"{view.view}".removeprefix("layout: ") + (f" ({describe_ranks(view.ranks)})" if len(views) > 1 else "")
            for view in views
        )
        raise InvalidRequest(f"layout {expression}: {texts}", expression=expression)
    return views


def _decode_all(wires: Mapping[int, Mapping[str, Any]]) -> dict[int, RankView]:
    """Decode equal replies only once: with thousands of devices each is large."""
    decoded: list[tuple[Mapping[str, Any], RankView]] = []
    views: dict[int, RankView] = {}
    for rank, wire in wires.items():
        known = next((value for other, value in decoded if other == wire), None)
        if known is None:
            known = _decode(wire)
            decoded.append((wire, known))
        views[rank] = known
    return views


def _is_deleted(wire: Mapping[str, Any]) -> bool:
    return wire["kind"] == "array" and bool(wire["tree"]["rows"][0]["deleted"])


def _decode(wire: Mapping[str, Any]) -> RankView:
    if wire["kind"] == "error":
        return str(wire["text"])
    if wire["kind"] == "mesh":
        return decode_mesh(wire["mesh"])
    tree = decode_tree(wire["tree"])
    layout = tree.rows[0].layout
    return layout if wire["kind"] == "array" and layout is not None else tree


def compare_views(views: Mapping[int, RankView], *, deleted: Collection[int] = ()) -> tuple[LayoutView, ...]:
    """Group ranks that report the same, ignoring the rank of local arrays.

    Args:
        views: what each rank reports.
        deleted: ranks on which it is one array whose bytes were deleted.

    >>> [view.ranks for view in compare_views({0: "none", 1: MeshShape((), ()), 2: "none"})]
    [(1,), (0, 2)]
    """
    neutral = {rank: _without_rank(value, rank) for rank, value in views.items()}
    groups: list[list[int]] = []
    for rank in sorted(views):
        for ranks in groups:
            # The first two ranks decide for each array whether all hold it, or each its own.
            same = (rank in deleted) == (ranks[0] in deleted)
            if same and all(
                _views_match(views[rank], views[other], neutral[rank], neutral[other]) for other in ranks[:2]
            ):
                ranks.append(rank)
                break
        else:
            groups.append([rank])
    groups.sort(key=lambda ranks: (isinstance(views[ranks[0]], str), -len(ranks), ranks[0]))
    return tuple(
        LayoutView(
            tuple(ranks),
            _mark_local(views[ranks[0]], views[ranks[1]] if len(ranks) > 1 else neutral[ranks[0]]),
            is_local=any(views[rank] != views[ranks[0]] for rank in ranks[1:2]),
            is_deleted=ranks[0] in deleted,
        )
        for ranks in groups
    )


def _mark_local(view: RankView, other: RankView) -> RankView:
    """Mark the arrays that differ from those in another rank's view.

    A rank that is alone has its view without ranks as the other: arrays that only it has differ.
    """
    if isinstance(view, Layout):
        return replace(view, is_local=view != other)
    if isinstance(view, LayoutTree) and isinstance(other, LayoutTree):
        rows = zip(view.rows, other.rows, strict=True)
        return LayoutTree(
            tuple(a if a.layout is None else replace(a, layout=replace(a.layout, is_local=a != b)) for a, b in rows)
        )
    return view


def _views_match(one: RankView, other: RankView, neutral: RankView, other_neutral: RankView) -> bool:
    """Whether two views match, array by array, as shared or as local."""
    if one == other or neutral == other_neutral:
        return True
    if not (isinstance(one, LayoutTree) and isinstance(other, LayoutTree) and len(one.rows) == len(other.rows)):
        return False
    assert isinstance(neutral, LayoutTree)
    assert isinstance(other_neutral, LayoutTree)
    known = zip(one.rows, other.rows, strict=True)
    own = zip(neutral.rows, other_neutral.rows, strict=True)
    return all(a == b or c == d for (a, b), (c, d) in zip(known, own, strict=True))


def _without_rank(view: RankView, rank: int) -> RankView:
    """Remove the rank from arrays that are stored on it only."""
    if isinstance(view, Layout):
        return _layout_without_rank(view, rank)
    if isinstance(view, LayoutTree):
        rows = (r if r.layout is None else replace(r, layout=_layout_without_rank(r.layout, rank)) for r in view.rows)
        return LayoutTree(tuple(rows))
    if isinstance(view, MeshShape) and all(device.rank == rank for device in view.devices):
        return _mesh_without_rank(view)
    return view


def _layout_without_rank(layout: Layout, rank: int) -> Layout:
    if any(device.rank != rank for device in layout.devices):
        return layout
    mesh = None if layout.mesh is None else _mesh_without_rank(layout.mesh)
    return replace(
        layout, mesh=mesh, placed=tuple((_device_without_rank(device), box) for device, box in layout.placed)
    )


def _mesh_without_rank(mesh: MeshShape) -> MeshShape:
    return MeshShape(mesh.axes, tuple(map(_device_without_rank, mesh.devices)))


def _device_without_rank(device: DeviceRef) -> DeviceRef:
    return DeviceRef(-1, device.ordinal)
