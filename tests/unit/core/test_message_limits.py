"""Size limits of a rank's messages."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.core.codec import encode
from mhnb.core.messages import (
    MAX_LINES_CHARS,
    MAX_TEXT_CHARS,
    CellEnded,
    CellRefused,
    Message,
    RankReply,
    RankStatus,
    StartFailed,
    shorten_error,
    shorten_message,
    shorten_text,
)

LONG = "x" * 1_000_000


def test_short_text_is_unchanged() -> None:
    """A text within the limit is returned unchanged, without a note about the limit."""
    event = ["error", "ValueError", "no", ["a", "b"], 1, "x = 1", 0.1, ["m", "f", "x", {"x": True}, False]]
    assert shorten_error(event) is event
    assert shorten_text("abc", 3) == "abc"


@pytest.mark.parametrize("place", [1, 2, 3, 5, 7])
def test_every_text_of_an_error_is_limited(place: int) -> None:
    """Name, message, lines, code and place are shortened, and the text says where the rest is."""
    event: list[Any] = ["error", "ValueError", "no", ["a", "b"], 1, "x = 1", 0.1, ["m", "f", "x", {"x": True}, False]]
    event[place] = [LONG, LONG] if place in (3, 7) else LONG
    shortened = shorten_error(event, "rank0.log")
    assert len(str(shortened)) < MAX_LINES_CHARS + 10_000
    assert "characters left out" in str(shortened[place])
    assert place in (5, 7) or "rank0.log has them" in str(shortened[place])


def test_a_traceback_of_very_many_lines_keeps_its_ends() -> None:
    """The first and the last lines stay, with the number of omitted lines between them."""
    lines = shorten_error(["error", "E", "", [f"line {at}" for at in range(10**5)], None, None, 0.0, []])[3]
    assert (lines[0], lines[-1]) == ("line 0", "line 99999")
    assert sum(map(len, lines)) < MAX_LINES_CHARS + 100
    assert any("lines left out" in line for line in lines)


@pytest.mark.parametrize(
    "message",
    [
        CellRefused(0, 1, LONG),
        StartFailed(0, "jax", LONG, LONG, LONG),
        RankStatus(0, 1, "runs", LONG, 1, LONG, 0.0, [[[0], 1]]),
        RankReply(0, 1, ok=False, value={"ename": LONG, "evalue": LONG, "traceback": LONG}),
        CellEnded(
            0,
            1,
            "ok",
            [],
            [[LONG, 3]],
            0,
            0.0,
            notes=[LONG],
            facts={LONG: LONG},
            ignored_refusals=[[LONG, 1]],
            abandoned_launch=[LONG, 2],
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
