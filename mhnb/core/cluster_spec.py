"""The requested specification of a cluster, and checks before it starts.

The checks decide whether numbers fit together, and whether there is memory for them. A start is compared with the options of
the running cluster of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest

INITIALIZE_FLAGS = (
    "coordinator_address",
    "local_device_ids",
    "cluster_detection_method",
    "initialization_timeout",
    "heartbeat_timeout_seconds",
    "shutdown_timeout_seconds",
    "coordinator_bind_address",
    "slice_index",
    "partition_index",
)
"""Arguments of jax.distributed.initialize with a flag of their own. Which others there are depends on the ranks' JAX."""

SET_BY_MHNB = ("num_processes", "process_id")
"""Arguments of jax.distributed.initialize that mhnb sets itself."""

_SECONDS = ("initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds")

_MAX_RANKS = 256
_RANK_NBYTES = 150 * 2**20
_MAX_DEVICES = 256


@dataclass(frozen=True, slots=True)
class HostAssignment:
    """The ranks that one supervisor starts."""

    supervisor: int
    host: str
    """The label: host0, host1, ..."""
    ranks: tuple[int, ...]
    machine: str | None = None
    """The user's name for the machine; None if a scheduler chooses it, and for this machine."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The specification of a cluster; equal shapes mean the same cluster."""

    hosts: int = 4
    devices: int | None = 2
    """Simulated CPU devices per rank; None for the devices that each machine has."""
    init: bool = True
    initialize: Mapping[str, Any] = field(default_factory=dict)
    ranks_per_host: int = 1
    profile: str = "local"
    """How the hosts are reached: the name of a profile that comes with mhnb, or the directory of a profile."""
    machines: tuple[str, ...] = ()
    """Names of the machines, one per host; empty if the profile knows or simulates them."""
    kind: str = ""
    """The profile's kind, such as `slurm`; empty if it equals the profile's name."""

    @property
    def process_count(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    @property
    def is_local(self) -> bool:
        """Whether this machine's one supervisor forks every rank."""
        return (self.kind or self.profile) in ("local", "gpu")

    @property
    def is_simulated(self) -> bool:
        """Whether the hosts are processes of this machine that simulate machines."""
        return (self.kind or self.profile) == "local"

    def assign_hosts(self) -> tuple[HostAssignment, ...]:
        """Return each host's ranks: rank r stays on host r // ranks_per_host.

        >>> [(share.host, share.ranks) for share in ClusterSpec(2, 1, ranks_per_host=2, profile="ssh").assign_hosts()]
        [('host0', (0, 1)), ('host1', (2, 3))]
        """
        each = self.ranks_per_host
        names = self.machines or (None,) * self.hosts
        return tuple(
            HostAssignment(k, f"host{k}", tuple(range(k * each, (k + 1) * each)), name) for k, name in enumerate(names)
        )

    def describe(self) -> str:
        """Format the shape for a message.

        >>> ClusterSpec(4, 2).describe()
        '4 hosts x 2 devices'
        >>> ClusterSpec(1, 2, False, {"initialization_timeout": 60}).describe()
        '1 host x 2 devices, initialised by a cell, initialization_timeout=60'
        >>> ClusterSpec(2, None, ranks_per_host=2, profile="ssh", machines=("a", "b")).describe()
        '2 hosts (a, b) x 2 ranks, profile ssh'
        """
        parts = [pluralize(self.hosts, "host") + (f" ({', '.join(self.machines)})" if self.machines else "")]
        if self.ranks_per_host > 1:
            parts.append(pluralize(self.ranks_per_host, "rank"))
        if self.devices is not None:
            parts.append(pluralize(self.devices, "device"))
        given = [f"{name}={value!r}" for name, value in self.initialize.items()]
        where = [] if self.profile == "local" else [f"profile {self.profile}"]
        return ", ".join([" x ".join(parts), *where, *([] if self.init else ["initialised by a cell"]), *given])


def parse_hosts_argument(hosts: int | Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return the number of hosts, and the machines' names if given.

    Raises:
        InvalidRequest: neither a number nor names.

    >>> parse_hosts_argument(4), parse_hosts_argument(["a", "b"])
    ((4, ()), (2, ('a', 'b')))
    """
    if isinstance(hosts, int) and not isinstance(hosts, bool):
        return hosts, ()
    sequence: object = hosts
    named = tuple(sequence) if isinstance(sequence, Sequence) and not isinstance(sequence, str) else ()
    if not named or not all(isinstance(name, str) and name for name in named):
        raise InvalidRequest(
            f"hosts={hosts!r}: expected the number of hosts, such as hosts=4, or names of machines, such as hosts=['a', 'b']"
        )
    return len(named), named


def check_counts(spec: ClusterSpec) -> None:
    """Reject counts and machine names that no cluster can have.

    Raises:
        InvalidRequest: an impossible count, or a machine named twice.

    >>> check_counts(ClusterSpec(4, 2))
    """
    hosts, devices, ranks_per_host = spec.hosts, spec.devices, spec.ranks_per_host
    if not 1 <= hosts <= _MAX_RANKS:
        raise InvalidRequest(f"hosts={hosts}: expected a number from 1 to {_MAX_RANKS}, for example -n 4")
    if not 1 <= ranks_per_host <= _MAX_RANKS // hosts:
        raise InvalidRequest(
            f"ranks_per_host={ranks_per_host}: expected a number from 1, with at most {_MAX_RANKS} ranks in total, for example --per-host 1"
        )
    if devices is not None and not 1 <= devices <= _MAX_DEVICES:
        raise InvalidRequest(
            f"devices={devices}: expected the number of devices per host, from 1 to {_MAX_DEVICES}, for example --devices 2"
        )
    duplicates = sorted({name for name in spec.machines if spec.machines.count(name) > 1})
    if duplicates:
        raise InvalidRequest(
            f"host {duplicates[0]!r} is named twice; for several ranks on one host use --per-host 2", hosts=duplicates
        )


def check_cluster_spec(spec: ClusterSpec, *, available_nbytes: int) -> None:
    """Check that the shape can be started on this machine.

    Args:
        spec: the requested one.
        available_nbytes: free memory of this machine.

    Raises:
        InvalidRequest: an impossible count, or more ranks than this machine has memory for.

    >>> check_cluster_spec(ClusterSpec(4, 2), available_nbytes=2**33)
    """
    check_counts(spec)
    if spec.is_simulated and spec.process_count * _RANK_NBYTES > available_nbytes:
        max_hosts = max(1, available_nbytes // _RANK_NBYTES)
        raise InvalidRequest(
            f"hosts={spec.hosts}: each takes about {_RANK_NBYTES >> 20} MB and this machine has {available_nbytes >> 20} MB free; "
            f"start at most {max_hosts}\n  Fix: -n {max_hosts}"
        )


def check_initialize(arguments: Mapping[str, Any], ranks: int) -> tuple[str, ...]:
    """Check jax.distributed.initialize's arguments; return a note for each without effect.

    Unknown names are refused by the ranks, whose JAX has the arguments.

    Raises:
        InvalidRequest: an argument has a wrong value, or mhnb must set it itself.

    >>> check_initialize({"local_device_ids": [0]}, 4)
    ('local_device_ids has no effect on CPU: it selects GPUs of a process',)
    """
    for name, value in arguments.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{name}={value!r}: expected a number, a text or a list of them, got {type(value).__name__}"
            ) from error
        if name in _SECONDS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidRequest(f"{name}={value!r}: expected a whole number of seconds from 1")
        if name == "process_id":
            raise InvalidRequest(
                f"process_id={value!r}: mhnb sets it for each rank, from 0 to {ranks - 1}; leave it out"
            )
        if name == "num_processes" and value != ranks:
            raise InvalidRequest(
                f"num_processes={value!r}: mhnb sets it to the number of ranks, here {ranks}; leave it out and choose that number with -n"
            )
    if (bind_address := arguments.get("coordinator_bind_address")) and not arguments.get("coordinator_address"):
        raise InvalidRequest(
            f"coordinator_bind_address={bind_address!r} is not enough: the ranks connect to coordinator_address, "
            "which mhnb chooses; add coordinator_address with the same port, or leave both out"
        )
    ineffective = {
        "local_device_ids": "local_device_ids has no effect on CPU: it selects GPUs of a process",
        "cluster_detection_method": "cluster_detection_method has no effect here: mhnb sets every address, so there is nothing to detect",
        "slice_index": "slice_index has no effect on CPU: it is for TPU and GPU slices",
        "partition_index": "partition_index has no effect on CPU: it is for TPU and GPU partitions",
    }
    return tuple(ineffective[name] for name in arguments if name in ineffective)


# -- compare options with a running cluster's


def diff_options(running: Mapping[str, object], requested: Mapping[str, object]) -> list[str]:
    """Describe each requested option that differs in the running cluster.

    Only the names of environment variables are shown, because a value may be secret.

    Args:
        running: options of the cluster by name; contains those of `requested`.
        requested: options of the present start. Options that were not given are not compared.

    >>> diff_options({"user": "me", "port": 22}, {"user": "you", "port": 22})
    ["user='me', requested user='you'"]
    >>> diff_options({"environment": {"TOKEN": "a"}}, {"environment": {"TOKEN": "b"}})
    ['environment: TOKEN has a different value']
    """
    found = []
    for name, value in requested.items():
        current = running[name]
        if current == value:
            continue
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            found += _diff_mappings(name, current, value)
        else:
            found.append(f"{_format_option(name, current)}, requested {_format_option(name, value)}")
    return found


def format_options_mismatch(name: str, differences: list[str]) -> str:
    """Format the differences for the user, with the possible next steps.

    >>> print(format_options_mismatch("a", ["user='me', requested user='you'"]))
    cluster 'a' is already running with different options: user='me', requested user='you'
      Fix: %mhjax stop a, then run this line again
      Or: add --name other, to run both
      Or: %mhjax restart, to keep the options that it was started with
    """
    return (
        f"cluster {name!r} is already running with different options: {'; '.join(differences)}\n"
        f"  Fix: %mhjax stop {name}, then run this line again\n"
        "  Or: add --name other, to run both\n"
        "  Or: %mhjax restart, to keep the options that it was started with"
    )


def _diff_mappings(name: str, current: Mapping[object, object], requested: Mapping[object, object]) -> list[str]:
    lines = []
    for keys, difference in (
        ([key for key in requested if key not in current], "not set"),
        ([key for key in current if key not in requested], "set, but was not requested"),
        ([key for key in requested if key in current and current[key] != requested[key]], "a different value"),
    ):
        if keys:
            verb = "has" if difference == "a different value" else "is"
            lines.append(f"{name}: {', '.join(map(str, keys))} {verb} {difference}")
    return lines


def _format_option(name: str, value: object) -> str:
    return f"no {name}" if value in (None, "", (), []) else f"{name}={value!r}"
