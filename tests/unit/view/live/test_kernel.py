"""The view in a real kernel: a widget while a cell runs, no widget in the file, late output in the right cell."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from tests.support.lab import wait_until
from tests.support.view_samples import StrictPage

pytestmark = pytest.mark.slow

WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = """
from mhnb.view.live.view import CellView
from tests.support.view_samples import cell, out
running = [cell([out("step %d\\n" % n)], [], done=False, wall_s=0.2 * n) for n in range(1, 4)]
"""
UPDATES = """
view = CellView()
for snapshot in running:
    view.update(snapshot)
view.finish(cell([out("done on rank 0\\n")], [out("done on rank 1\\n")]))
"""
BETWEEN = "1 + 1"
IN_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: view.show_late(cell([out("{text}\\n")], [])))
thread.start()
thread.join()
"""
LOADED_MODULES = "import sys; print([m for m in sys.modules if m == 'jax' or m.startswith('mhnb.cluster.cluster')])"


class RecordingClient(NotebookClient):
    """A client that records every iopub message."""

    recorded: list[tuple[str, dict[str, Any]]]

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Record a message, then process it as usual."""
        self.recorded.append((msg["msg_type"], msg["content"]))
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def executed(own_environment: None) -> RecordingClient:
    """Run a notebook once for this module."""
    cells = [
        nbformat.v4.new_code_cell(source)
        for source in (SETUP, UPDATES, BETWEEN, IN_A_THREAD.format(text="late after all"), LOADED_MODULES)
    ]
    client = RecordingClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3")
    client.recorded = []
    client.execute()
    return client


def test_a_widget_opens_and_closes_while_the_cell_runs(executed: RecordingClient) -> None:
    """Every comm that was opened is closed, and the widget received its updates."""
    opened = {content["comm_id"] for kind, content in executed.recorded if kind == "comm_open"}
    closed = {content["comm_id"] for kind, content in executed.recorded if kind == "comm_close"}
    sent = [content["data"]["state"]["block_0"] for kind, content in executed.recorded if _is_update(kind, content)]
    assert opened
    assert opened == closed
    assert ["step 2" in sent[0], "step 3" in sent[1]] == [True, True]


def _is_update(kind: str, content: dict[str, Any]) -> bool:
    return kind == "comm_msg" and "block_0" in content["data"].get("state", {})


def test_saved_file_has_no_widget(executed: RecordingClient) -> None:
    """The saved notebook contains only HTML and text, and no widget state."""
    assert WIDGET not in nbformat.writes(executed.nb)
    assert [set(output["data"]) for output in executed.nb.cells[1].outputs] == [{"text/html", "text/plain"}]


def test_late_output_finds_its_display(executed: RecordingClient) -> None:
    """A cell that ended two cells ago shows its later output."""
    (output,) = executed.nb.cells[1].outputs
    assert "late after all" in StrictPage(output["data"]["text/html"]).text


def test_late_output_of_a_silent_cell_names_that_cell(own_environment: None) -> None:
    """The new display has the ended cell as its parent, not the running one, and an update finds the display by its id."""
    manager, client = start_new_kernel()
    try:
        _run(client, SETUP)
        ended, _ = _run(client, "view = CellView()\nview.finish(cell([], []))")
        _, first = _run(client, IN_A_THREAD.format(text="late word"))
        _, second = _run(client, IN_A_THREAD.format(text="later word"))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (shown,) = [message for message in first if message["msg_type"] == "display_data"]
    (updated,) = [message for message in second if message["msg_type"] == "update_display_data"]
    assert shown["parent_header"]["msg_id"] == ended
    assert "late word" in shown["content"]["data"]["text/plain"]
    assert "later word" in updated["content"]["data"]["text/plain"]
    assert updated["content"]["transient"] == shown["content"]["transient"]


def test_late_output_between_cells_arrives_with_the_next_cell(own_environment: None, tmp_path: Path) -> None:
    """nbclient receives only messages of the running cell, so earlier late output is sent once more, and then not again."""
    begin, shown = tmp_path / "begin", tmp_path / "shown"
    wait = f"while not os.path.exists({str(begin)!r}): time.sleep(0.01)"
    source = f"""
    import os, threading, time
    view = CellView()
    view.finish(cell([out("early word")], []))
    def come_late():
        {wait}
        view.show_late(cell([out("late word")], []))
        open({str(shown)!r}, "w").close()
    threading.Thread(target=come_late).start()
    """
    manager, client = start_new_kernel()
    try:
        _run(client, SETUP)
        ended, _ = _run(client, textwrap.dedent(source))
        begin.touch()
        wait_until(shown.exists, "it was shown")
        following, first = _run(client, "1")
        _, second = _run(client, "2")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    updates = [message for message in first if message["msg_type"] == "update_display_data"]
    assert [message["parent_header"]["msg_id"] for message in updates] == [ended, following]
    assert all("late word" in message["content"]["data"]["text/plain"] for message in updates)
    assert "update_display_data" not in {message["msg_type"] for message in second}


def _run(client: Any, code: str) -> tuple[str, list[dict[str, Any]]]:
    """Run code, and return its message id and all messages until the kernel was idle."""
    sent = client.execute(code)
    messages = []
    while True:
        messages.append(client.get_iopub_msg(timeout=30))
        last = messages[-1]
        if last["parent_header"].get("msg_id") == sent and last["content"].get("execution_state") == "idle":
            return sent, messages


def test_the_notebook_needs_neither_jax_nor_a_cluster(executed: RecordingClient) -> None:
    """A view needs neither JAX nor a cluster."""
    assert executed.nb.cells[4].outputs[0]["text"] == "[]\n"
