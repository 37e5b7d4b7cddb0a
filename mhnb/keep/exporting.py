"""Export the steps of a cluster's journal or of a notebook file, and write the script to disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhnb.core.exchange.pack import NotHere, unpack
from mhnb.core.keep.export import MARK, CellStep, Exported, PushStep, Step, export_script, format_sbatch
from mhnb.core.keep.export_notebook import drop_pushed, read_notebook, write_literal
from mhnb.core.keep.journal import CellRecord, PushRecord
from mhnb.core.keep.lost_names import note_lost_names
from mhnb.core.keep.replay import LeftOut, plan_replay, trace_left_out
from mhnb.core.ranks import parse_ranks, say_ranks
from mhnb.errors import InvalidRequest
from mhnb.exchange.push import Packed
from mhnb.rank.asks.transfer_arrays import dtype_from_name, is_plain, view_as

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["export_cluster", "export_notebook", "parse_without"]

_ARRAY_ELEMENTS = 64


def parse_without(text: str | None) -> list[str]:
    """Parse `--without`: numbers of cells and names of pushed values, such as `3,5-7,table`; None selects nothing.

    Raises:
        InvalidRequest: a part is neither.
    """
    found: list[str] = []
    for part in (text or "").split(",") if text else ():
        word = part.strip()
        if not word.isidentifier() and not word.replace("-", "").isdecimal():
            raise InvalidRequest(
                f"--without {text}: {word!r} is neither a cell's number nor a pushed name; try 3,5-7,x"
            )
        found += [word] if word.isidentifier() else map(str, parse_ranks(word, 10**6))
    return found


def export_cluster(cluster: Cluster, path: Path, *, sbatch: bool = False, without: Sequence[str] = ()) -> list[str]:
    """Write the steps of a cluster so far as a script; return the lines to show to the user.

    Raises:
        InvalidRequest: a step cannot be expressed in a script, or the file must not be overwritten.
    """
    records, faults = cluster.journal.read()
    plan = plan_replay(records, cluster.generation)
    steps: list[Step] = []
    lacking = list(trace_left_out(records, cluster.generation))
    for record in plan.steps:
        if isinstance(record, PushRecord):
            steps.append(PushStep(record.names, record.ranks, _literals(cluster, record)))
        elif why := _why_left_out(record, without):
            lacking.append(LeftOut(f"cell {record.seq}", why, record.seq, record.source))
        else:
            steps.append(CellStep(f"cell {record.seq}", record.source, record.ranks))
    steps, dropped = drop_pushed(steps, without)
    lacking.sort(key=lambda each: each.seq)
    left_out = [*map(str, lacking), *faults, *dropped]
    kept = {step.name: step.source for step in steps if isinstance(step, CellStep)}
    pushed = [name for step in steps if isinstance(step, PushStep) for name in step.names]
    lost = note_lost_names(kept, {each.what: each.source for each in lacking if each.source}, pushed)
    shape = cluster.shape
    made = export_script(
        steps, name=path.name, process_count=shape.process_count, devices=shape.devices, left_out=left_out
    )
    nodes, each = shape.hosts, shape.ranks_per_host
    batch = format_sbatch(path.name, nodes=nodes, tasks_per_node=each) if sbatch else ""
    return [*_write(path, made, left_out, batch), *(f"  note · {note}" for note in lost)]


def export_notebook(notebook: Path, path: Path, *, sbatch: bool = False, without: Sequence[str] = ()) -> list[str]:
    """Write the `%%mhjax` cells of a notebook file as a script; return the lines to show to the user.

    Raises:
        InvalidRequest: the file is not a notebook, a step cannot be expressed in a script, or the file must not be overwritten.
    """
    try:
        read: Any = json.loads(notebook.read_text(encoding="utf-8"))
        found = read_notebook(read, without)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{notebook}: this file is no notebook ({error}); give an .ipynb file of format 4"
        ) from error
    except (AttributeError, ValueError) as error:
        raise InvalidRequest(f"{notebook}: {error}") from error
    except OSError as error:
        raise InvalidRequest(
            f"{notebook} cannot be read: {error.strerror}; give the .ipynb file of a notebook"
        ) from error
    made = export_script(
        found.steps,
        name=path.name,
        process_count=found.process_count,
        devices=found.devices,
        left_out=found.left_out,
    )
    batch = format_sbatch(path.name, nodes=found.process_count, tasks_per_node=1) if sbatch else ""
    return _write(path, made, found.left_out, batch)


def _why_left_out(record: CellRecord, without: Sequence[str]) -> str:
    if str(record.seq) in without:
        return "as asked"
    if record.errors:
        names = " and ".join(sorted(set(record.errors.values())))
        return f"raised {names} on {say_ranks(record.errors)}"
    return ""


# -- pushed values


def _literals(cluster: Cluster, record: PushRecord) -> dict[str, str]:
    try:
        packed = cluster.journal.read_push(record)
    except OSError as error:
        raise InvalidRequest(f"the values of push {' '.join(record.names)} cannot be read: {error}") from error
    written = {str(value["name"]): _written(value, packed) for value in packed.values}
    return {name: text for name, text in written.items() if text is not None}


def _written(value: dict[str, Any], packed: Packed) -> str | None:
    """Return a pushed value as Python source; an array only if it is the whole value, and small."""
    parts = packed.parts
    arrays = [
        view_as(parts[part], shape, dtype_from_name(dtype), order) for part, shape, dtype, order in value["arrays"]
    ]
    try:
        made = unpack(parts[value["skeleton"]], arrays, [parts[part] for part in value["buffers"]])
    except NotHere:
        return None
    if is_plain(made):
        return _write_array(made)
    return None if arrays else write_literal(made)


def _write_array(array: Any) -> str | None:
    if array.size > _ARRAY_ELEMENTS or array.dtype.kind not in "biufc":
        return None
    values = write_literal(array.tolist())
    return None if values is None else f"numpy.array({values}, dtype={array.dtype.name!r})"


# -- the files


def _write(path: Path, made: Exported, left_out: Sequence[str], batch: str) -> list[str]:
    files = {path: made.text, **({path.with_suffix(".sbatch"): batch} if batch else {})}
    for file in files:
        if file.exists() and MARK not in file.read_text(encoding="utf-8", errors="replace"):
            raise InvalidRequest(f"{file} is there and no export of mhnb; give another name, or move it away")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(
                f"{file} cannot be written: {error.strerror}; name a file in a folder that is there"
            ) from error
    said = [f"mhjax · {file}: {len(text.splitlines())} lines" for file, text in files.items()]
    return [*said, *(f"  left out · {each}" for each in left_out), *(f"  note · {note}" for note in made.notes)]
