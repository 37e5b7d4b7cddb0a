"""Find the name that an error lacks, and which cell set it."""

from __future__ import annotations

import ast
import dis
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mhnb.core.error_site import ErrorSite
from mhnb.core.export import translate_cell
from mhnb.core.journal import CellRecord, PushRecord, Record
from mhnb.core.replay import list_steps, plan_replay, select_since_start, step_key, step_name

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")
_VARIABLE = re.compile(r"'(\w+)'")


def note_undefined_names(
    included: Mapping[str, str], left_out: Mapping[str, str], pushed: Iterable[str] = ()
) -> list[str]:
    """Note which cell reads each undefined name, and which one sets it.

    Args:
        included: the text of each cell of the script, by the cell's name.
        left_out: likewise of the cells that are not in it. A text that is not plain Python is ignored.
        pushed: names that the script also sets.

    >>> note_undefined_names({"cell 3": "print(n)"}, {"cell 2": "n = f()"})
    ['cell 3 reads n, which only cell 2 sets, and that is left out']
    """
    set_here = {*pushed, *(name for source in included.values() for name in _find_names(source, stored=True))}
    setters: dict[str, str] = {}
    for cell, source in left_out.items():
        for name in _find_names(source, stored=True):
            setters.setdefault(name, cell)
    notes: dict[str, str] = {}
    for cell, source in included.items():
        for name in _find_names(source, stored=False):
            if name in setters and name not in set_here:
                notes.setdefault(name, f"{cell} reads {name}, which only {setters[name]} sets, and that is left out")
    return list(notes.values())


def _find_names(source: str, *, stored: bool) -> Iterator[str]:
    """Yield every name that the text sets or reads, in any scope.

    A function's own names are set where they are read.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) != stored:
                yield node.id
        elif not stored:
            continue
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def find_missing_name(evalue: str) -> str | None:
    """Return the name in a NameError's text; None for another text.

    >>> find_missing_name("name 'jnp' is not defined. Did you mean: 'np'?")
    'jnp'
    """
    found = _UNDEFINED.match(evalue)
    return None if found is None else found[1]


def find_missing_variable(ename: str, evalue: str, site: ErrorSite) -> str | None:
    """Return the environment variable that `os.environ` lacks; None for another error.

    >>> find_missing_variable("KeyError", "'TOKEN'", ErrorSite("os", "_Environ.__getitem__"))
    'TOKEN'
    """
    is_lookup = (ename, site.module, site.function) == ("KeyError", "os", "_Environ.__getitem__")
    found = _VARIABLE.fullmatch(evalue) if is_lookup else None
    return None if found is None else found[1]


def describe_missing_name(name: str, records: Sequence[Record], generation: int, seq: int | None = None) -> str | None:
    """Describe which step set a missing name, and how to restore it.

    Args:
        name: the name.
        records: the journal, up to the cell that lacks it.
        generation: the current one. A name that was set in it is not missing because of a restart.
        seq: the number of the cell that lacks it: later cells of an earlier generation had not set it yet. None for no cell.

    >>> from mhnb.core.journal import StartRecord
    >>> records = [StartRecord(1, "2"), CellRecord(1, 4, "import tqdm"), StartRecord(2, "2", after=1, is_restart=True)]
    >>> describe_missing_name("tqdm", records, 2)
    'cell 4 set `tqdm` before the restart. To get it back: %mhjax restart --replay'
    """
    for step, number, why in reversed(list(list_steps(select_since_start(records, generation)))):
        # A cell that raised may not have come that far.
        if (seq is None or number < seq) and (why or isinstance(step, PushRecord) or not step.errors):
            is_set = _find_effects(step).get(name)
            if is_set is not None:
                return _describe_setter(name, step, why, records, generation) if is_set else None
    return None


def _describe_setter(
    name: str, step: CellRecord | PushRecord, why: str, records: Sequence[Record], generation: int
) -> str | None:
    if step.generation == generation:
        return None
    setter = f"{step_name(step)} set `{name}`"
    if step_key(step) in map(step_key, plan_replay(records, generation).steps):
        return f"{setter} before the restart. To get it back: %mhjax restart --replay"
    lost = f"a replay leaves it out ({why})" if why else "--to discarded it"
    again = "run that cell again" if isinstance(step, CellRecord) else f"%mhjax push {' '.join(step.names)}"
    return f"{setter}, but {lost}. To get it back: {again}"


_NAME_OPERATIONS = ("STORE_NAME", "DELETE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")


def _find_effects(step: CellRecord | PushRecord) -> dict[str, bool]:
    """Return which top-level names a step sets (true) or deletes (false).

    A cell that is not plain Python, even without its magics, is ignored.
    """
    if isinstance(step, PushRecord):
        return dict.fromkeys(step.names, True)
    try:
        with warnings.catch_warnings(action="ignore"):  # the ranks have shown them
            text = translate_cell(step.source).text
            code = compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    operations = (each for each in dis.get_instructions(code) if each.opname in _NAME_OPERATIONS)
    return {each.argval: each.opname.startswith("STORE") for each in operations}
