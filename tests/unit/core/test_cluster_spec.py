"""Checks of what a user asks to start, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.core.cluster_spec import ClusterSpec, check_cluster_spec, check_initialize, parse_hosts_argument
from mhnb.errors import InvalidRequest

AMPLE_NBYTES = 2**40


@pytest.mark.parametrize(("hosts", "devices"), [(0, 2), (-1, 2), (1000, 2), (4, 0), (4, 1000)])
def test_invalid_counts_are_refused(hosts: int, devices: int) -> None:
    """The error names the count and what was expected."""
    with pytest.raises(InvalidRequest, match=r"=(0|-1|1000): expected"):
        check_cluster_spec(ClusterSpec(hosts, devices), available_nbytes=AMPLE_NBYTES)


def test_more_hosts_than_fit_into_memory_are_refused() -> None:
    """The error names how many hosts fit."""
    with pytest.raises(InvalidRequest, match="start at most 6"):
        check_cluster_spec(ClusterSpec(8, 2), available_nbytes=2**30)


@pytest.mark.parametrize("hosts", [True, 2.5, None, [], "a,b", ["a", 3], ["a", ""]])
def test_invalid_hosts_argument_is_refused(hosts: Any) -> None:
    """A count must be an int, and a list may contain only names."""
    with pytest.raises(InvalidRequest, match="number of hosts"):
        parse_hosts_argument(hosts)


def test_a_host_cannot_be_named_twice() -> None:
    """Several ranks on one host need a flag of their own, which the error names."""
    with pytest.raises(InvalidRequest, match=r"'a' is named twice.*--per-host"):
        check_cluster_spec(ClusterSpec(2, None, profile="ssh", machines=("a", "a")), available_nbytes=AMPLE_NBYTES)


@pytest.mark.parametrize("each", [0, -1, 200])
def test_invalid_ranks_per_host_is_refused(each: int) -> None:
    """There must be at least one rank per host, and no more in total than the limit of ranks."""
    with pytest.raises(InvalidRequest, match=f"ranks_per_host={each}: expected"):
        check_cluster_spec(ClusterSpec(2, 2, ranks_per_host=each), available_nbytes=AMPLE_NBYTES)


def test_only_memory_of_this_machine_is_checked() -> None:
    """The memory of other machines is not known here."""
    check_cluster_spec(ClusterSpec(8, 2, profile="ssh"), available_nbytes=2**30)


def test_ranks_of_a_host_are_neighbours() -> None:
    """Ranks are assigned in host order, so the ranks of one host are neighbours."""
    shares = ClusterSpec(2, 2, ranks_per_host=2, profile="ssh", machines=("a", "b")).assign_hosts()
    assert [(s.supervisor, s.host, s.ranks, s.machine) for s in shares] == [
        (0, "host0", (0, 1), "a"),
        (1, "host1", (2, 3), "b"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"process_id": 1}, "mhnb sets it for each rank, from 0 to 3; leave it out"),
        ({"num_processes": 3}, "num_processes=3: mhnb sets it to the number of ranks, here 4"),
        ({"initialization_timeout": 0}, "initialization_timeout=0: expected a whole number of seconds"),
        ({"shutdown_timeout_seconds": 1.5}, "seconds from 1"),
        ({"heartbeat_timeout_seconds": True}, "seconds from 1"),
        ({"coordinator_bind_address": "127.0.0.1:4000"}, "add coordinator_address with the same port"),
    ],
)
def test_invalid_initialize_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    """The error names the argument, its value and what to do."""
    with pytest.raises(InvalidRequest, match=said):
        check_initialize(arguments, 4)


def test_argument_without_effect_is_noted() -> None:
    """The argument is not refused, because the same line works on a GPU."""
    (note,) = check_initialize({"local_device_ids": [0], "initialization_timeout": 60, "num_processes": 4}, 4)
    assert note.startswith("local_device_ids has no effect on CPU")
