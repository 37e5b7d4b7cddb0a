"""A front end without a page: one real kernel, driven over its channels as JupyterLab drives it.

A cell can be run to its end, or step by step: read until the kernel asks for a line, then type one, interrupt, or kill the kernel.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

__all__ = ["END_OF_FILE", "CellEnd", "FrontEnd", "TypedCell", "message_text"]

END_OF_FILE = "\x04"
"""The answer that a front end sends for the end of the file; ipykernel raises EOFError for it."""
_LIMIT_S = 60.0
"""How long a front end waits for what must come. A test that waits longer has failed."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def message_text(message: Any) -> str:
    """Return the text that a message of a cell shows."""
    content = message["content"]
    if message["msg_type"] == "error":
        return _ANSI.sub("", "\n".join(content["traceback"]))
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))


class FrontEnd:
    """A front end with one kernel."""

    def __init__(self) -> None:
        self.manager: KernelManager
        self.client: BlockingKernelClient
        self.manager, self.client = start_new_kernel()
        self.running: TypedCell | None = None
        """The cell at whose prompts the user types, until its end was seen."""

    @property
    def pid(self) -> int:
        """The process id of the kernel."""
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def close(self) -> None:
        """End the kernel, as closing a tab does."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy()

    def kill(self) -> None:
        """End the kernel with SIGKILL, as the kernel of Linux does when memory is short."""
        os.kill(self.pid, signal.SIGKILL)

    def restart(self) -> None:
        """Restart the kernel, and wait until it answers."""
        self.running = None
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=_LIMIT_S)

    def reload(self) -> None:
        """Connect as another session, as a page does that is reloaded; a question of the running cell is lost."""
        self.running = None
        self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()

    def wait_for_end(self) -> str:
        """Wait until the kernel is idle after a cell of an earlier session; return what was shown."""
        shown = []
        while True:
            message = self.client.get_iopub_msg(timeout=_LIMIT_S)
            shown.append(message_text(message))
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return "".join(shown)

    def interrupt(self) -> None:
        """Press the stop button."""
        self.manager.interrupt_kernel()

    def run(self, code: str) -> tuple[dict[str, Any], str]:
        """Run a cell that asks for nothing; return the reply and the shown text.

        ipykernel answers a failed cell before it aborts the cells queued behind it, so a cell that follows at once is aborted too.
        """
        shown: list[str] = []
        for _ in range(1000):
            reply = self.client.execute_interactive(
                code, timeout=60, allow_stdin=False, output_hook=lambda m: shown.append(message_text(m))
            )
            if reply["content"]["status"] != "aborted":
                break
        return reply["content"], "".join(shown)

    def begin(self, code: str, until: str) -> str:
        """Start a cell; return its message id once its widget has shown a text."""
        sent = str(self.client.execute(code))
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["msg_type"] in ("comm_open", "comm_msg") and until in str(message["content"]):
                return sent

    def start(self, code: str, *, allow_stdin: bool = True) -> TypedCell:
        """Start a cell at whose prompts the user types."""
        self.running = TypedCell(self, self.client.execute(code, allow_stdin=allow_stdin, stop_on_error=False))
        return self.running

    def type(self, code: str, *lines: str) -> CellEnd:
        """Run a cell and type a line at each prompt of it; it must ask for exactly so many."""
        cell = self.start(code)
        for line in lines:
            cell.read_prompt()
            cell.answer(line)
        return cell.end()

    def click(self, comm_id: str, act: str) -> None:
        """Click a button of the live widget through a separate subshell, as JupyterLab does."""
        content = {"comm_id": comm_id, "data": {"method": "custom", "content": {"act": act}}}
        self._send("comm_msg", content, self.create_subshell())

    def create_subshell(self) -> str:
        """Create a subshell, and return its id."""
        self.client.control_channel.send(self.client.session.msg("create_subshell_request", {}))
        return str(self.client.get_control_msg(timeout=120)["content"]["subshell_id"])

    def begin_in(self, subshell_id: str, code: str) -> str:
        """Start a cell in a subshell; return its message id."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        return self._send("execute_request", content, subshell_id)

    def _send(self, kind: str, content: dict[str, Any], subshell_id: str) -> str:
        message = self.client.session.msg(kind, content)
        message["header"]["subshell_id"] = subshell_id
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def wait_for_display(self, sent: str, until: str) -> None:
        """Wait until a cell shows a text, or nothing if that is empty."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == sent and message["msg_type"].endswith("display_data"):
                text = message["content"]["data"].get("text/plain", "")
                if (until and until in text) or text == until:
                    return

    def complete(self, code: str) -> list[str]:
        """Return the code with each completion inserted."""
        reply = self.client.complete(code, len(code), reply=True, timeout=120)["content"]
        return [code[: reply["cursor_start"]] + word + code[reply["cursor_end"] :] for word in reply["matches"]]

    def inspect(self, code: str, cursor: int | None = None) -> str:
        """Return the text that Shift-Tab shows; an empty string if nothing is found."""
        reply = self.client.inspect(code, cursor, reply=True, timeout=120)["content"]
        return str(reply["data"].get("text/plain", "")) if reply["found"] else ""


@dataclass(frozen=True, slots=True)
class CellEnd:
    """A cell at whose prompts the user typed, after its end."""

    status: str
    """`ok` or `error`."""
    error: str
    """The name of the exception; empty if the cell succeeded."""
    message: str
    """The text of the exception."""
    text: str
    """All that was shown and typed, in its order, without colours."""
    prompts: tuple[str, ...]
    """The prompts, in their order."""


@dataclass(slots=True)
class _Seen:
    """What a cell has shown."""

    parts: list[str] = field(default_factory=list)
    """Streams, prompts, typed lines and errors, in their order."""
    prompts: list[str] = field(default_factory=list)
    displays: dict[str, str] = field(default_factory=dict)
    """Display id -> the text that it shows now."""
    widgets: list[str] = field(default_factory=list)
    """The messages to widgets, as text, in their order."""
    reply: dict[str, Any] | None = None
    is_idle: bool = False


class TypedCell:
    """A cell that runs, and at whose prompts the user types."""

    def __init__(self, front: FrontEnd, sent: str) -> None:
        self._front, self._sent, self._seen = front, sent, _Seen()
        self._asked: str | None = None
        self._read = 0

    @property
    def text(self) -> str:
        """All that was shown and typed so far, in its order; displays are not part of it."""
        return "".join(self._seen.parts)

    @property
    def displays(self) -> str:
        """What the displays of the cell show now."""
        return "\n".join(self._seen.displays.values())

    def read_prompt(self) -> str:
        """Wait until the kernel asks for a line; return what was shown since the last time, with the prompt at its end."""
        while self._asked is None:
            assert self._seen.reply is None, f"the cell ended without a prompt:\n{self.text}\n{self._seen.reply}"
            self._receive("a prompt")
        shown, self._read = "".join(self._seen.parts[self._read :]), len(self._seen.parts)
        return shown

    def answer(self, line: str) -> None:
        """Type a line, or END_OF_FILE, at the prompt that was read."""
        assert self._asked is not None, "the kernel asked for nothing"
        self._asked = None
        self._seen.parts.append("^D\n" if line == END_OF_FILE else line + "\n")
        self._read = len(self._seen.parts)
        self._front.client.input(line)

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self._seen.prompts[-1]

    def ask(self, line: str) -> str:
        """Type a line and return what is shown until the next prompt, without it."""
        self.answer(line)
        return self.read_prompt().removesuffix(self.prompt)

    def interrupt(self) -> None:
        """Press the stop button; the prompt, if there is one, is not answered."""
        self._asked = None
        self._front.interrupt()

    def wait_for_text(self, text: str) -> None:
        """Wait until the cell has shown a text, outside its displays."""
        while text not in self.text:
            self._receive(repr(text))

    def wait_for_display(self, text: str) -> None:
        """Wait until a display of the cell shows a text."""
        while text not in self.displays:
            self._receive(f"a display with {text!r}")

    def wait_for_widget(self, text: str) -> None:
        """Wait until a message to a widget since the start of the cell has a text."""
        while not any(text in message for message in self._seen.widgets):
            self._receive(f"a widget with {text!r}")

    def end(self) -> CellEnd:
        """Wait for the end; the cell must not ask for another line."""
        while self._seen.reply is None or not self._seen.is_idle:
            self._receive("the end of the cell")
            assert self._asked is None, f"the cell asks again:\n{self.text}"
        reply, self._front.running = self._seen.reply, None
        return CellEnd(
            reply["status"],
            reply.get("ename", ""),
            _ANSI.sub("", reply.get("evalue", "")),
            self.text,
            tuple(self._seen.prompts),
        )

    def end_unanswered(self) -> CellEnd:
        """Wait for the end of a cell whose last prompt stays without an answer."""
        assert self._asked is not None, "the kernel asked for nothing"
        self._asked = None
        return self.end()

    def _receive(self, what: str) -> None:
        """Read from each channel that has something."""
        client = self._front.client
        poller = zmq.Poller()
        for channel in (client.iopub_channel, client.stdin_channel, client.shell_channel):
            poller.register(channel.socket, zmq.POLLIN)
        end = time.monotonic() + _LIMIT_S
        # A kernel that ended sends nothing any more, so the wait has an end of its own.
        while not (ready := dict(poller.poll(1000))):
            assert time.monotonic() < end, f"no {what} within {_LIMIT_S:.0f} s after:\n{self.text}"
            assert self._front.manager.is_alive(), f"the kernel ended before {what}, after:\n{self.text}"
        if client.stdin_channel.socket in ready:
            self._take_prompt(client.get_stdin_msg(timeout=0))
        elif client.iopub_channel.socket in ready:
            self._take_output(client.get_iopub_msg(timeout=0))
        else:
            self._take_reply(client.get_shell_msg(timeout=0))

    def _take_prompt(self, message: Any) -> None:
        if message["parent_header"].get("msg_id") != self._sent:
            return
        self._read_output_before_prompt()
        self._asked = message["content"]["prompt"]
        self._seen.prompts.append(_ANSI.sub("", message["content"]["prompt"]))
        self._seen.parts.append(self._seen.prompts[-1])

    def _read_output_before_prompt(self) -> None:
        """Read the output that the kernel sent before the prompt; the two come on different channels.

        The kernel sends all output on one socket, in its order, and flushes its streams before it asks. So what it sends about
        a request that it gets now comes after them.
        """
        client = self._front.client
        request = client.session.msg("kernel_info_request", {})
        client.control_channel.send(request)
        asked = request["header"]["msg_id"]
        while True:
            message = client.get_iopub_msg(timeout=_LIMIT_S)
            if message["parent_header"].get("msg_id") == asked:
                if message["content"].get("execution_state") == "idle":
                    break
            else:
                self._take_output(message)
        client.get_control_msg(timeout=_LIMIT_S)

    def _take_output(self, message: Any) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind in ("comm_open", "comm_msg"):
            self._seen.widgets.append(str(content))
        if message["parent_header"].get("msg_id") != self._sent:
            return
        if kind in ("stream", "error"):
            self._seen.parts.append(_ANSI.sub("", message_text(message)))
        elif kind in ("display_data", "update_display_data"):
            key = content.get("transient", {}).get("display_id", str(len(self._seen.displays)))
            self._seen.displays[key] = message_text(message)
        elif kind == "status" and content["execution_state"] == "idle":
            self._seen.is_idle = True

    def _take_reply(self, message: Any) -> None:
        if message["parent_header"].get("msg_id") == self._sent:
            self._seen.reply = message["content"]
