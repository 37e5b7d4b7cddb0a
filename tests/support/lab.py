"""A private JupyterLab or Jupyter Notebook on loopback and one page of it in Chromium.

It defines how a test acts as the user: open, run, interrupt, restart, save, look.
It does not depend on what is in the notebooks, and uses none of the user's own Jupyter or IPython directories.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mhnb.transport.addresses import find_free_port
from tests.support.leftovers import keep_for_session
from tests.support.parts import chromium
from tests.support.timeouts import write_kernel_timeouts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, WebSocket

__all__ = ["ROOT", "App", "KernelMessage", "Lab", "LabPage", "open_chromium", "shared_server", "wait_until"]

ROOT = Path(__file__).resolve().parents[2]
OWN_DIRS = (
    "IPYTHONDIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
)
SETTINGS: dict[str, dict[str, object]] = {
    # both would use the network
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # otherwise cells that are not visible have no elements
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}
CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
)
TIMEOUT_S = 90.0
App: TypeAlias = Literal["lab", "notebook"]
"""The front end: JupyterLab, or Jupyter Notebook 7. Both have the same commands."""
_READ_STATUS = """path => {
  const shell = jupyterapp.shell;
  const found = [...shell.widgets('main')].find(one => one.context?.path === path);
  if (found && shell.currentWidget !== found) shell.activateById(found.id);
  return found?.context?.sessionContext?.session?.kernel?.status;
}"""
_OPTIONS: dict[App, tuple[str, ...]] = {
    "lab": ("--LabApp.expose_app_in_browser=True", "--LabApp.news_url=", "--LabApp.extension_manager=readonly"),
    "notebook": ("--JupyterNotebookApp.expose_app_in_browser=True",),
}


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """One kernel message that reached the page, in order of arrival."""

    msg_type: str
    parent_id: str
    content: Mapping[str, Any]


def wait_until(condition: Callable[[], object], what: str, *, limit_s: float = TIMEOUT_S) -> None:
    """Poll until the condition is true.

    Raises:
        TimeoutError: the condition was not true within `limit_s`; the text contains `what`.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s} s")
        time.sleep(0.02)


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Open the system's Chromium without a window. Only one at a time, because Playwright's loop does not nest."""
    from playwright.sync_api import sync_playwright  # missing if no browser test can run

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_ARGS))
        try:
            yield browser
        finally:
            browser.close()


class Server:
    """A server of a front end with the tests' interpreter, a token, and its own directories below `root`."""

    def __init__(self, root: Path, app: App, env: Mapping[str, str]) -> None:
        self.root, self.app = root, app
        self.token = secrets.token_hex(16)
        own = {name: str(root / ".own" / name.lower()) for name in OWN_DIRS}
        paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        self.env = {**os.environ, **own, "JUPYTER_PREFER_ENV_PATH": "1", "PYTHONPATH": paths, **env}
        for name, values in SETTINGS.items():
            path = Path(self.env["JUPYTERLAB_SETTINGS_DIR"]) / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        write_kernel_timeouts(Path(self.env["IPYTHONDIR"]))
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.root / ".own" / "lab.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._argv(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True
            )
        try:
            wait_until(self._answers, "the server answers")
        except BaseException:
            self.stop()
            raise

    def _argv(self, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "jupyter", self.app, "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
            *(f"--ServerApp.root_dir={self.root}", "--ServerApp.terminals_enabled=False", *_OPTIONS[self.app]),
        ]

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
        try:
            return self.request("GET", "api/status") is not None
        except (urllib.error.URLError, OSError):
            return False  # not yet

    def request(self, method: str, path: str) -> Any:
        """Send a request, and return what the answer says; None if it says nothing."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/{path}", method=method, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            body = reply.read()
        return json.loads(body) if body else None

    def stop(self) -> None:
        """End it; that also shuts its kernels down."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@cache
def shared_server() -> Server:
    """Return the JupyterLab of this session, because its start takes as long as many a test; tests/system/browser/conftest.py ends it."""
    server = Server(Path(tempfile.mkdtemp(prefix="mhnb-lab-")), "lab", {})
    keep_for_session(server.process.pid)
    return server


class Lab:
    """A folder of notebooks in a front end: in the session's JupyterLab, or in a server of its own if it needs other variables."""

    def __init__(self, root: Path, app: App = "lab", **env: str) -> None:
        self.root, self.app, self._env = root, app, env
        self._prefix = ""

    def __enter__(self) -> Lab:
        self.root.mkdir(parents=True, exist_ok=True)
        if self._is_shared():
            self._server = shared_server()
            self._prefix = f"{secrets.token_hex(4)}/"
            self._link().symlink_to(self.root.resolve())
        else:
            self._server = Server(self.root, self.app, self._env)
        return self

    def _is_shared(self) -> bool:
        return self.app == "lab" and not self._env

    def _link(self) -> Path:
        return self._server.root / self._prefix.rstrip("/")

    @property
    def url(self) -> str:
        """Return the address of the server."""
        return self._server.url

    @property
    def token(self) -> str:
        """Return what the server asks for."""
        return self._server.token

    def find(self, path: str) -> str:
        """Return the server's path of a file below the root."""
        return f"{self._prefix}{path}"

    def __exit__(self, *_: object) -> None:
        if not self._is_shared():
            self._server.stop()
            return
        self._link().unlink()
        for session in self._server.request("GET", "api/sessions"):
            if session["path"].startswith(self._prefix):
                with suppress(urllib.error.HTTPError):  # its kernel has ended meanwhile
                    self._server.request("DELETE", f"api/sessions/{session['id']}")

    @contextmanager
    def page(self, browser: Browser, *, scale: float = 1) -> Iterator[LabPage]:
        """Open one page with its own cookies; `scale` is device pixels per CSS pixel, for pictures."""
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=scale)
        page.set_default_timeout(TIMEOUT_S * 1000)
        try:
            yield LabPage(self, page)
        finally:
            page.close()


class LabPage:
    """JupyterLab in a browser, with one notebook in front."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab = lab
        self.page = page
        self.kernel_messages: list[KernelMessage] = []
        self.sent = 0
        self.pending: set[str] = set()
        self._path = ""
        page.on("websocket", self._listen)

    def _listen(self, channel: WebSocket) -> None:
        channel.on("framesent", self._record_sent)
        channel.on("framereceived", self._record_received)

    def _record_sent(self, frame: bytes | str) -> None:
        if isinstance(frame, bytes):
            header, *_ = _decode(frame)
            if header["msg_type"] == "execute_request":
                self.sent += 1
                self.pending.add(header["msg_id"])

    def _record_received(self, frame: bytes | str) -> None:
        if isinstance(frame, bytes):
            header, parent, content = _decode(frame)
            self.kernel_messages.append(KernelMessage(header["msg_type"], parent.get("msg_id", ""), content))
            if content.get("execution_state") == "idle":
                self.pending.discard(parent.get("msg_id"))

    def _wait_until(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        def holds() -> bool:
            self.page.wait_for_timeout(20)  # Playwright delivers events only inside its own calls
            return condition()

        wait_until(holds, what, limit_s=limit_s)

    def open(self, path: str, *, kernel: bool = True, idle: bool = True) -> None:
        """Open a notebook below the root, in JupyterLab alone in a new workspace.

        Args:
            path: of the notebook.
            kernel: whether it gets its kernel, or a new one; in Jupyter Notebook it always does.
            idle: whether to wait until that kernel is idle; not for one that runs a cell, which the page need only have found.
        """
        is_lab, path = self.lab.app == "lab", self.lab.find(path)
        self.page.goto(f"{self.lab.url}/{'lab' if is_lab else f'notebooks/{path}'}?token={self.lab.token}&reset")
        self.page.wait_for_function("window.jupyterapp !== undefined", timeout=TIMEOUT_S * 1000)
        if is_lab:
            # Before that, JupyterLab may still open its launcher, in front of the notebook.
            self.page.evaluate("async () => { await jupyterapp.restored; return null }")
            preference = {} if kernel else {"shouldStart": False, "canStart": False, "autoStartDefault": False}
            self.command("docmanager:open", path=path, factory="Notebook", kernelPreference=preference)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=TIMEOUT_S * 1000)
        self._path = path
        self.pending.clear()  # the end of a cell may have come while no page listened; the kernel's status tells
        self._read_status()
        if kernel and idle:
            self.wait_idle()
        elif kernel:
            self._wait_until(lambda: self._read_status() is not None, "the page has its kernel", TIMEOUT_S)

    def _read_status(self) -> Any:
        """Return the status of the notebook's kernel, after the notebook was put in front if it was not."""
        return self.page.evaluate(_READ_STATUS, self._path)

    def command(self, name: str, **arguments: object) -> None:
        """Execute a JupyterLab command and wait for its end."""
        code = "async ([n, a]) => { await jupyterapp.started; await jupyterapp.commands.execute(n, a); return null }"
        self.page.evaluate(code, [name, arguments])

    def begin(self, name: str) -> None:
        """Execute a JupyterLab command without waiting."""
        self.page.evaluate("n => { jupyterapp.commands.execute(n) }", name)

    def run_all(self, *, limit_s: float = TIMEOUT_S) -> None:
        """Run every cell and wait until all have ended."""
        self._run("notebook:run-all-cells")
        self.wait_idle(limit_s=limit_s)

    def start_cell(self, index: int) -> None:
        """Run one cell without waiting."""
        self._activate(index)
        self._run("notebook:run-cell")

    def _activate(self, index: int) -> None:
        self.page.evaluate("i => { jupyterapp.shell.currentWidget.content.activeCellIndex = i }", index)

    def _run(self, command: str) -> None:
        before = self.sent
        self.begin(command)
        self._wait_until(lambda: self.sent > before, f"{command} sends a cell", 30)

    def wait_idle(self, *, limit_s: float = TIMEOUT_S) -> None:
        """Wait until the kernel is idle and has ended every cell that was sent.

        The prompts do not show this: after a cell that raises, JupyterLab clears those of the cells that are still to run.
        """
        try:
            self._wait_until(lambda: not self.pending and self._read_status() == "idle", "the kernel is idle", limit_s)
        except TimeoutError as error:
            seen = f"{len(self.pending)} cells are not ended, the kernel is {self._read_status()}"
            dialogs = self.page.locator(".jp-Dialog").all_inner_texts()
            raise TimeoutError(f"{error}; {seen}, dialogs: {dialogs}") from error

    def interrupt(self) -> None:
        """Press the stop button."""
        self.command("notebook:interrupt-kernel")

    def restart(self) -> None:
        """Request a new kernel, confirm it as a user does, and wait until it has started."""
        self.page.evaluate("() => { window.restarted = jupyterapp.commands.execute('notebook:restart-kernel') }")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.page.evaluate("async () => { await window.restarted; return null }")
        self.pending.clear()  # the old kernel does not answer any more

    def save(self) -> None:
        """Save the notebook to its file."""
        self.command("docmanager:save")

    def cell(self, index: int) -> Locator:
        """Locate a cell of the notebook, counting markdown cells."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def outputs(self, index: int) -> Locator:
        """Locate the outputs of a cell, without its source."""
        return self.cell(index).locator(".jp-OutputArea-output")

    def readable(self, index: int) -> str:
        """Return all text that a reader can see under a cell: first as it is, then with each fold opened in turn."""
        area = self.cell(index).locator(".jp-Cell-outputArea")
        seen = [area.inner_text()]
        folds = area.locator("details:has(> summary)").all()
        was_open = [fold.get_attribute("open") is not None for fold in folds]
        for fold in folds:
            self._set_open(fold, wanted=True)
            seen.append(area.inner_text())
        # First those that were open, because opening one of several tabs closes the others. Then from the inside,
        # because hidden elements take no click.
        for fold, wanted in zip(folds, was_open, strict=True):
            if wanted:
                self._set_open(fold, wanted=True)
        for fold, wanted in reversed(list(zip(folds, was_open, strict=True))):
            if not wanted:
                self._set_open(fold, wanted=False)
        return "\n".join(seen)

    def _set_open(self, fold: Locator, *, wanted: bool) -> None:
        if (fold.get_attribute("open") is not None) != wanted:
            fold.locator("> summary").click()

    def screenshot(self, path: Path, *, cell: int | None = None) -> None:
        """Save the page as a PNG, or one cell of it as if the user worked in another cell."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if cell is None:
            self.page.screenshot(path=path)
        else:
            self._activate(int(cell == 0))
            self.cell(cell).screenshot(path=path)


def _decode(frame: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return header, parent header and content of a message on the page's socket to its kernel."""
    from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1

    _, (header, parent, _, content, *_) = deserialize_msg_from_ws_v1(frame)
    return json.loads(header), json.loads(parent), json.loads(content)
