"""Hold a Slurm allocation separately from the steps in it, so that a restart ends the step and keeps the machines.

One salloc makes the allocation and runs a local program that only waits. Each generation of ranks is a separate srun in it.
This module starts no process.
"""

from __future__ import annotations

import re

from mhnb.core.reach.slurm import SlurmOptions, allocation_args, placement_args, srun_command

__all__ = ["REQUEUE_NOTE", "allocation_command", "step_command"]

REQUEUE_NOTE = """\
a kept job of Slurm ends with its ranks, since no notebook need be there to release it:
  the restart asks for machines again, and may have to wait for them"""
"""Shown for a restart that has to queue."""

_HOLD_SCRIPT = 'echo "$SLURM_JOB_ID" > "$0.new" && mv "$0.new" "$0" && exec cat > /dev/null'
"""Runs locally in the allocation: writes the job's number and waits for the end of standard input. The file's name follows."""
_STEP_SCRIPT = 'while ! [ -s "$0" ]; do sleep 0.2; done; srun=$1; shift; exec "$srun" --jobid="$(cat "$0")" "$@"'
"""Waits for that number, however long the job is queued, then becomes the srun. The file's name and srun's arguments follow."""
_STEP_ONLY_OPTIONS = re.compile(
    r"--(?:accel-bind|bcast|compress|cpu-bind|cpu_bind|disable-status|epilog|error|exact|export|gpu-bind|het-group|input|interactive|"
    r"kill-on-bad-exit|label|mem-bind|mem_bind|mpi|multi-prog|output|overlap|preserve-env|prolog|propagate|pty|quit-on-interrupt|"
    r"relative|resv-ports|slurmd-debug|task-epilog|task-prolog|treewidth|tres-bind|unbuffered|wait|whole|X11|x11)(?:=.*)?"
    r"|-[eilorTuXZE].*"
)
"""Options of srun that salloc does not know."""
_ALLOCATION_ONLY_OPTIONS = re.compile(
    r"--(?:exclusive|no-kill|reservation|constraint|begin|deadline|dependency)(?:=.*)?|-C.*|-[ks]"
)
"""Options that apply to an allocation, and mean something else or nothing for a step."""


def allocation_command(
    options: SlurmOptions, tasks: int, *, ranks_per_task: int = 1, name: str = "mhnb", file: str
) -> list[str]:
    """Return the command that requests machines and holds them until standard input ends.

    Args:
        options: the requested resources.
        tasks: the number of supervisors, one task each.
        ranks_per_task: as for `srun_command`.
        name: of the job.
        file: on this machine; contains the job's number as soon as machines are allocated.

    >>> allocation_command(SlurmOptions(extra=("--exclusive", "--mpi=none")), 2, file="f")[:5]
    ['salloc', '--no-bell', '--job-name=mhnb', '--ntasks=2', '--exclusive']
    """
    folder, slash, _ = options.srun.rpartition("/")
    arguments = [f"{folder}{slash}salloc", "--no-bell", f"--job-name={name}", f"--ntasks={tasks}"]
    arguments += [*allocation_args(options), *placement_args(options, tasks, ranks_per_task)]
    arguments += [word for word in options.extra if not _STEP_ONLY_OPTIONS.fullmatch(word)]
    return [*arguments, "sh", "-c", _HOLD_SCRIPT, file]


def step_command(
    options: SlurmOptions, tasks: int, *, ranks_per_task: int = 1, name: str = "mhnb", file: str
) -> list[str]:
    """Return the command that starts the supervisors in an allocation, once it exists.

    Args:
        options: the requested resources.
        tasks: the number of supervisors, one task each.
        ranks_per_task: as for `srun_command`.
        name: of the step.
        file: of the allocation.

    >>> step_command(SlurmOptions(extra=("--exclusive",)), 2, file="f")[3:8]
    ['f', 'srun', '--job-name=mhnb', '--ntasks=2', '--overlap']
    """
    extra = tuple(word for word in options.extra if not _ALLOCATION_ONLY_OPTIONS.fullmatch(word))
    arguments = srun_command(options, tasks, ranks_per_task=ranks_per_task, name=name, is_step=True, extra=extra)
    return ["sh", "-c", _STEP_SCRIPT, file, *arguments]
