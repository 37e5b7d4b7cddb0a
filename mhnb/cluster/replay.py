"""Repeat a journal's cells and pushes on fresh ranks, and compare them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mhnb.cluster import transfer
from mhnb.cluster.journal import make_replayed_record
from mhnb.core.cell_name import parse_cell_argument
from mhnb.core.journal import CellRecord, PushRecord, ReplayRecord
from mhnb.core.output.results import CellResult
from mhnb.core.replay import (
    ReplayPlan,
    ReplayReport,
    ReplayStep,
    describe_cure,
    describe_difference,
    find_replay_end,
    format_stop,
    plan_replay,
    step_name,
)
from mhnb.errors import InvalidRequest, MhnbError, ReplayStopped

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster


def check_replay(
    cluster: Cluster, to: int | str | None, *, replay: bool = True, this_generation: bool = False
) -> tuple[int | None, str]:
    """Check that a replay is possible, before anything is stopped.

    Args:
        cluster: the current one.
        to: the last cell to run: mhnb's number, or as a user names it; None for all.
        replay: whether there is a replay at all.
        this_generation: as of `plan_replay`.

    Returns:
        mhnb's number of the last cell, and a note if a user may have meant another one.

    Raises:
        InvalidRequest: the cell does not exist, or an argument came without a replay.
        ClusterError: the journal is gone.
    """
    if not replay:
        given = [*([f"--to {to}"] if to is not None else []), *(["--this-generation"] if this_generation else [])]
        if given:
            flags = " ".join(given)
            raise InvalidRequest(f"{flags} needs --replay\n  Fix: %mhjax restart --replay {flags}")
        return None, ""
    records, note = cluster.journal.read()[0], ""
    if isinstance(to, str):
        argument = parse_cell_argument(to)
        if argument is None:
            raise InvalidRequest(f"restart --replay --to {to!r}: expected a cell, such as In[7] or 7")
        to, note = find_replay_end(records, cluster.generation, argument, this_generation=this_generation)
    plan_replay(records, cluster.generation, to, this_generation=this_generation)
    return to, note


def replay(
    cluster: Cluster,
    to: int | None = None,
    on_step: Callable[[ReplayStep], None] | None = None,
    on_result: Callable[[CellResult], None] | None = None,
    on_wait: Callable[[], None] | None = None,
    *,
    this_generation: bool = False,
) -> ReplayReport:
    """Restore the previous state by repeating its steps on a fresh cluster.

    Args:
        cluster: fresh; nothing was run on it.
        to: the number of the last cell to run; None for all.
        on_step: called before each cell and push.
        on_result: called after each cell, also after one that behaved differently from before.
        on_wait: called in this thread at least once a second while a cell runs, and after each message of a push.
        this_generation: as of `plan_replay`.

    Raises:
        ReplayStopped: a cell behaved differently from before; `report` has what was done. The cluster stays as it is judged.
    """
    records, notes = cluster.journal.read()
    plan = plan_replay(records, cluster.generation, to, this_generation=this_generation)
    notes += filter(
        None, (plan.note, *map(cluster.journal.write_fault, range(plan.generations[0], cluster.generation)))
    )
    began = cluster.journal.now()
    run_cell = partial(_run_cell, cluster, notes=notes, on_result=on_result, on_wait=on_wait)
    done, stop_reason = _run_steps(plan, run_cell, partial(_repeat_push, cluster, on_wait=on_wait), on_step)
    duration_s = cluster.journal.now() - began
    cluster.replayed = report = ReplayReport(plan, done, duration_s, notes=tuple(notes), stop=stop_reason)
    stop_text = format_stop(report, cluster.state) if stop_reason else ""
    cluster.journal.write(
        ReplayRecord(cluster.generation, plan.generations[-1], to, complete=not stop_reason, told=stop_text)
    )
    if stop_reason:
        raise ReplayStopped(stop_text, report=report)
    return report


def _run_steps(
    plan: ReplayPlan,
    run_cell: Callable[[CellRecord], str],
    repeat_push: Callable[[PushRecord], str],
    on_step: Callable[[ReplayStep], None] | None,
) -> tuple[int, str]:
    """Run the steps; return the number that matched and the stop reason."""
    for at, step in enumerate(plan.steps):
        if on_step is not None:
            on_step(ReplayStep(step_name(step), at, plan))
        try:
            stop_reason = run_cell(step) if isinstance(step, CellRecord) else repeat_push(step)
        except MhnbError as error:
            stop_reason = f"{step_name(step)} was not repeated\n{error}"
        except KeyboardInterrupt:
            stop_reason = f"the replay was interrupted at {step_name(step)}"
        if stop_reason:
            return at, stop_reason
    return len(plan.steps), ""


def _run_cell(
    cluster: Cluster,
    before: CellRecord,
    *,
    notes: list[str],
    on_result: Callable[[CellResult], None] | None,
    on_wait: Callable[[], None] | None,
) -> str:
    """Run a cell again and note vanished errors; return a stop reason."""
    result = cluster.run_again(before, None if on_wait is None else lambda _: on_wait())
    if on_result is not None:
        on_result(result)
    if result.how == "interrupted":
        return f"the replay was interrupted in {before.name}"
    now = cluster.journal.find_cell(result.seq)
    differing = describe_difference(before, now)
    if not differing:
        notes += filter(None, [describe_cure(before, now)])
        return ""
    return "\n".join(
        [f"{before.name} behaved differently from before", differing, *_describe_new_errors(before, result)]
    )


def _describe_new_errors(before: CellRecord, result: CellResult) -> list[str]:
    """Return errors that were not raised before, and their hints, once each."""
    raised = [rank.error for rank in result.failed if rank.error and before.errors.get(rank.rank) != rank.error.ename]
    hints = (error.hint for error in raised if error.hint)
    return list(dict.fromkeys([*(f"now {error.ename}: {error.evalue}" for error in raised), *hints]))


def _repeat_push(cluster: Cluster, record: PushRecord, *, on_wait: Callable[[], None] | None) -> str:
    try:
        packed = cluster.journal.read_push(record)
    except OSError as error:
        return f"{step_name(record)} could not be repeated\n{error}"
    on_progress = None if on_wait is None else lambda *_: on_wait()
    write = partial(cluster.journal.write, make_replayed_record(record, cluster.generation))
    transfer.push_payload(cluster, packed, ranks=record.ranks, on_progress=on_progress, prepare_record=lambda: write)
    return ""
