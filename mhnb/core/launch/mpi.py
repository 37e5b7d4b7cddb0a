"""Command lines that start ranks with mpiexec of Open MPI or MPICH.

mpiexec only starts and numbers the processes. They use no MPI: JAX's own collectives do not need it, and mpi4py is not required.
mpiexec passes its standard input to the first process only. Open MPI 4.1 accepts `--stdin all` and passes nothing to the
others; MPICH 5 has no such option. So secrets are in a file that only its user can read. This module starts no process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.launch.tasks import HOLD_FOR_TIME, make_task_script
from mhnb.errors import InvalidRequest, LaunchError

_FILE_SCRIPT = f'unset SLURM_PROCID; exec < "$0" || exit; {make_task_script(HOLD_FOR_TIME)}'
"""Run first by each process; the file's name follows. `read` leaves the text after its line unread.

In a batch job of Slurm every process has the task number of the script, which is not its own.
"""


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """The user's options for mpiexec."""

    mpiexec: str = "mpiexec"
    """The program, if it is not the one on PATH."""
    extra: tuple[str, ...] = ()
    """Further arguments, before the program: `--allow-run-as-root`, `--mca`, `oob_tcp_if_include`, `10.0.0.0/8`."""


def parse_implementation(version: str) -> str:
    """Parse mpiexec's --version into `openmpi` or `hydra` (MPICH, Intel MPI, MVAPICH).

    Raises:
        LaunchError: neither.

    >>> parse_implementation("mpiexec (OpenRTE) 4.1.4"), parse_implementation("HYDRA build details:")
    ('openmpi', 'hydra')
    """
    if re.search(r"Open ?MPI|OpenRTE|PRRTE", version, re.IGNORECASE):
        return "openmpi"
    if re.search(r"hydra|intel\(r\) mpi|mpich", version, re.IGNORECASE):
        return "hydra"
    first = version.strip().splitlines()[:1]
    raise LaunchError(
        f"unknown mpiexec, expected Open MPI or MPICH; it printed {first[0] if first else 'nothing'!r}\n"
        "  Fix: --set mpiexec=/path/to/mpiexec"
    )


def mpiexec_command(
    options: MpiOptions, implementation: str, tasks: int, *, file: str, machines: Sequence[str] = ()
) -> list[str]:
    """Return the command.

    Args:
        options: the user's options.
        implementation: of `parse_implementation`.
        tasks: the number of supervisors, one task each.
        file: that each of them reads first.
        machines: one for each task, in order; empty if mpiexec places the tasks by itself.

    Raises:
        InvalidRequest: a name contains characters that mpiexec would read as its own syntax.

    >>> mpiexec_command(MpiOptions(), "hydra", 2, file="f", machines=["a", "b"])[:7]
    ['mpiexec', '-n', '2', '-hosts', 'a,b', '-ppn', '1']
    """
    if wrong := [name for name in machines if re.search(r"[,:@\s]", name)]:
        raise InvalidRequest(
            f"host {wrong[0]!r}: mpiexec accepts only plain host names; put user and port into your ssh config, which it uses"
        )
    if implementation == "openmpi":
        arguments = ["-n", str(tasks), "--stdin", "none", "--bind-to", "none", "--tag-output"]
        # On a laptop several ranks share one core. With names, each host runs one supervisor.
        arguments += ["--host", ",".join(f"{name}:1" for name in machines)] if machines else ["--oversubscribe"]
    else:
        named = ["-hosts", ",".join(machines), "-ppn", "1"] if machines else []
        arguments = ["-n", str(tasks), *named, "-prepend-rank"]
    return [options.mpiexec, *arguments, *options.extra, "sh", "-c", _FILE_SCRIPT, file]


_HINTS = (
    (
        r"allow-run-as-root|run.*as root",
        "mpiexec refuses to run as root: use another user, or add --set extra=--allow-run-as-root",
    ),
    (
        r"not enough slots|There are not enough|more processes than slots",
        "start fewer ranks, add hosts, or let ranks share cores: --set extra=--oversubscribe",
    ),
    (
        r"Permission denied|Host key verification|daemon.*(?:failed|unable)|was unable to launch|ORTE (?:does not|was unable)",
        "mpiexec needs passwordless ssh to each host; test with: ssh HOST hostname",
    ),
    (
        r"(?:cannot open|No such file|not open).*mpi\.start|mpi\.start: (?:No such file|Permission)",
        "all machines need that file: set MHNB_HOME to a shared folder, or use --profile ssh",
    ),
    (
        r"no mhnb|No module named '?mhnb",
        "install mhnb into that Python on each host, or choose one that has it with --python, --venv or --conda",
    ),
    (r"mhnb: no ", "choose one that exists on every host"),
)


def explain_mpiexec(lines: Sequence[str]) -> str:
    """Explain why mpiexec ended, with a fix; else return its last lines.

    >>> explain_mpiexec(["mpiexec has detected an attempt to run as root."]).splitlines()[0]
    'mpiexec has detected an attempt to run as root.'
    """
    lines = [line for line in lines if "Warning:" not in line]
    for pattern, hint in _HINTS:
        if found := [line for line in lines if re.search(pattern, line)]:
            return f"{found[0].strip()}\n  {hint}"
    return "\n    ".join(lines[-8:]) or "it printed nothing"
