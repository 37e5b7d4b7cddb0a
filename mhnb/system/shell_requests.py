"""Requests that a shell leaves in the run directory of a cluster, for the process of its notebook, and the answers.

The notebook's main thread may hang, so its event loop looks for a request. An answer's file has the id of its request in its name,
so a late answer is never taken for that to another request. Both files are private, and are read only if no other user could have
written them. This module knows no action.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from mhnb.core.typed_json import decode_json, encode_json
from mhnb.system.private_files import open_private, read_private, write_private
from mhnb.system.waiting import wait_until

_REQUEST, _LOCK = "request.json", "request.lock"
_POLL_S = 0.05


class ShellRequest(msgspec.Struct, frozen=True):
    """What a shell asks of the notebook's process."""

    id: str
    action: str
    expires_at_s: float
    """Seconds since 1970 after which the shell does not wait any more, and nothing must be done."""


class ShellAnswer(msgspec.Struct, frozen=True):
    """What the notebook's process answers; `accepted` if the work takes longer, and another answer follows."""

    id: str
    outcome: Literal["accepted", "done", "failed"]
    text: str = ""
    """What was done, or why it failed."""
    values: dict[str, Any] = {}
    """The requested values, by name."""


class PendingRequest:
    """A request that a shell has sent and whose answer it awaits.

    Args:
        run_dir: of the cluster.
        request_id: the id of the request.
        clock: in seconds, which never goes back.
        turn: descriptor of the lock that other shells wait for.
    """

    def __init__(self, run_dir: Path, request_id: str, clock: Callable[[], float], turn: int) -> None:
        self._run_dir, self._clock, self._turn = run_dir, clock, turn
        self._answer_path = run_dir / _answer_name(request_id)
        self._is_answered = False

    def wait(self, limit_s: float, *, until_done: bool = True) -> ShellAnswer | None:
        """Return the answer; None if the limit is reached before. With `until_done`, `accepted` is not the answer."""

        def poll() -> ShellAnswer | None:
            answer = _read_answer(self._answer_path)
            if answer is not None and not self._is_answered:
                self._is_answered = True
                # The request has been taken. A restart takes minutes, and `mhnb status` must not wait for its end.
                fcntl.flock(self._turn, fcntl.LOCK_UN)
            return None if answer is None or (until_done and answer.outcome == "accepted") else answer

        return wait_until(poll, limit_s, _POLL_S, clock=self._clock)

    def end(self) -> None:
        """Remove the request, unless it was taken: the file may be another shell's. Remove the answer."""
        if not self._is_answered:
            (self._run_dir / _REQUEST).unlink(missing_ok=True)
        self._answer_path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a shell."""

    wall: Callable[[], float]
    monotonic: Callable[[], float]


@contextmanager
def sent_request(run_dir: Path, action: str, limit_s: float, clocks: Clocks) -> Iterator[PendingRequest]:
    """Send a request to the notebook's process; at the end of the block it is withdrawn.

    Shells take turns until the request is answered for the first time, because one file has one request.

    Args:
        run_dir: of the cluster.
        action: what to do.
        limit_s: how long the notebook's process may take to find the request.
        clocks: of this process.

    Raises:
        OSError: the files cannot be written, or another user could have written them (`NotPrivate`).
    """
    fd = open_private(run_dir / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        request = ShellRequest(secrets.token_hex(8), action, clocks.wall() + limit_s)
        write_private(run_dir / _REQUEST, encode_json(request))
        pending = PendingRequest(run_dir, request.id, clocks.monotonic, fd)
        try:
            yield pending
        finally:
            pending.end()
    finally:
        os.close(fd)


def take_request(run_dir: Path, now_s: float) -> ShellRequest | None:
    """Return the request of a shell, and remove it; None without a request, or if its shell no longer waits.

    Args:
        run_dir: of the cluster.
        now_s: seconds since 1970.

    Raises:
        OSError: the file cannot be read, or another user could have written it (`NotPrivate`).
        ValueError: it is not a request.
    """
    path = run_dir / _REQUEST
    if not path.exists():
        return None
    try:
        request = decode_json(read_private(path), ShellRequest)
    except FileNotFoundError:
        # Withdrawn at this moment.
        return None
    finally:
        path.unlink(missing_ok=True)
    return request if request.expires_at_s > now_s and request.id.isalnum() else None


def write_answer(run_dir: Path, request: ShellRequest, answer: ShellAnswer) -> None:
    """Write the answer to a request."""
    write_private(run_dir / _answer_name(request.id), encode_json(msgspec.structs.replace(answer, id=request.id)))


def make_answer(
    outcome: Literal["accepted", "done", "failed"], text: str = "", values: Mapping[str, Any] | None = None
) -> ShellAnswer:
    """Return an answer, to be written for a request."""
    return ShellAnswer("", outcome, text, dict(values or {}))


def _answer_name(request_id: str) -> str:
    return f"answer-{request_id}.json"


def _read_answer(path: Path) -> ShellAnswer | None:
    try:
        return decode_json(read_private(path), ShellAnswer)
    except FileNotFoundError:
        return None
