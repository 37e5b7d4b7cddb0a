"""The rank's end of the link: a descriptor that tells of edges, read and written by two threads."""

from __future__ import annotations

import asyncio
import select
import threading

from mhnb.core.protocol import Message, OutputProduced, SkipCell
from mhnb.link.router import RouterLink
from mhnb.rank.channel import Channel
from mhnb.rank.engine import _Server

KEY = b"k" * 32
WAIT_S = 20.0


class MeddledChannel(Channel):
    """After the look that finds nothing a cell arrives, and another thread's send swallows the edge that tells of it."""

    link: RouterLink
    server: _Server
    done = False

    def receive(self) -> Message | None:
        message = super().receive()
        if message is None and not self.done:
            self.done = True
            self.link.send("r0", SkipCell(1, 1))
            assert select.select([self.fileno()], [], [], WAIT_S)[0]
            other = threading.Thread(target=self.server._send, args=(OutputProduced(0, 1, []),))
            other.start()
            other.join()
        return message


def test_a_cell_that_arrives_during_another_threads_send_is_taken() -> None:
    """No later event would tell of it: the rank would wait, and the notebook too."""

    async def serve() -> Message:
        link = RouterLink(KEY)
        channel = MeddledChannel(link.url, KEY, "r0")
        server = object.__new__(_Server)
        taken: asyncio.Queue[Message] = asyncio.Queue()
        server._channel, server._loop, server._reading, server._sent = channel, asyncio.get_running_loop(), False, False
        server._take = taken.put_nowait  # type: ignore[method-assign, assignment]
        channel.link, channel.server = link, server
        try:
            channel.send(OutputProduced(0, 1, []))
            link.poll(WAIT_S)
            asyncio.get_running_loop().add_reader(channel.fileno(), server._read)
            server._read()
            return await asyncio.wait_for(taken.get(), WAIT_S)
        finally:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()
            link.close()

    assert asyncio.run(serve()) == SkipCell(1, 1)
