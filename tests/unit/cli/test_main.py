"""The commands of `mhnb`: their options on a command line."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import mhnb
from mhnb import errors
from mhnb.cli.doctor import report_values
from mhnb.cli.help import find_topic
from mhnb.cli.main import COMMANDS, build_parser, find_commands, main, parse_arguments
from mhnb.cli.run_script import read_script
from mhnb.cluster.flags import cluster_start_arguments
from mhnb.commands.command import NOTEBOOK_ONLY
from mhnb.core.cell_request import check_guard
from mhnb.core.preflight_facts import Column, Finding, PreflightReport, ReportCell
from mhnb.system.help_topics import list_topics
from mhnb.system.resources import find_lesson


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
    """`--lesson 2`, `02` and `devices` open the same notebook; for a missing lesson the error names it, and nothing starts."""
    assert {find_lesson(name) for name in ("2", "02", "devices")} == {"02_devices.ipynb"}
    assert main(["lab", "--lesson", "77", "--folder", str(tmp_path)]) == 1
    assert "--lesson: unknown lesson '77'; expected 00, tour, 01" in capsys.readouterr().err


def test_lab_keeps_copies_with_former_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A student's copies from before the lessons had new numbers are kept and named, and the current lesson opens."""
    for name in ("04_arrays.ipynb", "02_devices.ipynb", "04_mine.ipynb"):
        (tmp_path / name).write_text("mine")
    opened: list[str] = []

    def record(command: Sequence[str]) -> int:
        opened.extend(command)
        return 0

    monkeypatch.setattr("mhnb.cli.lab.find_spec", lambda _: True)
    monkeypatch.setattr("mhnb.cli.lab._run_until_exit", record)
    assert main(["lab", "--lesson", "arrays", "--folder", str(tmp_path)]) == 0
    assert str(tmp_path / "07_arrays.ipynb") in opened
    assert "your copies with the former ones are kept: 04_arrays.ipynb\n" in capsys.readouterr().out
    assert {(tmp_path / name).read_text() for name in ("04_arrays.ipynb", "02_devices.ipynb", "04_mine.ipynb")} == {
        "mine"
    }


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("lab --folder ~nosuchuser/x", "--folder"),
        ("demo --html ~nosuchuser/x", "--html"),
        ("export ~nosuchuser/x", "export"),
        ("export x.ipynb -o ~nosuchuser/x", "-o"),
    ],
)
def test_folder_of_an_unknown_user_is_refused(
    line: str, label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that begins with an unknown user is an error with the way to write it, and no folder of that name is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mhnb.cli.lab.find_spec", lambda _: True)
    assert main(line.split()) == 1
    says = f"{label} ~nosuchuser/x: this machine knows no home folder for ~nosuchuser\n  Fix: write the path in full"
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_lab_without_jupyterlab_names_install_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without JupyterLab, as after a plain `pip install mhnb`, the error names the install command, and nothing is copied."""
    monkeypatch.setattr("mhnb.cli.lab.find_spec", lambda _: None)
    assert main(["lab", "--folder", str(tmp_path / "mine")]) == 2
    assert "pip install 'mhnb[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


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
    assert f"unrecognized arguments: {unknown}" in capsys.readouterr().err


def test_script_options_follow_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """Options after `--` go to the script, even if `run` has the same ones; the error for one without `--` says so."""
    args = parse_arguments(["run", "a.py", "-n", "2", "--", "-n", "3", "--", "x"])
    assert (args.script, args.ranks, args.arguments) == ("a.py", 2, ["-n", "3", "--", "x"])
    with pytest.raises(SystemExit):
        parse_arguments(["run", "a.py", "--lr", "3"])
    expected = (
        "mhnb run: unrecognized arguments: --lr 3\n"
        "  Fix: mhnb run a.py -- --lr 3    (if they belong to the script)\n  Help: mhnb help run\n"
    )
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("line", "ranks", "script", "arguments"),
    [
        ("-n 2 a.py", 2, "a.py", ""),
        ("-n 2 a.py -n 3 --lr 1 x", 2, "a.py", "-n 3 --lr 1 x"),
        ("--devices=1 -n 2 a.py b.py", 2, "a.py", "b.py"),
        ("-n 2 --env A a.py --help", 2, "a.py", "--help"),
        ("a.py -n 2", 2, "a.py", ""),
        ("a.py", None, "a.py", ""),
        ("a.py -n 2 -- -n 3", 2, "a.py", "-n 3"),
        ("-n 2 a.py -- -n 3", 2, "a.py", "-n 3"),
        ("-n 2 a.py --devices 1 -- -n 3", 2, "a.py", "-n 3"),
        ("--devices 1 a.py -n 2 --", 2, "a.py", ""),
    ],
)
def test_position_of_the_script_decides_whose_a_word_is(
    line: str, ranks: int | None, script: str, arguments: str
) -> None:
    """What follows the script is the script's, unless the script comes first or the line has `--`."""
    args = parse_arguments(["run", *line.split()])
    assert (args.ranks, args.script, args.arguments) == (ranks, script, arguments.split())


@pytest.mark.parametrize(
    ("word", "guard"), [("before", "lockstep"), ("after", "parity"), ("off", "off"), ("parity", "parity")]
)
def test_guard_has_plain_names(word: str, guard: str) -> None:
    """The guard is chosen by plain words, or by the older names."""
    assert check_guard(parse_arguments(["run", "--guard", word, "a.py"]).guard) == guard
    assert check_guard(parse_arguments(["start", "--guard", word]).guard) == guard


def test_invalid_limit_is_refused_before_a_rank_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is not above 0 is an error, and nothing is started."""
    (tmp_path / "a.py").touch()
    monkeypatch.setattr("mhnb.cluster.manager.start", None)
    assert main(["run", "--timeout", "0", str(tmp_path / "a.py")]) == 1
    assert "--timeout 0: expected a number of seconds above 0" in capsys.readouterr().err


def test_misspelt_option_before_the_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option before the script is an error with the option that was meant."""
    with pytest.raises(SystemExit):
        parse_arguments(["run", "--devcies", "2", "a.py"])
    assert "unrecognized arguments: --devcies (did you mean --devices?)" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", "help", "--help", "-h"])
def test_overview_lists_every_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, and for help, the overview has a line with a sentence for every command; the status is 0."""
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        is_listed = any(line.split()[:1] == [name] and line.endswith(command.summary) for line in lines)
        assert is_listed != command.is_hidden, name


@pytest.mark.parametrize("name", [*COMMANDS, "reap"])
def test_help_of_a_command_begins_with_its_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb help NAME` and `mhnb NAME --help` print the same: the usage, the command's sentence, and its options."""
    assert main(["help", name]) == 0
    printed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out == printed
    assert COMMANDS["cleanup" if name == "reap" else name].summary in printed


def test_every_help_text_is_a_sentence() -> None:
    """A command's summary is a sentence, and each of its arguments has a help text."""
    for name, parser in find_commands(build_parser()).items():
        assert str(parser.description)[0].isupper(), name
        assert str(parser.description).endswith("."), name
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (name, action.dest)


_ATTACH_REFUSED = """\
mhnb: 'attach' is not a command of the shell, because it needs a notebook
  Fix: in a notebook cell: %mhjax attach main
  Help: mhnb help
"""
_UNKNOWN_USER = """\
mhnb flight: argument --json: ~nosuchuser/x: this machine knows no home folder for ~nosuchuser
  Fix: write the path in full; for a folder that is named ~nosuchuser: ./~nosuchuser/x
  Help: mhnb help flight
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lsit", "mhnb: unknown command 'lsit'. Did you mean 'list'?\n  Help: mhnb help\n"),
        (
            "reapp",
            "mhnb: unknown command 'reapp'; expected start, list, restart, stop, run, or another of 24\n  Help: mhnb help\n",
        ),
        ("docter --hosts a", "mhnb: unknown command 'docter'. Did you mean 'doctor'?\n  Help: mhnb help\n"),
        ("export", "mhnb export: the following arguments are required: NOTEBOOK\n  Help: mhnb help export\n"),
        ("--hepl", "mhnb: unrecognized arguments: --hepl (did you mean --help?)\n  Help: mhnb help\n"),
        (
            "attach main",
            _ATTACH_REFUSED,
        ),
        (
            "flight --json ~nosuchuser/x",
            _UNKNOWN_USER,
        ),
    ],
)
def test_usage_error_names_the_help(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command has the one that was meant; a usage error of a command names that command's help."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert (ended.value.code, capsys.readouterr().err) == (2, expected)


@pytest.mark.parametrize(
    "command", ["stop", "where", "status", "logs", "interrupt", "restart", "flight", "memory", "metrics", "trace"]
)
def test_unknown_cluster_has_the_name_that_was_meant(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a cluster that does not run, the error has the running one whose name is close, or says that none runs."""
    monkeypatch.setattr("mhnb.cli.clusters.list_running_clusters", lambda _: ([SimpleNamespace(name="train")], []))
    assert main([command, "trian"]) == 1
    assert capsys.readouterr().err == (
        f"mhnb {command}: unknown cluster 'trian'. Did you mean 'train'?\n  Fix: mhnb list\n  Help: mhnb help not-started\n"
    )
    monkeypatch.setattr("mhnb.cli.clusters.list_running_clusters", lambda _: ([], []))
    assert main([command, "trian"]) == 1
    expected = (
        f"mhnb {command}: unknown cluster 'trian'; you have no running cluster on this machine\n"
        "  Help: mhnb help not-started\n"
    )
    assert capsys.readouterr().err == expected


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
    first, fix, _ = capsys.readouterr().err.splitlines()
    assert first == f"mhnb run: {notebook} is a notebook; expected a Python script"
    commands = fix.removeprefix("  Fix: ").split(" && ")
    assert commands == [step.format(notebook) for step in steps]
    assert main(shlex.split(commands[0])[1:]) == 0
    assert read_script(shlex.split(commands[1])[-1]).strip()


@pytest.mark.parametrize("command", ["stop", "status", "where", "flight", "restart"])
def test_command_without_name_needs_one_cluster(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name, a command is refused where several clusters run, or none."""
    running = [SimpleNamespace(name=name, full_name=f"{name}.{at}") for at, name in enumerate("aab")]
    monkeypatch.setattr("mhnb.cli.clusters.read_running_clusters", lambda _: running)
    assert main(command.split()) == 1
    assert "3 clusters are running\n  Fix: give the name: a.0 or a.1 or b\n" in capsys.readouterr().err
    monkeypatch.setattr("mhnb.cli.clusters.read_running_clusters", lambda _: [])
    assert main(command.split()) == 1
    assert "you have no running cluster on this machine" in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb --version` prints the version and exits with 0; `mhnb version` prints those of JAX and Python, too."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mhnb {mhnb.__version__}\n"
    assert main(["version"]) == 0
    python = sys.version.split()[0]
    expected = f"mhnb {mhnb.__version__}, JAX {metadata.version('jax')}, Python {python} ({sys.executable})\n"
    assert capsys.readouterr().out == expected


def test_help_topic_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb help` prints the section on an error; for an unknown topic the error has the one that was meant."""
    assert main(["help", "order-mismatch"]) == 0
    assert capsys.readouterr().out.startswith("OrderMismatch\n")
    assert main(["help", "order-mismach"]) == 2
    expected = "mhnb help: unknown help topic 'order-mismach'. Did you mean 'order-mismatch'?\n  Help: mhnb help\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    "name", sorted(name for name in errors.__all__ if name not in ("CellFailed", "InvalidRequest", "NotYet"))
)
def test_each_error_names_an_existing_topic(name: str) -> None:
    """The help that an error names exists; one that needs no explanation names none, and an invalid argument that of its command."""
    assert find_topic(getattr(errors, name)("text"), "stop") in list_topics()
    assert find_topic(errors.CellFailed("text"), "stop") == find_topic(errors.NotYet("text"), "stop") == ""
    assert find_topic(errors.InvalidRequest("text"), "stop") == "stop"


def test_shape_of_a_start_may_be_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb start --keep 4x2` requests 4 ranks with 2 devices; a flag that contradicts it is refused, with both."""
    values = cluster_start_arguments(parse_arguments(["start", "--keep", "4x2", "--heartbeat-timeout-seconds", "30"]))
    assert (values["ranks"], values["devices"], values["keep"]) == (4, 2, True)
    assert values["initialize"] == {"heartbeat_timeout_seconds": 30}
    assert main(["start", "--keep", "4x2", "-n", "3"]) == 1
    assert "mhnb start: start 4x2 contradicts -n 3; give one of them" in capsys.readouterr().err


def test_start_without_keep_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`mhnb start` without --keep starts nothing, and says why, with the line to run instead."""
    monkeypatch.setattr(sys, "argv", ["mhnb", "start", "-n", "2", "--name", "a b"])
    assert main() == 2
    assert capsys.readouterr().err == (
        "mhnb start: without --keep the ranks would end together with this command\n"
        "  Fix: mhnb start --keep -n 2 --name 'a b'\n  Or: to run one script: mhnb run SCRIPT\n"
    )


def test_list_without_a_cluster_is_empty(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster, stdout has no header, and with --json an empty list."""
    monkeypatch.setattr("mhnb.cli.clusters.read_running_clusters", lambda _: [])
    for words, expected in ((["list"], ""), (["list", "--json"], "[]\n")):
        assert main(words) == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (expected, "mhnb list: you have no running cluster on this machine\n")


def test_doctor_prints_documented_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb doctor --json` prints the keys that its help lists, of this machine and of a fault."""
    status = main(["doctor", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert sorted(values) == ["duration_s", "findings", "hosts", "ok"]
    assert status == (0 if values["ok"] else 1)
    (host,) = values["hosts"]
    assert host["host"] == "this machine"
    assert host["checks"]["python"] == {"text": sys.version.split()[0], "level": None}
    finding = Finding("failure", "disk", ("a", "b"), "the disk is full", "make room")
    report = PreflightReport(("a", "b"), (Column("disk", {1: ReportCell("full", "failure")}, (finding,)),), (finding,))
    assert report_values(report) == {
        "ok": False,
        "duration_s": None,
        "hosts": [
            {"host": "a", "checks": {}},
            {"host": "b", "checks": {"disk": {"text": "full", "level": "failure"}}},
        ],
        "findings": [
            {"level": "failure", "check": "disk", "hosts": ["a", "b"], "text": "the disk is full", "fix": "make room"}
        ],
    }


def test_commands_of_the_notebook_are_known() -> None:
    """The shell names exactly the commands of `%mhjax` that it does not have."""
    from mhnb.magics.commands import COMMANDS as NOTEBOOK_COMMANDS

    absent = {name for name, command in NOTEBOOK_COMMANDS.items() if name not in COMMANDS and not command.is_hidden}
    assert set(NOTEBOOK_ONLY) == absent


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("word", ["help", "--version", "version"])
def test_output_to_a_full_disk_fails_with_one_message(word: str) -> None:
    """A command, and a help text of the parser, whose output does not fit on the disk fail with one message."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "mhnb", word]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        f"mhnb {word}: the output cannot be written: No space left on device\n"
        "  Fix: df -h    (shows the disk that is full: remove files there, or write to another disk)\n"
    )


def test_interrupt_during_the_import_ends_with_one_line() -> None:
    """Ctrl-C while Python imports the commands gives one line and the status of an interrupt."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Presser:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mhnb.cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Presser())\n"
        "sys.argv = ['mhnb', 'list']\n"
        "runpy.run_module('mhnb', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "mhnb: interrupted before the command began\n")


def test_interrupt_of_a_command_ends_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a command runs, or while its words are parsed, gives one line and the status of an interrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for place in ("mhnb.cli.clusters.read_running_clusters", "mhnb.cli.main.build_parser"):
        monkeypatch.setattr(place, interrupt)
        assert main(["list"]) == 130
        assert capsys.readouterr().err == "mhnb list: interrupted\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/b"),
            "/a/b cannot be written: No space left on device\n  Fix: df -h ",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file", "/a b/c"), "/a b/c: No such file\n  Fix: ls '/a b' "),
        (PermissionError(errno.EACCES, "Denied", b"/a/b c"), "/a/b c: Denied\n  Fix: ls -ld /a '/a/b c' "),
        (TimeoutError(), "TimeoutError\n"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused\n  Fix: mhnb doctor\n"),
        (
            FileNotFoundError("the notebooks are not here\n  Fix: reinstall mhnb"),
            "the notebooks are not here\n  Fix: reinstall mhnb\n",
        ),
    ],
)
def test_error_of_the_system_has_a_next_step(
    error: OSError, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the system ends a command with the path, the reason and a next step."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("mhnb.cli.clusters.read_running_clusters", fail)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith(f"mhnb list: {expected}")


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
