"""What can be started, judged before anything is."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.core.shape import check_initialize, check_shape, count_hosts
from mhnb.errors import InvalidRequest, LaunchError

PLENTY = 2**40


@pytest.mark.parametrize(("hosts", "devices"), [(0, 2), (-1, 2), (1000, 2), (4, 0), (4, 1000)])
def test_counts_that_cannot_be(hosts: int, devices: int) -> None:
    """The error names the count and what was expected."""
    with pytest.raises(InvalidRequest, match=r"=(0|-1|1000): give"):
        check_shape(hosts, devices, available_nbytes=PLENTY)


def test_more_hosts_than_memory_holds() -> None:
    """The error says how many fit."""
    with pytest.raises(InvalidRequest, match="start at most 6"):
        check_shape(8, 2, available_nbytes=2**30)


@pytest.mark.parametrize("hosts", [True, 2.5, None])
def test_hosts_that_are_no_number(hosts: Any) -> None:
    """A count is an int."""
    with pytest.raises(InvalidRequest):
        count_hosts(hosts)


def test_hosts_by_name_are_refused_plainly() -> None:
    """This version cannot reach other machines, and says so."""
    with pytest.raises(LaunchError, match="simulated hosts"):
        count_hosts(["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"timeout": 3}, "no argument 'timeout'"),
        ({"process_id": 1}, "leave it out"),
        ({"num_processes": 3}, "3 and 4 hosts"),
    ],
)
def test_arguments_of_initialize_that_cannot_be(arguments: dict[str, Any], said: str) -> None:
    """The error names the argument, its value and what to do."""
    with pytest.raises(InvalidRequest, match=said):
        check_initialize(arguments, 4)


def test_an_argument_that_does_nothing_here_says_so() -> None:
    """It is not refused: the same line works on a GPU."""
    (note,) = check_initialize({"local_device_ids": [0], "initialization_timeout": 60, "num_processes": 4}, 4)
    assert note.startswith("local_device_ids does nothing on CPU")
