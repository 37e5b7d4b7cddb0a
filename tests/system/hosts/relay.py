"""A cable with a delay: it forwards Ethernet frames between two TAP devices, each delayed by so many milliseconds, in order.

`python relay.py TAP_A TAP_B DELAY_MS` prints `ready` when both exist. For kernels without sch_netem, as in many containers.
"""

from __future__ import annotations

import collections
import fcntl
import os
import select
import struct
import sys
import time
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x2, 0x1000
_MOST_FRAMES = 20_000

Queue = collections.deque[tuple[int, bytes]]


def _open_tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return fd


def _write_due(fd: int, queue: Queue) -> None:
    while queue and queue[0][0] <= time.monotonic_ns():
        try:
            os.write(fd, queue.popleft()[1])
        except OSError:
            # The cable's other end is down, so the frame is lost, as on a real cable.
            continue


def _read_all(fd: int, queue: Queue, delay_ns: int) -> None:
    while len(queue) < _MOST_FRAMES:
        try:
            queue.append((time.monotonic_ns() + delay_ns, os.read(fd, 65536)))
        except BlockingIOError:
            return


def _relay(a: str, b: str, delay_ms: float) -> None:
    fds = {_open_tap(a): collections.deque(), _open_tap(b): collections.deque()}  # type: dict[int, Queue]
    other = dict(zip(fds, reversed(fds), strict=True))
    poll = select.epoll()
    for fd in fds:
        poll.register(fd, select.EPOLLIN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for fd, queue in fds.items():
            _write_due(other[fd], queue)
        due = [queue[0][0] for queue in fds.values() if queue]
        timeout_s = -1 if not due else max(0, (min(due) - time.monotonic_ns()) / 1e9)
        for fd, _ in poll.poll(timeout_s):
            _read_all(fd, fds[fd], int(delay_ms * 1e6))


if __name__ == "__main__":
    # Remove this folder from the path, so that a file in it does not replace a standard module.
    sys.path.remove(str(Path(__file__).parent))
    _relay(sys.argv[1], sys.argv[2], float(sys.argv[3]))
