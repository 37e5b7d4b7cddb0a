"""The form of `%mhjax plan`, and the plan that a file keeps.

The form decides nothing: `mhnb.sharding.explorer` says what a field changes and what can be chosen. A front end does not save widgets,
so the plan without the form is a display of its own, which the file keeps. A style hides it while the form is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest
from mhnb.sharding.explorer import (
    PROGRAMS,
    DimChoice,
    PlanInput,
    change_input,
    lay_out,
    list_dim_choices,
    list_dtypes,
    list_mesh_sizes,
    read_dtype,
)
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import parse_axes
from mhnb.sharding.plan import Plan, Refusal
from mhnb.sharding.report import Report
from mhnb.view.document import Line
from mhnb.view.drawings.form import Fields, Option, Refused, draw_group, draw_section
from mhnb.view.html import new_uid, wrap_html
from mhnb.view.layout_grid import format_cost
from mhnb.view.live.placeholder import hide_behind_widget
from mhnb.view.live.screen import Screen, print_both
from mhnb.view.live.widget import make_form_widget
from mhnb.view.print_html import print_html, print_parts
from mhnb.view.reports.plan import (
    PlanDrawings,
    build_machine,
    build_plan,
    build_results,
    draw_plan_parts,
    format_plan_title,
)

_MACHINES = ("h100:1x8", "h100:8x8", "h200:8x8", "b200:8x8", "a100:8x8", "v5e:16x16", "v5p:4x4x4", "v6e:16x16")
_HINT = "matmul, a function, or lambda x, w: x @ w"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_WIDGET_TEXT = "mhjax · the controls of %mhjax plan need a running kernel"

Compile = Callable[[PlanInput, Plan], tuple[Report | None, str]]
"""Returns the collectives of a plan's program, or the reason why not."""


@dataclass(frozen=True, slots=True)
class FormState:
    """What the form shows."""

    plan_input: PlanInput
    plan: Plan
    refused: Mapping[str, Refused] = field(default_factory=dict)
    """Fields whose text was not accepted."""
    report: Report | None = None
    problem: str = ""
    """The reason why there is no report."""
    is_compiling: bool = False


class Explorer:
    """A form that shows the plan after each change."""

    def __init__(self, plan_input: PlanInput, compile_plan: Compile, screen: Screen) -> None:
        self._compile, self._screen, self._uid = compile_plan, screen, new_uid()
        self._input, self._refused = plan_input, dict[str, Refused]()
        self._widget: Any = None

    def open(self) -> None:
        """Show the form in the current cell; without anywidget, the plan alone."""
        state = self._lay_out()
        try:
            self._widget = make_form_widget(build_form(state, self._uid), self._uid, self.change)
        except ImportError:
            self._widget = None
        self._screen.show(self._format_static(state), self._still_id)
        if self._widget is not None:
            bundle = self._widget._repr_mimebundle_()[0]
            self._screen.show({_WIDGET_VIEW: bundle[_WIDGET_VIEW], "text/plain": _WIDGET_TEXT}, self._uid)
        if state.is_compiling:
            self._complete()

    def change(self, name: str, text: str) -> None:
        """Accept a field's text, or keep it with a reason."""
        try:
            changed = change_input(self._input, name, text)
        except InvalidRequest as error:
            self._refused[name] = Refused(str(error), text)
        else:
            # Other arrays have other numbers.
            gone = ("array.",) if name == "program" or name.endswith(".drop") else ()
            kept = {one: text for one, text in self._refused.items() if one != name and not one.startswith(gone)}
            self._input, self._refused = changed, kept
        if self._input.program:
            # The form answers at once, because a compilation may take seconds.
            self._draw(self._lay_out())
        self._complete()

    def _lay_out(self) -> FormState:
        return FormState(self._input, lay_out(self._input), self._refused, is_compiling=bool(self._input.program))

    def _complete(self) -> None:
        state = replace(self._lay_out(), is_compiling=False)
        try:
            report, problem = self._compile(self._input, state.plan)
        except Exception as error:  # noqa: BLE001 - a view that fails reports it and stays usable
            report, problem = None, f"{type(error).__name__}: {error}"
        state = replace(state, report=report, problem=problem)
        self._draw(state)
        self._screen.replace(self._format_static(state), self._still_id)

    @property
    def _still_id(self) -> str:
        return f"{self._uid}-still"

    def _draw(self, state: FormState) -> None:
        if self._widget is not None:
            self._widget.parts = build_form(state, self._uid)

    def _format_static(self, state: FormState) -> dict[str, str]:
        device_nbytes = state.plan_input.device_nbytes
        uid = f"{self._still_id}-plan"
        machine = state.plan_input.machine
        shown = build_plan(
            state.plan, state.report, problem=state.problem, device_nbytes=device_nbytes, machine=machine, uid=uid
        )
        return print_both([*shown, hide_behind_widget(self._still_id, "mhnb-form")])


# -- the form as HTML


def build_form(state: FormState, uid: str) -> list[tuple[str, str]]:
    """Build the form's parts by key; `uid` is the form's class."""
    drawings = draw_plan_parts(state.plan, uid)
    fields = Fields(uid, _list_refused(state))
    arrays = [(f"array.{at}", _draw_array(fields, state, drawings, at)) for at in range(len(state.plan_input.arrays))]
    # The field of the program has the problem, unless an array has it.
    problem = "" if state.plan.is_legal else state.problem
    device_nbytes = state.plan_input.device_nbytes
    machine = state.plan_input.machine
    results = build_results(state.plan, state.report, problem=problem, device_nbytes=device_nbytes, machine=machine)
    title = format_plan_title(state.plan) + (" · compiling …" if state.is_compiling else "")
    return [
        ("style", wrap_html("", css=drawings.css)),
        ("status", print_parts([Line(title, "heading")])),
        ("machine", _draw_machine(fields, state.plan_input)),
        ("mesh", _draw_mesh(fields, state, drawings)),
        *arrays,
        ("add", draw_section(fields.button("add", "Add an array"))),
        ("results", draw_section(print_html(results))),
    ]


def _list_refused(state: FormState) -> dict[str, Refused]:
    """Return the reasons by field."""
    found = {}
    if state.plan.refusal:
        found["axes"] = _format_refusal(state.plan.refusal)
    for at, (_, layout) in enumerate(state.plan.layouts):
        if isinstance(layout, Refusal):
            found[f"array.{at}.spec"] = _format_refusal(layout)
    if state.problem and state.plan.is_legal:
        found["program"] = Refused(state.problem)
    return found | dict(state.refused)


def _format_refusal(refusal: Refusal) -> Refused:
    return Refused(refusal.reason + (f"\nJAX: … {refusal.jax_says}" if refusal.jax_says else ""))


def _draw_machine(fields: Fields, plan_input: PlanInput) -> str:
    size = plan_input.device_nbytes
    memory = "" if size is None else f"{size / (1 << 30):g}"
    figures = print_parts(build_machine(plan_input.machine)) if plan_input.machine else ""
    row = fields.row(
        ("machine", "hosts", "devices", "memory", "program"),
        fields.text("machine", "Machine", plan_input.machine, chars=11, placeholder="h100:8x8", suggestions=_MACHINES),
        fields.text("hosts", "Hosts", str(plan_input.hosts), chars=5),
        fields.text("devices", "Devices per host", str(plan_input.devices_per_host), chars=5),
        fields.text("memory", "GiB per device", memory, placeholder="unknown"),
        fields.text("program", "Program", plan_input.program, chars=40, placeholder=_HINT, suggestions=PROGRAMS),
    )
    return row + figures


def _draw_mesh(fields: Fields, state: FormState, drawings: PlanDrawings) -> str:
    count = state.plan_input.hosts * state.plan_input.devices_per_host
    chosen = tuple(parse_axes(state.plan_input.mesh).values())
    options = [
        Option("x".join(map(str, sizes)), " × ".join(map(str, sizes)), is_chosen=sizes == chosen)
        for sizes in list_mesh_sizes(count)
    ]
    axes = fields.text("axes", "Axes, with their sizes", state.plan_input.mesh, chars=26)
    controls = fields.choices("sizes", "Mesh", options) + fields.row(["axes"], axes)
    return draw_group(f"Mesh of {count} devices", controls, drawings.devices)


def _draw_array(fields: Fields, state: FormState, drawings: PlanDrawings, at: int) -> str:
    array, name = state.plan_input.arrays[at], f"array.{at}"
    axes, dtype = parse_axes(state.plan_input.mesh), read_dtype(array)
    dims = [
        _draw_dim(fields, name, dim, size, list_dim_choices(array, axes, dim)) for dim, size in enumerate(array.shape)
    ]
    rows = [
        fields.row(
            [f"{name}.name", f"{name}.shape"],
            fields.text(f"{name}.name", "Name", array.name, chars=6),
            fields.text(f"{name}.shape", "Shape", ", ".join(map(str, array.shape)), chars=14),
            fields.select(
                f"{name}.dtype", "Type", [Option(one, one, is_chosen=one == dtype) for one in list_dtypes(dtype)]
            ),
            fields.button(f"{name}.drop", f"Remove {array.name}"),
        ),
        fields.row([f"{name}.spec"], *dims),
    ]
    layout = state.plan.layouts[at][1] if state.plan.layouts else None
    if isinstance(layout, Layout):
        rows.append(print_parts([Line(f"{layout.spec} · {format_cost(layout)}")]))
    return draw_group(array.name, "".join(rows), drawings.arrays.get(array.name, ""))


def _draw_dim(fields: Fields, name: str, dim: int, size: int, choices: Sequence[DimChoice]) -> str:
    is_refused = any(choice.refusal for choice in choices if choice.is_chosen)
    options = [
        Option(
            ",".join(choice.axes),
            _format_choice(choice, size),
            is_chosen=choice.is_chosen,
            is_disabled=bool(choice.refusal),
        )
        for choice in choices
    ]
    reason_of = f"{name}.spec" if is_refused else ""
    return fields.select(f"{name}.dim{dim}", f"Dim {dim} of {size}", options, reason_of=reason_of)


def _format_choice(choice: DimChoice, size: int) -> str:
    names = ", ".join(choice.axes) or "whole"
    if choice.refusal:
        return f"{names}: {choice.refusal}"
    return f"{names}: {pluralize(choice.parts, 'part')} of {size // choice.parts}" if choice.axes else names
