"""`python -m tests.bench.outputs`: what showing output costs: view time, bytes to the browser, bytes in the notebook, memory.

In one run: mhnb, a Tab of Output widgets, `%%px` and jupyter-distributed. Recorded output stands for 64 and 256 ranks; 8 ranks that
flush each line, and 4 that print 100,000 lines, are real. `%%px` and jupyter-distributed have ranks without JAX, which is in their favour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import zmq

from tests.bench.contestants import IPYKERNEL, ROOT, Place
from tests.bench.frontend import CellBroke, FrontEnd, _is_idle
from tests.bench.program import Shape
from tests.parts import chromium

__all__ = ["Counted", "main"]

FLUSHED = "for i in range({lines}):\n    print('rank', {rank}, 'line', i, flush=True)"
LIMITS = {"view_s": 0.5, "browser": 2e6, "notebook": 0.3e6, "flushed": 2e6, "memory": 50e6}


@dataclass(frozen=True, slots=True)
class Counted:
    """What one cell cost."""

    seconds: float
    browser_nbytes: int
    """Of every message to the front end."""
    notebook_nbytes: int
    """Of the saved notebook."""
    html: str
    """What was shown as HTML."""


class CountingFrontEnd(FrontEnd):
    """A front end that counts bytes and keeps outputs as a notebook would."""

    def __init__(self, argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self.nbytes = 0
        self.outputs: list[dict[str, Any]] = []
        self._ids: dict[str, dict[str, Any]] = {}
        super().__init__(argv, directory, env)

    def counted(self, code: str, *, limit_s: float = 300) -> Counted:
        """Run a cell."""
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
        while (left := deadline - time.perf_counter()) > 0:
            if socket.poll(min(left, 1.0) * 1000, zmq.POLLIN):
                # All that is there before any is read: a front end that is slow makes ZeroMQ drop what comes too fast.
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


def _front(place: Place, argv: tuple[str, ...] = IPYKERNEL, **env: str) -> CountingFrontEnd:
    place.directory.mkdir(parents=True, exist_ok=True)
    return CountingFrontEnd(argv, place.directory, place.env(**env))


# -- recorded


def recorded(place: Place, player: str, ranks: int, lines: int, *, numbers: bool = False) -> tuple[float, Counted]:
    """Play recorded output in a kernel; seconds of the view, and the rest."""
    report = place.directory / "report.json"
    front = _front(place)
    try:
        front.cell(f"from tests.bench.recorded import {player}\nimport ipywidgets, anywidget")
        front.cell(f"{player}(1, 20, {str(report)!r})")  # what is loaded once is no cost of each cell
        counted = front.counted(f"{player}({ranks}, {lines}, {str(report)!r}, numbers={numbers})")
    finally:
        front.kill()
    return float(json.loads(report.read_text())["view_s"]), counted


def draw_ms(html: str) -> float | None:
    """How long a browser takes to lay a page out; None where there is no Chromium."""
    path = chromium()
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    draw = "h => { const t = performance.now(); document.body.innerHTML = h; document.body.offsetHeight; return performance.now() - t }"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        took = [float(page.evaluate(draw, html)) for _ in range(3)]
        browser.close()
    return sorted(took)[1]


# -- real ranks


def flushed_mhnb(place: Place, ranks: int, lines: int) -> Counted:
    """8 ranks of mhnb, JAX and all."""
    front = _front(place)
    try:
        front.cell(f"%load_ext mhnb\n%mhjax start -n {ranks} --devices 1", limit_s=240)
        front.cell("%%mhjax\nimport jax\nme = jax.process_index()")
        return front.counted("%%mhjax\n" + FLUSHED.format(lines=lines, rank="me"))
    finally:
        front.kill()


def flushed_px(place: Place, ranks: int, lines: int) -> Counted:
    """Engines of ipyparallel."""
    front = _front(place)
    try:
        start = f"import ipyparallel as ipp\ncluster = ipp.Cluster(n={ranks}, log_level=40)\n"
        front.cell(start + "client = cluster.start_and_connect_sync(activate=True)", limit_s=240)
        front.cell(f"client[:].scatter('rank', range({ranks}), flatten=True, block=True)")
        counted = front.counted("%%px\n" + FLUSHED.format(lines=lines, rank="rank"), limit_s=60)
        front.cell("cluster.stop_cluster_sync()")
        return counted
    finally:
        front.kill()


def flushed_distributed(place: Place, ranks: int, lines: int) -> Counted:
    """jupyter-distributed's kernel."""
    if not (place.peers / "jupyter_distributed").is_dir():
        raise CellBroke(f"jupyter-distributed is not installed in {place.peers}")
    front = _front(
        place,
        (sys.executable, "-m", "jupyter_distributed.kernel"),
        JUPYTER_DISTRIBUTED_BASE_KERNEL="python3",
        JUPYTER_DISTRIBUTED_WORLD_SIZE=str(ranks),
        JUPYTER_DISTRIBUTED_CWD=str(place.directory),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(place.peers)]),
    )
    try:
        front.cell("rank = int(__import__('os').environ['RANK'])", limit_s=240)
        return front.counted(FLUSHED.format(lines=lines, rank="rank"), limit_s=60)
    finally:
        front.kill()


def many_lines(place: Place, ranks: int, lines: int) -> tuple[int, int]:
    """Lines that the log files lack after a cell that prints very many, and bytes by which the notebook's process grew."""
    front = _front(place)
    try:
        front.cell(f"%load_ext mhnb\n%mhjax start -n {ranks} --devices 1", limit_s=240)
        front.cell("%%mhjax\nprint('warm')")
        process = psutil.Process(front.process.pid)
        before = process.memory_info().rss
        front.cell(f"%%mhjax\nfor i in range({lines}): print('line', i, 'of a cell that talks too much')", limit_s=300)
        grown = process.memory_info().rss - before
        logs = list((place.directory / "mhnb_home").rglob("rank*.log"))
        missing = sum(lines - log.read_text(errors="replace").count("of a cell that talks too much") for log in logs)
    finally:
        front.kill()
    return missing + lines * (ranks - len(logs)), grown


# -- the table


def _row(name: str, counted: Counted, extra: str = "") -> str:
    return (
        f"  {name:<34} {counted.seconds:7.2f} s   {counted.browser_nbytes / 1e6:8.3f} MB to the browser   "
        f"{counted.notebook_nbytes / 1e6:7.3f} MB in the notebook{extra}"
    )


def _verdict(what: str, value: float, limit: float, unit: str, scale: float = 1.0) -> str:
    return f"{what}: {value / scale:.3g} {unit} (target {limit / scale:g}): {'met' if value <= limit else 'MISSED'}"


def _attempt(name: str, act: Callable[[int], Counted]) -> str:
    """A peer that never ends the cell, since messages were lost, is asked for a tenth of it."""
    rows: list[str] = []
    for lines in (2000, 200):
        try:
            return "\n".join([*rows, _row(name if lines == 2000 else f"{name}, {lines} lines each", act(lines))])
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
        verdicts = _all(Path(folder), arguments)
    print("\n".join(verdicts))
    return 0


def _all(folder: Path, arguments: argparse.Namespace) -> list[str]:
    def place(name: str, ranks: int) -> Place:
        return Place(Shape(ranks, 1), folder / name, arguments.peers.resolve())

    print("64 ranks x 1,000 lines, recorded")
    view_s, own = recorded(place("own", 64), "play_mhnb", 64, 1000)
    print(_row("mhnb, own numbers", own, f"   {view_s:.3f} s of view"))
    numbers_s, numbers = recorded(place("numbers", 64), "play_mhnb", 64, 1000, numbers=True)
    print(_row("mhnb, a loss each", numbers, f"   {numbers_s:.3f} s of view"))
    drawn_ms = draw_ms(numbers.html)
    print(
        "  no Chromium: not drawn" if drawn_ms is None else f"  its page is laid out in {drawn_ms:.0f} ms (target 100)"
    )
    tab_s, tab = recorded(place("tab", 64), "play_tab", 64, 1000)
    print(_row("Tab of Output widgets", tab, f"   {tab_s:.3f} s of view; nothing of it is in the notebook"))
    print("256 ranks x 200 lines, recorded")
    many_s, many = recorded(place("many", 256), "play_mhnb", 256, 200)
    print(_row("mhnb, own numbers", many, f"   {many_s:.3f} s of view"))
    print("8 ranks x 2,000 flushed lines, real")
    flushed = flushed_mhnb(place("mhnb8", 8), 8, 2000)
    print(_row("mhnb", flushed))
    print(_attempt("%%px", lambda n: flushed_px(place(f"px{n}", 8), 8, n)))
    print(_attempt("jupyter-distributed", lambda n: flushed_distributed(place(f"jd{n}", 8), 8, n)))
    missing, grown = many_lines(place("long", 4), 4, arguments.lines)
    lost = f"{missing} lines missing in the logs, {grown / 1e6:.1f} MB more in the notebook's process"
    print(f"4 ranks x {arguments.lines:,} lines, real: {lost}")
    return [
        _verdict("64 x 1,000, view", max(view_s, numbers_s), LIMITS["view_s"], "s"),
        _verdict("64 x 1,000, browser", max(own.browser_nbytes, numbers.browser_nbytes), LIMITS["browser"], "MB", 1e6),
        _verdict(
            "64 x 1,000, notebook", max(own.notebook_nbytes, numbers.notebook_nbytes), LIMITS["notebook"], "MB", 1e6
        ),
        _verdict("8 x 2,000 flushed, browser", flushed.browser_nbytes, LIMITS["flushed"], "MB", 1e6),
        _verdict("4 x 100,000, memory", grown, LIMITS["memory"], "MB", 1e6),
        f"4 x 100,000, lines lost in the logs: {missing}: {'met' if missing == 0 else 'MISSED'}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
