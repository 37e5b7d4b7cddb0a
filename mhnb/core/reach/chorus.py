"""Parse the interleaved output of several probes, which one srun or mpiexec carries, line by line.

Each launcher marks the lines in its own way and breaks long ones. So a probe writes its number in every line, and a long
answer comes in parts. This module uses no process and no file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["AnswerChunk", "OtherOutput", "PROBE_SCRIPT", "ProbeExited", "parse_probe_line"]

PROBE_SCRIPT = (
    '(IFS= read -r line && eval "$line") || '
    '{ echo "mhnb-probe ${SLURM_PROCID-${OMPI_COMM_WORLD_RANK-${PMIX_RANK-$PMI_RANK}}} gone $? $(uname -n)"; '
    'exec cat >/dev/null; }; IFS= read -r line && eval "$line"'
)
"""Run by each task: a line of shell that is the probe, and after its success a second line that becomes the supervisor.

If the probe cannot run, the task reports this and waits for the end. If it ended first, srun would end the other tasks
before they had answered.
"""

_TAG = re.compile(r"\s*(?:\[\d+,(\d+)\]<\w+>:\s?|\[(\d+)\] ?|(\d+): )")
_CHUNK = re.compile(r"mhnb-probe (\d+) (\d+) (\d+)/(\d+) (\d+) (.*)")
_EXITED = re.compile(r"mhnb-probe (\d+) gone (\d+) (\S*)")


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """A part of a probe's answer."""

    task: int
    request: int
    index: int
    """The number of the part, from 0."""
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class ProbeExited:
    """A probe that ended too early."""

    task: int
    code: int
    hostname: str


@dataclass(frozen=True, slots=True)
class OtherOutput:
    """Any other output."""

    task: int | None
    """None if the launcher itself wrote it, or did not mark the task."""
    text: str


def parse_probe_line(line: str) -> AnswerChunk | ProbeExited | OtherOutput:
    """Parse one line, as Slurm (`3: `), Open MPI (`[1,3]<stdout>:`) or MPICH (`[3] `) has marked it.

    >>> parse_probe_line("[1,0]<stdout>:mhnb-probe 0 2 0/1 4 null[1,0]<stdout>:")
    AnswerChunk(task=0, request=2, index=0, count=1, text='null')
    >>> parse_probe_line("[1,3]<stderr>:mhnb: no python: py")
    OtherOutput(task=3, text='mhnb: no python: py')
    """
    if chunk := _CHUNK.search(line):
        task, request, index, count, length = map(int, chunk.groups()[:5])
        # The text after it is Open MPI's, which may mark the empty rest of a line too.
        return AnswerChunk(task, request, index, count, chunk.group(6)[:length])
    if exited := _EXITED.search(line):
        return ProbeExited(int(exited.group(1)), int(exited.group(2)), exited.group(3))
    tag = _TAG.match(line)
    if tag is None:
        return OtherOutput(None, line.strip())
    return OtherOutput(int(tag.group(1) or tag.group(2) or tag.group(3)), line[tag.end() :].strip())
