"""Multiplex probe requests to all tasks of one srun or mpiexec: each request goes to all tasks, the answers arrive in one log.

The first of the tasks on a machine answers for it. The answers are not evaluated here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mhnb.core.reach.chorus import Gone, Part, Said, read_line
from mhnb.core.reach.hosts import HostName
from mhnb.core.reach.ssh import LOGGED_IN, SshOptions
from mhnb.core.reach.sshfail import explain_ssh, ssh_error
from mhnb.errors import HostUnreachable, LaunchError
from mhnb.launch.calls import Calls
from mhnb.launch.probing import Probe

__all__ = ["Chorus", "ChorusEnded"]

_LOOK_S = 0.01
_QUEUE_LOOK_S = 0.1
_GREETING_S = 30.0
_END_S = 20.0


class ChorusEnded(LaunchError):
    """The command itself has ended, or is being stopped; its output contains the reason."""


class Chorus:
    """The probes of one command, and the probe of the notebook's own machine, which is last.

    Args:
        count: number of tasks.
        log: receives all output of the command.
        send: sends a line to every task.
        calls: server for requests and answers, if the command cannot pass them; each task first reports whether it is reachable.
        has_ended: returns whether the command has ended.
        far: remote options, used to explain failures.
    """

    def __init__(
        self,
        count: int,
        log: Path,
        *,
        send: Callable[[bytes], None],
        has_ended: Callable[[], bool],
        far: SshOptions,
        calls: Calls | None = None,
    ) -> None:
        self._log, self._has_ended, self._far = log, has_ended, far
        self._send, self._calls = send if calls is None else calls.send, calls
        self._every, self._tasks = list(range(count)), list(range(count))
        self._at, self._request = 0, 0
        self._parts: dict[tuple[int, int], dict[int, str]] = {}
        self._answers: dict[tuple[int, int], Any] = {}
        self._said: dict[int, list[str]] = {}
        self._gone: dict[int, Gone] = {}
        self._late: dict[int, float] = {}
        self._begun = self._is_last = False
        self._over = threading.Event()
        self._own: Probe | None = None
        self._pool = ThreadPoolExecutor(1, "mhnb-preflight-own")

    @property
    def count(self) -> int:
        """Return the number of machines without this one, which is last."""
        return len(self._tasks)

    def add_own(self, own: Probe) -> None:
        """Add this machine's probe as the last one."""
        self._own = own

    def stop(self) -> None:
        """Stop sending requests: a caller that waits for an answer gets ChorusEnded."""
        self._over.set()

    def close(self) -> None:
        """Shut the thread pool down."""
        self._pool.shutdown()

    # -- requests

    def await_begin(self) -> None:
        """Wait until the tasks run: they may be queued.

        Raises:
            ChorusEnded: they will never run.
        """
        self._read()
        while not self._begun:
            # This may take hours.
            self._pause(_QUEUE_LOOK_S)
            self._read()

    def ask(self, what: str, arguments: Mapping[int, Mapping[str, Any]], *, timeout_s: float) -> list[Any]:
        """Send a request to the machines in `arguments`; return all answers in order, this machine's last, None if missing.

        Raises:
            ChorusEnded: the command has ended.
        """
        own = self._pool.submit(self._ask_own, what, arguments, timeout_s)
        if self._calls is not None:
            # A probe that has not connected yet would miss the request.
            self._await(0, self._every, _GREETING_S)
        number = self._ask(what, {task: arguments[at] for at, task in enumerate(self._tasks) if at in arguments})
        self._await(number, [task for at, task in enumerate(self._tasks) if at in arguments], timeout_s)
        return [*(self._answer(task, number, what) for task in self._tasks), own.result()]

    def ask_time(self, timeout_s: float, clock: Callable[[], float]) -> list[tuple[float, float] | None]:
        """Compare every machine's clock with this one's: seconds ahead, and the error bound."""
        before = clock()
        number = self._ask("time", {task: {} for task in self._tasks})
        came: dict[int, float] = {}
        self._await(number, self._tasks, timeout_s, lambda task: came.setdefault(task, clock()))
        found: list[tuple[float, float] | None] = []
        for task in self._tasks:
            there, after = self._answers.get((task, number)), came.get(task, 0.0)
            found.append(None if there is None else (there - (before + after) / 2, (after - before) / 2))
        return [*found, None]

    def _ask_own(self, what: str, arguments: Mapping[int, Mapping[str, Any]], timeout_s: float) -> Any:
        at = len(self._tasks)
        if self._own is None or at not in arguments:
            return None
        return self._own.ask(what, arguments[at], timeout_s=timeout_s)

    def narrow(self, chosen: Sequence[int]) -> None:
        """Send later requests only to these positions, because one of several tasks on a machine is enough."""
        self._tasks = [self._tasks[at] for at in chosen]

    def release(self) -> None:
        """Make every probe end, so that the supervisor of its task can start.

        Raises:
            ChorusEnded: the command has ended.
            HostUnreachable: a task did not end its probe.
        """
        number = self._ask("end", {})
        self._await(number, self._every, _END_S)
        if failed := [failure for task in self._every if (failure := self._failure(task)) is not None]:
            raise failed[0]

    # -- failures

    def failures(self) -> list[LaunchError | None]:
        """Return why each machine cannot answer requests, None if it can; this machine is last."""
        return [*map(self._failure, self._tasks), None if self._own is None else self._own.failure]

    def deaf(self) -> dict[int, str]:
        """Return the machines that requests cannot reach, by position, and why. Only facts sent unrequested are known."""
        return {at: why for at, task in enumerate(self._tasks) if (why := self._greeting(task).get("error"))}

    def hostname(self, at: int) -> str:
        """Return the name of a machine whose probe has ended; empty if it is unknown."""
        gone = self._gone.get(self._tasks[at])
        return "" if gone is None else gone.hostname

    def _greeting(self, task: int) -> dict[str, Any]:
        return self._answers.get((task, 0)) or {}

    def _failure(self, task: int) -> LaunchError | None:
        if (gone := self._gone.get(task)) is not None and not self._greeting(task).get("error"):
            host = HostName(gone.hostname or f"host{task}")
            said = "\n".join(self._said.get(task, []))
            return ssh_error(explain_ssh(f"{LOGGED_IN}\n{said}", gone.code, host, self._far), host, str(self._log))
        if (late_s := self._late.get(task)) is None:
            return None
        return HostUnreachable(
            f"host{task}: gave no answer within {late_s:g} s\n  it may be overloaded, or a disk there may hang: log in by hand and see",
            host=f"host{task}",
            kind="late",
        )

    # -- sending and reading

    def _ask(self, what: str, arguments: Mapping[int, Mapping[str, Any]]) -> int:
        """Send a request and return its number. Arguments that are the same for all are sent once."""
        self._request += 1
        given = list(arguments.values())
        common = {name: value for name, value in (given[0] if given else {}).items() if _is_common(name, value, given)}
        each = {task: {k: v for k, v in own.items() if k not in common} for task, own in arguments.items()}
        request = {"id": self._request, "do": what, "common": common, "each": each}
        self._send(json.dumps(request).encode() + b"\n")
        return self._request

    def _answer(self, task: int, number: int, what: str) -> Any:
        if what == "facts" and self._greeting(task).get("error"):
            return self._greeting(task)["facts"]
        return self._answers.get((task, number))

    def _await(
        self, number: int, tasks: Sequence[int], timeout_s: float, came: Callable[[int], object] = lambda _: None
    ) -> None:
        """Wait for the answers to a request from all tasks that can answer."""
        for _ in range(int(timeout_s / _LOOK_S)):
            self._read()
            for task in tasks:
                if (task, number) in self._answers:
                    came(task)
            missing = [task for task in tasks if (task, number) not in self._answers and self._can_answer(task)]
            if not missing:
                return
            self._pause()
        self._late.update(dict.fromkeys(missing, timeout_s))

    def _can_answer(self, task: int) -> bool:
        return task not in self._gone and task not in self._late and not self._greeting(task).get("error")

    def _pause(self, look_s: float = _LOOK_S) -> None:
        # Read once more after the end: the last output may contain the awaited answer.
        if self._is_last or self._over.wait(look_s):
            raise ChorusEnded("the command that carries the probes has ended")
        self._is_last = self._has_ended()

    def _read(self) -> None:
        """Read the new output up to the last complete line."""
        with self._log.open("rb") as log:
            log.seek(self._at)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._take(read_line(line))
        for line in () if self._calls is None else self._calls.hear():
            self._take(read_line(line))

    def _take(self, said: Part | Gone | Said) -> None:
        match said:
            case Part(task, request, at, count, text):
                self._begun = True
                parts = self._parts.setdefault((task, request), {})
                parts[at] = text
                if len(parts) == count:
                    self._answers[task, request] = json.loads("".join(parts[each] for each in range(count)))
            case Gone(task):
                self._begun = True
                self._gone[task] = said
            case Said(task, text):
                self._begun = self._begun or text == LOGGED_IN
                if task is not None:
                    self._said.setdefault(task, []).append(text)


def _is_common(name: str, value: Any, given: Sequence[Mapping[str, Any]]) -> bool:
    return all(name in each and each[name] == value for each in given)
