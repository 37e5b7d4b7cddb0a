"""How ranks are asked of an mpiexec, as the words of one command: Open MPI's, or that of MPICH and its relatives.

mpiexec only starts and numbers the processes. They speak no MPI: JAX's own collectives need none, and no mpi4py is asked for.
It gives its standard input to the first process alone (Open MPI 4.1 takes `--stdin all` and hands the others nothing, MPICH 5 has no such
word), so what is secret lies in a file that its user alone can read. Knows no process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhnb.core.reach.chorus import PROBED
from mhnb.errors import InvalidRequest, LaunchError

__all__ = ["MpiOptions", "explain_mpiexec", "mpiexec_command", "read_flavour"]

_READ_FILE = f'unset SLURM_PROCID; exec < "$0" || exit; {PROBED}'
"""What each process runs first; the file's name follows. `read` leaves what stands after the line to be read.
In a batch job of Slurm every process has the number of the script, which is not its own."""


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """What is asked of mpiexec."""

    mpiexec: str = "mpiexec"
    """The program, where another is meant than the one on PATH."""
    extra: tuple[str, ...] = ()
    """Further words for it, before the program: `--allow-run-as-root`, `--mca`, `oob_tcp_if_include`, `10.0.0.0/8`."""


def read_flavour(version: str) -> str:
    """Say whose mpiexec it is, from what its --version says: `openmpi` or `hydra` (MPICH, Intel MPI, MVAPICH).

    Raises:
        LaunchError: neither.

    >>> read_flavour("mpiexec (OpenRTE) 4.1.4"), read_flavour("HYDRA build details:")
    ('openmpi', 'hydra')
    """
    if re.search(r"Open ?MPI|OpenRTE|PRRTE", version, re.IGNORECASE):
        return "openmpi"
    if re.search(r"hydra|intel\(r\) mpi|mpich", version, re.IGNORECASE):
        return "hydra"
    first = version.strip().splitlines()[:1]
    raise LaunchError(
        f"this mpiexec is neither Open MPI's nor MPICH's, it says {first[0] if first else 'nothing'!r}; "
        "name another one: --set mpiexec=/path/to/mpiexec"
    )


def mpiexec_command(
    options: MpiOptions, flavour: str, tasks: int, *, file: str, machines: Sequence[str] = ()
) -> list[str]:
    """Give the words of the command.

    Args:
        options: what is asked for.
        flavour: of `read_flavour`.
        tasks: a supervisor each.
        file: that each of them reads first.
        machines: one for each task, in order; empty: where mpiexec places them by itself.

    Raises:
        InvalidRequest: names that mpiexec could not tell apart from its own syntax.

    >>> mpiexec_command(MpiOptions(), "hydra", 2, file="f", machines=["a", "b"])[:7]
    ['mpiexec', '-n', '2', '-hosts', 'a,b', '-ppn', '1']
    """
    if wrong := [name for name in machines if re.search(r"[,:@\s]", name)]:
        raise InvalidRequest(
            f"host {wrong[0]!r}: mpiexec takes plain names; user and port stand in your ssh config, which it uses"
        )
    if flavour == "openmpi":
        words = ["-n", str(tasks), "--stdin", "none", "--bind-to", "none", "--tag-output"]
        # Several ranks on one core are what a laptop has; with names, one supervisor each.
        words += ["--host", ",".join(f"{name}:1" for name in machines)] if machines else ["--oversubscribe"]
    else:
        named = ["-hosts", ",".join(machines), "-ppn", "1"] if machines else []
        words = ["-n", str(tasks), *named, "-prepend-rank"]
    return [options.mpiexec, *words, *options.extra, "sh", "-c", _READ_FILE, file]


_CURES = (
    (
        r"allow-run-as-root|run.*as root",
        "mpiexec refuses to run as root: become another user, or --set extra=--allow-run-as-root",
    ),
    (
        r"not enough slots|There are not enough|more processes than slots",
        "ask for fewer ranks, or name more hosts; --oversubscribe among the extra options lets them share cores",
    ),
    (
        r"Permission denied|Host key verification|daemon.*(?:failed|unable)|was unable to launch|ORTE (?:does not|was unable)",
        "mpiexec must reach each host by ssh without a password: try ssh HOST hostname",
    ),
    (
        r"(?:cannot open|No such file|not open).*mpi\.start|mpi\.start: (?:No such file|Permission)",
        "the machines must see that file: set MHNB_HOME to a folder that they share, or reach them with --profile ssh",
    ),
    (r"no mhnb|No module named '?mhnb", "install mhnb into that very Python on each host, or name the one that has it"),
    (r"mhnb: no ", "name one that is on every host"),
)


def explain_mpiexec(lines: Sequence[str]) -> str:
    """Say why mpiexec ended, from what it wrote, and what to do; the last lines where it is not known.

    >>> explain_mpiexec(["mpiexec has detected an attempt to run as root."]).splitlines()[0]
    'mpiexec has detected an attempt to run as root.'
    """
    lines = [line for line in lines if "Warning:" not in line]
    for pattern, cure in _CURES:
        if found := [line for line in lines if re.search(pattern, line)]:
            return f"{found[0].strip()}\n  {cure}"
    return "\n    ".join(lines[-8:]) or "it said nothing"
