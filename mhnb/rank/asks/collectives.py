"""Report which collectives a call would launch, and which a cell did launch.

Both are read from compiled text; nothing is launched.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

from mhnb.errors import HloError, MhnbError
from mhnb.rank.asks.lowering import CALL_FILE, describe_compiled, is_plain_function, lower_program
from mhnb.rank.cell.cells import cell_file, find_user_location
from mhnb.rank.cell.overhearing import capture_thread_output
from mhnb.rank.guard.programs import find_launched_programs, forbid_launches
from mhnb.rank.jaxhooks import current_recorder
from mhnb.sharding.hlo_module import SourceLine
from mhnb.sharding.report import program_to_wire

__all__ = ["describe_call", "describe_launched"]

_COLLECTOR = "__mhnb_take__"
_NO_LAUNCH = (
    "`%mhjax collectives` runs nothing. Compute that argument in a %%mhjax cell, bind it to a name, and pass the name"
)


def describe_call(call: str, namespace: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Compile a call without running it.

    Args:
        call: for example `step(params, batch)`; its function and arguments are evaluated here.
        namespace: the user's namespace.
        known: the user's names, for a did-you-mean hint.

    Returns:
        `{"program", "plain", "printed"}`. If evaluating, lowering or reading the call raised, the error instead:
        `{"ename", "evalue", "is_mhnb_error", "close_names", "was_traced", "place", "code", "site"}`.
    """
    was_traced = False
    try:
        with forbid_launches(_NO_LAUNCH), capture_thread_output() as output:
            f, args, kwargs = _evaluate(call, namespace)
            was_traced = True
            program = lower_program(f, args, kwargs)
        return {"program": program_to_wire(program), "plain": is_plain_function(f), "printed": output.text}
    except MhnbError as error:
        return _describe_failure(error, [], is_mhnb_error=True, was_traced=was_traced)
    except Exception as error:  # noqa: BLE001 - tracing runs the user's code, which may raise anything: it becomes the reply
        name = getattr(error, "name", None) if isinstance(error, NameError) else None
        close_names = difflib.get_close_matches(name, known, 3) if isinstance(name, str) else []
        return _describe_failure(error, close_names, is_mhnb_error=False, was_traced=was_traced)


def _describe_failure(
    error: Exception, close_names: list[str], *, is_mhnb_error: bool, was_traced: bool
) -> dict[str, Any]:
    failure = {
        "ename": type(error).__name__,
        "evalue": str(error),
        "ours": is_mhnb_error,
        "near": close_names,
        "traced": was_traced,
    }
    place, code, site = find_user_location(error)
    return failure | {"place": place, "code": code, "site": site}


def _evaluate(call: str, namespace: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Evaluate the function and the arguments of a call, but not the call itself."""
    tree = ast.parse(call.strip(), mode="eval")
    node = tree.body
    assert isinstance(node, ast.Call)
    collector_call = ast.Call(ast.Name(_COLLECTOR, ast.Load()), node.args, node.keywords)
    tree.body = ast.Tuple([node.func, collector_call], ast.Load())
    code = compile(ast.fix_missing_locations(tree), CALL_FILE, "eval")
    f, (args, kwargs) = eval(code, namespace, {_COLLECTOR: lambda *args, **kwargs: (args, kwargs)})  # noqa: S307 - on a rank
    return f, args, kwargs


def describe_launched(seq: int) -> dict[str, Any]:
    """Describe the programs that a cell launched on several ranks, in the order of their first launches.

    Returns:
        `{"gone": True}` if another cell has run since, else `{"programs": [[fingerprint, launches, program or text of
        the error], ...]}`.
    """
    recorder = current_recorder()
    if recorder is None:
        raise HloError("launches are not recorded: %mhjax status says why the guard is unavailable")
    programs = find_launched_programs(recorder, seq)
    if programs is None:
        return {"gone": True, "programs": []}
    # Keep the line of each program's first launch. Launches from no line of the cell have none.
    located = [(row[0], SourceLine(cell_file(seq), row[3])) for row in reversed(recorder.ended_rows) if row[3]]
    lines = dict(located)
    rows: list[list[Any]] = []
    for fingerprint, count, compiled in programs:
        try:
            rows.append([fingerprint, count, program_to_wire(describe_compiled(compiled, lines.get(fingerprint)))])
        except HloError as error:
            rows.append([fingerprint, count, f"{compiled.name}: {error}"])
    return {"gone": False, "programs": rows}
