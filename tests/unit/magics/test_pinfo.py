"""`name?` in a notebook without a cluster, with mhnb's hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mhnb.magics import completion, magics
from tests.unit.magics.test_transformers import new_shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A new shell with the extension loaded, in which no magic of IPython's has been used yet."""
    # Otherwise a page would be shown by `less`.
    monkeypatch.setattr("IPython.core.page.page", lambda data, *_, **__: print(data["text/plain"]))
    new = new_shell()
    magics.load(new)
    yield new
    magics.unload(new)


@pytest.mark.parametrize("source", ["known?", "?known", "known??", "%pinfo known", "%pinfo2 known"])
def test_notebook_name_is_described_by_ipython(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """A name of the notebook is described as without mhnb, by the first use of the magic and by the second."""
    shell.run_cell("known = 1.5")
    for _ in range(2):
        assert shell.run_cell(source).success
        assert "1.5" in capsys.readouterr().out


def test_unknown_name_is_not_found(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a cluster, a name that the notebook does not have is reported by IPython itself."""
    assert shell.run_cell("nobody_has_this?").success
    assert "not found" in capsys.readouterr().out


def test_unloading_restores_the_magics(shell: InteractiveShell) -> None:
    """After the extension is unloaded, `name?` is IPython's own again."""
    for name in ("pinfo", "pinfo2"):
        assert shell.find_line_magic(name).__code__.co_filename == completion.__file__
    magics.unload(shell)
    for name in ("pinfo", "pinfo2"):
        assert type(shell.find_line_magic(name).__self__).__name__ == "NamespaceMagics"


def test_other_ranks_are_asked_only_if_the_first_answered(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that does not answer is busy, and a second wait would keep the user from typing."""
    hooks: Any = shell.mhnb_assist  # type: ignore[attr-defined]
    asked: list[int | None] = []
    found = {"found": True, "data": {"text/plain": "int 1"}}
    answers: dict[int | None, dict[int, Any]] = {0: {}, None: {0: {"found": False}, 1: found}}

    def request_all(*_: object, rank: int | None = None, **__: object) -> dict[int, Any]:
        asked.append(rank)
        return answers[rank]

    monkeypatch.setattr(hooks, "_request_all", request_all)
    assert (hooks._request_inspection("x", 0), asked) == ({}, [0])
    answers[0] = {0: {"found": False}}
    assert hooks._request_inspection("x", 0)["text/plain"] == "On rank 1; not on rank 0\nint 1"
    assert asked == [0, 0, None]
