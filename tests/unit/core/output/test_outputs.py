"""Accumulating a rank's events into notebook outputs."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import nbformat.v4
import pytest

from mhnb.core.output.events import (
    ClearOutput,
    DisplayData,
    ErrorRaised,
    ExecuteResult,
    LibraryNoise,
    OutputEvent,
    OutputOmitted,
    Stream,
    UpdateDisplayData,
)
from mhnb.core.output.outputs import HEAD_LIMIT, TAIL_LIMIT, OutputAccumulator, accumulate_events
from mhnb.rank.execution.capture import EventBuffer

DISPLAY: OutputEvent = DisplayData({"text/plain": "old"}, {}, "id1")


def texts(accumulator: OutputAccumulator) -> list[str]:
    """Return what the outputs show, one string each."""
    return [o["text"] if o["output_type"] == "stream" else o["data"]["text/plain"] for o in accumulator.outputs()]


def accumulate(*events: OutputEvent) -> OutputAccumulator:
    """Return an accumulator that has these events."""
    accumulator = OutputAccumulator(execution_count=5)
    accumulator.add(events)
    return accumulator


def test_streams_merge_until_another_comes_between() -> None:
    """Text of one stream merges; another stream or a display begins a new output."""
    accumulator = accumulate(
        Stream("stdout", "a"), Stream("stdout", "b\n"), Stream("stderr", "e"), DISPLAY, Stream("stdout", "c")
    )
    assert texts(accumulator) == ["ab\n", "e", "old", "c"]


def test_every_kind_of_output_is_valid() -> None:
    """Accumulated outputs can be stored: nbformat accepts every kind."""
    outputs = accumulate_events(
        [
            Stream("stdout", "a"),
            DISPLAY,
            ErrorRaised("ValueError", "bad", ["Traceback", "ValueError: bad"], 1, "f()", 0.1),
            ExecuteResult({"text/plain": "3"}, {}),
            OutputOmitted("stderr", 12),
        ],
        execution_count=5,
    )
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.from_dict(output) for output in outputs])
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))
    assert [o["output_type"] for o in outputs] == ["stream", "display_data", "error", "execute_result", "stream"]


def test_result_has_the_number_of_the_cell() -> None:
    """The value of the last expression becomes an execute_result with the cell's seq."""
    (output,) = accumulate(ExecuteResult({"text/plain": "3"}, {})).outputs()
    assert (output["output_type"], output["execution_count"]) == ("execute_result", 5)


def test_error_keeps_its_parts() -> None:
    """An error becomes nbformat's error output."""
    (output,) = accumulate(ErrorRaised("KeyError", "'x'", ["line 1", "line 2"], 3, "d['x']", 0.5)).outputs()
    assert output == {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": ["line 1", "line 2"]}


@pytest.mark.parametrize("cut", range(1, 12))
def test_carriage_return_across_events(cut: int) -> None:
    """A progress line is overwritten wherever the events cut it."""
    text = "10 %\r20 %\rok"
    assert texts(accumulate(Stream("stdout", text[:cut]), Stream("stdout", text[cut:]))) == ["ok %"]


def test_clear_removes_earlier_outputs() -> None:
    """clear_output drops what was shown before it."""
    assert texts(accumulate(Stream("stdout", "a"), DISPLAY, ClearOutput(wait=False), Stream("stdout", "b"))) == ["b"]


def test_clear_waits_for_the_next_output() -> None:
    """clear_output(wait=True) keeps the old outputs until a new one comes."""
    accumulator = accumulate(Stream("stdout", "a"), ClearOutput(wait=True))
    assert texts(accumulator) == ["a"]
    accumulator.add([Stream("stdout", "b")])
    assert texts(accumulator) == ["b"]


def test_update_replaces_every_display_of_its_id() -> None:
    """An update replaces every display of its id, in place."""
    accumulator = accumulate(
        DISPLAY, Stream("stdout", "x"), DISPLAY, UpdateDisplayData({"text/plain": "new"}, {"m": 1}, "id1")
    )
    assert texts(accumulator) == ["new", "x", "new"]
    assert accumulator.outputs()[0]["metadata"] == {"m": 1}
    assert accumulator.take_foreign_updates() == []


def test_returned_outputs_do_not_change() -> None:
    """Outputs that were read stay as they were when a display is updated later."""
    accumulator = accumulate(DISPLAY)
    (before,) = accumulator.outputs()
    assert accumulator.update_display("id1", {"text/plain": "new"}, {})
    assert (before["data"], accumulator.outputs()[0]["data"]) == ({"text/plain": "old"}, {"text/plain": "new"})


def test_foreign_updates_are_returned_once() -> None:
    """Updates of other cells' displays go to the caller, the latest of each id, once."""
    accumulator = accumulate(
        UpdateDisplayData({"text/plain": "1"}, {}, "z"), UpdateDisplayData({"text/plain": "2"}, {}, "z")
    )
    assert accumulator.take_foreign_updates() == [("z", {"text/plain": "2"}, {})]
    assert accumulator.take_foreign_updates() == []
    assert not accumulator.update_display("z", {}, {})


def test_plotly_figure_that_cannot_be_drawn_is_explained() -> None:
    """The figure's own format needs a front-end extension for each output; if another format exists, that one is shown."""
    accumulator = OutputAccumulator()
    form = {"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "Figure()"}
    accumulator.add([DisplayData(form, {}), DisplayData(form | {"text/html": "<b>x</b>"}, {})])
    bare, drawn = accumulator.outputs()
    assert bare["data"]["text/plain"].startswith("Figure()\n(shown as text:")
    assert "fig.show('png')" in bare["data"]["text/plain"]
    assert drawn["data"]["text/plain"] == "Figure()"


def test_a_figure_without_a_text_is_described() -> None:
    """Plotly provides no text, and the figure's data is not readable."""
    form = {"application/vnd.plotly.v1+json": {"data": [{"type": "bar"}, {}, {}], "layout": {"title": "loss"}}}
    ((output),) = accumulate_events([DisplayData(form, {})])
    assert output["data"]["text/plain"].startswith("a plotly figure “loss”: bar, 2 scatter\n(shown as text:")


def test_widget_views_are_removed() -> None:
    """A widget's model lives on the rank, so its view is dropped; its text stays, with one line that says why."""
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    both: dict[str, Any] = {**view, "text/plain": "IntSlider(value=0)"}
    outputs = accumulate_events([DisplayData(both, {}), DisplayData(view, {})])
    assert set(outputs[0]["data"]) == {"text/plain"}
    first, why = outputs[0]["data"]["text/plain"].split("\n")
    assert first == "IntSlider(value=0)"
    assert "cannot reach a widget on a rank" in why
    assert list(outputs[1]["data"]) == ["text/plain"]


def test_gap_shows_where_text_is_missing() -> None:
    """Text left out on the rank leaves a mark in its stream and is counted."""
    accumulator = accumulate(Stream("stdout", "a\n"), OutputOmitted("stdout", 1234), Stream("stdout", "z\n"))
    (text,) = texts(accumulator)
    assert text.startswith("a\n")
    assert text.endswith("]\nz\n")
    assert "1,234 bytes of stdout left out" in text
    assert accumulator.omitted_nbytes == 1234


def test_text_size_is_limited() -> None:
    """However much text arrives, its beginning and end are kept, and every omission is counted."""
    accumulator = OutputAccumulator()
    lines = [f"line {number:07}\n" for number in range(400_000)]
    for start in range(0, len(lines), 1000):
        accumulator.add([Stream("stdout", "".join(lines[start : start + 1000]))])
    (output,) = accumulator.outputs()
    text = output["text"]
    assert text.startswith("".join(lines[:30_000]))
    assert text.endswith("".join(lines[-30_000:]))
    assert len(text) < 1.1 * (HEAD_LIMIT + TAIL_LIMIT)
    shown = re.sub(r"\n\[\.\.\. .* \.\.\.\]\n", "", text)
    assert accumulator.omitted_nbytes == sum(map(len, lines)) - len(shown)


@pytest.mark.parametrize("size", [HEAD_LIMIT + TAIL_LIMIT + 40_000, 3 * (HEAD_LIMIT + TAIL_LIMIT)])
def test_kept_text_does_not_depend_on_the_pieces(size: int) -> None:
    """Ranks that print the same text send it in different pieces, and drop parts of it at different times."""
    printed = "".join(f"line {number}\n" for number in range(size // 10))[:size] + "the end"
    accumulators = []
    for step, live in ((700, 10), (33_000, 3), (9_000, 500)):
        buffer, accumulator = EventBuffer(), OutputAccumulator()
        for count, start in enumerate(range(0, len(printed), step)):
            buffer.add_text("stdout", printed[start : start + step])
            if count % live == 0:
                accumulator.add(buffer.take(everything=False))
        accumulator.add(buffer.take())
        accumulator.finish()
        accumulators.append(accumulator)
    assert len({folder.outputs()[0]["text"] for folder in accumulators}) == 1
    (text,) = texts(accumulators[0])
    head, _, tail = text.partition("\n[...")
    assert printed.startswith(head)
    assert text.endswith(printed[-TAIL_LIMIT:])
    assert (len(head), tail.count("[...")) == (HEAD_LIMIT, 0)
    assert {folder.omitted_nbytes for folder in accumulators} == {len(printed) - HEAD_LIMIT - TAIL_LIMIT}


def test_displays_stay_when_text_is_dropped() -> None:
    """Only text is dropped from the middle; displays there stay, in order."""
    accumulator = OutputAccumulator()
    accumulator.add([Stream("stdout", "a" * HEAD_LIMIT + "\n"), DISPLAY])
    for _ in range(40):
        accumulator.add([Stream("stdout", ("b" * 63 + "\n") * 1024), DisplayData({"text/plain": "more"}, {})])
    shown = [o["data"]["text/plain"] for o in accumulator.outputs() if o["output_type"] == "display_data"]
    assert shown == ["old", *["more"] * 40]


@pytest.mark.slow
def test_progress_bar_does_not_grow() -> None:
    """A line that is overwritten endlessly counts as one line, and nothing of it is left out."""
    accumulator = OutputAccumulator()
    for step in range(200_000):
        accumulator.add([Stream("stderr", f"\rstep {step:6} of 200000")])
    assert texts(accumulator) == ["step 199999 of 200000"]
    assert accumulator.omitted_nbytes == 0


def test_noise_is_stored_separately() -> None:
    """Log lines of C++ libraries are in no output, but they are kept."""
    accumulator = OutputAccumulator()
    accumulator.add([LibraryNoise("[Gloo] a\n"), Stream("stdout", "mine\n"), LibraryNoise("[Gloo] b\n")])
    assert [output["text"] for output in accumulator.outputs()] == ["mine\n"]
    assert accumulator.noise == "[Gloo] a\n[Gloo] b\n"


@pytest.mark.parametrize(("form", "text"), [(None, "None"), (3, "3"), (["a", "b"], "ab"), (["a", None], "['a', None]")])
def test_invalid_display_data_can_be_stored(form: object, text: str) -> None:
    """Under a MIME type other than JSON a notebook stores text."""
    (shown,) = accumulate_events([DisplayData({"text/html": form, "application/json": [1]}, {})])
    assert shown == {
        "output_type": "display_data",
        "data": {"text/html": text, "application/json": [1]},
        "metadata": {},
    }
