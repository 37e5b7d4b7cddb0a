"""Where a view appears: a notebook's front end, or a terminal. The one part of `view` that acts.

Decides how something is shown, replaced and closed; not what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

__all__ = ["LiveBox", "NotebookScreen", "Screen", "TextScreen", "detect_screen"]

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class LiveBox(Protocol):
    """A widget that shows HTML while a cell runs."""

    def set_html(self, html: str) -> None:
        """Show other HTML."""

    def offer(self, actions: Mapping[str, Callable[[], None]]) -> None:
        """Show a row of buttons that work while the cell blocks; each action runs in a thread of its own."""

    def close(self) -> None:
        """Take the widget out of the front end and the kernel."""


class Screen(Protocol):
    """A place where views appear, bound to the cell that is current when it is made."""

    rich: bool
    """Whether it shows HTML and widgets; else only `write` is of use."""
    color: bool
    """Whether text may carry colours."""

    def show(self, data: Mapping[str, str], display_id: str) -> None:
        """Make a display in the current cell."""

    def replace(self, data: Mapping[str, str], display_id: str) -> None:
        """Replace a display."""

    def show_late(self, data: Mapping[str, str], display_id: str) -> None:
        """Make a display in the cell that this screen is bound to, from any thread, also after it ended."""

    def replace_late(self, data: Mapping[str, str], display_id: str) -> None:
        """Replace a display, from any thread."""

    def open_live(self, html: str, text: str, display_id: str) -> LiveBox | None:
        """Make a display with a widget in it; None where widgets are missing."""

    def write(self, text: str) -> None:
        """Print text."""

    def complain(self, text: str) -> None:
        """Print one line about a view that failed."""


class _Streams:
    """Plain text out."""

    def write(self, text: str) -> None:
        """Print text."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def complain(self, text: str) -> None:
        """Print one line about a view that failed."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class TextScreen(_Streams):
    """A terminal: text only."""

    rich = False

    def __init__(self, stream: TextIO | None = None) -> None:
        self.color = (stream or sys.stdout).isatty()

    def show(self, data: Mapping[str, str], display_id: str) -> None:  # noqa: ARG002  # text cannot be replaced
        """Print the text form."""
        self.write(data["text/plain"])

    replace = show_late = replace_late = show

    def open_live(self, html: str, text: str, display_id: str) -> LiveBox | None:  # noqa: ARG002
        """Give none: a terminal has no widgets."""
        return None


class NotebookScreen(_Streams):
    """The front end of the kernel that this process is."""

    rich = True
    color = False

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # the cell that is current now, so that late output finds its way back to it
        self._parent = dict(shell.get_parent() or {})

    def show(self, data: Mapping[str, str], display_id: str) -> None:
        """Make a display in the current cell."""
        self._shell.display_pub.publish(dict(data), metadata={}, transient={"display_id": display_id})

    def replace(self, data: Mapping[str, str], display_id: str) -> None:
        """Replace a display."""
        self._shell.display_pub.publish(dict(data), metadata={}, transient={"display_id": display_id}, update=True)

    def show_late(self, data: Mapping[str, str], display_id: str) -> None:
        """Make a display in the cell that this screen was made in."""
        self._send("display_data", data, display_id, parent=self._parent)

    def replace_late(self, data: Mapping[str, str], display_id: str) -> None:
        """Replace a display; its id finds it, and nbclient reads only what has the running cell as its parent."""
        self._send("update_display_data", data, display_id, parent=self._shell.get_parent())

    def _send(self, kind: str, data: Mapping[str, str], display_id: str, *, parent: Any) -> None:
        # Not through display_pub: it takes no parent, and ipykernel before 7.4 cannot set one for a thread alone.
        kernel = self._shell.kernel
        content = {"data": dict(data), "metadata": {}, "transient": {"display_id": display_id}}
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=b"display_data")

    def open_live(self, html: str, text: str, display_id: str) -> LiveBox | None:
        """Make a display with a widget in it."""
        try:
            import ipywidgets  # type: ignore[import-untyped]  # it has no types
        except ImportError:
            return None
        box = _HtmlWidget(ipywidgets, html)
        self.show({_WIDGET_VIEW: box.view, "text/plain": text}, display_id)
        return box


class _HtmlWidget:
    """An ipywidgets HTML widget in a box, below it a row of buttons once they are offered."""

    def __init__(self, ipywidgets: Any, html: str) -> None:
        self._ipywidgets = ipywidgets
        self._html = ipywidgets.HTML(html)
        self._box = ipywidgets.VBox([self._html])
        self._widgets = [self._box, self._html]
        self.view = self._box._repr_mimebundle_()[_WIDGET_VIEW]

    def set_html(self, html: str) -> None:
        """Show other HTML."""
        self._html.value = html

    def offer(self, actions: Mapping[str, Callable[[], None]]) -> None:
        """Show a row of buttons below."""
        buttons = [self._button(name, act) for name, act in actions.items()]
        row = self._ipywidgets.HBox(buttons)
        self._widgets += [*buttons, row]
        self._box.children = (self._html, row)

    def _button(self, name: str, act: Callable[[], None]) -> Any:
        button = self._ipywidgets.Button(description=name)
        button.on_click(lambda _: act())
        # since ipykernel 7.4: a click is handled where the widget was made, which is the thread that the cell blocks.
        # So it stays in the subshell that it comes through.
        if hasattr(button.comm, "_reply_subshell_for"):
            button.comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001 - it has no public name
        return button

    def close(self) -> None:
        """Close the widgets and their layouts and styles, each of which has a comm of its own."""
        for widget in self._widgets:
            for part in (widget, widget.layout, getattr(widget, "style", None)):
                if part is not None:
                    part.close()


def detect_screen() -> Screen:
    """Choose the screen of this process, bound to the cell that runs now."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return TextScreen() if getattr(shell, "kernel", None) is None else NotebookScreen(shell)
