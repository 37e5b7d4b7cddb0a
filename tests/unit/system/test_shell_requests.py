"""Requests of a shell in a run directory: each is taken once, by the owner of both files only, and answered by its id."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mhnb.cluster.shell_control import ShellRequests
from mhnb.cluster.status import ClusterListener
from mhnb.errors import ClusterError
from mhnb.system.private_files import NotPrivate
from mhnb.system.shell_requests import (
    Clocks,
    PendingRequest,
    ShellAnswer,
    make_answer,
    sent_request,
    take_request,
    write_answer,
)

NOW_S = 1_700_000_000.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory."""
    tmp_path.chmod(0o700)
    return tmp_path


@contextmanager
def sent(run_dir: Path, action: str = "status", limit_s: float = 5.0) -> Iterator[PendingRequest]:
    """Send a request at `NOW_S`."""
    with sent_request(run_dir, action, limit_s, Clocks(lambda: NOW_S, time.monotonic)) as pending:
        yield pending


def read_answer(pending: PendingRequest) -> ShellAnswer:
    """Return the final answer, which must exist."""
    answer = pending.wait(0.0)
    assert answer is not None
    return answer


def test_request_is_taken_once_and_answered(run_dir: Path) -> None:
    """A request is found once; its answer has its id, and `accepted` is an answer only for a shell that does not wait for the end."""
    with sent(run_dir, "restart") as pending:
        request = take_request(run_dir, NOW_S)
        assert request is not None
        assert request.action == "restart"
        assert take_request(run_dir, NOW_S) is None
        assert pending.wait(0.0, until_done=False) is None
        write_answer(run_dir, request, make_answer("accepted"))
        assert pending.wait(0.0) is None
        accepted = pending.wait(0.0, until_done=False)
        assert accepted is not None
        assert accepted.outcome == "accepted"
        write_answer(run_dir, request, make_answer("done", "it is done", {"generation": 2}))
        answer = read_answer(pending)
        assert (answer.id, answer.text, answer.values) == (request.id, "it is done", {"generation": 2})
    with sent(run_dir) as pending:
        # The answer to another request is none.
        assert pending.wait(0.0) is None


def test_other_shells_are_served_while_a_request_is_worked_on(run_dir: Path) -> None:
    """Once a request is accepted another shell may ask; each gets its own answer, and the first shell's end withdraws no other request."""
    with sent(run_dir, "restart") as slow:
        first = take_request(run_dir, NOW_S)
        assert first is not None
        write_answer(run_dir, first, make_answer("accepted"))
        assert slow.wait(0.0, until_done=False) is not None
        with sent(run_dir, "status") as quick:
            second = take_request(run_dir, NOW_S)
            assert second is not None
            write_answer(run_dir, second, make_answer("done", "clean"))
            write_answer(run_dir, first, make_answer("done", "restarted"))
            assert (read_answer(quick).text, read_answer(slow).text) == ("clean", "restarted")
            sent_later = run_dir / "request.json"
            sent_later.touch()
            slow.end()
            assert sent_later.exists()


def test_request_whose_shell_does_not_wait_is_dropped(run_dir: Path) -> None:
    """A request that was withdrawn, or whose shell was killed long ago, is not done."""
    with sent(run_dir):
        pass
    assert take_request(run_dir, NOW_S) is None
    with sent(run_dir, limit_s=5.0):
        assert take_request(run_dir, NOW_S + 6.0) is None
        assert take_request(run_dir, NOW_S) is None


def test_files_are_private(run_dir: Path) -> None:
    """Request and answer have mode 0600, whatever the umask."""
    with sent(run_dir):
        request = take_request(run_dir, NOW_S)
        assert request is not None
        write_answer(run_dir, request, make_answer("done"))
        with sent_request_file(run_dir):
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run_dir.iterdir()}
    assert modes == {f"answer-{request.id}.json": 0o600, "request.json": 0o600, "request.lock": 0o600}


@contextmanager
def sent_request_file(run_dir: Path) -> Iterator[None]:
    """Put a request file there, as a second shell would after the first."""
    old = os.umask(0)
    try:
        from mhnb.system.private_files import write_private

        write_private(run_dir / "request.json", "{}")
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize("way", ["symbolic link", "hard link", "folder for others"])
def test_request_that_others_could_have_written_is_refused(run_dir: Path, way: str) -> None:
    """A file or folder that another user could have written raises, and is removed; nothing is done."""
    elsewhere = run_dir / "elsewhere"
    elsewhere.write_text('{"id": "1", "action": "restart", "expires_at_s": 1e12}')
    if way == "symbolic link":
        (run_dir / "request.json").symlink_to(elsewhere)
    elif way == "hard link":
        (run_dir / "request.json").hardlink_to(elsewhere)
    else:
        elsewhere.rename(run_dir / "request.json")
        run_dir.chmod(0o777)
    with pytest.raises(NotPrivate):
        take_request(run_dir, NOW_S)
    assert not (run_dir / "request.json").exists()


def test_each_outcome_is_answered(run_dir: Path) -> None:
    """A request is answered with what its action returns, with its error, or with the fact that it is unknown."""

    def refuse() -> tuple[str, dict[str, object]]:
        raise ClusterError("no rank is left")

    requests = ShellRequests(run_dir, {"work": lambda: ("worked", {"a": 1}), "fail": refuse}, {}, lambda: NOW_S)
    expected = {
        "work": ("done", "worked", {"a": 1}),
        "fail": ("failed", "no rank is left", {}),
        "other": ("failed", "the notebook's mhnb does not know 'other'; it may be another version", {}),
    }
    for action, outcome in expected.items():
        with sent(run_dir, action) as pending:
            requests.poll()
            answer = read_answer(pending)
        assert (answer.outcome, answer.text, answer.values) == outcome


def test_long_action_has_a_thread_of_its_own(run_dir: Path) -> None:
    """A long action is accepted at once, and its thread gives the second answer."""
    requests = ShellRequests(run_dir, {}, {"long": lambda: ("worked", {})}, lambda: NOW_S)
    with sent(run_dir, "long") as pending:
        requests.poll()
        answer = pending.wait(20.0)
    assert answer is not None
    assert (answer.outcome, answer.text) == ("done", "worked")


def test_unreadable_request_ends_the_search(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not a request is reported once, and no request is looked for any more; the event loop goes on."""
    done: list[str] = []

    def work() -> tuple[str, dict[str, object]]:
        done.append("work")
        return "", {}

    listener = ClusterListener()
    listener.enable_shell_requests(ShellRequests(run_dir, {"work": work}, {}, lambda: NOW_S))
    (run_dir / "request.json").write_text("[]")
    listener.on_tick()
    assert "Expected `object`" in capsys.readouterr().err
    with sent(run_dir, "work") as pending:
        listener.on_tick()
        assert pending.wait(0.0) is None
    assert done == []
