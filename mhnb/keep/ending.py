"""Stop a detached cluster on other machines, whose notebook is gone, in any state: also if hosts are lost, or a cell never ends.

To take it over, every rank must answer. To stop it, no rank need answer: the supervisors look for a notebook at the
previous address, and are ordered to stop there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mhnb.core.wire.protocol import HostUp, StopHost
from mhnb.drive.fleet import open_detached_transport
from mhnb.keep.berth import ClusterRecord, OwnerLock
from mhnb.launch.local import AdoptedHost
from mhnb.link.memory import supervisor_peer
from mhnb.link.sockets import SocketServer
from mhnb.system.processes import PROCESS_ENDED
from mhnb.system.rundir import remove_keys

__all__ = ["stop_detached"]

_WAIT_S = 20.0


def stop_detached(
    record: ClusterRecord, *, wait_s: float = _WAIT_S, clock: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Stop the cluster; return the hosts that did not connect to receive the order.

    Args:
        record: the record of the cluster.
        wait_s: how long a host may take to connect and to end.
        clock: monotonic clock, in seconds.

    Raises:
        NotDriver: a notebook owns it.
    """
    lock = OwnerLock(record.run_dir, record.name)
    try:
        link = open_detached_transport(record)
        try:
            missing = _send_stop(link, record, clock() + wait_s, clock)
        finally:
            link.close()
        for number, pid in record.local_supervisors.items():
            _wait_until_gone(number, pid)
        remove_keys(record.run_dir)
    finally:
        lock.release()
    return missing


def _send_stop(link: SocketServer, record: ClusterRecord, until: float, clock: Callable[[], float]) -> tuple[str, ...]:
    """Order every supervisor that connects to stop, and wait until it has disconnected; return the hosts of the others."""
    names = {
        supervisor_peer(share.supervisor): share.host + (f" ({share.machine})" if share.machine else "")
        for share in record.shape.assign_hosts()
    }
    waited_for = {*names, *map(supervisor_peer, record.local_supervisors)}
    while waited_for and (left_s := until - clock()) > 0:
        for message in link.poll(left_s):
            if isinstance(message, HostUp):
                link.send(supervisor_peer(message.supervisor), StopHost())
        waited_for -= set(link.pop_disconnected())
    return tuple(name for peer, name in names.items() if peer in waited_for)


def _wait_until_gone(number: int, pid: int) -> None:
    try:
        AdoptedHost(number, pid).wait(())
    except PROCESS_ENDED:
        return
