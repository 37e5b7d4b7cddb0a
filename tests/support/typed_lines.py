"""A user who types lines for stopped ranks at `input()`, from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

__all__ = ["Step", "User", "user"]

Step: TypeAlias = str | BaseException | Callable[[], str]


class User:
    """A user who types at `input()`, as in a kernel, where it is replaced too."""

    def __init__(self) -> None:
        self.steps: Iterator[Step] = iter(())
        self.prompts: list[str] = []

    def types(self, *steps: Step) -> None:
        """Script what is typed: lines, errors, or functions that return a line."""
        self.steps = iter(steps)

    def read(self, prompt: str) -> str:
        """Do what `input()` does: take the next step."""
        self.prompts.append(prompt)
        step = next(self.steps)
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, str) else step()

    def has_typed_all(self) -> bool:
        """Return whether every line was asked for."""
        return next(self.steps, None) is None


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """A user, who must have been asked for every line at the end."""
    user = User()
    monkeypatch.setattr("builtins.input", user.read)
    yield user
    assert user.has_typed_all()
