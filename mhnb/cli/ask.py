"""Ask the process of a cluster's notebook.

Its event loop finds the request, also while its main thread hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from mhnb.system.processes import PROCESS_UNREADABLE
from mhnb.system.run_dir import RunRecord, has_live_notebook
from mhnb.system.shell_requests import Clocks, ShellAnswer, sent_request

_FOUND_S = 5.0
"""How long the notebook's process may take to find a request: its event loop looks several times a second."""
_ANSWER_S = 60.0
_CLOCKS = Clocks(time.time, time.monotonic)


def ask_notebook(
    record: RunRecord,
    action: str,
    limit_s: float | None,
    arguments: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> ShellAnswer | None:
    """Send a request to the notebook's process; None if it does not answer.

    Args:
        record: of the cluster.
        action: what to do.
        limit_s: how long it may take once the process has answered at all; None for as long as the process runs.
        arguments: of the action, by name; None for none.
        on_progress: called with how far the action is, each time that it says so.

    Raises:
        KeyboardInterrupt: Ctrl-C; the text says whether the action goes on.
    """
    with sent_request(Path(record.run_dir), action, _FOUND_S, _CLOCKS, arguments) as pending:
        if pending.wait(_FOUND_S, until_done=False) is None:
            return None
        try:
            answer = pending.wait(_FOUND_S if limit_s is None else limit_s, on_progress=on_progress)
            while answer is None and limit_s is None and has_live_notebook(record):
                answer = pending.wait(_FOUND_S, on_progress=on_progress)
        except KeyboardInterrupt:
            goes_on = f"the notebook's process goes on with it\n  To stop that: mhnb interrupt {record.name}"
            raise KeyboardInterrupt(goes_on) from None
        return answer


def describe_silence(record: RunRecord, waited_s: float = _FOUND_S) -> str:
    """Describe that the notebook's process did not answer, and why that may be."""
    return (
        f"the process of its notebook (pid {record.owner_pid}) did not answer within {waited_s:g} s; "
        "it may be suspended, or run one long call that lets no other thread run"
    )


def find_pids_here(record: RunRecord) -> set[int]:
    """Return the ids of the processes of a cluster on this machine, because those of other machines may be any process here."""
    try:
        return {process.pid for process in psutil.Process(record.supervisor_pid).children(recursive=True)}
    except PROCESS_UNREADABLE:
        return set()
