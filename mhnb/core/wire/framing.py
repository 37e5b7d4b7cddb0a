"""Messages on a stream of bytes: how many frames, how long each is, then the frames themselves.

Pure: whoever holds the socket hands in the bytes that came, and gets the messages that are whole by now.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mhnb.errors import UnknownMessage
from mhnb.values import Frame

__all__ = ["MessageCutter", "join_frames"]

"""A view is flat: one byte an item."""

_COUNT = struct.Struct("<I")
_LENGTH_NBYTES = 8
_JOIN_LIMIT = 64 * 1024


def join_frames(frames: Sequence[Frame]) -> list[Frame]:
    r"""Write a message as pieces to be sent one after another. Large frames are pieces of their own, never copied.

    >>> join_frames([b"ab", b""])
    [b'\x02\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00ab']
    """
    pieces: list[Frame] = []
    small: list[Frame] = [struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))]
    for frame in frames:
        if len(frame) < _JOIN_LIMIT:
            small.append(frame)
        else:
            pieces += [b"".join(small), frame]
            small = []
    return [*pieces, b"".join(small)] if small else pieces


class MessageCutter:
    """Cuts what arrives into messages.

    Args:
        limit_nbytes: the longest message to be taken; None for any. A peer that has not shown its key yet must not make
            us hold more.

    >>> cutter = MessageCutter()
    >>> (wire,) = join_frames([b"ab", b"c"])
    >>> list(cutter.feed(wire[:9])), [[bytes(frame) for frame in frames] for frames in cutter.feed(wire[9:] + wire[:3])]
    ([], [[b'ab', b'c']])
    """

    def __init__(self, limit_nbytes: int | None = None) -> None:
        self.limit_nbytes = limit_nbytes
        self._held = bytearray()

    def feed(self, data: Frame) -> Iterator[list[memoryview]]:
        """Take the next bytes; yield each message that is whole now, as views that stay valid. To be exhausted.

        The limit is looked at for each message anew, so that the first one can lift it.

        Raises:
            UnknownMessage: a message that is longer than the limit. The stream cannot be read on.
        """
        if self._held:
            self._held += data
            held: bytes | bytearray = self._held
        else:
            # A copy: the caller's buffer is filled again while the messages are still looked at.
            held = bytes(data)
        start = 0
        while (ends := self._find_ends(held, start)) is not None:
            view = memoryview(held)
            yield [view[begin:end] for begin, end in pairwise(ends)]
            start = ends[-1]
        if start or held is not self._held:
            self._held = bytearray(memoryview(held)[start:])

    def _find_ends(self, held: bytes | bytearray, start: int) -> list[int] | None:
        """Say where the frames of the message at `start` begin, and where its last one ends; None while it is not whole."""
        if len(held) - start < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(held, start)
        begin = start + _COUNT.size + count * _LENGTH_NBYTES
        self._hold_limit(begin - start)
        if len(held) < begin:
            return None
        ends = [begin]
        for length in struct.unpack_from(f"<{count}Q", held, start + _COUNT.size):
            ends.append(ends[-1] + length)
        self._hold_limit(ends[-1] - start)
        return ends if len(held) >= ends[-1] else None

    def _hold_limit(self, nbytes: int) -> None:
        if self.limit_nbytes is not None and nbytes > self.limit_nbytes:
            raise UnknownMessage(f"a message of {nbytes} bytes was announced; at most {self.limit_nbytes} are taken")
