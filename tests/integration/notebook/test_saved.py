"""A notebook run by nbclient with a real kernel: the messages while cells run, and the content of the saved file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.leftovers import processes_of, wait_for_end
from tests.support.view_samples import StrictPage
from tests.unit.view.live.test_kernel import WIDGET, RecordingClient

START = "%load_ext mhnb\n%mhjax start -n 2 --devices 2"
VALUE = "%%mhjax\nimport jax, threading, time\nme = jax.process_index()\nf'value {me}'"
FAILS = "%%mhjax\nprint('before')\nif me == 1:\n    raise ValueError('only here')"
LONG = "%%mhjax\nfor step in range(12):\n    print(f'rank {me} step {step}', flush=True)\n    time.sleep(0.1)"
LATE = "%%mhjax\nprint('begun')\ngo = threading.Event()\nthreading.Thread(target=lambda: (go.wait(), print(f'late word {me}'))).start()"
WATCH = """
import threading, mhnb
views = get_ipython().mhnb_assist._session.views
view, shown = views[next(reversed(views))], [threading.Event(), threading.Event()]
def late(result, show=view.show_late):
    show(result)
    for rank in result:
        if "late word" in rank.stdout: shown[rank.rank].set()
view.show_late = late
"""
SHOW_LATE_OUTPUT = "mhnb.current().run('go.set()').check()\nassert all(event.wait(30) for event in shown)"
"""One cell, because nbclient drops messages that arrive between two cells."""
SOURCES = (START, VALUE, FAILS, LONG, LATE, WATCH, SHOW_LATE_OUTPUT)


@dataclass(frozen=True, slots=True)
class Run:
    """The outputs and messages of one Run All."""

    cells: dict[str, Any]
    """Cells by source."""
    messages: list[tuple[str, dict[str, Any]]]
    saved: str

    def text(self, source: str) -> str:
        """Return what a cell shows as text."""
        return "".join(_plain(output) for output in self.cells[source].outputs)

    def page(self, source: str) -> str:
        """Return the text of a cell's HTML after every style, script and input is stripped."""
        htmls = [o["data"]["text/html"] for o in self.cells[source].outputs if "text/html" in o.get("data", {})]
        return "".join(StrictPage(html).text for html in htmls)


def _plain(output: Any) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/plain") or "\n".join(output.get("traceback", [])))


def _run_all(client: RecordingClient) -> Run:
    client.recorded = []
    cells: dict[str, Any] = {}
    for index, cell in enumerate(client.nb.cells):
        cells[cell.source] = client.execute_cell(cell, index).copy()
    return Run(cells, client.recorded, nbformat.writes(client.nb))


@pytest.fixture(scope="module")
def runs(own_environment: None, mhnb_home: Any) -> Iterator[tuple[Run, Run]]:
    """Run All twice in one kernel. Afterwards the kernel and every process of the cluster have ended."""
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    cells[SOURCES.index(FAILS)].metadata["tags"] = ["raises-exception"]
    client = RecordingClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3")
    before = {process.pid for process in processes_of(mhnb_home)}
    with client.setup_kernel():
        yield _run_all(client), _run_all(client)
    ended = [process for process in processes_of(mhnb_home) if process.pid not in before]
    assert wait_for_end(ended, 60) == []


@pytest.fixture(params=["first", "second"])
def ran(request: pytest.FixtureRequest, runs: tuple[Run, Run]) -> Run:
    """Either Run All, because the same must hold for both."""
    return runs[request.param == "second"]


def test_start_is_a_summary_then_one_line(runs: tuple[Run, Run]) -> None:
    """The first start shows a summary; the second Run All continues with the same ranks and shows one line."""
    assert runs[0].text(START).startswith("mhjax · 2 ranks × 2 CPU devices on this machine")
    assert runs[1].text(START).splitlines()[-1] == "mhjax · 2 hosts x 2 devices already running (clean)"


def test_every_ranks_value_is_in_the_file(ran: Run) -> None:
    """The file has every rank's value as text and as HTML."""
    assert "value ‹rank›" in ran.text(VALUE)
    assert all(f"value {rank}" in ran.page(VALUE) for rank in range(2))


def test_tagged_error_does_not_stop_run_all(ran: Run) -> None:
    """A cell tagged `raises-exception` stores the ranks' output and one short error, and the next cells run."""
    *_, error = ran.cells[FAILS].outputs
    assert (error["output_type"], error["ename"]) == ("error", "CellFailed")
    assert error["traceback"] == ["CellFailed: ValueError on rank 1; details above"]
    assert "ValueError: only here" in ran.text(FAILS)
    assert "line 4:   raise ValueError('only here')" in ran.text(FAILS)
    assert ran.cells[LONG].execution_count is not None


def test_an_untagged_error_stops_run_all(own_environment: None) -> None:
    """Without the tag no later cell runs, because the magic raises as any cell does."""
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext mhnb", "%%mhjax\n1", "print('went on')")]
    with pytest.raises(CellExecutionError, match="NotStarted: no cluster is running"):
        NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3").execute()
    assert cells[2].outputs == []


_CAUGHT = """
try:
    get_ipython().run_line_magic("mhjax", "statsu")
except Exception as error:
    print(type(error).__name__, str(error).count("Did you mean"))
"""
_OTHER_HANDLER = "get_ipython().set_custom_exc((KeyError,), lambda *_, **__: None)"
_ERRORS = {
    "a misspelt command": ("%mhjax statsu", "UsageError", "unknown command 'statsu'", "  Help: %mhjax help"),
    "a cell that is refused": ("%%mhjax\n1", "NotStarted", "no cluster is running", "  Fix: %mhjax start ("),
    "a call of Python": ("import mhnb\nmhnb.current()", "NotStarted", "no cluster is running", "  Fix: %mhjax start ("),
}


@pytest.fixture(scope="module")
def failed_cells(own_environment: None) -> dict[str, Any]:
    """The outputs of cells that fail without a cluster, by source; at the end another extension handles errors."""
    sources = ["%load_ext mhnb", *(source for source, *_ in _ERRORS.values()), _CAUGHT, _OTHER_HANDLER, "%mhjax stat"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    return {cell.source: cell.outputs for cell in notebook.cells}


@pytest.mark.parametrize("what", _ERRORS)
def test_error_of_mhnb_is_a_card_and_one_line(failed_cells: dict[str, Any], what: str) -> None:
    """The card has the whole text in both forms; the error output has one line, and the message in `evalue`."""
    source, name, first, step = _ERRORS[what]
    card, error = failed_cells[source]
    text = card["data"]["text/plain"]
    assert text.startswith(f"{name}: {first}")
    assert step in text
    words = StrictPage(card["data"]["text/html"]).visible
    assert words.startswith(f"✗ {name}{first}")
    assert step.strip() in words
    assert (error["output_type"], error["ename"]) == ("error", name)
    assert error["traceback"] == [text.partition("\n")[0]]
    assert step in error["evalue"]


def test_caught_error_shows_no_card(failed_cells: dict[str, Any]) -> None:
    """A cell that catches the error shows only its own output, and the message is complete."""
    (printed,) = failed_cells[_CAUGHT]
    assert printed["text"] == "UsageError 1\n"


def test_handler_of_another_extension_costs_only_the_card(failed_cells: dict[str, Any]) -> None:
    """If another extension registers its own handler, IPython prints the whole error."""
    (printed,) = failed_cells["%mhjax stat"]
    assert printed["text"].startswith("UsageError: unknown command 'stat'")
    assert printed["text"].endswith("\n  Help: %mhjax help\n")


def test_long_cell_opens_and_ends_its_widget(ran: Run) -> None:
    """During a long cell a comm opens, receives its steps, and hears of the end; each other opened comm is closed.

    The widget is kept for pages that were loaded while it ran, because the cell had a placeholder.
    """
    opened = {content["comm_id"] for kind, content in ran.messages if kind == "comm_open"}
    closed = {content["comm_id"] for kind, content in ran.messages if kind == "comm_close"}
    updates = [
        (content["comm_id"], content["data"].get("state", {})) for kind, content in ran.messages if kind == "comm_msg"
    ]
    sent = [state.get("block_0", "") for _, state in updates]
    ended = {comm_id for comm_id, state in updates if state.get("runs") is False}
    assert len(ended) == 1
    # Of the kept widget also its layout.
    assert len(opened - closed) == 2
    assert ended <= opened - closed
    # The ranks' pace decides which steps are sent.
    assert any(re.search(r"step \d", html) for html in sent)


def test_no_widget_in_the_file(ran: Run) -> None:
    """The saved notebook has no widget in any cell and no widget state."""
    assert WIDGET not in ran.saved
    assert "widget-state" not in ran.saved
    kinds = {mime for cell in ran.cells.values() for output in cell.outputs for mime in output.get("data", {})}
    assert kinds == {"text/html", "text/plain"}


def test_long_cell_output_is_complete_in_the_file(ran: Run) -> None:
    """The file has every step of every rank, as text and as HTML."""
    for rank in range(2):
        for step in range(12):
            assert f"rank ‹rank› step {step}" in ran.text(LONG)
            assert f"rank {rank} step {step}" in ran.page(LONG)


def test_late_output_is_stored_with_its_cell(runs: tuple[Run, Run]) -> None:
    """Output that a thread prints two cells later is stored in the cell that started the thread, and in no other."""
    last = nbformat.reads(runs[1].saved, as_version=4).cells
    holding = [cell.source for cell in last if "late word" in str(cell.outputs)]
    assert holding == [LATE]
    (output,) = last[SOURCES.index(LATE)].outputs
    assert all(f"late word {rank}" in output["data"]["text/html"] for rank in range(2))
