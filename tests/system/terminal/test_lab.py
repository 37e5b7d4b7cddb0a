"""`mhnb lab` in a terminal: a real JupyterLab, its kernels and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mhnb.system.resources import notebooks_dir
from mhnb.transport.addresses import find_free_port
from tests.support.lab import wait_until
from tests.support.leftovers import wait_for_end


class StartedLab:
    """`mhnb lab` in front of a terminal, as a shell starts it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log, self.port = folder / "lab.log", find_free_port()
        self._terminal, terminal = os.openpty()
        command = [sys.executable, "-m", "mhnb", "lab", "--folder", str(folder / "mine"), "--no-browser"]
        command += ["--port", str(self.port), "--ServerApp.port_retries=0", "--IdentityProvider.token=t", *options]
        with self.log.open("wb") as log:
            self.process = psutil.Popen(command, stdin=terminal, stdout=log, stderr=log, start_new_session=True)
        os.close(terminal)

    def request(self, path: str, body: object = None) -> object:
        """Send a request to the server; return None while it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(address, data, {"Authorization": "token t"})
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:  # noqa: S310
                return reply.read()
        except (urllib.error.URLError, OSError):
            assert self.process.poll() is None, self.output()
            return None

    def output(self) -> str:
        """Return the output on the terminal."""
        return self.log.read_text()

    def type(self, text: str) -> None:
        """Type text on the terminal."""
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        """Kill every process that still runs."""
        for process in (*self.process.children(recursive=True), self.process) if self.process.is_running() else ():
            process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def start_lab(folder: Path, *options: str) -> Iterator[StartedLab]:
    """Start `mhnb lab`, and kill what remains of it at the end."""
    lab = StartedLab(folder, *options)
    try:
        yield lab
    finally:
        lab.close()


def _command_of(process: psutil.Process) -> list[str]:
    """Return the process's command line; empty if it has just ended, as small programs that JupyterLab runs at its start do."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.parametrize("way", ["Ctrl-C", "SIGTERM"])
def test_lab_serves_requested_port_and_ends_its_kernels(tmp_path: Path, way: str) -> None:
    """JupyterLab answers at the requested port with the tour, and its kernels end with it."""
    with start_lab(tmp_path, "--allow-root") as lab:
        wait_until(lambda: lab.request("/api/status"), "JupyterLab answers")
        listed = str(lab.request("/api/contents"))
        assert [path.name for path in notebooks_dir().glob("*.ipynb") if path.name not in listed] == []
        assert lab.request("/api/kernels", {}) is not None
        children = lab.process.children(recursive=True)
        assert any("ipykernel" in " ".join(_command_of(child)) for child in children)
        if way == "Ctrl-C":
            os.killpg(lab.process.pid, signal.SIGINT)
            wait_until(lambda: "this Jupyter server (" in lab.output(), "JupyterLab asks back")
            lab.type("y\n")
        else:
            lab.process.terminate()
        assert lab.process.wait(60) == 0, lab.output()
        assert wait_for_end(children, 60) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_gets_the_option_to_use(tmp_path: Path) -> None:
    """JupyterLab refuses root, and the last line names the option to use."""
    with start_lab(tmp_path) as lab:
        assert lab.process.wait(120) == 1
        assert lab.output().rstrip().endswith("make lab LAB=--allow-root")
        assert "mhnb lab --allow-root\n" in lab.output()
