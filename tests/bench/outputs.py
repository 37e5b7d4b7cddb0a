"""`python -m tests.bench.outputs`: the cost of showing output: view time, bytes to the browser and in the notebook, memory.

One run compares mhnb, a Tab of Output widgets, `%%px` and jupyter-distributed. Recorded output stands in for 64 and 256 ranks,
also in a real JupyterLab, whose longest task is measured. Real ranks: 8 that flush each line, and 4 that print 100,000 lines.
`%%px` and jupyter-distributed have ranks without JAX, which is an advantage for them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import zmq

from tests.bench.contestants import IPYKERNEL, ROOT, Workspace
from tests.bench.frontend import CellBroke, FrontEnd, _is_idle
from tests.bench.inlab import play_in_lab
from tests.bench.program import Shape

__all__ = ["Counted", "main"]

FLUSHED = "for i in range({lines}):\n    print('rank', {rank}, 'line', i, flush=True)"
PACED = FLUSHED.replace("for i", "import time\nfor i") + "\n    time.sleep(0.002)"
"""The same over some seconds, so that the live view is sent as well."""
LIMITS = {
    "view_s": 0.5,
    "browser": 2e6,
    "task_ms": 100.0,
    "notebook": 0.3e6,
    "flushed": 2e6,
    "memory": 50e6,
    "by_group": 2.0,
}
_NUMBERED_LINE = re.compile(rb"line (\d+) of a cell that talks too much")


@dataclass(frozen=True, slots=True)
class Counted:
    """The cost of one cell."""

    seconds: float
    browser_nbytes: int
    """Size of all messages to the front end."""
    notebook_nbytes: int
    """Size of the saved notebook."""
    html: str
    """Output that was shown as HTML."""


class CountingFrontEnd(FrontEnd):
    """A front end that counts bytes and stores outputs as a notebook would."""

    def __init__(self, argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self.nbytes = 0
        self.outputs: list[dict[str, Any]] = []
        self._ids: dict[str, dict[str, Any]] = {}
        super().__init__(argv, directory, env)

    def counted(self, code: str, *, limit_s: float = 300) -> Counted:
        """Run a cell, and return its cost."""
        self.nbytes, self.outputs, self._ids = 0, [], {}
        seconds = self.cell(code, limit_s=limit_s)
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(code, outputs=[_node(o) for o in self.outputs])]
        )
        saved = nbformat.writes(notebook)
        html = "".join(str(o.get("data", {}).get("text/html", "")) for o in self.outputs)
        return Counted(seconds, self.nbytes, len(saved.encode()), html)

    def _idle_seen(self, parents: set[str], deadline: float) -> bool:
        session, socket = self.client.session, self.client.iopub_channel.socket
        while (remaining_s := deadline - time.perf_counter()) > 0:
            if socket.poll(min(remaining_s, 1.0) * 1000, zmq.POLLIN):
                # Receive all waiting messages before decoding any, because ZeroMQ drops messages of a slow front end.
                waiting = [socket.recv_multipart()]
                while socket.poll(0, zmq.POLLIN):
                    waiting.append(socket.recv_multipart())
                messages = [session.deserialize(session.feed_identities(frames)[1]) for frames in waiting]
                self.nbytes += sum(len(frame) for frames in waiting for frame in frames)
                for message in messages:
                    self._take(message)
                if any(_is_idle(message, parents) for message in messages):
                    return True
            elif not self.manager.is_alive():
                return False
        return False

    def _take(self, message: Mapping[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        display_id = content.get("transient", {}).get("display_id")
        if kind == "stream":
            last = self.outputs[-1] if self.outputs else {}
            if last.get("output_type") == "stream" and last["name"] == content["name"]:
                last["text"] += content["text"]
            else:
                self.outputs.append({"output_type": "stream", "name": content["name"], "text": content["text"]})
        elif kind == "update_display_data" and display_id in self._ids:
            self._ids[display_id]["data"] = content["data"]
        elif kind in ("display_data", "execute_result"):
            output = {"output_type": "display_data", "data": content["data"], "metadata": content["metadata"]}
            self.outputs.append(output)
            if display_id:
                self._ids[display_id] = output


def _node(output: dict[str, Any]) -> Any:
    return nbformat.from_dict(output)


def _front(workspace: Workspace, argv: tuple[str, ...] = IPYKERNEL, **env: str) -> CountingFrontEnd:
    workspace.directory.mkdir(parents=True, exist_ok=True)
    return CountingFrontEnd(argv, workspace.directory, workspace.env(**env))


# -- recorded


def play_recorded(workspace: Workspace, player: str, ranks: int, lines: int, *, how: str = "") -> tuple[float, Counted]:
    """Play recorded output in a kernel; return the seconds of the view, and the cell's cost."""
    report = workspace.directory / "report.json"
    front = _front(workspace)
    try:
        front.cell(f"from tests.bench.recorded import {player}\nimport ipywidgets, anywidget")
        front.cell(f"{player}(1, 20, {str(report)!r})")  # what is loaded once is not a cost of each cell
        counted = front.counted(f"{player}({ranks}, {lines}, {str(report)!r}{how})")
    finally:
        front.kill()
    return float(json.loads(report.read_text())["view_s"]), counted


def measure_in_lab() -> tuple[list[str], float | None]:
    """Measure 64 x 1,000 lines in a real page; return the rows, and the longest task in milliseconds with mhnb's view."""
    play = "{}(64, 1000, '/dev/null'{})"
    names = ("as many lines, printed by the kernel", "mhnb, own numbers", "mhnb, a loss each", "Tab of Output widgets")
    found = play_in_lab(
        "from tests.bench.recorded import play_mhnb, play_tab\nimport time, ipywidgets, anywidget\nplay_mhnb(1, 20, '/dev/null')",
        "for i in range(20):\n    print('line', i, flush=True)\n    time.sleep(0.1)",
        play.format("play_mhnb", ""),
        play.format("play_mhnb", ", numbers=True"),
        play.format("play_tab", ""),
    )
    if found is None:
        return ["  no Chromium: the page was not measured"], None
    rows = [
        f"  {name:<38} longest task {page.longest_task_ms:6.0f} ms   {page.nbytes / 1e6:8.3f} MB heard"
        for name, page in zip(names, found, strict=True)
    ]
    return rows, max(page.longest_task_ms for page in found[1:3])


# -- real ranks


def flushed_mhnb(workspace: Workspace, ranks: int, lines: int) -> tuple[Counted, Counted]:
    """Run 8 ranks of mhnb with JAX: first at full speed, then at 2 ms per line."""
    front = _front(workspace)
    try:
        front.cell(f"%load_ext mhnb\n%mhjax start -n {ranks} --devices 1", limit_s=240)
        front.cell("%%mhjax\nimport jax\nme = jax.process_index()")
        fast, paced = (front.counted("%%mhjax\n" + code.format(lines=lines, rank="me")) for code in (FLUSHED, PACED))
        return fast, paced
    finally:
        front.kill()


def flushed_px(workspace: Workspace, ranks: int, lines: int) -> Counted:
    """Run engines of ipyparallel."""
    front = _front(workspace)
    try:
        start = f"import ipyparallel as ipp\ncluster = ipp.Cluster(n={ranks}, log_level=40)\n"
        front.cell(start + "client = cluster.start_and_connect_sync(activate=True)", limit_s=240)
        front.cell(f"client[:].scatter('rank', range({ranks}), flatten=True, block=True)")
        counted = front.counted("%%px\n" + FLUSHED.format(lines=lines, rank="rank"), limit_s=60)
        front.cell("cluster.stop_cluster_sync()")
        return counted
    finally:
        front.kill()


def flushed_distributed(workspace: Workspace, ranks: int, lines: int) -> Counted:
    """Run the kernel of jupyter-distributed."""
    if not (workspace.peers / "jupyter_distributed").is_dir():
        raise CellBroke(f"jupyter-distributed is not installed in {workspace.peers}")
    front = _front(
        workspace,
        (sys.executable, "-m", "jupyter_distributed.kernel"),
        JUPYTER_DISTRIBUTED_BASE_KERNEL="python3",
        JUPYTER_DISTRIBUTED_WORLD_SIZE=str(ranks),
        JUPYTER_DISTRIBUTED_CWD=str(workspace.directory),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(workspace.peers)]),
    )
    try:
        front.cell("rank = int(__import__('os').environ['RANK'])", limit_s=240)
        return front.counted(FLUSHED.format(lines=lines, rank="rank"), limit_s=60)
    finally:
        front.kill()


def many_lines(workspace: Workspace, ranks: int, lines: int) -> tuple[int, int]:
    """Print very many lines; return the number missing in the log files, and the peak memory growth of the notebook's process."""
    front = _front(workspace)
    try:
        front.cell(f"%load_ext mhnb\n%mhjax start -n {ranks} --devices 1", limit_s=240)
        front.cell("%%mhjax\nprint('warm')")
        with _sample_peak(psutil.Process(front.process.pid)) as grown:
            front.cell(
                f"%%mhjax\nfor i in range({lines}): print('line', i, 'of a cell that talks too much')", limit_s=300
            )
        logs = list((workspace.directory / "mhnb_home").rglob("rank*.log"))
        # Each line is counted by its number, so that a duplicate does not hide a missing line.
        missing = sum(lines - len(set(_NUMBERED_LINE.findall(log.read_bytes()))) for log in logs)
    finally:
        front.kill()
    return missing + lines * (ranks - len(logs)), grown[0]


@contextmanager
def _sample_peak(process: psutil.Process) -> Iterator[list[int]]:
    """Sample a process's memory twenty times per second; at the end the list contains the peak growth in bytes."""
    before = process.memory_info().rss
    grown, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            grown[0] = max(grown[0], process.memory_info().rss - before)

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield grown
    finally:
        ended.set()
        sampling.join()
        grown[0] = max(grown[0], process.memory_info().rss - before)


# -- the table


def _row(name: str, counted: Counted, extra: str = "") -> str:
    return (
        f"  {name:<34} {counted.seconds:7.2f} s   {counted.browser_nbytes / 1e6:8.3f} MB to the browser   "
        f"{counted.notebook_nbytes / 1e6:7.3f} MB in the notebook{extra}"
    )


def _verdict(what: str, value: float, limit: float, unit: str, scale: float = 1.0) -> str:
    return f"{what}: {value / scale:.3g} {unit} (target {limit / scale:g}): {'met' if value <= limit else 'MISSED'}"


def _attempt(name: str, measure: Callable[[int], Counted]) -> str:
    """Measure a peer, and retry with a tenth of the lines if it never ends the cell because messages were lost."""
    rows: list[str] = []
    for lines in (2000, 200):
        try:
            return "\n".join([*rows, _row(name if lines == 2000 else f"{name}, {lines} lines each", measure(lines))])
        except CellBroke as error:
            rows.append(f"  {name:<34} not with {lines} lines: {str(error).splitlines()[0][-60:]}")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Print the table and the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outputs", description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / ".bench", help="where requirements.txt is installed")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of each of 4 ranks (default %(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began")
    with tempfile.TemporaryDirectory(prefix="mhnb-outputs-") as folder:
        verdicts = _measure_all(Path(folder), arguments)
    print("\n".join(verdicts))
    return 0


def _measure_all(folder: Path, arguments: argparse.Namespace) -> list[str]:
    def make_workspace(name: str, ranks: int) -> Workspace:
        return Workspace(Shape(ranks, 1), folder / name, arguments.peers.resolve())

    verdicts = _measure_sixty_four_ranks(make_workspace)
    verdicts += _measure_groups(make_workspace)
    print("8 ranks x 2,000 flushed lines, real")
    flushed, paced = flushed_mhnb(make_workspace("mhnb8", 8), 8, 2000)
    print(_row("mhnb", flushed))
    print(_row("mhnb, 2 ms a line", paced))
    print(_attempt("%%px", lambda n: flushed_px(make_workspace(f"px{n}", 8), 8, n)))
    print(_attempt("jupyter-distributed", lambda n: flushed_distributed(make_workspace(f"jd{n}", 8), 8, n)))
    missing, grown = many_lines(make_workspace("long", 4), 4, arguments.lines)
    lost = f"{missing} lines missing in the logs, at most {grown / 1e6:.1f} MB more in the notebook's process"
    print(f"4 ranks x {arguments.lines:,} lines, real: {lost}")
    most = max(flushed.browser_nbytes, paced.browser_nbytes)
    return [
        *verdicts,
        _verdict("8 x 2,000 flushed, browser", most, LIMITS["flushed"], "MB", 1e6),
        _verdict("4 x 100,000, memory", grown, LIMITS["memory"], "MB", 1e6),
        f"4 x 100,000, lines lost in the logs: {missing}: {'met' if missing == 0 else 'MISSED'}",
    ]


def _measure_sixty_four_ranks(make_workspace: Callable[[str, int], Workspace]) -> list[str]:
    print("64 ranks x 1,000 lines, recorded")
    own_s, own = play_recorded(make_workspace("own", 64), "play_mhnb", 64, 1000)
    print(_row("mhnb, own numbers", own, f"   {own_s:.3f} s of view"))
    numbers_s, numbers = play_recorded(make_workspace("numbers", 64), "play_mhnb", 64, 1000, how=", numbers=True")
    print(_row("mhnb, a loss each", numbers, f"   {numbers_s:.3f} s of view"))
    tab_s, tab = play_recorded(make_workspace("tab", 64), "play_tab", 64, 1000)
    print(_row("Tab of Output widgets", tab, f"   {tab_s:.3f} s of view; nothing of it is in the notebook"))
    print("64 ranks x 1,000 lines, recorded, in JupyterLab")
    rows, task_ms = measure_in_lab()
    print("\n".join(rows))
    shown = max(own.browser_nbytes, numbers.browser_nbytes), max(own.notebook_nbytes, numbers.notebook_nbytes)
    return [
        _verdict("64 x 1,000, view", max(own_s, numbers_s), LIMITS["view_s"], "s"),
        _verdict("64 x 1,000, browser", shown[0], LIMITS["browser"], "MB", 1e6),
        "64 x 1,000, longest task: not measured"
        if task_ms is None
        else _verdict("64 x 1,000, longest task", task_ms, LIMITS["task_ms"], "ms"),
        _verdict("64 x 1,000, notebook", shown[1], LIMITS["notebook"], "MB", 1e6),
    ]


def _measure_groups(make_workspace: Callable[[str, int], Workspace]) -> list[str]:
    """Compare 64 and 256 ranks with the same number of groups, and 256 ranks with more groups."""
    print("256 ranks x 200 lines, recorded")
    spent: dict[tuple[int, int], tuple[float, int]] = {}
    for ranks, groups in ((64, 4), (256, 4), (256, 64)):
        at = make_workspace(f"groups{ranks}-{groups}", ranks)
        view_s, counted = play_recorded(at, "play_mhnb", ranks, 200, how=f", groups={groups}")
        spent[ranks, groups] = view_s, counted.notebook_nbytes
        print(_row(f"mhnb, {ranks} ranks in {groups} groups", counted, f"   {view_s:.3f} s of view"))
    own_s, own = play_recorded(make_workspace("many", 256), "play_mhnb", 256, 200)
    print(_row("mhnb, own numbers", own, f"   {own_s:.3f} s of view"))
    (few_s, few), (many_s, many) = spent[64, 4], spent[256, 4]
    return [
        _verdict("256 ranks over 64, 4 groups each, view", many_s / few_s, LIMITS["by_group"], "times"),
        _verdict("256 ranks over 64, 4 groups each, notebook", many / few, LIMITS["by_group"], "times"),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
