"""Controls of the what-if explorer. They decide nothing about shardings, or about where the answer is shown.

The answer is not a widget, because front ends do not save widgets and it should be readable in the stored notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from mhnb.sharding.reshard import PlannedArray, example_arrays

__all__ = ["Explorer", "PROGRAMS", "PlanInput"]

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
        """Return what a front end shows. Its text is for a stored notebook, where the widgets no longer exist."""
        shown: dict[str, Any] = self.box._repr_mimebundle_()
        return {**shown, "text/plain": "mhjax · the controls of %mhjax plan; they need their kernel"}

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
        """Replace the arrays by the program's own if the program is a known one."""
        if self.program.value in PROGRAMS[1:]:
            arrays = example_arrays(self.program.value, self._axis_names(self.mesh.value))
            self.rows.children = tuple(self._row(array) for array in arrays)
        self._changed()

    def _changed(self, _: Any = None) -> None:
        try:
            self._show_result(self.plan_input)
            self.problem.value = ""
        except Exception as error:  # noqa: BLE001 - a view that fails reports it and stays usable
            self.problem.value = f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>"


def _read_row(row: Any) -> PlannedArray:
    name, shape, dtype, spec, _ = row.children
    sizes = [part for part in shape.value.strip(" ()[]").split(",") if part.strip()]
    array = PlannedArray(name.value.strip(), (), spec.value.strip() or "P()", dtype.value)
    if not all(part.strip().isdecimal() for part in sizes):
        # The drawing reports it as an invalid size.
        return replace(array, shape=(-1,))
    return replace(array, shape=tuple(map(int, sizes)))
