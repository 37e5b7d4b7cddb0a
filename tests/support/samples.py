"""Which tests run when: `make quick`, `make test`, `make test-all` (the mark `test_all`), and `make soak` (the mark `soak`).

What needs several machines, a browser, another Python or minutes is marked `test_all` by its folder, or by the mark `browser`, and what
needs the compilers of TPU and GPU by that part; other tests are marked one by one.
`make quick` leaves out those with the marks `slow` and `ranks`.
Of a test with the mark `sample(8)` eight cases run wherever the test runs, and `make soak` runs the others: the cases of one test check
one rule, and the whole suite must end within its limit also on a machine that is three times as slow as usual.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")

_TEST_ALL = (
    "tests/integration/lessons/",
    "tests/integration/pages/",
    "tests/integration/test_other_python.py",
    "tests/system/",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders with `test_all`, and the cases that are not in the sample of their test with `soak`."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        needs_compilers = pytest.mark.requires_part("compilers").mark in item.iter_markers("requires_part")
        if item.nodeid.startswith(_TEST_ALL) or item.get_closest_marker("browser") is not None or needs_compilers:
            item.add_marker(pytest.mark.test_all)
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
