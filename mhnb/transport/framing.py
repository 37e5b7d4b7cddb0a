"""Length-prefixed messages on a byte stream: frame count, lengths, frames.

Pure: the owner of the socket passes in the received bytes and gets back the messages that are complete by now.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mhnb.errors import UnknownMessage
from mhnb.types import Frame

_COUNT = struct.Struct("<I")
_LENGTH_NBYTES = 8
_COPY_LIMIT_NBYTES = 64 * 1024
MESSAGE_LIMIT_NBYTES = 1 << 32
"""Size limit of a message from an authenticated peer. No message is near it; a longer one would never be complete."""


def encode_frames(frames: Sequence[Frame]) -> list[Frame]:
    r"""Encode a message as chunks to send; large frames are not copied.

    >>> encode_frames([b"ab", b""])
    [b'\x02\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00ab']
    """
    chunks: list[Frame] = []
    small: list[Frame] = [struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))]
    for frame in frames:
        if len(frame) < _COPY_LIMIT_NBYTES:
            small.append(frame)
        else:
            chunks += [b"".join(small), frame]
            small = []
    return [*chunks, b"".join(small)] if small else chunks


class FrameDecoder:
    """Cuts received bytes into messages.

    Args:
        limit_nbytes: the longest message to accept; None for any length. A peer that has not shown its key yet must not
            make this process hold more.

    >>> cutter = FrameDecoder()
    >>> (wire,) = encode_frames([b"ab", b"c"])
    >>> list(cutter.feed(wire[:9])), [[bytes(frame) for frame in frames] for frames in cutter.feed(wire[9:] + wire[:3])]
    ([], [[b'ab', b'c']])
    """

    def __init__(self, limit_nbytes: int | None = None) -> None:
        self.limit_nbytes = limit_nbytes
        self._buffer = bytearray()

    def feed(self, data: Frame) -> Iterator[list[memoryview]]:
        """Accept bytes; yield each complete message, as views that stay valid.

        The caller must exhaust the iterator. The limit is read again for each message, so that the first message can lift it.

        Raises:
            UnknownMessage: a message is longer than the limit. The stream cannot be read any further.
        """
        if self._buffer:
            self._buffer += data
            buffer: bytes | bytearray = self._buffer
        else:
            # A copy, because the caller refills its buffer while the messages are still in use.
            buffer = bytes(data)
        start = 0
        while (ends := self._find_ends(buffer, start)) is not None:
            view = memoryview(buffer)
            yield [view[begin:end] for begin, end in pairwise(ends)]
            start = ends[-1]
        if start or buffer is not self._buffer:
            self._buffer = bytearray(memoryview(buffer)[start:])

    def _find_ends(self, buffer: bytes | bytearray, start: int) -> list[int] | None:
        """Return the frame boundaries of a message; None while it is incomplete."""
        if len(buffer) - start < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(buffer, start)
        begin = start + _COUNT.size + count * _LENGTH_NBYTES
        self._check_limit(begin - start)
        if len(buffer) < begin:
            return None
        ends = [begin]
        for length in struct.unpack_from(f"<{count}Q", buffer, start + _COUNT.size):
            ends.append(ends[-1] + length)
        self._check_limit(ends[-1] - start)
        return ends if len(buffer) >= ends[-1] else None

    def _check_limit(self, nbytes: int) -> None:
        if self.limit_nbytes is not None and nbytes > self.limit_nbytes:
            raise UnknownMessage(f"a message of {nbytes} bytes was announced; the limit is {self.limit_nbytes}")
