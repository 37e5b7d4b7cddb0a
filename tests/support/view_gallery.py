"""Every view of sample results, at a chosen number of ranks, and a page that shows all of them as a notebook does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import structs

import mhnb.view.live
from mhnb.core.flight import EventKind, FlightEvent, FlightHeader, FlightReport, RankFlight, build_report
from mhnb.core.guard.value_check import CheckRow
from mhnb.core.hang_report import HangReport, RankLocation
from mhnb.core.memory import ArrayMemory, DeviceMemory, MemoryReport, RankMemory
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.preflight_facts import Column, Finding, PreflightReport, ReportCell
from mhnb.core.ranks import describe_ranks, format_ranks, pluralize
from mhnb.core.stragglers import Arrival, Stragglers, measure_stragglers
from mhnb.core.trace import EventKind as EventKindOfTrace
from mhnb.core.trace import (
    RankTrace,
    TracedCollective,
    TraceEvent,
    TraceReport,
    TraceSource,
    match_collectives,
    measure_ranks,
    sum_collectives,
)
from mhnb.core.variables import VariableInfo, VariableRow
from mhnb.sharding.explorer import PlanInput, lay_out
from mhnb.sharding.hlo_text import SourceLine
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.plan import Plan, PlannedArray, Refusal, plan_reshard
from mhnb.sharding.report import Collective, Report
from mhnb.sharding.shardy import Explanation
from mhnb.types import PHASES, DeviceRef, RankError, RankInfo, StartProgress
from mhnb.view.cell.html import View, format_cell_html
from mhnb.view.document import (
    Card,
    CardTone,
    Cell,
    Code,
    Document,
    Drawing,
    Fields,
    Fold,
    Line,
    Problem,
    Progress,
    SortableTable,
    Span,
    Table,
    Tiles,
)
from mhnb.view.drawings.form import Refused
from mhnb.view.drawings.metrics import draw_card
from mhnb.view.html import STATE_COLORS, RankLocations
from mhnb.view.live.explorer import FormState, build_form
from mhnb.view.live.frame import MAX_BLOCKS, build_frame, frame_parts
from mhnb.view.live.placeholder import format_first_placeholder, format_replacement
from mhnb.view.live.results_panel import ResultPanel, build_panel_state
from mhnb.view.live.strip import build_strip
from mhnb.view.live.widget import read_style
from mhnb.view.print_html import print_html
from mhnb.view.reports.collectives import build_collectives
from mhnb.view.reports.error import build_error
from mhnb.view.reports.flight import build_flight, build_flights, build_stragglers
from mhnb.view.reports.hang import build_hang, build_where
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.memory import build_memory
from mhnb.view.reports.mesh import build_mesh
from mhnb.view.reports.metrics import build_card, build_metrics
from mhnb.view.reports.plan import build_plan, build_reshard
from mhnb.view.reports.preflight import build_preflight
from mhnb.view.reports.start import StartSummary, build_start, build_summary
from mhnb.view.reports.status import Status, build_status
from mhnb.view.reports.trace import build_trace
from mhnb.view.reports.variables import build_check, build_vars
from tests.support.metric_samples import log_points, training_cell, training_points
from tests.support.view_samples import (
    after_a_failure,
    cell,
    failed,
    lesson_samples,
    out,
    rank_died,
    shown,
    value,
    with_states,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["Theme", "live_views", "open_page", "stored_views"]

Theme = Literal["light", "dark"]

LOSS_LINES = 200
FEW = 4
"""The number of ranks at which the views are shown that always have the same ranks."""
EXECUTION_COUNT = 7
"""The number of every cell, as JupyterLab shows it."""


def _mismatch(count: int) -> str:
    """Return the message of the guard where rank 0 launches another program than the others."""
    return (
        "nothing was launched, the cluster is clean\n"
        f"  launch 3 of In [{EXECUTION_COUNT}] differs\n"
        "  rank 0      jit(add) f32[8] → f32[]     line 2:  got = [float(f(x)) for f in order]\n"
        f"  {describe_ranks(range(1, count)):<12}jit(top) f32[8] → f32[]     line 2:  got = [float(f(x)) for f in order]\n"
        "  order is a set, whose order depends on the process. Sort it."
    )


def _locations(count: int) -> RankLocations:
    ranks = range(count)
    return RankLocations(
        hosts={rank: f"host{rank // 4 if count > 4 else rank}" for rank in ranks},
        logs={rank: f"/data/mhnb/logs/rank{rank}.log" for rank in ranks},
        cluster="demo",
    )


def _loss_lines(rank: int, odd: int) -> str:
    shift = 0.4 if rank == odd else 0.002 * rank
    return "".join(
        f"step {step:4d}  loss {2.4 / (1 + step / 20) + shift:.4f}  grad norm {1 / (1 + step):.3f}\n"
        for step in range(LOSS_LINES)
    )


def _svg_figure(rank: int) -> str:
    bars = "".join(
        f'<rect x="{10 + 30 * at}" y="{100 - 9 * (at + rank % 3)}" width="22" height="{9 * (at + rank % 3)}" fill="#0072b2"/>'
        for at in range(8)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="260" height="110"><rect width="260" height="110" fill="#fff"/>{bars}</svg>'


def _html_table(rank: int) -> str:
    head = "".join(f"<th>measure {column}</th>" for column in range(16))
    rows = "".join(
        "<tr>" + "".join(f"<td>{rank}.{row}{column}</td>" for column in range(16)) + "</tr>" for row in range(3)
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


_BOX_TABLE = """\
┏━━━━━━━━┳━━━━━━━━━┓
┃ layer  ┃ seconds ┃
┡━━━━━━━━╇━━━━━━━━━┩
│ dense  │ {:7.3f} │
│ conv   │ {:7.3f} │
└────────┴─────────┘
"""


def _results(count: int) -> dict[str, CellResult]:
    """Return a result of each kind that users meet, by a name that says what happened."""
    ranks, odd = range(count), count // 2
    mismatch = [
        replace(
            failed(rank, "OrderMismatch"),
            outputs=(),
            error=RankError("OrderMismatch", _mismatch(count), (), line=2, code="got = [float(f(x)) for f in order]"),
        )
        for rank in ranks
    ]
    results = {
        "every rank printed the same": cell(*[[out("f32[8,8] on mesh (data 4, model 2)\n")] for _ in ranks]),
        "each rank printed its own number": cell(*[[out(f"process {rank} of {count}\n")] for rank in ranks]),
        "numbers differ": cell(*[[out(f"loss {0.3 + rank / 100:.3f} pid {4711 + rank}\n")] for rank in ranks]),
        "one rank differs": cell(*[[out(f"loss {0.731 if rank == odd else 0.312}\n")] for rank in ranks]),
        "a training loop": cell(*[[out(_loss_lines(rank, odd))] for rank in ranks], wall_s=21.0),
        "long different outputs": cell(
            *[[out("".join(f"{chr(97 + (rank + n) % 26) * 9} line {n}\n" for n in range(64)))] for rank in ranks]
        ),
        "a value and standard error": cell(*[[out("warning: slow\n", "stderr"), value("Array([0., 1.])")] for _ in ranks]),
        "figures": cell(*[[shown(image__svg=_svg_figure(rank), text__plain="<Figure>")] for rank in ranks]),
        "a wide table": cell(*[[value(f"table of {rank}", **{"text/html": _html_table(rank)})] for rank in ranks]),
        "a table drawn with boxes": cell(*[[out(_BOX_TABLE.format(rank + 0.5, 2.0))] for rank in ranks]),
        "one rank failed": cell(*[failed(rank) if rank == odd else [out("done\n")] for rank in ranks]),
        "a hint": cell(*[failed(rank, hint="reshape to a size that divides 64") for rank in ranks]),
        # One rank alone has nobody to differ from.
        **({"different launches": cell(*mismatch)} if count > 1 else {}),
        "after a failure": after_a_failure(*[[value("2")] for _ in ranks]),
        "a note": cell(
            *[[out("2\n")] for _ in ranks], notes=("Variables set after line 3 exist on ranks 0,1,3 only.",)
        ),
        "messages of libraries": cell(
            *[replace(RankResult(rank, "ok", (out("2\n"),)), noise="[Gloo] Rank 0 is connected to 3 peer ranks\n") for rank in ranks]
        ),
    }  # fmt: skip
    results["metrics"] = training_cell(count)
    results["metrics that are printed too"] = replace(results["a training loop"], added=training_cell(count).added)
    return {name: replace(result, execution_count=EXECUTION_COUNT) for name, result in results.items()}


def _report(count: int) -> HangReport:
    absent = count // 2
    waiting = tuple(rank for rank in range(count) if rank != absent)
    places = (
        RankLocation(waiting, "launch", "jit(step)", 4, "loss = step(params, batch)"),
        RankLocation((absent,), "sleep", "sleep", 3, "batch = next(batches)", "data.py:31 read_shard"),
    )
    lines = {rank: 3 if rank == absent else 4 for rank in range(count)}
    memory_nbytes = {rank: (1 + rank) * 2**26 for rank in range(count)}
    return HangReport(
        12, waiting, (absent,), "jit(step)", lines, 6.2, progress=False, known=True, stuck=True, places=places,
        memory_nbytes=memory_nbytes,
    )  # fmt: skip


def _stop_report(count: int) -> HangReport:
    """Return the report of the same cell, with the absent rank stopped in the debugger."""
    report = _report(count)
    waits, sleeps = report.places
    places = (replace(waits, activity="agreement"), replace(sleeps, activity="stopped", what=""))
    return replace(report, stuck=False, stopped=report.absent, places=places)


def reports(count: int) -> dict[str, Document]:
    """Return a document of every report by name; those of several ranks only if there are several."""
    ranks = tuple(
        RankInfo(rank, f"host{rank}", pid=4711 + rank, phase=PHASES[-1], devices=(DeviceRef(rank, 0), DeviceRef(rank, 1)))
        for rank in range(count)
    )  # fmt: skip
    variables = (
        VariableRow("x", (((0,), VariableInfo("global", "Array", "", (8, 8), "float32", "P('data')", None, 32)),)),
        VariableRow("words", (((0,), VariableInfo("host", "str")),)),
    )
    preflight = PreflightReport(
        ("host0", "host1"),
        (Column("login", {0: ReportCell("ok"), 1: ReportCell("failed", "failure")}), Column("jax", {0: ReportCell("0.10.2")})),
        (Finding("failure", "login", ("host1",), "host1: does not respond", "switch it on"),),
    )  # fmt: skip
    checks = (
        CheckRow("w", "f32[2]", True, "value held by every rank: equal"),
        CheckRow("b", "f32[2]", False, "differs"),
    )
    return {
        "a start": build_start(StartProgress(ranks, 1.2)),
        "the summary of a start": build_summary(StartSummary(ranks, 3.1, "0.10.2", "lockstep", log_dir="/data/logs")),
        "status": build_status(Status("default · clean · generation 1", "clean", _with_a_failed_cell(ranks))),
        "variables": build_vars(variables),
        "check": build_check(checks),
        "preflight": build_preflight(preflight),
        "a hang": build_hang(_report(count), name="demo") if count > 1 else [],
        "where": build_where(_report(count), name="demo") if count > 1 else [],
        "flight recorder": build_flight(_recorded(count)) if count > 1 else [],
        "events of a rank": build_flights(_recorded(count), (0,)) if count > 1 else [],
        "memory": build_memory(_memory(count)),
        "stragglers": build_stragglers(_stragglers(count)) if count > 1 else [],
        "trace": build_trace(_traced(count)) if count > 1 else [],
        "metrics of all cells": build_metrics(training_cell(count).metrics),
    }


def _with_a_failed_cell(ranks: tuple[RankInfo, ...]) -> tuple[RankInfo, ...]:
    folder, outcomes = Path("/data/mhnb/default.4711.1/log"), {len(ranks) // 2: "error"}
    return tuple(
        replace(one, log_path=folder / f"rank{one.rank}.log", last_cell=f"In [3] {outcomes.get(one.rank, 'ok')}")
        for one in ranks
    )


def _traced(count: int) -> TraceReport:
    sources = trace_sources(count)
    runs = match_collectives(sources)
    ranks, span_s = measure_ranks(sources, runs)
    path = "~/.local/state/mhnb/demo.4711.1/trace/cell12.timeline.json.gz"
    return TraceReport(12, f"In [{EXECUTION_COUNT}]", "", path, ranks, sum_collectives(sources, runs), span_s)


def trace_sources(count: int) -> list[TraceSource]:
    """Return what ranks recorded of four steps; one rank comes 30 ms late to each, and the others wait in the collective."""
    late, sources = count // 2, []
    groups = {"0": (0, format_ranks(tuple(range(count))))}
    gather = TracedCollective("jit_step", "all-gather.1", "all-gather f32[64,64] over model", "In [3], line 12", groups)
    reduce = TracedCollective("jit_step", "all-reduce.2", "all-reduce f32[64,6] over data", "In [3], line 14", groups)
    for rank in range(count):
        events, lines, now = [], [], 12.0
        for _ in range(4):
            lines += [(2, round(now * 1e6)), (3, round((now + (30.0 if rank == late else 1.0)) * 1e6))]
            now += 30.0 if rank == late else 1.0
            for name, ms in (("fusion.1", 14.0), ("all-gather.1", 6.0), ("fusion.2", 22.0), ("all-reduce.2", 9.0)):
                # The others have come 29 ms earlier, and leave at the same time.
                end = now + ms + (29.0 if name == "all-gather.1" and rank != late else 0.0)
                kind: EventKindOfTrace = "collective" if name.startswith("all-") else "compute"
                events.append(
                    TraceEvent(kind, name, round(now * 1e6), round((end - now) * 1e6), 0, "stream", "jit_step")
                )
                now = end
        ended = round((now + 8) * 1e6)
        trace = RankTrace(0, ended, tuple(events), (gather, reduce), tuple(lines), recorded_until_ns=ended)
        sources.append(TraceSource(rank, f"host{rank}", 4711 + rank, trace, (), 0))
    return sources


def _memory(count: int) -> MemoryReport:
    """Return the memory of ranks of which one holds an array more."""
    mesh = (("data", count), ("model", 2))
    place = f"In [{EXECUTION_COUNT}], line 3"
    w = ArrayMemory(
        ("params['w']", "w"),
        (8192, 4096),
        "float32",
        "global",
        1 << 27,
        1 << 27,
        2 * count,
        "P()",
        mesh,
        "",
        "jit(init)",
        place,
    )
    x = ArrayMemory(("x",), (4096, 64), "bfloat16", "global", 1 << 19, (1 << 19) // count, 2 * count, "P('data')", mesh)
    loose = ArrayMemory((), (256,), "float32", "local", 1024, 1024, 1, count=12)
    extra = ArrayMemory(
        ("cache",), (2048, 2048), "float32", "local", 1 << 24, 1 << 24, 1, place=place, is_assignment=True
    )
    ranks = {}
    for rank in range(count):
        odd = rank == count // 2
        used = [(1 << 27) + (1 << 20) + ((1 << 24) if odd and at == 0 else 0) for at in range(2)]
        devices = tuple(DeviceMemory(at, "NVIDIA H100", each, each + 4096, 60 << 30) for at, each in enumerate(used))
        ranks[rank] = RankMemory(devices, (w, *([extra] if odd else []), x, loose), host_nbytes=(400 + rank) << 20)
    return MemoryReport("demo", ranks)


def _stragglers(count: int) -> Stragglers:
    """Return stragglers: one rank comes 50 ms late to each of 20 launches, the others with some noise."""
    chance, late = random.Random(1), count // 2  # noqa: S311  # not for secrets
    everyone = format_ranks(tuple(range(count)))
    arrivals: dict[int, list[Arrival]] = {rank: [] for rank in range(count)}
    for launch in range(1, 21):
        came_ms = {
            rank: 60.0 * launch + abs(chance.gauss(0, 2)) + (50.0 if rank == late else 0.0) for rank in range(count)
        }
        for rank, ms in came_ms.items():
            decided_ms = max(came_ms.values()) + 0.2
            arrivals[rank].append(Arrival(everyone, (1, launch), round(ms * 1e6), round(decided_ms * 1e6)))
    hosts = {rank: f"host{rank}" for rank in range(count)}
    stragglers = measure_stragglers(arrivals, dict.fromkeys(range(count), "clock"), hosts)
    assert stragglers is not None
    return structs.replace(stragglers, cell_name=f"In [{EXECUTION_COUNT}]")


def _recorded(count: int) -> FlightReport:
    """Return the recordings of ranks of which one ended a cell without the launch in which the others wait."""
    odd, everyone = count // 2, format_ranks(tuple(range(count)))
    flights = []
    for rank in range(count):
        header = FlightHeader(rank, 1, count, 4711 + rank, f"host{rank}", "clock", 1_795_000_000_000_000_000, 0)
        program = "jit(step) f32[64,6] → f32[]"
        begin = FlightEvent(1, 10_000_000, "cell", 1, program=f"In [{EXECUTION_COUNT}] lockstep")
        compiled = FlightEvent(2, 90_000_000, "compilation", 1, 3, program="jit_step")
        kinds: list[tuple[EventKind, int]] = [("proposal", 1), ("agreement", 1), ("launch", 1), ("proposal", 2)]
        launches = [
            FlightEvent(number, 95_000_000 + number * 1_700_000, kind, 1, 2 + at, at, 77, program, everyone)
            for number, (kind, at) in enumerate(kinds, 3)
        ]
        end = FlightEvent(6, 118_000_000, "end", 1, program="ok")
        events = (begin, compiled, *(launches[:-1] if rank == odd else launches), *([end] if rank == odd else []))
        flights.append(RankFlight(rank, header, events))
    return build_report("demo", flights)


def _explain(operation: str, line: int) -> Explanation:
    source = SourceLine("/src/model.py", line)
    return Explanation(f"jit(step)/{operation}", source, before=("P('data', None)", None), after="P()")


def _communication(count: int) -> Report:
    """Return the report of a step with a collective inside each host and another across hosts."""
    pairs = tuple((2 * rank, 2 * rank + 1) for rank in range(count))
    gather = Collective(
        "all-gather", ("model",), pairs, 2, 8192, 0, "f32", SourceLine("/src/model.py", 12), shape="f32[64,64]",
        times=2, ring_nbytes_per_device=8192, why=_explain("all_gather", 12),
    )  # fmt: skip
    reduce = Collective(
        "all-reduce", ("data",), tuple(zip(*pairs, strict=True)), 1, 32768, 24576, "f32", SourceLine("/src/model.py", 18),
        shape="f32[128,64]", crosses=True, ring_nbytes_per_device=49152, ring_nbytes_across_hosts=49152,
        why=_explain("dot_general", 18),
    )  # fmt: skip
    return Report("jit(step)", (gather, reduce))


def sharding_views(count: int) -> dict[str, Document]:
    """Return a document of every view of a sharding by name."""
    mesh = MeshShape.row_major({"data": count, "model": 2}, devices_per_host=2)
    layout = Layout.of((64, 6), mesh, "P('data', None)")
    cube = Layout.of((2, 64, 6), mesh, "P(None, 'data', 'model')")
    return {
        "layout": build_layout(layout, name="x", uid="mhnb-layout"),
        "layout by slices": build_layout(cube, name="c", uid="mhnb-cube"),
        "mesh": build_mesh(mesh, name="mesh"),
        "resharding": build_reshard(
            plan_reshard(layout, Layout.of((64, 6), mesh, "P()")), name="x", uid="mhnb-reshard"
        ),
        "plan": build_plan(Plan(count, 2, mesh, (("x", layout), ("y", Refusal("8 is not a multiple of 3"))))),
        "no collective": build_collectives([Report("jit(f)", ())]),
        "collectives": build_collectives([_communication(count)]),
    }


_SHEET_CSS = (
    ".mhnb-sheet{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,450px),1fr));gap:0 32px}"
    ".mhnb-sheet>*{min-width:0}.mhnb-sheet .mhnb{padding-left:8px}.mhnb-sheet ul.mhnb-strip{padding:0!important;margin:4px 0!important}"
    ".mhnb-sheet .mhnb>.mhnb-bar{margin-left:-8px!important;padding-left:5px!important}"
)


def sheet_of_parts() -> str:
    """Return the HTML of every part once, on one screen, so that they can be judged beside each other."""
    text: Document = [
        Line("title · of a report", "heading"),
        Line("bad title", "bad heading"),
        Line("body, what is read first"),
        Line("quiet, what is true of all ranks", "quiet"),
        Line("caption of a table", "caption"),
        Line(
            "",
            sign="✓",
            beside=[Span("a tick, and"), Span("what matters", is_strong=True), Span("a host", is_quiet=True)],
        ),
        Line("advice, below what it is about", "advice"),
        Code("w = jax.device_put(w, NamedSharding(mesh, P('data')))"),
        Fold("a fold", [Line("its content")]),
        Fold("an open fold", [Line("its content")], is_open=True),
        Progress("progress", 3, 8),
        Tiles(["rank 0 ready", "rank 1 ready"], [STATE_COLORS["running"], STATE_COLORS["waiting"]]),
        Problem("y", "P('data') does not divide 6", "JAX", "6 is not a multiple of 4"),
    ]
    rows: list[list[str | Cell]] = [
        ["0", "host0", "alive", "300 MiB"],
        ["1", "host1", Cell("missing", is_bad=True), "301 MiB"],
    ]
    tables: Document = [
        Table(["rank", "host", "state", "memory"], rows),
        SortableTable(["array", "bytes"], [["w", "512"], ["b", "8"]], [[None, 512], [None, 8]], frozenset([(0, 1)])),
        Fields([("yours", "spec is a tuple"), ("expected", "a PartitionSpec")], look="word"),
        *(Card(tone, [Line(f"a card: {tone}", "heading"), Line("its text")], "") for tone in get_args(CardTone)),
    ]
    results = _results(FEW)
    cells = [
        format_cell_html(results[name], uid=f"mhnb-part-{at}", locations=_locations(FEW))
        for at, name in enumerate(("one rank failed", "one rank differs", "numbers differ", "after a failure"))
    ]
    chips = "".join(
        f'<li class="mhnb-rank mhnb-{item.kind}">{item.sign} <b>{item.label}</b> {item.state}</li>'
        for item in build_strip(with_states(64))
    )
    # Where there is no widget, its style sheet is not there either.
    strip = (
        f'<style>{read_style()}</style><div class="mhnb mhnb-panel mhnb-live"><ul class="mhnb-strip">{chips}</ul></div>'
    )
    loss = log_points(lambda rank: (point for point in training_points(rank, 2) if point[0] == "loss"), FEW)
    chart = draw_card(build_card(loss, done=True))
    drawings: Document = [
        Drawing(chart),
        *sharding_views(FEW)["layout"],
        *build_trace(_traced(FEW))[:4],
    ]
    more = [*build_hang(_report(FEW), name="demo"), *build_collectives([_communication(FEW)])]
    columns = (print_html([*text, *tables]), "".join([*cells, strip, print_html(more)]), print_html(drawings))
    html = "".join(f"<div>{column}</div>" for column in columns)
    return print_html([Drawing(f'<div class="mhnb-sheet">{html}</div>', css=_SHEET_CSS)])


def _explorer(count: int) -> str:
    """Return the form of a plan with an array that is not legal and a field that is not valid."""
    arrays = (PlannedArray("x", (64, 6), "P('data', None)"), PlannedArray("y", (63, 6), "P('data', None)"))
    plan_input = PlanInput(count, 2, f"data {count}, model 2", arrays, device_nbytes=1024)
    state = FormState(plan_input, lay_out(plan_input), {"hosts": Refused("'many' is not a number", "many")})
    css = read_style("form.css")
    parts = "".join(f"<div>{html}</div>" for _, html in build_form(state, "mhnb-explorer"))
    return f'<div class="mhnb mhnb-form mhnb-explorer"><style>{css}</style>{parts}</div>'


def stored_views(count: int) -> dict[str, str]:
    """Return the HTML of every stored view by name; results of cells in each layout of the ranks."""
    locations = _locations(count)
    views: dict[str, str] = {"00 every part": sheet_of_parts()} if count == FEW else {}
    for at, (name, result) in enumerate(_results(count).items()):
        views[name] = format_cell_html(result, uid=f"mhnb-fold-{at}", locations=locations)
    for view in ("tabs", "grid"):
        for name in ("numbers differ", "one rank failed", "figures"):
            uid = f"mhnb-{view}-{len(views)}"
            views[f"{name}, as {view}"] = format_cell_html(
                _results(count)[name], view=view, uid=uid, locations=locations
            )
    running = replace(_running(count), where=None)
    views["a cell that was saved while it ran"] = format_first_placeholder(
        running, uid="mhnb-saved", locations=locations
    )["text/html"]
    views["a panel without its kernel"] = format_replacement(
        _results(count)["numbers differ"], locations, uid="mhnb-gone"
    )["text/html"]
    if count == FEW:
        views |= (
            {"a rank died": format_cell_html(rank_died(), locations=locations)} | lesson_samples() | error_samples()
        )
    views["explorer"] = _explorer(count)
    documents = {name: document for name, document in (reports(count) | sharding_views(count)).items() if document}
    return views | {name: print_html(document) for name, document in documents.items()}


def _running(count: int) -> CellResult:
    said = [[out(f"rank {rank} reads shard {rank}\nstep {7 + rank % 2} loss 0.5\n")] for rank in range(count)]
    return replace(cell(*said, done=False, wall_s=6.2), execution_count=EXECUTION_COUNT)


def live_views(count: int) -> dict[str, dict[str, Any]]:
    """Return the state of mhnb's widget by name, over running cells and, as a panel, over a result."""
    locations = _locations(count)
    loop = cell(*[[out(_loss_lines(rank, -1))] for rank in range(count)], done=False, wall_s=4.0)
    loop = replace(loop, execution_count=EXECUTION_COUNT)
    done = tuple(replace(rank, outcome="ok", wall_s=1.5) if rank.rank % 3 == 0 else rank for rank in _running(count))
    views = {
        "all ranks run": build_frame(_running(count), locations),
        "a loop runs": build_frame(loop, locations),
        "some ranks have ended": build_frame(replace(_running(count), ranks=done), locations),
        "a cell that logs metrics": build_frame(
            replace(training_cell(count, done=False), execution_count=EXECUTION_COUNT), locations
        ),
        "each rank by itself": build_frame(_running(count), locations, view="rows"),
    }
    if count > 1:
        views["ranks in many states"] = build_frame(
            replace(with_states(count), execution_count=EXECUTION_COUNT), locations
        )
        views["one rank is absent"] = build_frame(replace(_running(count), where=_report(count)), locations)
        views["one rank is stopped in the debugger"] = build_frame(
            replace(_running(count), where=_stop_report(count)), locations
        )
    fixed = {"mode": "live", "blocks": MAX_BLOCKS, "placeholder": "mhnb-placeholder", "runs": True, "page": ""}
    live: dict[str, dict[str, Any]] = {name: fixed | frame_parts(frame) for name, frame in views.items()}
    result = _results(count)["one rank differs"]
    bodies = {rank: ResultPanel(result, locations).format_body(rank) for rank in range(count)}
    for view in get_args(View):
        state = build_panel_state(result, locations, uid=f"mhnb-panel-{view}", view=view)
        live[f"panel as {view}"] = {"mode": "panel", "number": 0, "bodies": bodies, **state}
    return live


_ERRORS = {
    "misspelt flag": "UsageError: %mhjax start: unrecognized arguments: --devcies 2 (did you mean --devices?)\n  Help: %mhjax help start",
    "refused cell": (
        "NotClean: this cell was not run, because the cluster is split: ranks 1-2 launched jit(step) and ranks 0,3 did not\n"
        "  Fix: %mhjax restart --replay (restores the variables)\n"
        "  Or: %mhjax accept (if you know that the ranks are in sync)\n"
        "  Help: %mhjax help not-clean"
    ),
    "refused hosts": (
        "LaunchError: this machine cannot resolve the names of hosts node17.cluster, node18.cluster (Name or service not known)\n"
        "  Fix: correct the name, and test it: `ssh node17.cluster true`\n"
        "  Or: if only a jump host knows the name: --address 10.0.0.1 (the address of this machine that the hosts can reach)\n"
        "  Help: %mhjax help launch-error"
    ),
    "code in the wrong line": (
        "UsageError: %%mhjax x = 3: this line takes flags only; put the code on the lines below:\n%%mhjax\nx = 3"
    ),
    "long message": (
        f"EnginesMissing: rank 3 (host1) did not start: it ended with exit code 1 in phase import {'a' * 120}\n"
        + "".join(f"    File /opt/conda/lib/python3.12/site-packages/module_{n}.py, line {n}\n" for n in range(1, 41))
        + "  Fix: see `~/.local/state/mhnb/demo/rank3.log`, then %mhjax restart\n  Help: %mhjax help engines-missing"
    ),
}
"""Texts of errors by what they are about; each begins with the name of its class."""


def error_samples() -> dict[str, str]:
    """Return the card of each kind of error as stored HTML, by name."""
    return {f"error: {about}": print_html(build_error(text.partition(":")[0], text)) for about, text in _ERRORS.items()}


# -- the page


_MOUNT = """async ([source, css, all]) => {
  const style = document.head.appendChild(document.createElement("style"));
  style.textContent = css;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  for (const [at, values] of Object.entries(all)) {
    const handlers = {};
    const model = {
      get: (name) => values[name],
      on: (name, handler) => { handlers[name] = handler; },
      off: () => {},
      // The kernel answers later, never while it is asked.
      send: ({ ask }) => { if (ask) setTimeout(() => handlers["msg:custom"]({ bodies: values.bodies })); },
    };
    const el = document.getElementById(`live-${at}`);
    // JupyterLab shows a widget in an output of its own, which has not the styles of HTML.
    el.closest(".jp-RenderedHTMLCommon").className = "jp-OutputArea-output";
    widget.render({ model, el });
    // The pictures take longer than the widget waits for its kernel.
    setInterval(() => handlers.change?.(), 1000);
  }
  await new Promise((done) => setTimeout(done));
}"""


def open_page(browser: Browser, count: int, *, theme: Theme = "light", width: int = 1600) -> Page:
    """Open a page with every view, with the styles of a notebook that nbconvert exported in JupyterLab's theme.

    Args:
        browser: where to open it.
        count: number of ranks.
        theme: of the page.
        width: of the window, in pixels.
    """
    import nbformat
    from nbconvert import HTMLExporter

    live = live_views(count)
    parts = stored_views(count) | {f"live: {name}": f'<div id="live-{at}"></div>' for at, name in enumerate(live)}
    cells = [
        nbformat.v4.new_code_cell(
            f"# {pluralize(count, 'rank')}: {name}",
            outputs=[nbformat.v4.new_output("display_data", {"text/html": html})],
        )
        for name, html in parts.items()
    ]
    html, _ = HTMLExporter(template_name="lab", theme=theme).from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    page = browser.new_page(viewport={"width": width, "height": 1000})
    # The page would load MathJax from the network.
    page.route("**/*", lambda route: route.abort())
    page.set_content(html, wait_until="commit")
    page.wait_for_selector(".mhnb", state="attached")
    folder = Path(mhnb.view.live.__file__).parent
    sources = [(folder / "panel.js").read_text(encoding="utf-8"), read_style()]
    page.evaluate(_MOUNT, [*sources, list(live.values())])
    return page
