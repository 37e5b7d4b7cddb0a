"""The table of `docs/tested.md`: which tests stand behind each row, and what passed when they last ran.

With `MHNB_TESTED=FILE` a run adds the outcome of each of its tests, and the versions that it used, to FILE. Several runs share one file, as
`make test` and `make test-all` do; a test that runs again replaces its outcome. `make tested` then writes the table from FILE.
tests/policy/test_tested_page.py compares the rows here with the page and with the tests.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.support import other_python
from tests.support.parts import chromium
from tests.support.source import ROOT
from tests.system.hosts.mpi import find_mpich

__all__ = ["HEADER", "PAGE", "ROWS", "Record", "Row", "main", "write_table"]

PAGE = ROOT / "docs" / "tested.md"
HEADER = "| part | how it was tested | versions | tests that passed |\n|---|---|---|---|\n"
_TABLE = re.compile(re.escape(HEADER) + r"(?:\|.*\n)*")
_VERSION = re.compile(r"\d+(?:\.\d+)+")

Record = dict[str, Any]
"""`versions`: a name -> its version. `tests`: a test's id -> its `outcome`, its `parts`, and how many tests it stands for (`count`)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, and its tests."""

    part: str
    how: str
    tests: str
    """Patterns of ids, or `part:NAME` for the tests that need that part; a pattern with `!` leaves tests out."""
    versions: str = ""
    """Names in the record's versions."""

    def selects(self, test: str, parts: Iterable[str]) -> bool:
        """Return True if a test belongs to this row.

        >>> row = Row("MPI", "", "part:mpi tests/mpi/* !*mpich*")
        >>> row.selects("tests/mpi/test_a.py::test_a", []), row.selects("b", ["mpi"]), row.selects("mpich", ["mpi"])
        (True, True, False)
        """
        names = {f"part:{part}" for part in parts} | {test}
        left_out = [pattern[1:] for pattern in self.tests.split() if pattern.startswith("!")]
        return not _match(names, left_out) and _match(names, self.tests.split())


def _match(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


_HOSTS = "tests/system/hosts/test_"
ROWS = (
    Row("one Python and JAX", "every test of the run", "*", "Python jax ipyparallel IPython"),
    Row(
        "another Python and JAX",
        "the tests that are marked for it, all on one machine",
        "part:other_python",
        "other-Python other-jax",
    ),
    Row(
        "ranks on one machine (`local`)",
        "real processes on simulated hosts",
        "tests/integration/ranks/* tests/integration/notebook/*",
    ),
    Row(
        "ssh",
        "four machines made of network namespaces on one machine, each with its own address, name and sshd",
        " ".join(
            f"{_HOSTS}{name}.py*"
            for name in ("ssh", "start", "doctor", "sync", "kept", "leaks", "security", "flight", "hostnet")
        ),
        "OpenSSH",
    ),
    Row(
        "faults of hosts",
        "on these machines: cable unplugged, power cut, packets lost, ports blocked, disks full",
        f"{_HOSTS}faults.py* {_HOSTS}doctor.py* {_HOSTS}start.py* {_HOSTS}sync.py*",
    ),
    Row("Slurm", "a real Slurm on these machines", "part:slurm", "Slurm"),
    Row("Open MPI", "the real `mpiexec` on these machines", "part:mpi !*mpich*", "Open-MPI"),
    Row("MPICH", "the real `mpiexec`, for a start and for `doctor`", "part:mpich", "MPICH"),
    Row(
        "`ipcluster start`",
        "ipyparallel's own command starts mhnb's ranks from a profile of each kind",
        f"{_HOSTS}ipcluster.py*",
        "ipyparallel",
    ),
    Row(
        "Kubernetes",
        "the real `kubectl` starts ranks, against a made-up server",
        f"{_HOSTS}kubernetes.py*",
    ),
    Row(
        "Google Cloud (TPU VM)",
        "the real `gcloud` starts ranks, against a made-up server",
        f"{_HOSTS}tpu.py*",
    ),
    Row(
        "JupyterLab",
        "a real JupyterLab in Chromium; saved outputs and this site in Chromium alone",
        "part:browser",
        "JupyterLab Chromium",
    ),
    Row(
        "IPython in a terminal",
        "real terminals of the suite",
        "tests/system/terminal/* tests/integration/notebook/test_terminal.py*",
        "IPython",
    ),
    Row(
        "the debugger on the ranks",
        "real ranks, with lines typed in JupyterLab, in kernels and in terminals; not in VS Code",
        "tests/integration/*/test_debugger.py* tests/system/*/test_debugger.py*",
    ),
    Row(
        "debugpy",
        "a client of its protocol, attached to one rank; no editor",
        "tests/integration/ranks/test_debugpy.py*",
        "debugpy",
    ),
    Row("lessons", "their cells, and right and wrong answers to their exercises", "tests/integration/lessons/*"),
    Row(
        "these pages",
        "the cells and commands that can run on one machine, with the outputs shown",
        "tests/integration/pages/*",
    ),
    Row(
        "parts of mhnb alone",
        "functions and classes, most of them without ranks; examples in docstrings; rules for the source",
        "mhnb/* tests/unit/* tests/policy/* tests/support/* tests/bench/* tests/integration/test_other_python.py*",
    ),
)

_PACKAGES = {
    "jax": "jax",
    "ipyparallel": "ipyparallel",
    "IPython": "ipython",
    "JupyterLab": "jupyterlab",
    "debugpy": "debugpy",
}


def _find_versions() -> dict[str, str]:
    """Return the version of each part that is here."""
    found = {"Python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue  # its tests are skipped
    if other_python.why_absent() is None:
        probe = "import sys, jax; print('.'.join(map(str, sys.version_info[:3])), jax.__version__)"
        done = subprocess.run([other_python.interpreter(), "-c", probe], capture_output=True, text=True, check=True)
        found["other-Python"], found["other-jax"] = done.stdout.split()
    commands: dict[str, list[str | None]] = {
        "Chromium": [chromium(), "--version"],
        "MPICH": [find_mpich(), "--version"],
        "Open-MPI": ["mpiexec", "--version"],
        "OpenSSH": ["ssh", "-V"],
        "Slurm": ["slurmctld", "-V"],
    }
    for name, command in commands.items():
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue  # the same
        if number := _VERSION.search(done.stdout + done.stderr):
            found[name] = number[0]
    return found


class _Outcomes:
    """Records the outcome of each test, in the main process even if workers ran it."""

    def __init__(self) -> None:
        self.tests: dict[str, Record] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            properties = report.user_properties
            self.tests[report.nodeid] = {
                "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome,
                "parts": sorted({str(value) for name, value in properties if name == "part"}),
                "count": next((value for name, value in properties if name == "count"), 1),
            }


_OUTCOMES = pytest.StashKey[_Outcomes]()


def pytest_configure(config: pytest.Config) -> None:
    """Record, if MHNB_TESTED names a file."""
    if os.environ.get("MHNB_TESTED") and not hasattr(config, "workerinput"):
        config.stash[_OUTCOMES] = _Outcomes()
        config.pluginmanager.register(config.stash[_OUTCOMES], "mhnb-tested")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add this run to the file."""
    outcomes = session.config.stash.get(_OUTCOMES, None)
    if outcomes is not None and outcomes.tests:
        path = Path(os.environ["MHNB_TESTED"])
        earlier: Record = json.loads(path.read_text()) if path.exists() else {"versions": {}, "tests": {}}
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"versions": earlier["versions"] | _find_versions(), "tests": earlier["tests"] | outcomes.tests}
        path.write_text(json.dumps(record, indent=0, sort_keys=True))


def write_table(page: str, record: Record) -> str:
    """Return the page with the table of a record.

    Raises:
        ValueError: a test of the record failed, or the page has no table.
    """
    if failed := sorted(test for test, done in record["tests"].items() if done["outcome"] == "failed"):
        raise ValueError(f"{len(failed)} tests failed, the first is {failed[0]}. Run them again with MHNB_TESTED set")
    if not _TABLE.search(page):
        raise ValueError(f"{PAGE.name} has no table that begins with {HEADER.splitlines()[0]}")
    lines = [_format_row(row, record) for row in ROWS]
    return _TABLE.sub(lambda _: HEADER + "".join(lines), page)


def _format_row(row: Row, record: Record) -> str:
    passed = [
        int(done["count"])
        for test, done in record["tests"].items()
        if done["outcome"] == "passed" and row.selects(test, done["parts"])
    ]
    versions: Mapping[str, str] = record["versions"] if passed else {}
    shown = [f"{_name(name)} {versions[name]}" for name in row.versions.split() if name in versions]
    return f"| {row.part} | {row.how} | {', '.join(shown)} | {f'{sum(passed):,}' if passed else 'none: it did not run'} |\n"


def _name(key: str) -> str:
    """Return how the page writes the name of a version.

    >>> _name("Open-MPI"), _name("other-jax")
    ('Open MPI', 'jax')
    """
    return key.removeprefix("other-").replace("-", " ")


def main(path: Path) -> int:
    """Write the page from a record; return 1 with the reason if it cannot be written."""
    if not path.exists():
        print(f"no record: set MHNB_TESTED={path} for `make test` and `make test-all`, or run .ci/run")
        return 1
    try:
        page = write_table(PAGE.read_text(encoding="utf-8"), json.loads(path.read_text()))
    except ValueError as error:
        print(error)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    for line in page.splitlines():
        if "did not run" in line:
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
