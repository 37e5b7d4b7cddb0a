"""Report which collectives a call would launch, and which a cell did launch.

Both are read from compiled text; nothing is launched.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

from mhnb.errors import HloError, MhnbError
from mhnb.rank.asks.lowering import CALL, describe_compiled, is_plain, lower_program
from mhnb.rank.cell.cells import cell_file, find_user_place
from mhnb.rank.cell.overhearing import overhear
from mhnb.rank.guard.programs import launched_programs, no_launches
from mhnb.rank.jaxhooks import current_recorder
from mhnb.sharding.hlo_module import SourceLine
from mhnb.sharding.report import program_to_wire

__all__ = ["describe_call", "describe_launched"]

_TAKE = "__mhnb_take__"
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
        `{"ename", "evalue", "ours", "near", "traced", "place", "code", "site"}`.
    """
    traced = False
    try:
        with no_launches(_NO_LAUNCH), overhear() as heard:
            f, args, kwargs = _evaluate(call, namespace)
            traced = True
            program = lower_program(f, args, kwargs)
        return {"program": program_to_wire(program), "plain": is_plain(f), "printed": heard.text}
    except MhnbError as error:
        return _describe_failure(error, [], ours=True, traced=traced)
    except Exception as error:  # noqa: BLE001 - tracing runs the user's code, which may raise anything: it becomes the reply
        name = getattr(error, "name", None) if isinstance(error, NameError) else None
        near = difflib.get_close_matches(name, known, 3) if isinstance(name, str) else []
        return _describe_failure(error, near, ours=False, traced=traced)


def _describe_failure(error: Exception, near: list[str], *, ours: bool, traced: bool) -> dict[str, Any]:
    told = {"ename": type(error).__name__, "evalue": str(error), "ours": ours, "near": near, "traced": traced}
    place, code, site = find_user_place(error)
    return told | {"place": place, "code": code, "site": site}


def _evaluate(call: str, namespace: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Evaluate the function and the arguments of a call, but not the call itself."""
    tree = ast.parse(call.strip(), mode="eval")
    node = tree.body
    assert isinstance(node, ast.Call)
    taken = ast.Call(ast.Name(_TAKE, ast.Load()), node.args, node.keywords)
    tree.body = ast.Tuple([node.func, taken], ast.Load())
    code = compile(ast.fix_missing_locations(tree), CALL, "eval")
    f, (args, kwargs) = eval(code, namespace, {_TAKE: lambda *args, **kwargs: (args, kwargs)})  # noqa: S307 - on a rank
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
    launched = launched_programs(recorder, seq)
    if launched is None:
        return {"gone": True, "programs": []}
    # Keep the line of each program's first launch. Launches from no line of the cell have none.
    made = [(row[0], SourceLine(cell_file(seq), row[3])) for row in reversed(recorder.ended_rows) if row[3]]
    lines = dict(made)
    rows: list[list[Any]] = []
    for fingerprint, count, compiled in launched:
        try:
            rows.append([fingerprint, count, program_to_wire(describe_compiled(compiled, lines.get(fingerprint)))])
        except HloError as error:
            rows.append([fingerprint, count, f"{compiled.name}: {error}"])
    return {"gone": False, "programs": rows}
