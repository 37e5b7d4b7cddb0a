"""A script on every rank, from a shell: `mhnb run`. It sees what it would see if Python ran it, and its ending is the command's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.cluster import Cluster
from mhnb.core.results import CellResult, RankResult
from mhnb.errors import InvalidRequest
from mhnb.view.live import CellView
from mhnb.view.words import Places

__all__ = ["as_script", "exit_status", "read_script", "run_script"]

_WELL = ("", "0", "None")
"""What `sys.exit` says of an end that is none of failure."""
_INTERRUPTED = 130
"""128 and the number of SIGINT: what a shell expects of who was stopped by Ctrl-C."""


def read_script(name: str) -> str:
    """Read a script.

    Raises:
        InvalidRequest: there is none, or it is no text.
    """
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest(f"{name:.200} cannot be read: {why}; give the file of a Python script") from error


def run_script(cluster: Cluster, name: str, source: str, arguments: Sequence[str]) -> CellResult:
    """Run it on every rank, show it while it runs, and return what became of it."""
    path = Path(name).resolve()
    cluster.run(
        f"__import__('sys').argv = {[name, *arguments]!r}; __file__ = {str(path)!r}; "
        f"__import__('sys').path.insert(0, {str(path.parent)!r})"
    ).check()
    view = CellView(places=Places(cluster=cluster.name, script=name))
    try:
        # A script shows no value of its last line.
        result = as_script(cluster.run(f"{source}\nNone", on_snapshot=view.update))
    except BaseException:
        view.give_up()
        raise
    view.finish(result)
    return result


def as_script(result: CellResult) -> CellResult:
    """Take `sys.exit` for what it is in a script: `sys.exit()` and `sys.exit(0)` end it well, others with what they say."""
    return replace(result, ranks=tuple(rank if _exit_word(rank) is None else _ended(rank) for rank in result.ranks))


def exit_status(result: CellResult) -> int:
    """Give the status to end with: 0, the number of the first failing rank's `sys.exit`, 130 after Ctrl-C, or 1.

    >>> exit_status(CellResult(1, "", (RankResult(0, "ok"),), 0.1))
    0
    """
    if result.ok:
        return 0
    if result.how == "interrupted":
        return _INTERRUPTED
    word = _exit_word(result.failed[0])
    # Python's own rule: a number is the status, as a byte; anything else is a message, and 1.
    return int(word) & 0xFF if word is not None and word.lstrip("-").isdecimal() else 1


def _exit_word(rank: RankResult) -> str | None:
    """Give what `sys.exit` was called with, as text; a cell's own words about it are below the first line of the traceback."""
    error = rank.error
    if error is None or error.ename != SystemExit.__name__:
        return None
    return error.traceback[0].removeprefix(f"{error.ename}: ")


def _ended(rank: RankResult) -> RankResult:
    word = _exit_word(rank) or ""
    if word in _WELL:
        said = tuple(output for output in rank.outputs if output["output_type"] != "error")
        return replace(rank, outcome="ok", error=None, outputs=said)
    assert rank.error is not None
    return replace(rank, error=replace(rank.error, evalue=word, traceback=rank.error.traceback[:1]))
