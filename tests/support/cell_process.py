"""A rank's shell, capture and runner in a process of their own, without JAX, ipyparallel or sockets.

Messages go in and out as lines on two pipes, encoded as on the transport. The cells themselves simulate launches:
`waiting` in the user's namespace is called where a rank waits for its launches.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mhnb.core.codec import decode, encode
from mhnb.core.guard.launch_report import LaunchReport, LaunchRow
from mhnb.core.hang_report import PendingLaunch
from mhnb.core.messages import (
    CellEnded,
    CellRefused,
    DebugInput,
    DebugPrompt,
    Message,
    OutputProduced,
    RankReply,
    RankRequest,
    RunCell,
    SkipCell,
)
from mhnb.core.output.events import ErrorRaised, OutputEvent, Stream
from mhnb.core.output.outputs import accumulate_events
from mhnb.rank.guard.launch_gate import Mismatches
from mhnb.rank.guard.shared_board import InterruptFlag, create_interrupt_flag
from mhnb.types import Outcome, Output

if TYPE_CHECKING:
    from tests.support.warm_start import WarmProcess

__all__ = ["CellProcess", "CellAnswer"]

TIMEOUT_S = 60.0
"""No answer of a rank takes this long; a test that waits longer has failed."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """A rank's answer to a cell."""

    ended: CellEnded
    live: list[OutputEvent]
    """The output that arrived while the cell ran."""

    @property
    def events(self) -> list[OutputEvent]:
        return [*self.live, *self.ended.events]

    @property
    def outputs(self) -> tuple[Output, ...]:
        return accumulate_events(self.events, execution_count=self.ended.seq)

    @property
    def stdout(self) -> str:
        return "".join(o["text"] for o in self.outputs if o.get("name") == "stdout")

    @property
    def stderr(self) -> str:
        return "".join(o["text"] for o in self.outputs if o.get("name") == "stderr")

    @property
    def result(self) -> str | None:
        return next((o["data"]["text/plain"] for o in self.outputs if o["output_type"] == "execute_result"), None)

    @property
    def error(self) -> ErrorRaised:
        (error,) = [event for event in self.events if isinstance(event, ErrorRaised)]
        return error


def _environment() -> dict[str, str]:
    # With this variable Python itself would unbuffer C's stdout, which the package has to do.
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@cache
def _warm_process() -> WarmProcess | None:
    """Return the process from which others are forked; None where that cannot be."""
    from tests.support.leftovers import keep_for_session
    from tests.support.warm_start import WarmProcess

    if sys.platform != "linux":
        return None
    warm = WarmProcess("cells", _environment())
    keep_for_session(warm.pid)
    atexit.register(warm.close)
    return warm


class CellProcess:
    """The process as the test sees it."""

    def __init__(self, folder: Path, *, generation: int = 1, preload: Sequence[str] = ()) -> None:
        self.folder, self.generation, self.seq = folder, generation, 0
        self.unread: list[Message] = []
        self.prompt_number = 0
        """The number of the prompt that was received last."""
        create_interrupt_flag(folder, 0)
        self._flag = InterruptFlag(folder, 0)
        command_read, self._commands = os.pipe()
        self._answers, answer_write = os.pipe()
        arguments = [str(folder), str(generation), str(command_read), str(answer_write), *preload]
        from tests.support.warm_start import fork  # not in the process itself

        environment = _environment()
        command = [sys.executable, "-m", "tests.support.cell_process", *arguments]
        pipes = command_read, answer_write
        forked = None
        if not preload and (warm := _warm_process()) is not None:
            fds = {0: os.open(os.devnull, os.O_RDONLY)} | {fd: fd for fd in (1, 2, *pipes)}
            forked = fork(warm.address, command, arguments, environment, fds)
            os.close(fds[0])
        self.process = forked or subprocess.Popen(command, pass_fds=pipes, stdin=subprocess.DEVNULL, env=environment)
        os.close(command_read)
        os.close(answer_write)
        self._partial_line = b""

    def __enter__(self) -> CellProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._flag.close()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def send(self, message: Message) -> None:
        os.write(self._commands, encode(message)[0] + b"\n")

    def begin(self, source: str, **shown: Any) -> int:
        """Send a cell, and return its number."""
        self.seq += 1
        self.send(RunCell(self.generation, self.seq, source, **shown))
        return self.seq

    def skip(self) -> CellEnded:
        self.seq += 1
        self.send(SkipCell(self.generation, self.seq))
        ended = self.receive(lambda m: isinstance(m, CellEnded))
        assert isinstance(ended, CellEnded)
        return ended

    def run(self, source: str, **shown: Any) -> CellAnswer:
        """Run a cell to its end."""
        return self.finish(self.begin(source, **shown))

    def finish(self, seq: int) -> CellAnswer:
        """Wait for the end of a cell."""
        ended = self.receive(lambda m: isinstance(m, CellEnded) and m.seq == seq)
        assert isinstance(ended, CellEnded)
        live = [m for m in self.unread if isinstance(m, OutputProduced) and m.seq == seq]
        self.unread = [m for m in self.unread if m not in live]
        return CellAnswer(ended, [event for m in live for event in m.events])

    def describe_state(self) -> dict[str, Any]:
        """Ask for what a notebook that attaches is told."""
        self.send(RankRequest(0, "state", {}))
        reply = self.receive(lambda m: isinstance(m, RankReply))
        assert isinstance(reply, RankReply)
        value: dict[str, Any] = reply.value
        return value

    def refused(self) -> CellRefused:
        message = self.receive(lambda m: isinstance(m, CellRefused))
        assert isinstance(message, CellRefused)
        return message

    def prompt(self) -> DebugPrompt:
        """Wait until the running cell has stopped in the debugger and waits for a line."""
        message = self.receive(lambda m: isinstance(m, DebugPrompt) and m.seq == self.seq)
        assert isinstance(message, DebugPrompt)
        self.prompt_number = message.number
        return message

    def type_line(self, line: str | None) -> None:
        """Answer the debugger's prompt; None is the end of all input."""
        self.send(DebugInput(self.seq, self.prompt_number, line))

    def debug(self, *lines: str) -> list[DebugPrompt]:
        """Type lines for the running cell, each at a prompt; return the prompts, also the one after the last line."""
        prompts = [self.prompt()]
        for line in lines:
            self.type_line(line)
            prompts.append(self.prompt())
        return prompts

    def wait_for_output(self, seq: int, text: str) -> None:
        """Wait until the cell, running or ended, has written `text` to stdout or stderr."""
        said = ""
        while text not in said:
            message = self.receive(lambda m: isinstance(m, OutputProduced) and m.seq == seq)
            assert isinstance(message, OutputProduced)
            said += "".join(event.text for event in message.events if isinstance(event, Stream))

    def interrupt(self) -> None:
        self._flag.request_interrupt(self.seq)
        self.process.send_signal(signal.SIGINT)

    def request_report(self) -> None:
        """Ask where the cell is, as the supervisor does."""
        self._flag.request_report()

    def receive(self, wanted: Callable[[Message], bool]) -> Message:
        """Return the first message that matches, and keep the others."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            for message in self.unread:
                if wanted(message):
                    self.unread.remove(message)
                    return message
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no such message within {TIMEOUT_S:g} s; unread: {self.unread}"
            data = os.read(self._answers, 1 << 20)
            assert data, f"the process ended: {self.process.wait()}\n{self._read_files()}"
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            self.unread += [decode([line]) for line in lines]

    def _read_files(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.iterdir() if path.is_file())


# -- inside the process


class SimulatedLaunches:
    """A record of launches that the cell itself simulates, beside the supervisor's requests.

    The cell is asked to stop by the process outside, or if it says itself that it was asked.
    """

    def __init__(self, names: dict[str, Any], flag: InterruptFlag) -> None:
        self.mismatches = Mismatches()
        self._names, self._flag, self._seq = names, flag, 0

    @property
    def interrupted_seq(self) -> int:
        return self._seq if self._names.get("asked") else self._flag.interrupted_seq

    @property
    def report_count(self) -> int:
        return self._flag.report_count

    def begin_cell(self, cell: RunCell) -> None:
        self._seq = cell.seq
        self._names["begun"] = self._names.get("begun", 0) + 1

    def notify_cell_ended(self, seq: int, outcome: Outcome) -> None:
        self._names["left"] = (seq, outcome)

    def wait_all(self, limit_s: float | None = None) -> None:
        self._names.get("waiting" if limit_s is None else "finishing", lambda: None)()

    def release_finished(self) -> None:
        """Do nothing, because nothing was launched."""

    def close_cell(self, seq: int, outcome: Outcome) -> tuple[LaunchReport, list[str]]:
        self.notify_cell_ended(seq, outcome)
        rows, abandoned = self._names.pop("rows", []), self._names.pop("abandoned", 0)
        rows = [LaunchRow(*row) for row in rows]
        return LaunchReport(rows, abandoned_count=abandoned, running_count=self._names.get("running", 0)), []

    def sample_launches(self) -> tuple[dict[tuple[int, ...], int], PendingLaunch | None]:
        return {}, self._names.get("flight")

    def list_awaited(self) -> list[int] | None:
        return self._names.get("awaited")


class _Inbox:
    """Messages that arrive on a pipe; a rank's debugger reads its lines there, too."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, bytearray()

    def fill(self) -> bool:
        """Read once; return False at the end."""
        data = os.read(self._fd, 1 << 20)
        self._rest.extend(data)
        return bool(data)

    def take(self) -> Message | None:
        if b"\n" not in self._rest:
            return None
        line, _, after = bytes(self._rest).partition(b"\n")
        self._rest[:] = after
        return decode([line])

    def read_line(self, number: int, wake_fd: int) -> str | None:
        while True:
            if (message := self.take()) is not None:
                assert isinstance(message, DebugInput)
                assert message.number == number
                return message.line
            ready, _, _ = select.select([self._fd, wake_fd], [], [])
            if wake_fd in ready or not self.fill():
                return None


async def _serve(folder: Path, generation: int, commands: int, answers: int) -> None:
    from mhnb.rank.execution.capture import Capture
    from mhnb.rank.execution.interrupts import InterruptDelivery
    from mhnb.rank.execution.runner import CellRunner
    from mhnb.rank.execution.shell import RankShell

    capture = Capture(folder / "log", (folder / "out", folder / "err"), folder / "begun")
    capture.install_native()
    capture.install()
    shell = RankShell.instance(user_ns={})

    def send(message: Message) -> None:
        data = encode(message)[0] + b"\n"
        while data:
            data = data[os.write(answers, data) :]

    launches = SimulatedLaunches(shell.user_ns, InterruptFlag(folder, 0))
    interrupts = InterruptDelivery(launches, send=send)
    inbox = _Inbox(commands)
    runner = CellRunner(
        shell,
        capture,
        launches,
        interrupts,
        rank=0,
        generation=generation,
        send=send,
        clock=time.perf_counter,
        prompt_input=inbox,
    )
    ended = asyncio.Event()

    def read() -> None:
        if not inbox.fill():
            ended.set()
        while (message := inbox.take()) is not None:
            if isinstance(message, RankRequest):
                send(RankReply(0, message.request_id, ok=True, value=runner.describe_state()))
                continue
            assert isinstance(message, RunCell | SkipCell)
            runner.handle(message)

    asyncio.get_running_loop().add_reader(commands, read)
    await ended.wait()


def preload() -> None:
    """Import what every such process needs."""
    for module in ("capture", "interrupts", "runner", "shell"):
        importlib.import_module(f"mhnb.rank.execution.{module}")
    # As a supervisor does for its ranks: otherwise the first error of every process takes a quarter of a second.
    importlib.import_module("mhnb.rank.spawn")._warm_tracebacks()


def main(arguments: Sequence[str]) -> None:
    """Answer messages until the pipe with them is closed; the arguments are those that `CellProcess` passes."""
    for module in arguments[4:]:
        importlib.import_module(module)
    asyncio.run(_serve(Path(arguments[0]), *map(int, arguments[1:4])))


if __name__ == "__main__":
    main(sys.argv[1:])
