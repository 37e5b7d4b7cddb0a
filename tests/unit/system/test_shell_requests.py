"""Requests of a shell in a run directory: each is taken once, by the owner of both files only, and answered by its id."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mhnb.cluster.shell_control import ShellRequests
from mhnb.cluster.status import ClusterListener
from mhnb.errors import ClusterError
from mhnb.system.private_files import NotPrivate, write_private
from mhnb.system.shell_requests import (
    Clocks,
    PendingRequest,
    ShellAnswer,
    find_requests,
    make_answer,
    sent_request,
    take_request,
    write_answer,
)

NOW_S = 1_700_000_000.0
REQUEST_ID = f"{os.getpid()}.{'0' * 16}"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory."""
    tmp_path.chmod(0o700)
    return tmp_path


@contextmanager
def sent(run_dir: Path, action: str = "status", limit_s: float = 5.0, **arguments: object) -> Iterator[PendingRequest]:
    """Send a request at `NOW_S`."""
    with sent_request(run_dir, action, limit_s, Clocks(lambda: NOW_S, time.monotonic), arguments) as pending:
        yield pending


def read_answer(pending: PendingRequest) -> ShellAnswer:
    """Return the final answer, which must exist."""
    answer = pending.wait(0.0)
    assert answer is not None
    return answer


def take_all(run_dir: Path, now_s: float = NOW_S) -> dict[str, str]:
    """Take all requests; return the id of each by its action."""
    taken = ((request_id, take_request(run_dir, request_id, now_s)) for request_id in find_requests(run_dir))
    return {request.action: request_id for request_id, request in taken if request is not None}


def test_request_is_taken_once_and_answered(run_dir: Path) -> None:
    """A request is found once; `accepted` is an answer only for a shell that does not wait for the end."""
    with sent(run_dir, "restart") as pending:
        request_id = take_all(run_dir)["restart"]
        assert take_all(run_dir) == {}
        assert pending.wait(0.0, until_done=False) is None
        write_answer(run_dir, request_id, make_answer("accepted"))
        assert pending.wait(0.0) is None
        accepted = pending.wait(0.0, until_done=False)
        assert accepted is not None
        assert accepted.outcome == "accepted"
        write_answer(run_dir, request_id, make_answer("done", "it is done", {"generation": 2}))
        answer = read_answer(pending)
        assert (answer.text, answer.values) == ("it is done", {"generation": 2})
    with sent(run_dir) as pending:
        # The answer to another request is none.
        assert pending.wait(0.0) is None


def test_no_shell_blocks_another(run_dir: Path) -> None:
    """However long a shell waits or is stopped, another one asks and gets its own answer; each removes only its own files."""
    with sent(run_dir, "restart") as slow:
        with sent(run_dir, "status") as quick:
            taken = take_all(run_dir)
            write_answer(run_dir, taken["status"], make_answer("done", "clean"))
            assert read_answer(quick).text == "clean"
        write_answer(run_dir, taken["restart"], make_answer("done", "restarted"))
        assert read_answer(slow).text == "restarted"
    assert list(run_dir.iterdir()) == []


def test_request_whose_shell_does_not_wait_is_dropped(run_dir: Path) -> None:
    """A request that was withdrawn, or whose shell was killed long ago, is not done."""
    with sent(run_dir):
        pass
    assert find_requests(run_dir) == []
    with sent(run_dir, limit_s=5.0):
        assert take_all(run_dir, NOW_S + 6.0) == {}
        assert find_requests(run_dir) == []


def test_answer_to_a_killed_shell_is_removed_by_the_next(run_dir: Path) -> None:
    """The next shell removes the answers that processes have left that are gone, and no others."""
    kept, left = f"answer-{os.getpid()}.{'a' * 16}.json", f"answer-{(1 << 22) + 1}.{'b' * 16}.json"
    for name in (kept, left, "answer-of-the-user.json"):
        write_private(run_dir / name, "{}")
    with sent(run_dir):
        names = {path.name for path in run_dir.glob("answer*")}
    assert names == {kept, "answer-of-the-user.json"}


def test_files_are_private(run_dir: Path) -> None:
    """Request and answer have mode 0600, whatever the umask."""
    old = os.umask(0)
    try:
        with sent(run_dir):
            (request_id,) = find_requests(run_dir)
            write_answer(run_dir, request_id, make_answer("done"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run_dir.iterdir()}
    finally:
        os.umask(old)
    assert modes == {f"answer-{request_id}.json": 0o600, f"request-{request_id}.json": 0o600}


@pytest.mark.parametrize("way", ["symbolic link", "hard link", "folder for others"])
def test_request_that_others_could_have_written_is_refused(run_dir: Path, way: str) -> None:
    """A file or folder that another user could have written raises, and is removed; nothing is done."""
    elsewhere, path = run_dir / "elsewhere", run_dir / f"request-{REQUEST_ID}.json"
    elsewhere.write_text('{"action": "restart", "expires_at_s": 1e12}')
    if way == "symbolic link":
        path.symlink_to(elsewhere)
    elif way == "hard link":
        path.hardlink_to(elsewhere)
    else:
        elsewhere.rename(path)
        run_dir.chmod(0o777)
    with pytest.raises(NotPrivate):
        take_request(run_dir, REQUEST_ID, NOW_S)
    assert not path.exists()


def test_each_outcome_is_answered(run_dir: Path) -> None:
    """A request is answered with what its action returns, with its error, or with the fact that it is unknown."""

    def refuse() -> tuple[str, dict[str, object]]:
        raise ClusterError("no rank is left")

    requests = ShellRequests(run_dir, {"work": lambda: ("worked", {"a": 1}), "fail": refuse}, {}, lambda: NOW_S)
    expected = {
        "work": ("done", "worked", {"a": 1}),
        "fail": ("failed", "no rank is left", {"error": "ClusterError"}),
        "other": ("failed", "the notebook's mhnb does not know 'other'; it may be another version", {}),
    }
    for action, outcome in expected.items():
        with sent(run_dir, action) as pending:
            requests.poll()
            answer = read_answer(pending)
        assert (answer.outcome, answer.text, answer.values) == outcome


def test_long_action_has_a_thread_of_its_own(run_dir: Path) -> None:
    """A long action is accepted at once; its thread gets the arguments, tells how far it is, and gives the last answer.

    The shell gets each text once.
    """
    was_told = threading.Event()

    def work(tell: Callable[[str], None], *, steps: int) -> tuple[str, dict[str, object]]:
        tell(f"step 1 of {steps}")
        was_told.wait()
        return "worked", {}

    told: list[str] = []
    requests = ShellRequests(run_dir, {}, {"long": work}, lambda: NOW_S)
    with sent(run_dir, "long", steps=3) as pending:
        requests.poll()
        while not told:
            assert pending.wait(0.0, on_progress=told.append) is None
        assert pending.wait(0.0, on_progress=told.append) is None
        was_told.set()
        answer = pending.wait(20.0)
    assert answer is not None
    assert (answer.outcome, answer.text, told) == ("done", "worked", ["step 1 of 3"])


def test_broken_request_is_answered(run_dir: Path) -> None:
    """A file that is not a request is answered with the reason, and the next request is done."""
    requests = ShellRequests(run_dir, {"work": lambda: ("worked", {})}, {}, lambda: NOW_S)
    with sent(run_dir, "work") as pending:
        (request_id,) = find_requests(run_dir)
        write_private(run_dir / f"request-{request_id}.json", "[]")
        requests.poll()
        answer = read_answer(pending)
    assert (answer.outcome, answer.text.partition("Expected")[0]) == ("failed", "the request cannot be read: ")
    with sent(run_dir, "work") as pending:
        requests.poll()
        assert read_answer(pending).text == "worked"


def test_request_of_another_user_ends_the_search(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What another user could have written is reported once, and no request is looked for any more; the event loop goes on."""
    listener = ClusterListener()
    listener.enable_shell_requests(ShellRequests(run_dir, {"work": lambda: ("", {})}, {}, lambda: NOW_S))
    (run_dir / f"request-{REQUEST_ID}.json").symlink_to(run_dir / "elsewhere")
    listener.on_tick()
    assert "NotPrivate" in capsys.readouterr().err
    with sent(run_dir, "work") as pending:
        listener.on_tick()
        assert pending.wait(0.0) is None
