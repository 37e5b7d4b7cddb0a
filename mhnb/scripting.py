"""A script on every rank, from a shell: `mhnb run`. It sees what it would see if Python ran it, and its ending is the command's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.cluster import Cluster
from mhnb.core.results import CellResult, RankResult
from mhnb.errors import InvalidRequest
from mhnb.view.failures import MISMATCH
from mhnb.view.live import CellView
from mhnb.view.words import Places

__all__ = ["as_script", "exit_status", "read_script", "run_script"]

_WELL = ("", "0", "None", "False")
"""What `sys.exit` says of an end that is none of failure."""
_STYLES = r"(?:\x1b\[[\d;]*m)*"
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
    # A script shows no value of its last line.
    cluster.run(
        f"__import__('sys').argv = {[name, *arguments]!r}; __file__ = {str(path)!r}; "
        f"__import__('sys').path.insert(0, {str(path.parent)!r}); get_ipython().ast_node_interactivity = 'none'"
    ).check()
    view = CellView(places=Places(cluster=cluster.name, script=name))
    try:
        result = as_script(cluster.run(source, on_snapshot=view.update), name)
        view.finish(result)
    except BaseException:
        view.give_up()
        raise
    return result


def as_script(result: CellResult, name: str) -> CellResult:
    """Take `sys.exit` for what it is in a script, where 0 ends it well, and call the cell by the script's name."""
    ranks = tuple(_named(_ended(rank), result.seq, name) for rank in result.ranks)
    if all(rank.outcome == "ok" for rank in ranks):
        # A clean cluster has nothing to say but that some ranks ended it by `sys.exit(0)` and others did not.
        return replace(result, ranks=ranks, notes=() if result.state == "clean" and not result.ok else result.notes)
    notes = tuple(note.replace(f"cell {result.seq}", name) for note in result.notes)
    return replace(result, ranks=ranks, notes=notes)


def exit_status(result: CellResult) -> int:
    """Give the status to end with: 0, the number of the first failing rank's `sys.exit`, 130 after Ctrl-C, or 1.

    >>> exit_status(CellResult(1, "", (RankResult(0, "ok"),), 0.1))
    0
    """
    if result.ok:
        return 0
    word = _exit_word(result.failed[0]) if result.failed else None
    if word is None and result.how == "interrupted":
        return _INTERRUPTED
    # Python's own rule: a number is the status, as a byte; anything else is a message, and 1.
    return int(word) & 0xFF if word is not None and re.fullmatch(r"-?\d+", word) else 1


def _exit_word(rank: RankResult) -> str | None:
    """Give what `sys.exit` was called with, as text; a cell's own words about it are below the first line of the traceback."""
    error = rank.error
    if error is None or error.ename != SystemExit.__name__:
        return None
    return error.traceback[0].removeprefix(f"{error.ename}: ")


def _ended(rank: RankResult) -> RankResult:
    word = _exit_word(rank)
    if word is None:
        return rank
    if word in _WELL:
        said = tuple(output for output in rank.outputs if output["output_type"] != "error")
        return replace(rank, outcome="ok", error=None, outputs=said)
    assert rank.error is not None
    return replace(rank, error=replace(rank.error, evalue=word, traceback=rank.error.traceback[:1]))


def _named(rank: RankResult, seq: int, name: str) -> RankResult:
    error = rank.error
    if error is None:
        return rank
    # IPython colours it word by word.
    words = _STYLES.join(map(re.escape, f"Cell In[{seq}], line "))
    frame = re.compile(rf"{words}{_STYLES}(\d+)")

    def call(text: str) -> str:
        text = frame.sub(lambda found: f"File {name}:{found[1]}", text).replace(f"<cell {seq}>", name)
        return text.replace(f"cell {seq}", name) if error.ename == MISMATCH else text

    return replace(rank, error=replace(error, traceback=tuple(map(call, error.traceback)), evalue=call(error.evalue)))
