"""The shell's verbs: what is theirs on a command line, and `mhnb lab` with a real JupyterLab."""

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
def test_options_of_jupyterlab_go_to_it(line: str, rest: list[str]) -> None:
    """What `mhnb lab` does not know goes to JupyterLab, in its order, with and without `--`."""
    args = parse_arguments(["lab", *line.split()])
    assert args.rest == rest
    assert args.folder == ("here" if "--folder here" in line else "mhnb-notebooks")
    assert args.lesson == "00"


def test_lab_opens_the_lesson_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--lesson 2` and `--lesson 02` are the notebook of that number; one that is not there is named, and nothing starts."""
    assert (
        find_lesson("2", notebooks_dir()) == find_lesson("02", notebooks_dir()) == notebooks_dir() / "02_devices.ipynb"
    )
    assert main(["lab", "--lesson", "77", "--folder", str(tmp_path)]) == 1
    assert "--lesson 77: there is no such lesson; there is 00, 01, 02" in capsys.readouterr().err


def test_lab_without_jupyterlab_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain `pip install mhnb` has none: the way to it is named, and nothing is copied."""
    monkeypatch.setattr("mhnb.cli.main.find_spec", lambda _: None)
    assert main(["lab", "--folder", str(tmp_path / "mine")]) == 2
    assert "pip install 'mhnb[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


@pytest.mark.timeout(300)
def test_the_demo_prints_every_ranks_part(tmp_path: Path, leftovers: None) -> None:
    """Into a pipe as into a file: the sections, each rank's process, what it said, and no colours; a page beside it."""
    page = tmp_path / "tour.html"
    command = [sys.executable, "-m", "mhnb", "demo", "--html", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for told in ("A mesh", "rank 3: process ", "psum 2016", "ValueError", "4 ranks stopped"):
        assert told in done.stdout
    assert "psum 2016" in page.read_text()


def test_the_help_of_lab_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb lab --help` tells where options of JupyterLab go."""
    with pytest.raises(SystemExit) as ended:
        main(["lab", "--help"])
    assert ended.value.code == 0
    assert "Every other option goes to JupyterLab" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "unknown"),
    [("run a.py --sport 1", "--sport 1"), ("demo --no-browser", "--no-browser"), ("list x", "x"), ("stop a b", "b")],
)
def test_other_verbs_take_no_unknown_options(line: str, unknown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option of another verb is an error that names it."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert f"unrecognized arguments: {unknown};" in capsys.readouterr().err


def test_what_is_for_a_script_comes_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of the same name too; without them the error says so."""
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
def test_a_notebook_is_no_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, steps: list[str]
) -> None:
    """It is refused before a rank starts, and the way is named: what it says to type writes a script."""
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
    first, *told = capsys.readouterr().err.splitlines()
    assert first.startswith(f"mhnb run: {notebook} is a notebook")
    assert [line.strip() for line in told] == [step.format(notebook) for step in steps]
    assert main(shlex.split(told[0])[1:]) == 0
    assert read_script(shlex.split(told[1])[-1]).strip()


@pytest.mark.parametrize("line", ["stop", "stop --all"])
def test_stop_wants_a_name(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one nothing is ended: what to give is said, with the names that run."""
    monkeypatch.setattr(
        "mhnb.system.run_dir.read_running_clusters", lambda _: [{"name": "b"}, {"name": "a"}, {"name": "a"}]
    )
    assert main(line.split()) == 2
    told = capsys.readouterr().err
    assert "mhnb stop NAME, or mhnb stop NAME --all where several notebooks" in told
    assert told.endswith("there run: a, b\n")
    monkeypatch.setattr("mhnb.system.run_dir.read_running_clusters", lambda _: [])
    assert main(line.split()) == 2
    assert capsys.readouterr().err.endswith("none runs on this machine\n")


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    """As every program does."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mhnb {mhnb.__version__}\n"


class Started:
    """`mhnb lab` as a shell starts it, in front of a terminal."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log, self.port = folder / "lab.log", find_free_port()
        self._terminal, terminal = os.openpty()
        command = [sys.executable, "-m", "mhnb", "lab", "--folder", str(folder / "mine"), "--no-browser"]
        command += ["--port", str(self.port), "--ServerApp.port_retries=0", "--IdentityProvider.token=t", *options]
        with self.log.open("wb") as log:
            self.process = psutil.Popen(command, stdin=terminal, stdout=log, stderr=log, start_new_session=True)
        os.close(terminal)

    def ask(self, path: str, body: object = None) -> object:
        """Ask the server; None while it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(address, data, {"Authorization": "token t"})
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:  # noqa: S310
                return reply.read()
        except (urllib.error.URLError, OSError):
            assert self.process.poll() is None, self.said()
            return None

    def said(self) -> str:
        """What stands on the terminal."""
        return self.log.read_text()

    def type(self, text: str) -> None:
        """Type on the terminal."""
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        """End everything that is left, however it stands."""
        for process in (*self.process.children(recursive=True), self.process) if self.process.is_running() else ():
            process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Started]:
    """Start `mhnb lab` and leave nothing of it."""
    lab = Started(folder, *options)
    try:
        yield lab
    finally:
        lab.close()


def _command_of(process: psutil.Process) -> list[str]:
    """What it was started as; nothing of one that has just ended: JupyterLab asks small programs this and that as it starts."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["Ctrl-C", "SIGTERM"])
def test_lab_starts_where_asked_and_leaves_nothing(tmp_path: Path, way: str) -> None:
    """JupyterLab answers at the port asked for, with the tour; when it is ended its kernels end with it."""
    with started(tmp_path, "--allow-root") as lab:
        wait_until(lambda: lab.ask("/api/status"), "JupyterLab answers")
        listed = str(lab.ask("/api/contents"))
        assert [path.name for path in notebooks_dir().glob("*.ipynb") if path.name not in listed] == []
        assert lab.ask("/api/kernels", {}) is not None
        family = lab.process.children(recursive=True)
        assert any("ipykernel" in " ".join(_command_of(child)) for child in family)
        if way == "Ctrl-C":
            os.killpg(lab.process.pid, signal.SIGINT)
            wait_until(lambda: "this Jupyter server (" in lab.said(), "JupyterLab asks back")
            lab.type("y\n")
        else:
            lab.process.terminate()
        assert lab.process.wait(60) == 0, lab.said()
        assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_is_told_what_to_type(tmp_path: Path) -> None:
    """JupyterLab refuses root; the last line says how to go on."""
    with started(tmp_path) as lab:
        assert lab.process.wait(50) == 1
        assert lab.said().rstrip().endswith("make lab LAB=--allow-root")
        assert "mhnb lab --allow-root\n" in lab.said()


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`mhnb profile show slurm | head -1` ends quietly."""
    program = subprocess.Popen(
        [sys.executable, "-m", "mhnb", "profile", "show", "slurm"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    said = program.stderr.read().decode()
    program.stderr.close()
    assert (program.wait(60), said) == (0, "")
