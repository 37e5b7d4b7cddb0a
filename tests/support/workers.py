"""How many workers there are, and which runs which tests, with pytest-xdist.

Ranks that wait for each other are busy, so that many clusters at a time take longer than one after the other: tests that start ranks are
in five groups, each in one worker. The tests on bare clusters are two groups of about the same time, because those are most of `make test`;
each has a shared cluster of its own. The tests of made-up machines are two groups, too, and each makes its own machines.
The tests of front ends and of machines sometimes wait, for a page, or for a lost network: `make test-all` has a worker more than there are
processors. All other tests go where there is room.

pytest-xdist has groups of its own for this (`--dist=loadgroup`), but with pytest 9.2 it ignores them (pytest-dev/pytest-xdist#1386).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

RANKS, MORE_RANKS, FRONT_ENDS, MACHINES, MORE_MACHINES = (
    "ranks",
    "more ranks",
    "front ends",
    "machines",
    "more machines",
)
_MOST_WORKERS = 4
_GROUPS = {
    **{f"tests/integration/ranks/test_{letter}": MORE_RANKS for letter in "abcdefgh"},
    **{f"tests/system/hosts/test_{letter}": MORE_MACHINES for letter in "kms"},
    "tests/system/hosts/": MACHINES,
    "tests/integration/notebook/": FRONT_ENDS,
    "tests/system/": FRONT_ENDS,
    "tests/integration/": RANKS,
    "tests/unit/cluster/test_transfer.py": RANKS,
    "tests/unit/rank/requests/test_handlers.py": RANKS,
    "tests/unit/rank/test_jax_private.py": RANKS,
}
"""The group of tests, by the beginning of their path; the first one that fits counts."""


def find_group(nodeid: str) -> str:
    """Return the name of the tests that must run one after the other in one worker: a group, or the file."""
    return next((group for path, group in _GROUPS.items() if nodeid.startswith(path)), nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many workers `-n auto` starts, unless the environment says it."""
    if asked := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(asked)
    runs_test_all: bool = config.option.markexpr.startswith("test_all")
    return min((os.cpu_count() or 1) + runs_test_all, _MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests by group, the largest group first."""
    from xdist.scheduler import LoadScopeScheduling  # not installed where only one worker runs

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_group(nodeid)

    return GroupScheduling(config, log)
