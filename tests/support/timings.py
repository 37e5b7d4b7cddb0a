"""Where the time of the suite goes: `make timings` runs it with `--timings=FILE`, and prints the table.

Each worker adds a line per test to FILE: the seconds of its setup, call and teardown, its processor time, its fixtures, and the
kinds of cost that are known here (a start of a cluster, a cell, a page of the browser, a subprocess). A kind has the time that its
function took in the main thread, less the time of other kinds inside it.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

__all__ = ["format_table"]

_KINDS = {
    "cluster: start": "mhnb.cluster.cluster:Cluster.wait_ready",
    "cluster: stop": "mhnb.cluster.cluster:Cluster.stop",
    "cluster: cell": "mhnb.cluster.cluster:Cluster._run_cell",
    "cluster: request": "mhnb.cluster.cluster:Cluster.pull_values mhnb.cluster.cluster:Cluster.push_values",
    "subprocess": "subprocess:Popen.communicate subprocess:Popen.wait",
    "browser: start": "playwright.sync_api:BrowserType.launch",
    "browser: page": "playwright.sync_api:Browser.new_page playwright.sync_api:Page.goto",
}
"""The functions that count for each kind, as `module:name`. A module that is not installed is left out."""


class Recorder:
    """Adds up the kinds of cost of the test that runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: list[float] = []
        self._inner: list[float] = []
        self._reset()

    def _reset(self) -> None:
        self.fixtures: defaultdict[str, float] = defaultdict(float)
        self.kinds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self.phases: dict[str, float] = {}
        self._processor_s = time.process_time()

    def add(self, kind: str, function: Callable[[], Any]) -> Any:
        """Call a function, and add its own time to a kind of cost."""
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            return function()
        finally:
            passed = time.perf_counter() - began
            own = passed - self._inner.pop()
            if self._inner:
                self._inner[-1] += passed
            self.kinds[kind][0] += own
            self.kinds[kind][1] += 1

    def write(self, nodeid: str, *, hypothesis: bool) -> None:
        """Add the line of a test, and begin anew."""
        if hypothesis:
            self.kinds["hypothesis"] = [self.phases.get("call", 0.0), 1]
        line = {
            "test": nodeid,
            **{phase: round(seconds, 4) for phase, seconds in self.phases.items()},
            "processor": round(time.process_time() - self._processor_s, 4),
            "fixtures": {name: round(seconds, 4) for name, seconds in self.fixtures.items() if seconds > 0.005},
            "kinds": {name: [round(seconds, 4), count] for name, (seconds, count) in self.kinds.items()},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._reset()


class _Plugin:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """Add the time of a fixture's setup."""
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._recorder.fixtures[fixturedef.argname] += time.perf_counter() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Add the time of a phase; the last one ends the test."""
        self._recorder.phases[call.when] = call.duration
        if call.when == "teardown":
            function = getattr(item, "function", None)
            self._recorder.write(item.nodeid, hypothesis=hasattr(function, "is_hypothesis_test"))
        return (yield)


def _measure(recorder: Recorder, kind: str, place: str) -> None:
    module_name, _, path = place.partition(":")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError:
        return
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = getattr(owner, name)
    main = threading.main_thread()
    current = threading.current_thread

    @wraps(function)
    def measured(*arguments: Any, **options: Any) -> Any:
        if current() is not main:
            return function(*arguments, **options)
        return recorder.add(kind, lambda: function(*arguments, **options))

    setattr(owner, name, measured)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --timings."""
    parser.addoption("--timings", default="", help="a file to which the time of each test is added")


def pytest_configure(config: pytest.Config) -> None:
    """Measure, if --timings names a file."""
    if path := config.getoption("--timings"):
        recorder = Recorder(Path(path))
        for kind, places in _KINDS.items():
            for place in places.split():
                _measure(recorder, kind, place)
        config.pluginmanager.register(_Plugin(recorder), "timings of tests")


def format_table(lines: Iterable[str], rows: int = 50) -> str:
    """Add up a report by kind of cost, fixture and file, and name the slowest tests; at most `rows` files and tests."""
    tests = [json.loads(line) for line in lines]
    totals: dict[str, defaultdict[str, list[float]]] = {
        title: defaultdict(lambda: [0, 0.0, 0.0]) for title in ("kind of cost", "fixture", "folder", "file", "test")
    }

    def add(title: str, name: str, count: int, wall: float, processor: float = 0.0) -> None:
        total = totals[title][name]
        for at, value in enumerate((count, wall, processor)):
            total[at] += value

    for test in tests:
        wall = sum(test.get(phase, 0.0) for phase in ("setup", "call", "teardown"))
        name = test["test"]
        file = name.partition("::")[0]
        for title, part in (("folder", "/".join(file.split("/")[:3])), ("file", file), ("test", name)):
            add(title, part, 1, wall, test["processor"])
        for fixture, seconds in test["fixtures"].items():
            add("fixture", fixture, 1, seconds)
        for kind, (seconds, count) in test["kinds"].items():
            add("kind of cost", kind, count, seconds)
    printed = []
    for title, total in totals.items():
        ordered = sorted(total.items(), key=lambda item: -item[1][1])[:rows]
        printed += [f"\n   wall s    proc s   count  {title}"]
        printed += [
            f"{wall:9.1f} {processor:9.1f} {int(count):7}  {name}" for name, (count, wall, processor) in ordered
        ]
    return "\n".join(printed)


if __name__ == "__main__":
    print(format_table(Path(sys.argv[1]).read_text().splitlines(), *map(int, sys.argv[2:])))
