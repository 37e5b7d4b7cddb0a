"""Where views appear, without a kernel."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from mhnb.view.live import CellView
from mhnb.view.screen import NotebookScreen, TextScreen, detect_screen
from tests.view.samples import cell, out


class Shell:
    """As much of a kernel's shell as a screen needs to be made."""

    def __init__(self) -> None:
        self.published: list[dict[str, str]] = []
        self.display_pub = self

    def get_parent(self) -> dict[str, Any]:
        """The message that is being executed."""
        return {"header": {"msg_id": "1"}}

    def publish(self, data: dict[str, str], **_: Any) -> None:
        """Take a display."""
        self.published.append(data)


def test_a_process_without_a_kernel_is_a_terminal() -> None:
    """No kernel, no HTML."""
    assert isinstance(detect_screen(), TextScreen)


def test_a_terminal_prints_the_text_form(capsys: pytest.CaptureFixture[str]) -> None:
    """What a notebook shows as HTML is printed."""
    CellView(screen=TextScreen(io.StringIO())).finish(cell([out("hello\n")], [out("hello\n")]))
    assert capsys.readouterr().out == "ranks 0-1 · 0.21 s\n  hello\n"


def test_without_ipywidgets_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is no error: the static form comes at the end."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    shell = Shell()
    view = CellView(screen=NotebookScreen(shell))
    view.update(cell([out("a\n")], done=False, wall_s=1.0))
    assert shell.published == []
    view.finish(cell([out("a\n")]))
    assert [set(data) for data in shell.published] == [{"text/html", "text/plain"}]
