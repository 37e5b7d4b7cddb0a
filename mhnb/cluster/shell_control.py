"""Serve shells in the notebook's process: reports, interrupts and restarts.

The event loop looks for requests, because the notebook's main thread may hang. What takes long has a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mhnb.errors import MhnbError
from mhnb.system.private_files import NotPrivate
from mhnb.system.shell_requests import ShellAnswer, ShellRequest, find_requests, make_answer, take_request, write_answer

Action = Callable[[], tuple[str, Mapping[str, Any]]]
"""Does what is requested; returns a text for the shell, and values by name."""
LongAction = Callable[..., tuple[str, Mapping[str, Any]]]
"""The same with two kinds of arguments: a function that tells the shell how far it is, and the request's own by name."""


class ShellRequests:
    """Requests of shells for one cluster.

    Args:
        run_dir: of the cluster.
        actions: by name, those that are done at once, in the event loop's thread.
        long_actions: by name, those that get a thread of their own.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        run_dir: Path,
        actions: Mapping[str, Action],
        long_actions: Mapping[str, LongAction],
        clock: Callable[[], float],
    ) -> None:
        self._run_dir, self._actions, self._long_actions, self._clock = run_dir, actions, long_actions, clock

    def poll(self) -> None:
        """Do what shells have requested, if there are requests.

        Raises:
            OSError: the folder cannot be read, or another user could have written a file there.
        """
        for request_id in find_requests(self._run_dir):
            try:
                request = take_request(self._run_dir, request_id, self._clock())
            except NotPrivate:
                raise
            except (OSError, ValueError) as error:
                self._answer(request_id, make_answer("failed", f"the request cannot be read: {error}"))
                continue
            if request is not None:
                self._begin(request_id, request)

    def _begin(self, request_id: str, request: ShellRequest) -> None:
        if (long_action := self._long_actions.get(request.action)) is not None:
            self._answer(request_id, make_answer("accepted"))
            action = partial(long_action, partial(self._report_progress, request_id), **request.arguments)
            threading.Thread(target=self._act, args=(request_id, action), name="mhnb-shell", daemon=True).start()
        elif (short_action := self._actions.get(request.action)) is not None:
            self._act(request_id, short_action)
        else:
            text = f"the notebook's mhnb does not know {request.action!r}; it may be another version"
            self._answer(request_id, make_answer("failed", text))

    def _act(self, request_id: str, action: Action) -> None:
        try:
            text, values = action()
        except MhnbError as error:
            self._answer(request_id, make_answer("failed", str(error), {"error": type(error).__name__}))
        except Exception as error:
            self._answer(request_id, make_answer("failed", f"{type(error).__name__}: {error}"))
            raise
        else:
            self._answer(request_id, make_answer("done", text, values))

    def _report_progress(self, request_id: str, text: str) -> None:
        self._answer(request_id, make_answer("accepted", text))

    def _answer(self, request_id: str, answer: ShellAnswer) -> None:
        write_answer(self._run_dir, request_id, answer)
