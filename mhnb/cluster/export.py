"""Export a cluster's journal or a notebook file as a script."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhnb.adapters.numpy_arrays import dtype_from_name, is_plain_array, view_as
from mhnb.cluster.transfer import PushPayload
from mhnb.core.cell_name import find_cell, format_cell_name, parse_cell_argument
from mhnb.core.export import (
    EXPORT_MARK,
    CellStep,
    ExportedScript,
    PushStep,
    Step,
    drop_pushed,
    export_script,
    format_literal,
    format_sbatch,
    read_notebook,
)
from mhnb.core.journal import CellRecord, PushRecord
from mhnb.core.launch.slurm import SlurmOptions, batch_args
from mhnb.core.missing_names import note_undefined_names
from mhnb.core.pickling import MissingDefinition, load_value
from mhnb.core.ranks import parse_ranks
from mhnb.core.replay import (
    ReplayPlan,
    SkippedStep,
    format_errors,
    plan_replay,
)
from mhnb.errors import InvalidRequest
from mhnb.launchers.profiles import MhnbSlurm, load_profile

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster


_ARRAY_ELEMENTS = 64


def parse_without(text: str | None) -> list[str]:
    """Parse `--without`, such as `In[3],5-7,table`, into cells and pushed names.

    Raises:
        InvalidRequest: a part is neither.
    """
    found: list[str] = []
    for part in (text or "").split(",") if text else ():
        word = part.strip()
        if (argument := parse_cell_argument(word)) is not None and not word.isdecimal() and not word.isidentifier():
            found.append(f"In[{argument.number}]" if argument.is_shown else f"cell{argument.number}")
            continue
        if not word.isidentifier() and not word.replace("-", "").isdecimal():
            raise InvalidRequest(
                f"--without {text}: {word!r} is neither a cell nor a pushed name; expected for example In[3],5-7,x"
            )
        found += [word] if word.isidentifier() else map(str, parse_ranks(word, 10**6))
    return found


def export_cluster(cluster: Cluster, path: Path, *, sbatch: bool = False, without: Sequence[str] = ()) -> list[str]:
    """Write a cluster's steps as a script; return lines for the user.

    Raises:
        InvalidRequest: a step cannot be expressed in a script, or the file must not be overwritten.
    """
    records, faults = cluster.journal.read()
    plan = plan_replay(records, cluster.generation)
    left_out_seqs = _find_cells(without, plan)
    steps: list[Step] = []
    used: set[str] = set()
    skipped = list(plan.left_out)
    for record in plan.steps:
        if isinstance(record, PushRecord):
            steps.append(PushStep(record.names, record.ranks, _format_push(cluster, record)))
        elif why := _skip_reason(record, left_out_seqs):
            skipped.append(SkippedStep(record.name, why, record.seq, record.source))
        else:
            steps.append(CellStep(_name_once(record, used), record.source, record.ranks, record.first_line))
    steps, dropped = drop_pushed(steps, without)
    skipped.sort(key=lambda each: each.seq)
    left_out = [*map(str, skipped), *filter(None, [plan.note]), *faults, *dropped]
    source_by_cell = {step.name: step.source for step in steps if isinstance(step, CellStep)}
    pushed = [name for step in steps if isinstance(step, PushStep) for name in step.names]
    lost_name_notes = note_undefined_names(
        source_by_cell, {each.what: each.source for each in skipped if each.source}, pushed
    )
    shape = cluster.shape
    script = export_script(
        steps, name=path.name, process_count=shape.process_count, devices=shape.devices, left_out=left_out
    )
    nodes, each = shape.hosts, shape.ranks_per_host
    resources = _find_resources(cluster)
    batch = format_sbatch(path.name, nodes=nodes, tasks_per_node=each, resources=resources) if sbatch else ""
    return [*_write(path, script, left_out, batch), *(f"  note · {note}" for note in lost_name_notes)]


def _find_resources(cluster: Cluster) -> list[str]:
    """Return batch options for this cluster's Slurm resources; empty without Slurm."""
    if (cluster.shape.kind or cluster.shape.profile) != MhnbSlurm.kind:
        return []
    profile = cluster.profile or load_profile(cluster.shape.profile, cluster.options.reach)
    return list(batch_args(profile.settings.build_options(SlurmOptions)))


def export_notebook(notebook: Path, path: Path, *, sbatch: bool = False, without: Sequence[str] = ()) -> list[str]:
    """Export a notebook's `%%mhjax` cells; return the lines for the user.

    Raises:
        InvalidRequest: the file is not a notebook, a step cannot be expressed in a script, or the file must not be overwritten.
    """
    try:
        read: Any = json.loads(notebook.read_text(encoding="utf-8"))
        found = read_notebook(read, without)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{notebook} is not a notebook ({error}); expected an .ipynb file of format 4") from error
    except (AttributeError, ValueError) as error:
        raise InvalidRequest(f"{notebook}: {error}") from error
    except OSError as error:
        raise InvalidRequest(
            f"{notebook} cannot be read: {error.strerror}; expected the path of an .ipynb file"
        ) from error
    script = export_script(
        found.steps,
        name=path.name,
        process_count=found.process_count,
        devices=found.devices,
        left_out=found.left_out,
    )
    batch = format_sbatch(path.name, nodes=found.process_count, tasks_per_node=1) if sbatch else ""
    return _write(path, script, found.left_out, batch)


def _find_cells(without: Sequence[str], plan: ReplayPlan) -> set[int]:
    """Return mhnb's numbers of the cells that a user named."""
    counts = {step.seq: step.execution_count for step in plan.steps if isinstance(step, CellRecord)}
    arguments = [argument for text in without if (argument := parse_cell_argument(text)) is not None]
    return {seq for argument in arguments if (seq := find_cell(argument, counts)) is not None}


def _name_once(record: CellRecord, used: set[str]) -> str:
    """Return a unique cell name, because `%reset` makes a kernel count anew."""
    name = format_cell_name(record.seq, None) if record.name in used else record.name
    used.add(name)
    return name


def _skip_reason(record: CellRecord, left_out: Collection[int]) -> str:
    if record.seq in left_out:
        return "excluded by --without"
    if record.errors:
        return format_errors(record.errors)
    return ""


# -- pushed values


def _format_push(cluster: Cluster, record: PushRecord) -> dict[str, str]:
    try:
        packed = cluster.journal.read_push(record)
    except OSError as error:
        raise InvalidRequest(f"the values of push {' '.join(record.names)} cannot be read: {error}") from error
    sources = {str(value["name"]): _format_value(value, packed) for value in packed.values}
    return {name: text for name, text in sources.items() if text is not None}


def _format_value(value: dict[str, Any], packed: PushPayload) -> str | None:
    """Format a pushed value as Python; arrays must be whole and small."""
    parts = packed.parts
    arrays = [
        view_as(parts[part], shape, dtype_from_name(dtype), order) for part, shape, dtype, order in value["arrays"]
    ]
    try:
        value_object = load_value(parts[value["skeleton"]], arrays, [parts[part] for part in value["buffers"]])
    except MissingDefinition:
        return None
    if is_plain_array(value_object):
        return _write_array(value_object)
    return None if arrays else format_literal(value_object)


def _write_array(array: Any) -> str | None:
    if array.size > _ARRAY_ELEMENTS or array.dtype.kind not in "biufc":
        return None
    values = format_literal(array.tolist())
    return None if values is None else f"numpy.array({values}, dtype={array.dtype.name!r})"


# -- the files


def _write(path: Path, script: ExportedScript, left_out: Sequence[str], batch: str) -> list[str]:
    files = {path: script.text, **({path.with_suffix(".sbatch"): batch} if batch else {})}
    for file in files:
        # A device may have no end, so it is not read.
        if file.exists() and (
            not file.is_file() or EXPORT_MARK not in file.read_text(encoding="utf-8", errors="replace")
        ):
            raise InvalidRequest(f"{file} exists and is not an export of mhnb; choose another name, or move the file")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(
                f"{file} cannot be written: {error.strerror}; choose a file in an existing folder"
            ) from error
    lines = [f"mhjax · {file}: {len(text.splitlines())} lines" for file, text in files.items()]
    return [*lines, *(f"  left out · {each}" for each in left_out), *(f"  note · {note}" for note in script.notes)]
