"""Which callback a kernel's shell channel has while live views open and close, without a kernel."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mhnb.view.live.reload import PageConnector, find_connector


class Kernel:
    """The parts of a kernel that a connector needs."""

    def __init__(self) -> None:
        self.receiver: Any = self.shell_channel_thread_main
        self.passed_on: list[Any] = []
        self.shell_stream = SimpleNamespace(on_recv=self._set_receiver)
        loop = SimpleNamespace(add_callback=lambda act, *arguments, **named: act(*arguments, **named))
        self.shell_channel_thread = SimpleNamespace(io_loop=loop)
        self.session = self
        self.shell_handlers = dict.fromkeys(("comm_open", "comm_msg", "comm_close"), lambda *_: None)
        self.iopub_socket, self.ident = None, "k"

    def _set_receiver(self, callback: Any, *, copy: bool) -> None:
        assert not copy
        self.receiver = callback

    def feed_identities(self, message: list[Any], **_: Any) -> tuple[list[bytes], list[Any]]:
        """Split a message, as a session does."""
        return [], message

    def deserialize(self, frames: list[Any], **_: Any) -> dict[str, Any]:
        """Read a message; its content stays as it is."""
        kind, content = frames
        return {"header": {"msg_type": kind}, "content": content}

    def unpack(self, content: Any) -> Any:
        """Read the content."""
        return content

    def send(self, *_: Any, **__: Any) -> None:
        """Send nothing."""

    async def shell_channel_thread_main(self, message: list[Any]) -> None:
        """Handle a message as usual."""
        self.passed_on.append(message)

    def get(self, kind: str, content: Any) -> None:
        """Receive a message."""
        asyncio.run(self.receiver([kind, content]))


def test_callback_is_put_back_when_no_view_is_open() -> None:
    """Calls nest; after the last view the kernel is as before, and the next view begins anew."""
    kernel = Kernel()
    connector, usual = PageConnector(kernel), kernel.receiver
    for _ in range(2):
        connector.begin()
        connector.begin()
        connector.end()
        assert kernel.receiver == connector.receive
        connector.end()
        assert kernel.receiver == usual


def test_page_that_asked_is_answered_to_the_end() -> None:
    """The callback stays until the page closes its comm, also if the view closes before."""
    kernel = Kernel()
    connector, usual = PageConnector(kernel), kernel.receiver
    connector.begin()
    kernel.get("comm_open", {"comm_id": "c", "target_name": "jupyter.widget.control"})
    connector.end()
    kernel.get("comm_msg", {"comm_id": "c"})
    assert (kernel.receiver, kernel.passed_on) == (connector.receive, [])
    kernel.get("comm_close", {"comm_id": "c"})
    assert (kernel.receiver, kernel.passed_on) == (usual, [])


@pytest.mark.parametrize("content", [[], None, "text", {"comm_id": "other"}])
def test_other_messages_are_passed_on(content: Any) -> None:
    """A comm of another library, and a message that is no valid one, go their usual way."""
    kernel = Kernel()
    connector = PageConnector(kernel)
    connector.begin()
    kernel.get("comm_msg", content)
    kernel.get("execute_request", {"code": "1"})
    assert [message[0] for message in kernel.passed_on] == ["comm_msg", "execute_request"]


@pytest.mark.parametrize("missing", ["shell_channel_thread", "shell_stream", "shell_channel_thread_main"])
def test_kernel_without_a_part_is_left_alone(missing: str) -> None:
    """Older kernels, and those of other languages' shells, have no thread for the channel."""
    kernel = Kernel()
    usual = kernel.receiver
    parts = {
        name: getattr(kernel, name) for name in ("shell_channel_thread", "shell_stream", "shell_channel_thread_main")
    }
    other = SimpleNamespace(**{name: None if name == missing else part for name, part in parts.items()})
    for incomplete in (other, SimpleNamespace(), None):
        connector = find_connector(incomplete)
        connector.begin()
        connector.end()
    assert kernel.receiver == usual
