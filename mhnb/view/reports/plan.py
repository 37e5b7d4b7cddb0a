"""What-if plans and reshards: the explorer's controls, and both results.

A plan shows a table of the arrays, refusals with JAX's own reason, the shards and the collectives.
A reshard shows two static layouts and a list of what moves between them.

The controls decide nothing about shardings, or about where the answer is shown. The answer is not a widget, because front ends do
not save widgets and it should be readable in the stored notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from mhnb.sharding.boxes import format_box
from mhnb.sharding.layout import format_dtype_and_shape, format_nbytes
from mhnb.sharding.mesh import find_axis_reach, format_axes, warn_cross_host_axes
from mhnb.sharding.plan import Move, Plan, PlannedArray, Refusal, Reshard, example_arrays
from mhnb.sharding.report import Report
from mhnb.view.document import Code, Columns, Document, Fold, InHtml, InText, Line, Part, Problem, Section, Span
from mhnb.view.html import RankLocations
from mhnb.view.print_html import print_parts
from mhnb.view.reports.collectives import build_collectives
from mhnb.view.reports.layout import build_layout
from mhnb.view.reports.mesh import build_tree

PROGRAMS = ("", "matmul", "mlp", "attention")
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "bool")


@dataclass(frozen=True, slots=True)
class PlanInput:
    """Values of the controls; text as typed."""

    hosts: int = 4
    devices_per_host: int = 2
    mesh: str = "data 4, model 2"
    arrays: tuple[PlannedArray, ...] = field(default_factory=lambda: example_arrays("matmul", ("data", "model")))
    program: str = ""
    """One of `PROGRAMS`, `module:function` or an expression; empty for none."""


class Explorer:
    """Widgets for the input of a plan.

    Args:
        initial: the initial values.
        show_result: shows the result for the values, whatever was typed; called for each change.
        axis_names: returns the names of the axes in the mesh's text; empty if it cannot be parsed.
    """

    def __init__(
        self, initial: PlanInput, show_result: Callable[[PlanInput], None], axis_names: Callable[[str], Sequence[str]]
    ) -> None:
        import ipywidgets  # type: ignore[import-untyped]  # it has no types

        self._ipywidgets: Any = ipywidgets
        self._show_result, self._axis_names = show_result, axis_names
        narrow, wide = ({"layout": ipywidgets.Layout(width=width)} for width in ("130px", "320px"))
        number = {"style": {"description_width": "70px"}, "continuous_update": False, **narrow}
        self.hosts = ipywidgets.BoundedIntText(initial.hosts, min=1, max=4096, description="hosts", **number)
        self.devices = ipywidgets.BoundedIntText(
            initial.devices_per_host, min=1, max=4096, description="devices", **number
        )
        self.mesh = ipywidgets.Text(initial.mesh, description="mesh", continuous_update=False, **wide)
        self.program = ipywidgets.Combobox(
            value=initial.program, options=PROGRAMS[1:], placeholder="program: matmul, or lambda x, w: x @ w", tooltip="what is compiled",
            ensure_option=False, continuous_update=False, **wide,
        )  # fmt: skip
        self.add_button = ipywidgets.Button(description="add array", **narrow)
        self.rows = ipywidgets.VBox()
        self.problem = ipywidgets.HTML()
        head = ipywidgets.HBox([self.hosts, self.devices, self.mesh, self.program])
        self.box = ipywidgets.VBox([head, self.rows, self.add_button, self.problem])
        self.box.add_class("mhnb-plan")
        self.rows.children = tuple(self._row(array) for array in initial.arrays)
        for control in (self.hosts, self.devices, self.mesh):
            control.observe(self._changed, "value")
        self.program.observe(self._program_changed, "value")
        self.add_button.on_click(self._add)

    @property
    def data(self) -> dict[str, Any]:
        """Return the controls' display data; stored notebooks show only its text."""
        shown: dict[str, Any] = self.box._repr_mimebundle_()
        return {**shown, "text/plain": "mhjax · the controls of %mhjax plan need a running kernel"}

    @property
    def plan_input(self) -> PlanInput:
        """Return the current values of the controls."""
        arrays = tuple(_read_row(row) for row in self.rows.children)
        return PlanInput(self.hosts.value, self.devices.value, self.mesh.value, arrays, self.program.value.strip())

    def _row(self, array: PlannedArray) -> Any:
        widgets = self._ipywidgets
        layout = widgets.Layout(width="140px")
        name = widgets.Text(
            array.name,
            placeholder="name",
            tooltip="name of the array",
            continuous_update=False,
            layout=widgets.Layout(width="80px"),
        )
        shape = widgets.Text(
            ", ".join(map(str, array.shape)),
            placeholder="shape",
            tooltip="shape of the array",
            continuous_update=False,
            layout=layout,
        )
        options = _DTYPES if array.dtype in _DTYPES else (array.dtype, *_DTYPES)
        dtype = widgets.Dropdown(
            value=array.dtype,
            options=options,
            tooltip="element type of the array",
            layout=widgets.Layout(width="110px"),
        )
        spec = widgets.Text(
            array.spec,
            placeholder="P(...)",
            tooltip="spec of the array",
            continuous_update=False,
            layout=widgets.Layout(width="260px"),
        )
        drop = widgets.Button(description="×", tooltip="remove this array", layout=widgets.Layout(width="32px"))
        row = widgets.HBox([name, shape, dtype, spec, drop])
        for control in (name, shape, dtype, spec):
            control.observe(self._changed, "value")
        drop.on_click(lambda _: self._remove(row))
        return row

    def _add(self, _: Any) -> None:
        count = len(self.rows.children)
        self.rows.children = (*self.rows.children, self._row(PlannedArray(f"a{count}", (1024, 1024), "P()")))
        self._changed()

    def _remove(self, row: Any) -> None:
        self.rows.children = tuple(other for other in self.rows.children if other is not row)
        self._changed()

    def _program_changed(self, _: Any) -> None:
        """Replace the arrays by those of a known program."""
        if self.program.value in PROGRAMS[1:]:
            arrays = example_arrays(self.program.value, self._axis_names(self.mesh.value))
            self.rows.children = tuple(self._row(array) for array in arrays)
        self._changed()

    def _changed(self, _: Any = None) -> None:
        try:
            self._show_result(self.plan_input)
            self.problem.value = ""
        except Exception as error:  # noqa: BLE001 - a view that fails reports it and stays usable
            self.problem.value = print_parts([Code(f"{type(error).__name__}: {error}")])


def _read_row(row: Any) -> PlannedArray:
    name, shape, dtype, spec, _ = row.children
    sizes = [part for part in shape.value.strip(" ()[]").split(",") if part.strip()]
    array = PlannedArray(name.value.strip(), (), spec.value.strip() or "P()", dtype.value)
    if not all(part.strip().isdecimal() for part in sizes):
        # The drawing reports it as an invalid size.
        return replace(array, shape=(-1,))
    return replace(array, shape=tuple(map(int, sizes)))


# -- a what-if plan


_MAX_DRAWN = 8
"""Maximum number of arrays whose shards are drawn; the table has all."""


def _format_plan_title(plan: Plan) -> str:
    device_count = plan.hosts * plan.devices_per_host
    heading = f"plan · {plan.hosts} hosts × {plan.devices_per_host} devices"
    if plan.mesh is None:
        return heading
    return f"{heading} · mesh ({format_axes(plan.mesh.axes)}) on {len(plan.mesh.devices)} of {device_count}"


def _list_refusals(plan: Plan) -> list[tuple[str, Refusal]]:
    return [*([("mesh", plan.refusal)] if plan.refusal else []), *plan.refused]


def _format_mesh_lines(plan: Plan) -> list[str]:
    """Format the lines about the mesh, which are shown beside the arrays."""
    if plan.mesh is None:
        return []
    reach = find_axis_reach(plan.mesh)
    crossing = [f"{axis.name} crosses {axis.hosts} hosts" for axis in reach if axis.crosses] or [
        "no axis crosses a host"
    ]
    return [" · ".join(crossing), *(f"warning: {text}" for text in warn_cross_host_axes(plan.mesh))]


def build_plan(plan: Plan, report: Report | None = None, *, problem: str = "", uid: str = "mhnb-0") -> Document:
    """Build a plan.

    Args:
        plan: the plan.
        report: the collectives of its program; None if there is no report.
        problem: the reason why there is no report although one was requested.
        uid: unique in the notebook.
    """
    gap = InText([Line("")])
    parts: list[Part] = [
        Line(_format_plan_title(plan), "heading"),
        *(Line(line, "quiet") for line in _format_mesh_lines(plan)),
        *(Problem(name, refusal.reason, "JAX", refusal.jax_says) for name, refusal in _list_refusals(plan)),
    ]
    if plan.legal:
        parts += [Section(build_tree(plan.tree)), gap]
        parts += [
            Section(build_layout(layout, name=name, uid=f"{uid}-{at}"))
            for at, (name, layout) in enumerate(plan.legal[:_MAX_DRAWN])
        ]
    if report is not None:
        parts += [gap, Section(build_collectives([report]))]
    return [*parts, *([Line(problem, "bad")] if problem else [])]


# -- a reshard


_MAX_LISTED_MOVES = 24


def _format_reshard_title(plan: Reshard, name: str) -> str:
    return f"{name}  {format_dtype_and_shape(plan.before)}  {plan.before.spec} → {plan.after.spec}".strip()


def _format_sums(plan: Reshard) -> str:
    words = [
        f"{format_nbytes(plan.nbytes_moved)} move",
        f"{format_nbytes(plan.nbytes_across_hosts)} of it across hosts",
    ]
    words.append(f"{format_nbytes(plan.nbytes_kept)} stay")
    # Only a compiled program says it.
    return " · ".join([*words, f"collective: {plan.collective or 'unknown, not compiled'}"])


def _format_moves(plan: Reshard) -> list[str]:
    moves = list(islice(plan.moves(), _MAX_LISTED_MOVES + 1))
    lines = [_format_move(move, plan) for move in moves[:_MAX_LISTED_MOVES]]
    return [*lines, "… and more"] if len(moves) > _MAX_LISTED_MOVES else lines


def _format_move(move: Move, plan: Reshard) -> str:
    crosses = "  across hosts" if plan.host_of(move.source) != plan.host_of(move.target) else ""
    return f"  {move.source!s:>5} → {move.target!s:<5}  {format_box(move.box)}  {format_nbytes(move.nbytes)}{crosses}"


def build_reshard(
    plan: Reshard, *, name: str = "", locations: RankLocations | None = None, uid: str = "mhnb-0"
) -> Document:
    """Build a reshard's sums, layouts and moves; `uid` is unique per notebook."""
    layouts = [
        build_layout(layout, name=word, locations=locations, uid=f"{uid}-{word}")
        for word, layout in (("before", plan.before), ("after", plan.after))
    ]
    moves = _format_moves(plan)
    return [
        Line(_format_reshard_title(plan, name), "heading", beside=[Span(_format_sums(plan), is_quiet=True, gap=5)]),
        Columns(layouts),
        InText([*map(Line, moves)]),
        InHtml([Fold("what moves", [Code("\n".join(moves) or "nothing moves")])]),
    ]
