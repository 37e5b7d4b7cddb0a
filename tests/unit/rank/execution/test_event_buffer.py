"""A rank's buffer for a cell's output until it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.core.output.events import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    OutputEvent,
    OutputOmitted,
    Stream,
    UpdateDisplayData,
)
from mhnb.core.output.outputs import accumulate_events
from mhnb.rank.execution.capture import EventBuffer


def text_of(events: list[OutputEvent]) -> str:
    """Return all text of stdout."""
    return "".join(event.text for event in events if isinstance(event, Stream) and event.name == "stdout")


def omitted_nbytes(events: list[OutputEvent]) -> int:
    """Return how many bytes were left out."""
    return sum(event.nbytes for event in events if isinstance(event, OutputOmitted))


def test_order_is_kept() -> None:
    """Events come out in the order in which they were added, with adjacent text merged."""
    buffer = EventBuffer()
    buffer.add_text("stdout", "a")
    buffer.add_text("stdout", "b")
    buffer.add_text("stderr", "e")
    buffer.add(DisplayData({}, {}))
    buffer.add_text("stdout", "c")
    assert buffer.take() == [Stream("stdout", "ab"), Stream("stderr", "e"), DisplayData({}, {}), Stream("stdout", "c")]
    assert buffer.take() == []


def test_head_and_tail() -> None:
    """Beyond head and tail, the middle is left out and its size is counted exactly."""
    buffer = EventBuffer(head=10, tail=10)
    for digit in "0123456789":
        buffer.add_text("stdout", digit * 5)
    assert buffer.take() == [
        Stream("stdout", "0000011111"),
        OutputOmitted("stdout", 30),
        Stream("stdout", "8888899999"),
    ]


def test_one_huge_text() -> None:
    """A single text that is longer than all limits together is cut like any other."""
    buffer = EventBuffer(head=10, tail=10)
    buffer.add_text("stdout", "a" * 10 + "é" * 100 + "z" * 10)
    assert buffer.take() == [Stream("stdout", "a" * 10), OutputOmitted("stdout", 200), Stream("stdout", "z" * 10)]


def test_slow_output_is_sent_completely() -> None:
    """Output that comes slower than the live rate is sent completely, however large its total is."""
    buffer = EventBuffer(head=1000, tail=100_000)
    taken: list[OutputEvent] = []
    for _ in range(100):
        buffer.add_text("stdout", "x" * 1000)
        taken += buffer.take(everything=False)
    taken += buffer.take()
    assert (len(text_of(taken)), omitted_nbytes(taken)) == (100_000, 0)


def test_fast_output_is_sent_at_a_bounded_rate() -> None:
    """Output that comes faster is sent at a bounded rate, with the gaps in place."""
    buffer = EventBuffer(head=1000, tail=100_000)
    live: list[OutputEvent] = []
    for _ in range(100):
        buffer.add_text("stdout", "x" * 200_000)
        live += buffer.take(everything=False)
    rest = buffer.take()
    assert len(text_of(live)) < 2_000_000
    assert len(text_of(rest)) == 100_000
    assert len(text_of(live)) + omitted_nbytes(live) + len(text_of(rest)) + omitted_nbytes(rest) == 20_000_000


def test_cleared_output_is_not_sent() -> None:
    """Output that is cleared before it is sent is never sent, and does not count."""
    buffer = EventBuffer(head=10, tail=10)
    for step in range(1000):
        buffer.add(ClearOutput(wait=True))
        buffer.add_text("stdout", f"step {step:4}")
    assert buffer.take() == [ClearOutput(wait=False), Stream("stdout", "step  999")]


def test_waiting_clear_is_sent_at_the_end() -> None:
    """A waiting clear with nothing after it is sent as one that waits."""
    buffer = EventBuffer()
    buffer.add_text("stdout", "a")
    buffer.add(ClearOutput(wait=True))
    assert buffer.take() == [Stream("stdout", "a"), ClearOutput(wait=True)]


def test_unsent_updates_coalesce() -> None:
    """Of a display's unsent updates only the latest is sent; the resulting outputs are the same."""
    buffer = EventBuffer()
    buffer.add(DisplayData({"text/plain": "0"}, {}, "a"))
    for step in range(100):
        buffer.add(UpdateDisplayData({"text/plain": str(step)}, {}, "a"))
    buffer.add(DisplayData({"text/plain": "again"}, {}, "a"))
    buffer.add(UpdateDisplayData({"text/plain": "last"}, {}, "a"))
    events = buffer.take()
    assert len(events) == 4
    assert [o["data"]["text/plain"] for o in accumulate_events(events)] == ["last", "last"]


def test_displays_are_bounded_in_size() -> None:
    """Displays beyond 64 MiB per cell are left out and counted."""
    buffer = EventBuffer()
    picture = "x" * (1 << 20)
    for _ in range(70):
        buffer.add(DisplayData({"image/png": picture}, {}))
    events = buffer.take()
    assert [type(event) for event in events].count(DisplayData) == 64
    assert omitted_nbytes(events) == 6 << 20


def test_number_of_displays_is_bounded() -> None:
    """A loop that displays endlessly does not overload the notebook, and the rest is counted in one event."""
    buffer = EventBuffer()
    for at in range(100_000):
        buffer.add(DisplayData({"text/plain": f"{at:05}"}, {}))
    events = buffer.take()
    assert [type(event) for event in events].count(OutputOmitted) == 1
    assert len(events) < 5000
    assert events[0] == DisplayData({"text/plain": "00000"}, {})


def test_cleared_displays_do_not_count() -> None:
    """Displays that were cleared no longer count."""
    buffer = EventBuffer()
    for at in range(10_000):
        buffer.add(ClearOutput(wait=False))
        buffer.add(DisplayData({"text/plain": str(at)}, {}))
    assert buffer.take()[-1] == DisplayData({"text/plain": "9999"}, {})


@pytest.mark.parametrize("kind", [DisplayData, UpdateDisplayData, ExecuteResult])
@pytest.mark.parametrize(
    "data",
    [
        {"text/plain": "x" * 10**8},
        {"x" * 10**8: "a", "text/plain": "b"},
        {"application/json": {"a": ["x" * 10**8]}},
        {"image/png": "A" * 10**8, "text/plain": "b"},
    ],
)
def test_every_form_of_display_is_bounded(kind: type[Any], data: dict[str, Any]) -> None:
    """A display, an update or a value that is too large is shortened or left out, and the output says so."""
    buffer = EventBuffer(log_path="rank0.log")
    buffer.add(kind(data, {"about": "y" * 10**8}, *(["an id"] if kind is not ExecuteResult else [])))
    events = buffer.take()
    assert len(str(events)) < 2 << 20
    assert "left out" in str(events) or isinstance(events[0], OutputOmitted)
