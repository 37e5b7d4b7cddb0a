"""Send displays, updates and the last expression's value to the capture."""

from __future__ import annotations

import base64
import inspect
import json
import numbers
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher
from IPython.core import formatters
from IPython.display import DisplayObject

from mhnb.core.output.events import ClearOutput, DisplayData, ExecuteResult, UpdateDisplayData
from mhnb.core.output.rich import OBJECT_REPR, is_drawn_by_scripts, is_hidden_html

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from mhnb.rank.execution.capture import Capture


class RankDisplayPublisher(ZMQDisplayPublisher):
    """Sends `display()` and `clear_output()` to the capture."""

    capture: Capture | None = None

    def publish(  # type: ignore[override]  # ipykernel's own drops IPython's deprecated `source` likewise
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **unused: Any,
    ) -> None:
        """Show data, or replace what a display id shows."""
        if self.capture is None:
            super().publish(data, metadata, transient=transient, update=update, **unused)
            return
        for name, value in (("data", data), ("metadata", metadata or {})):
            if not isinstance(value, dict):
                raise TypeError(f"{name} must be a dict, got: {value!r}")
        bundle, clean_metadata = clean_bundle(self._describe_script_display(data)), clean_bundle(metadata or {})
        display_id = (transient or {}).get("display_id")
        self.capture.publish(
            UpdateDisplayData(bundle, clean_metadata, str(display_id))
            if update
            else DisplayData(bundle, clean_metadata, None if display_id is None else str(display_id))
        )

    def _describe_script_display(self, data: dict[str, Any]) -> dict[str, Any]:
        """Add the text of the value that a library draws with scripts.

        Scripts are not run, and the HTML object that such a library displays does not say what it shows.
        """
        html, plain = data.get("text/html"), data.get("text/plain")
        if not (isinstance(html, str) and isinstance(plain, str) and OBJECT_REPR.fullmatch(plain)):
            return data
        assert self.shell is not None
        if not is_drawn_by_scripts(html) or is_hidden_html(html) or self.shell.display_formatter is None:
            return data
        calls = list(_iterate_calls(sys._getframe(2)))
        formatting = [call.f_locals for call in calls if call.f_globals.get("__name__") == formatters.__name__]
        by_itself = [
            names["obj"]
            for names in formatting
            if "obj" in names and isinstance(names.get("self"), formatters.IPythonDisplayFormatter)
        ]
        if formatting and not by_itself:
            # It is part of a value's own display, which has the value's text.
            return {**data, "text/plain": ""}
        value = by_itself[0] if by_itself else _find_shown_value(calls, self.shell.user_ns)
        if value is None or isinstance(value, str | DisplayObject):
            return data
        # Not `format`, which would let the value display itself again.
        return {**data, "text/plain": self.shell.display_formatter.formatters["text/plain"](value)}

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002
        """Clear the cell's output, now or before its next output."""
        if self.capture is None:
            super().clear_output(wait)
        else:
            self.capture.publish(ClearOutput(bool(wait)))


def _iterate_calls(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the outermost last."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _find_shown_value(calls: Sequence[FrameType], cell_names: dict[str, Any]) -> object:
    """Return what a cell passed to the call that made a display.

    That is the first argument, which is the object itself in a call such as `view.show()`. A call with several values, such as
    `show(a, b)`, calls another function for each: then it is that function's argument. None if no library made the display.
    """
    in_library = list(takewhile(lambda call: call.f_globals is not cell_names, calls))
    for call in reversed(in_library if len(in_library) < len(calls) else ()):
        code, values = call.f_code, call.f_locals
        if str(call.f_globals.get("__name__")).startswith("IPython."):
            break
        if code.co_argcount:
            return values.get(code.co_varnames[0])
        if code.co_flags & inspect.CO_VARARGS:
            several = values.get(code.co_varnames[code.co_kwonlyargcount], ())
            if len(several) == 1:
                return several[0]
    return None


class RankDisplayHook(ZMQShellDisplayHook):
    """Sends the last expression's value to the capture, `_` and `Out`."""

    # A plain attribute instead of a trait, as in the shell.
    exec_result: Any = None
    capture: Capture | None = None
    _bundle: tuple[dict[str, Any], dict[str, Any]] | None = None

    def quiet(self) -> bool:
        """Return whether the cell ends in a semicolon."""
        assert self.shell is not None
        return ";" in self.shell.history_manager.input_hist_parsed[-1] and bool(super().quiet())

    def start_displayhook(self) -> None:
        """Begin to show a value."""
        if self.capture is None:
            super().start_displayhook()
        self._bundle = None

    def write_output_prompt(self) -> None:
        """Do nothing: the cell number is the number of the output."""
        if self.capture is None:
            super().write_output_prompt()

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Keep the value's representations until `finish_displayhook`."""
        if self.capture is None:
            super().write_format_data(format_dict, md_dict)
        else:
            self._bundle = clean_bundle(format_dict), clean_bundle(md_dict or {})

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Keep the text for %history; IPython would also keep every picture."""
        assert self.shell is not None
        if (text := format_dict.get("text/plain")) is not None:
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = text

    def finish_displayhook(self) -> None:
        """Show the value."""
        if self.capture is None:
            super().finish_displayhook()
        elif self._bundle is not None:
            self.capture.publish(ExecuteResult(*self._bundle))
            self._bundle = None


def clean_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """Make a mime bundle fit for JSON, with binary data as base64.

    >>> clean_bundle({"image/png": b"abc", "text/plain": "x", "application/json": {"n": {1}}})
    {'image/png': 'YWJj', 'text/plain': 'x', 'application/json': {'n': [1]}}
    """
    if all(type(value) is str for value in data.values()):
        return dict(data)
    return {str(mime): _make_json_safe(value) for mime, value in data.items()}


def _make_json_safe(value: Any) -> Any:
    # since ipykernel 7: its own json_clean and encode_images do nothing and leave this to jupyter_client's session,
    # which a rank does not have. A value that is not JSON at the end would end the rank.
    try:
        text = json.dumps(value, default=_make_one_json_safe)
        # JSON has no NaN and no infinity: they become text, as in the session of a kernel.
        return json.loads(text, parse_constant=lambda constant: repr(float(constant)))
    except (TypeError, ValueError):  # a key that is not text, or a circular reference
        return repr(value)


def _make_one_json_safe(value: object) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else repr(value)
