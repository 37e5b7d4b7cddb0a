"""Gloo's lines on C's stdout when devices first connect are dropped, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.rank.execution.streams import NativeFile, split_library_noise

TAIL = "peer ranks. Expected number of connected peer ranks is :"
NOISE = {
    "whole": f"[Gloo] Rank 1 is connected to 7 {TAIL} 7\n",
    "before its end": "[Gloo] Rank 1",
    "after its beginning": f" is connected to 7 {TAIL} 7\n",
    "one inside another": f"[Gloo] Rank 1 is connected to [Gloo] Rank 0 is connected to 1 {TAIL} 1\n1 {TAIL} 1\n",
    "beginnings first": f"[Gloo] Rank [Gloo] Rank 1 is connected to 1 {TAIL} 1\n0 is connected to 1 {TAIL} 1\n",
    "in pieces": f"[Gloo] Rank 6[Gloo] Rank  is connected to 5 is connected to 7 {TAIL} 7\n7 {TAIL} 7\n",
    "ends last": f"[Gloo] Rank 0 is connected to 1 {TAIL} [Gloo] Rank 0 is connected to 1 {TAIL} 1\n1\n",
}


@pytest.mark.parametrize("name", NOISE)
def test_gloo_lines_are_dropped(name: str) -> None:
    """Gloo's line for each device is dropped, even if two threads write at once; the texts come from real ranks."""
    assert split_library_noise(NOISE[name]) == ("", NOISE[name])
    assert split_library_noise("before\n" + NOISE[name]) == ("before\n", NOISE[name])


@pytest.mark.parametrize(
    "text",
    [
        "42\n",
        "[Gloo] Rank 1 failed\n",
        "it is connected to nothing\n",
        "7 peer ranks\n",
        "\n\n",
        "1" * 50_000 + " peer ranks x",
    ],
    ids=range(6),
)
def test_other_text_is_shown(text: str) -> None:
    """Everything else that C code prints is shown to the user, including a number after an undisturbed line of Gloo."""
    assert split_library_noise(text) == (text, "")
    assert split_library_noise(NOISE["whole"] + text) == (text, NOISE["whole"])


def test_greeting_is_read_as_a_whole(tmp_path: Path) -> None:
    """A greeting that Gloo is still writing is kept until it is complete, because neither half would be recognised.

    Gloo writes `[Gloo] Rank ` first.
    """
    file = NativeFile(tmp_path / "out")
    text = f"first\n{NOISE['whole']}last"
    read = []
    for at in range(0, len(text), 6):
        with (tmp_path / "out").open("a") as out:
            out.write(text[at : at + 6])
        read.append(file.read_new())
    file.close()
    assert "".join(read) == text
    assert "".join(split_library_noise(piece)[0] for piece in read) == "first\nlast"


def test_incomplete_greeting_is_returned_by_the_next_read(tmp_path: Path) -> None:
    """Text that only begins like a greeting is returned by the next read if nothing follows, because it is the user's own."""
    file = NativeFile(tmp_path / "out")
    (tmp_path / "out").write_text("[Gloo] is a library")
    assert [file.read_new() for _ in range(3)] == ["", "[Gloo] is a library", ""]
    file.close()


ABSL = "W1121 16:46:39.123456    4711 cpu_executable.cc:33] a slow thing\n"


def test_absl_messages_below_error_are_dropped() -> None:
    """Information and warnings of C++ code are dropped; an error is shown to the user."""
    assert split_library_noise(ABSL + "mine\n") == ("mine\n", ABSL)
    assert split_library_noise(ABSL.replace("W", "E", 1)) == (ABSL.replace("W", "E", 1), "")
