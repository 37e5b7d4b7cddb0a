"""Size limits of a rank's messages."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mhnb.core.codec import encode
from mhnb.core.error_site import ArrayFacts, ErrorSite
from mhnb.core.guard.launch_report import LaunchPlace, LaunchReport, LaunchRow
from mhnb.core.messages import (
    MAX_LINES_CHARS,
    MAX_TEXT_CHARS,
    CellEnded,
    CellRefused,
    LaunchCount,
    Message,
    RankReply,
    RankStatus,
    StartFailed,
    ThreadStatus,
    shorten_error,
    shorten_message,
    shorten_text,
)
from mhnb.core.output.events import ErrorRaised

LONG = "x" * 1_000_000
FACTS = ArrayFacts((2,), False, True, False, 8, 1, 2)


def test_short_text_is_unchanged() -> None:
    """A text within the limit is returned unchanged, without a note about the limit."""
    event = ErrorRaised(
        "ValueError", "no", ["a", "b"], 1, "x = 1", 0.1, ErrorSite("m", "f", "x", {"x": True}, arrays={"x": FACTS})
    )
    assert shorten_error(event) is event
    assert shorten_text("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("ename", LONG),
        ("evalue", LONG),
        ("traceback", [LONG, LONG]),
        ("code", LONG),
        ("site", ErrorSite(LONG, LONG, LONG, {LONG: True}, arrays={LONG: FACTS})),
    ],
)
def test_every_text_of_an_error_is_limited(place: str, value: object) -> None:
    """Name, message, lines, code and place are shortened, and the text says where the rest is."""
    event = ErrorRaised("ValueError", "no", ["a", "b"], 1, "x = 1", 0.1, ErrorSite("m", "f", "x", {"x": True}))
    shortened = shorten_error(replace(event, **{place: value}), "rank0.log")
    assert len(str(shortened)) < MAX_LINES_CHARS + 10_000
    assert "characters left out" in str(getattr(shortened, place))
    assert place in ("code", "site") or "rank0.log has them" in str(getattr(shortened, place))


def test_a_traceback_of_very_many_lines_keeps_its_ends() -> None:
    """The first and the last lines stay, with the number of omitted lines between them."""
    lines = shorten_error(ErrorRaised("E", "", [f"line {at}" for at in range(10**5)])).traceback
    assert (lines[0], lines[-1]) == ("line 0", "line 99999")
    assert sum(map(len, lines)) < MAX_LINES_CHARS + 100
    assert any("lines left out" in line for line in lines)


@pytest.mark.parametrize(
    "message",
    [
        CellRefused(0, 1, LONG),
        StartFailed(0, "jax", LONG, LONG, LONG),
        RankStatus(
            0,
            1,
            "runs",
            LONG,
            1,
            LONG,
            0.0,
            [LaunchCount((0,), 1)],
            threads=[ThreadStatus(LONG, "lock", "wait", 1, "")],
        ),
        RankReply(0, 1, ok=False, value={"ename": LONG, "evalue": LONG, "traceback": LONG}),
        CellEnded(
            0,
            1,
            "ok",
            [],
            0.0,
            LaunchReport(
                [LaunchRow(LONG, LONG, (0, 1), 3, 1)],
                ignored_refusals=[LaunchPlace(LONG, 1)],
                abandoned_launch=LaunchPlace(LONG, 2),
            ),
            notes=[LONG],
            facts={LONG: LONG},
        ),
    ],
)
def test_every_text_of_a_message_is_limited(message: Message) -> None:
    """No name and no reason in a rank's message exceeds the limit."""
    assert len(encode(shorten_message(message))[0]) < 4 * MAX_TEXT_CHARS


def test_data_has_no_limit() -> None:
    """The data that a command requested is sent in full."""
    reply = RankReply(0, 1, ok=True, value=LONG)
    assert shorten_message(reply) is reply
