"""The numbers on the page about the environment are those of the code."""

from __future__ import annotations

import re

import pytest

from mhnb import compiler
from mhnb.cluster import journal, options
from mhnb.core import cluster_spec
from mhnb.core.launch.environment import COLLECTIVE_TIMEOUT_S, rank_environment
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.output import results
from mhnb.core.state import host_tracking, interrupt
from mhnb.rank import bootstrap
from mhnb.rank.execution import capture
from mhnb.rank.guard import array_hooks
from mhnb.system import run_dir
from mhnb.transport import addresses
from mhnb.view import mime
from mhnb.view.cell import html, summary
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
HOST_TIMEOUT_S = options.StartOptions().host_timeout_s

TIMES = {
    "limit of a start": options.START_TIMEOUT_S,
    "limit of one ssh login": SshOptions().connect_timeout_s,
    "heartbeat between the notebook and a host": host_tracking.HEARTBEAT_INTERVAL_S,
    "a host that does not answer is lost after": HOST_TIMEOUT_S,
    "a host ends its ranks without the notebook after": HOST_TIMEOUT_S * host_tracking.HOST_TIMEOUT_FACTOR,
    "a detachable cluster (`--keep`) without ranks and without a notebook ends after": HOST_TIMEOUT_S
    * host_tracking.HOST_TIMEOUT_FACTOR,
    "a gap that counts as a suspended notebook": host_tracking._SUSPENDED_S,
    "interrupt: signals begin after": interrupt.INTERRUPT_AGREE_S,
    "interrupt: signals are repeated every": interrupt._SIGNAL_INTERVAL_S,
    "interrupt: connections between ranks are closed after": interrupt.INTERRUPT_DISCONNECT_S,
    "interrupt: ranks are killed after": interrupt.INTERRUPT_KILL_S,
    "a second Ctrl-C counts as one after": interrupt.SECOND_INTERRUPT_AFTER_S,
    "a CPU collective that waits raises after": COLLECTIVE_TIMEOUT_S,
    "JAX's own heartbeat": bootstrap._HEARTBEAT_S,
    "limit of a compilation by `%mhjax plan`": compiler._TIMEOUT_S,
}
LIMITS = {
    "a push that the journal stores": (journal.PUSH_NBYTES, "MiB"),
    "all pushes of a journal": (journal.ALL_PUSHES_NBYTES, "GiB"),
    "journals of ended notebooks that are kept": (journal._RETAINED_JOURNALS, ""),
    "their total size": (journal._RETAINED_NBYTES, "GiB"),
    "run folders with logs that are kept": (run_dir._RETAINED_RUNS, ""),
    "copies in GPU memory that the guard hashes in full": (array_hooks._MOST_FETCHED_NBYTES, "MiB"),
    "text of a cell that is stored as HTML": (html.MAX_CELL_NBYTES, "KiB"),
    "each rank's unmerged text, stored beside it": (html.MAX_VERBATIM_NBYTES, "KiB"),
    "text of one rank that is compared with other ranks": (summary.MAX_COMPARED_NBYTES, "KiB"),
    "a figure or HTML that is stored": (mime.MAX_RICH_NBYTES, "MiB"),
    "displays of one cell": (capture._MAX_DISPLAYS, ""),
    "simulated ranks": (cluster_spec._MAX_RANKS, ""),
    "simulated devices per rank": (cluster_spec._MAX_DEVICES, ""),
    "fake devices of `%mhjax plan`": (compiler.MAX_DEVICES, ""),
    "results that `%mhjax show` can show again": (results.MAX_RESULTS, ""),
}
UNIT_NBYTES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _rows(heading: str) -> dict[str, str]:
    """Return the second column of a section's table by the first."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {row[0].strip(): row[1].strip() for row in rows}


def test_times_are_those_of_the_code() -> None:
    """The table of times has a row for each constant, with its value."""
    assert {name: float(text) for name, text in _rows("Times").items()} == TIMES


def test_limits_are_those_of_the_code() -> None:
    """The table of limits has a row for each constant, with its value."""
    expected = {name: f"{number // UNIT_NBYTES[unit]} {unit}".strip() for name, (number, unit) in LIMITS.items()}
    assert _rows("Limits") == expected


def test_variables_of_ranks_are_listed() -> None:
    """Each variable that a start computes for the ranks is in the table of variables."""
    listed = set(re.findall(r"`(\w+)`", PAGE.partition("## Variables that mhnb sets")[2].partition("\n## ")[0]))
    assert set(rank_environment({}, devices=2, simulated=True)) <= listed


@pytest.mark.parametrize("ports", [addresses._BELOW_EPHEMERAL, addresses._HUB_BLOCKS])
def test_ranges_of_ports_are_those_of_the_code(ports: range) -> None:
    """The table of ports states the first and the last port of each range."""
    assert f"from {ports.start} to {ports.stop - 1}" in PAGE
