"""Answers pages that connect to the kernel while a cell blocks it, so that a reloaded page gets the widget of the running cell.

A page that is loaded asks the kernel for its description, and then, over a comm, for the widgets that exist. ipykernel answers
both in the main thread, which the cell blocks; JupyterLab gives up after a few seconds, and shows no widget until the next reload.
So while a live view is open, these messages are answered in the thread that receives them. All others go their usual way, and once
no view is open, so do all: the kernel's own callback is put back.
"""

from __future__ import annotations

import inspect
import logging
import threading
from typing import Any

_CONTROL_TARGET = "jupyter.widget.control"
"""The comm target over which a page asks for all widgets."""
_COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
_log = logging.getLogger(__name__)


class PageConnector:
    """Answers new pages of one kernel.

    Args:
        kernel: an ipykernel kernel. One without a thread for the shell channel is left alone.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._active = 0
        self._control_comms: set[str] = set()
        """Comms by which a page asked for widgets, and which it has not closed."""
        self._thread = getattr(kernel, "shell_channel_thread", None)
        self._stream = getattr(kernel, "shell_stream", None)
        self._usual: Any = getattr(kernel, "shell_channel_thread_main", None)
        self._is_receiving = False
        self.comm_ids: set[str] = set()
        """Comms of widgets. A page sends its first messages to them before it has a subshell for them."""

    def begin(self) -> None:
        """Answer new pages from now on; calls nest."""
        with self._lock:
            self._active += 1
            self._choose_receiver()

    def end(self) -> None:
        """Undo one call of `begin`."""
        with self._lock:
            self._active -= 1
            self._choose_receiver()

    def _choose_receiver(self) -> None:
        """Receive messages while a view is open, or a page that asked then has not got its answer. Call it with the lock."""
        is_needed = bool(self._active or self._control_comms)
        if self._thread is None or self._stream is None or self._usual is None or is_needed == self._is_receiving:
            return
        self._is_receiving = is_needed
        # In the thread that owns the stream.
        self._thread.io_loop.add_callback(self._stream.on_recv, self.receive if is_needed else self._usual, copy=False)

    async def receive(self, message: list[Any]) -> None:
        """Answer a message of a new page, or pass it on."""
        if (self._active or self._control_comms) and (found := self._find_request(message)) is not None:
            try:
                await self._answer(*found)
            except Exception:  # noqa: BLE001  # a page that gets no widget must not end the channel
                _log.exception("a page that connected while a cell ran received no reply")
            return
        await self._usual(message)

    def _find_request(self, message: list[Any]) -> tuple[list[bytes], list[Any], str, str] | None:
        """Return what is answered here: sender, frames, type and comm id. None for any other message, also an invalid one."""
        session = self._kernel.session
        try:
            identities, frames = session.feed_identities(message, copy=False)
            # Without the content, so that the session does not take the message for a repeated one when it is passed on.
            found = session.deserialize(frames, content=False, copy=False)
            kind, is_for_main = found["header"]["msg_type"], found["header"].get("subshell_id") is None
            content = session.unpack(found["content"]) if kind in _COMM_MESSAGES else {}
            comm_id = str(content.get("comm_id", ""))
        except (ValueError, TypeError, LookupError, AttributeError):
            # ipykernel reports what is wrong with it.
            return None
        if kind == "comm_open" and content.get("target_name") == _CONTROL_TARGET and is_for_main and self._active:
            with self._lock:
                self._control_comms.add(comm_id)
                self._choose_receiver()
        is_answered = comm_id in self._control_comms or (
            self._active
            and is_for_main
            and (kind == "kernel_info_request" or (kind == "comm_msg" and comm_id in self.comm_ids))
        )
        return (identities, frames, kind, comm_id) if is_answered else None

    async def _answer(self, identities: list[bytes], frames: list[Any], kind: str, comm_id: str) -> None:
        request = self._kernel.session.deserialize(frames, content=True, copy=False)
        if comm_id in self.comm_ids:
            # A widget may wait for the view's lock.
            threading.Thread(target=self._handle, args=(identities, request), name="mhnb-page", daemon=True).start()
            return
        answer = self._handle(identities, request)
        if inspect.isawaitable(answer):
            await answer
        # A page takes an answer as complete only once the kernel is idle again.
        self._publish_idle(request)
        if kind == "comm_close":
            with self._lock:
                self._control_comms.discard(comm_id)
                self._choose_receiver()

    def _handle(self, identities: list[bytes], request: dict[str, Any]) -> Any:
        kernel = self._kernel
        return kernel.shell_handlers[request["header"]["msg_type"]](kernel.shell_stream, identities, request)

    def _publish_idle(self, request: dict[str, Any]) -> None:
        kernel, content = self._kernel, {"execution_state": "idle"}
        topic = f"kernel.{kernel.ident}.status".encode()
        kernel.session.send(kernel.iopub_socket, "status", content, parent=request, ident=topic)


_connectors: dict[int, PageConnector] = {}


def find_connector(kernel: Any) -> PageConnector:
    """Return the connector of a kernel, always the same one."""
    # A connector keeps its kernel, so no other one can get the same id.
    return _connectors.setdefault(id(kernel), PageConnector(kernel))
