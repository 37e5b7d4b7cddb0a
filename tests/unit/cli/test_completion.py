"""Completion of `mhnb` in a shell: commands, options, and the names of clusters, profiles and help topics."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mhnb.cli import completion
from mhnb.cli.main import main


def complete(line: str, out: Path, **variables: str) -> list[str]:
    """Return what a shell would offer for a line with the cursor at its end, by the protocol of argcomplete."""
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mhnb"], env=environment | variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return out.read_text().split("\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mhnb sta", {"start", "status"}),
        ("mhnb st", {"start", "status", "stop"}),
        ("mhnb rea", {""}),
        ("mhnb start --gpus", {"--gpus-per-rank"}),
        ("mhnb start --profile sl", {"slurm"}),
        ("mhnb run --guard ", {"lockstep", "parity", "off"}),
        ("mhnb help order", {"order-mismatch"}),
        ("mhnb completion ", {"bash", "zsh", "fish"}),
        ("mhnb profile sh", {"show"}),
        ("mhnb nothing", {""}),
    ],
)
@pytest.mark.sample(3)
def test_words_are_completed(tmp_path: Path, line: str, expected: set[str]) -> None:
    """Commands, options, choices, profiles and help topics are completed."""
    assert {word.strip() for word in complete(line, tmp_path / "out")} == expected


@pytest.mark.parametrize(
    "command", ["stop", "logs", "restart", "interrupt", "status", "where", "flight", "memory", "metrics", "trace"]
)
def test_cluster_names_are_completed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command for a cluster completes the names of the running ones; the full names where two have one name."""
    records = [SimpleNamespace(name=name, full_name=f"{name}.{pid}") for name, pid in (("a", 1), ("b", 2), ("b", 3))]
    monkeypatch.setattr("mhnb.system.run_dir.read_running_clusters", lambda _: records)
    action = SimpleNamespace(dest="name")
    completer = completion._find_completer(command, action, {})  # type: ignore[arg-type]
    assert completer is not None
    assert list(completer(prefix="")) == ["a", "b.2", "b.3"]


def test_unreadable_home_completes_nothing(tmp_path: Path) -> None:
    """If the folder of the clusters cannot be trusted, nothing is offered, and nothing is printed into the line."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "other").mkdir()
    home.chmod(0o777)
    assert complete("mhnb stop ", tmp_path / "out", MHNB_HOME=str(home)) == [""]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_code_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The code registers the completion of `mhnb`; the help says where to put it."""
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "mhnb" in code
    assert "_ARGCOMPLETE" in code
    assert main(["help", "completion"]) == 0
    assert f"mhnb completion {shell}" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.slow
def test_real_bash_completes(tmp_path: Path) -> None:
    """In a bash that has evaluated the code, a line is completed by `mhnb` itself."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mhnb"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mhnb "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(mhnb completion bash)"\n'
        'COMP_LINE="mhnb inter" COMP_POINT=10 COMP_TYPE=9 COMP_WORDS=(mhnb inter) COMP_CWORD=1\n'
        '_python_argcomplete mhnb\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["interrupt"], done.stderr
