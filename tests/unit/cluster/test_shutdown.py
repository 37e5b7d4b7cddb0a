"""Shutdown in small cases: a second signal, a failing local preflight, a hanging program."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import psutil
import pytest

from mhnb.cluster import interrupts
from mhnb.cluster.interrupts import run_uninterrupted, wait_for_pending_shutdowns
from mhnb.core.messages import HostSpec, format_hostspec
from mhnb.errors import LaunchError
from mhnb.launchers import local
from mhnb.launchers.remote_command import run_program
from mhnb.transport.server import SocketServer
from tests.support.leftovers import wait_for_end

WAIT_S = 60.0


def _is_waiting(thread: threading.Thread) -> bool:
    """Return whether the thread waits for the work it began, because a user presses Ctrl-C after the work began."""
    frame = sys._current_frames()[thread.ident or 0]
    return {"run_uninterrupted", "wait_done"} <= {line.name for line in traceback.extract_stack(frame)}


def test_ctrl_c_ends_the_wait_but_not_the_work() -> None:
    """The work continues in its thread to its end, and a later call waits for it."""
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(WAIT_S)
        done.set()

    def press() -> None:
        begun.wait(WAIT_S)
        while not _is_waiting(threading.main_thread()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        run_uninterrupted(work)
    assert not done.is_set()
    threading.Timer(0.2, may_end.set).start()
    wait_for_pending_shutdowns()
    assert done.is_set()


def test_wait_is_reported_in_the_callers_thread() -> None:
    """While the work lasts, the caller can show that time passes; of work that ends at once nothing is reported."""
    threads: list[threading.Thread] = []
    may_end = threading.Event()

    def report() -> None:
        threads.append(threading.current_thread())
        may_end.set()

    def work() -> None:
        may_end.wait(WAIT_S)

    run_uninterrupted(work, report)
    assert set(threads) == {threading.main_thread()}
    threads.clear()
    run_uninterrupted(lambda: None, report)
    assert threads == []


def test_error_of_the_work_is_raised_in_the_caller() -> None:
    """An error of the work is raised in the caller that requested it."""
    with pytest.raises(ZeroDivisionError):
        run_uninterrupted(lambda: print(1 / 0))
    assert not interrupts._pending, "what has been seen done is let go of"


def test_program_without_an_answer_times_out() -> None:
    """`sinfo` hangs in this way while slurmctld is down."""
    with pytest.raises(LaunchError, match=r"sleep 600: no answer within 0.2 s\n  Fix: run it by hand"):
        run_program(["sleep", "600"], limit_s=0.2)


def test_client_whose_socket_refuses_options_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS `setsockopt` fails if an unknown client has closed its socket; the client is dropped, and the server continues."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    server = SocketServer(b"k" * 32)
    host, _, port = server.url.partition(":")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "setsockopt", refuse)
            assert server.poll(WAIT_S) == []
        client.settimeout(WAIT_S)
        assert client.recv(1) == b""
    server.close()


_SIGTERM_TWICE = """
import os, signal, sys
from pathlib import Path
from mhnb.core.messages import HostSpec, parse_hostspec
from mhnb.rank import supervisor as host
spec = parse_hostspec(sys.stdin.readline())
supervisor = host.Supervisor(spec, os.getppid(), lambda: 0.0)
child = os.fork()
if child == 0:
    signal.pause()
os.setpgid(child, child)
supervisor._ranks[child] = 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
real = os.waitpid
def waitpid_after_sigterm(pid, options):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(pid, options)
os.waitpid = waitpid_after_sigterm
supervisor.end()
"""


def test_supervisor_ends_after_a_second_sigterm(tmp_path: Path) -> None:
    """Slurm and mpiexec send SIGTERM more than once; the supervisor still ends its ranks and removes every key."""
    (tmp_path / "profile" / "security").mkdir(parents=True)
    key = tmp_path / "profile" / "security" / "ipcontroller-engine.json"
    key.write_text("{}")
    spec = HostSpec("unix:none", "00", 0, 1, 1, [0], 1, "", {}, {}, "", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SIGTERM_TWICE],
        input=format_hostspec(spec),
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0
    assert not key.exists()
    assert Path(spec.ended_path).exists()


def test_supervisor_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that ignores SIGTERM, suspended or not, has ended when `end_supervisor` returns."""
    monkeypatch.setattr(local, "_TERM_S", 0.2)
    # If its child is killed first, the shell would end by itself before it is killed, so it stops there.
    command = ["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; kill -STOP $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout is not None
        child = psutil.Process(int(shell.stdout.readline()))
        shell.send_signal(signal.SIGSTOP)
        os.waitpid(shell.pid, os.WUNTRACED)
        local.end_supervisor(shell.pid)
        assert shell.wait(WAIT_S) == -signal.SIGKILL
        assert wait_for_end([child], WAIT_S) == []
