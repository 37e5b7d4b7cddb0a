"""Cells that wait for a start, restart or replay of another thread."""

from __future__ import annotations

import threading

from mhnb.cluster.operations import announce, has_operations, wait_for_operations


def test_cell_waits_for_the_start_of_another_thread() -> None:
    """The line comes after half a second, and the wait ends with the start, even if that fails."""
    began, told, ended = threading.Event(), threading.Event(), []
    texts: list[str] = []

    def start() -> None:
        with announce("demo", "the start of 4 ranks"):
            began.set()
            told.wait(20)
            ended.append(True)

    def tell(text: str) -> None:
        texts.append(text)
        told.set()

    thread = threading.Thread(target=start)
    thread.start()
    assert began.wait(20)
    assert has_operations()
    wait_for_operations("another", tell)
    assert texts == []
    wait_for_operations(None, tell)
    assert ended == [True]
    assert texts[0].startswith("waiting for the start of 4 ranks (")
    thread.join()
    assert not has_operations()


def test_thread_does_not_wait_for_itself() -> None:
    """A replay runs cells in the thread that makes it."""
    with announce("demo", "the replay of its cells"):
        wait_for_operations("demo", lambda _: None)
