"""A kernel driven as JupyterLab drives it: Tab and Shift-Tab, the stop button, kill -9 during a cell, and a restart."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ranks.conftest import wait_for_exit
from tests.support.front_end import FrontEnd, message_text
from tests.support.leftovers import processes_of

ENDLESS_CELL = "%%mhjax\nprint('in the cell', flush=True)\nimport time\nwhile True: time.sleep(0.01)"


@pytest.fixture(scope="module")
def front(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    """A kernel with a cluster of 2 x 2 and a few names on either side. Both have ended before the next module starts."""
    before = {process.pid for process in processes_of(mhnb_home)}
    front = FrontEnd()
    # See `one_shell` in conftest.py.
    front.run(f"import jedi; jedi.settings.cache_directory = {str(tmp_path_factory.mktemp('jedi'))!r}")
    front.run("%load_ext mhnb\n%mhjax start -n 2 --devices 2")
    # A loaded machine may need longer for an answer than a user should wait.
    front.run("import mhnb.magics.completion; mhnb.magics.completion._ANSWER_TIMEOUT_S = 30.0")
    front.run("%%mhjax\nimport jax.numpy as jnp\nrank_array, both = jnp.zeros((2, 3)), 'of the ranks'")
    front.run("both, alone_here = 1.5, 2")
    yield front
    pids = [process.pid for process in processes_of(mhnb_home) if process.pid not in before]
    front.close()
    assert wait_for_exit(pids) == []


@pytest.fixture
def auto(front: FrontEnd) -> Iterator[FrontEnd]:
    """The same kernel with auto mode on."""
    front.run("%mhjax auto on")
    yield front
    front.run("%mhjax auto off")


def test_tab_completes_magics_and_names(front: FrontEnd) -> None:
    """Tab completes flags, choices, commands, and names and attributes of the ranks, as JupyterLab inserts them."""
    assert front.complete("%%mhjax --gu") == ["%%mhjax --guard"]
    assert front.complete("%%mhjax --view t") == ["%%mhjax --view tabs"]
    assert front.complete("%mhjax sta") == ["%mhjax start", "%mhjax status"]
    assert front.complete("%mhjax start --dev") == ["%mhjax start --devices"]
    assert front.complete("%%mhjax\nrank_") == ["%%mhjax\nrank_array"]
    assert front.complete("%%mhjax\nrank_array.resh") == ["%%mhjax\nrank_array.reshape"]
    assert front.complete("alone_") == ["alone_here"]


def test_tab_in_auto_mode(auto: FrontEnd) -> None:
    """In auto mode a plain cell completes the names of the ranks."""
    assert auto.complete("rank_") == ["rank_array"]
    assert auto.complete("x = rank_array.resh") == ["x = rank_array.reshape"]
    assert auto.complete("%%local\nalone_") == ["%%local\nalone_here"]


def test_shift_tab_describes_rank_value(front: FrontEnd) -> None:
    """Shift-Tab finds a name that only the ranks have; an array is described without reading its values."""
    assert "f32[2,3]" in front.inspect("rank_array", 10)
    assert front.inspect("nobody_has_this", 4) == ""


def test_shift_tab_depends_on_the_cell(front: FrontEnd) -> None:
    """For a name of both sides Shift-Tab describes the notebook's in a plain cell, and the ranks' in a `%%mhjax` cell."""
    assert "float" in front.inspect("both", 4)
    assert "of the ranks" in front.inspect("%%mhjax\nboth", 12)
    front.run("%%mhjax --ranks 1\nhere = 'of rank 1 alone'")
    assert "On rank 1\n" in front.inspect("%%mhjax --ranks 1\nhere", 22)
    assert "of rank 1 alone" in front.inspect("%%mhjax --ranks 1\nhere", 22)
    assert front.inspect("%%mhjax\nhere", 12).startswith("On rank 1; not on rank 0\n")
    assert front.inspect("# text\n%%mhjax --ranks 1\nhere", 29).startswith("On rank 1\n")


def test_shift_tab_in_auto_mode(auto: FrontEnd) -> None:
    """In auto mode Shift-Tab describes the ranks' value in a plain cell, and the notebook's in a `%%local` cell."""
    assert "of the ranks" in auto.inspect("both", 4)
    assert "float" in auto.inspect("%%local\nboth", 12)


def test_question_mark_opens_the_pager(front: FrontEnd) -> None:
    """`name?` sends a rank's description to the front end's pager."""
    reply, _ = front.run("rank_array?")
    (payload,) = reply["payload"]
    assert payload["source"] == "page"
    assert "f32[2,3]" in payload["data"]["text/plain"]


def test_plain_cell_with_jax_gets_a_quiet_line(front: FrontEnd) -> None:
    """The line about the notebook's own JAX is one display below the cell, with a form for each kind of front end."""
    messages: list[Any] = []
    front.client.execute_interactive("import jax; jax.devices()", timeout=60, output_hook=messages.append)
    (shown,) = [m["content"]["data"] for m in messages if m["msg_type"] == "display_data"]
    assert "the notebook's own JAX" in shown["text/plain"]
    assert "opacity" in shown["text/html"]
    assert set(shown) == {"text/html", "text/plain"}


def test_plain_cell_gets_hint_for_rank_name(front: FrontEnd) -> None:
    """The front end receives the NameError as the cell's error, and a hint that names `%mhjax pull`."""
    reply, shown = front.run("rank_array")
    assert (reply["status"], reply["ename"]) == ("error", "NameError")
    assert "%mhjax pull rank_array" in shown


def test_stop_button_interrupts_ranks(front: FrontEnd) -> None:
    """An interrupt of the kernel interrupts the ranks: the cell ends, and the next one runs."""
    sent = front.begin(ENDLESS_CELL, until="in the cell")
    front.interrupt()
    while (reply := front.client.get_shell_msg(timeout=100))["parent_header"]["msg_id"] != sent:
        pass
    assert reply["content"]["ename"] == "CellInterrupted"
    assert "clean" in front.run("%mhjax status")[1]
    assert "  3" in front.run("%%mhjax\n1 + 2")[1]


WAITS_FOR_RANK_1 = """%%mhjax --guard parity
import os, time
from jax.experimental import multihost_utils
if jax.process_index() == 1:
    while not os.path.exists({flag!r}): time.sleep(0.2)
multihost_utils.sync_global_devices("here")"""


def test_hang_report_is_shown_while_cell_blocks(front: FrontEnd, tmp_path: Path) -> None:
    """While a cell blocks, the live view shows which ranks wait and which are absent; the stored output has no hang report."""
    front.run("%%mhjax\nimport jax")
    flag = tmp_path / "go"
    sent = front.begin(WAITS_FOR_RANK_1.format(flag=str(flag)), until="rank 0 in sync_global_devices, line 6:")
    flag.touch()
    replaced = ""
    while (message := front.client.get_iopub_msg(timeout=60))["content"].get("execution_state") != "idle":
        if message["msg_type"] == "update_display_data":
            replaced = str(message["content"]["data"])
    assert "absent" not in replaced
    while (reply := front.client.get_shell_msg(timeout=100))["parent_header"]["msg_id"] != sent:
        pass
    assert reply["content"]["status"] == "ok"


def test_buttons_work_while_the_cell_blocks(front: FrontEnd) -> None:
    """A click that arrives through a subshell, as from JupyterLab, takes effect while the main thread runs the cell."""
    sent = str(front.client.execute("%%mhjax\nimport time\nwhile True: time.sleep(0.01)"))
    widget = ""
    while not widget:
        message = front.client.get_iopub_msg(timeout=60)
        state = message["content"].get("data", {}).get("state", {}) if message["msg_type"] == "comm_open" else {}
        widget = message["content"]["comm_id"] if state.get("mode") == "live" else ""
    front.click(widget, "where")
    end = time.monotonic() + 100
    while "line 3:  while True: time.sleep(0.01)" not in str(front.client.get_iopub_msg(timeout=30)["content"]):
        assert time.monotonic() < end, "no card after the click"
    front.click(widget, "interrupt")
    while (reply := front.client.get_shell_msg(timeout=100))["parent_header"]["msg_id"] != sent:
        pass
    assert reply["content"]["ename"] == "CellInterrupted"
    answer, shown = front.run("%%mhjax\n1 + 2")
    assert "  3" in shown, answer


def test_subshell_follows_the_cell_that_runs(front: FrontEnd) -> None:
    """`%mhjax show` shows it, and a cell that waits for it says so, until its turn."""
    front.begin(ENDLESS_CELL, "in the cell")
    subshell_id = front.create_subshell()
    panel = front.begin_in(subshell_id, "%mhjax show")
    front.wait_for_display(panel, "in the cell")
    waiting = front.begin_in(subshell_id, "%%mhjax\nprint('its turn')")
    front.wait_for_display(waiting, "waiting for ")
    front.interrupt()
    front.wait_for_display(waiting, "")
    front.wait_for_display(waiting, "its turn")
    while front.client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != waiting:
        continue
    assert front.run("%mhjax show off")[0]["status"] == "ok"


@pytest.fixture
def own_front(leftovers: None) -> Iterator[FrontEnd]:
    """A kernel for a single test."""
    front = FrontEnd()
    yield front
    front.close()


def _start_endless_cell(front: FrontEnd, home: Any) -> list[int]:
    """Start a cluster and a cell that does not end; return the ids of all processes of the cluster."""
    before = {process.pid for process in processes_of(home)} | {front.pid}
    _, shown = front.run("%load_ext mhnb\n%mhjax start -n 2 --devices 1")
    assert "ready in" in shown
    front.begin(ENDLESS_CELL, until="in the cell")
    return [process.pid for process in processes_of(home) if process.pid not in before]


@pytest.mark.test_all
def test_kernel_end_during_cell_ends_its_cluster(own_front: FrontEnd, mhnb_home: Any) -> None:
    """After kill -9 or a kernel restart all processes of the cluster end within 10 s, and the next kernel can start one."""
    pids = _start_endless_cell(own_front, mhnb_home)
    assert len(pids) >= 4  # the supervisor, the hub, which has a helper, and two ranks
    own_front.kill()
    assert wait_for_exit(pids) == []
    own_front.restart()
    pids = _start_endless_cell(own_front, mhnb_home)
    own_front.manager.restart_kernel(now=True)
    assert wait_for_exit(pids) == []
    own_front.client.wait_for_ready(timeout=60)
    assert own_front.run("print('as new')")[1] == "as new\n"


def test_long_transfers_update_one_line(front: FrontEnd) -> None:
    """A push and a pull that last have one display each, with the bytes first and the outcome at the end."""
    front.run("import mhnb.view.progress, numpy; mhnb.view.progress._FIRST_TRANSFER_LINE_S = 0.0")
    front.run("carried = numpy.ones(2**22)")
    for command, task, outcome in (
        ("push", "pushing carried to ranks 0-1", "carried · float64[4194304], 32.0 MiB · on ranks 0-1"),
        ("pull", "pulling carried", "carried · float64[4194304], 32.0 MiB"),
    ):
        messages: list[Any] = []
        front.client.execute_interactive(f"%mhjax {command} carried", timeout=60, output_hook=messages.append)
        messages = [message for message in messages if message["msg_type"] not in ("status", "execute_input")]
        texts = [message_text(message) for message in messages]
        assert texts[0].startswith(f"mhjax · {task} · "), texts
        assert texts[-1] == outcome
        assert [m["msg_type"] for m in messages] == ["display_data", *["update_display_data"] * (len(messages) - 1)]
        assert len({m["content"]["transient"]["display_id"] for m in messages}) == 1
    # With the usual half second this one would last, too, on a slow machine.
    front.run("mhnb.view.progress._FIRST_TRANSFER_LINE_S = 600.0")
    assert front.run("%mhjax pull carried")[1] == "carried · float64[4194304], 32.0 MiB\n"
    front.run("mhnb.view.progress._FIRST_TRANSFER_LINE_S = 0.5")


def test_replay_updates_one_line(own_front: FrontEnd) -> None:
    """In a front end that can replace outputs, a replay uses one display from its first cell to its result."""
    own_front.run("%load_ext mhnb\n%mhjax start -n 2 --devices 1")
    for source in ("x = 1", "x += 1"):
        own_front.run(f"%%mhjax\n{source}")
    messages: list[Any] = []
    own_front.client.execute_interactive("%mhjax restart --replay", timeout=60, output_hook=messages.append)
    line = [m for m in messages if "mhjax · repla" in message_text(m)]
    assert [m["msg_type"] for m in line] == ["display_data", "update_display_data", "update_display_data"]
    assert len({m["content"]["transient"]["display_id"] for m in line}) == 1
    first, last = (int(each) for each in re.findall(r"In \[(\d+)\]", message_text(line[0])))
    assert last == first + 1
    # On a slow machine the time is in the line too.
    assert message_text(line[0]).startswith(f"mhjax · replaying In [{first}] of In [{last}]")
    assert message_text(line[1]).startswith(f"mhjax · replaying In [{last}] of In [{last}]")
    assert message_text(line[2]).startswith(f"mhjax · replayed In [{first}-{last}] · ")


def test_kept_panel_is_beside_stored_output(front: FrontEnd) -> None:
    """Until `--panel close`, `--panel keep` leaves a widget with a text for later, and the stored output in another display."""
    front.run("%mhjax start -n 2 --devices 2 --panel keep")
    kept, _ = _displays(front, "%%mhjax\nprint('kept')")
    assert kept == [{"text/html", "text/plain"}, {"text/html", "text/plain"}, {_WIDGET, "text/plain"}]
    front.run("%mhjax start -n 2 --devices 2")
    assert _displays(front, "%%mhjax\nprint('kept')")[0] == kept, "what is not named stays"
    front.run("%mhjax start -n 2 --devices 2 --panel close")
    assert _displays(front, "%%mhjax\nprint('not kept')")[0] == [{"text/html", "text/plain"}]


def test_panel_sends_requested_outputs(front: FrontEnd) -> None:
    """When the user selects a rank, the browser requests its outputs from the panel and receives them as HTML."""
    front.run("%%mhjax\nprint('said by', 'ab'[jax.process_index()] if 'jax' in globals() else 'nobody')")
    shown, opened = _displays(front, "%mhjax show")
    assert shown == [{"text/html", "text/plain"}, {_WIDGET, "text/plain"}]
    (comm_id,) = [m["content"]["comm_id"] for m in opened if m["content"]["data"]["state"].get("mode") == "panel"]
    front.client.shell_channel.send(
        front.client.session.msg(
            "comm_msg", {"comm_id": comm_id, "data": {"method": "custom", "content": {"ask": [1]}}}
        )
    )
    while "bodies" not in str((message := front.client.get_iopub_msg(timeout=60))["content"]):
        pass
    assert "said by" in message["content"]["data"]["content"]["bodies"]["1"]
    front.run("%mhjax show off")


_WIDGET = "application/vnd.jupyter.widget-view+json"


def _displays(front: FrontEnd, code: str) -> tuple[list[set[str]], list[Any]]:
    """Return the MIME types of each display of a cell, and the comms that the cell opened."""
    messages: list[Any] = []
    front.client.execute_interactive(code, timeout=60, output_hook=messages.append)
    displays: dict[str, set[str]] = {}
    for message in messages:
        # The stored output replaces the live view of a cell that took a moment.
        if message["msg_type"] in ("display_data", "update_display_data"):
            content = message["content"]
            displays[content["transient"]["display_id"]] = set(content["data"])
    return list(displays.values()), [m for m in messages if m["msg_type"] == "comm_open"]
