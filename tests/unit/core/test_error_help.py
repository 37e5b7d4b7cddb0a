"""The short form of an error in a notebook ends with the help topic that explains it."""

from __future__ import annotations

import pytest

from mhnb.errors import CellFailed, InvalidRequest, MhnbError, NotClean, NotYet, OrderMismatch


@pytest.fixture
def help_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook with the magics."""
    monkeypatch.setattr(MhnbError, "help_command", "%mhjax help")


@pytest.mark.usefixtures("help_command")
@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (NotClean("no"), ["NotClean: no", "  Help: %mhjax help not-clean"]),
        (InvalidRequest("no"), ["InvalidRequest: no", "  Help: %mhjax help invalid-request"]),
        (CellFailed("no"), ["CellFailed: no"]),
        (NotYet("no"), ["NotYet: no"]),
    ],
)
def test_short_form_names_the_topic(error: MhnbError, lines: list[str]) -> None:
    """The topic is the name of the class; an exception of the user's own code has none. The message stays as it is."""
    assert error._render_traceback_() == lines
    assert str(error) == "no"


@pytest.mark.usefixtures("help_command")
@pytest.mark.parametrize("error", [OrderMismatch("long\nand longer"), NotClean("long")])
def test_short_text_replaces_all_but_the_name(error: MhnbError) -> None:
    """Below a report or a card one line is enough; the message stays complete."""
    message = str(error)
    error.short_text = "details above"
    assert error._render_traceback_() == [f"{type(error).__name__}: details above"]
    assert str(error) == message


def test_no_help_without_the_magics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the magics, as on a rank, there is no command to name."""
    monkeypatch.setattr(MhnbError, "help_command", "")
    assert NotClean("no")._render_traceback_() == ["NotClean: no"]
