"""Screens on which views appear: a notebook's front end or a terminal.

No other part of `view` prints or displays anything. Decides how a view is shown, replaced and closed, but not what it
contains. A terminal has an area at its end that can be redrawn any number of times, and leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeAlias

from mhnb.view.document import Document
from mhnb.view.html import new_uid
from mhnb.view.live.frame import ByteBudget, LiveFrame, changed_parts, frame_parts, frame_to_html
from mhnb.view.live.widget import handle_messages_while_blocked, make_live_widget
from mhnb.view.print_html import print_html
from mhnb.view.print_text import print_text

if TYPE_CHECKING:
    from rich.console import Console


class Region(Protocol):
    """Lines at the end of a terminal that can be redrawn."""

    @property
    def height(self) -> int:
        """Return the number of lines that fit."""

    def show(self, text: str) -> None:
        """Replace the shown text; cut lines that are too long."""

    def close(self) -> None:
        """Remove the area; the next output begins where the area began."""


class _TerminalRegion:
    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        # rich places other output, such as late output of an earlier cell, above the area.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        # A process that is killed while the cursor is hidden would leave the terminal without one.
        console.show_cursor(True)

    @property
    def height(self) -> int:
        return max(1, self._console.height - 1)

    def show(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        self._live.stop()


def open_region() -> Region | None:
    """Open a terminal area; None if stdout cannot be redrawn."""
    if not sys.stdout.isatty():
        return None
    # rich takes a while to import, and most processes have no terminal.
    from rich.console import Console

    # Other output that is printed meanwhile is plain text, whatever characters it contains.
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return _TerminalRegion(console) if console.is_terminal and not console.is_dumb_terminal else None


# -- front ends and terminals


_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

ButtonHandler: TypeAlias = Callable[[str], None]
"""Handles a button: interrupt, where, all or fold; and `end`, by which a page asks for the end of a cell."""


def placeholder_id(uid: str) -> str:
    """Return the placeholder's display id, which is also its HTML class.

    An open widget hides it by this class.

    >>> placeholder_id("mhnb-7")
    'mhnb-7-placeholder'
    """
    return f"{uid}-placeholder"


class LiveWidget(Protocol):
    """A widget that shows a running cell."""

    hides_placeholder: bool
    """Whether the display that `placeholder_id` names is hidden while this widget exists."""

    def show(self, frame: LiveFrame, now_s: float) -> None:
        """Show a frame, or skip it if much was sent recently."""

    def close(self) -> None:
        """Remove the widget from the front end and the kernel."""

    def retire(self) -> None:
        """Keep the widget after the cell's end, for pages without its replacement.

        Such a page was loaded after the cell began, from a file with the widget. It asks with `end`, and gets `show_end`.
        """

    def show_end(self, html: str) -> None:
        """Show the stored form of the cell in a retired widget."""


class Screen(Protocol):
    """A place where views appear, bound to the cell that created it."""

    rich: bool
    """Whether it shows HTML and widgets; if not, only `write` is useful."""
    color: bool
    """Whether text may contain colours."""

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the current cell."""

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""

    def show_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the cell that this screen is bound to.

        It may be called from any thread, also after the cell ended.
        """

    def replace_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display, from any thread."""

    def open_live(self, frame: LiveFrame, text: str, display_id: str, on_button: ButtonHandler) -> LiveWidget | None:
        """Create a display with a widget; None if widgets are unavailable.

        `on_button` is called with interrupt, where, all or fold when a button is pressed, in a thread of its own, also while the cell
        blocks.
        """

    def open_region(self) -> Region | None:
        """Open an area for replaceable text; None if the screen has none."""

    def wait_for_input(self, limit_s: float) -> None:
        """Wait for a line that the front end sends, without reading it.

        Call it only in the thread that calls `input()`.
        """

    def write(self, text: str) -> None:
        """Print text."""

    def report_error(self, text: str) -> None:
        """Print one line about a view that failed."""


class _Streams:
    """Plain text output."""

    def write(self, text: str) -> None:
        """Print text."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def report_error(self, text: str) -> None:
        """Print one line about a view that failed."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class TextScreen(_Streams):
    """A terminal: text only."""

    rich = False

    def __init__(self, stream: TextIO | None = None) -> None:
        self.color = (stream or sys.stdout).isatty()

    def show(self, data: Mapping[str, Any], display_id: str) -> None:  # noqa: ARG002  # text cannot be replaced
        """Print the text form."""
        self.write(data["text/plain"])

    replace = show_late = replace_late = show

    def open_live(self, frame: LiveFrame, text: str, display_id: str, on_button: ButtonHandler) -> LiveWidget | None:  # noqa: ARG002
        """Return None, because a terminal has no widgets."""
        return None

    def open_region(self) -> Region | None:
        """Open an area if this is a terminal and not a file."""
        return open_region() if self.color else None

    def wait_for_input(self, limit_s: float) -> None:
        """Do nothing, because the typed line is for the next read."""


class NotebookScreen(_Streams):
    """The front end of this process's kernel."""

    rich = True
    color = False

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # the current cell, so that late output is displayed in it
        self._parent = dict(shell.get_parent() or {})
        self._pending_replacements: dict[str, Mapping[str, Any]] = {}
        """Displays that were replaced late, since the last cell began. They are sent again when the next one begins."""

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the current cell."""
        self._shell.display_pub.publish(dict(data), metadata={}, transient={"display_id": display_id})

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""
        self._shell.display_pub.publish(dict(data), metadata={}, transient={"display_id": display_id}, update=True)

    def show_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in the cell that this screen was created in."""
        self._send("display_data", data, display_id, parent=self._parent)

    def replace_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display by its id, also between two cells.

        nbclient reads only messages whose parent is the running cell. Messages between two cells have no such parent,
        so all of them are sent again when the next cell begins.
        """
        self._pending_replacements[display_id] = data
        # Register each time, and after the display is recorded, because the next cell may begin at this moment.
        # Registering twice has the same effect as once.
        self._shell.events.register("pre_run_cell", self._resend_replacements)
        self._send("update_display_data", data, display_id, parent=self._shell.get_parent())

    def _resend_replacements(self, *_: Any) -> None:
        self._shell.events.unregister("pre_run_cell", self._resend_replacements)
        while self._pending_replacements:
            display_id, data = self._pending_replacements.popitem()
            self._send("update_display_data", data, display_id, parent=self._shell.get_parent())

    def _send(self, kind: str, data: Mapping[str, Any], display_id: str, *, parent: Any) -> None:
        # Not through display_pub: it takes no parent, and ipykernel before 7.4 cannot set one for a single thread.
        kernel = self._shell.kernel
        content = {"data": dict(data), "metadata": {}, "transient": {"display_id": display_id}}
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=b"display_data")

    def open_live(self, frame: LiveFrame, text: str, display_id: str, on_button: ButtonHandler) -> LiveWidget | None:
        """Create a display with a widget in it."""
        for kind in (_PartsWidget, _HtmlWidget):
            try:
                widget: _PartsWidget | _HtmlWidget = kind(frame, display_id, on_button)
            except ImportError:
                continue
            self.show({_WIDGET_VIEW: widget.view, "text/plain": text}, display_id)
            return widget
        return None

    def open_region(self) -> Region | None:
        """Return None, because a notebook has displays."""
        return None

    def wait_for_input(self, limit_s: float) -> None:
        """Wait for the front end's line, which the next `input()` drops."""
        self._shell.kernel.stdin_socket.poll(int(limit_s * 1000))


_MAX_RETIRED = 16
"""Maximum number of widgets of ended cells that are kept. A page that is loaded gets them all."""
_retired: deque[_PartsWidget] = deque()


class _PartsWidget:
    """mhnb's own widget, which receives only what has changed."""

    hides_placeholder = True

    def __init__(self, frame: LiveFrame, display_id: str, on_button: ButtonHandler) -> None:
        self._parts = frame_parts(frame)
        self._budget = ByteBudget()
        self._widget = make_live_widget(self._parts, placeholder_id(display_id), on_button)
        self.view = self._widget._repr_mimebundle_()[0][_WIDGET_VIEW]

    def show(self, frame: LiveFrame, now_s: float) -> None:
        """Send the parts that changed, in one message."""
        changed = changed_parts(self._parts, frame_parts(frame))
        remaining = self._budget.spend(sum(len(text.encode("utf-8", "replace")) for text in changed.values()), now_s)
        if not changed or remaining is None:
            return
        self._budget, self._parts = remaining, {**self._parts, **changed}
        with self._widget.hold_sync():
            for name, text in changed.items():
                setattr(self._widget, name, text)

    def close(self) -> None:
        """Close the widget and its layout."""
        _close_widget(self._widget)

    def retire(self) -> None:
        """Keep the widget; close the oldest if too many are kept."""
        self._widget.runs = False
        _retired.append(self)
        while len(_retired) > _MAX_RETIRED:
            _retired.popleft().close()

    def show_end(self, html: str) -> None:
        """Send the stored form."""
        self._widget.page = html


class _HtmlWidget:
    """An ipywidgets HTML widget, with a row for later buttons above it."""

    hides_placeholder = False

    def __init__(self, frame: LiveFrame, display_id: str, on_button: ButtonHandler) -> None:  # noqa: ARG002  # same signature as _PartsWidget
        import ipywidgets  # type: ignore[import-untyped]  # it has no types

        self._ipywidgets, self._on_button = ipywidgets, on_button
        self._html = ipywidgets.HTML(frame_to_html(frame))
        self._row = ipywidgets.HBox(layout={"min_height": _BUTTON_ROW_HEIGHT})
        self._box = ipywidgets.VBox([self._row, self._html])
        self._widgets = [self._box, self._row, self._html]
        self._has_buttons = False
        self.view = self._box._repr_mimebundle_()[_WIDGET_VIEW]

    def show(self, frame: LiveFrame, now_s: float) -> None:  # noqa: ARG002
        """Replace the HTML, and add the buttons once they are offered."""
        self._html.value = frame_to_html(frame)
        if frame.has_buttons and not self._has_buttons:
            self._has_buttons = True
            buttons = [self._create_button(name, act) for name, act in _BUTTON_ACTIONS.items()]
            self._widgets += buttons
            self._row.children = tuple(buttons)

    def _create_button(self, name: str, action: str) -> Any:
        button = self._ipywidgets.Button(description=name)
        button.on_click(lambda _: self._on_button(action))
        handle_messages_while_blocked(button)
        return button

    def close(self) -> None:
        """Close the widgets."""
        for widget in self._widgets:
            _close_widget(widget)

    def retire(self) -> None:
        """Close the widgets, because their JavaScript cannot ask for the end."""
        self.close()

    def show_end(self, html: str) -> None:
        """Do nothing, because the widgets are closed."""


_BUTTON_ACTIONS = {"Interrupt": "interrupt", "Where": "where", "Show all": "all"}
_BUTTON_ROW_HEIGHT = "36px"
"""A button of ipywidgets with its margins."""


def _close_widget(widget: Any) -> None:
    """Close a widget, its layout and its style: each has a comm."""
    for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
        if part is not None:
            part.close()


def detect_screen() -> Screen:
    """Return this process's screen, bound to the cell that runs now."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return TextScreen() if getattr(shell, "kernel", None) is None else NotebookScreen(shell)


def show_document(document: Document, screen: Screen | None = None) -> None:
    """Show a document in a new display, by default in this cell."""
    (screen or detect_screen()).show(print_both(document), new_uid())


def print_both(document: Document) -> dict[str, str]:
    """Return both forms of a document by their MIME types."""
    return {"text/html": print_html(document), "text/plain": print_text(document)}


# -- an error that a view has shown


class _ShownErrors:
    """An IPython error handler that hides errors which views have shown."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._classes, self._handler = shell.custom_exceptions, shell.CustomTB
        self._errors: list[BaseException] = []
        shell.events.register("post_run_cell", self._restore)

    def add(self, error: BaseException) -> None:
        self._errors.append(error)
        self._shell.custom_exceptions = (*self._classes, *map(type, self._errors))
        self._shell.CustomTB = self

    def _restore(self, *_: Any) -> None:
        self._shell.events.unregister("post_run_cell", self._restore)
        # Unless the cell registered another handler meanwhile.
        if self._shell.CustomTB is self:
            self._shell.custom_exceptions, self._shell.CustomTB = self._classes, self._handler

    def __call__(
        self, etype: type[BaseException], value: BaseException, tb: TracebackType | None, tb_offset: Any = None
    ) -> None:
        if any(value is error for error in self._errors):
            # `%debug` and `%tb` read these.
            sys.last_type, sys.last_value, sys.last_traceback = etype, value, tb
            if sys.version_info >= (3, 12):
                sys.last_exc = value
        elif isinstance(value, self._classes):
            self._handler(etype, value, tb, tb_offset)
        else:
            self._shell.showtraceback((etype, value, tb), tb_offset=tb_offset, running_compiled_code=True)


def hide_traceback(error: BaseException) -> bool:
    """Hide the traceback of an error that a view has shown.

    The running cell still fails. IPython draws every error that ends a cell, unless a handler is registered for its
    class.

    Returns:
        Whether there is an IPython shell of a user, in which the view is seen.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or type(shell).__module__.startswith("mhnb.rank."):
        # A rank's shell sends its errors to the notebook, which shows them.
        return False
    shown = shell.CustomTB if isinstance(shell.CustomTB, _ShownErrors) else _ShownErrors(shell)
    shown.add(error)
    return True
