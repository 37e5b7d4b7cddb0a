"""Slurm command lines, and parsers for the output of squeue and srun.

One srun makes the allocation, starts all tasks, and gives every task its own standard input. So secrets are neither in the
arguments, nor in the environment, nor in a file. Inside an allocation the same srun is a step of it.

A held allocation is separate from the steps in it, so that a restart ends the step and keeps the machines. One salloc makes the
allocation and runs a local program that only waits. Each generation of ranks is a separate srun in it.
This module starts no process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mhnb.core.launch.tasks import HOLD_FOR_INPUT, make_task_script
from mhnb.errors import InvalidRequest

QUEUE_FORMAT = "%i|%T|%r|%P|%j"
"""For squeue's --format: number, state, reason, partition, name."""

_WAITING_STATES = ("PENDING", "CONFIGURING")
_REQUEST_LESS = (
    "it may never start: interrupt it and request fewer ranks, nodes, GPUs, CPUs or less time (sinfo -o '%P %l %D %c')"
)
_OTHER_ACCOUNT = "it may never start: interrupt it and use another --account, --partition or --qos"
_HOPELESS_REASONS = {
    "AccountNotAllowed": _OTHER_ACCOUNT,
    "BadConstraints": _REQUEST_LESS,
    "InvalidAccount": _OTHER_ACCOUNT,
    "InvalidQOS": _OTHER_ACCOUNT,
    "PartitionConfig": _REQUEST_LESS,
    "PartitionNodeLimit": _REQUEST_LESS,
    "PartitionTimeLimit": _REQUEST_LESS,
    "QOSNotAllowed": _OTHER_ACCOUNT,
}
"""Reasons that waiting seldom resolves. Slurm rejects such jobs only if its site says so; nodes that are down can be why, too."""
_TIME = re.compile(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|(?i:unlimited|infinite)")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Resources requested from Slurm; None defers to the site's defaults.

    Raises:
        InvalidRequest: a count, a time or an extra option is not possible.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """Limit of the job, as Slurm writes it: `30` (minutes), `2:00:00`, `1-12`."""
    nodes: int | None = None
    """Machines to spread the ranks over; None for Slurm's own placement.

    With several ranks per host, each host has its own machine.
    """
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    memory: str | None = None
    """Per machine, such as `16G`."""
    constraint: str | None = None
    extra: tuple[str, ...] = ()
    """Further options of srun, one word each: `--exclusive`, `--reservation=class`. They come last, so they win."""
    srun: str = "srun"
    """The program, if PATH does not have it under this name."""

    def __post_init__(self) -> None:
        for name in ("nodes", "cpus_per_rank", "gpus_per_rank"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InvalidRequest(f"{name}={count}: expected a number from 1; leave it out for Slurm's default")
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise InvalidRequest(
                f"time={self.time!r}: expected minutes, hours:minutes:seconds or days-hours, for example 30, 2:00:00 or 1-12"
            )
        if wrong := [word for word in self.extra if not word.startswith("-")]:
            raise InvalidRequest(
                f"extra: {wrong[0]!r} is not an srun option; write each as one word, for example --reservation=class"
            )


def is_inside_job(environment: Mapping[str, str]) -> bool:
    """Check whether this process is inside a Slurm allocation.

    >>> is_inside_job({"SLURM_JOB_ID": "7"})
    True
    """
    return bool(environment.get("SLURM_JOB_ID"))


def srun_command(
    options: SlurmOptions,
    tasks: int,
    *,
    ranks_per_task: int = 1,
    name: str = "mhnb",
    is_step: bool = False,
    extra: Sequence[str] | None = None,
) -> list[str]:
    """Return the command.

    Args:
        options: the requested resources.
        tasks: the number of supervisors, one task each.
        ranks_per_task: if more than one, each task has a machine to itself, and the resources of all its ranks.
        name: of the job, for squeue.
        is_step: whether this is a step in an existing allocation; options that only an allocation has are left out.
        extra: the user's own options, if only some of them apply.

    Raises:
        InvalidRequest: the number of nodes differs from that of the hosts with several ranks each.

    >>> srun_command(SlurmOptions(partition="gpu"), 2)[:4]
    ['srun', '--job-name=mhnb', '--ntasks=2', '--partition=gpu']
    """
    arguments = [options.srun, f"--job-name={name}", f"--ntasks={tasks}"]
    arguments += list(allocation_args(options)) if not is_step else ["--overlap"]
    arguments += list(placement_args(options, tasks, ranks_per_task))
    # Every task reads the same input, its lines in the log have its number, and a task that ends with a failure ends all.
    arguments += ["--input=all", "--label", "--kill-on-bad-exit=1", "--mpi=none"]
    return [*arguments, *(options.extra if extra is None else extra), "sh", "-c", make_task_script(HOLD_FOR_INPUT)]


def allocation_args(options: SlurmOptions) -> Iterator[str]:
    """Yield the options that only an allocation has.

    >>> list(allocation_args(SlurmOptions(partition="gpu", time="30")))
    ['--partition=gpu', '--time=30']
    """
    requested = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "time": options.time,
        "constraint": options.constraint,
    }
    yield from (f"--{name}={value}" for name, value in requested.items() if value is not None)


def placement_args(options: SlurmOptions, tasks: int, ranks_per_task: int) -> Iterator[str]:
    """Yield the options for the tasks' placement and resources.

    Raises:
        InvalidRequest: the number of nodes differs from that of the hosts with several ranks each.

    >>> list(placement_args(SlurmOptions(cpus_per_rank=2), 3, 4))
    ['--nodes=3', '--ntasks-per-node=1', '--cpus-per-task=8']
    """
    if ranks_per_task > 1 and options.nodes not in (None, tasks):
        raise InvalidRequest(
            f"--nodes {options.nodes} does not fit: {tasks * ranks_per_task} ranks with {ranks_per_task} per host need {tasks} nodes"
        )
    if ranks_per_task > 1:
        yield from (f"--nodes={tasks}", "--ntasks-per-node=1")
    elif options.nodes is not None:
        yield f"--nodes={options.nodes}"
    if options.cpus_per_rank is not None:
        yield f"--cpus-per-task={options.cpus_per_rank * ranks_per_task}"
    if options.gpus_per_rank is not None:
        yield f"--gpus-per-task={options.gpus_per_rank * ranks_per_task}"
    if options.memory is not None:
        yield f"--mem={options.memory}"


def batch_args(options: SlurmOptions) -> Iterator[str]:
    """Yield options of a batch job with one task per rank.

    They request the same resources, without the number of nodes.

    >>> list(batch_args(SlurmOptions(qos="high", gpus_per_rank=1)))
    ['--qos=high', '--gpus-per-task=1']
    """
    yield from allocation_args(options)
    yield from placement_args(replace(options, nodes=None), 1, 1)


def describe_queue(text: str, name: str) -> str:
    r"""Describe a job's position in the queue; empty if not waiting.

    Args:
        text: of `squeue --noheader --sort=-p,i --format=QUEUE_FORMAT`, the next to run first.
        name: of the job.

    >>> describe_queue("7|PENDING|Resources|debug|a\n8|PENDING|Priority|debug|b\n", "b")
    'Slurm job 8 is PENDING (Priority), number 2 of 2 waiting in debug'
    """
    rows = [line.split("|", 4) for line in text.splitlines() if line.count("|") >= 4]
    waiting = [row for row in rows if row[1] in _WAITING_STATES]
    own = next((row for row in waiting if row[4] == name), None)
    if own is None:
        return ""
    number, state, reason, partition, _ = own
    same = [row for row in waiting if row[3] == partition]
    why = f" ({reason})" if reason not in ("", "None") else ""
    hopeless = f"; {_HOPELESS_REASONS[reason]}" if reason in _HOPELESS_REASONS else ""
    position = f"number {same.index(own) + 1} of {len(same)} waiting in {partition}"
    return f"Slurm job {number} is {state}{why}, {position}{hopeless}"


_SRUN_HINTS = (
    (r"[Ii]nvalid partition", "list the partitions with sinfo; choose another one with --partition"),
    (r"[Ii]nvalid account", "list your accounts with sacctmgr show user $USER withassoc; choose one with --account"),
    (r"[Ii]nvalid qos", "list them with sacctmgr show qos; choose one with --qos"),
    (r"[Ii]nvalid feature", "list the features with sinfo -o '%n %f'; choose others with --constraint"),
    (r"time limit specification|[Rr]equested time limit is invalid", "list the limits with sinfo -o '%P %l'; choose another --time"),
    (r"Memory specification", "list the memory of each machine (in MB) with sinfo -o '%n %m'; request less with --mem"),
    (
        (
            r"[Nn]ode configuration is not available|[Mm]ore processors requested"
            r"|(?:[Nn]ode count|gres\)) specification"
        ),
        "request fewer ranks, nodes, GPUs (--gpus-per-rank) or CPUs; list the machines with sinfo -N -l",
    ),
    (r"DUE TO TIME LIMIT|time limit", "the job reached its time limit; start again with a longer --time"),
    (r"DUE TO PREEMPTION|preempt", "another job took the machines; start again"),
    (r"DUE TO NODE FAILURE|Node failure", "a machine went down; start again"),
    (r"[Uu]nable to contact slurm controller|Communication connection failure", "slurmctld does not respond; check with scontrol ping"),
    (r"recognized option|invalid option|Invalid --", "fix that option; srun --help lists the valid ones"),
    (r"no mhnb|No module named '?mhnb", "install mhnb into that Python, or choose one that has it with --python, --venv or --conda"),
    (r"mhnb: no ", "choose one that exists on the nodes"),
)  # fmt: skip


def explain_srun(lines: Sequence[str]) -> str:
    r"""Explain why srun ended, with a fix; else return its last lines.

    >>> explain_srun(["srun: error: invalid partition specified: x"])
    'invalid partition specified: x\n  list the partitions with sinfo; choose another one with --partition'
    """
    for pattern, hint in _SRUN_HINTS:
        if found := [line for line in lines if re.search(pattern, line)]:
            message = re.sub(
                r"^(?:\d+: )?(?:srun: |salloc: |slurmstepd: |\w+: (?=error))*(?:error: |fatal: |mhnb: )*", "", found[0]
            )
            return f"{message}\n  {hint}"
    return "\n    ".join(lines[-8:]) or "it printed nothing"


# -- hold a Slurm allocation beyond its steps


REQUEUE_NOTE = """\
with --keep, a Slurm job ends with its ranks, because no notebook may be there to release it:
  the restart requests machines again, and may have to wait for them"""
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
    """Return the salloc command that holds machines until standard input ends.

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
    """Return the command that starts supervisors once an allocation exists.

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
