"""Requests of a shell to a notebook's process, through the run directory.

The notebook's main thread may hang, so its event loop looks for requests. Each has files of its own, named after its id, so a shell
that is stopped blocks no other, and a late answer is never taken for that to another request. The files are private, and are
read only if no other user could have written them. This module knows no action.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from mhnb.core.typed_json import decode_json, encode_json
from mhnb.system.private_files import read_private, write_private
from mhnb.system.waiting import wait_until

_NAME = re.compile(r"(?:request|answer)-((\d{1,9})\.[0-9a-f]{16})\.json")
"""A file's name: the id of the request begins with the process id of the shell."""
_POLL_S = 0.05


class ShellRequest(msgspec.Struct, frozen=True):
    """What a shell asks of the notebook's process."""

    action: str
    expires_at_s: float
    """Seconds since 1970 after which the shell does not wait any more, and nothing must be done."""
    arguments: dict[str, Any] = {}
    """Of the action, by name."""


class ShellAnswer(msgspec.Struct, frozen=True):
    """An answer of the notebook's process; another one follows `accepted`."""

    outcome: Literal["accepted", "done", "failed"]
    text: str = ""
    """What was done, or why it failed; of `accepted`, how far the work is."""
    values: dict[str, Any] = {}
    """The requested values, by name."""


class PendingRequest:
    """A request that a shell has sent and whose answer it awaits.

    Args:
        run_dir: of the cluster.
        request_id: the id of the request.
        clock: in seconds, which never goes back.
    """

    def __init__(self, run_dir: Path, request_id: str, clock: Callable[[], float]) -> None:
        self._run_dir, self._id, self._clock = run_dir, request_id, clock
        self._progress_text = ""

    def wait(
        self, limit_s: float, *, until_done: bool = True, on_progress: Callable[[str], None] | None = None
    ) -> ShellAnswer | None:
        """Return the answer, or None after `limit_s` seconds.

        With `until_done`, `accepted` is only progress; `on_progress` is called each time its text has changed.
        """

        def poll() -> ShellAnswer | None:
            answer = _read_answer(_answer_path(self._run_dir, self._id))
            if answer is None or not until_done or answer.outcome != "accepted":
                return answer
            if on_progress is not None and answer.text != self._progress_text:
                self._progress_text = answer.text
                on_progress(answer.text)
            return None

        return wait_until(poll, limit_s, _POLL_S, clock=self._clock)

    def end(self) -> None:
        """Remove the request, unless it was taken, and the answer."""
        _request_path(self._run_dir, self._id).unlink(missing_ok=True)
        _answer_path(self._run_dir, self._id).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a shell."""

    wall: Callable[[], float]
    monotonic: Callable[[], float]


@contextmanager
def sent_request(
    run_dir: Path, action: str, limit_s: float, clocks: Clocks, arguments: Mapping[str, Any] | None = None
) -> Iterator[PendingRequest]:
    """Send a request to the notebook's process; withdraw it at the end.

    Args:
        run_dir: of the cluster.
        action: what to do.
        limit_s: how long the notebook's process may take to find the request.
        clocks: of this process.
        arguments: of the action, by name; None for none.

    Raises:
        OSError: the files cannot be written, or another user could have written them (`NotPrivate`).
    """
    _remove_left_answers(run_dir)
    request_id = f"{os.getpid()}.{secrets.token_hex(8)}"
    pending = PendingRequest(run_dir, request_id, clocks.monotonic)
    try:
        request = ShellRequest(action, clocks.wall() + limit_s, dict(arguments or {}))
        write_private(_request_path(run_dir, request_id), encode_json(request))
        yield pending
    finally:
        pending.end()


def _remove_left_answers(run_dir: Path) -> None:
    """Remove the answers to shells that were killed before they read them."""
    for path in run_dir.glob("answer-*.json"):
        named = _NAME.fullmatch(path.name)
        if named is not None and not psutil.pid_exists(int(named[2])):
            path.unlink(missing_ok=True)


def find_requests(run_dir: Path) -> list[str]:
    """Return the ids of the requests that shells have left."""
    named = (_NAME.fullmatch(path.name) for path in run_dir.glob("request-*.json"))
    return sorted(found[1] for found in named if found is not None)


def take_request(run_dir: Path, request_id: str, now_s: float) -> ShellRequest | None:
    """Remove and return a request; None if its shell stopped waiting.

    Args:
        run_dir: of the cluster.
        request_id: one of `find_requests`.
        now_s: seconds since 1970.

    Raises:
        OSError: the file cannot be read, or another user could have written it (`NotPrivate`).
        ValueError: it is not a request.
    """
    path = _request_path(run_dir, request_id)
    try:
        request = decode_json(read_private(path), ShellRequest)
    except FileNotFoundError:
        # Withdrawn at this moment.
        return None
    finally:
        path.unlink(missing_ok=True)
    return request if request.expires_at_s > now_s else None


def write_answer(run_dir: Path, request_id: str, answer: ShellAnswer) -> None:
    """Write the answer to a request."""
    write_private(_answer_path(run_dir, request_id), encode_json(answer))


def make_answer(
    outcome: Literal["accepted", "done", "failed"], text: str = "", values: Mapping[str, Any] | None = None
) -> ShellAnswer:
    """Return an answer, to be written for a request."""
    return ShellAnswer(outcome, text, dict(values or {}))


def _request_path(run_dir: Path, request_id: str) -> Path:
    return run_dir / f"request-{request_id}.json"


def _answer_path(run_dir: Path, request_id: str) -> Path:
    return run_dir / f"answer-{request_id}.json"


def _read_answer(path: Path) -> ShellAnswer | None:
    try:
        # Of any length: it may have all points that the cells have logged.
        return decode_json(read_private(path, limit_nbytes=None), ShellAnswer)
    except FileNotFoundError:
        return None
