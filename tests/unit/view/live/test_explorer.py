"""The form of `%mhjax plan`: labels, reasons, what is typed, and the static form that a file keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mhnb.sharding.explorer import PlanInput, change_input, lay_out
from mhnb.sharding.plan import Plan, PlannedArray
from mhnb.sharding.report import Report
from mhnb.view.live.explorer import Explorer, FormState, build_form
from tests.support.view_samples import RecordingScreen, StrictPage


def form(plan_input: PlanInput, **more: Any) -> str:
    """Return the form's HTML."""
    return "".join(html for _, html in build_form(FormState(plan_input, lay_out(plan_input), **more), "u"))


def no_report(_wanted: PlanInput, _plan: Plan) -> tuple[Report | None, str]:
    """Compile nothing."""
    return None, ""


def opened(compile_plan: Any = no_report, plan_input: PlanInput | None = None) -> tuple[Explorer, RecordingScreen]:
    """Return an open explorer and its screen."""
    screen = RecordingScreen()
    explorer = Explorer(plan_input or PlanInput(), compile_plan, screen)
    explorer.open()
    return explorer, screen


def live(explorer: Explorer) -> str:
    """Return the HTML that the widget shows."""
    return "".join(html for _, html in explorer._widget.parts)


def test_each_control_has_a_label() -> None:
    """Each field has a label that is bound to it, and the form is HTML without unclosed elements."""
    html = form(PlanInput())
    controls = re.findall(r'<(?:input type="text"|select) id="([^"]+)"', html)
    assert len(controls) == 6 + 2 * 5
    assert set(controls) == set(re.findall(r'<label for="([^"]+)"', html))
    assert StrictPage(html).unclosed == []


def test_what_cannot_divide_is_disabled_with_the_reason() -> None:
    """Options that cannot divide a dim are disabled and say why; the mesh in use is the chosen button."""
    html = form(PlanInput(arrays=(PlannedArray("x", (6, 8), "P(None, 'model')"),)))
    assert '<option value="data" disabled>data: 4 does not divide 6</option>' in html
    assert '<option value="model" disabled>model: &#x27;model&#x27; divides dim 1</option>' in html
    assert '<option value="model" selected>model: 2 parts of 4</option>' in html
    assert 'value="4x2" checked>4 × 2</label>' in html


def test_a_device_and_its_parts_are_linked() -> None:
    """A device has the classes of the parts that it holds, one of each array, and says which these are."""
    html = form(PlanInput())
    device = 'class="on u-0-1 u-1-1" data-tip="1:1 on host1 · x[256:512, 0:1024], w[0:1024, 512:1024]"'
    assert f'tabindex="0" {device}' in html
    assert ".u:has(.on.u-0-1:is(:hover,:focus-visible)) .part.u-0-1" in html
    assert 'class="part u-0-1" data-tip="[256:512, 0:1024] · 1.0 MiB · 2 replicas on 1:0 1:1 (host1)"' in html


def test_memory_is_a_bar_of_the_stated_size() -> None:
    """Bars are shares of the memory of a device if it is known, and say when the arrays do not fit."""
    fits = form(PlanInput(device_nbytes=6 << 20))
    assert "3.0 MiB of 6.0 MiB (50 %)" in fits
    assert "width:50.0%" in fits
    assert "does not fit" not in fits
    assert "does not fit: 1.0 MiB too much on each device" in form(PlanInput(device_nbytes=2 << 20))


def test_refusals_are_beside_their_fields() -> None:
    """A mesh, an array and a program that are refused have the reason at their field, which refers to it."""
    small = form(PlanInput(hosts=1))
    assert 'aria-describedby="u-axes-reason"' in small
    assert "the mesh needs 8 devices, but 1 × 2 (hosts × devices per host) are only 2" in small
    assert "plan · 1 host × 2 devices" in small
    array = form(PlanInput(arrays=(PlannedArray("x", (6,), "P('data')"),)))
    assert (
        'id="u-array.0.dim0" data-field="array.0.dim0" aria-invalid="true" aria-describedby="u-array.0.spec-reason"'
        in array
    )
    assert "implies that array axis 0 is partitioned 4 times" in array
    program = form(PlanInput(program="nope"), problem="cannot be compiled <here>")
    assert '<div class="mhnb-bad" id="u-program-reason">✗ cannot be compiled &lt;here&gt;</div>' in program


def test_invalid_text_stays_with_its_reason() -> None:
    """Text that is not valid stays in its field, with the reason; the rest goes on working, and the text can be corrected."""
    explorer, screen = opened()
    explorer.change("hosts", "many <hosts>")
    explorer.change("array.0.dim1", "model")
    shown = live(explorer)
    assert 'value="many &lt;hosts&gt;"' in shown
    assert "is not a number from 1 to 4096" in shown
    assert "P('data', 'model') · 512.0 KiB per device" in shown
    assert "P('data', 'model')" in screen.calls[-1][1]["text/plain"]
    explorer.change("hosts", "8")
    assert "is not a number" not in live(explorer)
    assert "plan · 8 hosts × 2 devices" in live(explorer)


def test_reasons_leave_with_their_array() -> None:
    """The reason at a field of an array leaves with the array, because others have its number then."""
    explorer, _ = opened()
    explorer.change("array.0.shape", "big")
    explorer.change("array.0.drop", "")
    assert "is not a shape" not in live(explorer)


def test_file_keeps_the_plan() -> None:
    """The file has the last plan as HTML and as text: drawings, memory and the code; without widgets it is visible."""
    explorer, screen = opened()
    assert [name for name, _, _ in screen.calls] == ["show", "show"]
    widget = screen.calls[1][1]
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert widget["text/plain"] == "mhjax · the controls of %mhjax plan need a running kernel"
    explorer.change("sizes", "2x4")
    name, data, display_id = screen.calls[-1]
    assert (name, display_id) == ("replace", screen.calls[0][2])
    for kind in ("text/html", "text/plain"):
        assert "mesh (data 2, model 4) on 8 of 8" in data[kind]
        assert "mesh = jax.make_mesh((2, 4), ('data', 'model'))" in data[kind].replace("&#x27;", "'")
    assert StrictPage(data["text/html"]).unclosed == []
    assert f".jp-OutputArea-child:has(.{display_id}):has(+.jp-OutputArea-child .mhnb-form)" in data["text/html"]


def test_form_answers_before_the_compiler() -> None:
    """While a program is compiled the form already shows the change; a failure of the compiler is shown at the program."""
    seen: list[str] = []

    def fail(wanted: PlanInput, _plan: Plan) -> tuple[Report | None, str]:
        if wanted.program:
            seen.append(live(explorer))
            raise RuntimeError(f"no <{wanted.program}>")
        return None, ""

    explorer, _ = opened(fail)
    explorer.change("program", "matmul")
    assert "compiling …" in seen[0]
    assert "RuntimeError: no &lt;matmul&gt;" in live(explorer)
    explorer.change("program", "")
    assert "RuntimeError" not in live(explorer)


def test_without_anywidget_the_plan_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anywidget the plan is shown without a form."""

    def missing(*_: object) -> None:
        raise ImportError("anywidget")

    monkeypatch.setattr("mhnb.view.live.explorer.make_form_widget", missing)
    _, screen = opened()
    assert [name for name, _, _ in screen.calls] == ["show"]
    assert "plan · 4 hosts × 2 devices" in screen.calls[0][1]["text/html"]


def test_large_mesh_has_no_tab_stops() -> None:
    """A form of 1,024 devices is small, and its devices are no tab stops, which would trap a keyboard user."""
    html = form(change_input(PlanInput(128, 8), "axes", "data 128, model 8"))
    assert len(html) < 300_000
    assert 'tabindex="0" class="on' not in html
