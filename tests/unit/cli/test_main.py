"""The commands of `mhnb`: their options on a command line, and `mhnb lab` with a real JupyterLab."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import mhnb
from mhnb.cli.main import main, parse_arguments
from mhnb.cli.run_script import read_script
from mhnb.system.resources import find_lesson, notebooks_dir
from mhnb.transport.addresses import find_free_port
from tests.support.lab import wait_until


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("", []),
        ("--port 9999", ["--port", "9999"]),
        ("--no-browser --port=9999 --allow-root", ["--no-browser", "--port=9999", "--allow-root"]),
        ("--no-browser --folder here --port 9999", ["--no-browser", "--port", "9999"]),
        ("-- --port 9999", ["--port", "9999"]),
        ("--fold 3 -y", ["--fold", "3", "-y"]),
        ("--ServerApp.root_dir=/some/where", ["--ServerApp.root_dir=/some/where"]),
    ],
)
def test_unknown_lab_options_go_to_jupyterlab(line: str, rest: list[str]) -> None:
    """Options that `mhnb lab` does not know are passed to JupyterLab in order, with and without `--`."""
    args = parse_arguments(["lab", *line.split()])
    assert args.rest == rest
    assert args.folder == ("here" if "--folder here" in line else "mhnb-notebooks")
    assert args.lesson == "00"


def test_lab_opens_the_requested_lesson(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--lesson 2` and `--lesson 02` open the same notebook; for a missing lesson the error names it, and nothing starts."""
    assert (
        find_lesson("2", notebooks_dir()) == find_lesson("02", notebooks_dir()) == notebooks_dir() / "02_devices.ipynb"
    )
    assert main(["lab", "--lesson", "77", "--folder", str(tmp_path)]) == 1
    assert "--lesson 77: there is no such lesson; there is 00, 01, 02" in capsys.readouterr().err


def test_lab_without_jupyterlab_names_install_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without JupyterLab, as after a plain `pip install mhnb`, the error names the install command, and nothing is copied."""
    monkeypatch.setattr("mhnb.cli.main.find_spec", lambda _: None)
    assert main(["lab", "--folder", str(tmp_path / "mine")]) == 2
    assert "pip install 'mhnb[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


@pytest.mark.timeout(300)
def test_demo_prints_output_of_every_rank(tmp_path: Path, leftovers: None) -> None:
    """The demo's output in a pipe has all sections, each rank's process and output, and no colours; `--html` writes a page."""
    page = tmp_path / "tour.html"
    command = [sys.executable, "-m", "mhnb", "demo", "--html", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for expected in ("A mesh", "rank 3: process ", "psum 2016", "ValueError", "4 ranks stopped"):
        assert expected in done.stdout
    assert "psum 2016" in page.read_text()


def test_lab_help_mentions_jupyterlab_options(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb lab --help` says that all other options go to JupyterLab."""
    with pytest.raises(SystemExit) as ended:
        main(["lab", "--help"])
    assert ended.value.code == 0
    assert "Every other option goes to JupyterLab" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "unknown"),
    [("run a.py --sport 1", "--sport 1"), ("demo --no-browser", "--no-browser"), ("list x", "x"), ("stop a b", "b")],
)
def test_unknown_option_of_other_commands_is_refused(
    line: str, unknown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown option of a command other than lab is an error that names it."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert f"unrecognized arguments: {unknown};" in capsys.readouterr().err


def test_script_options_follow_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """Options after `--` go to the script, even if `run` has the same ones; the error for one without `--` says so."""
    args = parse_arguments(["run", "a.py", "-n", "2", "--", "-n", "3", "--", "x"])
    assert (args.script, args.n, args.arguments) == ("a.py", 2, ["-n", "3", "--", "x"])
    with pytest.raises(SystemExit):
        parse_arguments(["run", "a.py", "--lr", "3"])
    assert "unrecognized arguments: --lr 3; what is the script's comes after --" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("t.ipynb", ["mhnb export {} -o t.py", "mhnb run t.py"]),
        ("my t.ipynb", ["mhnb export '{}' -o 'my t.py'", "mhnb run 'my t.py'"]),
    ],
)
def test_run_refuses_a_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, steps: list[str]
) -> None:
    """`mhnb run` refuses a notebook before a rank starts, and names commands that export it to a script and run that."""
    monkeypatch.chdir(tmp_path)
    notebook = tmp_path / name
    cell: dict[str, object] = {
        "cell_type": "code",
        "source": "%%mhjax\n1 + 1",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    notebook.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    monkeypatch.setattr("mhnb.cluster.manager.start", None)
    assert main(["run", str(notebook)]) == 1
    first, *commands = capsys.readouterr().err.splitlines()
    assert first.startswith(f"mhnb run: {notebook} is a notebook")
    assert [line.strip() for line in commands] == [step.format(notebook) for step in steps]
    assert main(shlex.split(commands[0])[1:]) == 0
    assert read_script(shlex.split(commands[1])[-1]).strip()


@pytest.mark.parametrize("line", ["stop", "stop --all"])
def test_stop_without_name_is_refused(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mhnb stop` without a name ends nothing and prints its usage with the names of the running clusters."""
    monkeypatch.setattr(
        "mhnb.system.run_dir.read_running_clusters", lambda _: [SimpleNamespace(name=name) for name in ("b", "a", "a")]
    )
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert "mhnb stop NAME, or mhnb stop NAME --all where several notebooks" in error
    assert error.endswith("there run: a, b\n")
    monkeypatch.setattr("mhnb.system.run_dir.read_running_clusters", lambda _: [])
    assert main(line.split()) == 2
    assert capsys.readouterr().err.endswith("none runs on this machine\n")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb --version` prints the version and exits with 0."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mhnb {mhnb.__version__}\n"


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


@pytest.mark.timeout(120)
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
        assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_gets_the_option_to_use(tmp_path: Path) -> None:
    """JupyterLab refuses root, and the last line names the option to use."""
    with start_lab(tmp_path) as lab:
        assert lab.process.wait(50) == 1
        assert lab.output().rstrip().endswith("make lab LAB=--allow-root")
        assert "mhnb lab --allow-root\n" in lab.output()


def test_closed_pipe_is_not_an_error() -> None:
    """If its reader closes the pipe, as in `mhnb profile show slurm | head -1`, the command ends quietly."""
    program = subprocess.Popen(
        [sys.executable, "-m", "mhnb", "profile", "show", "slurm"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    output = program.stderr.read().decode()
    program.stderr.close()
    assert (program.wait(60), output) == (0, "")
