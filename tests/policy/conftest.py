"""Printed with the policy tests: modules and words that are worth a second look."""

from __future__ import annotations

import pytest

from tests.policy.words import find_advisory, read_project
from tests.support.source import read_package

LONG_LINES = 600


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List modules of more than 600 lines, and count words that are advised against. Both are for information.

    A long module may have two reasons to change.
    """
    sizes = sorted(((len(module.text.splitlines()), module.name) for module in read_package()), reverse=True)
    if long := [f"{name} {lines}" for lines, name in sizes if lines > LONG_LINES]:
        terminalreporter.write_line(f"modules of more than {LONG_LINES} lines: {', '.join(long)}")
    if count := len(find_advisory(read_project())):
        terminalreporter.write_line(f"words to look over: {count} (python -m tests.policy.words)")
