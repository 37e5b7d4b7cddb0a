"""mhnb's widgets: for running cells, the result panel and forms.

ipywidgets' HTML would send the whole page with every change, and has no keyboard handling of its own.
Other modules decide what is drawn. Without anywidget the HTML forms are shown instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhnb.view.html import LOOK_CSS
from mhnb.view.live.frame import MAX_BLOCKS

_HERE = Path(__file__).parent
_CLASSES: dict[str, Any] = {}


def read_style(name: str = "panel.css") -> str:
    """Return a widget's style sheet."""
    return LOOK_CSS + (_HERE / name).read_text(encoding="utf-8")


def _widget_class() -> Any:
    """Create the class on first use, because importing anywidget is slow.

    Raises:
        ImportError: anywidget is not installed.
    """
    if "widget" not in _CLASSES:
        import anywidget
        import traitlets

        names = [
            "head",
            "strip",
            "more",
            "card",
            "charts",
            "each",
            "acts",
            *(f"block_{at}" for at in range(MAX_BLOCKS)),
        ]
        parts = {name: traitlets.Unicode("").tag(sync=True) for name in names}
        fixed = {
            "_esm": (_HERE / "panel.js").read_text(encoding="utf-8"),
            "_css": read_style(),
            "mode": traitlets.Unicode("live").tag(sync=True),
            "blocks": traitlets.Int(MAX_BLOCKS).tag(sync=True),
            "view": traitlets.Unicode("fold").tag(sync=True),
            "page": traitlets.Unicode("").tag(sync=True),
            "tip": traitlets.Unicode("").tag(sync=True),
            "ranks": traitlets.List().tag(sync=True),
            "number": traitlets.Int(0).tag(sync=True),
            "runs": traitlets.Bool(False).tag(sync=True),
            "placeholder": traitlets.Unicode("").tag(sync=True),
        }
        _CLASSES["widget"] = type("MhnbPanel", (anywidget.AnyWidget,), {**fixed, **parts})
    return _CLASSES["widget"]


def warm_up() -> None:
    """Load what a widget needs before the first long cell needs it.

    Without anywidget there is nothing to load.
    """
    with contextlib.suppress(ImportError):
        _widget_class()


def make_live_widget(parts: Mapping[str, str], placeholder_class: str, on_button: Callable[[str], None]) -> Any:
    """Create the widget of a running cell.

    Args:
        parts: as `frame_parts` names them.
        placeholder_class: the class of the placeholder, which the widget hides while it is kept up to date.
        on_button: called with the name of a button, from another thread.

    Raises:
        ImportError: anywidget is not installed.
    """
    widget = _widget_class()(mode="live", runs=True, placeholder=placeholder_class, **parts)
    widget.on_msg(lambda _widget, content, _buffers: on_button(str(content.get("act", ""))))
    handle_messages_while_blocked(widget)
    return widget


def make_panel_widget(state: Mapping[str, Any], format_body: Callable[[int], str]) -> Any:
    """Create the panel widget.

    Args:
        state: head, tip, page, ranks, runs, view and number.
        format_body: formats one rank's output as HTML; called for ranks that the user looks at.

    Raises:
        ImportError: anywidget is not installed.
    """
    widget = _widget_class()(mode="panel", **state)

    def send_bodies(_widget: Any, content: Any, _buffers: Any) -> None:
        widget.send({"bodies": {rank: format_body(rank) for rank in content.get("ask", ())}})

    widget.on_msg(send_bodies)
    handle_messages_while_blocked(widget)
    return widget


def make_form_widget(parts: Sequence[tuple[str, str]], uid: str, on_change: Callable[[str, str], None]) -> Any:
    """Create a form that the kernel draws.

    Args:
        parts: keys and HTML, in order.
        uid: class of the form.
        on_change: called with the name and the text of a field that the user changed.

    Raises:
        ImportError: anywidget is not installed.
    """
    if "form" not in _CLASSES:
        import anywidget
        import traitlets

        fixed = {
            "_esm": (_HERE / "form.js").read_text(encoding="utf-8"),
            "_css": read_style("form.css"),
            "parts": traitlets.List().tag(sync=True),
            "uid": traitlets.Unicode("").tag(sync=True),
        }
        _CLASSES["form"] = type("MhnbForm", (anywidget.AnyWidget,), fixed)
    widget = _CLASSES["form"](parts=parts, uid=uid)
    widget.on_msg(lambda _widget, content, _buffers: on_change(str(content["field"]), str(content["text"])))
    return widget


def handle_messages_while_blocked(widget: Any) -> None:
    """Let the kernel handle a widget's messages while a cell blocks.

    Since ipykernel 7.4 a message is handled where the widget was created, which is the thread that the cell blocks.
    So it stays in the subshell through which it arrives.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001 - it has no public name
