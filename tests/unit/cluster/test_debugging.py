"""The console of a cell: lines go to the ranks, updates are never lost while the user types, and the end of the cell ends the read."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from mhnb.cluster.cluster import _check_debug
from mhnb.cluster.debugging import DebugConsole, check_stop_ranks
from mhnb.cluster.event_loop import CellFuture, check_end
from mhnb.core.debugging import DebugRequest, DebugUpdate
from mhnb.core.messages import DebugPrompt
from mhnb.core.output.results import CellResult
from mhnb.core.state.events import DebugLineTyped, InterruptRequested
from mhnb.errors import InvalidRequest, NotStarted
from mhnb.system.keyboard import Cancelled, Keyboard
from tests.support.typed_lines import Step, User

TICKET = 3
SNAPSHOT, END = CellResult(1, "", (), 0.1, done=False), CellResult(1, "", (), 0.2, done=True)


def make_stop(rank: int, number: int, text: str = "", *, ranks: int = 2) -> DebugUpdate:
    """Make an update in which one rank waits at its prompt of that number; the others wait for it."""
    prompt = DebugPrompt(rank, 1, number, "(Pdb) ", text, 4)
    states = {each: "stopped" if each == rank else "waiting" for each in range(ranks)}
    return DebugUpdate(states, {rank: prompt}, {}, {rank: text})  # type: ignore[arg-type]


class ScriptedKeyboard(User, Keyboard):
    """The user's keyboard, which another thread can cancel."""

    def __init__(self, steps: Iterable[Step]) -> None:
        super().__init__()
        self.types(*steps)
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def wait_until_cancelled(self) -> str:
        """Type nothing until the read is cancelled."""
        self.cancelled.wait()
        raise Cancelled


@dataclass
class RecordingView:
    """A view that records its calls."""

    calls: list[str] = field(default_factory=list)
    on_resume: Callable[[], None] = lambda: None

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")
        self.on_resume()

    def close_input(self) -> None:
        self.calls.append("close_input")


class Rig:
    """A console with a scripted keyboard, and a cell whose updates the test sends.

    Args:
        steps: of the keyboard.
        replies: what the cell sends after each event that the console posts.
        is_post_mortem: as for the console.
    """

    def __init__(
        self,
        *steps: str | BaseException | Callable[[], str],
        replies: tuple[object, ...] = (),
        is_post_mortem: bool = False,
    ) -> None:
        self.future, self.view = CellFuture(TICKET, live=True), RecordingView()
        self.keyboard = ScriptedKeyboard(steps)
        self.posted: list[object] = []
        self._replies = iter(replies)
        self.snapshots: list[CellResult] = []
        self._is_post_mortem = is_post_mortem
        self.on_post: Callable[[], None] = lambda: None

    def send(self, *updates: object) -> None:
        """Send updates of the cell."""
        for update in updates:
            self.future.updates.put(update)  # type: ignore[arg-type]

    def post(self, event: object) -> None:
        self.posted.append(event)
        self.on_post()
        if (reply := next(self._replies, None)) is not None:
            self.send(*reply) if isinstance(reply, tuple) else self.send(reply)

    def make_console(self, on_snapshot: Callable[[CellResult], None] | None = None) -> DebugConsole:
        """Make the console of the cell."""
        return DebugConsole(
            self.future,
            self.post,
            on_snapshot or self.snapshots.append,
            is_post_mortem=self._is_post_mortem,
            view=self.view,
            keyboard=self.keyboard,
        )

    def follow(self, *updates: object, on_snapshot: Callable[[CellResult], None] | None = None) -> CellResult:
        """Send updates, and follow the cell to its end; the console is made when a rank has stopped."""
        self.send(*updates)
        assert self.future.follow(on_snapshot or self.snapshots.append) is None
        return check_end(self.make_console(on_snapshot).follow())

    @property
    def typed(self) -> list[tuple[int, str | None]]:
        """The lines that were posted."""
        return [(event.rank, event.line) for event in self.posted if isinstance(event, DebugLineTyped)]


# -- updates


def test_cell_that_does_not_stop_is_followed_to_its_end() -> None:
    """Of the results that have come, the newest is passed on."""
    seen: list[CellResult] = []
    future = CellFuture(TICKET, live=True)
    for update in (SNAPSHOT, END):
        future.updates.put(update)
    assert future.wait(seen.append) is END
    assert seen == []


def test_refused_cell_is_an_error() -> None:
    """Whether or not it could stop."""
    future = CellFuture(TICKET, live=True)
    future.updates.put(NotStarted("stopped"))
    with pytest.raises(NotStarted, match="stopped"):
        future.wait(None)


def test_snapshot_hides_no_update_of_the_debugger() -> None:
    """Of each kind the newest is passed on; the result first, because its view belongs above the prompt."""
    seen: list[object] = []
    future = CellFuture(TICKET, live=True)
    old, new = make_stop(0, 1), make_stop(0, 2)
    for update in (SNAPSHOT, old, new, None):
        future.updates.put(update)
    assert future.follow(seen.append) is None
    assert (seen, future.debugger) == ([SNAPSHOT], new)
    future.updates.put(old)
    future.updates.put(END)
    assert future.follow(seen.append, seen.append) is END
    assert (seen, future.debugger) == ([SNAPSHOT], old)


# -- lines


def test_lines_are_sent_and_their_answers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The same line twice has two answers, although they are equal."""
    rig = Rig("p 1", "p 1", "c", replies=(make_stop(0, 2, "1\n"), make_stop(0, 3, "1\n"), END))
    assert rig.follow(make_stop(0, 1, "> line 4\n")) is END
    assert rig.keyboard.prompts == ["rank 0 (stopped 0; waiting 1) > "] * 3
    assert rig.typed == [(0, "p 1"), (0, "p 1"), (0, "c")]
    assert capsys.readouterr().out == "rank 0 stopped\n> line 4\n1\n1\n"


def test_view_is_suspended_until_the_cell_runs_on() -> None:
    """Between a line and its answer it would appear for a moment only; a later stop suspends it again."""
    running = DebugUpdate({0: "waiting", 1: "waiting"}, {})
    rig = Rig("p 1", "c", "c", replies=(make_stop(0, 2), running, END))
    rig.view.on_resume = lambda: rig.send(make_stop(0, 3))
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.typed == [(0, "p 1"), (0, "c"), (0, "c")]
    assert rig.view.calls == ["suspend", "resume", "suspend", "resume"]


def test_snapshots_are_shown_while_the_user_types() -> None:
    """In a notebook the view goes on."""
    shown = threading.Event()

    def type_line() -> str:
        rig.send(SNAPSHOT)
        shown.wait()
        return "c"

    rig = Rig(type_line, replies=(END,))
    assert rig.follow(make_stop(0, 1), on_snapshot=lambda _: shown.set()) is END


def test_stop_while_the_user_types_is_shown_before_the_next_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """The line goes to the rank of its prompt."""

    def type_line() -> str:
        rig.send(second)
        while not rig.future.updates.empty():
            pass
        return "rank 1"

    first = make_stop(0, 1, "a\n")
    second = DebugUpdate({0: "stopped", 1: "stopped"}, {**first.prompts, **make_stop(1, 1, "b\n").prompts})
    rig = Rig(type_line, "c", replies=(END,))
    rig.follow(first)
    assert rig.typed == [(1, "c")]
    assert rig.keyboard.prompts == ["rank 0 (stopped 0; waiting 1) > ", "rank 1 (stopped 0-1) > "]
    assert capsys.readouterr().out == "rank 0 stopped\na\nrank 1 stopped\nb\n"


# -- ends


def test_end_of_the_cell_ends_the_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank may die, or the cluster may be restarted from a shell."""

    def type_nothing() -> str:
        rig.send(SNAPSHOT, END)
        return rig.keyboard.wait_until_cancelled()

    rig = Rig(type_nothing)
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.posted == []
    assert capsys.readouterr().out == "rank 0 stopped\n"


def test_line_that_is_typed_when_the_cell_ends_is_dropped() -> None:
    """Nothing would answer it."""

    def type_line() -> str:
        rig.send(END)
        rig.keyboard.cancelled.wait()
        return "p 1"

    rig = Rig(type_line)
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.posted == []


@pytest.mark.parametrize("step", ["q", EOFError(), KeyboardInterrupt(), OSError("gone"), RuntimeError("no front end")])
def test_user_ends_the_cell(step: str | BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell is interrupted on all ranks, and followed to its end; no line is read any more."""
    rig = Rig(step, replies=((make_stop(0, 1), SNAPSHOT, END),))
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.posted == [InterruptRequested(TICKET)]
    is_typed = step == "q" or isinstance(step, EOFError)
    assert rig.view.calls == ["suspend", "resume", *([] if is_typed else ["close_input"])]
    is_broken = isinstance(step, OSError | RuntimeError)
    assert capsys.readouterr().err == (f"*** no line can be read: {type(step).__name__}: {step}\n" if is_broken else "")


def test_rank_that_stops_after_the_interrupt_gets_the_end_of_input() -> None:
    """Code that handles the interrupt may have a breakpoint, and no more lines are typed."""
    rig = Rig("q", replies=(make_stop(1, 1), END))
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.posted == [InterruptRequested(TICKET), DebugLineTyped(TICKET, 1, None)]


@pytest.mark.parametrize("step", ["q", EOFError(), KeyboardInterrupt(), OSError("no terminal")], ids=repr)
def test_post_mortem_ends_without_an_interrupt(step: str | BaseException) -> None:
    """No code runs in it, so each rank gets the end of all input, however the user leaves."""
    rig = Rig(step, replies=(END,), is_post_mortem=True)
    assert rig.follow(make_stop(0, 1)) is END
    assert rig.keyboard.prompts == ["rank 0 (post-mortem; stopped 0; waiting 1) > "]
    assert rig.posted == [DebugLineTyped(TICKET, 0, None)]


@pytest.mark.parametrize("is_post_mortem", [False, True])
def test_failing_callback_ends_the_cell(is_post_mortem: bool) -> None:  # noqa: FBT001
    """Its error is raised, and no rank waits for an answer forever."""

    def type_nothing() -> str:
        rig.send(SNAPSHOT)
        return rig.keyboard.wait_until_cancelled()

    rig = Rig(type_nothing, is_post_mortem=is_post_mortem)

    def fail(snapshot: CellResult) -> None:
        raise ZeroDivisionError(snapshot.seq)

    with pytest.raises(ZeroDivisionError):
        rig.follow(make_stop(0, 1), on_snapshot=fail)
    assert rig.posted == ([DebugLineTyped(TICKET, 0, None)] if is_post_mortem else [InterruptRequested(TICKET)])
    assert rig.view.calls == ["suspend", "resume", "close_input"]
    rig.send(END)


def test_rank_that_stops_after_a_failing_callback_ends_the_cell() -> None:
    """The cell runs on when its caller gets the error, and no line would be typed for a rank that stops in it later."""
    rig, has_left = Rig(), threading.Event()
    rig.on_post = has_left.set
    rig.make_console().leave_later_stops()
    rig.future.wake()
    rig.send(make_stop(0, 1))
    has_left.wait()
    assert rig.posted == [InterruptRequested(TICKET)]
    rig.send(END)


def test_prompt_of_a_terminal_ends_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed after Ctrl-C does not follow the prompt in the same line."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    Rig(KeyboardInterrupt(), replies=(END,)).follow(make_stop(0, 1))
    assert terminal.getvalue() == "rank 0 stopped\n\n"


# -- arguments


def test_wrong_arguments_are_refused() -> None:
    """The error names the argument, its value, and what was expected."""
    _check_debug(DebugRequest())
    with pytest.raises(InvalidRequest, match="debug=True: expected a DebugRequest"):
        _check_debug(True)


def test_rank_that_does_not_run_the_cell_cannot_stop() -> None:
    """Otherwise the user would wait for a stop that never comes."""
    check_stop_ranks((1,), (0, 1))
    with pytest.raises(InvalidRequest, match="stop_ranks: 2, 'x': expected ranks of the cell, which runs on ranks 0-1"):
        check_stop_ranks((0, 2, "x"), (0, 1))  # type: ignore[arg-type]


def test_another_thread_has_no_debugger() -> None:
    """Lines can be typed in the main thread only."""
    errors: list[InvalidRequest] = []

    def check() -> None:
        try:
            _check_debug(DebugRequest())
        except InvalidRequest as error:
            errors.append(error)

    thread = threading.Thread(target=check, name="worker")
    thread.start()
    thread.join()
    assert "this is thread 'worker'" in str(errors[0])
