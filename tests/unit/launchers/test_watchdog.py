"""The watchdog ends its command when the owner ends, by force if necessary, and then runs the clean-up command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from mhnb.launchers.watchdog import KEEP_MARKER, watchdog_command
from tests.support.lab import wait_until

_QUICK = (
    "import sys, os; from mhnb.launchers import watchdog; "
    "watchdog._GRACE_S, watchdog._KILL_S = float(sys.argv.pop(1)), float(sys.argv.pop(1)); os._exit(watchdog.main())"
)
_PATIENT_S = 60.0
"""Time limit for a command that is expected to end by itself, however loaded the machine is."""
_STUBBORN = "trap '' TERM; echo here; while :; do sleep 1; done"


def _start_watchdog(
    command: Sequence[str],
    *,
    keep: bool = False,
    clean_up: Sequence[str] = (),
    grace_s: float = 0.2,
    kill_s: float = 0.2,
) -> subprocess.Popen[bytes]:
    words = watchdog_command(command, keep=keep, clean_up=clean_up)
    quick = [sys.executable, "-P", "-c", _QUICK, str(grace_s), str(kill_s), *words[4:]]
    return subprocess.Popen(quick, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_command_is_placed_after_options() -> None:
    """The command is placed after `--`, so that none of its words is parsed as an option."""
    assert watchdog_command(["srun", "--keep"], clean_up=["scancel", "--name=a b"])[1:] == [
        "-P", "-m", "mhnb.launchers.watchdog", "--clean-up=scancel '--name=a b'", "--", "srun", "--keep",
    ]  # fmt: skip


@pytest.mark.parametrize("code", [0, 3])
def test_input_and_exit_code_are_passed_on(code: int) -> None:
    """The command reads the input and its end, and the watchdog returns the command's exit code."""
    output, _ = _start_watchdog(["sh", "-c", f"cat; exit {code}"], grace_s=_PATIENT_S).communicate(
        b"given\n", timeout=60
    )
    assert output == b"given\n"
    watchdog = _start_watchdog(["sh", "-c", f"cat; exit {code}"], grace_s=_PATIENT_S)
    watchdog.communicate(timeout=60)
    assert watchdog.returncode == code


def test_command_that_ignores_end_of_input_gets_sigterm(tmp_path: Path) -> None:
    """A command that ignores the end of its input, as an srun in the queue, gets SIGTERM; if it then ends, no clean-up runs."""
    mark = tmp_path / "cleaned"
    watchdog = _start_watchdog(
        ["sh", "-c", "trap 'exit 7' TERM; echo here; while :; do sleep 0.1; done"],
        clean_up=["touch", str(mark)],
        kill_s=_PATIENT_S,
    )
    assert watchdog.stdout is not None
    assert watchdog.stdout.readline() == b"here\n"
    watchdog.communicate(timeout=60)
    assert watchdog.returncode == 7
    assert not mark.exists()


def test_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """A command that ignores SIGTERM is killed, and then the clean-up command runs."""
    mark = tmp_path / "cleaned up"
    watchdog = _start_watchdog(["sh", "-c", _STUBBORN], clean_up=["touch", str(mark)])
    assert watchdog.stdout is not None
    assert watchdog.stdout.readline() == b"here\n"
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.stdout.close()
    assert watchdog.wait(60) == 128 + 9
    assert mark.exists()


@pytest.mark.slow
def test_command_with_keep_outlives_its_owner() -> None:
    """With `keep` the command outlives its owner once the owner has written the marker."""
    watchdog = _start_watchdog(["sleep", "600"], keep=True)
    assert watchdog.stdin is not None
    watchdog.stdin.write(b"before it\n" + KEEP_MARKER + b"\n")
    watchdog.stdin.close()
    own = psutil.Process(watchdog.pid)
    wait_until(lambda: any("sleep" in child.name() for child in own.children()), "it runs")
    with pytest.raises(subprocess.TimeoutExpired):
        # Longer than both time limits of the watchdog.
        watchdog.wait(1.0)
    watchdog.terminate()
    watchdog.wait(60)
    assert watchdog.stdout is not None
    watchdog.stdout.close()


@pytest.mark.parametrize("keep", [True, False])
def test_sigterm_ends_the_command(tmp_path: Path, keep: bool) -> None:  # noqa: FBT001
    """SIGTERM ends the command even with `keep`; a command that ignores it is killed and the clean-up runs."""
    mark = tmp_path / "cleaned up"
    watchdog = _start_watchdog(["sh", "-c", _STUBBORN], keep=keep, clean_up=["touch", str(mark)])
    assert watchdog.stdout is not None
    assert watchdog.stdout.readline() == b"here\n"
    watchdog.terminate()
    watchdog.communicate(timeout=60)
    assert watchdog.returncode == 128 + 9
    assert mark.exists()


def test_children_of_killed_command_are_killed() -> None:
    """Children of a killed command are killed too; an orphaned ssh of gcloud would hold the connection for hours."""
    watchdog = _start_watchdog(["sh", "-c", "sleep 600 & echo $!; while :; do sleep 1; done"])
    assert watchdog.stdout is not None
    started = psutil.Process(int(watchdog.stdout.readline()))
    watchdog.communicate(timeout=60)
    wait_until(lambda: _has_ended(started), "it has ended")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux only")
def test_command_of_killed_watchdog_gets_sigterm() -> None:
    """A command whose watchdog is killed gets SIGTERM; one that reads nothing, as an srun in the queue, would otherwise stay."""
    watchdog = _start_watchdog(["sh", "-c", "echo $$; exec sleep 600"])
    assert watchdog.stdout is not None
    command = psutil.Process(int(watchdog.stdout.readline()))
    watchdog.kill()
    watchdog.communicate(timeout=60)
    wait_until(lambda: _has_ended(command), "it has ended")


def test_command_with_keep_ends_before_supervisors_begin() -> None:
    """With `keep` the command still ends with its owner before the supervisors begin, because no cluster exists yet."""
    watchdog = _start_watchdog(["sleep", "600"], keep=True, kill_s=_PATIENT_S)
    watchdog.communicate(b"before it\n", timeout=60)
    assert watchdog.returncode == 128 + 15
