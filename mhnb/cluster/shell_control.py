"""Do in the notebook's process what a shell requests: `mhnb status`, `mhnb interrupt` and `mhnb restart`.

The event loop looks for requests, because the notebook's main thread may hang. What takes long has a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mhnb.errors import MhnbError
from mhnb.system.shell_requests import ShellAnswer, ShellRequest, make_answer, take_request, write_answer

Action = Callable[[], tuple[str, Mapping[str, Any]]]
"""Does what is requested; returns a text for the shell, and values by name."""


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
        long_actions: Mapping[str, Action],
        clock: Callable[[], float],
    ) -> None:
        self._run_dir, self._actions, self._long_actions, self._clock = run_dir, actions, long_actions, clock

    def poll(self) -> None:
        """Do what a shell has requested, if there is a request.

        Raises:
            OSError: its file cannot be read, or another user could have written it.
            ValueError: its file is not a request.
        """
        request = take_request(self._run_dir, self._clock())
        if request is None:
            return
        if (long_action := self._long_actions.get(request.action)) is not None:
            self._answer(request, make_answer("accepted"))
            threading.Thread(target=self._act, args=(request, long_action), name="mhnb-shell", daemon=True).start()
        elif (action := self._actions.get(request.action)) is not None:
            self._act(request, action)
        else:
            text = f"the notebook's mhnb does not know {request.action!r}; it may be another version"
            self._answer(request, make_answer("failed", text))

    def _act(self, request: ShellRequest, action: Action) -> None:
        try:
            text, values = action()
        except MhnbError as error:
            self._answer(request, make_answer("failed", str(error)))
        except Exception as error:
            self._answer(request, make_answer("failed", f"{type(error).__name__}: {error}"))
            raise
        else:
            self._answer(request, make_answer("done", text, values))

    def _answer(self, request: ShellRequest, answer: ShellAnswer) -> None:
        write_answer(self._run_dir, request, answer)
