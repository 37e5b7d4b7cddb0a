"""Tab in a bare shell: the completions that are offered, and the line after one is inserted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter, rectify_completions

from mhnb.cluster import manager
from mhnb.magics.commands import list_names
from tests.integration.notebook.conftest import Session
from tests.integration.notebook.test_cell_magic import FLAGS


@pytest.fixture
def typing(nb: Session) -> Iterator[Session]:
    """A session with a few names on the ranks and a few in the notebook."""
    nb.run("%%mhjax\nimport jax.numpy as jnp\nrank_array = jnp.zeros(4)\nrank_word = 'w'\ntorank_typed = 1")
    nb.run("torank_here = 1")
    yield nb
    nb.run("%mhjax auto off")


def complete(session: Session, text: str) -> list[str]:
    """Return the text with each completion inserted, as a front end inserts it."""
    with provisionalcompleter():
        found = list(rectify_completions(text, session.shell.Completer.completions(text, len(text))))
    return [text[: each.start] + each.text + text[each.end :] for each in found]


@pytest.mark.parametrize("start", ["", "-", "--"])
def test_cell_line_offers_all_flags(typing: Session, start: str) -> None:
    """Tab after `%%mhjax` offers all flags and nothing else: no file, no variable, no magic."""
    assert sorted(complete(typing, f"%%mhjax {start}")) == sorted(f"%%mhjax {flag}" for flag in FLAGS)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("%%mhjax --gu", ["%%mhjax --guard"]),
        ("%%mhjax --ranks 0 --vi", ["%%mhjax --ranks 0 --view"]),
        (
            "%%mhjax --guard ",
            [f"%%mhjax --guard {guard}" for guard in ("lockstep", "off", "parity")],
        ),
        ("%mhjax start 4x2 --pers", []),
        ("%mhjax start --start-", ["%mhjax start --start-timeout"]),
        ("%%mhjax --guard l", ["%%mhjax --guard lockstep"]),
        ("%%mhjax --guard=l", ["%%mhjax --guard=lockstep"]),
        ("%%mhjax --view ", ["%%mhjax --view fold", "%%mhjax --view grid", "%%mhjax --view tabs"]),
        ("%%mhjax --view t", ["%%mhjax --view tabs"]),
        ("%mhjax sta", ["%mhjax start", "%mhjax status"]),
        ("%mhjax start --dev", ["%mhjax start --devices"]),
        ("%mhjax start -n 2 --guard p", ["%mhjax start -n 2 --guard parity"]),
        ("%mhjax auto o", ["%mhjax auto off", "%mhjax auto on"]),
        ("%mhjax restart --r", ["%mhjax restart --replay"]),
        ("%mhjax pull rank_", ["%mhjax pull rank_array", "%mhjax pull rank_word"]),
        ("%mhjax check rank_", ["%mhjax check rank_array", "%mhjax check rank_word"]),
        ("%mhjax collectives rank_", ["%mhjax collectives rank_array", "%mhjax collectives rank_word"]),
        ("%mhjax pull rank_word --e", ["%mhjax pull rank_word --each"]),
        ("%mhjax push torank_", ["%mhjax push torank_here"]),
        ("%mhjax stop d", ["%mhjax stop default"]),
        ("%%mhjax --ranks ", ["%%mhjax --ranks 0", "%%mhjax --ranks 0-1", "%%mhjax --ranks 1"]),
        ("%mhjax pull rank_word --ranks=1", ["%mhjax pull rank_word --ranks=1"]),
        ("%mhjax start --profile sl", ["%mhjax start --profile slurm"]),
        ("x = 1\n%mhjax sto", ["x = 1\n%mhjax stop"]),
        ("\n%%mhjax --gu", ["\n%%mhjax --guard"]),
        ("# text\n%%mhjax --gu", ["# text\n%%mhjax --guard"]),
    ],
)
def test_magic_line_is_completed(typing: Session, text: str, becomes: list[str]) -> None:
    """Tab completes flags, choices, commands and names, each at its position in a magic line."""
    assert complete(typing, text) == becomes


def test_all_commands_are_offered(typing: Session) -> None:
    """Tab after `%mhjax` and a space offers only the commands."""
    assert complete(typing, "%mhjax ") == [f"%mhjax {verb}" for verb in list_names()]


def test_a_flag_is_offered_once(typing: Session) -> None:
    """A flag that is already in the line is not offered again."""
    assert "%%mhjax --quiet --quiet" not in complete(typing, "%%mhjax --quiet ")


@pytest.mark.parametrize("head", ["%%mhjax\n", "%%mhjax --ranks 0\nimport os\n", "\n%%mhjax\n", "# text\n\n%%mhjax\n"])
def test_rank_names_are_completed(typing: Session, head: str) -> None:
    """In a `%%mhjax` cell rank 0 provides the names, and the notebook's own names are left out."""
    assert complete(typing, f"{head}rank_") == [f"{head}rank_array", f"{head}rank_word"]
    assert complete(typing, f"{head}torank_") == [f"{head}torank_typed"]


def test_rank_attributes_are_completed(typing: Session) -> None:
    """Attributes come from the rank's own object, also in the middle of an expression."""
    assert complete(typing, "%%mhjax\ny = rank_array.resh") == ["%%mhjax\ny = rank_array.reshape"]
    assert "%%mhjax\n(1, rank_word.upper" in complete(typing, "%%mhjax\n(1, rank_word.up")


def test_plain_cell_completes_notebook_names(typing: Session) -> None:
    """Without auto mode a plain cell completes names of the notebook, and no rank receives a request."""
    assert complete(typing, "torank_") == ["torank_here"]


def test_auto_mode_completes_rank_names(typing: Session) -> None:
    """In auto mode plain cells complete names of the ranks; `%%local` cells and `%mhjax` lines complete as usual."""
    typing.run("%mhjax auto on")
    assert complete(typing, "torank_") == ["torank_typed"]
    assert complete(typing, "%%time\ntorank_") == ["%%time\ntorank_typed"]
    assert complete(typing, "%%local\ntorank_") == ["%%local\ntorank_here"]
    assert complete(typing, "%mhjax sto") == ["%mhjax stop"]
    assert complete(typing, "rank_array.resh") == ["rank_array.reshape"]


@pytest.mark.filterwarnings("ignore:.*is pending deprecation:PendingDeprecationWarning")  # IPython 9 itself raises it
def test_shell_complete_returns_the_same(typing: Session) -> None:
    """`shell.complete`, which some front ends call, returns the same completions."""
    assert typing.shell.complete("", "%%mhjax --gu", 12) == ("--gu", ["--guard"])
    typing.run("%mhjax auto on")
    assert typing.shell.complete("", "x = torank_", 11) == ("torank_", ["torank_typed"])


def test_busy_rank_does_not_delay_completion(typing: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a cell runs, completion sends no request to the rank and offers the names of the notebook."""
    cluster, flag = manager.current(), tmp_path / "completed"
    submission = cluster.submit(f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)")
    requests: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "ask", lambda *words, **_: requests.append(words))
        assert complete(typing, "%%mhjax\ntorank_") == ["%%mhjax\ntorank_here"]
    assert requests == []
    flag.touch()
    assert cluster.follow(submission).ok
