"""Printed with the policy tests: modules that are worth a second look."""

from __future__ import annotations

import pytest

from tests.support.source import read_package

LONG_LINES = 600


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List modules of more than 600 lines, for information: a long module may have two reasons to change."""
    sizes = sorted(((len(module.text.splitlines()), module.name) for module in read_package()), reverse=True)
    if long := [f"{name} {lines}" for lines, name in sizes if lines > LONG_LINES]:
        terminalreporter.write_line(f"modules of more than {LONG_LINES} lines: {', '.join(long)}")
