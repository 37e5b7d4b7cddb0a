"""Start the processes of a host, by fork where that is safe.

Forking after the imports saves each rank the half second of CPU time that they take.
It is safe here because no imported module has started a thread or initialised a backend; `preload` keeps that true.
Apple's frameworks do not survive a fork, so macOS starts each rank as a new process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import structs

from mhnb.core.messages import CheckHost, HostChecked, HostSpec, format_hostspec
from mhnb.rank.host_setup import RankPaths, hub_log
from mhnb.system.private_files import open_private
from mhnb.system.processes import end_with_parent

_PRELOADED = (
    "jax",
    "zmq",
    "numpy",
    "jax.numpy",
    "jax.experimental.multihost_utils",
    "ipykernel.ipkernel",
    # It imports debugpy, and every kernel imports it: 0.07 s for each rank otherwise.
    "ipykernel.debugger",
    "ipyparallel.engine.app",
    "tornado.platform.asyncio",
    "mhnb.rank.main",
    "mhnb.rank.engine",
    "mhnb.rank.bootstrap",
    "mhnb.rank.jax_private",
    "mhnb.rank.guard.array_hooks",
)
"""What every rank imports when it starts, in order."""
_ANSWER_NBYTES, _CHECK_END_S = 1 << 16, 2.0


def preload() -> None:
    """Import what every rank that is forked from here needs.

    The imported objects are frozen, so that a rank's garbage collector touches no shared page.
    Collections are off during the imports: they would take a quarter of the time, and find a thousand objects.
    """
    gc.disable()
    for name in _PRELOADED:
        importlib.import_module(name)
    _warm_tracebacks()
    gc.freeze()
    gc.enable()


def _warm_tracebacks() -> None:
    """Prepare the lexer, which otherwise costs each rank's first error 0.03 s."""
    names = ("stack_data", "pygments", "pygments.lexers.python", "pygments.formatters.terminal256")
    _, pygments, lexers, formatters = map(importlib.import_module, names)
    pygments.highlight("x = 1", lexers.Python3Lexer(), formatters.Terminal256Formatter())


def spawn_hub(spec: HostSpec) -> int:
    """Start ipyparallel's controller for this cluster; return its process id."""
    from mhnb.rank.controller import run_hub

    log = hub_log(Path(spec.run_dir))
    if spec.fork:
        importlib.import_module("ipyparallel.controller.app")
        return _fork(lambda: run_hub(spec), (log, log))
    return _start_process("mhnb.rank.controller", spec, (log, log))


def spawn_agreement_server(spec: HostSpec, listener: socket.socket) -> int:
    """Start the agreement server for ranks of other hosts; return its pid.

    Args:
        listener: the socket that they connect to; the caller closes its own copy.
    """
    log = Path(spec.run_dir) / "log" / "board.log"
    if not spec.fork:
        return _start_process("mhnb.rank.guard.agreement_server", spec, (log, log), listener.fileno())
    from mhnb.rank.guard.agreement_server import run_server

    return _fork(lambda: run_server(spec, listener), (log, log))


def spawn_rank(spec: HostSpec, rank: int) -> int:
    """Start one rank; return its process id, also its process group's."""
    paths = RankPaths(Path(spec.run_dir), rank)
    rank_spec = structs.replace(spec, ranks=[rank], starts_hub=False)
    if spec.share_gpus:
        # Before CUDA is used: it reads this once.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    if not spec.fork:
        return _start_process("mhnb.rank", rank_spec, paths.native)
    from mhnb.rank.main import run_rank

    return _fork(lambda: run_rank(rank_spec), paths.native)


def _fork(run: Callable[[], None], native: tuple[Path, Path]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_child(run, native, parent)
    _set_process_group(pid)
    return pid


def run_child(run: Callable[[], None], native: tuple[Path, Path], parent: int) -> NoReturn:
    """Run as the child, ended with the parent, and never return."""
    code = 1
    try:
        _set_process_group(0)
        end_with_parent(parent)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _redirect(native)
        _reseed()
        run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # the last frame of a process
        # The last frame of this process: print the error where the supervisor will look.
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Also on a full disk: an error that left this function would make the child end its siblings.
        os._exit(code)


def _set_process_group(pid: int) -> None:
    """Give a child its own process group, for signals to its descendants.

    Parent and child both try, because either may be first.
    """
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        return


def _redirect(native: tuple[Path, Path]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for fd, path in zip((1, 2), native, strict=True):
        file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, fd)
        os.close(file)
    os.close(null)


def _reseed() -> None:
    """Reseed NumPy's global state, which forked ranks would otherwise share."""
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()  # noqa: NPY002  # the legacy state is the one that the fork has copied


class CheckProcess:
    """The child process that answers `CheckHost`: `system/host_checks.py`.

    A check may take seconds and uses threads, and this process must stay responsive and single-threaded.

    Args:
        supervisor: number of this process, which its answers have.
        environment: of the child: what the launcher's command had, without what ranks get in addition.
        log: receives its standard error.
    """

    def __init__(self, supervisor: int, environment: Mapping[str, str], log: Path) -> None:
        with open(log, "ab", opener=open_private) as err:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mhnb.system.host_checks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=environment,
                process_group=0,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._supervisor, self._log, self._unread = supervisor, log, b""
        self._pending: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable for answers and at the end."""
        return self._answers.fileno()

    def send(self, request: CheckHost) -> None:
        """Pass a request on; `read_answers` reports a child that has ended."""
        self._pending.append(request.request_id)
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(msgspec.json.encode((request.request_id, request.check, request.arguments)) + b"\n")
            self._requests.flush()

    def read_answers(self) -> list[HostChecked] | None:
        """Return arrived answers, or None after the end; call when readable.

        If it ends with requests unanswered, the answers before that have its last words as their error.
        """
        data = os.read(self._answers.fileno(), _ANSWER_NBYTES)
        if not data:
            unanswered, self._pending = self._pending, []
            return [HostChecked(self._supervisor, each, None, self._read_last_words()) for each in unanswered] or None
        *lines, self._unread = (self._unread + data).split(b"\n")
        found = []
        for line in lines:
            # A start-up file of this Python may print, too.
            with contextlib.suppress(msgspec.MsgspecError):
                request_id, value = msgspec.json.decode(line, type=tuple[int, Any])
                if request_id in self._pending:
                    self._pending.remove(request_id)
                    found.append(HostChecked(self._supervisor, request_id, value))
        return found

    def _read_last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def close(self) -> None:
        """End it with its listeners and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        # One that is stuck in the kernel, on a disk that hangs, must not keep the supervisor. Its waitpid may have reaped it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CHECK_END_S)


def _start_process(module: str, spec: HostSpec, native: tuple[Path, Path], *fds: int) -> int:
    with open(native[0], "ab", opener=open_private) as out, open(native[1], "ab", opener=open_private) as err:
        process = subprocess.Popen(
            # -P, as for the supervisor. Its own id is passed, because the child must end with it.
            [sys.executable, "-P", "-m", module, str(os.getpid()), *map(str, fds)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            process_group=0,
            pass_fds=fds,
        )
    assert process.stdin is not None
    # The supervisor learns of its end in any case. The close also fails if something was left unread.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(format_hostspec(spec).encode())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.returncode = 0  # the supervisor's own waitpid reaps it
    return process.pid
