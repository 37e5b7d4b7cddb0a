"""The probes of all tasks that one command carries, srun or mpiexec: each question goes to all, the answers come through one log.

Of tasks on one machine the first speaks for it. Judges nothing.
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
    """The command itself has ended, or is being ended: what it wrote says why."""


class Chorus:
    """The probes of one command, and the one of the notebook's own machine, which comes last.

    Args:
        count: of the tasks.
        log: takes all that the command writes.
        send: hands a line to every task.
        calls: by which the tasks are asked and answer, where the command hands them nothing; each says first whether it hears.
        has_ended: whether the command has.
        far: what there is on the machines, for what a failure says.
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
        """How many machines there are beside this one, which comes last."""
        return len(self._tasks)

    def add_own(self, own: Probe) -> None:
        """Ask this machine's probe too, as the last."""
        self._own = own

    def stop(self) -> None:
        """Ask no more: whoever waits for an answer gets ChorusEnded."""
        self._over.set()

    def close(self) -> None:
        """Let go of what asking needs."""
        self._pool.shutdown()

    # -- what is asked

    def await_begin(self) -> None:
        """Wait until the tasks run: they may stand in a queue.

        Raises:
            ChorusEnded: they never will.
        """
        self._read()
        while not self._begun:
            # For hours perhaps.
            self._pause(_QUEUE_LOOK_S)
            self._read()

    def ask(self, what: str, arguments: Mapping[int, Mapping[str, Any]], *, timeout_s: float) -> list[Any]:
        """Ask the machines in `arguments`; answers of all in order, this machine's last, None where there is none.

        Raises:
            ChorusEnded: the command has ended.
        """
        own = self._pool.submit(self._ask_own, what, arguments, timeout_s)
        if self._calls is not None:
            # One that has not called yet would not hear it.
            self._await(0, self._every, _GREETING_S)
        number = self._ask(what, {task: arguments[at] for at, task in enumerate(self._tasks) if at in arguments})
        self._await(number, [task for at, task in enumerate(self._tasks) if at in arguments], timeout_s)
        return [*(self._answer(task, number, what) for task in self._tasks), own.result()]

    def ask_time(self, timeout_s: float, clock: Callable[[], float]) -> list[tuple[float, float] | None]:
        """Compare every machine's clock with this one's: seconds ahead, and by how much that may be wrong."""
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
        """Ask only these from now on, by their position: of several tasks on a machine one is enough."""
        self._tasks = [self._tasks[at] for at in chosen]

    def release(self) -> None:
        """Have every probe make room for the supervisor of its task.

        Raises:
            ChorusEnded: the command has ended.
            HostUnreachable: a task did not.
        """
        number = self._ask("end", {})
        self._await(number, self._every, _END_S)
        if failed := [failure for task in self._every if (failure := self._failure(task)) is not None]:
            raise failed[0]

    # -- what cannot be asked

    def failures(self) -> list[LaunchError | None]:
        """Why a machine cannot be asked, by machine; this one's last."""
        return [*map(self._failure, self._tasks), None if self._own is None else self._own.failure]

    def deaf(self) -> dict[int, str]:
        """Machines that cannot be reached with questions, by position, and why: what they told of themselves is all there is."""
        return {at: why for at, task in enumerate(self._tasks) if (why := self._greeting(task).get("error"))}

    def hostname(self, at: int) -> str:
        """The name of a machine whose probe has ended; empty where it is not known."""
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

    # -- how it is sent and read

    def _ask(self, what: str, arguments: Mapping[int, Mapping[str, Any]]) -> int:
        """Send a request; what is the same for all stands in it once. Return its number."""
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
        """Wait for the answers to a request, from all who can give one."""
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
        # Once more after the end: what was said last may be all that one waits for.
        if self._is_last or self._over.wait(look_s):
            raise ChorusEnded("the command that carries the probes has ended")
        self._is_last = self._has_ended()

    def _read(self) -> None:
        """Read what has come since, up to the last whole line."""
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
