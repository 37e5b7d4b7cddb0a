"""Stop a detached cluster on other machines, whose notebook is gone, in any state: also if hosts are lost, or a cell never ends.

To take it over, every rank must answer. To stop it, no rank need answer: the supervisors look for a notebook at the
previous address, and are ordered to stop there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mhnb.core.wire.protocol import HostUp, StopHost
from mhnb.drive.fleet import open_left_link
from mhnb.keep.berth import Berth, DriverLock
from mhnb.launch.attached import AttachedHost
from mhnb.link.base import supervisor_peer
from mhnb.link.sockets import SocketLink
from mhnb.system.processes import GONE
from mhnb.system.rundir import remove_keys

__all__ = ["end_left"]

_WAIT_S = 20.0


def end_left(berth: Berth, *, wait_s: float = _WAIT_S, clock: Callable[[], float] = time.monotonic) -> tuple[str, ...]:
    """Stop the cluster; return the hosts that did not connect to receive the order.

    Args:
        berth: the record of the cluster.
        wait_s: how long a host may take to connect and to end.
        clock: monotonic clock, in seconds.

    Raises:
        NotDriver: a notebook owns it.
    """
    lock = DriverLock(berth.run_dir, berth.name)
    try:
        link = open_left_link(berth)
        try:
            missing = _tell(link, berth, clock() + wait_s, clock)
        finally:
            link.close()
        for number, pid in berth.supervisors.items():
            _await(number, pid)
        remove_keys(berth.run_dir)
    finally:
        lock.release()
    return missing


def _tell(link: SocketLink, berth: Berth, until: float, clock: Callable[[], float]) -> tuple[str, ...]:
    """Order every supervisor that connects to stop, and wait until it has disconnected; return the hosts of the others."""
    names = {
        supervisor_peer(share.supervisor): share.host + (f" ({share.machine})" if share.machine else "")
        for share in berth.shape.shares()
    }
    waited_for = {*names, *map(supervisor_peer, berth.supervisors)}
    while waited_for and (left_s := until - clock()) > 0:
        for message in link.poll(left_s):
            if isinstance(message, HostUp):
                link.send(supervisor_peer(message.supervisor), StopHost())
        waited_for -= set(link.take_lost())
    return tuple(name for peer, name in names.items() if peer in waited_for)


def _await(number: int, pid: int) -> None:
    try:
        AttachedHost(number, pid).wait(())
    except GONE:
        return
