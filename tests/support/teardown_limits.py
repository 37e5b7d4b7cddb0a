"""A time limit for the teardown of a test that has failed.

pytest-timeout stops its clock at a test's first failure, for the sake of debuggers. A teardown that then waits for a process that hangs
would wait without end, and a run in a pipeline would be killed before it could print what failed. Here an alarm fails the finalizer that
runs, every two minutes, so that the others run too. If that does not help, because the process is stuck in C code, the tracebacks of all
threads are printed and the process ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

_STDERR = os.dup(2)  # pytest replaces descriptor 2 during a test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that has the limit."""
    parser.addini("teardown_timeout", "seconds after which a finalizer of a failed test fails", default="120")


def _fail(number: int, frame: FrameType | None) -> None:
    pytest.fail("a finalizer of this test, which had failed before, took too long")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Set the limit where pytest-timeout has none any more."""
    limit = float(item.config.getini("teardown_timeout"))
    faulthandler.dump_traceback_later(5 * limit, file=_STDERR, exit=True)
    has_no_limit = signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if has_no_limit:
        signal.signal(signal.SIGALRM, _fail)
        signal.setitimer(signal.ITIMER_REAL, limit, limit)
    try:
        return (yield)
    finally:
        if has_no_limit:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.cancel_dump_traceback_later()
