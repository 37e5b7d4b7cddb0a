"""The shape of a cluster as the user asked for it: checked before anything is started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.errors import InvalidRequest, LaunchError

__all__ = ["INITIALIZE_ARGUMENTS", "Shape", "check_initialize", "check_shape", "count_hosts"]

INITIALIZE_ARGUMENTS = (
    "coordinator_address",
    "num_processes",
    "process_id",
    "local_device_ids",
    "cluster_detection_method",
    "initialization_timeout",
    "heartbeat_timeout_seconds",
    "shutdown_timeout_seconds",
    "coordinator_bind_address",
    "slice_index",
    "partition_index",
)
"""What jax.distributed.initialize takes, in its own order (jax 0.10 and 0.12)."""

_MAX_RANKS = 256
_RANK_NBYTES = 150 * 2**20
_MAX_DEVICES = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes two starts the same: equal shapes are the same cluster."""

    hosts: int = 4
    devices: int = 2
    init: bool = True
    initialize: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Say it as people do.

        >>> Shape(4, 2).describe()
        '4 hosts x 2 devices'
        >>> Shape(1, 2, False, {"initialization_timeout": 60}).describe()
        '1 host x 2 devices, not initialised, initialization_timeout=60'
        """
        text = f"{self.hosts} {'host' if self.hosts == 1 else 'hosts'} x {self.devices} {'device' if self.devices == 1 else 'devices'}"
        given = [f"{name}={value!r}" for name, value in self.initialize.items()]
        return ", ".join([text, *([] if self.init else ["not initialised"]), *given])


def count_hosts(hosts: int | Sequence[str]) -> int:
    """Give the number of hosts asked for.

    Raises:
        InvalidRequest: no number.
        LaunchError: machines by name, which this version cannot reach.

    >>> count_hosts(4)
    4
    """
    if isinstance(hosts, bool) or not isinstance(hosts, int | Sequence):
        raise InvalidRequest(f"hosts={hosts!r}: give the number of hosts, like hosts=4")
    if isinstance(hosts, int):
        return hosts
    raise LaunchError(
        f"hosts={hosts!r}: this version starts simulated hosts on this machine only; give their number, hosts=4"
    )


def check_shape(hosts: int, devices: int, *, available_nbytes: int) -> None:
    """Refuse what cannot be started here.

    Args:
        hosts: simulated hosts, a process each.
        devices: simulated CPU devices per host.
        available_nbytes: free memory of this machine.

    Raises:
        InvalidRequest: a count that cannot be.

    >>> check_shape(4, 2, available_nbytes=2**33)
    """
    if not 1 <= hosts <= _MAX_RANKS:
        raise InvalidRequest(
            f"hosts={hosts}: give a number from 1 to {_MAX_RANKS}; each host is a process of this machine (-n 4)"
        )
    if not 1 <= devices <= _MAX_DEVICES:
        raise InvalidRequest(
            f"devices={devices}: give the devices of each host, a number from 1 to {_MAX_DEVICES} (--devices 2)"
        )
    if hosts * _RANK_NBYTES > available_nbytes:
        fits = max(1, available_nbytes // _RANK_NBYTES)
        raise InvalidRequest(
            f"hosts={hosts}: each takes about {_RANK_NBYTES >> 20} MB and this machine has {available_nbytes >> 20} MB free; "
            f"start at most {fits} (-n {fits})"
        )


def check_initialize(arguments: Mapping[str, Any], hosts: int) -> tuple[str, ...]:
    """Check the user's arguments of jax.distributed.initialize; return a note for each that does nothing on CPU.

    Raises:
        InvalidRequest: unknown, or one that mhnb must give itself.

    >>> check_initialize({"local_device_ids": [0]}, 4)
    ('local_device_ids does nothing on CPU: it chooses among the GPUs of a process',)
    """
    for name, value in arguments.items():
        if name not in INITIALIZE_ARGUMENTS:
            raise InvalidRequest(
                f"jax.distributed.initialize has no argument {name!r} ({name}={value!r}); it has {', '.join(INITIALIZE_ARGUMENTS)}"
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{name}={value!r}: give a number, a text or a list of them, not {type(value).__name__}"
            ) from error
        if name == "process_id":
            raise InvalidRequest(
                f"process_id={value!r}: each rank gets its own from mhnb, 0 to {hosts - 1}; leave it out"
            )
        if name == "num_processes" and value != hosts:
            raise InvalidRequest(
                f"num_processes={value!r} and {hosts} hosts cannot form a cluster; leave it out or give {hosts}"
            )
    quiet = {
        "local_device_ids": "local_device_ids does nothing on CPU: it chooses among the GPUs of a process",
        "cluster_detection_method": "cluster_detection_method does nothing here: mhnb gives every address, so there is nothing to detect",
        "slice_index": "slice_index does nothing on CPU: it is for TPU and GPU slices",
        "partition_index": "partition_index does nothing on CPU: it is for TPU and GPU partitions",
    }
    return tuple(quiet[name] for name in arguments if name in quiet)
