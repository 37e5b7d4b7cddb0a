"""Optional parts of the system: a test of a missing part is skipped with the reason, or fails if CI requires the part.

A test is marked with `@pytest.mark.requires_part("browser")`.
`MHNB_REQUIRE=browser,other_python` names the parts whose tests must run and pass: a skip there is a failure, and so is
a run without any test of that part.
This module does not depend on what the tests do with a part.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest

from mhnb.compiler import is_compiler_installed
from tests.support import limited_process, other_python
from tests.system.hosts import hostnet, mpi, slurm

__all__ = [
    "PARTS",
    "chromium",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "required_parts",
]

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_CHROMIUM_APPS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def chromium() -> str | None:
    """Find the system's Chromium; `MHNB_CHROMIUM` names another one."""
    if named := os.environ.get("MHNB_CHROMIUM"):
        return named
    found = [path for name in _CHROMIUM if (path := shutil.which(name))]
    return next(iter([*found, *(app for app in _CHROMIUM_APPS if Path(app).exists())]), None)


def _browser_absent() -> str | None:
    for module in ("playwright", "jupyterlab"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return None if chromium() else "no Chromium on PATH (or name it in MHNB_CHROMIUM)"


def _compilers_absent() -> str | None:
    missing = [platform for platform in ("tpu", "cuda") if not is_compiler_installed(platform)]
    return (
        f"no compiler for {' and '.join(missing)}; mhnb.compiler.format_install_line installs it" if missing else None
    )


def _flax_absent() -> str | None:
    return None if importlib.util.find_spec("flax") else "flax is not installed"


def _other_python_absent() -> str | None:
    return other_python.why_absent()


def _hosts_absent() -> str | None:
    return hostnet.why_absent()


def _namespaces_absent() -> str | None:
    return limited_process.why_absent()


def _slurm_absent() -> str | None:
    return hostnet.why_absent() or slurm.why_absent()


def _mpi_absent() -> str | None:
    return mpi.why_absent()


def _mpich_absent() -> str | None:
    return mpi.why_absent() or (None if mpi.find_mpich() else "no MPICH; name its mpiexec in MHNB_MPICH")


PARTS: dict[str, Callable[[], str | None]] = {
    "browser": _browser_absent,
    "compilers": _compilers_absent,
    "flax": _flax_absent,
    "hosts": _hosts_absent,
    "mpi": _mpi_absent,
    "mpich": _mpich_absent,
    "namespaces": _namespaces_absent,
    "other_python": _other_python_absent,
    "slurm": _slurm_absent,
}
"""Name -> a function that returns the reason why the part is missing, or None if it is available."""

_PASSED = pytest.StashKey[set[str]]()


def required_parts(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Parse `MHNB_REQUIRE`."""
    return frozenset(name.strip() for name in environ.get("MHNB_REQUIRE", "").split(",") if name.strip())


def _parts_of(item: pytest.Item) -> list[str]:
    return [str(mark.args[0]) for mark in item.iter_markers("requires_part")]


def pytest_configure(config: pytest.Config) -> None:
    """Raise if MHNB_REQUIRE names an unknown part, because it would require nothing."""
    config.addinivalue_line("markers", "requires_part(name): needs a part of the system that may be absent")
    config.stash[_PASSED] = set()
    if unknown := required_parts() - set(PARTS):
        raise pytest.UsageError(f"MHNB_REQUIRE names unknown parts {sorted(unknown)}; known are {sorted(PARTS)}")
    config.pluginmanager.register(_PassedParts(config.stash[_PASSED]), "mhnb-passed-parts")


class _PassedParts:
    """Records the parts of which a test passed, in the main process even if workers ran it."""

    def __init__(self, passed: set[str]) -> None:
        self._passed = passed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.update(str(value) for name, value in report.user_properties if name == "part")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose part is missing, with the reason."""
    for name in _parts_of(item):
        item.user_properties.append(("part", name))
        if reason := PARTS[name]():
            pytest.skip(f"{name}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure if the part is required, whatever caused the skip."""
    report = yield
    missed = required_parts().intersection(_parts_of(item))
    if report.skipped and missed and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"MHNB_REQUIRE names {', '.join(sorted(missed))}, so this must not be skipped: {reason}"
    return report


def _parts_without_passed_test(config: pytest.Config) -> list[str]:
    passed = config.stash[_PASSED]
    return sorted(required_parts() - passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which no test of a required part passed."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and _parts_without_passed_test(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report each required part without a passed test."""
    for name in _parts_without_passed_test(config):
        terminalreporter.write_line(f"ERROR MHNB_REQUIRE names {name}, and no test of it passed", red=True)
