"""Tasks of srun or mpiexec that become supervisors: script and failures.

Each launcher marks the lines of its tasks in its own way. This module starts no process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mhnb.core.launch.hosts import HostName
from mhnb.core.launch.ssh import LOGGED_IN, SshOptions, build_ssh_error, explain_ssh
from mhnb.errors import LaunchError

_NUMBER = "${SLURM_PROCID-${OMPI_COMM_WORLD_RANK-${PMIX_RANK-$PMI_RANK}}}"
_HOLD_S = 60


def make_task_script(hold: str) -> str:
    """Return a task's script, which runs a line from standard input.

    A task that fails reports it and waits a while: at its end the launcher ends the other tasks, which are to report before.

    Args:
        hold: the command that waits.
    """
    return (
        'IFS= read -r line && (eval "$line") || { code=$?; '
        f'echo "mhnb-task {_NUMBER} failed $code $(uname -n)"; {hold}; exit $code; }}'
    )


HOLD_FOR_INPUT = f"timeout {_HOLD_S} cat >/dev/null"
"""Waits at most until the end of standard input: a job that is kept must not go on by the wait alone."""
HOLD_FOR_TIME = f"n={_HOLD_S}; while [ $n -gt 0 ]; do sleep 1; n=$((n-1)); done"
"""For tasks whose standard input is a file. Many short waits, because the one that runs outlives a shell that is killed."""

_TAG = re.compile(r"\s*(?:\[\d+,(\d+)\]<\w+>:\s?|\[(\d+)\] ?|(\d+): )")
_FAILED = re.compile(r"mhnb-task (\d+) failed (\d+) (\S*)")


@dataclass(slots=True)
class TaskOutput:
    """Output of one launcher's tasks, and which of them failed.

    >>> output = TaskOutput()
    >>> output.read(["[1,3]<stderr>:mhnb: logged in", "[1,3]<stderr>:mhnb: no python: py", "mhnb-task 3 failed 127 beta"])
    >>> str(output.failures(SshOptions(), "log")[3]).splitlines()[0]
    'beta: has no such Python: no python: py'
    """

    _lines: dict[int, list[str]] = field(default_factory=dict)
    _ends: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The exit code and the machine of each task that has failed."""

    def read(self, lines: Iterable[str]) -> None:
        """Read lines tagged with task numbers by Slurm, Open MPI or MPICH.

        The tags are `3: `, `[1,3]<stdout>:` and `[3] `, in this order.
        """
        for line in lines:
            tag = _TAG.match(line)
            if failed := _FAILED.search(line):
                self._ends[int(failed[1])] = int(failed[2]), failed[3]
            elif tag is not None:
                number = int(tag[1] or tag[2] or tag[3])
                self._lines.setdefault(number, []).append(line[tag.end() :].strip())

    def failures(self, options: SshOptions, log: str) -> dict[int, LaunchError]:
        """Return why tasks have failed, by their numbers.

        Args:
            options: of the remote side.
            log: the file that has all that they wrote.
        """
        found = {}
        for number, (code, machine) in self._ends.items():
            host, text = HostName(machine or f"host{number}"), "\n".join([LOGGED_IN, *self._lines.get(number, [])])
            found[number] = build_ssh_error(explain_ssh(text, code, host, options), host, log)
        return found


def is_task_report(line: str) -> bool:
    """Check whether a line is mhnb's own and not for users.

    >>> is_task_report("3: mhnb-task 3 failed 1 beta"), is_task_report("srun: error: beta: task 3: Killed")
    (True, False)
    """
    return line.endswith(LOGGED_IN) or _FAILED.search(line) is not None
