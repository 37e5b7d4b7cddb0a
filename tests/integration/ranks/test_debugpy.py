"""debugpy attached to one rank, as on the page docs/how-to/attach-debugpy.md: the rank stops, and the others wait for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.core.hang_report import HangReport
from mhnb.core.output.results import CellResult
from tests.integration.ranks.hosts import MultiHostCluster
from tests.integration.ranks.test_hang_report import WAIT_S, run_in_thread, wait_for_report
from tests.support.debug_adapter import DebugAdapterClient
from tests.support.leftovers import no_leftovers

HALTED = 2
"""The rank to which the debugger is attached."""
MODULE = """
def scale(value, factor):
    scaled = value * factor
    return scaled + 1
"""
MODULE_LINE = 4
SETUP = """
import sys; sys.path.insert(0, {folder!r})
import jax, jax.numpy as jnp, scaling
from jax.sharding import NamedSharding, PartitionSpec as P
rank, mesh = jax.process_index(), jax.make_mesh((8,), ("x",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
total = jax.jit(jnp.sum)
float(total(x))
"""
LISTEN = """
import debugpy
debugpy.configure(subProcess=False)
debugpy.listen(("127.0.0.1", 0), in_process_debug_adapter={in_process})[1]
"""
CELL = """number = scaling.scale(rank, 10)
float(total(x)) + number
"""
RIGHT = ["29.0", "39.0", "49.0", "59.0"]


@dataclass(frozen=True)
class Listening:
    """A cluster, one rank of which waits for a debugger."""

    cluster: Cluster
    port: int
    module: str
    """The path of the module that the cell calls."""

    @contextmanager
    def attached(self, path: str, line: int) -> Iterator[DebugAdapterClient]:
        """Attach a debugger that stops at a line of a file."""
        with DebugAdapterClient(self.port) as client:
            client.attach({path: [line]})
            yield client


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory, mhnb_home: Path) -> Iterator[Listening]:
    """One cluster for the tests of this file. At its end debugpy's own process must have ended, too."""
    with no_leftovers(mhnb_home), manager.start(4, 2, name="debugpy") as cluster:
        listening = listen(cluster, tmp_path_factory.mktemp("debugpy"))
        # When debugpy 1.8.22 accepts a connection, it sends an event to its oldest one. If that one closes at this moment,
        # debugpy accepts no further connection. So the oldest one stays open.
        with socket.create_connection(("127.0.0.1", listening.port)):
            yield listening


def listen(cluster: Cluster, folder: Path, *, in_process: bool = False) -> Listening:
    """Let one rank listen, with a process of debugpy's own or without one, and write the module to the folder."""
    (folder / "scaling.py").write_text(MODULE)
    cluster.run(SETUP.format(folder=str(folder))).check()
    started = cluster.run(LISTEN.format(in_process=in_process), ranks=[HALTED]).check()
    return Listening(cluster, int(started[HALTED].text or ""), str(folder / "scaling.py"))


def texts(result: CellResult) -> list[str | None]:
    """Return what each rank displayed, of a cell that left the cluster clean."""
    assert (result.check().state, result.notes) == ("clean", ())
    return [rank.text for rank in result]


@pytest.mark.other_python
def test_stops_at_a_breakpoint_in_a_module(listening: Listening) -> None:
    """The rank stops at a breakpoint in a module, where its variables can be read; then every rank has the right result."""
    with listening.attached(listening.module, MODULE_LINE) as client:
        running = run_in_thread(lambda: listening.cluster.run(CELL))
        frame = client.wait_for_stop()[0]
        assert (frame["name"], frame["line"], frame["source"]["path"]) == ("scale", MODULE_LINE, listening.module)
        assert client.evaluate("scaled, factor", frame) == "(20, 10)"
        assert not running.done()
        client.resume()
        assert texts(running.result()) == RIGHT


@pytest.mark.other_python
def test_stops_at_a_breakpoint_in_a_cell(listening: Listening) -> None:
    """The rank stops at a breakpoint in a cell, whose file name is mhnb's number of it; global variables can be read."""
    file = f"<cell {listening.cluster.run('None').seq + 1}>"
    with listening.attached(file, 2) as client:
        running = run_in_thread(lambda: listening.cluster.run(CELL))
        frame = client.wait_for_stop()[0]
        assert (frame["line"], frame["source"]["path"]) == (2, file)
        assert client.evaluate("number, x.shape", frame) == "(21, (8,))"
        client.resume()
        assert texts(running.result()) == RIGHT


@pytest.mark.test_all
def test_hang_report_has_the_line_of_the_stopped_rank(listening: Listening) -> None:
    """While the rank is stopped, the hang report has its line: the thread that reports it still runs."""

    def is_sampled(report: HangReport) -> bool:
        return report.known and report.waiting == (0, 1, 3) and report.lines[HALTED] is not None

    with listening.attached(listening.module, MODULE_LINE) as client:
        running = run_in_thread(lambda: listening.cluster.run(CELL))
        client.wait_for_stop()
        report = wait_for_report(listening.cluster, is_sampled, WAIT_S)
        client.resume()
        assert texts(running.result()) == RIGHT
    assert (report.absent, report.lines[HALTED]) == ((HALTED,), 1)


@pytest.mark.other_python
def test_detaching_continues_the_rank(listening: Listening) -> None:
    """A debugger that detaches continues the stopped rank, and the next cell does not stop."""
    with listening.attached(listening.module, MODULE_LINE) as client:
        running = run_in_thread(lambda: listening.cluster.run(CELL))
        client.wait_for_stop()
    assert texts(running.result()) == RIGHT
    assert texts(listening.cluster.run(CELL)) == RIGHT


@pytest.mark.test_all
def test_launch_from_the_debugger_reaches_other_hosts(leftovers: None, tmp_path: Path) -> None:
    """A launch that is evaluated in the debugger is agreed on with the other hosts: the thread that receives still runs."""
    with MultiHostCluster([[0], [1, 2], [3]], 2, "debugpy-hosts") as cluster:
        # This test is not about that process; without it, there is one less thing that can fail.
        listening = listen(cluster, tmp_path, in_process=True)
        with listening.attached(listening.module, MODULE_LINE) as client:
            cell = f"number = scaling.scale(rank, 10)\nif rank != {HALTED}: float(total(x))\nnumber"
            running = run_in_thread(lambda: cluster.run(cell))
            in_cell = client.wait_for_stop()[1]
            assert client.evaluate("float(total(x))", in_cell) == "28.0"
            client.resume()
            assert texts(running.result()) == ["1", "11", "21", "31"]
