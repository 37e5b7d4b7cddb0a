"""Tests with many cases, of which `make test` runs a sample: `@pytest.mark.sample(8)`. `make soak` runs the others.

The cases of one test check one rule. The whole suite must end within its limit also on a machine that is three times as slow as usual.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that are not in the sample of their test with `soak`."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        # Sorted, because plugins may have changed the order.
        ordered = sorted(found, key=lambda item: item.nodeid)
        mark = ordered[0].get_closest_marker("sample")
        assert mark is not None
        for item in set(ordered) - set(choose_sample(ordered, *mark.args)):
            item.add_marker(pytest.mark.soak)


def choose_sample(cases: Sequence[Case], count: int) -> list[Case]:
    """Return so many of the cases, evenly spread.

    >>> choose_sample("abcdefgh", 3), choose_sample("ab", 3)
    (['a', 'c', 'f'], ['a', 'b'])
    """
    count = min(count, len(cases))
    return [cases[at * len(cases) // count] for at in range(count)]
