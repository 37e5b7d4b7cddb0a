"""`mhnb run`: run a script on every rank from a shell.

As with Python, the script gets its arguments, name and folder, and its exit status is that of the command.
"""

from __future__ import annotations

import re
import shlex
import sys
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mhnb.cli.command import INTERRUPTED_STATUS, TIMEOUT_STATUS
from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import format_ranks
from mhnb.errors import InvalidRequest
from mhnb.view.cell.failures import ORDER_MISMATCH
from mhnb.view.html import RankLocations
from mhnb.view.live.view import CellView

_EXIT_PREFIX = "SystemExit: "
"""Prefix of the traceback line that a rank reports for `sys.exit`. The argument follows, as Python prints it in a program."""
_SUCCESS_ARGUMENTS = ("0", "None", "False")
"""Arguments of `sys.exit` that mean success."""
_STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_ANSI_STYLES = r"(?:\x1b\[[\d;]*m)*"


def read_script(name: str) -> str:
    """Read a script.

    Raises:
        InvalidRequest: the file does not exist, is not text, or is a notebook.
    """
    try:
        # Python, too, accepts a byte order mark, which some editors write.
        source = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise InvalidRequest(f"{name:.200} cannot be read: {why}; expected the file of a Python script") from error
    if Path(name).suffix.lower() == ".ipynb":
        # A notebook's JSON is a valid Python expression, so it would run and do nothing.
        script = shlex.quote(Path(name).with_suffix(".py").name)
        raise InvalidRequest(
            f"{name:.200} is a notebook; expected a Python script"
            f"\n  Fix: mhnb export {shlex.quote(name)} -o {script} && mhnb run {script}"
        )
    return source


def run_script(
    cluster: Cluster, name: str, source: str, arguments: Sequence[str], *, timeout_s: float | None = None
) -> int:
    """Run a script on every rank, and return the exit status.

    Failed ranks are named on stderr. After `timeout_s` seconds the script is interrupted; None for no limit.
    """
    path = Path(name).resolve()
    # A script does not show the value of its last expression.
    cluster.run(
        f"__import__('sys').argv = {[name, *arguments]!r}; __file__ = {str(path)!r}; "
        f"__import__('sys').path.insert(0, {str(path.parent)!r}); "
        "get_ipython().ast_node_interactivity = 'none'; get_ipython().shows_exit_code = True; "
        f"get_ipython().script_name = {name!r}"
    ).check()
    logs = {rank.rank: str(rank.log_path) for rank in cluster.ranks}
    with CellView(locations=RankLocations(logs=logs, cluster=cluster.name, script_path=name)) as view:
        # In a terminal the user types where the view draws.
        result = cluster.run(source, timeout_s=timeout_s, on_snapshot=view.update, console=view)
        script_result = to_script_result(result, name)
        view.finish(script_result)
    if failed := [rank.rank for rank in script_result.failed]:
        limit = f", after the limit of {timeout_s:g} s" if result.how == "timeout" else ""
        print(f"{name}: failed on ranks {format_ranks(failed)}{limit}", file=sys.stderr)
    return exit_status(result)


def to_script_result(result: CellResult, name: str) -> CellResult:
    """Convert a cell result: `sys.exit(0)` succeeds, and messages name the script."""
    ranks = tuple(_name_script(_apply_exit(rank), result.seq, name) for rank in result.ranks)
    if all(rank.outcome == "ok" for rank in ranks):
        # In a clean cluster the only possible note is that some ranks ended with `sys.exit(0)` and others did not, so
        # drop it.
        return replace(result, ranks=ranks, notes=() if result.state == "clean" and not result.ok else result.notes)
    notes = tuple(note.replace(f"cell {result.seq}", name) for note in result.notes)
    return replace(result, ranks=ranks, notes=notes)


def exit_status(result: CellResult) -> int:
    """Return the exit status of a script from its cell's result.

    It is 0, the number that the first failing rank passed to `sys.exit`, 130 after Ctrl-C, 124 after the limit, or 1.
    `result` is the cell's result before `to_script_result`.

    >>> exit_status(CellResult(1, "", (RankResult(0, "ok"),), 0.1))
    0
    """
    failed = [rank for rank in result.failed if _exit_argument(rank) not in _SUCCESS_ARGUMENTS]
    if not failed:
        return 0
    argument = _exit_argument(failed[0])
    if argument is None and result.how:
        return INTERRUPTED_STATUS if result.how == "interrupted" else TIMEOUT_STATUS
    # Python's own rule: a number is the status, as a byte; any other argument is a message, and the status is 1.
    return int(argument) & 0xFF if argument is not None and re.fullmatch(r"-?\d+", argument) else 1


def _exit_argument(rank: RankResult) -> str | None:
    """Return the argument of `sys.exit`; None if it was not called.

    Only the first line of the traceback is read, because the cell's own text can contain the prefix in later lines.
    """
    first = "" if rank.error is None or not rank.error.traceback else rank.error.traceback[0]
    return first.removeprefix(_EXIT_PREFIX) if first.startswith(_EXIT_PREFIX) else None


def _apply_exit(rank: RankResult) -> RankResult:
    argument = _exit_argument(rank)
    if argument is None:
        return rank
    if argument in _SUCCESS_ARGUMENTS:
        outputs = tuple(output for output in rank.outputs if output["output_type"] != "error")
        return replace(rank, outcome="ok", error=None, outputs=outputs)
    assert rank.error is not None
    text = _unquote(argument)
    return replace(rank, error=replace(rank.error, evalue=text, traceback=(f"{rank.error.ename}: {text}",)))


def _unquote(argument: str) -> str:
    # Any other object can only be shown by its repr.
    return str(literal_eval(argument)) if _STRING.fullmatch(argument) else argument


def _name_script(rank: RankResult, seq: int, name: str) -> RankResult:
    error = rank.error
    if error is None:
        return rank
    # IPython may insert colour codes between the words.
    words = _ANSI_STYLES.join(map(re.escape, f"Cell {seq}, line "))
    frame = re.compile(rf"{words}{_ANSI_STYLES}(\d+)")

    def name_in_text(text: str) -> str:
        text = frame.sub(lambda found: f"File {name}:{found[1]}", text).replace(f"<cell {seq}>", name)
        return text.replace(f"cell {seq}", name) if error.ename == ORDER_MISMATCH else text

    return replace(
        rank,
        error=replace(error, traceback=tuple(map(name_in_text, error.traceback)), evalue=name_in_text(error.evalue)),
    )
